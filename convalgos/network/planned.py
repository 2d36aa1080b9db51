"""What planning a network gives, and running it takes: a plan for each step, layouts, places in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from convalgos.api.types import Effort
from convalgos.core.arguments import Shape
from convalgos.core.cached_attribute import cached_attribute
from convalgos.network.graph import Convolution, NetworkGraph, Pooling, Shapes, Step, TransposedConvolution
from convalgos.network.packing import PartStack, Stack, stack_of


class PlanLimits(NamedTuple):
    """What the plans of a network are held to; see `ca.plan` for each."""

    precisions: tuple[str, ...] = ("float32",)
    effort: Effort = "estimate"
    workspace_limit: int | None = None  # bytes, of each step
    max_rel_error: float | None = None  # of outputs: bounds of convolutions add up along each path


@dataclass(frozen=True, eq=False)
class LayoutChange(Step):
    """The same map in another layout, which planning put between two steps."""

    source: str = "channels_first"
    target: str = "channels_first"

    def output_shape(self, shapes: Shapes) -> Shape:
        return shapes[self.inputs[0]]


@dataclass(frozen=True, eq=False)
class JoinedConvolutions(Step):
    """Neighbouring convolutions computed in one step, which planning joined; inputs as of the first of them,
    and the residual of the last. It may write the mean of each map as well."""

    parts: tuple[Convolution, ...] = ()
    mean: str = ""  # the value of the means, if any

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.output, self.mean) if self.mean else (self.output,)

    def output_shape(self, shapes: Shapes) -> Shape:
        shape = shapes[self.inputs[0]]
        for part in self.parts:
            shape = part.problem(shape).y_shape
        return shape


@dataclass(frozen=True, eq=False)
class ScaledConvolution(Step):
    """A convolution of maps times a number each; inputs: (x, scale) or (x, scale, residual)."""

    convolution: Convolution

    @property
    def w(self) -> np.ndarray:
        """Its filter."""
        return self.convolution.w

    def output_shape(self, shapes: Shapes) -> Shape:
        return self.convolution.problem(shapes[self.inputs[0]]).y_shape


@dataclass(frozen=True, eq=False)
class PooledConvolution(Convolution):
    """A convolution whose output is pooled, and written only so."""

    pooling: Pooling = field(kw_only=True)
    unwritten: str = field(kw_only=True)  # the value that was its output

    def output_shape(self, shapes: Shapes) -> Shape:
        return self.pooling.problem(super().output_shape(shapes)).y_shape


@dataclass(frozen=True, eq=False)
class PlannedStep:
    """A step of the graph, or a `LayoutChange`, with the plan that computes it in its layouts."""

    step: Step
    reads: tuple[str, ...]  # layout of each input
    writes: str  # layout of the output
    plan: Any  # of its kind: `Plan`, `SeparablePlan`, `PoolPlan`, ..., `ForeignRegion`; None of views
    seconds: float  # predicted


class StepLike(NamedTuple):
    """A step of a plan for other shapes of its inputs."""

    planned_step: PlannedStep
    written: tuple[tuple[str, Shape], ...]  # shapes of values that are known behind it


class Sharing(NamedTuple):
    """Which values of a network lie in the memory of others, whatever the sizes of their maps."""

    where: Mapping[str, str | tuple[str, int]]  # value -> its buffer, or (whole, first channel) of a slice
    # buffer, named by a value -> (value, first and last step that use it) of all that lie in it
    times: Mapping[str, tuple[tuple[str, int, int], ...]]
    whole: Mapping[str, tuple[int, int]]  # first and last step that use a buffer in which no slices lie
    slices: Mapping[str, tuple[str, int]]
    overwritten: tuple[tuple[int, str], ...]  # (step whose output lies where an input did, that input)
    order: int = 0  # in which buffers took their places
    least: int = 0  # bytes that are in use at the worst step
    # first and last step that use each buffer, where no slices have to have times of their own
    spans: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Planned:
    """The steps of a network in the order in which they run, for fixed shapes of its inputs."""

    steps: tuple[PlannedStep, ...]
    shapes: Mapping[str, Shape]  # of every value, logical
    layouts: Mapping[str, str] = field(default_factory=dict)  # of values that are not channels_first
    dtypes: Mapping[str, str] = field(default_factory=dict)  # of values that are not float32
    places: Mapping[str, int | tuple[str, int]] = field(default_factory=dict)
    # value -> bytes from the begin of the arena, or (value that it is a slice of, first channel); values that
    # have no place have an array of their own
    arena_bytes: int = 0
    scratch_bytes: int = 0  # of these, at the begin: the most that one step asks for; steps share them
    sharing: Sharing | None = None  # where values have places
    threads: int = 0  # that the plans of its steps share their work among
    made_like: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)  # of its layers,
    steps_like: dict[Any, StepLike] = field(default_factory=dict, compare=False, repr=False)  # and steps

    @cached_attribute
    def alike(self) -> list[int]:
        """The numbers of its steps, `alike_together`."""
        return alike_together(self.steps)

    @cached_attribute
    def has_empty_layers(self) -> bool:
        """Whether a convolution computes nothing, as of no images: any algorithm is as good there."""
        layers = Convolution | TransposedConvolution | JoinedConvolutions | ScaledConvolution
        return any(0 in self.shapes[s.step.output] for s in self.steps if isinstance(s.step, layers))

    @property
    def borrows(self) -> bool:
        """Whether a step runs on filters that lie as for other sizes, as few runs do not pay for its own."""
        return any(getattr(planned_step.plan, "borrows", False) for planned_step in self.steps)

    @cached_attribute
    def stack(self) -> Stack | None:
        """How its values lie upon each other; None where slices do at times of their own."""
        sharing = self.sharing
        if sharing is None or not sharing.spans:
            return None
        roots: list[Any] = [self.places[root] for root in sharing.times]
        return stack_of(sharing.spans, roots)

    @cached_attribute
    def stack_above(self) -> list[Stack]:
        """How they would lie above the scratch of their own steps, once that was asked for."""
        return []

    @cached_attribute
    def part_stacks(self) -> list[PartStack]:
        """How its values, and those of plans made like it for other sizes, lie upon each other where slices
        do so at times of their own; once that was asked for."""
        return []

    def dtype(self, name: str) -> np.dtype:
        """The type of a value."""
        return np.dtype(self.dtypes.get(name, "float32"))

    def shares_as(self, other: Planned) -> bool:
        """Whether values share memory as in a plan for other sizes that this one was made like."""
        return (
            self.sharing is not None
            and other.sharing is not None
            and self.sharing.where is other.sharing.where
        )

    @property
    def seconds(self) -> float:
        """Predicted for a run."""
        return sum(s.seconds for s in self.steps)


def readers_of(steps: Iterable[PlannedStep]) -> dict[str, list[PlannedStep]]:
    """The steps that read each value."""
    found: dict[str, list[PlannedStep]] = {}
    for planned_step in steps:
        for name in planned_step.step.inputs:
            found.setdefault(name, []).append(planned_step)
    return found


def moving_values(steps: Iterable[PlannedStep], graph: NetworkGraph) -> set[str]:
    """Values whose arrays lie elsewhere in each run: inputs, views of them, and outputs."""
    moving = {*graph.inputs, *graph.outputs}
    for planned_step in steps:
        if planned_step.plan is None and moving & {*planned_step.step.inputs}:
            moving.add(planned_step.step.output)
    return moving


def alike_together(steps: Sequence[PlannedStep]) -> list[int]:
    """The numbers of steps, those behind each other that the same code plans and binds: what Python runs for
    them stays in the caches. Detection of text is planned in 0.85 of the time."""
    kinds = [(type(s.plan).__name__, getattr(s.plan, "algorithm", "")) for s in steps]
    return sorted(range(len(steps)), key=kinds.__getitem__)
