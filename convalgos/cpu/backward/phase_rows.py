"""Sums of all phases of a wide stride: vectors of neighbouring phases, one place of dy after the other.

Where a stride has more phases than registers hold vectors, its outputs are summed as they lie: those of one
place of dy are neighbours, and so are the taps that they meet at each displacement. Some places at a time
share the taps that are loaded. Nothing is interleaved, and one kernel serves every stride.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from convalgos.core.machine import vector_bytes
from convalgos.cpu.backward.phase_tiles import TILE_STEPS
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.blocks import loop_blocks
from convalgos.cpu.vectors.lanes import load_lanes
from convalgos.cpu.vectors.simd import Value, carray, pointer

PLACES = {  # of dy at a time, by the vectors of phases of each
    64: {1: 8, 2: 8, 3: 8, 4: 6},
    32: {1: 8, 2: 6, 3: 4, 4: 3},
    16: {1: 8, 2: 6, 3: 4, 4: 3},
}
TILE_ELEMENTS = 1 << 12  # outputs of a tile
# Cycles of the pace of vectors, as `direct_phases` has them; Sapphire Rapids
BLOCK_CYCLES = 40  # to begin and end some vectors of some places
LINE_CYCLES = 6  # to begin a row of taps
STEP_CYCLES = 3  # of a displacement, beside its products and its loads
SINGLE_CYCLES = 32  # of one at one place, whose sums wait for each other


class PhaseRows(NamedTuple):
    """How the phases of a stride are summed."""

    places: int  # at a time
    vectors: int  # of phases of each


def phase_row_sizes() -> Iterator[PhaseRows]:
    """Of the kernels that there are."""
    for vectors, places in PLACES[vector_bytes()].items():
        yield PhaseRows(places, vectors)


def fewest_cycles(
    row: int, out: int, stride: int, lanes: int, displacements: int, lines: float
) -> tuple[float, PhaseRows]:
    """(cycles of a row of so many places, what takes them).

    out: places of them that lie in dy; lines: rows of taps that meet it.
    """
    inside = max(0, row - 2 * (displacements - 1))  # places that all displacements meet
    at_border = min(displacements / 2, out)  # displacements that meet another one
    return min(
        (_cycles(rows, stride, lanes, lines, inside, displacements)
         + _cycles(rows, stride, lanes, lines, row - inside, at_border, alone=True), rows)
        for rows in phase_row_sizes()
    )  # fmt: skip


def _cycles(
    rows: PhaseRows, stride: int, lanes: int, lines: float, count: int, displacements: float,
    alone: bool = False,
) -> float:  # fmt: skip
    """Of some places, which are summed one by one where they are alone."""
    places = 1 if alone else rows.places
    sums = places * rows.vectors
    step = SINGLE_CYCLES if alone else max(sums, places + rows.vectors) / 2 + STEP_CYCLES
    block = BLOCK_CYCLES + sums + lines * (LINE_CYCLES + displacements * step)
    return -(-stride // (lanes * rows.vectors)) * count / places * block


@simd.emitter
def phase_row(
    v: simd.Vec, PLACES: int, VECTORS: int, x: Value, w: Value, y: Value, bias: Value, relu: Value,
    count: Value, steps: Value, depth: Value, rows: Value, first: Value, end: Value,
) -> None:  # fmt: skip
    """y[i*ways + p] = bias + sum over depth, rows, filters k, displacements u from `first` to `end` of
    w[k*w_k + u*ways + p - front] * x[k*x_k + i - u]; at least 0 with relu.

    count: phases p of each of PLACES places i; those beyond are not written.
    """
    s = v.record(steps, TILE_STEPS)
    dy, filters, low, begin = v.pointer(x), v.pointer(w), v.lower_bound(relu), v.broadcast(v.pointer(bias))
    last = v.isub(s.displacements, 1)
    before = v.imin(s.front, 1)  # 1 where the first displacement has phases without a tap, and the last one:
    behind = v.imin(v.isub(v.isub(v.imul(s.displacements, s.ways), s.front), s.taps), 1)
    inner = v.imax(first, before)

    def block(at: Value, rest: Value = None) -> None:
        sums = [[v.register(begin) for _ in range(VECTORS)] for _ in range(PLACES)]
        written = [None if rest is None else v.mask(v.isub(rest, m * v.lanes)) for m in range(VECTORS)]

        def add(line: Value, taps: Value, u: Value, some: bool) -> None:
            """A displacement, of which some phases have no tap, or all have."""
            tap = v.iadd(v.isub(v.imul(u, s.ways), s.front), at)
            places = [v.iadd(tap, m * v.lanes) for m in range(VECTORS)]
            reached = [v.window(v.isub(0, t), v.isub(s.taps, t)) for t in places] if some else written
            weights = [load_lanes(v, taps, t, mask) for t, mask in zip(places, reached, strict=True)]
            for i, phases in enumerate(sums):
                scale = v.broadcast(line, v.isub(i, u))
                for total, weight, mask in zip(phases, weights, reached, strict=True):
                    value = v.fma(weight, scale, total.value)
                    total.set(v.b.select(mask, value, total.value) if some else value)  # else NaN spreads

        with v.loop(depth) as d, v.loop(rows) as h, v.loop(s.filters) as k:
            line, taps = dy, filters
            for index, x_step, w_step in ((d, s.x_d, s.w_d), (h, s.x_h, s.w_h), (k, s.x_k, s.w_k)):
                line, taps = v.at(line, v.imul(index, x_step)), v.at(taps, v.imul(index, w_step))
            with v.within(first, before):
                add(line, taps, v.integer(0), some=True)
            whole = v.imin(end, v.isub(s.displacements, behind))
            with v.loop(v.imax(v.isub(whole, inner), 0)) as j:
                add(line, taps, v.iadd(inner, j), some=False)
            reaches = v.isub(v.isub(v.iadd(end, behind), last), 2)  # 0 where it has masks, else below
            with v.unless_negative(v.imin(reaches, v.isub(last, inner))):
                add(line, taps, last, some=True)

        for i, phases in enumerate(sums):
            for m, total in enumerate(phases):
                value, place = v.fmax(total.value, low), v.iadd(v.iadd(v.imul(s.ways, i), at), m * v.lanes)
                if (mask := written[m]) is None:
                    v.store(value, v.pointer(y), place)
                else:
                    v.store_masked(value, v.pointer(y), place, mask)

    loop_blocks(v, count, VECTORS * v.lanes, block)


@jit.specialise
def sum_phase_rows(SIZE: int, LANES: int, PLACES: int, VECTORS: int) -> Callable[..., None]:
    """`phase_row` of all places of a tile: some at a time where all displacements meet dy, else one.

    They do where the first of these places lies from `first` to before `end`.
    """

    def sum_phase_rows(
        x: int, w: int, y: int, bias: int, relu: int, count: int, steps: int, depth: int, rows: int,
        place: int, first: int, end: int,
    ) -> None:  # fmt: skip
        a = carray(pointer(steps), 1, TILE_STEPS)[0]
        done = 0
        while done < count:
            if first <= place < end and done + PLACES * a.ways <= count:
                phase_row(
                    SIZE, LANES, PLACES, VECTORS, x, w, y, bias, relu, a.ways, steps, depth, rows, 0,
                    a.displacements,
                )  # fmt: skip
                many = PLACES
            else:
                to_u = min(a.displacements, place + 1)
                from_u = min(max(0, place - a.limit + 1), to_u)
                phases = min(a.ways, count - done)
                phase_row(
                    SIZE, LANES, 1, VECTORS, x, w, y, bias, relu, phases, steps, depth, rows, from_u, to_u
                )
                many = 1
            done += many * a.ways
            place += many
            x += many * SIZE
            y += many * a.ways * SIZE

    return sum_phase_rows
