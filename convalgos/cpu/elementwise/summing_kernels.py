"""The driver that sums arrays over the middle one of three dimensions."""

from __future__ import annotations

from convalgos.cpu.elementwise.pixel_vectors import in_all_lanes
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.blocks import loop_chunks
from convalgos.cpu.vectors.lanes import load_lanes, store_lanes
from convalgos.cpu.vectors.simd import Value, Vec, carray, pointer
from convalgos.cpu.vectors.transpose import transpose

UNROLLED = 4  # vectors at a time
SHORT = 64  # elements of a row up to which rows are summed side by side, in squares turned over

# y (rows, inner) of x (rows, count, inner), times the float at `scale`; units of `chunk` rows, or of as many
# elements of an inner dimension
SUM_FIELDS = fields("x y rows count inner scale chunk tasks")


@jit.specialise
def sum_share(SIZE: int, LANES: int) -> jit.Kernel:
    """The units of a task."""

    def sum_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, SUM_FIELDS)[0]
        size = a.rows if a.inner == 1 else a.inner
        units = (size + a.chunk - 1) // a.chunk
        total = units if a.inner == 1 else units * a.rows
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            first = unit % units * a.chunk
            count = min(a.chunk, size - first)
            if a.inner > 1:
                row = unit // units
                x = a.x + (row * a.count * a.inner + first) * SIZE
                y = a.y + (row * a.inner + first) * SIZE
                sum_columns(SIZE, LANES, x, y, a.count, a.inner, count, a.scale)
            elif a.count <= SHORT:
                x, y = a.x + first * a.count * SIZE, a.y + first * SIZE
                sum_short_rows(SIZE, LANES, x, y, count, a.count, a.scale)
            else:
                x, y = a.x + first * a.count * SIZE, a.y + first * SIZE
                sum_long_rows(SIZE, LANES, x, y, count, a.count, a.scale)

    return sum_share


@simd.emitter
def sum_columns(v: Vec, x: Value, y: Value, rows: Value, step: Value, count: Value, scale: Value) -> None:
    """y[i] = scale times the sum of x[r * step + i] over rows r."""
    source, to, by = v.pointer(x), v.pointer(y), v.broadcast(v.pointer(scale))

    def chunk(first: Value, vectors: int, mask: Value = None) -> None:
        sums = [v.register(v.zero()) for _ in range(vectors)]
        with v.loop(rows) as r:
            row = v.at(source, v.imul(r, step))
            for i, total in enumerate(sums):
                at = v.iadd(first, i * v.lanes)
                value = load_lanes(v, row, at, mask)
                total.set(v.fadd(total.value, value))
        for i, total in enumerate(sums):
            at, value = v.iadd(first, i * v.lanes), v.fmul(total.value, by)
            store_lanes(v, value, to, at, mask)

    loop_chunks(v, v, count, UNROLLED, chunk)


@simd.emitter
def sum_short_rows(v: Vec, x: Value, y: Value, rows: Value, count: Value, scale: Value) -> None:
    """y[r] = scale times the sum of x[r * count + i] over i; lanes of vectors are rows."""
    source, to, by = v.pointer(x), v.pointer(y), v.broadcast(v.pointer(scale))
    with v.loop(v.idiv(v.iadd(rows, v.lanes - 1), v.lanes)) as square:
        first, total = v.imul(square, v.lanes), v.register(v.zero())
        last = v.isub(rows, 1)
        begins = [v.at(source, v.imul(v.imin(v.iadd(first, i), last), count)) for i in range(v.lanes)]
        with v.loop(v.idiv(v.iadd(count, v.lanes - 1), v.lanes)) as block:
            at = v.imul(block, v.lanes)
            mask = v.mask(v.isub(count, at))
            columns = transpose(v, [v.load_masked(row, at, mask) for row in begins])
            total.set(v.fadd(total.value, _in_pairs(v, columns)))
        v.store_masked(v.fmul(total.value, by), to, first, v.mask(v.isub(rows, first)))


@simd.emitter
def sum_long_rows(v: Vec, x: Value, y: Value, rows: Value, count: Value, scale: Value) -> None:
    """The same, one row after the other."""
    source, to, by = v.pointer(x), v.pointer(y), v.broadcast(v.pointer(scale))
    one = v.mask(1)
    with v.loop(rows) as r:
        row = v.at(source, v.imul(r, count))
        sums = [v.register(v.zero()) for _ in range(UNROLLED)]

        def chunk(first: Value, vectors: int, mask: Value = None) -> None:
            for i in range(vectors):
                at = v.iadd(first, i * v.lanes)
                value = load_lanes(v, row, at, mask)
                sums[i].set(v.fadd(sums[i].value, value))

        loop_chunks(v, v, count, UNROLLED, chunk)
        total = in_all_lanes(v, _in_pairs(v, [part.value for part in sums]), v.fadd)
        v.store_masked(v.fmul(total, by), to, r, one)


def _in_pairs(v: Vec, values: list[Value]) -> Value:
    """The sum of so many as are a power of two."""
    while len(values) > 1:
        values = [v.fadd(a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
    return values[0]
