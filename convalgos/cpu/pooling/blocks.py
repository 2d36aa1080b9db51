"""Pooling in blocked layouts, whose pixels are vectors of channels: windows of some outputs at a time.

Of windows that lie inside, each element is loaded where it lies and reduced in registers; those at the
borders are reduced one by one. Maxima of windows of three columns, one apart, share those of the columns. A
window that covers a whole map is one run of pixels. Where windows of many rows overlap, these rows are
reduced to one first, in scratch.
"""

from __future__ import annotations

from functools import reduce as reduce_values
from typing import Any

from convalgos.cpu.pooling.drivers import POOL_FIELDS, ROW
from convalgos.cpu.pooling.elements import FLOAT, MEAN, PoolElements
from convalgos.cpu.pooling.reductions import COLUMN, reduce_rows
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import Value, Vec, carray, pointer

TOGETHER = 4  # outputs that are reduced at a time,
RUN = 8  # and parts of a run of pixels
SHARED = 3  # columns of windows, one apart, whose maxima have a kernel of their own
# Of a row of outputs: windows that have all their taps are those from `inner` up to `inner_end`; steps in
# elements, between taps and between outputs.
WINDOWS = fields(
    "outputs inner inner_end taps tap_step output_step x_pixel y_pixel slice_step row_step windows counts"
)


def reduce_shared(of: PoolElements, w: Any, begin: Value, y: Value, slices: Value, rows: Value) -> None:
    """TOGETHER windows of which w tells: first the columns under them, then those of each."""
    v = of.v
    columns = [v.register(of.identity()) for _ in range(TOGETHER + SHARED - 1)]
    with v.loop(slices) as t, v.loop(rows) as r:
        at = of.maps.at(begin, v.iadd(v.imul(t, w.slice_step), v.imul(r, w.row_step)))
        for i, column in enumerate(columns):
            at = of.maps.step(at, w.x_pixel if i else 0)
            column.set(of.reduced(column.value, of.load(at)))
    for i in range(TOGETHER):
        value = reduce_values(of.reduced, [column.value for column in columns[i : i + SHARED]])
        of.store(value, y, v.imul(w.y_pixel, i))


@simd.emitter
def reduce_windows(
    v: Vec,
    FORM: int,
    REDUCTION: int,
    SHARES: int,
    x: Value,
    y: Value,
    slices: Value,
    rows: Value,
    row: Value,
    count: Value,
) -> None:
    """A row of outputs of a vector of channels.

    Args:
        SHARES: whether they are maxima of windows of so many columns as `SHARED` tells of, one apart.
        x: of the first element of row and slice; there are so many `rows` and `slices` of them.
        row: address of `WINDOWS`.
        count: of a mean, address of what all of this row count.
    """
    of = PoolElements(v, FORM, REDUCTION)
    w = v.record(row, WINDOWS)
    source, to = v.pointer(x), v.pointer(y)

    def reduce(q: Value, outputs: int, first: Value, taps: Value) -> None:
        begin = of.maps.at(source, v.imul(first, w.x_pixel))
        totals = [of.v.register(of.identity()) for _ in range(outputs)]
        with v.loop(slices) as t, v.loop(rows) as r:
            line = of.maps.at(begin, v.iadd(v.imul(t, w.slice_step), v.imul(r, w.row_step)))
            with v.loop(taps) as s:
                at = of.maps.at(line, v.imul(s, w.tap_step))
                for i, total in enumerate(totals):
                    at = of.maps.step(at, w.output_step if i else 0)
                    total.set(of.reduced(total.value, of.load(at)))
        for i, total in enumerate(totals):
            value = total.value
            if REDUCTION == MEAN:
                divisor = v.fmul(
                    v.broadcast(v.pointer(w.counts), v.iadd(q, i)), v.broadcast(v.pointer(count))
                )
                value = v.b.fdiv(value, divisor)
            of.store(value, of.maps.at(to, v.imul(v.iadd(q, i), w.y_pixel)))

    def window(q: Value) -> tuple[Value, Value]:
        column = v.record(v.iadd(w.windows, v.imul(q, COLUMN.itemsize)), COLUMN)
        return column.first, column.taps

    inside = v.isub(w.inner_end, w.inner)
    enough = v.b.icmp_signed(">=", inside, v.integer(TOGETHER))
    many = v.b.select(enough, v.idiv(v.iadd(inside, TOGETHER - 1), TOGETHER), v.integer(0))
    done = v.b.select(enough, w.inner_end, w.inner)
    with v.loop(many) as n:  # the last ones again, where they are no whole number of these
        q = v.imin(v.iadd(w.inner, v.imul(n, TOGETHER)), v.isub(w.inner_end, TOGETHER))
        if SHARES:
            begin = of.maps.at(source, v.imul(window(q)[0], w.x_pixel))
            reduce_shared(of, w, begin, of.maps.at(to, v.imul(q, w.y_pixel)), slices, rows)
        else:
            reduce(q, TOGETHER, window(q)[0], w.taps)
    with v.loop(v.iadd(w.inner, v.isub(w.outputs, done))) as n:
        q = v.b.select(v.b.icmp_signed("<", n, w.inner), n, v.iadd(n, v.isub(done, w.inner)))
        reduce(q, 1, *window(q))


@simd.emitter
def reduce_run(
    v: Vec, FORM: int, REDUCTION: int, x: Value, x_pixel: Value, pixels: Value, y: Value, channels: Value,
    counts: Value, rows: Value,
) -> None:  # fmt: skip
    """y[c] = the reduction of x[j * x_pixel + c] over j < pixels, for c < channels.

    counts, rows: of a mean, addresses of two numbers whose product it divides by.
    """
    of = PoolElements(v, FORM, REDUCTION)
    source, to = v.pointer(x), v.pointer(y)
    totals = [of.v.register(of.identity()) for _ in range(RUN)]
    many = v.idiv(pixels, RUN)
    with v.loop(many) as n:
        at = of.maps.at(source, v.imul(v.imul(n, RUN), x_pixel))
        for i, total in enumerate(totals):
            at = of.maps.step(at, x_pixel if i else 0)
            total.set(of.reduced(total.value, of.load(at)))
    done = v.imul(many, RUN)
    with v.loop(v.isub(pixels, done)) as n:
        value = of.load(source, v.imul(v.iadd(done, n), x_pixel))
        totals[0].set(of.reduced(totals[0].value, value))
    values = [total.value for total in totals]
    while len(values) > 1:
        values = [of.reduced(*pair) for pair in zip(values[::2], values[1::2], strict=True)]
    value = values[0]
    if REDUCTION == MEAN:
        value = v.b.fdiv(value, v.fmul(v.broadcast(v.pointer(counts)), v.broadcast(v.pointer(rows))))
    of.store(value, to, 0, of.v.mask(channels))


@jit.specialise
def pool_blocks(SIZE: int, LANES: int, FORM: int, REDUCTION: int, SHARES: int) -> jit.Kernel:
    """x and y (N, blocks, *spatial, channels of a block), which are whole vectors."""

    def pool_blocks(args: int, task: int) -> None:
        a = carray(pointer(args), 1, POOL_FIELDS)[0]
        rows = carray(pointer(a.row_table), a.rows, ROW)
        scratch = a.scratch + task * a.scratch_bytes
        total = a.planes * a.blocks * a.rows
        unit, end = total * task // a.tasks, total * (task + 1) // a.tasks
        while unit < end:
            block = unit // a.rows  # of channels,
            first = unit - block * a.rows  # and the first of its rows of outputs
            last = min(a.rows, first + end - unit)
            n = block // a.blocks
            which = block - n * a.blocks
            x = a.x + (n * a.x_plane + which * a.x_block) * a.stored
            y = a.y + (n * a.y_plane + which * a.y_block) * a.stored
            channels = min(a.block_channels, a.channels - which * a.block_channels)
            for c in range(0, channels, LANES):
                if a.pixels:
                    reduce_run(
                        SIZE, LANES, FORM, REDUCTION, x + c * a.stored, a.x_pixel, a.pixels, y + c * a.stored,
                        channels - c, a.counts, a.row_counts,
                    )  # fmt: skip
                else:
                    for number in range(first, last):
                        row = rows[number]
                        source, slices, reduced_rows = x + (row.x + c) * a.stored, row.slices, row.rows
                        if FORM == FLOAT and a.row_elements:
                            reduce_rows(
                                SIZE, LANES, FORM, REDUCTION, source, scratch, a.row_elements, slices,
                                reduced_rows, a.slice_step, a.row_step,
                            )  # fmt: skip
                            source, slices, reduced_rows = scratch, 1, 1
                        reduce_windows(
                            SIZE, LANES, FORM, REDUCTION, SHARES, source,
                            y + (number * a.y_row + c) * a.stored, slices, reduced_rows, a.windows,
                            a.row_counts + number * SIZE,
                        )  # fmt: skip
            unit += last - first

    return pool_blocks
