"""Small images and volumes filtered by one call of compiled code, which reads arrays where Python keeps them.

On some thousand products, checks, copies and the launch of a plan take longer than the sums. Here a record
for each pair of shapes holds what does not depend on the data; a call lays the image with its border in
scratch, turns the filter around, and sums four vectors of windows at a time. Elements are of any number type
of NumPy; integers wrap around. The interpreter's lock is held: a record serves one call at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from convalgos.core.allocator import aligned_zeros
from convalgos.cpu.filtering.small_elements import (
    HEAD,
    STRIDES,
    copy_element,
    count_reference,
    integer_of,
    is_aligned,
    step_of_columns,
    taps_are_finite,
    word_of,
)
from convalgos.cpu.runtime import array_calls, jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.integers import Integers
from convalgos.cpu.vectors.simd import Value, Vec, call, carray, copy_bytes, pointer

REALS, INTEGERS, COMPLEX = range(3)
AT_ONCE = 4  # vectors that are summed at a time
WINDOW_FIELDS = fields(
    "kernel padded pitch taps size tap_rows tap_columns turned rows columns row_sources column_sources "
    "padded_rows low inside high x_rows next part places tap_places"
)


@jit.helper
def turn_filter(a: Any, w: int, w_row: int, w_column: int) -> None:
    """The taps, row after row; those of a convolution from the last one on."""
    taps = a.tap_rows * a.tap_columns
    for i in range(a.tap_rows):
        for j in range(a.tap_columns):
            at = i * a.tap_columns + j
            if a.turned:
                at = taps - 1 - at
            copy_element(a.taps + at * a.size, w + i * w_row + j * w_column, a.size)


@jit.helper
def lay_image(a: Any, x: int, x_row: int, x_column: int) -> None:
    """The rows that windows read, with what lies beyond both ends; what fills them is there already."""
    for i in range(a.padded_rows):
        row = word_of(a.row_sources + i * 8)
        if row >= 0:
            line, target = x + row * x_row, a.padded + i * a.pitch * a.size
            first = word_of(a.column_sources + a.low * 8)
            if x_column == a.size:
                copy_bytes(target + a.low * a.size, line + first * a.size, a.inside * a.size)
            else:
                for j in range(a.inside):
                    copy_element(target + (a.low + j) * a.size, line + (first + j) * x_column, a.size)
            for j in range(a.low):
                source = word_of(a.column_sources + j * 8)
                if source >= 0:
                    copy_element(target + j * a.size, line + source * x_column, a.size)
            for j in range(a.low + a.inside, a.low + a.inside + a.high):
                source = word_of(a.column_sources + j * 8)
                if source >= 0:
                    copy_element(target + j * a.size, line + source * x_column, a.size)


@jit.helper
def run_windows(
    record: int, x: int, x_row: int, x_column: int, w: int, w_row: int, w_column: int, y: int
) -> bool:
    """Whether it did; not with taps that are infinite or no numbers."""
    a = carray(pointer(record), 1, WINDOW_FIELDS)[0]
    turn_filter(a, w, w_row, w_column)
    if not taps_are_finite(a):
        return False
    lay_image(a, x, x_row, x_column)
    tables = a.places, a.tap_places
    call(a.kernel, (a.padded, *tables, a.taps, a.tap_rows, a.tap_columns, a.rows, a.columns, y))
    return True


def _filter_small(this: int, given: int, count: int) -> int:
    """What Python calls as f(record, x, w, y) of arrays of one or two axes, of which a signal is one row.

    The result is y, or None where x or w is not aligned, or w not finite.
    """
    x, w, y = word_of(given + 8), word_of(given + 16), word_of(given + 24)
    result = this  # it is None
    if is_aligned(x) and is_aligned(w):
        of_x, of_w = word_of(x + STRIDES), word_of(w + STRIDES)  # of one axis: the only row begins at 0
        if run_windows(
            integer_of(word_of(given), 0), word_of(x + HEAD), word_of(of_x), step_of_columns(x),
            word_of(w + HEAD), word_of(of_w), step_of_columns(w), word_of(y + HEAD),
        ):  # fmt: skip
            result = y
    count_reference(result)
    return result


@simd.emitter
def sum_small_windows(
    v: Vec, KIND: int, ALONG: int, padded: Value, places: Value, tap_places: Value, taps: Value,
    tap_rows: Value, tap_columns: Value, rows: Value, columns: Value, y: Value,
) -> None:  # fmt: skip
    """y (rows, columns) of padded (padded rows, pitch); complex numbers are pairs.

    places: (rows + AT_ONCE - 1,) numbers in padded from which the window of the first output of a row begins;
    tap_places: (tap_rows,) numbers from there to what a row of taps meets.

    Some vectors are summed at a time: ALONG a row, or below each other.
    """
    n: Any = Integers(v.b, v.lanes, v.size) if KIND == INTEGERS else v
    pair = 2 if KIND == COMPLEX else 1
    source, weights, to = (n.pointer(address) for address in (padded, taps, y))
    width = v.imul(columns, pair)
    groups = rows if ALONG else v.idiv(v.iadd(rows, AT_ONCE - 1), AT_ONCE)
    step = v.lanes * (AT_ONCE if ALONG else 1)
    with v.loop(groups) as group, v.loop(v.idiv(v.iadd(width, step - 1), step)) as block:
        begin = v.imul(block, step)
        of_outputs = [  # (row, column) of each vector
            (group, v.iadd(begin, k * v.lanes)) if ALONG else (v.iadd(v.imul(group, AT_ONCE), k), begin)
            for k in range(AT_ONCE)
        ]
        firsts = [v.iadd(v.table64(places, row), column) for row, column in of_outputs]
        sums = [n.register(n.zero()) for _ in firsts]
        with v.loop(tap_rows) as i:
            ahead = v.table64(tap_places, i)
            with v.loop(tap_columns) as j:
                tap = v.imul(v.iadd(v.imul(i, tap_columns), j), pair)
                weight = n.broadcast(weights, tap)
                at = v.iadd(ahead, v.imul(j, pair))
                if KIND == COMPLEX:
                    signs = simd.ir.Constant(v.type, [-1.0, 1.0] * (v.lanes // 2))
                    crossed = v.fmul(v.broadcast(weights, v.iadd(tap, 1)), signs)
                for first, total in zip(firsts, sums, strict=True):
                    value = n.load(source, v.iadd(first, at))
                    if KIND == INTEGERS:
                        total.set(n.add(total.value, n.mul(value, weight)))
                        continue
                    total.set(v.fma(value, weight, total.value))
                    if KIND == COMPLEX:
                        swapped = v.shuffle(value, value, [lane ^ 1 for lane in range(v.lanes)])
                        total.set(v.fma(swapped, crossed, total.value))
        for (row, column), total in zip(of_outputs, sums, strict=True):
            with v.within(row, rows):
                mask = n.mask(v.isub(width, column))
                n.store_masked(total.value, to, v.iadd(v.imul(row, width), column), mask)


@jit.specialise
def small_windows(KIND: int, ALONG: int, SIZE: int, LANES: int) -> jit.Kernel:
    def small_windows(
        padded: int, places: int, tap_places: int, taps: int, tap_rows: int, tap_columns: int, rows: int,
        columns: int, y: int,
    ) -> None:  # fmt: skip
        sum_small_windows(
            SIZE, LANES, KIND, ALONG, padded, places, tap_places, taps, tap_rows, tap_columns, rows, columns,
            y,
        )  # fmt: skip

    return small_windows


# --- for Python ------------------------------------------------------------------------------


@cache
def filter_small() -> Callable[..., Any] | None:
    """f(address of a `SmallWindows`, x, w, y) of arrays of one or two axes; None where it cannot be had."""
    return jit.from_python(b"filter_small", _filter_small, jit.FASTCALL) if array_calls.array_call() else None


class SmallWindows:
    """What all calls of some shapes and a type share.

    An array of several axes is one tall image: tables tell where the windows of each row of outputs begin,
    and where each row of taps lies in a window.

    Args:
        w_shape: (..., rows, columns).
        sources: of each of these axes, which place of x lies at each place that windows read; -1 for `fill`.
        turned: whether the filter is turned around, as in a convolution.
        x_shape: of x where it has more than two axes.
    """

    def __init__(
        self, dtype: np.dtype, w_shape: Sequence[int], sources: Sequence[np.ndarray], turned: bool,
        fill: complex = 0, x_shape: Sequence[int] = (),
    ):  # fmt: skip
        self.dtype = dtype
        self.shape = tuple(len(s) - k + 1 for s, k in zip(sources, w_shape, strict=True))
        kind = {"f": REALS, "c": COMPLEX}.get(dtype.kind, INTEGERS)
        numbers = 2 if kind == COMPLEX else 1  # of an element
        size = dtype.itemsize // numbers
        lanes = simd.vector_bytes() // size
        of_columns, of_rows = sources[-1], _rows_of(sources[:-1], x_shape)
        low, inside = _middle(of_columns)
        pitch = len(of_columns) + AT_ONCE * lanes
        wide = dtype.itemsize * self.shape[-1] > AT_ONCE * simd.vector_bytes()
        along = wide or math.prod(self.shape[:-1]) < AT_ONCE
        apart = [pitch * numbers]  # numbers from row to row, and ahead of that those from plane to plane
        for s in sources[-2:0:-1]:
            apart.insert(0, len(s) * apart[0])
        self._sources = [np.ascontiguousarray(s, np.int64) for s in (of_rows, of_columns)]
        self._places, self._tap_places = (_places_of_rows(s[:-1], apart) for s in (self.shape, w_shape))
        self._padded = aligned_zeros((len(of_rows) + AT_ONCE) * pitch, dtype)
        if fill:
            self._padded[...] = fill
        self._taps = np.zeros(math.prod(w_shape), dtype)
        self.record = np.zeros(1, WINDOW_FIELDS)
        values = {
            "kernel": small_windows(kind, int(along), size, lanes), "padded": self._padded.ctypes.data,
            "pitch": pitch, "taps": self._taps.ctypes.data, "size": dtype.itemsize,
            "tap_rows": math.prod(w_shape[:-1]), "tap_columns": w_shape[-1], "turned": int(turned),
            "rows": math.prod(self.shape[:-1]), "columns": self.shape[-1],
            "row_sources": self._sources[0].ctypes.data, "column_sources": self._sources[1].ctypes.data,
            "padded_rows": len(of_rows), "low": low, "inside": inside,
            "high": len(of_columns) - low - inside, "places": self._places.ctypes.data,
            "tap_places": self._tap_places.ctypes.data, "part": 0 if kind == INTEGERS else size,
        }  # fmt: skip
        for name, value in values.items():
            self.record[name] = value
        self.address = self.record.ctypes.data

    def then(self, following: SmallWindows) -> None:
        """Let another one filter the result, which lies in between."""
        self._between = np.empty(self.shape, self.dtype)
        self._following = following
        self.record["next"] = following.address
        following.record["x_rows"] = self._between.ctypes.data


def _rows_of(sources: Sequence[np.ndarray], x_shape: Sequence[int]) -> np.ndarray:
    """Which row of x, counted over all planes, lies at each of the rows that windows read; -1 for `fill`."""
    rows = np.asarray(sources[0])
    for s, size in zip(sources[1:], x_shape[1:], strict=False):
        ahead = rows[:, None]
        rows = np.where((ahead < 0) | (s < 0), -1, ahead * size + s).reshape(-1)
    return rows


def _places_of_rows(counts: Sequence[int], apart: Sequence[int]) -> np.ndarray:
    """Where rows begin, of one plane or of several, and some more for vectors below the last one."""
    places = sum(np.ix_(*(np.arange(n) * by for n, by in zip(counts, apart, strict=True))))
    return np.pad(np.asarray(places, np.int64).reshape(-1), (0, AT_ONCE - 1))


def _middle(sources: np.ndarray) -> tuple[int, int]:
    """(first, count) of the longest run of places whose sources follow each other."""
    best, start = (0, 0), 0
    for i in range(1, len(sources) + 1):
        if i == len(sources) or sources[i] != sources[i - 1] + 1 or sources[i - 1] < 0:
            if sources[start] >= 0 and i - start > best[1]:
                best = start, i - start
            start = i
    return best
