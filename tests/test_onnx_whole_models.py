"""Models of strings and lists: ONNX Runtime runs them in sessions, and networks tell that they cannot."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from convalgos.core.errors import Unsupported  # noqa: E402
from convalgos.network import from_onnx  # noqa: E402
from convalgos.network.graph import Foreign  # noqa: E402
from convalgos.onnx import Session  # noqa: E402

OPSET = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
value = helper.make_tensor_value_info


def model(nodes, inputs, outputs, initializers=()):
    graph = helper.make_graph(nodes, "g", inputs, outputs, [*initializers])
    return helper.make_model(graph, opset_imports=OPSET, ir_version=10)


def labels():
    """Strings to whole numbers, and numbers to their double."""
    nodes = [
        helper.make_node(
            "LabelEncoder", ["s"], ["i"], domain="ai.onnx.ml", keys_strings=["a", "b"], values_int64s=[7, 8]
        ),
        helper.make_node("Add", ["x", "x"], ["y"]),
    ]
    inputs = [value("s", TensorProto.STRING, ["n"]), value("x", TensorProto.FLOAT, ["n", 2])]
    return model(nodes, inputs, [value("i", TensorProto.INT64, ["n"]), value("y", TensorProto.FLOAT, None)])


@pytest.mark.parametrize("strings", [["b", "a"], np.array(["b", "a"]), np.array(["b", "a"], object)])
def test_strings_as_arrays_and_lists(tmp_path, strings):
    onnx.save(labels(), tmp_path / "labels.onnx")
    session = Session(tmp_path / "labels.onnx")
    theirs = ort.InferenceSession(labels().SerializeToString())
    for name in ("get_inputs", "get_outputs"):
        told = [(v.name, v.type, list(v.shape)) for v in getattr(theirs, name)()]
        assert [(v.name, v.type, v.shape) for v in getattr(session, name)()] == told
    x = np.ones((2, 2), "f4")
    found = session.run(None, {"s": strings, "x": x})
    assert found[0].tolist() == [8, 7] and (found[1] == 2).all()
    assert session.run(["y"], {"s": strings, "x": x.tolist()})[0].shape == (2, 2)


def test_what_a_network_cannot_do_is_told(tmp_path):
    onnx.save(labels(), tmp_path / "labels.onnx")
    with pytest.raises(Unsupported, match="moves strings, 's'"):
        from_onnx(labels())
    session = Session(labels())
    with pytest.raises(Unsupported, match="moves strings, 's': ONNX Runtime runs it as a whole"):
        _ = session.network
    with pytest.raises(ValueError, match=r"x.* are missing from input feed"):
        session.run(None, {"s": ["a"], "z": np.ones(1, "f4")})
    with pytest.raises(ValueError, match="output_names has"):
        session.run(["z"], {"s": ["a"], "x": np.ones((1, 2), "f4")})


@pytest.mark.parametrize("wrong", ["yes", ["1", "2"]])
@pytest.mark.parametrize("kind", [TensorProto.BOOL, TensorProto.INT64])
def test_strings_are_no_numbers(kind, wrong):
    nodes = [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Identity", ["s"], ["t"])]
    inputs = [value("x", kind, None), value("s", TensorProto.STRING, ["n"])]
    outputs = [value("y", kind, None), value("t", TensorProto.STRING, None)]
    session = Session(model(nodes, inputs, outputs))
    assert session.run(["y"], {"x": [1, 0], "s": ["a"]})[0].tolist() == [1, 0]
    with pytest.raises(TypeError, match=r"x is .*, and must be of"):
        session.run(None, {"x": wrong, "s": ["a"]})


def test_a_file_that_onnxruntime_refuses_is_named(tmp_path):
    wrong = labels()
    wrong.graph.node[0].op_type = "Nothing"
    onnx.save(wrong, tmp_path / "wrong.onnx")
    with pytest.raises(ValueError, match=r"wrong\.onnx.*Nothing"):
        Session(tmp_path / "wrong.onnx")


def test_strings_between_nodes_alone_are_a_region():
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Cast", ["r"], ["s"], to=TensorProto.STRING),
        helper.make_node("Reshape", ["s", "w"], ["t"]),
        helper.make_node("Cast", ["t"], ["y"], to=TensorProto.FLOAT),
        helper.make_node("Identity", ["w"], ["k"]),
    ]
    inputs, w = [value("x", TensorProto.FLOAT, ["n", 3])], numpy_helper.from_array(np.array([-1, 1]), "w")
    outputs = [value("y", TensorProto.FLOAT, None), value("k", TensorProto.INT64, None)]
    net = from_onnx(model(nodes, inputs, outputs, [w]))
    assert [step.inputs for step in net.graph.steps if isinstance(step, Foreign)] == [("x",)]
    y, k = net(np.array([[-1, 2, 3.5]], "f4"))
    assert y.tolist() == [[0], [2], [3.5]] and k.tolist() == [-1, 1]


def test_what_may_be_absent():
    whole = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [2]))
    inputs = [helper.make_value_info("x", whole)]
    nodes = [helper.make_node("OptionalHasElement", ["x"], ["y"])]
    read = model(nodes, inputs, [value("y", TensorProto.BOOL, [])])
    theirs, ours = ort.InferenceSession(read.SerializeToString()), Session(read)
    for x in (None, np.ones(2, "f4")):
        assert ours.run(None, {"x": x}) == theirs.run(None, {"x": x}) == [x is not None]
