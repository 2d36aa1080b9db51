"""Integers of windows that are outer products: sums along lines, whose integers are SciPy's."""

import numpy as np
import pytest
import scipy.ndimage

from convalgos import ndimage
from convalgos.core.axis_windows import AxisWindow
from convalgos.core.setting import threads_of_calls
from convalgos.cpu.filtering import settled_windows

CASES = [  # shape, axes, taps, origin
    ((60, 75), (0, 1), (9, 11), (2, -3)), ((5, 90), (0, 1), (24, 7), (0, 3)), ((41, 3, 9), (0, 2), (5, 6), 0),
    ((33, 40, 3), (0, 1), (8, 5), (-1, 2)), ((3, 31, 50), (1, 2), (7, 8), 3), ((7, 1), (0, 1), (6, 9), 0),
]  # fmt: skip


def pictures(rng, shape, dtype):
    """Noise; two values at the ends of the type; few elements that differ from the others; and zeros."""
    limits = np.iinfo(dtype)
    noise = rng.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)
    ends = np.where(rng.random(shape) < 0.5, limits.min, limits.max).astype(dtype)
    return noise, ends, np.where(rng.random(shape) < 0.05, noise, 77).astype(dtype), np.zeros(shape, dtype)


@pytest.mark.parametrize("given, output", ["BB", "bb", "HH", "hh", "hB", "Bi"])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_integers_are_those_of_scipy(given, output, case, monkeypatch):
    shape, axes, taps, origin = CASES[case]
    rng = np.random.default_rng(case)
    if case % 2:
        monkeypatch.setattr(settled_windows, "CACHED", 1 << 12)  # lines in chunks
    lines = [rng.standard_normal(n) for n in taps]
    products = np.outer(*lines), np.outer(*map(np.abs, lines))
    products = [w / np.abs(w).sum() for w in products]
    for w in (*products, products[0].astype(np.float32)):
        for mode, cval in (("reflect", 0), ("constant", 2.5), ("wrap", 0)):
            how = {"mode": mode, "cval": cval, "origin": origin, "axes": axes, "output": output}
            for x in pictures(rng, shape, given):
                with threads_of_calls(1 + case % 3):
                    found = ndimage.correlate(x, w, **how)
                np.testing.assert_array_equal(found, scipy.ndimage.correlate(x, w, **how))


def test_only_sums_that_can_be_told_apart_go_along_lines():
    axes = [AxisWindow(90, 9, 4), AxisWindow(90, 9, 4)]
    line = np.random.default_rng(0).random(9)
    line /= line.sum()

    def passes(w, x="u1", y="u1", axes=axes):
        return settled_windows.settled_window(w, np.dtype(x), np.dtype(y), axes, 0.0)

    small, large = passes(np.outer(line, line)), passes(np.outer(line, line), "i2", "i2")
    assert (small.size, large.size) == (4, 8)
    rounded = np.outer(line, line).astype(np.float32).astype(np.float64)
    assert small.error < passes(rounded).error < 1e-3 and passes(rounded, "i2", "i2").error > large.error
    assert passes(np.random.default_rng(1).random((9, 9))) is None  # no outer product
    assert passes(np.ones((9, 9)) / 81) is None  # often whole
    assert passes(np.outer(line, line), "i4", "i4") is None
    assert passes(1e6 * np.outer(line, line), "u2", "i4") is None
    assert passes(np.outer(line, line)[None], axes=[AxisWindow(2), *axes]) is not None


@pytest.mark.parametrize("given", ["B", "h", "H"])
@pytest.mark.parametrize("taps", [(19, 33), (30, 5)])
def test_windows_beside_whole_numbers_are_summed_again(given, taps):
    """Many windows of a flat image, few of noise; rounded weights leave sums of lines far from exact."""
    rng, dtype = np.random.default_rng(taps[1]), np.dtype(given)
    left, right = (rng.random(n).astype(np.float32) for n in taps)
    w = np.outer(left / left.sum(), right / right.sum())
    axes = [AxisWindow(90, n, n // 2) for n in taps]
    assert settled_windows.settled_window(w.astype(np.float64), dtype, dtype, axes, 0.0) is not None
    noise = pictures(rng, (70, 90), given)[0]
    flat, halves, steps = np.full_like(noise, 113), noise.copy(), np.full_like(noise, 255)
    halves[:, 20:81] = 113
    steps[:, 45:] = 90
    for mode in ("nearest", "constant"):
        for x in (noise, flat, halves, steps):
            expected = scipy.ndimage.correlate(x, w, mode=mode)
            np.testing.assert_array_equal(ndimage.correlate(x, w, mode=mode), expected)


@pytest.mark.parametrize("char", "BhHd")
def test_windows_that_see_an_axis_mirrored_again_and_again(char):
    """SciPy reads what lies before the axis in the place of its first pixel, four lengths before it."""
    rng = np.random.default_rng(6)
    for shape, taps in (((3, 40), (28, 5)), ((30, 2), (7, 31)), ((2, 3), (33, 26))):
        x = rng.integers(0, 250, shape).astype(char)
        w = np.outer(*(np.abs(rng.standard_normal(n)) / n for n in taps)).astype(np.float32)
        footprint = rng.random(taps) < 0.5
        reach = [(n // 2, n - 1 - n // 2) for n in taps]
        seen = np.lib.stride_tricks.sliding_window_view(np.pad(x, reach, "symmetric"), taps)
        total = np.zeros(shape)
        for t in np.ndindex(taps):  # in order
            total += float(w[t]) * seen[(..., *t)]
        y = ndimage.correlate(x, w)
        assert np.array_equal(y, total.astype(char)) if char != "d" else np.allclose(y, total, rtol=1e-13)
        assert np.array_equal(ndimage.maximum_filter(x, footprint=footprint), seen[..., footprint].max(-1))
