"""ONNX models of float16, computed in float32."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from convalgos.network.graph import Foreign  # noqa: E402
from convalgos.onnx import Session  # noqa: E402

HALF, FLOAT = TensorProto.FLOAT16, TensorProto.FLOAT
NUMBERS = {"root": 2**0.5, "one": 1, "half": 0.5}
RANDOM = np.random.default_rng(3)


def weights(*shape):
    return RANDOM.standard_normal(shape).astype(np.float16) / np.float16(6)


def model(kind, channels=6, as_field=False):
    """Two convolutions, a scale as a Constant and a mean; inputs and outputs of a type."""
    w, v = weights(channels, 3, 3, 3), weights(5, channels, 1, 1)
    cast = [helper.make_node("Cast", ["x"], ["h"], to=HALF)] if kind == FLOAT else []
    last = [helper.make_node("Cast", ["m"], ["y"], to=kind)]
    scale = numpy_helper.from_array(np.array(0.5, np.float16))
    nodes = [
        *cast,
        helper.make_node("Conv", ["h" if cast else "x", "w"], ["a"], pads=[1, 0, 1, 2]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Constant", [], ["scale"], value=scale),
        helper.make_node("Mul", ["b", "scale"], ["c"]),
        helper.make_node("Conv", ["c", "v"], ["d"]),
        helper.make_node("ReduceMean", ["d"], ["m"], axes=[2, 3], keepdims=0),
        *(last if kind == FLOAT else [helper.make_node("Identity", ["m"], ["y"])]),
    ]
    bits = helper.make_tensor("v", HALF, v.shape, v.ravel().tolist(), raw=False)
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", kind, ["n", 3, 11, 7])],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(w, "w"), bits if as_field else numpy_helper.from_array(v, "v")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), w, v


def reference(x, w, v):
    """In float64."""
    x = np.pad(x.astype("f8"), ((0, 0), (0, 0), (1, 1), (0, 2)))  # (N, 3, 13, 9)
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
    y = np.maximum(np.einsum("nchwrs,kcrs->nkhw", windows, w.astype("f8")), 0) * 0.5
    return np.einsum("nchw,kc->nkhw", y, v[:, :, 0, 0].astype("f8")).mean((2, 3))


@pytest.mark.parametrize("kind, as_field", [(HALF, False), (HALF, True), (FLOAT, False)])
def test_models_of_float16_are_computed_here(kind, as_field):
    made, w, v = model(kind, as_field=as_field)
    session = Session(made.SerializeToString())
    wanted = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    assert [i.type for i in session.get_inputs()] == [i.type for i in wanted.get_inputs()]
    regions = [s.region.what for s in session.network.graph.steps if isinstance(s, Foreign)]
    assert not [what for what in regions if "Conv" in what]
    for n in (1, 3):
        x = RANDOM.standard_normal((n, 3, 11, 7)).astype(np.float16 if kind == HALF else np.float32)
        (found,), (of_runtime,) = session.run(None, {"x": x}), wanted.run(None, {"x": x})
        assert found.dtype == of_runtime.dtype and found.shape == of_runtime.shape
        exact = reference(x, w, v)
        np.testing.assert_allclose(found, exact, atol=(2e-3 if kind == HALF else 1e-5) * abs(exact).max())
        np.testing.assert_allclose(found, of_runtime, atol=2e-3 * abs(exact).max())


def test_large_weights_stay_in_files(tmp_path):
    """Those of more than a page are mapped, and widened into another file."""
    made, w, v = model(FLOAT, channels=700)
    onnx.save(made, path := tmp_path / "model.onnx")
    x = RANDOM.standard_normal((1, 3, 11, 7)).astype("f4")
    (found,) = Session(path).run(None, {"x": x})
    exact = reference(x, w, v)
    np.testing.assert_allclose(found, exact, atol=1e-5 * abs(exact).max())


def test_the_model_of_the_caller_is_not_written():
    made, *_ = model(HALF)
    before = made.SerializeToString()
    Session(made)
    assert made.SerializeToString() == before


def test_activations_are_known_by_numbers_of_three_digits():
    """GELU spelled out with the root of 2 in float16 is one step, here within the convolution."""
    half = {name: numpy_helper.from_array(np.array(n, np.float16), name) for name, n in NUMBERS.items()}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("Div", ["a", "root"], ["b"]),
        helper.make_node("Erf", ["b"], ["c"]),
        helper.make_node("Add", ["c", "one"], ["d"]),
        helper.make_node("Mul", ["a", "d"], ["e"]),
        helper.make_node("Mul", ["e", "half"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", HALF, ["n", 3, 9, 9])],
        [helper.make_tensor_value_info("y", HALF, None)],
        [numpy_helper.from_array(weights(4, 3, 3, 3), "w"), *half.values()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = Session(made.SerializeToString())
    assert len(session.network.graph.steps) == 3  # with the casts around it
    wanted = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    x = RANDOM.standard_normal((2, 3, 9, 9)).astype(np.float16)
    (found,), (of_runtime,) = session.run(None, {"x": x}), wanted.run(None, {"x": x})
    np.testing.assert_allclose(found, of_runtime, atol=3e-3)
