"""What the kernels of `cpu.depthwise.channels` are compiled for."""

from __future__ import annotations

# (columns, stride, dilation) of kernels that have code of their own. Columns 0: any number of them; with
# stride 0 any stride and dilation, too.
DEPTHWISE_ROWS = (
    *((3, 1, 1), (3, 2, 1), (5, 1, 1), (5, 2, 1), (7, 1, 1), (7, 2, 1), (3, 1, 2)),
    *((0, 1, 1), (0, 2, 1), (0, 0, 0)),
)
BLOCK_PIXELS = {1: (1, 2, 4, 7, 8, 10, 14), 2: (1, 2, 4, 7, 8)}  # of a block of columns, by its vectors
# The same of other layers than depthwise,
GROUPED_ROWS = ((3, 1, 1), (3, 2, 1), (0, 1, 1), (0, 2, 1), (0, 0, 0))
GROUPED_PIXELS = (1, 4, 7, 14)
# and of those with other numbers of channels and filters than networks have.
OTHER_ROWS = ((0, 0, 0),)
OTHER_PIXELS = (1, 4, 7)

Row = tuple[int, int, int]


def channels_read(lanes: int, channels: int, filters: int) -> int:
    """Channels of x that a vector of whole groups reads, so many lanes or a part of a vector that fills it
    evenly; 0 of others.

    Args:
        channels, filters: of a group.
    """
    held = lanes // max(channels, filters) * channels
    return held if held and lanes % held == 0 else 0


def rows_known(channels: int, filters: int) -> tuple[Row, ...]:
    """(TAPS, STRIDE, DILATION) of all kernels for groups of so many channels and filters."""
    if channels == filters == 1:
        return DEPTHWISE_ROWS
    return GROUPED_ROWS if _is_usual(channels, filters) else OTHER_ROWS


def pixels_known(channels: int, filters: int, vectors: int) -> tuple[int, ...]:
    """Columns of their blocks."""
    if channels == filters == 1:
        return BLOCK_PIXELS[vectors]
    return GROUPED_PIXELS if _is_usual(channels, filters) else OTHER_PIXELS


def _is_usual(channels: int, filters: int) -> bool:
    return filters in (channels, 2 * channels) or (channels == 1 and filters <= 4)
