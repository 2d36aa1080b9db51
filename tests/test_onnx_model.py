"""Layers of ONNX models: shapes inferred, attributes read, what cannot be read listed with its reason."""

from pathlib import Path

import numpy as np
import pytest

from convalgos import ConvProblem
from convalgos.cpu.reference import reference
from convalgos.tools.bench.onnx_model import read_model

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402

OPSET = [helper.make_opsetid(domain, version) for domain, version in (("", 17), ("my.ops", 1))]


def value(name, shape, dtype=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def weights(name, shape, dtype=TensorProto.FLOAT):
    return helper.make_tensor(name, dtype, shape, np.zeros(int(np.prod(shape)), np.float32))


def save(path, nodes, inputs, initializers, outputs=("y",), **more):
    graph = helper.make_graph(nodes, "g", inputs, [value(o, None) for o in outputs], initializers)
    model = helper.make_model(graph, opset_imports=OPSET, ir_version=8, **more)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((2, 3, 9, 8), (4, 3, 3, 3), {}),
        ((2, 3, 9, 8), (4, 3, 3, 2), {"pads": [0, 1, 2, 3], "strides": [2, 1], "dilations": [1, 2]}),
        ((1, 6, 7, 7), (4, 3, 3, 3), {"group": 2, "kernel_shape": [3, 3]}),
        ((1, 2, 9, 8), (3, 2, 3, 4), {"auto_pad": "SAME_UPPER", "strides": [2, 3]}),
        ((1, 2, 9, 8), (3, 2, 3, 4), {"auto_pad": "SAME_LOWER", "strides": [2, 3]}),
        ((1, 2, 9, 8), (3, 2, 3, 4), {"auto_pad": "VALID"}),
        ((1, 4, 20), (4, 1, 5), {"group": 4, "pads": [4, 0], "dilations": [2]}),
        ((1, 2, 5, 6, 7), (3, 2, 2, 3, 3), {"pads": [0, 1, 1, 1, 1, 1], "strides": [1, 2, 2]}),
    ],
)
def test_the_problem_computes_what_the_node_computes(tmp_path, x, w, attributes):
    ort = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(0)
    x_data, w_data = (rng.integers(-3, 4, shape).astype(np.float32) for shape in (x, w))
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="c", **attributes)
    path = save(tmp_path / "m.onnx", [node], [value("x", x)], [onnx.numpy_helper.from_array(w_data, "w")])
    (layer,), skipped = read_model(path)
    assert (layer.suite, layer.name, layer.count, skipped) == ("m", "c", 1, {})
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x_data})
    np.testing.assert_array_equal(reference(layer.problem, x_data, w_data), y)


def test_a_symbolic_batch_takes_the_size_asked_for(tmp_path):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="one", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "v"], ["c"], name="two", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["c", "v"], ["y"], pads=[1, 1, 1, 1]),
    ]
    filters = [weights("w", (4, 3, 3, 3)), weights("v", (4, 4, 3, 3))]
    symbolic = save(tmp_path / "s.onnx", nodes, [value("x", ("batch", 3, 8, 8))], filters)
    unnamed = save(tmp_path / "u.onnx", nodes, [value("x", (None, 3, 8, 8))], filters)
    for path in (symbolic, unnamed):
        for batch, n in ((None, 1), (5, 5)):
            layers, skipped = read_model(path, batch)
            assert not skipped
            assert [(la.name, la.count, str(la.problem)) for la in layers] == [
                ("one", 1, f"n{n} c3 h8 w8 k4 r3 s3 p1"),
                ("two", 2, f"n{n} c4 h8 w8 k4 r3 s3 p1"),
            ]


def test_a_fixed_batch_is_kept_unless_another_is_asked_for(tmp_path):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="one"),
        helper.make_node("Reshape", ["a", "shape"], ["b"]),  # frames out of the batch
        helper.make_node("Conv", ["b", "v"], ["y"], name="two"),
    ]
    shape = onnx.numpy_helper.from_array(np.array([8, 1, 6, 6]), "shape")
    filters = [weights("w", (4, 3, 3, 3)), weights("v", (5, 1, 1, 1)), shape]
    path = save(tmp_path / "m.onnx", nodes, [value("x", (2, 3, 8, 8))], filters)
    assert [la.problem.N for la in read_model(path)[0]] == [2, 8]
    assert [la.problem.N for la in read_model(path, 3)[0]] == [3, 12]


def test_what_cannot_be_read_is_skipped_with_its_reason(tmp_path):
    nodes = [
        helper.make_node("ConvTranspose", ["x", "t"], ["a"], name="up"),
        helper.make_node("Conv", ["free", "w"], ["b"], name="free_size"),
        helper.make_node("Unheard", ["x"], ["u"], domain="my.ops"),
        helper.make_node("Conv", ["u", "w"], ["c"], name="after_unheard"),
        helper.make_node("Conv", ["x", "w"], ["d"], name="grouped", group=2),
        helper.make_node("Conv", ["q", "wq"], ["e"], name="strings"),
        helper.make_node("FusedConv", ["x", "w"], ["f"], domain="my.ops"),
        helper.make_node("Conv", ["x", "w"], ["y"], name="fine"),
    ]
    inputs = [
        value("x", (1, 3, 8, 8)),
        value("free", ("batch", 3, "height", 8)),
        value("q", (1, 3, 8, 8), TensorProto.INT32),
    ]
    filters = [
        weights("w", (4, 3, 3, 3)),
        weights("t", (3, 4, 2, 2)),
        helper.make_tensor("wq", TensorProto.INT32, (4, 3, 3, 3), np.zeros(108, int)),
    ]
    layers, skipped = read_model(save(tmp_path / "m.onnx", nodes, inputs, filters, outputs="abcdefy"))
    assert [la.name for la in layers] == ["fine"]
    assert skipped.pop("grouped").startswith("groups=2 must divide the C=3 channels")
    assert skipped == {
        "up": "ConvTranspose is another operator than Conv",
        "free_size": "the shape (1, 3, height, 8) of its input 'free' is not all numbers",
        "after_unheard": "the shape of its input 'u' is not known",
        "strings": "its element type is INT32",
        "f": "FusedConv is another operator than Conv",
    }


def test_weights_in_absent_files_are_not_missed(tmp_path):
    path = tmp_path / "m.onnx"
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="c")
    graph = helper.make_graph(
        [node], "g", [value("x", ("n", 64, 8, 8))], [value("y", None)],
        [onnx.numpy_helper.from_array(np.ones((64, 64, 3, 3), np.float32), "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=OPSET, ir_version=8)
    onnx.save(model, str(path), save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "w.bin").unlink()
    (layer,), _ = read_model(path)
    assert str(layer.problem) == "n1 c64 h8 w8 k64 r3 s3"


def test_convolutions_in_subgraphs_functions_and_constants(tmp_path):
    then = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["t"], name="inside")], "then", [], [value("t", None)]
    )
    other = helper.make_graph([helper.make_node("Identity", ["x"], ["o"])], "else", [], [value("o", None)])
    body = [
        helper.make_node("Constant", [], ["k"], value=weights("k", (2, 3, 1, 1))),
        helper.make_node("Conv", ["a", "k"], ["r"], name="of_function"),
    ]
    function = helper.make_function("my.ops", "F", ["a"], ["r"], body, OPSET)
    nodes = [
        helper.make_node("If", ["flag"], ["i"], then_branch=then, else_branch=other),
        helper.make_node("F", ["x"], ["y"], domain="my.ops"),
    ]
    graph = helper.make_graph(
        nodes, "g", [value("x", (1, 3, 8, 8)), value("flag", (), TensorProto.BOOL)],
        [value("i", None), value("y", None)], [weights("w", (4, 3, 3, 3))],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=OPSET, functions=[function], ir_version=8)
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    layers, skipped = read_model(path)
    assert not skipped
    assert [str(la.problem) for la in layers] == ["n1 c3 h8 w8 k4 r3 s3", "n1 c3 h8 w8 k2 r1 s1"]


def test_double_precision_is_read_as_such(tmp_path):
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    inputs = [value("x", (1, 3, 8, 8), TensorProto.DOUBLE)]
    (layer,), _ = read_model(save(tmp_path / "m.onnx", [node], inputs, [weights("w", (4, 3, 1, 1), 11)]))
    assert layer.name == "y"
    assert layer.problem == ConvProblem((1, 3, 8, 8), (4, 3, 1, 1), dtype="float64")


def test_a_real_network():
    path = Path(onnx.__file__).parent / "backend/test/data/light/light_resnet50.onnx"
    layers, skipped = read_model(path)
    assert not skipped
    assert sum(la.count for la in layers) == 53
    assert str(layers[0].problem) == "n1 c3 h224 w224 k64 r7 s7 p3 stride2"
    by_problem = {str(la.problem): la.count for la in layers}
    assert by_problem["n1 c256 h14 w14 k256 r3 s3 p1"] == 5
    assert {la.problem.N for la in read_model(path, 8)[0]} == {8}


@pytest.mark.parametrize("content", [b"", b"this is text, no protobuf", bytes(range(256))])
def test_what_is_no_model_is_refused(tmp_path, content):
    path = tmp_path / "bad.onnx"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"bad\.onnx cannot be read as an ONNX model"):
        read_model(path)


def test_an_absent_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.onnx"):
        read_model(tmp_path / "nowhere.onnx")


def test_convolutions_of_integers_are_read_with_their_types(tmp_path):
    """QLinearConv, ConvInteger, and Conv between DequantizeLinear and QuantizeLinear."""

    def linear(operator, x, y, zero="z", scale="s", **along):
        return helper.make_node(operator, [x, scale, zero], [y], **along)

    scales = ["ws", "wz", "s", "z"]
    nodes = [
        linear("QuantizeLinear", "x", "xq"),
        helper.make_node("QLinearConv", ["xq", "s", "z", "w", *scales], ["a"], name="linear", strides=[2, 2]),
        helper.make_node("ConvInteger", ["a", "v"], ["sums"], name="sums"),
        linear("DequantizeLinear", "a", "ar"),
        linear("DequantizeLinear", "v", "vr", "vz"),
        helper.make_node("Conv", ["ar", "vr"], ["br"], name="qdq"),
        linear("QuantizeLinear", "br", "y"),
    ]
    arrays = {
        "s": np.float32(1), "z": np.uint8(0), "w": np.ones((4, 3, 3, 3), "i1"), "ws": np.ones(4, "f4"),
        "wz": np.zeros(4, "i1"), "v": np.ones((2, 4, 1, 1), "i1"), "vz": np.int8(0),
    }  # fmt: skip
    constants = [onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items()]
    outputs = [value("y", None, TensorProto.UINT8), value("sums", None, TensorProto.INT32)]
    graph = helper.make_graph(nodes, "g", [value("x", (1, 3, 9, 9))], outputs, constants)
    path = tmp_path / "m.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=OPSET, ir_version=8).SerializeToString())
    layers, skipped = read_model(path)
    assert not skipped
    assert {la.name: str(la.problem) for la in layers} == {
        "linear": "n1 c3 h9 w9 k4 r3 s3 stride2 uint8 w_int8 y_uint8 per_channel",
        "sums": "n1 c4 h4 w4 k2 r1 s1 uint8 w_int8",
        "qdq": "n1 c4 h4 w4 k2 r1 s1 uint8 w_int8 y_uint8",
    }
