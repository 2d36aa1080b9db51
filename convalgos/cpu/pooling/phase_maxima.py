"""Maxima of windows with channels first, where they lie and their gradient: planes in phases of the stride.

A band of rows of a plane is copied into scratch with its padding, its rows and columns taken apart into the
phases of the stride. Outputs that are neighbours then read neighbours at each tap of their windows, and rows
of outputs are one long row: vectors are full however short rows are, and shuffles are done once for all taps.

Each output keeps which tap its maximum is. The gradient is gathered by the same taps turned round: each phase
of dx sums those dy before it whose maximum is the tap between them, and the phases are merged to rows.
"""

from __future__ import annotations

from convalgos.cpu.layout.strided_rows import elements_in_turns, rows_of, strided_elements
from convalgos.cpu.pooling.elements import FLOAT, MAX, MEAN, PoolElements
from convalgos.cpu.pooling.maxima import INDEX, PLACE, give_places, lane_numbers
from convalgos.cpu.pooling.reductions import UNROLLED, fill_identity
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.integers import words_of
from convalgos.cpu.vectors.simd import Value, Vec, carray, pointer, zero_bytes

PHASE_FIELDS = fields(
    "x y dx places scratch scratch_bytes stored size tasks planes bands band_table height columns above "
    "before rows_out outputs row_stride back lead pitch x_phase y_line dx_phase taps tap_table dx_taps "
    "begins begins_step x_plane y_plane"
)
GROUP_BAND = fields("first end")  # groups of as many rows as the stride: of x with its padding, or of outputs
TAP = fields("offset number")  # of x in scratch, from the output's place; what its output keeps of it
PHASE_TAPS = fields("taps table")  # of a phase of dx: those `TAP` whose windows meet it, of dy before it


@simd.emitter
def split_into_phases(
    v: Vec, STRIDE: int, REDUCTION: int, x: Value, x_row: Value, rows: Value, before: Value, inside: Value,
    target: Value, pitch: Value, step: Value,
) -> None:  # fmt: skip
    """Rows of x[:inside] between `before` and further elements that change no reduction, in STRIDE phases of
    `pitch` elements, `step` apart.

    `before` is less than a vector. Columns are copied from the last to the first, as what the vectors of a
    row write behind its end is overwritten by the row that begins there.
    """
    width = STRIDE * v.lanes
    source, to, fill = (
        v.at(v.pointer(x), v.isub(0, before)),
        v.pointer(target),
        PoolElements(v, FLOAT, REDUCTION).identity(),
    )
    end = v.iadd(before, inside)
    whole = v.imax(1, v.idiv(end, width))  # blocks from the second up to this one lie inside
    blocks = v.idiv(v.iadd(pitch, v.lanes - 1), v.lanes)
    for start, stop, masked in ((whole, blocks, 1), (1, whole, 0), (0, 1, 1)):
        with v.loop(v.isub(stop, start)) as i:
            block = v.isub(v.isub(stop, 1), i)
            begins = [v.iadd(v.imul(block, width), j * v.lanes) for j in range(STRIDE)]
            masks = [v.window(v.isub(before, b), v.imax(v.isub(end, b), v.isub(before, b))) for b in begins]
            with v.loop(rows) as row:
                from_ = v.at(source, v.imul(row, x_row))
                line = v.at(to, v.iadd(v.imul(row, pitch), v.imul(block, v.lanes)))
                if masked:
                    read = [
                        v.b.select(mask, v.load_masked(from_, b, mask), fill)
                        for b, mask in zip(begins, masks, strict=True)
                    ]
                else:
                    read = [v.load(from_, b) for b in begins]
                for phase in range(STRIDE):
                    v.store(strided_elements(v, read, phase), line, v.imul(step, phase))


@simd.emitter
def find_maxima(
    v: Vec, x: Value, maxima: Value, numbers: Value, count: Value, taps: Value, table: Value, begins: Value,
    begins_step: Value,
) -> None:  # fmt: skip
    """maxima[i] = the largest of x[i + offset] over the taps, numbers[i] = the tap's number, for i < count.

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
                value = v.load(source, v.iadd(at, tap.offset))
                larger = of.exceeds(value, total.value)
                where.set(v.b.select(larger, number, where.value))
                total.set(v.b.select(larger, value, total.value))
        for at, total, where in zip(places, totals, found, strict=True):
            v.store(total.value, v.pointer(maxima), at)
            words.store(where.value, v.pointer(numbers), at)


@simd.emitter
def write_outputs(
    v: Vec, STRIDE: int, maxima: Value, numbers: Value, pitch: Value, rows: Value, outputs: Value, y: Value,
    places: Value, index: Value, index_step: Value,
) -> None:  # fmt: skip
    """Rows of y and of the places of maxima, whose numbers say how far they lie from their window's first.

    index: of the element that is the first of the first window, and from one row of windows to the next.
    """
    words = words_of(v)
    apart = words.mul(lane_numbers(words), words.const(STRIDE))
    with v.loop(v.idiv(v.iadd(outputs, v.lanes - 1), v.lanes)) as i:
        q = v.imul(i, v.lanes)
        mask = v.mask(v.isub(outputs, q))
        with v.loop(rows) as row:
            from_, to = v.iadd(v.imul(row, pitch), q), v.iadd(v.imul(row, outputs), q)
            v.store_masked(v.load(v.pointer(maxima), from_), v.pointer(y), to, mask)
            first = v.iadd(v.iadd(index, v.imul(row, index_step)), v.imul(q, STRIDE))
            place = words.add(words.load(v.pointer(numbers), from_), words.add(apart, words.spread(first)))
            give_places(words, place, v.pointer(places), to, mask)


@simd.emitter
def gather_phase(
    v: Vec, dy: Value, numbers: Value, target: Value, count: Value, taps: Value, table: Value
) -> None:
    """target[i] = the sum of dy[i - offset] over the taps of number numbers[i - offset], for i < count."""
    words, block = words_of(v), UNROLLED * v.lanes
    with v.loop(v.idiv(v.iadd(count, block - 1), block)) as i:
        places = [v.iadd(v.imul(i, block), j * v.lanes) for j in range(UNROLLED)]
        totals = [v.register(v.zero()) for _ in places]
        with v.loop(taps) as t:
            tap = v.record(v.iadd(table, v.imul(t, TAP.itemsize)), TAP)
            number = words.spread(tap.number)
            for at, total in zip(places, totals, strict=True):
                from_ = v.isub(at, tap.offset)
                mine = v.b.icmp_signed("==", words.load(v.pointer(numbers), from_), number)
                more = v.fadd(total.value, v.load(v.pointer(dy), from_))
                total.set(v.b.select(mine, more, total.value))
        for at, total in zip(places, totals, strict=True):
            v.store(total.value, v.pointer(target), at)


@simd.emitter
def merge_phases(
    v: Vec, STRIDE: int, first: Value, second: Value, pitch: Value, rows: Value, columns: Value, dx: Value,
    dx_row: Value,
) -> None:  # fmt: skip
    """Rows of dx, of elements of one phase, or of two by turns."""
    phases = [v.pointer(first), v.pointer(second)][:STRIDE]
    width = STRIDE * v.lanes

    def block(at: Value, masks: list[Value] | None) -> None:
        with v.loop(rows) as row:
            from_ = v.iadd(v.imul(row, pitch), v.imul(at, v.lanes))
            values = elements_in_turns(v, [v.load(phase, from_) for phase in phases])
            line = v.at(v.pointer(dx), v.iadd(v.imul(row, dx_row), v.imul(at, width)))
            for j, value in enumerate(values):
                if masks is None:
                    v.store(value, line, j * v.lanes)
                else:
                    v.store_masked(value, line, j * v.lanes, masks[j])

    whole = v.idiv(columns, width)
    with v.loop(whole) as i:
        block(i, None)
    rest = v.isub(columns, v.imul(whole, width))
    with v.unless_negative(v.isub(rest, 1)):
        block(whole, [v.mask(v.isub(rest, j * v.lanes)) for j in range(STRIDE)])


@jit.helper
def gradient_of_band(
    SIZE: int, LANES: int, STRIDE: int, args: int, plane: int, group: int, end: int, numbers: int, dy: int,
    dx: int,
) -> None:  # fmt: skip
    """dx of the groups of rows from `group` to `end` of a plane.

    Args:
        numbers, dy: in scratch, of the output `back` rows above the group's first.
        dx: scratch.
    """
    a = carray(pointer(args), 1, PHASE_FIELDS)[0]
    phases = carray(pointer(a.dx_taps), a.row_stride * STRIDE, PHASE_TAPS)
    at = a.back * a.pitch
    for phase in range(a.row_stride * STRIDE):
        gather_phase(
            SIZE, LANES, dy + at * SIZE, numbers + at * INDEX, dx + phase * a.dx_phase * SIZE,
            (end - group) * a.pitch, phases[phase].taps, phases[phase].table,
        )  # fmt: skip
    turned = a.before % STRIDE  # whether elements of the second phase come first
    for part in range(a.row_stride):
        rows = rows_of(group * a.row_stride + part - a.above, a.row_stride, end - group, a.height)
        even = dx + (part * STRIDE * a.dx_phase + rows.above * a.pitch + a.before // STRIDE) * SIZE
        odd = even + a.dx_phase * SIZE
        to = a.dx + (plane * a.x_plane + (rows.h + rows.above * rows.step) * a.columns) * SIZE
        merge_phases(
            SIZE, LANES, STRIDE, odd if turned else even, even + SIZE if turned else odd, a.pitch,
            rows.below - rows.above, a.columns, to, a.row_stride * a.columns,
        )  # fmt: skip


@jit.helper
def split_band(
    SIZE: int, LANES: int, STRIDE: int, args: int, plane: int, first: int, groups: int, target: int
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
            SIZE, LANES, STRIDE, MAX,
            a.x + (plane * a.x_plane + (rows.h + rows.above * rows.step) * a.columns) * SIZE,
            rows.step * a.columns, rows.below - rows.above, a.before, a.columns,
            to + rows.above * a.pitch * SIZE, a.pitch, a.x_phase,
        )  # fmt: skip
        for phase in range(STRIDE):
            fill_identity(
                SIZE, LANES, FLOAT, MAX, to + (phase * a.x_phase + rows.below * a.pitch) * SIZE,
                (groups - rows.below) * a.pitch,
            )  # fmt: skip


@jit.specialise
def phase_maxima(SIZE: int, LANES: int, STRIDE: int) -> jit.Kernel:
    """y and places of x (planes, H, W); or where dx is, y is dy, and dx the gradient."""

    def phase_maxima(args: int, task: int) -> None:
        a = carray(pointer(args), 1, PHASE_FIELDS)[0]
        bands = carray(pointer(a.band_table), a.bands, GROUP_BAND)
        x = a.scratch + task * a.scratch_bytes
        maxima = x + a.row_stride * STRIDE * a.x_phase * SIZE  # of a gradient, dy
        numbers = maxima + a.y_line * SIZE
        dx = numbers + a.y_line * INDEX
        total = a.planes * a.bands
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            plane = unit // a.bands
            band = bands[unit % a.bands]
            first = max(0, band.first - a.back) if a.dx else band.first
            count = max(0, min(band.end, a.rows_out) - first)
            # where outputs of the band lie in scratch: those above all stand for none
            at = a.lead + ((first - band.first + a.back) * a.pitch if a.dx else 0)
            if count:
                split_band(SIZE, LANES, STRIDE, args, plane, first, count + a.back, x)
                find_maxima(
                    SIZE, LANES, x, maxima + at * SIZE, numbers + at * INDEX, count * a.pitch, a.taps,
                    a.tap_table, a.begins + first * a.pitch * a.begins_step * INDEX, a.begins_step,
                )  # fmt: skip
            y = a.y + (plane * a.y_plane + first * a.outputs) * SIZE
            if a.dx:
                zero = a.lead + (a.back + band.end - band.first) * a.pitch
                zero_bytes(maxima, at * SIZE)
                split_into_phases(
                    SIZE, LANES, 1, MEAN, y, a.outputs, count, 0, a.outputs, maxima + at * SIZE, a.pitch, 0
                )
                end = at + count * a.pitch
                zero_bytes(maxima + end * SIZE, max(0, zero - end) * SIZE)
                gradient_of_band(
                    SIZE, LANES, STRIDE, args, plane, band.first, band.end, numbers + a.lead * INDEX,
                    maxima + a.lead * SIZE, dx,
                )  # fmt: skip
            else:
                index = (first * a.row_stride - a.above) * a.columns - a.before
                places = a.places + (plane * a.y_plane + first * a.outputs) * PLACE
                write_outputs(
                    SIZE, LANES, STRIDE, maxima + at * SIZE, numbers + at * INDEX, a.pitch, count, a.outputs,
                    y, places, index, a.row_stride * a.columns,
                )  # fmt: skip

    return phase_maxima
