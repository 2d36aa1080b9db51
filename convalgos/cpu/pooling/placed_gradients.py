"""Gradients of maxima whose places are known: each dy is added to dx where its maximum lies.

Windows may have any shape. dx of a map is filled with zeros just ahead of the windows that reach so far, and
so is in the cache when they come. An output takes a few scalar instructions; where its place lies in memory
is computed before, in vectors.
"""

from __future__ import annotations

from convalgos.cpu.pooling.maxima import PLACE, lane_numbers
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.instructions import ir
from convalgos.cpu.vectors.integers import Integers, words_of
from convalgos.cpu.vectors.simd import Value, Vec, carray, pointer, zero_bytes

PLACED_FIELDS = fields(
    "y dx given scratch scratch_bytes size stored tasks planes channels pixels outputs bands band_table "
    "groups group_table"
)
PLACED_BAND = fields("first end groups groups_end")  # of a map of dx, and of outputs that reach it
PLACED_GROUP = fields("reach first count")  # outputs, and the end of the elements of dx up to their windows


class PlacedSums:
    """Elements of a vector at a time, added to dx where they belong, one after the other."""

    def __init__(self, v: Vec, dx: Value):
        self._v, self._words, self._dx = v, words_of(v), v.pointer(dx)
        self._parts, self._found = v.buffer(1), self._words.buffer(1)

    def take(self, places: Value, parts: Value) -> None:
        """The next elements, and 32-bit places of dx."""
        self._words.store(places, self._found)
        self._v.store(parts, self._parts)

    def add(self, k: Value) -> None:
        """The k-th of them."""
        v, word = self._v, ir.IntType(32)
        place = v.b.load(v.b.gep(self._found, [k], source_etype=word), typ=word)
        at = v.at(self._dx, v.b.sext(place, ir.IntType(64)))
        part = v.b.load(v.at(self._parts, k), typ=v.element)
        v.b.store(v.fadd(v.b.load(at, typ=v.element), part), at)


@simd.emitter
def add_at_places(
    v: Vec, dx: Value, dy: Value, places: Value, count: Value, pixel: Value, step: Value, first: Value,
    pixels: Value,
) -> None:  # fmt: skip
    """dx[(places[i] - first) * pixel + i * step] += dy[i] for i < count, one after the other.

    Args:
        places: int64; those that are none of the `pixels` from `first` on are left out.
    """
    words, wide = words_of(v), Integers(v.b, v.lanes, PLACE)
    given, from_, sums = v.pointer(dy), v.pointer(places), PlacedSums(v, dx)
    apart = words.mul(lane_numbers(words), words.spread(v.integer(step)))

    def look_up(begin: Value, mask: Value = None) -> None:
        if mask is None:
            place, part = wide.load(from_, begin), v.load(given, begin)
        else:
            place, part = wide.load_masked(from_, begin, mask), v.load_masked(given, begin, mask)
        place = wide.sub(place, wide.spread(first))
        known = v.b.icmp_unsigned("<", place, wide.spread(v.integer(pixels)))
        at = words.mul(v.b.trunc(v.b.select(known, place, wide.const(0)), words.type), words.spread(pixel))
        at = words.add(at, words.add(apart, words.spread(v.imul(begin, step))))
        sums.take(at, v.b.select(known, part, v.zero()))

    whole = v.idiv(count, v.lanes)
    with v.loop(whole) as i:
        look_up(v.imul(i, v.lanes))
        for k in range(v.lanes):
            sums.add(v.integer(k))
    done = v.imul(whole, v.lanes)
    rest = v.isub(count, done)
    with v.unless_negative(v.isub(rest, 1)):
        look_up(done, v.mask(rest))
        with v.loop(rest) as k:
            sums.add(k)


@jit.specialise
def add_gradient_at_places(SIZE: int, LANES: int, PLANES: int) -> jit.Kernel:
    """dx of dy (N, outputs, C) and of places; or with PLANES (planes, outputs)."""

    def add_gradient_at_places(args: int, task: int) -> None:
        a = carray(pointer(args), 1, PLACED_FIELDS)[0]
        bands = carray(pointer(a.band_table), a.bands, PLACED_BAND)
        groups = carray(pointer(a.group_table), a.groups, PLACED_GROUP)
        total = a.planes * a.bands
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            plane = unit // a.bands
            band = bands[unit % a.bands]
            dx = a.dx + (plane * a.pixels + band.first) * a.channels * SIZE
            pixels = band.end - band.first
            zeroed = 0
            for number in range(band.groups, band.groups_end):
                group = groups[number]
                reach = min(pixels, group.reach - band.first)
                if number == band.groups_end - 1:
                    reach = pixels
                if reach > zeroed:
                    zero_bytes(dx + zeroed * a.channels * SIZE, (reach - zeroed) * a.channels * SIZE)
                    zeroed = reach
                runs = 1 if PLANES else group.count
                run = group.count if PLANES else a.channels
                for i in range(runs):
                    at = (plane * a.outputs + group.first + i) * a.channels
                    add_at_places(
                        SIZE, LANES, dx, a.y + at * SIZE, a.given + at * PLACE, run, a.channels,
                        0 if PLANES else 1, band.first, pixels,
                    )  # fmt: skip

    return add_gradient_at_places
