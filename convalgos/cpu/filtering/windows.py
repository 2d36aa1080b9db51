"""Correlations of whole arrays with dense filters: what makes them.

y[i] = sum over t of w[t] x[i + t - before], with any boundary (`core.boundaries`). Products are added in the
order of the filter's elements. Where x and y are of one floating-point type they are fused sums of that type;
else products and sums are float64, each rounded, as SciPy's are. Sums of integers by integers that fit into
the digits of a floating-point type are exact in any order, and are fused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.axis_windows import AxisWindow
from convalgos.cpu.filtering import line_steps
from convalgos.cpu.filtering.line_filters import LineFilter, line_filter, run_passes
from convalgos.cpu.filtering.line_steps import LineStep, fit_single, rounding_of_sums, way_of_sums
from convalgos.cpu.filtering.outer_products import line_factors
from convalgos.cpu.filtering.settled_windows import settled_window
from convalgos.cpu.filtering.window_kernels import CLOSE, FUSED, IN_ORDER
from convalgos.cpu.filtering.window_passes import Spanned, Sums, WeightedPass
from convalgos.cpu.layout.turned_rows import Pass

Array = np.ndarray[Any, Any]
SEPARABLE = 2.5  # products of a window for one of its lines, from which on lines are the faster,
LINES = 1.5  # and where passes along lines take them. Xeon
NARROW = 64  # elements of neighbours that no filter spans, from which on they are rows of their own
BYTES = {"int8", "uint8"}  # types of whose sums few are next to whole numbers in float32
EXACT_BITS = {4: 24, 8: 53}  # of sums, by bytes of a floating-point type


def sum_type(x: np.dtype, y: np.dtype, w: Array, fill: float) -> tuple[int, int]:
    """(bytes of the sums' elements, FUSED, IN_ORDER or CLOSE) that give what SciPy's sums do."""
    return _sums_of(w.tobytes(), w.shape, x, y, float(fill))[:2]


@lru_cache(128)
def _sums_of(weights: bytes, taps: Shape, x: np.dtype, y: np.dtype, fill: float) -> Sums:
    """For the elements of a filter in float64, and its shape."""
    w = np.frombuffer(weights).reshape(taps)
    if x.kind == y.kind == "f":
        size = max(x.itemsize, y.itemsize, 4 if fit_single(w.ravel().tolist()) else 8)
    else:
        size = _exact_bytes(x, y, w, fill)
    if size:
        lines = line_factors(w, size == 4) if (w != 0).all() else None  # zeros are left out
        return Sums(size, FUSED, lines)
    step = LineStep(0, tuple(w.ravel().tolist()), AxisWindow(1), fill)
    way = way_of_sums(step, x, 4) if x.name in BYTES and y.name in BYTES else line_steps.ORDERED
    if way == line_steps.EXACT:
        return Sums(4, FUSED)
    if way == line_steps.ORDERED:
        return Sums(8, IN_ORDER)
    error = rounding_of_sums(step, x, 4)
    return Sums(4, CLOSE, None, (error, 1 - error))


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
    """Correlations of arrays of two types and any sizes, of as many axes as w has.

    Args:
        w: float64, one dimension for each of x's; elements of 0 are left out.
        x, y: types in `line_elements.KINDS`.
        axes: those of x, of any size.
        fill: what lies beyond a "constant" boundary.
    """

    def __init__(self, w: Array, x: np.dtype, y: np.dtype, axes: Sequence[AxisWindow], fill: float):
        self._w, self._types, self._axes, self._fill = w, (x, y), axes, fill
        self._in_any_order = y.kind == "f" or bool(_exact_bytes(x, y, w, fill))  # sums are the same
        self._lines = _lines_of(w, x, y, axes, fill)
        self._settled, self._between = None, slice(0)
        filtered = [i for i, axis in enumerate(axes) if axis.taps > 1]
        integers = x.kind in "iu" and y.kind in "iu"
        if integers and len(filtered) == 2 and w.size >= SEPARABLE * sum(axes[i].taps for i in filtered):
            self._settled = settled_window(w, x, y, axes, fill)
            self._between = slice(filtered[0] + 1, filtered[1])
        self._made: dict[tuple[Any, ...], list[WeightedPass]] = {}

    def of(self, shape: Shape) -> SizedWindows:
        """The filter of arrays of a shape, which has elements."""
        if self._settled is not None and math.prod(shape[self._between]) == 1:
            return SizedWindows([self._settled.of(shape)], [self._types[1]], True)
        if self._lines is not None:
            passes = self._lines.passes(shape)
            return SizedWindows(passes, [self._types[1]] * len(passes), True)
        order: Sequence[int] = range(len(shape))
        if 1 in shape and self._in_any_order:
            order = _singles_before(shape, self._axes)
        axes, step = _pixels(merged_axes([self._axes[i]._replace(size=shape[i]) for i in order]))
        # pixels of one element leave out an axis that wider maps have
        key = tuple(order), step, tuple([axis.taps for axis in axes])
        if key not in self._made:
            self._made[key] = list(self._passes(self._w.transpose(order), axes, step))
        made = self._made[key]
        return SizedWindows([each.of(axes) for each in made], [each.dtype for each in made])

    def _passes(self, w: Array, axes: list[AxisWindow], step: int) -> Iterator[WeightedPass]:
        """Of `axes` of pixels of so many elements."""
        (x, y), fill = self._types, self._fill
        w = w.reshape([axis.taps for axis in axes])
        sums = _sums_of(w.tobytes(), w.shape, x, y, float(fill))
        lines = sums.lines
        if lines is None or w.size < SEPARABLE * sum(axis.taps for axis in axes):
            yield WeightedPass(w, x, y, lambda axes: (axes, step), sums, fill)
            return
        for i, (axis, line) in enumerate(zip(axes[:-2], lines, strict=False)):
            if axis.taps > 1:
                between = np.dtype(f"f{sums.size}")
                yield WeightedPass(line, x, between, partial(_along_one, only=i, step=step), sums, fill)
                x, fill = between, fill * float(line.sum())

        def flat(axes: list[AxisWindow]) -> Spanned:
            return [*(axis.unfiltered for axis in axes[:-2]), *axes[-2:]], step

        yield WeightedPass(lines[-2], x, y, flat, sums, fill, lines[-1])


def _along_one(axes: list[AxisWindow], only: int, step: int) -> Spanned:
    """Of a filter along one of the axes of pixels."""
    alone = [axis if i == only else axis.unfiltered for i, axis in enumerate(axes)]
    return _pixels(merged_axes([*alone, AxisWindow(step)]))


class SizedWindows:
    """A `WindowFilter` of arrays of one shape. Many threads may call it at once.

    A call as f(x, y) fills y. Both are C-contiguous and share no memory.

    Args:
        passes: calls as (x, y), one after the other.
        dtypes: of what each fills.
        is_lines: whether they go along lines, which takes less time than any other way.
    """

    def __init__(self, passes: Sequence[Pass], dtypes: Sequence[np.dtype], is_lines: bool = False):
        self._passes, self._dtypes, self.is_lines = passes, dtypes, is_lines

    @property
    def shortest(self) -> Callable[[Array, Array], None]:
        """What does the same as a call, and is called faster."""
        return self._passes[0] if len(self._passes) == 1 else self

    def __call__(self, x: Array, y: Array) -> None:
        if self.is_lines:
            run_passes(self._passes, x, y)
            return
        for each, dtype in zip(self._passes[:-1], self._dtypes, strict=False):
            between = np.empty(x.shape, dtype)
            each(x, between)
            x = between
        self._passes[-1](x, y)


def _lines_of(
    w: Array, x: np.dtype, y: np.dtype, axes: Sequence[AxisWindow], fill: float
) -> LineFilter | None:
    """Passes along lines that do the same, where nothing is rounded to less than sums are; else None."""
    filtered = [i for i, axis in enumerate(axes) if axis.taps > 1]
    if not (x.kind == y.kind == "f" and y.itemsize >= x.itemsize):
        return None
    if len(filtered) < 2 or w.size < LINES * sum(axes[i].taps for i in filtered):
        return None
    if fill != 0 and any(axis.boundary == "constant" for axis in axes):
        return None
    lines = _sums_of(w.tobytes(), w.shape, x, y, float(fill)).lines
    if lines is None:
        return None
    factors = [lines[i].tolist() for i in filtered]
    if axes[-1].taps == 1:  # the last line, of which no sums are made, scales all others
        factors[0] = (lines[filtered[0]] * lines[-1][0]).tolist()
    steps = [LineStep(i, tuple(line), axes[i], 0.0) for i, line in zip(filtered, factors, strict=True)]
    return line_filter(x, y, tuple(steps))


def _singles_before(shape: Shape, axes: Sequence[AxisWindow]) -> list[int]:
    """The order with filtered axes of one element before all others: rows of one would take a loop each."""
    return sorted(range(len(shape)), key=lambda i: shape[i] > 1 or axes[i].taps == 1)


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
