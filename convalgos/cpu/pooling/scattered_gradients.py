"""Gradients of pooling, scattered: window by window, each element of one is given its part of dy.

Channels lie in the lanes, so that a whole vector of windows is done at once, whose maxima lie at different
taps: each tap takes dy in those lanes whose maximum it is. With channels first, the lanes are planes, brought
into pixels by transposes, a band of rows at a time. Rows of vectors as wide as the map would leave most lanes
empty where maps are small, and take elements apart where windows are strided.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from convalgos.cpu.pooling.elements import MAX, PoolElements
from convalgos.cpu.pooling.reductions import COLUMN, UNROLLED
from convalgos.cpu.pooling.tables import GRADIENT_BAND
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.blocks import loop_chunks
from convalgos.cpu.vectors.integers import words_of
from convalgos.cpu.vectors.simd import Value, Vec, call, carray, pointer, zero_bytes

SCATTER_FIELDS = fields(
    "x y dx scratch scratch_bytes stored size tasks planes blocks channels block_channels bands band_table "
    "row_table windows columns outputs inner inner_end x_plane x_pixel y_plane y_pixel rows_in rows_out "
    "counts row_counts gather place"
)
WINDOW_ROW = fields("x rows")  # the first row of x under a row of outputs, and how many there are


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


@simd.emitter
def scatter_row(
    v: Vec, FORM: int, REDUCTION: int, FILLS: int, ROWS: int, TAPS: int, x: Value, dy: Value, dx: Value,
    channels: Value, windows: Value, begin: Value, end: Value, rows: Value, low: Value, high: Value,
    columns: Value, x_pixel: Value, y_pixel: Value, counts: Value, row_count: Value,
) -> None:  # fmt: skip
    """dx of the windows q of a row, begin <= q < end, of channels that lie side by side.

    Args:
        FILLS: whether each element of dx is in one window, and so is written, not added to.
        ROWS, TAPS: of each window, all of which lie inside; 0 for `rows`, and what `windows` say.
        x, dx: of the row of x under the first row of windows. dy: of the row of outputs.
        low, high: rows of windows, of which dx is asked for.
        columns: elements from one row of x to the next, in pixels.
    """
    of, words = PoolElements(v, FORM, MAX), words_of(v)
    source, given, to = v.pointer(x), v.pointer(dy), v.pointer(dx)
    infinity, each_tap = v.const(float("inf")), partial(each_tap_of, v, ROWS, TAPS, columns)

    def scatter(places: list[tuple[Value, Value, Value]], taps: Value, mask: Value = None) -> None:
        """Of vectors, each of (its first element of x, of dy, what a mean divides by)."""
        sources = [of.maps.at(source, place) for place, _, _ in places]
        targets = [v.at(to, place) for place, _, _ in places]
        lines = [v.at(given, place) for _, place, _ in places]
        parts = [v.load(line) if mask is None else v.load_masked(line, 0, mask) for line in lines]
        totals = [of.v.register(of.identity()) for _ in places]
        found = [words.register(words.const(0)) for _ in places]

        def find(pixel: Value, number: Value) -> None:
            for line, total, where in zip(sources, totals, found, strict=True):
                value = of.load(line, v.imul(pixel, x_pixel), mask)
                # NaN counts as infinity in a total, so that one comparison tells of both: the last NaN wins
                larger = v.b.fcmp_unordered(">", value, total.value)
                where.set(v.b.select(larger, number, where.value))
                bounded = v.b.select(v.b.fcmp_ordered("<", value, infinity), value, infinity)
                total.set(v.fmax(bounded, total.value))

        def add(pixel: Value, number: Value) -> None:
            for line, part, where in zip(targets, parts, found, strict=True):
                at, mine = v.imul(pixel, x_pixel), part
                if REDUCTION == MAX:
                    mine = v.b.select(v.b.icmp_signed("==", where.value, number), part, v.zero())
                if not FILLS:
                    before = v.load(line, at) if mask is None else v.load_masked(line, at, mask)
                    mine = v.fadd(before, mine)
                if mask is None:
                    v.store(mine, line, at)
                else:
                    v.store_masked(mine, line, at, mask)

        if REDUCTION == MAX:
            each_tap(v.integer(0), rows, taps, find)
        else:
            parts = [v.b.fdiv(part, by) for part, (_, _, by) in zip(parts, places, strict=True)]
        each_tap(low, high, taps, add)

    with v.loop(v.isub(end, begin)) as i:
        q = v.iadd(begin, i)
        window = v.record(v.iadd(windows, v.imul(q, COLUMN.itemsize)), COLUMN)
        corner, passed = v.imul(window.first, x_pixel), v.imul(q, y_pixel)
        by = v.fmul(v.broadcast(v.pointer(counts), q), v.broadcast(v.pointer(row_count)))

        def chunk(
            first: Value, vectors: int, mask: Value = None, *, corner: Value = corner, passed: Value = passed,
            taps: Value = window.taps, by: Value = by,
        ) -> None:  # fmt: skip
            offsets = [v.iadd(first, k * v.lanes) for k in range(vectors)]
            scatter([(v.iadd(corner, o), v.iadd(passed, o), by) for o in offsets], taps, mask)

        loop_chunks(of.v, of.v, channels, UNROLLED, chunk)


@simd.emitter
def zero_pixels(v: Vec, dx: Value, pixels: Value, step: Value, channels: Value) -> None:
    """dx[i * step + c] = 0 for i < pixels, c < channels."""
    with v.loop(pixels) as i:
        pixel = v.at(v.pointer(dx), v.imul(i, step))

        def chunk(first: Value, vectors: int, mask: Value = None, *, pixel: Value = pixel) -> None:
            for k in range(vectors):
                if mask is None:
                    v.store(v.zero(), v.at(pixel, first), k * v.lanes)
                else:
                    v.store_masked(v.zero(), v.at(pixel, first), k * v.lanes, mask)

        loop_chunks(v, v, channels, UNROLLED, chunk)


@jit.helper
def scatter_band(
    SIZE: int, LANES: int, FORM: int, REDUCTION: int, FILLS: int, ROWS: int, TAPS: int, args: int,
    number: int, x: int, dy: int, dx: int, channels: int,
) -> None:  # fmt: skip
    """dx of all rows of windows of a band; x, dy, dx: of the first row of the map."""
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
        if whole:
            scatter_row(
                SIZE, LANES, FORM, REDUCTION, FILLS, ROWS, TAPS, from_, given, to, channels, a.windows, inner,
                inner_end, row.rows, low, high, a.columns, a.x_pixel, a.y_pixel, a.counts, row_count,
            )  # fmt: skip
        for side in range(2):
            scatter_row(
                SIZE, LANES, FORM, REDUCTION, FILLS, 0, 0, from_, given, to, channels, a.windows,
                inner_end if side else 0, a.outputs if side else inner, row.rows, low, high, a.columns,
                a.x_pixel, a.y_pixel, a.counts, row_count,
            )  # fmt: skip


@jit.specialise
def scatter_gradient(
    SIZE: int, LANES: int, FORM: int, REDUCTION: int, PLANES: int, FILLS: int, ROWS: int, TAPS: int
) -> jit.Kernel:
    """dx of dy (N, *spatial, C), and of x; or with PLANES (planes, *spatial).

    ROWS, TAPS: of windows that lie inside, for code without loops; 0 for any.
    """

    def scatter_gradient(args: int, task: int) -> None:
        a = carray(pointer(args), 1, SCATTER_FIELDS)[0]
        bands = carray(pointer(a.band_table), a.bands, GRADIENT_BAND)
        rows = carray(pointer(a.row_table), a.rows_out + 1, WINDOW_ROW)
        x_pixels = a.scratch + task * a.scratch_bytes
        dx_pixels = x_pixels + (a.rows_in * a.columns + LANES) * LANES * SIZE
        dy_pixels = dx_pixels + (a.rows_in * a.columns + LANES) * LANES * SIZE
        row_elements = a.columns * a.x_pixel
        total = a.planes * a.blocks * a.bands
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            block = unit // a.bands
            band = bands[unit % a.bands]
            height = band.end - band.first
            count = band.outputs_end - band.outputs
            channels = a.block_channels
            if PLANES:
                channels = LANES
                begin = rows[band.outputs].x
                last = rows[max(band.outputs, band.outputs_end - 1)]
                first = block * LANES
                lanes = min(LANES, a.channels - first)
                plane = first * a.x_plane
                if count > 0:
                    if REDUCTION == MAX:
                        source = a.x + (plane + begin * a.columns) * SIZE
                        pixels = (last.x + last.rows - begin) * a.columns
                        call(a.gather, (source, a.x_plane, 1, lanes, pixels, x_pixels))
                    source = a.y + (first * a.y_plane + band.outputs * a.outputs) * SIZE
                    call(a.gather, (source, a.y_plane, 1, lanes, count * a.outputs, dy_pixels))
                x = x_pixels - begin * row_elements * SIZE
                dx = dx_pixels - band.first * row_elements * SIZE
                dy = dy_pixels - band.outputs * a.outputs * LANES * SIZE
                if not FILLS:
                    zero_bytes(dx_pixels, height * row_elements * SIZE)
            else:
                first = block % a.blocks * a.block_channels
                channels = min(channels, a.channels - first)
                plane = block // a.blocks
                x = a.x + (plane * a.x_plane + first) * a.stored
                dx = a.dx + (plane * a.x_plane + first) * SIZE
                dy = a.y + (plane * a.y_plane + first) * SIZE
                if not FILLS:
                    zero_pixels(
                        SIZE, LANES, dx + band.first * row_elements * SIZE, height * a.columns, a.x_pixel,
                        channels,
                    )  # fmt: skip
            scatter_band(
                SIZE, LANES, FORM, REDUCTION, FILLS, ROWS, TAPS, args, unit % a.bands, x, dy, dx, channels
            )  # fmt: skip
            if PLANES:
                target = a.dx + (plane + band.first * a.columns) * SIZE
                call(a.place, (dx_pixels, a.x_plane, 1, lanes, height * a.columns, target))

    return scatter_gradient
