"""Gradients of maxima whose places are known: each dy is added to dx where its maximum lies.

Windows may have any shape. dx of a map is filled with zeros just ahead of the windows that reach so far, and
so is in the cache when they come. An output takes a few scalar instructions; vectors of places, stored for
these to read, would take more.
"""

from __future__ import annotations

from convalgos.cpu.pooling.elements import MAX, PoolElements
from convalgos.cpu.pooling.maxima import PLACE
from convalgos.cpu.pooling.reductions import round_elements
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import Value, Vec, carray, pointer, zero_bytes

PLACED_FIELDS = fields(
    "y dx given scratch scratch_bytes size stored tasks planes together channels pixels outputs bands "
    "band_table groups group_table"
)
PLACED_BAND = fields("first end groups groups_end")  # of a map of dx, and of outputs that reach it
PLACED_GROUP = fields("reach first count")  # outputs, and the end of the elements of dx up to their windows


@simd.emitter
def add_at_places(
    v: Vec, FORM: int, dx: Value, dy: Value, places: Value, count: Value, pixel: Value, step: Value,
    first: Value, pixels: Value,
) -> None:  # fmt: skip
    """dx[(places[i] - first) * pixel + i * step] += dy[i] for i < count, one after the other.

    Args:
        places: int64; those that are none of the `pixels` from `first` on are left out.
    """
    of, given, to = PoolElements(v, FORM, MAX), v.pointer(dy), v.pointer(dx)
    with v.loop(count) as i:
        place = v.isub(v.table64(places, i), first)
        with v.within(place, pixels):
            at = v.at(to, v.iadd(v.imul(place, pixel), v.imul(i, step)))
            v.b.store(v.fadd(v.b.load(at, typ=v.element), of.load_one(given, i)), at)


@jit.specialise
def add_gradient_at_places(SIZE: int, LANES: int, FORM: int, PLANES: int) -> jit.Kernel:
    """dx of dy (N, outputs, C) and of places; or with PLANES (planes, outputs).

    What is rounded is summed in scratch, a band at a time.
    """

    def add_gradient_at_places(args: int, task: int) -> None:
        a = carray(pointer(args), 1, PLACED_FIELDS)[0]
        bands = carray(pointer(a.band_table), a.bands, PLACED_BAND)
        groups = carray(pointer(a.group_table), a.groups, PLACED_GROUP)
        total = (a.planes + a.together - 1) // a.together * a.bands
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            plane = unit // a.bands * a.together
            many = min(a.together, a.planes - plane)  # planes at a time, where one group is all of them
            band = bands[unit % a.bands]
            dx = a.dx + (plane * a.pixels + band.first) * a.channels * a.stored
            sums = a.scratch + task * a.scratch_bytes if FORM else dx
            pixels = band.end - band.first
            zeroed = 0
            for number in range(band.groups, band.groups_end):
                group = groups[number]
                reach = min(pixels, group.reach - band.first)
                if number == band.groups_end - 1:
                    reach = pixels
                if reach > zeroed:
                    count = (reach - zeroed) * many * a.channels
                    zero_bytes(sums + zeroed * a.channels * SIZE, count * SIZE)
                    zeroed = reach
                runs = many if PLANES else group.count
                run = group.count if PLANES else a.channels
                for i in range(runs):
                    output = (plane + i) * a.outputs if PLANES else plane * a.outputs + i
                    at = (output + group.first) * a.channels
                    to = sums + i * pixels * SIZE if PLANES else sums
                    add_at_places(
                        SIZE, LANES, FORM, to, a.y + at * a.stored, a.given + at * PLACE, run,
                        1 if PLANES else a.channels, 0 if PLANES else 1, band.first, pixels,
                    )  # fmt: skip
            if FORM:
                round_elements(SIZE, LANES, FORM, sums, dx, pixels * many * a.channels)

    return add_gradient_at_places
