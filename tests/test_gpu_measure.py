"""Timing on a GPU: its clock, and races and tables whose results choose the plans of later calls."""

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from command_line import run
from cuda_shim import device as shim
from fake_cudnn import PLANS, Front

import convalgos as ca
from convalgos.api import planning
from convalgos.core import algorithm
from convalgos.core.arrays import host_array
from convalgos.core.plan import numpy_dtype
from convalgos.core.problem import DIRECTIONS
from convalgos.gpu import device
from convalgos.gpu.compile import nvrtc
from convalgos.gpu.device import calibrate, timer
from convalgos.gpu.direct import Direct, DirectPlan
from convalgos.gpu.vendor import plans, runner, verify
from convalgos.select import choose, devices, registry
from convalgos.select.measure import accuracy, race
from convalgos.select.measure.backends import GpuBackend, backend
from convalgos.select.measured import Measured
from convalgos.tools.bench import peer as peer_module
from convalgos.tools.bench import peers, torch_peer, training
from convalgos.tools.evaluate import recorded_tables
from convalgos.tools.gpu_check import cases, checks, reference_answers
from convalgos.tools.gpu_check.results import Result

PROBLEM = ca.ConvProblem.parse("n1 c3 h9 w8 k5 r3 s3 p1")
ALLOWED = ["gpu.direct", "gpu.im2col"]
needs_shim = pytest.mark.skipif(shim.missing() is not None, reason=str(shim.missing()))


@pytest.fixture
def on_the_shim():
    with device.use(shim.ShimDevice()) as chosen:
        yield chosen


# --- the clock ---------------------------------------------------------------------------------


class FakeCuda:
    """One stream, as CuPy has it: a launch takes `host` seconds of the host and `busy` of the GPU."""

    def __init__(self, host, busy):
        self.host, self.busy, self.now, self.done, self.waits = host, busy, 0.0, 0.0, []

    def get_current_stream(self):
        return self

    def synchronize(self):
        self.now = max(self.now, self.done)

    def queue(self, seconds):
        self.done = max(self.now, self.done) + seconds

    def wait(self, seconds):
        self.waits.append(seconds)
        self.queue(seconds)

    def launch(self):
        self.now += self.host
        self.queue(self.busy)

    def Event(self):
        class Event:
            record = lambda event, stream: setattr(event, "at", max(self.now, self.done))  # noqa: E731
            synchronize = lambda event: self.synchronize()  # noqa: E731

        return Event()

    def get_elapsed_time(self, first, last):
        return (last.at - first.at) * 1e3


@pytest.mark.parametrize(("host", "waits"), [(1e-6, 1), (1e-4, 2), (1.0, 2)])
def test_the_time_is_that_of_the_gpu_however_slow_the_host(monkeypatch, host, waits):
    cuda = FakeCuda(host, busy=2e-5)
    monkeypatch.setattr(timer.time, "perf_counter", lambda: cuda.now)

    def work():
        for _ in range(10):
            cuda.launch()

    took = timer.elapsed(cuda, cuda.wait, work)
    assert len(cuda.waits) == waits and max(cuda.waits) <= timer.LONGEST_HOLD
    if 10 * host < timer.LONGEST_HOLD:
        assert took == pytest.approx(2e-4)
    else:  # nobody holds a stream for so long: what the host takes counts
        assert took == pytest.approx(10 * host, rel=0.1)


@pytest.mark.skipif(nvrtc.library_path() is None, reason="NVRTC is not installed")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_kernel_that_waits_compiles(arch):
    (kernel,) = nvrtc.compile_build(timer.WAIT, arch).kernels
    assert kernel.kernel == "wait_cycles" and kernel.spill_bytes == 0


# --- the backend ----------------------------------------------------------------------------------


def test_a_sample_is_the_mean_of_a_burst(on_the_shim, monkeypatch):
    calls = []
    monkeypatch.setattr(
        on_the_shim, "elapsed", lambda work: (n := len(calls), work(), (len(calls) - n) * 1e-4)[2]
    )
    here = GpuBackend(on_the_shim)
    assert here.seconds(lambda: calls.append(1)) == pytest.approx(1e-4)
    assert len(calls) == 1 + 5
    assert here.host_seconds(lambda: calls.append(1)) < 1e-2 and len(calls) == 26


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_what_is_unwritten_is_not_a_number(on_the_shim, dtype):
    dtype = numpy_dtype(dtype)
    for here in (backend("cpu"), backend("cuda")):
        y = here.unwritten((2, 3, 4), dtype)
        assert y.dtype == dtype and np.isnan(y.astype(np.float32)).all()
        y[1, 2, 3] = 5
        picked = here.at(y, np.array([[1, 2, 3], [0, 0, 0]]))
        assert picked.dtype == dtype and picked[0] == 5 and np.isnan(picked[1].astype(np.float32))


# --- measuring -----------------------------------------------------------------------------------


@needs_shim
def test_what_is_measured_chooses_the_next_plan(on_the_shim, wisdom):
    predicted = ca.plan(PROBLEM, device="cuda", allow=ALLOWED).algorithm
    plan = ca.plan(PROBLEM, device="cuda:0", effort="measure", allow=ALLOWED, time_budget=20.0)
    known = devices.store("cuda").lookup(PROBLEM)
    assert known and known.keys() <= set(ALLOWED) and predicted in known
    assert all(m.failure is None and m.median_s > 0 and m.prepare_s > 0 for m in known.values())
    assert plan.algorithm in known and "measured time" in plan.explain()
    assert (wisdom / "gpu-h200-132sm.json").exists() and list(wisdom.glob("*.json")) == [
        wisdom / "gpu-h200-132sm.json"
    ]
    assert "measured time" in str(ca.explain(PROBLEM, device="cuda"))
    slow = min(known, key=lambda name: known[name].median_s)
    other = next(name for name in ALLOWED if name != slow)
    devices.store("cuda").record(PROBLEM, {other: Measured((1e-9,)), slow: Measured((1.0,))})
    for name in ("cuda", "cuda:0"):
        assert ca.plan(PROBLEM, device=name).algorithm == other
        assert ca.plan(PROBLEM, device=name, on_miss="error").algorithm == other
    assert not devices.store("cpu").lookup(PROBLEM)


@needs_shim
def test_a_search_checks_what_it_times(on_the_shim, wisdom, monkeypatch):
    def wrong(self, x, w, bias, activation, y, workspace):
        y[..., 1:] = 0

    monkeypatch.setattr(DirectPlan, "run", wrong)
    table = ca.find(PROBLEM, device="cuda", allow=ALLOWED)
    rows = {row.algorithm: row for row in table.rows}
    assert rows["gpu.im2col"].error <= rows["gpu.im2col"].error_bound
    assert rows["gpu.direct"].error == float("inf")
    assert ca.plan(PROBLEM, device="cuda", allow=ALLOWED).algorithm == "gpu.im2col"
    assert "its error was" in str(ca.explain(PROBLEM, device="cuda", allow=ALLOWED))
    last = PROBLEM.replace(layout="channels_last", dtype="float16")
    assert all(r.error <= r.error_bound for r in ca.find(last, device="cuda", allow="gpu.im2col").rows)


@needs_shim
def test_large_results_are_sampled_where_they_lie(on_the_shim, monkeypatch):
    monkeypatch.setattr(accuracy, "WHOLE_REFERENCE", replace(accuracy.WHOLE_REFERENCE, flops=0))
    for layout in ("channels_first", "channels_last"):
        problem = PROBLEM.replace(layout=layout)
        check = accuracy.AccuracyCheck(problem, GpuBackend(on_the_shim))
        plan = ca.plan(problem, device="cuda", algorithm="gpu.direct")
        assert check.error(plan(check.x, check.w)) < 1e-5
        assert check.error(plan(check.x, check.w) + np.float32(1)) > 0.01


@needs_shim
def test_one_that_fails_is_told_and_the_others_are_timed(on_the_shim, wisdom, monkeypatch):
    def fails(error):
        def plan(self, problem):
            raise error

        monkeypatch.setattr(Direct, "plan", plan)
        candidates = choose.rank(PROBLEM, "cuda", ca.select.Constraints(allow=ALLOWED)).candidates
        return race.race(PROBLEM, candidates, within=1e9, backend=backend("cuda"))

    found = fails(RuntimeError("cudaErrorInvalidConfiguration"))
    assert found["gpu.direct"].failure == "RuntimeError: cudaErrorInvalidConfiguration"
    assert found["gpu.im2col"].median_s > 0
    assert fails(MemoryError("2 GB")).keys() == {"gpu.im2col"}  # next time there may be room
    table = ca.find(PROBLEM, device="cuda", allow=ALLOWED)
    assert "no memory (2 GB)" in str(table) and "gpu.direct" not in devices.store("cuda").lookup(PROBLEM)


@needs_shim
def test_where_all_that_promise_much_fail_another_is_taken(on_the_shim, wisdom, monkeypatch):
    first, second = (c.algorithm for c in ca.explain(PROBLEM, device="cuda", allow=ALLOWED).candidates)

    def plan(self, problem):
        raise RuntimeError("no cuBLAS")

    monkeypatch.setattr(type(first), "plan", plan)
    monkeypatch.setattr(race, "starters", lambda candidates, *more: list(candidates)[:1])
    found = ca.plan(PROBLEM, device="cuda", effort="adapt", allow=ALLOWED)  # which measures, on a GPU
    assert found.algorithm == second.id and "no cuBLAS" in found.explain()


@needs_shim
def test_where_the_device_is_lost_the_others_are_not_blamed(on_the_shim, wisdom, monkeypatch):
    def illegal(*arguments):
        raise RuntimeError("cudaErrorIllegalAddress")

    monkeypatch.setattr(DirectPlan, "run", illegal)
    monkeypatch.setattr(on_the_shim, "synchronize", lambda: None)
    candidates = choose.rank(PROBLEM, "cuda", ca.select.Constraints(allow=ALLOWED)).candidates
    ordered = sorted(candidates, key=lambda c: c.id)
    monkeypatch.setattr(GpuBackend, "lost", lambda self: True)
    found = race.race(PROBLEM, ordered, within=1e9, backend=backend("cuda"))
    assert found.keys() == {"gpu.direct"}


def test_plans_are_forgotten_when_more_is_known(on_the_shim, wisdom, monkeypatch):
    forgotten = []
    monkeypatch.setattr(planning, "forget_plans", lambda: forgotten.append(1))
    planning.remember(PROBLEM, {"gpu.direct": Measured((1e-3,))}, "cuda")
    assert forgotten and devices.store("cuda:0").lookup(PROBLEM)


# --- bench ---------------------------------------------------------------------------------------

GPU = ["--device", "cuda"]


@pytest.fixture
def cudnn(monkeypatch):
    """A stand-in for cuDNN on the stand-in for a GPU."""
    front = Front(PLANS)
    monkeypatch.setitem(sys.modules, "cudnn", front)
    for user in (algorithm, sys.modules["convalgos.gpu.launch.algorithm"], peer_module):
        monkeypatch.setattr(user, "missing", lambda name: None)
    with device.use(WithStreams()) as chosen:
        yield chosen
    for cached in (plans.listing, runner.planner):
        cached.cache_clear()
    verify.forget_checks()


class WithStreams(shim.ShimDevice):
    def stream(self):
        return 7

    def capturing(self):
        return False


@needs_shim
def test_a_bench_of_a_gpu_has_its_figures_its_peers_and_the_time_of_the_host(cudnn, wisdom, tmp_path):
    path = tmp_path / "out.json"
    arguments = [str(PROBLEM), *GPU, "--peers", "cudnn", "--rounds", "1", "--json", path]
    arguments += ["--algorithm", "gpu.direct", "--algorithm", "gpu.im2col"]
    text = run("bench", *arguments, "--layout", "channels_last").stdout
    assert "H200, 132 multiprocessors, sm_90a" in text and "host" in text and "cudnn" in text
    saved = json.loads(path.read_text())
    assert saved["machine"]["capability"] == [9, 0]
    (found,) = saved["layers"]
    assert found["problem"].endswith("channels_last")
    assert {c["algorithm"] for c in found["candidates"]} == set(ALLOWED)
    assert all(c["host_s"] > 0 and c["error"] < 1e-5 for c in found["candidates"])
    assert {p["name"] for p in found["peers"] if p["median_s"]} == {
        "cudnn.channels_first",
        "cudnn.channels_last",
    }
    assert recorded_tables.read_table_file(path).machine == cudnn.figures


@needs_shim
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_a_training_step_of_a_gpu_beside_cudnn(cudnn, wisdom, tmp_path, layout, monkeypatch):
    path = tmp_path / "out.json"
    monkeypatch.setattr(training, "CHANGING", replace(training.CHANGING, allow=("gpu.direct",)))
    text = run(
        "training", PROBLEM, *GPU, "--peers", "cudnn", "--rounds", "1", "--layout", layout, "--json", path
    )
    assert "H200, 132 multiprocessors, sm_90a" in text.stdout and "cudnn" in text.stdout
    (layer,) = json.loads(path.read_text())["layers"]
    assert [p["algorithm"] for p in layer["passes"]] == ["gpu.direct", "gpu.direct", "gpu.direct.weights"]
    assert all(p["error"] < 1e-5 and p["median_s"] for p in layer["passes"])
    assert [p["name"] for p in layer["peers"]] == ["cudnn.channels_first", "cudnn.channels_last"]
    assert all(p[part]["error"] < 1e-5 for p in layer["peers"] for part in ("forward", "backward"))
    assert all(p["ratio"] > 0 for p in layer["peers"])


@needs_shim
def test_gradients_are_checked_as_results_are(cudnn, monkeypatch):
    every = cases.of_texts("some", [str(PROBLEM)], DIRECTIONS)
    some = [case for case in every if case.type == "float32"]
    for whole in (1e9, 0):
        monkeypatch.setattr(reference_answers, "EXTENT", replace(reference_answers.EXTENT, flops=whole))
        found = [r for r in checks.check_algorithms(cudnn, some, True, np.inf) if isinstance(r, Result)]
        assert not [r for r in found if r.wrong]
        ours = [r for r in found if r.algorithm == "gpu.cudnn" and r.what == "y"]
        assert {r.problem for r in ours} == {str(case.problem) for case in some} and len(ours) == 6


@needs_shim
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_the_peer_is_the_fastest_plan_of_cudnn(cudnn, monkeypatch, layout):
    seconds, tried = {}, []

    def elapsed(work):
        work()
        return seconds[tried[-1]]

    (first,) = [a for a in registry.algorithms("gpu") if a.id == "gpu.cudnn"]
    names = [a.id for a in first.variants(PROBLEM.replace(layout=layout))]
    assert len(names) >= 2
    seconds |= {"gpu.cudnn": 3.0} | {name: 2.0 + i for i, name in enumerate(reversed(names))}
    true_serve = type(first).serve
    monkeypatch.setattr(cudnn, "elapsed", elapsed)
    monkeypatch.setattr(type(first), "serve", lambda a, p: tried.append(a.id) or true_serve(a, p))
    peer = next(p for p in peers.GPU_PEERS if p.name == f"cudnn.{layout}")
    assert peer.why_not(PROBLEM) is None
    assert "cuDNN" in peer.why_not(PROBLEM.replace(dtype="float64")) or "not float64" in peer.why_not(
        PROBLEM.replace(dtype="float64")
    )
    x, w = accuracy.random_arrays(PROBLEM)
    y = peer.call(PROBLEM, x, w, 1)()
    assert tried == ["gpu.cudnn", *names]
    assert accuracy.AccuracyCheck(PROBLEM).error(np.ascontiguousarray(y)) < 1e-5


@pytest.mark.parametrize("channels_last", [False, True])
def test_torch_rounds_to_tf32_only_where_it_is_asked_to(monkeypatch, channels_last):
    torch = pytest.importorskip("torch")
    settings = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    monkeypatch.setattr(torch_peer.gpu, "current", lambda: SimpleNamespace(name="cpu"))
    peer = peers.GPU_PEERS[3 if channels_last else 2]
    try:
        for compute in ("tf32", "float32"):
            problem = PROBLEM.replace(compute_dtype=compute)
            check = accuracy.AccuracyCheck(problem)
            y = host_array(peer.call(problem, check.x, check.w, 1)())
            assert check.error(y) < 1e-5
            assert torch.backends.cudnn.allow_tf32 == (compute == "tf32") and torch.backends.cudnn.benchmark
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = settings


def test_peers_of_a_gpu_are_chosen_by_their_own_names():
    with pytest.raises(ValueError, match=r"cudnn\.channels_first"):
        peers.choose_peers("onnxruntime", "cuda")
    assert peers.choose_peers("none", "cuda") == ()


# --- commands ------------------------------------------------------------------------------------


@needs_shim
def test_commands_tune_show_and_forget_the_wisdom_of_a_gpu(on_the_shim, wisdom, tmp_path, monkeypatch):
    every = tuple(a for a in registry.algorithms("gpu") if a.id in ALLOWED)
    monkeypatch.setattr(registry, "algorithms_on", lambda device, direction="forward": every)
    text = str(PROBLEM)
    assert "1 of 1 problems tuned" in run("tune", text, *GPU, "--dtype", "float16").stdout
    assert "0 of 0 problems tuned, 1 known before" in run("tune", text, *GPU, "--dtype", "float16").stdout
    assert "1 of 1" in run("tune", text, *GPU, "--effort", "measure").stdout
    shown = run("wisdom", "show", *GPU).stdout
    assert "gpu-h200-132sm.json: 2 problems" in shown and f"{text} float16" in shown
    assert "measured time" in run("explain", text, *GPU).stdout
    assert "gpu.im2col" in run("find", text, *GPU, "--rounds", "1").stdout
    exported = tmp_path / "some.json"
    assert "2 problems" in run("wisdom", "export", exported, *GPU).stdout
    assert "now / then" in run("wisdom", "verify", *GPU, "--sample", "1", "--rounds", "1").stdout
    assert "forgot" in run("wisdom", "forget", "--all", *GPU).stdout
    assert devices.store("cuda").entries() == {} and "no conflicts" in run("wisdom", "merge", exported).stdout
    assert len(devices.store("cuda").entries()) == 2


def test_figures_of_a_gpu_are_measured_kept_and_shown(on_the_shim, tmp_path, monkeypatch):
    monkeypatch.setenv("CONVALGOS_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(calibrate, "COPIED", 1 << 20)
    monkeypatch.setattr(calibrate, "SQUARE", 32)

    def elapsed(work):
        work()
        return 1e-3

    monkeypatch.setattr(on_the_shim, "elapsed", elapsed)
    before = on_the_shim.figures
    assert calibrate.with_saved_figures(before) == before
    shown = run("tune", "--machine", *GPU).stdout
    found = on_the_shim.figures
    assert found.bandwidth == pytest.approx(2 * (1 << 20) / 1e-3)
    assert found.peak("float32") == pytest.approx(2 * 32**3 / 1e-3) and found.source == "measured"
    assert "2.1 GB/s" in shown and "measured" in shown and "the driver" in shown and "1980 MHz" in shown
    assert calibrate.with_saved_figures(before) == found
    path = tmp_path / "machine" / "gpu-h200-132sm.json"
    path.write_text('{"format": 1, "bandwidth": -1}')
    with pytest.warns(RuntimeWarning, match="was damaged"):
        assert calibrate.with_saved_figures(before) == before


def test_info_tells_of_the_gpu_or_why_there_is_none(on_the_shim):
    assert "H200" in run("info").stdout
    token = device._chosen.set(None)
    try:
        assert "cupy" in run("info").stdout
    finally:
        device._chosen.reset(token)
