"""Overlapping blocks of an array, each put together once of the parts of chunks that it reads.

`dask.array.overlap` would do it after chunks were merged to the size of the halo: two copies and more. Here
parts that lie beside each other in one memory, as chunks of a NumPy array do, are joined without a copy.
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
from convalgos.dask.engine import DaskArray, HighLevelGraph, da, tokenize

SMALL = 4  # times so large is a chunk of which a part is copied

Reads = Sequence[Range]  # what a block has of an axis: one range after the other


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
            list(_parts([b - a for a, b in pairwise(ends)], [of]))
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
    """How a block is put together: a grid of parts, and which part of its chunk each is, or None for all."""

    grid: tuple[int, ...]
    parts: tuple[tuple[slice, ...] | None, ...]

    def of(self, chunks: Iterator[Any]) -> BlockParts:
        """The block, of the next chunks: one for each part."""
        given = [next(chunks) for _ in self.parts]
        views = [x if part is None else x[part] for x, part in zip(given, self.parts, strict=True)]
        return BlockParts(self.grid, views)


class GatheredArray(da.Array):  # type: ignore[misc]
    """An array of blocks that its readers can put together themselves, without a task for each part.

    A task for each part moves no more than that between workers; in one process nothing is moved.
    """

    source: DaskArray  # whose chunks the parts are of
    cuts: dict[
        tuple[int, ...], tuple[BlockCut, list[Any]]
    ]  # by block, with the keys of the chunks that it is cut of


class ChunkPart(NamedTuple):
    """Of a chunk, along one axis."""

    chunk: int
    first: int  # in the chunk
    stop: int
    whole: bool  # all of it


def gathered(x: DaskArray, reads: Sequence[Sequence[Reads] | None]) -> DaskArray:
    """An array of blocks that may overlap: block i of an axis has the elements `reads[axis][i]` of it.

    Args:
        reads: for each axis what each block has, or None where it is cut as x is.

    Returns:
        the array whose chunks are these blocks; x itself where they are its chunks.

    Example:
        >>> import dask.array as da
        >>> x = da.arange(6, chunks=3)
        >>> gathered(x, [[[(0, 4)], [(2, 6)], [(5, 6), (0, 1)]]]).compute()
        array([0, 1, 2, 3, 2, 3, 4, 5, 5, 0])
    """
    axes = [
        [(ChunkPart(i, 0, size, True),) for i, size in enumerate(chunks)]
        if of is None
        else [tuple(_parts(chunks, ranges)) for ranges in of]
        for chunks, of in zip(x.chunks, reads, strict=True)
    ]
    if all(_as_they_are(blocks, chunks) for blocks, chunks in zip(axes, x.chunks, strict=True)):
        return x
    token = tokenize(x.name, axes)
    name, of_parts = f"gathered-{token}", f"part-{token}"
    graph: dict[Any, Any] = {}
    here = _chunks_in_memory(x)
    cuts: dict[tuple[int, ...], tuple[BlockCut, list[Any]]] = {}
    for place in product(*(range(len(blocks)) for blocks in axes)):
        parts = [axes[axis][i] for axis, i in enumerate(place)]
        grid = tuple(map(len, parts))
        seen = None if here is None else _view(grid, [_cut(here, part) for part in product(*parts)])
        if seen is not None:  # no tasks, as `da.from_array` makes none of its chunks
            graph[name, *place] = seen
            continue
        read = [_read(x.name, part) for part in product(*parts)]
        cuts[place] = BlockCut(grid, tuple(where for _, where in read)), [chunk for chunk, _ in read]
        keys = [_part_key(graph, of_parts, *each) for each in read]
        graph[name, *place] = joined_parts, grid, keys
    chunks = tuple(tuple(sum(p.stop - p.first for p in block) for block in blocks) for blocks in axes)
    layers = HighLevelGraph.from_collections(name, graph, dependencies=[x])
    result = GatheredArray(layers, name, chunks, meta=x._meta)
    result.source, result.cuts = x, cuts
    return result


def in_one_chunk(array: Any) -> Any:
    """An array whose chunks lie beside each other in one memory of this process as one chunk of it.

    Any other as it is.

    Example:
        >>> import dask.array as da
        >>> in_one_chunk(da.from_array(np.arange(6), chunks=2)).npartitions
        1
        >>> in_one_chunk(da.arange(6, chunks=2)).npartitions
        3
    """
    if (
        not isinstance(array, da.Array)
        or array.npartitions == 1
        or (here := _chunks_in_memory(array)) is None
    ):
        return array
    if (whole := _view(array.numblocks, list(here.values()))) is None:
        return array
    name = f"in-one-{array.name}"
    chunks = tuple((size,) for size in array.shape)
    return da.Array({(name, *(0,) * array.ndim): whole}, name, chunks, meta=array._meta)


def joined_parts(grid: tuple[int, ...], parts: list[Any]) -> Any:
    """One array of the parts of a grid, in C order; a read-only view of their memory where they lie as in it.

    Example:
        >>> whole = np.arange(6)
        >>> joined_parts((2,), [whole[1:3], whole[3:5]]).base is not None
        True
    """
    if (seen := _view(grid, parts)) is not None:
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


def part_of_chunk(chunk: Any, where: tuple[slice, ...]) -> Any:
    """A part of a chunk; a copy of a small one, which would keep all of the chunk in memory."""
    part = chunk[where]
    return part.copy() if type(part) is np.ndarray and SMALL * part.size <= chunk.size else part


# --- inside ----------------------------------------------------------------------------------


def _parts(chunks: Sequence[int], ranges: Reads) -> Iterator[ChunkPart]:
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


def _as_they_are(blocks: Sequence[Sequence[ChunkPart]], chunks: Sequence[int]) -> bool:
    """Whether blocks are the chunks."""
    if len(blocks) != len(chunks):
        return False
    return all(len(parts) == 1 and parts[0].whole and parts[0].chunk == i for i, parts in enumerate(blocks))


def _read(source: str, parts: Sequence[ChunkPart]) -> tuple[Any, tuple[slice, ...] | None]:
    """(key of a chunk, which part of it is read, or None for all)."""
    where = tuple(slice(part.first, part.stop) for part in parts)
    return (source, *(part.chunk for part in parts)), None if all(part.whole for part in parts) else where


def _part_key(graph: dict[Any, Any], name: str, chunk: Any, where: tuple[slice, ...] | None) -> Any:
    """Of a chunk, or of the task that cuts it where it lies, so that no more of it is moved."""
    if where is None:
        return chunk
    key = name, *chunk[1:], *(n for of in where for n in (of.start, of.stop))
    graph[key] = part_of_chunk, chunk, where
    return key


def _chunks_in_memory(x: DaskArray) -> dict[tuple[int, ...], np.ndarray] | None:
    """(place -> chunk) where the graph holds the chunks of a NumPy array, else None."""
    layer = x.dask.layers.get(x.name)
    if layer is None or not layer.is_materialized():
        return None
    found = {place: layer.get((x.name, *place)) for place in product(*map(range, x.numblocks))}
    return found if all(type(chunk) is np.ndarray for chunk in found.values()) else None


def _cut(chunks: dict[tuple[int, ...], np.ndarray], parts: Sequence[ChunkPart]) -> np.ndarray:
    """A part of a chunk in memory."""
    chunk = chunks[tuple(part.chunk for part in parts)]
    return chunk[tuple(slice(part.first, part.stop) for part in parts)]


def _places(grid: tuple[int, ...], parts: Sequence[Any]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """(shape of the whole, where each part begins in it)."""
    sizes = [
        [parts[i * math.prod(grid[axis + 1 :])].shape[axis] for i in range(count)]
        for axis, count in enumerate(grid)
    ]
    starts = [list(accumulate(of, initial=0))[:-1] for of in sizes]
    return tuple(map(sum, sizes)), list(product(*starts))


def _view(grid: tuple[int, ...], parts: Sequence[Any]) -> Any:
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


def _nested(grid: tuple[int, ...], parts: list[Any]) -> Any:
    """The parts in lists of lists, as `numpy.block` takes them."""
    if len(grid) == 1:
        return parts
    step = len(parts) // grid[0]
    return [_nested(grid[1:], parts[i : i + step]) for i in range(0, len(parts), step)]
