"""The drivers of norms of maps in every layout: over the channels of a pixel, and over groups of channels.

A map is (N, blocks of so many channels, *spatial, so many channels). Where channels lie together a pixel is
a row of vectors; where pixels do, vectors hold neighbouring pixels. Either way the squares are of what the
mean leaves: no digits are lost where it is large.

Groups are normalised in three passes: the mean and the squares of each channel, those of each group from
them (Chan, Golub and LeVeque 1979), and all elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from convalgos.cpu.elementwise.pixel_vectors import (
    each_pixel_vector,
    in_all_lanes,
    pixels_of,
    run_of_pixels,
)
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.activations import activate, fmin
from convalgos.cpu.vectors.instructions import Register
from convalgos.cpu.vectors.lanes import load_lanes, store_lanes
from convalgos.cpu.vectors.simd import Value, Vec, carray, pointer

# Steps in elements: from one pixel to the next, and from one vector of channels to the next, or from one
# channel to the next where `by_pixel`: neighbouring pixels lie together. `numbers`: 1 / channels,
# or 0 for no mean; 1 / channels; epsilon; the largest factor.
NORM_FIELDS = fields(
    "x y scale shift numbers by_pixel images pixels channels x_n y_n pixel_step channel_step tasks"
)
# Rows are channels where `by_pixel`, else vectors of them; `means` and `factors` have `padded` elements an
# image. `numbers`: 1 / pixels, 1 / elements of a group, epsilon, pixels, and the two of the activation.
GROUP_FIELDS = fields(
    "x y scale shift means factors numbers by_pixel images pixels channels groups rows padded x_n y_n "
    "pixel_step row_step tasks"
)
AT_ONCE = 4  # pixels whose sums are independent of each other


@jit.specialise
def normalise_share(SIZE: int, LANES: int) -> jit.Kernel:
    """The pixels of a task, in runs within an image."""

    def normalise_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, NORM_FIELDS)[0]
        at, end = pixels_of(a, task)
        while at < end:
            run, x, y = run_of_pixels(a, at, end, SIZE)
            if a.by_pixel:
                normalise_planes(SIZE, LANES, x, y, a.scale, a.shift, a.numbers, run, a.channels,
                                 a.channel_step)  # fmt: skip
            else:
                normalise_pixels(SIZE, LANES, x, y, a.scale, a.shift, a.numbers, run, a.channels,
                                 a.pixel_step, a.channel_step)  # fmt: skip
            at += run

    return normalise_share


@simd.emitter
def normalise_pixels(
    v: Vec, x: Value, y: Value, scale: Value, shift: Value, numbers: Value, count: Value, channels: Value,
    pixel_step: Value, vector_step: Value,
) -> None:  # fmt: skip
    """Of pixels whose channels lie together, each a row of vectors."""
    source, to, by, plus = (v.pointer(address) for address in (x, y, scale, shift))
    of_mean, share, epsilon, most = (v.broadcast(v.pointer(numbers), i) for i in range(4))
    vectors = v.idiv(channels, v.lanes)
    done = v.imul(vectors, v.lanes)
    rest = v.isub(channels, done)
    with v.loop(v.idiv(v.iadd(count, AT_ONCE - 1), AT_ONCE)) as group:
        first = v.imul(group, AT_ONCE)
        steps = [  # the last pixel stands for those beyond the end
            v.imul(v.imin(v.iadd(first, i), v.isub(count, 1)), pixel_step) for i in range(AT_ONCE)
        ]
        rows, outs = ([v.at(base, step) for step in steps] for base in (source, to))
        sums = [v.register(v.zero()) for _ in rows]
        squares = [v.register(v.zero()) for _ in rows]
        with v.loop(vectors) as i:
            for row, total in zip(rows, sums, strict=True):
                total.set(v.fadd(total.value, v.load(row, v.imul(i, vector_step))))
        last = v.imul(vectors, vector_step)
        with v.unless_negative(v.isub(rest, 1)):
            mask = v.mask(rest)
            for row, total in zip(rows, sums, strict=True):
                total.set(v.fadd(total.value, v.load_masked(row, last, mask)))
        means = [v.fmul(in_all_lanes(v, total.value, v.fadd), of_mean) for total in sums]
        with v.loop(vectors) as i:
            for row, mean, square in zip(rows, means, squares, strict=True):
                left = v.fsub(v.load(row, v.imul(i, vector_step)), mean)
                square.set(v.fma(left, left, square.value))
        with v.unless_negative(v.isub(rest, 1)):
            mask = v.mask(rest)
            for row, mean, square in zip(rows, means, squares, strict=True):
                left = v.b.select(mask, v.fsub(v.load_masked(row, last, mask), mean), v.zero())
                square.set(v.fma(left, left, square.value))
        totals = [in_all_lanes(v, square.value, v.fadd) for square in squares]
        factors = [fmin(v, _reciprocal_root(v, total, share, epsilon), most) for total in totals]
        with v.loop(vectors) as i:
            at, channel = v.imul(i, vector_step), v.imul(i, v.lanes)
            g, b = v.load(by, channel), v.load(plus, channel)
            values = [v.load(row, at) for row in rows]  # all of them, before y is written over x
            for out, value, mean, factor in zip(outs, values, means, factors, strict=True):
                v.store(v.fma(v.fmul(v.fsub(value, mean), factor), g, b), out, at)
        with v.unless_negative(v.isub(rest, 1)):
            mask = v.mask(rest)
            g, b = v.load_masked(by, done, mask), v.load_masked(plus, done, mask)
            values = [v.load_masked(row, last, mask) for row in rows]
            for out, value, mean, factor in zip(outs, values, means, factors, strict=True):
                v.store_masked(v.fma(v.fmul(v.fsub(value, mean), factor), g, b), out, last, mask)


@simd.emitter
def normalise_planes(
    v: Vec, x: Value, y: Value, scale: Value, shift: Value, numbers: Value, count: Value, channels: Value,
    plane: Value,
) -> None:  # fmt: skip
    """Of pixels that lie together: channels are planes, and each lane holds a pixel."""
    source, to, by, plus = (v.pointer(address) for address in (x, y, scale, shift))
    of_mean, share, epsilon, most = (v.broadcast(v.pointer(numbers), i) for i in range(4))

    def vectors(first: Value, offsets: range, mask: Value) -> None:
        def places(channel: Value) -> list[Value]:
            row = v.iadd(first, v.imul(channel, plane))
            return [v.iadd(row, offset) for offset in offsets]

        sums, squares = ([v.register(v.zero()) for _ in offsets] for _ in range(2))
        with v.loop(channels) as c:
            for at, total in zip(places(c), sums, strict=True):
                total.set(v.fadd(total.value, load_lanes(v, source, at, mask)))
        means = [v.fmul(total.value, of_mean) for total in sums]
        with v.loop(channels) as c:
            for at, mean, square in zip(places(c), means, squares, strict=True):
                left = v.fsub(load_lanes(v, source, at, mask), mean)
                square.set(v.fma(left, left, square.value))
        factors = [fmin(v, _reciprocal_root(v, s.value, share, epsilon), most) for s in squares]
        with v.loop(channels) as c:
            g, b = v.broadcast(by, c), v.broadcast(plus, c)
            for at, mean, factor in zip(places(c), means, factors, strict=True):
                value = v.fma(v.fmul(v.fsub(load_lanes(v, source, at, mask), mean), factor), g, b)
                store_lanes(v, value, to, at, mask)

    each_pixel_vector(v, count, vectors)


@jit.specialise
def moments_share(SIZE: int, LANES: int) -> jit.Kernel:
    """The mean of each channel of a task's rows, and the squares of what it leaves, into `factors`."""

    def moments_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, GROUP_FIELDS)[0]
        total = a.images * a.rows
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            n, row = unit // a.rows, unit % a.rows
            x = a.x + (n * a.x_n + row * a.row_step) * SIZE
            if a.by_pixel:
                at = (n * a.padded + row) * SIZE
                plane_moments(SIZE, LANES, x, a.means + at, a.factors + at, a.numbers, a.pixels)
            else:
                at = (n * a.padded + row * LANES) * SIZE
                channels = min(LANES, a.channels - row * LANES)
                vector_moments(SIZE, LANES, x, a.means + at, a.factors + at, a.numbers, a.pixels,
                               a.pixel_step, channels)  # fmt: skip

    return moments_share


@jit.specialise
def factors_share(SIZE: int, LANES: int) -> jit.Kernel:
    """The mean of the group of each channel, and what is left of it times: scale over the deviation."""

    def factors_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, GROUP_FIELDS)[0]
        total, count = a.images * a.groups, a.channels // a.groups
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            n, first = unit // a.groups, unit % a.groups * count
            at = (n * a.padded + first) * SIZE
            group_factors(SIZE, LANES, a.means + at, a.factors + at, a.scale + first * SIZE, a.numbers,
                          count)  # fmt: skip

    return factors_share


@jit.specialise
def apply_share(SIZE: int, LANES: int, KIND: int) -> jit.Kernel:
    """All elements of a task's rows: an activation of (x - mean) * factor + shift."""

    def apply_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, GROUP_FIELDS)[0]
        total = a.images * a.rows
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            n, row = unit // a.rows, unit % a.rows
            x = a.x + (n * a.x_n + row * a.row_step) * SIZE
            y = a.y + (n * a.y_n + row * a.row_step) * SIZE
            first = row if a.by_pixel else row * LANES
            at, plus = (n * a.padded + first) * SIZE, a.shift + first * SIZE
            if a.by_pixel:
                apply_plane(SIZE, LANES, KIND, x, y, a.means + at, a.factors + at, plus, a.numbers, a.pixels)
            else:
                channels = min(LANES, a.channels - first)
                apply_vectors(SIZE, LANES, KIND, x, y, a.means + at, a.factors + at, plus, a.numbers,
                              a.pixels, a.pixel_step, channels)  # fmt: skip

    return apply_share


@simd.emitter
def plane_moments(v: Vec, x: Value, mean: Value, squares: Value, numbers: Value, pixels: Value) -> None:
    """Of pixels that lie together."""
    source, one = v.pointer(x), v.mask(1)
    sums, left = ([v.register(v.zero()) for _ in range(AT_ONCE)] for _ in range(2))

    def add(first: Value, offsets: range, mask: Value) -> None:
        for offset, total in zip(offsets, sums, strict=False):
            total.set(v.fadd(total.value, load_lanes(v, source, v.iadd(first, offset), mask)))

    each_pixel_vector(v, pixels, add)
    middle = v.fmul(in_all_lanes(v, _added(v, sums), v.fadd), v.broadcast(v.pointer(numbers)))

    def add_squares(first: Value, offsets: range, mask: Value) -> None:
        for offset, total in zip(offsets, left, strict=False):
            off = v.fsub(load_lanes(v, source, v.iadd(first, offset), mask), middle)
            off = off if mask is None else v.b.select(mask, off, v.zero())
            total.set(v.fma(off, off, total.value))

    each_pixel_vector(v, pixels, add_squares)
    v.store_masked(middle, v.pointer(mean), 0, one)
    v.store_masked(in_all_lanes(v, _added(v, left), v.fadd), v.pointer(squares), 0, one)


@simd.emitter
def vector_moments(
    v: Vec, x: Value, mean: Value, squares: Value, numbers: Value, pixels: Value, step: Value, channels: Value
) -> None:  # fmt: skip
    """Of channels that lie together, as many as are told of a vector."""
    source, mask = v.pointer(x), v.mask(channels)
    sums, left = ([v.register(v.zero()) for _ in range(AT_ONCE)] for _ in range(2))
    whole = v.idiv(pixels, AT_ONCE)

    def each(add: Callable[[int, Value], None]) -> None:
        def load(pixel: Value) -> Value:
            return v.load_masked(source, v.imul(pixel, step), mask)

        with v.loop(whole) as group:
            for i in range(AT_ONCE):
                add(i, load(v.iadd(v.imul(group, AT_ONCE), i)))
        begun = v.imul(whole, AT_ONCE)
        with v.loop(v.isub(pixels, begun)) as i:
            add(0, load(v.iadd(begun, i)))

    def add_squares(i: int, value: Value) -> None:
        off = v.fsub(value, middle)
        left[i].set(v.fma(off, off, left[i].value))

    each(lambda i, value: sums[i].set(v.fadd(sums[i].value, value)))
    middle = v.fmul(_added(v, sums), v.broadcast(v.pointer(numbers)))
    each(add_squares)
    v.store_masked(middle, v.pointer(mean), 0, mask)
    v.store_masked(_added(v, left), v.pointer(squares), 0, mask)


@simd.emitter
def group_factors(v: Vec, mean: Value, factors: Value, scale: Value, numbers: Value, count: Value) -> None:
    """Of the channels of a group, whose means and squares lie there."""
    means, to, by = (v.pointer(address) for address in (mean, factors, scale))
    of_group, epsilon, pixels = (v.broadcast(v.pointer(numbers), i) for i in (1, 2, 3))
    total, squares = v.register(v.zero()), v.register(v.zero())

    def each(use: Callable[[Value, Value], None]) -> None:
        with v.loop(v.idiv(v.iadd(count, v.lanes - 1), v.lanes)) as i:
            at = v.imul(i, v.lanes)
            use(at, v.mask(v.isub(count, at)))

    def add(at: Value, mask: Value) -> None:
        total.set(v.fadd(total.value, v.load_masked(means, at, mask)))

    each(add)
    # the mean of a group: those of its channels, which have as many pixels each
    middle = v.fmul(v.fmul(in_all_lanes(v, total.value, v.fadd), pixels), of_group)

    def add_squares(at: Value, mask: Value) -> None:
        off = v.b.select(mask, v.fsub(v.load_masked(means, at, mask), middle), v.zero())
        own = v.fma(v.fmul(off, off), pixels, v.load_masked(to, at, mask))
        squares.set(v.fadd(squares.value, own))

    each(add_squares)
    factor = _reciprocal_root(v, in_all_lanes(v, squares.value, v.fadd), of_group, epsilon)

    def write(at: Value, mask: Value) -> None:
        v.store_masked(middle, means, at, mask)
        v.store_masked(v.fmul(factor, v.load_masked(by, at, mask)), to, at, mask)

    each(write)


@simd.emitter
def apply_plane(
    v: Vec, KIND: int, x: Value, y: Value, mean: Value, factor: Value, shift: Value, numbers: Value,
    pixels: Value,
) -> None:  # fmt: skip
    """Of pixels that lie together."""
    source, to = v.pointer(x), v.pointer(y)
    middle, by, plus = (v.broadcast(v.pointer(address)) for address in (mean, factor, shift))
    a, b = (v.broadcast(v.pointer(numbers), i) for i in (4, 5))

    def vectors(first: Value, offsets: range, mask: Value) -> None:
        for offset in offsets:
            at = v.iadd(first, offset)
            off = v.fsub(load_lanes(v, source, at, mask), middle)
            store_lanes(v, activate(v, KIND, v.fma(off, by, plus), a, b), to, at, mask)

    each_pixel_vector(v, pixels, vectors)


@simd.emitter
def apply_vectors(
    v: Vec, KIND: int, x: Value, y: Value, mean: Value, factor: Value, shift: Value, numbers: Value,
    pixels: Value, step: Value, channels: Value,
) -> None:  # fmt: skip
    """Of channels that lie together, as many as are told of a vector."""
    source, to, mask = v.pointer(x), v.pointer(y), v.mask(channels)
    middle, by, plus = (v.load_masked(v.pointer(address), 0, mask) for address in (mean, factor, shift))
    a, b = (v.broadcast(v.pointer(numbers), i) for i in (4, 5))
    with v.loop(pixels) as i:
        at = v.imul(i, step)
        off = v.fsub(v.load_masked(source, at, mask), middle)
        v.store_masked(activate(v, KIND, v.fma(off, by, plus), a, b), to, at, mask)


def _added(v: Vec, sums: Sequence[Register]) -> Value:
    """The sum of registers."""
    total = sums[0].value
    for other in sums[1:]:
        total = v.fadd(total, other.value)
    return total


def _reciprocal_root(v: Vec, squares: Value, share: Value, epsilon: Value) -> Value:
    """1 / sqrt(squares * share + epsilon)."""
    root = simd.function_of(v.b, simd.ir.FunctionType(v.type, [v.type]), f"llvm.sqrt.{v.suffix}")
    return v.b.fdiv(v.const(1), v.b.call(root, [v.fma(squares, share, epsilon)]))
