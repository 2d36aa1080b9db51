"""Where things lie in a map: its strides in any layout, and where a block of outputs begins."""

from __future__ import annotations

from typing import Any

from convalgos.core.layouts import BLOCKS
from convalgos.cpu.runtime import jit


def map_strides(layout: str, channels: int, spatial: tuple[int, ...]) -> tuple[int, int, int, int, int]:
    """Elements between neighbours along (N, C, D, H, W) of a contiguous map of the 3-D view.

    In blocks of channels that along C is good for whole blocks only, inside of which neighbours are 1 apart.

    Example:
        >>> map_strides("channels_first", 16, (1, 7, 5))
        (560, 35, 35, 5, 1)
        >>> map_strides("channels_last", 16, (1, 7, 5))
        (560, 1, 560, 80, 16)
        >>> map_strides("blocked8", 12, (1, 7, 5))
        (560, 35, 280, 40, 8)
    """
    d, h, w = spatial
    if layout == "channels_last":
        return channels * d * h * w, 1, channels * h * w, channels * w, channels
    block = BLOCKS.get(layout, 1)
    return -(-channels // block) * block * d * h * w, d * h * w, h * w * block, w * block, block


@jit.helper
def first_output(a: Any, block: int) -> tuple[int, int, int, int]:
    """(block of images, slice, row, column) of the first output of a block."""
    q = block % a.blocks_q * a.block_q
    p = block // a.blocks_q % a.blocks_p * a.block_p
    o = block // (a.blocks_q * a.blocks_p) % a.blocks_o * a.block_o
    return block // (a.blocks_q * a.blocks_p * a.blocks_o), o, p, q
