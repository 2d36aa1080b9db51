"""effort="adapt": plans that find the fastest candidate by their first calls, by the clock of the tests."""

import gc
import os
import re
import threading
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

import numpy as np
import pytest

import convalgos as ca
from convalgos.core import plan_cache
from convalgos.core.plan import numpy_dtype
from convalgos.core.prepared_filter import PreparedFilter
from convalgos.cpu.reference import Reference, ReferencePlan
from convalgos.select import devices
from convalgos.select.measure import adapting_plan
from convalgos.select.measure.elimination import CALLS, MOST_CALLS, MOST_TIED, Elimination
from convalgos.select.measure.race import open_questions
from convalgos.select.ranking import MODEL_ERROR, NEAR_ERROR
from convalgos.tools.bench import tune

PROBLEM = ca.ConvProblem.parse("n1 c3 h6 w6 k4 r3 s3 p1")
A, B, C = "cpu.paced.a", "cpu.paced.b", "cpu.paced.c"


# --- elimination -----------------------------------------------------------------------------


def run(state, seconds, disturbed=lambda name, call: False, most=100):
    """Give calls the times that `seconds(name, number of its call)` tells; returns whose turns came."""
    turns = []
    while not state.settled and len(turns) < most:
        name = state.turn
        turns.append(name)
        call = turns.count(name)
        state.add(name, seconds(name, call), disturbed(name, call))
    return turns


def test_clear_winners_are_found_in_few_calls():
    times = {"a": 1.3, "b": 1.0, "c": 4.0}
    state = Elimination(tuple(times))
    assert run(state, lambda name, call: times[name]) == ["a", "a", "b", "b", "c"]
    assert state.leader == "b" and state.dropped == {"c": "4.00x the time of b", "a": "1.30x the time of b"}


def test_close_ones_take_turns_both_ways_until_the_calls_are_spent():
    times = {"a": 1.02, "b": 1.0, "c": 1.01}
    state = Elimination(tuple(times))
    turns = run(state, lambda name, call: times[name])
    assert turns == ["a", "a", "b", "b", "c", "c", "c", "c", "b", "b", "a", "a"]
    assert CALLS <= state.calls == len(turns) and state.leader == "b" and not state.dropped


def test_a_first_call_may_be_slow():
    state = Elimination(("a", "b"))
    run(state, lambda name, call: {"a": 1.2, "b": 2.9 if call == 1 else 1.0}[name])
    assert state.leader == "b"
    state = Elimination(("a", "b"))
    assert run(state, lambda name, call: {"a": 1.0, "b": 3.1 if call == 1 else 0.9}[name]) == ["a", "a", "b"]


def test_disturbed_calls_decide_nothing_and_are_made_again():
    state = Elimination(("a", "b"))
    seconds = {"a": 1.0, "b": 1.2}
    turns = run(state, lambda name, call: 9.0 if call == 1 else seconds[name], lambda name, call: call == 1)
    assert turns == ["a", "a", "b", "b", "a", "b"]
    assert state.leader == "a" and state.samples["b"].disturbed == [9.0]


def test_where_all_calls_are_disturbed_it_ends_by_them():
    state = Elimination(("a", "b", "c"))
    turns = run(state, lambda name, call: {"a": 3.0, "b": 2.0, "c": 2.5}[name], lambda name, call: True)
    assert len(turns) == MOST_CALLS and min(map(turns.count, "abc")) >= MOST_CALLS // 3 - 1
    assert state.settled and state.leader == "b"


def test_what_fails_is_dropped_but_not_the_last():
    state = Elimination(("a", "b", "c"))
    state.fail("a", "broken")
    assert state.turn == "b" and not state.settled
    state.fail("b", "broken, too")
    state.fail("c", "broken as well")
    assert state.settled and state.running == ("c",) and set(state.dropped) == {"a", "b"}
    assert Elimination(("a",)).settled


# --- plans -----------------------------------------------------------------------------------


class Clock:
    """In the place of `time`: it goes on only while a paced plan runs."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


clock = Clock()
ran = []  # ids, one for each run


@dataclass(frozen=True)
class Paced(Reference):
    """The reference, which says that a run takes some seconds, and takes others."""

    family: ClassVar[str] = "cpu.paced"
    name: str = ""
    predicted: float = 1.0
    seconds: float = 1.0
    prepares: float = 0.0
    workspace: int = 0
    spins: bool = False
    broken: type[Exception] | None = None

    @property
    def variant(self):
        return self.name

    def cost(self, problem, machine):
        return self.predicted

    def workspace_bytes(self, problem):
        return self.workspace

    def plan(self, problem):
        return PacedPlan(problem, self)


class PacedPlan(ReferencePlan):
    def __init__(self, problem, algorithm):
        super().__init__(problem, algorithm)
        self.paced, self.workspace_bytes = algorithm, algorithm.workspace

    def prepare_filter(self, w):
        clock.now += self.paced.prepares
        return super().prepare_filter(w)

    def run(self, x, w, bias, activation, y, workspace):
        ran.append(self.algorithm)
        if self.paced.broken:
            y.fill(np.nan)
            raise self.paced.broken("no luck")
        super().run(x, w, bias, activation, y, workspace)
        clock.now += self.paced.seconds


@pytest.fixture
def paced(wisdom, monkeypatch):
    """Registers candidates by their names and settings; plans choose among them alone."""
    monkeypatch.setattr(adapting_plan, "time", clock)
    ran.clear()
    registered = []

    def plan(problem=PROBLEM, more=None, **settings):
        if settings:
            ca.register(*(Paced(name=name, **how) for name, how in settings.items()))
            registered.extend(f"cpu.paced.{name}" for name in settings)
        return ca.plan(problem, effort="adapt", allow="cpu.paced", **(more or {}))

    yield plan
    for name in dict.fromkeys(registered):
        ca.unregister(name)


def operands(problem=PROBLEM):
    """(first, second, the answer), of small integers: every algorithm gives the same bits."""
    rng = np.random.default_rng(0)
    x, w = (
        rng.integers(-4, 5, shape).astype(numpy_dtype(problem.dtype)) for shape in problem.array_shapes[:2]
    )
    return x, w, ca.plan(problem, algorithm="cpu.reference")(x, w)


def forget():
    """What was measured."""
    devices.store().update(lambda entries: entries.clear())


def settle(plan, x, w, y):
    """Call until it has settled; returns how often."""
    for calls in count():
        if "adapting" not in repr(plan):
            return calls
        assert np.array_equal(plan(x, w), y)


def test_it_settles_on_the_fastest_and_remembers(paced):
    x, w, y = operands()
    plan = paced(a={"seconds": 1.3}, b={"predicted": 1.2}, c={"predicted": MODEL_ERROR + 0.1, "seconds": 0.1})
    assert repr(plan).endswith("adapting, 0 of about 10 calls, 2 candidates left>")
    first = plan.prepare(w)
    assert settle(plan, x, first, y) == 4
    assert plan.algorithm == B and "adapting" not in repr(plan)
    assert ran[:4] == [A, A, B, B]
    told = plan.explain()
    assert told.startswith("settled on cpu.paced.b after 4 calls; microseconds")
    assert re.search(r"\n->cpu.paced.b +1000000.0 1000000.0\n", told)
    assert "1300000.0 1300000.0; dropped: 1.30x the time of cpu.paced.b" in told
    ran.clear()
    later = plan.prepare(w)  # by the settled plan itself
    assert np.array_equal(plan(x, first), y) and np.array_equal(plan(x, later), y)
    assert np.array_equal(plan(x, w), y) and ran == [B] * 3
    known = devices.store().lookup(PROBLEM)
    assert known.keys() == {A, B} and all(m.adapted for m in known.values())
    assert (known[A].median_s, known[B].median_s) == (1.3, 1.0)
    ca.forget_plans()
    assert paced().algorithm == B and "settled" not in paced().explain()  # a plain plan, by the wisdom
    assert ca.plan(PROBLEM, allow="cpu.paced").algorithm == B


def test_other_evidence_is_better(paced):
    x, w, y = operands()
    settle(paced(a={"seconds": 1.3}, b={"predicted": 1.2}), x, w, y)
    ranking = ca.explain(PROBLEM, allow="cpu.paced")
    assert {c.id for c in open_questions(ranking.candidates)} == {A, B}  # effort="measure" times them again
    assert not tune.is_known(PROBLEM, "measure")
    store = devices.store()
    adapted = store.lookup(PROBLEM)
    found = {A: ca.select.measured.Measured((0.5,), when="2020-01-01T00:00:00+00:00")}
    store.record(PROBLEM, found)
    store.record(PROBLEM, adapted)  # which is newer
    assert store.lookup(PROBLEM)[A].median_s == 0.5 and store.lookup(PROBLEM)[B].adapted
    assert ca.wisdom.show(PROBLEM).count("adapted") == 1
    assert tune.is_known(PROBLEM, "measure")


@pytest.mark.parametrize("direction", ["forward", "backward_data", "backward_weights"])
@pytest.mark.parametrize("more", ["channels_first float32", "channels_last bfloat16"])
def test_every_call_is_right(paced, direction, more):
    layout, dtype = more.split()
    problem = PROBLEM.replace(direction=direction, layout=layout, dtype=dtype, mode="convolution")
    x, w, y = operands(problem)
    settings = {"a": {"seconds": 1.1}, "b": {}, "c": {"seconds": 1.05}}
    plan = paced(problem, **settings)
    changed = w.copy()
    prepared = plan.prepare(changed)
    if direction != "backward_weights":
        changed.fill(np.nan)  # a prepared filter is a copy
    seen = settle(plan, x, prepared, y)
    assert seen > 4 and np.array_equal(plan(x, prepared), y)
    ca.forget_plans()
    forget()
    again = paced(problem)
    buffer = np.empty_like(y)
    for _ in range(seen + 1):  # with the filter as it is, into the same array
        assert again(x, w, out=buffer) is buffer and np.array_equal(buffer, y)


def test_what_preparing_costs_counts_as_often_as_it_is_paid(paced):
    x, w, y = operands()
    often = paced(a={"seconds": 1.0, "prepares": 1.0}, b={"seconds": 1.2})
    settle(often, x, w, y)
    assert often.algorithm == A
    forget()
    once = paced(more={"weights_constant": False})
    settle(once, x, w, y)
    assert once.algorithm == B
    assert devices.store().lookup(PROBLEM)[A].prepare_s == 1.0
    assert devices.store().lookup(PROBLEM)[A].median_s == 1.0


def test_one_that_raises_is_dropped_and_the_call_is_served(paced):
    x, w, y = operands()
    plan = paced(a={"broken": RuntimeError}, b={"seconds": 1.0}, c={"broken": MemoryError, "predicted": 1.1})
    assert np.array_equal(plan(x, w), y) and ran == [A, B]
    settle(plan, x, w, y)
    assert plan.algorithm == B and "none; dropped: RuntimeError: no luck" in plan.explain()
    known = devices.store().lookup(PROBLEM)
    assert known[A].failure == "RuntimeError: no luck" and known[A].adapted and C not in known


def test_where_all_raise_the_first_error_is_told_and_nothing_is_dropped(paced):
    x, w, _ = operands()
    plan = paced(a={"broken": RuntimeError}, b={"broken": KeyError})
    for _ in range(2):
        ran.clear()
        with pytest.raises(RuntimeError, match="no luck"):
            plan(x, w)
        assert ran == [A, B]
    assert "adapting, 0 of" in repr(plan)


def test_arguments_are_refused_before_anything_runs(paced):
    x, w, _ = operands()
    plan = paced(a={}, b={})
    with pytest.raises(ValueError, match="x has shape"):
        plan(x[..., 1:], w)
    with pytest.raises(TypeError, match="w has dtype"):
        plan.prepare(w.astype("f8"))
    other = paced(more={"expected_calls": 100})
    for call in (other, ca.conv):
        with pytest.raises(ValueError, match=r"plan \d+ of effort='adapt'"):
            call(x, plan.prepare(w))
    assert not ran


def test_plans_of_a_problem_join(paced):
    x, w, y = operands()
    first = paced(a={"seconds": 1.3}, b={})
    second = paced()
    prepared = first.prepare(w)
    assert all(np.array_equal(plan(x, prepared), y) for plan in (first, second, first, second))
    assert ran == [A, A, B, B] and first.algorithm == second.algorithm == B
    assert paced().algorithm == B
    assert np.array_equal(second(x, prepared), y)
    # with other limits, and after forgetting, it is another one
    assert "adapting, 0 of" not in repr(paced(more={"strict_nan": True}))  # known by now
    forget()
    before = plan_cache.forgotten
    ca.forget_plans()
    assert plan_cache.forgotten > before and "adapting, 0 of" in repr(paced())
    assert np.array_equal(first(x, prepared), y)


def test_calls_that_overlap_count_as_disturbed(paced):
    x, w, y = operands()
    plan = paced(a={"seconds": 1.3}, b={})
    prepared = plan.prepare(w)
    wrong, start = [], threading.Barrier(4)

    def call():
        start.wait()
        for _ in range(3 * MOST_CALLS):
            if not np.array_equal(plan(x, prepared), y):
                wrong.append(1)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and "adapting" not in repr(plan)
    assert plan.explain().count("settled on") == 1


def test_an_overlap_is_told(paced):
    shared = paced(a={}, b={})._shared
    one = shared.begin({})
    two = shared.begin({})
    shared.end(two, (1.0, False))
    shared.end(one, (1.0, False))
    shared.end(shared.begin({}), (2.0, False))
    samples = shared._elimination.samples["cpu.paced.a"]
    other = shared._elimination.samples["cpu.paced.b"]
    assert samples.disturbed + other.disturbed == [1.0, 1.0] and samples.quiet + other.quiet == [2.0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks on this system")
def test_a_child_adapts_by_itself(paced):
    x, w, y = operands()
    plan = paced(a={"seconds": 1.3}, b={})
    shared = plan._shared
    shared.begin({})  # a call of another thread, which is not there in the child
    pid = os.fork()
    if not pid:
        prepared = plan.prepare(w)
        fine = all(np.array_equal(plan(x, prepared), y) for _ in range(4)) and plan.algorithm == B
        os._exit(0 if fine and "after 4 calls" in plan.explain() else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert "adapting, 0 of" in repr(plan)


def test_limits_hold_for_every_candidate(paced):
    limits = {"workspace_limit": 100, "deny": "cpu.paced.c"}
    plan = paced(more=limits, a={"workspace": 200}, b={"workspace": 90}, c={})
    assert plan.algorithm == B and "adapting" not in repr(plan)  # the only one
    more = {f"x{i}": {"predicted": 1 + i / 100} for i in range(9)}
    assert f"{MOST_TIED} candidates left" in repr(paced(**more))
    assert "2 candidates left" in repr(paced(more={"expected_calls": 7}))
    assert "adapting" not in repr(paced(more={"expected_calls": 5}))
    assert "adapting" not in repr(paced(PROBLEM.replace(x_shape=(0, 3, 6, 6))))
    with pytest.raises(ca.Unsupported, match="no algorithm can serve"):
        paced(more={"deny": "cpu.paced"})


def test_those_whose_threads_spin_come_last_if_at_all(paced):
    x, w, _ = operands()
    plan = paced(
        a={"spins": True, "predicted": 1.1}, b={"spins": True, "predicted": 1.3}, c={"predicted": 1.2}
    )
    for _ in range(3):
        plan(x, w)
    assert ran == [C, C, A] and B not in plan.explain().partition("GEMM")[0]


def test_deterministic_excludes_it():
    with pytest.raises(ValueError, match=r"deterministic=True does not go with effort='adapt'"):
        ca.plan(PROBLEM, effort="adapt", deterministic=True)
    with pytest.raises(ValueError, match="effort='adapt' must be one of 'measure', 'exhaustive'"):
        ca.find(PROBLEM, effort="adapt")


def test_a_plan_lets_go_of_the_others(paced):
    x, w, y = operands()
    plan = paced(a={"seconds": 1.3}, b={})
    prepared = plan.prepare(w)
    settle(plan, x, prepared, y)
    plan(x, prepared)
    gc.collect()
    plans = {p.algorithm for p in gc.get_objects() if type(p) is PacedPlan}
    filters = [f for f in gc.get_objects() if type(f) is PreparedFilter and f.key.form == PROBLEM]
    assert plans == {B} and len(filters) == 2  # the caller's, and what it became
    assert plan_cache.weight(plan) >= 0 and plan.to_dict()["algorithm"] == B


# --- what rankings say of ties ---------------------------------------------------------------


def test_rankings_mark_what_the_models_cannot_tell(paced):
    paced(a={}, b={"predicted": 0.99 * MODEL_ERROR}, c={"predicted": 1.01 * MODEL_ERROR})
    ranking = ca.explain(PROBLEM, allow="cpu.paced")
    assert [c.id for c in ranking.tied] == ranking.to_dict()["tied"] == [A, B]
    text = str(ranking)
    assert "\n->cpu.paced.a" in text and "\n~ cpu.paced.b" in text and "\n  cpu.paced.c" in text
    assert f"  tied: the first 2, within the models' error ({MODEL_ERROR:g}x)" in text
    near = PROBLEM.replace(x_shape=(2, 3, 6, 6))
    devices.store().record(near, {i: ca.select.measured.Measured((1.0,)) for i in (A, B, C)})
    scaled = ca.explain(PROBLEM, allow="cpu.paced")
    assert scaled.basis == "near" and len(scaled.tied) == 3 and f"({NEAR_ERROR:g}x)" in str(scaled)
    devices.store().record(PROBLEM, {A: ca.select.measured.Measured((1.0,))})
    known = ca.explain(PROBLEM, allow="cpu.paced")
    assert known.tied == known.candidates[:1] and "tied" not in str(known)
