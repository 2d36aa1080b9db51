"""Blocks of outputs of products of float32 that are split for matrix tiles: where they lie, their finish."""

from __future__ import annotations

from typing import Any, NamedTuple

from convalgos.core.epilogue import KINDS
from convalgos.cpu.gemm.split_terms import TERMS
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import arguments
from convalgos.cpu.vectors.activations import activate
from convalgos.cpu.vectors.simd import Value, Vec, call, emitter

SPLIT_ARGUMENTS = arguments(
    "size n p q images rows columns blocks_p blocks_q parts tasks channels filters vectors panels entries "
    "height width pad_h pad_w stride_h stride_w step_h step_w phases phase_rows pitch positions tile "
    "x_n x_h x_w x_block y_n y_k y_h y_pixel y_block plane_bytes term_bytes position_bytes offsets "
    "configuration kernels ahead_bytes units_at sums_at group_bytes passes fetches run scratch_stride "
    "unlimited limits adds"
)
SOON = 32  # pixels ahead of those that are stored, whose lines are asked for
CLIP = KINDS["clip"].code


@emitter
def zero_terms(v: Vec, count: Value, to: Value, to_pixel: Value, term: Value) -> None:
    """All terms of pixels of the border."""
    with v.loop(count) as i:
        place = v.iadd(to, v.imul(i, to_pixel))
        for t in range(TERMS):
            v.store(v.zero(), v.pointer(v.iadd(place, v.imul(term, t))))


@emitter
def store_positions(
    v: Vec, VECTORS: int, sums: Value, count: Value, filters: Value, bias: Value, adds: Value, added: Value,
    limits: Value, y: Value, y_pixel: Value, y_block: Value,
) -> None:  # fmt: skip
    """y[i][j] = sums[i][j] + bias[j], and what lies like y from `added` on, within two limits.

    i: pixels, y_pixel elements apart; j: vectors of filters, y_block apart.
    """
    low, high = (v.broadcast(v.pointer(limits), i) for i in (0, 1))
    for j in range(VECTORS):
        mask = v.mask(v.isub(filters, j * v.lanes))
        start = v.load(v.pointer(bias), j * v.lanes)
        source = v.at(v.pointer(sums), j * v.lanes)
        target, more = (v.at(v.pointer(place), v.imul(y_block, j)) for place in (y, added))
        with v.loop(count) as i:
            at = v.imul(i, y_pixel)
            v.prefetch(target, v.imul(v.iadd(i, SOON), y_pixel), write=True)
            total = v.fadd(v.load(source, v.imul(i, VECTORS * v.lanes)), start)
            value = v.register(total)
            with v.unless_negative(v.isub(adds, 1)):
                value.set(v.fadd(total, v.load_masked(more, at, mask)))
            v.store_masked(activate(v, CLIP, value.value, low, high), target, at, mask)


class SplitBlock(NamedTuple):
    """A block of outputs: its first image, row and column, and how many of each."""

    n: int
    p: int
    q: int
    images: int
    rows: int
    columns: int


@jit.helper
def split_block(a: Any, block: int) -> SplitBlock:
    q, block = block % a.blocks_q * a.columns, block // a.blocks_q
    p, n = block % a.blocks_p * a.rows, block // a.blocks_p * a.images
    return SplitBlock(n, p, q, min(a.images, a.n - n), min(a.rows, a.p - p), min(a.columns, a.q - q))


@jit.helper
def finish_split_tile(a: Any, b: SplitBlock, first: int, width: int, begin: int, end: int, sums: int) -> None:
    """The sums of positions of a block into y, but for those behind the ends of rows of outputs."""
    k = 16 * first
    filters, bias = min(16 * width, a.filters - k), a.bias + k * 4
    limits = a.unlimited + 8 if a.relu else a.limits
    y = a.y + (b.n * a.y_n + first * a.y_block + b.p * a.y_h + b.q * a.y_pixel) * 4
    i = begin
    while i < end:
        row, column = i // a.positions, i % a.positions
        run = min(end - i, a.positions - column)
        image, line = row // a.phase_rows, row % a.phase_rows
        valid = min(run, b.columns - column)
        if valid > 0 and line < b.rows:
            to = y + (image * a.y_n + line * a.y_h + column * a.y_pixel) * 4
            source = sums + (i - begin) * 64 * width
            if width == 2:
                store_positions(
                    4, 16, 2, source, valid, filters, bias, a.adds, to + a.residual, limits, to, a.y_pixel,
                    a.y_block,
                )  # fmt: skip
            else:
                store_positions(
                    4, 16, 1, source, valid, filters, bias, a.adds, to + a.residual, limits, to, a.y_pixel,
                    a.y_block,
                )  # fmt: skip
            if a.finish and a.y_pixel == 16:  # blocks of channels
                for j in range(width):
                    at = to + j * a.y_block * 4
                    call(a.finish, (at, 0, at, valid * 16, a.finish_numbers))
            elif a.finish:
                for pixel in range(valid):
                    at = to + pixel * a.y_pixel * 4
                    call(a.finish, (at, 0, at, filters, a.finish_numbers))
        i += run
