"""Layouts: the order in which the dimensions of x and y lie in memory.

`channels_first` is (N, C, *spatial), `channels_last` is (N, *spatial, C). `blocked16` is
(N, ceil(C / 16), *spatial, 16): the channels in blocks that fill a vector, also called NCHW16c or nChw16c.
Lanes of the last block beyond C hold nothing: they are never read, and what is written there is not told.

Source: the blocked layouts of oneDNN and of NeoCPU (Liu et al. 2019, arXiv:1809.02697).
"""

from __future__ import annotations

from typing import Any

import numpy as np

PLAIN = ("channels_first", "channels_last")
BLOCKS = {"blocked4": 4, "blocked8": 8, "blocked16": 16, "blocked32": 32}  # channels of a block
LAYOUTS = (*PLAIN, *BLOCKS)

Shape = tuple[int, ...]


def blocked_layout(lanes: int) -> str:
    """The layout whose blocks have so many channels."""
    return f"blocked{lanes}"


def channels_together(layout: str, channels: int) -> int:
    """Channels of a pixel that lie side by side: one, all of them, or those of a block.

    A map is (N, blocks of so many channels, *spatial, so many channels) in every layout.
    """
    if layout in BLOCKS:
        return BLOCKS[layout]
    return channels if layout == "channels_last" else 1


def array_shape(layout: str, shape: Shape) -> Shape:
    """The shape of the array that holds a logical (N, C, *spatial) shape.

    Example:
        >>> array_shape("blocked16", (1, 40, 7, 5))
        (1, 3, 7, 5, 16)
    """
    if layout == "channels_first":
        return shape
    if layout == "channels_last":
        return (shape[0], *shape[2:], shape[1])
    block = BLOCKS[layout]
    return (shape[0], -(-shape[1] // block), *shape[2:], block)


def laid(array: np.ndarray, layout: str) -> np.ndarray:
    """A logical array (N, C, *spatial) in a layout: a view, or for blocks a copy with zeros beyond C."""
    if layout == "channels_first":
        return array
    if layout == "channels_last":
        return np.moveaxis(array, 1, -1)
    n, blocks, *spatial, block = array_shape(layout, array.shape)
    padded = np.zeros((n, blocks * block, *spatial), array.dtype)
    padded[:, : array.shape[1]] = array
    return np.ascontiguousarray(np.moveaxis(padded.reshape(n, blocks, block, *spatial), 2, -1))


def to_logical(array: Any, layout: str, channels: int) -> Any:
    """The logical array (N, C, *spatial) of one in a layout: a view of it, or for blocks a copy."""
    if layout == "channels_first":
        return array
    if layout == "channels_last":
        return array.transpose(0, -1, *range(1, array.ndim - 1))
    n, blocks, *spatial, block = array.shape
    first = array.transpose(0, 1, -1, *range(2, array.ndim - 1))  # (N, blocks, block, *spatial)
    return first.reshape(n, blocks * block, *spatial)[:, :channels]
