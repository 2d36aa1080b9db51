"""Any kernel on rows of x: its taps are summed in passes of some rows of taps each, column by column.

The vectors of x under each kernel column are loaded where they begin, and each feeds every output row that
it meets. For a stride of 2 a vector of x feeds as many sums as it has lanes: even lanes meet a column of
taps, odd lanes the next, and neighbours are summed at last. `shifted_rows` is the same for usual kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import NamedTuple

from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors.lanes import load_lanes
from convalgos.cpu.vectors.simd import Register, Value, Vec

# Rows of taps that are summed at a time, by the rows of x between those under two outputs; 0: any other
# number.
PASS_ROWS = {1: (7, 5, 3, 2, 1), 2: (7, 5, 3, 1), 0: (1,)}
# An entry of the table of passes: the first row and column of taps, pairs of columns, single ones.
TAP_PASS = fields("row column pairs columns")
LEFT, RIGHT, BOTH = range(3)  # the ends of a row of x that a strip reaches over

Sums = Sequence[Sequence[Register]]  # of output rows, and of the vectors of each
LinesOf = Callable[[Value, int], list[Value]]  # (tap row, count) -> where so many rows of x begin
Masks = tuple[Value, int] | None  # a table of lanes, and the ends that they are for


class Taps(NamedTuple):
    """Where the taps of a filter and their passes lie; values of a kernel being written."""

    offsets: Value  # of each column of taps, from an output on
    passes: Value  # how many there are of each size, then all of them (see `TAP_PASS`)
    sizes: tuple[int, ...]
    stride: int
    w: Value
    w_row: Value


def add_taps(
    v: Vec, m: Vec, sums: Sums, taps: Taps, step: int, lines_of: LinesOf, starts: Sequence[Value],
    masks: Masks,
) -> None:  # fmt: skip
    """Add to sums[o][k] the products of rows of x, o * step further for each o, with all taps of a slice.

    m: what loads from rows of x.
    lines_of: rows of x from a tap row on; starts: where the vectors begin in a line.
    masks: a table of the lanes inside a row, for each column and part of `_lanes`, or None.
    """
    begin = v.iadd(taps.passes, 8 * len(taps.sizes))
    for i, size in enumerate(taps.sizes):
        number = v.table64(taps.passes, i)
        with v.loop(number) as c:
            entry = v.record(v.iadd(begin, v.imul(c, TAP_PASS.itemsize)), TAP_PASS)
            lines = lines_of(entry.row, (len(sums) - 1) * step + size)
            near = v.at(taps.w, v.imul(entry.row, taps.w_row))
            column = entry.column
            for together, count in ((2, entry.pairs), (1, entry.columns)):
                if together > taps.stride:
                    continue
                with v.loop(count) as n:
                    s = v.iadd(column, v.imul(n, together))
                    weights = [
                        _weight(v, taps._replace(w=near), v.iadd(s, v.imul(taps.w_row, r)), together)
                        for r in range(size)
                    ]
                    lanes = _lanes(v, masks, s, len(starts), taps.stride)
                    shift = v.table64(taps.offsets, s)
                    alone = together < taps.stride
                    _add_column(v, m, sums, step, lines, shift, starts, weights, alone, lanes)
                column = v.iadd(column, v.imul(entry.pairs, 2))
        begin = v.iadd(begin, v.imul(number, TAP_PASS.itemsize))


def _lanes(v: Vec, masks: Masks, s: Value, vectors: int, stride: int) -> dict[tuple[int, int], Value]:
    """{(vector, part): lanes} under column s: a stride loads `stride` parts for each vector.

    Of two vectors, only the first part and the last reach over ends of a row; `masks` are those of the side.
    """
    if masks is None:
        return {}
    table, side = masks
    parts = [(k, part) for k in range(vectors) for part in range(stride)]
    ends = [parts[0], parts[-1]]
    chosen = {LEFT: ends[:1], RIGHT: ends[1:], BOTH: ends if vectors > 1 else parts}[side]
    entries = parts if vectors == 1 else ends
    return {
        part: v.lanes_of(v.table64(table, v.iadd(v.imul(s, len(entries)), i)))
        for i, part in enumerate(entries)
        if part in chosen
    }


def _weight(v: Vec, taps: Taps, at: Value, together: int) -> Value:
    """A tap in all lanes; with a stride of 2 in those of even columns, and its neighbour in the others."""
    if taps.stride == 1:
        return v.broadcast(taps.w, at)
    return v.broadcast_pair(taps.w, at) if together == 2 else v.even(v.broadcast(taps.w, at))


def _add_column(
    v: Vec,
    m: Vec,
    sums: Sums,
    step: int,
    lines: Sequence[Value],
    shift: Value,
    starts: Sequence[Value],
    weights: Sequence[Value],
    alone: bool,
    lanes: dict[tuple[int, int], Value],
) -> None:
    """The products of rows of x with a column of taps, or for a stride of 2 with two: weights[tap row].

    alone: whether a stride of 2 meets one column only, so that odd lanes of x count as 0.
    """
    halves = len(sums[0]) // len(starts)
    shifts = {0: shift}  # of vectors that do not lie side by side: by their place
    shifts |= {
        k: v.iadd(shift, v.imul(start, halves))
        for k, start in enumerate(starts)
        if not isinstance(start, int)
    }
    meets: list[tuple[int, int]] = []  # (output row, tap row) that the row of x before meets
    for i, line in enumerate(lines):
        if i:  # else all rows would be loaded first, for too few registers
            sums_before = [total.value for o, _ in meets for total in sums[o]]
            shifts = {k: v.after(place, sums_before) for k, place in shifts.items()}
        meets = [(o, i - o * step) for o in range(len(sums)) if 0 <= i - o * step < len(weights)]
        if not meets:
            continue
        for (k, start), part in product(enumerate(starts), range(halves)):
            at = m.at(line, shifts.get(k, shifts[0]))
            beside = part * v.lanes + (0 if k in shifts else start * halves)
            mask = lanes.get((k, part))
            value = load_lanes(m, at, beside, mask)
            value = v.even(value) if alone else value
            for o, r in meets:
                total = sums[o][k * halves + part]
                total.set(v.fma(value, weights[r], total.value))
