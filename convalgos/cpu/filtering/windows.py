"""Correlations of whole arrays with dense filters: how `window_kernels` are called.

y[i] = sum over t of w[t] x[i + t - before], with any boundary (`core.boundaries`). Products are added in the
order of the filter's elements. Where x and y are of one floating-point type they are fused sums of that type;
else products and sums are float64, each rounded, as SciPy's are. Sums of integers by integers that fit into
the digits of a floating-point type are exact in any order, and are fused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.core.axis_windows import AxisWindow
from convalgos.cpu.filtering.line_kernels import KINDS, load_line, store_line
from convalgos.cpu.filtering.outer_products import line_factors
from convalgos.cpu.filtering.window_cut import WindowCut, source_planes
from convalgos.cpu.filtering.window_kernels import FUSED, IN_ORDER, WINDOW_FIELDS, sum_windows
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd

Array = np.ndarray[Any, Any]
SEPARABLE = 2.5  # products of a window for one of its lines, from which on lines are the faster
SPARSE = 0.5  # share of weights that are not 0, below which a list of them is the faster
EXACT_BITS = {4: 24, 8: 53}  # of sums, by bytes of a floating-point type


def sum_type(x: np.dtype, y: np.dtype, w: Array, fill: float) -> tuple[int, int]:
    """(bytes of the sums' elements, FUSED or IN_ORDER) that give what SciPy's sums do."""
    if x.kind == y.kind == "f":
        return max(x.itemsize, y.itemsize), FUSED
    if x.kind in "bui" and bool((w == np.rint(w)).all()) and float(fill).is_integer():
        limits = (0, 1) if x.kind == "b" else (np.iinfo(x).min, np.iinfo(x).max)
        most = max(*map(abs, map(int, limits)), abs(fill)) * float(np.abs(w).sum())
        for size, bits in EXACT_BITS.items():
            if most < 2.0**bits and (y.kind != "f" or y.itemsize <= size):
                return size, FUSED
    return 8, IN_ORDER


def correlate_windows(x: Array, w: Array, y: Array, axes: Sequence[AxisWindow], fill: float) -> None:
    """Fill y, which is C-contiguous, of x's shape, and shares no memory with it.

    Args:
        x: C-contiguous, of a type in `line_kernels.KINDS`.
        w: float64, one dimension for each of x's; elements of 0 are left out.
        axes: those of x.
        fill: what lies beyond a "constant" boundary.
    """
    if not y.size:
        return
    size, order = sum_type(x.dtype, y.dtype, w, fill)
    axes = merged_axes(axes)
    w = w.reshape([axis.taps for axis in axes])
    lines = line_factors(w) if order == FUSED and (w != 0).all() else None  # zeros are left out
    if lines is None or w.size < SEPARABLE * sum(axis.taps for axis in axes):
        _sum(x, w, y, axes, size, order, fill)
        return
    *leading, rows, columns = axes
    for i, (axis, line) in enumerate(zip(leading, lines, strict=False)):
        if axis.taps > 1:
            others = [a.unfiltered if j != i else a for j, a in enumerate(axes)]
            between = np.empty(x.shape, f"f{size}")
            taps = line.reshape([a.taps for a in merged_axes(others)])
            _sum(x, taps, between, merged_axes(others), size, FUSED, fill)
            x, fill = between, fill * float(line.sum())
    window = lines[-2].reshape([1] * len(leading) + [-1, 1])
    flat = [axis.unfiltered for axis in leading]
    _sum(x, window, y, [*flat, rows, columns], size, FUSED, fill, along=lines[-1])


def merged_axes(axes: Sequence[AxisWindow]) -> list[AxisWindow]:
    """The axes with neighbours that the filter does not span as one, and at least two of them."""
    found: list[AxisWindow] = []
    for axis in axes:
        if found and found[-1].taps == axis.taps == 1:
            found[-1] = AxisWindow(found[-1].size * axis.size)
        else:
            found.append(axis)
    return [AxisWindow(1)] * (2 - len(found)) + found


def _sum(
    x: Array,
    w: Array,
    y: Array,
    axes: list[AxisWindow],
    size: int,
    order: int,
    fill: float,
    along: Array | None = None,
) -> None:
    """One pass; with `along`, of rows that this has filtered before."""
    *leading, rows, columns = axes
    lanes, dtype = simd.lanes(size), np.dtype(f"f{size}")
    lines = np.zeros(0, dtype) if along is None else along.astype(dtype)
    w = w.reshape(-1, rows.taps, 1 if len(lines) else columns.taps)
    kept = np.flatnonzero((w != 0).any((1, 2)))  # places along the leading axes that meet weights
    w = w[kept].astype(dtype)  # (rings, taps_r, taps_s)
    planes = source_planes(leading, rows.size * columns.size * x.itemsize)[:, kept]
    taps = np.argwhere(w != 0)
    # A weight of 0 times NaN is NaN, which SciPy does not compute.
    every, few = len(taps) == w.size, len(taps) < SPARSE * w.size
    cut = WindowCut(planes, rows, columns, size, taps, len(lines), every or (x.dtype.kind != "f" and not few))
    listed = w[tuple(taps.T)]
    scratch = aligned_empty(cut.scratch * cut.tasks, np.uint8)
    packed = np.concatenate([w.ravel(), listed, lines])
    filters, bias = np.zeros(cut.outer, np.int64), np.zeros(1, dtype)
    values = cut.values(order, x.itemsize, y.itemsize, fill) | {
        "x": x, "w": packed, "y": y, "bias": bias, "relu": 0, "scratch": scratch, "residual": 0, "finish": 0,
        "finish_numbers": 0, "w_listed": w.nbytes, "w_along": w.nbytes + listed.nbytes, "w_step": 0,
        "load": load_line(KINDS.index(x.dtype.name), size, lanes),
        "store": 0 if y.dtype == dtype else store_line(KINDS.index(y.dtype.name), size, lanes),
        "filters": filters,
    }  # fmt: skip
    address = jit.data_address()
    fields = [values[name] for name in WINDOW_FIELDS.names or ()]
    record = np.array([address(v) if isinstance(v, np.ndarray) else v for v in fields], np.int64)
    jit.launch(sum_windows(size), address(record), cut.tasks)
