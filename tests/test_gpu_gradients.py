"""Gradients by the forward algorithms of a GPU, on the stand-in for the device."""

import numpy as np
import pytest
from cuda_shim import device as shim
from helpers import KINDS, Guarded, check

import convalgos as ca
from convalgos.core.allocator import aligned_empty
from convalgos.cpu import reference as judge
from convalgos.gpu import device
from convalgos.select import algorithms_on, find_algorithm
from convalgos.select.measure.accuracy import random_arrays

pytestmark = pytest.mark.skipif(shim.missing() is not None, reason=str(shim.missing()))

PROBLEMS = (  # without a stride and with one, with phases that no tap reaches, both layouts
    "n2 c5 h7 w6 k4 r3 s3 p1",
    "n1 c4 h9 w8 k6 r3 s3 p0:1,1:0 stride2 groups2",
    "n1 c4 h7 w8 k4 r3 s3 p1 stride2 groups4 channels_last",
    "n2 c3 w14 k4 s2 stride3",
    "n1 c4 w300 k4 s33 p32:0 groups4",
    "n2 c3 d3 h2 w9 k4 t2 r3 s2 p1 stride1,5,2",  # a stride beyond the map
)


@pytest.fixture(autouse=True)
def on_the_shim(monkeypatch):
    monkeypatch.setattr(Guarded, "BAND", 1024)
    with device.use(shim.ShimDevice()) as chosen:
        yield chosen


@pytest.mark.parametrize(
    ("direction", "algorithm"),
    [
        (direction, a)
        for direction in ("backward_data", "backward_weights")
        for a in algorithms_on("cuda:0", direction)
        if direction in a.directions and "cudnn" not in a.id
    ],
    ids=lambda v: getattr(v, "id", v),
)
def test_every_algorithm_computes_gradients(direction, algorithm):
    served = 0
    for text in PROBLEMS:
        problem = ca.ConvProblem.parse(text).replace(direction=direction)
        for changes in ({}, {"dtype": "float16"}, {"compute_dtype": "tf32"}):
            asked = problem.replace(**changes)
            if algorithm.why_not(asked) is None:
                served += 1
                for kind in KINDS if not changes else KINDS[1:]:
                    if asked.dtype == "float32":
                        check(algorithm, asked, kind)
                    else:
                        check_sixteen_bits(algorithm, asked)
    if not served:
        first = ca.ConvProblem.parse(PROBLEMS[0]).replace(direction=direction)
        pytest.skip(str(algorithm.why_not(first)))


def check_sixteen_bits(algorithm, problem):
    arrays = random_arrays(problem)
    found = algorithm.serve(problem)(*arrays)
    last = problem.layout == "channels_last"
    first, second, result = (
        np.moveaxis(a, -1, 1) if last and name[-1] != "w" else a
        for a, name in zip((*arrays, found), problem.arrays, strict=True)
    )
    right = judge.answer(problem, first.astype(float), second.astype(float))
    assert np.abs(result - right).max() <= algorithm.error_bound(problem) * np.abs(right).max()


def test_one_launch_puts_phases_together_and_is_captured():
    problem = ca.ConvProblem.parse("n2 c3 h9 w8 k4 r2 s2 stride3,2 backward_data")  # a third has no tap
    plan = find_algorithm("gpu.direct", problem).serve(problem)
    assert [launch.name for launch in plan.launches].count("interleave") == 1
    x_shape, w_shape, dx_shape = problem.array_shapes
    assert plan.workspace_bytes <= 4 * (np.prod(dx_shape) + 4 * len(plan.launches))
    dy, w = (aligned_empty(int(np.prod(s)), np.float32).reshape(s) for s in (x_shape, w_shape))
    dy[...], w[...] = random_arrays(problem)
    replay = plan.capture(dy, plan.prepare(w))
    dy *= 2
    np.testing.assert_allclose(replay(), judge.reference_backward_data(problem, dy, w), atol=1e-4)


def test_the_selector_ranks_them(on_the_shim):
    problem = ca.ConvProblem.parse("n1 c8 h12 w12 k8 r3 s3 p1 backward_data")
    ranking = ca.explain(problem, device="cuda:0")
    assert {"gpu.direct", "gpu.winograd.f4x3"} <= {c.id for c in ranking.candidates}
    dy, w = random_arrays(problem)
    dx = ca.plan(problem, device="cuda:0", algorithm="gpu.direct")(dy, w)
    np.testing.assert_allclose(dx, judge.reference_backward_data(problem, dy, w), atol=1e-4)
