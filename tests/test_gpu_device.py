"""The device through CuPy, on a stand-in for CuPy: devices, streams, memory, graphs, other libraries."""

import gc
import os
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from cuda_shim import cupy_stand_in as stand_in
from cuda_shim import device as shim
from cupy_devices import PROBLEM, launches, on, served, two_devices
from helpers import example

import convalgos as ca
from convalgos.core.cache_files import cache_folder
from convalgos.core.errors import Unsupported
from convalgos.core.plan import Choice
from convalgos.gpu import device
from convalgos.gpu.compile.module import Build, CompileError
from convalgos.gpu.device import cuda, cufft, tables, tma
from convalgos.gpu.direct import ALGORITHMS, TILE_K
from convalgos.gpu.gemm.tap_table import tap_table

pytestmark = pytest.mark.skipif(shim.missing() is not None, reason=str(shim.missing()))
SPLIT = ca.ConvProblem.parse("n1 c64 h5 w5 k8 r3 s3 p1")  # whose sums Winograd splits, in a workspace


@pytest.fixture(autouse=True)
def cupy(monkeypatch):
    with two_devices(monkeypatch):
        yield


def test_figures_and_the_plans_of_a_device():
    machine = device.cuda_device(0).figures
    assert machine.capability == (9, 0) and machine.arch == "sm_90a" and machine.name == "NVIDIA H200"
    assert abs(machine.bandwidth / 4.3e12 - 1) < 0.02
    x, w, bias, y = example(PROBLEM, "integers")
    plan = served(PROBLEM)
    x, w, bias = on(0, x, w, bias)
    out = stand_in.empty(PROBLEM.y_shape, np.float32)
    assert plan(x, plan.prepare(w), bias=bias, out=out) is out
    assert np.array_equal(out.array, y + bias.array[:, None, None])
    assert np.array_equal(plan(x, w).array, y)


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_tensor_maps_come_from_the_driver_and_go_to_kernels_by_value(monkeypatch, layout):
    monkeypatch.setattr(tma, "DRIVER", shim.driver())
    problem = ca.ConvProblem.parse("n1 c16 h5 w6 k8 r3 s3 p1:0,2").replace(
        compute_dtype="tf32", layout=layout
    )
    x, w, _, y = example(problem.replace(compute_dtype=None, layout="channels_first"), "integers")
    if layout == "channels_last":
        x, y = np.ascontiguousarray(np.moveaxis(x, 1, -1)), np.moveaxis(y, 1, -1)
    plan = served(problem, algorithm="gpu.implicit_gemm.wgmma_tf32")
    x, w = on(0, x, w)
    prepared = plan.prepare(w)
    assert np.array_equal(plan(x, prepared).array, y)
    assert np.array_equal(plan.capture(x, prepared)().array, y)


def test_kernels_are_compiled_once_for_each_device_and_many_at_once():
    builds = list(dict.fromkeys(b for a in ALGORITHMS for b in a.builds()))[:4]
    first = device.cuda_device(0)
    first.compile(builds * 2)
    threads = [threading.Thread(target=first.compile, args=(builds,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    device.cuda_device(1).compile(builds[:1])
    done = [(build, where) for build, where, _ in stand_in.compiled]
    assert sorted(done, key=str) == sorted([*((b, 0) for b in builds), (builds[0], 1)], key=str)
    assert all("-arch=sm_90a" in options for _, _, options in stand_in.compiled)


def test_builds_do_not_wait_for_one_another(monkeypatch):
    """Two builds that each wait until the other is being compiled."""
    meeting = threading.Barrier(2, timeout=20)
    monkeypatch.setattr(cuda.CudaDevice, "_compiled", lambda self, build: (meeting.wait(), build))
    device.cuda_device(0).compile([Build("a.cu"), Build("b.cu")])


def test_all_others_are_compiled_where_one_is_broken():
    good = next(iter(ALGORITHMS[0].builds()))
    with pytest.raises(CompileError, match=r"broken.cu does not compile:\ndirect.cu\(7\): error: identifier"):
        device.cuda_device(0).compile([Build("broken.cu"), good])
    assert good in [build for build, *_ in stand_in.compiled]


def test_architectures_that_the_compiler_does_not_know_are_left_to_cupy(monkeypatch):
    monkeypatch.setattr(stand_in.Device, "compute_capability", "131")
    assert (
        device.cuda_device(0).figures.capability == (13, 1)
        and device.cuda_device(0).figures.peak("float32") > 0
    )
    served(PROBLEM)
    assert not any("-arch" in o for _, _, options in stand_in.compiled for o in options)


def test_libraries_of_cuda_that_are_not_there_are_named(monkeypatch):
    import cupy

    pointwise = ca.ConvProblem.parse("n1 c8 h5 w5 k8 r1 s1")
    monkeypatch.delattr(cupy.cuda, "cublas")
    monkeypatch.delattr(cupy.cuda, "cufft")
    for algorithm, library in (("gpu.im2col", "cublas"), ("gpu.fft.whole", "cufft")):
        with pytest.raises(Unsupported, match=rf"needs {library}, which CuPy does not find \(pip install"):
            served(pointwise, algorithm=algorithm)
    assert served(pointwise).algorithm == "gpu.direct"

    def not_found():
        raise RuntimeError('Failure finding "libnvrtc.so.13"')

    monkeypatch.setattr(cupy.cuda.nvrtc, "getVersion", not_found)
    for cached in (device._why_no_cuda, cuda.lacks):
        cached.cache_clear()
    with pytest.raises(Unsupported, match=r"device='cuda:0': needs nvrtc, which CuPy does not find"):
        served(pointwise)


ALONE = """
import sys
from hidden_modules import hide

hide(*sys.argv[1].split(","))
import numpy as np
import pytest
from cuda_shim import cupy_stand_in as cupy

import convalgos as ca
from convalgos.gpu import device; from convalgos.gpu.device import cuda

cupy.install(pytest.MonkeyPatch())
cuda.source_text, device.missing = lambda build: build, lambda name: None
x, w = np.ones((1, 3, 9, 9), "f4"), np.ones((4, 3, 3, 3), "f4")
problem = ca.ConvProblem(x.shape, w.shape)
x, w = cupy.asarray(x), cupy.asarray(w)
assert (np.abs(ca.conv(x, w).array - 27) < 1e-3).all()
plan = ca.plan(problem, device="cuda")
assert plan.algorithm.startswith("gpu.") and "gpu.direct" in plan.explain()
assert ca.explain(problem, device="cuda:0").candidates
assert ca.plan(problem, device="cuda", effort="measure", time_budget=0.1).algorithm.startswith("gpu.")
assert (plan.capture(x, w)().array.round(3) == 27).all()
"""


def test_numpy_and_cupy_are_enough(tmp_path):
    """The machine of the GPU may have nothing else: no Numba, SciPy, torch, nor what finds folders."""
    hidden = "numba,llvmlite,scipy,torch,pyfftw,rich,click,platformdirs,mkl,onnx,onnxruntime,ml_dtypes,cudnn"
    compiled = cache_folder() / "cuda_shim"
    compiled.mkdir(parents=True, exist_ok=True)
    (tmp_path / "cuda_shim").symlink_to(compiled)  # but no wisdom
    package = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ALONE, hidden],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": package, "CONVALGOS_CACHE_DIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr


# --- devices -------------------------------------------------------------------------------------


def test_plans_work_on_their_device_whichever_is_current():
    x, w, _, y = example(PROBLEM, "integers")
    plan = served(PROBLEM, "cuda:1")
    (x, w) = on(1, x, w)
    stand_in.log.clear()
    found = plan(x, plan.prepare(w))
    assert np.array_equal(found.array, y) and found.device.id == 1
    assert {where for _, where, _ in launches()} == {1} and stand_in.get_device() == 0
    assert np.array_equal(ca.conv(x, w, padding=1, algorithm="gpu.direct").array, y)  # which asks x
    assert {where for _, where, _ in launches()} == {1}


def test_plans_made_in_any_thread_serve_any_other():
    x, w, _, y = example(PROBLEM, "integers")
    made, found = [], []

    def make():
        with stand_in.Device(1):
            made.append(ca.plan(PROBLEM, device="cuda", algorithm="gpu.direct"))

    def call(index):
        a, b = on(index, x, w)
        plan = made[0] if index else served(PROBLEM)
        for _ in range(5):
            found.append(np.array_equal(plan(a, b).array, y))

    maker = threading.Thread(target=make)
    maker.start()
    maker.join()
    assert made[0].device is device.cuda_device(1)
    threads = [threading.Thread(target=call, args=(index,)) for index in (0, 1, 0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20 and all(found)


def test_arrays_of_another_device_are_named():
    x, w, bias, y = example(PROBLEM, "integers")
    plan = served(PROBLEM)
    here, there = on(0, x, w, bias, y), on(1, x, w, bias, y)
    with pytest.raises(ValueError, match=r"x lies on cuda:1, but the plan is for cuda:0"):
        plan(there[0], here[1])
    with pytest.raises(ValueError, match=r"w lies on cuda:1, but the plan is for cuda:0"):
        plan(here[0], there[1])
    with pytest.raises(ValueError, match=r"w lies on cuda:1, but the plan is for cuda:0"):
        plan.prepare(there[1])
    with pytest.raises(ValueError, match=r"bias lies on cuda:1, but the plan is for cuda:0"):
        plan(here[0], here[1], bias=there[2])
    with pytest.raises(ValueError, match=r"out lies on cuda:1, but the plan is for cuda:0"):
        plan(here[0], here[1], out=there[3])
    prepared = served(PROBLEM, "cuda:1").prepare(there[1])
    with pytest.raises(ValueError, match=r"w was prepared for gpu.direct on .* on cuda:1, not for .* cuda:0"):
        plan(here[0], prepared)
    with pytest.raises(TypeError, match=r"x=ndarray must be a CuPy array or a CUDA tensor"):
        plan(x, here[1])
    with pytest.raises(ValueError, match=r"device='cuda:2': there are 2 devices, cuda:0 to cuda:1"):
        ca.plan(PROBLEM, device="cuda:2")


# --- streams -------------------------------------------------------------------------------------


def test_work_goes_to_the_current_stream():
    x, w, _, _ = example(PROBLEM, "integers")
    plan = served(PROBLEM)
    x, w = on(0, x, w)
    stand_in.log.clear()
    stream = stand_in.Stream(non_blocking=True)
    with stream:
        plan(x, w)
    plan(x, w)
    assert [s for _, _, s in launches()] == [stream.ptr, 0]
    assert not any(name == "synchronize" for name, *_ in stand_in.log)


def test_tables_of_a_plan_are_there_for_every_stream():
    """They are copied on a stream of their own, which is waited for before the plan is used on another."""
    busy = stand_in.Stream(non_blocking=True)
    with busy:
        plan = served(PROBLEM)
    (_, _, where), waited = stand_in.log
    assert where not in (0, busy.ptr) and waited == ("synchronize", 0, where)
    assert np.array_equal(plan._taps.array, tap_table(PROBLEM, TILE_K))


def uploads():
    return [entry for entry in stand_in.log if entry[0] == "upload"]


@pytest.mark.parametrize(
    ("text", "algorithm"),
    [
        ("n2 c3 h9 w8 k4 r3 s3 p1 stride2 backward_data", "gpu.direct"),
        ("n1 c2 w20000 k2 s20000 p19999:0 groups2", "gpu.fft.steps"),
    ],
)
def test_all_tables_of_a_plan_are_copied_at_once(text, algorithm):
    problem = ca.ConvProblem.parse(text)
    plan = served(problem, algorithm=algorithm)
    found = [t for p in (plan, *getattr(plan, "_plans", {}).values()) for t in vars(p).values()]
    found = [t for t in found if isinstance(t, stand_in.ndarray)]
    assert len(found) > 1 and len(uploads()) == 1
    places = sorted((t.data.ptr, t.data.ptr + t.nbytes) for t in found)
    assert all(end <= start for (_, end), (start, _) in pairwise(places))
    assert all(start % tables.ALIGNED == 0 for start, _ in places)
    if problem.direction == "backward_data":
        for phase, inner in plan._plans.items():
            assert np.array_equal(inner._taps.array, tap_table(phase.forward, TILE_K))


def test_tables_larger_than_what_is_shared_have_memory_of_their_own(monkeypatch):
    monkeypatch.setattr(tables, "TOGETHER", 512)
    chosen = device.cuda_device(0)
    values = [np.arange(n, dtype=np.int32) for n in (3, 100, 500, 0, 7)]
    with chosen.gathering(), chosen.gathering():
        found = [chosen.table(v) for v in values]
        assert not uploads()
    assert all(np.array_equal(f.array, v) for f, v in zip(found, values, strict=True))
    assert len(uploads()) == 4 and len([e for e in stand_in.log if e[0] == "synchronize"]) == 1


def test_where_gathering_fails_the_next_table_is_copied(monkeypatch):
    chosen = device.cuda_device(0)
    with pytest.raises(ZeroDivisionError), chosen.gathering():
        chosen.table(np.arange(3))
        raise ZeroDivisionError
    assert np.array_equal(chosen.table(np.arange(5)).array, np.arange(5))


def test_nothing_waits_for_the_device_when_a_plan_is_freed(monkeypatch):
    gc.collect()  # what other tests left
    stand_in.freed.clear()
    plan = served(PROBLEM)
    ca.forget_plans()
    busy = stand_in.Stream(non_blocking=True)
    with busy:
        busy.begin_capture()  # memory that is freed would break it
        del plan
        gc.collect()
        busy.end_capture()
    assert stand_in.freed == []
    served(PROBLEM)
    assert stand_in.freed == []
    monkeypatch.setattr(tables, "ASIDE", 0)
    ca.forget_plans()
    gc.collect()
    served(PROBLEM)
    assert len(stand_in.freed) == 2


def test_what_plans_left_is_freed_where_memory_is_short(monkeypatch):
    served(PROBLEM)
    ca.forget_plans()
    gc.collect()
    stand_in.freed.clear()
    made, wanted = stand_in.Memory, []

    def short(size):
        wanted.append(size)
        if len(wanted) == 1:
            raise stand_in.OutOfMemoryError(size)
        return made(size)

    monkeypatch.setattr(sys.modules["cupy"].cuda, "Memory", short)
    assert np.array_equal(served(PROBLEM)._taps.array, tap_table(PROBLEM, TILE_K))
    assert len(stand_in.freed) == 1 and len(wanted) == 2


# --- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["cross_correlation", "convolution"])
def test_another_plan_takes_over_where_memory_is_short(monkeypatch, mode):
    problem = SPLIT.replace(mode=mode)
    x, bare, bias, y = example(problem, "integers")
    made = served(problem, algorithm="gpu.winograd.f2x3")
    if not made.workspace_bytes:
        pytest.skip("the sums of the problem are not split")
    made.chosen(Choice(next_plan=lambda: served(problem)))
    x, w, bias = on(0, x, bare, bias)
    prepared, wanted = made.prepare(w), y + bias.array[:, None, None]
    w.array[...] = np.nan  # the caller's, which may be overwritten
    stand_in.refused.add(made.workspace_bytes)
    stand_in.default_pool.free_all_blocks()
    with pytest.warns(RuntimeWarning, match=r"f2x3 found no memory .* on cuda:0; gpu\.direct runs") as told:
        threads = [threading.Thread(target=made, args=(x, prepared)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert np.array_equal(made(x, prepared, bias=bias).array, wanted)
        replay = made.capture(x, prepared, bias=bias)
    assert len(told) == 1
    assert np.array_equal(replay().array, wanted)
    monkeypatch.setattr(made, "prepare_filter", lambda w: pytest.fail("no longer of use"))
    (w,) = on(0, bare)
    assert np.array_equal(made(x, w, bias=bias).array, wanted)


def test_no_memory_for_anything_else_is_no_reason_for_another_plan():
    x, w, _, y = example(SPLIT, "integers")
    plan = served(SPLIT, algorithm="gpu.winograd.f2x3")
    plan.chosen(Choice(next_plan=lambda: pytest.fail("there is memory for the workspace")))
    x, w = on(0, x, w)
    prepared = plan.prepare(w)
    stand_in.default_pool.free_all_blocks()
    stand_in.refused.add(y.size * 4)
    with pytest.raises(stand_in.OutOfMemoryError):
        plan(x, prepared)
    stand_in.refused.clear()
    stand_in.refused.add(w.nbytes)
    with pytest.raises(stand_in.OutOfMemoryError):
        plan.prepare(w)


def test_filters_are_kept_only_for_plans_that_may_need_them():
    _, w, _, _ = example(SPLIT, "integers")
    (w,) = on(0, w)
    plan = served(SPLIT, algorithm="gpu.winograd.f2x3")
    assert plan.prepare(w).original is None
    plan.chosen(Choice(next_plan=lambda: served(SPLIT)))
    assert plan.prepare(w).original is not None


# --- transforms ------------------------------------------------------------------------------------

SIGNAL = ca.ConvProblem.parse("n2 c3 w70 k6 s9 p8:0 groups3")
LONG = ca.ConvProblem.parse(
    "n1 c1 w40 k1 s5 p8000 dilation2500"
)  # of so few taps that the reference is quick


@pytest.mark.parametrize(
    ("problem", "algorithm"),
    [
        *((SIGNAL.replace(dtype=d), "gpu.fft.whole") for d in ("float32", "float64")),
        (SIGNAL.replace(layout="channels_last"), "gpu.fft.whole"),
        (ca.ConvProblem.parse("n2 c2 w3000 k2 s70"), "gpu.fft.overlap"),
        (ca.ConvProblem.parse("n1 c2 d5 h6 w7 k4 t3 r3 s3 p1"), "gpu.fft.whole"),
        (SIGNAL.replace(layout="channels_last"), "gpu.fft.fused"),
        (ca.ConvProblem.parse("n1 c2 h9 w8 k4 r5 s4 p2"), "gpu.fft.fused"),
        (LONG, "gpu.fft.steps"),
    ],
)
def test_transforms_on_arrays_of_the_device(problem, algorithm):
    x, w, bias, y = example(problem.replace(layout="channels_first"), "reals")
    last = problem.layout == "channels_last"
    x, w, bias = on(0, np.moveaxis(x, 1, -1).copy() if last else x, w, bias)
    found = served(problem, algorithm=algorithm)(x, w, bias=bias).array
    answer = y + bias.array.reshape(-1, *(1,) * problem.ndim)
    assert np.abs((np.moveaxis(found, -1, 1) if last else found) - answer).max() < 1e-5


def test_streams_and_threads_have_plans_of_cufft_of_their_own(monkeypatch):
    """The stand-in for cuFFT refuses a second stream."""
    x, w, _, y = example(SIGNAL, "reals")
    plan = served(SIGNAL, algorithm="gpu.fft.whole")
    x, w = on(0, x, w)
    w = plan.prepare(w)
    made = []
    original = cufft.CufftTransforms._made
    monkeypatch.setattr(
        cufft.CufftTransforms, "_made", lambda self, *given: made.append(given) or original(self, *given)
    )

    errors = []

    def call():
        errors.append(float(np.abs(plan(x, w).array - y).max()))

    streams = [stand_in.Stream(non_blocking=True) for _ in range(3)]
    for stream in streams[:2] * 2:
        with stream:
            call()
    assert len(made) == 4  # there and back on each
    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    monkeypatch.setattr(cufft, "CACHED_PLANS", 2)
    with streams[2]:
        call()
    assert len(plan._transforms._plans) == 2
    assert len(errors) == 7 and max(errors) < 1e-5
