"""Where things lie in a map: its strides in either layout, and where a block of outputs begins."""

from __future__ import annotations

from typing import Any

from convalgos.cpu.runtime import jit


def map_strides(layout: str, channels: int, spatial: tuple[int, ...]) -> tuple[int, int, int, int, int]:
    """Elements between neighbours along (N, C, D, H, W) of a contiguous map of the 3-D view.

    Example:
        >>> map_strides("channels_first", 16, (1, 7, 5))
        (560, 35, 35, 5, 1)
        >>> map_strides("channels_last", 16, (1, 7, 5))
        (560, 1, 560, 80, 16)
    """
    d, h, w = spatial
    if layout == "channels_last":
        return channels * d * h * w, 1, channels * h * w, channels * w, channels
    return channels * d * h * w, d * h * w, h * w, w, 1


@jit.helper
def first_output(a: Any, block: int) -> tuple[int, int, int, int]:
    """(block of images, slice, row, column) of the first output of a block."""
    q = block % a.blocks_q * a.block_q
    p = block // a.blocks_q % a.blocks_p * a.block_p
    o = block // (a.blocks_q * a.blocks_p) % a.blocks_o * a.block_o
    return block // (a.blocks_q * a.blocks_p * a.blocks_o), o, p, q
