"""A recording: layers in a random order, each timed once and written down, until all are done or time is up.

The order is drawn, so that what is there when a recording ends early stands for the whole, and so that a
machine that drifts is no harder on one network than on another.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from convalgos.select import choose, devices
from convalgos.select.measure.accuracy import AccuracyCheck, repeating_arrays
from convalgos.select.measure.backends import backend
from convalgos.select.measure.timing import Progress
from convalgos.tools.bench.peer import Peer
from convalgos.tools.bench.run import try_peers
from convalgos.tools.bench.suites import Layer
from convalgos.tools.evaluate.recorded_tables import Recorded, RecordedLayer
from convalgos.tools.record.journal import Journal
from convalgos.tools.record.layer_timing import time_layer

TimeOne = Callable[[Layer, Progress], RecordedLayer]
Watch = Callable[[int, Layer], Progress]  # of the layer that is timed when so many of those to do are done


def time_on(device: str, peers: Sequence[Peer] = (), *, whole_check: bool = False) -> TimeOne:
    """What times one layer on a device.

    Args:
        peers: other libraries, timed beside the candidates.
        whole_check: compare all of each result with float64 where that is feasible, and not only some of it.
    """
    where, figures = backend(device), devices.figures(device)

    def time_one(layer: Layer, progress: Progress) -> RecordedLayer:
        with devices.working_on(device):
            candidates, _ = choose.survey(layer.problem, device, figures)
        check = AccuracyCheck(layer.problem, where, repeating_arrays(layer.problem), brief=not whole_check)
        _, calls = try_peers(peers if candidates else (), check, progress)
        return time_layer(layer, candidates, check, others=calls, progress=progress)

    return time_one


def record(
    layers: Sequence[Layer],
    journal: Journal,
    time_one: TimeOne,
    *,
    seed: int = 0,
    time_limit: float | None = None,
    watch: Watch = lambda done, layer: lambda what, share: None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Time the layers that a journal does not have yet.

    Args:
        seed: of the order.
        time_limit: seconds after which no other layer is begun.
        watch: called for each layer, before it is timed.

    Raises:
        ValueError: the journal has layers that are none of these.
    """
    todo = open_layers(layers, journal)
    random.Random(seed).shuffle(todo)
    until = None if time_limit is None else clock() + time_limit
    for done, layer in enumerate(todo):
        if until is not None and clock() >= until:
            return
        journal.append(time_one(layer, watch(done, layer)))


def open_layers(layers: Sequence[Layer], journal: Journal) -> list[Layer]:
    """Those that a journal does not have yet, in their order; errors as of `record`."""
    there = {_key(layer) for layer in journal.layers}
    if other := there - {_key(layer) for layer in layers}:
        raise ValueError(
            f"the recording has {len(other)} layers that are no longer asked for, as {min(other)[1]}: name "
            "another folder"
        )
    return [layer for layer in layers if _key(layer) not in there]


def recorded_table(layers: Sequence[Layer], journal: Journal) -> Recorded:
    """What a journal has, in the order of the layers that were asked for, whose number it tells."""
    found = {_key(layer): layer for layer in journal.layers}
    protocol = journal.head.protocol | {"layers_asked_for": len(layers)}
    in_order = tuple(found[key] for layer in layers if (key := _key(layer)) in found)
    return replace(journal.head, layers=in_order, protocol=protocol)


def _key(layer: Any) -> tuple[str, str, str]:
    return layer.suite, layer.name, str(layer.problem)
