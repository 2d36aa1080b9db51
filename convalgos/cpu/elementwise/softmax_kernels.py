"""The driver of softmax over the channels of the pixels of maps, in every layout.

Where pixels lie together vectors hold neighbouring pixels, and channels are planes; where channels do, a
pixel is a row of vectors. Exponentials go to y, and are multiplied there by 1 over their sum; of logarithms
they are only summed.
"""

from __future__ import annotations

import math

from convalgos.cpu.elementwise.pixel_vectors import (
    LOWEST,
    TOGETHER,
    each_pixel_vector,
    in_all_lanes,
    pixels_of,
    run_of_pixels,
)
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.activations import exponential
from convalgos.cpu.vectors.lanes import load_lanes, store_lanes
from convalgos.cpu.vectors.logarithms import logarithm
from convalgos.cpu.vectors.simd import Value, Vec, carray, pointer

# Steps in elements, as those of `norm_kernels`.
SOFTMAX_FIELDS = fields("x y by_pixel images pixels channels x_n y_n pixel_step channel_step tasks")


@jit.specialise
def softmax_share(SIZE: int, LANES: int, LOGS: int) -> jit.Kernel:
    """The pixels of a task, in runs within an image."""

    def softmax_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, SOFTMAX_FIELDS)[0]
        at, end = pixels_of(a, task)
        while at < end:
            run, x, y = run_of_pixels(a, at, end, SIZE)
            if a.by_pixel:
                softmax_planes(SIZE, LANES, LOGS, x, y, run, a.channels, a.channel_step)
            else:
                softmax_pixels(SIZE, LANES, LOGS, x, y, run, a.channels, a.pixel_step, a.channel_step)
            at += run

    return softmax_share


@simd.emitter
def softmax_planes(
    v: Vec, LOGS: int, x: Value, y: Value, count: Value, channels: Value, plane: Value
) -> None:
    """Of pixels that lie together: channels are planes, and each lane holds a pixel."""
    source, to = v.pointer(x), v.pointer(y)

    def vectors(first: Value, offsets: range, mask: Value) -> None:
        def places(channel: Value) -> list[Value]:
            row = v.iadd(first, v.imul(channel, plane))
            return [v.iadd(row, offset) for offset in offsets]

        largest = [v.register(v.const(LOWEST)) for _ in offsets]
        sums = [v.register(v.zero()) for _ in offsets]
        with v.loop(channels) as c:
            for at, most in zip(places(c), largest, strict=True):
                most.set(v.fmax(load_lanes(v, source, at, mask), most.value))
        with v.loop(channels) as c:
            for at, most, total in zip(places(c), largest, sums, strict=True):
                value = exponential(v, v.fsub(load_lanes(v, source, at, mask), most.value))
                total.set(v.fadd(total.value, value))
                if not LOGS:
                    store_lanes(v, value, to, at, mask)
        if LOGS:
            logs = [_logarithm_of_sum(v, total.value) for total in sums]
            with v.loop(channels) as c:
                for at, most, log in zip(places(c), largest, logs, strict=True):
                    value = v.fsub(load_lanes(v, source, at, mask), most.value)
                    store_lanes(v, v.fsub(value, log), to, at, mask)
            return
        shares = [v.b.fdiv(v.const(1), total.value) for total in sums]
        with v.loop(channels) as c:
            for at, share in zip(places(c), shares, strict=True):
                store_lanes(v, v.fmul(load_lanes(v, to, at, mask), share), to, at, mask)

    each_pixel_vector(v, count, vectors)


@simd.emitter
def softmax_pixels(
    v: Vec, LOGS: int, x: Value, y: Value, count: Value, channels: Value, pixel_step: Value,
    vector_step: Value,
) -> None:  # fmt: skip
    """Of pixels whose channels lie together, each a row of vectors; a few at a time, the last for
    those beyond: the sums of one would wait for each other."""
    vectors = v.idiv(v.iadd(channels, v.lanes - 1), v.lanes)
    with v.loop(v.idiv(v.iadd(count, TOGETHER - 1), TOGETHER)) as some:
        rows = [v.imin(v.iadd(v.imul(some, TOGETHER), i), v.isub(count, 1)) for i in range(TOGETHER)]
        sources, places = (
            [v.at(v.pointer(base), v.imul(row, pixel_step)) for row in rows] for base in (x, y)
        )

        def loaded(i: Value, bases: list[Value]) -> tuple[list[Value], Value, Value]:
            """A vector of channels of each pixel, where it lies, and the mask of those that there are."""
            mask, at = v.mask(v.isub(channels, v.imul(i, v.lanes))), v.imul(i, vector_step)
            return [v.load_masked(base, at, mask) for base in bases], at, mask

        most, total = ([v.register(v.const(start)) for _ in rows] for start in (LOWEST, 0.0))
        with v.loop(vectors) as i:
            values, _, mask = loaded(i, sources)
            for value, register in zip(values, most, strict=True):
                register.set(v.fmax(v.b.select(mask, value, v.const(-math.inf)), register.value))
        largest = [in_all_lanes(v, register.value, v.fmax) for register in most]
        with v.loop(vectors) as i:
            values, at, mask = loaded(i, sources)
            values = [exponential(v, v.fsub(*pair)) for pair in zip(values, largest, strict=True)]
            for value, register, to in zip(values, total, places, strict=True):
                register.set(v.fadd(register.value, v.b.select(mask, value, v.zero())))
                if not LOGS:
                    v.store_masked(value, to, at, mask)
        wholes = [in_all_lanes(v, register.value, v.fadd) for register in total]
        shares = [_logarithm_of_sum(v, whole) if LOGS else v.b.fdiv(v.const(1), whole) for whole in wholes]
        with v.loop(vectors) as i:
            values, at, mask = loaded(i, sources if LOGS else places)
            for value, share, least, to in zip(values, shares, largest, places, strict=True):
                made = v.fsub(v.fsub(value, least), share) if LOGS else v.fmul(value, share)
                v.store_masked(made, to, at, mask)


def _logarithm_of_sum(v: Vec, total: Value) -> Value:
    """ln of the sum of exponentials, which is at least 1, but where a pixel has no number."""
    above = v.b.fcmp_ordered(">", total, v.zero())
    return v.b.select(above, logarithm(v, total), v.const(math.nan))
