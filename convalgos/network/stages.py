"""Networks in stages, where sizes depend on what is computed: a stage is planned for sizes that a run finds.

Steps that open sizes are run by themselves, between networks of what comes before and behind them. What is
computed of sizes alone is part of each stage that reads it: planning needs it there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Generic, NamedTuple, Protocol, TypeVar, cast

import numpy as np

from convalgos.core.array_functions import ARRAY_FUNCTIONS
from convalgos.network.array_functions import ArrayFunction
from convalgos.network.graph import Foreign, ForeignRegion, NetworkGraph, Shapes, Step
from convalgos.network.sizes_of_run import SizesOfRun
from convalgos.network.staged_plan import PlannedStage, StagedPlan, StagePlan


class NetworkStage(NamedTuple):
    """Steps that can be planned together, and those behind them that open sizes, which only a run knows."""

    graph: NetworkGraph
    opening: tuple[Step, ...]


class RunsStage(Protocol):
    """What runs the steps of a stage."""

    def run(self, views: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs, new arrays."""


class StageOfNetwork(RunsStage, Protocol):
    """A network of the steps of a stage."""

    def plans(self) -> Sequence[StagePlan]:
        """Those that calls run by, the last one last."""


class OpeningRegion(Protocol):
    """What another library runs, whatever shapes it gives."""

    def opened(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """The outputs, new arrays."""


Part = TypeVar("Part", bound=StageOfNetwork)


def stages_of(graph: NetworkGraph) -> list[NetworkStage]:
    """The stages of a network, in order; none where all sizes follow from those of the inputs."""
    if not any(map(_opens, graph.steps)):
        return []
    levels = dict.fromkeys(graph.inputs, 0)
    makers: dict[str, int] = {}
    of_level: dict[int, list[Step]] = defaultdict(list)
    for step in graph.steps:
        level = max((levels[name] for name in step.inputs), default=0)
        of_level[level].append(step)
        levels |= dict.fromkeys(step.outputs, level + _opens(step))
        makers |= dict.fromkeys(step.outputs, level)
    sized = _of_sizes(graph)
    wanted = {*graph.outputs}  # beyond its stage
    for level, own in of_level.items():
        for step in own:
            opens = _opens(step)
            wanted |= {n for n in step.inputs if opens or (n not in sized and makers.get(n) != level)}
    return [_stage(graph, of_level[level], sized, wanted) for level in sorted(of_level)]


class StagedRun(Generic[Part]):
    """Runs a network in stages.

    Args:
        make: a network of the steps of one.
    """

    def __init__(
        self, graph: NetworkGraph, stages: Sequence[NetworkStage], make: Callable[[NetworkGraph], Part]
    ):
        self._graph = graph
        self._stages = [(stage, make(stage.graph) if stage.graph.outputs else None) for stage in stages]

    @property
    def networks(self) -> tuple[Part, ...]:
        """Those of the stages."""
        return tuple(network for _, network in self._stages if network is not None)

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs of the network, new arrays."""
        values = dict(zip(self._graph.inputs, inputs, strict=True))
        for (graph, opening), network in self._stages:
            if network is not None:
                found = network.run([values[name] for name in graph.inputs])
                values |= zip(graph.outputs, found, strict=True)
            for step in opening:
                opened = _opened(step, [values[name] for name in step.inputs])
                values |= zip(step.outputs, opened, strict=True)
        return [values[n].copy() if n in self._graph.inputs else values[n] for n in self._graph.outputs]

    def planned(self, shapes: Shapes, make: Callable[[Part, Shapes], StagePlan]) -> StagedPlan:
        """The plan of each stage: made where its sizes follow from shapes of the inputs, else as calls did.

        Args:
            make: the plan of the network of a stage, for shapes of its inputs.
        """
        known, found = dict(shapes), []
        for stage, network in self._stages:
            inputs, plan, of_call = stage.graph.inputs, None, False
            if network is not None and all(name in known for name in inputs):
                own = {name: known[name] for name in inputs}
                plan, every = make(network, own), stage.graph.shapes_of(own)
                known |= {name: every[name] for name in stage.graph.outputs}
            elif network is not None and (made := network.plans()):
                plan, of_call = made[-1], True
            opens = tuple(step.name or step.output for step in stage.opening)
            found.append(PlannedStage(plan, of_call, network is None, opens))
        return StagedPlan(shapes, tuple(found), self.run)


def with_opened(graph: NetworkGraph, region: ForeignRegion) -> NetworkGraph:
    """The graph in which only a run knows the sizes of what a region gives."""
    steps = (
        replace(s, opens=True) if isinstance(s, Foreign) and s.region is region else s for s in graph.steps
    )
    return replace(graph, steps=tuple(steps))


# --- inside ----------------------------------------------------------------------------------


def _opens(step: Step) -> bool:
    return isinstance(step, ArrayFunction | Foreign) and step.opens


def _opened(step: Step, inputs: list[np.ndarray]) -> Sequence[np.ndarray]:
    if isinstance(step, ArrayFunction):
        return [step.opened(inputs)]
    assert isinstance(step, Foreign)
    try:
        return cast(OpeningRegion, step.region).opened(inputs)
    except SizesOfRun as error:  # of which there is nothing more to be tried
        raise ValueError(f"step {step.name!r}: {error}") from None


def _of_sizes(graph: NetworkGraph) -> dict[str, ArrayFunction]:
    """Values that follow from shapes, each with the step that computes it."""
    found: dict[str, ArrayFunction] = {}
    for step in graph.steps:
        if not isinstance(step, ArrayFunction) or step.opens:
            continue
        of_sizes = bool(step.inputs) and all(name in found for name in step.inputs)
        if of_sizes or ARRAY_FUNCTIONS[step.function].of_shapes:
            found[step.output] = step
    return found


def _stage(
    graph: NetworkGraph, members: Sequence[Step], sized: dict[str, ArrayFunction], wanted: set[str]
) -> NetworkStage:
    own = {step for step in members if not _opens(step)}
    asked, needed = [*own], {*own}
    while asked:
        for name in asked.pop().inputs:
            if name in sized and sized[name] not in needed:
                needed.add(sized[name])
                asked.append(sized[name])
    steps = tuple(step for step in graph.steps if step in needed)
    made = [name for step in steps for name in step.outputs]
    inputs = tuple(dict.fromkeys(n for step in steps for n in step.inputs if n not in {*made}))
    outputs = tuple(name for step in steps if step in own for name in step.outputs if name in wanted)
    dtypes = {name: graph.dtypes[name] for name in (*inputs, *made) if name in graph.dtypes}
    shapes = {name: graph.shapes[name] for name in inputs if name in graph.shapes}
    opening = tuple(step for step in members if _opens(step))
    return NetworkStage(NetworkGraph(inputs, outputs, steps, shapes, dtypes), opening)
