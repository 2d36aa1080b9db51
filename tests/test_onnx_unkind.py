"""Models that are not sound: a sentence that names the node, or the file, and nothing else."""

import random

import numpy as np
import onnx
import pytest
from command_line import run
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx_mutants import OPSET, model, of_bytes, of_fields, value

from convalgos.onnx.operators import ops
from convalgos.tools.bench.onnx_model import read_model

MUTANTS = 400


def save(path, nodes, functions=()):
    graph = helper.make_graph(
        nodes, "g", [value("x", (1, 3, 8, 8))], [value("y", None)],
        [onnx.numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w")],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=OPSET, functions=functions, ir_version=8)
    path.write_bytes(made.SerializeToString())
    return path


@pytest.mark.parametrize("seed", range(4))
def test_mutants_are_read_or_refused_in_a_sentence(tmp_path, seed):
    path, good = tmp_path / "mutant.onnx", model().SerializeToString()
    read, refused = 0, 0
    for i in range(MUTANTS // 4):
        rng = random.Random(1000 * seed + i)
        path.write_bytes(of_bytes(good, rng) if i % 2 else of_fields(rng))
        try:
            _, skipped = read_model(path, rng.choice((None, None, 3)))
        except (ValueError, OSError) as error:
            refused += 1
            assert "\n" not in str(error) and str(error).startswith(f"{path} cannot be read as an ONNX model")
        else:
            read += 1
            assert all(reason and "\n" not in reason for reason in skipped.values())
    assert read > 20 and refused > 20  # the mutants are neither all sound nor all beyond reading


ATTRIBUTES = [
    ({"foo": 1}, "attribute 'foo' is none of the operator's"),
    ({"groups": 1}, "did you mean group?"),
    ({"auto_pad": 3}, "auto_pad=3 must be one of NOTSET, VALID"),
    ({"auto_pad": "SAME"}, "auto_pad='SAME' must be one of NOTSET, VALID"),
    ({"strides": "a"}, "strides='a' must be a list of whole numbers"),
    ({"strides": [1.5, 1.0]}, "must be a list of whole numbers"),
    ({"strides": [1]}, "strides=[1] must have 2 numbers of at least 1"),
    ({"strides": [2**62, 1]}, "is beyond 2147483647"),
    ({"dilations": [0, 1]}, "dilations=[0, 1] must have 2 numbers of at least 1"),
    ({"pads": 3}, "pads=3 must be a list of whole numbers"),
    ({"pads": [1, 1, 1]}, "pads=[1, 1, 1] must have 4 numbers"),
    ({"group": [1]}, "group=[1] must be a whole number"),
    ({"group": 0}, "group=0 must be a whole number of at least 1"),
    ({"kernel_shape": [5, 5]}, "kernel_shape=[5, 5] must be that of the filter"),
]


def of_op(op, inputs, attributes):
    return helper.make_node(op, inputs, ["y"], name="[/n1]", **attributes)


def evaluated(op, inputs, attributes):
    """What our operator says of a node."""
    arrays = {
        "x": np.ones((1, 3, 8, 8), np.float32),
        "w": np.ones((4, 3, 3, 3), np.float32),
        "t": np.ones((3, 4, 3, 3), np.float32),
    }
    graph = helper.make_graph(
        [of_op(op, inputs, attributes)], "g", [value(name, None) for name in arrays], [value("y", None)]
    )
    made = helper.make_model(graph, opset_imports=OPSET, ir_version=8)
    return ReferenceEvaluator(made, new_ops=ops("cpu.reference")).run(None, arrays)[0]


@pytest.mark.parametrize(("attributes", "message"), ATTRIBUTES)
@pytest.mark.parametrize(("op", "filter"), [("Conv", "w"), ("ConvTranspose", "t")])
def test_our_operators_name_the_node_and_what_is_wrong(op, filter, attributes, message):
    with pytest.raises(ValueError) as refused:
        evaluated(op, ["x", filter], attributes)
    assert str(refused.value).startswith(f"{op} node '[/n1]': ") and message in str(refused.value)


@pytest.mark.parametrize("inputs", [[], ["x"], ["x", ""], ["x", "w", "w", "x"]])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_our_operators_name_the_node_whose_inputs_are_wrong(op, inputs):
    with pytest.raises(
        ValueError, match=r"node '\[/n1\]': it must have an input, a filter and perhaps a bias"
    ):
        evaluated(op, inputs, {})


def test_the_transpose_of_a_filter_for_other_channels_is_refused():
    with pytest.raises(ValueError, match=r"filter \(4, 3, 3, 3\) must have the 3 channels of its input"):
        evaluated("ConvTranspose", ["x", "w"], {})
    with pytest.raises(ValueError, match="in 2 groups"):
        evaluated("ConvTranspose", ["x", "t"], {"group": 2})


@pytest.mark.parametrize(("attributes", "message"), ATTRIBUTES)
def test_a_node_of_a_file_is_named(tmp_path, attributes, message):
    path = save(tmp_path / "m.onnx", [of_op("Conv", ["x", "w"], attributes)])
    try:
        layers, skipped = read_model(path)
    except ValueError as error:  # what does not fit the shapes stops ONNX's own inference, for all nodes
        assert "[/n1]" in str(error) and "cannot be read" in str(error)
        assert attributes.keys() <= {"pads", "strides", "dilations", "kernel_shape"}
    else:
        assert not layers and message in skipped["[/n1]"]


def test_a_node_without_a_filter_is_skipped(tmp_path):
    for inputs, count in ((["x"], 1), ([], 0)):
        layers, skipped = read_model(save(tmp_path / "m.onnx", [of_op("Conv", inputs, {})]))
        assert not layers and skipped["[/n1]"].startswith(f"it has {count} inputs")


def nested(depth, width):
    """A function for each level, that calls the next one `width` times."""
    functions = []
    for level in range(depth):
        called = f"F{level + 1}" if level + 1 < depth else "Relu"
        domain = "my.ops" if level + 1 < depth else ""
        names = ["a", *(f"t{i}" for i in range(width - 1)), "r"]
        body = [helper.make_node(called, [names[i]], [names[i + 1]], domain=domain) for i in range(width)]
        functions.append(helper.make_function("my.ops", f"F{level}", ["a"], ["r"], body, OPSET))
    return functions


def test_functions_that_stand_for_too_many_nodes_are_refused_at_once(tmp_path):
    call = helper.make_node("F0", ["x"], ["y"], domain="my.ops")
    path = save(tmp_path / "bomb.onnx", [call], nested(30, 4))
    assert path.stat().st_size < 10_000
    with pytest.raises(
        ValueError, match=r"its functions stand for 1,152,921,504,606,846,976 nodes of .* bytes; at most"
    ):
        read_model(path)
    deep = save(tmp_path / "deep.onnx", [call], nested(200, 1))
    with pytest.raises(ValueError, match="call each other more than 100 deep"):
        read_model(deep)
    again = helper.make_function(
        "my.ops", "F0", ["a"], ["r"], [helper.make_node("F0", ["a"], ["r"], domain="my.ops")], OPSET
    )
    with pytest.raises(ValueError, match="call each other for ever: F0 -> F0"):
        read_model(save(tmp_path / "loop.onnx", [call], [again]))
    layers, skipped = read_model(save(tmp_path / "fine.onnx", [call, *model().graph.node[:1]], nested(5, 2)))
    assert len(layers) == 1 and not skipped


def test_bytes_that_functions_stand_for_are_counted_too(tmp_path):
    large = onnx.numpy_helper.from_array(np.zeros(2**18, np.float32), "k")
    functions = nested(6, 5)
    functions[-1].node.insert(0, helper.make_node("Constant", [], ["k"], value=large))
    call = helper.make_node("F0", ["x"], ["y"], domain="my.ops")
    with pytest.raises(
        ValueError, match=r"stand for 18,750 nodes of 3,\d+,\d+,\d+ bytes; at most 100,000 nodes"
    ):
        read_model(save(tmp_path / "heavy.onnx", [call], functions))


def test_the_command_says_what_is_wrong_with_a_file(tmp_path):
    path = save(tmp_path / "m.onnx", [of_op("Conv", ["x"], {})])
    found = run("bench", path, "--peers", "none", status=2)
    assert "skipped [/n1]: it has 1 inputs; a Conv has an input, a filter" in found.stdout
    assert "has no convolution to run" in found.stderr
    for content, words in (
        (b"\x08", "Error parsing"),
        (b"", "it holds no graph"),
        (model().SerializeToString()[:99], "Error"),
    ):
        path.write_bytes(content)
        told = run("explain", path, status=2).stderr
        assert f"{path} cannot be read as an ONNX model" in told and words in told and told.count("\n") == 1


def test_a_shape_that_is_open_is_told(tmp_path):
    found = model()
    found.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    path = tmp_path / "open.onnx"
    path.write_bytes(found.SerializeToString())
    _, skipped = read_model(path)
    assert skipped["one"] == "the shape (1, 3, height, 8) of its input 'x' is not all numbers"


def test_element_types_that_are_none(tmp_path):
    found = model()
    found.graph.initializer[0].data_type = 27
    found.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    path = tmp_path / "odd.onnx"
    path.write_bytes(found.SerializeToString())
    try:
        _, skipped = read_model(path)
    except ValueError as error:
        assert "cannot be read" in str(error)
    else:
        assert skipped["one"] == "its element type is UINT8"
