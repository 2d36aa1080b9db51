"""Sums in the arrays' own type, and the ways around plans: against SciPy's sums of the same type."""

import itertools
import warnings

import numpy as np
import pytest
import scipy.signal

import convalgos as ca
from convalgos.cpu.spectral import line_roots
from convalgos.signal import exact_integers, short_signals, small_calls, small_separable, window_sums
from convalgos.signal.modes import larger_first
from convalgos.signal.problems import run_as_problem

pytestmark = pytest.mark.usefixtures("sizes_that_come_often")

MODES = ("full", "same", "valid")
ROUNDING = 2.0**-53


def extreme(rng, shape, char, layout=0):
    """Random numbers, of integers the least and the largest ones among them; of several layouts in memory."""
    dtype = np.dtype(char)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        a = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
        a.flat[0], a.flat[-1] = info.min, info.max
    else:
        a = rng.integers(-9, 10, shape) + (1j * rng.integers(-9, 10, shape) if dtype.kind == "c" else 0)
        a = a.astype(dtype)
    if layout == 1:
        return np.asfortranarray(a[(slice(None, None, -1),) * a.ndim])
    if layout == 2:
        odd = np.frombuffer(b"\0" + a.tobytes(), np.uint8)[1:].view(dtype).reshape(shape)
        assert not odd.flags.aligned or dtype.itemsize == 1
        return odd
    return a


@pytest.mark.parametrize("char", "bBhHiIlLfdFD")
def test_sums_of_windows_are_exact(monkeypatch, char):
    """Of any outputs, in several pieces; integers wrap around."""
    monkeypatch.setattr(window_sums, "PIECE", 64)
    rng, dtype = np.random.default_rng(ord(char)), np.dtype(char)
    shapes = [((90,), (7,)), ((31,), (28,)), ((12, 9), (5, 4)), ((6, 20), (6, 1)), ((5, 6, 7), (2, 3, 4))]
    for (s1, s2), mode, layout in itertools.product(shapes, MODES, range(3)):
        x, w = extreme(rng, s1, char, layout), extreme(rng, s2, char, layout)
        for a, b in ((x, w), (w, x)):
            y = window_sums.window_sums(*larger_first(a, b, mode), dtype)
            theirs = scipy.signal.convolve(a, b, mode, "direct")
            assert y.dtype == dtype and np.array_equal(y, theirs), (s1, s2, mode, layout)


@pytest.mark.parametrize("seed", range(4))
def test_random_integers_of_two_types_are_those_of_scipy(seed):
    """1-D to 3-D, from sums to transforms; unsigned ones are seen with signs."""
    rng = np.random.default_rng(seed)
    for _ in range(40):
        ndim = int(rng.integers(1, 4))
        most = {1: (6000, 900), 2: (90, 20), 3: (14, 5)}[ndim]
        shapes = [tuple(int(n) for n in rng.integers(1, m, ndim, endpoint=True)) for m in most]
        chars = rng.choice(list("bBhHiIL"), 2) if rng.random() < 0.5 else [rng.choice(list("BHIL"))] * 2
        x, w = (extreme(rng, s, c, int(rng.integers(3))) for s, c in zip(shapes, chars, strict=True))
        dtype, mode = np.result_type(x, w), MODES[rng.integers(3)]
        if dtype.kind == "f":
            continue  # of uint64 with signed ones
        if mode == "valid" and not (
            all(n >= k for n, k in zip(*shapes, strict=True))
            or all(n <= k for n, k in zip(*shapes, strict=True))
        ):
            mode = "full"
        for name in ("convolve", "correlate"):
            ours = getattr(ca.signal, name)(x, w, mode)
            theirs = getattr(scipy.signal, name)(x.astype(dtype), w.astype(dtype), mode, "direct")
            assert ours.dtype == dtype and np.array_equal(ours, theirs), (name, shapes, chars, mode)
            assert not np.shares_memory(ours, x) and not np.shares_memory(ours, w)


# --- the bound of transforms -----------------------------------------------------------------------


@pytest.mark.skipif(np.finfo(np.longdouble).eps > 1e-18, reason="no floats that are more precise")
@pytest.mark.parametrize("radix", [2, 4])
def test_roots_are_as_exact_as_the_bound_has_it(radix):
    turns = np.arange(8192) / 8192
    roots = line_roots._powers(turns, radix)
    pi = 4 * np.arctan(np.longdouble(1))
    angles = 2 * pi * turns[:, None].astype(np.longdouble) * np.arange(1, radix) / radix
    error = np.hypot(roots[..., 0] - np.cos(angles), roots[..., 1] - np.sin(angles)).max()
    assert error < 1.5 * ROUNDING


@pytest.mark.parametrize("n, k", [(4096, 4096), (65536, 60000)])
def test_transforms_round_to_exact_sums_up_to_the_room(n, k):
    """Of the largest integers that the bound lets through, of one sign, of two, and of one frequency."""
    most = exact_integers.ROOM / exact_integers.transform_error((n,), (k,))
    value = int(np.sqrt(most / np.sqrt(n * k)))
    counts = np.minimum(np.minimum(np.arange(1, n + k), k), np.arange(n + k - 1, 0, -1))
    signs = 1 - 2 * (np.arange(n + k - 1) % 2)
    for x, w, exact in (
        (np.ones(n), np.ones(k), counts),
        (signs[:n], signs[:k], counts * signs),
    ):
        whole = [(value * a).astype(np.float64)[None, None] for a in (x, w)]
        assert exact_integers.parts_of_integers(whole[0][0, 0], whole[1][0, 0], (value, value)) == (
            exact_integers.WHOLE
        )
        y = run_as_problem(*whole, [2], [0, 1], [(0, n + k - 1)], "fft")
        error = np.abs(np.asarray(y).reshape(-1) - exact * float(value**2)).max()
        assert error < 1 / 16  # a proven bound is far from what is met


# --- ways around plans -----------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_volumes_spread_what_is_not_finite_as_scipy_does(value):
    rng = np.random.default_rng(0)
    x, w = rng.integers(-9, 9, (9, 10, 11)).astype(float), np.ones((3, 2, 2))
    x[4], x[5] = value, -value
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for a, b in ((x, w), (np.ones_like(x), np.where(np.arange(12).reshape(3, 2, 2) == 5, value, w))):
            theirs = scipy.signal.convolve(a, b, "same", "direct")
            ours = ca.signal.convolve(a, b, "same", "direct")
            assert np.array_equal(ours, theirs, equal_nan=True)


def test_long_rows_are_cut_and_long_filters_are_not_laid_out(monkeypatch):
    monkeypatch.setattr(window_sums, "LONGEST_ROW", 40)
    rng = np.random.default_rng(1)
    for shapes in (((9, 50), (3, 3)), ((1, 321), (1, 7)), ((4, 5, 130), (2, 2, 2)), ((3, 121), (2, 40))):
        for char in "hdD":
            x, w = (extreme(rng, s, char) for s in shapes)
            for mode in ("full", "same", "valid"):
                y = window_sums.window_sums(*larger_first(x, w, mode), x.dtype)
                theirs = scipy.signal.convolve(x, w, mode, "direct")
                assert np.array_equal(y, theirs) if char == "h" else np.allclose(y, theirs, 1e-12), shapes
    for shapes in (((9, 150), (3, 41)), ((120,), (60,)), ((4, 5, 60), (2, 2, 50))):
        x, w = (extreme(rng, s, "h") for s in shapes)
        assert window_sums.window_sums(*larger_first(x, w, "full"), x.dtype) is None
        assert np.array_equal(ca.signal.convolve(x, w), scipy.signal.convolve(x, w, "full", "direct"))
    x, w = extreme(rng, (70,), "h"), extreme(rng, (65,), "h")  # but of few outputs nothing is
    y = window_sums.window_sums(*larger_first(x, w, "valid"), x.dtype)
    assert np.array_equal(y, scipy.signal.convolve(x, w, "valid", "direct"))


@pytest.mark.parametrize("types", ["dd", "fD", "FF", "hD"])
def test_transforms_along_axes_repeat_either_array(types):
    rng = np.random.default_rng(2)
    shapes = [
        ((5, 1, 6), (1, 3, 2), 2),
        ((1, 7, 6), (4, 7, 3), 2),
        ((30, 6), (5, 1), 0),
        ((6, 30), (1, 5), 1),
    ]
    for s1, s2, axis in shapes:
        x, w = extreme(rng, s1, types[0]), extreme(rng, s2, types[1])
        for mode in ("full", "valid"):
            ours = ca.signal.fftconvolve(x, w, mode, axes=axis)
            theirs = scipy.signal.fftconvolve(x, w, mode, axes=axis)
            assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
            assert np.abs(ours - theirs).max() < 1e-5 * np.abs(theirs).max()


@pytest.mark.parametrize("types", ["dd", "fF", "DD", "hf"])
def test_groups_of_small_convolutions_are_not_transformed(monkeypatch, types):
    monkeypatch.setattr(short_signals, "transformed_whole", None)
    rng = np.random.default_rng(3)
    for s1, s2, axes in (
        ((5, 30), (5, 4), 1),
        ((31, 3), (6, 3), 0),
        ((3, 7, 9), (3, 8, 2), (1, 2)),
        ((6, 4, 8), (5, 4, 3), (0, 2)),
        ((9, 3, 16), (2, 5, 16), (0, 1)),
    ):
        x, w = extreme(rng, s1, types[0]), extreme(rng, s2, types[1])
        for mode in ("full", "same"):
            ours = ca.signal.fftconvolve(x, w, mode, axes=axes)
            theirs = scipy.signal.fftconvolve(x, w, mode, axes=axes)
            assert ours.shape == theirs.shape and ours.dtype == theirs.dtype and ours.flags.c_contiguous
            assert np.abs(ours - theirs).max() < 1e-6 * np.abs(theirs).max()


@pytest.mark.parametrize("char", "fdFD")
def test_separable_filters_of_single_taps_multiply(monkeypatch, char):
    theirs = scipy.signal.sepfir2d
    monkeypatch.setattr(scipy.signal, "sepfir2d", None)
    monkeypatch.setattr(small_separable, "SINGLE_TAPS", 0)  # up to which the compiled call is
    rng = np.random.default_rng(4)
    for shape in ((9, 6), (1, 1), (70, 2), (2, 70)):
        x = extreme(rng, shape, char)
        for taps in {char, char.lower()}:
            row, column = extreme(rng, (1,), taps) * 2 - 1, extreme(rng, (1,), taps) * 2 + 1
            for image in (x, x[::-1], np.asfortranarray(x)):
                y = ca.signal.sepfir2d(image, row, column)
                wanted = theirs(image, row, column)
                assert y.dtype == wanted.dtype and np.array_equal(y, wanted) and not np.shares_memory(x, y)
        assert np.isnan(ca.signal.sepfir2d(x, np.full(1, np.nan, char), np.ones(1, char))).all()
        with pytest.raises((ValueError, TypeError)):
            ca.signal.sepfir2d(x, np.ones((1, 1), char), np.ones(1, char))


def test_rates_that_are_the_same_copy_signals_as_they_lie():
    for x in (np.ones((6, 7)).T, np.ones((6, 7))[::-1], np.ones((6, 14))[:, ::2]):
        ours, theirs = (module.resample_poly(x, 3, 3) for module in (ca.signal, scipy.signal))
        assert ours.strides == theirs.strides and not np.shares_memory(ours, x)


@pytest.mark.parametrize("fill", [3, -2, 2.5, np.nan, 1e300, 300, 2**40])
@pytest.mark.parametrize("types", ["dd", "fh", "BB", "hi"])
def test_fill_values_are_those_of_scipy(types, fill):
    rng = np.random.default_rng(3)
    x, w = (rng.integers(0, 9, s).astype(c) for s, c in zip(((7, 9), (4, 3)), types, strict=True))
    small_calls.known_calls.clear()
    for name, mode in itertools.product(("convolve2d", "correlate2d"), MODES):
        found = []
        for module in (scipy.signal, ca.signal):
            try:
                with np.errstate(all="ignore"), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    found.append(getattr(module, name)(x, w, mode, "fill", fill))
            except Exception as error:
                found.append(error)
        theirs, ours = found
        if isinstance(theirs, Exception):
            assert type(ours) is type(theirs)
        else:
            assert ours.dtype == theirs.dtype and np.allclose(ours, theirs, 1e-6, equal_nan=True), (
                name,
                mode,
            )


def test_the_method_of_mixed_numbers_is_that_of_floats(monkeypatch):
    """Integers with floats are convolved as floats, whichever comes first."""
    x, w = np.arange(100_000), np.ones(20_000)
    assert ca.signal.choose_conv_method(x[:50], x[:9]) in ("direct", "fft")  # of integers, SciPy's
    monkeypatch.setattr(scipy.signal, "choose_conv_method", None)
    for a, b in ((x, w), (w, x)):
        assert ca.signal.choose_conv_method(a, b) == "fft"


@pytest.mark.parametrize("char", "bHlfdFD")
def test_arrays_inside_others_at_few_places(char):
    """Dot products, or all windows side by side; integers wrap around."""
    rng = np.random.default_rng(ord(char))
    shapes = [
        ((300,), (297,)), ((301,), (301,)), ((40, 41), (38, 41)), ((9, 7, 8), (9, 6, 7)),
        ((13, 6, 6), (2, 6, 6)), ((6, 7, 8), (2, 3, 2)),
    ]  # fmt: skip
    for (s1, s2), layout in itertools.product(shapes, range(3)):
        x, w = extreme(rng, s1, char, layout), extreme(rng, s2, char, layout)
        for name, given in itertools.product(("convolve", "correlate"), ((x, w), (w, x))):
            ours = getattr(ca.signal, name)(*given, "valid")
            theirs = getattr(scipy.signal, name)(*given, "valid", "direct")
            assert ours.dtype == theirs.dtype and np.array_equal(ours, theirs), (name, s1, s2, layout)


@pytest.mark.parametrize("name", ["fftconvolve", "oaconvolve"])
@pytest.mark.parametrize("mode", MODES)
def test_along_axes_of_length_1_there_is_a_product(name, mode):
    """In the type of the product, as of SciPy."""
    for s1, s2, axes in (
        ((5, 1, 7), (1, 4, 1), None), ((6, 7), (6, 1), [1]), ((6, 7), (6, 1), -1), ((1, 3), (4, 3), 0),
        ((1,), (9,), None), ((3, 2), (3, 1), [1, 1]), ((3, 2), (4, 1), 1), ((3, 0), (3, 1), 1),
        ((3, 2), (3, 1), 5),
    ):  # fmt: skip
        for types in ("bb", "Lf", "dF"):
            given = np.full(s1, 3, types[0]), np.full(s2, 2, types[1]), mode, axes
            try:
                theirs = getattr(scipy.signal, name)(*given)
            except ValueError as refused:
                with pytest.raises(type(refused)):
                    getattr(ca.signal, name)(*given)
                continue
            ours = getattr(ca.signal, name)(*given)
            assert ours.dtype == theirs.dtype and np.array_equal(ours, theirs), (s1, s2, axes, types)


@pytest.mark.parametrize("char", ["f", "d", "D"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_direct_sums_spread_no_farther_than_scipys(char, bad):
    """The zeros around the larger array meet all elements of the smaller one, which may be the first."""
    rng = np.random.default_rng(0)
    shapes = [((629,), (629,)), ((1767,), (1767,)), ((9,), (9,)), ((27, 2), (38, 2)), ((2, 54), (33, 43))]
    shapes += [((3, 4, 3), (3, 7, 3)), ((15, 23), (42, 10)), ((8, 2, 6), (5, 2, 11)), ((70,), (900,))]
    for (s1, s2), mode, where in itertools.product(shapes, ("full", "same"), (0, 1)):
        arrays = [rng.standard_normal(s).astype(char) for s in (s1, s2)]
        arrays[where].flat[arrays[where].size // 2] = bad
        for name in ("convolve", "correlate"):
            with np.errstate(all="ignore"):
                ours, theirs = (
                    np.isfinite(getattr(m, name)(*arrays, mode, "direct")) for m in (ca.signal, scipy.signal)
                )
            assert np.all(ours >= theirs), (name, s1, s2, mode, where)
