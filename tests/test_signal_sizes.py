"""Signals of sizes that come once: ever new ones are answered right, and what is kept of them is bounded."""

import itertools

import numpy as np
import pytest
import scipy.signal

import convalgos as ca
from convalgos.signal import new_sizes, problems, small_calls, small_images, small_lines, whole_transforms
from convalgos.signal.modes import wanted_of
from convalgos.signal.size_cache import ENTRY, UNKNOWN, SizeCache

RNG = np.random.default_rng(30)


def array(shape, char):
    values = RNG.standard_normal(shape) * 9
    return (values + 1j * RNG.standard_normal(shape) if char in "FD" else values).astype(char)


def check(y, theirs, *case):
    assert y.shape == theirs.shape and y.dtype == theirs.dtype, case
    bound = {"f": 2e-5, "F": 2e-5, "d": 1e-12, "D": 1e-12}.get(y.dtype.char, 0) * abs(theirs).max(initial=0)
    assert abs(y - theirs).max(initial=0) <= bound, case


def test_least_recently_used_sizes_go_first():
    cache = SizeCache(20 * ENTRY)
    for size in range(100):
        cache.keep(size, str(size))
        assert cache[7] == "7" if size >= 7 else cache[7] is UNKNOWN  # which is asked for all the time
    assert [cache[size] for size in range(95, 100)] == ["95", "96", "97", "98", "99"]
    assert cache[8] is UNKNOWN and cache[50] is UNKNOWN
    cache.clear()
    assert all(cache[size] is UNKNOWN for size in range(100))


def test_large_things_leave_less_room():
    cache = SizeCache(20 * ENTRY)
    for size in range(12):
        cache.keep(size, size, 5 * ENTRY)
    assert sum(cache[size] is not UNKNOWN for size in range(12)) <= 5 and cache[11] == 11


def test_calls_of_all_sizes_by_turns(monkeypatch):
    """Of more sizes than are kept: each answer is that of its own size."""
    few = SizeCache(40 * ENTRY)
    for module in (small_calls, small_images, small_lines):
        monkeypatch.setattr(module, "known_calls", few)
    h, w = array(5, "d"), array((3, 2), "f")
    for _, n in itertools.product(range(2), range(1, 60)):
        x, image = array(n, "d"), array((n, 61 - n), "f")
        for mode in ("full", "same", "valid"):
            check(ca.signal.convolve(x, h, mode), scipy.signal.convolve(x, h, mode), n, mode)
        check(ca.signal.lfilter(h, 1.0, x), scipy.signal.lfilter(h, 1.0, x), n)
        check(ca.signal.upfirdn(h, x, 3, 2), scipy.signal.upfirdn(h, x, 3, 2), n)
        for boundary in ("fill", "wrap", "symm"):
            y, theirs = (m.correlate2d(image, w, "full", boundary) for m in (ca.signal, scipy.signal))
            check(y, theirs, n, boundary)
    assert len(few) <= 40


@pytest.mark.parametrize("chars", ["dd", "ff", "dD", "FF", "Ff"])
@pytest.mark.parametrize(
    "shapes",
    [
        ((900,), (700,)),
        ((40, 50), (17, 9)),
        ((9, 20, 8), (3, 4, 8)),
        ((3, 400), (3, 90)),
        ((2, 900), (1, 99)),
        ((90, 120), (17, 99)),  # of so many elements axes are transformed one after the other
        ((9, 120, 20), (3, 50, 20)),
        ((2, 31, 30, 7), (1, 11, 30, 6)),
    ],
)
def test_whole_transforms(shapes, chars):
    x, w = array(shapes[0], chars[0]), array(shapes[1], chars[1])
    axes = [i for i, (n, k) in enumerate(zip(*shapes, strict=True)) if n != k and k > 1]
    for mode in ("full", "same", "valid"):
        wanted = [wanted_of(mode, x.shape[i], w.shape[i]) for i in axes]
        y = whole_transforms.transformed_whole(x, w, axes, wanted)
        check(y, scipy.signal.fftconvolve(x, w, mode, axes), mode)
        assert y.flags.c_contiguous


@pytest.mark.parametrize("char", ["d", "f"])
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_signals_of_one_length(char, mode):
    """By whole transforms at first, and then by a plan; of a signal and itself, or another one."""
    new_sizes._asked.clear()
    x, w = array(3000, char), array(2950, char)
    for call in range(new_sizes.ASKED + 2):
        for other in (x, w, x.copy()):
            y, theirs = (m.fftconvolve(x, other, mode) for m in (ca.signal, scipy.signal))
            check(y, theirs, call)


def test_plans_are_made_for_sizes_that_come_again(monkeypatch):
    planned, plan = [], problems.signal_plan
    monkeypatch.setattr(problems, "signal_plan", lambda *given: planned.append(given) or plan(*given))
    new_sizes._asked.clear()
    w = array((1, 300), "D")
    for n, calls in ((5000, new_sizes.ASKED - 1), (problems.AT_SECOND * 3 // 4, 1)):  # often, or long enough
        planned.clear()
        for call in range(calls + 2):
            x = array((2, n), "d")
            check(ca.signal.oaconvolve(x, w, axes=1), scipy.signal.oaconvolve(x, w, axes=1), call)
            assert bool(planned) == (call >= calls), (n, call)
    ca.forget_plans()
    planned.clear()
    ca.signal.oaconvolve(x, w, axes=1)
    assert not planned
    x = array((2, problems.AT_ONCE), "d")  # as long as planning takes
    check(ca.signal.oaconvolve(x, w, axes=1), scipy.signal.oaconvolve(x, w, axes=1))
    assert planned


@pytest.mark.parametrize("chars", ["dd", "ff", "DD", "?B", "hd"])
@pytest.mark.parametrize(
    "shapes",
    [
        ((31, 2, 40), (18, 1, 37), [0, -1]),
        ((60, 9), (60, 80), (1,)),
        ((30, 45), (18, 40), None),
        ((5, 700), (5, 90), 1),
    ],
)
def test_sizes_that_are_known_go_where_they_went(shapes, chars):
    """Whatever comes of them later: other strides, what is not finite, or an array to write into."""
    *shapes, axes = shapes
    first = [array(shape, char) for shape, char in zip(shapes, chars, strict=True)]
    for mode in ("full", "same"):
        for call in range(2):
            theirs = scipy.signal.fftconvolve(*first, mode, axes)
            check(ca.signal.fftconvolve(*first, mode, axes), theirs, mode, call)
        turned = [np.asfortranarray(a)[::-1] for a in first]
        check(ca.signal.fftconvolve(*turned, mode, axes), scipy.signal.fftconvolve(*turned, mode, axes), mode)
        out = np.empty(theirs.shape, theirs.dtype)
        assert ca.signal.fftconvolve(*first, mode, axes, out=out) is out
        check(out, theirs, mode)
        if chars[0] in "fdD":
            bad = first[0].copy()
            bad.flat[-1] = np.nan
            y = ca.signal.fftconvolve(bad, first[1], mode, axes)
            theirs = scipy.signal.fftconvolve(bad, first[1], mode, axes)
            assert np.array_equal(np.isnan(y), np.isnan(theirs)), mode
    with pytest.raises((TypeError, ValueError)):  # though 1.0 == 1
        ca.signal.fftconvolve(*first, "full", 1.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_not_spread_by_the_first_call_of_a_size(bad):
    new_sizes._asked.clear()
    for x_shape, w_shape in (((3001,), (400,)), ((150, 160), (20, 20)), ((30, 31, 32), (6, 6, 6))):
        x, w = array(x_shape, "d"), array(w_shape, "d")
        x.flat[77] = bad
        y, theirs = (m.convolve(x, w, method="direct") for m in (ca.signal, scipy.signal))
        assert np.array_equal(np.isfinite(y), np.isfinite(theirs)), x_shape
        y = ca.signal.convolve(x, w, "same")
        assert np.isfinite(y).any() and not np.isfinite(y).all(), x_shape
