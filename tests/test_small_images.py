"""Short ways for small images and signals: SciPy's answers for every type, in whatever way arrays lie."""

import itertools

import numpy as np
import pytest
import scipy.signal

import convalgos as ca
from convalgos.signal import mixed_types, small_calls, small_lines

MODES = ("full", "same", "valid")


def drawn(rng, shape, dtype):
    """An array of a type; of integers any, so that sums wrap around."""
    if dtype.kind in "iu":
        return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape)).astype(dtype) if dtype.kind == "c" else x.astype(dtype)


def same(ours, theirs):
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.flags.c_contiguous
    if ours.dtype.kind in "iu":
        return np.array_equal(ours, theirs)
    return np.allclose(ours, theirs, rtol=1e-4, atol=1e-4 if ours.dtype.char in "fF" else 1e-12)


@pytest.mark.parametrize("char", mixed_types.NUMBERS)
def test_answers_are_those_of_scipy(char):
    rng, dtype = np.random.default_rng(ord(char)), np.dtype(char)
    small_calls.known_calls.clear()
    for mode in MODES:
        x, w = drawn(rng, (17, 90), dtype).T, drawn(rng, (12, 5), dtype)[::-2]  # (90, 17), (6, 5)
        for boundary in ("fill", "wrap", "symm"):
            for name in ("convolve2d", "correlate2d"):
                given = x, w, mode, boundary
                assert same(getattr(ca.signal, name)(*given), getattr(scipy.signal, name)(*given)), given[2:]
        lines = x[:, 0], w[:, 0]
        volumes = x[:60].reshape(4, 5, 51)[..., ::-3], w.reshape(2, 3, 5)
        for name in ("convolve", "correlate"):
            for arrays in (lines, (x, w), volumes, lines[::-1], volumes[::-1])[: 5 if mode != "valid" else 3]:
                theirs = getattr(scipy.signal, name)(*arrays, mode, "direct")
                assert same(getattr(ca.signal, name)(*arrays, mode), theirs), (name, mode)
    assert all(small_calls.known_calls.values())  # none of this went the long way


@pytest.mark.parametrize("char", mixed_types.FLOATING)
def test_lines_are_those_of_scipy(char):
    rng, dtype = np.random.default_rng(1), np.dtype(char)
    h, x = drawn(rng, 23, dtype), drawn(rng, (7, 61), dtype)
    small_calls.known_calls.clear()
    for a in (1.0, [1.0], np.ones(1, dtype), [2.0], np.array(4.0, "f")):
        for signal in (x, x[3, ::-2], x.reshape(7, 1, 61), x[:6].reshape(2, 3, 61)[..., ::-1]):
            for axis in range(-1, signal.ndim - 1):
                given = h, a, signal, axis
                assert same(ca.signal.lfilter(*given), scipy.signal.lfilter(*given)), (a, axis)
    assert all(small_calls.known_calls.values())  # none of this went the long way
    for up, down in ((1, 1), (3, 2), (2, 5), (7, 9)):
        for signal in (x[0], x, x[:2, ::-2]):
            assert same(ca.signal.upfirdn(h, signal, up, down), scipy.signal.upfirdn(h, signal, up, down))
    for image in (x.T, x[:2].T):  # the narrow one is filtered upright
        theirs = scipy.signal.sepfir2d(image, h[:1], h[4::-2])
        assert same(ca.signal.sepfir2d(image, h[:1], h[4::-2]), theirs)
    y = ca.signal.resample_poly(x, 4, 4)
    assert same(y, x) and not np.shares_memory(x, y)


@pytest.mark.parametrize("types", ["fF", "Fd", "dF", "Df", "fh", "ld", "BD", "hl", "ff", "fe"])
def test_mixed_types_promote_as_scipys(types):
    rng = np.random.default_rng(2)
    h, x = (drawn(rng, n, np.dtype(char)) for n, char in zip((9, 70), types, strict=True))
    for a in (1, 1.0, [1], [1.0], 1 + 0j, True, np.ones(1, "f"), np.ones(1, "D"), np.ones(1, "h")):
        try:
            theirs = scipy.signal.lfilter(h, a, x)
        except NotImplementedError:  # all are integers
            with pytest.raises(NotImplementedError):
                ca.signal.lfilter(h, a, x)
        else:
            assert same(ca.signal.lfilter(h, a, x), theirs), a
    for up, down in ((1, 1), (3, 2)):
        assert same(ca.signal.upfirdn(h, x, up, down), scipy.signal.upfirdn(h, x, up, down)), (up, down)


def test_what_the_short_way_does_not_take():
    """Other orders of bytes, types that differ, places that are not aligned, subclasses, and lists."""
    x, w = np.arange(30.0).reshape(5, 6), np.array([[1.0, 2.0], [3.0, 4.0]])
    expected = scipy.signal.convolve2d(x, w)
    odd = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float64).reshape(5, 6)
    for given in (x.astype(">f8"), x.astype(np.float32), odd, x.view(np.memmap), x.tolist()):
        assert np.array_equal(ca.signal.convolve2d(given, w), expected)
    h = np.array([0.25, 0.5, 0.25])
    expected = ca.signal.sepfir2d(x, h, h)  # known by its sizes
    assert np.allclose(ca.signal.sepfir2d(x, h.astype(np.float32), h), expected)
    with pytest.raises(ValueError, match="too deep"):  # SciPy's
        ca.signal.sepfir2d(x, h.reshape(3, 1), h)
    with pytest.raises(ValueError, match="mode"):
        ca.signal.convolve2d(x, w, "none")


@pytest.mark.parametrize("chars", ["ff", "dd", "fF", "dD", "DD", "Fd", "dF", "lB", "hh", "df"])
def test_signals_at_two_rates_are_exact(chars):
    """Along every axis, in whatever way they lie: real filters of complex samples stay real."""
    rng = np.random.default_rng(sum(map(ord, chars)))
    known = small_calls.known_calls
    known.clear()

    def numbers(shape, char):
        imaginary = 1j * rng.integers(-9, 10, shape) if char in "FD" else 0
        return (rng.integers(0, 10, shape) + imaginary).astype(char)

    rates = (1, 1), (7, 1), (1, 6), (6, 4), (5, 13), (13, 3)
    for i, (shape, taps) in enumerate(itertools.product(((37,), (3, 70), (2, 4, 21)), (1, 4, 33))):
        (up, down), mode = rates[i % len(rates)], sorted(small_lines.EXTENSIONS)[i % 5]
        h, x = numbers(2 * taps, chars[0])[::-2], numbers(shape, chars[1])
        for axis in range(-1, x.ndim - 1):
            for lies in (x, np.asfortranarray(x), x[..., ::-1]):
                given = h, lies, up, down, axis, mode
                ours, theirs = ca.signal.upfirdn(*given), scipy.signal.upfirdn(*given)
                assert ours.dtype == theirs.dtype and ours.flags.c_contiguous
                assert np.array_equal(ours, theirs), (shape, taps, given[2:])
    assert known and all(known.values())


@pytest.mark.parametrize("mode", ["reflect", "antireflect"])
@pytest.mark.parametrize("x", [np.array([2.0]), [2.0], np.full((3, 1), 2, np.float16)], ids=repr)
def test_one_sample_is_its_own_mirror_image(x, mode):
    """SciPy divides by zero, which ends the process."""
    expected = scipy.signal.upfirdn([1.0, 2.0, 3.0], x, 2, 1, mode="edge")
    for h in ([1.0, 2.0, 3.0], np.array([1.0, 2.0, 3.0])):
        assert np.array_equal(ca.signal.upfirdn(h, x, 2, 1, mode=mode), expected)


def test_numbers_that_are_not_finite_reach_what_they_do_in_scipy():
    x = np.arange(40.0)
    x[[3, 20]] = np.nan, np.inf
    for up, down in ((3, 2), (2, 5)):
        theirs = scipy.signal.upfirdn(np.ones(7), x, up, down)
        assert np.array_equal(ca.signal.upfirdn(np.ones(7), x, up, down), theirs, equal_nan=True)


@pytest.mark.parametrize("a", [1, [2.0], np.full(1, 4, "f"), 0.5])
@pytest.mark.parametrize("sizes", [(9, 30), (30, 4), (2, 1)])
def test_short_signals_are_filtered_with_what_a_filter_holds(a, sizes):
    rng = np.random.default_rng(3)
    for chars in ("ddd", "fff", "Dhf", "fBd"):
        b, x, zi = (
            rng.integers(0, 9, n).astype(c) for n, c in zip((*sizes, sizes[0] - 1), chars, strict=True)
        )
        ours, theirs = ca.signal.lfilter(b, a, x, zi=zi), scipy.signal.lfilter(b, a, x, zi=zi)
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.dtype == other.dtype and np.array_equal(mine, other)
