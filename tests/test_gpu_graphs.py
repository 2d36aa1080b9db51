"""Runs of plans as CUDA graphs, on a stand-in for CuPy: what they record, replay and refuse."""

import numpy as np
import pytest
from cuda_shim import cupy_stand_in as stand_in
from cuda_shim import device as shim
from cupy_devices import PROBLEM, launches, on, served, two_devices
from helpers import example

import convalgos as ca
from convalgos.core.errors import Unsupported

pytestmark = pytest.mark.skipif(shim.missing() is not None, reason=str(shim.missing()))
SPLIT = ca.ConvProblem.parse("n1 c64 h5 w5 k8 r3 s3 p1")  # whose sums Winograd splits, in a workspace


@pytest.fixture(autouse=True)
def cupy(monkeypatch):
    with two_devices(monkeypatch):
        yield


@pytest.mark.parametrize("algorithm", ["gpu.direct", "gpu.winograd.f2x3", "gpu.winograd.f4x3"])
def test_graphs_replay_a_call(algorithm):
    x, w, bias, y = example(SPLIT, "integers")
    plan = served(SPLIT, algorithm=algorithm)
    x, w, bias = on(0, x, w, bias)
    stand_in.log.clear()
    replay = plan.capture(x, plan.prepare(w), bias=bias, activation="relu")
    answer = np.maximum(y + bias.array[:, None, None], 0)
    stand_in.log.clear()
    other = stand_in.Stream(non_blocking=True)
    for stream in (stand_in.Stream.null, other):
        replay.y.array.fill(np.nan)
        noise = [stand_in.empty(plan.workspace_bytes, np.uint8) for _ in range(3)]  # memory that others take
        with stream:
            assert replay() is replay.y
        assert np.allclose(replay.y.array, answer, atol=1e-3)
        assert all((taken.array == 0xFF).all() for taken in noise), "the graph writes where others work"
    x.array[...] = -x.array  # the graph reads where x lies
    assert np.allclose(replay().array, np.maximum(bias.array[:, None, None] - y, 0), atol=1e-3)
    assert [entry[0::2] for entry in stand_in.log] == [("graph", 0), ("graph", other.ptr), ("graph", 0)]


def test_graphs_are_ordered_with_the_stream_they_were_made_on():
    x, w, _, _ = example(PROBLEM, "integers")
    x, w = on(0, x, w)
    plan, caller = served(PROBLEM), stand_in.Stream(non_blocking=True)
    stand_in.log.clear()
    stand_in.waits.clear()
    with caller:
        plan.capture(x, w)
    (_, _, inner), *_ = launches()
    assert inner != caller.ptr and stand_in.waits == [(inner, caller.ptr), (caller.ptr, inner)]


def test_graphs_need_arrays_that_are_read_where_they_lie():
    square = ca.ConvProblem.parse("n1 c3 h6 w8 k3 r3 s3 p1")
    x, w, _, y = example(square, "integers")
    plan = served(square)
    x, w, y = on(0, x, w, y)
    odd = stand_in.empty((x.size + 1,), np.float32)[1:].reshape(x.shape)
    with pytest.raises(ValueError, match="x must be contiguous and start at a multiple of 16 bytes"):
        plan.capture(odd, w)
    with pytest.raises(ValueError, match="x must be contiguous"):
        plan.capture(stand_in.empty((1, 3, 6, 16), np.float32)[..., ::2], w)
    with pytest.raises(ValueError, match="out must be contiguous"):
        plan.capture(x, w, out=odd)
    with pytest.raises(ValueError, match="out overlaps x: "):
        plan.capture(x, w, out=x)
    with pytest.raises(ValueError, match="activation='tan'"):
        plan.capture(x, w, activation="tan")
    with pytest.raises(TypeError, match="x has dtype float64"):
        plan.capture(stand_in.zeros(x.shape), w)


def test_plans_that_no_graph_can_hold_say_so():
    problem = ca.ConvProblem.parse("n1 c8 h5 w5 k8 r1 s1")
    x, w, _, _ = example(problem, "integers")
    x, w = on(0, x, w)
    with pytest.raises(
        Unsupported, match=r"gpu\.im2col cannot be captured in a graph: it multiplies by cuBLAS"
    ):
        served(problem, algorithm="gpu.im2col").capture(x, w)
    empty = ca.ConvProblem.parse("n0 c3 h5 w5 k4 r3 s3")
    x, w, _, _ = example(empty, "integers")
    x, w = on(0, x, w)
    with pytest.raises(Unsupported, match="an empty problem"):
        served(empty).capture(x, w)


def test_no_graph_is_made_within_a_graph():
    x, w, _, _ = example(PROBLEM, "integers")
    x, w = on(0, x, w)
    plan, stream = served(PROBLEM), stand_in.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        with pytest.raises(Unsupported, match="graphs cannot be made within a graph"):
            plan.capture(x, w)
        stream.end_capture()


def test_a_capture_that_fails_ends(monkeypatch):
    x, w, _, y = example(PROBLEM, "integers")
    x, w = on(0, x, w)
    plan = served(PROBLEM)
    run, calls = plan.run, []

    def broken(*arguments):
        calls.append(stand_in.get_current_stream())
        if calls[-1].graph is not None:
            raise RuntimeError("not while capturing")
        run(*arguments)

    monkeypatch.setattr(plan, "run", broken)
    with pytest.raises(RuntimeError, match="not while capturing"):
        plan.capture(x, w)
    assert calls[-1].graph is None and stand_in.get_current_stream().ptr == 0
    assert np.array_equal(plan(x, w).array, y)
