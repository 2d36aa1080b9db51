"""Large batches in parts: the first steps of a network run for some images at a time, then the rest for all.

Where maps of a whole batch leave the caches, each step writes to memory what the next one reads from there;
those of some images stay. The rest of the network has smaller maps and larger filters, which are then read
once. Steps that run in parts compute each image by itself, up to a value that is all that the rest reads of
what is before; what they write of it lies side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from convalgos.core.allocator import whole_lines
from convalgos.core.errors import Unsupported
from convalgos.core.tabular import count
from convalgos.cpu.runtime.filter_reads import beyond_l3_seconds
from convalgos.network.arena import with_places
from convalgos.network.choice import plan_network
from convalgos.network.filters import filter_nbytes, has_filter
from convalgos.network.functions import ElementFunction
from convalgos.network.graph import (
    Convolution,
    Elementwise,
    LayerNormalization,
    LocalResponseNormalization,
    NetworkGraph,
    Pooling,
    Transpose,
    TransposedConvolution,
    View,
)
from convalgos.network.group_norms import GroupNormalization
from convalgos.network.layout_choice import LayoutChoice
from convalgos.network.planned import (
    JoinedConvolutions,
    LayoutChange,
    PlanLimits,
    Planned,
    PlannedStep,
    ScaledConvolution,
)
from convalgos.network.sharing import value_bytes
from convalgos.network.step_options import MOVED
from convalgos.select import devices

# Of steps that compute each image of their maps by itself.
BY_IMAGE = (
    Convolution | TransposedConvolution | JoinedConvolutions | ScaledConvolution | Pooling | Elementwise
    | ElementFunction | LayerNormalization | GroupNormalization | LocalResponseNormalization | MOVED
    | LayoutChange | Transpose | View
)  # fmt: skip
SHARE = 0.5  # of the last cache that the maps of a step may take in a part; Zen 5
KEPT = 0.25  # of the last cache, which other programs use, too: maps of so much stay there in any case; Zen 5
GAIN = 0.02  # of the seconds of a plan, from which on parts are worth a second one


class BatchParts(NamedTuple):
    """A plan whose first steps run for some images at a time."""

    batch: int
    images: int  # of a part
    planned: Planned  # all steps for so many images,
    choice: LayoutChoice  # and its layouts
    first: Planned  # the steps that run in parts, for so many images
    rest: Planned  # the other ones, for all images
    between: str  # the value that these read; none where there are none

    @property
    def between_bytes(self) -> int:
        """Of that value, of all images."""
        return value_bytes(self.rest, self.between) if self.between else 0

    @property
    def arena_bytes(self) -> int:
        """Of the memory in which a run computes, without that value."""
        return whole_lines(max(self.first.arena_bytes, self.rest.arena_bytes))

    @property
    def scratch_bytes(self) -> int:
        """Of these, what a step computes in besides its arrays."""
        return max(self.first.scratch_bytes, self.rest.scratch_bytes)

    def runs(self, graph: NetworkGraph) -> list[tuple[NetworkGraph, Planned, int]]:
        """What runs one after the other: (what lies in arrays of the caller, steps, how often)."""
        read = (self.between,) if self.between else graph.outputs
        first = ends(graph.inputs, read), self.first, self.batch // self.images
        return [first, (ends(read, graph.outputs), self.rest, 1)] if self.between else [first]

    def __str__(self) -> str:
        steps = count(len(self.first.steps), "step")
        return f"{steps} for {self.images} of {self.batch} images at a time"


def may_run_in_parts(planned: Planned, graph: NetworkGraph) -> bool:
    """Whether maps of a step leave the last cache, which those of fewer images do not."""
    return _fewer_images(planned, graph) is not None


def batch_parts_of(
    planned: Planned, graph: NetworkGraph, limits: PlanLimits, known: Iterable[BatchParts] = ()
) -> BatchParts | None:
    """The parts in which a plan runs sooner than as a whole, as predicted; None where there are none.

    Args:
        limits: of the plan.
        known: of other plans within these limits.
    """
    images = _fewer_images(planned, graph)
    if images is None or limits.max_rel_error is not None:
        return None
    shapes = {name: (images, *planned.shapes[name][1:]) for name in graph.inputs}
    try:
        part, choice = plan_network(graph, shapes, limits, [(of.planned, of.choice) for of in known])
    except (Unsupported, ValueError):  # the graph has batches of its own
        return None
    return in_parts(planned, part, choice, graph)


def in_parts(planned: Planned, part: Planned, choice: LayoutChoice, graph: NetworkGraph) -> BatchParts | None:
    """A plan whose first steps are those of another one, of fewer images; None where nothing is gained.

    Args:
        part: within the same limits, in layouts by `choice`.
    """
    batch, images = _batch(planned, graph), _batch(part, graph)
    own = {cut[1:]: cut[0] for cut in _cuts(part, graph) if _are_images(planned, part, cut[0])}
    seconds = _Seconds(planned, part, batch // images)
    gained: dict[tuple[int, int, str], float] = {}
    for i, between, layout in _cuts(planned, graph):
        if (j := own.get((between, layout))) is not None:
            gained[i, j, between] = seconds.gained(i, j)
    best = max(gained, key=gained.__getitem__, default=None)
    if best is None or gained[best] < GAIN * planned.seconds:
        return None
    i, j, between = best
    read, outputs = ((between,), graph.outputs) if between else ((), ())  # by the rest
    first = _of_steps(part, part.steps[:j], graph.inputs, read or graph.outputs)
    rest = _of_steps(planned, planned.steps[i:], read, outputs)
    return BatchParts(batch, images, part, choice, first, rest, between)


def _fewer_images(planned: Planned, graph: NetworkGraph) -> int | None:
    """Those of a part; None where a part would be the whole batch."""
    images = _images_of_part(planned, graph)
    return images if 0 < images < _batch(planned, graph) else None


def _images_of_part(planned: Planned, graph: NetworkGraph) -> int:
    """The most images that divide the batch, of which the maps of each step stay in the last cache; all of
    them where far fewer would do."""
    images, room = _batch(planned, graph), SHARE * devices.figures("cpu").l3_bytes
    if images < 2:
        return images
    largest = max((_map_bytes(planned, planned_step) for planned_step in planned.steps), default=0)
    if largest <= room:
        return images
    wanted = max(1, int(images * room / largest))
    found = next((n for n in range(wanted, 0, -1) if images % n == 0), images)
    return found if 2 * found >= wanted else images


def _of_steps(
    planned: Planned, steps: Sequence[PlannedStep], inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> Planned:
    """A plan of some steps, and where their values lie."""
    bare = replace(planned, steps=tuple(steps), places={}, sharing=None, made_like={}, steps_like={})
    return with_places(bare, ends(inputs, outputs))


def ends(inputs: Sequence[str], outputs: Sequence[str]) -> NetworkGraph:
    """What runs of some steps know of their graph: what lies in arrays of the caller."""
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
    images, last = _batch(planned, graph), dict[str, int]()
    for i, planned_step in enumerate(planned.steps):
        last |= dict.fromkeys(planned_step.step.inputs, i)
    last |= dict.fromkeys(graph.outputs, len(planned.steps))
    alive = {*graph.inputs}
    for i, planned_step in enumerate(planned.steps):
        step = planned_step.step
        if not _is_by_image(planned, planned_step, images):
            return
        alive = {name for name in (*alive, *step.outputs) if last.get(name, -1) > i}
        is_all = alive == {step.output} and planned_step.plan is not None
        if is_all and step.output not in graph.outputs:
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


def _are_images(planned: Planned, part: Planned, steps: int) -> bool:
    """Whether values of the first steps are the same for all images, but for how many these are."""
    written = {name for planned_step in part.steps[:steps] for name in planned_step.step.outputs}
    both = written & planned.shapes.keys()
    return all(part.shapes[name][1:] == planned.shapes[name][1:] for name in both)


class _Seconds:
    """What parts gain, as predicted: maps that stay in the caches, less filters that are read again."""

    def __init__(self, planned: Planned, part: Planned, parts: int):
        self._parts, self._machine = parts, devices.figures("cpu")
        self._of_all, self._of_part = self._sums(planned), self._sums(part)
        each = (filter_nbytes(s) if has_filter(s) else 0 for s in part.steps)
        self._filters = [0, *accumulate(each)]  # bytes of the first steps

    def _sums(self, planned: Planned) -> list[float]:
        """Of the first steps of a plan, of so many."""
        each = (s.seconds + self._spilled(_map_bytes(planned, s)) for s in planned.steps)
        return [0.0, *accumulate(each)]

    def _spilled(self, nbytes: int) -> float:
        """That maps of so many bytes take longer to be read and written than in the last cache."""
        m = self._machine
        missing = min(1.0, max(0.0, (nbytes / m.l3_bytes - KEPT) / (1 - KEPT)))
        seconds: float = nbytes * missing * max(0.0, 1 / m.filter_bandwidth - 1 / m.cache_bandwidth)
        return seconds

    def gained(self, of_all: int, of_part: int) -> float:
        """By the first steps of the plan, so many, which are so many in that of a part."""
        again: float = (self._parts - 1) * beyond_l3_seconds(self._filters[of_part], self._machine)
        return self._of_all[of_all] - self._parts * self._of_part[of_part] - again
