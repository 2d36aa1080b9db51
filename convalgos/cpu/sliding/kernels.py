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
from convalgos.cpu.sliding.reductions import (
    MEAN,
    copy_lines,
    join_rows,
    reduce_along_line,
    reduce_down,
)
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import carray, copy_bytes, pointer

LINE, WORK, SUMS, MORE, Y, Y_MORE = range(6)  # what steps read and write; MORE and Y_MORE add to SUMS
FILL = 64  # bytes before a line in which the element lies that its constant border has
# Steps and places in elements, offsets of scratch and planes in bytes. Of short rows, `at_once` lie in the
# line, `pitch` elements apart.
SLIDE_FIELDS = fields(
    "x y scratch scratch_bytes tasks planes x_plane y_plane x_row y_row rows bands strips strip_table "
    "run_table border_table row_table constant taps block steps step_table chunk line work sums prefix "
    "suffix suffix_row addresses fill row_numbers numbers number_step channels stride in_place whole "
    "column_stride pixel at_once pitch"
)
STRIP = fields("column outputs runs run_count borders border_count")  # of output columns
RUN = fields("start place count")  # neighbouring columns of x, and where they lie in the line
BORDER = fields("target source")  # bytes from the line's begin on
STEP = fields("source target first extra taps step last")


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
    scratch: int, begin: int,
) -> None:  # fmt: skip
    """A run of the line at `begin`: windows of rows that begin `place` rows behind the begin of a block.

    rows: where the addresses of the rows of the window lie.
    """
    mean = int(reduction == MEAN)
    column, shift = run.start * stored, run.place * size
    line, prefix = begin + shift, scratch + a.prefix + shift
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


@jit.helper
def windows_of_short_rows(
    size: int, lanes: int, stored: int, form: int, reduction: int, a: Any, strip: Any, scratch: int, y: int,
    many: int, numbers: int,
) -> None:  # fmt: skip
    """`windows_of_strip` of some rows in the line, with what lies between them."""
    line, into = scratch + a.line, scratch + a.whole
    borders, steps = carray(pointer(a.border_table), 1, BORDER), carray(pointer(a.step_table), a.steps, STEP)
    for i in range(strip.borders, strip.borders + strip.border_count):
        source, apart = line + borders[i].source, a.pitch * size
        target = line + borders[i].target
        step = 0 if source < line else apart  # before the line lies what constant borders have
        for r in range(many):
            copy_bytes(target + r * apart, source + r * step, size)
    count = (many - 1) * a.pitch + strip.outputs
    for s in range(a.steps):
        windows_of_line(
            size, lanes, stored, form, reduction, a, steps[s], line, scratch, into, count + steps[s].extra,
            numbers,
        )  # fmt: skip
    copy_lines(stored, lanes * size // stored, y, a.y_row, into, a.pitch * stored, many, strip.outputs)


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
                held = (o - begin) % a.at_once  # rows that the line has
                if a.block > 0 or o % a.stride == 0:
                    for r in range(strip.runs, strip.runs + strip.run_count):
                        windows_of_rows(
                            SIZE, LANES, STORED, FORM, REDUCTION, a, window, place, runs[r], scratch,
                            line + held * a.pitch * SIZE,
                        )  # fmt: skip
                if o % a.stride != 0:
                    continue
                left = strip.column // a.column_stride * STORED
                y = a.y + plane * a.y_plane + (o - held) // a.stride * a.y_row + left
                numbers = a.numbers + plane % a.channels * a.number_step
                if a.at_once == 1:
                    windows_of_strip(SIZE, LANES, STORED, FORM, REDUCTION, a, strip, scratch, y, numbers)
                elif held == a.at_once - 1 or o == end - 1:
                    windows_of_short_rows(
                        SIZE, LANES, STORED, FORM, REDUCTION, a, strip, scratch, y, held + 1, numbers
                    )

    return slide_windows
