"""Which pooling behind a convolution can be done tile by tile: windows that lie in one tile each."""

from __future__ import annotations

from convalgos.core.pool_problem import PoolProblem
from convalgos.cpu.tiled.geometry import TiledAxis

WINDOW = 2  # outputs of a tile along rows and columns


def pools_tiles(rows: TiledAxis, columns: TiledAxis, pooling: PoolProblem) -> bool:
    """Whether y is the largest of each WINDOW x WINDOW outputs, and these are of one tile."""
    inside = all(axis.outputs % WINDOW == 0 and axis.lattices == 1 for axis in (rows, columns))
    apart = pooling.kernel == pooling.stride == (WINDOW, WINDOW) and set(pooling.dilation) == {1}
    whole = pooling.y_shape[2:] == tuple(n // WINDOW for n in pooling.x_shape[2:])
    return inside and apart and whole and pooling.reduction == "max" and not any(map(any, pooling.padding))
