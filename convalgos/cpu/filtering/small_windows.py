"""Small images and volumes filtered by one call of compiled code, which reads arrays where Python keeps them.

On some thousand products, checks, copies and the launch of a plan take longer than the sums. Here a record
for each pair of shapes holds what does not depend on the data; a call lays the image with its border in
scratch, turns the filter around, and sums four vectors of windows at a time. Elements are of any number type
of NumPy; integers wrap around. The interpreter's lock is held: a record serves one call at a time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from convalgos.core.allocator import aligned_zeros, whole_lines
from convalgos.core.axis_windows import AxisWindow, PixelWindow
from convalgos.core.boundaries import COPIES
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
from convalgos.cpu.filtering.small_records import filled_record, scratch
from convalgos.cpu.runtime import array_calls, jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.integers import Integers
from convalgos.cpu.vectors.simd import Value, Vec, call, carray, copy_bytes, pointer, zero_bytes

REALS, INTEGERS, COMPLEX = range(3)
AT_ONCE = 4  # vectors that are summed at a time
WINDOW_FIELDS = fields(
    "kernel padded pitch taps size tap_rows tap_columns turned rows columns row_sources padded_rows "
    "low inside high first shared ends low_ends high_ends x_rows next part places tap_places"
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
    """The rows that windows read, with what lies beyond both ends.

    What fills them is there already, but in scratch that is shared.
    """
    for i in range(a.padded_rows):
        row = word_of(a.row_sources + i * 8)
        if row >= 0:
            line, target = x + row * x_row, a.padded + i * a.pitch * a.size
            source, inside = line + a.first * x_column, target + a.low * a.size
            behind = inside + a.inside * a.size
            if a.shared:
                zero_bytes(target, a.low * a.size)
                zero_bytes(behind, (a.pitch - a.low - a.inside) * a.size)  # where vectors end, too
            if x_column == a.size:
                copy_bytes(inside, source, a.inside * a.size)
            else:
                for j in range(a.inside):
                    copy_element(inside + j * a.size, source + j * x_column, a.size)
            for j in range(a.low_ends):
                copy_element(target + j * a.size, line + word_of(a.ends + j * 8) * x_column, a.size)
            for j in range(a.high_ends):
                end = word_of(a.ends + (a.low_ends + j) * 8)
                copy_element(behind + j * a.size, line + end * x_column, a.size)


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
        windows: of the filter, along each axis of x: (..., along columns, along rows). One of pixels
            sums along the columns of a narrow image, whose rows it takes as a single one.
        turned: whether the filter is turned around, as in a convolution.
        fill: what lies outside where nothing is copied.
    """

    def __init__(
        self, dtype: np.dtype, windows: Sequence[AxisWindow | PixelWindow], turned: bool, fill: complex = 0
    ):
        self.dtype, address_of = dtype, jit.data_address()
        *of_rows, of_columns = windows
        self.shape = tuple([w.outputs for w in windows])
        kind = {"f": REALS, "c": COMPLEX}.get(dtype.kind, INTEGERS)
        numbers = 2 if kind == COMPLEX else 1  # of an element
        size, element = dtype.itemsize // numbers, dtype.itemsize
        lanes = simd.vector_bytes() // size
        pitch = of_columns.outputs + of_columns.taps - 1 + AT_ONCE * lanes
        wide = element * self.shape[-1] > AT_ONCE * simd.vector_bytes()
        rows, taps, tap_columns = math.prod(self.shape[:-1]), [w.taps for w in of_rows], of_columns.taps
        apart = [pitch * numbers]  # numbers from row to row, and ahead of that those from plane to plane
        for w in of_rows[:0:-1]:
            apart.insert(0, (w.outputs + w.taps - 1) * apart[0])
        of_taps = apart
        if isinstance(of_columns, PixelWindow):
            taps, tap_columns, of_taps = [of_columns.pixels.taps], 1, [of_columns.step * numbers]
        tap_rows = math.prod(taps)
        (low, inside, high, first), ends = _along_rows(of_columns)
        tables = [
            _rows_of(of_rows), np.array(ends, np.int64), _places_of_rows(self.shape[:-1], apart),
            _places_of_rows(taps, of_taps),
        ]  # fmt: skip
        padded_rows = len(tables[0])
        self._tables = np.concatenate(tables)
        at = itertools.accumulate([8 * len(table) for table in tables[:-1]], initial=address_of(self._tables))
        row_sources, of_ends, places, tap_places = at
        laid = whole_lines((padded_rows + AT_ONCE) * pitch * element)
        nbytes = laid + tap_rows * tap_columns * element
        shared = padded_rows == 1 and not fill and not ends
        self._memory = scratch(nbytes) if shared else aligned_zeros(nbytes, np.uint8)
        if fill:
            self._memory[:laid].view(dtype)[...] = fill
        padded = address_of(self._memory)
        values = {
            "kernel": small_windows(kind, int(wide or rows < AT_ONCE), size, lanes), "padded": padded,
            "pitch": pitch, "taps": padded + laid, "size": element, "tap_rows": tap_rows,
            "tap_columns": tap_columns, "turned": int(turned), "rows": rows, "columns": self.shape[-1],
            "row_sources": row_sources, "padded_rows": padded_rows, "low": low, "inside": inside,
            "high": high, "first": first, "shared": int(shared), "ends": of_ends,
            "low_ends": low if ends else 0, "high_ends": high if ends else 0,
            "part": 0 if kind == INTEGERS else size, "places": places, "tap_places": tap_places,
        }  # fmt: skip
        self.record, self.address = filled_record(WINDOW_FIELDS, values)

    @property
    def nbytes(self) -> int:
        """What is kept."""
        return self._tables.nbytes + (0 if self.record["shared"] else self._memory.nbytes)

    def then(self, following: SmallWindows) -> None:
        """Let another one filter the result, which lies in between."""
        self._between = np.empty(self.shape, self.dtype)
        self._following = following
        self.record["next"] = following.address
        following.record["x_rows"] = self._between.ctypes.data


def _rows_of(windows: Sequence[AxisWindow | PixelWindow]) -> np.ndarray:
    """Which row of x, counted over all planes, lies at each of the rows that windows read; -1 for `fill`."""
    rows = windows[0].sources
    for w in windows[1:]:
        ahead, s = rows[:, None], w.sources
        rows = np.where((ahead < 0) | (s < 0), -1, ahead * w.size + s).reshape(-1)
    return rows


def _places_of_rows(counts: Sequence[int], apart: Sequence[int]) -> np.ndarray:
    """Where rows begin, of one plane or of several, and some more for vectors below the last one."""
    places = np.arange(counts[0]) * apart[0]
    for n, by in zip(counts[1:], apart[1:], strict=True):
        places = (places[:, None] + np.arange(n) * by).reshape(-1)
    return np.concatenate([places, np.zeros(AT_ONCE - 1, np.int64)])


def _along_rows(w: AxisWindow | PixelWindow) -> tuple[tuple[int, int, int, int], list[int]]:
    """How many places of a row lie before x, inside it and behind it, and where x is read from on.

    And, where what lies outside is copied, which elements of x lie before and behind.
    """
    begin, stop = max(0, -w.low), min(w.size, w.outputs + w.taps - 1 - w.low)
    inside = max(0, stop - begin)
    low = begin + w.low if inside else w.outputs + w.taps - 1
    high = w.outputs + w.taps - 1 - low - inside
    if w.boundary not in COPIES or not low + high:
        return (low, inside, high, begin), []
    at = w.sources
    return (low, inside, high, begin), [*at[:low].tolist(), *at[low + inside :].tolist()]
