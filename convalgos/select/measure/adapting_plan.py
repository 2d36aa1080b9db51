"""effort="adapt": a plan that spreads its first calls over the tied candidates, and settles on the fastest.

1. `adaptive_plan` takes the candidates that the models cannot tell apart, and plans them all.
2. Each call of an `AdaptingPlan` runs one of them, whose turn it is by `Elimination`, and is timed.
3. Once that has settled, calls go to the plan of the fastest, and the others are let go. The samples are
   remembered as adapted ones, which those of `find` and effort="measure" outrank.

All plans of one problem under the same limits share an `Adaptation`. Calls that overlap slow one another, so
their times count like those that other programs disturbed.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Hashable
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from convalgos.core import plan_cache
from convalgos.core.element_types import INTEGERS
from convalgos.core.epilogue import ActivationLike
from convalgos.core.errors import Unsupported
from convalgos.core.interference import Meter
from convalgos.core.plan import Choice, Plan
from convalgos.core.prepared_filter import PreparedFilter
from convalgos.core.problem import ConvProblem
from convalgos.core.quantization import Quantization
from convalgos.select import choose, devices
from convalgos.select.constraints import Constraints
from convalgos.select.measure import adaptation
from convalgos.select.measure.adaptation import Adaptation, Tried
from convalgos.select.measure.elimination import MOST_TIED
from convalgos.select.measure.race import starters
from convalgos.select.ranking import Ranking

CALLS_EACH = 3  # of the expected calls, for each candidate that is tried: fewer calls do not pay for more

_running: weakref.WeakValueDictionary[Hashable, Adaptation] = weakref.WeakValueDictionary()


def adaptive_plan(
    problem: ConvProblem, constraints: Constraints, selector: str | None = None, device: str = "cpu"
) -> Plan:
    """A plan that tries the tied candidates in its calls; a plain one where there is nothing to try.

    Raises:
        Unsupported: nothing can serve the problem within the limits; lists each reason.
    """
    key = problem, constraints, selector, devices.choice_key(device), plan_cache.forgotten
    with adaptation.lock:
        shared = _running.get(key)
    if shared is not None:
        return AdaptingPlan(shared)
    ranking = choose.rank(problem, device, constraints, measured_only=selector is not None)
    if ranking.basis == "measured":
        return choose.explained(ranking, device)
    if selector is not None:
        ranking = choose.rank(problem, device, constraints, selector=selector)
    tried = _planned(ranking, constraints, device)
    if len(tried) < 2:
        return choose.explained(ranking, device)
    shared = Adaptation(ranking, tried, constraints.prepare_share(), devices.store(device))
    with adaptation.lock:
        shared = _running.setdefault(key, shared)
    return AdaptingPlan(shared)


def _planned(ranking: Ranking, constraints: Constraints, device: str) -> dict[str, Tried]:
    """The plans of the candidates that are worth some of the calls; none for fewer than two."""
    calls = constraints.expected_calls
    most = MOST_TIED if calls is None else min(MOST_TIED, calls // CALLS_EACH)
    tied = starters(ranking.tied, ranking.model_error)[:most]
    found = {}
    for candidate in tied if len(tied) > 1 else ():
        with suppress(Unsupported):  # known only now
            made = choose.planned(candidate.algorithm, ranking.problem, device)
            found[candidate.id] = Tried(candidate, made)
    return found


class FilterForms:
    """A filter as the caller gave it, and in the forms of the candidates that ran on it."""

    def __init__(self, w: Any, quantization: Quantization | None):
        self._w, self._quantization = w, quantization
        self._forms: dict[str, PreparedFilter] = {}  # by the id of the algorithm
        self.settled: PreparedFilter | None = None

    def of(self, tried: Tried) -> PreparedFilter | None:
        """The form of a candidate, made when it is asked for; None once only the settled one is kept."""
        w, name = self._w, tried.plan.algorithm
        if name not in self._forms and w is not None:
            start = time.perf_counter()
            self._forms[name] = tried.plan.prepare(w, self._quantization)
            took = time.perf_counter() - start
            tried.prepare_s = took if tried.prepare_s is None else min(took, tried.prepare_s)
        return self._forms.get(name)

    def settle(self, plan: Plan) -> PreparedFilter:
        """The form of the plan that was settled on; the others are let go."""
        w, settled = self._w, self._forms.get(plan.algorithm)
        if settled is None and w is not None:
            settled = plan.prepare(w, self._quantization)
        if self.settled is None:  # else another thread was here meanwhile
            assert settled is not None
            self._forms, self._w, self.settled = {plan.algorithm: settled}, None, settled
        return self.settled


class AdaptingPlan(Plan):
    """Runs a candidate in each call until it has settled, and from then on calls the plan of the fastest."""

    def __init__(self, shared: Adaptation):
        first = shared.first
        super().__init__(shared.problem, first.candidate.algorithm, shared.workspace_bytes)
        self.choice = Choice(shared.told)
        self._key = shared.key
        self._flips = False  # filters: those who run on them do that themselves
        self._shared = shared
        self._inner: Plan | None = None
        shared.join(self)

    def settle(self, plan: Plan) -> None:
        """Call this plan from now on."""
        self.algorithm, self.workspace_bytes, self._inner = plan.algorithm, plan.workspace_bytes, plan
        self._free.clear()

    def prepare(self, w: ArrayLike, quantization: Quantization | None = None) -> PreparedFilter:
        if self._inner is None:
            return super().prepare(w, quantization)
        return self._inner.prepare(w, quantization)

    def __repr__(self) -> str:
        if self._inner is None:
            return f"<Plan of {self.problem}: {self._shared.progress()}>"
        return super().__repr__()

    def _call(self, x: Any, w: Any, bias: Any, out: Any, activation: ActivationLike, residual: Any) -> Any:
        inner = self._inner
        if inner is None:
            return super()._call(x, w, bias, out, activation, residual)
        if type(w) is PreparedFilter and w.key is self._key:
            w = w.data.settled or w.data.settle(inner)
        return inner._call(x, w, bias, out, activation, residual)

    def prepare_filter(self, w: np.ndarray) -> FilterForms:
        return self._forms(w, None)

    def _in_own_form(self, w: np.ndarray, quantization: Quantization | None = None) -> PreparedFilter:
        if quantization is None or self.problem.dtype not in INTEGERS:
            return super()._in_own_form(w, quantization)
        quantization.checked(self.problem).output(self.problem, None)  # refuses what is wrong here and now
        return PreparedFilter(self._key, self._forms(w, quantization))

    def _forms(self, w: np.ndarray, quantization: Quantization | None) -> FilterForms:
        """Of a copy, since candidates prepare theirs later; of dy, which keeps its values, as it is."""
        kept = w if self.problem.direction == "backward_weights" else w.copy()
        return FilterForms(kept, quantization)

    def _output_step(self, bias: Any, activation: Any, residual: Any) -> Any:
        return self._shared.first.plan._output_step(bias, activation, residual)

    def new_workspace(self) -> Scratch:
        return Scratch()

    def run(
        self, x: np.ndarray, w: FilterForms, bias: np.ndarray | None, activation: str | None, y: np.ndarray,
        workspace: Scratch,
    ) -> None:  # fmt: skip
        """Run the candidate whose turn it is; where that fails, the others in the order of predictions."""
        shared, failed = self._shared, dict[str, Exception]()
        while (turn := shared.begin(failed)) is not None:
            plan, sample = turn.tried.plan, None
            try:
                form = w.of(turn.tried)
                if form is not None:
                    scratch = workspace.of(plan)
                    meter, start = Meter(), time.perf_counter()
                    plan.run(x, form.data, bias, activation, y, scratch)
                    sample = time.perf_counter() - start, meter.disturbed()
            except Exception as error:  # arguments were checked before: it is the candidate's
                failed[turn.tried.candidate.id] = error
            finally:
                shared.end(turn, sample)
            if sample is not None:
                if failed:
                    shared.fail(failed)
                if self._inner is not None:
                    workspace.clear()
                return
        raise next(iter(failed.values()))


class Scratch:
    """The scratch of the candidate that ran last."""

    def __init__(self) -> None:
        self._plan: Plan | None = None
        self._scratch: Any = None

    def of(self, plan: Plan) -> Any:
        if plan is not self._plan:
            self.clear()
            self._plan, self._scratch = plan, plan.new_workspace()
        return self._scratch

    def clear(self) -> None:
        self._plan = self._scratch = None
