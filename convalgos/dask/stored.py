"""What workers of a cluster store, in an order in which few of the chunks that they read are held.

`dask.array.store` computes one task that waits for all. Dask's order then goes by the names of chunks as text
(row 9, 8, ... 2, 15, ...), and whole rows wait for their neighbours: of 16 rows of an image 3.7 were held,
and 6.3 where results were cut anew. Without that task 1.6 and 2.2 are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from convalgos.dask.engine import DaskArray, get_scheduler

OF_COMPUTING = {"scheduler", "optimize_graph"}  # arguments of `store` that it hands on


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
