"""What pooling is made of: vectors reduced over the rows of windows, and rows over their columns.

Offsets and counts are in elements, steps too; x and y are addresses.
"""

from __future__ import annotations

from convalgos.cpu.layout.strided_rows import MOST_STRIDE, strided_elements
from convalgos.cpu.pooling.elements import MAX, MEAN, PoolElements
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.blocks import loop_chunks
from convalgos.cpu.vectors.instructions import Register, ir
from convalgos.cpu.vectors.lanes import store_lanes
from convalgos.cpu.vectors.simd import Value, Vec

UNROLLED = 4  # vectors that are reduced at a time
SPLIT_STRIDE = 2  # of windows in a row up to which shuffles take elements apart, in vectors of any length
COLUMN = fields("first taps")  # of the windows of a column: of x, from the block's first, and how many


def split_stride(stride: int, lanes: int) -> int:
    """The STRIDE of kernels that take elements of a row apart: by so many shuffles, or 0 for one by one."""
    return stride if stride <= max(SPLIT_STRIDE, min(MOST_STRIDE, lanes // 2)) else 0


class Divisor:
    """What means of several vectors are divided by: products with its reciprocal, rounded as quotients are.

    A division of a wide vector takes as long as all else that is done for it. What a product leaves is known
    exactly by a fused multiplication, and corrects it.

    Source: Markstein 1990, IBM Journal of Research and Development 34 (1).
    """

    def __init__(self, v: Vec, by: Value):
        self._v, self._by = v, by
        self._reciprocal = v.b.fdiv(v.const(1.0), by)

    def quotient(self, value: Value) -> Value:
        """value / by."""
        v = self._v
        near = v.fmul(value, self._reciprocal)
        left = v.fma(v.fsub(v.zero(), near), self._by, value)
        exact = v.fma(left, self._reciprocal, near)
        # of infinity nothing is left that is a number
        return v.b.select(v.b.fcmp_unordered("uno", exact, exact), near, exact)


@simd.emitter
def fill_identity(v: Vec, FORM: int, REDUCTION: int, target: Value, count: Value) -> None:
    """target[:count], rounded up to whole vectors, is what changes no reduction."""
    of = PoolElements(v, FORM, REDUCTION)
    with v.loop(v.idiv(v.iadd(count, v.lanes - 1), v.lanes)) as i:
        of.v.store(of.identity(), v.pointer(target), v.imul(i, v.lanes))


@simd.emitter
def round_elements(v: Vec, FORM: int, source: Value, target: Value, count: Value) -> None:
    """target[:count] = source, which may be read for a vector behind its end."""
    of, from_, to = PoolElements(v, FORM, MAX), v.pointer(source), v.pointer(target)

    def chunk(first: Value, vectors: int, mask: Value = None) -> None:
        for i in range(vectors):
            at = v.iadd(first, i * v.lanes)
            of.store(v.load(from_, at), to, at, mask)

    loop_chunks(of.v, of.maps, count, UNROLLED, chunk)


@simd.emitter
def reduce_rows(
    v: Vec, FORM: int, REDUCTION: int, x: Value, target: Value, count: Value, slices: Value, rows: Value,
    slice_step: Value, row_step: Value,
) -> None:  # fmt: skip
    """target[i] = the reduction of x[t * slice_step + r * row_step + i] over t < slices, r < rows."""
    of = PoolElements(v, FORM, REDUCTION)
    source, to = v.pointer(x), v.pointer(target)

    def chunk(first: Value, vectors: int, mask: Value = None) -> None:
        totals = [_register(of) for _ in range(vectors)]
        with v.loop(slices) as t, v.loop(rows) as r:
            line = of.maps.at(source, v.iadd(first, v.iadd(v.imul(t, slice_step), v.imul(r, row_step))))
            for j, total in enumerate(totals):
                total.set(of.reduced(total.value, of.load(line, j * v.lanes, mask)))
        for j, total in enumerate(totals):
            of.v.store(total.value, of.v.at(to, first), j * v.lanes)  # behind the end, too

    loop_chunks(of.v, of.v, count, UNROLLED, chunk)


@simd.emitter
def reduce_columns(
    v: Vec, FORM: int, REDUCTION: int, WHOLE: int, row: Value, y: Value, channels: Value, windows: Value,
    outputs: Value, pixel: Value, tap_step: Value, y_pixel: Value, counts: Value, row_count: Value,
    slices: Value, rows: Value, slice_step: Value, row_step: Value,
) -> None:  # fmt: skip
    """Channels last: y[q][c] = the reduction of row[first[q] * pixel + s * tap_step + c] over s < taps[q].

    Args:
        WHOLE: whether `row` is the first of x under these windows, and all their rows are reduced as well:
            t * slice_step + r * row_step further on, t < slices, r < rows. Else it is a row of scratch.
        windows: address of `COLUMN` for each output.
        counts, row_count: of a mean, addresses of what each output's columns, and all of this row, count.
    """
    of = PoolElements(v, FORM, REDUCTION)
    maps = of.maps if WHOLE else of.v
    source, to = v.pointer(row), v.pointer(y)

    def reduce_taps(totals: list[Register], line: Value, taps: Value, mask: Value) -> None:
        with v.loop(taps) as s:
            from_ = maps.at(line, v.imul(s, tap_step))
            for j, total in enumerate(totals):
                at = j * v.lanes
                further = of.load(from_, at, mask) if WHOLE else of.v.load(from_, at)
                total.set(of.reduced(total.value, further))

    with v.loop(outputs) as q:
        window = v.record(v.iadd(windows, v.imul(q, COLUMN.itemsize)), COLUMN)
        begin = maps.at(source, v.imul(window.first, pixel))
        target = of.maps.at(to, v.imul(q, y_pixel))
        divisor = None
        if REDUCTION == MEAN:
            divisor = Divisor(v, v.fmul(v.broadcast(v.pointer(counts), q), v.broadcast(v.pointer(row_count))))

        def chunk(
            first: Value, vectors: int, mask: Value = None, *, begin: Value = begin, target: Value = target,
            taps: Value = window.taps, divisor: Divisor | None = divisor,
        ) -> None:  # fmt: skip
            totals = [_register(of) for _ in range(vectors)]
            if WHOLE:
                with v.loop(slices) as t, v.loop(rows) as r:
                    further = v.iadd(v.imul(t, slice_step), v.imul(r, row_step))
                    reduce_taps(totals, maps.at(begin, v.iadd(first, further)), taps, mask)
            else:
                reduce_taps(totals, maps.at(begin, first), taps, mask)
            for j, total in enumerate(totals):
                value = total.value if divisor is None else divisor.quotient(total.value)
                of.store(value, of.maps.at(target, first), j * v.lanes, mask)

        loop_chunks(of.v, of.v, channels, UNROLLED, chunk)


@simd.emitter
def reduce_along(
    v: Vec, FORM: int, REDUCTION: int, STRIDE: int, row: Value, y: Value, outputs: Value, taps: Value,
    dilation: Value, stride: Value, counts: Value, rows: Value,
) -> None:  # fmt: skip
    """Channels first: y[q] = the reduction of row[q * stride + s * dilation] over s < taps, for q < outputs.

    `row` holds what changes nothing where padding is, and is readable for some vectors behind its end.
    STRIDE 0 stands for any; counts, rows: see `reduce_columns`.
    """
    of = PoolElements(v, FORM, REDUCTION)
    source, to = v.pointer(row), v.pointer(y)

    def outputs_from(q: Value, mask: Value = None) -> None:
        total = _register(of)
        with v.loop(taps) as s:
            begin = v.iadd(v.imul(q, STRIDE or stride), v.imul(s, dilation))
            total.set(of.reduced(total.value, elements_apart(of, STRIDE, source, begin, stride)))
        value = total.value
        if REDUCTION == MEAN:
            value = v.b.fdiv(value, v.fmul(v.load(v.pointer(counts), q), v.broadcast(v.pointer(rows))))
        of.store(value, to, q, mask)

    whole = v.idiv(outputs, v.lanes)
    with v.loop(whole) as i:
        outputs_from(v.imul(i, v.lanes))
    done = v.imul(whole, v.lanes)
    with v.unless_negative(v.isub(v.isub(outputs, done), 1)):
        outputs_from(done, of.v.mask(v.isub(outputs, done)))


def elements_apart(of: PoolElements, stride: int, source: Value, begin: Value, any_stride: Value) -> Value:
    """Elements of a row from `begin` on that lie a stride apart, as a vector; stride 0 stands for any."""
    v = of.v
    if stride:
        return strided_elements(v, [v.load(source, v.iadd(begin, k * v.lanes)) for k in range(stride)], 0)
    value = v.zero()
    for i in range(v.lanes):
        element = v.b.load(v.at(source, v.iadd(begin, v.imul(any_stride, i))), typ=v.element)
        value = v.b.insert_element(value, element, ir.Constant(ir.IntType(32), i))
    return value


@simd.emitter
def reduce_planes(
    v: Vec, FORM: int, REDUCTION: int, x: Value, y: Value, planes: Value, count: Value, plane_step: Value,
    counts: Value, rows: Value,
) -> None:  # fmt: skip
    """y[i] = the reduction of x[i * plane_step + j] over j < count, for i < planes."""
    of = PoolElements(v, FORM, REDUCTION)
    source, to = v.pointer(x), v.pointer(y)
    width = UNROLLED * v.lanes
    many = v.idiv(count, width)
    single = v.idiv(v.isub(count, v.imul(many, width)), v.lanes)
    done = v.iadd(v.imul(many, width), v.imul(single, v.lanes))
    tail = of.v.mask(v.isub(count, done))
    first = of.v.first_lanes(1)
    with v.loop(planes) as i:
        plane = of.maps.at(source, v.imul(i, plane_step))
        totals = [_register(of) for _ in range(UNROLLED)]
        with v.loop(many) as j:
            for k, total in enumerate(totals):
                at = v.iadd(v.imul(j, width), k * v.lanes)
                total.set(of.reduced(total.value, of.load(plane, at)))
        with v.loop(single) as j:
            at = v.iadd(v.imul(many, width), v.imul(j, v.lanes))
            totals[0].set(of.reduced(totals[0].value, of.load(plane, at)))
        with v.unless_negative(v.isub(v.isub(count, done), 1)):
            last = v.b.select(tail, of.load(plane, done, tail), of.identity())
            totals[1].set(of.reduced(totals[1].value, last))
        low = of.reduced(totals[0].value, totals[1].value)
        value = of.over_lanes(of.reduced(low, of.reduced(totals[2].value, totals[3].value)))
        if REDUCTION == MEAN:
            value = v.b.fdiv(value, v.fmul(v.broadcast(v.pointer(counts)), v.broadcast(v.pointer(rows))))
        of.store(value, to, i, first)


def _register(of: PoolElements) -> Register:
    return of.v.register(of.identity())


@simd.emitter
def zero_pixels(v: Vec, dx: Value, pixels: Value, step: Value, channels: Value) -> None:
    """dx[i * step + c] = 0 for i < pixels, c < channels."""
    with v.loop(pixels) as i:
        pixel = v.at(v.pointer(dx), v.imul(i, step))

        def chunk(first: Value, vectors: int, mask: Value = None, *, pixel: Value = pixel) -> None:
            for k in range(vectors):
                store_lanes(v, v.zero(), v.at(pixel, first), k * v.lanes, mask)

        loop_chunks(v, v, channels, UNROLLED, chunk)
