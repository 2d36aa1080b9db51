"""A network planned for fixed shapes of its inputs, which runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Self

import numpy as np

from convalgos.network.batch_parts import BatchParts
from convalgos.network.executor import Executor
from convalgos.network.filters import Filters, prepared_filters
from convalgos.network.graph import NetworkGraph
from convalgos.network.known_run import KnownRun
from convalgos.network.layout_choice import LayoutChoice
from convalgos.network.memory import MemoryPool
from convalgos.network.parted_run import PartedRun
from convalgos.network.planned import PlanLimits, Planned
from convalgos.network.saved import PlanRecord

if TYPE_CHECKING:
    from convalgos.network.explanation import NetworkExplanation

AGAIN = 8  # runs of a plan, at least, after which it is worth to choose for its own shapes,
CHOOSING = 5e-3  # and for each of its filters these seconds of runs, as long as the choice takes; Zen 4


class NetworkPlan:
    """A network planned for fixed shapes of its inputs, with all filters prepared.

    Args:
        filters: those of the graph that are prepared already.
        memories: what its runs compute in.
        like: a plan of the same steps for other sizes, without parts.
        own: all filters of its own, where these are known to be prepared.
        parts: in which the images of the batch run through its first steps, if any.
    """

    def __init__(
        self,
        graph: NetworkGraph,
        planned: Planned,
        choice: LayoutChoice,
        limits: PlanLimits,
        filters: Iterable[Filters] = (),
        memories: MemoryPool | None = None,
        own: Filters | None = None,
        like: NetworkPlan | None = None,
        parts: BatchParts | None = None,
    ):
        self.graph = graph
        self.planned = planned
        self.choice = choice
        self.limits = limits
        self.parts = parts
        known = list(filters)
        if own is None and parts is not None:
            first = prepared_filters(parts.first.steps, known)
            own = {**first, **prepared_filters(parts.rest.steps, [*known, first])}
        self.filters = prepared_filters(planned.steps, known) if own is None else own
        self.runs = count(1)  # where the choice is a rough one,
        self.again = max(AGAIN, int(CHOOSING * len(self.filters) / max(1e-6, planned.seconds)))  # until these
        self._memories = memories or MemoryPool()
        self._executor: Executor | PartedRun
        if parts is None:
            as_of = None if like is None else like._executor
            assert not isinstance(as_of, PartedRun)
            self._executor = Executor(graph, planned, self.filters, self._memories, as_of)
        else:
            self._executor = PartedRun(graph, parts, self.filters, self._memories)

    @classmethod
    def of_record(cls, graph: NetworkGraph, record: PlanRecord, memories: MemoryPool) -> Self:
        """The plan that a record was made of."""
        of = record.planned, record.choice, record.limits, [record.filters]
        return cls(graph, *of, memories, parts=record.parts)

    @property
    def record(self) -> PlanRecord:
        """What is stored of it."""
        return PlanRecord(self.planned, self.choice, self.limits, self.filters, self.parts)

    def explain(self, timed: bool = False) -> NetworkExplanation:
        """What each step got, and what the choice of layouts saved; see `Network.explain`."""
        from convalgos.network.explanation import explanation
        from convalgos.network.step_times import step_times

        measured = None
        if timed:
            runs = [(self.graph, self.planned, 1)] if self.parts is None else self.parts.runs(self.graph)
            executors = (Executor(graph, planned, self.filters, self._memories) for graph, planned, _ in runs)
            measured = [seconds for executor in executors for seconds in step_times(executor)]
        return explanation(self.graph, self.planned, self.choice, self.limits, measured, self.parts)

    def bind(self) -> None:
        """Bind the steps to memory, which the first run does else."""
        self._executor.bind()

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs, new arrays, of inputs that are contiguous and have the planned shapes."""
        return self._executor.run(inputs)

    def known_run(self) -> KnownRun | None:
        """Compiled runs like the last one, where there are any; not many are made, as each takes 50 us."""
        return None if isinstance(self._executor, PartedRun) else self._executor.known_run()
