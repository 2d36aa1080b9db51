"""Convolutions of a network on maps of other sizes than in a plan that is known.

Each keeps its algorithm, and is cut like the known one. Most are planned by sizes alone: their problems are
made when somebody asks for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from typing import Any

from convalgos.core.algorithm import Algorithm
from convalgos.core.arguments import Shape
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.choice import Choice
from convalgos.core.errors import Unsupported
from convalgos.core.pool_problem import PoolProblem
from convalgos.core.problem import ConvProblem
from convalgos.core.problem_views import laid_as, on_map, y_shape_on
from convalgos.cpu.gemm.scaled_plan import ScaledPlan
from convalgos.cpu.runtime.plan import KernelPlan
from convalgos.cpu.tiled.box_plan import BoxPlan
from convalgos.network.graph import Convolution, Step
from convalgos.network.layout_choice import LayoutChoice
from convalgos.network.planned import PlanLimits, Planned, PooledConvolution
from convalgos.network.reached_taps import reaches_all
from convalgos.network.step_options import CONVOLUTIONS, limits_of
from convalgos.select import choose, devices
from convalgos.select.constraints import Constraints
from convalgos.select.ranking import Candidate

MADE = 1 << 13  # plans of layers that are kept for further shapes
ALIKE, OTHERS = 2.0, 8  # times the work of a plan from which on another one is kept, and how many


class LayersOnSizes:
    """Plans of convolutions like those of a plan that is known.

    Args:
        known: by the choice, within the same limits.
        growth: of the work of a layer, up to which it keeps the algorithm.
    """

    def __init__(self, known: Planned, choice: LayoutChoice, limits: PlanLimits, growth: float):
        self._known, self._limits, self._growth = known, limits, growth
        self._choice = choice
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

    def _candidate(self, step: Step) -> Candidate:
        """What was chosen for a convolution: its output may have another name in another layout."""
        name = step.unwritten if isinstance(step, PooledConvolution) else step.output
        found = self._candidates[name if name in self._candidates else name.rpartition(":")[0]]
        assert found is not None
        return found

    def _sized(
        self, step: CONVOLUTIONS, x_shape: Shape, before: ConvProblem
    ) -> tuple[Shape, ConvProblem | None]:
        """The shape of what a convolution writes, and its problem where that has to be looked at."""
        if before.x_shape == x_shape and before.direction == "forward":
            return before.y_shape, before
        if self._trusts and self._is_sized(step, before) and (found := y_shape_on(before, x_shape)):
            return found, None
        problem = self._problem(step, x_shape, before)
        return problem.result_shape, problem

    @staticmethod
    def _is_sized(step: CONVOLUTIONS, problem: ConvProblem) -> bool:
        """Whether sizes alone tell the problem of a step: on small maps it leaves out no taps."""
        return (problem.groups > 1 or problem.is_pointwise) and _is_layer(step, problem)

    def _convolution(
        self, step: CONVOLUTIONS, x_shape: Shape, sized: tuple[Shape, ConvProblem | None], known: Any
    ) -> Any:
        """The plan of a convolution, like the one for other sizes.

        Args:
            sized: `_sized` of it.
        """
        y_shape, problem = sized
        if problem is None:
            if (found := self._on_sizes(step, x_shape, y_shape, known)) is not None:
                return found
            problem = self._problem(step, x_shape, known.problem)
        if problem is known.problem:
            return known
        key = known, problem
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

    def _on_sizes(self, step: CONVOLUTIONS, x_shape: Shape, y_shape: Shape, known: Any) -> Any:
        """That plan where sizes alone lead to it, and nobody has to look at its problem; else None."""
        if not isinstance(known, KernelPlan):
            return None
        key, made = (known, x_shape), self._known.made_like
        found = made.get(key)
        if found is None and (found := known.on_sizes(x_shape, y_shape)) is not None:
            limits = self._limits_in(self._candidate(step).precision)
            found = found.chosen(Choice(partial(_ranking, known.problem, x_shape, limits)))
            forget_oldest(made, MADE)
            made[key] = found
        return found

    def _scaled(
        self, step: Convolution, x_shape: Shape, sized: tuple[Shape, ConvProblem | None], known: ScaledPlan
    ) -> ScaledPlan:
        """That of a convolution that scales what it reads."""
        plan = self._convolution(step, x_shape, sized, known.plan)
        if plan is known.plan:
            return known
        if type(plan) is not type(known.plan) or not plan._cut.problem.is_plain_product:
            raise Unsupported("its kernels cannot scale what it reads")
        return known.of_sizes(plan)

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
            forget_oldest(made, MADE)
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
        # steps whose filters reach other taps of larger maps may have been the same on small ones
        key = before, x_shape, None if _is_layer(step, before) else step
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


def _ranking(problem: ConvProblem, x_shape: Shape, limits: Constraints) -> str:
    """What explains the algorithm of a layer on maps of other sizes."""
    return str(choose.rank(on_map(problem, x_shape), "cpu", limits))


def _is_layer(step: CONVOLUTIONS, problem: ConvProblem) -> bool:
    """Whether a problem is that of a step but for the sizes of its maps, which have zeros around them."""
    alike = isinstance(step, Convolution) and problem.w_shape == step.w.shape
    return alike and problem.is_zero_padded and not isinstance(step.padding, str)


def forget_oldest(memo: dict[Any, Any], most: int) -> None:
    """Make room for one more of so many."""
    while len(memo) >= most:
        with suppress(RuntimeError, KeyError):  # another thread changes it just now
            del memo[next(iter(memo))]
