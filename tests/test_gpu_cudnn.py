"""gpu.cudnn on a stand-in for the front end: what is asked of it, chosen, checked, run and remembered."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import fake_cudnn
import numpy as np
import pytest
from cuda_shim import device as shim
from cudnn_on_the_shim import CUDNN, PROBLEM, Device, data, installing, needs_shim, offered, right
from fake_cudnn import PLANS, Engine

import convalgos as ca
from convalgos.core import cache_files
from convalgos.core.epilogue import finish
from convalgos.core.errors import Unsupported, missing
from convalgos.core.plan import numpy_dtype
from convalgos.core.problem import DIRECTIONS, ConvProblem
from convalgos.core.quantization import Quantization
from convalgos.cpu.reference import answer
from convalgos.gpu import cudnn as module
from convalgos.gpu.device import use
from convalgos.gpu.vendor import plans as vendor_plans
from convalgos.gpu.vendor import runner
from convalgos.gpu.vendor.float8 import why_not_float8
from convalgos.select import choose, devices, find_algorithm, registry
from convalgos.select.measured import Measured
from convalgos.select.wisdom_file import IDS


@pytest.fixture
def install(monkeypatch):
    with installing(monkeypatch) as put:
        yield put


@pytest.fixture
def trusting(monkeypatch):
    """For tests of what does not depend on the check."""
    monkeypatch.setattr(module, "check_kernel", lambda *given, **also: None)


# --- graphs ------------------------------------------------------------------------------------


def test_where_it_is_missing_the_reason_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "cudnn", None)
    missing.cache_clear()
    with use(Device()):
        assert "pip install 'convalgos[gpu]'" in CUDNN.why_not(PROBLEM)
    missing.cache_clear()


def test_a_device_without_streams_of_cuda_is_none_for_it(install):
    with use(shim.ShimDevice()):
        assert "needs a device of CUDA" in CUDNN.why_not(PROBLEM)


@pytest.mark.parametrize(
    "text",
    [
        str(PROBLEM),
        "n1 c3 w20 k5 s4 p3:0 dilation2",
        "n1 c2 d4 h5 w6 k3 t2 r3 s3 p1",
        "n2 c3 h6 w5 k4 r3 s2 p1 convolution",
    ],
)
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("raw", [False, True])
def test_their_dims_strides_and_uids_are_enough_to_compute(install, trusting, text, layout, raw):
    front = install(raw=raw)
    problem = ConvProblem.parse(text).replace(layout=layout)
    x, w, bias, y = data(problem)
    plan = CUDNN.serve(problem)
    filters = plan.prepare(w)
    for added, activation in ((None, None), (bias, None), (None, "relu"), (bias, "relu")):
        out = np.full_like(y, np.nan, np.float32)
        plan(x, filters, bias=added, activation=activation, out=out)
        assert np.array_equal(out, right(problem, y, added, activation)), (added is None, activation)
    assert all(graph.kind.name == "FLOAT" for graph in front.graphs)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bits(install, trusting, dtype):
    problem = PROBLEM.replace(dtype=dtype, layout="channels_last")
    front, (x, w, bias, y) = install(), data(problem)
    kind = numpy_dtype(dtype)
    found = CUDNN.serve(problem)(x.astype(kind), w.astype(kind), bias=bias.astype(kind), activation="relu")
    assert np.array_equal(found.astype(np.float32), right(problem, y, bias, "relu"))
    own = [graph for graph in front.graphs if graph.arrays[0].set["dim"] == [*problem.x_shape]]
    assert {graph.kind.name for graph in own} == {"HALF" if dtype == "float16" else "BFLOAT16"}


FLOAT8 = ConvProblem.parse("n2 c16 h5 w6 k32 r3 s3 p1:0,2 stride2 channels_last float8_e4m3fn")


@needs_shim
@pytest.mark.parametrize(("w_dtype", "y_dtype"), [("float8_e4m3fn", "float32"), ("float8_e5m2", "float16")])
def test_8_bit_floats(install, w_dtype, y_dtype):
    """Of either type, checked against float32, with bias and ReLU in a step of their own."""
    problem = FLOAT8.replace(w_dtype=w_dtype, y_dtype=y_dtype)
    front, (x, w, bias, y) = install(), data(problem)
    plan = CUDNN.serve(problem)
    kinds = [numpy_dtype(n) for n in (problem.dtype, w_dtype, y_dtype)]
    given, bias = [a.astype(kind) for a, kind in zip((x, w), kinds, strict=False)], bias.astype(kinds[2])
    found = plan(*given, bias=bias, activation="relu")
    assert found.dtype == kinds[2] and np.array_equal(found, right(problem, y, bias.astype("f4"), "relu"))
    assert not any(plan._fused.values())
    (graph,) = {g.kind.name for g in front.graphs if g.arrays[0].set["dim"] == [*problem.x_shape]}
    assert graph == "FP8_E4M3" and front.graphs[0].output.set["data_type"].name == (
        "FLOAT" if y_dtype == "float32" else "HALF"
    )


@needs_shim
def test_wrong_8_bit_floats_are_not_used(install):
    install(Engine("eng1", wrong=True))
    with pytest.warns(RuntimeWarning, match="is not used"), pytest.raises(Unsupported, match="its error is"):
        CUDNN.serve(FLOAT8)


def test_8_bit_floats_that_it_does_not_take_have_a_reason(install):
    assert CUDNN.why_not(FLOAT8) is None
    for changes, told in (
        ({"layout": "channels_first"}, "channels last and in one group"),
        ({"w_shape": (24, 16, 3, 3)}, "multiples of 16, not 16 and 24"),
    ):
        assert told in CUDNN.why_not(FLOAT8.replace(**changes))
    assert "from compute capability 9.0 on, but the device has 8.9" in why_not_float8(FLOAT8, (8, 9))


INTEGERS = (  # a problem, what its filter is prepared with, and an activation
    (
        "n2 c8 h5 w6 k12 r3 s3 p1:0,2 stride2 y_int8",
        {"x_zero_point": -7, "y_zero_point": 3, "y_scale": 90.0},
        "relu",
    ),
    ("n1 c4 h4 w5 k4 r3 s2 p1 convolution", {"x_zero_point": 0}, None),
    ("n1 c4 w9 k8 s3 y_float32 per_channel", {"x_zero_point": 5, "w_zero_point": -100}, "leaky_relu"),
)


@needs_shim
@pytest.mark.parametrize(("text", "given", "activation"), INTEGERS)
def test_integers_are_exact_and_checked(install, text, given, activation):
    """Zero points of x lie around it, filters beyond int8 are several; the output step is that of others."""
    problem = ConvProblem.parse(f"{text} int8 channels_last")
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-128, 128, s, dtype=np.int8) for s in problem.array_shapes[:2])
    bias, quantization = rng.integers(-999, 999, problem.K, np.int32), Quantization(0.5, **given)
    front = install(*PLANS[4:])
    plan = CUDNN.serve(problem)
    exact = find_algorithm("cpu.reference").serve(problem)
    wanted = exact(x, exact.prepare(w, quantization), bias=bias, activation=activation)
    found = plan(x, plan.prepare(w, quantization), bias=bias, activation=activation)
    assert found.dtype == wanted.dtype and front.ran
    np.testing.assert_allclose(found, wanted, rtol=0, atol=CUDNN.error_bound(problem) * abs(wanted).max())
    assert plan.workspace_bytes == CUDNN.workspace_bytes(problem)


@needs_shim
def test_wrong_sums_of_integers_are_not_used(install):
    install(Engine("eng1", wrong=True))
    problem = ConvProblem.parse("n1 c4 h4 w5 k4 r3 s2 int8 channels_last")
    with pytest.warns(RuntimeWarning, match="is not used"), pytest.raises(Unsupported, match="its error is"):
        CUDNN.serve(problem)


def test_integers_that_it_does_not_take_have_a_reason(install):
    problem = ConvProblem.parse("n1 c8 h4 w4 k8 r3 s3 int8 channels_last")
    for changes, told in (
        ({"w_dtype": "uint8"}, "by int8 alone, not by uint8"),
        ({"layout": "channels_first"}, "channels last and in one group"),
        ({"w_shape": (6, 8, 3, 3)}, "multiples of 4, not 8 and 6"),
        ({"dtype": "uint8"}, "not uint8"),
    ):
        assert told in CUDNN.why_not(problem.replace(**changes))
    assert CUDNN.why_not(problem) is None and CUDNN.cost(problem, shim.H200) > 0


def gradient_data(problem, dtype=np.float32):
    """(first, second, result) of a backward pass in the problem's layout, small integers."""
    rng, logical = np.random.default_rng(0), problem.replace(layout="channels_first")
    first, second = (rng.integers(-2, 3, shape).astype(dtype) for shape in logical.array_shapes[:2])
    arrays = dict(zip(problem.arrays, (first, second, answer(logical, first, second)), strict=True))
    if problem.layout == "channels_last":
        for name in arrays.keys() - {"w", "dw"}:
            arrays[name] = np.ascontiguousarray(np.moveaxis(arrays[name], 1, -1))
    return tuple(arrays.values())


@pytest.mark.parametrize("direction", ["backward_data", "backward_weights"])
@pytest.mark.parametrize(
    "text",
    [
        str(PROBLEM),
        "n1 c3 w20 k5 s4 p3:0 dilation2",
        "n3 c2 d4 h5 w6 k3 t2 r3 s3 p1",
        "n2 c3 h6 w5 k4 r3 s2 p1 stride2 convolution",
    ],
)
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_gradients(install, trusting, direction, text, layout):
    install(raw=True)
    problem = ConvProblem.parse(text).replace(layout=layout, direction=direction)
    first, second, right = gradient_data(problem)
    plan = CUDNN.serve(problem)
    out = np.full(right.shape, np.nan, np.float32)
    assert np.array_equal(plan(first, plan.prepare(second), out=out), right)
    if direction == "backward_data":
        bias = np.arange(problem.C, dtype=np.float32) - 1
        finish(right, bias, "relu", problem)
        assert np.array_equal(plan(first, second, bias=bias, activation="relu"), right)


# --- what is offered -----------------------------------------------------------------------------


def test_float32_is_strict_and_nothing_is_less_precise_than_asked(install):
    strict = ["eng6", "eng70_k2=2_k18=0", "eng20_k2=6", "eng1", "eng0"]
    assert offered(PROBLEM) == strict
    assert offered(PROBLEM.replace(compute_dtype="tf32")) == ["eng67_k2=7_k13=0", *strict]
    assert offered(PROBLEM.replace(dtype="float16")) == ["eng67_k2=7_k13=0", *strict]
    install(Engine("eng9", ("REDUCED_PRECISION_REDUCTION",)))
    vendor_plans.listing.cache_clear()
    assert CUDNN.why_not(PROBLEM.replace(dtype="float16")) == "cuDNN has no plan for it"


def test_plans_that_are_none_of_cudnn_or_not_for_the_device_are_left_out(install):
    install(Engine("frost_conv[TILE=128]"), Engine("eng5", fails=True), Engine("eng1"))
    assert offered(PROBLEM) == ["eng1"]


def test_the_first_that_fits_serves_and_the_others_have_ids(install):
    assert CUDNN.id == "gpu.cudnn" and CUDNN.workspace_bytes(PROBLEM) == 8192
    found = {a.id: a for a in CUDNN.variants(PROBLEM)}
    assert list(found)[:2] == ["gpu.cudnn.eng6", "gpu.cudnn.eng70_k2_2_k18_0"]
    assert all(IDS.fullmatch(i) for i in found)
    assert found["gpu.cudnn.eng70_k2_2_k18_0"].workspace_bytes(PROBLEM) == 2048
    machine = devices.figures("cuda:0")
    costs = [CUDNN.cost(PROBLEM, machine), *(a.cost(PROBLEM, machine) for a in found.values())]
    assert costs == sorted(costs) and costs[-1] < choose.VARIED * costs[0]


def test_negative_knobs_are_parts_of_ids(install):
    install(Engine("eng41_k12=-1_k13=0"))
    assert [a.id for a in CUDNN.variants(PROBLEM)] == ["gpu.cudnn.eng41_k12_m1_k13_0"]


def test_notes_tell_the_algorithm(install):
    told = {a.offer.name: str(a.offer) for a in CUDNN.variants(PROBLEM)}
    assert told["eng6"] == "eng6: Winograd, tiles of 4x4 (WINOGRAD_TILE_4x4), 0.01 MB"
    assert told["eng70_k2=2_k18=0"].startswith("eng70_k2=2_k18=0: no transform, on CUDA cores, ")
    by_name = {a.offer.name: a for a in CUDNN.variants(PROBLEM)}
    assert not by_name["eng20_k2=6"].deterministic and by_name["eng1"].deterministic
    assert by_name["eng6"].spreads_nan and not by_name["eng1"].spreads_nan
    assert not CUDNN.deterministic and CUDNN.spreads_nan, "which its plan is, depends on the problem"


def test_notes_are_asked_for_once_for_a_kind_of_problem(install):
    front = install()
    next(iter(CUDNN.variants(PROBLEM))).note(PROBLEM)
    before = len(front.graphs)
    other = PROBLEM.replace(x_shape=(3, 6, 9, 9))
    assert [len(a.offer.notes) for a in CUDNN.variants(other)]
    assert len(front.graphs) == before + 1


UNTOLD = (replace(PLANS[2], notes=()), PLANS[6])  # its FFT is not told as one
ALL_TOLD = (PLANS[2],)  # every engine seems to be one
GONE = PLANS[3:]


@pytest.mark.parametrize("usual", [UNTOLD, ALL_TOLD, GONE], ids=["untold", "all", "gone"])
def test_where_a_known_fft_is_not_told_as_one_no_notes_are_believed(install, trusting, monkeypatch, usual):
    monkeypatch.setattr(cache_files, "_told", {})
    front = install(usual=usual)
    x, w, bias, y = data(PROBLEM)
    with pytest.warns(RuntimeWarning, match="engine 3 is not told as FFT"):
        told = {a.offer.name: str(a.offer) for a in CUDNN.variants(PROBLEM)}
    assert told["eng1"] == "eng1: unknown (notes not read), 0.00 MB"
    found = {a.offer.name: a for a in CUDNN.variants(PROBLEM)}
    assert not any(a.deterministic for a in found.values()) and all(a.spreads_nan for a in found.values())
    assert ca.plan(PROBLEM, "cuda:0", "gpu.cudnn").algorithm == "gpu.cudnn"
    with pytest.raises(Unsupported, match="differ in their last bits"):
        ca.plan(PROBLEM, "cuda:0", "gpu.cudnn", deterministic=True)
    with pytest.raises(Unsupported, match="NaN"):
        ca.plan(PROBLEM, "cuda:0", "gpu.cudnn", strict_nan=True)
    plan = found["eng70_k2=2_k18=0"].serve(PROBLEM)
    assert np.array_equal(plan(x, w, bias=bias, activation="relu"), right(PROBLEM, y, bias, "relu"))
    assert plan._fused == {True: None}, "whether the other kernel is the same one is not known"
    asked = len(front.graphs)
    assert {a.offer.repeats for a in CUDNN.variants(PROBLEM.replace(dtype="float16"))} == {False}
    assert len(front.graphs) == asked + 1, "the known engine is asked about once"


def test_an_engine_that_says_neither_is_thought_the_worst_of(install, trusting, monkeypatch):
    install()
    build = fake_cudnn.Graph.build_plan_at_index

    def failing(graph, index):
        if graph.limit == -1 and graph.plans[index][0] == "eng1" and not graph.usual:
            raise RuntimeError("CUDNN_STATUS_INTERNAL_ERROR")
        return build(graph, index)

    monkeypatch.setattr(fake_cudnn.Graph, "build_plan_at_index", failing)
    found = {a.offer.name: a for a in CUDNN.variants(PROBLEM)}
    assert not found["eng1"].deterministic and found["eng1"].spreads_nan
    assert found["eng70_k2=2_k18=0"].deterministic and not found["eng70_k2=2_k18=0"].spreads_nan


def test_a_refusal_is_passed_on(install):
    install().refuses = "no engine\nfor this"
    assert CUDNN.why_not(PROBLEM) == "cuDNN has no plan for it (no engine)"
    with pytest.raises(Unsupported, match="no engine"):
        CUDNN.serve(PROBLEM)


# --- limits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "plan"),
    [
        ({}, ""),
        ({"workspace_limit": 8192}, ""),
        ({"workspace_limit": 4096}, ".eng70_k2_2_k18_0"),
        ({"workspace_limit": 0}, ".eng20_k2_6"),
        ({"workspace_limit": 1 << 30}, ".eng3"),
        ({"strict_nan": True}, ".eng70_k2_2_k18_0"),
        ({"strict_nan": True, "workspace_limit": 0, "deterministic": True}, ".eng1"),
        ({"deterministic": True}, ".eng6"),
        ({"allow": "gpu.cudnn"}, ""),
        ({"allow": "gpu.cudnn", "workspace_limit": 0}, ".eng20_k2_6"),
    ],
)
def test_limits_reach_the_choice_of_plans(install, trusting, limits, plan):
    assert ca.plan(PROBLEM, "cuda:0", "gpu.cudnn", **limits).algorithm == f"gpu.cudnn{plan}"
    ranking = ca.explain(PROBLEM, device="cuda:0", **limits)
    assert f"gpu.cudnn{plan}" in {c.id for c in ranking.candidates}


def test_limits_that_no_plan_keeps(install, trusting):
    install(Engine("eng20", ("NONDETERMINISTIC",), 100))
    with pytest.raises(Unsupported, match="differ in their last bits"):
        ca.plan(PROBLEM, "cuda:0", "gpu.cudnn", deterministic=True)
    with pytest.raises(Unsupported, match="over workspace_limit=10"):
        ca.plan(PROBLEM, "cuda:0", "gpu.cudnn", workspace_limit=10)
    rejected = {r.id for r in ca.explain(PROBLEM, device="cuda:0", deny="gpu.cudnn").rejected}
    assert "gpu.cudnn" in rejected


# --- the selector ------------------------------------------------------------------------------------


def test_explain_tells_of_the_plans(install, trusting):
    assert "eng6: Winograd, tiles of 4x4" in str(ca.explain(PROBLEM, device="cuda:0"))
    few = {"allow": "gpu.cudnn"}
    told = str(ca.explain(PROBLEM, device="cuda:0", exhaustive=True, **few))
    for words in ("gpu.cudnn.eng20_k2_6", "NONDETERMINISTIC", "gpu.cudnn.eng70_k2_2_k18_0"):
        assert words in told


def test_a_plan_that_was_measured_is_chosen_and_found_by_name(install, trusting, wisdom):
    name = "gpu.cudnn.eng20_k2_6"
    assert ca.plan(PROBLEM, "cuda:0", name).algorithm == name
    devices.store("cuda:0").record(PROBLEM, {name: Measured((1e-9,) * 5)})
    assert ca.plan(PROBLEM, "cuda:0").algorithm == name
    assert ca.plan(PROBLEM, "cuda:0", deterministic=True).algorithm != name
    with pytest.raises(ValueError, match=r"algorithm='gpu\.cudnn\.eng99'"):
        ca.plan(PROBLEM, "cuda:0", "gpu.cudnn.eng99")


def test_measuring_times_the_plans(install, trusting, wisdom):
    plan = ca.plan(PROBLEM, "cuda:0", effort="measure", allow="gpu.cudnn", time_budget=2.0)
    known = devices.store("cuda:0").lookup(PROBLEM)
    assert plan.algorithm in known
    assert len([i for i in known if i.startswith("gpu.cudnn.eng")]) >= 3


def test_gradients_on_a_gpu_are_computed_by_it(install, trusting):
    for direction in DIRECTIONS[1:]:
        problem = PROBLEM.replace(direction=direction)
        assert "gpu.cudnn" in {c.id for c in ca.explain(problem, device="cuda:0").candidates}
        assert "gpu.cudnn.eng1" in {a.id for a in registry.variants(problem, "cuda:0")}


# --- running -----------------------------------------------------------------------------------------


def test_bias_and_relu_run_in_the_same_kernel_or_apart(install, trusting):
    x, w, bias, y = data(PROBLEM)
    for plans, fused in (((PLANS[4],), True), ((PLANS[6],), False), ((PLANS[7],), True)):
        front = install(*plans)
        vendor_plans.listing.cache_clear()
        plan = CUDNN.serve(PROBLEM)
        assert np.array_equal(plan(x, w, bias=bias, activation="relu"), right(PROBLEM, y, bias, "relu"))
        assert any(plan._fused.values()) == fused, plans
        before = len(front.graphs)
        plan(x, w, bias=bias, activation="relu")
        assert len(front.graphs) == before, "decided once"


def test_a_fused_kernel_with_other_notes_or_more_workspace_is_another(install, trusting):
    front = install(PLANS[4])
    for other in (replace(PLANS[4], notes=("FFT",)), replace(PLANS[4], workspace=1 << 20)):
        plan = CUDNN.serve(PROBLEM)
        assert not plan.offer.notes
        front.plans = [other]
        vendor_plans._notes.clear()
        assert plan._fuse(relu=True) is None
        front.plans = [PLANS[4]]
        vendor_plans.listing.cache_clear()


def test_each_stream_has_handles_of_its_own_and_each_call_one_to_itself(install, trusting):
    front = install(raw=True)
    x, w, _, y = data(PROBLEM)
    device = Device()
    with use(device):
        plan = CUDNN.serve(PROBLEM)
    filters, barrier = plan.prepare(w), threading.Barrier(4)

    def call(_):
        barrier.wait()
        return [plan(x, filters) for _ in range(20)]

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(call, range(4)):
            assert all(np.array_equal(one, right(PROBLEM, y, None, None)) for one in found)
    planner, *lanes = front.handles
    assert planner.calls == 0 and 1 <= len(lanes) <= 4 and {h.stream for h in lanes} == {7}
    device.number = 8
    plan(x, filters)
    assert front.handles[-1].stream == 8 and len(front.handles) == len(lanes) + 2


def test_handles_are_not_made_without_end(install, trusting):
    front = install(raw=True)
    x, w, _, _ = data(PROBLEM)
    device = Device()
    with use(device):
        plan = CUDNN.serve(PROBLEM)
        for device.number in range(100):
            plan(x, w)
    assert len(front.handles) <= 2 + runner.MOST_STREAMS


@needs_shim
def test_within_a_capture_nothing_is_made_chosen_or_checked(install):
    front = install(raw=True)
    x, w, bias, y = data(PROBLEM)
    device = Device()
    with use(device):
        plan = CUDNN.serve(PROBLEM)
        filters = plan.prepare(w)
        device.captured, front.captured = True, lambda: device.captured
        device.number = 11  # a new stream
        before = len(front.graphs)
        assert "before a stream is captured" in CUDNN.why_not(PROBLEM)
        found = plan(x, filters, bias=bias, activation="relu")
        assert np.array_equal(found, right(PROBLEM, y, bias, "relu"))
        assert len(front.graphs) == before and plan._fused == {}
        device.captured = False
        plan(x, filters, bias=bias, activation="relu")
        assert plan._fused == {True: None}, "decided once there is no capture"


def test_what_a_graph_runs_is_decided_before_its_memory_is_set_apart(install, trusting, monkeypatch):
    x, w, bias, _ = data(PROBLEM)
    plan = CUDNN.serve(PROBLEM)
    monkeypatch.setattr(plan, "_fixed", lambda name, array, shape: array)  # arrays of NumPy lie anywhere
    capture = plan.device.capture

    def captured(work):
        assert plan._fused.keys() == {True}
        return capture(work)

    monkeypatch.setattr(plan.device, "capture", captured)
    plan.capture(x, plan.prepare(w), bias=bias, activation="relu")
    assert plan._fused.keys() == {True}


def test_empty_problems_ask_nothing_of_cudnn(install):
    front = install()
    empty = ConvProblem.parse("n0 c3 h5 w5 k4 r3 s3")
    plan = CUDNN.serve(empty)
    assert plan(np.empty(empty.x_shape, np.float32), np.empty(empty.w_shape, np.float32)).shape == (
        0,
        4,
        3,
        3,
    )
    assert not front.graphs and CUDNN.workspace_bytes(empty) == 0 and list(CUDNN.variants(empty)) == []
