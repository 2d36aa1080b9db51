"""Filters whose results have the shape of their input, block by block: what `ndimage` and `signal` share.

Each block reads its chunk and what its filter reaches beyond it, is filtered as an array by itself, and gives
the results of its chunk. At an end of the whole it ends there, too, and reads far enough inwards that what a
border is made of is in it. So every border is exact, and integers are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import update_wrapper
from inspect import Parameter, signature
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.arguments import shown
from convalgos.dask.axes import around
from convalgos.dask.block_parts import Reads
from convalgos.dask.engine import DaskArray, da
from convalgos.dask.gather import gathered
from convalgos.dask.maps import as_dask, of_blocks
from convalgos.dask.tasks import only, threads_of_task
from convalgos.dask.written import blockwise, put, uncut_in_memory


class Halo(NamedTuple):
    """How far the results of a filter read along an axis."""

    elements: int  # on either side
    wraps: bool = False  # around the ends


Halos = Mapping[int, Halo]  # by axis
FindHalos = Callable[[dict[str, Any], int], Halos]  # of the arguments of a call, and the dimensions


@dataclass(frozen=True)
class FilteredBlock:
    """The results of a chunk, from what it reads."""

    function: Callable[..., Any]
    place: str  # of the array among the arguments
    arguments: tuple[tuple[str, Any], ...]
    axes: tuple[int, ...]  # along which it reads more than its chunk
    blocks: int

    def __call__(self, x: Any, *places: slice, out: np.ndarray | None = None) -> np.ndarray:
        with threads_of_task(self.blocks):
            y = _called(self.function, {self.place: np.asarray(only(x)), **dict(self.arguments)})
        cut = [slice(None)] * y.ndim
        for axis, place in zip(self.axes, places, strict=True):
            cut[axis] = place
        return put(y[tuple(cut)], out)


def in_chunks(function: Callable[..., Any], place: str, halos: FindHalos) -> Callable[..., DaskArray]:
    """A filter of arrays in chunks, which takes the arguments of one of NumPy's arrays.

    Args:
        place: the name of the array among them.
        halos: what it reads along its axes; others are not filtered.
    """
    parameters = signature(function)

    @uncut_in_memory
    def filtered(*args: Any, **kwargs: Any) -> DaskArray:
        bound = parameters.bind(*args, **kwargs)
        bound.apply_defaults()
        given = dict(bound.arguments)
        for name, parameter in parameters.parameters.items():
            if parameter.kind is Parameter.VAR_KEYWORD:
                given |= given.pop(name)
        x = as_dask(place, given.pop(place))
        output = given.get("output")
        if not (output is None or isinstance(output, type | np.dtype | str)):
            raise TypeError(
                f"output={shown(output)} must be None or a dtype: arrays in chunks are not filled"
            )
        found = halos(given, x.ndim)
        dtype = _result_dtype(function, place, x, given, found)
        block = FilteredBlock(function, place, tuple(given.items()), (), math.prod(x.numblocks))
        return _blocks(block, x, found, dtype)

    update_wrapper(filtered, function)
    room = ".".join(function.__module__.split(".")[:2])
    filtered.__doc__ = (
        f"`{room}.{function.__name__}` of an array in chunks, block by block, when Dask computes it.\n\n"
        "Arguments, answers and errors are those of that function; an output is None or a dtype."
    )
    return filtered


# --- inside ----------------------------------------------------------------------------------


def _result_dtype(
    function: Callable[..., Any], place: str, x: DaskArray, given: dict[str, Any], halos: Halos
) -> np.dtype:
    """That of the results; the call, of a small array, also finds what is wrong of the arguments."""
    alone = len(halos) == 1  # then some need more elements than one
    needed = {axis: halo.elements + 1 for axis, halo in halos.items() if alone}
    shape = [min(n, needed.get(axis, 1)) for axis, n in enumerate(x.shape)]
    return np.asarray(_called(function, {place: np.zeros(shape, x.dtype), **given})).dtype


def _called(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    """A call with arguments by name, some of which SciPy takes by position only."""
    kinds = {name: parameter.kind for name, parameter in signature(function).parameters.items()}
    positional = [name for name, kind in kinds.items() if kind is Parameter.POSITIONAL_OR_KEYWORD]
    others = {name: value for name, value in given.items() if name not in positional}
    return function(*(given[name] for name in positional), **others)


def _blocks(block: FilteredBlock, x: DaskArray, halos: Halos, dtype: np.dtype) -> DaskArray:
    """The filtered array, in the chunks of x."""
    if 0 in x.shape:
        return da.zeros(x.shape, dtype=dtype, chunks=x.chunks)
    axes = tuple(a for a, halo in halos.items() if halo.elements and x.numblocks[a] > 1)
    reads: list[Any] = [None] * x.ndim
    given: list[Any] = []
    for axis in axes:
        reads[axis], places = _windows(x.chunks[axis], halos[axis])
        given += of_blocks(places, axis)
    labels = tuple(range(x.ndim))
    return blockwise(
        FilteredBlock(block.function, block.place, block.arguments, axes, block.blocks), labels,
        gathered(x, reads), labels, *given, adjust_chunks={axis: x.chunks[axis] for axis in axes},
        dtype=dtype, meta=np.empty((0,) * x.ndim, dtype), token=block.function.__name__,
    )  # fmt: skip


def _windows(chunks: tuple[int, ...], halo: Halo) -> tuple[list[Reads], list[slice]]:
    """What each block reads of an axis, and where its chunk lies in that."""
    n, most = sum(chunks), halo.elements
    reads: list[Reads] = []
    places, first = [], 0
    for size in chunks:
        low, high = first - most, first + size + most
        if halo.wraps and (low < 0 or high > n):
            reads.append(around(low, high, n))
            places.append(slice(most, most + size))
        else:  # at an end far enough inwards for what lies beyond it
            begin = max(0, min(low, n - 1 - most) if high > n else low)
            end = min(n, max(high, most + 1) if low < 0 else high)
            reads.append([(begin, end)])
            places.append(slice(first - begin, first - begin + size))
        first += size
    return reads, places
