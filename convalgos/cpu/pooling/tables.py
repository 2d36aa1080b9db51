"""Tables of windows, as the drivers of pooling read them."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from convalgos.core.pool_problem import PoolProblem, PoolWindows
from convalgos.cpu.pooling.drivers import COLUMN_BLOCK, ROW
from convalgos.cpu.pooling.reductions import COLUMN
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.runtime.threads import THREAD_UNITS

# The rows of dx from `first` to `end`, and the rows of outputs whose windows meet them.
GRADIENT_BAND = fields("first end outputs outputs_end")
MEETING = fields("first count")  # windows that meet a row of x
WINDOW_ROW = fields("x rows")  # the first row of x under a row of outputs, and how many there are
BAND_SCRATCH = 1 << 16  # bytes of a band: a part of L2, and little more than L1
AXES = 256  # windows along an axis whose tables are kept: more maps have one of a size than that shape
FEWEST = 4  # times the rows of a window: of dx in a band, as windows over its ends are looked at twice

_ONE = np.ones(1, np.int64)
POINT = PoolWindows(1, 1, 1, 0, 1, np.zeros(1, np.int64), _ONE, _ONE)  # of a dimension that is not there


def in_three(problem: PoolProblem) -> tuple[PoolWindows, PoolWindows, PoolWindows]:
    depth, height, width = (POINT,) * (3 - len(problem.kernel)) + problem.windows
    return depth, height, width


def table_of(kind: np.dtype, count: int, *columns: np.ndarray | list[int] | int) -> np.ndarray:
    """(count,) records of int64 fields, made of these columns in a third of the time that NumPy takes."""
    table = np.empty((count, len(columns)), np.int64)
    for i, column in enumerate(columns):
        table[:, i] = column
    return np.ndarray(count, kind, table)


def rows_table(depth: PoolWindows, height: PoolWindows, row_elements: int) -> np.ndarray:
    """(rows of outputs,) `ROW` of each."""
    table = _rows(depth, height).copy()
    table[:, 0] *= row_elements
    return np.ndarray(len(table), ROW, table)


@lru_cache(AXES)
def _rows(depth: PoolWindows, height: PoolWindows) -> np.ndarray:
    """(rows of outputs, fields of `ROW`) where rows of x have one element."""
    table = np.empty((len(depth.first), len(height.first), 3), np.int64)
    table[..., 0] = depth.first[:, None] * height.size + height.first
    table[..., 1], table[..., 2] = depth.taps[:, None], height.taps
    return table.reshape(-1, 3)


class ColumnBlocks(NamedTuple):
    """Runs of outputs of a row.

    table: `COLUMN_BLOCK` of each. begins, outputs: the first column, and outputs, of each. longest: the most
    columns, with padding.
    """

    table: np.ndarray
    begins: list[int]
    outputs: list[int]
    longest: int


@lru_cache(AXES)
def column_blocks(width: PoolWindows, each: int, last: bool) -> ColumnBlocks:
    """Runs of outputs whose windows cover about `each` columns."""
    reach = (width.kernel - 1) * width.dilation + 1
    outputs = len(width.first)
    many = max(1, min(outputs, (each - reach) // width.stride + 1))
    made, longest = list[tuple[int, ...]](), 0
    for q in range(0, outputs, many):
        count = min(many, outputs - q)
        begin, end = q * width.stride - width.before, (q + count - 1) * width.stride - width.before + reach
        low, high = max(0, begin), min(width.size, end)
        before, after = (0, 0) if last else (low - begin, end - high)  # or windows say what lies inside
        made.append((low, high - low, before, after, q, count))
        longest = max(longest, high - low + before + after)
    table = np.ndarray(len(made), COLUMN_BLOCK, np.array(made, np.int64))
    return ColumnBlocks(table, [block[0] for block in made], [block[5] for block in made], longest)


def columns_table(width: PoolWindows, blocks: ColumnBlocks) -> np.ndarray:
    """`COLUMN` of each output, from the first column of its block on."""
    if len(blocks.begins) == 1:
        return columns_from(width, blocks.begins[0])
    begins = np.repeat(blocks.begins, blocks.outputs)
    return table_of(COLUMN, len(width.first), width.first - begins, width.taps)


@lru_cache(AXES)
def columns_from(width: PoolWindows, begin: int = 0) -> np.ndarray:
    """`COLUMN` of each output, from one column on."""
    return table_of(COLUMN, len(width.first), width.first - begin, width.taps)


@lru_cache(AXES)
def window_rows(height: PoolWindows) -> np.ndarray:
    """`WINDOW_ROW` of each row of outputs, and one more, which bands that no window meets ask for."""
    table = np.zeros((len(height.first) + 1, 2), np.int64)
    table[:-1, 0], table[:-1, 1] = height.first, height.taps
    return np.ndarray(len(table), WINDOW_ROW, table)


@lru_cache(AXES)
def inside_of(windows: PoolWindows) -> tuple[int, int]:
    """(first, end) of those that lie inside."""
    inside = np.flatnonzero(windows.taps == windows.kernel)
    return (int(inside[0]), int(inside[-1]) + 1) if len(inside) else (0, 0)


def window_counts(
    depth: PoolWindows, height: PoolWindows, width: PoolWindows, kinds: tuple[int, ...]
) -> dict[str, np.ndarray]:
    """What means divide by: the product of these two, of a row and of a column of outputs.

    Args:
        kinds: bytes of an element, and lanes.
    """
    size, lanes = kinds[:2]
    return {"row_counts": _row_counts(depth, height, size), "counts": _column_counts(width, size, lanes)}


@lru_cache(AXES)
def _row_counts(depth: PoolWindows, height: PoolWindows, size: int) -> np.ndarray:
    rows: np.ndarray = height.divisor * depth.divisor[:, None]
    return rows.astype(np.float64 if size == 8 else np.float32)


@lru_cache(AXES)
def _column_counts(width: PoolWindows, size: int, lanes: int) -> np.ndarray:
    outputs = len(width.divisor)
    counts = np.ones(outputs + lanes, np.float64 if size == 8 else np.float32)  # read in whole vectors
    counts[:outputs] = width.divisor
    return counts


@lru_cache(AXES)
def meeting(windows: PoolWindows) -> np.ndarray:
    """`MEETING` of each element of x."""
    at = np.arange(windows.size) + windows.before
    first = np.maximum(0, -((windows.kernel - 1 - at) // windows.stride))
    end = np.minimum(len(windows.first), at // windows.stride + 1)
    return table_of(MEETING, windows.size, np.minimum(first, end), np.maximum(0, end - first))


def gradient_bands(
    height: PoolWindows, row_bytes: float, planes: int, blocks: int, threads: int
) -> np.ndarray:
    """`GRADIENT_BAND`: as few as scratch allows, and some for each thread.

    Threads that take blocks of the same pixels wait for each other's cache lines, so each gets rows of its
    own, even few ones.

    Args:
        row_bytes: of scratch, for a row of dx.
        planes, blocks: units of work that there are in each band.
    """
    wanted = -(-THREAD_UNITS * threads // (planes * blocks)) if threads > 1 else 1
    rows = min(int(BAND_SCRATCH // row_bytes), -(-height.size // wanted))
    own = max(height.kernel, -(-height.size * planes // threads)) if threads > 1 else height.size
    count = -(-height.size // min(height.size, max(rows, min(own, FEWEST * height.kernel))))
    ends = [height.size * i // count for i in range(count + 1)]
    met, begins = meeting(height), ends[:-1]
    outputs = np.minimum.reduceat(met["first"], begins)
    outputs_end = np.maximum.reduceat(met["first"] + met["count"], begins)
    return table_of(GRADIENT_BAND, count, begins, ends[1:], outputs, outputs_end)
