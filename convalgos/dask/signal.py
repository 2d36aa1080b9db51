"""SciPy's convolutions of long signals and large images in chunks, with the answers of `convalgos.signal`.

The smaller array is the filter, and one block; the larger one is split, and its blocks exchange what filters
reach over their borders. A block is a "valid" convolution of what it reads, with zeros at the ends of the
whole, so that integers are exact and every border is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from convalgos import signal as whole
from convalgos.dask.axes import Axis, AxisSplit, Window
from convalgos.dask.engine import DaskArray, da
from convalgos.dask.fir_filters import filtfilt, lfilter, savgol_filter, sepfir2d
from convalgos.dask.gather import gathered
from convalgos.dask.maps import as_dask, of_blocks
from convalgos.dask.tasks import only, threads_of_task
from convalgos.dask.written import blockwise, put, uncut_in_memory
from convalgos.signal.modes import MODES

__all__ = [
    "convolve",
    "correlate",
    "fftconvolve",
    "filtfilt",
    "lfilter",
    "oaconvolve",
    "savgol_filter",
    "sepfir2d",
]


@uncut_in_memory
def convolve(in1: Any, in2: Any, mode: str = "full", method: str = "auto") -> DaskArray:
    """Convolve two N-dimensional arrays, as `convalgos.signal.convolve` does, block by block.

    Example:
        >>> import dask.array as da, convalgos.dask as cd
        >>> cd.signal.convolve(da.arange(8, chunks=4), [1, 1], "same").compute()
        array([ 0,  1,  3,  5,  7,  9, 11, 13])
    """
    return _convolved(in1, in2, mode, None, "convolve", (("method", method),))


@uncut_in_memory
def correlate(in1: Any, in2: Any, mode: str = "full", method: str = "auto") -> DaskArray:
    """Cross-correlate two N-dimensional arrays, as `convalgos.signal.correlate` does, block by block."""
    in1, in2 = as_dask("in1", in1), as_dask("in2", in2, whole=True)
    whole.correlate(*_tiny(in1, in2), "full", method)  # SciPy refuses some types
    turned = in2[(slice(None, None, -1),) * in2.ndim]
    turned = da.conj(turned) if turned.dtype.kind == "c" else turned  # of booleans it would make integers
    return _convolved(in1, turned, mode, None, "convolve", (("method", method),))


@uncut_in_memory
def fftconvolve(in1: Any, in2: Any, mode: str = "full", axes: Any = None) -> DaskArray:
    """Convolve through the FFT, as `convalgos.signal.fftconvolve` does, block by block.

    Example:
        >>> import dask.array as da, numpy as np, convalgos.dask as cd
        >>> x = da.ones((2, 64), chunks=(1, 32))
        >>> cd.signal.fftconvolve(x, np.ones((2, 9)), "valid", axes=1).shape
        (2, 56)
    """
    return _convolved(in1, in2, mode, axes, "fftconvolve", ())


@uncut_in_memory
def oaconvolve(in1: Any, in2: Any, mode: str = "full", axes: Any = None) -> DaskArray:
    """Convolve block by block: `fftconvolve` by another name, as in `convalgos.signal`."""
    return _convolved(in1, in2, mode, axes, "oaconvolve", ())


@dataclass(frozen=True)
class SignalBlock:
    """A block of the result from what it reads of the larger array."""

    function: str  # of `convalgos.signal`
    arguments: tuple[tuple[str, Any], ...]
    axes: tuple[int, ...]  # that are convolved
    dtype: np.dtype
    blocks: int

    def __call__(self, x: Any, w: Any, *windows: Window, out: np.ndarray | None = None) -> np.ndarray:
        x, w = only(x), only(w)
        ends = [(0, 0)] * x.ndim
        for axis, window in zip(self.axes, windows, strict=True):
            ends[axis] = window.low, window.high
        if any(map(any, ends)):
            x = np.pad(x, ends)
        with threads_of_task(self.blocks):
            y = getattr(whole, self.function)(x, w, "valid", **dict(self.arguments))
        return put(np.asarray(y).astype(self.dtype, copy=False), out)


def _convolved(
    in1: Any, in2: Any, mode: str, axes: Any, function: str, more: tuple[tuple[str, Any], ...]
) -> DaskArray:
    one, two = as_dask("in1", in1), as_dask("in2", in2)
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} must be one of {', '.join(map(repr, MODES))}")
    if one.ndim != two.ndim or not one.ndim or not one.size or not two.size:
        raise ValueError(f"in1 {one.shape} and in2 {two.shape} must have equal dimensions, and elements")
    convolved = _axes(axes, one.ndim)
    if function != "convolve":  # along axes of length 1 it is a product, and broadcasts
        convolved = tuple(axis for axis in convolved if 1 not in (one.shape[axis], two.shape[axis]))
    _check_sizes(one.shape, two.shape, mode, convolved)
    if not convolved:  # then SciPy's answer has the type of a product
        return _centred(one * two, one, mode, convolved)
    dtype = getattr(whole, function)(*_tiny(one, two), "full", **dict(more)).dtype
    if function != "convolve":
        more = (*more, ("axes", convolved))
    x, w = (one, two) if one.size >= two.size else (two, one)
    splits = _splits(one, two, x, w, mode, convolved)
    of_w = list(w.chunks)
    reads: list[Any] = [None] * x.ndim
    labels, labels_w = list(range(x.ndim)), list(range(x.ndim))
    for axis in range(x.ndim):
        if axis in convolved:
            reads[axis] = splits[axis].reads
            of_w[axis], labels_w[axis] = (w.shape[axis],), -axis - 1
        elif w.shape[axis] == 1:
            labels_w[axis] = -axis - 1
        elif x.shape[axis] == 1:
            labels[axis] = -axis - 1
        else:
            of_w[axis] = x.chunks[axis]
    x, w = gathered(x, reads), w.rechunk(tuple(of_w))
    block = SignalBlock(function, more, convolved, dtype, math.prod(x.numblocks))
    windows = [given for axis, split in splits.items() for given in of_blocks(split.windows, axis)]
    y = blockwise(
        block, tuple(range(x.ndim)), x, tuple(labels), w, tuple(labels_w), *windows,
        adjust_chunks={axis: split.sizes for axis, split in splits.items()}, dtype=dtype,
        meta=np.empty((0,) * x.ndim, dtype), token=function,
    )  # fmt: skip
    return _centred(y, one, mode, convolved)


def _tiny(one: DaskArray, two: DaskArray) -> tuple[np.ndarray, np.ndarray]:
    """Small arrays of their types and dimensions."""
    return np.ones((2,) * one.ndim, one.dtype), np.ones((2,) * two.ndim, two.dtype)


def _centred(y: DaskArray, one: DaskArray, mode: str, convolved: tuple[int, ...]) -> DaskArray:
    """y, of which SciPy takes the centre that in1 has in mode "same", too, where in2 is what broadcasts."""
    if mode != "same":
        return y
    firsts = [0 if axis in convolved else (y.shape[axis] - n) // 2 for axis, n in enumerate(one.shape)]
    return y[tuple(slice(first, first + n) for first, n in zip(firsts, one.shape, strict=True))]


def _axes(axes: Any, ndim: int) -> tuple[int, ...]:
    """Those that are convolved, in order."""
    try:
        found = sorted({range(ndim)[axis] for axis in (range(ndim) if axes is None else np.atleast_1d(axes))})
    except (TypeError, IndexError):
        found = []
    if not found:
        raise ValueError(f"axes={axes!r} must be among the {ndim} dimensions")
    return tuple(found)


def _check_sizes(one: Sequence[int], two: Sequence[int], mode: str, convolved: tuple[int, ...]) -> None:
    """ValueError where SciPy has no answer either."""
    pairs = [(one[axis], two[axis]) for axis in convolved]
    if mode == "valid" and any(a < b for a, b in pairs) and any(a > b for a, b in pairs):
        raise ValueError(f"mode='valid': one of {tuple(one)} and {tuple(two)} must be at least as large")
    for axis, (a, b) in enumerate(zip(one, two, strict=True)):
        if axis not in convolved and a != b and 1 not in (a, b):
            raise ValueError(f"in1 {tuple(one)} and in2 {tuple(two)} differ in axis {axis}, and neither is 1")


def _splits(
    one: DaskArray, two: DaskArray, x: DaskArray, w: DaskArray, mode: str, convolved: tuple[int, ...]
) -> dict[int, AxisSplit]:
    """Of each axis that is convolved."""
    found = {}
    for axis in convolved:
        n, m = one.shape[axis], two.shape[axis]
        full = n + m - 1
        count = {"full": full, "same": n, "valid": abs(n - m) + 1}[mode]
        taps = w.shape[axis]
        low = taps - 1 - (full - count) // 2
        found[axis] = Axis(x.shape[axis], count, 1, low, taps).forward(x.chunks[axis])
    return found
