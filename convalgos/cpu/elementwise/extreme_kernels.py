"""The driver that finds in which channel of maps each pixel is the largest."""

from __future__ import annotations

from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.blocks import loop_chunks
from convalgos.cpu.vectors.integers import Integers, words_of
from convalgos.cpu.vectors.lanes import load_lanes, store_lanes
from convalgos.cpu.vectors.simd import Value, Vec, carray, pointer

PLACE = 8  # bytes of a place
UNROLLED = 4  # vectors of pixels at a time

# x is (images, channels, pixels), places (images, pixels); units are `chunk` pixels of an image
EXTREME_FIELDS = fields("x places images channels pixels chunk tasks")


@jit.specialise
def extreme_share(SIZE: int, LANES: int) -> jit.Kernel:
    """The units of a task."""

    def extreme_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, EXTREME_FIELDS)[0]
        units = (a.pixels + a.chunk - 1) // a.chunk
        total = a.images * units
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            first = unit % units * a.chunk
            n = unit // units
            x = a.x + (n * a.channels * a.pixels + first) * SIZE
            places = a.places + (n * a.pixels + first) * PLACE
            find_largest(SIZE, LANES, x, places, a.channels, a.pixels, min(a.chunk, a.pixels - first))

    return extreme_share


@simd.emitter
def find_largest(v: Vec, x: Value, places: Value, channels: Value, step: Value, count: Value) -> None:
    """places[i] = the first c of those where x[c * step + i] is the largest, or no number."""
    words, source, to = words_of(v), v.pointer(x), v.pointer(places)
    wide = Integers(v.b, v.lanes, PLACE)

    def chunk(first: Value, vectors: int, mask: Value = None) -> None:
        def loaded(row: Value, i: int) -> Value:
            at = v.iadd(first, i * v.lanes)
            return load_lanes(v, row, at, mask)

        best = [v.register(loaded(source, i)) for i in range(vectors)]
        found = [words.register(words.const(0)) for _ in range(vectors)]
        with v.loop(v.isub(channels, 1)) as before:
            c = v.iadd(before, 1)
            row, place = v.at(source, v.imul(c, step)), words.spread(c)
            for i, (largest, where) in enumerate(zip(best, found, strict=True)):
                value = loaded(row, i)
                known = v.b.fcmp_ordered("==", largest.value, largest.value)
                larger = v.b.and_(known, v.b.fcmp_unordered(">", value, largest.value))
                where.set(v.b.select(larger, place, where.value))
                largest.set(v.b.select(larger, value, largest.value))
        for i, where in enumerate(found):
            at, widened = v.iadd(first, i * v.lanes), v.b.sext(where.value, wide.type)
            store_lanes(wide, widened, to, at, mask)

    loop_chunks(v, v, count, UNROLLED, chunk)
