"""The output step, activation(conv(x, w) + bias + residual), by all algorithms and in every form."""

import math

import numpy as np
import pytest
from cuda_shim.device import RecordingDevice, ShimDevice, missing

import convalgos as ca
from convalgos.core import epilogue
from convalgos.core.allocator import aligned_empty
from convalgos.core.epilogue import NAMES, Activation, activated, activation_of
from convalgos.core.plan import numpy_dtype
from convalgos.cpu.reference import answer, error_scale
from convalgos.gpu.device import use
from convalgos.gpu.launch.epilogue import EpilogueKernel, FusedEpilogue
from convalgos.select import algorithms, facing, find_algorithm

needs_shim = pytest.mark.skipif(missing() is not None, reason=str(missing()))
FORMS = (
    *(name for name in NAMES if name != "clip"),
    ("clip", -0.5, 0.75),
    ("leaky_relu", -0.25),
    ["leaky_relu", 2],
    ("elu", 0.5, 2),
    Activation("hard_swish", 0.5, -0.25),
)
PROBLEMS = [
    ca.ConvProblem.parse(text)
    for text in (
        "n2 c4 h9 w8 k6 r3 s3 p1",
        "n1 c4 h12 w11 k4 r3 s3 p1 groups4",
        "n1 c2 h14 w13 k4 r5 s5 p2",
        "n1 c4 h10 w9 k6 r4 s4 p1",
        "n1 c4 h10 w9 k6 r2 s2 p1",
        "n1 c1 w4000 k1 s900 p899:0",
        "n1 c2 w600 k2 s300 p299:0 groups2",
    )
]
SERVED = {a.id: next((p for p in PROBLEMS if not a.why_not(p)), None) for a in algorithms("cpu")}


def by_definition(v, form):
    """float64, one element at a time."""
    name, a, b = activation_of(form)
    if name == "clip":
        return min(max(v, a), b)
    if name == "elu":
        return b * (v if v > 0 else a * math.expm1(v))
    if name == "softplus":
        return max(v, 0) + math.log1p(math.exp(-abs(v)))
    if name == "hard_swish":
        return (1 + a) * v * min(max(v + 3, 0), 6) / 6 + b
    shares = {
        "relu": float(v > 0),
        "leaky_relu": 1 if v > 0 else a,
        "sigmoid": 1 / (1 + math.exp(-v)) / (v or 1),
        "silu": 1 / (1 + math.exp(-v)),
        "gelu": math.erfc(-v / math.sqrt(2)) / 2,
        "tanh": math.tanh(v) / (v or 1),
        "mish": math.tanh(max(v, 0) + math.log1p(math.exp(-abs(v)))),
        "gelu_tanh": (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) / 2,
    }
    return 0.5 if name == "sigmoid" and v == 0 else v * shares[name]


VALUES = np.concatenate([np.linspace(-12, 12, 1201), [0.0, -0.0, 1e-30, -1e-30, 40, -40, 700, -700]])


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_values_slopes_and_limits(form):
    found = activated(VALUES, activation_of(form))
    exact = np.array([by_definition(v, form) for v in VALUES])
    assert np.allclose(found, exact, rtol=1e-14, atol=2e-15)
    of_float = activated(VALUES.astype(np.float32), activation_of(form))
    assert of_float.dtype == np.float32
    assert (np.abs(of_float - exact) <= 4e-7 * np.maximum(np.abs(exact), 1)).all()
    slopes = np.abs(np.diff(found[:1201]) / np.diff(VALUES[:1201]))
    steepest = epilogue.steepest(activation_of(form))
    assert 0.99 * steepest <= slopes.max() <= steepest * (1 + 1e-9)
    edge = np.array([[np.nan, np.inf, -np.inf]], np.float32).astype(np.float16)
    epilogue.add_and_activate(edge, None, activation_of(form))
    far = np.array([by_definition(700.0, form), by_definition(-700.0, form)])
    far[np.abs(far) > 6.5] *= np.inf
    assert np.isnan(edge[0, 0]) and np.allclose(edge[0, 1:].astype(float), far, rtol=1e-3)


@pytest.mark.parametrize(
    ("form", "told"),
    [
        ("swish", "'silu', 'hard_swish'"),
        (("clip", 1), "two finite numbers"),
        (("clip", 2, 1), "low <= high"),
        ("clip", "two finite numbers"),
        (("leaky_relu", math.nan), "one finite number"),
        (("leaky_relu", "0.1"), "one finite number"),
        (("silu", 1), "no numbers"),
        (("elu", 1), "alpha and scale"),
        (("relu6", 5), "no numbers"),
        ((), "must be None"),
        (np.ones(3), "must be None"),
        (3, "must be None"),
    ],
    ids=str,
)
def test_what_is_no_activation_is_refused(form, told):
    x, w = np.ones((1, 1, 3, 3), np.float32), np.ones((1, 1, 1, 1), np.float32)
    with pytest.raises(ValueError, match=r"^activation=") as error:
        ca.conv(x, w, activation=form)
    assert told in str(error.value)


def data(problem, dtype=np.float32):
    rng = np.random.default_rng(3)
    shapes = (*problem.array_shapes, (problem.bias_size,))
    x, w, residual, bias = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    return x, w, residual, bias


def aligned(array):
    found = aligned_empty(array.size, array.dtype).reshape(array.shape)
    found[...] = array
    return found


def expected(problem, x, w, bias, residual, form):
    """(y in float64, what errors of the sums before the activation are relative to)"""
    last = problem.layout == "channels_last"
    logical = np.moveaxis(x, -1, 1) if last else x
    sums = answer(problem, logical, w)
    scale = error_scale(problem, logical, w, sums)
    sums = np.moveaxis(sums, 1, -1) + bias if last else sums + bias.reshape(-1, *(1,) * problem.ndim)
    if residual is not None:
        sums = sums + residual
    return activated(sums, activation_of(form)), scale + np.abs(sums).max()


def assert_right(algorithm, problem, plan, form, dtype=np.float32, rounded=0):
    """rounded: times that a sum is rounded to a type of 16 bits before the result is."""
    x, w, residual, bias = data(problem, dtype)
    prepared = plan.prepare(w)
    for added in (None, residual):
        y, scale = expected(problem, x, w, bias, added, form)
        eps = float(np.finfo(np.float32).eps) * 8 + problem.eps * (problem.itemsize == 2) * (1 + rounded)
        bound = (
            (algorithm.error_bound(problem) + eps) * scale * max(1, epilogue.steepest(activation_of(form)))
        )
        found = plan(x, prepared, bias=bias, activation=form, residual=added)
        assert np.abs(found.astype(np.float64) - y).max() <= bound
        if added is not None:
            out = added.copy()  # in the place of the residual
            assert plan(x, prepared, bias=bias, activation=form, residual=out, out=out) is out
            assert np.array_equal(out, found)


@pytest.mark.parametrize("algorithm", [a for a in algorithms("cpu") if SERVED[a.id]], ids=lambda a: a.id)
def test_every_algorithm_finishes_its_sums(algorithm):
    for layout, form in (("channels_first", "gelu"), ("channels_last", ("leaky_relu", 0.2))):
        problem = SERVED[algorithm.id].replace(layout=layout)
        if not algorithm.why_not(problem):
            assert_right(algorithm, problem, algorithm.serve(problem), form)


@pytest.mark.parametrize("filters", [1, 6, 17])
@pytest.mark.parametrize("name", ["cpu.direct", "cpu.im2col.own"])
def test_filters_of_a_pixel_that_lie_side_by_side(name, filters):
    """Channels last, pixels are finished one by one, or as one run where a panel has all filters."""
    problem = ca.ConvProblem.parse(f"n2 c3 h9 w7 k{filters} r3 s3 p1").replace(layout="channels_last")
    found = next(a for a in algorithms("cpu") if a.id == name)
    assert_right(found, problem, found.serve(problem), "tanh")


def test_calls_of_every_kind():
    """Views of channels-last memory, transposed, 16-bit and empty ones; not gradients of filters."""
    problem = PROBLEMS[0]
    x, w, residual, bias = data(problem)
    y, _ = expected(problem, x, w, bias, residual, "silu")
    close = {"rtol": 1e-4, "atol": 1e-4}
    assert np.allclose(ca.conv(x, w, bias, padding=1, activation="silu", residual=residual), y, **close)
    view = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
    found = ca.conv(view, w, bias, padding=1, layout="channels_last", activation="silu", residual=residual)
    assert np.allclose(found, y, **close)
    plain = ca.conv_transpose(x, w.transpose(1, 0, 2, 3).copy(), padding=1)
    found = ca.conv_transpose(x, w.transpose(1, 0, 2, 3).copy(), padding=1, activation="sigmoid")
    assert np.allclose(found, 1 / (1 + np.exp(-plain)), **close)
    halves = [a.astype(np.float16) for a in (x, w, bias, residual)]
    found = ca.conv(*halves[:3], padding=1, activation="silu", residual=halves[3])
    assert found.dtype == np.float16 and np.allclose(found, y, rtol=0.02, atol=0.05)
    nothing = np.ones((2, 0, 3, 3), np.float32)
    empty = ca.conv(nothing, np.ones((4, 0, 1, 1), np.float32), activation="sigmoid")
    assert np.array_equal(empty, np.full((2, 4, 3, 3), 0.5, np.float32))
    gradient = ca.plan(problem.replace(direction="backward_weights"))
    for name, value in (("residual", w), ("activation", "gelu")):
        with pytest.raises(ValueError, match=f"^{name}=.* must be None"):
            gradient(x, residual, **{name: value})
    with pytest.raises(ValueError, match="residual has shape"):
        ca.conv(x, w, padding=1, residual=residual[:1])


# --- on a GPU ----------------------------------------------------------------------------------

FUSED = (  # (algorithm, problem): what kernels write whole, as parts of a sum, in phases, and 16 bits of
    ("gpu.direct", "n1 c3 h6 w7 k5 r3 s3 p1"),
    ("gpu.implicit_gemm.half", "n1 c256 h3 w3 k3 r3 s3 p1 float16"),
    ("gpu.implicit_gemm.half", "n2 c8 h5 w6 k10 r1 s1 float16"),
    ("gpu.depthwise", "n1 c4 h9 w10 k4 r3 s3 p1 groups4"),
)


@needs_shim
@pytest.mark.parametrize(("name", "text"), FUSED)
def test_an_activation_runs_in_the_kernels(name, text):
    problem = ca.ConvProblem.parse(text)
    with use(ShimDevice()):
        algorithm = find_algorithm(name, problem)
        plan = algorithm.serve(problem)
        assert_right(algorithm, problem, plan, "silu", numpy_dtype(problem.dtype), rounded=1)
        assert len(plan._rebuilt) == 1 + plan.adds_residual  # the rest by a kernel behind
        assert bool(plan._epilogues) != plan.adds_residual
        x, w, residual, bias = map(aligned, data(problem, numpy_dtype(problem.dtype)))
        for added in (None, residual):
            how = {"bias": bias, "activation": "silu", "residual": added}
            right = plan(x, w, **how)
            replay = plan.capture(x, plan.prepare(w), **how)
            assert np.array_equal(replay(), right)


@needs_shim
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_the_kernel_of_the_output_step(dtype):
    """Every activation, on whole vectors and what is left of them, in place."""
    kind = numpy_dtype(dtype)
    kinds = {activation_of(form).name: form for form in FORMS}
    forms = kinds.values() if dtype == "float32" else ("gelu", None)
    eps = {"float32": 2**-22, "float64": 2**-51, "bfloat16": 2**-7}[dtype]
    values = np.concatenate([VALUES, [np.nan, np.inf, -np.inf]]).astype(kind)
    residual = np.random.default_rng(1).standard_normal(len(values)).astype(kind)
    for form in forms:
        step = EpilogueKernel(ShimDevice(), dtype, activation_of(form))
        for added in (None, residual):
            sums = values.astype(np.float64) + (0 if added is None else added.astype(np.float64))
            right = sums if form is None else activated(sums, activation_of(form))
            y = values.copy()
            step(y, added)
            found = y.astype(np.float64)
            assert np.array_equal(np.isnan(found), np.isnan(right))
            there = np.isfinite(right)
            assert np.array_equal(found[~there & ~np.isnan(right)], right[~there & ~np.isnan(right)])
            off = np.abs(found[there] - right[there])
            assert (off <= 4 * eps * np.maximum(np.abs(sums[there]), 1)).all()


def test_every_plan_of_a_gpu_can_be_built_with_an_activation():
    """With the same launches, so that it reads the same filters and tables."""
    texts = (*(str(p) for p in PROBLEMS), "n1 c1 w40000 k1 s20000 p19999:0", "n1 c64 h9 w8 k64 r3 s3 p1")
    problems = [ca.ConvProblem.parse(text) for text in texts]
    problems += [p.replace(dtype="float16") for p in problems] + [
        p.replace(compute_dtype="tf32") for p in problems
    ]
    problems += [p.replace(layout="channels_last") for p in problems]
    problems += [p.replace(direction="backward_data") for p in problems]
    gelu = activation_of("gelu")
    seen = set()
    with use(RecordingDevice()):
        for problem in problems:
            for algorithm in (facing(a, problem.direction) for a in algorithms("gpu")):
                if (algorithm.id, problem.direction) in seen or algorithm.why_not(problem):
                    continue
                seen.add((algorithm.id, problem.direction))
                plan = algorithm.serve(problem)
                fused = plan._built_with(FusedEpilogue(gelu))
                assert [of[1:5] for of in fused.launches] == [of[1:5] for of in plan.launches]
                assert all(("ACTIVATION", 7) in of.build.macros for of in fused.launches)
                assert all(("ACTIVATION", 7) not in of.build.macros for of in plan.launches)
    assert len(seen) > 24
