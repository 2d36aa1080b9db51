"""Kernels that sum windows: rows of an array, converted and with their borders, and weighted sums of them.

A task keeps the rows that its window spans in a ring: each is brought there once, in the type of the sums,
with copies of the elements that its border stands for at its ends. Outputs of several neighbouring rows are
summed together, as they share most of the rows they read; every output's products are added in the order of
the filter's elements, whatever is summed beside it. A window over more than two axes has a ring for each
place along the leading ones; a filter that is a sum of outer products has one for each of these, of rows that
its filter along the row has already been over.
"""

from __future__ import annotations

import numpy as np

from convalgos.cpu.layout.copied_borders import copy_one
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.finish import finish_run
from convalgos.cpu.runtime.plan import arguments
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.blocks import loop_blocks
from convalgos.cpu.vectors.simd import Value, Vec, call, carray, pointer, vector_bytes, zero_bytes

# Products added in one rounding, or rounded before they are added; or in one, and again, rounded, where that
# decides which integer a sum is cut off to
FUSED, IN_ORDER, CLOSE = range(3)
ROWS = 4  # outputs that share the rows they read
LISTED = 8  # vectors of a row by a list of taps
OUTSIDE = -1  # in tables of sources: the fill value

# Arrays of `outer` planes of rows; steps in bytes. `planes` (outer, rings) has the byte offset of the plane
# of x for each ring, `row_source` and `column_source` the row and the column of x at each place of a padded
# plane, `filters` which filter an outer plane has. A filter's `w` has weights of windows (rings, taps_r,
# taps_s), from `w_listed` on those of the list, from `w_along` on those along rows (rings, along). Windows
# lie `row_step` rows and `column_step` columns apart, and span `extent` rows and `beside` columns beside the
# first, their own lie `tap_step` columns apart. Tap s along a row reads it from `along_shifts[s]` on; with a
# step of columns, `split` has taken the row apart into its phases of `phase` elements. `settle` stores sums
# that are CLOSE, with a look at each: `exact` are the weights of their list in float64, whose first tap
# stands last, `bounds` are `cut_off`'s.
WINDOW_FIELDS = arguments(
    "x_row y_plane y_row x_size y_size outer rows columns columns_in row_chunk width planes rings "
    "row_source column_source low taps_r taps_s listed_count listed_ring listed_row listed_shift w_listed "
    "w_along w_step fill load store tile listed rows_at_once scratch_stride pitch ring_rows along filters "
    "row_step column_step extent beside along_shifts split phase before_bytes settle exact "
    "bounds tasks tap_step"
)


def vectors() -> int:
    """Vectors of a row that are summed together, with ROWS rows of them."""
    return 4 if vector_bytes() >= 64 else 2


@jit.specialise
def sum_window_tile(ORDER: int, SIZE: int, LANES: int, VECTORS: int) -> jit.Kernel:
    """ROWS rows of sums over whole windows."""

    def sum_window_tile(
        table: int, rings: int, taps_r: int, taps_s: int, tap_step: int, weights: int, count: int, y: int,
        y_row: int, bias: int, relu: int,
    ) -> None:  # fmt: skip
        weighted_windows(
            SIZE, LANES, ORDER, VECTORS, table, rings, taps_r, taps_s, tap_step, weights, count, y, y_row,
            bias, relu,
        )  # fmt: skip

    return sum_window_tile


@jit.specialise
def sum_listed(ORDER: int, SIZE: int, LANES: int) -> jit.Kernel:
    """A row of sums over a list of taps."""

    def sum_listed(
        table: int, weights: int, taps: int, count: int, y: int, bias: int, relu: int
    ) -> None:  # fmt: skip
        listed_row(SIZE, LANES, ORDER, table, weights, taps, count, y, bias, relu)

    return sum_listed


@simd.emitter
def weighted_windows(
    v: Vec, ORDER: int, VECTORS: int, table: Value, rings: Value, taps_r: Value, taps_s: Value,
    tap_step: Value, weights: Value, count: Value, y: Value, y_row: Value, bias: Value, relu: Value,
) -> None:  # fmt: skip
    """y[r][i] = bias + sum over (p, t, s) of weights[p][t][s] * table[p][r + t][i + s * tap_step], r < ROWS.

    table: addresses of rows (rings, taps_r + ROWS - 1); taps_r is at least ROWS - 1. Rows are read up to
    whole blocks of vectors.
    """
    begin, low = v.broadcast(v.pointer(bias)), v.lower_bound(relu)
    w = v.pointer(weights)
    outs = [v.pointer(v.iadd(y, v.imul(y_row, r))) for r in range(ROWS)]
    spanned = v.iadd(taps_r, ROWS - 1)

    def block(at: Value, rest: Value = None) -> None:
        places = [v.iadd(at, m * v.lanes) for m in range(VECTORS)]
        totals = [[v.register(begin) for _ in places] for _ in outs]

        def meet(p: Value, j: Value, rows: range) -> None:
            """Row j of a ring: tap j - r of the sums r."""
            source = v.pointer(v.table64(table, v.iadd(v.imul(p, spanned), j)))
            taps = {r: v.at(w, v.imul(v.iadd(v.imul(p, taps_r), v.isub(j, r)), taps_s)) for r in rows}
            with v.loop(taps_s) as s:
                shift = v.imul(s, tap_step)
                values = [v.load(v.at(source, place), shift) for place in places]
                for r in rows:
                    scale = v.broadcast(taps[r], s)
                    for total, x in zip(totals[r], values, strict=True):
                        total.set(_added(v, ORDER, total.value, x, scale))

        with v.loop(rings) as p:
            for j in range(ROWS - 1):
                meet(p, j, range(j + 1))
            with v.loop(v.isub(taps_r, ROWS - 1)) as i:
                meet(p, v.iadd(i, ROWS - 1), range(ROWS))
            for j in range(ROWS - 1):
                meet(p, v.iadd(taps_r, j), range(j + 1, ROWS))
        for out, row in zip(outs, totals, strict=True):
            for m, (total, place) in enumerate(zip(row, places, strict=True)):
                _store(v, v.fmax(total.value, low), out, place, rest, m)

    loop_blocks(v, count, VECTORS * v.lanes, block)


@simd.emitter
def listed_row(
    v: Vec, ORDER: int, table: Value, weights: Value, taps: Value, count: Value, y: Value, bias: Value,
    relu: Value,
) -> None:  # fmt: skip
    """y[i] = bias + sum_t weights[t] * table[t][i]; rows are read up to whole blocks of vectors."""
    w, out = v.pointer(weights), v.pointer(y)
    begin, low = v.broadcast(v.pointer(bias)), v.lower_bound(relu)

    def block(at: Value, rest: Value = None) -> None:
        places = [v.iadd(at, m * v.lanes) for m in range(LISTED)]
        totals = [v.register(begin) for _ in places]
        with v.loop(taps) as t:
            scale, source = v.broadcast(w, t), v.pointer(v.table64(table, t))
            for total, place in zip(totals, places, strict=True):
                total.set(_added(v, ORDER, total.value, v.load(source, place), scale))
        for m, (total, place) in enumerate(zip(totals, places, strict=True)):
            _store(v, v.fmax(total.value, low), out, place, rest, m)

    loop_blocks(v, count, LISTED * v.lanes, block)


def _added(v: Vec, ORDER: int, total: Value, x: Value, scale: Value) -> Value:
    return v.fma(x, scale, total) if ORDER == FUSED else v.fadd(total, v.fmul(x, scale))


def _store(v: Vec, value: Value, out: Value, place: Value, rest: Value, m: int) -> None:
    """A vector of a block, the m-th, or what lies within the `rest` of the row."""
    if rest is None:
        v.store(value, out, place)
    else:
        v.store_masked(value, out, place, v.mask(v.isub(rest, m * v.lanes)))


@jit.specialise
def sum_windows(SIZE: int) -> jit.Kernel:
    """The units of a task: some rows of a plane, and of these some columns."""

    def sum_windows(args: int, task: int) -> None:
        a = carray(pointer(args), 1, WINDOW_FIELDS)[0]
        scratch = a.scratch + task * a.scratch_stride
        spanned = a.taps_r + ROWS - 1
        taps = max(a.listed_count, a.rings * spanned)
        settled = scratch + taps * 8  # the table of taps that were summed by ROWS rows
        taps += a.listed_count if a.settle else 0
        ring = scratch + (taps + a.along + 8) // 8 * 64
        before = ring + a.rings * a.ring_rows * a.pitch  # a row, before its filter along the row
        sums = before + a.before_bytes
        zero_bytes(ring, sums - ring)  # read behind the ends of rows: denormal numbers take 100 times as long
        row_units = (a.rows + a.row_chunk - 1) // a.row_chunk
        column_units = (a.columns + a.width - 1) // a.width
        units = a.outer * row_units * column_units
        for unit in range(units * task // a.tasks, units * (task + 1) // a.tasks):
            first = unit % column_units * a.width
            width = min(a.width, a.columns - first)
            top = unit // column_units % row_units * a.row_chunk
            end = min(top + a.row_chunk, a.rows)
            plane = unit // (column_units * row_units)
            kind = carray(pointer(a.filters), a.outer, np.int64)[plane]
            w, bias = a.w + kind * a.w_step, a.bias + kind * SIZE
            loaded = top * a.row_step
            row = top
            while row < end:
                many = ROWS if a.rows_at_once == ROWS and row + ROWS <= end else 1
                ready = (row + many - 1) * a.row_step + a.extent
                loaded = max(loaded, row * a.row_step)  # steps may be longer than windows
                while loaded < ready:
                    load_row(SIZE, args, scratch + taps * 8, ring, before, plane, kind, loaded, first, width)
                    loaded += 1
                y = a.y + plane * a.y_plane + row * a.y_row + first * a.y_size
                into = sums if a.store else y
                into_row = a.pitch if a.store else a.y_row
                if many == ROWS:
                    find_rows(SIZE, args, scratch, ring, plane, row)
                    call(a.tile, (
                        scratch, a.rings, a.taps_r, a.taps_s, a.tap_step, w, width, into, into_row, bias,
                        a.relu,
                    ))  # fmt: skip
                else:
                    find_taps(SIZE, args, scratch, ring, plane, row)
                    call(a.listed, (scratch, w + a.w_listed, a.listed_count, width, into, bias, a.relu))
                for r in range(many):
                    if a.settle:
                        if many == ROWS:
                            tile_taps(SIZE, args, scratch, settled, r)
                        call(a.settle, (
                            settled if many == ROWS else scratch, a.exact, a.listed_count, width,
                            sums + r * a.pitch, y + r * a.y_row, a.bounds,
                        ))  # fmt: skip
                    elif a.store:
                        call(a.store, (sums + r * a.pitch, y + r * a.y_row, width))
                    else:
                        finish_run(a, y + r * a.y_row, width)
                row += many

    return sum_windows


@jit.helper
def ring_place(args: int, ring: int, plane: int, p: int, row: int) -> int:
    """The address of a row of a ring, or of the fill value."""
    a = carray(pointer(args), 1, WINDOW_FIELDS)[0]
    offset = carray(pointer(a.planes), a.outer * a.rings, np.int64)[plane * a.rings + p]
    source = carray(pointer(a.row_source), row + 1, np.int64)[row]
    place = ring + (p * a.ring_rows + row % a.ring_rows) * a.pitch
    if a.along == 0 and (offset == OUTSIDE or source == OUTSIDE):
        place = a.fill
    return int(place)


@jit.helper
def find_rows(SIZE: int, args: int, table: int, ring: int, plane: int, row: int) -> None:
    """The table of rows under ROWS rows of windows."""
    a = carray(pointer(args), 1, WINDOW_FIELDS)[0]
    spanned = a.taps_r + ROWS - 1
    rows = carray(pointer(table), a.rings * spanned, np.int64)
    for p in range(a.rings):
        for j in range(spanned):
            rows[p * spanned + j] = ring_place(args, ring, plane, p, row + j)


@jit.helper
def tile_taps(SIZE: int, args: int, table: int, target: int, row: int) -> None:
    """The table of all taps of one row of windows from that of `find_rows`; the first one stands last."""
    a = carray(pointer(args), 1, WINDOW_FIELDS)[0]
    rows = carray(pointer(table), a.rings * (a.taps_r + ROWS - 1), np.int64)
    taps = carray(pointer(target), a.listed_count, np.int64)
    at = a.listed_count - 1
    for p in range(a.rings):
        for j in range(a.taps_r):
            for s in range(a.taps_s):
                taps[at] = rows[p * (a.taps_r + ROWS - 1) + row + j] + s * a.tap_step * SIZE
                at = 0 if at == a.listed_count - 1 else at + 1


@jit.helper
def find_taps(SIZE: int, args: int, table: int, ring: int, plane: int, row: int) -> None:
    """The table of what each tap of the list reads for a row of windows."""
    a = carray(pointer(args), 1, WINDOW_FIELDS)[0]
    taps = carray(pointer(table), a.listed_count, np.int64)
    rings = carray(pointer(a.listed_ring), a.listed_count, np.int64)
    rows = carray(pointer(a.listed_row), a.listed_count, np.int64)
    shifts = carray(pointer(a.listed_shift), a.listed_count, np.int64)
    for t in range(a.listed_count):
        place = row * a.row_step + rows[t]
        taps[t] = ring_place(args, ring, plane, rings[t], place) + shifts[t] * SIZE


@jit.helper
def load_row(
    SIZE: int, args: int, table: int, ring: int, before: int, plane: int, kind: int, row: int, first: int,
    width: int,
) -> None:  # fmt: skip
    """A row of the padded planes into each ring, from column `first` on."""
    a = carray(pointer(args), 1, WINDOW_FIELDS)[0]
    offsets = carray(pointer(a.planes), a.outer * a.rings, np.int64)
    source = carray(pointer(a.row_source), row + 1, np.int64)[row]
    slot = ring + row % a.ring_rows * a.pitch
    step = a.ring_rows * a.pitch
    if a.along == 0:
        for p in range(a.rings):
            offset = offsets[plane * a.rings + p]
            if offset != OUTSIDE and source != OUTSIDE:
                pad_row(SIZE, args, a.x + offset + source * a.x_row, slot + p * step, first, width)
    else:
        lines = carray(pointer(table), a.along, np.int64)
        shifts = carray(pointer(a.along_shifts), a.along, np.int64)
        begin, inside = first * a.column_step, (width - 1) * a.column_step + 1
        taken = before + (a.before_bytes - a.column_step * a.phase * SIZE if a.split else 0)
        zero = table + a.along * 8  # an element
        carray(pointer(zero), 1, np.int64)[0] = 0
        padded = OUTSIDE - 1  # the offset of the plane whose row lies in `before`
        for p in range(a.rings):
            offset = OUTSIDE if source == OUTSIDE else offsets[plane * a.rings + p]
            at = a.fill if offset == OUTSIDE else taken
            if offset != OUTSIDE and offset != padded:
                pad_row(SIZE, args, a.x + offset + source * a.x_row, before, begin, inside)
                if a.split:
                    call(a.split, (
                        before, 0, 1, 0, inside + a.beside, taken, 0, a.phase, a.column_step, a.column_step,
                    ))  # fmt: skip
                padded = offset
            for s in range(a.along):
                lines[s] = at + shifts[s] * SIZE
            along = a.w + kind * a.w_step + a.w_along + p * a.along * SIZE
            call(a.listed, (table, along, a.along, width, slot + p * step, zero, 0))


@jit.helper
def pad_row(SIZE: int, args: int, source: int, target: int, first: int, width: int) -> None:
    """Columns first to first + width and what their windows see beside them, as numbers of the sums."""
    a = carray(pointer(args), 1, WINDOW_FIELDS)[0]
    end = first + width + a.beside  # of the padded row
    begin, stop = max(first, a.low), min(end, a.low + a.columns_in)
    call(a.load, (source + (begin - a.low) * a.x_size, target + (begin - first) * SIZE, max(0, stop - begin)))
    if first < begin:
        pad_ends(SIZE, args, source, target, first, first, min(begin, end), begin, stop)
    if stop < end:
        pad_ends(SIZE, args, source, target, first, max(stop, first), end, begin, stop)


@jit.helper
def pad_ends(
    SIZE: int, args: int, source: int, target: int, first: int, at: int, end: int, begin: int, stop: int
) -> None:
    """Places of the padded row from `at` to `end`; those from `begin` to `stop` are there already."""
    a = carray(pointer(args), 1, WINDOW_FIELDS)[0]
    columns = carray(pointer(a.column_source), end, np.int64)
    for place in range(at, end):
        column = columns[place]
        to = target + (place - first) * SIZE
        if column == OUTSIDE:
            copy_one(SIZE, a.fill, to)
        elif begin <= column + a.low and column + a.low < stop:
            copy_one(SIZE, target + (column + a.low - first) * SIZE, to)
        else:
            call(a.load, (source + column * a.x_size, to, 1))
