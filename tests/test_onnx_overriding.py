"""Constants that are inputs as well: a call may give others in their place, as ONNX Runtime takes them."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from convalgos.onnx import Session  # noqa: E402

X = np.random.default_rng(0).integers(-3, 4, (2, 3, 9, 8)).astype("f4")
W = np.random.default_rng(1).integers(-3, 4, (4, 3, 3, 3)).astype("f4")
value = helper.make_tensor_value_info


def model(ir_version):
    """A filter, and sizes, that are inputs with a default; the bias is a constant."""
    constants = [("w", W), ("b", np.arange(4, dtype="f4")), ("s", np.array([0, -1]))]
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Reshape", ["r", "s"], ["y"]),
    ]
    inputs = [
        value("x", TensorProto.FLOAT, ["n", 3, "h", "w"]),
        value("w", TensorProto.FLOAT, [4, 3, 3, 3]),
        value("s", TensorProto.INT64, ["k"]),
    ]
    graph = helper.make_graph(
        nodes, "g", inputs, [value("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=ir_version)


FEEDS = [{}, {"w": -W}, {"s": np.array([4, 0, -1])}, {"w": W[::-1], "s": np.array([-1])}, {}]


@pytest.mark.parametrize("form", [lambda m, _: m, lambda m, _: m.SerializeToString(), lambda m, path: path])
def test_calls_give_others_in_the_place_of_constants(tmp_path, form):
    read = model(8)
    onnx.save(read, tmp_path / "m.onnx")
    before = read.SerializeToString()
    ours, theirs = Session(form(read, tmp_path / "m.onnx")), ort.InferenceSession(before)
    told = [
        [(v.name, v.type, list(v.shape)) for v in s.get_overridable_initializers()] for s in (ours, theirs)
    ]
    assert sorted(told[0]) == sorted(told[1]) and len(told[0]) == 2
    for feed in FEEDS:
        (y,), (right,) = (s.run(None, {"x": X, **feed}) for s in (ours, theirs))
        np.testing.assert_array_equal(y, right)
    assert read.SerializeToString() == before
    binding = ours.io_binding()
    for name, x in {"x": X, "w": -W}.items():
        binding.bind_cpu_input(name, x)
    binding.bind_output("y")
    ours.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], theirs.run(None, {"x": X, "w": -W})[0])


def test_what_is_wrong_with_them_is_told():
    session = Session(model(8))
    with pytest.raises(ValueError, match="w has shape"):
        session.run(None, {"x": X, "w": W[:, :2]})
    with pytest.raises(TypeError, match="w has dtype float64"):
        session.run(None, {"x": X, "w": W.astype("f8")})
    with pytest.raises(ValueError, match="inputs has 'b'"):
        session.run(None, {"x": X, "w": W, "b": np.ones(4, "f4")})


def test_models_of_old_versions_have_constants_alone():
    session = Session(model(3))
    assert session.get_overridable_initializers() == []
    with pytest.raises(ValueError, match="inputs has 'w'"):
        session.run(None, {"x": X, "w": W})
