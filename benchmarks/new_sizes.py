"""The table of docs/guides/scipy.md of sizes that come once: `python benchmarks/new_sizes.py`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.ndimage
import scipy.signal
import torch
from torch.nn import functional

import convalgos as ca

COUNT = 100  # arrays of each row, of which the first half is not timed
KNOWN = 6  # further calls of ours, of which the last two are those of a size that is known
LINES = {"100 to 5,000 samples": (100, 5_000), "5,000 to 200,000 samples": (5_000, 200_000)}
IMAGES = {"8 to 80 pixels a side": (8, 80), "80 to 800 pixels a side": (80, 800)}
MAPS = {"8 channels, 8 to 80 pixels a side": (8, 80), "8 channels, 60 to 400 pixels a side": (60, 400)}
Function = Callable[[np.ndarray], Any]


class Row(NamedTuple):
    """A function of arrays of any size, and that of another library."""

    text: str
    ours: Function
    theirs: Function


def rows_of_lines(rng: np.random.Generator) -> list[Row]:
    taps = rng.standard_normal(31, np.float32)
    ours, theirs = ca.signal, scipy.signal
    return [
        Row("`convolve`, 31 taps", lambda x: ours.convolve(x, taps), lambda x: theirs.convolve(x, taps)),
        Row("`lfilter`, 31 taps", lambda x: ours.lfilter(taps, 1, x), lambda x: theirs.lfilter(taps, 1, x)),
        Row("`fftconvolve` with itself", lambda x: ours.fftconvolve(x, x),
            lambda x: theirs.fftconvolve(x, x)),
        Row("`upfirdn`, 31 taps, 3 / 2", lambda x: ours.upfirdn(taps, x, 3, 2),
            lambda x: theirs.upfirdn(taps, x, 3, 2)),
        Row("`savgol_filter`, 11 taps", lambda x: ours.savgol_filter(x, 11, 3),
            lambda x: theirs.savgol_filter(x, 11, 3)),
    ]  # fmt: skip


def rows_of_images(rng: np.random.Generator) -> list[Row]:
    taps = rng.standard_normal((3, 3), np.float32)
    ours, theirs = ca.ndimage, scipy.ndimage
    return [
        Row("`gaussian_filter`, sigma 1.5", lambda x: ours.gaussian_filter(x, 1.5),
            lambda x: theirs.gaussian_filter(x, 1.5)),
        Row("`convolve`, 3 x 3", lambda x: ours.convolve(x, taps), lambda x: theirs.convolve(x, taps)),
        Row("`uniform_filter`, 5 x 5", lambda x: ours.uniform_filter(x, 5),
            lambda x: theirs.uniform_filter(x, 5)),
        Row("`maximum_filter`, 3 x 3", lambda x: ours.maximum_filter(x, 3),
            lambda x: theirs.maximum_filter(x, 3)),
    ]  # fmt: skip


def rows_of_maps(rng: np.random.Generator) -> list[Row]:
    w, depthwise = (rng.standard_normal(shape, np.float32) for shape in ((16, 8, 3, 3), (8, 1, 3, 3)))
    tensors = torch.from_numpy(w), torch.from_numpy(depthwise)
    of = torch.from_numpy
    return [
        Row("`ca.conv`, 3 x 3 to 16 channels", lambda x: ca.conv(x, w, padding=1),
            lambda x: functional.conv2d(of(x), tensors[0], padding=1)),
        Row("`ca.conv`, depthwise 3 x 3", lambda x: ca.conv(x, depthwise, padding=1, groups=8),
            lambda x: functional.conv2d(of(x), tensors[1], padding=1, groups=8)),
        Row("`ca.max_pool`, 3 x 3, stride 2", lambda x: ca.max_pool(x, 3, stride=2, padding=1),
            lambda x: functional.max_pool2d(of(x), 3, 2, 1)),
    ]  # fmt: skip


def microseconds(row: Row, arrays: Sequence[np.ndarray]) -> tuple[float, float, float]:
    """Mean times of a call: ours of a size that is new, and that is known, and theirs."""
    new, known, theirs = [], [], []
    for number, x in enumerate(arrays):
        times = []
        for call in (row.ours, row.theirs, *[row.ours] * KNOWN):
            began = time.perf_counter()
            call(x)
            times.append(1e6 * (time.perf_counter() - began))
        if number >= len(arrays) // 2:
            new.append(times[0])
            theirs.append(times[1])
            known.append(min(times[-2:]))
    return statistics.fmean(new), statistics.fmean(known), statistics.fmean(theirs)


def main() -> None:
    rng = np.random.default_rng(0)
    parts = (
        (1, (), LINES, rows_of_lines(rng)),
        (2, (), IMAGES, rows_of_images(rng)),
        (2, (1, 8), MAPS, rows_of_maps(rng)),
    )
    print("| call | sizes | new | known | SciPy, torch |\n|---|---|---|---|---|")
    for dimensions, lead, ranges, rows in parts:
        for text, limits in ranges.items():
            shapes = [(*lead, *map(int, size)) for size in rng.integers(*limits, (COUNT, dimensions))]
            arrays = [rng.standard_normal(shape, np.float32) for shape in shapes]
            for row in rows:
                new, known, theirs = microseconds(row, arrays)
                print(f"| {row.text} | {text} | {new:.0f} us | {known:.0f} | {theirs:.0f} |", flush=True)


if __name__ == "__main__":
    main()
