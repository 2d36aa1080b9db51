"""The hosts of a Dask cluster, and work that is shared out over them: one task at a time on each.

So none disturbs another. A worker that dies is replaced by one of its host, which gets its task;
what a host had that has no workers any more goes to the other hosts of its kind.
"""

from __future__ import annotations

import importlib
import logging
import socket
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import Any, TypeVar

from convalgos.core.errors import Unsupported, missing
from convalgos.core.version import __version__
from convalgos.select import devices

Item = TypeVar("Item")
Hosts = dict[str, list[str]]  # fingerprint of a kind of machine -> its hosts, as Dask names them

PATIENCE = 60.0  # seconds in which a host may have no worker: Dask starts another for one that died
LOOK = 5.0  # seconds between two looks at the workers
CONNECT = 15.0  # seconds until a scheduler must have answered


@contextmanager
def connected(scheduler: str) -> Iterator[Any]:
    """A client of a cluster.

    Raises:
        Unsupported: Dask is missing, or workers died of what they got. ValueError: this is no address.
            OSError: no scheduler answers there, or it went away.
    """
    if reason := missing("dask"):
        raise Unsupported(f"--scheduler {reason}")
    distributed = importlib.import_module("distributed")
    example = "`dask scheduler` prints its address, such as tcp://host:8786"
    try:
        distributed.comm.get_address_host_port(scheduler)
    except ValueError as error:
        raise ValueError(f"--scheduler={scheduler}: {error}; {example}") from None
    try:
        client = distributed.Client(scheduler, timeout=CONNECT, set_as_default=False)
    except OSError:  # so is a timeout
        raise OSError(f"--scheduler={scheduler}: no scheduler has answered; {example}") from None
    with client:
        try:
            yield client
        except (CancelledError, distributed.comm.CommClosedError):
            logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # its tries to get it back
            raise OSError(
                f"--scheduler={scheduler}: the connection is lost; what was found until then is kept, and "
                "the same command goes on from there"
            ) from None
        except distributed.KilledWorker as error:
            raise Unsupported(f"--scheduler={scheduler}: {error}") from None


def hosts_by_kind(client: Any) -> Hosts:
    """The hosts of a cluster, by what machine they are.

    Raises:
        ValueError: there are no workers. Unsupported: a worker cannot run this library, or has another
            version of it.
    """
    found: Hosts = defaultdict(list)
    seen = set()
    for address, told in sorted(client.run(_who, on_error="return").items()):
        if isinstance(told, BaseException):
            raise Unsupported(
                f"the worker {address} cannot run convalgos {__version__}, which must be installed there, "
                f"too: {type(told).__name__}: {told}"
            )
        name, machine, *version = told  # of which an old one says nothing
        if version != [__version__]:
            has = version[0] if version else "an older version"
            raise Unsupported(
                f"the worker {address} has convalgos {has}, but here is {__version__}: their figures would "
                "be taken for one another's; install the same on both"
            )
        if name not in seen:
            seen.add(name)
            found[machine].append(_host_of(address))
    if not found:
        raise ValueError("the cluster has no workers")
    return dict(found)


def run_on_hosts(
    client: Any,
    hosts: Hosts,
    items: Mapping[str, Sequence[Item]],
    function: Callable[..., Any],
    *arguments: Any,
    go_on: Callable[[], bool] = lambda: True,
) -> Iterator[tuple[str, Item, Any]]:
    """Call function(item, *arguments) for each item of a kind on one of its hosts.

    Args:
        go_on: asked before each call; where it says no, those that run are waited for.

    Yields:
        (kind, item, result), before the host gets another item.

    Raises:
        Unsupported: no host of a kind is left, or its workers died of an item again and again.
    """
    distributed = importlib.import_module("distributed")
    todo = {kind: deque(items[kind]) for kind in hosts}
    running: dict[Any, tuple[str, str, Item]] = {}  # by future: kind, host
    last_seen = {(kind, host): time.monotonic() for kind in hosts for host in hosts[kind]}

    def start_idle() -> None:
        busy = {(kind, host) for kind, host, _ in running.values()}
        for kind, host in last_seen.keys() - busy:
            if todo[kind] and go_on():
                item = todo[kind].popleft()
                future = client.submit(function, item, *arguments, workers=[host], pure=False)
                running[future] = kind, host, item

    start_idle()
    while running:
        try:
            with client.as_current():  # as it is no default
                done = distributed.wait(list(running), timeout=LOOK, return_when="FIRST_COMPLETED").done
        except distributed.TimeoutError:
            done = set()
        for future in done:
            kind, host, item = running.pop(future)
            try:
                result = future.result()
            except distributed.KilledWorker:
                raise Unsupported(f"{item}: the workers of {host} died of it, one after the other") from None
            last_seen[kind, host] = time.monotonic()
            yield kind, item, result
        for future in [] if done else _of_lost_hosts(client, last_seen, running):
            kind, host, item = running.pop(future)
            future.cancel()
            todo[kind].appendleft(item)
            del last_seen[kind, host]
            if not any(of == kind for of, _ in last_seen):
                raise Unsupported(
                    f"{host} has lost its workers, and no other host is {kind}: what was found is kept"
                )
        start_idle()


# --- inside ----------------------------------------------------------------------------------


def _of_lost_hosts(
    client: Any, last_seen: dict[tuple[str, str], float], running: Mapping[Any, tuple[str, str, Any]]
) -> list[Any]:
    """The futures of hosts that have been without a worker for too long."""
    now, alive = time.monotonic(), set(map(_host_of, client.nthreads()))
    last_seen |= {key: now for key in last_seen if key[1] in alive}
    return [future for future, (kind, host, _) in running.items() if now - last_seen[kind, host] > PATIENCE]


def _host_of(address: str) -> str:
    """As Dask names the host of a worker."""
    return str(importlib.import_module("distributed").comm.get_address_host(address))


def _who() -> tuple[str, str, str]:
    """(name of its host, fingerprint, version of this library) of a worker."""
    return socket.gethostname(), devices.store().fingerprint, __version__
