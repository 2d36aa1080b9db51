"""Gradients of maxima whose places are known: each dy is added to dx where its maximum lies.

Windows may have any shape. dx of a map is filled with zeros just ahead of the windows that reach so far, and
so is in the cache when they come. An output takes a few scalar instructions; vectors of places, stored for
these to read, would take more.
"""

from __future__ import annotations

from convalgos.cpu.pooling.maxima import PLACE
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import Value, Vec, carray, pointer, zero_bytes

PLACED_FIELDS = fields(
    "y dx given scratch scratch_bytes size stored tasks planes channels pixels outputs bands band_table "
    "groups group_table"
)
PLACED_BAND = fields("first end groups groups_end")  # of a map of dx, and of outputs that reach it
PLACED_GROUP = fields("reach first count")  # outputs, and the end of the elements of dx up to their windows


@simd.emitter
def add_at_places(
    v: Vec, dx: Value, dy: Value, places: Value, count: Value, pixel: Value, step: Value, first: Value,
    pixels: Value,
) -> None:  # fmt: skip
    """dx[(places[i] - first) * pixel + i * step] += dy[i] for i < count, one after the other.

    Args:
        places: int64; those that are none of the `pixels` from `first` on are left out.
    """
    given, to = v.pointer(dy), v.pointer(dx)
    with v.loop(count) as i:
        place = v.isub(v.table64(places, i), first)
        with v.within(place, pixels):
            at = v.at(to, v.iadd(v.imul(place, pixel), v.imul(i, step)))
            part = v.b.load(v.at(given, i), typ=v.element)
            v.b.store(v.fadd(v.b.load(at, typ=v.element), part), at)


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
