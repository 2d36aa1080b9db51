"""Prepared filters serve maps of all sizes: for a size that comes once none are prepared."""

import threading
import time

import numpy as np
import pytest

import convalgos as ca
from convalgos.core.layouts import blocked_layout
from convalgos.core.machine import vector_bytes
from convalgos.network.graph import Convolution, NetworkGraph
from convalgos.network.network import REFINER, Network
from convalgos.select import find_algorithm
from convalgos.select.choose import plan_like
from convalgos.select.constraints import Constraints

PAD = ((1, 1), (1, 1))


def random_array(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("algorithm", ["cpu.im2win", "cpu.mec", "cpu.kn2row", "cpu.smm"])
@pytest.mark.parametrize(
    "layer",
    [
        "n1 c5 h9 w30 k20 r3 s3 p1 stride2", "n1 c6 h8 w9 k12 r3 s2 dilation2 groups2 p1",
        "n1 c3 h24 w24 k70 r4 s4 stride4",
        "n2 c7 h12 w31 k40 r3 s5 p2 channels_last", "n1 c8 d5 h6 w9 k9 t2 r3 s3 p1 channels_last",
    ],
)  # fmt: skip
def test_lowered_filters_serve_all_sizes(algorithm, layer):
    problem = ca.ConvProblem.parse(layer)
    if reason := find_algorithm(algorithm).why_not(problem):
        pytest.skip(reason)
    known = ca.plan(problem, algorithm=algorithm)
    w = random_array(problem.w_shape)
    prepared = known.prepare(w)
    for more in (1, 8, 37):
        sizes = (n + more * (i + 1) for i, n in enumerate(problem.spatial))
        other = problem.replace(x_shape=(problem.N + 1, problem.C, *sizes))
        plan = ca.plan(other, algorithm=algorithm)
        assert plan._key == known._key
        x = random_array(other.array_shapes[0], 1)
        assert np.array_equal(plan(x, prepared), plan(x, plan.prepare(w)))


@pytest.mark.parametrize("first", [(6, 6), (14, 14), (40, 44)])
@pytest.mark.parametrize("m", [4, 5])
def test_winograd_takes_the_filters_that_are_there(first, m, two_threads):
    """Of more bytes than caches hold they lie by the number of tiles, where nothing is prepared so far."""
    lanes = vector_bytes() // 4
    algorithm, width = find_algorithm(f"cpu.winograd.f{m}x3"), 32 * lanes
    layout = blocked_layout(lanes)

    def problem_of(sizes):
        shape = (1, width, *sizes)
        return ca.ConvProblem(shape, (width, width, 3, 3), padding=1, layout=layout, y_layout=layout)

    known = algorithm.plan(problem_of(first))
    w = random_array((width, width, 3, 3)) / width
    prepared, kinds = known.prepare(w), set()
    for sizes in [(4, 4), (12, 5), (6, 7), (14, 14), (20, 21), (40, 40), (64, 50), (3, 150)]:
        problem = problem_of(sizes)
        plan, own = plan_like(algorithm, problem, Constraints(), known), algorithm.plan(problem)
        assert plan._key == known._key
        kinds.add(plan.borrows)
        if not plan.borrows:
            assert plan.filter_form() == own.filter_form()
        x = random_array(problem.array_shapes[0], 1)
        expected, y = own(x, own.prepare(w)), plan(x, prepared)
        np.testing.assert_allclose(y, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
    assert True in kinds


def test_sizes_that_come_again_get_filters_of_their_own(shipped_figures):
    width = 512
    layer = Convolution("y", ("x",), "y", random_array((width, width, 3, 3)) / width, padding=PAD)
    net = Network(NetworkGraph(("x",), ("y",), (layer,), {"x": ("n", width, "h", "w")}))
    net(random_array((1, width, 20, 20)))
    (first,) = net.plans()
    small = random_array((1, width, 15, 15))
    y = net(small)
    assert net.plans()[-1].filters is first.filters
    if not net.plans()[-1].planned.borrows:
        pytest.skip("another algorithm is chosen on this machine")
    for _ in range(net.plans()[-1].again):
        np.testing.assert_allclose(net(small), y, rtol=0, atol=2e-5 * np.abs(y).max())
    for thread in threading.enumerate():
        if thread.name == REFINER:
            thread.join()
    refined = net.plans()[-1]
    assert refined.planned.shapes["x"] == small.shape and not refined.planned.borrows
    assert refined.filters.keys() != first.filters.keys()
    np.testing.assert_allclose(net(small), y, rtol=0, atol=2e-5 * np.abs(y).max())
    net(random_array((1, width, 14, 15)))  # another one that comes once
    assert net.plans()[-1].filters is first.filters


def test_choices_beside_the_calls_are_made_one_at_a_time(monkeypatch):
    """Each may serve the sizes of the next, and calls have the interpreter to share with one of them only."""
    layer = Convolution("y", ("x",), "y", random_array((8, 8, 3, 3)), padding=PAD)
    net = Network(NetworkGraph(("x",), ("y",), (layer,), {"x": ("n", 8, "h", "w")}))
    net(random_array((1, 8, 4, 4)))
    inputs = [random_array((1, 8, n, n)) for n in (16, 32, 64)]
    expected = [net(x) for x in inputs]
    plan, running, most = net._plan, [], []

    def slow_plan(*given):
        running.append(None)
        most.append(len(running))
        time.sleep(0.05)
        found = plan(*given)
        running.pop()
        return found

    monkeypatch.setattr(net, "_plan", slow_plan)
    for known in net.plans():
        known.again = 3
    for _ in range(3):
        for x in inputs:
            net(x)
    for thread in threading.enumerate():
        if thread.name == REFINER:
            thread.join()
    assert most == [1, 1, 1]
    for x, y in zip(inputs, expected, strict=True):
        np.testing.assert_allclose(net(x), y, rtol=0, atol=2e-5 * np.abs(y).max())
