"""The kernel of sliding windows: of each row first the rows under its windows, then along it.

Windows of a few rows are reduced row by row. Those of more are cut by blocks of one row less: each begins
with the end of one block and ends with the begin of the next, which are reduced once for all of the block
(van Herk, Gil and Werman), so that an element takes three steps, whatever the size. Nothing is ever
subtracted: sums do not drift, and what lies outside of a window has no part in it.
Along the row, windows are made of shorter ones: of r neighbours, of r of those, and so on (`steps`).

Source: van Herk 1992, "A fast algorithm for local minimum and maximum filters"; Gil, Werman 1993.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.cpu.layout.channel_vectors import copy_strided
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.blocks import loop_chunks
from convalgos.cpu.vectors.integers import Integers
from convalgos.cpu.vectors.lanes import load_lanes, store_lanes
from convalgos.cpu.vectors.simd import Register, Value, Vec, carray, copy_bytes, function_of, ir, pointer

MINIMUM, MAXIMUM, MEAN, WEIGHTED, LINED = range(5)  # the last two: sum * weight + bias, of a plane or a line
FLOAT, SIGNED, UNSIGNED = range(3)  # elements in memory
SHORT = 2  # bytes of exact sums of bytes
UNROLLED = 4  # vectors that are reduced at a time
LINE, WORK, SUMS, MORE, Y, Y_MORE = range(6)  # what steps read and write; MORE and Y_MORE add to SUMS
FILL = 64  # bytes before a line in which the element lies that its constant border has
# Steps and places in elements, offsets of scratch and planes in bytes.
SLIDE_FIELDS = fields(
    "x y scratch scratch_bytes tasks planes x_plane y_plane x_row y_row rows bands strips strip_table "
    "run_table border_table row_table constant taps block steps step_table chunk line work sums prefix "
    "suffix suffix_row addresses fill row_numbers numbers number_step channels stride in_place whole "
    "column_stride pixel"
)
STRIP = fields("column outputs runs run_count borders border_count")  # of output columns
RUN = fields("start place count")  # neighbouring columns of x, and where they lie in the line
BORDER = fields("target source")  # bytes from the line's begin on
STEP = fields("source target first extra taps step last")


class SlidingElements:
    """Vectors of a form that take `stored` bytes each in memory. v: of what they are computed in."""

    def __init__(self, v: Vec, stored: int, form: int, reduction: int):
        self.form, self.reduction = form, reduction
        self.as_integers = form != FLOAT and (reduction in (MINIMUM, MAXIMUM) or v.size == SHORT)
        self.v: Vec = Integers(v.b, v.lanes, v.size) if self.as_integers else v
        self.maps: Vec = v if form == FLOAT else Integers(v.b, v.lanes, stored)

    def load(self, pointer: Value, offset: Value = 0, mask: Value = None) -> Value:
        """Of memory, as it is computed with."""
        maps = self.maps
        x = load_lanes(maps, pointer, offset, mask)
        if self.form == FLOAT:
            return x
        if isinstance(maps, Integers) and self.as_integers:
            return maps.resized(x, self.v.size, self.form == SIGNED)
        return (maps.b.sitofp if self.form == SIGNED else maps.b.uitofp)(x, self.v.type)

    def store(self, value: Value, pointer: Value, offset: Value = 0, mask: Value = None) -> None:
        """Of what is computed, to memory."""
        b, maps, held = self.v.b, self.maps, self.v.size
        if self.form != FLOAT and not self.as_integers:
            held = 8 if maps.size == 8 or (maps.size, self.form) == (4, UNSIGNED) else 4
            convert = b.fptoui if (maps.size, self.form) == (8, UNSIGNED) else b.fptosi
            value = convert(value, ir.VectorType(ir.IntType(8 * held), maps.lanes))
        value = value if held == maps.size else b.trunc(value, maps.type)
        store_lanes(maps, value, pointer, offset, mask)

    def reduced(self, total: Value, further: Value) -> Value:
        b = self.v.b
        if self.reduction >= MEAN:
            return b.add(total, further) if self.as_integers else b.fadd(total, further)
        sign = "<" if self.reduction == MINIMUM else ">"
        if not self.as_integers:
            return b.select(b.fcmp_ordered(sign, further, total), further, total)
        compare = b.icmp_signed if self.form == SIGNED else b.icmp_unsigned
        return b.select(compare(sign, further, total), further, total)

    def numbers(self, address: Value) -> tuple[Value, Value]:
        """What `finished` takes, of `mean_numbers`, or weight and bias."""
        at = self.v.pointer(address)
        return self.v.broadcast(at), self.v.broadcast(at, 1)

    def finished(self, total: Value, numbers: tuple[Value, Value]) -> Value:
        """The mean of a sum, or its product with a weight, and a bias."""
        b, (first, second) = self.v.b, numbers
        if self.reduction == WEIGHTED:
            return self.v.fma(total, first, second)
        if self.as_integers:
            wide = ir.VectorType(ir.IntType(32), self.v.lanes)
            product = b.mul(b.zext(total, wide), b.zext(first, wide))
            high = b.trunc(b.lshr(product, ir.Constant(wide, [16] * self.v.lanes)), self.v.type)
            return b.select(b.icmp_unsigned("==", first, self.v.zero()), total, b.lshr(high, second))
        quotient = b.fdiv(total, first)
        if self.form == FLOAT:
            return quotient
        kind = ir.FunctionType(self.v.type, [self.v.type])
        return b.call(function_of(b, kind, f"llvm.trunc.{self.v.suffix}"), [quotient])


@simd.emitter
def reduce_down(
    v: Vec, STORED: int, FORM: int, REDUCTION: int, FINISH: int, rows: Value, column: Value, taps: Value,
    target: Value, count: Value, numbers: Value,
) -> None:  # fmt: skip
    """target[i] = the reduction of rows[j][column + i] over j < taps; rows: addresses, column: in bytes."""
    of = SlidingElements(v, STORED, FORM, REDUCTION)
    to = v.pointer(target)
    by = of.numbers(numbers) if FINISH else None

    def chunk(first: Value, vectors: int, mask: Value = None) -> None:
        def row(j: Value) -> Value:
            return of.maps.at(v.pointer(v.iadd(v.table64(rows, j), column)), first)

        begin = row(0)
        totals = [Register(of.v, of.load(begin, i * v.lanes, mask)) for i in range(vectors)]
        with v.loop(v.isub(taps, 1)) as j:
            further = row(v.iadd(j, 1))
            for i, total in enumerate(totals):
                total.set(of.reduced(total.value, of.load(further, i * v.lanes, mask)))
        for i, total in enumerate(totals):
            value = total.value if by is None else of.finished(total.value, by)
            of.v.store(value, of.v.at(to, first), i * v.lanes)  # behind the end, too

    loop_chunks(of.v, of.maps, count, UNROLLED, chunk)


@simd.emitter
def join_rows(
    v: Vec, STORED: int, FORM: int, REDUCTION: int, MAPPED: int, FINISH: int, one: Value, other: Value,
    target: Value, count: Value, numbers: Value,
) -> None:  # fmt: skip
    """target[i] = the reduction of one[i] and other[i], which is MAPPED: of memory, not computed."""
    of = SlidingElements(v, STORED, FORM, REDUCTION)
    left, right, to = v.pointer(one), v.pointer(other), v.pointer(target)
    by = of.numbers(numbers) if FINISH else None

    def chunk(first: Value, vectors: int, mask: Value = None) -> None:
        for i in range(vectors):
            at = v.iadd(first, i * v.lanes)
            further = of.load(right, at, mask) if MAPPED else of.v.load(right, at)
            value = of.reduced(of.v.load(left, at), further)
            of.v.store(value if by is None else of.finished(value, by), to, at)

    loop_chunks(of.v, of.maps, count, UNROLLED, chunk)


@simd.emitter
def reduce_along_line(
    v: Vec, STORED: int, FORM: int, REDUCTION: int, ADDS: int, FINISH: int, source: Value, added: Value,
    target: Value, count: Value, taps: Value, step: Value, last: Value, numbers: Value,
) -> None:  # fmt: skip
    """target[i] = the reduction of source[i + last], source[i + j * step] over j < taps - 1, and added[i].

    With FINISH the target is in memory, else it is readable and writable for a vector behind its end.
    """
    of = SlidingElements(v, STORED, FORM, REDUCTION)
    begin, to, more = v.pointer(source), v.pointer(target), v.pointer(added)
    by = of.numbers(numbers) if FINISH and REDUCTION in (MEAN, WEIGHTED) else None

    def chunk(first: Value, vectors: int, mask: Value = None) -> None:
        at = of.v.at(begin, first)
        ends = of.v.at(at, last)
        totals = [Register(of.v, of.v.load(ends, i * v.lanes)) for i in range(vectors)]
        with v.loop(v.isub(taps, 1)) as j:
            further = of.v.at(at, v.imul(j, step))
            for i, total in enumerate(totals):
                total.set(of.reduced(total.value, of.v.load(further, i * v.lanes)))
        for i, total in enumerate(totals):
            value = total.value
            if ADDS:
                value = of.reduced(value, of.v.load(of.v.at(more, first), i * v.lanes))
            if by is not None:
                value = of.finished(value, by)
            if FINISH and REDUCTION == LINED:
                line = of.v.at(v.pointer(numbers), v.imul(2, v.iadd(first, i * v.lanes)))
                value = of.v.fma(value, of.v.load(line), of.v.load(line, v.lanes))
            if FINISH:
                of.store(value, of.maps.at(to, first), i * v.lanes, mask)
            else:
                of.v.store(value, of.v.at(to, first), i * v.lanes)

    loop_chunks(of.v, of.maps, count, UNROLLED, chunk)


@jit.helper
def end_of_block(
    size: int, lanes: int, stored: int, form: int, reduction: int, i: int, block: int, row: int, run: Any,
    suffix: int, suffix_row: int,
) -> None:  # fmt: skip
    """The reduction of the rows of a block from its i-th on, from that of one row less."""
    at = suffix + i * suffix_row + run.place * size
    column = run.start * stored
    if i == block - 1:
        reduce_down(size, lanes, stored, form, reduction, 0, row, column, 1, at, run.count, 0)
    else:
        address = carray(pointer(row), 1, np.int64)[0]
        join_rows(
            size, lanes, stored, form, reduction, 1, 0, at + suffix_row, address + column, at, run.count, 0
        )


@jit.helper
def windows_of_rows(
    size: int, lanes: int, stored: int, form: int, reduction: int, a: Any, rows: int, place: int, run: Any,
    scratch: int,
) -> None:  # fmt: skip
    """A run of the line: windows of rows that begin `place` rows behind the begin of a block.

    rows: where the addresses of the rows of the window lie.
    """
    mean = int(reduction == MEAN)
    column, shift = run.start * stored, run.place * size
    line, prefix = scratch + a.line + shift, scratch + a.prefix + shift
    if a.taps == 1:
        reduce_down(size, lanes, stored, form, reduction, 0, rows, column, 1, line, run.count, 0)
    elif a.block == 0:
        reduce_down(
            size, lanes, stored, form, reduction, mean, rows, column, a.taps, line, run.count, a.row_numbers
        )
    else:
        further = rows + 8 * a.block  # the last row of the window, of the next block
        if place == 0:
            reduce_down(size, lanes, stored, form, reduction, 0, further, column, 1, prefix, run.count, 0)
        else:
            row = carray(pointer(further), 1, np.int64)[0] + column
            join_rows(size, lanes, stored, form, reduction, 1, 0, prefix, row, prefix, run.count, 0)
        ends = scratch + a.suffix + place * a.suffix_row + shift
        join_rows(size, lanes, stored, form, reduction, 0, mean, ends, prefix, line, run.count, a.row_numbers)


@jit.helper
def windows_of_line(
    size: int, lanes: int, stored: int, form: int, reduction: int, a: Any, w: Any, line: int, scratch: int,
    y: int, count: int, numbers: int,
) -> None:  # fmt: skip
    """A step of `STEP` on a chunk of a line."""
    work, sums, taps, step, last = scratch + a.work, scratch + a.sums, w.taps, w.step, w.last
    source = (line if w.source == LINE else work) + w.first * size
    if w.target == WORK:
        reduce_along_line(
            size, lanes, stored, form, reduction, 0, 0, source, 0, work, count, taps, step, last, 0
        )
    elif w.target == Y:
        reduce_along_line(
            size, lanes, stored, form, reduction, 0, 1, source, 0, y, count, taps, step, last, numbers
        )
    elif reduction >= MEAN and w.target == SUMS:
        reduce_along_line(
            size, lanes, stored, form, reduction, 0, 0, source, 0, sums, count, taps, step, last, 0
        )
    elif reduction >= MEAN and w.target == MORE:
        reduce_along_line(
            size, lanes, stored, form, reduction, 1, 0, source, sums, sums, count, taps, step, last, 0
        )
    elif reduction >= MEAN:
        reduce_along_line(
            size, lanes, stored, form, reduction, 1, 1, source, sums, y, count, taps, step, last, numbers
        )


@jit.helper
def windows_of_strip(
    size: int, lanes: int, stored: int, form: int, reduction: int, a: Any, strip: Any, scratch: int, y: int,
    numbers: int,
) -> None:  # fmt: skip
    """The windows of the line of a strip, of which y has every `column_stride`-th pixel."""
    line, into = scratch + a.line, y if a.column_stride == 1 else scratch + a.whole
    borders, steps = carray(pointer(a.border_table), 1, BORDER), carray(pointer(a.step_table), a.steps, STEP)
    for i in range(strip.borders, strip.borders + strip.border_count):
        copy_bytes(line + borders[i].target, line + borders[i].source, size)
    for c in range(0, strip.outputs, a.chunk):
        for s in range(a.steps):
            windows_of_line(
                size, lanes, stored, form, reduction, a, steps[s], line + c * size, scratch,
                into + c * stored, min(a.chunk, strip.outputs - c) + steps[s].extra, numbers,
            )  # fmt: skip
    if a.column_stride > 1:
        step = a.column_stride * a.pixel
        pixels = (strip.outputs + step - 1) // step
        if a.pixel == 1:
            copy_strided(y, into, pixels, step, stored)
        else:
            for i in range(pixels):
                copy_bytes(y + i * a.pixel * stored, into + i * step * stored, a.pixel * stored)


@jit.specialise
def slide_windows(SIZE: int, LANES: int, STORED: int, FORM: int, REDUCTION: int) -> jit.Kernel:
    """y of windows of `taps` rows and of the columns that `steps` reduce; STORED: bytes of an element."""

    def slide_windows(args: int, task: int) -> None:
        a = carray(pointer(args), 1, SLIDE_FIELDS)[0]
        row_table = carray(pointer(a.row_table), 1, np.int64)
        strips = carray(pointer(a.strip_table), a.strips, STRIP)
        runs = carray(pointer(a.run_table), 1, RUN)
        scratch = a.scratch + task * a.scratch_bytes
        line, rows = scratch + a.line, scratch + a.addresses
        addresses = carray(pointer(rows), 1, np.int64)
        # What vectors read behind the ends is no part of results, but slow where it happens to be denormal
        simd.zero_bytes(line, a.prefix - a.line)
        copy_bytes(line - FILL, a.fill, SIZE)
        of_plane = a.strips * a.bands
        low, high = a.planes * of_plane * task // a.tasks, a.planes * of_plane * (task + 1) // a.tasks
        if a.in_place > 0:  # each plane by one task, from a copy
            low, high = low // of_plane * of_plane, high // of_plane * of_plane
        for unit in range(low, high):
            strip = strips[unit // a.bands % a.strips]
            plane, band = unit // of_plane, unit % a.bands
            x = a.x + plane * a.x_plane
            if a.in_place > 0 and unit % of_plane == 0:
                copy_bytes(scratch + a.in_place, x, a.x_plane)
            x = scratch + a.in_place if a.in_place > 0 else x
            begin, end = a.rows * band // a.bands, a.rows * (band + 1) // a.bands
            for i in range(end - begin + a.taps + a.block):
                row = row_table[begin + i]
                addresses[i] = a.constant if row < 0 else x + row * a.x_row
            for o in range(begin, end):
                place = (o - begin) % a.block if a.block > 0 else 0
                window = rows + 8 * (o - begin)
                if a.block > 0 and place == 0:
                    for n in range(a.block * strip.run_count):  # from the last row of the block on
                        i, run = a.block - 1 - n // strip.run_count, runs[strip.runs + n % strip.run_count]
                        end_of_block(
                            SIZE, LANES, STORED, FORM, REDUCTION, i, a.block, window + 8 * i, run,
                            scratch + a.suffix, a.suffix_row,
                        )  # fmt: skip
                if a.block > 0 or o % a.stride == 0:
                    for r in range(strip.runs, strip.runs + strip.run_count):
                        windows_of_rows(
                            SIZE, LANES, STORED, FORM, REDUCTION, a, window, place, runs[r], scratch
                        )
                if o % a.stride != 0:
                    continue
                left = strip.column // a.column_stride * STORED
                y = a.y + plane * a.y_plane + o // a.stride * a.y_row + left
                numbers = a.numbers + plane % a.channels * a.number_step
                windows_of_strip(SIZE, LANES, STORED, FORM, REDUCTION, a, strip, scratch, y, numbers)

    return slide_windows
