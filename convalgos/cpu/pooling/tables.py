"""Tables of windows, as the drivers of pooling read them."""

from __future__ import annotations

import numpy as np

from convalgos.core.pool_problem import PoolProblem, PoolWindows
from convalgos.cpu.pooling.drivers import COLUMN_BLOCK, ROW
from convalgos.cpu.pooling.reductions import COLUMN
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.runtime.threads import THREAD_UNITS

# The rows of dx from `first` to `end`, and the rows of outputs whose windows meet them.
GRADIENT_BAND = fields("first end outputs outputs_end")
MEETING = fields("first count")  # windows that meet a row of x
BAND_SCRATCH = 1 << 16  # bytes of a band: a part of L2, and little more than L1
FEWEST = 4  # times the rows of a window: of dx in a band, as windows over its ends are looked at twice

_ONE = np.ones(1, np.int64)
POINT = PoolWindows(1, 1, 1, 0, 1, np.zeros(1, np.int64), _ONE, _ONE)  # of a dimension that is not there


def in_three(problem: PoolProblem) -> tuple[PoolWindows, PoolWindows, PoolWindows]:
    depth, height, width = (POINT,) * (3 - len(problem.kernel)) + problem.windows
    return depth, height, width


def rows_table(depth: PoolWindows, height: PoolWindows, row_elements: int) -> np.ndarray:
    """`ROW` of each row of outputs."""
    table = np.zeros((len(depth.first), len(height.first)), ROW)
    first = depth.first[:, None] * height.size + height.first
    table["x"], table["slices"], table["rows"] = first * row_elements, depth.taps[:, None], height.taps
    return table


def column_blocks(width: PoolWindows, each: int, last: bool) -> np.ndarray:
    """`COLUMN_BLOCK` of runs of outputs whose windows cover about `each` columns."""
    reach = (width.kernel - 1) * width.dilation + 1
    outputs = len(width.first)
    many = max(1, min(outputs, (each - reach) // width.stride + 1))
    made = []
    for q in range(0, outputs, many):
        count = min(many, outputs - q)
        begin, end = q * width.stride - width.before, (q + count - 1) * width.stride - width.before + reach
        low, high = max(0, begin), min(width.size, end)
        made.append((low, high - low, low - begin, end - high, q, count))
    table = np.array(made, COLUMN_BLOCK)
    if last:  # windows say themselves what lies inside
        table["before"] = table["after"] = 0
    return table


def columns_table(width: PoolWindows, blocks: np.ndarray) -> np.ndarray:
    """`COLUMN` of each output, from the first column of its block on."""
    table = np.zeros(len(width.first), COLUMN)
    table["taps"] = width.taps
    table["first"] = width.first - np.repeat(blocks["x"], blocks["outputs"])
    return table


def window_counts(
    depth: PoolWindows, height: PoolWindows, width: PoolWindows, kinds: tuple[int, ...]
) -> dict[str, np.ndarray]:
    """What means divide by: the product of these two, of a row and of a column of outputs.

    Args:
        kinds: bytes of an element, and lanes.
    """
    compute, lanes = np.dtype(np.float64 if kinds[0] == 8 else np.float32), kinds[1]
    counts = width.divisor.astype(compute)
    return {
        "row_counts": np.outer(depth.divisor, height.divisor).astype(compute),
        "counts": np.resize(counts, len(counts) + lanes),  # read in whole vectors
    }


def meeting(windows: PoolWindows) -> np.ndarray:
    """`MEETING` of each element of x."""
    at = np.arange(windows.size) + windows.before
    first = np.maximum(0, -((windows.kernel - 1 - at) // windows.stride))
    end = np.minimum(len(windows.first), at // windows.stride + 1)
    found = np.zeros(windows.size, MEETING)
    found["first"], found["count"] = np.minimum(first, end), np.maximum(0, end - first)
    return found


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
    met = meeting(height)
    table = np.zeros(count, GRADIENT_BAND)
    table["first"], table["end"] = ends[:-1], ends[1:]
    for band in table:
        inside = met[band["first"] : band["end"]]
        band["outputs"] = inside["first"].min()
        band["outputs_end"] = (inside["first"] + inside["count"]).max()
    return table
