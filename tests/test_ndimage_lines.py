"""Filters along axes: the answers of scipy.ndimage, exactly where they are integers, else within a bound."""

from itertools import product

import numpy as np
import pytest
import scipy.ndimage
from hypothesis import given, settings
from hypothesis import strategies as st
from narrow_vectors import run_on_haswell

import convalgos as ca
from convalgos.core.axis_windows import AxisWindow
from convalgos.core.setting import threads_of_calls
from convalgos.cpu.filtering import (
    line_filters,
    line_passes,
    line_steps,
    line_sums,
    short_passes,
    volume_passes,
)
from convalgos.ndimage import known_calls
from convalgos.ndimage.arguments import BOUNDARY_OF
from convalgos.ndimage.lines import length_of_terms

MODES = tuple(BOUNDARY_OF)
TYPES = "?bBhHiIqQfdFD"  # characters of dtypes
SHAPES = ((37,), (1,), (5, 1), (2, 67), (40, 33), (130, 3), (3, 4, 70), (2, 3, 1, 4, 2, 3, 1, 5))


def random_array(rng, shape, dtype):
    """Numbers over the whole range of a type of small integers, and of some size of the others."""
    dtype = np.dtype(dtype)
    if dtype.kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return rng.integers(max(low, -(2**40)), min(high, 2**40), shape, endpoint=True).astype(dtype)


def random_weights(rng, taps):
    """Whole numbers or others, symmetric, antisymmetric or neither: SciPy sums each in its own order."""
    w = rng.integers(-2, 3, taps) * 1.0 if rng.random() < 0.5 else rng.standard_normal(taps) / taps
    return w + (0, 1, -1)[rng.integers(3)] * w[::-1]


def check(found, expected, x, gain):
    """Exactly equal integers; floats within what sums of their precision may differ."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if expected.dtype.kind in "biu":
        np.testing.assert_array_equal(found, expected != 0 if expected.dtype.kind == "b" else expected)
        return
    single = "f" in (x.dtype.char.lower(), found.dtype.char.lower())
    largest = float(np.abs(x.astype(complex)).max(initial=0)) * gain
    bound = 100 * np.finfo(np.float32 if single else np.float64).eps * max(largest, 1e-300)
    np.testing.assert_allclose(found, expected, rtol=0, atol=bound)


@pytest.mark.parametrize("char", "fd")
def test_gaussians_of_floats_to_integers_are_those_of_scipy(char):
    """Means of whole numbers are nearly whole: what they are cut off to shows the last bit of weights."""
    for sigma, output in product((0.7, 1.3, 3.3), (np.uint8, "i4", np.zeros((2, 5, 3), np.int16))):
        for value in range(3, 40):
            x = np.full((2, 5, 3), value, char)
            for name in ("gaussian_filter", "gaussian_laplace", "gaussian_gradient_magnitude"):
                expected = getattr(scipy.ndimage, name)(x, sigma, output=output).copy()
                assert np.array_equal(getattr(ca.ndimage, name)(x, sigma, output=output), expected)
            expected = scipy.ndimage.gaussian_filter1d(x, sigma, 1, output=output).copy()
            assert np.array_equal(ca.ndimage.gaussian_filter1d(x, sigma, 1, output=output), expected)


class InOrder(line_passes.LinePass):
    """Floats whose sums are in SciPy's order."""

    def _sums(self, step):
        return line_sums.sum_lines(line_steps.order_of_sums(step.weights), self.size, self.lanes)


def test_sums_in_order_of_lines_side_by_side_have_the_bits_of_scipy():
    """Some lines at a time and one alone, by vectors and their remainders, in each order."""
    rng = np.random.default_rng(3)
    dtype, orders = np.dtype("d"), set()
    for taps, sign in product((1, 2, 3, 4, 5, 8, 9, 25), (0, 1, -1)):
        w = rng.standard_normal(taps)
        w = w + sign * w[::-1]
        step = line_steps.LineStep(0, tuple(w), AxisWindow(0, taps, taps // 2, BOUNDARY_OF["mirror"]), 0.0)
        made = InOrder(dtype, dtype, step, None)
        orders.add(line_steps.order_of_sums(step.weights))
        for shape in ((3, 70), (4, 1), (9, 8), (14, 33), (31, 1200)):
            x = rng.standard_normal(shape)
            y = np.empty_like(x)
            made.of(shape)(x, y)
            assert np.array_equal(y, scipy.ndimage.correlate1d(x, w, 0, mode="mirror"))
    assert orders == {line_sums.IN_ORDER, line_sums.SYMMETRIC, line_sums.ANTISYMMETRIC}


@pytest.mark.parametrize("name", ["correlate1d", "convolve1d"])
@pytest.mark.parametrize("char", TYPES)
def test_every_type(name, char):
    """Any shape, also one shorter than the filter; any axis, mode and origin; any type of output."""
    rng = np.random.default_rng(ord(char))
    for shape in SHAPES:
        x, axis, mode = random_array(rng, shape, char), int(rng.integers(len(shape))), rng.choice(MODES)
        taps = int(rng.choice((1, 2, 3, 4, 9, 40)))
        w, origin = random_weights(rng, taps), int(rng.integers(-(taps // 2), (taps - 1) // 2 + 1))
        if char in "dD" and rng.random() < 0.5:
            w = w + 1j * random_weights(rng, taps)
        output = (
            None
            if np.iscomplexobj(w) or char in "FD"
            else rng.choice((None, np.int16, np.float32, np.uint64))
        )
        arguments = w, axis, output, mode, -1.5, origin
        expected = getattr(scipy.ndimage, name)(x, *arguments)
        before = x.copy()
        check(getattr(ca.ndimage, name)(x, *arguments), expected, x, 1.5 * np.abs(w).sum())
        np.testing.assert_array_equal(x, before)


@settings(max_examples=15)
@given(st.data())
def test_gaussians(data):
    """All arguments of all four functions, for several axes of an array."""
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    shape = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=3))
    x = random_array(rng, shape, data.draw(st.sampled_from(TYPES)))
    axes = data.draw(st.none() | st.permutations(range(len(shape))).map(lambda p: p[: 1 + len(p) // 2]))
    count = len(shape) if axes is None else len(axes)
    each = lambda of: data.draw(of | st.lists(of, min_size=count, max_size=count))  # noqa: E731
    sigma, mode = each(st.sampled_from((0, 0.4, 1, 3.3))), each(st.sampled_from(MODES))
    name = data.draw(st.sampled_from(("gaussian_filter", "gaussian_laplace", "gaussian_gradient_magnitude")))
    more = {"axes": axes, "mode": mode, "cval": 2.5, "truncate": data.draw(st.sampled_from((4.0, 2.2)))}
    if name == "gaussian_filter":
        more |= {"order": each(st.integers(0, 3)), "radius": each(st.none() | st.integers(0, 7))}
    elif x.dtype.kind in "biuc":
        x = x.real.astype(np.float32)  # integers wrap around in squares, and roots of them are of any sign
    if name == "gaussian_gradient_magnitude":
        sigma = 1.2  # SciPy smooths along all axes there
    elif name == "gaussian_laplace" and axes is not None:
        more["axes"] = sorted(axes)  # SciPy gives sigmas to all axes in the order of the array
    with np.errstate(all="ignore"):
        expected = getattr(scipy.ndimage, name)(x, sigma, **more)
        found = getattr(ca.ndimage, name)(x, sigma, **more)
    check(found, expected, x, 50)


@pytest.mark.parametrize("char", "?bBhHiqfdF")
def test_derivatives(char):
    rng = np.random.default_rng(5)
    for shape in ((9,), (33, 40), (5, 6, 20), (3, 4, 2, 35)):
        x = random_array(rng, shape, char)
        modes = [str(mode) for mode in rng.choice(MODES, len(shape))]
        for name in ("sobel", "prewitt"):
            for axis in range(-1, len(shape) - 1):
                expected = getattr(scipy.ndimage, name)(x, axis, mode=modes, cval=3)
                check(getattr(ca.ndimage, name)(x, axis, mode=modes, cval=3), expected, x, 400)
        if char != "?":
            expected = scipy.ndimage.laplace(x, mode=modes, cval=3)
            check(ca.ndimage.laplace(x, mode=modes, cval=3), expected, x, 40)
            if char not in "qfdF":
                expected = scipy.ndimage.laplace(x, "uint16", modes, 2.5)
                np.testing.assert_array_equal(ca.ndimage.laplace(x, "uint16", modes, 2.5), expected)
    x = random_array(rng, (12, 13), "d")
    own, scipys = ca.ndimage, scipy.ndimage
    check(
        own.generic_gradient_magnitude(x, own.sobel, axes=0),
        scipys.generic_gradient_magnitude(x, scipys.sobel, axes=0), x, 9,
    )  # fmt: skip
    np.testing.assert_array_equal(own.laplace(x, axes=()), x)


@pytest.mark.parametrize("threads", [1, 3])
def test_any_array_in_and_out(threads):
    """Steps, read-only inputs, other byte orders, in place; enough elements for several threads."""
    x = np.random.default_rng(0).standard_normal((300, 500))[::-2, 3::2]
    expected = scipy.ndimage.gaussian_filter(x, 2)
    with threads_of_calls(threads):
        for given in (x, np.asfortranarray(x), x.astype(">f8")):
            given.flags.writeable = False
            np.testing.assert_allclose(ca.ndimage.gaussian_filter(given, 2), expected, atol=1e-13)
        output = np.full((150, 600), np.nan)[:, ::2][:, : x.shape[1]]
        assert ca.ndimage.gaussian_filter(x, 2, output=output) is output
        np.testing.assert_allclose(output, expected, atol=1e-13)
        own = x.copy()
        assert ca.ndimage.gaussian_filter(own, 2, output=own) is own
        np.testing.assert_allclose(own, expected, atol=1e-13)
        short = ca.ndimage.gaussian_filter(x, 2, output="f4")
        assert short.dtype == np.float32 and np.abs(short - expected).max() < 1e-6


def test_empty_arrays_and_those_without_axes():
    for shape in ((0,), (3, 0), (0, 4)):
        assert ca.ndimage.gaussian_filter(np.empty(shape), 1).shape == shape
    assert ca.ndimage.gaussian_filter(np.array(3.0), 1) == 3
    with pytest.raises(np.exceptions.AxisError):
        ca.ndimage.correlate1d(np.array(3.0), [1])


SHORT_FILTERS = {  # (weights, whether they are summed as integers, for those with and without a sign)
    "gaussian": (np.exp(-(np.arange(-4, 5) ** 2) / 5.0), True, True),
    "lopsided": (np.array([0.1003, 0.3701, 0.0, 0.2111]), True, True),
    "whole": (np.array([-3.0, 32_000.0, 2.0]), True, True),
    "of one tap": (np.array([0.7303]), True, True),
    "derivative": (np.array([0.3103, 0.1007, -0.1007, -0.3103]), True, False),
    "long": (np.hanning(61)[1:-1], True, True),
    "too large": (np.array([0.5003, 0.7001]), False, False),
    "halves": (np.array([0.25, 0.5, 0.25]), False, False),
    "one beside nothing": (np.array([0.999999, 1e-7]), False, False),
}


@pytest.mark.parametrize("name", SHORT_FILTERS)
@pytest.mark.parametrize("char", "hH")
def test_sums_of_short_integers(name, char):
    """SciPy's answers, also of arrays whose sums are all whole or at the ends of the type."""
    w, *short = SHORT_FILTERS[name]
    w = w / w.sum() if name in ("gaussian", "long") else w
    rng, limits, short = np.random.default_rng(len(name)), np.iinfo(char), short["hH".index(char)]
    step = line_steps.LineStep(0, tuple(w), AxisWindow(90, len(w), 1), 3.0)
    kind = np.dtype(char)
    assert (short_passes.why_not_short(kind, kind, [step]) is None) == short
    for shape in ((90, 150), (7, 31), (6, 5, 3), (4000,)):
        x = random_array(rng, shape, char)
        ends = np.where(rng.random(shape) < 0.5, limits.min, limits.max).astype(char)
        flat = np.where(rng.random(shape) < 0.02, x, 77).astype(char)
        empty = np.where(rng.random(shape) < 0.1, x, 0).astype(char)
        for one, mode in product((x, ends, flat, empty), ("reflect", "constant")):
            for axis in range(len(shape)):
                y = np.full(shape, 99, char)
                ca.ndimage.correlate1d(one, w, axis, y, mode, 3)
                np.testing.assert_array_equal(y, scipy.ndimage.correlate1d(one, w, axis, None, mode, 3))


@pytest.mark.parametrize("char", "fdFD")
def test_images_of_ones_stay_ones(char):
    """With every sum of rounded weights, along each axis, by whichever pass; and they have no edges."""
    for shape in ((70,), (3, 3), (40, 600), (5, 7, 300), (2000, 3)):
        x = np.ones(shape, char)
        for sigma in (0.5, 1, 2, 5, 8.3, 20):
            for mode in ("reflect", "wrap"):
                y = ca.ndimage.gaussian_filter(x, sigma, mode=mode)
                assert y.dtype == char and (y == 1).all()
                order = (*(0,) * (x.ndim - 1), 1)
                assert not ca.ndimage.gaussian_filter(x, sigma, order, mode=mode).any()
            wide = ca.ndimage.gaussian_filter1d(x, sigma, 0, output="D" if char in "FD" else "d")
            assert (wide == 1).all()


@pytest.mark.parametrize("shape", [(60, 70), (40, 300)])
def test_wide_gaussians_of_bytes(shape):
    """Also those of too many weights for sums of float32."""
    x = np.random.default_rng(3).integers(0, 256, shape, np.uint8)
    for sigma in (12, 30, 50):
        expected = scipy.ndimage.gaussian_filter(x, sigma, mode="nearest")
        np.testing.assert_array_equal(ca.ndimage.gaussian_filter(x, sigma, mode="nearest"), expected)


@pytest.mark.parametrize("boundary", ["wrap", "constant"])
def test_long_lines_in_chunks(boundary):
    """Chunks of a line meet what lies beyond its ends, also that at its other end."""
    x = np.random.default_rng(1).integers(0, 9, (2, 40_001)).astype(np.float32)
    w = np.random.default_rng(2).integers(-3, 4, 301) * 1.0
    expected = scipy.ndimage.correlate1d(x, w, mode=boundary, cval=2, origin=-150)
    np.testing.assert_array_equal(ca.ndimage.correlate1d(x, w, mode=boundary, cval=2, origin=-150), expected)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_volumes_in_one_pass(dtype, monkeypatch):
    """Of all sizes, also shorter than the filter, beside other axes, and by several threads."""
    for name, value in (("LARGE", 0), ("SHORTEST", 0)):
        monkeypatch.setattr(volume_passes, name, value)
    monkeypatch.setattr(line_passes, "SHARED", 0)
    known_calls._forget()
    rng, modes = np.random.default_rng(4), ["reflect", "constant", "nearest", "mirror", "wrap"]
    for i in range(20):
        shape = tuple(int(n) for n in rng.integers(1, 23, 3))
        before, behind = ((), (2,))[i % 2], ((), (3,))[i // 2 % 2]
        axes = tuple(range(len(before), len(before) + 3))
        x = rng.standard_normal((*before, *shape, *behind)).astype(dtype)
        told = {"sigma": rng.uniform(0.3, 2.1, 3), "mode": list(rng.permutation(modes)[:3]), "axes": axes}
        y = np.full_like(x, np.nan)
        ca.ndimage.gaussian_filter(x, output=y, cval=2.5, **told)
        np.testing.assert_allclose(y, scipy.ndimage.gaussian_filter(x, cval=2.5, **told), atol=1e-5)
        steps = [line_steps.LineStep(a, (1.0,) * 5, AxisWindow(9, 5, 2), 0.0) for a in axes]
        assert volume_passes.why_not_volume(x.shape, x.dtype, x.dtype, steps) is None
    known_calls._forget()


def test_passes_share_what_lies_in_the_cache():
    step = line_steps.LineStep(0, (1.0,) * 9, AxisWindow(64, 9, 4, "wrap"), 0.0)
    steps = [step, step._replace(axis=1), step._replace(axis=2)]
    filtered = line_filters.LineFilter(np.dtype("f4"), np.dtype("f4"), tuple(steps))
    assert filtered.parts((64, 64, 64)) == [(0, 2), (2, 1)]
    assert filtered.parts((64, 4096, 64)) == [(0, 1), (1, 2)]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda n, x: n.correlate1d(x, []), "no filter weights given"),
        (lambda n, x: n.correlate1d(x, [1, 2], origin=1), "Invalid origin"),
        (lambda n, x: n.convolve1d(x, [1, 2], origin=1), "Invalid origin"),
        (lambda n, x: n.correlate1d(x, [1], mode="edge"), "boundary mode not supported"),
        (lambda n, x: n.gaussian_filter(x, (1, 2, 3)), "sequence argument must have length"),
        (lambda n, x: n.gaussian_filter(x, 1, order=-1), "order must be non-negative"),
        (lambda n, x: n.gaussian_filter(x, 1, radius=-1), "Radius must be a nonnegative integer"),
        (lambda n, x: n.gaussian_filter(x, 1, axes=(0, 0)), "axes must be unique"),
        (lambda n, x: n.correlate1d(x, [1], cval=1j), "omplex|real"),
        (lambda n, x: n.gaussian_filter(x, 1, output=np.empty(3)), "output shape not correct"),
        (lambda n, x: n.gaussian_filter(x, 1, output=np.complex64), "dtype|type not supported"),
    ],
)  # fmt: skip
def test_what_scipy_refuses_is_refused_in_its_words(call, told):
    x = np.zeros((3, 4))
    with pytest.raises((ValueError, RuntimeError, TypeError)) as theirs:
        call(scipy.ndimage, x)
    kind = TypeError if theirs.type is TypeError else (ValueError, RuntimeError)
    with pytest.raises((ValueError, TypeError) if kind is TypeError else theirs.type, match=told):
        call(ca.ndimage, x)


def test_arrays_on_a_gpu_go_to_cupyx(monkeypatch):
    """No GPU here: which function is called, and with what."""
    called = []
    module = type("cupyx", (), {"sobel": staticmethod(lambda *a, **k: called.append((a, k)) or "filtered")})
    monkeypatch.setattr(
        "convalgos.core.array_kinds.import_module", lambda name: {"cupyx.scipy.ndimage": module}[name]
    )
    monkeypatch.setattr("convalgos.core.arrays.device_of", lambda array: "cuda:0")
    monkeypatch.setattr("convalgos.core.arrays.as_cupy", lambda name, array: ("on GPU", array))
    x = type("OnGpu", (), {"__dlpack__": None})()
    assert ca.ndimage.sobel(x, 0, mode="wrap") == "filtered"
    assert ca.ndimage.sobel(input=x) == "filtered"
    assert called == [((("on GPU", x), 0), {"mode": "wrap"}), ((), {"input": ("on GPU", x)})]


def test_vectors_of_a_narrower_machine():
    run_on_haswell("""
import numpy as np, scipy.ndimage as theirs, convalgos as ca
x = np.random.default_rng(0).integers(0, 256, (9, 70, 45)).astype(np.uint8)
short = x.astype(np.int16) * -128, x.astype(np.uint16) * 257
for given in (x, x.astype(np.int32), x.astype(np.float32), *short):
    found, expected = ca.ndimage.gaussian_filter(given, 1.3), theirs.gaussian_filter(given, 1.3)
    assert np.abs(found.astype(float) - expected).max() <= (1e-4 if given.dtype.kind == "f" else 0)
    assert np.array_equal(ca.ndimage.laplace(given), theirs.laplace(given))
""")


@pytest.mark.parametrize("char", "?Bhidf")
def test_terms_meet_where_they_are_summed(char, monkeypatch):
    """Sums and lengths of derivatives: of any types, one term or several, large or again and again."""
    rng = np.random.default_rng(31)
    for shape in ((41,), (7, 50), (60, 45), (3, 20, 40), (2, 3, 5, 33)):
        monkeypatch.setattr(line_passes, "SHARED", 0 if len(shape) % 2 else 1 << 17)
        x = random_array(rng, shape, char)
        for output in (None, np.float32, np.float64, np.bool_, np.int16):
            if np.dtype(output or char).kind in "iu" and char in "df":
                continue  # what lies beyond the integers is not defined
            for axes in (None, (len(shape) - 1,)):
                more = {"mode": str(rng.choice(MODES)), "cval": 1.5, "output": output, "axes": axes}
                floats = np.dtype(output or char).kind in "fb"
                for name, sigmas in (
                    ("laplace", ()),
                    ("gaussian_laplace", (1.2,)),
                    *((("gaussian_gradient_magnitude", (0.8,)),) if floats else ()),
                ):
                    with np.errstate(all="ignore"):
                        expected = getattr(scipy.ndimage, name)(x, *sigmas, **more)
                    for _ in range(4):
                        y = np.full_like(expected, np.nan if expected.dtype.kind == "f" else 1)
                        getattr(ca.ndimage, name)(x, *sigmas, **more | {"output": y})
                        check(y, expected, x, 50)


@pytest.mark.parametrize("name", ["uint8", "uint16", "float32"])
def test_lengths_are_the_roots_that_numpy_cuts_off(name):
    """Of all sums that squares of two bytes wrap to."""
    y, other = (a.astype(name) for a in np.divmod(np.arange(1 << 16), 256))
    expected = y * y + other * other
    np.sqrt(expected, out=expected, casting="unsafe")
    length_of_terms(y, [other])
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("char", "?BHifdFD")
def test_rows_of_few_elements_turned_over(char):
    """In all orders of axes, and as terms that meet what they fill."""
    rng = np.random.default_rng(8)
    many = line_filters.MANY
    for shape, axis in (((many + 1, 3), 1), ((2, many, 2, 2), 2), ((9000, 8), 1), ((700, 1, 4), 1)):
        x = random_array(rng, shape, char)
        for mode in ("wrap", "constant"):
            how = {"mode": mode, "cval": 2}
            w = random_weights(rng, 5)
            expected = scipy.ndimage.correlate1d(x, w, axis, origin=1, **how)
            check(ca.ndimage.correlate1d(x, w, axis, origin=1, **how), expected, x, np.abs(w).sum())
            check(ca.ndimage.gaussian_filter(x, 1, **how), scipy.ndimage.gaussian_filter(x, 1, **how), x, 1)
            if char in "ifd":
                for call in ("laplace", "gaussian_gradient_magnitude", "sobel"):
                    args = (1,) if call.startswith("gauss") else ()
                    expected = getattr(scipy.ndimage, call)(x, *args, **how)
                    check(getattr(ca.ndimage, call)(x, *args, **how), expected, x, 50)


@pytest.mark.parametrize("shape", [(9, 5), (40, 60)])
def test_weights_that_float32_does_not_hold(shape):
    """Products with 0 are 0, and no NaN: of lines, of windows, and of those that are products of lines."""
    x = np.zeros(shape, np.float32)
    x[3, 2] = 1e-5
    for w in (np.full((1, 1), 1e40), np.full((3, 3), 1e40), np.pad([[-1e40]], 1), np.full((9, 9), -1e40)):
        found, line = ca.ndimage.correlate(x, w), ca.ndimage.correlate1d(x, w[0], 0)
        np.testing.assert_allclose(found, scipy.ndimage.correlate(x, w), rtol=1e-6)
        np.testing.assert_allclose(line, scipy.ndimage.correlate1d(x, w[0], 0), rtol=1e-6)
    found = ca.ndimage.gaussian_filter1d(x.astype(np.int16), 1e-20, order=2, output="f")
    assert not np.isnan(found).any()
