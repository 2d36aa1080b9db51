"""Sums of all phases of a stride along a row, in registers, which they leave interleaved.

A tile is VECTORS vectors of outputs of each of WAYS phases of CHANNELS channels. All phases meet a row of dy
at the same displacements: at each the phases read WAYS neighbours of the kernel, at the first and at the last
displacement fewer of them. So the filter is read as it lies, and every line of dx is written once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from convalgos.core.machine import vector_bytes
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import Value
from convalgos.cpu.vectors.transpose import interleaved, shuffles, transpose_few

SUMS = {64: 24, 32: 12, 16: 12}  # vectors of sums that the registers hold beside what they are made of
MOST_CHANNELS = 4  # of a tile
FEW_SHUFFLES = 6  # of a vector, with which phases are interleaved; from so many on they are transposed

# In elements, from one to the next: of dy (x) and of the filter (w) along the taps of its two outer
# dimensions and along filters; of w and dx (y) along channels; near: of dy from a displacement to the one
# before it, more than 1 for one phase only. filters: of a group; displacements: of a row;
# front: of them the first one begins so many elements before the kernel; taps: of a row of the kernel;
# limit: elements of a row of dy; ways: the stride.
TILE_STEPS = fields("x_d x_h x_k w_d w_h w_k w_c y_c near filters displacements front taps limit ways")


def phase_tile_sizes(ways: int) -> Iterator[tuple[int, int]]:
    """(channels, vectors) of the tiles that there are for a stride."""
    most = SUMS[vector_bytes()] // ways
    for channels in (1, MOST_CHANNELS):
        largest = min(8 if ways < 3 else 7, most // channels)
        for vectors in sorted({1, largest} if largest else ()):
            yield channels, vectors


def most_ways() -> int:
    """The largest stride."""
    return min(16, SUMS[vector_bytes()])


@simd.emitter
def phase_tile(
    v: simd.Vec, WAYS: int, CHANNELS: int, VECTORS: int, MASKED: int, x: Value, w: Value, y: Value,
    bias: Value, relu: Value, count: Value, steps: Value, depth: Value, rows: Value, place: Value,
) -> None:  # fmt: skip
    """y[c*y_c + i*WAYS + p] = bias[c] + sum over depth, rows, filters k, displacements u of
    w[k*w_k + c*w_c + u*WAYS + p - front] * x[k*x_k + i - u*near]; at least 0 with relu.

    MASKED: element `place` of a row of dy is at x, and those before 0 and from `limit` on count as zeros.
    count: of elements of y, those beyond are not written.
    """
    s = v.record(steps, TILE_STEPS)
    dy, filters, added = v.pointer(x), v.pointer(w), v.pointer(bias)
    sums = [
        [[v.register(v.broadcast(added, c)) for _ in range(VECTORS)] for _ in range(WAYS)]
        for c in range(CHANNELS)
    ]

    def pixels(line: Any, u: Any) -> list[Any]:
        if not MASKED:
            return [v.load(line, v.isub(j * v.lanes, v.imul(u, s.near))) for j in range(VECTORS)]
        found = []
        for j in range(VECTORS):
            at = v.isub(j * v.lanes, v.imul(u, s.near))
            first = v.iadd(place, at)
            inside = v.window(v.isub(0, first), v.isub(s.limit, first))
            found.append(v.load_masked(line, at, inside))
        return found

    def add(values: list[Any], tap: Any, p: int) -> None:
        for c, channel in enumerate(sums):
            weight = v.broadcast(tap, v.iadd(v.imul(s.w_c, c), p))
            for total, value in zip(channel[p], values, strict=True):
                total.set(v.fma(weight, value, total.value))

    def add_some(line: Any, tap: Any, u: Any) -> None:
        """The phases that have a tap at a displacement."""
        values, first = pixels(line, u), v.isub(v.imul(u, WAYS), s.front)
        for p in range(WAYS):
            with v.within(v.iadd(first, p), s.taps):
                add(values, v.at(tap, first), p)

    with v.loop(depth) as d, v.loop(rows) as h, v.loop(s.filters) as k:
        line = v.at(dy, _offset(v, (d, s.x_d), (h, s.x_h), (k, s.x_k)))
        tap = v.at(filters, _offset(v, (d, s.w_d), (h, s.w_h), (k, s.w_k)))
        add_some(line, tap, v.integer(0))
        with v.loop(v.isub(s.displacements, 2)) as i:
            u = v.iadd(i, 1)
            values, here = pixels(line, u), v.at(tap, v.isub(v.imul(u, WAYS), s.front))
            for p in range(WAYS):
                add(values, here, p)
        with v.unless_negative(v.isub(s.displacements, 2)):
            add_some(line, tap, v.isub(s.displacements, 1))

    low = v.lower_bound(relu)
    lines = [_pieces(v, [[v.fmax(total.value, low) for total in p] for p in channel]) for channel in sums]
    _store(v, lines, v.pointer(y), s.y_c, count, WAYS * VECTORS * v.lanes)


class Piece(NamedTuple):
    """What a store writes of a line: its first `own` elements; on the others the next piece is stored."""

    of: simd.Vec
    at: int
    value: Any
    own: int


def _pieces(v: simd.Vec, phases: Sequence[Sequence[Any]]) -> list[Piece]:
    """The sums (phases, vectors) of a channel in the order of a line."""
    ways = len(phases)
    width = 1 << (ways - 1).bit_length()
    by_vector = list(zip(*phases, strict=True))
    if shuffles(ways) < FEW_SHUFFLES or width > v.lanes:
        parts = [part for rows in by_vector for part in interleaved(v, rows)]
        return [Piece(v, i * v.lanes, part, v.lanes) for i, part in enumerate(parts)]
    narrow, nothing = simd.Vec(v.b, width, v.size), [v.zero()] * (width - ways)
    columns = [column for rows in by_vector for column in transpose_few(v, [*rows, *nothing])]
    return [Piece(narrow, i * ways, column, ways) for i, column in enumerate(columns)]


def _store(
    v: simd.Vec, lines: Sequence[Sequence[Piece]], to: Any, y_c: Any, count: Any, elements: int
) -> None:
    """Store the first `count` of the `elements` of each channel's line."""
    with v.choose(v.isub(count, elements)) as (whole, part):
        with whole:  # masks would make the stores slower
            for c, pieces in enumerate(lines):
                for piece in pieces:
                    m, place = piece.of, v.iadd(v.imul(y_c, c), piece.at)
                    if piece is pieces[-1] and piece.own < m.lanes:
                        m.store_masked(piece.value, to, place, m.first_lanes(piece.own))
                    else:
                        m.store(piece.value, to, place)
        with part:
            for c, pieces in enumerate(lines):
                for piece in pieces:
                    inside = piece.of.mask(v.imin(v.isub(count, piece.at), piece.own))
                    piece.of.store_masked(piece.value, to, v.iadd(v.imul(y_c, c), piece.at), inside)


def _offset(v: simd.Vec, *parts: tuple[Any, Any]) -> Any:
    total = v.integer(0)
    for index, step in parts:
        total = v.iadd(total, v.imul(index, step))
    return total


@jit.specialise
def sum_phases(SIZE: int, LANES: int, WAYS: int, CHANNELS: int, VECTORS: int) -> Callable[..., None]:
    """`phase_tile`, with masks only where it reads beyond the ends of dy. inner: where none is needed,
    (first, end) of `place`."""

    def sum_phases(
        x: int, w: int, y: int, bias: int, relu: int, count: int, steps: int, depth: int, rows: int,
        place: int, first: int, end: int,
    ) -> None:  # fmt: skip
        if first <= place < end:
            phase_tile(
                SIZE, LANES, WAYS, CHANNELS, VECTORS, 0, x, w, y, bias, relu, count, steps, depth, rows, place
            )
        else:
            phase_tile(
                SIZE, LANES, WAYS, CHANNELS, VECTORS, 1, x, w, y, bias, relu, count, steps, depth, rows, place
            )

    return sum_phases
