"""Which taps of a kernel read a map at all, for each row and each column of outputs: large dilations.

Where many taps read only padding, sums pass over these tap by tap: nothing is padded, tiles are cut where
another tap begins or ends to read the map, and each takes the taps that all its outputs have.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.layouts import BLOCKS
from convalgos.core.machine import cache_sizes
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm.row_tiles import along_row
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.threads import cached_by_threads
from convalgos.cpu.vectors.simd import carray, pointer

# Calibrated on a Xeon (Sapphire Rapids): kernels of 3x3 and 5x5, 16 to 2048 channels, maps of 7x7 to 33x33.
REACHED = 0.75  # of all taps of all outputs, below which it is worth to pass over the others
AGAIN = 24  # channels summed in the time in which the sums of a tap are read and written
SHORT = 1.2  # times the cycles of other tiles
REACHED_FIELDS = "tap_entries taps_w row_taps column_taps tile_row tile_column "


def reached_taps(problem: ConvProblem, dim: int) -> np.ndarray:
    """(outputs, 2) the first tap that reads the map and the one behind the last, along a dimension."""
    p = problem
    first = np.arange(p.spatial_out[dim]) * p.stride[dim] - p.padding[dim][0]  # what the first tap reads
    step = p.dilation[dim]
    begin = np.maximum(0, -(first // step))
    end = np.minimum(p.kernel[dim], -((first - p.spatial[dim]) // step))
    return np.stack([begin, end], 1)


@cached_by_threads(256)
def passes_over_taps(problem: ConvProblem) -> bool:
    """Whether the taps of a problem, in 3-D, that read padding alone are passed over."""
    p = problem
    unit = BLOCKS.get(p.layout, 1)
    if unit == 1 or p.w_shape[1] % unit or not p.is_zero_padded or p.kernel[0] > 1 or any(p.padding[0]):
        return False
    least = [1 - sum(-(-n // p.stride[dim]) for n in p.padding[dim]) / p.spatial_out[dim] for dim in (1, 2)]
    if min(least) > 0 and math.prod(least) * _longer(p) >= REACHED:
        return False  # on large maps, before any tap is counted
    along = zip(p.spatial_out, p.spatial, p.kernel, p.stride, p.padding, p.dilation, strict=True)
    (least_rows, rows), (least_columns, columns) = [_taps_of_outputs(*axis) for axis in (*along,)[1:]]
    if min(least_rows, least_columns) < 1:  # an output is the bias alone
        return False
    return rows * columns / math.prod(p.kernel) * _longer(p) < REACHED


@lru_cache(1024)  # layers of all map sizes share them
def _taps_of_outputs(
    outputs: int, size: int, kernel: int, stride: int, pads: tuple[int, int], step: int
) -> tuple[int, float]:
    """The least, and the mean, of the taps along a dimension that read the map for an output."""
    firsts = range(-pads[0], outputs * stride - pads[0], stride)
    counts = [min(kernel, -((first - size) // step)) - max(0, -(first // step)) for first in firsts]
    return min(counts), sum(counts) / outputs


def _longer(problem: ConvProblem) -> float:
    """Times the sums of a tap, as they are read and written."""
    return 1 + AGAIN / problem.w_shape[1]


def tile_ends(problem: ConvProblem, most: int) -> tuple[int, ...]:
    """Where tiles of at most so many columns begin, and the last ends: outputs of one have the same taps."""
    columns = reached_taps(problem, 2)  # (Q, 2)
    changes = 1 + np.flatnonzero((columns[1:] != columns[:-1]).any(1))
    ends = [0, *changes.tolist(), len(columns)]
    parts = [begin + along_row(end - begin, most) for begin, end in pairwise(ends)]
    return tuple(int(end) for end in np.unique(np.concatenate(parts)))


def rows_of_block(problem: ConvProblem, panel: int, threads: int) -> int:
    """Rows of outputs whose inputs stay in L2 for a pass over a panel of so many filters."""
    p = problem
    first, second = cache_sizes()[:2]
    rows = max(1, second // 2 * panel // first // p.spatial_out[2])
    blocks = -(-p.spatial_out[1] // rows)
    if p.N * p.groups % threads:  # threads share an image
        blocks = -(-blocks // threads) * threads
    return -(-p.spatial_out[1] // blocks)


def reached_cycles(problem: ConvProblem, ends: tuple[int, ...], tile_cycles: Any, vectors: float) -> float:
    """Of a row of outputs for a panel of so many vectors, by the cycles of a tile."""
    taps = float(np.diff(reached_taps(problem, 1)).mean()) * problem.w_shape[1]  # of a column of the kernel
    columns = np.diff(reached_taps(problem, 2))[list(ends[:-1]), 0]  # (tiles,)
    lengths = np.diff(ends)
    cycles = sum(tile_cycles(n, vectors, taps * c) for n, c in zip(lengths, columns, strict=True))
    return float(cycles) * SHORT * _longer(problem)


class TilePass(NamedTuple):
    """What a pass is to a tile."""

    reads: bool  # whether its tap reads the map
    begins: bool  # the sums of the tile
    ends: bool


@jit.helper
def pass_of_tile(a: Any, row: int, y: int, entry: int, entries: int) -> TilePass:
    """Of the entries of a tap from one on, for a tile of a block whose outputs begin in a row of the map.

    y: elements from the first output of the block to that of the tile.
    """
    rows = carray(pointer(a.row_taps), 1, np.int64)
    columns = carray(pointer(a.column_taps), 1, np.int64)
    i, j = 2 * ((row + y // a.tile_row) % a.p), 2 * (y % a.tile_row // a.tile_column)
    tap = entry // a.tap_entries
    r, s = tap // a.taps_w, tap % a.taps_w
    reads = rows[i] <= r and r < rows[i + 1] and columns[j] <= s and s < columns[j + 1]
    first = (rows[i] * a.taps_w + columns[j]) * a.tap_entries
    end = ((rows[i + 1] - 1) * a.taps_w + columns[j + 1]) * a.tap_entries
    return TilePass(reads, entry == first, entry + entries == end)
