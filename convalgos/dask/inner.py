"""A block whose halo lies in other chunks: what reads its own chunk alone is computed where that lies.

Only bands at its sides, of which the windows reach into neighbours, read a copy. So short filters, which take
no longer than copies do, have nearly the speed of a whole map.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from convalgos.core.arguments import Shape
from convalgos.dask.axes import Range, Window
from convalgos.dask.block_parts import BlockParts

WORTH = 4 << 20  # bytes of a block, whose copy takes longer than to begin five runs; Xeon (Sapphire Rapids)
INNER = 0.3  # of its outputs that are to be made of its own chunk
VECTOR = 16  # outputs of a row at whose multiples the inner ones begin, so that few vectors are cut


class WindowSteps(NamedTuple):
    """What windows along an axis are, and at which outputs tiles begin."""

    stride: int
    extent: int
    start: int


class BlockBox(NamedTuple):
    """A box of the outputs of a block, what it reads, and its padding; spatial axes."""

    outputs: tuple[Range, ...]
    inputs: tuple[Range, ...]
    padding: tuple[tuple[int, int], ...]


def split_around_halos(
    parts: BlockParts, taps: Sequence[WindowSteps], windows: Sequence[Window]
) -> list[BlockBox] | None:
    """The inner box and the bands around it; None where a copy of the whole takes less.

    Args:
        parts: of a map (N, C, *spatial) that is cut along space only.
    """
    largest = max(parts.arrays, key=lambda a: a.size)
    ends = parts.ends()
    size = math.prod(of[-1] for of in ends) * largest.itemsize
    if len(parts.arrays) == 1 or size < WORTH or parts.grid[:2] != (1, 1):
        return None
    middle = [_inner(*each) for each in zip(ends[2:], taps, windows, strict=True)]
    share = math.prod((stop - first) / w.size for (first, stop), w in zip(middle, windows, strict=True))
    if share < INNER or any(stop <= first for first, stop in middle):
        return None
    sizes = [of[-1] for of in ends[2:]]
    found = [_block_box(box, sizes, taps, windows) for box in _boxes(middle, [w.size for w in windows])]
    return found if all(stop > first for piece in found for first, stop in piece.inputs) else None


def _inner(ends: Sequence[int], taps: WindowSteps, window: Window) -> Range:
    """Outputs along an axis whose windows lie in the largest part, or beyond the ends of the map."""
    part = max(range(len(ends) - 1), key=lambda i: ends[i + 1] - ends[i])
    first, stop = 0, window.size
    if part > 0:
        first = -(-(ends[part] + window.low) // taps.stride)
        first = -(-first // taps.start) * taps.start
    if part < len(ends) - 2:
        stop = (ends[part + 1] + window.low - taps.extent) // taps.stride + 1
        stop = min(window.size, stop // taps.start * taps.start)
    return first, stop


def _boxes(middle: Sequence[Range], sizes: Shape | list[int]) -> Iterator[tuple[Range, ...]]:
    """That in the middle, and those around it."""
    for axis, ((first, stop), size) in enumerate(zip(middle, sizes, strict=True)):
        for band in ((0, first), (stop, size)):
            if band[1] > band[0]:
                yield (*middle[:axis], band, *((0, n) for n in sizes[axis + 1 :]))
    yield tuple(middle)


def _block_box(
    box: tuple[Range, ...], sizes: Sequence[int], taps: Sequence[WindowSteps], windows: Sequence[Window]
) -> BlockBox:
    inputs, padding = [], []
    for (first, stop), n, of, window in zip(box, sizes, taps, windows, strict=True):
        begin = first * of.stride - window.low
        end = (stop - 1) * of.stride - window.low + of.extent
        inputs.append((max(0, begin), min(n, end)))
        padding.append((max(0, -begin), max(0, end - n)))
    return BlockBox(box, tuple(inputs), tuple(padding))


def slices(box: Sequence[Range]) -> tuple[Any, ...]:
    """Of an array (N, channels, *spatial)."""
    return (slice(None), slice(None), *(slice(first, stop) for first, stop in box))
