"""`ca.quantized.conv`: the definition in float64, types and layouts, roundings, refusals."""

import numpy as np
import pytest

import convalgos as ca

RNG = np.random.default_rng(0)
X = RNG.integers(0, 256, (2, 4, 7, 6)).astype("u1")
W = RNG.integers(-128, 128, (6, 2, 3, 3)).astype("i1")
BIAS = RNG.integers(-3000, 3000, 6).astype("i4")
W_SCALE = np.linspace(0.01, 0.06, 6).astype("f4")
W_ZERO = np.array([0, 3, -128, 127, 5, 0], "i1")
SIZES = {"stride": (2, 1), "padding": ((1, 2), (0, 1)), "groups": 2}
SCALES = {"x_scale": 0.5, "x_zero_point": 77, "w_scale": W_SCALE, "w_zero_point": W_ZERO}


def sums():
    """int64 (2, 6, 5, 5), of what the integers stand for; padding is 0."""
    x, w = X.astype("f8") - 77, W.astype("f8") - W_ZERO.reshape(-1, 1, 1, 1)
    return ca.conv(x, w, **SIZES, algorithm="cpu.reference").astype(int) + BIAS.reshape(-1, 1, 1)


REAL = sums() * (0.5 * W_SCALE.astype("f8")).reshape(-1, 1, 1)


@pytest.mark.parametrize("y_dtype", ["int8", "uint8"])
@pytest.mark.parametrize("activation", [None, "relu", ("clip", -20.0, 15.5)])
def test_y_is_the_real_result_to_half_a_step(y_dtype, activation):
    zero = 100 if y_dtype == "uint8" else -20
    y = ca.quantized.conv(
        X, W, bias=BIAS, y_scale=3.0, y_zero_point=zero, y_dtype=y_dtype, activation=activation,
        **SCALES, **SIZES,
    )  # fmt: skip
    assert (y.dtype, y.shape) == (y_dtype, REAL.shape)
    low, high = {"relu": (0, np.inf), None: (-np.inf, np.inf)}.get(activation, (-20, 15.5))
    ends = np.iinfo(y_dtype)
    wanted = np.clip(np.clip(REAL, low, high) / 3 + zero, ends.min, ends.max)
    assert np.abs(y - wanted).max() <= 0.5 + 1e-4
    assert len(np.unique(y)) > 5


def test_without_a_scale_y_is_real_or_the_sums():
    y = ca.quantized.conv(X, W, bias=BIAS, **SCALES, **SIZES)
    assert y.dtype == np.float32
    assert np.allclose(y, REAL, rtol=1e-6)
    silu = ca.quantized.conv(X, W, bias=BIAS, activation="silu", **SCALES, **SIZES)
    assert np.allclose(silu, REAL / (1 + np.exp(-np.clip(REAL, -80, None))), rtol=1e-5, atol=1e-5)
    y = ca.quantized.conv(X, W, bias=BIAS, y_dtype="int32", **SCALES, **SIZES)
    assert y.dtype == np.int32
    assert np.array_equal(y, sums())


def test_layouts_outs_and_tensors_give_the_same():
    torch = pytest.importorskip("torch")
    given = {"bias": BIAS, "y_scale": 2.5, "y_zero_point": np.int8(-5)} | SCALES | SIZES
    y = ca.quantized.conv(X, W, **given)
    assert y.dtype == np.int8  # zero point's
    last = ca.quantized.conv(np.moveaxis(X, 1, -1), W, **given, layout="channels_last")
    assert np.array_equal(np.moveaxis(last, -1, 1), y)
    assert ca.quantized.conv(X, W, **given, out=(out := np.empty_like(y))) is out
    assert np.array_equal(out, y)
    tensor = ca.quantized.conv(torch.from_numpy(X), torch.from_numpy(W), **given)
    assert torch.equal(tensor, torch.from_numpy(y))
    flipped = ca.quantized.conv(X, W[..., ::-1, ::-1], **given, mode="convolution")
    assert np.array_equal(flipped, y)


def test_the_two_roundings_differ_at_ties_of_odd_zero_points():
    x = np.arange(8, dtype="u1").reshape(1, 1, 8)
    w, scale = np.ones((1, 1, 1), "i1"), {"y_scale": 2.0, "y_zero_point": np.uint8(3)}
    before = ca.quantized.conv(x, w, **scale)[0, 0]  # 0.5 -> 0, 1.5 -> 2, then + 3
    after = ca.quantized.conv(x, w, **scale, rounding="onnx")[0, 0]  # 3.5 -> 4, 4.5 -> 4
    assert before.tolist() == [3, 3, 4, 5, 5, 5, 6, 7]
    assert after.tolist() == [3, 4, 4, 4, 5, 6, 6, 6]


def test_plain_integers_give_their_sums():
    x, w = np.full((1, 300, 3), 255, "u1"), np.full((2, 300, 3), -128, "i1")
    y = ca.conv(x, w, padding=1)
    assert y.dtype == np.int32
    assert y.tolist() == [[[-600 * 255 * 128, -900 * 255 * 128, -600 * 255 * 128]] * 2]


REFUSED = [
    ({"x": X.astype("f4")}, TypeError, "x has dtype float32, which must be int8 or uint8"),
    ({"w": W[0]}, ValueError, "both must have 3, 4 or 5 dimensions"),
    ({"y_dtype": "int16"}, ValueError, "y_dtype='int16' must be one of 'float32', 'int32'"),
    ({"y_dtype": "int32", "y_scale": 1.0}, ValueError, "y_dtype='int32' must be one of 'int8', 'uint8'"),
    ({"y_scale": 0.0}, ValueError, "y_scale=0.0 must be finite and above 0"),
    ({"y_scale": 1.0, "y_zero_point": 300}, ValueError, "y_zero_point=300 must be an integer from 0 to 255"),
    ({"w_scale": W_SCALE[:2]}, ValueError, "w_scale=.* must be one number, or 6"),
    ({"x_zero_point": -1}, ValueError, "x_zero_point=-1"),
    ({"rounding": "up"}, ValueError, "rounding='up' must be one of 'onnxruntime', 'onnx'"),
    ({"bias": BIAS.astype("f4")}, TypeError, "bias has dtype float32"),
    ({"y_scale": 1.0, "activation": "silu"}, ValueError, "activation='silu' must be"),
    ({"algorithm": "cpu.winograd.f4x3"}, ca.Unsupported, "cpu.winograd.f4x3 cannot serve"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "error", "told"), REFUSED)
def test_refusals_name_the_argument(change, error, told):
    with pytest.raises(error, match=told):
        ca.quantized.conv(**({"x": X, "w": W} | SCALES | SIZES | change))


def test_what_comes_from_another_library_comes_back_as_its_array():
    jnp = pytest.importorskip("jax.numpy")
    given = {"bias": BIAS, "y_scale": 2.5} | SCALES | SIZES
    y = ca.quantized.conv(jnp.asarray(X), jnp.asarray(W), **given)
    assert isinstance(y, jnp.ndarray)
    assert np.array_equal(y, ca.quantized.conv(X, W, **given))


@pytest.mark.parametrize("name", ["x", "w"])
def test_masks_are_not_lost(name):
    arrays = {"x": X, "w": W}
    arrays[name] = np.ma.masked_array(arrays[name], arrays[name] > 9)
    with pytest.raises(TypeError, match=f"{name} is a masked array"):
        ca.quantized.conv(**arrays, **SIZES)


def test_no_filters_have_no_scales():
    y = ca.quantized.conv(X, W[:0], w_scale=W_SCALE[:0], w_zero_point=W_ZERO[:0], y_scale=1.0, **SIZES)
    assert y.shape == (2, 0, *REAL.shape[2:])
