"""Tuning on the machines of a Dask cluster: each kind times all problems, shared out over those of the kind.

What is fastest depends on the machine, so wisdom is kept for each kind of it. Of workers on one host only one
times, so that none disturbs another, and one problem at a time. What a machine finds comes back as the text
of a wisdom file, and is merged here, where the file of every kind grows.
"""

from __future__ import annotations

import importlib
import socket
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from convalgos.api import wisdom
from convalgos.core.errors import Unsupported, missing
from convalgos.core.problem import ConvProblem
from convalgos.select import devices, wisdom_file
from convalgos.tools.bench import tune

Machines = dict[str, list[str]]  # fingerprint of a kind -> addresses of workers, one for each host


class Found(NamedTuple):
    """What a machine found of a problem."""

    problem: ConvProblem
    machine: str
    merged: wisdom.Merged


def connected(scheduler: str) -> Any:
    """A client of a cluster, to be closed after use.

    Raises:
        Unsupported: Dask is missing. OSError: no scheduler answers there.
    """
    if reason := missing("dask"):
        raise Unsupported(f"--scheduler {reason}")
    return importlib.import_module("distributed").Client(scheduler, set_as_default=False)


def machines(client: Any) -> Machines:
    """The kinds of machines of a cluster."""
    found: Machines = defaultdict(list)
    hosts = set()
    for address, (host, machine) in sorted(client.run(_who).items()):
        if host not in hosts:
            hosts.add(host)
            found[machine].append(address)
    if not found:
        raise ValueError("the cluster has no workers")
    return dict(found)


def tune_all(client: Any, found: Machines, problems: Sequence[ConvProblem], **how: Any) -> Iterator[Found]:
    """Tune every problem on one machine of each kind, and keep what comes back.

    Args:
        how: `effort`, `time_budget`, and `again`, whether to time what a machine knows.
    """
    distributed = importlib.import_module("distributed")
    futures = {
        client.submit(
            tune_here, str(problem), how, workers=[addresses[i % len(addresses)]], pure=False
        ): (problem, machine)
        for machine, addresses in found.items()
        for i, problem in enumerate(problems)
    }  # fmt: skip
    for future, text in distributed.as_completed(futures, with_results=True):
        yield Found(*futures[future], wisdom.merge_text(text, "what a worker found"))


def tune_here(text: str, how: dict[str, Any]) -> str:
    """What a worker runs: it tunes a problem, and tells all that its machine knows of it."""
    problem = ConvProblem.parse(text)
    with _one_at_a_time:
        devices.measured_figures("cpu")
        if how["again"] or not tune.is_known(problem, how["effort"]):
            tune.tune(problem, effort=how["effort"], time_budget=how["time_budget"])
    store = devices.store()
    return wisdom_file.dump(store.fingerprint, {str(problem): dict(store.lookup(problem))})


_one_at_a_time = threading.Lock()


def _who() -> tuple[str, str]:
    """(host, fingerprint) of a worker."""
    return socket.gethostname(), devices.store().fingerprint
