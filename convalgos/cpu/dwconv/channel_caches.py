"""How the maps of `cpu.depthwise.channels` meet the caches."""

from __future__ import annotations

from convalgos.core.machine import cache_sizes
from convalgos.core.problem import ConvProblem, Shape
from convalgos.cpu.runtime.threads import plan_threads

AHEAD = 2.0  # times what the caches of the cores hold, from which on the next band is asked for


def leaves_l2(p: ConvProblem, times: float = 1.0) -> bool:
    """Whether x and y are more than so many times what stays in the caches of the cores between calls."""
    return bool(p.x_bytes + p.y_bytes > times * plan_threads() * cache_sizes()[1])


def rows_fetched(stride: Shape, dilation: Shape, x_bytes: int) -> int:
    """Rows of x, in blocks of channels, that strided kernels ask for ahead with each row of y; 0 of maps that
    stay in the caches."""
    strided = stride[2] == 2 and set(dilation) == {1}
    return int(stride[1]) if strided and x_bytes > cache_sizes()[2] // 4 else 0


def crowds_sets(p: ConvProblem) -> bool:
    """Whether the pixels of channels_last share few sets of the first cache."""
    return int(p.C * p.itemsize) % 512 == 0
