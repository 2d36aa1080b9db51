"""Convolution of signs: all forms of x and w, borders of 0, +1 and -1, scales, layers that mix types."""

import numpy as np
import pytest

import convalgos as ca
from convalgos.cpu.reference import reference

LAYERS = (
    "n2 c70 h9 w11 k10 r3 s3 p1",
    "n1 c64 h13 w20 k9 r3 s2 p2,1 stride2,3 dilation1,2",
    "n1 c18 h6 w6 k4 r3 s3 p1 groups2",
    "n2 c9 w50 k8 s5 p4",
    "n1 c5 d4 h3 w5 k3 t2 r3 s3 p1",
    "n3 c130 h1 w3 k5 r1 s1",
)


def signs(rng, *shape):
    return rng.integers(0, 2, shape, np.int8) * np.int8(2) - np.int8(1)


def moved(array, layout):
    return np.moveaxis(array, 1, -1) if layout == "channels_last" else array


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("text", LAYERS)
def test_every_form_gives_the_definition(text, layout):
    p, rng = ca.ConvProblem.parse(text), np.random.default_rng(len(text))
    x, w = signs(rng, *p.x_shape), signs(rng, *p.w_shape)
    scale, bias = rng.standard_normal(p.K).astype(np.float32), rng.integers(-9, 9, p.K).astype(np.int32)
    over = (-1, *(1,) * p.ndim)
    packed = ca.binary.pack(moved(x, layout), groups=p.groups, layout=layout), ca.binary.pack(w)
    floats = x * rng.uniform(0.1, 9, x.shape).astype(np.float32)
    given = {"stride": p.stride, "dilation": p.dilation, "groups": p.groups, "layout": layout}
    for value in (0, 1, -1):
        padded = np.pad(x, ((0, 0), (0, 0), *p.padding), constant_values=value)
        of_padded = ca.ConvProblem(padded.shape, p.w_shape, p.stride, 0, p.dilation, p.groups)
        sums = reference(of_padded, padded, w, bias)
        for of_x, of_w in ((moved(x, layout), w), (moved(floats, layout), w.astype(np.float32)), packed):
            known = {"padding": p.padding, "padding_value": value, "bias": bias} | given
            known["channels"] = p.w_shape[1]
            y = ca.binary.conv(of_x, of_w, **known)
            assert y.dtype == np.int32 and np.array_equal(y, moved(sums, layout)), (value, of_x.dtype)
            y = ca.binary.conv(of_x, of_w, scale=scale, activation="relu", **known)
            scaled = np.maximum(sums.astype(np.float32) * scale.reshape(over), 0)
            assert y.dtype == np.float32 and np.array_equal(y, moved(scaled, layout)), (value, of_x.dtype)


def test_one_plan_serves_all_borders():
    """The border of a workspace is that of the run, not of the run before."""
    p, rng = ca.ConvProblem.parse("n1 c3 h4 w5 k2 r3 s3 p1 binary"), np.random.default_rng(0)
    plan = ca.plan(p)
    assert plan.algorithm == "cpu.binary"
    x, w = signs(rng, *p.x_shape), signs(rng, *p.w_shape)
    filters = {value: plan.prepare(w, padding_value=value) for value in (0, 1, -1)}
    first = {value: plan(x, f) for value, f in filters.items()}
    assert len({y.tobytes() for y in first.values()}) == 3
    for value in (1, 0, -1, 1, -1, 0):
        assert np.array_equal(plan(x, filters[value]), first[value])


def test_signs_of_floats():
    x = np.array([0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1e-45, -1e-45], np.float32).reshape(1, 8, 1)
    taken = ca.binary.unpack(ca.binary.pack(x), 8).ravel()
    assert taken.tolist() == [1, 1, 1, 1, 1, -1, 1, -1]
    w = np.eye(8, dtype=np.int8)[:, :, None] * np.int8(2) - np.int8(1)
    for pixels in (1, 9):  # packed by NumPy, and by the kernels
        floats, signs_of_it = (np.repeat(a, pixels, axis=2) for a in (x, taken.reshape(1, 8, 1)))
        expected = ca.binary.conv(signs_of_it, w)
        assert np.array_equal(ca.binary.conv(floats, w), expected)
        last = ca.binary.conv(np.moveaxis(floats, 1, -1), w, layout="channels_last")
        assert np.array_equal(np.moveaxis(last, -1, 1), expected)


def test_a_float_layer_beside_binary_ones():
    """What a layer of floats gives goes into a binary one, whose scaled sums go into another of floats."""
    rng = np.random.default_rng(3)
    x, w = (rng.standard_normal(shape, np.float32) for shape in ((1, 3, 12, 12), (20, 3, 3, 3)))
    binary, scale = signs(rng, 16, 20, 3, 3), rng.uniform(0.1, 1, 16).astype(np.float32)
    inner = ca.conv(x, w, padding=1)
    y = ca.binary.conv(inner, binary, padding=1, scale=scale)
    expected = ca.conv(np.where(inner < 0, -1, 1).astype(np.float32), binary.astype(np.float32), padding=1)
    assert np.allclose(y, expected * scale[:, None, None], rtol=1e-6)
    assert ca.conv(y, rng.standard_normal((4, 16, 1, 1), np.float32)).shape == (1, 4, 12, 12)


def test_outputs_of_padding_alone():
    x, w = signs(np.random.default_rng(0), 1, 3, 2, 2), np.ones((1, 3, 1, 1), np.int8)
    far = {"padding": ((2, 0), (0, 0)), "stride": 9}  # the only output lies above x
    assert ca.binary.conv(x, w, **far).tolist() == [[[[0]]]]
    assert ca.binary.conv(x, w, padding_value=-1, **far).tolist() == [[[[-3]]]]
    packed = ca.binary.pack(x)
    assert ca.binary.conv(packed, w, padding_value=1, **far).tolist() == [[[[3]]]]
    nothing, bias = np.zeros((1, 3, 0, 2), np.int8), np.int32([5])
    for value in (0, 1, -1):  # a map without rows
        given = {"padding": ((1, 0), (0, 0)), "padding_value": value, "bias": bias, "scale": 0.5}
        y = ca.binary.conv(nothing, w, **given)
        assert y.dtype == np.float32 and y.tolist() == [[[[0.5 * (3 * value + 5)] * 2]]]
        assert ca.binary.conv(nothing, w, out=np.zeros_like(y), **given).tolist() == y.tolist()


def test_packed_words():
    rng = np.random.default_rng(1)
    for channels, groups, words, layout in (
        (64, 1, 1, "channels_first"), (65, 1, 2, "channels_last"), (6, 3, 3, "channels_first"),
    ):  # fmt: skip
        x = moved(signs(rng, 2, channels, 3, 4), layout)
        packed = ca.binary.pack(x, groups=groups, layout=layout)
        assert packed.dtype == np.uint64
        assert packed.shape == moved(np.empty((2, words, 3, 4)), layout).shape
        assert np.array_equal(ca.binary.unpack(packed, channels, groups=groups, layout=layout), x)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"padding_value": 2}, "padding_value=2 must be 0, 1 or -1"),
        ({"scale": np.ones(3)}, r"scale has shape \(3,\), but must be a number or \(4,\)"),
        ({"x": np.ones((1, 1, 5, 5), np.uint64), "w": np.ones((4, 1, 3, 3), np.uint64)},
         "channels=None must be C/groups"),
        ({"x": np.ones((1, 2, 5, 5), np.uint64)}, r"packed x has shape \(1, 2, 5, 5\)"),
        ({"w": np.ones((4, 3, 3), np.int8)}, "both must have 3, 4 or 5 dimensions"),
    ],
)  # fmt: skip
def test_what_is_refused(given, told):
    known = {"x": np.ones((1, 3, 5, 5), np.int8), "w": np.ones((4, 3, 3, 3), np.int8)} | given
    with pytest.raises(ValueError, match=told):
        ca.binary.conv(known.pop("x"), known.pop("w"), **known)
    with pytest.raises(TypeError, match="x has dtype float64"):
        ca.binary.conv(np.ones((1, 3, 5, 5)), np.ones((4, 3, 3, 3), np.int8))
    with pytest.raises(ValueError, match=r"scale=2.0 must be None: y of .* is int32"):
        ca.plan(ca.ConvProblem.parse("n1 c1 w3 k1 s1 binary")).prepare(np.ones((1, 1, 1), np.int8), scale=2.0)
