"""Sub-problems that the planner plans: phases of strided gradients, each by an algorithm of its own."""

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from helpers import check

import convalgos as ca
from convalgos.core.backward.polyphase import phases
from convalgos.core.planner import ChildPick
from convalgos.cpu.polyphase import Polyphase
from convalgos.select import ChildPlanner, current_machine, devices, find_algorithm, registry
from convalgos.select import children as sub_problems
from convalgos.select.measured import Measured
from convalgos.testing import CHECKS

DIFFERING = "n2 c128 h28 w28 k256 r3 s3 p1 stride2 backward_data"  # a stage of ResNet-34
WINOGRAD, SUMS = "cpu.winograd", "cpu.direct"


@dataclass(frozen=True)
class InTurns:
    """A planner that gives sub-problems of different kernels to different algorithms, whatever these cost."""

    turns: tuple[str, ...] = ("cpu.direct", "cpu.im2col.own", "cpu.direct.pixels")
    deterministic = True
    spreads_nan = False
    equal_bits = True

    def best(self, problem):
        turn = sum(problem.kernel) + problem.kernel[-1] + sum(map(sum, problem.padding))
        turns = [find_algorithm(name) for name in self.turns]
        serving = [a for a in turns if a.why_not(a.computed(problem)) is None]
        return ChildPick(serving[turn % len(serving)], problem, 1e-5, 1e-6)

    def least(self, problem):
        return 1e-6

    def under(self, constraints, composite):
        return self

    def limited(self, workspace_bytes):
        return self


def problem_of(text=DIFFERING):
    return ca.ConvProblem.parse(text)


def children(plan_or_algorithm, problem):
    """Kernel of each sub-problem -> id of the algorithm that it goes to."""
    return {f.kernel: plan_or_algorithm.child(f).algorithm.id for f, _ in plan_or_algorithm.kinds(problem)}


def picked(problem, **limits):
    """The sub-problems of the candidate that a choice ranks, by their kernels."""
    ranking = ca.explain(problem, **limits)
    found = [c for c in ranking.candidates if c.id == "cpu.polyphase"]
    return children(found[0].algorithm, problem) if found else {}


def arrays(problem):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(problem.dtype) for shape in problem.array_shapes[:2]]


# --- answers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("promise", ["answers", "figures", "refusals", "others_refused"])
def test_phases_by_several_algorithms(promise):
    """On the table of awkward problems, integers exactly, with fresh memory full of NaN."""
    assert CHECKS[promise](Polyphase(planner=InTurns()))


def test_the_answer_of_the_pick():
    problem = problem_of()
    plan = ca.plan(problem, allow=["cpu.polyphase"])  # which another is faster than on some machines
    assert plan.algorithm == "cpu.polyphase"
    assert check(registry.find_algorithm("cpu.polyphase", problem), problem) <= 1
    by = set(picked(problem).values())
    assert len(by) > 1 and all(name in plan.explain() for name in by)


def test_sixteen_bits_and_callers_at_once():
    from concurrent.futures import ThreadPoolExecutor

    problem = problem_of("n2 c8 h14 w13 k8 r3 s3 p1 stride2 backward_data")
    algorithm = Polyphase(planner=InTurns())
    assert check(algorithm, problem.replace(dtype="float16", compute_dtype="float32")) <= 1
    plan, (dy, w) = algorithm.serve(problem), arrays(problem)
    filters = plan.prepare(w)
    first = plan(dy, filters)
    with ThreadPoolExecutor(3) as threads:
        assert all(np.array_equal(first, y) for y in threads.map(lambda _: plan(dy, filters), range(12)))


def test_a_filter_serves_plans_of_the_same_algorithms_only():
    problem = problem_of("n1 c4 h9 w9 k4 r3 s3 p1 stride2 backward_data")
    turns = InTurns()
    one, other = Polyphase(planner=turns), Polyphase(planner=InTurns(turns.turns[::-1]))
    dy, w = arrays(problem)
    filters = one.serve(problem).prepare(w)
    assert np.allclose(one.serve(problem)(dy, filters), other.serve(problem)(dy, w), atol=1e-5)
    with pytest.raises(ValueError, match=r"prepared for cpu.polyphase \(cpu\.\S+, .*not for"):
        other.serve(problem)(dy, filters)


# --- what each sub-problem goes to -----------------------------------------------------------


def test_each_phase_goes_to_what_is_the_fastest_on_it(wisdom):
    problem = problem_of()
    algorithm = find_algorithm("cpu.polyphase")
    assert len(algorithm.kinds(problem)) == 4
    for forward, _ in algorithm.kinds(problem):
        best = ca.explain(forward).candidates[0]
        child = algorithm.child(forward)
        assert child.algorithm.id == best.id
        assert child.run_s == pytest.approx(best.predicted_s)
    found = picked(problem)
    assert found[1, 1].startswith((SUMS, "cpu.strassen")) and found[2, 2].startswith(WINOGRAD)


def test_what_was_measured_of_a_phase_counts(wisdom):
    problem = problem_of()
    algorithm = find_algorithm("cpu.polyphase")
    square = next(p.forward for p in phases(problem) if p.forward.kernel == (2, 2))
    before, cost = picked(problem), algorithm.cost(problem, current_machine())
    assert before[2, 2] != "cpu.im2col.own"
    devices.store().record(square, {"cpu.im2col.own": Measured((1e-7,) * 5)})
    after = picked(problem)
    assert after == before | {(2, 2): "cpu.im2col.own"}
    assert algorithm.cost(problem, current_machine()) < cost
    assert algorithm.closely(problem, current_machine()) <= algorithm.cost(problem, current_machine())
    devices.store().record(square, {"cpu.im2col.own": Measured(failure="RuntimeError: no")})
    assert picked(problem)[2, 2] != "cpu.im2col.own"
    plan, (dy, w) = ca.plan(problem, algorithm="cpu.polyphase"), arrays(problem)
    assert np.allclose(plan(dy, w), ca.plan(problem, algorithm=SUMS)(dy, w), atol=2e-2)


def test_limits_hold_for_phases(wisdom):
    problem = problem_of()
    for limits in ({"deny": WINOGRAD}, {"strict_nan": True}, {"max_rel_error": 1e-5}):
        found = picked(problem, **limits)
        assert not any(name.startswith(WINOGRAD) for name in found.values()), limits
        assert (
            "cpu.winograd" not in ca.plan(problem, **limits).explain().partition("->")[2].partition("\n")[0]
        )
    only = picked(problem, allow=["cpu.polyphase", "cpu.direct", "cpu.im2col"])
    assert all(name.startswith(("cpu.direct", "cpu.im2col")) for name in only.values())
    assert picked(problem, allow="cpu.polyphase") == picked(problem)  # what names no other leaves them free
    assert not picked(problem, deny="cpu.polyphase")


def test_a_limit_of_workspace_is_shared_by_phases(wisdom):
    problem = problem_of()
    needed = find_algorithm("cpu.polyphase").workspace_bytes(problem)
    scratch = problem.x_bytes
    for limit in (needed, (needed + scratch) // 2, scratch):
        for candidate in ca.explain(problem, workspace_limit=limit).candidates:
            assert candidate.workspace_bytes <= limit
    plan, (dy, w) = ca.plan(problem, algorithm="cpu.polyphase", workspace_limit=needed), arrays(problem)
    assert plan.workspace_bytes <= needed and plan(dy, w).shape == problem.x_shape


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("n1 c8 h9 w9 k8 r3 s3 p1", "computes backward_data only, not forward"),
        ("n1 c8 h9 w9 k8 r3 s3 p1 backward_data", "here there is one phase"),
        ("n0 c8 h9 w9 k8 r3 s3 p1 stride2 backward_data", "here there is one phase"),
        ("n1 c8 h8 w8 k8 r2 s2 stride2 backward_data", "all phases of this problem are of one kind"),
    ],
)
def test_it_refuses_what_forms_of_others_compute(text, reason):
    assert reason in find_algorithm("cpu.polyphase").why_not(problem_of(text))
    assert "has no planner" in Polyphase().why_not(problem_of())


def test_it_refuses_what_one_algorithm_computes_best():
    alike = Polyphase(planner=InTurns(("cpu.direct",)))
    assert alike.why_not(problem_of()) == "cpu.direct is the fastest on all of its sub-problems"


# --- what a choice costs ---------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch, wisdom):
    """The sub-problems that are searched for, of an empty memory."""
    found = []
    for name in ("fastest", "rank"):
        whole = getattr(sub_problems, name)
        monkeypatch.setattr(
            sub_problems, name, lambda p, *rest, whole=whole: found.append(p) or whole(p, *rest)
        )
    other = {"cpu.direct": Measured((1e-6,))}  # the file of this test, and no older one, is read from now on
    devices.store().record(problem_of("n1 c1 w9 k1 s3"), other)
    ca.forget_plans()
    sub_problems._best.cache_clear()
    yield found
    sub_problems._best.cache_clear()


def test_sub_problems_are_searched_for_once_and_where_they_may_win(asked):
    problem = problem_of()
    for text, layout in product(("n1 c64 h56 w56 k64 r3 s3 p1", "n1 c3 h64 w64 k8 r3 s3 p1 stride2"), (0, 1)):
        forward = problem_of(text).replace(layout=("channels_first", "channels_last")[layout])
        ca.plan(forward)
        ca.plan(forward.replace(direction="backward_weights"))
    together = problem_of("n1 c16 h56 w56 k32 r5 s5 p2 stride2 backward_data")
    assert ca.plan(together).algorithm.startswith(WINOGRAD) and asked == []  # by its bound far from the best
    ca.plan(problem)
    searched = list(asked)
    assert len(searched) == len(set(searched)) == 4
    ca.explain(problem)
    ca.forget_plans()
    ca.plan(problem)
    assert asked == searched


def test_sub_problems_on_a_gpu():
    child = problem_of("n32 c128 h28 w28 k64 r3 s3 p1")
    with ca.select.working_on("sm_90"):
        found = ChildPlanner("gpu").best(child)
    first = ca.explain(child, device="sm_90").candidates[0]
    assert (found.algorithm.id, found.run_s) == (first.id, first.predicted_s)


def test_planners_that_are_equal_find_the_same(wisdom):
    one = ChildPlanner("cpu").under(ca.select.Constraints(deny=WINOGRAD), "cpu.polyphase")
    other = ChildPlanner("cpu").under(ca.select.Constraints(deny=WINOGRAD), "cpu.polyphase")
    assert one == other != ChildPlanner("cpu").under(None, "cpu.polyphase")
    assert one.deterministic and one.spreads_nan and not one.equal_bits
