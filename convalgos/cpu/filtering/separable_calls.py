"""Small images filtered along both axes in one compiled call, which finds what fits and makes the result.

SciPy's `sepfir2d` takes 0.3 us on a few pixels. A look-up by Python and `numpy.empty` took as long, so both
are done here: a table tells by types and sizes which two of `SmallWindows` filter an image, after its numbers
and those of the filters are converted. The interpreter's lock is held.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from convalgos.core.axis_windows import AxisWindow, PixelWindow
from convalgos.core.forks import guarded
from convalgos.cpu.filtering.small_elements import (
    DTYPE,
    HEAD,
    NDIM,
    STRIDES,
    TYPE,
    copy_element,
    count_reference,
    integer_of,
    is_aligned,
    word_of,
)
from convalgos.cpu.filtering.small_windows import WINDOW_FIELDS, SmallWindows, run_windows
from convalgos.cpu.runtime import array_calls, jit
from convalgos.cpu.runtime.half import widen_bias
from convalgos.cpu.runtime.new_arrays import NUMBER, TOLD, array_maker, python_array, type_word
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors.simd import Value, carray, external, intrinsic, ir, pointer

SIZES = array_calls.SIZES
SLOTS = 1024  # calls that are known, a power of two
KEPT = 1 << 28  # bytes of what calls need, beyond which all are forgotten
AGAIN = 16  # times that others must ask for the slot of a known call, which takes as long as some of them
# Types of numbers that are converted, whose codes are their places; booleans are bytes of 0 and 1
KINDS = (
    "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"
)  # fmt: skip
SAME_BYTES = {"bool": "uint8"}
NOT, INT8, UINT8, INT16, UINT16, INT32, UINT32, INT64, UINT64, HALF, SINGLE, DOUBLE = range(-1, 11)
TABLE = fields("array new entries")
# Types, as `type_word` tells, and sizes of the image and of the filters; the result's type, with its bytes,
# and those of a real number in it; what is converted from which kind, or `NOT`, and to where; the record of
# `SmallWindows` that comes first, that along rows; and whether it takes all rows as one
ENTRY = fields(
    "x_type row_type column_type height width row_taps column_taps dtype size part x_kind row_kind "
    "column_kind x rows columns first joined"
)

_release = external("Py_DecRef", 1, returns=False)


@intrinsic
def store_integer(builder: Value, part: Value, target: Value, number: Value) -> None:
    """Write an integer as a float of so many bytes."""
    _store(builder, part, target, builder.sitofp(number, ir.DoubleType()))


@intrinsic
def store_unsigned(builder: Value, part: Value, target: Value, number: Value) -> None:
    """The same of an integer without a sign."""
    _store(builder, part, target, builder.uitofp(number, ir.DoubleType()))


@intrinsic
def store_single(builder: Value, part: Value, target: Value, source: Value) -> None:
    """Write the float32 at an address as a float of so many bytes."""
    number = builder.load(builder.inttoptr(source, ir.PointerType(ir.FloatType())), typ=ir.FloatType())
    _store(builder, part, target, builder.fpext(number, ir.DoubleType()))


def _store(builder: Value, part: Value, target: Value, number: Value) -> None:
    single = builder.icmp_signed("==", part, ir.Constant(ir.IntType(64), 4))
    with builder.if_else(single) as (narrow, wide):
        with narrow:
            to = builder.inttoptr(target, ir.PointerType(ir.FloatType()))
            builder.store(builder.fptrunc(number, ir.FloatType()), to)
        with wide:
            builder.store(number, builder.inttoptr(target, ir.PointerType(ir.DoubleType())))


@jit.helper
def convert_integers(
    kind: int, part: int, size: int, target: int, source: int, step: int, count: int
) -> None:
    if kind == INT8:
        for i in range(count):
            store_integer(part, target + i * size, carray(pointer(source + i * step), 1, np.int8)[0])
    elif kind == UINT8:
        for i in range(count):
            store_integer(part, target + i * size, carray(pointer(source + i * step), 1, np.uint8)[0])
    elif kind == INT16:
        for i in range(count):
            store_integer(part, target + i * size, carray(pointer(source + i * step), 1, np.int16)[0])
    elif kind == UINT16:
        for i in range(count):
            store_integer(part, target + i * size, carray(pointer(source + i * step), 1, np.uint16)[0])
    elif kind == UINT32:
        for i in range(count):
            number = carray(pointer(source + i * step), 1, np.int32)[0] & 0xFFFFFFFF
            store_integer(part, target + i * size, number)
    elif kind == INT64:
        for i in range(count):
            store_integer(part, target + i * size, word_of(source + i * step))
    else:
        for i in range(count):
            store_integer(part, target + i * size, carray(pointer(source + i * step), 1, np.int32)[0])


@jit.helper
def convert_numbers(kind: int, part: int, size: int, target: int, source: int, step: int, count: int) -> None:
    """Numbers some bytes apart to elements of `size`, whose real part takes `part`; kinds as of `KINDS`."""
    if kind == NOT:
        for i in range(count):
            copy_element(target + i * size, source + i * step, size)
    elif kind == SINGLE:
        for i in range(count):
            store_single(part, target + i * size, source + i * step)
    elif kind == DOUBLE:
        for i in range(count):
            copy_element(target + i * size, source + i * step, 8)
    elif kind == HALF:  # of images, whose results are float32
        for i in range(count):
            widen_bias(0, source + i * step, target + i * size, 1)
    elif kind == UINT64:
        for i in range(count):
            store_unsigned(part, target + i * size, word_of(source + i * step))
    else:
        convert_integers(kind, part, size, target, source, step, count)


@jit.helper
def converted_taps(e: Any, kind: int, target: int, source: int, step: int, count: int) -> tuple[int, int]:
    """(address, bytes between) of taps, which are converted where they are of some kind."""
    if kind == NOT:
        return source, step
    convert_numbers(kind, e.part, e.size, target, source, step, count)
    return target, e.size


@jit.helper
def filter_both(e: Any, x: int, one: int, two: int, y: int) -> bool:
    """Whether it did, for arrays x, one and two, and the address of what is written."""
    steps = word_of(x + STRIDES)
    image, x_row, x_column = word_of(x + HEAD), word_of(steps), word_of(steps + 8)
    if e.x_kind != NOT or (e.joined and x_row != e.width * x_column):
        together = e.height if x_row == e.width * x_column else 1  # rows that follow each other
        count = e.width * together
        for i in range(0, e.height, together):
            to = e.x + i * e.width * e.size
            convert_numbers(e.x_kind, e.part, e.size, to, image + i * x_row, x_column, count)
        image, x_row, x_column = e.x, e.width * e.size, e.size
    row_step, column_step = word_of(word_of(one + STRIDES)), word_of(word_of(two + STRIDES))
    rows, row_step = converted_taps(e, e.row_kind, e.rows, word_of(one + HEAD), row_step, e.row_taps)
    columns, column_step = converted_taps(
        e, e.column_kind, e.columns, word_of(two + HEAD), column_step, e.column_taps
    )
    a = carray(pointer(e.first), 1, WINDOW_FIELDS)[0]
    between = carray(pointer(a.next), 1, WINDOW_FIELDS)[0].x_rows
    if not run_windows(e.first, image, x_row, x_column, rows, 0, row_step, between):
        return False
    return run_windows(a.next, between, a.columns * a.size, a.size, columns, column_step, 0, y)


@jit.helper
def call_slot(height: int, width: int, row_taps: int, column_taps: int, x_type: int, row_type: int) -> int:
    mixed = ((height * 613 + width) * 11 + row_taps) * 11 + column_taps
    return (mixed + x_type // NUMBER * 131 + row_type // NUMBER * 17) & (SLOTS - 1)


@jit.helper
def are_arrays(t: Any, x: int, one: int, two: int) -> bool:
    """Whether these are aligned arrays, of two axes and of one."""
    for_x = word_of(x + TYPE) == t.array and word_of(one + TYPE) == t.array and word_of(two + TYPE) == t.array
    if not for_x or not is_aligned(x) or not is_aligned(one) or not is_aligned(two):
        return False
    axes = carray(pointer(x + NDIM), 1, np.int32)[0] * 100 + carray(pointer(one + NDIM), 1, np.int32)[0] * 10
    return axes + carray(pointer(two + NDIM), 1, np.int32)[0] == 211  # type: ignore[no-any-return]


def _filter_separable(this: int, given: int, count: int) -> int:
    """What Python calls as f(address of a table, image, of rows, of columns).

    The result is a new array; or None where the table has none of this, or a filter is not finite.
    """
    t = carray(pointer(integer_of(word_of(given), 0)), 1, TABLE)[0]
    x, one, two = word_of(given + 8), word_of(given + 16), word_of(given + 24)
    result = this  # it is None
    if are_arrays(t, x, one, two):
        x_type, row_type = word_of(word_of(x + DTYPE) + TOLD), word_of(word_of(one + DTYPE) + TOLD)
        column_type, sizes = word_of(word_of(two + DTYPE) + TOLD), word_of(x + SIZES)
        row_taps, column_taps = word_of(word_of(one + SIZES)), word_of(word_of(two + SIZES))
        height, width = word_of(sizes), word_of(sizes + 8)
        slot = call_slot(height, width, row_taps, column_taps, x_type, row_type)
        e = carray(pointer(t.entries + slot * ENTRY.itemsize), 1, ENTRY)[0]
        if (
            (e.x_type, e.row_type, e.column_type) == (x_type, row_type, column_type)
            and (e.height, e.width, e.row_taps, e.column_taps) == (height, width, row_taps, column_taps)
        ):  # fmt: skip
            count_reference(e.dtype)
            y = python_array(t.new, t.array, e.dtype, 2, sizes)
            if y == 0:
                return 0
            if filter_both(e, x, one, two, word_of(y + HEAD)):
                return int(y)
            _release(y)
    count_reference(result)
    return result


# --- for Python ------------------------------------------------------------------------------


@cache
def filter_separable() -> Callable[..., Any] | None:
    """f(address of `SeparableCalls`, image, of rows, of columns); None where it cannot be had."""
    if array_calls.array_call() is None or not array_maker():
        return None
    return jit.from_python(b"filter_separable", _filter_separable, jit.FASTCALL)


class SeparableCalls:
    """The table of images and filters that were given. Others than the last of a slot are forgotten."""

    def __init__(self) -> None:
        self._entries = np.zeros(SLOTS, ENTRY)
        self._lock = guarded(threading.Lock())
        self._forget()
        self._table = np.array([(id(np.ndarray), array_maker(), self._entries.ctypes.data)], TABLE)
        self.address: int = self._table.ctypes.data

    def _forget(self) -> None:
        self._entries[:] = np.zeros((), ENTRY)  # first, as these point to what is held
        self._held: list[Any] = [None] * SLOTS
        self._asked = [0] * SLOTS
        self.nbytes = 0  # of what is held

    def asks_for(self, x: np.ndarray, one: np.ndarray, two: np.ndarray) -> bool:
        """Whether a call that is not known is to be added now: the slot is free, or others asked for it."""
        slot = _slot(x, one, two)
        self._asked[slot] += 1
        return self._asked[slot] % AGAIN == 1

    def add(self, x: np.ndarray, one: np.ndarray, two: np.ndarray, dtype: np.dtype, narrow: bool) -> None:
        """Know images like x (height, width), filtered by filters like these, with results of a type.

        `narrow`: rows of the image are taken as one, where they are not filtered.
        """
        (height, width), row_taps, column_taps = x.shape, one.size, two.size
        scratch = [np.zeros(a.shape, dtype) for a in (x, one, two)]
        names = [SAME_BYTES.get(a.dtype.name, a.dtype.name) for a in (x, one, two)]
        kinds = [NOT if name == dtype.name else KINDS.index(name) for name in names]
        across = AxisWindow(height, column_taps, column_taps // 2, "symmetric")
        along = AxisWindow(width, row_taps, row_taps // 2, "symmetric")
        joined = narrow and row_taps == 1
        by_rows = _joined(across.unfiltered, width) if joined else [across.unfiltered, along]
        by_columns = _joined(across, width) if narrow else [across, along.unfiltered]
        first = SmallWindows(dtype, by_rows, True)
        second = SmallWindows(dtype, by_columns, True)
        first.then(second)
        nbytes = 2 * scratch[0].nbytes + first.nbytes + second.nbytes  # what lies between is as large as x
        values = (
            *(type_word(a.dtype) for a in (x, one, two)), height, width, row_taps, column_taps, id(dtype),
            dtype.itemsize, dtype.itemsize // (2 if dtype.kind == "c" else 1), *kinds,
            *(a.ctypes.data for a in scratch), first.address, int(joined),
        )  # fmt: skip
        slot = _slot(x, one, two)
        with self._lock:
            if self.nbytes + nbytes > KEPT:
                self._forget()
            before = self._held[slot]
            self._entries[slot] = values
            self._held[slot] = scratch, first, dtype, nbytes
            self.nbytes += nbytes - (before[-1] if before else 0)
        del before  # only now, as the entry pointed to it


def _joined(across: AxisWindow, width: int) -> list[AxisWindow | PixelWindow]:
    """Windows along columns of rows that are taken as one."""
    return [AxisWindow(1), PixelWindow(across, width)]


def _slot(x: np.ndarray, one: np.ndarray, two: np.ndarray) -> int:
    height, width = x.shape
    return call_slot(height, width, one.size, two.size, type_word(x.dtype), type_word(one.dtype))
