"""The drivers of correlations along axes: lines dealt to tasks, their borders, and their way through the
caches.

An array is (outer, rows, mid, line): lines of neighbouring elements, of which those with the same outer and
mid lie across each other. A filter across lines sums `taps` of them; one along lines sums the line with
itself, shifted by whole pixels of `after` elements. Both together take each line that is summed across
straight to the sum along it, while it lies in the first cache.

The tables `sources` name what lies before the first element, and then what lies behind the last one: an
element, or -1 for `filling`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.cpu.filtering.line_borders import border_place, fill_borders, shift_lines
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors.simd import call, carray, pointer

# x_bytes, y_bytes: of an element. Kernels: load (x to sums), store (sums to y), reload (y to sums), `sums`
# across lines and `row_sums` along them, settle and row_settle, which store with a look at each sum; 0 for
# those that have nothing to do. ending: what meets y in the place of a last store, or 0.
# whole and row_whole stand for these where sums are bytes. exact: what settle reads, float64 weights and
# bounds. ring: lines that are loaded at a time. In the scratch of a task are the table of the lines to be
# summed, that of the shifted ones, the lines summed across (`ROWS` of line_bytes, the first element behind
# `border_bytes`), one line of y, and the ring.
# Of volumes, `planes` of rows, `deep_taps` planes are summed across first, for `ROWS` planes at a time, which
# have a ring each; at `deep_at` in the scratch are the table of these taps, and where their planes begin.
FIELDS = fields(
    "x y x_bytes y_bytes outer rows mid line chunk chunks bands taps low weights sources exact bounds "
    "row_taps row_low after pixels row_weights row_sources row_exact row_bounds load store reload sums "
    "row_sums settle row_settle whole row_whole filling scratch scratch_bytes tasks ring shifted_at lines_at "
    "line_bytes border_bytes stored_at ring_at rows_at_once planes deep_taps deep_low deep_weights "
    "deep_sources deep_sums deep_at ending window"
)

AXIS = fields("size step taps low sources")  # an axis across lines; step: lines from one of its elements on


@jit.helper
def sum_along(a: Any, scratch: int, table: int, y: int, count: int) -> None:
    """The sums of shifted lines, to y."""
    if a.row_whole != 0:
        call(
            a.row_whole,
            (table, a.row_weights, a.row_taps, count, y, 0, 1, a.row_exact, a.row_bounds),
        )
    elif a.store == 0 and a.ending == 0:
        call(a.row_sums, (table, a.row_weights, a.row_taps, count, y, 0, 1))
    else:
        sums = scratch + a.stored_at
        call(a.row_sums, (table, a.row_weights, a.row_taps, count, sums, 0, 1))
        if a.ending != 0:
            call(a.ending, (sums, y, count))
        elif a.row_settle == 0:
            call(a.store, (sums, y, count))
        else:
            call(a.row_settle, (table, a.row_exact, a.row_taps, count, sums, y, a.row_bounds))


@jit.helper
def finish_line(a: Any, scratch: int, table: int, line: int, y: int, count: int, size: int) -> None:
    """A line that is summed across: in the type of y, and summed along itself where that is asked for."""
    if a.row_taps == 0 and a.ending != 0:
        call(a.ending, (line, y, count))
        return
    held = y if a.ending == 0 else scratch + a.stored_at
    if a.store != 0 and a.whole == 0:
        if a.settle == 0:
            call(a.store, (line, held, count))
        else:
            call(a.settle, (table, a.exact, a.taps, count, line, held, a.bounds))
    if a.row_taps == 0:
        return
    if a.reload != 0 and a.whole == 0:
        call(a.reload, (held, line, count))
    fill_borders(a, line, 0, 0, a.pixels, size)
    table = scratch + a.shifted_at
    shift_lines(a, table, line, size)
    sum_along(a, scratch, table, y, count)


@jit.specialise
def rows_share(SIZE: int) -> jit.Kernel:
    """The lines of a task, or chunks of `chunk` pixels of them, summed along themselves."""

    def rows_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, FIELDS)[0]
        scratch = a.scratch + task * a.scratch_bytes
        line, table = scratch + a.lines_at + a.border_bytes, scratch + a.shifted_at
        shift_lines(a, table, line, SIZE)
        total = a.outer * a.chunks
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            first = unit % a.chunks * a.chunk
            pixels = min(a.chunk, a.pixels - first)
            place = unit // a.chunks * a.line
            x = a.x + place * a.x_bytes
            begin = max(0, first - a.row_low)
            end = min(a.pixels, first + pixels + a.row_taps - 1 - a.row_low)
            call(
                a.load,
                (x + begin * a.after * a.x_bytes, line + (begin - first) * a.after * SIZE,
                 (end - begin) * a.after),
            )  # fmt: skip
            fill_borders(a, line, 0 if a.chunks == 1 else x, first, pixels, SIZE)
            y = a.y + (place + first * a.after) * a.y_bytes
            sum_along(a, scratch, table, y, pixels * a.after)

    return rows_share


@jit.specialise
def columns_share(SIZE: int) -> jit.Kernel:
    """Bands of lines of a task, or of chunks of them, summed across each other, and then along themselves."""

    def columns_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, FIELDS)[0]
        scratch = a.scratch + task * a.scratch_bytes
        lines, ring = scratch + a.lines_at, scratch + a.ring_at
        table = carray(pointer(scratch), a.rows + a.taps, np.int64)
        total = a.outer * a.mid * a.chunks * a.bands
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            band, part = unit % a.bands, unit // a.bands
            o, m = part // a.chunks // a.mid, part // a.chunks % a.mid
            at = part % a.chunks * a.chunk
            count = min(a.chunk, a.line - at)
            first, end = a.rows * band // a.bands, a.rows * (band + 1) // a.bands
            place, step = (o * a.rows * a.mid + m) * a.line + at, a.mid * a.line
            known, i = 0, first
            while i < end:
                many = a.rows_at_once if min(end - i, a.taps + 1) >= a.rows_at_once else 1
                while known < i - first + a.taps + many - 1:
                    source = border_place(first + known - a.low, a.rows, a.low, a.taps, a.sources)
                    x = a.x + (place + source * step) * a.x_bytes
                    if source < 0:
                        table[known] = a.filling
                    elif a.load == 0:
                        table[known] = x
                    else:
                        table[known] = ring + known % a.ring * a.line_bytes
                        call(a.load, (x, table[known], count))
                    known += 1
                summed = scratch + 8 * (i - first)
                y, y_step = a.y + (place + i * step) * a.y_bytes, step * a.y_bytes
                if a.row_taps == 0 and a.whole != 0:
                    call(
                        a.whole,
                        (summed, a.weights, a.taps, count, y, y_step, many, a.exact, a.bounds),
                    )
                elif a.row_taps == 0 and a.store == 0 and a.ending == 0:
                    call(a.sums, (summed, a.weights, a.taps, count, y, y_step, many))
                else:
                    line = lines + a.border_bytes
                    if a.whole == 0:
                        call(a.sums, (summed, a.weights, a.taps, count, line, a.line_bytes, many))
                    else:
                        call(
                            a.whole,
                            (summed, a.weights, a.taps, count, line, a.line_bytes, many, a.exact, a.bounds),
                        )
                    for r in range(many):
                        to = y + r * y_step
                        finish_line(a, scratch, summed + 8 * r, line + r * a.line_bytes, to, count, SIZE)
                i += many

    return columns_share


@jit.specialise
def volume_share(SIZE: int) -> jit.Kernel:
    """Bands of rows of all planes, summed across planes, across rows, and then along themselves."""

    def volume_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, FIELDS)[0]
        scratch = a.scratch + task * a.scratch_bytes
        line = scratch + a.lines_at + a.border_bytes
        table_bytes, ring_bytes = (a.rows + a.taps) * 8, a.ring * a.line_bytes
        tables = carray(pointer(scratch), a.rows_at_once * (a.rows + a.taps), np.int64)
        deep_taps = a.deep_taps + a.rows_at_once - 1
        deep = carray(pointer(scratch + a.deep_at), deep_taps, np.int64)
        begins = carray(pointer(scratch + a.deep_at + deep_taps * 8), deep_taps, np.int64)
        plane_bytes, line_bytes = a.rows * a.line * SIZE, a.line * SIZE
        total = a.outer * a.bands
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            band, volume = unit % a.bands, unit // a.bands * a.planes * plane_bytes
            first, end = a.rows * band // a.bands, a.rows * (band + 1) // a.bands
            plane = 0
            while plane < a.planes:
                at_once = a.rows_at_once if min(a.planes - plane, a.deep_taps + 1) >= a.rows_at_once else 1
                for t in range(a.deep_taps + at_once - 1):
                    place = plane + t - a.deep_low
                    source = border_place(place, a.planes, a.deep_low, a.deep_taps, a.deep_sources)
                    begins[t] = 0 if source < 0 else a.x + volume + source * plane_bytes
                known, i = 0, first
                while i < end:
                    many = a.rows_at_once if min(end - i, a.taps + 1) >= a.rows_at_once else 1
                    while known < i - first + a.taps + many - 1:
                        source = border_place(first + known - a.low, a.rows, a.low, a.taps, a.sources)
                        slot = scratch + a.ring_at + known % a.ring * a.line_bytes
                        for p in range(at_once):
                            place = p * (a.rows + a.taps) + known
                            tables[place] = a.filling if source < 0 else slot + p * ring_bytes
                        if source >= 0:
                            for t in range(a.deep_taps + at_once - 1):
                                deep[t] = begins[t] + source * line_bytes if begins[t] else a.filling
                            call(a.deep_sums, (
                                scratch + a.deep_at, a.deep_weights, a.deep_taps, a.line, slot, ring_bytes,
                                at_once,
                            ))  # fmt: skip
                        known += 1
                    for p in range(at_once):
                        summed = scratch + p * table_bytes + 8 * (i - first)
                        call(a.sums, (summed, a.weights, a.taps, a.line, line, a.line_bytes, many))
                        y = a.y + volume + (plane + p) * plane_bytes + i * line_bytes
                        for r in range(many):
                            here = line + r * a.line_bytes
                            finish_line(a, scratch, summed, here, y + r * line_bytes, a.line, SIZE)
                    i += many
                plane += at_once

    return volume_share


@jit.specialise
def cross_share(SIZE: int) -> jit.Kernel:
    """Lines of a task: sums along each of them and across, of one filter for each axis.

    a: `rows` axes across are at `sources`; `taps` are those of all of them but for the middle ones, which
    `row_weights` has with that of the line itself, and then the others.
    """

    def cross_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, FIELDS)[0]
        scratch = a.scratch + task * a.scratch_bytes
        line, ring = scratch + a.lines_at + a.border_bytes, scratch + a.ring_at
        shift_lines(a, scratch + a.shifted_at, line, SIZE)
        table = carray(pointer(scratch + a.shifted_at), a.row_taps + a.taps, np.int64)
        axes = carray(pointer(a.sources), a.rows, AXIS)
        for n in range(a.outer * task // a.tasks, a.outer * (task + 1) // a.tasks):
            call(a.load, (a.x + n * a.line * a.x_bytes, line, a.line))
            fill_borders(a, line, 0, 0, a.pixels, SIZE)
            k = a.row_taps
            for d in range(a.rows):
                axis = axes[d]
                place = n // axis.step % axis.size
                for t in range(axis.taps):
                    if t != axis.low:
                        source = border_place(
                            place + t - axis.low, axis.size, axis.low, axis.taps, axis.sources
                        )
                        x = a.x + (n + (source - place) * axis.step) * a.line * a.x_bytes
                        if source < 0:
                            table[k] = a.filling
                        elif a.ring == 0:
                            table[k] = x
                        else:
                            table[k] = ring + (k - a.row_taps) * a.line_bytes
                            call(a.load, (x, table[k], a.line))
                        k += 1
            y = a.y + n * a.line * a.y_bytes
            sums = y if a.store == 0 else scratch + a.stored_at
            call(
                a.row_sums,
                (scratch + a.shifted_at, a.row_weights, a.row_taps + a.taps, a.line, sums, 0, 1),
            )
            if a.store != 0:
                call(a.store, (sums, y, a.line))

    return cross_share
