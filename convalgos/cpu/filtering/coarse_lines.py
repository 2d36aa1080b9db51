"""Wide Gaussians along lines by way of coarse grids: blocks of a line are the rows of a matrix.

A grid has a place for every `step`-th element, a whole number, and a block the elements of STEPS steps. Three
products of matrices filter all blocks: one sums up the elements around the places of a block; one is the
short filter along the grid; the last makes a block of the places around it. See `coarse_gaussians` for the
steps and their error.
"""

from __future__ import annotations

import numpy as np

from convalgos.core.allocator import whole_lines
from convalgos.core.boundaries import source_indices
from convalgos.cpu.filtering.block_kernels import (
    BEYOND,
    BLOCK_FIELDS,
    STEPS,
    block_tiles,
    filter_blocks,
)
from convalgos.cpu.filtering.coarse_grids import NUDGED, cubic
from convalgos.cpu.filtering.line_elements import KINDS, load_line, store_within
from convalgos.cpu.runtime.record_launch import RecordLaunch
from convalgos.cpu.vectors import simd

LONG = 220  # standard deviations in a line from which on blocks take less time than `grid_lines`; Zen 5
NARROW = 4.0  # times one in elements, from as many on with FEW lines: places of narrow ones are more; Zen 5
FEW = 3  # lines that are not filtered some at a time
CHUNK = 64  # blocks of a line that are filtered at a time, at most
SHARE = 1 << 17  # products that are worth a thread; Zen 5


def is_long_line(count: int, size: int, sigma: float) -> bool:
    """Whether `count` lines are better filtered in blocks, if their elements lie behind each other."""
    return size >= sigma * (min(LONG, NARROW * sigma) if count <= FEW else LONG)


class BlockPass:
    """y (lines, size) = x (lines, size) filtered along lines; both are C-contiguous, and apart.

    Args:
        dtype: of sums, a float one.
        step: between places of the grid, a whole number.
        middle: (odd,) the short filter along the grid.
        fill: what lies beyond the ends with the boundary "constant".
        of, into: short integers that x or y holds, where they are not of dtype.
    """

    def __init__(
        self, lines: int, size: int, dtype: np.dtype, step: int, middle: np.ndarray, boundary: str,
        fill: float, threads: int, of: np.dtype | None = None, into: np.dtype | None = None,
    ):  # fmt: skip
        self.count, half, block = lines * size, len(middle) // 2, STEPS * step
        blocks, each = -(-size // block), dtype.itemsize
        tiles = block_tiles(each)
        _, _, rows, wide, panel, tall = tiles
        matrices = _matrices(step, middle, wide * panel, dtype, NUDGED if into else 1.0)
        low = (half + 3) * step
        high = (blocks * STEPS + (2 * half + 2 + STEPS) // STEPS * STEPS - half) * step - size
        sources = source_indices(boundary, size, low, high)
        ends = np.concatenate([sources[:low], sources[low + size :]])
        filling = np.full(1, fill, of or dtype)
        products = lines * blocks * (2 * BEYOND * block + (STEPS + 2 * half) * STEPS)
        tasks = max(1, min(threads, products // SHARE, lines * blocks))
        chunk = min(CHUNK, -(-blocks // -(-tasks // lines)))
        spanned, taken = rows * block + BEYOND * step, (chunk + 2 * rows + tall) * STEPS + 2 * half + BEYOND
        # elements as they are, and as sums; of sums, filtered ones and outputs
        counts = spanned, spanned, taken, taken, tall * block
        places = np.cumsum([0, *(whole_lines(count * each) for count in counts)])  # bytes
        values = (
            0, 0, 0, places[-1], tasks, lines, size, step, half, blocks, chunk,
            *(m.ctypes.data for m in matrices), len(matrices[-1]), ends.ctypes.data, low,
            filling.ctypes.data, load_line(KINDS.index(of.name), each, simd.lanes(each)) if of else 0,
            store_within(KINDS.index(into.name), each, simd.lanes(each)) if into else 0,
            (of or dtype).itemsize, (into or dtype).itemsize, *places[1:5],
        )  # fmt: skip
        record, kept = np.array(values, np.int64), (*matrices, ends, filling)
        names = BLOCK_FIELDS.names
        self.run = RecordLaunch(
            filter_blocks(each, *tiles), record, names, tasks * int(places[-1]), tasks, kept
        )


def _matrices(
    step: int, middle: np.ndarray, panel: int, dtype: np.dtype, scale: float
) -> tuple[np.ndarray, ...]:
    """To the grid (BEYOND * step, STEPS), along it (STEPS + 2 * half, STEPS), back (panels, BEYOND, panel),
    and the columns of a block at which panels begin."""
    block = STEPS * step
    down = cubic(np.arange(BEYOND * step)[:, None] / step - np.arange(2, STEPS + 2)) / step
    along = np.zeros((STEPS + len(middle) - 1, STEPS))
    for place in range(STEPS):
        along[place : place + len(middle), place] = middle
    up = cubic(np.arange(block) / step - np.arange(-1, STEPS + 2)[:, None]) * scale  # (BEYOND, block)
    columns = np.minimum(np.arange(0, block, panel), block - panel)
    packed = np.stack([up[:, at : at + panel] for at in columns])
    return *(m.astype(dtype) for m in (down, along, packed)), columns
