"""The driver of layer normalisation over the channels of maps, in every layout.

A map is (N, blocks of so many channels, *spatial, so many channels). Where channels lie together a pixel is
a row of vectors; where pixels do, vectors hold neighbouring pixels and go down the channels. Either way the
squares are of what the mean leaves: no digits are lost where it is large.
"""

from __future__ import annotations

from convalgos.cpu.elementwise.pixel_vectors import each_pixel_vector, load_pixel_vector, store_pixel_vector
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import Value, Vec, carray, pointer

# Steps in elements: from one pixel to the next, and from one vector of channels to the next, or from one
# channel to the next where `by_pixel`: neighbouring pixels lie together. `numbers`: 1 / channels, epsilon.
NORM_FIELDS = fields(
    "x y scale shift numbers by_pixel images pixels channels x_n y_n pixel_step channel_step tasks"
)
AT_ONCE = 4  # pixels whose sums are independent of each other


@jit.specialise
def normalise_share(SIZE: int, LANES: int) -> jit.Kernel:
    """The pixels of a task, in runs within an image."""

    def normalise_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, NORM_FIELDS)[0]
        at = a.images * a.pixels * task // a.tasks
        end = a.images * a.pixels * (task + 1) // a.tasks
        while at < end:
            n, first = at // a.pixels, at % a.pixels
            run = min(a.pixels - first, end - at)
            x = a.x + (n * a.x_n + first * a.pixel_step) * SIZE
            y = a.y + (n * a.y_n + first * a.pixel_step) * SIZE
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
    share, epsilon = (v.broadcast(v.pointer(numbers), i) for i in (0, 1))
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
        means = [v.fmul(_in_all_lanes(v, total.value), share) for total in sums]
        with v.loop(vectors) as i:
            for row, mean, square in zip(rows, means, squares, strict=True):
                left = v.fsub(v.load(row, v.imul(i, vector_step)), mean)
                square.set(v.fma(left, left, square.value))
        with v.unless_negative(v.isub(rest, 1)):
            mask = v.mask(rest)
            for row, mean, square in zip(rows, means, squares, strict=True):
                left = v.b.select(mask, v.fsub(v.load_masked(row, last, mask), mean), v.zero())
                square.set(v.fma(left, left, square.value))
        factors = [_reciprocal_root(v, _in_all_lanes(v, s.value), share, epsilon) for s in squares]
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
    share, epsilon = (v.broadcast(v.pointer(numbers), i) for i in (0, 1))

    def vectors(first: Value, offsets: range, mask: Value) -> None:
        def places(channel: Value) -> list[Value]:
            row = v.iadd(first, v.imul(channel, plane))
            return [v.iadd(row, offset) for offset in offsets]

        sums, squares = ([v.register(v.zero()) for _ in offsets] for _ in range(2))
        with v.loop(channels) as c:
            for at, total in zip(places(c), sums, strict=True):
                total.set(v.fadd(total.value, load_pixel_vector(v, source, at, mask)))
        means = [v.fmul(total.value, share) for total in sums]
        with v.loop(channels) as c:
            for at, mean, square in zip(places(c), means, squares, strict=True):
                left = v.fsub(load_pixel_vector(v, source, at, mask), mean)
                square.set(v.fma(left, left, square.value))
        factors = [_reciprocal_root(v, square.value, share, epsilon) for square in squares]
        with v.loop(channels) as c:
            g, b = v.broadcast(by, c), v.broadcast(plus, c)
            for at, mean, factor in zip(places(c), means, factors, strict=True):
                value = v.fma(v.fmul(v.fsub(load_pixel_vector(v, source, at, mask), mean), factor), g, b)
                store_pixel_vector(v, value, to, at, mask)

    each_pixel_vector(v, count, vectors)


def _in_all_lanes(v: Vec, x: Value) -> Value:
    """The sum of all lanes, in each of them."""
    distance = v.lanes // 2
    while distance:
        x = v.fadd(x, v.shuffle(x, x, [lane ^ distance for lane in range(v.lanes)]))
        distance //= 2
    return x


def _reciprocal_root(v: Vec, squares: Value, share: Value, epsilon: Value) -> Value:
    """1 / sqrt(squares * share + epsilon)."""
    root = simd.function_of(v.b, simd.ir.FunctionType(v.type, [v.type]), f"llvm.sqrt.{v.suffix}")
    return v.b.fdiv(v.const(1), v.b.call(root, [v.fma(squares, share, epsilon)]))
