"""The driver of local response normalisation, over windows of channels, in every layout.

Where pixels lie together vectors hold neighbouring pixels, and windows go over planes. Where channels do, the
squares of a pixel are written side by side with zeros around them, and read at each place of the window.
Powers are exp(exponent * ln x).
"""

from __future__ import annotations

from convalgos.cpu.elementwise.pixel_vectors import (
    each_pixel_vector,
    run_of_pixels,
)
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.activations import exponential
from convalgos.cpu.vectors.lanes import load_lanes, store_lanes
from convalgos.cpu.vectors.logarithms import logarithm
from convalgos.cpu.vectors.simd import Value, Vec, carray, pointer

# Steps in elements, as those of `norm_kernels`; windows reach `below` and `above` a channel. `numbers`: what
# is added to sums of squares, what these are multiplied by before, and the power of it all. `squares`: where
# those of channel 0 of the first task go, with zeros around; `squares_task`: elements from one task on.
LRN_FIELDS = fields(
    "x y squares squares_task numbers by_pixel images pixels channels below above x_n y_n pixel_step "
    "channel_step tasks"
)


@jit.specialise
def lrn_share(SIZE: int, LANES: int) -> jit.Kernel:
    """The pixels of a task, in runs within an image."""

    def lrn_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, LRN_FIELDS)[0]
        squares = a.squares + task * a.squares_task * SIZE
        at = a.images * a.pixels * task // a.tasks
        end = a.images * a.pixels * (task + 1) // a.tasks
        while at < end:
            run, x, y = run_of_pixels(a, at, end, SIZE)
            if a.by_pixel:
                lrn_planes(SIZE, LANES, x, y, a.numbers, run, a.channels, a.below, a.above, a.channel_step)
            else:
                lrn_pixels(SIZE, LANES, x, y, squares, a.numbers, run, a.channels, a.below, a.above,
                           a.pixel_step, a.channel_step)  # fmt: skip
            at += run

    return lrn_share


@simd.emitter
def lrn_planes(
    v: Vec, x: Value, y: Value, numbers: Value, count: Value, channels: Value, below: Value, above: Value,
    plane: Value,
) -> None:  # fmt: skip
    """Of pixels that lie together: channels are planes, and each lane holds a pixel."""
    source, to = v.pointer(x), v.pointer(y)

    def vectors(first: Value, offsets: range, mask: Value) -> None:
        with v.loop(channels) as c:
            begin = v.imax(v.isub(c, below), 0)
            end = v.imin(v.iadd(v.iadd(c, above), 1), channels)
            sums = [v.register(v.zero()) for _ in offsets]
            with v.loop(v.isub(end, begin)) as i:
                row = v.iadd(first, v.imul(v.iadd(begin, i), plane))
                for offset, total in zip(offsets, sums, strict=True):
                    value = load_lanes(v, source, v.iadd(row, offset), mask)
                    total.set(v.fma(value, value, total.value))
            for offset, total in zip(offsets, sums, strict=True):
                at = v.iadd(v.iadd(first, v.imul(c, plane)), offset)
                value = v.fmul(load_lanes(v, source, at, mask), _share(v, total.value, numbers))
                store_lanes(v, value, to, at, mask)

    each_pixel_vector(v, count, vectors)


@simd.emitter
def lrn_pixels(
    v: Vec, x: Value, y: Value, squares: Value, numbers: Value, count: Value, channels: Value, below: Value,
    above: Value, pixel_step: Value, vector_step: Value,
) -> None:  # fmt: skip
    """Of pixels whose channels lie together, each a row of vectors."""
    row = v.pointer(squares)
    vectors = v.idiv(v.iadd(channels, v.lanes - 1), v.lanes)
    with v.loop(count) as pixel:
        source, to = (v.at(v.pointer(base), v.imul(pixel, pixel_step)) for base in (x, y))

        def loaded(i: Value) -> tuple[Value, Value]:
            """The values of a vector of channels, and the mask of those that there are."""
            mask = v.mask(v.isub(channels, v.imul(i, v.lanes)))
            return v.load_masked(source, v.imul(i, vector_step), mask), mask

        with v.loop(vectors) as i:
            value, _ = loaded(i)
            v.store(v.fmul(value, value), row, v.imul(i, v.lanes))
        with v.loop(vectors) as i:
            total = v.register(v.zero())
            first = v.isub(v.imul(i, v.lanes), below)
            with v.loop(v.iadd(v.iadd(below, above), 1)) as j:
                total.set(v.fadd(total.value, v.load(row, v.iadd(first, j))))
            value, mask = loaded(i)
            value = v.fmul(value, _share(v, total.value, numbers))
            v.store_masked(value, to, v.imul(i, vector_step), mask)


def _share(v: Vec, squares: Value, numbers: Value) -> Value:
    """What a channel is multiplied by: (bias + factor * squares) ^ power."""
    bias, factor, exponent = (v.broadcast(v.pointer(numbers), i) for i in range(3))
    return _power(v, v.fma(squares, factor, bias), exponent)


def _power(v: Vec, x: Value, exponent: Value) -> Value:
    """x to a power, of lanes of at least 0; off by about 1 + |exponent * ln x| units in the last place."""
    found = exponential(v, v.fmul(exponent, logarithm(v, x)))
    return v.b.select(v.b.fcmp_ordered("ord", x, x), found, x)
