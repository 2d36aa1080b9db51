"""How x lies for `gpu.implicit_gemm.wgmma_*`: as it is, or packed so that the copy engine can read it.

The copy engine reads channels last, in pixels of whole 16 bytes. `terms` is the number of products that make
up one: where they are three, x is taken apart into two parts, and packed.
"""

from __future__ import annotations

import math

from convalgos.core.problem import ConvProblem
from convalgos.gpu.device.tma import Im2colView
from convalgos.gpu.gemm.wgmma_forms import ALIGNED, ROW_BYTES, WgmmaTile
from convalgos.gpu.launch.grid import ceil_div

PIECE_BYTES = 16  # the unit that swizzling moves, as in implicit_gemm_wgmma.cu
PACKED_PIXELS = 64  # of a block that packs


def step_channels(problem: ConvProblem) -> int:
    """Channels of a step."""
    return ROW_BYTES // problem.itemsize


def x_steps(problem: ConvProblem) -> int:
    """Of a tap and one term of the products."""
    return ceil_div(problem.w_shape[1], step_channels(problem))


def granule(problem: ConvProblem, terms: int, wide: bool = True) -> int:
    """What the channels of a group are filled up to in the x that is copied.

    A step of channels must not reach into the next group: zeros of the filter times its NaN would be NaN.

    Args:
        wide: whether it may be wider than x, as `Device.takes_wide_box` tells; costs take it that it may.
    """
    within = wide or problem.w_shape[1] >= step_channels(problem)
    whole = problem.groups == 1 and terms == 1 and within
    return (PIECE_BYTES if whole else ROW_BYTES) // problem.itemsize


def is_packed(problem: ConvProblem, terms: int, wide: bool = True) -> bool:
    """Whether x is brought into another order first."""
    whole = problem.w_shape[1] % granule(problem, terms, wide) == 0
    return problem.layout == "channels_first" or terms > 1 or not whole


def padded_channels(problem: ConvProblem, terms: int, wide: bool = True) -> int:
    """Of a group in the x that is copied."""
    unit = granule(problem, terms, wide)
    return ceil_div(problem.w_shape[1], unit) * unit


def x_parts(terms: int) -> int:
    """Arrays that x is taken apart into."""
    return 2 if terms > 1 else 1


def packed_bytes(problem: ConvProblem, terms: int, wide: bool = True) -> int:
    """Of the packed x; none where x is read as it is."""
    return copied_bytes(problem, terms, wide) if is_packed(problem, terms, wide) else 0


def copied_bytes(problem: ConvProblem, terms: int, wide: bool = True) -> int:
    """Of a packed x, filled up so that what follows is aligned."""
    pixels = problem.N * math.prod(problem.spatial)
    row = x_parts(terms) * problem.groups * padded_channels(problem, terms, wide)
    return ceil_div(pixels * row * problem.itemsize, ALIGNED) * ALIGNED


def packing_blocks(problem: ConvProblem) -> int:
    pixel_tiles = ceil_div(math.prod(problem.spatial), PACKED_PIXELS)
    return pixel_tiles * x_steps(problem) * problem.groups * problem.N


def im2col_view(problem: ConvProblem, tile: WgmmaTile, terms: int, wide: bool = True) -> Im2colView:
    """What a copy of a tile's pixels sees."""
    channels = x_parts(terms) * problem.groups * padded_channels(problem, terms, wide)
    return Im2colView.of(problem, channels, step_channels(problem), tile.pixels(problem))
