"""Recording on the machines of a Dask cluster: a table for each kind, whose layers its hosts share out.

A time means something only on its machine, so kinds are never mixed. Of workers on one host only one times,
one layer at a time; what it found is on the disk of the caller before the host gets another.
"""

from __future__ import annotations

import importlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from convalgos.select import devices
from convalgos.select.measure.backends import backend
from convalgos.tools.bench import peers
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


def head_on(client: Any, address: str, how: HowTimed, protocol: dict[str, Any]) -> Recorded:
    """The head of the table of a worker's machine, whose figures are measured if they never were."""
    found: Recorded = client.submit(_head, how, workers=[address], pure=False).result()
    return replace(found, protocol=protocol)


def record_all(
    client: Any,
    machines: Mapping[str, Sequence[str]],
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
        machines: kind -> addresses of workers, one for each host.
        journals: of each kind.
        seed, time_limit, clock: as of `recording.record`.

    Yields:
        (kind, layer), which its journal has.
    """
    distributed = importlib.import_module("distributed")
    until = None if time_limit is None else clock() + time_limit
    todo = {kind: recording.open_layers(layers, journals[kind]) for kind in machines}
    for left in todo.values():
        random.Random(seed).shuffle(left)
    running: dict[Any, tuple[str, str]] = {}  # future -> kind, address
    results = distributed.as_completed(with_results=True)

    def go_on(kind: str, address: str) -> None:
        if todo[kind] and (until is None or clock() < until):
            layer = todo[kind].pop(0)
            future = client.submit(time_here, layer, how, workers=[address], pure=False)
            running[future] = kind, address
            results.add(future)

    for kind, addresses in machines.items():
        for address in addresses:
            go_on(kind, address)
    for future, layer in results:
        kind, address = running.pop(future)
        journals[kind].append(layer)
        go_on(kind, address)
        yield kind, layer


def time_here(layer: Layer, how: HowTimed) -> RecordedLayer:
    """What a worker runs."""
    with _one_at_a_time:
        chosen = peers.choose_peers(how.peers, how.device, {layer.problem.dtype})
        time_one = recording.time_on(how.device, chosen, whole_check=how.whole_check)
        return time_one(layer, lambda what, share: None)


_one_at_a_time = threading.Lock()


def _head(how: HowTimed) -> Recorded:
    figures = devices.measured_figures(how.device)
    return Recorded(figures, versions() | backend(how.device).versions(), (), {})
