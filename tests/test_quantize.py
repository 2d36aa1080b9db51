"""Quantising arrays, and finding scale and zero point from samples."""

from itertools import product

import numpy as np
import onnx
import onnxruntime
import pytest

import convalgos as ca
from convalgos.quantized import calibrate, dequantize, quantize
from convalgos.quantized.calibration import Histogram
from convalgos.quantized.linear import scale_of_range

X = np.random.default_rng(0).standard_normal((16, 500)).astype("f4")


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("symmetric", [False, True])
def test_numbers_come_back_to_half_a_step(dtype, symmetric):
    q, scale, zero_point = quantize(X, dtype=dtype, symmetric=symmetric)
    assert (q.dtype, scale.dtype, zero_point.dtype) == (dtype, np.float32, dtype)
    back = dequantize(q, scale, zero_point)
    assert np.abs(back - X).max() <= 0.5001 * scale
    assert q.max() == np.iinfo(dtype).max or symmetric
    assert dequantize(zero_point, scale, zero_point) == 0
    if symmetric:
        assert np.abs(q.astype(int) - int(zero_point)).max() == 127


def test_along_an_axis_each_index_has_its_own_scale():
    x = X * np.arange(1, 501, dtype="f4")
    q, scale, zero_point = quantize(x, axis=-1, symmetric=True)
    assert scale.shape == zero_point.shape == (500,)
    for i in (0, 77, 499):
        alone = quantize(x[:, i], symmetric=True)
        assert np.array_equal(q[:, i], alone[0])
        assert scale[i] == alone[1]
    assert np.array_equal(dequantize(q, scale, zero_point, axis=1)[:, 3], dequantize(q[:, 3], scale[3]))


@pytest.mark.parametrize("zero_point", [np.uint8(3), np.uint8(128), np.int8(-128), np.int8(77)])
def test_given_scales_are_applied_as_onnx_runtime_does(zero_point):
    odd = [np.nan, np.inf, -np.inf, 1e30, -1e30, 3e9, -3e9]
    x = np.concatenate([np.arange(-999, 999) * 0.125, X[0], odd]).astype("f4")  # many ties
    node = onnx.helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"])
    names = [onnx.helper.make_tensor_value_info("x", 1, None), onnx.helper.make_tensor_value_info("s", 1, [])]
    kind = onnx.helper.np_dtype_to_tensor_dtype(zero_point.dtype)
    names.append(onnx.helper.make_tensor_value_info("z", kind, []))
    q = onnx.helper.make_tensor_value_info("q", kind, None)
    graph = onnx.helper.make_graph([node], "one", names, [q])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for scale in np.float32([0.25, 0.0137, 1e-30]):
        (expected,) = session.run(None, {"x": x, "s": np.asarray(scale), "z": np.asarray(zero_point)})
        assert np.array_equal(quantize(x, scale=scale, zero_point=zero_point)[0], expected)


def test_nothing_but_zeros_has_a_scale():
    assert quantize(np.zeros(3))[1] == 1
    assert calibrate([np.zeros(3), np.zeros(0)], "mse") == (1, 0)
    q, scale, zero_point = quantize(np.full(3, 1e-45, "f4"), dtype="uint8")  # below what a scale can be
    assert scale > 0
    assert np.isfinite(dequantize(q, scale, zero_point)).all()


# --- calibration -----------------------------------------------------------------------------


def batches():
    for i in range(16):
        yield X[i] * (4 if i == 9 else 1) ** np.sign(X[i])  # a longer tail above


ALL = np.concatenate(list(batches()))


def squared_error(scale, zero_point):
    return float(np.square(dequantize(*quantize(ALL, scale=scale, zero_point=zero_point)) - ALL).mean())


@pytest.mark.parametrize("symmetric", [False, True])
def test_methods_find_the_range_they_name(symmetric):
    step = 2 * float(np.abs(ALL).max()) / 8192  # of the histogram, at most
    found = {m: calibrate(batches(), m, symmetric=symmetric) for m in ("min_max", "percentile", "mse")}
    assert found["min_max"] == quantize(ALL, dtype="uint8", symmetric=symmetric)[1:]
    scale, zero_point = calibrate(batches(), "percentile", percentile=99, symmetric=symmetric)
    ends = np.percentile(np.abs(ALL), [99]) if symmetric else np.percentile(ALL, [0.5, 99.5])
    assert scale * (127 if symmetric else 255) == pytest.approx(
        ends[-1] - (0 if symmetric else ends[0]), abs=4 * step
    )
    if not symmetric:
        assert scale * (0 - float(zero_point)) == pytest.approx(ends[0], abs=float(scale) / 2 + 2 * step)
    errors = {m: squared_error(*pair) for m, pair in found.items()}
    ends = [np.arange(0.05, 1.01, 0.05) * end for end in (ALL.min(), ALL.max())]
    if symmetric:
        ends = [-ends[1], ends[1]]
    tried = [
        scale_of_range(low, high, np.dtype("u1"), symmetric)
        for low, high in (zip(*ends, strict=True) if symmetric else product(*ends))
    ]
    assert errors["mse"] <= 1.01 * min(squared_error(*pair) for pair in tried)
    assert errors["mse"] < errors["min_max"]


def test_the_order_of_batches_does_not_matter_and_none_is_kept():
    forth, back = Histogram(), Histogram()
    for i, batch in enumerate(batches()):
        forth.add(f"{i}", batch)
    for batch in reversed([np.zeros(5), *batches()]):
        back.add("", batch)
    forth.add("zeros", np.zeros(5))
    assert forth.width == back.width
    assert np.array_equal(forth.counts, back.counts)
    assert forth.counts.sum() == ALL.size + 5
    inside = np.histogram(ALL, np.arange(-8192, 8193) * forth.width)[0]
    inside[8192] += 5
    assert np.array_equal(forth.counts, inside)


def test_the_type_of_the_batches_does_not_matter():
    import ml_dtypes

    short = [(X[0] * 8).astype(kind) for kind in ("f2", ml_dtypes.bfloat16)]
    for batch in short:
        assert calibrate([batch], "mse") == calibrate([batch.astype("f8")], "mse")


REFUSED = [
    (lambda: quantize(X, dtype="int4"), ValueError, "dtype='int4'"),
    (lambda: quantize(X.astype(int)), TypeError, "array has dtype int64"),
    (lambda: quantize(X, axis=2), ValueError, "axis=2 must be None or from -2 to 1"),
    (lambda: quantize([1.0, np.nan]), ValueError, "array holds NaN"),
    (lambda: quantize(X, zero_point=3), ValueError, "zero_point=3 must be None"),
    (lambda: quantize(X, scale=0.0), ValueError, "scale=0.0 must be positive"),
    (lambda: quantize(X, scale="a"), ValueError, "scale='a' must be numbers"),
    (lambda: quantize(X, scale=[1.0, 2.0], axis=0), ValueError, r"scale has shape \(2,\).*or 16"),
    (lambda: quantize(X, scale=1.0, zero_point=200), ValueError, "zero_point=200 must be from -128 to 127"),
    (lambda: dequantize(X, 1.0), TypeError, "q has dtype float32"),
    (lambda: dequantize(np.int8([1]), 1.0, 0.5), ValueError, "zero_point=0.5 must be an integer"),
    (lambda: calibrate([]), ValueError, "batches must hold"),
    (lambda: calibrate([X, X * np.inf]), ValueError, r"batches\[1\] must hold finite numbers"),
    (lambda: calibrate([X.astype(int)]), TypeError, r"batches\[0\] has dtype int64"),
    (lambda: calibrate([X], "entropy"), ValueError, "method='entropy'"),
    (lambda: calibrate([X], "percentile", percentile=0.99), ValueError, "percentile=0.99"),
]


@pytest.mark.parametrize(("call", "error", "told"), REFUSED)
def test_refusals_name_the_argument(call, error, told):
    with pytest.raises(error, match=told):
        call()


def test_it_is_there_when_asked_for():
    assert ca.quantized.quantize is quantize
