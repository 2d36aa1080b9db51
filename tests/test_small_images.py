"""Short ways for small images and signals: SciPy's answers for every type, in whatever way arrays lie."""

import concurrent.futures
import itertools
import pickle
import sys

import numpy as np
import pytest
import scipy.signal

import convalgos as ca
from convalgos.cpu.filtering import separable_calls
from convalgos.signal import mixed_types, small_calls, small_lines, small_separable

pytestmark = pytest.mark.usefixtures("sizes_that_come_often")

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


@pytest.mark.parametrize("char", mixed_types.NUMBERS)
def test_filters_far_larger_than_images_are_those_of_scipy(char):
    """Only some of their taps meet the image; and what SciPy conjugates where it swaps both."""
    rng, dtype = np.random.default_rng(2), np.dtype(char)
    small_calls.known_calls.clear()
    for shape, w_shape in (((2, 1), (37, 11)), ((3, 5), (4, 90)), ((1, 4), (30, 31)), ((6, 2), (29, 2))):
        x, w = drawn(rng, shape, dtype), drawn(rng, w_shape[::-1], dtype).T
        for mode, fill, name in itertools.product(MODES, (0, 3), ("convolve2d", "correlate2d")):
            if mode != "valid" or all(n <= k for n, k in zip(shape, w_shape, strict=True)):
                given = x, w, mode, "fill", fill
                assert same(getattr(ca.signal, name)(*given), getattr(scipy.signal, name)(*given)), given[2:]
        if dtype.kind in "fc":
            w[0, -1] = np.inf  # which SciPy multiplies with the zeros beyond the edges
            with np.errstate(invalid="ignore"):
                ours, theirs = (m.convolve2d(x, w, "same") for m in (ca.signal, scipy.signal))
            assert np.array_equal(np.isnan(ours), np.isnan(theirs))
    assert any(known and known.taps for known in small_calls.known_calls.values())


SHAPES = [  # of four to six axes, where the last ones may be single elements
    ((3, 2, 5, 4), (2, 1, 3, 2)),
    ((1, 2, 2, 3), (3, 2, 4, 5)),
    ((5, 3, 300, 1), (2, 2, 3, 1)),
    ((2, 40, 9, 1, 1), (1, 3, 4, 1, 1)),
    ((2, 3, 2, 3, 2, 3), (1, 2, 2, 1, 2, 2)),
    ((1, 1, 1, 1), (1, 1, 1, 1)),
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("chars", ["ff", "DD", "hh", "fD", "eF", "ld"])
def test_arrays_of_many_axes_are_those_of_scipy(shapes, chars):
    rng = np.random.default_rng(28)
    small_calls.known_calls.clear()
    x, w = (drawn(rng, shape, np.dtype(c)) for shape, c in zip(shapes, chars, strict=True))
    x = x.transpose().copy().transpose()  # whose neighbours lie apart
    for mode in MODES:
        if mode == "valid" and any(n < k for n, k in zip(*shapes, strict=True)):
            continue
        for arrays in ((x, w), (w[::-1], x)):
            for name in ("convolve", "correlate"):
                theirs = getattr(scipy.signal, name)(*arrays, mode, "direct")
                assert same(getattr(ca.signal, name)(*arrays, mode), theirs), (name, mode)
    assert all(small_calls.known_calls.values())


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
    for image in (x.T, x[:2].T):  # of the narrow one rows are taken together
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


def refuse(*arguments, **options):
    raise AssertionError("this goes the short way")


SEPARABLE = [
    "bff",
    "Bff",
    "hff",
    "Hff",
    "idd",
    "idf",
    "fff",
    "ddd",
    "dff",
    "dfd",
    "ldd",
    "Lfd",
    "Idf",
    "Qdd",
    "?ff",
    "eff",
    "FFF",
    "Fff",
    "FfF",
    "DDD",
    "Ddd",
    "DfD",
]


@pytest.mark.parametrize("chars", SEPARABLE)
def test_separable_filters_of_all_types(chars, monkeypatch):
    """Wide, tall and tiny images in whatever way they lie; filters longer than these, too."""
    rng, theirs = np.random.default_rng(sum(map(ord, chars))), scipy.signal.sepfir2d
    monkeypatch.setattr(scipy.signal, "sepfir2d", None)
    for shape in ((1, 1), (1, 2), (3, 3), (7, 40), (60, 3), (80, 1), (70, 7), (21, 18)):
        whole = drawn(rng, shape, np.dtype(chars[0]))
        for rows, columns in ((1, 1), (3, 1), (1, 5), (5, 3)):
            one = drawn(rng, 2 * rows, np.dtype(chars[1]))[::2]
            two = drawn(rng, columns, np.dtype(chars[2]))[::-1]
            filtered = small_separable.small_both_axes(refuse)  # with an empty table, and nothing else to ask
            for x in (whole, whole[::-1], np.asfortranarray(whole)):
                for _ in range(2):  # found in the table the second time
                    y = filtered(x, one, two)
                    full = np.pad(x, [(columns // 2,) * 2, (rows // 2,) * 2], "symmetric").astype("D")
                    wanted = scipy.signal.convolve2d(full, np.outer(two.astype("D"), one), "valid")
                    assert y.dtype == theirs(np.ones((5, 5), chars[0]), one[:1], two[:1]).dtype
                    assert y.shape == shape and y.flags.c_contiguous and y.flags.owndata
                    scale = 1e-5 if y.dtype.char in "fF" else 1e-12
                    assert abs(y - wanted).max() <= scale * (abs(wanted).max() + abs(full).max())


def test_separable_calls_in_one_slot_and_results_that_are_kept():
    """More calls than there are slots, each in turn, and none writes into what another one returned."""
    h, found = np.array([0.25, 0.5, 0.25]), []
    for turn in range(2):
        for height, width in itertools.product(range(1, 30), repeat=2):
            x = np.arange(height * width, dtype=float).reshape(height, width) + turn
            found.append((x, ca.signal.sepfir2d(x, h, h[1:2])))
    for x, y in found:
        padded = np.pad(x, [(0, 0), (1, 1)], "symmetric")
        assert np.allclose(y, 0.5 * (0.25 * (padded[:, :-2] + padded[:, 2:]) + 0.5 * x))


@pytest.mark.parametrize("kept", [separable_calls.KEPT, 1 << 14])
def test_separable_calls_of_many_threads(kept, monkeypatch):
    """That all begin with an empty table, whose slots they take from each other, and which is emptied."""
    monkeypatch.setattr(separable_calls, "KEPT", kept)
    filtered = small_separable.small_both_axes(ca.signal.sepfir2d.__wrapped__)
    h, sizes = np.array([0.25, 0.5, 0.25]), list(itertools.product(range(1, 24), repeat=2))

    def run(first):
        for height, width in sizes[first:] + sizes[:first]:
            x = np.arange(height * width, dtype=float).reshape(height, width)
            padded = np.pad(x, [(0, 0), (1, 1)], "symmetric")
            wanted = 0.5 * (0.25 * (padded[:, :-2] + padded[:, 2:]) + 0.5 * x)
            assert np.allclose(filtered(x, h, h[1:2]), wanted)

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        list(threads.map(run, range(0, 400, 50)))


def test_separable_calls_hold_no_more_memory_than_they_may(monkeypatch):
    monkeypatch.setattr(separable_calls, "KEPT", 1 << 18)
    calls, h = separable_calls.SeparableCalls(), np.ones(3)
    held = []
    for height in range(100, 130):
        calls.add(np.ones((height, 9)), h, h, h.dtype, False)
        held.append(calls.nbytes)
    assert max(held) <= 1 << 18 < 2 * max(held) and sorted(held) != held


def test_what_the_compiled_call_of_separable_filters_leaves(monkeypatch):
    x, h = np.arange(30.0).reshape(5, 6), np.array([0.25, 0.5, 0.25])
    expected = ca.signal.sepfir2d(x, h, h)  # known by its sizes
    for other in (np.array([0.25, np.nan, 0.25]), np.array([np.inf, 0.5, 0.25])):
        with np.errstate(all="ignore"):
            assert np.array_equal(
                ca.signal.sepfir2d(x, other, h), scipy.signal.sepfir2d(x, other, h), equal_nan=True
            )
    for given in (x.astype(">f8"), x.view(np.memmap), x.tolist()):
        assert np.allclose(ca.signal.sepfir2d(given, h, h), expected)
    filtered = small_separable.small_both_axes(refuse)
    assert filtered(x, h, h).dtype is np.dtype(float)
    monkeypatch.setattr(scipy.signal, "sepfir2d", refuse)
    pickled = pickle.loads(pickle.dumps(x))  # whose type is another object
    assert np.allclose(filtered(pickled, h, h), expected)
    monkeypatch.undo()
    odd = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float64).reshape(5, 6)
    assert np.allclose(ca.signal.sepfir2d(odd, h, h), expected)
    assert np.allclose(ca.signal.sepfir2d(hrow=h, hcol=h, input=x), expected)
    out = np.full((5, 6), np.nan)
    assert ca.signal.sepfir2d(x, h, h, out=out) is out and np.allclose(out, expected)
    for given in ((x, h[:2], h), (x[0], h, h), (x, h, h[None])):
        with pytest.raises(ValueError):
            ca.signal.sepfir2d(*given)
    assert sys.getrefcount(ca.signal.sepfir2d(x, h, h)) == sys.getrefcount(np.zeros((5, 6)))


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


@pytest.mark.parametrize("chars", ["Dd", "dD", "DD", "Ff", "fF"])
def test_complex_arrays_inside_each_other_are_dot_products(chars):
    rng = np.random.default_rng(5)
    x, w = rng.standard_normal((2, 83, 71)), rng.standard_normal((2, 82, 69))
    x, w = ((a[0] + 1j * a[1] if c in "DF" else a[0]).astype(c) for a, c in zip((x, w), chars, strict=True))
    for f in ("convolve", "correlate"):
        for in1, in2 in ((x, w), (w, x), (x.T, w.T), (x[::-1], w)):
            ours, exact = (
                getattr(of, f)(*(a.astype(t) for a, t in zip((in1, in2), types, strict=True)), "valid")
                for of, types in ((ca.signal, (in1.dtype, in2.dtype)), (scipy.signal, ("D", "D")))
            )
            assert ours.dtype == np.result_type(in1, in2)
            assert abs(ours - exact).max() < 200 * np.finfo(ours.dtype).eps * np.sqrt(w.size)
