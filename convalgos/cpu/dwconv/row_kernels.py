"""The kernels of `cpu.depthwise.rows`: strips of columns of a plane, filtered where they lie.

1. `filter_depthwise_planes`, the driver, deals planes and bands of output rows to the threads.
2. `filter_row_tiles` filters a band: tiles of output rows by strips of one or two vectors of columns. The
   sums of a strip stay in registers over the whole kernel.
3. Usual kernels have code of their own (`shifted_rows`), all others are summed pass by pass (`tap_passes`).
4. `filter_folded_row` filters long rows of one-row kernels: neighbouring vectors of a row stand for rows.

Sizes, padding, dilation and the number of taps are arguments, so that a few kernels serve all: a strip that
ends with its row is moved to the left, over outputs that were computed before, and only strips that reach
over an end of a row of x are loaded with masks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from convalgos.cpu.dwconv.row_ends import EndVec
from convalgos.cpu.dwconv.shifted_rows import LoadedVectors, add_kernel, before, behind, loaded_vectors
from convalgos.cpu.dwconv.tap_passes import BOTH, LEFT, PASS_ROWS, RIGHT, Masks, Sums, Taps, add_taps
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.finish import finish_run
from convalgos.cpu.runtime.plan import arguments, fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.halves import lines_of, maps
from convalgos.cpu.vectors.lanes import store_lanes
from convalgos.cpu.vectors.simd import Register, Value, Vec, call, carray, pointer

# Rows of a tile, by the rows of x between those under two outputs and the stride along rows; and those that
# vectors of one row stand for (`filter_folded_row`).
TILE_ROWS = {(1, 1): (1, 2, 4, 6, 7, 8), (2, 2): (1, 2, 3, 4, 7), (0, 1): (1, 4), (0, 2): (1, 4)}
FOLDED_ROWS = (1, 2, 4, 8)
SQUARE_KERNELS = {1: (3, 5), 2: (3, 5, 7)}  # rows and columns of usual kernels, by the stride,
HALF_SQUARE_KERNELS = {1: (3, 5, 7), 2: (3, 5, 7)}  # and of those of 16 bits, of which each load is widened

# Vectors ahead that lone rows are asked for: saves a fifth of the time of 200 MB from memory on a Xeon
# (Granite Rapids), and costs none in the caches.
PREFETCH_VECTORS = 64

# The record of the driver, and its tables. Offsets count elements; those of x and y have `size` bytes, and
# all others `sum_size`.
ROW_KERNEL_FIELDS = arguments(
    "size sum_size tasks planes channels multiplier band_count bands strips tiles height width x_n x_plane "
    "x_slice x_row y_n y_plane y_slice y_row pad row_step dilation_d step zeros offsets passes folded_passes "
    "filter w_row w_slice period row_sets line filter_tiles stream scratch_bytes lines fill"
)
# Slice and row of y, the first column, and how many rows and columns; then its tiles and strips.
ROW_BAND = fields(
    "o p first rows columns first_tile tiles plain plain_q left first_left right first_right double "
    "first_double single first_single folded_kernel first_folded folded"
)
# Of a band, with masks: the first output, from there to the second vector, outputs stored of the last one.
ROW_STRIP = fields("q second masks columns")
# Of output rows: slice, first row and column of x; slice of w, slices that meet; row of the band, column.
ROW_TILE = fields("d h x w slices p y")


@simd.emitter
def filter_strips(
    v: Vec, FORM: int, ROWS: int, STEP: int, STRIDE: int, TAPS: int, BORDER: int,
    args: Value, band: Value, x: Value, w: Value, bias: Value, y: Value,
) -> None:  # fmt: skip
    """The tiles of a band (see `ROW_TILE`), of ROWS output rows each, strip by strip of columns.

    y[i][q] = sum_{t,r,s} x[t][h + (i*STEP + r)*row_step][q*STRIDE + offsets[s]] * w[t][r][s], from the bias
    on, and with relu at the end, `line` elements from one row to the next. TAPS are the rows and columns of
    the kernel, or 0 for any. Rows outside of range(height) are read from `zeros`; STEP 0 is `step`. There
    are `plain` strips of two vectors side by side from output `plain_q` on, and others in a table (see
    `ROW_STRIP`): of two vectors, by the ends that they reach over, and of one, whose masks tell for each
    offset which lanes lie in the row. FORM tells the elements of x, y and `zeros`, see `halves`. With BORDER,
    the ends that vectors over an end of a row are loaded from, `lines` tells for each row the row of x that
    it is a copy of, `zeros` is a row of the fill value, and masks are entries of `row_ends.end_table`.
    """
    a, b = v.record(args, ROW_KERNEL_FIELDS), v.record(band, ROW_BAND)
    v = EndVec(v, BORDER, a.width, a.fill) if BORDER else v
    tiles = _TileWriter(v, maps(v, FORM), (ROWS, STEP, STRIDE, TAPS), a, x, w, bias, y, bool(BORDER))

    def strip(first: Value, i: Value) -> Any:
        return v.record(_entry(v, a.strips, ROW_STRIP, v.iadd(first, i)), ROW_STRIP)

    with v.loop(b.tiles) as n:
        tile = v.record(_entry(v, a.tiles, ROW_TILE, v.iadd(b.first_tile, n)), ROW_TILE)
        of_sides = (
            (LEFT, b.left, b.first_left),
            (RIGHT, b.right, b.first_right),
            (BOTH, b.double, b.first_double),
        )
        for side, count, first in of_sides:
            if side == BOTH or TAPS or STRIDE == 1:
                with v.loop(count) as i:
                    s = strip(first, i)
                    starts = [0, s.second if side == BOTH else v.lanes]
                    sums = tiles.filtered(tile, s.q, starts, (s.masks, side))
                    if tiles.lines and side == RIGHT:  # rows of less than a line, too
                        count = v.iadd(s.columns, v.lanes)
                        tiles.store_some(tile, s.q, starts, sums, tiles.lines, count, 2 * v.lanes)
                    else:
                        tiles.store(tile, s.q, starts, sums)
        with v.loop(b.plain) as i:
            q = v.iadd(b.plain_q, v.imul(i, 2 * v.lanes))
            tiles.store(tile, q, [0, v.lanes], tiles.filtered(tile, q, [0, v.lanes], None))
        with v.loop(b.single) as i:
            s = strip(b.first_single, i)
            sums = tiles.filtered(tile, s.q, [0], (s.masks, BOTH))
            tiles.store_some(tile, s.q, [0], sums, tiles.m, s.columns, v.lanes)


class _TileWriter:
    """Writes the code of a strip of a tile: `filtered` its sums, and `store` what they are in y."""

    def __init__(
        self, v: Vec, m: Vec, form: tuple[int, int, int, int], a: Any, x: Value, w: Value, bias: Value,
        y: Value, border: bool,
    ):  # fmt: skip
        self.border = border
        self.v, self.m, self.a, self.w, self.y = v, m, a, w, y
        self.rows, self.step, self.stride, self.taps = form
        self.base, self.bias, self.low = v.pointer(x), v.broadcast(v.pointer(bias)), v.lower_bound(a.relu)
        self.between = v.imul(a.row_step, 1 if self.step else a.step)
        self.pitch, self.slice_step = v.imul(self.between, a.x_row), v.imul(a.dilation_d, a.x_slice)
        self.line, self.between_lines = a.line, v.imul(a.row_sets, a.line)
        self.split = 1 if self.taps else self.stride  # sums of a vector of outputs
        self.lines = lines_of(m) if self.taps and self.stride == 1 else None  # that outputs are stored in

    def filtered(self, tile: Any, q: Value, starts: Sequence[Value], masks: Masks) -> Sums:
        """The sums of outputs from q on, of vectors that begin at `starts` behind it."""
        v, m, a = self.v, self.m, self.a
        plane = m.at(self.base, v.iadd(v.imul(tile.d, a.x_slice), v.imul(q, self.stride)))
        sets = _sets(v, starts, self.taps, self.stride, masks, self.border) if self.taps else []
        sums = [_registers(v, self.bias, len(starts), self.split) for _ in range(self.rows)]
        with v.loop(tile.slices) as t:
            lines_of = self._lines(tile, m.at(plane, v.imul(t, self.slice_step)), q)
            near = v.at(v.pointer(self.w), v.imul(v.iadd(tile.w, t), a.w_slice))
            if self.taps:
                lines = lines_of(v.integer(0), (self.rows - 1) * self.step + self.taps)
                add_kernel(v, m, sums, self.step, self.taps, self.stride, lines, near, sets)
            else:
                taps = Taps(a.offsets, a.passes, PASS_ROWS[self.step], self.stride, near, a.w_row)
                add_taps(v, m, sums, taps, self.step or 1, lines_of, starts, masks)
        return sums

    def _lines(self, tile: Any, slice_: Value, q: Value) -> Callable[[Value, int], list[Value]]:
        """(tap row, count) -> where so many rows of x begin, from that of the tap row on."""
        v, m, a = self.v, self.m, self.a

        def border_lines_of(row: Value, count: int) -> list[Value]:
            row_h = v.iadd(tile.h, v.imul(row, a.row_step))
            filler = m.at(v.pointer(a.zeros), v.imul(q, self.stride))
            lines = []
            for _ in range(count):
                source = v.table64(a.lines, row_h)  # or OUTSIDE
                outside = v.b.icmp_signed("<", source, v.integer(0))
                lines.append(v.b.select(outside, filler, m.at(slice_, v.imul(source, a.x_row))))
                row_h = v.after(v.iadd(row_h, self.between))
            return lines

        def lines_of(row: Value, count: int) -> list[Value]:
            row_h = v.iadd(tile.h, v.imul(row, a.row_step))
            line = m.at(slice_, v.imul(row_h, a.x_row))
            lines = []
            for _ in range(count):
                lines.append(v.inside(row_h, a.height, line, v.pointer(a.zeros)))
                row_h, line = v.after(v.iadd(row_h, self.between)), m.step(line, self.pitch)
            return lines

        return border_lines_of if self.border else lines_of

    def store(
        self, tile: Any, q: Value, starts: Sequence[Value], sums: Sums, inside: Value | None = None
    ) -> None:
        """The sums with their activation; `inside`: the lanes that are stored, if not all."""
        v, m = self.v, self.m
        line = m.at(v.pointer(self.y), v.iadd(v.imul(tile.p, self.line), q))
        for row in sums:
            finished = [v.fmax(value, self.low) for value in _outputs(v, row, self.split)]
            stored: list[tuple[Vec, Value, Any]] = [(m, *each) for each in zip(starts, finished, strict=True)]
            if self.lines and isinstance(starts[-1], int) and len(starts) == 2:
                stored = [(self.lines, 0, finished)]
            for to, start, value in stored:
                store_lanes(to, value, line, start, inside)
            line = m.at(line, self.between_lines)

    def store_some(
        self, tile: Any, q: Value, starts: Sequence[Value], sums: Sums, to: Vec, count: Value, all_: int
    ) -> None:
        """`count` of the outputs of a strip, that is `all_` or less; to: what stores them."""
        with self.v.choose(self.v.isub(count, all_)) as (whole, part):  # masked stores are slower
            with whole:
                self.store(tile, q, starts, sums)
            with part:
                self.store(tile, q, starts, sums, to.mask(count))


def _entry(v: Vec, table: Value, row: Any, index: Value) -> Value:
    """The address of an entry of a table."""
    return v.iadd(table, v.imul(index, row.itemsize))


def _sets(
    v: Vec, starts: Sequence[Value], size: int, stride: int, masks: Masks, border: bool
) -> list[LoadedVectors]:
    """What `add_kernel` takes: vectors that lie side by side together, any others alone."""
    table, side = masks or (0, BOTH)
    together = all(isinstance(start, int) for start in starts)
    vectors = len(starts) if together else 1
    count = loaded_vectors(vectors, size, stride)
    sets: list[LoadedVectors] = []
    last = [count - 2, count - 1] if behind(size, stride) else [count - 1]
    for i, start in enumerate(starts[:1] if together else starts):
        masked = list(range(count)) if masks else []
        if masks and side == LEFT:
            masked = [0]
        elif masks and side == RIGHT and border:
            masked = last
        elif masks and not together:
            masked = last if i else [0]
        lanes = {n: v.lanes_of(v.table64(table, i * count + n)) for n in masked}
        sets.append(LoadedVectors(vectors, v.iadd(v.imul(start, stride), before(size, stride)), lanes))
    return sets


def _registers(v: Vec, bias: Value, vectors: int, stride: int) -> list[Register]:
    """Sums of vectors of outputs: of a stride of 2 two for each, where neighbours are summed at last."""
    return [v.register(bias if stride == 1 else v.even(bias)) for _ in range(vectors * stride)]


def _outputs(v: Vec, sums: Sequence[Register], stride: int) -> list[Value]:
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
def filter_folded(
    v: Vec, FORM: int, ROWS: int, STRIDE: int, args: Value, band: Value, x: Value, w: Value, bias: Value,
    y: Value,
) -> None:  # fmt: skip
    """The folded tiles of a band: ROWS neighbouring vectors of a row of outputs, each like a row of its own.

    y[q] = sum_s x[q*STRIDE + offsets[s]] * w[s], as in `filter_strips`, for filters of one row. Taps that are
    `period` apart meet neighbouring vectors, so that they stand for rows of the filter.
    """
    a, b = v.record(args, ROW_KERNEL_FIELDS), v.record(band, ROW_BAND)
    m, first, low = maps(v, FORM), v.broadcast(v.pointer(bias)), v.lower_bound(a.relu)
    with v.loop(b.folded) as n:
        tile = v.record(_entry(v, a.tiles, ROW_TILE, v.iadd(b.first_folded, n)), ROW_TILE)
        sums = [[total] for total in _registers(v, first, ROWS, STRIDE)]
        row = v.iadd(v.imul(tile.d, a.x_slice), v.imul(tile.h, a.x_row))
        source = m.at(v.pointer(x), v.iadd(row, tile.x))
        with v.loop(tile.slices):

            def lines_of(row: Value, count: int, source: Value = source) -> list[Value]:
                return [m.at(source, v.imul(v.iadd(row, i), v.lanes)) for i in range(count)]

            near = v.at(v.pointer(w), v.imul(tile.w, a.w_slice))
            taps = Taps(a.offsets, a.folded_passes, PASS_ROWS[1], STRIDE, near, a.period)
            add_taps(v, m, sums, taps, 1, lines_of, [0], None)
        target = m.at(v.pointer(y), v.iadd(v.imul(tile.p, a.line), tile.y))
        for i, value in enumerate(_outputs(v, [total for (total,) in sums], STRIDE)):
            m.store(v.fmax(value, low), target, i * v.lanes)
            m.prefetch(source, (i + PREFETCH_VECTORS) * v.lanes)
            m.prefetch(target, (i + PREFETCH_VECTORS) * v.lanes, write=True)


@jit.specialise
def filter_row_tiles(
    SIZE: int, LANES: int, FORM: int, ROWS: int, STEP: int, STRIDE: int, TAPS: int, BORDER: int
) -> jit.Kernel:
    """`filter_strips`."""

    def filter_row_tiles(args: int, band: int, x: int, w: int, bias: int, y: int) -> None:
        filter_strips(SIZE, LANES, FORM, ROWS, STEP, STRIDE, TAPS, BORDER, args, band, x, w, bias, y)

    return filter_row_tiles


@jit.specialise
def filter_folded_row(SIZE: int, LANES: int, FORM: int, ROWS: int, STRIDE: int) -> jit.Kernel:
    """`filter_folded`."""

    def filter_folded_row(args: int, band: int, x: int, w: int, bias: int, y: int) -> None:
        filter_folded(SIZE, LANES, FORM, ROWS, STRIDE, args, band, x, w, bias, y)

    return filter_folded_row


@jit.helper
def finish_rows_of_band(a: Any, b: Any, scratch: int, y: int) -> None:
    """The output step of a band, and from scratch its way around the caches: at once where its rows are one
    run of y, or row by row."""
    rows, count = b.rows, b.columns
    if a.y_row == count and a.line == count:
        rows, count = 1, rows * count
    for i in range(rows):
        source, run = scratch + i * a.line * a.size, y + i * a.y_row * a.size
        if a.stream:
            if a.finish:
                added = run + a.residual if a.residual else 0
                call(a.finish, (source, added, source, count, a.finish_numbers))
            call(a.stream, (source, run, count))
        else:
            finish_run(a, run, count)


# --- the driver ------------------------------------------------------------------------------


@jit.specialise
def filter_depthwise_planes() -> jit.Kernel:
    """Planes x bands, dealt to the tasks in equal runs; of each band all filters of its channel in turn."""

    def filter_depthwise_planes(args: int, task: int) -> None:
        a = carray(pointer(args), 1, ROW_KERNEL_FIELDS)[0]
        bands = carray(pointer(a.bands), a.band_count, ROW_BAND)
        scratch = a.scratch + task * a.scratch_bytes
        total = a.planes * a.band_count
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            plane = unit // a.band_count
            index = unit - plane * a.band_count
            n, channel = plane // a.channels, plane % a.channels
            b = bands[index]
            band = a.bands + index * ROW_BAND.itemsize
            x = a.x + (n * a.x_n + channel * a.x_plane - a.pad) * a.size
            for j in range(a.multiplier):
                k = channel * a.multiplier + j
                y = a.y + (n * a.y_n + k * a.y_plane + b.o * a.y_slice + b.p * a.y_row) * a.size
                to = scratch - b.first * a.size if a.stream else y
                w, bias = a.w + k * a.filter * a.sum_size, a.bias + k * a.sum_size
                if b.plain + b.left + b.right + b.double + b.single:
                    call(a.filter_tiles, (args, band, x, w, bias, to))
                if b.folded:
                    call(b.folded_kernel, (args, band, x, w, bias, to))
                finish_rows_of_band(a, b, scratch, y + b.first * a.size)

    return filter_depthwise_planes
