"""Maxima over slices of maps, of which the maxima within each slice and their places are known.

A window of three dimensions so takes the taps of one slice and as many steps as it has slices, not their
product. Of equal elements the first slice counts, and of NaN the last, as within a slice.
"""

from __future__ import annotations

from convalgos.cpu.pooling.elements import FLOAT, MAX, PoolElements
from convalgos.cpu.pooling.maxima import PLACE, give_places
from convalgos.cpu.pooling.reductions import COLUMN, UNROLLED
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.blocks import loop_chunks
from convalgos.cpu.vectors.integers import Integers, words_of
from convalgos.cpu.vectors.lanes import load_lanes
from convalgos.cpu.vectors.simd import Value, Vec, carray, pointer

SLICE_FIELDS = fields(
    "x y places scratch scratch_bytes stored size tasks planes slices windows outputs inner dilation found "
    "slice_index"
)


@simd.emitter
def maxima_over_slices(
    v: Vec, x: Value, found: Value, y: Value, places: Value, count: Value, taps: Value, step: Value,
    index: Value, index_step: Value,
) -> None:  # fmt: skip
    """y[i] = the largest of x[i + t * step], t < taps; places[i] = found of that + index + t * index_step."""
    of, words, wide = PoolElements(v, FLOAT, MAX), words_of(v), Integers(v.b, v.lanes, PLACE)
    source, known = v.pointer(x), v.pointer(found)

    def chunk(first: Value, vectors: int, mask: Value = None) -> None:
        ats = [v.iadd(first, k * v.lanes) for k in range(vectors)]

        def place(at: Value) -> Value:
            given = load_lanes(wide, known, at, mask)
            return v.b.trunc(given, words.type)

        totals = [v.register(of.load(source, at, mask)) for at in ats]
        where = [words.register(words.add(place(at), words.spread(index))) for at in ats]
        with v.loop(v.isub(taps, 1)) as i:
            t = v.iadd(i, 1)
            passed = words.spread(v.iadd(index, v.imul(t, index_step)))
            for at, total, here in zip(ats, totals, where, strict=True):
                further = v.iadd(at, v.imul(t, step))
                value = of.load(source, further, mask)
                larger = of.exceeds(value, total.value)
                here.set(v.b.select(larger, words.add(place(further), passed), here.value))
                total.set(v.b.select(larger, value, total.value))
        for at, total, here in zip(ats, totals, where, strict=True):
            of.store(total.value, v.pointer(y), at, mask)
            give_places(words, here.value, v.pointer(places), at, mask)

    loop_chunks(v, v, count, UNROLLED, chunk)


@jit.specialise
def slice_maxima(SIZE: int, LANES: int) -> jit.Kernel:
    """y and places (planes, outputs, inner) of x (planes, slices, inner) and its places, `found` bytes on."""

    def slice_maxima(args: int, task: int) -> None:
        a = carray(pointer(args), 1, SLICE_FIELDS)[0]
        windows = carray(pointer(a.windows), a.outputs, COLUMN)
        total = a.planes * a.outputs
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            window = windows[unit % a.outputs]
            from_ = (unit // a.outputs * a.slices + window.first) * a.inner
            to = unit * a.inner
            maxima_over_slices(
                SIZE, LANES, a.x + from_ * SIZE, a.x + a.found + from_ * PLACE, a.y + to * SIZE,
                a.places + to * PLACE, a.inner, window.taps, a.dilation * a.inner,
                window.first * a.slice_index, a.dilation * a.slice_index,
            )  # fmt: skip

    return slice_maxima
