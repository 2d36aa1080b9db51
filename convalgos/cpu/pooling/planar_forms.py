"""In which order windows of maps with channels first are reduced."""

from __future__ import annotations

from typing import NamedTuple

from convalgos.core.pool_problem import PoolProblem, PoolWindows
from convalgos.core.profiles import units_are_narrow
from convalgos.cpu.pooling.elements import FLOAT
from convalgos.cpu.pooling.reductions import split_stride
from convalgos.cpu.pooling.tables import POINT, in_three
from convalgos.cpu.runtime import jit

# Whole planes, vectors of channels, slices and then rows and columns, or rows and then columns
PLANES, PIXELS, SLICES, ROWS = range(4)
SQUARES = 1 << 18  # bytes of the map of a vector of channels, or of a slice, which may lie in L2
NARROW = 2  # vectors of a row up to which lanes are channels,
NARROW_IF_PARTLY, FILLED = 3, 0.85  # or where outputs fill less of theirs, or elements are taken apart singly
# Vectors of a row up to which windows are reduced over slices first, and their rows from which on they are
# of wide rows, too (Zen 4, two threads, 1800 random maps: 1.5 times as fast there)
OF_SLICES, MANY_ROWS = 3, 16


class PlanarForm(NamedTuple):
    """How windows are reduced, and along which dimensions: what lies side by side is one of them."""

    order: int
    depth: PoolWindows
    height: PoolWindows
    width: PoolWindows


def planar_form(problem: PoolProblem, kinds: tuple[int, int, int]) -> PlanarForm:
    """That of a problem whose layout is channels_first.

    Args:
        kinds: those of `Computed`.
    """
    size, lanes, form = kinds
    depth, height, width = in_three(problem)
    for _ in range(2):  # whole rows are one longer row, and whole slices
        merged = height.over_rows_of(width)
        if merged is not None:
            depth, height, width = POINT, depth, merged
    (n, channels), pixels = problem.x_shape[:2], depth.size * height.size * width.size
    order = ROWS
    if width.is_whole and pixels == width.size:
        order = PLANES
    elif form == FLOAT and _takes_pixels(n, channels, pixels, width, lanes, size):
        order = PIXELS
    elif _in_slices(depth, height, width, problem.reduction == "max", lanes, size):
        order = SLICES
    return PlanarForm(order, depth, height, width)


def _in_slices(
    depth: PoolWindows, height: PoolWindows, width: PoolWindows, maxima: bool, lanes: int, size: int
) -> bool:
    """Whether windows are reduced over whole slices first, which are to lie in L2.

    Of wide rows only those of tall windows gain. Where slices lie apart no step is saved, but vectors are
    filled, which counts where these take two cycles.
    """
    if depth.size == 1 or height.size * width.size * size > SQUARES:
        return False
    filled = maxima or width.size > lanes  # means divide vectors of few outputs
    if depth.kernel <= depth.stride and not (units_are_narrow() and filled):
        return False
    return width.size <= OF_SLICES * lanes or depth.kernel * height.kernel >= MANY_ROWS


def _takes_pixels(n: int, channels: int, pixels: int, width: PoolWindows, lanes: int, size: int) -> bool:
    """Whether maps are brought into vectors of channels: narrow ones, that fit L2."""
    if channels < lanes // 2 or pixels * lanes * size > SQUARES:
        return False
    outputs = len(width.first)
    partly = outputs < FILLED * lanes * -(-outputs // lanes) or not split_stride(width.stride, lanes)
    shared = n * -(-channels // lanes) >= jit.thread_count()
    return width.size <= (NARROW_IF_PARTLY if partly and shared else NARROW) * lanes
