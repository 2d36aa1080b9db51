"""gpu.cudnn on CuPy's devices, streams and graphs: stand-ins for CuPy and for the front end."""

import sys
import warnings

import numpy as np
import pytest
from cuda_shim import cupy_stand_in as stand_in
from cuda_shim import device as shim
from cudnn_on_the_shim import forget
from cupy_devices import two_devices
from fake_cudnn import PLANS, Front
from helpers import example

import convalgos as ca
from convalgos.core import algorithm as contract
from convalgos.core.epilogue import finish
from convalgos.core.problem import ConvProblem
from convalgos.cpu.reference import answer

pytestmark = pytest.mark.skipif(shim.missing() is not None, reason=str(shim.missing()))
PROBLEM = ConvProblem.parse("n3 c4 h7 w8 k6 r3 s3 p1:0,2 stride2,1 groups2")


@pytest.fixture(autouse=True)
def front(monkeypatch):
    made = Front(PLANS[4:], raw=True)
    made.captured = lambda: stand_in.get_current_stream().is_capturing()
    monkeypatch.setitem(sys.modules, "cudnn", made)
    for user in (contract, sys.modules["convalgos.gpu.launch.algorithm"]):
        monkeypatch.setattr(user, "missing", lambda name: None)
    with two_devices(monkeypatch):
        yield made
    forget()


def data(layout):
    """(x, w, bias, y) of the host, y in float64 after bias and ReLU."""
    x, w, bias, y = example(PROBLEM, "integers")
    if layout == "channels_last":
        x, y = (np.ascontiguousarray(np.moveaxis(a, 1, -1)) for a in (x, y))
    y = y.astype(np.float64)
    finish(y, bias, "relu", PROBLEM.replace(layout=layout))
    return x, w, bias, y


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("name", ["gpu.cudnn", "gpu.cudnn.eng1"])
def test_a_call_runs_on_the_current_stream_after_one_check(front, layout, name):
    x, w, bias, y = data(layout)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = ca.plan(PROBLEM.replace(layout=layout), device="cuda:0", algorithm=name)
    arrays = [stand_in.asarray(a) for a in (x, w, bias)]
    filters = plan.prepare(arrays[1])
    for stream in (stand_in.Stream(non_blocking=True), stand_in.Stream.null):
        with stream:
            found = plan(arrays[0], filters, bias=arrays[2], activation="relu")
        assert np.array_equal(found.array, y)
        front.ran.clear()
        with stream:
            plan(arrays[0], filters, bias=arrays[2], activation="relu")
        assert front.ran == [stream.ptr], "on its stream, and nothing is checked again"


def test_a_capture_makes_no_handle_and_checks_nothing(front, monkeypatch):
    x, w, bias, _ = data("channels_first")
    plan = ca.plan(PROBLEM, device="cuda:0", algorithm="gpu.cudnn")
    arrays = [stand_in.asarray(a) for a in (x, w, bias)]
    recorded = []

    def recording(raw):
        """What a stream records is the call itself, for later."""
        return lambda *given: recorded.append(raw) if front.captured() else raw(*given)

    for runner in (plan._plain, plan._fuse(relu=True)):
        monkeypatch.setattr(runner, "_raw", recording(runner._raw))
    plan.capture(arrays[0], plan.prepare(arrays[1]), bias=arrays[2], activation="relu")
    assert len(recorded) == 1
    stream = stand_in.Stream(non_blocking=True)
    stream.begin_capture()
    with stream:
        other = PROBLEM.replace(layout="channels_last")
        told = ca.explain(other, device="cuda:0", allow="gpu.cudnn").rejected
        assert "before a stream is captured" in next(r.why_not for r in told if r.id == "gpu.cudnn")
        plan(arrays[0], arrays[1])
    stream.end_capture()
    assert len(recorded) == 2


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_gradients(layout):
    rng = np.random.default_rng(0)
    for direction in ("backward_data", "backward_weights"):
        problem = PROBLEM.replace(direction=direction)
        first, second = (rng.integers(-2, 3, s).astype(np.float32) for s in problem.array_shapes[:2])
        right = answer(problem, first, second)
        last = layout == "channels_last"
        turned = [
            np.moveaxis(a, 1, -1) if last and n != "w" else a
            for a, n in zip((first, second), problem.arrays, strict=False)
        ]
        plan = ca.plan(problem.replace(layout=layout), device="cuda:1", algorithm="gpu.cudnn")
        with stand_in.Device(1):
            found = plan(*(stand_in.asarray(np.ascontiguousarray(a)) for a in turned)).array
        found = np.moveaxis(found, -1, 1) if last and direction == "backward_data" else found
        assert np.array_equal(found, right)
