"""What workers of a cluster store, in an order and in chunks of which few are held.

`dask.array.store` computes one task that waits for all. Dask's order then goes by the names of chunks as text
(row 9, 8, ... 2, 15, ...), and whole rows wait for their neighbours: of 16 rows of an image 4.1 were held,
and 6.9 where results were cut anew. Without that task 2.2 are, and 2.4 where what is cut anew is gathered.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

from convalgos.dask.axes import Chunks
from convalgos.dask.engine import DaskArray, da, get_scheduler
from convalgos.dask.gather import gathered

OF_COMPUTING = {"scheduler", "optimize_graph"}  # arguments of `store` that it hands on
OF_STORING = OF_COMPUTING | {"compute", "return_stored"}  # those of `to_zarr` that `store` takes, too


class StoredArray(da.Array):  # type: ignore[misc]
    """An array of Dask that workers store row of chunks by row of chunks.

    Where chunks are cut a little elsewhere, as those of a file are, what changes hands is cut by one task for
    each chunk, and not by one for each part of it.
    """

    def store(self, target: Any, **how: Any) -> Any:
        if (client := client_of(self, how)) is None:
            return super().store(target, **how)
        return stored_by_workers(client, super().store, target, how)

    def to_zarr(self, url: Any, *more: Any, **how: Any) -> Any:
        if not more and how.keys() <= OF_STORING and (chunks := _chunks_for_file(self, url)) is not None:
            return self.rechunk(chunks).store(url, lock=False, **how)
        client = None if more else client_of(self, how)
        if client is None:
            return super().to_zarr(url, *more, **how)
        even = self.rechunk(tuple(map(_even_chunks, self.shape, self.chunks)))
        return stored_by_workers(client, super(StoredArray, even).to_zarr, url, how)

    def rechunk(self, *args: Any, **kwargs: Any) -> DaskArray:
        y = super().rechunk(*args, **kwargs)
        if y.chunks == self.chunks:
            return self
        if y.numblocks == self.numblocks and client_of(self, {}) is not None:
            reads = [[[each] for each in pairwise(accumulate(of, initial=0))] for of in y.chunks]
            y = gathered(self, reads)
        return StoredArray(y.dask, y.name, y.chunks, meta=y._meta)


def client_of(array: DaskArray, how: dict[str, Any]) -> Any:
    """The client whose workers would compute and store an array now; None where no workers do.

    Args:
        how: the arguments of `store` or `to_zarr`.
    """
    if not how.get("compute", True) or how.get("return_stored"):
        return None
    module = sys.modules.get("distributed")
    get = get_scheduler(scheduler=how.get("scheduler"), collections=[array])
    client = getattr(get, "__self__", None)
    return client if module and isinstance(client, module.Client) and not client.asynchronous else None


def stored_by_workers(client: Any, store: Callable[..., Any], target: Any, how: dict[str, Any]) -> None:
    """Store an array now, each block as a result of its own.

    Args:
        store: `store` or `to_zarr` of the array.
        how: its arguments.

    Raises:
        Exception: what a task has raised.
    """
    computing = {name: how[name] for name in OF_COMPUTING & how.keys()}
    others = {name: value for name, value in how.items() if name not in OF_COMPUTING}
    persisted = store(target, **others | {"compute": False}).persist(**computing)
    client.gather(client.futures_of(persisted))


# --- inside ----------------------------------------------------------------------------------


def _chunks_for_file(array: DaskArray, target: Any) -> tuple[Chunks, ...] | None:
    """Chunks of an array, of whole ones of a zarr array that is there; None where the target is none.

    Dask would make them as large as its configuration says, 128 MiB, of whatever size they were.
    """
    module = sys.modules.get("zarr")
    if module is None or not isinstance(target, module.Array) or target.shape != array.shape:
        return None
    if type(target.store) is module.storage.MemoryStore:  # which Dask refuses to workers
        return None
    written = getattr(target, "shards", None) or target.chunks
    found = []
    for chunks, size, each in zip(array.chunks, array.shape, written, strict=True):
        step = max(1, round(max(chunks) / each)) * each
        apart = all(end % each == 0 for end in accumulate(chunks[:-1]))
        found.append(chunks if apart else da.core.normalize_chunks((step,), (size,))[0])
    return tuple(found)


def _even_chunks(size: int, chunks: Chunks) -> Chunks:
    """As many chunks of equal sizes, but for a smaller last one: a file has no others. Else the same."""
    even: Chunks = da.core.normalize_chunks((-(-size // len(chunks)),), (size,))[0]
    regular = len(set(chunks[:-1])) < 2 and chunks[-1] <= chunks[0]
    return chunks if regular or len(even) != len(chunks) else even
