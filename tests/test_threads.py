"""Sixteen threads on one plan and one plan cache give the answers that one thread gives."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
from helpers import cpu_algorithms, may_serve

import convalgos as ca
from convalgos.cpu.runtime import jit, threads
from convalgos.select.measure.accuracy import random_arrays

THREADS, CALLS = 16, 6
PROBLEMS = [
    ca.ConvProblem.parse(text)
    for text in (
        "n1 c3 h12 w13 k5 r3 s3 p1",
        "n1 c4 h12 w13 k4 r3 s3 p1 groups4",
        "n2 c4 w50 k6 s3 p1",
        "n1 c4 h9 w9 k4 r5 s5 p2",
        "n1 c4 h9 w9 k4 r4 s4 p2",
        "n1 c4 h9 w9 k4 r2 s2",
        "n1 c2 d4 h6 w6 k3 t3 r3 s3 p1",
    )
]


def hammer(call):
    """call(0), call(1), ... from all threads at once, all starting together; raises what they raise."""
    together = Barrier(THREADS)

    def work(thread):
        together.wait()
        return [call(thread * CALLS + i) for i in range(CALLS)]

    with ThreadPoolExecutor(THREADS) as pool:
        return [answer for answers in pool.map(work, range(THREADS)) for answer in answers]


def arguments(problem, seeds):
    return [random_arrays(problem, seed)[0] for seed in range(seeds)]


@pytest.mark.parametrize(
    "algorithm", [a for a in cpu_algorithms() if may_serve(a, *PROBLEMS)], ids=lambda a: a.id
)
def test_one_plan(algorithm):
    served = [problem for problem in PROBLEMS if algorithm.why_not(problem) is None]
    if not served:
        pytest.skip(algorithm.why_not(PROBLEMS[0]))
    for problem in served[:2]:
        plan = algorithm.serve(problem)
        w = plan.prepare(random_arrays(problem)[1])
        xs = arguments(problem, 8)
        alone = [plan(x, w) for x in xs]
        answers = hammer(lambda i, plan=plan, xs=xs, w=w: plan(xs[i % 8], w))
        wrong = sum(not np.array_equal(y, alone[i % 8]) for i, y in enumerate(answers))
        assert not wrong, f"{wrong} of {len(answers)} answers differ on {problem}"


@pytest.mark.parametrize(
    ("algorithm", "text"),
    [
        ("cpu.direct", "n4 c6 h12 w13 k5 r3 s3 p1 stride2 backward_data"),  # in slices
        ("cpu.direct", "n1 c3 h12 w13 k5 r5 s5 p2 stride2 backward_data"),  # phases together
        ("cpu.depthwise.channels", "n1 c4 h12 w13 k4 r3 s3 p1 stride2 groups4 backward_data"),
        ("cpu.im2col.own", "n2 c4 h12 w13 k6 r3 s3 p1 backward_weights"),
        ("cpu.direct.weights", "n1 c3 h120 w120 k4 r3 s3 p1 backward_weights"),  # the pixels in parts
        ("cpu.depthwise.weights", "n2 c4 h12 w13 k4 r3 s3 p1 groups4 backward_weights"),
        ("cpu.winograd.weights.f3x4", "n2 c4 h12 w13 k6 r3 s3 p1 backward_weights"),
    ],
)
def test_one_plan_of_a_gradient(algorithm, text):
    problem = ca.ConvProblem.parse(text)
    plan = ca.plan(problem, algorithm=algorithm)
    firsts, second = arguments(problem, 8), random_arrays(problem)[1]
    prepared = plan.prepare(second)
    alone = [plan(a, prepared) for a in firsts]
    answers = hammer(lambda i: plan(firsts[i % 8], second if i % 3 else prepared))
    wrong = sum(not np.array_equal(found, alone[i % 8]) for i, found in enumerate(answers))
    assert not wrong, f"{wrong} of {len(answers)} answers differ"


def test_one_cache_of_plans():
    problems = PROBLEMS
    data = [random_arrays(p) for p in problems]

    def call(i):
        p, (x, w) = problems[i % len(problems)], data[i % len(problems)]
        # the padding makes the problem new to the cache for some of the threads
        padding = [(low + i // 60, high) for low, high in p.padding]
        return padding, ca.conv(x, w, padding=padding, groups=p.groups)

    for i, (padding, y) in enumerate(hammer(call)):
        p, (x, w) = problems[i % len(problems)], data[i % len(problems)]
        expected = ca.conv(x, w, padding=padding, groups=p.groups, algorithm="cpu.reference")
        assert np.abs(y - expected).max() < 1e-4


@pytest.mark.parametrize(
    ("algorithm", "small", "large"),
    [
        ("cpu.direct", "n1 c16 h14 w14 k16 r3 s3 p1", "n1 c64 h56 w56 k64 r3 s3 p1"),
        ("cpu.winograd.f4x3", "n1 c16 h14 w14 k16 r3 s3 p1", "n1 c64 h56 w56 k64 r3 s3 p1"),
        ("cpu.im2col.own", "n1 c16 h14 w14 k16 r3 s3 p1", "n1 c64 h56 w56 k64 r3 s3 p1"),
        (
            "cpu.direct",
            "n4 c6 h12 w13 k5 r3 s3 p1 stride2 backward_data",
            "n4 c64 h56 w56 k64 r3 s3 p1 stride2 backward_data",
        ),
        (
            "cpu.direct.weights",
            "n1 c16 h14 w14 k16 r3 s3 p1 backward_weights",
            "n1 c64 h56 w56 k64 r3 s3 p1 backward_weights",
        ),
    ],
)
def test_small_problems_stay_on_the_calling_thread(algorithm, small, large, monkeypatch):
    """30 us of work: to wake another thread takes as long, and longer where other programs hold the cores."""
    launch, pool, seen = jit.launch, jit.pool_of_launch, []

    def watched(kernel, arguments, tasks, parallel=True):
        seen.append(parallel)
        launch(kernel, arguments, tasks, parallel)

    def asked(parallel):
        seen.extend([True] * parallel)
        return pool(parallel)

    for text, parallel in ((small, False), (large, True)):
        problem = ca.ConvProblem.parse(text)
        first, second = random_arrays(problem)[:2]
        plan = ca.plan(problem, algorithm=algorithm)
        prepared = plan.prepare(second)
        monkeypatch.setattr(jit, "launch", watched)
        monkeypatch.setattr(jit, "pool_of_launch", asked)  # of a launch in compiled code, which no other has
        seen.clear()
        plan(first, prepared)
        monkeypatch.undo()
        assert set(seen) <= {parallel} and (seen or not parallel), text


def test_short_launches_are_those_of_few_threads(monkeypatch):
    """Between what one thread does at once and what wakes others; of many, all that wait would look."""
    short = int(threads.FLOPS * threads.SMALL / 2)
    for count in (2, threads.MOST_SHORT, threads.MOST_SHORT + 1):
        monkeypatch.setattr(jit, "thread_count", lambda count=count: count)
        few = count <= threads.MOST_SHORT
        assert [threads.is_short(n, 0) for n in (short // 100, short, 4 * short)] == [False, few, False]
