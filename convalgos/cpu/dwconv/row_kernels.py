"""The kernels of `cpu.depthwise.rows`: strips of columns of a plane, filtered where they lie.

A tile of output rows by one or two vectors of columns stays in registers over the whole kernel. Usual kernels
have code of their own (see `shifted_rows`). For others the vectors of x under each kernel column are loaded
where they begin, and each feeds every output row that it meets. For a stride of 2 a vector of x feeds as many
sums as it has lanes: even lanes meet a column of taps, odd lanes the next, and neighbours are summed at last.
Sizes, padding, dilation and the number of taps are arguments, so that a few kernels serve all: a strip that
ends with its row is moved to the left, over outputs that were computed before, and only strips that reach
over an end of a row of x are loaded with masks.
"""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

from convalgos.cpu.dwconv.shifted_rows import add_kernel, before, behind, parts
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import arguments, fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import call, carray, pointer

# Rows of taps that are summed at a time, by the rows of x between those under two outputs; 0: any other
# number.
PASSES = {1: (7, 5, 3, 2, 1), 2: (7, 5, 3, 1), 0: (1,)}
# Rows of a tile, by the same and the stride along rows; and those that vectors of one row stand for
# (`folded`).
TILE_ROWS = {(1, 1): (1, 2, 4, 6, 7, 8), (2, 2): (1, 2, 3, 4, 7), (0, 1): (1, 4), (0, 2): (1, 4)}
FOLDED_ROWS = (1, 2, 4, 8)
USUAL = {1: (3, 5), 2: (3, 5, 7)}  # rows and columns of kernels that have code of their own, by the stride

# Vectors ahead that lone rows are asked for: saves a fifth of the time of 200 MB from memory on a Xeon
# (Granite Rapids), and costs none in the caches.
AHEAD = 64

LEFT, RIGHT, BOTH = range(3)  # the ends of a row of x that a strip reaches over

# Tables of the driver. Offsets count elements.
BAND = fields(
    "y first elements first_tile tiles plain plain_q left first_left right first_right double first_double "
    "single first_single "
    "folded_kernel first_folded folded"
)
STRIP = fields("q second masks columns")  # with masks: first output, from there to the second vector
TILE = fields("x h w slices y")  # of rows: slice of x, first input row, slice of w, slices that meet, y
PASS = fields("row column pairs columns")  # of taps: the first row and column, pairs of columns, single ones
TILE_BYTES, STRIP_BYTES = TILE.itemsize, STRIP.itemsize


class _Taps(NamedTuple):
    """Where the taps of a filter and their passes lie; values of a kernel being written."""

    offsets: Any  # of each column of taps, from an output on
    passes: Any  # how many there are of each size, then all of them (see `PASS`)
    sizes: tuple[int, ...]
    stride: int
    w: Any
    w_row: Any


def _sum(v, sums, taps, step, lines_of, starts, masks):
    """Add to sums[o][k] the products of rows of x, o * step further for each o, with all taps of a slice.

    lines_of(row, count): so many rows of x from tap row `row` on; starts: where the vectors begin in a line.
    masks: a table of lanes for each column and `_masked` part of a vector, or None.
    """
    begin = v.iadd(taps.passes, 8 * len(taps.sizes))
    for i, size in enumerate(taps.sizes):
        number = v.table64(taps.passes, i)
        with v.loop(number) as c:
            at = v.iadd(begin, v.imul(c, 8 * len(PASS)))
            row, column, pairs, columns = (v.table64(at, n) for n in range(len(PASS)))
            lines = lines_of(row, (len(sums) - 1) * step + size)
            near = v.at(taps.w, v.imul(row, taps.w_row))
            for together, count in ((2, pairs), (1, columns)):
                if together > taps.stride:
                    continue
                with v.loop(count) as n:
                    s = v.iadd(column, v.imul(n, together))
                    weights = [
                        _weight(v, taps._replace(w=near), v.iadd(s, v.imul(taps.w_row, r)), together)
                        for r in range(size)
                    ]
                    lanes = _lanes(v, masks, s, len(starts), taps.stride)
                    shift = v.table64(taps.offsets, s)
                    _add_column(v, sums, step, lines, shift, starts, weights, together < taps.stride, lanes)
                column = v.iadd(column, v.imul(pairs, 2))
        begin = v.iadd(begin, v.imul(number, 8 * len(PASS)))


def _lanes(v, masks, s, vectors, stride):
    """{(vector, part): lanes} under column s: a stride loads `stride` parts for each vector.

    Of two vectors, only the first part and the last reach over ends of a row; `masks` are those of the side.
    """
    if masks is None:
        return {}
    table, side = masks
    parts = [(k, part) for k in range(vectors) for part in range(stride)]
    ends = [parts[0], parts[-1]]
    chosen = {LEFT: ends[:1], RIGHT: ends[1:], BOTH: ends if vectors > 1 else parts}[side]
    entries = parts if vectors == 1 else ends
    return {
        part: v.lanes_of(v.table64(table, v.iadd(v.imul(s, len(entries)), i)))
        for i, part in enumerate(entries)
        if part in chosen
    }


def _weight(v, taps, at, together):
    """A tap in all lanes; with a stride of 2 in those of even columns, and its neighbour in the others."""
    if taps.stride == 1:
        return v.broadcast(taps.w, at)
    return v.broadcast_pair(taps.w, at) if together == 2 else v.even(v.broadcast(taps.w, at))


def _add_column(v, sums, step, lines, shift, starts, weights, alone, lanes):
    """The products of rows of x with a column of taps, or for a stride of 2 with two: weights[tap row].

    alone: whether a stride of 2 meets one column only, so that odd lanes of x count as 0.
    """
    halves = len(sums[0]) // len(starts)
    shifts = {0: shift}  # of vectors that do not lie side by side: by their place
    shifts |= {
        k: v.iadd(shift, v.imul(start, halves))
        for k, start in enumerate(starts)
        if not isinstance(start, int)
    }
    meets: list[tuple[int, int]] = []  # (output row, tap row) that the row of x before meets
    for i, line in enumerate(lines):
        if i:  # else all rows would be loaded first, for too few registers
            sums_before = [total.value for o, _ in meets for total in sums[o]]
            shifts = {k: v.after(place, sums_before) for k, place in shifts.items()}
        meets = [(o, i - o * step) for o in range(len(sums)) if 0 <= i - o * step < len(weights)]
        if not meets:
            continue
        for (k, start), part in product(enumerate(starts), range(halves)):
            at = v.at(line, shifts.get(k, shifts[0]))
            beside = part * v.lanes + (0 if k in shifts else start * halves)
            mask = lanes.get((k, part))
            value = v.load(at, beside) if mask is None else v.load_masked(at, beside, mask)
            value = v.even(value) if alone else value
            for o, r in meets:
                total = sums[o][k * halves + part]
                total.set(v.fma(value, weights[r], total.value))


def _sets(v, starts, size, stride, masks):
    """What `add_kernel` takes: vectors that lie side by side together, any others alone."""
    table, side = masks or (0, BOTH)
    together = all(isinstance(start, int) for start in starts)
    vectors = len(starts) if together else 1
    count, sets = parts(vectors, size, stride), []
    last = [count - 2, count - 1] if behind(size, stride) else [count - 1]
    for i, start in enumerate(starts[:1] if together else starts):
        masked = list(range(count)) if masks else []
        if masks and side == LEFT:
            masked = [0]
        elif masks and not together:
            masked = last if i else [0]
        lanes = {n: v.lanes_of(v.table64(table, i * count + n)) for n in masked}
        sets.append((vectors, v.iadd(v.imul(start, stride), before(size, stride)), lanes))
    return sets


def _registers(v, bias, vectors, stride):
    """Sums of vectors of outputs: of a stride of 2 two for each, where neighbours are summed at last."""
    return [v.register(bias if stride == 1 else v.even(bias)) for _ in range(vectors * stride)]


def _outputs(v, sums, stride):
    """The vectors of outputs that sums of one row stand for."""
    values = [total.value for total in sums]
    if stride == 1:
        return values
    halves = [
        [v.shuffle(a, b, range(n, 2 * v.lanes, 2)) for n in (0, 1)]
        for a, b in zip(values[::2], values[1::2], strict=True)
    ]
    return [v.fadd(even, odd) for even, odd in halves]


@simd.emitter
def filter_strips(
    v, ROWS, STEP, STRIDE, TAPS,
    x, height, width, row_step, slice_step, step, zeros, offsets, passes, w, w_row, w_slice, bias, relu,
    y, y_row, tiles, tile_count, plain, plain_q, left, lefts, right, rights, double, doubles,
    single, singles,
):  # fmt: skip
    """Tiles (see `TILE`) of ROWS output rows, each in strips of columns.

    y[i][q] = sum_{t,r,s} x[t][h + (i*STEP + r)*row_step][q*STRIDE + offsets[s]] * w[t][r][s], from the bias
    on, and with relu at the end. TAPS are the rows and columns of the kernel, or 0 for any. Rows outside of
    range(height) are read from `zeros`; STEP 0 is `step`. There are `plain` strips of two vectors side by
    side from output `plain_q` on, and tables of others (see `STRIP`) of two vectors, by the ends that they
    reach over, and of one, whose masks tell for each offset which lanes lie in the row.
    """
    base, first, low = v.pointer(x), v.broadcast(v.pointer(bias)), v.lower_bound(relu)
    between = v.imul(row_step, 1 if STEP else step)
    pitch = v.imul(between, width)
    split = 1 if TAPS else STRIDE  # sums of a vector of outputs
    with v.loop(tile_count) as n:
        tile = {name: v.table64(tiles, v.iadd(v.imul(n, len(TILE)), i)) for i, name in enumerate(TILE.names)}

        def filtered(q, starts, masks=None, tile=tile):
            plane = v.at(base, v.iadd(tile["x"], v.imul(q, STRIDE)))
            sets = _sets(v, starts, TAPS, STRIDE, masks) if TAPS else []
            sums = [_registers(v, first, len(starts), split) for _ in range(ROWS)]
            with v.loop(tile["slices"]) as t:
                slice_ = v.at(plane, v.imul(t, slice_step))

                def lines_of(row, count):
                    row_h = v.iadd(tile["h"], v.imul(row, row_step))
                    line = v.at(slice_, v.imul(row_h, width))
                    lines = []
                    for _ in range(count):
                        lines.append(v.inside(row_h, height, line, v.pointer(zeros)))
                        row_h, line = v.after(v.iadd(row_h, between)), v.step(line, pitch)
                    return lines

                near = v.at(v.pointer(w), v.imul(v.iadd(tile["w"], t), w_slice))
                if TAPS:
                    lines = lines_of(v.integer(0), (ROWS - 1) * STEP + TAPS)
                    add_kernel(v, sums, STEP, TAPS, STRIDE, lines, near, sets)
                else:
                    kernel = _Taps(offsets, passes, PASSES[STEP], STRIDE, near, w_row)
                    _sum(v, sums, kernel, STEP or 1, lines_of, starts, masks)
            return sums

        def store(q, starts, sums, put=v.store, tile=tile):
            line = v.at(v.pointer(y), v.iadd(tile["y"], q))
            for row in sums:
                for start, value in zip(starts, _outputs(v, row, split), strict=True):
                    put(v.fmax(value, low), line, start)
                line = v.at(line, y_row)

        def strip(table, i):
            return [v.table64(table, v.iadd(v.imul(i, len(STRIP)), k)) for k in range(len(STRIP))]

        for side, count, table in ((LEFT, left, lefts), (RIGHT, right, rights), (BOTH, double, doubles)):
            if side == BOTH or TAPS or STRIDE == 1:
                with v.loop(count) as i:
                    q, second, masks, _ = strip(table, i)
                    starts = [0, second if side == BOTH else v.lanes]
                    store(q, starts, filtered(q, starts, (masks, side)))
        with v.loop(plain) as i:
            q = v.iadd(plain_q, v.imul(i, 2 * v.lanes))
            store(q, [0, v.lanes], filtered(q, [0, v.lanes]))
        with v.loop(single) as i:
            q, _, masks, columns = strip(singles, i)
            sums, inside = filtered(q, [0], (masks, BOTH)), v.mask(columns)
            with v.choose(v.isub(columns, v.lanes)) as (whole, part):  # masked stores are slower
                with whole:
                    store(q, [0], sums)
                with part:
                    store(q, [0], sums, lambda value, line, at: v.store_masked(value, line, at, inside))


@simd.emitter
def filter_folded(
    v, ROWS, STRIDE, x, offsets, passes, w, w_row, w_slice, bias, relu, y, tiles, tile_count
):  # fmt: skip
    """Tiles of ROWS neighbouring vectors of a row of outputs, each like a row of its own.

    y[q] = sum_s x[q*STRIDE + offsets[s]] * w[s], as in `filter_strips`, for filters of one row. Taps that are
    `w_row` apart meet neighbouring vectors, so that they stand for rows of the filter.
    """
    first, low = v.broadcast(v.pointer(bias)), v.lower_bound(relu)
    with v.loop(tile_count) as n:
        tile = {name: v.table64(tiles, v.iadd(v.imul(n, len(TILE)), i)) for i, name in enumerate(TILE.names)}
        sums = [[total] for total in _registers(v, first, ROWS, STRIDE)]
        with v.loop(tile["slices"]):
            base = v.at(v.pointer(x), tile["x"])

            def lines_of(row, count, base=base):
                return [v.at(base, v.imul(v.iadd(row, i), v.lanes)) for i in range(count)]

            near = v.at(v.pointer(w), v.imul(tile["w"], w_slice))
            _sum(v, sums, _Taps(offsets, passes, PASSES[1], STRIDE, near, w_row), 1, lines_of, [0], None)
        source, target = v.at(v.pointer(x), tile["x"]), v.at(v.pointer(y), tile["y"])
        for i, value in enumerate(_outputs(v, [total for (total,) in sums], STRIDE)):
            v.store(v.fmax(value, low), target, i * v.lanes)
            v.prefetch(source, (i + AHEAD) * v.lanes)
            v.prefetch(target, (i + AHEAD) * v.lanes, write=True)


@jit.specialise
def filter_tiles(SIZE, LANES, ROWS, STEP, STRIDE, TAPS):
    """`filter_strips`."""

    def filter_tiles(
        x, height, width, row_step, slice_step, step, zeros, offsets, passes, w, w_row, w_slice, bias, relu,
        y, y_row, tiles, tile_count, plain, plain_q, left, lefts, right, rights, double, doubles,
        single, singles,
    ):  # fmt: skip
        filter_strips(
            SIZE, LANES, ROWS, STEP, STRIDE, TAPS, x, height, width, row_step, slice_step, step, zeros,
            offsets, passes, w, w_row, w_slice, bias, relu, y, y_row, tiles, tile_count, plain, plain_q,
            left, lefts,
            right, rights, double, doubles, single, singles,
        )  # fmt: skip

    return filter_tiles


@jit.specialise
def folded(SIZE, LANES, ROWS, STRIDE):
    """`filter_folded`."""

    def folded(x, offsets, passes, w, w_row, w_slice, bias, relu, y, tiles, tile_count):
        filter_folded(
            SIZE, LANES, ROWS, STRIDE, x, offsets, passes, w, w_row, w_slice, bias, relu, y, tiles, tile_count
        )

    return folded


# --- the driver ------------------------------------------------------------------------------

RECORD = arguments(
    "size tasks planes channels multiplier band_count bands strips tiles height width x_plane y_plane pad "
    "row_step slice_step step zeros offsets passes folded_passes filter w_row w_slice period y_row "
    "filter_tiles stream scratch_bytes"
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
            b = bands[unit - plane * a.band_count]
            x = a.x + (plane * a.x_plane - a.pad) * a.size
            for j in range(a.multiplier):
                k = plane % a.channels * a.multiplier + j
                y = a.y + ((plane * a.multiplier + j) * a.y_plane + b.y) * a.size
                to = scratch - b.first * a.size if a.stream else y
                w, bias = a.w + k * a.filter * a.size, a.bias + k * a.size
                if b.plain + b.left + b.right + b.double + b.single:
                    call(
                        a.filter_tiles,
                        (
                            x, a.height, a.width, a.row_step, a.slice_step, a.step, a.zeros, a.offsets,
                            a.passes,
                            w, a.w_row, a.w_slice, bias, a.relu, to, a.y_row,
                            a.tiles + b.first_tile * TILE_BYTES, b.tiles, b.plain, b.plain_q,
                            b.left, a.strips + b.first_left * STRIP_BYTES,
                            b.right, a.strips + b.first_right * STRIP_BYTES,
                            b.double, a.strips + b.first_double * STRIP_BYTES,
                            b.single, a.strips + b.first_single * STRIP_BYTES,
                        ),
                    )  # fmt: skip
                if b.folded:
                    call(
                        b.folded_kernel,
                        (
                            x, a.offsets, a.folded_passes, w, a.period, a.w_slice, bias, a.relu, to,
                            a.tiles + b.first_folded * TILE_BYTES, b.folded,
                        ),
                    )  # fmt: skip
                if a.stream:
                    call(a.stream, (scratch, y + b.first * a.size, b.elements))

    return driver
