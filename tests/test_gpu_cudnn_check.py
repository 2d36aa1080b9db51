"""No plan of cuDNN is trusted before it was checked: what the check finds, remembers and lets through."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from cudnn_on_the_shim import CUDNN, PROBLEM, Device, data, installing, needs_shim, offered, right
from fake_cudnn import PLANS, Engine

import convalgos as ca
from convalgos.core.errors import Unsupported
from convalgos.core.problem import DIRECTIONS, ConvProblem
from convalgos.cpu.reference import answer
from convalgos.gpu.direct import Direct
from convalgos.gpu.vendor import plans, verify
from convalgos.select import choose, devices


@pytest.fixture
def install(monkeypatch):
    with installing(monkeypatch) as put:
        yield put


@needs_shim
def test_a_plan_that_is_right_is_trusted_after_one_check(install):
    front = install(raw=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CUDNN.serve(PROBLEM)
        runs = sum(handle.calls for handle in front.handles)
        CUDNN.serve(PROBLEM.replace(x_shape=(9, *PROBLEM.x_shape[1:])))
        CUDNN.serve(PROBLEM)
    assert runs == sum(handle.calls for handle in front.handles) == 1


@needs_shim
@pytest.mark.parametrize(
    "text", [str(PROBLEM), f"{PROBLEM} compute_tf32", f"{PROBLEM} float16", "n1 c2 w9 k1 s3"]
)
def test_a_plan_that_is_wrong_is_not_used(install, text):
    problem = ConvProblem.parse(text)
    install(Engine("eng20_k2=6", wrong=True), Engine("eng1"))
    with pytest.warns(
        RuntimeWarning, match=r"cuDNN 91900 eng20_k2=6 is not used for .*: its error is [12]\."
    ):
        plan = CUDNN.serve(problem)
    assert plan.offer.name == "eng1"
    assert offered(problem) == ["eng1"], "it is remembered"
    with pytest.raises(Unsupported, match="cuDNN has no plan"):
        replace(CUDNN, offer=replace(plan.offer, name="eng20_k2=6")).serve(problem)


@needs_shim
@pytest.mark.parametrize("direction", ["backward_data", "backward_weights"])
@pytest.mark.parametrize("words", ["", "compute_tf32", "float16", "bfloat16 channels_last"])
def test_gradients_are_checked_by_what_defines_them(install, direction, words):
    problem = ConvProblem.parse(f"{PROBLEM} {words}").replace(direction=direction)
    install(Engine("eng20_k2=6", wrong=True), Engine("eng1"))
    with pytest.warns(RuntimeWarning, match="eng20_k2=6 is not used for .*: <result, r> is off by"):
        plan = CUDNN.serve(problem)
    assert plan.offer.name == "eng1"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        install(raw=True, version=92800)
        plans.listing.cache_clear()
        CUDNN.serve(problem)


@needs_shim
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_one_wrong_row_is_found(install, direction, dtype):
    problem = ConvProblem.parse(f"n4 c8 h14 w14 k8 r3 s3 p1 {dtype}").replace(direction=direction)
    wrong = None

    def run(first, second, bias, result):
        result[...] = answer(problem, first, second)
        if wrong is not None:
            result[-1, 3, 1] = wrong

    device, bound = Device(), CUDNN.error_bound(problem)
    assert verify.check_kernel(device, "right", problem, bound, run) is None
    for wrong in (0, np.inf, np.nan):
        with pytest.warns(RuntimeWarning, match=f"wrong by {wrong} is not used"):
            assert verify.check_kernel(device, f"wrong by {wrong}", problem, bound, run) is not None


@needs_shim
def test_where_all_are_wrong_another_algorithm_serves(install):
    install(Engine("eng20", wrong=True))
    machine = devices.figures("cuda:0")
    with pytest.warns(RuntimeWarning, match="eng20 is not used"):
        ranking = ca.explain(PROBLEM, device="cuda:0", allow=["gpu.cudnn", "gpu.direct"])
        first = sorted(ranking.candidates, key=lambda c: c.id != "gpu.cudnn")
        plan = choose.explained(replace(ranking, candidates=tuple(first)), "cuda:0")
    assert plan.algorithm == "gpu.direct" and machine is not None
    assert CUDNN.why_not(PROBLEM) == "cuDNN has no plan for it"


@needs_shim
def test_a_relu_that_drops_nan_is_not_used(install):
    front = install(replace(PLANS[4], drops_nan=True))
    x, w, bias, y = data(PROBLEM)
    plan = CUDNN.serve(PROBLEM)
    with pytest.warns(RuntimeWarning, match="with bias with relu is not used .* turns NaN into a number"):
        found = plan(x, w, bias=bias, activation="relu")
    assert np.array_equal(found, right(PROBLEM, y, bias, "relu"))
    x = x.copy()
    x[0] = np.nan
    assert np.isnan(plan(x, w, bias=bias, activation="relu")[0]).any()
    assert np.array_equal(plan(x, w, bias=bias)[1], right(PROBLEM, y, bias, None)[1])
    assert {g.built.fused for g in front.graphs if g.built and "add" in g.output.steps}, "bias is fused alone"


@needs_shim
def test_what_cannot_be_checked_is_not_used(install, monkeypatch):
    monkeypatch.setattr(Direct, "why_not", lambda self, problem: "it is out of order")
    cannot = "it cannot be checked: it is out of order"
    with pytest.warns(RuntimeWarning, match=cannot), pytest.raises(Unsupported, match=cannot):
        CUDNN.serve(PROBLEM)
    verify.forget_checks()
    monkeypatch.setattr(verify, "_compare", lambda *given: (_ for _ in ()).throw(MemoryError("3 GB")))
    with pytest.raises(Unsupported, match="no memory to check it"):
        CUDNN.serve(PROBLEM)
    assert verify._faults == {}, "there may be memory another time"
