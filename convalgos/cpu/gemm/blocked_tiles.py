"""The micro-kernel of blocked layouts: a tile of outputs that stay in registers over all taps.

The outputs are neighbours, and in blocks of channels vectors one behind the other. Their inputs are a
constant distance apart, which instructions hold themselves: no register has their addresses, and a tile may
have as many rows as there are registers for sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from convalgos.core.epilogue import KINDS
from convalgos.cpu.gemm import dealt_panels
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.activations import activate
from convalgos.cpu.vectors.simd import Value, Vec, emitter, ir

CLIP = KINDS["clip"].code


@emitter
def block_tile(
    v: Vec, RUNS: int, LENGTH: int, VECTORS: int, STEP: int, HALF: int, x: Value, run: Value, offsets: Value,
    entries: Value, inner: Value, whole: Value, rest: Value, w: Value, ahead: Value, begin: Value, y: Value,
    y_block: Value, bias: Value, added: Value, limits: Value,
) -> None:  # fmt: skip
    """y[j][i][:] = start + sum_e sum_d x[i][offsets[e] + d] * w[e][d][j][:], for d < inner and j < VECTORS.

    And that within two `limits`, low and high.

    Outputs i are RUNS rows of LENGTH neighbours, whose inputs are STEP elements apart, and those of two rows
    `run`; the vectors of y lie one behind the other, its blocks j are y_block elements apart. The sums start
    with the bias, where `begin` is 2 with the bias and what lies like y from `added` on, and where it is 0
    with what y holds. offsets: int64, with one more that is only asked for; the first `whole` entries have
    all inner taps, the others `rest`. For each tap a line from `ahead` on is asked for. With HALF the upper
    half of the last vector is padding: it is not summed, and zeros are stored.
    """
    filters, later, target = v.pointer(w), v.pointer(ahead), v.pointer(y)
    starts = [v.at(v.pointer(x), v.imul(run, r)) for r in range(RUNS)]
    count = RUNS * LENGTH
    blocks = [v.at(target, v.imul(y_block, j)) for j in range(VECTORS)]
    kinds = [v] * (VECTORS - HALF) + [Vec(v.b, v.lanes // 2, v.size)] * HALF  # of the vectors of filters
    sums = [[kind.register(kind.zero()) for kind in kinds] for _ in range(count)]
    with v.choose(v.isub(begin, 1)) as (fresh, further):
        with fresh:
            for j, kind in enumerate(kinds):
                first = kind.load(v.pointer(bias), j * v.lanes)
                for row in sums:
                    row[j].set(first)
        with further:
            for i, row in enumerate(sums):
                for kind, total, block in zip(kinds, row, blocks, strict=True):
                    total.set(kind.load(block, i * v.lanes))
    with v.within(v.isub(begin, 2), 1):
        for j, kind in enumerate(kinds):
            more = v.at(v.pointer(added), v.imul(y_block, j))
            for i, row in enumerate(sums):
                row[j].set(kind.fadd(row[j].value, kind.load(more, i * v.lanes)))
    with v.loop(entries) as e:
        offset, following = v.table64(offsets, e), v.table64(offsets, v.iadd(e, 1))
        tap = v.imul(e, inner)
        with v.loop(v.inside(e, whole, inner, rest)) as d:
            at, t = v.iadd(offset, d), v.iadd(tap, d)
            v.prefetch(later, v.imul(t, v.lanes))
            soon = v.iadd(following, v.imul(d, STEP))
            v.prefetch(starts[0], soon, near=True)
            of_tap = v.imul(t, VECTORS * v.lanes)
            weights = [kind.load(filters, v.iadd(of_tap, j * v.lanes)) for j, kind in enumerate(kinds)]
            inputs = [v.at(start, at) for start in starts]
            for i, row in enumerate(sums):
                value = v.broadcast(inputs[i // LENGTH], i % LENGTH * STEP)
                value = _whole(v, value) if HALF and VECTORS > 1 else value
                for kind, total, weight in zip(kinds, row, weights, strict=True):
                    factor = v.shuffle(value, value, range(kind.lanes))
                    total.set(kind.fma(factor, weight, total.value))
    for j, kind in enumerate(kinds):
        low, high = (kind.broadcast(v.pointer(limits), i) for i in (0, 1))
        for i, row in enumerate(sums):
            limited = activate(kind, CLIP, row[j].value, low, high)
            v.store(kind.shuffle(limited, kind.zero(), range(v.lanes)), blocks[j], i * v.lanes)


def _whole(v: Vec, value: Value) -> Value:
    """The same vector, which is loaded as a whole: the compiler would rather load half of it, and spread its
    first lane once more. It cannot look through the empty assembly."""
    return v.b.asm(ir.FunctionType(v.type, [v.type]), "", "=v,0", [value], False)


@jit.specialise
def sum_block_tile(
    SIZE: int, LANES: int, RUNS: int, LENGTH: int, VECTORS: int, STEP: int, HALF: int
) -> jit.Kernel:  # fmt: skip
    """`block_tile`."""

    def sum_block_tile(
        x: int, run: int, offsets: int, entries: int, inner: int, whole: int, rest: int, w: int, ahead: int,
        begin: int, y: int, y_block: int, bias: int, added: int, limits: int,
    ) -> None:  # fmt: skip
        block_tile(
            SIZE, LANES, RUNS, LENGTH, VECTORS, STEP, HALF,
            x, run, offsets, entries, inner, whole, rest, w, ahead, begin, y, y_block, bias, added, limits,
        )  # fmt: skip

    return sum_block_tile


def tile_kernels(
    filters: int, panels: int, size: int, kinds: Sequence[tuple[int, int, int]]
) -> tuple[np.ndarray, np.ndarray]:
    """(addresses for wide panels, then for narrow ones; those for the last panel, which is a wide one).

    Args:
        filters: of a group.
        kinds: RUNS, LENGTH and STEP of the tiles.
    """
    half = int(dealt_panels.ends_in_half(filters, size))
    return _tile_kernels(filters, panels, size, simd.lanes(size), half, tuple(kinds))


@lru_cache(1024)  # layers of all map sizes share them
def _tile_kernels(
    filters: int, panels: int, size: int, lanes: int, half: int, kinds: tuple[tuple[int, int, int], ...]
) -> tuple[np.ndarray, np.ndarray]:
    vectors = -(-filters // lanes)
    wide = -(-vectors // panels)

    def addresses(width: int, half: int) -> list[int]:
        return [sum_block_tile(size, lanes, runs, n, width, step, half) for runs, n, step in kinds]

    every = addresses(wide, 0) + addresses(vectors // panels, 0)
    return np.array(every, np.int64), np.array(addresses(wide, half), np.int64)
