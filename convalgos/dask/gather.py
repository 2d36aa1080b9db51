"""Overlapping blocks of an array, each put together once of the parts of chunks that it reads.

`dask.array.overlap` would do it after chunks were merged to the size of the halo: two copies and more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from convalgos.dask.block_parts import (
    BlockCut,
    ChunkPart,
    Reads,
    Where,
    box_of_chunk,
    parts_of_ranges,
    seen_as_one,
)
from convalgos.dask.engine import DaskArray, HighLevelGraph, da, tokenize

SMALL = 4  # times so large is a chunk of which a part is copied, or all parts that go to others in one task
MOST = 0.5  # of a chunk: more is cut in the task that reads it, not in one of its own


@dataclass(frozen=True)
class JoinedBlock:
    """The task of a block by itself."""

    cut: BlockCut

    def __call__(self, *chunks: Any) -> Any:
        return self.cut.of(iter(chunks)).joined()


BlockSource = tuple[BlockCut, list[Any]]  # and the keys of what it is made of


class GatheredArray(da.Array):  # type: ignore[misc]
    """An array of blocks that its readers can put together themselves, without a task for each.

    In one process nothing is moved, and they are made of chunks. Between workers no more than parts is, which
    a task for each chunk cuts.
    """

    source: DaskArray  # whose chunks the parts are of
    cutting: DaskArray  # the tasks that cut them
    cuts: dict[tuple[int, ...], BlockSource]  # by block, of whole chunks
    moved: dict[tuple[int, ...], BlockSource]  # the same of what those tasks cut


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
        else [tuple(parts_of_ranges(chunks, ranges)) for ranges in of]
        for chunks, of in zip(x.chunks, reads, strict=True)
    ]
    if all(_as_they_are(blocks, chunks) for blocks, chunks in zip(axes, x.chunks, strict=True)):
        return x
    token = tokenize(x.name, axes)
    name = f"gathered-{token}"
    graph: dict[Any, Any] = {}
    here = _chunks_in_memory(x)
    cuts: dict[tuple[int, ...], BlockSource] = {}
    for place in product(*(range(len(blocks)) for blocks in axes)):
        parts = [axes[axis][i] for axis, i in enumerate(place)]
        grid = tuple(map(len, parts))
        seen = None if here is None else seen_as_one(grid, [_cut(here, part) for part in product(*parts)])
        if seen is not None:  # no tasks, as `da.from_array` makes none of its chunks
            graph[name, *place] = seen
            continue
        read = [_read(x.name, part) for part in product(*parts)]
        cuts[place] = BlockCut(grid, tuple(where for _, where in read)), [chunk for chunk, _ in read]
    cutting, moved = _moved(f"part-{token}", x, cuts)
    for place, (cut, keys) in moved.items():
        graph[name, *place] = JoinedBlock(cut), *keys
    chunks = tuple(tuple(sum(p.stop - p.first for p in block) for block in blocks) for blocks in axes)
    names = {key[0] for _, keys in moved.values() for key in keys}
    layers = HighLevelGraph.from_collections(
        name, graph, dependencies=[array for array in (x, cutting) if array.name in names]
    )
    result = GatheredArray(layers, name, chunks, meta=x._meta)
    result.source, result.cutting, result.cuts, result.moved = x, cutting, cuts, moved
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
    if (whole := seen_as_one(array.numblocks, list(here.values()))) is None:
        return array
    name = f"in-one-{array.name}"
    chunks = tuple((size,) for size in array.shape)
    return da.Array({(name, *(0,) * array.ndim): whole}, name, chunks, meta=array._meta)


def part_of_chunk(chunk: Any, where: Where) -> Any:
    """A part of a chunk; a copy of a small one, which would keep all of the chunk in memory."""
    part = box_of_chunk(chunk, where)
    return part.copy() if type(part) is np.ndarray and SMALL * part.size <= chunk.size else part


@dataclass(frozen=True)
class PartsOfChunk:
    """The task that cuts all that others than its own block read of a chunk."""

    parts: tuple[Where, ...]

    def __call__(self, chunk: Any) -> tuple[Any, ...]:
        return tuple(part_of_chunk(chunk, each) for each in self.parts)


# --- inside ----------------------------------------------------------------------------------


def _as_they_are(blocks: Sequence[Sequence[ChunkPart]], chunks: Sequence[int]) -> bool:
    """Whether blocks are the chunks."""
    if len(blocks) != len(chunks):
        return False
    return all(len(parts) == 1 and parts[0].whole and parts[0].chunk == i for i, parts in enumerate(blocks))


def _read(source: str, parts: Sequence[ChunkPart]) -> tuple[Any, Where | None]:
    """(key of a chunk, which part of it is read, or None for all)."""
    where = tuple((part.first, part.stop) for part in parts)
    return (source, *(part.chunk for part in parts)), None if all(part.whole for part in parts) else where


def _moved(
    name: str, x: DaskArray, cuts: dict[tuple[int, ...], BlockSource]
) -> tuple[DaskArray, dict[tuple[int, ...], BlockSource]]:
    """(tasks that cut chunks where they lie, so that no more of them is moved; blocks of what they cut).

    A task for each chunk, as a scheduler takes a millisecond for each; of large parts one for each.
    """
    tasks: dict[Any, Any] = {}
    found: dict[Any, tuple[Any, Where | int | None]] = {}  # a part -> its task, and its place in that
    for chunk, parts in _parts_to_cut(x, cuts.values()).items():
        size = math.prod(of[i] for of, i in zip(x.chunks, chunk[1:], strict=True))
        few = SMALL * sum(map(_elements, parts)) <= size
        for number, together in enumerate([tuple(parts)] if few else [(part,) for part in parts]):
            key = name, *chunk[1:], number
            tasks[key] = PartsOfChunk(together), chunk
            found |= {(chunk, part): (key, i) for i, part in enumerate(together)}
    cutting = da.Array(
        HighLevelGraph.from_collections(name, tasks, dependencies=[x]), name, x.chunks, meta=x._meta
    )
    moved = {}
    for place, (cut, chunks) in cuts.items():
        read = [found.get(each, each) for each in zip(chunks, cut.parts, strict=True)]
        moved[place] = BlockCut(cut.grid, tuple(part for _, part in read)), [key for key, _ in read]
    return cutting, moved


def _parts_to_cut(x: DaskArray, blocks: Iterable[BlockSource]) -> dict[Any, dict[Where, None]]:
    """(chunk -> its parts that are to be cut, in order): all but large ones."""
    found: dict[Any, dict[Where, None]] = {}
    for cut, chunks in blocks:
        for chunk, where in zip(chunks, cut.parts, strict=True):
            if not isinstance(where, tuple):
                continue
            size = math.prod(of[i] for of, i in zip(x.chunks, chunk[1:], strict=True))
            if _elements(where) <= MOST * size:
                found.setdefault(chunk, {})[where] = None
    return found


def _elements(where: Where) -> int:
    return math.prod(stop - first for first, stop in where)


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
