"""A whole network end to end, beside other libraries: times, outputs compared, memory, where time goes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from convalgos import network as networks
from convalgos.core.errors import Unsupported
from convalgos.core.json_format import head
from convalgos.core.machine import Machine
from convalgos.core.setting import thread_count
from convalgos.network.filters import Filters
from convalgos.network.staged_plan import StagedPlan
from convalgos.select.measure import timing as measure_timing
from convalgos.select.measure.timing import Timing
from convalgos.tools.bench.network_peers import OURS, Feeds, NetworkCall, NetworkPeer, process_growth
from convalgos.tools.bench.recorded_machine import machine_figures

if TYPE_CHECKING:
    from convalgos.network.explanation import NetworkExplanation
    from convalgos.network.network_plan import NetworkPlan


@dataclass(frozen=True)
class NetworkTimes:
    """What one library took for a network."""

    name: str
    timing: Timing | None
    load_s: float | None = None  # to read the model, plan it and prepare its filters
    error: float | None = None  # of its outputs, relative to the largest of ours
    memory_bytes: int | None = None  # by which a process grew that did it
    why_not: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name, "samples_s": self.timing.samples if self.timing else None,
            "median_s": self.timing.median if self.timing else None, "load_s": self.load_s,
            "error": self.error, "memory_bytes": self.memory_bytes, "why_not": self.why_not,
        }  # fmt: skip


@dataclass(frozen=True)
class NetworkResults:
    """A run of a network by this library, first, and by others."""

    command: str
    model: str
    threads: int
    machine: Machine
    versions: dict[str, str]
    times: tuple[NetworkTimes, ...]
    explanation: NetworkExplanation  # with the measured time of each step
    filter_bytes: int  # of the prepared filters
    started: str
    opens: tuple[str, ...] = ()  # steps that tell sizes, which are not among those of the explanation

    @property
    def ours(self) -> NetworkTimes:
        return self.times[0]

    def ratio(self, times: NetworkTimes) -> float | None:
        """Time of another library over ours."""
        if times.timing is None or self.ours.timing is None:
            return None
        return times.timing.median / self.ours.timing.median

    def as_json(self) -> dict[str, Any]:
        return head("network_run") | {
            "command": self.command, "started": self.started, "model": self.model, "threads": self.threads,
            "machine": machine_figures(self.machine), "versions": self.versions,
            "times": [times.as_json() for times in self.times], "filter_bytes": self.filter_bytes,
            "opens": list(self.opens), "network": self.explanation.to_dict(),
        }  # fmt: skip


def run_network(
    path: Path, feeds: Feeds, peers: Sequence[NetworkPeer], *, command: str, machine: Machine,
    versions: dict[str, str], rounds: int = 3, progress: measure_timing.Progress = measure_timing.silent,
) -> NetworkResults:  # fmt: skip
    """Load a model by every library, compare their outputs, and time them in the same rounds.

    Raises:
        ValueError: it is no model, or does not take these inputs. Unsupported: a step cannot be computed.
    """
    started = datetime.now(UTC).isoformat(timespec="seconds")
    threads = thread_count()
    begun = time.perf_counter()
    network = networks.from_onnx(path)
    shapes = {name: x.shape for name, x in feeds.items()}
    plan = network.plan(shapes)
    inputs = [np.ascontiguousarray(feeds[name]) for name in network.graph.inputs]
    expected = plan.run(inputs)
    load_s = time.perf_counter() - begun
    if isinstance(plan, StagedPlan):  # whose later stages that run has planned
        plan = network.plan(shapes)
    calls: dict[str, NetworkCall] = {OURS.name: lambda: plan.run(inputs)}
    found = {OURS.name: NetworkTimes(OURS.name, None, load_s)}
    for peer in peers:
        progress(peer.name, 0.0)
        found[peer.name], call = _loaded(peer, path, feeds, threads, expected)
        if call is not None:
            calls[peer.name] = call
    timings = measure_timing.interleave(dict(calls), rounds=rounds, progress=progress)
    times = []
    for peer in (OURS, *peers):
        known = found[peer.name]
        memory = process_growth(peer, path, feeds, threads) if peer.name in timings else None
        times.append(
            NetworkTimes(peer.name, timings.get(peer.name), known.load_s, known.error, memory, known.why_not)
        )
    return NetworkResults(
        command, str(path), threads, machine, versions, tuple(times), *_told(plan), started,
        plan.opens if isinstance(plan, StagedPlan) else (),
    )  # fmt: skip


def _loaded(
    peer: NetworkPeer, path: Path, feeds: Feeds, threads: int, expected: Sequence[np.ndarray]
) -> tuple[NetworkTimes, NetworkCall | None]:
    """What loading and a first run tell, with the call to time."""
    begun = time.perf_counter()
    try:
        call = peer.load(path, feeds, threads)
        outputs = call()
    except Exception as failure:  # of another library: whatever it raises, the run goes on
        reason = str(failure) if isinstance(failure, Unsupported) else f"{type(failure).__name__}: {failure}"
        return NetworkTimes(peer.name, None, why_not=" ".join(reason.split())[:300]), None
    load_s = time.perf_counter() - begun
    return NetworkTimes(peer.name, None, load_s, _difference(outputs, expected)), call


def _difference(outputs: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """The largest difference of two results, relative to the largest element of the second."""
    errors = [0.0]
    for y, ours in zip(outputs, expected, strict=True):
        if ours.size:
            largest = float(np.abs(ours).max()) or 1.0
            errors.append(float(np.abs(np.asarray(y, np.float64) - ours).max()) / largest)
    return max(errors)


def _told(plan: NetworkPlan | StagedPlan) -> tuple[NetworkExplanation, int]:
    """The steps of a plan, timed, and the bytes of its prepared filters."""
    if not isinstance(plan, StagedPlan):
        return plan.explain(timed=True), _filter_bytes(plan.filters)
    own = [stage.plan.filters for stage in plan.stages if stage.plan is not None]
    return plan.explain(timed=True).joined(), sum(map(_filter_bytes, own))


def _filter_bytes(filters: Filters) -> int:
    """Bytes of prepared filters."""

    def of(value: Any) -> int:
        if isinstance(value, np.ndarray):
            return value.nbytes
        return sum(map(of, value)) if isinstance(value, tuple | list) else 0

    return sum(of(prepared.data) for prepared in filters.values())
