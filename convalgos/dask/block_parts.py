"""A block of an array that is made of parts of chunks: where they lie, and how they are joined.

Parts that lie beside each other in one memory, as chunks of a NumPy array do, are joined without a copy.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise, product
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.allocator import LARGE, aligned_empty
from convalgos.dask.axes import Range

Where = tuple[Range, ...]  # a part of a chunk, along each axis
Reads = Sequence[Range]  # what a block has of an axis: one range after the other


class ChunkPart(NamedTuple):
    """Of a chunk, along one axis."""

    chunk: int
    first: int  # in the chunk
    stop: int
    whole: bool  # all of it


class BlockParts(NamedTuple):
    """A block that is not put together yet: the parts of a grid, in C order."""

    grid: tuple[int, ...]
    arrays: list[Any]

    def joined(self) -> Any:
        return joined_parts(self.grid, self.arrays)

    def ends(self) -> list[list[int]]:
        """Where parts begin and end, for each axis."""
        steps = [math.prod(self.grid[axis + 1 :]) for axis in range(len(self.grid))]
        return [
            list(accumulate((self.arrays[i * step].shape[axis] for i in range(n)), initial=0))
            for axis, (n, step) in enumerate(zip(self.grid, steps, strict=True))
        ]

    def box(self, ranges: Sequence[Range]) -> Any:
        """A box of it, which is not empty: a view where one part has it."""
        axes = [
            list(parts_of_ranges([b - a for a, b in pairwise(ends)], [of]))
            for ends, of in zip(self.ends(), ranges, strict=True)
        ]
        read = []
        for parts in product(*axes):
            at = 0
            for part, n in zip(parts, self.grid, strict=True):
                at = at * n + part.chunk
            read.append(self.arrays[at][tuple(slice(part.first, part.stop) for part in parts)])
        return joined_parts(tuple(map(len, axes)), read)


class BlockCut(NamedTuple):
    """How a block is put together: a grid of parts, and what each is of that which it is made of.

    A part of a chunk, or None for all of it; or the place among the parts that another task has cut.
    """

    grid: tuple[int, ...]
    parts: tuple[Where | int | None, ...]

    def of(self, chunks: Iterator[Any]) -> BlockParts:
        """The block, of the next chunks: one for each part."""
        given = [next(chunks) for _ in self.parts]
        views = [
            box_of_chunk(x, part) if isinstance(part, tuple) else x if part is None else x[part]
            for x, part in zip(given, self.parts, strict=True)
        ]
        return BlockParts(self.grid, views)


def joined_parts(grid: tuple[int, ...], parts: list[Any]) -> Any:
    """One array of the parts of a grid, in C order; a read-only view of their memory where they lie as in it.

    Example:
        >>> whole = np.arange(6)
        >>> joined_parts((2,), [whole[1:3], whole[3:5]]).base is not None
        True
    """
    if (seen := seen_as_one(grid, parts)) is not None:
        return seen
    first = parts[0]
    if type(first) is not np.ndarray:
        return np.block(_nested(grid, parts))
    shape, firsts = _places(grid, parts)
    if math.prod(shape) * first.itemsize < LARGE:
        result = np.empty(shape, first.dtype)
    else:  # of memory that blocks before it have left
        result = aligned_empty(math.prod(shape), first.dtype).reshape(shape)
    for part, place in zip(parts, firsts, strict=True):
        result[tuple(slice(at, at + n) for at, n in zip(place, part.shape, strict=True))] = part
    return result


def parts_of_ranges(chunks: Sequence[int], ranges: Reads) -> Iterator[ChunkPart]:
    """What chunks have of some ranges, in order; of an empty range an empty part."""
    ends = list(accumulate(chunks))
    for first, stop in ranges:
        chunk = min(bisect_right(ends, first), len(chunks) - 1)
        while True:
            begin = ends[chunk] - chunks[chunk]
            end = min(stop, ends[chunk])
            if end > first or first == stop:
                yield ChunkPart(chunk, first - begin, end - begin, end - first == chunks[chunk])
            first = end
            chunk += 1
            if first >= stop:
                break


def box_of_chunk(chunk: Any, where: Where) -> Any:
    return chunk[tuple(slice(first, stop) for first, stop in where)]


def seen_as_one(grid: tuple[int, ...], parts: Sequence[Any]) -> Any:
    """The whole, where parts are views of one array and lie in its memory as in their grid; else None."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if type(first) is not np.ndarray or first.base is None:
        return None
    shape, firsts = _places(grid, parts)
    address = first.ctypes.data
    for part, place in zip(parts, firsts, strict=True):
        if type(part) is not np.ndarray or part.base is not first.base or part.strides != first.strides:
            return None
        if part.dtype != first.dtype or not part.size:
            return None
        if part.ctypes.data != address + sum(n * step for n, step in zip(place, part.strides, strict=True)):
            return None
    return np.lib.stride_tricks.as_strided(first, shape, first.strides, writeable=False)


# --- inside ----------------------------------------------------------------------------------


def _places(grid: tuple[int, ...], parts: Sequence[Any]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """(shape of the whole, where each part begins in it)."""
    sizes = [
        [parts[i * math.prod(grid[axis + 1 :])].shape[axis] for i in range(count)]
        for axis, count in enumerate(grid)
    ]
    starts = [list(accumulate(of, initial=0))[:-1] for of in sizes]
    return tuple(map(sum, sizes)), list(product(*starts))


def _nested(grid: tuple[int, ...], parts: list[Any]) -> Any:
    """The parts in lists of lists, as `numpy.block` takes them."""
    if len(grid) == 1:
        return parts
    step = len(parts) // grid[0]
    return [_nested(grid[1:], parts[i : i + step]) for i in range(0, len(parts), step)]
