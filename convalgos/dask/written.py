"""Results that are asked for whole: the threads that compute blocks write them where they belong.

Dask keeps every block until the last one is there, and then one thread copies them all: twice the memory, and
for large images a quarter of the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.dask.engine import (
    ArraySliceDep,
    DaskArray,
    compute_as_if_collection,
    da,
    flatten,
    get_scheduler,
    in_this_process,
)

STORED_OTHERWISE = {"regions", "compute", "return_stored", "load_stored"}  # arguments of `dask.array.store`


BlockStep = Callable[..., np.ndarray]  # (*blocks, out=None): a block of a result; in `out` where it is given


def put(block: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    """A block, in `out` where it is given."""
    if out is None:
        return block
    out[...] = block
    return out


@dataclass(frozen=True)
class WrittenBlock:
    """The step of blocks that are written into their parts of an array."""

    step: BlockStep
    out: np.ndarray

    def __call__(self, where: tuple[slice, ...], *blocks: Any) -> None:
        self.step(*blocks, out=self.out[where])


class WrittenArray(da.Array):  # type: ignore[misc]
    """An array of Dask whose `compute` and `store` write each block at once into the array that is wanted.

    So they do where threads of this process compute, and it is computed alone; else they are Dask's own. What
    is made of it is an array of Dask.
    """

    _into: tuple[str, Callable[[np.ndarray], DaskArray]]  # its name at first, and what writes it

    def compute(self, **how: Any) -> Any:
        if not self._is_written(how):
            return super().compute(**how)
        out = aligned_empty(math.prod(self.shape), self.dtype).reshape(self.shape)
        self._write(out, how)
        return out

    def store(self, target: Any, **how: Any) -> Any:
        same = type(target) is np.ndarray and target.shape == self.shape and target.dtype == self.dtype
        if not same or STORED_OTHERWISE & how.keys() or not self._is_written(how):
            return super().store(target, **how)
        how.pop("lock", None)  # parts are apart
        self._write(target, how)
        return None

    def _write(self, out: np.ndarray, how: dict[str, Any]) -> None:
        blocks = self._into[1](out)
        compute_as_if_collection(da.Array, blocks.dask, list(flatten(blocks.__dask_keys__())), **how)

    def _is_written(self, how: dict[str, Any]) -> bool:
        unchanged = self._into[0] == self.name  # as it is not once elements were assigned
        return (
            unchanged and get_scheduler(scheduler=how.get("scheduler"), collections=[self]) in in_this_process
        )


def blockwise(step: BlockStep, labels: tuple[int, ...], *arrays: Any, **how: Any) -> DaskArray:
    """`dask.array.blockwise`, whose result is written where it is asked for whole."""
    y = da.blockwise(step, labels, *arrays, align_arrays=False, **how)
    result = WrittenArray(y.dask, y.name, y.chunks, dtype=y.dtype, meta=y._meta)

    def into(out: np.ndarray) -> DaskArray:
        places = ArraySliceDep(y.chunks), labels
        named = how | {"name": f"written-{y.name}"}  # else Dask reads all of out for a name
        return da.blockwise(WrittenBlock(step, out), labels, *places, *arrays, align_arrays=False, **named)

    result._into = y.name, into
    return result
