"""Rows of dx of a strided depthwise layer in channels_last, with channels in the lanes.

A stride of columns of dx, `STRIDE` pixels, is reached by the same pixels of dy, each by taps of its own: tap
`STRIDE d + phase - before` at a displacement d. So a block of some strides stays in registers over all rows of
taps; a pixel of dy is loaded once for each, and meets all its taps. No product is with a zero that a phase
would need. Beyond the edges a vector of zeros takes the place of dy, and one in scratch that of dx.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from convalgos.core.machine import vector_bytes
from convalgos.core.problem import ConvProblem
from convalgos.cpu.backward.row_taps import ROW_TAPS
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import arguments
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import Value, call, carray, pointer

UPSAMPLED_PIXELS = arguments(
    "size images channels height width out_width front tap_rows row_step blocks vectors zeros vector_bytes "
    "x_n y_n tasks sum_row"
)
MOST_SUMS = {64: 14, 32: 8, 16: 8}  # in registers, by vector bytes


@simd.emitter
def upsampled_row(
    v: simd.Vec, STRIDE: int, TAPS: int, BEFORE: int, BLOCK: int, args: Value, row: Value, x: Value, y: Value,
    spare: Value,
) -> None:  # fmt: skip
    """A row of dx, block by block of BLOCK strides, and of each all channels; the last blocks overlap."""
    a = v.record(args, UPSAMPLED_PIXELS)
    rows = v.record(v.iadd(a.tap_rows, v.imul(row, ROW_TAPS.itemsize)), ROW_TAPS)
    displacements, c = displacements_of(STRIDE, TAPS, BEFORE), a.channels
    reach = BLOCK + displacements - 1  # pixels of dy that a block meets
    low, last = v.lower_bound(a.relu), v.isub(c, v.lanes)
    line = v.imul(a.out_width, c)

    def sum_block(column: Value, first: Value, at_border: bool) -> None:
        """column: of dx, the first; first: the pixel of dy that it meets at the last displacement."""
        with v.loop(a.vectors) as n:
            channel = v.imin(v.imul(n, v.lanes), last)
            added = v.load(v.pointer(a.bias), channel)
            sums = [[v.register(added) for _ in range(STRIDE)] for _ in range(BLOCK)]
            dy, w = v.at(v.pointer(x), channel), v.at(v.pointer(a.w), channel)
            with v.loop(rows.count) as t:
                from_ = v.at(dy, v.iadd(v.imul(v.isub(rows.row, t), line), v.imul(first, c)))
                tap = v.iadd(rows.tap, v.imul(t, a.row_step))
                taps = v.at(w, v.imul(tap, v.imul(c, TAPS)))
                weights = [v.load(taps, v.imul(c, s)) for s in range(TAPS)]  # (TAPS, lanes)
                for j in range(reach):
                    pixel = v.at(from_, v.imul(c, j))
                    if at_border:
                        pixel = inside(v.iadd(first, j), a.out_width, pixel, a.zeros)
                    value = v.load(pixel)  # (lanes,)
                    for i, phase, s in met(j):
                        total = sums[i][phase]
                        total.set(v.fma(value, weights[s], total.value))
            target = v.at(v.pointer(y), v.iadd(v.imul(column, c), channel))
            for i, pixels in enumerate(sums):
                for phase, total in enumerate(pixels):
                    q = i * STRIDE + phase
                    to = v.at(target, v.imul(c, q))
                    if at_border:
                        to = inside(v.iadd(column, q), a.width, to, spare)
                    v.store(v.fmax(total.value, low), to)

    def inside(index: Value, count: Value, pixel: Value, other: Value) -> Value:
        return v.inside(index, count, pixel, v.pointer(other))

    def met(j: int) -> Iterator[tuple[int, int, int]]:
        """Where the j-th pixel of dy counts: (stride of the block, phase, tap)."""
        for i in range(BLOCK):
            d = i - j + displacements - 1
            for phase in range(STRIDE):
                s = STRIDE * d + phase - BEFORE
                if 0 <= d < displacements and 0 <= s < TAPS:
                    yield i, phase, s

    strides = v.idiv(v.iadd(a.width, STRIDE - 1), STRIDE)
    with v.loop(a.blocks) as b:
        i = v.imax(0, v.imin(v.imul(b, BLOCK), v.isub(strides, BLOCK)))
        column, first = v.imul(i, STRIDE), v.iadd(i, v.isub(a.front, displacements - 1))
        left = v.isub(a.width, v.iadd(column, BLOCK * STRIDE))
        right = v.isub(a.out_width, v.iadd(first, reach))
        with v.choose(v.imin(first, v.imin(left, right))) as (whole, at_border):
            with whole:
                sum_block(column, first, False)
            with at_border:
                sum_block(column, first, True)


@jit.specialise
def sum_upsampled_row(
    SIZE: int, LANES: int, STRIDE: int, TAPS: int, BEFORE: int, BLOCK: int
) -> Callable[..., None]:
    """A row of dx of an image."""

    def sum_upsampled_row(args: int, row: int, x: int, y: int, spare: int) -> None:
        upsampled_row(SIZE, LANES, STRIDE, TAPS, BEFORE, BLOCK, args, row, x, y, spare)

    return sum_upsampled_row


@jit.specialise
def sum_upsampled_rows() -> Callable[..., None]:
    """Images x rows of dx, dealt to the tasks in equal runs."""

    def sum_upsampled_rows(args: int, task: int) -> None:
        a = carray(pointer(args), 1, UPSAMPLED_PIXELS)[0]
        total, spare = a.images * a.height, a.scratch + task * a.vector_bytes
        for item in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            n, i = item // a.height, item % a.height
            x, y = a.x + n * a.x_n * a.size, a.y + (n * a.y_n + i * a.width * a.channels) * a.size
            call(a.sum_row, (args, i, x, y, spare))

    return sum_upsampled_rows


def displacements_of(stride: int, taps: int, before: int) -> int:
    """At which a row of so many taps meets dy; before: places ahead of the first tap that have none."""
    return (taps - 1 + before) // stride + 1


def block_of(stride: int) -> int:
    """Strides of a block of columns."""
    return max(1, MOST_SUMS[vector_bytes()] // stride)


def front_and_before(p: ConvProblem) -> tuple[int, int]:
    """The pixel of dy that the first stride meets at the first displacement, and `before` of that."""
    low, stride = p.padding[1][0], p.stride[1]
    front = -(-low // stride)
    return front, front * stride - low
