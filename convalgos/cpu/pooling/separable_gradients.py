"""Gradients of pooling with channels last, separated: by the columns of windows, and by their rows.

A row of x with its padding is copied into scratch, its pixels taken apart into the phases of the stride.
Outputs that are neighbours then read neighbours at each tap: lanes are full however few channels there are,
and nothing is added to what was just stored. The maximum of each row of x over the columns of every window,
and where it lies, are found once; a window's maximum is then one of its rows, and its column is known. So dy
is summed over the windows whose maximum lies in a row of x, and that over those whose column it is. Of a mean
all windows count.

A window of r x s elements takes r + s steps for each of these, not r * s.
"""

from __future__ import annotations

from convalgos.cpu.pooling.elements import FLOAT, MAX, MEAN, PoolElements
from convalgos.cpu.pooling.maxima import INDEX
from convalgos.cpu.pooling.phase_maxima import TAP, find_maxima
from convalgos.cpu.pooling.reductions import UNROLLED, fill_identity
from convalgos.cpu.pooling.tables import GRADIENT_BAND, MEETING, WINDOW_ROW
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.blocks import loop_chunks
from convalgos.cpu.vectors.integers import words_of
from convalgos.cpu.vectors.lanes import store_lanes
from convalgos.cpu.vectors.simd import Value, Vec, carray, pointer, zero_bytes

# Bytes from the scratch of a task on: of lines of `line` elements, of which there are some of each kind. Of
# maxima and numbers of rows of x there are as many as a window has rows, of dy and winners `kept`.
SEPARABLE_FIELDS = fields(
    "x y dx scratch scratch_bytes stored size tasks planes blocks channels block_channels bands band_table "
    "row_table height columns rows_out outputs x_plane y_plane met_table stride phase_table phase_taps taps "
    "tap_table begins begins_step rows ring_table kept merged line given sums found maxima numbers winners "
    "zeros counts row_counts"
)
# Pixels of a row of x in a phase of the stride, which lie from `place` on; and what they get of windows.
PIXELS = fields("first place count taps first_tap")


@simd.emitter
def copy_pixel_runs(
    v: Vec, FORM: int, x: Value, x_step: Value, target: Value, step: Value, pixels: Value, channels: Value
) -> None:
    """target[i * step + c] = x[i * x_step + c] for i < pixels, c < channels."""
    of = PoolElements(v, FORM, MAX)
    source, to = v.pointer(x), v.pointer(target)

    def chunk(first: Value, vectors: int, mask: Value = None) -> None:
        with v.loop(pixels) as i:  # inside: pixels of few channels are many
            from_, line = of.maps.at(source, v.imul(i, x_step)), v.at(to, v.imul(i, step))
            for k in range(vectors):
                at = v.iadd(first, k * v.lanes)
                store_lanes(v, of.load(from_, at, mask), line, at, mask)

    loop_chunks(v, v, channels, UNROLLED, chunk)


@simd.emitter
def divide_shares(v: Vec, dy: Value, count: Value, counts: Value, row_count: Value) -> None:
    """dy[i] /= counts[i] * row_count[0] for i < count, rounded up to whole vectors."""
    given, by_row = v.pointer(dy), v.broadcast(v.pointer(row_count))
    with v.loop(v.idiv(v.iadd(count, v.lanes - 1), v.lanes)) as i:
        at = v.imul(i, v.lanes)
        by = v.fmul(v.load(v.pointer(counts), at), by_row)
        v.store(v.b.fdiv(v.load(given, at), by), given, at)


@simd.emitter
def sum_of_rows(
    v: Vec, REDUCTION: int, dy: Value, winners: Value, target: Value, count: Value, windows: Value,
    slot: Value, kept: Value, line: Value, row: Value, row_table: Value,
) -> None:  # fmt: skip
    """target[i] = the sum of dy[i] of the windows whose maximum lies in a row of x, for i < count.

    Args:
        windows: rows of them that meet the row; `row_table` is the address of the first's `WINDOW_ROW`.
        slot: line of the first in `dy` and `winners`, each of `kept` lines that are used by turns.
    """
    words, given, to = words_of(v), v.pointer(dy), v.pointer(target)

    def chunk(first: Value, vectors: int, mask: Value = None) -> None:
        totals = [v.register(v.zero()) for _ in range(vectors)]
        with v.loop(windows) as i:
            turn = v.iadd(slot, i)
            turn = v.b.select(v.b.icmp_signed("<", turn, kept), turn, v.isub(turn, kept))
            begin = v.iadd(v.imul(turn, line), first)
            window = v.record(v.iadd(row_table, v.imul(i, WINDOW_ROW.itemsize)), WINDOW_ROW)
            number = words.spread(v.isub(row, window.x))
            for k, total in enumerate(totals):
                at = v.iadd(begin, k * v.lanes)
                part = v.load(given, at)
                if REDUCTION == MAX:
                    mine = v.b.icmp_signed("==", words.load(v.pointer(winners), at), number)
                    part = v.b.select(mine, part, v.zero())
                total.set(v.fadd(total.value, part))
        for k, total in enumerate(totals):
            at = v.iadd(first, k * v.lanes)
            store_lanes(v, total.value, to, at, mask)

    loop_chunks(v, v, count, UNROLLED, chunk)


@simd.emitter
def sum_of_columns(
    v: Vec, REDUCTION: int, sums: Value, numbers: Value, target: Value, count: Value, taps: Value,
    table: Value,
) -> None:  # fmt: skip
    """target[i] = the sum of sums[i + offset] over the taps whose number is numbers[i + offset], i < count.

    Rounded up to UNROLLED vectors.
    """
    words, source, to = words_of(v), v.pointer(sums), v.pointer(target)
    block = UNROLLED * v.lanes
    with v.loop(v.idiv(v.iadd(count, block - 1), block)) as i:
        places = [v.iadd(v.imul(i, block), k * v.lanes) for k in range(UNROLLED)]
        totals = [v.register(v.zero()) for _ in places]
        with v.loop(taps) as t:
            tap = v.record(v.iadd(table, v.imul(t, TAP.itemsize)), TAP)
            number = words.spread(tap.number)
            for place, total in zip(places, totals, strict=True):
                at = v.iadd(place, tap.offset)
                part = v.load(source, at)
                if REDUCTION == MAX:
                    mine = v.b.icmp_signed("==", words.load(v.pointer(numbers), at), number)
                    part = v.b.select(mine, part, v.zero())
                total.set(v.fadd(total.value, part))
        for place, total in zip(places, totals, strict=True):
            v.store(total.value, to, place)


@jit.helper
def find_in_columns(
    SIZE: int, LANES: int, FORM: int, args: int, scratch: int, x: int, row: int, channels: int
) -> None:
    """The maxima of a row of x over the columns of windows, and their numbers; x: of its first pixel."""
    a = carray(pointer(args), 1, SEPARABLE_FIELDS)[0]
    phases = carray(pointer(a.phase_table), a.stride, PIXELS)
    for number in range(a.stride):
        phase = phases[number]
        copy_pixel_runs(
            SIZE, LANES, FORM, x + phase.first * a.channels * a.stored, a.stride * a.channels,
            scratch + (number * a.line + phase.place * a.block_channels) * SIZE, a.block_channels,
            1 if a.merged else phase.count, a.columns * channels if a.merged else channels,
        )  # fmt: skip
    slot = row % a.rows * a.line
    find_maxima(
        SIZE, LANES, False, scratch, 0, scratch + a.maxima + slot * SIZE, scratch + a.numbers + slot * INDEX,
        a.outputs * a.block_channels, a.taps, a.tap_table, a.begins, a.begins_step,
    )  # fmt: skip


@jit.helper
def bring_output_row(
    SIZE: int, LANES: int, REDUCTION: int, args: int, scratch: int, dy: int, row: int, channels: int
) -> None:
    """dy of a row of outputs into scratch, as shares of a mean; and in which rows their maxima lie."""
    a = carray(pointer(args), 1, SEPARABLE_FIELDS)[0]
    window = carray(pointer(a.row_table), a.rows_out + 1, WINDOW_ROW)[row]
    slot = row % a.kept * a.line
    given = scratch + a.given + slot * SIZE
    copy_pixel_runs(
        SIZE, LANES, FLOAT, dy, a.channels, given, a.block_channels, 1 if a.merged else a.outputs,
        a.outputs * channels if a.merged else channels,
    )  # fmt: skip
    count = a.outputs * a.block_channels
    if REDUCTION == MEAN:
        divide_shares(SIZE, LANES, given, count, a.counts, a.row_counts + row * SIZE)
    else:
        find_maxima(
            SIZE, LANES, False, scratch + a.maxima, 0, scratch + a.found, scratch + a.winners + slot * INDEX,
            count, window.rows, a.ring_table + window.x % a.rows * a.rows * TAP.itemsize, a.zeros, 0,
        )  # fmt: skip


@jit.helper
def spread_row(
    SIZE: int, LANES: int, REDUCTION: int, args: int, scratch: int, dx: int, row: int, channels: int
) -> None:
    """A row of dx of the rows of outputs that meet it; dx: of its first pixel."""
    a = carray(pointer(args), 1, SEPARABLE_FIELDS)[0]
    phases = carray(pointer(a.phase_table), a.stride, PIXELS)
    met = carray(pointer(a.met_table), a.height, MEETING)[row]
    sums = scratch + a.sums
    sum_of_rows(
        SIZE, LANES, REDUCTION, scratch + a.given, scratch + a.winners, sums, a.outputs * a.block_channels,
        met.count, met.first % a.kept, a.kept, a.line, row, a.row_table + met.first * WINDOW_ROW.itemsize,
    )  # fmt: skip
    slot = row % a.rows * a.line
    for number in range(a.stride):
        phase = phases[number]
        at = phase.place * a.block_channels
        sum_of_columns(
            SIZE, LANES, REDUCTION, sums + at * SIZE, scratch + a.numbers + (slot + at) * INDEX,
            scratch + a.found, phase.count * a.block_channels, phase.taps,
            a.phase_taps + phase.first_tap * TAP.itemsize,
        )  # fmt: skip
        copy_pixel_runs(
            SIZE, LANES, FLOAT, scratch + a.found, a.block_channels,
            dx + phase.first * a.channels * SIZE, a.stride * a.channels,
            1 if a.merged else phase.count, a.columns * channels if a.merged else channels,
        )  # fmt: skip


@jit.specialise
def separable_gradient(SIZE: int, LANES: int, FORM: int, REDUCTION: int) -> jit.Kernel:
    """dx of dy (N, H, W, C), and of x for maxima."""

    def separable_gradient(args: int, task: int) -> None:
        a = carray(pointer(args), 1, SEPARABLE_FIELDS)[0]
        bands = carray(pointer(a.band_table), a.bands, GRADIENT_BAND)
        rows = carray(pointer(a.row_table), a.rows_out + 1, WINDOW_ROW)
        met = carray(pointer(a.met_table), a.height, MEETING)
        scratch = a.scratch + task * a.scratch_bytes
        # what is copied between paddings never touches them
        fill_identity(SIZE, LANES, FLOAT, MAX, scratch, a.stride * a.line)
        zero_bytes(scratch + a.sums - a.line * SIZE, 2 * a.line * SIZE)
        total = a.planes * a.blocks * a.bands
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            block = unit // a.bands
            band = bands[unit % a.bands]
            first = block % a.blocks * a.block_channels
            channels = min(a.block_channels, a.channels - first)
            plane = block // a.blocks
            x = a.x + (plane * a.x_plane + first) * a.stored
            dx = a.dx + (plane * a.x_plane + first) * SIZE
            dy = a.y + (plane * a.y_plane + first) * SIZE
            given = band.outputs  # rows of outputs up to this one are given,
            reduced = 0  # and rows of x up to this one are gone over
            for row in range(band.first, band.end):
                end = met[row].first + met[row].count
                while given < end:
                    window = rows[given]
                    if REDUCTION == MAX:
                        reduced = max(reduced, window.x)
                        while reduced < window.x + window.rows:
                            find_in_columns(
                                SIZE, LANES, FORM, args, scratch,
                                x + reduced * a.columns * a.channels * a.stored, reduced, channels,
                            )  # fmt: skip
                            reduced += 1
                    bring_output_row(
                        SIZE, LANES, REDUCTION, args, scratch, dy + given * a.outputs * a.channels * SIZE,
                        given, channels,
                    )  # fmt: skip
                    given += 1
                spread_row(
                    SIZE, LANES, REDUCTION, args, scratch, dx + row * a.columns * a.channels * SIZE, row,
                    channels,
                )  # fmt: skip

    return separable_gradient
