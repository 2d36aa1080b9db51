"""The kernels of `cpu.depthwise.rows`: a band of a plane, copied with its zero border, then filtered.

The copy lies in scratch, where the filter reads rows without looking at borders. A stride of 2 splits each
row there into a phase of its even and a phase of its odd elements, so that neighbours in y have neighbours.
"""

from __future__ import annotations

from convalgos.cpu import jit, simd
from convalgos.cpu.kernel_plan import arguments, fields
from convalgos.cpu.simd import call, carray, pointer

VECTOR = 64  # bytes of the widest vector: room before scratch, for tiles that start before their first column

# --- the copy --------------------------------------------------------------------------------


@simd.emitter
def short_row(v, STRIDE, VECTORS, x, before, inside, target):
    """`before` zeros, x[:inside], zeros, in STRIDE phases of VECTORS vectors: i goes to phase i % STRIDE."""
    load = _padded(v, x, before, inside)
    for i in range(VECTORS):
        _store_phases(v, STRIDE, load, v.pointer(target), i, VECTORS * v.lanes)


@simd.emitter
def long_row(v, STRIDE, x, before, inside, target, phase):
    """The same for phases of any whole number of vectors; inside is at least 1."""
    width = STRIDE * v.lanes
    first = v.quotient(before, width)
    last = v.quotient(v.plus(before, v.minus(inside, 1)), width)
    second, behind = v.plus(first, 1), v.plus(last, 1)
    padded = _padded(v, x, before, inside)
    source = v.pointer(v.minus(x, v.mul(before, v.size)))
    for start, end, load in (
        (0, first, lambda at: v.zero()),
        (first, second, padded),
        (second, last, lambda at: v.load(source, at)),  # masks would double the time of these
        (v.larger(second, last), behind, padded),
        (behind, v.quotient(phase, v.lanes), lambda at: v.zero()),
    ):
        with v.loop(v.minus(end, start)) as i:
            _store_phases(v, STRIDE, load, v.pointer(target), v.plus(start, i), phase)


def _padded(v, x, before, inside):
    """Loads the vector of the row with its border that starts at an index."""
    source, end = v.pointer(v.minus(x, v.mul(before, v.size))), v.plus(before, inside)
    return lambda at: v.load_masked(source, at, v.window(v.minus(before, at), v.minus(end, at)))


def _store_phases(v, stride, load, target, i, phase):
    """Vector i of each phase."""
    row = [load(v.plus(v.mul(i, stride * v.lanes), j * v.lanes)) for j in range(stride)]
    if stride == 2:
        row = [v.shuffle(*row, range(j, 2 * v.lanes, 2)) for j in range(2)]
    for j, value in enumerate(row):
        v.store(value, target, v.plus(v.mul(i, v.lanes), v.mul(phase, j)))


@simd.emitter
def zero_row(v, target, count):
    """target[:count] = 0; count is a multiple of lanes."""
    with v.loop(v.quotient(count, v.lanes)) as i:
        v.store(v.zero(), v.pointer(target), v.mul(i, v.lanes))


@jit.specialise
def copy_band(SIZE, LANES, STRIDE, VECTORS):
    """x[d.., h.., w..] of a plane into scratch[depths][heights][STRIDE][phase], zero outside of x.

    A phase is VECTORS vectors, or any number of them where VECTORS is 0; `slice` is the elements between
    the slices of scratch. Where `ahead` is not 0, every row asks for the one so many bytes behind it, and
    for a part of the `claimed` bytes of y that will be written from this band.
    """

    def copy_band(
        x, depth, height, width, d, h, w, depths, heights, scratch, phase, slice, ahead, y, claimed
    ):
        before = max(0, -w)
        inside = min(width, w + phase * STRIDE) - max(0, w)
        x += max(0, w) * SIZE
        part = claimed // heights
        for i in range(depths):
            for j in range(heights):
                row = x + ((d + i) * height + h + j) * width * SIZE
                to = scratch + (i * slice + j * phase * STRIDE) * SIZE
                if ahead:
                    simd.fetch_bytes(SIZE, LANES, 0, row + ahead, width * SIZE)
                    simd.fetch_bytes(SIZE, LANES, 1, y + j * part, part)
                if d + i < 0 or d + i >= depth or h + j < 0 or h + j >= height or inside <= 0:
                    zero_row(SIZE, LANES, to, phase * STRIDE)
                elif VECTORS:
                    short_row(SIZE, LANES, STRIDE, VECTORS, row, before, inside, to)
                else:
                    long_row(SIZE, LANES, STRIDE, row, before, inside, to, phase)

    return copy_band


# --- the filter ------------------------------------------------------------------------------


@simd.emitter
def filter_rows(
    v, ROWS, VECTORS, STRIDE, TAPS, COLUMNS, STREAM, x, x_slice, x_row, starts, slice_taps, column_taps,
    chunks, fewer, w, bias, relu, y, y_row, columns,
):  # fmt: skip
    """y[i][q] = sum_{t,s,r} x[t*x_slice + (i*STRIDE + r)*x_row + starts[s] + q] * w[t][s][r], q < columns.

    Starts from the bias, and ends with relu. TAPS is the rows of a chunk of the kernel; where COLUMNS is not
    0 it is all its rows, COLUMNS its columns, and both are unrolled. STREAM stores a single row around the
    caches, for which tiles start where y is aligned, up to a vector before its first column.
    """
    source, weights, target = v.pointer(x), v.pointer(w), v.pointer(y)
    first, low = v.broadcast(v.pointer(bias)), v.floor(relu)
    width = VECTORS * v.lanes
    rows = v.plus(v.mul(chunks, TAPS), v.mul(fewer, TAPS - 1))  # of the kernel
    elements = v.quotient(y, v.size)
    before = v.minus(elements, v.mul(v.quotient(elements, v.lanes), v.lanes)) if STREAM else v.integer(0)
    with v.loop(v.quotient(v.plus(v.plus(columns, before), width - 1), width)) as tile:
        q = v.minus(v.mul(tile, width), before)
        sums = [[v.register(first) for _ in range(VECTORS)] for _ in range(ROWS)]
        with v.loop(slice_taps) as t:
            slice = v.at(source, v.plus(q, v.mul(t, x_slice)))
            taps = v.at(weights, v.mul(v.mul(t, column_taps), rows))
            for s in range(COLUMNS):
                column = v.at(slice, v.table64(starts, s))
                _add_chunk(v, sums, TAPS, STRIDE, column, x_row, v.at(taps, s * TAPS))
            with v.loop(0 if COLUMNS else column_taps) as s:
                column = v.at(slice, v.table64(starts, s))
                for start, count, size in ((0, chunks, TAPS), (v.mul(chunks, TAPS), fewer, TAPS - 1)):
                    with v.loop(count) as c:
                        r = v.plus(start, v.mul(c, size))
                        weight = v.at(taps, v.plus(v.mul(s, rows), r))
                        _add_chunk(v, sums, size, STRIDE, v.at(column, v.mul(r, x_row)), x_row, weight)
        for j in range(VECTORS):
            at = v.plus(q, j * v.lanes)
            values = [v.at_least(row[j].value, low) for row in sums]
            if STREAM:
                _stream(v, values[0], target, at, columns)
                continue
            inside = v.mask(v.minus(columns, at))
            for i, value in enumerate(values):
                v.store_masked(value, target, v.plus(at, v.mul(y_row, i)), inside)


def _stream(v, value, y, at, columns):
    """y[at:] = value, as far as that is inside of y[:columns]."""
    with v.choose(v.smaller(at, v.minus(columns, v.plus(at, v.lanes)))) as (whole, part):
        with whole:
            v.store_around_caches(value, y, at)
        with part:
            v.store_masked(value, y, at, v.window(v.minus(0, at), v.minus(columns, at)))


def _add_chunk(v, sums, taps, stride, x, x_row, w):
    """sums[i][:] += sum_{r < taps} x[i*stride + r][:] * w[r]; every vector of x is loaded once."""
    weights = [v.broadcast(w, r) for r in range(taps)]
    line = v.step(x, 0)
    for h in range((len(sums) - 1) * stride + taps):
        line = v.step(line, x_row) if h else line
        meets = [(row, weights[h - i * stride]) for i, row in enumerate(sums) if 0 <= h - i * stride < taps]
        for j in range(len(sums[0]) if meets else 0):
            value = v.load(line, j * v.lanes)
            for row, weight in meets:
                row[j].set(v.fma(value, weight, row[j].value))


@jit.specialise
def filter_tiles(SIZE, LANES, ROWS, VECTORS, STRIDE, TAPS, COLUMNS, STREAM):
    """`filter_rows`: ROWS output rows."""

    def filter_tiles(
        x, x_slice, x_row, starts, slice_taps, column_taps, chunks, fewer, w, bias, relu, y, y_row, columns
    ):
        filter_rows(
            SIZE, LANES, ROWS, VECTORS, STRIDE, TAPS, COLUMNS, STREAM, x, x_slice, x_row, starts, slice_taps,
            column_taps, chunks, fewer, w, bias, relu, y, y_row, columns,
        )  # fmt: skip

    return filter_tiles


# --- the driver ------------------------------------------------------------------------------

BAND = fields("d h w depths heights columns y first_tile end_tile")  # d, h, w: the first input, with border
TILE = fields("x y")  # offsets of a tile of rows behind scratch and behind the plane of y
RECORD = arguments(
    "size tasks planes channels multiplier band_count bands tiles depth height width x_plane y_plane ahead "
    "claimed scratch_bytes phase slice slice_step row_step starts slice_taps column_taps chunks fewer filter "
    "y_row copy_band filter_tiles"
)


@jit.specialise
def driver():
    """Planes x bands, dealt to the tasks in equal runs."""

    def driver(args, task):
        a = carray(pointer(args), 1, RECORD)[0]
        bands = carray(pointer(a.bands), a.band_count, BAND)
        tiles = carray(pointer(a.tiles), 1, TILE)
        scratch = a.scratch + task * a.scratch_bytes + VECTOR
        total = a.planes * a.band_count
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            plane = unit // a.band_count
            band = bands[unit - plane * a.band_count]
            x = a.x + plane * a.x_plane * a.size
            y = a.y + plane * a.multiplier * a.y_plane * a.size
            call(
                a.copy_band,
                (
                    x, a.depth, a.height, a.width, band.d, band.h, band.w, band.depths, band.heights,
                    scratch, a.phase, a.slice, a.ahead, y + band.y * a.size, a.claimed,
                ),
            )  # fmt: skip
            for j in range(a.multiplier):
                k = plane % a.channels * a.multiplier + j
                w = a.w + k * a.filter * a.size
                for i in range(band.first_tile, band.end_tile):
                    call(
                        a.filter_tiles,
                        (
                            scratch + tiles[i].x * a.size, a.slice_step, a.row_step, a.starts, a.slice_taps,
                            a.column_taps, a.chunks, a.fewer, w, a.bias + k * a.size, a.relu,
                            y + (j * a.y_plane + tiles[i].y) * a.size, a.y_row, band.columns,
                        ),
                    )  # fmt: skip

    return driver
