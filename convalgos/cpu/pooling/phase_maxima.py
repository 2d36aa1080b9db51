"""Maxima of windows with channels first, where they lie and their gradient: planes in phases of the stride.

A band of rows of a plane is copied into scratch with its padding, its rows and columns taken apart into the
phases of the stride. Outputs that are neighbours then read neighbours at each tap of their windows, and rows
of outputs are one long row: vectors are full however short rows are, and shuffles are done once for all taps.

Each output keeps which tap its maximum is, where a gradient adds its dy. Windows of many taps are gone over
in two steps: the maxima of each row of x over the columns of windows, and those of these over their rows.
"""

from __future__ import annotations

from convalgos.cpu.layout.strided_rows import rows_of, strided_elements
from convalgos.cpu.pooling.elements import FLOAT, MAX, PoolElements
from convalgos.cpu.pooling.maxima import INDEX, PLACE, give_places, lane_numbers
from convalgos.cpu.pooling.reductions import UNROLLED, fill_identity, round_elements
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.instructions import ir
from convalgos.cpu.vectors.integers import words_of
from convalgos.cpu.vectors.simd import Value, Vec, carray, pointer, zero_bytes

PHASE_FIELDS = fields(
    "x y dx places scratch scratch_bytes stored size tasks planes bands band_table height columns above "
    "before rows_out outputs row_stride back pitch x_phase y_line taps tap_table begins begins_step x_plane "
    "y_plane sums row_taps row_table"
)
GROUP_BAND = fields("first end")  # groups of as many rows as the stride: of x with its padding, or of outputs
TAP = fields("offset number")  # of x in scratch, from the output's place; what its output keeps of it


@simd.emitter
def split_into_phases(
    v: Vec, FORM: int, STRIDE: int, x: Value, x_row: Value, rows: Value, before: Value, inside: Value,
    target: Value, pitch: Value, step: Value,
) -> None:  # fmt: skip
    """Rows of x[:inside] between `before` and further elements that change no maximum, in STRIDE phases of
    `pitch` elements, `step` apart.

    `before` is less than a vector. Columns are copied from the last to the first, as what the vectors of a
    row write behind its end is overwritten by the row that begins there.
    """
    width = STRIDE * v.lanes
    of, to = PoolElements(v, FORM, MAX), v.pointer(target)
    source, fill = of.maps.at(v.pointer(x), v.isub(0, before)), of.identity()
    end = v.iadd(before, inside)
    whole = v.imax(1, v.idiv(end, width))  # blocks from the second up to this one lie inside
    blocks = v.idiv(v.iadd(pitch, v.lanes - 1), v.lanes)
    for start, stop, masked in ((whole, blocks, 1), (1, whole, 0), (0, 1, 1)):
        with v.loop(v.isub(stop, start)) as i:
            block = v.isub(v.isub(stop, 1), i)
            begins = [v.iadd(v.imul(block, width), j * v.lanes) for j in range(STRIDE)]
            masks = [v.window(v.isub(before, b), v.imax(v.isub(end, b), v.isub(before, b))) for b in begins]
            with v.loop(rows) as row:
                from_ = of.maps.at(source, v.imul(row, x_row))
                line = v.at(to, v.iadd(v.imul(row, pitch), v.imul(block, v.lanes)))
                if masked:
                    read = [
                        v.b.select(mask, of.load(from_, b, mask), fill)
                        for b, mask in zip(begins, masks, strict=True)
                    ]
                else:
                    read = [of.load(from_, b) for b in begins]
                for phase in range(STRIDE):
                    v.store(strided_elements(v, read, phase), line, v.imul(step, phase))


@simd.emitter
def find_maxima(
    v: Vec, NUMBERED: int, x: Value, x_numbers: Value, maxima: Value, numbers: Value, count: Value,
    taps: Value, table: Value, begins: Value, begins_step: Value,
) -> None:  # fmt: skip
    """maxima[i] = the largest of x[i + offset] over the taps, numbers[i] = the tap's number, for i < count.

    NUMBERED: x are maxima themselves, whose numbers are added.

    Of equal elements the first counts, and of NaN the last, as in torch. Rounded up to UNROLLED vectors.

    Args:
        begins: numbers where nothing exceeds -inf: that of output i at i * begins_step.
    """
    of, words = PoolElements(v, FLOAT, MAX), words_of(v)
    source = v.pointer(x)
    block = UNROLLED * v.lanes
    with v.loop(v.idiv(v.iadd(count, block - 1), block)) as i:
        places = [v.iadd(v.imul(i, block), j * v.lanes) for j in range(UNROLLED)]
        totals = [v.register(of.identity()) for _ in places]
        found = [words.register(words.load(v.pointer(begins), v.imul(at, begins_step))) for at in places]
        with v.loop(taps) as t:
            tap = v.record(v.iadd(table, v.imul(t, TAP.itemsize)), TAP)
            number = words.spread(tap.number)
            for at, total, where in zip(places, totals, found, strict=True):
                from_ = v.iadd(at, tap.offset)
                value = v.load(source, from_)
                larger = of.exceeds(value, total.value)
                here = words.add(words.load(v.pointer(x_numbers), from_), number) if NUMBERED else number
                where.set(v.b.select(larger, here, where.value))
                total.set(v.b.select(larger, value, total.value))
        for at, total, where in zip(places, totals, found, strict=True):
            v.store(total.value, v.pointer(maxima), at)
            words.store(where.value, v.pointer(numbers), at)


@simd.emitter
def write_outputs(
    v: Vec, FORM: int, STRIDE: int, maxima: Value, numbers: Value, pitch: Value, rows: Value, outputs: Value,
    y: Value, places: Value, index: Value, index_step: Value,
) -> None:  # fmt: skip
    """Rows of y and of the places of maxima, whose numbers say how far they lie from their window's first.

    index: of the element that is the first of the first window, and from one row of windows to the next.
    """
    of, words = PoolElements(v, FORM, MAX), words_of(v)
    apart = words.mul(lane_numbers(words), words.const(STRIDE))
    with v.loop(v.idiv(v.iadd(outputs, v.lanes - 1), v.lanes)) as i:
        q = v.imul(i, v.lanes)
        mask = v.mask(v.isub(outputs, q))
        with v.loop(rows) as row:
            from_, to = v.iadd(v.imul(row, pitch), q), v.iadd(v.imul(row, outputs), q)
            of.store(v.load(v.pointer(maxima), from_), v.pointer(y), to, mask)
            first = v.iadd(v.iadd(index, v.imul(row, index_step)), v.imul(q, STRIDE))
            place = words.add(words.load(v.pointer(numbers), from_), words.add(apart, words.spread(first)))
            give_places(words, place, v.pointer(places), to, mask)


@simd.emitter
def scatter_outputs(
    v: Vec, FORM: int, STRIDE: int, dy: Value, numbers: Value, pitch: Value, rows: Value, outputs: Value,
    dx: Value, pixels: Value, index: Value, index_step: Value,
) -> None:  # fmt: skip
    """Add rows of dy to the `pixels` of dx where their maxima lie, as `write_outputs` finds it."""
    of, word, to = PoolElements(v, FORM, MAX), ir.IntType(32), v.pointer(dx)
    with v.loop(rows) as row:
        line = of.maps.at(v.pointer(dy), v.imul(row, outputs))
        found = v.b.gep(v.pointer(numbers), [v.imul(row, pitch)], source_etype=word)
        first = v.iadd(index, v.imul(row, index_step))
        with v.loop(outputs) as q:
            number = v.b.load(v.b.gep(found, [q], source_etype=word), typ=word)
            place = v.iadd(v.b.sext(number, ir.IntType(64)), v.iadd(first, v.imul(q, STRIDE)))
            with v.within(place, pixels):
                at = v.at(to, place)
                v.b.store(v.fadd(v.b.load(at, typ=v.element), of.load_one(line, q)), at)


@jit.helper
def split_band(
    SIZE: int, LANES: int, FORM: int, STRIDE: int, args: int, plane: int, first: int, groups: int, target: int
) -> None:
    """Some groups of rows of a plane of x, in phases."""
    a = carray(pointer(args), 1, PHASE_FIELDS)[0]
    for part in range(a.row_stride):
        rows = rows_of(first * a.row_stride + part - a.above, a.row_stride, groups, a.height)
        to = target + part * STRIDE * a.x_phase * SIZE
        for phase in range(STRIDE):
            fill_identity(
                SIZE, LANES, FLOAT, MAX, to + phase * a.x_phase * SIZE, rows.above * a.pitch
            )  # fmt: skip
        split_into_phases(
            SIZE, LANES, FORM, STRIDE,
            a.x + (plane * a.x_plane + (rows.h + rows.above * rows.step) * a.columns) * a.stored,
            rows.step * a.columns, rows.below - rows.above, a.before, a.columns,
            to + rows.above * a.pitch * SIZE, a.pitch, a.x_phase,
        )  # fmt: skip
        for phase in range(STRIDE):
            fill_identity(
                SIZE, LANES, FLOAT, MAX, to + (phase * a.x_phase + rows.below * a.pitch) * SIZE,
                (groups - rows.below) * a.pitch,
            )  # fmt: skip


@jit.helper
def find_in_band(
    SIZE: int, LANES: int, STRIDE: int, args: int, first: int, count: int, x: int, maxima: int, numbers: int
) -> None:
    """Maxima and numbers of `count` rows of outputs from `first` on, of x in phases."""
    a = carray(pointer(args), 1, PHASE_FIELDS)[0]
    begins = a.begins + first * a.pitch * a.begins_step * INDEX
    if not a.row_taps:
        find_maxima(
            SIZE, LANES, False, x, 0, maxima, numbers, count * a.pitch, a.taps, a.tap_table, begins,
            a.begins_step,
        )  # fmt: skip
        return
    lines = numbers + a.y_line * INDEX  # (row_stride, x_phase), and their numbers
    line_numbers = lines + a.row_stride * a.x_phase * SIZE
    for part in range(a.row_stride):
        find_maxima(
            SIZE, LANES, False, x + part * STRIDE * a.x_phase * SIZE, 0, lines + part * a.x_phase * SIZE,
            line_numbers + part * a.x_phase * INDEX, (count + a.back) * a.pitch, a.taps, a.tap_table,
            a.begins, 0,
        )  # fmt: skip
    find_maxima(
        SIZE, LANES, True, lines, line_numbers, maxima, numbers, count * a.pitch, a.row_taps, a.row_table,
        begins, a.begins_step,
    )  # fmt: skip


@jit.specialise
def phase_maxima(SIZE: int, LANES: int, FORM: int, STRIDE: int) -> jit.Kernel:
    """y and places of x (planes, H, W); or where dx is, y is dy, and dx the gradient.

    A gradient that is rounded is summed in scratch, as a plane.
    """

    def phase_maxima(args: int, task: int) -> None:
        a = carray(pointer(args), 1, PHASE_FIELDS)[0]
        bands = carray(pointer(a.band_table), a.bands, GROUP_BAND)
        x = a.scratch + task * a.scratch_bytes
        maxima = x + a.row_stride * STRIDE * a.x_phase * SIZE
        numbers = maxima + a.y_line * SIZE
        begin = a.planes * a.bands * task // a.tasks
        end = a.planes * a.bands * (task + 1) // a.tasks
        top = 0  # rows of dx from this one on that this task writes, band after band of a plane,
        zeroed = 0  # and those up to this one that are begun
        for unit in range(begin, end):
            plane = unit // a.bands
            number = unit % a.bands
            band = bands[number]
            begins = unit == begin or number == 0
            ends = unit == end - 1 or number == a.bands - 1
            first = max(0, band.first - a.back) if a.dx and begins else band.first
            count = max(0, min(band.end, a.rows_out) - first)
            if count:
                split_band(SIZE, LANES, FORM, STRIDE, args, plane, first, count + a.back, x)
                find_in_band(SIZE, LANES, STRIDE, args, first, count, x, maxima, numbers)
            y = a.y + (plane * a.y_plane + first * a.outputs) * a.stored
            index = (first * a.row_stride - a.above) * a.columns - a.before
            if a.dx:
                if begins:
                    top = max(0, band.first * a.row_stride - a.above)
                    zeroed = top
                # rows that the next band reaches as well
                high = min(a.height, (band.end + (0 if ends else a.back)) * a.row_stride - a.above)
                dx = a.dx + plane * a.x_plane * a.stored
                sums = x + a.sums if FORM else dx
                if high > zeroed:
                    zero_bytes(sums + zeroed * a.columns * SIZE, (high - zeroed) * a.columns * SIZE)
                    zeroed = high
                at, pixels = top * a.columns, (zeroed - top) * a.columns
                scatter_outputs(
                    SIZE, LANES, FORM, STRIDE, y, numbers, a.pitch, count, a.outputs, sums + at * SIZE,
                    pixels, index - at, a.row_stride * a.columns,
                )  # fmt: skip
                if FORM and ends:
                    round_elements(SIZE, LANES, FORM, sums + at * SIZE, dx + at * a.stored, pixels)
            else:
                write_outputs(
                    SIZE, LANES, FORM, STRIDE, maxima, numbers, a.pitch, count, a.outputs, y,
                    a.places + (plane * a.y_plane + first * a.outputs) * PLACE, index,
                    a.row_stride * a.columns,
                )  # fmt: skip

    return phase_maxima
