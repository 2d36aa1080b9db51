"""Large batches in parts: a few images at a time go through the first steps of a network, whose maps then stay
in the last cache; all of them go through the rest, whose filters are then read once.

Where maps of a whole batch leave the caches, each step writes to memory what the next one reads from there.
Steps that work on each image by itself can be run for some images, and again for the next ones. They are
those up to a value by which all that follows knows of them; what they write of it lies side by side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from convalgos.core.machine import Machine
from convalgos.cpu.layout.reorder import Reorder
from convalgos.cpu.runtime.filter_reads import from_memory
from convalgos.network.arena import with_places
from convalgos.network.functions import ElementFunction
from convalgos.network.graph import (
    ChannelSelection,
    Concatenation,
    Convolution,
    Elementwise,
    LayerNormalization,
    LocalResponseNormalization,
    NetworkGraph,
    Pooling,
    Resizing,
    Step,
    Transpose,
    TransposedConvolution,
    Upsampling,
    View,
)
from convalgos.network.group_norms import GroupNormalization
from convalgos.network.pixel_moves import PixelMove
from convalgos.network.planned import (
    JoinedConvolutions,
    LayoutChange,
    Planned,
    PlannedStep,
    ScaledConvolution,
)
from convalgos.network.sharing import value_bytes

# Of steps that compute each image of their maps by itself.
BY_IMAGE = (
    ChannelSelection, Concatenation, Convolution, ElementFunction, Elementwise, GroupNormalization,
    JoinedConvolutions, LayerNormalization, LayoutChange, LocalResponseNormalization, PixelMove, Pooling,
    Resizing, ScaledConvolution, Transpose, TransposedConvolution, Upsampling, View,
)  # fmt: skip
SHARE = 0.5  # of the last cache that the maps of a step may take in a part; Zen 5
KEPT = 0.25  # of the last cache, which other programs use, too: what it keeps of maps
GAIN = 0.02  # of the seconds of a plan, from which on parts are worth a second one


class BatchParts(NamedTuple):
    """A plan whose first steps run for some images at a time."""

    images: int  # of a part
    planned: Planned  # of so many images, all steps
    first: Planned  # of so many images, the steps that run in parts
    rest: Planned | None  # of all images, the other ones
    between: str  # the value that all others read; none where there are no others

    @property
    def plans(self) -> tuple[Planned, ...]:
        """Of the steps that run."""
        return (self.first,) if self.rest is None else (self.first, self.rest)


def images_of_part(planned: Planned, graph: NetworkGraph, machine: Machine) -> int:
    """How many images a part would have; all of them where parts gain nothing.

    The most that divide the batch, of which the maps of a step stay in the last cache.
    """
    images = _batch(planned, graph)
    if images < 2:
        return images
    largest = max((_map_bytes(planned, s) for s in planned.steps), default=0)
    if largest <= SHARE * machine.l3_bytes:
        return images
    wanted = max(1, int(images * SHARE * machine.l3_bytes / largest))
    found = next(n for n in range(wanted, 0, -1) if images % n == 0)
    return found if 2 * found >= wanted else images


def in_parts(planned: Planned, part: Planned, graph: NetworkGraph, machine: Machine) -> BatchParts | None:
    """A plan whose first steps are those of another one, of fewer images; None where nothing is gained.

    Args:
        part: within the same limits.
    """
    images, of_all = _batch(part, graph), _batch(planned, graph)
    best, where = 0.0, None
    own = {between: (i, layout) for i, between, layout in _cuts(part, graph)}
    seconds = _Seconds(planned, part, of_all // images, machine)
    for i, between, layout in _cuts(planned, graph):
        j, other = own.get(between, (0, ""))
        import os
        if os.environ.get("SHOW"): print(i, j, between, layout, other, f"{seconds.gained(i, j)*1e6:.0f} us; N {seconds._of_all[i]*1e6:.0f} parts {seconds._of_part[j]*seconds._parts*1e6:.0f} filters {seconds._filters[j]>>20} MB", planned.seconds)
        if os.environ.get("CUT"):
            if between == os.environ["CUT"]: best, where = 1.0, (i, j, between)
            continue
        if other == layout and (gained := seconds.gained(i, j)) > best:
            best, where = gained, (i, j, between)
    if where is None or best < GAIN * planned.seconds:
        return None
    i, j, between = where
    outputs = (between,) if between else graph.outputs
    first = _of_steps(part, part.steps[:j], graph.inputs, outputs)
    rest = _of_steps(planned, planned.steps[i:], outputs, graph.outputs) if between else None
    return BatchParts(images, part, first, rest, between)


def _of_steps(
    planned: Planned, steps: Sequence[PlannedStep], inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> Planned:
    """A plan of some steps, and where their values lie."""
    bare = replace(planned, steps=tuple(steps), places={}, sharing=None, made_like={}, steps_like={})
    return with_places(bare, ends(inputs, outputs))


def ends(inputs: Sequence[str], outputs: Sequence[str]) -> NetworkGraph:
    """What runs of a plan of some steps know of their graph."""
    return NetworkGraph(tuple(inputs), tuple(outputs), ())


def _batch(planned: Planned, graph: NetworkGraph) -> int:
    """Images of all inputs; 0 where these have several numbers of them."""
    found = {planned.shapes[name][0] if planned.shapes[name] else 0 for name in graph.inputs}
    return found.pop() if len(found) == 1 else 0


def _map_bytes(planned: Planned, planned_step: PlannedStep) -> int:
    """Of what a step reads and writes."""
    step = planned_step.step
    return sum(value_bytes(planned, name) for name in (*step.inputs, *step.outputs))


def _cuts(planned: Planned, graph: NetworkGraph) -> Iterator[tuple[int, str, str]]:
    """(steps, value, layout): by the value, in its layout, all that follows so many steps knows of them.

    With all steps there is no such value.
    """
    images, last = _batch(planned, graph), {}
    for i, planned_step in enumerate(planned.steps):
        last |= dict.fromkeys(planned_step.step.inputs, i)
    last |= dict.fromkeys(graph.outputs, len(planned.steps))
    alive = {*graph.inputs}
    for i, planned_step in enumerate(planned.steps):
        step = planned_step.step
        if not _is_by_image(planned, planned_step, images):
            return
        alive = {name for name in (*alive, *step.outputs) if last.get(name, -1) > i}
        if len(alive) == 1 and planned_step.plan is not None and alive == {step.output}:
            if step.output not in graph.outputs:
                yield i + 1, step.output, planned_step.writes
    written = {name for s in planned.steps for name in s.step.outputs if s.plan is not None}
    if written.issuperset(graph.outputs) and len({*graph.outputs}) == len(graph.outputs):
        yield len(planned.steps), "", ""


def _is_by_image(planned: Planned, planned_step: PlannedStep, images: int) -> bool:
    """Whether a step computes each image of its maps by itself."""
    step = planned_step.step
    if not isinstance(step, BY_IMAGE) or not step.inputs:
        return False
    shapes = [planned.shapes[name] for name in (*step.inputs, *step.outputs)]
    if any(not shape or shape[0] != images for shape in shapes):
        return False
    if isinstance(step, Transpose):
        return step.order[0] == 0
    constant = getattr(step, "constant", None)
    return constant is None or constant.ndim < len(shapes[0]) or constant.shape[0] == 1


class _Seconds:
    """What parts gain, as predicted: maps that stay in the caches, less filters that are read again."""

    def __init__(self, planned: Planned, part: Planned, parts: int, machine: Machine):
        self._parts, self._machine = parts, machine
        self._of_all, self._of_part = ([0.0], [0.0])
        for plan, sums in ((planned, self._of_all), (part, self._of_part)):
            for s in plan.steps:
                sums.append(sums[-1] + s.seconds + self._spilled(_map_bytes(plan, s)))
        self._filters = [0]
        for s in part.steps:
            self._filters.append(self._filters[-1] + _filter_bytes(s))

    def _spilled(self, nbytes: int) -> float:
        """Seconds that maps of so many bytes take longer to be read and written, as they leave the caches."""
        m = self._machine
        missing = min(1.0, max(0.0, (nbytes / m.l3_bytes - KEPT) / (1 - KEPT)))
        return nbytes * missing * max(0.0, 1 / min(50e9, m.bandwidth) - 1 / m.cache_bandwidth)

    def gained(self, of_all: int, of_part: int) -> float:
        """By the first steps of a plan, of which there are so many, and so many in that of a part."""
        filters = self._filters[of_part]
        again = (self._parts - 1) * filters * from_memory(filters) / self._machine.bandwidth
        return self._of_all[of_all] - self._parts * self._of_part[of_part] - again


def _filter_bytes(planned_step: PlannedStep) -> int:
    """Of the filters of a step, as the graph has them."""
    step: Any = planned_step.step
    parts = getattr(step, "parts", (getattr(step, "convolution", step),))
    return sum(part.w.nbytes for part in parts if hasattr(part, "w"))
