"""Maps of Dask: which of their dimensions are what, and how they are chunked for a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, product
from typing import Any

import numpy as np

from convalgos.core import arguments
from convalgos.core.arguments import Shape
from convalgos.dask.axes import AxisSplit, Chunks
from convalgos.dask.engine import ArrayValuesDep, DaskArray, da, tokenize
from convalgos.dask.gather import gathered

IMAGES, FILTERS, CHANNELS, SPATIAL, KERNEL = 0, 1, 2, 3, 6  # labels of dimensions; the last two begin three


@dataclass(frozen=True)
class Order:
    """The dimensions of a map in a layout."""

    layout: str
    ndim: int  # spatial

    def labels(self, channels: int) -> Shape:
        """Of a map with these channels, as `dask.array.blockwise` takes them."""
        return self.laid((IMAGES, channels, *self.spatial))

    @property
    def spatial(self) -> Shape:
        """Labels of the spatial dimensions."""
        return tuple(range(SPATIAL, SPATIAL + self.ndim))

    @property
    def kernel(self) -> Shape:
        """Labels of the dimensions of a kernel."""
        return tuple(range(KERNEL, KERNEL + self.ndim))

    def laid(self, logical: Sequence[Any]) -> tuple[Any, ...]:
        """What is told of (N, channels, *spatial), in the order of the layout."""
        images, channels, *spatial = logical
        if self.layout == "channels_last":
            return (images, *spatial, channels)
        return (images, channels, *spatial)

    def logical(self, of_array: Sequence[Any]) -> tuple[Any, ...]:
        """`laid` turned round."""
        if self.layout == "channels_last":
            return (of_array[0], of_array[-1], *of_array[1:-1])
        return tuple(of_array)


def as_dask(name: str, array: Any, whole: bool = False) -> DaskArray:
    """A Dask array of an argument; one of NumPy is a single chunk where it is `whole`.

    Raises:
        ValueError: the sizes of its chunks are not known.
    """
    if type(array) is np.memmap:
        array = _of_file(array)
    if not isinstance(array, da.Array):
        array = da.from_array(np.asarray(array), chunks=-1 if whole else "auto")
    if any(np.isnan(size) for size in array.shape):
        raise ValueError(f"{name} has chunks of unknown sizes; call {name}.compute_chunk_sizes() before")
    return array


def _of_file(mapped: np.memmap) -> DaskArray:
    """A memory-mapped array in chunks that are read when needed: Dask would copy all of it before."""
    chunks = da.core.normalize_chunks("auto", mapped.shape, dtype=mapped.dtype)
    name, whole = f"file-{tokenize(mapped)}", mapped.view(np.ndarray)
    ends = [list(accumulate(of, initial=0)) for of in chunks]
    graph = {
        (name, *place): whole[tuple(slice(of[i], of[i + 1]) for of, i in zip(ends, place, strict=True))]
        for place in product(*(range(len(of)) for of in chunks))
    }
    return da.Array(graph, name, chunks, meta=np.empty((0,) * mapped.ndim, mapped.dtype))


def order_of(layout: str, name: str, array: DaskArray) -> Order:
    """The dimensions of a map."""
    arguments.one_of("layout", layout, arguments.LAYOUTS)
    if not 3 <= array.ndim <= 5:
        raise ValueError(
            f"{name} has shape {array.shape}: it must have 3, 4 or 5 dimensions, (N, C, *spatial)"
        )
    return Order(layout, array.ndim - 2)


def lengthened(x: DaskArray, order: Order, splits: Sequence[AxisSplit], channels: Chunks) -> DaskArray:
    """x in the blocks of the splits, each with the halo that it shares with its neighbours."""
    ends = list(accumulate(channels, initial=0))
    of_channels = [[each] for each in pairwise(ends)]
    return gathered(x, order.laid((None, of_channels, *(s.reads for s in splits))))


def of_blocks(values: Sequence[Any], label: int) -> tuple[Any, tuple[int]]:
    """An argument of `dask.array.blockwise`: for each block of a dimension a value."""
    return ArrayValuesDep(((1,) * len(values),), {(i,): value for i, value in enumerate(values)}), (label,)


def window_arguments(splits: Sequence[AxisSplit]) -> list[Any]:
    """Such arguments: for each block of each dimension its window."""
    return [given for label, split in enumerate(splits, SPATIAL) for given in of_blocks(split.windows, label)]


def by_groups(of_x: Chunks, of_w: Chunks, groups: int) -> tuple[Chunks, Chunks]:
    """Chunks of the channels and of the filters that cut both between groups, where either of them does."""
    cuts: set[int] = set()
    for chunks in (of_x, of_w):
        each = sum(chunks) // groups
        cuts |= {end // each for end in accumulate(chunks) if each and end % each == 0}
    ends = sorted({0, groups} | cuts)
    parts = [b - a for a, b in pairwise(ends)]
    channels, filters = sum(of_x) // groups, sum(of_w) // groups
    return tuple(p * channels for p in parts), tuple(p * filters for p in parts)
