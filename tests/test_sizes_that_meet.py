"""Open sizes of several inputs that meet in one step: what follows from them is known in planning."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper  # noqa: E402

from convalgos.network import from_onnx  # noqa: E402


def state_beside_maps():
    """Maps of x at half its size beside a state with sizes of its own, enlarged to those of x."""
    rng = np.random.default_rng(5)
    constants = {
        "w": rng.standard_normal((4, 3, 3, 3)).astype("f4"), "zero": np.int64([0]), "two": np.int64([2]),
        "four": np.int64([4]), "none": np.array([], "f4"),
    }  # fmt: skip
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w"], ["c"], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Concat", ["c", "state"], ["t"], axis=1),
        node("Shape", ["t"], ["of_t"]),
        node("Shape", ["x"], ["of_x"]),
        node("Slice", ["of_t", "zero", "two", "zero"], ["maps"]),
        node("Slice", ["of_x", "two", "four", "zero"], ["pixels"]),
        node("Concat", ["maps", "pixels"], ["sizes"], axis=0),
        node("Resize", ["t", "none", "none", "sizes"], ["y"], mode="linear"),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "states",
        [
            value("x", TensorProto.FLOAT, ["n", 3, "h", "w"]),
            value("state", TensorProto.FLOAT, ["n", 2, "p", "q"]),
        ],
        [value("y", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_one_network_without_stages():
    model = state_beside_maps()
    net, session = from_onnx(model), ort.InferenceSession(model.SerializeToString())
    assert not net.stages
    for n, h, w in ((1, 8, 6), (2, 7, 9), (1, 8, 6)):
        x = np.random.default_rng(h).standard_normal((n, 3, h, w)).astype("f4")
        state = np.ones((n, 2, -(-h // 2), -(-w // 2)), "f4")
        (right,) = session.run(None, {"x": x, "state": state})
        np.testing.assert_allclose(net(x, state), right, atol=1e-5)
