"""A plan of a network for other shapes of its inputs, made from one that it has.

The steps, their order, their layouts and what is joined stay. Each step is planned again for its own sizes,
and keeps its plan where these are the same; nothing is searched for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Hashable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.arguments import Shape
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.errors import Unsupported
from convalgos.core.pool_problem import PoolProblem
from convalgos.core.problem import ConvProblem
from convalgos.core.problem_views import laid_as, on_map, y_shape_on
from convalgos.cpu.gemm.scaled_plan import ScaledPlan, takes_scale
from convalgos.cpu.runtime.threads import plan_threads
from convalgos.cpu.separable.plan import SeparablePlan
from convalgos.cpu.tiled.box_plan import BoxPlan
from convalgos.network.arena import with_places
from convalgos.network.array_functions import ArrayFunction
from convalgos.network.graph import Convolution, Foreign, NetworkGraph, Pooling, Shapes, Step, Transpose
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
from convalgos.network.reached_taps import reaches_all
from convalgos.network.step_options import CONVOLUTIONS, limits_of, moves_nothing
from convalgos.network.step_plans import plan_of, reorder_like, step_plan_like
from convalgos.select import choose, devices
from convalgos.select.constraints import Constraints
from convalgos.select.ranking import Candidate

OF_SIZES = Foreign, ArrayFunction
MADE = 1 << 13  # plans of layers that are kept for further shapes
LIKE = 1 << 14  # and steps
ALIKE, OTHERS = 2.0, 8  # times the work of a plan from which on another one is kept, and how many


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


class _Replanning:
    def __init__(
        self, known: Planned, choice: LayoutChoice, graph: NetworkGraph, inputs: Shapes, limits: PlanLimits,
        growth: float,
    ):  # fmt: skip
        self._known, self._limits, self._growth = known, limits, growth
        self._shapes = dict(inputs)
        self._sizes: dict[str, np.ndarray] = {}  # that regions compute of shapes, and others read
        self._choice, self._graph = choice, graph
        self._once = math.isinf(growth)  # for a call that may be the only one of its sizes
        self._measured = devices.store("cpu").known()
        self._changes = self._measured.changes
        # whether the algorithms serve all sizes: no limits are set, and nothing is known of other ones
        self._trusts = self._once and limits == PlanLimits() and not self._measured.families
        self._plans: dict[Any, Any] = {}  # of layers that the network has several times
        self._constraints: dict[str, Constraints] = {}  # of convolutions, by precision

    @cached_attribute
    def _candidates(self) -> dict[str, Candidate | None]:
        """Of convolutions, by what they write."""
        return {step.output: option.candidate for step, option in self._choice.options.items()}

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
                    _forget_oldest(memo, LIKE)
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
            problem = self._problem(step, x_shape, known.plan.problem)
            shapes[step.output] = problem.result_shape
            if isinstance(step, PooledConvolution):
                pooling = step.pooling.problem(problem.y_shape)
                shapes[step.output] = pooling.y_shape
            yield
            plan = self._convolution(step, problem, known.plan)
            if isinstance(step, PooledConvolution) and plan is not known.plan:
                plan = self._pooled(plan, pooling)
        elif type(step) is JoinedConvolutions:
            self._add_joined_shapes(step, x_shape, known.plan)
            yield
            plan = self._joined(step, x_shape, known.plan)
        elif type(step) is ScaledConvolution:
            problem = self._problem(step.convolution, x_shape, known.plan.plan.problem)
            shapes[step.convolution.inputs[0]], shapes[step.output] = x_shape, problem.y_shape
            yield
            inner = self._convolution(step.convolution, problem, known.plan.plan)
            if not takes_scale(inner) or shapes[step.inputs[1]] != (*x_shape[:2], 1, 1):
                raise Unsupported("its kernels cannot scale what it reads")
            plan = known.plan if inner is known.plan.plan else ScaledPlan(inner)
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
        if (plan := step_plan_like(known, step, self._shapes, layout, dtype)) is not None:
            return plan
        if not isinstance(step, Pooling):
            return plan_of(step, self._shapes, layout, dtype, self._limits)
        key = step.problem(self._shapes[step.inputs[0]], dtype), layout
        if key not in self._plans:
            self._plans[key] = self._made_once(key, partial(plan_of, step, self._shapes, layout, dtype))
        return self._plans[key]

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

    def _candidate(self, step: Step) -> Candidate:
        """What was chosen for a convolution: its output may have another name in another layout."""
        name = step.unwritten if isinstance(step, PooledConvolution) else step.output
        found = self._candidates[name if name in self._candidates else name.rpartition(":")[0]]
        assert found is not None
        return found

    def _convolution(self, step: CONVOLUTIONS, problem: ConvProblem, known: Any) -> Any:
        """The plan of a convolution, like the one for other sizes."""
        if problem is known.problem:
            return known
        key = known, problem.x_shape
        if key not in self._plans:
            candidate = self._candidate(step)
            if known.algorithm != candidate.id:
                raise Unsupported(f"{known.algorithm} is not what was chosen, {candidate.id}")
            limits = self._limits_in(candidate.precision)
            like = partial(self._like_nearest, candidate.algorithm, problem, limits, known)
            same = problem == known.problem
            wanted = known, problem, self._once
            self._plans[key] = known if same else self._made_once(wanted, like)
        return self._plans[key]

    def _limits_in(self, precision: str) -> Constraints:
        """Of a convolution in a precision; found once."""
        if precision not in self._constraints:
            self._constraints[precision] = limits_of(self._limits, precision)
        return self._constraints[precision]

    def _like_nearest(
        self, algorithm: Algorithm, problem: ConvProblem, limits: Constraints, known: Any
    ) -> Any:
        """The plan of a layer like the known one of the most similar work, which may be of other shapes.

        What is cut anew for much more work than all of these have is one of them from then on. What shall run
        more than once is planned anew where it is faster on filters that lie otherwise.
        """
        others: list[Any] = self._known.made_like.setdefault((known,), [known])
        work = problem.flops
        growth = [max(work, p.problem.flops) / max(1, min(work, p.problem.flops)) for p in others]
        least = min(growth)
        plan = choose.plan_like(algorithm, problem, limits, others[growth.index(least)])
        if not self._once and getattr(plan, "borrows", False):
            return algorithm.serve(problem, plan.choice)
        if least > ALIKE and len(others) < OTHERS:
            others.append(plan)
        return plan

    def _made_once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What was made for other shapes of the inputs, between which layers with few pixels are the same."""
        made = self._known.made_like
        if key not in made:
            _forget_oldest(made, MADE)
            made[key] = make()
        return made.get(key) or make()  # another thread may have let go of it

    def _pooled(self, plan: Any, pooling: PoolProblem) -> BoxPlan:
        """A plan of a convolution as one that pools what it writes."""
        key = plan, pooling
        if key not in self._plans:
            self._plans[key] = plan.pooled(pooling) if isinstance(plan, BoxPlan) else None
        if self._plans[key] is None:
            raise Unsupported("its kernels cannot pool what they write")
        found: BoxPlan = self._plans[key]
        return found

    def _problem(self, step: CONVOLUTIONS, x_shape: Shape, before: ConvProblem) -> ConvProblem:
        """That of a convolution on maps of other sizes than before, in the same layouts.

        Raises:
            Unsupported: its algorithm is not to be trusted with it.
        """
        if before.x_shape == x_shape and before.direction == "forward":
            return before
        key = before, x_shape
        if key not in self._plans:
            self._plans[key] = self._on_map(step, x_shape, before)
        found: ConvProblem = self._plans[key]
        return found

    def _on_map(self, step: CONVOLUTIONS, x_shape: Shape, before: ConvProblem) -> ConvProblem:
        problem: ConvProblem | None = None
        if _is_layer(step, before):
            problem = on_map(before, x_shape)
        if problem is None or not reaches_all(problem):
            problem = laid_as(step.problem(x_shape), before)
        assert problem is not None
        growth = problem.flops / max(1, before.flops)
        if not 1 / self._growth <= growth <= self._growth or self._measured.lookup(problem):
            raise Unsupported("other algorithms may be faster")
        return problem

    def _add_joined_shapes(self, step: JoinedConvolutions, x_shape: Shape, known: SeparablePlan) -> None:
        """Add the shapes of what the convolutions of a joined step write."""
        for part, before in zip(step.parts, known.block.problems, strict=True):
            x_shape = self._shapes[part.output] = self._y_shape(part, x_shape, before)
        self._shapes[step.output] = x_shape
        if step.mean:
            self._shapes[step.mean] = (*x_shape[:2], 1, 1)

    def _y_shape(self, step: Convolution, x_shape: Shape, before: ConvProblem) -> Shape:
        """Of what a convolution writes, whose problem is made only where it has to be looked at."""
        if before.x_shape == x_shape:
            return before.y_shape
        reaches = before.groups > 1 or before.is_pointwise
        if self._trusts and reaches and _is_layer(step, before) and (found := y_shape_on(before, x_shape)):
            return found
        problem = self._problem(step, x_shape, before)
        if problem.w_shape != before.w_shape:
            raise Unsupported("it reads other taps")
        return problem.y_shape

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
            self._plans[key] = self._made_once(key, partial(known.on_map, x_shape))
        plan: SeparablePlan = self._plans[key]
        limit = self._limits.workspace_limit
        if limit is not None and plan.scratch_bytes > limit:
            raise Unsupported(f"joined, it needs {plan.scratch_bytes} bytes of workspace")
        return plan


def _is_layer(step: CONVOLUTIONS, problem: ConvProblem) -> bool:
    """Whether a problem is that of a step but for the sizes of its maps, which have zeros around them."""
    alike = isinstance(step, Convolution) and problem.w_shape == step.w.shape
    return alike and problem.is_zero_padded and not isinstance(step.padding, str)


def _forget_oldest(memo: dict[Any, Any], most: int) -> None:
    """Make room for one more of so many."""
    while len(memo) >= most:
        with suppress(RuntimeError, KeyError):  # another thread changes it just now
            del memo[next(iter(memo))]
