"""Tuning on the machines of a Dask cluster: each kind times all problems, shared out over those of the kind.

What is fastest depends on the machine, so wisdom is kept for each kind of it. What a machine finds comes back
as the text of a wisdom file, and is merged here, where the file of every kind grows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from convalgos.api import wisdom
from convalgos.core.problem import ConvProblem
from convalgos.select import devices, wisdom_file
from convalgos.tools.bench import tune
from convalgos.tools.bench.cluster_hosts import Hosts, run_on_hosts


class Found(NamedTuple):
    """What a machine found of a problem."""

    problem: ConvProblem
    machine: str
    merged: wisdom.Merged


def tune_all(client: Any, hosts: Hosts, problems: Sequence[ConvProblem], **how: Any) -> Iterator[Found]:
    """Tune every problem on one machine of each kind, and keep what comes back.

    Args:
        how: `effort`, `time_budget`, and `again`, whether to time what a machine knows.
    """
    todo = {machine: list(map(str, problems)) for machine in hosts}
    for machine, problem, text in run_on_hosts(client, hosts, todo, tune_here, how):
        merged = wisdom.merge_text(text, "what a worker found")
        yield Found(ConvProblem.parse(problem), machine, merged)


def tune_here(text: str, how: dict[str, Any]) -> str:
    """What a worker runs: it tunes a problem, and tells all that its machine knows of it."""
    problem = ConvProblem.parse(text)
    devices.measured_figures("cpu")
    if how["again"] or not tune.is_known(problem, how["effort"]):
        tune.tune(problem, effort=how["effort"], time_budget=how["time_budget"])
    store = devices.store()
    return wisdom_file.dump(store.fingerprint, {str(problem): dict(store.lookup(problem))})
