"""Strides of a map in memory, in either layout."""

from __future__ import annotations


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
