"""Recording on the machines of a Dask cluster: a table for each kind, whose layers its hosts share out.

A time means something only on its machine, so kinds are never mixed. What a host found of a layer is on the
disk of the caller before it gets another.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from convalgos.select import devices
from convalgos.select.measure.backends import backend
from convalgos.tools.bench import peers
from convalgos.tools.bench.cluster_hosts import Hosts, run_on_hosts
from convalgos.tools.bench.results import versions
from convalgos.tools.bench.suites import Layer
from convalgos.tools.evaluate.recorded_tables import Recorded, RecordedLayer
from convalgos.tools.record import recording
from convalgos.tools.record.journal import Journal


@dataclass(frozen=True)
class HowTimed:
    """What workers are told beside a layer."""

    device: str
    peers: str  # as on the command line
    whole_check: bool


def head_on(client: Any, host: str, how: HowTimed, protocol: dict[str, Any]) -> Recorded:
    """The head of the table of a host's machine, whose figures are measured if they never were."""
    found: Recorded = client.submit(_head, how, workers=[host], pure=False).result()
    return replace(found, protocol=protocol)


def record_all(
    client: Any,
    hosts: Hosts,
    journals: Mapping[str, Journal],
    layers: Sequence[Layer],
    how: HowTimed,
    *,
    seed: int = 0,
    time_limit: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[tuple[str, RecordedLayer]]:
    """Time the layers that journals do not have yet, on all hosts at once.

    Args:
        journals: of each kind of machine.
        seed, time_limit, clock: as of `recording.record`.

    Yields:
        (kind, layer), which its journal has.
    """
    until = None if time_limit is None else clock() + time_limit
    todo = {kind: recording.open_layers(layers, journals[kind]) for kind in hosts}
    for left in todo.values():
        random.Random(seed).shuffle(left)
    results = run_on_hosts(
        client, hosts, todo, time_here, how, go_on=lambda: until is None or clock() < until
    )
    for kind, _, layer in results:
        journals[kind].append(layer)
        yield kind, layer


def time_here(layer: Layer, how: HowTimed) -> RecordedLayer:
    """What a worker runs."""
    chosen = peers.choose_peers(how.peers, how.device, {layer.problem.dtype})
    time_one = recording.time_on(how.device, chosen, whole_check=how.whole_check)
    return time_one(layer, lambda what, share: None)


def _head(how: HowTimed) -> Recorded:
    figures = devices.measured_figures(how.device)
    return Recorded(figures, versions() | backend(how.device).versions(), (), {})
