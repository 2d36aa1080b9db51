"""Signals of types that are rare, and of several types at once, against SciPy's."""

import itertools

import numpy as np
import pytest
import scipy.signal

import convalgos as ca
from convalgos.signal import problems, small_calls

pytestmark = pytest.mark.usefixtures("sizes_that_come_often")

MODES = ("full", "same", "valid")
FILLS = (1, 2.5, 1.5j, np.float64(0.5), np.float32(2), np.complex128(1 - 2j))


def array(shape, char, seed):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape)
    return (values + 1j * rng.standard_normal(shape) if char in "FD" else values).astype(char)


@pytest.mark.parametrize("name", ["convolve", "correlate"])
def test_booleans(name):
    """Few products, many that are counted, and filters of many taps: 256 true ones would count as none."""
    rng = np.random.default_rng(0)
    for n, k in ((40, 3), (700, 63), (63, 700), (700, 256), (9, 9)):
        for x, w in ((rng.random(n) < 0.1, rng.random(k) < 0.3), (np.ones(n, bool), np.ones(k, bool))):
            for mode, method in itertools.product(MODES, ("auto", "direct")):
                if mode == "same" and n < k:
                    continue
                y = getattr(ca.signal, name)(x, w, mode, method)
                theirs = getattr(scipy.signal, name)(x, w, mode, method)
                assert y.dtype == bool and np.array_equal(y, theirs), (n, k, mode, method)
    with pytest.raises(ValueError, match="Unsupported type"):
        getattr(ca.signal, name)(np.ones((3, 3), bool), np.ones((2, 2), bool))


@pytest.mark.parametrize("chars", ["dd", "dD", "DD", "fF", "Ff"])
def test_fill_values_of_all_types(chars):
    """Those of one value in several types, too, of which only complex images hold the complex one."""
    x, w = array((9, 7), chars[0], 1), array((3, 4), chars[1], 2)
    for name, fill in itertools.product(("convolve2d", "correlate2d"), (*FILLS, 1.0, 1 + 0j)):
        answers = []
        for m in (ca.signal, scipy.signal):
            try:
                answers.append(getattr(m, name)(x, w, "full", "fill", fill))
            except (TypeError, ValueError) as error:
                answers.append(type(error))
        y, theirs = answers
        if isinstance(theirs, type):
            assert y is theirs, (name, fill)
        else:
            assert y.dtype == theirs.dtype and np.allclose(y, theirs, atol=1e-5), (name, fill)


def test_fill_values_of_complex_images_are_compiled(monkeypatch):
    x, w = array((9, 7), "D", 1), array((3, 4), "d", 2)
    theirs = [scipy.signal.convolve2d(x, w, fillvalue=fill) for fill in FILLS]
    monkeypatch.setattr(scipy.signal, "convolve2d", None)
    for fill, wanted in zip(FILLS, theirs, strict=True):
        assert np.allclose(ca.signal.convolve2d(x, w, fillvalue=fill), wanted)


@pytest.mark.parametrize("char", ["b", "B", "h", "I", "l"])
def test_fill_values_of_integers_are_cut_off(char, monkeypatch):
    """As SciPy does it, by compiled calls; what the type does not hold is SciPy's to refuse."""
    rng = np.random.default_rng(3)
    x, w = rng.integers(0, 40, (5, 7)).astype(char), rng.integers(0, 40, (3, 2)).astype(char)
    fills = [fill for fill in (1.5, 2.0, 0.7, -0.5, -3.7, 127.9) if fill > -1 or char.islower()]
    theirs = [scipy.signal.correlate2d(x, w, fillvalue=fill) for fill in fills]
    for name in ("convolve2d", "correlate2d"):
        for fill in (1e10, -200.0) if char == "b" else ():
            with pytest.raises(ValueError, match="fillvalue"):
                getattr(ca.signal, name)(x, w, fillvalue=fill)
    monkeypatch.setattr(scipy.signal, "correlate2d", None)
    for fill, wanted in zip(fills, theirs, strict=True):
        np.testing.assert_array_equal(ca.signal.correlate2d(x, w, fillvalue=fill), wanted)


@pytest.mark.parametrize("name", ["convolve", "correlate"])
def test_halves_of_several_axes(name, monkeypatch):
    """What SciPy transforms, ours does; what it refuses to sum is refused."""
    x, w = array((40, 60), "e", 1), array((30, 20), "e", 2)
    cases = list(itertools.product(MODES, ("auto", "fft")))
    theirs = [getattr(scipy.signal, name)(x, w, *case) for case in cases]
    with pytest.raises(ValueError, match="Unsupported type"):
        getattr(ca.signal, name)(x, w, "full", "direct")
    monkeypatch.setattr(scipy.signal, name, None)
    for case, wanted in zip(cases, theirs, strict=True):
        y = getattr(ca.signal, name)(x, w, *case)
        assert (y.shape, y.dtype) == (wanted.shape, wanted.dtype)
        assert abs(y.astype("d") - wanted).max() <= 2e-3 * abs(wanted.astype("d")).max()


@pytest.mark.parametrize("chars", ["dD", "fF"])
def test_complex_filters_of_lines_are_transformed_one_by_one(chars, monkeypatch):
    calls, whole = [], problems._by_each_filter
    monkeypatch.setattr(problems, "_by_each_filter", lambda *given: calls.append(1) or whole(*given))
    for n, k, lines in ((6089, 62, ()), (3000, 300, (2,))):
        x, w = array((*lines, n), chars[0], 1), array(((1,) * len(lines)) + (k,), chars[1], 2)
        for mode in MODES:
            y, theirs = (m.fftconvolve(x, w, mode, -1) for m in (ca.signal, scipy.signal))
            bound = (1e-12 if chars[1] == "D" else 1e-5) * abs(theirs).max()
            assert y.dtype == theirs.dtype and abs(y - theirs).max() <= bound, (n, mode)
    assert calls


@pytest.mark.parametrize("chars", ["dd", "ff", "FF", "Ff", "eh"])
def test_long_columns_that_fill_no_vector(chars):
    """They go by one pass, whether columns lie side by side or apart; what is not finite stays in its own."""
    small_calls.known_calls.clear()
    for shape, axis in (((1500, 2), 0), ((1, 1600, 3), 1), ((3, 700, 2), 1), ((2, 900, 3), -2)):
        h, x = array((5,), chars[1], 1), array(shape, chars[0], 2)
        x.reshape(-1)[500] = np.inf
        for lines in (x, np.asfortranarray(x)):
            with np.errstate(all="ignore"):
                y, theirs = (m.lfilter(h, 1.0, lines, axis) for m in (ca.signal, scipy.signal))
            assert y.dtype == theirs.dtype and y.shape == theirs.shape
            assert np.array_equal(np.isfinite(y), np.isfinite(theirs)), (shape, axis)
            finite = np.isfinite(theirs)
            assert np.allclose(y[finite], theirs[finite], atol=1e-4), (shape, axis)
        if chars != "eh":
            h[2] = np.nan  # which spreads as in SciPy
            y, theirs = (m.lfilter(h, 1.0, x, axis) for m in (ca.signal, scipy.signal))
            assert np.array_equal(np.isnan(y), np.isnan(theirs))


@pytest.mark.parametrize("chars", ["dd", "ff", "fd", "DD", "Fd"])
def test_states_of_long_columns(chars):
    """What is held before and behind columns that fill no vector, in any order of the axes, is SciPy's."""
    small_calls.known_calls.clear()
    for shape, axis in (((1500, 2), 0), ((3, 700, 2), 1), ((900, 3, 2), 0)):
        x, h = array(shape, chars[0], 1), array((6,), chars[1], 2)
        held = [5 if i == axis else n for i, n in enumerate(shape)]
        shared = [5 if i == axis else 1 for i in range(len(shape))]
        for lines in (
            x,
            np.asfortranarray(x),
            np.repeat(x, 2, axis)[(slice(None),) * axis + (slice(0, None, 2),)],
        ):
            for zi in (
                array(held, chars[0], 3),
                array(shared, chars[1], 4),
                np.asfortranarray(array(held, "d", 5)),
            ):
                ours, theirs = (m.lfilter(h, 2.0, lines, axis, zi) for m in (ca.signal, scipy.signal))
                for y, wanted in zip(ours, theirs, strict=True):
                    assert (y.shape, y.dtype) == (wanted.shape, wanted.dtype), (shape, axis)
                    assert np.allclose(y, wanted, atol=1e-4 if chars[0] in "fF" else 1e-12), (shape, axis)
        assert np.allclose(
            *(m.filtfilt(h, 1.0, np.asfortranarray(x), axis) for m in (ca.signal, scipy.signal)), atol=1e-3
        )


@pytest.mark.parametrize("types", ["ee", "eb", "?e"])
def test_few_products_of_halves_are_those_of_scipy(types):
    rng = np.random.default_rng(4)
    for n, k in ((3, 1), (30, 5), (20, 20), (1, 1)):
        x, w = (rng.integers(0, 2, s).astype(c) for s, c in zip((n, k), types, strict=True))
        for mode in ("full", "same", "valid"):
            for name in ("convolve", "correlate"):
                ours, theirs = (getattr(m, name)(x, w, mode, "direct") for m in (ca.signal, scipy.signal))
                assert ours.dtype == theirs.dtype == "e" and np.array_equal(ours, theirs)


@pytest.mark.parametrize("types", ["i?", "?B", "l?", "??"])
def test_methods_for_booleans_are_those_of_scipy(types):
    for n, k in ((20, 1), (500, 30), (30_000, 9_000)):
        x, w = (np.full(s, 2**30 + 1).astype(c) for s, c in zip((n, k), types, strict=True))
        assert ca.signal.choose_conv_method(x, w) == scipy.signal.choose_conv_method(x, w)
    same = np.ones(3, "?"), np.ones((2, 0), "?"), "no mode"
    assert ca.signal.choose_conv_method(*same) == scipy.signal.choose_conv_method(*same) == "direct"


@pytest.mark.parametrize("divisor", [1, [1], np.array([1]), np.array(2)])
def test_filters_of_integers_alone_are_refused(divisor):
    for taps, signal in (([1, 2, 3], [4, 5, 6, 7]), (np.array([1, 2]), np.ones((2, 9), int))):
        for module in (scipy.signal, ca.signal):
            with pytest.raises(NotImplementedError, match="'int64', which is not supported"):
                module.lfilter(taps, divisor, signal)
            with pytest.raises(NotImplementedError, match="'int64', which is not supported"):
                module.lfilter(
                    taps, divisor, signal, zi=np.zeros((*np.shape(signal)[:-1], len(taps) - 1), int)
                )


@pytest.mark.parametrize("char", "gG")
@pytest.mark.parametrize("axis", [0, 1])
def test_long_floats_are_filtered_by_scipy(char, axis):
    x, b = array((4, 9), char, 0), array(3, char, 1)
    for signal in (x, x.T.copy().T, x[axis]):
        given = b, [1], signal, axis if signal.ndim > 1 else 0
        ours, theirs = (m.lfilter(*given) for m in (ca.signal, scipy.signal))
        assert ours.dtype == theirs.dtype == char and np.array_equal(ours, theirs)


def test_halves_beside_what_is_no_number():
    for module in (scipy.signal, ca.signal):
        with pytest.raises(ValueError, match="Unsupported type"):
            module.convolve(np.ones((3, 1), "e"), np.zeros((1, 1), "M8[s]"), "valid")


@pytest.mark.parametrize("name", ["convolve2d", "correlate2d"])
@pytest.mark.parametrize("boundary", ["wrap", "symm"])
@pytest.mark.parametrize("shape", [(0, 7), (7, 0), (0, 0)], ids=str)
def test_no_pixels_go_on_beyond_the_edges(name, boundary, shape):
    image, taps = np.zeros(shape), np.ones((2, 6))
    with pytest.raises(ValueError, match="image without elements"):  # where SciPy divides by zero
        getattr(ca.signal, name)(image, taps, "full", boundary)
    ours, theirs = (getattr(m, name)(image, taps, "same", boundary) for m in (ca.signal, scipy.signal))
    assert ours.shape == theirs.shape == shape


@pytest.mark.parametrize("shape", [(0, 7), (7, 0), (0, 0)], ids=str)
def test_images_without_pixels_are_filtered_to_none(shape):
    """SciPy reads and writes beyond arrays for them, and the process ends."""
    for of_image, of_taps, size in (("f", "f", 3), ("d", "d", 1), ("D", "f", 5), ("i2", "f", 3)):
        taps = np.ones(size, of_taps)
        y = ca.signal.sepfir2d(np.zeros(shape, of_image), taps, taps)
        theirs = scipy.signal.sepfir2d(np.zeros((9, 9), of_image), taps, taps)
        assert y.shape == shape and y.dtype == theirs.dtype
    with pytest.raises(ValueError):
        ca.signal.sepfir2d(np.zeros(shape), np.ones(2), np.ones(3))


@pytest.mark.parametrize("mode", ["wrap", "symmetric", "reflect", "edge", "line"])
def test_no_samples_go_on_beyond_the_ends(mode):
    """SciPy divides by zero, which ends the process, or reads beyond the array."""
    with pytest.raises(ValueError, match="lines without samples"):
        ca.signal.upfirdn(np.ones(5), np.zeros((0, 3)), 2, 3, 0, mode)
    assert ca.signal.upfirdn(np.ones(3), np.zeros(0), 3, 2, mode=mode).shape == (0,)
    assert ca.signal.upfirdn(np.ones(5), np.zeros((3, 0)), 2, 3, 0, mode).shape == (3, 0)
    assert ca.signal.resample_poly(np.zeros((0, 3)), 3, 2, padtype=mode).shape == (0, 3)
    assert ca.signal.resample_poly(np.zeros((3, 0)), 4, 2, padtype=mode).shape == (6, 0)
