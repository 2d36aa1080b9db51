"""The kernels of `cpu.depthwise.rows`: strips of columns of a plane, filtered where they lie.

Every vector of a row of x is loaded once for a tile of output rows. A shuffle of two neighbours shifts it
to each kernel column, and a stride of 2 is split into even and odd columns by shuffles too. Where rows
begin and end is known when the kernel is compiled: what lies outside is a constant zero, and a part of a
vector is two smaller ones. Masks would do the same, but a masked load or store of what is not in L2 costs
several times a plain one.
"""

from __future__ import annotations

from typing import NamedTuple

from convalgos.cpu import jit, simd
from convalgos.cpu.kernel_plan import arguments, fields
from convalgos.cpu.simd import call, carray, pointer

REGISTERS = {64: 32, 32: 16, 16: 16}  # of vectors, by their bytes

# Tables of the driver. Offsets count elements.
BAND = fields("x y elements first_tile tiles more kernel")  # kernel: its filter_tiles
TILE = fields("x h w slices y")  # of rows: slice of x, first input row, slice of w, slices that meet, y
TILE_BYTES = TILE.itemsize


class Strip(NamedTuple):
    """Some neighbouring strips of columns that need the same code."""

    first: int  # output column
    number: int
    vectors: int  # of outputs
    left: int  # elements of the row of x before the first output's, or more than are read
    right: int  # and from there on; less than 0 where the row ends before
    columns: int  # of y that are stored


def strips(
    vectors: int,
    lanes: int,
    left: int,
    right: int,
    columns: int,
    taps: int,
    stride: int,
    dilation: int,
    pad: int,
) -> list[Strip]:
    """How a row of outputs is cut; the names are those of `filter_columns`."""
    before = -(-max(0, pad) // (stride * lanes)) * stride * lanes  # elements that are read at most
    behind = -(-max(0, (taps - 1) * dilation - pad) // (stride * lanes)) * stride * lanes
    found: list[Strip] = []
    for q in range(0, columns, vectors * lanes):
        wide = min(vectors, -(-(columns - q) // lanes))
        x = q * stride
        read = min(before, left + x), min(wide * lanes * stride + behind, right - x)
        strip = Strip(q, 1, wide, *read, min(wide * lanes, columns - q))
        if found and found[-1][2:] == strip[2:]:
            strip = strip._replace(first=found[-1].first, number=found.pop().number + 1)
        found.append(strip)
    return found


@simd.emitter
def filter_columns(
    v, ROWS, VECTORS, STEP, TAPS, CHUNKED, COLUMNS, STRIDE, DILATION, PAD, LEFT, RIGHT, OUT,
    x, height, width, row_step, slice_step, zeros, chunks, fewer, w, w_slice, bias, relu,
    y, y_row, tiles, tile_count, more,
):  # fmt: skip
    """Tiles (see `TILE`) of ROWS output rows, in strips of VECTORS vectors of columns.

    y[i][q] = sum_{t,r,s} x[t][h + (i*STEP + r)*row_step][q*STRIDE + s*DILATION - PAD] * w[t][r][s], from
    the bias on, and with relu at the end, for q in range(OUT). x is the column under the first q; LEFT
    elements before it and RIGHT from there on belong to the row. Rows outside of range(height) are read
    from `zeros`, laid out as x. TAPS is the rows of a chunk of the kernel, which CHUNKED has several of.
    Where several strips are alike, there are `more` of them, and as many columns more than OUT and RIGHT.
    """
    cut = strips(VECTORS, v.lanes, LEFT, RIGHT, OUT, COLUMNS, STRIDE, DILATION, PAD)
    base, first, low = v.pointer(x), v.broadcast(v.pointer(bias)), v.floor(relu)
    passed = v.integer(0)  # columns of the additional strips
    with v.loop(tile_count) as n:
        tile = {name: v.table64(tiles, v.plus(v.mul(n, len(TILE)), i)) for i, name in enumerate(TILE.names)}
        for strip in cut:
            with v.loop(v.plus(strip.number, more) if strip.number > 1 else 1) as i:
                q = v.plus(v.plus(passed, strip.first), v.mul(i, VECTORS * v.lanes))
                plane = v.at(base, v.plus(tile["x"], v.mul(q, STRIDE)))
                sums = [[v.register(first) for _ in range(strip.vectors)] for _ in range(ROWS)]
                with v.loop(tile["slices"]) as t:
                    _add_slice(
                        v, strip, sums, STEP, TAPS, CHUNKED, COLUMNS, STRIDE, DILATION, PAD, tile["h"],
                        v.at(plane, v.mul(t, slice_step)), height, width, row_step, v.pointer(zeros),
                        chunks, fewer, v.at(v.pointer(w), v.mul(v.plus(tile["w"], t), w_slice)),
                    )  # fmt: skip
                line = v.at(v.pointer(y), v.plus(tile["y"], q))
                for row in sums:
                    for j, total in enumerate(row):
                        value = v.at_least(total.value, low)
                        v.store_first(value, line, j * v.lanes, strip.columns - j * v.lanes)
                    line = v.at(line, y_row)
            if strip.number > 1:
                passed = v.mul(more, VECTORS * v.lanes)


def _add_slice(
    v, strip, sums, step, taps, chunked, columns, stride, dilation, pad, h, x, height, width, row_step, zeros,
    chunks, fewer, w,
):  # fmt: skip
    """The products of one slice of the kernel."""

    def add(taps, r, w):
        weights = {}
        needed = len(sums) * len(sums[0]) + taps * columns + stride * len(sums[0]) + 3
        if needed <= REGISTERS[v.lanes * v.size]:
            weights = {i: v.broadcast(w, i) for i in range(taps * columns)}
        for i in range((len(sums) - 1) * step + taps):
            meets = [(row, i - o * step) for o, row in enumerate(sums) if 0 <= i - o * step < taps]
            if not meets:
                continue
            row_h = v.plus(h, v.mul(v.plus(r, i), row_step))
            line = v.inside(row_h, height, v.at(x, v.mul(row_h, width)), zeros)
            operand = _operands(v.words(), stride, strip.left, strip.right, v.step(line, 0))
            near = v.step(w, 0)  # else all would be loaded first, for too few registers
            for s in range(columns):
                words = [operand(s * dilation - pad, j) for j in range(strip.vectors)]
                values = [None if value is None else v.floats(value) for value in words]
                if all(value is None for value in values):
                    continue
                for row, tap in meets:
                    at = tap * columns + s
                    weight = weights[at] if weights else v.broadcast(near, at)
                    for total, value in zip(row, values, strict=True):
                        if value is not None:
                            total.set(v.fma(value, weight, total.value))

    if not chunked:
        add(taps, 0, w)
        return
    for start, count, size in ((0, chunks, taps), (v.mul(chunks, taps), fewer, taps - 1)):
        with v.loop(count if size else 0) as c:
            r = v.plus(start, v.mul(c, size))
            add(size, r, v.at(w, v.mul(r, columns)))


def _operands(v, stride, left, right, line):
    """(shift, j) -> line[stride * (j*lanes + i) + shift] for i in lanes, or None where that is all zeros."""
    loaded, split = {}, {}

    def load(k):
        """line[k*lanes:][:lanes]"""
        if k not in loaded:
            known = -left <= k * v.lanes < right
            loaded[k] = v.load_first(line, k * v.lanes, right - k * v.lanes) if known else None
        return loaded[k]

    def phase(p, j):
        """Every stride-th element from p on, in vectors."""
        if stride == 1:
            return load(j)
        if (p, j) not in split:
            split[p, j] = _join(v, load(2 * j), load(2 * j + 1), range(p, 2 * v.lanes, 2))
        return split[p, j]

    def operand(shift, j):
        column, p = divmod(shift, stride)
        vector, lane = divmod(column, v.lanes)
        if lane == 0:
            return phase(p, j + vector)
        return _join(v, phase(p, j + vector), phase(p, j + vector + 1), range(lane, lane + v.lanes))

    return operand


def _join(v, a, b, lanes):
    """`shuffle`, where None stands for zeros."""
    if a is None and b is None:
        return None
    return v.shuffle(v.zero() if a is None else a, v.zero() if b is None else b, lanes)


@jit.specialise
def filter_tiles(
    SIZE, LANES, ROWS, VECTORS, STEP, TAPS, CHUNKED, COLUMNS, STRIDE, DILATION, PAD, LEFT, RIGHT, OUT
):
    """`filter_columns`."""

    def filter_tiles(
        x, height, width, row_step, slice_step, zeros, chunks, fewer, w, w_slice, bias, relu, y, y_row,
        tiles, tile_count, more,
    ):  # fmt: skip
        filter_columns(
            SIZE, LANES, ROWS, VECTORS, STEP, TAPS, CHUNKED, COLUMNS, STRIDE, DILATION, PAD, LEFT, RIGHT,
            OUT, x, height, width, row_step, slice_step, zeros, chunks, fewer, w, w_slice, bias, relu,
            y, y_row, tiles, tile_count, more,
        )  # fmt: skip

    return filter_tiles


# --- around the caches -----------------------------------------------------------------------


@simd.emitter
def stream_run(v, source, y, count):
    """y[:count] = source[:count], whole aligned vectors of y around the caches; count is at least `lanes`."""
    start, to = v.pointer(source), v.pointer(y)
    elements = v.quotient(y, v.size)
    before = v.minus(v.mul(v.quotient(v.plus(elements, v.lanes - 1), v.lanes), v.lanes), elements)
    whole = v.quotient(v.minus(count, before), v.lanes)
    behind = v.plus(before, v.mul(whole, v.lanes))
    # the ends must not touch the lines between them: those would be fetched first
    v.store_masked(v.load(start), to, 0, v.mask(before))
    with v.loop(whole) as i:
        at = v.plus(before, v.mul(i, v.lanes))
        v.store_around_caches(v.load(start, at), to, at)
    inside = v.mask(v.minus(count, behind))
    v.store_masked(v.load_masked(start, behind, inside), to, behind, inside)


@jit.specialise
def stream(SIZE, LANES):
    """`stream_run`."""

    def stream(source, y, count):
        if count < LANES:
            simd.copy_bytes(y, source, count * SIZE)
        else:
            stream_run(SIZE, LANES, source, y, count)

    return stream


# --- the driver ------------------------------------------------------------------------------

RECORD = arguments(
    "size tasks planes channels multiplier band_count bands tiles height width x_plane y_plane "
    "row_step slice_step zeros chunks fewer filter w_slice y_row stream scratch_bytes"
)


@jit.specialise
def driver():
    """Planes x bands, dealt to the tasks in equal runs."""

    def driver(args, task):
        a = carray(pointer(args), 1, RECORD)[0]
        bands = carray(pointer(a.bands), a.band_count, BAND)
        scratch = a.scratch + task * a.scratch_bytes
        total = a.planes * a.band_count
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            plane = unit // a.band_count
            band = bands[unit - plane * a.band_count]
            x = a.x + plane * a.x_plane * a.size
            for j in range(a.multiplier):
                k = plane % a.channels * a.multiplier + j
                y = a.y + ((plane * a.multiplier + j) * a.y_plane + band.y) * a.size
                call(
                    band.kernel,
                    (
                        x + band.x * a.size, a.height, a.width, a.row_step, a.slice_step, a.zeros, a.chunks,
                        a.fewer, a.w + k * a.filter * a.size, a.w_slice, a.bias + k * a.size, a.relu,
                        scratch if a.stream else y, a.y_row, a.tiles + band.first_tile * TILE_BYTES,
                        band.tiles, band.more,
                    ),
                )  # fmt: skip
                if a.stream:
                    call(a.stream, (scratch, y, band.elements))

    return driver
