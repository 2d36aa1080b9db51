"""A plan of a network for other shapes of its inputs, made from one that it has.

The steps, their order, their layouts and what is joined stay. Each step is planned again for its own sizes,
and keeps its plan where these are the same; nothing is searched for.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Hashable
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.errors import Unsupported
from convalgos.cpu.pooling.plan import PoolPlan
from convalgos.cpu.runtime.threads import plan_threads
from convalgos.cpu.separable.plan import SeparablePlan
from convalgos.network.arena import with_places
from convalgos.network.array_functions import ArrayFunction
from convalgos.network.graph import Foreign, NetworkGraph, Pooling, Shapes, Step, Transpose
from convalgos.network.layers_on_sizes import LayersOnSizes, forget_oldest
from convalgos.network.layout_choice import LayoutChoice
from convalgos.network.planned import (
    JoinedConvolutions,
    LayoutChange,
    PlanLimits,
    Planned,
    PlannedStep,
    PooledConvolution,
    ScaledConvolution,
    StepLike,
)
from convalgos.network.step_options import CONVOLUTIONS, moves_nothing
from convalgos.network.step_plans import plan_of, reorder_like, step_plan_like

OF_SIZES = Foreign, ArrayFunction
LIKE = 1 << 14  # steps that are kept for further shapes


def replanned(
    known: Planned,
    choice: LayoutChoice,
    graph: NetworkGraph,
    inputs: Shapes,
    limits: PlanLimits,
    growth: float = math.inf,
) -> Planned | None:
    """The plan for inputs of these shapes; None where other steps are needed than in the one that is known.

    Args:
        known: by the choice, within the same limits.
        growth: of the work of a layer, up to which it keeps the algorithm.
    """
    if known.threads != plan_threads():
        return None
    try:
        steps = _Replanning(known, choice, graph, inputs, limits, growth).steps()
    except (Unsupported, ValueError):  # what was joined cannot be, in these sizes, or these go with nothing
        return None
    return with_places(steps, graph, known)


class _Replanning(LayersOnSizes):
    def __init__(
        self, known: Planned, choice: LayoutChoice, graph: NetworkGraph, inputs: Shapes, limits: PlanLimits,
        growth: float,
    ):  # fmt: skip
        super().__init__(known, choice, limits, growth)
        self._shapes = dict(inputs)
        self._sizes: dict[str, np.ndarray] = {}  # that regions compute of shapes, and others read
        self._graph = graph

    @cached_attribute
    def _graph_steps(self) -> dict[str, Step]:
        """By what they write."""
        return {name: step for step in self._graph.steps for name in step.outputs}

    def steps(self) -> Planned:
        """The plan, before its values have places.

        All shapes are found first; then steps that are alike are planned one after the other.

        Raises:
            Unsupported: a step cannot be computed as in the plan that is known.
            ValueError: shapes do not go together.
        """
        known, shapes, memo = self._known.steps, self._shapes, self._known.steps_like
        begun: dict[int, Generator[None, None, PlannedStep]] = {}
        found: dict[int, PlannedStep] = {}
        keys: dict[int, Hashable] = {}
        written: dict[int, tuple[tuple[str, Shape], ...]] = {}
        for i, planned_step in enumerate(known):
            names, step = len(shapes), planned_step.step
            if not isinstance(step, OF_SIZES):  # which read what is computed of shapes
                key = keys[i] = i, self._changes, self._growth, *map(shapes.__getitem__, step.inputs)
                if (made := memo.get(key)) is not None:
                    found[i] = made.planned_step
                    shapes.update(made.written)
                    continue
            begun[i] = self._step(planned_step)
            next(begun[i])
            written[i] = tuple(islice(shapes.items(), names, None))
        for i in self._known.alike:
            if i not in begun:
                continue
            try:
                next(begun[i])
            except StopIteration as made:
                found[i] = made.value
            if i in keys:
                if len(memo) >= LIKE:
                    forget_oldest(memo, LIKE)
                # inputs of the network of other sizes may be the same behind strides
                memo[keys[i]] = StepLike(found[i], written[i])
        steps = tuple(map(found.__getitem__, range(len(known))))
        return replace(self._known, steps=steps, shapes=shapes)

    def _step(self, known: PlannedStep) -> Generator[None, None, PlannedStep]:
        """Finds the shapes of what a step writes; when it goes on, it is planned."""
        step, shapes = known.step, self._shapes
        x_shape = shapes[step.inputs[0]] if step.inputs else ()
        plan: Any
        if isinstance(step, CONVOLUTIONS):
            sized = self._sized(step, x_shape, known.plan.problem)
            y_shape = shapes[step.output] = sized[0]
            if isinstance(step, PooledConvolution):
                pooling = step.pooling.problem(y_shape)
                shapes[step.output] = pooling.y_shape
            yield
            plan = self._convolution(step, x_shape, sized, known.plan)
            if isinstance(step, PooledConvolution) and plan is not known.plan:
                plan = self._pooled(plan, pooling)
        elif type(step) is JoinedConvolutions:
            self._add_joined_shapes(step, x_shape, known.plan)
            yield
            plan = self._joined(step, x_shape, known.plan)
        elif type(step) is ScaledConvolution:
            of, inner = step.convolution, known.plan.plan
            sized = self._sized(of, x_shape, inner.problem)
            shapes[of.inputs[0]], shapes[step.output] = x_shape, sized[0]
            yield
            plan = self._scaled(of, x_shape, sized, known.plan)
            if shapes[step.inputs[1]] != (*x_shape[:2], 1, 1):
                raise Unsupported("it scales no maps by a number each")
        elif type(step) is LayoutChange:
            shapes[step.output] = x_shape
            yield
            plan = known.plan
            if x_shape != self._known.shapes[step.inputs[0]]:
                plan = self._reorder(step, x_shape, known.plan)
        else:
            step.add_shapes(shapes, self._sizes)
            yield
            if isinstance(step, Transpose) and not moves_nothing(step, known.reads[0], known.writes, shapes):
                raise Unsupported("a transpose moves nothing in the other sizes only")
            before = self._known.shapes
            same = all(shapes[name] == before[name] for name in (*step.inputs, *step.outputs))
            plan = known.plan if same else self._of_step(step, known.writes, known.plan)
        if plan is known.plan:
            return known
        return PlannedStep(step, known.reads, known.writes, plan, known.seconds * self._grown(step.output))

    def _of_step(self, step: Step, layout: str, known: Any) -> Any:
        """The plan of a step that is no convolution; of windows once for all steps that have the same."""
        dtype = self._dtype(step)
        if isinstance(step, Pooling):
            problem = step.problem(self._shapes[step.inputs[0]], dtype).in_layout(layout)
            return known.on_map(problem) or self._made_once((PoolPlan, problem), partial(PoolPlan, problem))
        plan = step_plan_like(known, step, self._shapes, layout)
        return plan_of(step, self._shapes, layout, dtype, self._limits) if plan is None else plan

    def _reorder(self, step: LayoutChange, shape: Shape, known: Any) -> Any:
        """That of a map, once for all that go from one layout to another in the same sizes."""
        key = step.source, step.target, shape, self._dtype(step)
        if key not in self._plans:
            self._plans[key] = reorder_like(known, shape, *key[:2], key[3])
        return self._plans[key]

    def _grown(self, name: str) -> float:
        """Times as many elements of a value as in the plan that is known."""
        return math.prod(self._shapes[name]) / (math.prod(self._known.shapes[name]) or 1)

    def _dtype(self, step: Step) -> str:
        """Of what a step reads."""
        return self._known.dtypes.get(next(iter(step.inputs), ""), "float32")

    def _add_joined_shapes(self, step: JoinedConvolutions, x_shape: Shape, known: SeparablePlan) -> None:
        """Add the shapes of what the convolutions of a joined step write."""
        if self._trusts and self._are_sized(step, known) and (shapes := known.shapes_on(x_shape)):
            self._plans[known, x_shape, "shapes"] = shapes
            self._shapes |= zip([part.output for part in step.parts], shapes[1:], strict=True)
            x_shape = shapes[-1]
        else:
            x_shape = self._add_looked_at(step, x_shape, known)
        self._shapes[step.output] = x_shape
        if step.mean:
            self._shapes[step.mean] = (*x_shape[:2], 1, 1)

    def _are_sized(self, step: JoinedConvolutions, known: SeparablePlan) -> bool:
        """Whether sizes alone tell the problems of a joined step."""
        key, found = (known, "sized"), self._known.made_like
        if key not in found:
            pairs = zip(step.parts, known.block.problems, strict=True)
            self._made_once(key, lambda: all(self._is_sized(*pair) for pair in pairs))
        return bool(found.get(key))

    def _add_looked_at(self, step: JoinedConvolutions, x_shape: Shape, known: SeparablePlan) -> Shape:
        """The shape of what the last convolution of a joined step writes; those of the others are added."""
        for part, before in zip(step.parts, known.block.problems, strict=True):
            if (
                not self._is_sized(part, before)
                and self._problem(part, x_shape, before).w_shape != before.w_shape
            ):
                raise Unsupported("it reads other taps")
            x_shape, _ = self._sized(part, x_shape, before)
            self._shapes[part.output] = x_shape
        return x_shape

    def _joined(self, step: JoinedConvolutions, x_shape: Shape, known: SeparablePlan) -> SeparablePlan:
        if x_shape == known.block.problems[0].x_shape:
            return known
        key = known, x_shape
        if key not in self._plans:
            if step.mean:
                pooling = self._graph_steps.get(step.mean) or self._graph_steps[step.mean.rpartition(":")[0]]
                whole = None, self._shapes[step.parts[-1].output][2:]
                if not isinstance(pooling, Pooling) or pooling.kernel not in whole:
                    raise Unsupported("the mean is not that of whole maps")
            shapes = self._plans.get((known, x_shape, "shapes"))
            self._plans[key] = self._made_once(key, partial(known.on_map, x_shape, shapes))
        plan: SeparablePlan = self._plans[key]
        limit = self._limits.workspace_limit
        if limit is not None and plan.scratch_bytes > limit:
            raise Unsupported(f"joined, it needs {plan.scratch_bytes} bytes of workspace")
        return plan
