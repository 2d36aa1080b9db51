"""The micro-kernel of blocked layouts: a tile of outputs that stay in registers over all taps.

The outputs are neighbours, and in blocks of channels vectors one behind the other. Their inputs are a
constant distance apart, which instructions hold themselves: no register has their addresses, and a tile may
have as many rows as there are registers for sums.
"""

from __future__ import annotations

from convalgos.core.epilogue import KINDS
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors.activations import activate
from convalgos.cpu.vectors.simd import Value, Vec, emitter

CLIP = KINDS["clip"].code


@emitter
def block_tile(
    v: Vec, RUNS: int, LENGTH: int, VECTORS: int, STEP: int, x: Value, run: Value, offsets: Value,
    entries: Value, inner: Value, whole: Value, rest: Value, w: Value, ahead: Value, begin: Value, y: Value,
    y_block: Value, bias: Value, added: Value, limits: Value,
) -> None:  # fmt: skip
    """y[j][i][:] = start + sum_e sum_d x[i][offsets[e] + d] * w[e][d][j][:], for d < inner and j < VECTORS.

    And that within two `limits`, low and high.

    Outputs i are RUNS rows of LENGTH neighbours, whose inputs are STEP elements apart, and those of two rows
    `run`; the vectors of y lie one behind the other, its blocks j are y_block elements apart. The sums start
    with the bias, where `begin` is 2 with the bias and what lies like y from `added` on, and where it is 0
    with what y holds. offsets: int64, with one more that is only asked for; the first `whole` entries have
    all inner taps, the others `rest`. For each tap a line from `ahead` on is asked for.
    """
    filters, later, target = v.pointer(w), v.pointer(ahead), v.pointer(y)
    starts = [v.at(v.pointer(x), v.imul(run, r)) for r in range(RUNS)]
    count, wide = RUNS * LENGTH, range(VECTORS)
    blocks = [v.at(target, v.imul(y_block, j)) for j in wide]
    sums = [[v.register(v.zero()) for _ in wide] for _ in range(count)]
    with v.choose(v.isub(begin, 1)) as (fresh, further):
        with fresh:
            for j in wide:
                first = v.load(v.pointer(bias), j * v.lanes)
                for row in sums:
                    row[j].set(first)
        with further:
            for i, row in enumerate(sums):
                for total, block in zip(row, blocks, strict=True):
                    total.set(v.load(block, i * v.lanes))
    with v.within(v.isub(begin, 2), 1):
        for j in wide:
            more = v.at(v.pointer(added), v.imul(y_block, j))
            for i, row in enumerate(sums):
                row[j].set(v.fadd(row[j].value, v.load(more, i * v.lanes)))
    with v.loop(entries) as e:
        offset, following = v.table64(offsets, e), v.table64(offsets, v.iadd(e, 1))
        tap = v.imul(e, inner)
        with v.loop(v.inside(e, whole, inner, rest)) as d:
            at, t = v.iadd(offset, d), v.iadd(tap, d)
            v.prefetch(later, v.imul(t, v.lanes))
            soon = v.iadd(following, v.imul(d, STEP))
            v.prefetch(starts[0], soon, near=True)
            weights = [v.load(filters, v.iadd(v.imul(t, VECTORS * v.lanes), j * v.lanes)) for j in wide]
            inputs = [v.at(start, at) for start in starts]
            for i, row in enumerate(sums):
                value = v.broadcast(inputs[i // LENGTH], i % LENGTH * STEP)
                for total, weight in zip(row, weights, strict=True):
                    total.set(v.fma(value, weight, total.value))
    low, high = (v.broadcast(v.pointer(limits), i) for i in (0, 1))
    for i, row in enumerate(sums):
        for total, block in zip(row, blocks, strict=True):
            v.store(activate(v, CLIP, total.value, low, high), block, i * v.lanes)


@jit.specialise
def sum_block_tile(SIZE: int, LANES: int, RUNS: int, LENGTH: int, VECTORS: int, STEP: int) -> jit.Kernel:
    """`block_tile`."""

    def sum_block_tile(
        x: int, run: int, offsets: int, entries: int, inner: int, whole: int, rest: int, w: int, ahead: int,
        begin: int, y: int, y_block: int, bias: int, added: int, limits: int,
    ) -> None:  # fmt: skip
        block_tile(
            SIZE, LANES, RUNS, LENGTH, VECTORS, STEP,
            x, run, offsets, entries, inner, whole, rest, w, ahead, begin, y, y_block, bias, added, limits,
        )  # fmt: skip

    return sum_block_tile
