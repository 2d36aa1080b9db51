"""GPU algorithms, executed on the CPU by a stand-in for the device, against the float64 reference."""

import math

import numpy as np
import pytest
from cuda_shim import device as shim
from helpers import (
    KINDS,
    Guarded,
    check,
    check_runs,
    choosy,
    example,
    in_turns,
    served_problems,
    table_problems,
)
from hypothesis import given
from hypothesis import strategies as st

import convalgos as ca
from convalgos.api import forward, planning
from convalgos.core import arrays
from convalgos.core.allocator import aligned_empty
from convalgos.core.arrays import as_numpy
from convalgos.core.errors import Unsupported
from convalgos.core.plan import numpy_dtype
from convalgos.core.problem import LAYOUTS
from convalgos.cpu.reference import reference
from convalgos.gpu import device
from convalgos.gpu.compile.module import ELEMENTS, Build
from convalgos.gpu.gemm.mma import TensorCores
from convalgos.gpu.launch.kernel_records import conv_record
from convalgos.select import algorithms
from convalgos.testing.answers import STEPS_OF_KIND

EVERY = algorithms("gpu")
GPU = [a for a in EVERY if "forward" in a.directions]  # test_gpu_gradients.py has the others
EMULATED_FLOPS = 2e5  # of a problem: emulated tensor cores are slow
FLOAT64_FLOPS = 5e6  # the same kernels as of float32, which take the problems of many tiles
LARGE_FLOPS = 2e7  # those are checked in one of the layouts, another one for each next algorithm
each_algorithm = pytest.mark.parametrize("algorithm", GPU, ids=lambda a: a.id)
of_floats = pytest.mark.parametrize(
    "algorithm", [a for a in GPU if "float32" in a.dtypes], ids=lambda a: a.id
)


def each_with(*dtypes):
    """Each algorithm with those of some types that it computes."""
    pairs = [(a, dtype) for a in GPU for dtype in dtypes if dtype in a.dtypes]
    return pytest.mark.parametrize(("algorithm", "dtype"), pairs, ids=lambda v: getattr(v, "id", v))


needs_shim = pytest.mark.skipif(shim.missing() is not None, reason=str(shim.missing()))


def most_flops(algorithm, dtype="float32"):
    if isinstance(algorithm, TensorCores):
        return EMULATED_FLOPS
    return FLOAT64_FLOPS if dtype == "float64" else math.inf


@pytest.fixture(autouse=True)
def on_the_shim(monkeypatch):
    """Arrays that start where a vector may, as CuPy's do: others would be copied first."""
    monkeypatch.setattr(Guarded, "BAND", 1024)
    with device.use(shim.ShimDevice()) as chosen:
        yield chosen


@needs_shim
@each_with("float32", "float64")
def test_answers(algorithm, dtype):
    shim.ShimDevice().compile(
        b for b in algorithm.builds() if dict(b.macros).get("element_t") == ELEMENTS[dtype]
    )
    table = (p for p, _ in table_problems(algorithm, dtype))
    runs = in_turns(table, dtype == "float64")  # each layout on one kind of data, each type on the other
    large = LAYOUTS[GPU.index(algorithm) % 2]
    runs = (run for run in runs if run[0].flops <= LARGE_FLOPS or run[0].layout == large)
    if not check_runs(algorithm, (run for run in runs if run[0].flops <= most_flops(algorithm, dtype))):
        pytest.skip(next(reason for _, reason in table_problems(algorithm, dtype)))


@needs_shim
@of_floats
@given(data=st.data())
@choosy
def test_answers_to_random_problems(algorithm, data):
    with device.use(shim.ShimDevice()):  # Hypothesis runs outside of fixtures' contexts
        depthwise = PROBLEM.replace(w_shape=(3, 1, 3, 3), groups=3)
        if algorithm.why_not(PROBLEM) and (reason := algorithm.why_not(depthwise)):
            pytest.skip(reason)
        problem = data.draw(served_problems(algorithm.id))
        for kind in KINDS:
            check(algorithm, problem, kind, STEPS_OF_KIND[kind])


@needs_shim
@each_with("float16", "bfloat16")
def test_sixteen_bits_are_rounded_once(algorithm, dtype):
    """Sums of 16-bit data are float32: an output is off by its own rounding and by their error only."""
    served, failures, table = 0, [], [*table_problems(algorithm, "float32")]
    turn = 4 * (dtype == "bfloat16" and "float16" in algorithm.dtypes)
    for problem, _ in table[turn::8] + table[turn + 3 :: 8]:  # each in one layout and one type
        problem = problem.replace(dtype=dtype)
        if problem.is_empty or algorithm.why_not(problem) or problem.flops > most_flops(algorithm):
            continue
        served += 1
        wide = problem.replace(dtype="float32", layout="channels_first")
        x, w, bias, _ = (array.astype(numpy_dtype(dtype)) for array in example(wide, "reals"))
        y = reference(wide, *(array.astype(np.float64) for array in (x, w, bias)))
        last = problem.layout == "channels_last"
        plan = algorithm.serve(problem)
        out = Guarded(problem.array_shape(problem.y_shape), numpy_dtype(dtype))
        x = np.ascontiguousarray(np.moveaxis(x, 1, -1) if last else x)
        plan(x, plan.prepare(w), bias=bias, out=out.array)
        found = (np.moveaxis(out.array, -1, 1) if last else out.array).astype(np.float64)
        allowed = np.abs(y) * problem.eps / 2 + algorithm.error_bound(problem) * np.abs(y).max()
        if not out.intact() or not (np.abs(found - y) <= allowed * 1.01).all():
            failures.append(
                f"{problem}: off by {np.abs(found - y).max()}, written outside: {not out.intact()}"
            )
    if not served:
        pytest.skip(algorithm.why_not(problem))
    assert not failures, "\n".join(failures)


@needs_shim
@of_floats
def test_not_a_number_is_never_lost(algorithm):
    problem = next(
        (p for p, reason in table_problems(algorithm, "float32") if reason is None and not p.is_empty), None
    )
    if problem is None:
        pytest.skip("serves no problem of the table in float32")
    plan = algorithm.serve(problem)
    y = plan(
        np.full(plan._x_shape, np.nan, np.float32), np.ones(problem.w_shape, np.float32), activation="relu"
    )
    assert np.isnan(y).all()


@pytest.mark.parametrize("algorithm", EVERY, ids=lambda a: a.id)
def test_figures_for_the_selector(algorithm):
    for figures in (shim.A100, shim.H200):
        with device.use(shim.RecordingDevice(figures)):
            for dtype in ("float32", "float64", "float16"):
                for problem, reason in table_problems(algorithm, dtype):
                    if reason is not None:
                        assert reason == reason.strip() and len(reason.split()) > 2 and "\n" not in reason
                        with pytest.raises(Unsupported, match="cannot serve"):
                            algorithm.serve(problem)
                    elif not problem.is_empty:
                        cost = algorithm.cost(problem, figures)
                        assert math.isfinite(cost) and cost > 0, f"{problem}: cost {cost}"
                        workspace = algorithm.workspace_bytes(problem)
                        assert type(workspace) is int and workspace >= 0
                        assert algorithm.serve(problem).workspace_bytes == workspace
                        assert 0 < algorithm.error_bound(problem) < 0.1


@each_algorithm
def test_precision_is_explicit(algorithm):
    """Nothing computes TF32 where float32 is asked for, and the other way round."""
    problem = ca.ConvProblem((1, 8, 8, 8), (8, 8, 3, 3), padding=1)
    strict = algorithm.why_not(problem) is None
    tf32 = algorithm.why_not(problem.replace(compute_dtype="tf32")) is None
    assert not (strict and tf32)
    with pytest.raises(Unsupported):
        algorithm.serve(problem.replace(dtype="float64", compute_dtype="float32"))


# --- the plan around the kernels -----------------------------------------------------------------

DIRECT = next(a for a in GPU if a.id == "gpu.direct")
PROBLEM = ca.ConvProblem.parse("n1 c3 h6 w7 k4 r3 s3 p1")
SPLIT = ca.ConvProblem.parse("n1 c64 h5 w5 k8 r3 s3 p1")  # whose sums are split, in a workspace


@needs_shim
def test_arrays_of_any_kind_are_taken():
    """Views, arrays off alignment, out of any strides, out over x."""
    x, w, _, y = example(PROBLEM, "integers")
    plan = DIRECT.serve(PROBLEM)
    wide = np.full((1, 3, 6, 15), np.nan, np.float32)
    wide[..., 1::2] = x
    out = np.full((1, 4, 6, 14), np.nan, np.float32)
    assert plan(wide[..., 1::2], w, out=out[..., ::2]).base is out
    assert np.array_equal(out[..., ::2], y) and np.isnan(out[..., 1::2]).all()
    odd = Guarded.copy_of(x)
    moved = np.frombuffer(bytearray(x.nbytes + 4), np.float32)[1:].reshape(x.shape)
    moved[...] = odd.array
    assert np.array_equal(plan(moved, w), y)
    square = ca.ConvProblem.parse("n1 c3 h6 w7 k3 r3 s3 p1")
    x, w, _, y = example(square, "integers")
    x = x.copy()
    assert DIRECT.serve(square)(x, w, out=x) is x
    assert np.array_equal(x, y)
    square = ca.ConvProblem.parse("n1 c3 h24 w24 k3 r3 s3 p1")  # of several blocks
    x, w, _, y = example(square, "integers")
    for first, second in ((0, 8), (8, 0), (0, x.size), (x.size, 0)):  # one begins before the other ends
        memory = aligned_empty(2 * x.size, np.float32)
        source, target = (memory[i : i + x.size].reshape(x.shape) for i in (first, second))
        source[...] = x
        assert DIRECT.serve(square)(source, w, out=target) is target
        assert np.array_equal(target, y)


@needs_shim
@each_algorithm
def test_captured_calls_replay(algorithm):
    """On the arrays that they were captured with, which hold other numbers then; or it is said why not."""
    depthwise = PROBLEM.replace(w_shape=(3, 1, 3, 3), groups=3)
    kinds = ({}, {"compute_dtype": "tf32"}, {"dtype": "float16"})
    tried = [problem.replace(**kind) for problem in (PROBLEM, SPLIT, depthwise) for kind in kinds]
    served = [problem for problem in tried if algorithm.why_not(problem) is None]
    if not served:
        pytest.skip(algorithm.why_not(PROBLEM))
    for problem in served:
        plan = algorithm.serve(problem)
        x, w, bias, _ = example(problem, "reals")
        x, w, bias = (on_a_line(array.astype(problem.dtype)) for array in (x, w, bias))
        if plan.uncapturable:
            with pytest.raises(Unsupported, match="cannot be captured in a graph: ") as refused:
                plan.capture(x, w)
            assert plan.uncapturable in str(refused.value)
            continue
        prepared = plan.prepare(w)
        for more in ({}, {"bias": bias, "activation": "relu"}):
            replay = plan.capture(x, prepared, **more)
            x[...] = x[::-1, ::-1]
            replay.y.fill(np.nan)
            assert np.array_equal(replay(), plan(x, prepared, **more))


def on_a_line(array):
    """A copy that starts on a cache line."""
    made = aligned_empty(array.size, array.dtype).reshape(array.shape)
    made[...] = array
    return made


@needs_shim
def test_wrong_arrays_are_named():
    x, w, bias, _ = example(PROBLEM, "integers")
    plan = DIRECT.serve(PROBLEM)
    prepared = plan.prepare(w)
    other = DIRECT.serve(PROBLEM.replace(padding=0)).prepare(w)
    with pytest.raises(ValueError, match="x has shape"):
        plan(x[:, :2], prepared)
    with pytest.raises(TypeError, match="x has dtype float64"):
        plan(x.astype(np.float64), prepared)
    with pytest.raises(ValueError, match="w was prepared for"):
        plan(x, other)
    with pytest.raises(ValueError, match="bias has shape"):
        plan(x, prepared, bias=bias[:2])
    with pytest.raises(ValueError, match="out is read-only"):
        plan(x, prepared, out=np.broadcast_to(np.float32(0), (1, 4, 6, 7)))
    with pytest.raises(ValueError, match="activation='tan'"):
        plan(x, prepared, activation="tan")


@needs_shim
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_the_public_call(monkeypatch, layout):
    """conv on arrays of the device: logical views of channels-last memory, prepared filters, out, bias."""
    monkeypatch.setattr(forward, "device_of", lambda array: "cuda:0")
    for module in (forward, arrays):
        monkeypatch.setattr(module, "as_cupy", as_numpy)
    monkeypatch.setattr(forward, "_plan_of_arrays", lambda *given: None)  # they stand for CuPy's
    x, w, bias, y = example(PROBLEM, "integers")
    answer = np.maximum(y + bias[:, None, None], 0)
    if layout == "channels_last":
        x = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    found = ca.conv(x, w, bias, padding=1, layout=layout, activation="relu")
    assert np.array_equal(np.moveaxis(found, -1, 1) if layout == "channels_last" else found, answer)
    if layout == "channels_last":
        view = np.moveaxis(x, -1, 1)
        out = np.moveaxis(np.full(found.shape, np.nan, np.float32), -1, 1)
        assert ca.conv(view, w, bias, padding=1, layout=layout, activation="relu", out=out) is out
        assert np.array_equal(out, answer)
    with pytest.raises(Unsupported, match=r"cpu\.direct cannot serve .* not on cuda:0"):
        ca.conv(x, w, padding=1, layout=layout, algorithm="cpu.direct")
    planning.forget_plans()  # those of the stand-in


def test_the_selector_ranks_the_candidates_of_the_device():
    ranking = ca.explain(PROBLEM, device="cuda:0")
    assert {c.id.partition(".")[0] for c in ranking.candidates} == {"gpu"}
    listed = {c.id for c in ranking.candidates} | {r.id for r in ranking.rejected}
    assert listed == {a.id for a in algorithms("gpu")}
    assert "gpu.direct" in str(ranking)
    plan = ca.plan(PROBLEM, device="cuda", allow="gpu.direct")
    assert plan.algorithm == "gpu.direct" and "gpu.direct" in plan.explain()


def test_without_a_device_the_reason_is_given():
    token = device._chosen.set(None)
    try:
        assert "cupy" in DIRECT.why_not(PROBLEM).lower()
    finally:
        device._chosen.reset(token)


def test_devices_have_names(on_the_shim):
    assert device.named("cuda") is on_the_shim and device.named("cuda:0") is on_the_shim
    for name in ("gpu", "cuda:", "cuda:x"):
        with pytest.raises(ValueError, match="must be 'cpu', 'cuda' or 'cuda:N'"):
            device.named(name)


def test_records_hold_the_sizes_of_the_three_dimensional_view():
    record = conv_record(ca.ConvProblem.parse("n2 c4 h5 w6 k8 r3 s2 p1:0,2 stride2,1 channels_last"), True)
    assert record["size"].tolist() == [[1, 5, 6]] and record["kernel"].tolist() == [[1, 3, 2]]
    assert record["pad"].tolist() == [[0, 1, 2]] and record["stride"].tolist() == [[1, 2, 1]]
    assert record["x_channel"] == 1 and record["x_pixel"] == 4 and record["x_image"] == 120
    assert record["relu"] == 1


# --- the stand-in itself -------------------------------------------------------------------------

KERNELS = """
extern "C" __global__ void reversed(float* y) {
    float* shared = static_cast<float*>(dynamic_shared());
    shared[threadIdx.x] = threadIdx.x;
    BARRIER;
    y[blockIdx.x * 64 + threadIdx.x] = shared[63 - threadIdx.x];
}
extern "C" __global__ void sum(float* y) {
    float v = threadIdx.x;
    for (int by = 16; by; by /= 2) v += __shfl_xor_sync(~0u, v, by);
    y[threadIdx.x] = v;
}
extern "C" __global__ void stuck() {
    if (threadIdx.x < 32) __syncthreads();
    else __shfl_sync(~0u, 1, 0), __syncthreads(), __syncthreads();
}
extern "C" __global__ void stuck_warp() {
    if (threadIdx.x < 16) __syncwarp();
    else __syncthreads();
}
"""


@needs_shim
def test_the_stand_in_runs_barriers_and_shuffles(monkeypatch):
    monkeypatch.setattr(
        shim, "source_text", lambda build, replaced: replaced[0][1] + f"#define {build.source}\n" + KERNELS
    )
    device_ = shim.ShimDevice()
    good, racing = Build("BARRIER __syncthreads()"), Build("BARRIER")
    for build in (good, racing):
        y = np.full(128, np.nan, np.float32)
        device_.function(build, "reversed", 256)((2,), (64,), (y,), shared_mem=256)
        right = np.array_equal(y, np.tile(np.arange(64)[::-1], 2))
        assert right == (build is good), "a missing barrier must show"
    y = np.zeros(64, np.float32)
    device_.function(good, "sum", 0)((1,), (64,), (y,))
    assert (y[:32] == 496).all() and (y[32:] == 496 + 1024).all()
    with pytest.raises(AssertionError, match="wait for one another"):
        device_.function(good, "stuck_warp", 0)((1,), (32,), ())
    device_.function(good, "stuck", 0)((1,), (64,), ())  # exited threads are no longer waited for


@needs_shim
@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")
def test_the_stand_in_rounds_sixteen_bits_as_numpy_does(monkeypatch):
    """Through a 1x1 convolution with weight 1: every float16 and bfloat16 comes back as it went in."""
    for dtype in ("float16", "bfloat16"):
        bits = np.arange(1 << 16, dtype=np.uint16)
        x = bits.view(numpy_dtype(dtype)).reshape(1, 1, -1)
        problem = ca.ConvProblem(x.shape, (1, 1, 1), dtype=dtype)
        y = DIRECT.serve(problem)(x, np.ones((1, 1, 1), x.dtype))
        same = (y.view(np.uint16) == x.view(np.uint16)) | (np.isnan(y) & np.isnan(x)) | (y == x)
        assert same.all()
    # halves of the spacing round to even, as NumPy rounds
    values = np.float32([1 + 2**-11, 1 + 3 * 2**-11, 65519, 65520, 2**-25, 3 * 2**-25, 6e-8, 2**-14 - 2**-25])
    problem = ca.ConvProblem((1, 2, 8), (1, 2, 1), dtype="float16")
    high = values.astype(np.float16)
    low = (values - high.astype(np.float32)).astype(np.float16)
    finite = np.isfinite(high) & (high.astype(np.float32) + low.astype(np.float32) == values)
    x = np.stack([high, low])[None]
    y = DIRECT.serve(problem)(np.where(finite, x, 0), np.ones((1, 2, 1), np.float16))
    assert np.array_equal(y[0, 0][finite], values.astype(np.float16)[finite])
    assert finite.sum() >= 2
