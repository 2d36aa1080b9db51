"""Gradients of pooling, scattered: window by window, each element of one is given its part of dy.

Channels lie in the lanes, so that a whole vector of windows is done at once, whose maxima lie at different
taps: each tap takes dy in those lanes whose maximum it is. With channels first, the lanes are planes, brought
into pixels by transposes, a band of rows at a time. Rows of vectors as wide as the map would leave most lanes
empty where maps are small, and take elements apart where windows are strided.

Of means of three dimensions, dy of the slices whose windows meet one of x is summed first, in scratch. So a
window takes the steps of its slices and those of one slice, not their product.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from convalgos.cpu.pooling.elements import MAX, MEAN, PoolElements
from convalgos.cpu.pooling.maxima import PLACE
from convalgos.cpu.pooling.reductions import COLUMN, UNROLLED, Divisor, zero_pixels
from convalgos.cpu.pooling.tables import GRADIENT_BAND, MEETING, WINDOW_ROW
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.blocks import loop_chunks
from convalgos.cpu.vectors.integers import Integers, words_of
from convalgos.cpu.vectors.lanes import load_lanes, store_lanes
from convalgos.cpu.vectors.simd import Value, Vec, call, carray, pointer, zero_bytes

SCATTER_FIELDS = fields(
    "x y dx given scratch scratch_bytes stored size tasks planes blocks channels block_channels bands "
    "band_table row_table windows columns outputs inner inner_end x_plane x_pixel y_plane y_pixel rows_in "
    "rows_out counts row_counts gather place slices slices_out slice_table slice_counts summed summed_line"
)
PLACED = 2  # beside the reductions MAX and MEAN: a maximum whose places are known


Visit = Callable[[Value, Value], None]  # (pixel from the first tap, number of the tap)


def each_tap_of(
    v: Vec, ROWS: int, TAPS: int, columns: Value, low: Value, high: Value, taps: Value, visit: Visit
) -> None:
    """Visit the taps of a window, in order: ROWS x TAPS, or where these are 0 `taps` of rows low to high."""
    words = words_of(v)
    if ROWS:
        for r in range(ROWS):
            for s in range(TAPS):
                visit(v.iadd(v.imul(r, columns), s), words.const(r * TAPS + s))
        return
    with v.loop(v.isub(high, low)) as i, v.loop(taps) as s:
        r = v.iadd(low, i)
        visit(v.iadd(v.imul(r, columns), s), words.spread(v.iadd(v.imul(r, taps), s)))


def numbers_of_maxima(
    of: PoolElements, lines: list[Value], x_pixel: Value, mask: Value, each_tap: Callable[[Visit], None]
) -> list[Value]:
    """The numbers of the taps that are the maxima of windows, which begin at these lines."""
    v, words = of.v, words_of(of.v)
    totals = [v.register(of.identity()) for _ in lines]
    found = [words.register(words.const(0)) for _ in lines]
    infinity = v.const(float("inf"))

    def find(pixel: Value, number: Value) -> None:
        for line, total, where in zip(lines, totals, found, strict=True):
            value = of.load(line, v.imul(pixel, x_pixel), mask)
            # NaN counts as infinity in a total, so that one comparison tells of both: the last NaN wins
            larger = v.b.fcmp_unordered(">", value, total.value)
            where.set(v.b.select(larger, number, where.value))
            bounded = v.b.select(v.b.fcmp_ordered("<", value, infinity), value, infinity)
            total.set(v.fmax(bounded, total.value))

    each_tap(find)
    return [where.value for where in found]


def given_places(v: Vec, places: Value, first: Value, mask: Value) -> Value:
    """The low 32 bits of int64 places."""
    wide, from_ = Integers(v.b, v.lanes, PLACE), v.pointer(places)
    given = load_lanes(wide, from_, first, mask)
    return v.b.trunc(given, words_of(v).type)


@simd.emitter
def scatter_row(
    v: Vec, FORM: int, REDUCTION: int, FILLS: int, ROWS: int, TAPS: int, x: Value, dy: Value, dx: Value,
    channels: Value, windows: Value, begin: Value, end: Value, rows: Value, low: Value, high: Value,
    columns: Value, x_pixel: Value, y_pixel: Value, counts: Value, row_count: Value, places: Value,
    index: Value,
) -> None:  # fmt: skip
    """dx of the windows q of a row, begin <= q < end, of channels that lie side by side.

    Args:
        FILLS: whether each element of dx is in one window, and so is written, not added to.
        ROWS, TAPS: of each window, all of which lie inside; 0 for `rows`, and what `windows` say.
        x, dx: of the row of x under the first row of windows. dy: of the row of outputs.
        low, high: rows of windows, of which dx is asked for.
        columns: elements from one row of x to the next, in pixels.
        places, index: PLACED, of the row of outputs, and of the first pixel of the row of x.
    """
    of, words = PoolElements(v, FORM, MAX), words_of(v)
    source, given, to = v.pointer(x), v.pointer(dy), v.pointer(dx)
    each_tap = partial(each_tap_of, v, ROWS, TAPS, columns)

    def scatter(at_once: list[tuple[Value, Value]], window: Any, by: Divisor, mask: Value = None) -> None:
        """Of vectors, each of (its first element of x, of dy); by: what a mean divides by."""
        sources = [of.maps.at(source, first) for first, _ in at_once]
        targets = [v.at(to, first) for first, _ in at_once]
        lines = [v.at(given, first) for _, first in at_once]
        parts = [load_lanes(v, line, 0, mask) for line in lines]
        if REDUCTION == MAX:
            numbers = numbers_of_maxima(
                of, sources, x_pixel, mask, partial(each_tap, v.integer(0), rows, window.taps)
            )
        elif REDUCTION == MEAN:
            parts, numbers = [by.quotient(part) for part in parts], parts
        else:
            first = words.spread(v.iadd(index, window.first))
            numbers = [words.sub(given_places(v, places, output, mask), first) for _, output in at_once]

        def add(pixel: Value, number: Value) -> None:
            number = words.spread(pixel) if REDUCTION == PLACED else number
            for line, part, mine_is in zip(targets, parts, numbers, strict=True):
                at, mine = v.imul(pixel, x_pixel), part
                if REDUCTION != MEAN:
                    mine = v.b.select(v.b.icmp_signed("==", mine_is, number), part, v.zero())
                if not FILLS:
                    before = load_lanes(v, line, at, mask)
                    mine = v.fadd(before, mine)
                store_lanes(v, mine, line, at, mask)

        each_tap(low, high, window.taps, add)

    with v.loop(v.isub(end, begin)) as i:
        q = v.iadd(begin, i)
        window = v.record(v.iadd(windows, v.imul(q, COLUMN.itemsize)), COLUMN)
        corner, passed = v.imul(window.first, x_pixel), v.imul(q, y_pixel)
        by = Divisor(v, v.fmul(v.broadcast(v.pointer(counts), q), v.broadcast(v.pointer(row_count))))

        def chunk(
            first: Value, vectors: int, mask: Value = None, *, corner: Value = corner, passed: Value = passed,
            window: Any = window, by: Divisor = by,
        ) -> None:  # fmt: skip
            offsets = [v.iadd(first, k * v.lanes) for k in range(vectors)]
            scatter([(v.iadd(corner, o), v.iadd(passed, o)) for o in offsets], window, by, mask)

        loop_chunks(of.v, of.v, channels, UNROLLED, chunk)


@simd.emitter
def add_slices(
    v: Vec, y: Value, target: Value, count: Value, slices: Value, step: Value, counts: Value
) -> None:
    """target[i] = the sum of y[t * step + i] / counts[t] over t < slices, for i < count."""
    source, to = v.pointer(y), v.pointer(target)

    def chunk(first: Value, vectors: int, mask: Value = None) -> None:
        totals = [v.register(v.zero()) for _ in range(vectors)]
        with v.loop(slices) as t:
            by = Divisor(v, v.broadcast(v.pointer(counts), t))
            line = v.at(source, v.iadd(first, v.imul(t, step)))
            for j, total in enumerate(totals):
                value = load_lanes(v, line, j * v.lanes, mask)
                total.set(v.fadd(total.value, by.quotient(value)))
        for j, total in enumerate(totals):
            at = v.iadd(first, j * v.lanes)
            store_lanes(v, total.value, to, at, mask)

    loop_chunks(v, v, count, UNROLLED, chunk)


@jit.helper
def sum_slices(
    SIZE: int, LANES: int, args: int, plane: int, first: int, runs: int, run: int, target: int
) -> None:
    """What dy gives to a slice of x: `runs` of so many elements, from element `first` of slices of dy on."""
    a = carray(pointer(args), 1, SCATTER_FIELDS)[0]
    met = carray(pointer(a.slice_table), a.slices, MEETING)[plane % a.slices]
    from_ = a.y + ((plane // a.slices * a.slices_out + met.first) * a.y_plane + first) * SIZE
    for i in range(runs):
        add_slices(
            SIZE, LANES, from_ + i * a.channels * SIZE, target + i * a.y_pixel * SIZE, run, met.count,
            a.y_plane, a.slice_counts + met.first * SIZE,
        )  # fmt: skip


@jit.helper
def scatter_band(
    SIZE: int, LANES: int, FORM: int, REDUCTION: int, FILLS: int, ROWS: int, TAPS: int, args: int,
    number: int, x: int, dy: int, dx: int, channels: int, places: int,
) -> None:  # fmt: skip
    """dx of all rows of windows of a band; x, dy, dx, places: of the first row of the map."""
    a = carray(pointer(args), 1, SCATTER_FIELDS)[0]
    band = carray(pointer(a.band_table), a.bands, GRADIENT_BAND)[number]
    rows = carray(pointer(a.row_table), a.rows_out + 1, WINDOW_ROW)
    row_elements = a.columns * a.x_pixel
    for i in range(band.outputs, band.outputs_end):
        row = rows[i]
        low = max(0, band.first - row.x)
        high = max(low, min(row.rows, band.end - row.x))
        whole = ROWS and low == 0 and high == ROWS
        inner = a.inner if whole else a.outputs
        inner_end = a.inner_end if whole else a.outputs
        from_ = x + row.x * row_elements * a.stored
        to = dx + row.x * row_elements * SIZE
        given = dy + i * a.outputs * a.y_pixel * SIZE
        row_count = a.row_counts + i * SIZE
        known = places + i * a.outputs * a.y_pixel * PLACE
        index = row.x * a.columns
        if whole:
            scatter_row(
                SIZE, LANES, FORM, REDUCTION, FILLS, ROWS, TAPS, from_, given, to, channels, a.windows, inner,
                inner_end, row.rows, low, high, a.columns, a.x_pixel, a.y_pixel, a.counts, row_count, known,
                index,
            )  # fmt: skip
        for side in range(2):
            scatter_row(
                SIZE, LANES, FORM, REDUCTION, FILLS, 0, 0, from_, given, to, channels, a.windows,
                inner_end if side else 0, a.outputs if side else inner, row.rows, low, high, a.columns,
                a.x_pixel, a.y_pixel, a.counts, row_count, known, index,
            )  # fmt: skip


@jit.helper
def sum_band_of_slices(
    SIZE: int, LANES: int, args: int, number: int, plane: int, first: int, channels: int, summed: int
) -> int:
    """`sum_slices` of a band, of so many channels; where that of the first row of outputs would lie."""
    a = carray(pointer(args), 1, SCATTER_FIELDS)[0]
    band = carray(pointer(a.band_table), a.bands, GRADIENT_BAND)[number]
    begin = band.outputs * a.outputs
    pixels = (band.outputs_end - band.outputs) * a.outputs
    runs = 1 if channels == a.channels else pixels  # of all channels of all pixels, or of some of each
    run = pixels * channels if channels == a.channels else channels
    sum_slices(SIZE, LANES, args, plane, begin * a.channels + first, runs, run, summed)
    return int(summed - begin * a.y_pixel * SIZE)


@jit.helper
def bring_planes(
    SIZE: int, LANES: int, REDUCTION: int, args: int, number: int, first: int, lanes: int, x_pixels: int,
    dy_pixels: int, summed: int,
) -> None:  # fmt: skip
    """What windows of a band meet of x, for maxima, and their dy, of so many planes, as pixels."""
    a = carray(pointer(args), 1, SCATTER_FIELDS)[0]
    band = carray(pointer(a.band_table), a.bands, GRADIENT_BAND)[number]
    rows = carray(pointer(a.row_table), a.rows_out + 1, WINDOW_ROW)
    begin = band.outputs * a.outputs
    count = (band.outputs_end - band.outputs) * a.outputs
    if REDUCTION == MAX:
        low = rows[band.outputs].x
        last = rows[band.outputs_end - 1]
        source = a.x + (first * a.x_plane + low * a.columns) * SIZE
        call(a.gather, (source, a.x_plane, 1, lanes, (last.x + last.rows - low) * a.columns, x_pixels))
    source, line = a.y + (first * a.y_plane + begin) * SIZE, a.y_plane
    if REDUCTION == MEAN and a.slices:
        source, line = summed, a.summed_line
        for lane in range(lanes):
            sum_slices(SIZE, LANES, args, first + lane, begin, 1, count, source + lane * line * SIZE)
    call(a.gather, (source, line, 1, lanes, count, dy_pixels))


@jit.specialise
def scatter_gradient(
    SIZE: int, LANES: int, FORM: int, REDUCTION: int, PLANES: int, FILLS: int, ROWS: int, TAPS: int
) -> jit.Kernel:
    """dx of dy (N, *spatial, C), and of x or places; or with PLANES (planes, *spatial), and of x.

    ROWS, TAPS: of windows that lie inside, for code without loops; 0 for any.
    """

    def scatter_gradient(args: int, task: int) -> None:
        a = carray(pointer(args), 1, SCATTER_FIELDS)[0]
        bands = carray(pointer(a.band_table), a.bands, GRADIENT_BAND)
        rows = carray(pointer(a.row_table), a.rows_out + 1, WINDOW_ROW)
        x_pixels = a.scratch + task * a.scratch_bytes
        dx_pixels = x_pixels + (a.rows_in * a.columns + LANES) * LANES * SIZE
        dy_pixels = dx_pixels + (a.rows_in * a.columns + LANES) * LANES * SIZE
        summed = x_pixels + a.summed
        row_elements = a.columns * a.x_pixel
        total = a.planes * a.blocks * a.bands
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            block = unit // a.bands
            number = unit % a.bands
            band = bands[number]
            height = band.end - band.first
            count = band.outputs_end - band.outputs
            channels = a.block_channels
            if PLANES:
                channels = LANES
                begin = rows[band.outputs].x
                first = block * LANES
                lanes = min(LANES, a.channels - first)
                plane = first * a.x_plane
                if count > 0:
                    bring_planes(
                        SIZE, LANES, REDUCTION, args, number, first, lanes, x_pixels, dy_pixels, summed
                    )
                x = x_pixels - begin * row_elements * SIZE
                dx = dx_pixels - band.first * row_elements * SIZE
                dy = dy_pixels - band.outputs * a.outputs * LANES * SIZE
                places = 0
                if not FILLS:
                    zero_bytes(dx_pixels, height * row_elements * SIZE)
            else:
                first = block % a.blocks * a.block_channels
                channels = min(channels, a.channels - first)
                plane = block // a.blocks
                x = a.x + (plane * a.x_plane + first) * a.stored
                dx = a.dx + (plane * a.x_plane + first) * SIZE
                dy = a.y + (plane * a.y_plane + first) * SIZE
                if REDUCTION == MEAN and a.slices:
                    dy = sum_band_of_slices(SIZE, LANES, args, number, plane, first, channels, summed)
                places = a.given + (plane * a.y_plane + first) * PLACE
                if not FILLS:
                    zero_pixels(
                        SIZE, LANES, dx + band.first * row_elements * SIZE, height * a.columns, a.x_pixel,
                        channels,
                    )  # fmt: skip
            scatter_band(
                SIZE, LANES, FORM, REDUCTION, FILLS, ROWS, TAPS, args, number, x, dy, dx, channels, places
            )
            if PLANES:
                target = a.dx + (plane + band.first * a.columns) * SIZE
                call(a.place, (dx_pixels, a.x_plane, 1, lanes, height * a.columns, target))

    return scatter_gradient
