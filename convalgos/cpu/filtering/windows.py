"""Correlations of whole arrays with dense filters: how `window_kernels` are called.

y[i] = sum over t of w[t] x[i + t - before], with any boundary (`core.boundaries`). Products are added in the
order of the filter's elements. Where x and y are of one floating-point type they are fused sums of that type;
else products and sums are float64, each rounded, as SciPy's are. Sums of integers by integers that fit into
the digits of a floating-point type are exact in any order, and are fused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.axis_windows import AxisWindow, PixelWindow
from convalgos.cpu.filtering import line_steps, line_sums
from convalgos.cpu.filtering.line_elements import KINDS, load_line, store_line
from convalgos.cpu.filtering.line_filters import passes_of, run_passes
from convalgos.cpu.filtering.line_passes import LinePass
from convalgos.cpu.filtering.line_steps import LineStep, rounding_of_sums, way_of_sums
from convalgos.cpu.filtering.outer_products import line_factors
from convalgos.cpu.filtering.settled_windows import settled_window
from convalgos.cpu.filtering.whole_sums import settle_line
from convalgos.cpu.filtering.window_cut import WindowCut, source_planes
from convalgos.cpu.filtering.window_kernels import CLOSE, FUSED, IN_ORDER, WINDOW_FIELDS, sum_windows
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.record_launch import RecordLaunch
from convalgos.cpu.runtime.threads import cached_by_threads
from convalgos.cpu.vectors import simd

Array = np.ndarray[Any, Any]
SEPARABLE = 2.5  # products of a window for one of its lines, from which on lines are the faster,
LINES = 1.5  # and where passes along lines take them. Xeon
NARROW = 64  # elements of neighbours that no filter spans, from which on they are rows of their own
SPARSE = 0.5  # share of weights that are not 0, below which a list of them is the faster
BYTES = {"int8", "uint8"}  # types of whose sums few are next to whole numbers in float32
EXACT_BITS = {4: 24, 8: 53}  # of sums, by bytes of a floating-point type


def sum_type(x: np.dtype, y: np.dtype, w: Array, fill: float) -> tuple[int, int]:
    """(bytes of the sums' elements, FUSED, IN_ORDER or CLOSE) that give what SciPy's sums do."""
    return _sums_of(w.tobytes(), w.shape, x, y, float(fill))[:2]


class Sums(NamedTuple):
    """How windows are summed."""

    size: int  # bytes of an element
    order: int
    lines: list[Array] | None = None  # filters along axes that do the same
    bounds: tuple[float, float, float] = (0.0, 0.0, 0.0)  # of `whole_sums.cut_off`


@lru_cache(128)
def _sums_of(weights: bytes, taps: Shape, x: np.dtype, y: np.dtype, fill: float) -> Sums:
    """For the elements of a filter in float64, and its shape."""
    w = np.frombuffer(weights).reshape(taps)
    size = max(x.itemsize, y.itemsize) if x.kind == y.kind == "f" else _exact_bytes(x, y, w, fill)
    if size:
        lines = line_factors(w, size == 4) if (w != 0).all() else None  # zeros are left out
        return Sums(size, FUSED, lines)
    step = LineStep(0, tuple(w.ravel().tolist()), AxisWindow(1), fill)
    way = way_of_sums(step, x, 4) if x.name in BYTES and y.name in BYTES else line_steps.ORDERED
    if way == line_steps.EXACT:
        return Sums(4, FUSED)
    if way == line_steps.ORDERED:
        return Sums(8, IN_ORDER)
    error, positive = rounding_of_sums(step, x, 4), x.kind == "u" and min(*step.weights, fill) >= 0
    return Sums(4, CLOSE, None, (error, 1 - error, 0.0 if positive else -1.0))  # where sums of 0 are exact


def _exact_bytes(x: np.dtype, y: np.dtype, w: Array, fill: float) -> int:
    """Bytes of a floating-point type that rounds no sum; 0 where there is none."""
    if x.kind in "bui" and bool((w == np.rint(w)).all()) and fill.is_integer():
        limits = (0, 1) if x.kind == "b" else (np.iinfo(x).min, np.iinfo(x).max)
        most = max(*map(abs, map(int, limits)), abs(fill)) * float(np.abs(w).sum())
        for size, bits in EXACT_BITS.items():
            if most < 2.0**bits and (y.kind != "f" or y.itemsize <= size):
                return size
    return 0


class WindowFilter:
    """Correlations of arrays of one shape and two types. Many threads may call it at once.

    The arrays have elements. A call as f(x, y) fills y. Both are C-contiguous and share no memory.

    Args:
        w: float64, one dimension for each of x's; elements of 0 are left out.
        x, y: types in `line_elements.KINDS`.
        axes: those of x.
        fill: what lies beyond a "constant" boundary.
    """

    def __init__(self, w: Array, x: np.dtype, y: np.dtype, axes: Sequence[AxisWindow], fill: float):
        self._lines = _line_passes(w, x, y, axes, fill)
        if self._lines:
            return
        if y.kind == "f" or _exact_bytes(x, y, w, fill):  # sums in any order are the same
            axes, w = _singles_before(axes, w)
        axes, step = _pixels(merged_axes(axes))
        w = w.reshape([axis.taps for axis in axes])
        sums = _sums_of(w.tobytes(), w.shape, x, y, float(fill))
        lines, self._passes = sums.lines, list[WeightedPass]()
        if lines is None or w.size < SEPARABLE * sum(axis.taps for axis in axes):
            self._passes.append(WeightedPass(w, x, y, axes, step, sums, fill))
            return
        *leading, rows, columns = axes
        for i, (axis, line) in enumerate(zip(leading, lines, strict=False)):
            if axis.taps > 1:
                others = [a.unfiltered if j != i else a for j, a in enumerate(axes)]
                between = np.dtype(f"f{sums.size}")
                spanned, pixel = _pixels(merged_axes([*others, AxisWindow(step)]))
                self._passes.append(WeightedPass(line, x, between, spanned, pixel, sums, fill))
                x, fill = between, fill * float(line.sum())
        flat = [axis.unfiltered for axis in leading]
        last = WeightedPass(lines[-2], x, y, [*flat, rows, columns], step, sums, fill, lines[-1])
        self._passes.append(last)

    @property
    def is_lines(self) -> bool:
        """Whether passes along lines do it, which take less time than any other way."""
        return bool(self._lines)

    @property
    def shortest(self) -> Callable[[Array, Array], None]:
        """What does the same as a call, and is called faster."""
        alone = self._lines or self._passes
        return alone[0].run if len(alone) == 1 else self

    def __call__(self, x: Array, y: Array) -> None:
        if self._lines:
            run_passes(self._lines, x, y)
            return
        for each in self._passes[:-1]:
            between = np.empty(x.shape, each.dtype)
            each.run(x, between)
            x = between
        self._passes[-1].run(x, y)


def _line_passes(
    w: Array, x: np.dtype, y: np.dtype, axes: Sequence[AxisWindow], fill: float
) -> list[LinePass]:
    """Passes along lines that do the same, where nothing is rounded to less than sums are; else none."""
    taps = [axis.taps for axis in axes if axis.taps > 1]
    if x.kind in "iu" and y.kind in "iu" and w.size >= SEPARABLE * sum(taps):
        return settled_window(w, x, y, axes, fill)
    if not (x.kind == y.kind == "f" and y.itemsize >= x.itemsize) or w.size < LINES * sum(taps):
        return []
    if len(taps) < 2 or (fill != 0 and any(axis.boundary == "constant" for axis in axes)):
        return []
    lines = _sums_of(w.tobytes(), w.shape, x, y, float(fill)).lines
    if lines is None:
        return []
    if axes[-1].taps == 1:
        lines[0], lines[-1] = lines[0] * lines[-1][0], np.ones(1)
    steps = [
        LineStep(i, tuple(line.tolist()), axis, 0.0)
        for i, (axis, line) in enumerate(zip(axes, lines, strict=True))
        if axis.taps > 1
    ]
    return passes_of(tuple(axis.size for axis in axes), x, y, tuple(steps))


def _singles_before(axes: Sequence[AxisWindow], w: Array) -> tuple[list[AxisWindow], Array]:
    """The same with filtered axes of one element before all others: rows of one would take a loop each."""
    order = sorted(range(len(axes)), key=lambda i: axes[i].size > 1 or axes[i].taps == 1)
    return [axes[i] for i in order], w.transpose(order)


def merged_axes(axes: Sequence[AxisWindow]) -> list[AxisWindow]:
    """The axes with neighbours that the filter does not span as one, and at least two of them."""
    found: list[AxisWindow] = []
    for axis in axes:
        if found and found[-1].taps == axis.taps == 1:
            found[-1] = AxisWindow(found[-1].size * axis.size)
        else:
            found.append(axis)
    return [AxisWindow(1)] * (2 - len(found)) + found


def _pixels(axes: list[AxisWindow]) -> tuple[list[AxisWindow], int]:
    """(axes of pixels, elements of a pixel): the last axis, where it is short and no filter spans it."""
    *inner, last = axes
    if last.taps > 1 or last.size >= NARROW or all(axis.taps == 1 for axis in inner):
        return axes, 1
    return [AxisWindow(1)] * (2 - len(inner)) + inner, last.size


class WeightedPass:
    """One pass by some weights; with `along`, of rows that this has filtered before."""

    def __init__(
        self, w: Array, x: np.dtype, y: np.dtype, axes: list[AxisWindow], step: int, sums: Sums, fill: float,
        along: Array | None = None,
    ):  # fmt: skip
        *_, rows, columns = axes
        w = w.reshape(-1, rows.taps, 1 if along is not None else columns.taps)
        marks, count = (w != 0).tobytes(), 0 if along is None else len(along)
        self.dtype = y
        self._pass = _window_pass(x, y, tuple(axes), step, w.shape, marks, count, sums[:2], float(fill))
        self._weights = self._pass.packed(w, along, sums.bounds)
        self.run = self._pass.launch(*self._weights)  # (x, y), C-contiguous; many threads may at once


@cached_by_threads(128)
def _window_pass(
    x: np.dtype, y: np.dtype, axes: tuple[AxisWindow, ...], step: int, taps: Shape, marks: bytes,
    along: int, sums: tuple[int, int], fill: float,
) -> WindowPass:  # fmt: skip
    weighted = np.frombuffer(marks, bool).reshape(taps)
    return WindowPass(x, y, axes, step, weighted, along, *sums, fill)


class WindowPass:
    """Windows over arrays of one shape and two types, with weights at the same places.

    Args:
        axes: of pixels.
        step: elements of a pixel.
        weighted: (places along the leading axes, rows, columns) bool: which weights are not 0.
        along: taps along rows.
        size, order: those of `Sums`.
    """

    def __init__(
        self, x: np.dtype, y: np.dtype, axes: Sequence[AxisWindow], step: int, weighted: Array, along: int,
        size: int, order: int, fill: float,
    ):  # fmt: skip
        *leading, rows, pixels = axes
        columns = PixelWindow(pixels, step) if step > 1 else pixels
        lanes, self._dtype, close = simd.lanes(size), np.dtype(f"f{size}"), order == CLOSE
        self._met = np.flatnonzero(weighted.any((1, 2)))  # places along the leading axes that meet weights
        weighted = weighted[self._met]  # (rings, taps_r, taps_s)
        planes = source_planes(leading, rows.size * columns.size * x.itemsize)[:, self._met]
        count = int(weighted.sum())
        # A weight of 0 times NaN is NaN, which SciPy does not compute.
        tiles = count == weighted.size or (x.kind != "f" and count >= SPARSE * weighted.size)
        taps = np.argwhere(weighted | (tiles and close))
        taps = np.roll(taps, -1, 0) if close else taps  # the first one last, where `settle_line` begins
        cut = WindowCut(planes, rows, columns, size, taps, along, tiles, apart=step, close=close)
        self._taps = tuple(taps.T)
        self._scratch_bytes, self._tasks = cut.scratch * cut.tasks, cut.tasks
        filters, nothing = np.zeros(cut.outer, np.int64), np.zeros(1, self._dtype)
        w_bytes, kind = weighted.size * size, KINDS.index(y.name)
        values = cut.values(FUSED if close else order, x.itemsize, y.itemsize, fill) | {
            "x": 0, "w": 0, "y": 0, "bias": nothing, "relu": 0, "scratch": 0, "residual": 0, "finish": 0,
            "finish_numbers": 0, "w_listed": w_bytes, "w_along": w_bytes + len(taps) * size, "w_step": 0,
            "load": load_line(KINDS.index(x.name), size, lanes), "filters": filters,
            "store": 0 if y == self._dtype else store_line(kind, size, lanes),
            "settle": settle_line(kind, line_sums.IN_ORDER, size, lanes) if close else 0,
        }  # fmt: skip
        self._tables = [value for value in values.values() if isinstance(value, np.ndarray)]
        address, names = jit.data_address(), WINDOW_FIELDS.names or ()
        fields = [address(v) if isinstance(v, np.ndarray) else v for v in map(values.get, names)]
        self._record = np.array(fields, np.int64)
        self._kernel = sum_windows(size)

    def packed(self, w: Array, along: Array | None, bounds: tuple[float, float, float]) -> tuple[Array, ...]:
        """(weights as kernels read them, those of the list in float64, `bounds`).

        Args:
            w: (places, rows, columns) float64.
            along: (places, taps) along rows, or (taps,) of all.
        """
        w = w[self._met]
        listed = w[self._taps]
        packed = np.concatenate([w.ravel(), listed, [] if along is None else along.ravel()])
        return packed.astype(self._dtype, copy=False), listed, np.array(bounds, self._dtype)

    def launch(self, packed: Array, exact: Array, bounds: Array) -> RecordLaunch:
        """Of `packed` weights."""
        record, names = self._record.copy(), WINDOW_FIELDS.names or ()
        for name, array in (("w", packed), ("exact", exact), ("bounds", bounds)):
            record[names.index(name)] = array.ctypes.data
        kept = *self._tables, packed, exact, bounds
        return RecordLaunch(self._kernel, record, names, self._scratch_bytes, self._tasks, kept)
