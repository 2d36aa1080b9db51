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
    "unlimited limits adds streamed"
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


class DealtBlocks(NamedTuple):
    """Blocks of the outputs, and the first and last of the (part of the filters, block) items of a task."""

    blocks: int
    first: int
    last: int


@jit.helper
def dealt_blocks(a: Any, task: int) -> DealtBlocks:
    """Parts of the filters x blocks, in this order, dealt to the tasks in equal runs."""
    blocks = (a.n + a.images - 1) // a.images * a.blocks_p * a.blocks_q
    total = blocks * a.parts
    return DealtBlocks(blocks, total * task // a.tasks, total * (task + 1) // a.tasks)


@jit.helper
def fetches_filters(a: Any, block: int, begins: bool) -> Any:
    """Whether filters are fetched beside the products of an item, as they are not in L2 yet."""
    return 1 if a.fetches > 1 or (a.fetches == 1 and (block == 0 or begins)) else 0


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


class InputColumns(NamedTuple):
    """Columns of the input of a block: where they begin, and how many are border, and then there."""

    left: int
    before: int
    there: int


@jit.helper
def input_columns(a: Any, b: SplitBlock) -> InputColumns:
    left = b.q * a.stride_w - a.pad_w
    before = min(a.pitch, max(0, (a.step_w - 1 - left) // a.step_w))
    end = min(a.pitch, max(before, (a.width - left + a.step_w - 1) // a.step_w))
    return InputColumns(left, before, end - before)


@jit.helper
def input_row(a: Any, b: SplitBlock, n: int, j: int) -> tuple[int, int]:
    """Row j of an image of a block: where it lies split, by phases, and its number in the map."""
    slot = (j % a.phases * a.images + n) * a.phase_rows + j // a.phases
    return slot, b.p * a.stride_h - a.pad_h + j * a.step_h


@jit.helper
def zero_border(a: Any, before: int, there: int, to: int) -> None:
    """The terms of the pixels of a split row before those that are there, and behind them."""
    done = before + there
    zero_terms(4, 16, before, to, 64, a.term_bytes)
    zero_terms(4, 16, a.pitch - done, to + done * 64, 64, a.term_bytes)


class FilterPanel(NamedTuple):
    """A panel of filters, its first vector and how many, and positions of a block, in pairs of tiles."""

    first: int
    width: int
    end: int
    tiles: int
    pairs: int


@jit.helper
def filter_panel(a: Any, b: SplitBlock, panel: int) -> FilterPanel:
    end = ((b.images - 1) * a.phase_rows + b.rows - 1) * a.positions + b.columns
    tiles, first = (end + a.tile - 1) // a.tile, a.vectors * panel // a.panels
    width = a.vectors * (panel + 1) // a.panels - first
    return FilterPanel(first, width, end, tiles, (tiles + 1) // 2)


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
