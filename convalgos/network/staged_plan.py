"""The plan of a network in stages: of each stage whose sizes are known, and what the others wait for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.tabular import Tabular, count, microseconds
from convalgos.network.filters import Filters

if TYPE_CHECKING:
    from convalgos.network.explanation import NetworkExplanation


class StagePlan(Protocol):
    """A plan of a stage."""

    filters: Filters

    def explain(self, timed: bool = False) -> NetworkExplanation:
        """What each step got."""


class PlannedStage(NamedTuple):
    """A stage, with its plan as far as there is one."""

    plan: StagePlan | None  # None where no call has found its sizes yet
    of_call: bool  # whether a call made it: other inputs of the same shapes may need another
    empty: bool  # whether there is nothing to plan
    opens: tuple[str, ...]  # steps behind it, which tell the sizes of later stages


@dataclass(frozen=True, eq=False)
class StageExplanation:
    """What is known of a stage before it runs."""

    stage: PlannedStage
    explanation: NetworkExplanation | None

    def __str__(self) -> str:
        own = self.stage
        if self.explanation is not None:
            told = f"{'for the sizes that the last call found: ' if own.of_call else ''}{self.explanation}"
        elif own.empty:
            told = "nothing to plan"
        else:
            told = "planned by calls, as its sizes depend on what is computed; none has run so far"
        return told + (f"\n  then {', '.join(own.opens)}: what it gives tells sizes" if own.opens else "")


@dataclass(frozen=True, eq=False)
class StagedExplanation(Tabular):
    """The stages of a network in order; it prints as a table of each that is planned."""

    shapes: Mapping[str, Shape]  # of the inputs
    stages: tuple[StageExplanation, ...]

    @property
    def predicted_s(self) -> float:
        """Of a run of all stages that are planned, without the steps that tell sizes."""
        return sum(e.predicted_s for e in self._known())

    @property
    def measured_s(self) -> float | None:
        """The same, where they were timed."""
        measured = [e.measured_s for e in self._known() if e.measured_s is not None]
        return sum(measured) if measured and len(measured) == len(self._known()) else None

    def joined(self) -> NetworkExplanation:
        """The steps of all planned stages in one table, without those that tell sizes."""
        from convalgos.network.explanation import NetworkExplanation

        known = self._known()
        arena, least, scratch = (
            max((getattr(e, name) for e in known), default=0)
            for name in ("arena_bytes", "least_arena_bytes", "scratch_bytes")
        )
        rows = tuple(row for e in known for row in e.rows)
        return NetworkExplanation(self.shapes, rows, {}, all(e.exact for e in known), arena, least, scratch)

    def to_dict(self) -> dict[str, Any]:
        return {
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "stages": [
                {
                    "network": None if s.explanation is None else s.explanation.to_dict(),
                    "of_call": s.stage.of_call, "opens": list(s.stage.opens),
                }
                for s in self.stages
            ],
            "predicted_s": self.predicted_s,
            "measured_s": self.measured_s,
        }  # fmt: skip

    def __repr__(self) -> str:
        known = f"{len(self._known())} planned: {microseconds(self.predicted_s)} predicted"
        return f"<Network in {count(len(self.stages), 'stage')}, {known}>"

    def __str__(self) -> str:
        given = ", ".join(f"{name} {shape}" for name, shape in self.shapes.items())
        head = (
            f"network in {count(len(self.stages), 'stage')} on {given}, as sizes depend on what is computed"
        )
        return "\n".join([head, *(f"stage {i}: {stage}" for i, stage in enumerate(self.stages, 1))])

    def _frame_rows(self) -> list[dict[str, Any]]:
        rows = [(i, s.explanation) for i, s in enumerate(self.stages, 1) if s.explanation is not None]
        return [{"stage": i} | row.to_dict() for i, e in rows for row in e.rows]

    def _known(self) -> list[NetworkExplanation]:
        return [s.explanation for s in self.stages if s.explanation is not None]


@dataclass(frozen=True, eq=False)
class StagedPlan:
    """The plans of the stages of a network, as far as sizes are known.

    Args:
        shapes: of the inputs.
    """

    shapes: Mapping[str, Shape]
    stages: tuple[PlannedStage, ...]
    call: Callable[[Sequence[np.ndarray]], list[np.ndarray]]

    @property
    def opens(self) -> tuple[str, ...]:
        """Steps between the stages, which tell the sizes of later ones."""
        return tuple(name for stage in self.stages for name in stage.opens)

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs of the network, new arrays; stages whose sizes it finds are planned meanwhile."""
        return self.call(inputs)

    def explain(self, timed: bool = False) -> StagedExplanation:
        """What each step of the planned stages got; see `Network.explain`."""
        each = [(s, None if s.plan is None else s.plan.explain(timed)) for s in self.stages]
        return StagedExplanation(self.shapes, tuple(StageExplanation(*of) for of in each))
