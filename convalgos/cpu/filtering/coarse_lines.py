"""Wide Gaussians along lines by way of coarse grids: blocks of a line are the rows of a matrix.

A grid has a place for every `step`-th element, a whole number, and a block the elements of STEPS steps. Two
products of matrices filter all blocks: one sums up the elements around the places of a block; the other makes
a block of the sums of the places that it depends on, by the short filter along the grid and the interpolation
at once. See `coarse_gaussians` for the steps and their error.
"""

from __future__ import annotations

import numpy as np

from convalgos.core.boundaries import OUTSIDE, source_indices
from convalgos.cpu.filtering.coarse_grids import cubic
from convalgos.cpu.filtering.window_products import WindowProduct

STEPS = 8  # of a block
BEYOND = STEPS + 3  # places that a block is interpolated from, and steps that its places are sums of
FEW = 8  # lines that are better filtered so
# (elements of a line, times a standard deviation) from which it takes less time than a recursion, of few
# lines and of many, whose ends take longer; Sapphire Rapids
LEAST = (1 << 12, 54), (1 << 13, 160)
MOST = 256  # lines; more keep the lanes of recursions busy, and pay for their ends
AT_ONCE = 1 << 16  # elements around the ends of lines that are gathered at a time


def is_long_line(count: int, size: int, sigma: float) -> bool:
    """Whether `count` lines are better filtered in blocks, if their elements lie behind each other."""
    least, widths = LEAST[count > FEW]
    return count <= MOST and size >= max(least, widths * sigma)


class BlockPass:
    """y (lines, size) = x (lines, size) filtered along lines; both are C-contiguous, and apart.

    Args:
        step: between places of the grid, a whole number.
        middle: (odd,) the short filter along the grid.
        fill: what lies beyond the ends with the boundary "constant".
    """

    def __init__(
        self, lines: int, size: int, dtype: np.dtype, step: int, middle: np.ndarray, boundary: str,
        fill: float, threads: int,
    ):  # fmt: skip
        self._size, self._fill, half, block = size, fill, len(middle) // 2, STEPS * step
        self.count, self._shape = lines * size, (lines, size)
        around = -(-(half + 2) // STEPS)  # blocks of sums beyond each end
        self._whole, rest = size // block * block, size % block  # elements of whole blocks
        blocks = size // block + (rest > 0)
        near = np.zeros((block, BEYOND))  # of a block, by the places from one before it on
        near[:] = cubic(np.arange(block)[:, None] / step - np.arange(-1, STEPS + 2))
        along = np.zeros((BEYOND + 2 * half, BEYOND))
        for place in range(BEYOND):
            along[place : place + len(middle), place] = middle
        self._up = (along @ near.T).astype(dtype)  # (sums, block)
        taps = np.arange(BEYOND * step)  # from two places before a block on
        down = cubic(taps[:, None] / step - np.arange(2, STEPS + 2)) / step
        self._down = down.astype(dtype)  # (elements, STEPS)
        inside = (size - len(taps) + 2 * step) // block  # the last block whose sums are of elements within
        firsts = np.append(np.arange(-around, 1), np.arange(inside + 1, blocks + around))  # of the others
        at = firsts[:, None] * block - 2 * step + taps  # (blocks, elements)
        low, high = -int(at.min()), max(0, int(at.max()) + 1 - size)
        self._ends = source_indices(boundary, size, low, high)[at + low]
        self._filled = self._ends == OUTSIDE
        self._at_once = max(1, AT_ONCE // self._ends.size)
        self._sums = lines, blocks + 2 * around, STEPS
        self._at_ends = firsts + around
        row = STEPS * self._sums[1]
        first = STEPS * around - 1 - half  # sum that the first block depends on
        self._last = first + size // block * STEPS
        self._to_grid = WindowProduct(
            lines,
            inside,
            self._down,
            (block - 2 * step, size, block),
            (STEPS * (around + 1), row, STEPS),
            threads,
        )
        self._back = WindowProduct(
            lines, size // block, self._up, (first, row, STEPS), (0, size, block), threads
        )

    def run(self, x: np.ndarray, y: np.ndarray) -> None:
        """Many threads may run it at once."""
        x, y = (a.reshape(-1)[: self.count].reshape(self._shape) for a in (x, y))
        sums = np.empty(self._sums, self._down.dtype)
        for first in range(0, len(x), self._at_once):
            part = slice(first, first + self._at_once)
            near = x[part, self._ends]  # (lines, blocks, elements)
            near[:, self._filled] = self._fill
            sums[part, self._at_ends] = near @ self._down
        self._to_grid.run(x, sums)
        self._back.run(sums, y)
        if self._whole < self._size:
            last = sums.reshape(len(x), -1)[:, self._last : self._last + len(self._up)]
            y[:, self._whole :] = last @ self._up[:, : self._size - self._whole]
