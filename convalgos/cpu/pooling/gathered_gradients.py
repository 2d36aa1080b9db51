"""Gradients of maxima whose places are known, gathered by whole rows: of large maps with channels first.

Each element of dx sums the dy of those windows over it whose maximum lies there. To scatter dy would be one
element after the other, as windows overlap; to gather takes whole vectors.
"""

from __future__ import annotations

from convalgos.cpu.pooling.maxima import INDEX, PLACE, lane_numbers
from convalgos.cpu.pooling.tables import GRADIENT_BAND, MEETING
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.integers import Integers, words_of
from convalgos.cpu.vectors.simd import Value, Vec, carray, copy_bytes, pointer

NOWHERE = -1  # the place of an output that is not there
GATHER_FIELDS = fields(
    "y dx given scratch scratch_bytes size stored tasks planes bands band_table columns before outputs line "
    "output_line lead inputs x_plane y_plane groups"
)


@simd.emitter
def fill_nowhere(v: Vec, places: Value, count: Value) -> None:
    """places[:count], whole vectors, are none."""
    words = words_of(v)
    with v.loop(v.idiv(v.iadd(count, v.lanes - 1), v.lanes)) as i:
        words.store(words.const(NOWHERE), v.pointer(places), v.imul(i, v.lanes))


@simd.emitter
def narrow_places(v: Vec, given: Value, places: Value, count: Value) -> None:
    """places[:count] = given[:count], which are integers of 64 bits."""
    words, wide = words_of(v), Integers(v.b, v.lanes, PLACE)
    with v.loop(v.idiv(v.iadd(count, v.lanes - 1), v.lanes)) as i:
        at = v.imul(i, v.lanes)
        mask = v.mask(v.isub(count, at))
        found = v.b.trunc(wide.load_masked(v.pointer(given), at, mask), words.type)
        words.store_masked(found, v.pointer(places), at, mask)


@simd.emitter
def gather_row(
    v: Vec, STRIDE: int, TAPS: int, places: Value, dy: Value, step: Value, rows: Value,
    target: Value, groups: Value, index: Value,
) -> None:  # fmt: skip
    """target[m * STRIDE + f] = the sum of dy[r * step + m - j] over r < rows, and the windows j that reach so
    far: tap f + j * STRIDE of TAPS. Those count whose place is index + m * STRIDE + f.

    Args:
        groups: how many m there are, of STRIDE elements each.
    """
    words = words_of(v)
    found, given, to = v.pointer(places), v.pointer(dy), v.pointer(target)
    apart = words.mul(lane_numbers(words), words.const(STRIDE))

    with v.loop(v.idiv(v.iadd(groups, v.lanes - 1), v.lanes)) as i:
        m = v.imul(i, v.lanes)
        here = words.add(apart, words.spread(v.iadd(index, v.imul(m, STRIDE))))
        wanted = [words.add(here, words.const(f)) for f in range(STRIDE)]
        totals = [v.register(v.zero()) for _ in range(STRIDE)]
        with v.loop(rows) as r:
            for j in range(-(-TAPS // STRIDE)):
                at = v.isub(v.iadd(v.imul(r, step), m), j)
                further = v.load(given, at)
                place = words.load(found, at)
                for f, total in enumerate(totals):
                    if f + j * STRIDE < TAPS:
                        mine = v.b.select(v.b.icmp_signed("==", place, wanted[f]), further, v.zero())
                        total.set(v.fadd(total.value, mine))
        values = [total.value for total in totals]
        if STRIDE == 2:
            even, odd = values
            pairs = [lane // 2 + lane % 2 * v.lanes for lane in range(2 * v.lanes)]
            values = [v.shuffle(even, odd, order) for order in (pairs[: v.lanes], pairs[v.lanes :])]
        for f, value in enumerate(values):
            v.store(value, to, v.iadd(v.imul(m, STRIDE), f * v.lanes))


@jit.specialise
def gradient_of_places(SIZE: int, LANES: int, STRIDE: int, TAPS: int) -> jit.Kernel:
    """dx of dy (planes, *spatial), and of places."""

    def gradient_of_places(args: int, task: int) -> None:
        a = carray(pointer(args), 1, GATHER_FIELDS)[0]
        bands = carray(pointer(a.band_table), a.bands, GRADIENT_BAND)
        meeting = carray(pointer(a.inputs), a.x_plane // a.columns, MEETING)
        shares = a.scratch + task * a.scratch_bytes
        total = a.planes * a.bands
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            plane = unit // a.bands
            band = bands[unit % a.bands]
            count = band.outputs_end - band.outputs
            target = shares + count * a.output_line * SIZE
            places = target + a.line * SIZE
            for i in range(count):
                at = plane * a.y_plane + (band.outputs + i) * a.outputs
                row = places + i * a.output_line * INDEX
                to = shares + (i * a.output_line + a.lead) * SIZE
                copy_bytes(to, a.y + at * SIZE, a.outputs * SIZE)
                fill_nowhere(SIZE, LANES, row, a.output_line)
                narrow_places(SIZE, LANES, a.given + at * PLACE, row + a.lead * INDEX, a.outputs)
            for h in range(band.first, band.end):
                met = meeting[h]
                at = (met.first - band.outputs) * a.output_line + a.lead
                gather_row(
                    SIZE, LANES, STRIDE, TAPS, places + at * INDEX, shares + at * SIZE, a.output_line,
                    met.count, target, a.groups, h * a.columns - a.before,
                )  # fmt: skip
                dx = a.dx + (plane * a.x_plane + h * a.columns) * SIZE
                copy_bytes(dx, target + a.before * SIZE, a.columns * SIZE)

    return gradient_of_places
