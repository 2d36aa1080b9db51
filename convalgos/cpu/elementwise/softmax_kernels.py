"""The driver of softmax over the channels of the pixels of maps, in every layout.

Where pixels lie together vectors hold neighbouring pixels, and channels are planes; where channels do, a
pixel is a row of vectors. Exponentials go to y, and are multiplied there by 1 over their sum; of logarithms
they are only summed.
"""

from __future__ import annotations

import math

from convalgos.cpu.elementwise.matrix_rows import Load, Store, each_vector_of_row
from convalgos.cpu.elementwise.pixel_vectors import (
    LOWEST,
    TOGETHER,
    each_pixel_vector,
    pixels_of,
    run_of_pixels,
)
from convalgos.cpu.elementwise.row_exponentials import exponentials_of_rows
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.activations import exponential_of_less
from convalgos.cpu.vectors.lanes import load_lanes, store_lanes
from convalgos.cpu.vectors.logarithms import logarithm
from convalgos.cpu.vectors.simd import Value, Vec, carray, pointer

# Steps in elements, as those of `norm_kernels`.
SOFTMAX_FIELDS = fields("x y by_pixel images pixels channels x_n y_n pixel_step channel_step tasks")
LONG = 1024  # channels, from which on rows fill L1 and come one after the other; Zen 5


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
                value = exponential_of_less(v, v.fsub(load_lanes(v, source, at, mask), most.value))
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
    """Of pixels whose channels lie together, each a row of vectors; short ones a few at a time, as the sums
    of one would wait for each other."""

    def rows_from(first: Value, together: int) -> None:
        sources, places = (
            [v.at(v.pointer(base), v.imul(v.iadd(first, i), pixel_step)) for i in range(together)]
            for base in (x, y)
        )
        _softmax_rows(v, LOGS, sources, places, channels, vector_step)

    long = v.b.icmp_signed(">", channels, v.integer(LONG))
    groups = v.b.select(long, v.integer(0), v.idiv(count, TOGETHER))
    with v.loop(groups) as some:
        rows_from(v.imul(some, TOGETHER), TOGETHER)
    done = v.imul(groups, TOGETHER)
    with v.loop(v.isub(count, done)) as i:
        rows_from(v.iadd(done, i), 1)


def _softmax_rows(
    v: Vec, LOGS: int, sources: list[Value], places: list[Value], channels: Value, step: Value
) -> None:
    """Of rows at some places, side by side; from one vector of a row to the next are `step` elements."""
    largest, wholes = exponentials_of_rows(v, sources, () if LOGS else places, channels, step)
    shares = [_logarithm_of_sum(v, whole) if LOGS else v.b.fdiv(v.const(1), whole) for whole in wholes]

    def settle(load: Load, store: Store) -> None:
        values = [load(row) for row in (sources if LOGS else places)]
        for to, value, share, least in zip(places, values, shares, largest, strict=True):
            store(to, v.fsub(v.fsub(value, least), share) if LOGS else v.fmul(value, share))

    each_vector_of_row(v, channels, settle, step=step)


def _logarithm_of_sum(v: Vec, total: Value) -> Value:
    """ln of the sum of exponentials, which is at least 1, but where a pixel has no number."""
    above = v.b.fcmp_ordered(">", total, v.zero())
    return v.b.select(above, logarithm(v, total), v.const(math.nan))
