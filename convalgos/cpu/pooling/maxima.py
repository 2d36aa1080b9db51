"""Where the maxima of windows lie, and their gradient: dx gets each dy at the place of its maximum.

Places are indices of elements of a map, over its spatial dimensions. Of equal elements the first counts, and
of NaN the last, as in torch.
"""

from __future__ import annotations

from convalgos.cpu.pooling.elements import MAX, SIGNED, PoolElements
from convalgos.cpu.pooling.reductions import COLUMN, UNROLLED, elements_apart, fill_identity, reduce_rows
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.blocks import loop_chunks
from convalgos.cpu.vectors.instructions import ir
from convalgos.cpu.vectors.integers import Integers, words_of
from convalgos.cpu.vectors.lanes import store_lanes
from convalgos.cpu.vectors.simd import Value, Vec, carray, pointer, zero_bytes

INDEX = 4  # bytes of a place, as kernels find it,
PLACE = 8  # and as it is given to callers
MAXIMA_FIELDS = fields(
    "x y places dx scratch scratch_bytes stored size tasks planes blocks channels block_channels rows "
    "row_table parts columns windows first_columns before after outputs slice_step row_step row_elements "
    "x_plane x_pixel y_plane y_row y_pixel slice_index row_index taps stride dilation"
)
MAXIMA_ROW = fields("x slices rows index")  # of x under a row of outputs, and the index of its first element


@simd.emitter
def find_in_pixels(
    v: Vec, FORM: int, GIVEN: int, x: Value, maxima: Value, places: Value, channels: Value, slices: Value,
    rows: Value, taps: Value, slice_step: Value, row_step: Value, tap_step: Value, index: Value,
    slice_index: Value, row_index: Value, tap_index: Value,
) -> None:  # fmt: skip
    """places[c] = where the maximum of a window lies, of channels that lie side by side.

    Args:
        GIVEN: whether maxima[c] is written, too, and places are as callers are given them.
        x: of the first tap of the window, whose index is `index`; each step along a dimension adds one of
            `slice_index`, `row_index` and `tap_index`.
    """
    of, words = PoolElements(v, FORM, MAX), words_of(v)
    source, to = v.pointer(x), v.pointer(places)

    def chunk(first: Value, vectors: int, mask: Value = None) -> None:
        totals = [of.v.register(of.identity()) for _ in range(vectors)]
        found = [words.register(words.spread(index)) for _ in range(vectors)]
        with v.loop(slices) as t, v.loop(rows) as r, v.loop(taps) as s:
            at = v.iadd(v.imul(t, slice_step), v.iadd(v.imul(r, row_step), v.imul(s, tap_step)))
            from_ = of.maps.at(source, v.iadd(first, at))
            here = v.iadd(v.imul(t, slice_index), v.iadd(v.imul(r, row_index), v.imul(s, tap_index)))
            place = words.spread(v.iadd(index, here))
            for i, (total, where) in enumerate(zip(totals, found, strict=True)):
                value = of.load(from_, i * v.lanes, mask)
                larger = of.exceeds(value, total.value)
                where.set(v.b.select(larger, place, where.value))
                total.set(v.b.select(larger, value, total.value))
        for i, (total, where) in enumerate(zip(totals, found, strict=True)):
            at = v.iadd(first, i * v.lanes)
            if GIVEN:
                of.store(total.value, v.pointer(maxima), at, mask)
                give_places(words, where.value, to, at, mask)
            else:
                store_lanes(words, where.value, to, at, mask)

    loop_chunks(of.v, of.v, channels, UNROLLED, chunk)


def give_places(words: Integers, places: Value, target: Value, at: Value, mask: Value = None) -> None:
    """Store places as callers are given them."""
    wide = Integers(words.b, words.lanes, PLACE)
    widened = words.b.sext(places, wide.type)
    store_lanes(wide, widened, target, at, mask)


@simd.emitter
def find_in_row(
    v: Vec, FORM: int, STRIDE: int, row: Value, maxima: Value, places: Value, outputs: Value, taps: Value,
    dilation: Value, stride: Value, index: Value,
) -> None:  # fmt: skip
    """Go on with maxima[q] and places[q] by a row of x: elements q * stride + s * dilation of it, s < taps.

    Args:
        index: of the first element of the row, padding included.
    """
    of, words = PoolElements(v, FORM, MAX), words_of(v)
    source = v.pointer(row)

    with v.loop(v.idiv(v.iadd(outputs, v.lanes - 1), v.lanes)) as i:
        q = v.imul(i, v.lanes)
        best, found = of.v.at(v.pointer(maxima), q), words.at(v.pointer(places), q)
        total, where = of.v.register(of.v.load(best)), words.register(words.load(found))
        apart = words.mul(lane_numbers(words), words.spread(v.integer(STRIDE or stride)))
        with v.loop(taps) as s:
            begin = v.iadd(v.imul(q, STRIDE or stride), v.imul(s, dilation))
            value = elements_apart(of, STRIDE, source, begin, stride)
            larger = of.exceeds(value, total.value)
            here = words.add(words.spread(v.iadd(index, begin)), apart)
            where.set(v.b.select(larger, here, where.value))
            total.set(v.b.select(larger, value, total.value))
        of.v.store(total.value, best)
        words.store(where.value, found)


def lane_numbers(words: Integers) -> Value:
    """0, 1, ... in the lanes."""
    return ir.Constant(words.type, list(range(words.lanes)))


@simd.emitter
def begin_row(
    v: Vec, FORM: int, maxima: Value, places: Value, first: Value, outputs: Value, index: Value
) -> None:
    """maxima[q] = the least number, places[q] = index + first[q]: what they are before the first element."""
    of, words = PoolElements(v, FORM, MAX), words_of(v)
    with v.loop(v.idiv(v.iadd(outputs, v.lanes - 1), v.lanes)) as i:
        q = v.imul(i, v.lanes)
        of.v.store(of.identity(), v.pointer(maxima), q)
        begin = words.add(words.load(v.pointer(first), q), words.spread(index))
        words.store(begin, v.pointer(places), q)


@simd.emitter
def give_row(v: Vec, FORM: int, maxima: Value, found: Value, outputs: Value, y: Value, places: Value) -> None:
    """y[q] = maxima[q], and places[q] = found[q]."""
    of, words = PoolElements(v, FORM, MAX), words_of(v)

    def chunk(first: Value, vectors: int, mask: Value = None) -> None:
        for i in range(vectors):
            at = v.iadd(first, i * v.lanes)
            of.store(of.v.load(v.pointer(maxima), at), v.pointer(y), at, mask)
            give_places(words, words.load(v.pointer(found), at), v.pointer(places), at, mask)

    loop_chunks(of.v, of.v, outputs, 1, chunk)


@simd.emitter
def add_at(v: Vec, dx: Value, dy: Value, places: Value, count: Value, pixel: Value, step: Value) -> None:
    """dx[places[i] * pixel + i * step] += dy[i] for i < count, one after the other."""
    to, from_ = v.pointer(dx), v.pointer(dy)
    word = ir.IntType(32)
    table = v.pointer(places)
    with v.loop(count) as i:
        place = v.b.load(v.b.gep(table, [i], source_etype=word), typ=word)
        at = v.at(to, v.iadd(v.imul(v.b.sext(place, ir.IntType(64)), pixel), v.imul(i, step)))
        further = v.b.load(v.at(from_, i), typ=v.element)
        v.b.store(v.fadd(v.b.load(at, typ=v.element), further), at)


@jit.specialise
def maxima_channels_last(SIZE: int, LANES: int, FORM: int) -> jit.Kernel:
    """Maxima of x (N, *spatial, C) into y, and their places; or where dx is, y is dy, and dx the gradient."""

    def maxima_channels_last(args: int, task: int) -> None:
        a = carray(pointer(args), 1, MAXIMA_FIELDS)[0]
        rows = carray(pointer(a.row_table), a.rows, MAXIMA_ROW)
        windows = carray(pointer(a.windows), a.outputs, COLUMN)
        found = a.scratch + task * a.scratch_bytes
        total = a.planes * a.blocks * a.parts
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            part = unit % a.parts
            block = unit // a.parts
            first = block % a.blocks * a.block_channels
            channels = min(a.block_channels, a.channels - first)
            plane = block // a.blocks
            x = a.x + (plane * a.x_plane + first) * a.stored
            dx = a.dx + (plane * a.x_plane + first) * a.size
            for i in range(a.x_plane // a.x_pixel if a.dx else 0):
                zero_bytes(dx + i * a.x_pixel * a.size, channels * a.size)
            for number in range(a.rows * part // a.parts, a.rows * (part + 1) // a.parts):
                row = rows[number]
                for q in range(a.outputs):
                    window = windows[q]
                    output = plane * a.y_plane + number * a.y_row + q * a.y_pixel + first
                    from_ = x + (row.x + window.first * a.x_pixel) * a.stored
                    if FORM < SIGNED and a.dx:
                        find_in_pixels(
                            SIZE, LANES, FORM, False, from_, 0, found, channels, row.slices, row.rows,
                            window.taps, a.slice_step, a.row_step, a.dilation * a.x_pixel,
                            row.index + window.first, a.slice_index, a.row_index, a.dilation,
                        )  # fmt: skip
                        add_at(SIZE, LANES, dx, a.y + output * a.size, found, channels, a.x_pixel, 1)
                    else:
                        find_in_pixels(
                            SIZE, LANES, FORM, True, from_, a.y + output * a.stored,
                            a.places + output * PLACE, channels, row.slices, row.rows, window.taps,
                            a.slice_step, a.row_step, a.dilation * a.x_pixel, row.index + window.first,
                            a.slice_index, a.row_index, a.dilation,
                        )  # fmt: skip

    return maxima_channels_last


@jit.specialise
def maxima_channels_first(SIZE: int, LANES: int, FORM: int, STRIDE: int) -> jit.Kernel:
    """`maxima_channels_last` of x (planes, *spatial)."""

    def maxima_channels_first(args: int, task: int) -> None:
        a = carray(pointer(args), 1, MAXIMA_FIELDS)[0]
        rows = carray(pointer(a.row_table), a.rows, MAXIMA_ROW)
        outputs = (a.outputs + LANES - 1) // LANES * LANES
        maxima = a.scratch + task * a.scratch_bytes
        places = maxima + outputs * SIZE
        line = places + outputs * INDEX
        for plane in range(a.planes * task // a.tasks, a.planes * (task + 1) // a.tasks):
            x, dx = a.x + plane * a.x_plane * a.stored, a.dx + plane * a.x_plane * a.size
            y = a.y + plane * a.y_plane * (a.size if a.dx else a.stored)
            if a.dx:
                zero_bytes(dx, a.x_plane * a.size)
            fill_identity(SIZE, LANES, FORM, MAX, line, a.before)
            for number in range(a.rows):
                row = rows[number]
                begin_row(SIZE, LANES, FORM, maxima, places, a.first_columns, a.outputs, row.index)
                for i in range(row.slices * row.rows):
                    t = i // row.rows
                    r = i % row.rows
                    from_ = x + (row.x + t * a.slice_step + r * a.row_step) * a.stored
                    inside = line + a.before * SIZE
                    reduce_rows(SIZE, LANES, FORM, MAX, from_, inside, a.columns, 1, 1, 0, 0)
                    fill_identity(SIZE, LANES, FORM, MAX, inside + a.columns * SIZE, a.after)
                    index = row.index + t * a.slice_index + r * a.row_index - a.before
                    find_in_row(
                        SIZE, LANES, FORM, STRIDE, line, maxima, places, a.outputs, a.taps, a.dilation,
                        a.stride, index,
                    )  # fmt: skip
                if FORM < SIGNED and a.dx:
                    add_at(SIZE, LANES, dx, y + number * a.y_row * a.size, places, a.outputs, 1, 0)
                else:
                    to = plane * a.y_plane + number * a.y_row
                    give_row(
                        SIZE, LANES, FORM, maxima, places, a.outputs, a.y + to * a.stored,
                        a.places + to * PLACE,
                    )  # fmt: skip

    return maxima_channels_first
