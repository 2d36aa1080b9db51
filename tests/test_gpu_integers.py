"""Kernels of 8-bit integers on emulated instructions: exact, with zero points, limits and wrapping sums."""

import math
from dataclasses import replace
from itertools import cycle, product

import numpy as np
import pytest
from cuda_shim import device as shim

from convalgos.core.problem import ConvProblem
from convalgos.core.quantization import Quantization
from convalgos.gpu.device import use
from convalgos.gpu.direct import INTEGER as INTEGER_TILES
from convalgos.gpu.direct import Direct, DirectIntegers
from convalgos.gpu.gemm import wgmma_plan
from convalgos.gpu.gemm.mma import is_copied
from convalgos.gpu.implicit_gemm import ImplicitGemm, ImplicitGemmIntegers
from convalgos.gpu.implicit_gemm_wgmma import Wgmma
from convalgos.gpu.launch import integer_plan
from convalgos.gpu.launch.integer_plan import signed_terms, terms_needed
from convalgos.select import algorithms, find_algorithm
from convalgos.tools.gpu_check import cases, checks
from convalgos.tools.gpu_check.results import Result

pytestmark = pytest.mark.skipif(shim.missing() is not None, reason=str(shim.missing()))
INTEGER = [
    a for a in algorithms("gpu") if "int8" in a.dtypes and list(a.builds())
]  # of cuDNN: test_gpu_cudnn.py
each_algorithm = pytest.mark.parametrize("algorithm", INTEGER, ids=lambda a: a.id)
DENSE = (
    "n1 c160 h5 w6 k36 r3 s3 p1 groups2",  # channels of a group that end within a step of wgmma
    "n2 c16 h6 w5 k20 r3 s3 p1:0,2 stride2",
    "n1 c24 h5 w6 k69 r3 s3 p2 dilation2 groups3",
    "n2 c5 d3 h4 w5 k3 t2 r2 s3 p1 convolution",
    "n1 c7 w33 k9 s4 p3:0",
)
THIN = (
    "n2 c8 h5 w12 k8 r3 s3 p1 groups8",
    "n1 c5 h9 w8 k10 r5 s5 p2 stride2 groups5",
    "n1 c4 h9 w9 k4 r3 s6 p2 stride3 dilation2 groups4",
    "n1 c4 d3 h3 w16 k4 t2 r1 s9 p1,0,4 groups4",
)
KINDS = (  # types of x, w and y, then zero points and rounding
    ("uint8", "int8", "uint8", {"x_zero_point": 131, "y_zero_point": 7, "rounding": "onnx"}),
    ("int8", "int8", "int32", {"x_zero_point": -9}),
    ("uint8", "uint8", "int8", {"x_zero_point": 3, "w_zero_point": 128, "y_zero_point": -3}),
    ("int8", "uint8", "float32", {"w_zero_point": 77, "x_zero_point": 1}),
)


BAND = 1024  # elements on either side of a result, which stay as they are


@pytest.fixture(autouse=True)
def on_the_shim():
    with use(shim.ShimDevice()):
        yield


def checked(algorithm, problem, quantization, activation=None, biased=True, plan=None):
    """Run on all of the types' numbers; the answer of the reference is y, bit for bit."""
    rng = np.random.default_rng(0)

    def numbers(dtype, shape):
        info = np.iinfo(dtype)
        found = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
        found.ravel()[:2] = (info.min, info.max)[: found.size]
        return found

    x = numbers(problem.dtype, problem.array_shapes[0])
    w = numbers(problem.w_dtype, problem.w_shape)
    bias = rng.integers(-9999, 9999, problem.K, np.int32) if biased else None
    exact = find_algorithm("cpu.reference").serve(problem)
    wanted = exact(x, exact.prepare(w, quantization), bias=bias, activation=activation)
    plan = plan or algorithm.serve(problem)
    memory = np.full(wanted.size + 2 * BAND, 77, wanted.dtype)
    y = memory[BAND:-BAND].reshape(wanted.shape)
    assert plan(x, plan.prepare(w, quantization), bias=bias, activation=activation, out=y) is y
    assert (memory[:BAND] == 77).all() and (memory[-BAND:] == 77).all(), "written outside"
    np.testing.assert_allclose(
        y, wanted, rtol=0, atol=algorithm.error_bound(problem) * abs(wanted).max(initial=0)
    )


def every_plan(algorithm, problem):
    """With all tiles, and sums that are split."""
    if isinstance(algorithm, Direct):
        return [DirectIntegers(problem, algorithm, tile) for tile in INTEGER_TILES]
    if isinstance(algorithm, Wgmma):
        splits = (1, 2 if wgmma_plan.sum_steps(problem, 1) > 1 else 1)
        return [
            algorithm.planned(problem, *how) for how in zip(algorithm.form.tiles, splits * 2, strict=True)
        ]
    if isinstance(algorithm, ImplicitGemm):
        tiles = algorithm.tiles(problem.layout, is_copied(problem, problem.w_shape[1]))
        splits = (1, 2 if problem.gemm_k > 128 else 1)
        return [ImplicitGemmIntegers(problem, algorithm, *how) for how in zip(tiles, splits, strict=False)]
    return [algorithm.serve(problem)]


@each_algorithm
def test_every_build_is_exact(algorithm):
    """All types and zero points, both layouts, groups, steps, three dimensions, mirrored filters."""
    served, kinds = set(), cycle(KINDS)
    for text, layout in product((*DENSE, *THIN), ("channels_first", "channels_last")):
        x, w, y, given = next(kinds)
        problem = ConvProblem.parse(text).replace(
            layout=layout, dtype=x, w_dtype=w, y_dtype=y, scales="per_channel"
        )
        if algorithm.why_not(problem):
            continue
        scales = np.linspace(1e-4, 3e-3, problem.K)
        quantization = Quantization(0.5, w_scale=scales, y_scale=1.5, **given)
        for plan in every_plan(algorithm, problem):
            checked(algorithm, problem, quantization, "relu", plan=plan)
            served |= {launch.build for launch in plan.launches}
    assert served == {build for build in algorithm.builds() if ("QUANTIZED", 1) in build.macros}


@each_algorithm
def test_sums_wrap(algorithm):
    """As ONNX's do, with the bias: 2^31 is not what int32 holds."""
    problem = ConvProblem((1, 4, 4), (4, 1, 4), groups=4, dtype="int8")
    if algorithm.why_not(problem):
        problem = problem.replace(x_shape=(1, 1, 4), groups=1)
    x, w = np.full(problem.x_shape, -128, np.int8), np.full(problem.w_shape, -128, np.int8)
    bias = np.full(4, 2**31 - 4 * 2**14, np.int32)
    assert (algorithm.serve(problem)(x, w, bias=bias) == -(2**31)).all()


@each_algorithm
def test_limits_and_activations(algorithm):
    """Clips of 8 bits are limits; of float32 any activation is built in; of int32 there is ReLU alone."""
    problem = ConvProblem.parse("n1 c4 h4 w5 k4 r3 s3 p1 groups4 uint8 w_int8")
    if algorithm.why_not(problem):
        problem = problem.replace(w_shape=(4, 4, 3, 3), groups=1)
    quantization = Quantization(0.01, 128, 0.02, y_scale=0.05, y_zero_point=9)
    checked(algorithm, problem.replace(y_dtype="uint8"), quantization, "relu6")
    real = replace(quantization, y_zero_point=0)
    checked(algorithm, problem.replace(y_dtype="float32"), real, "relu", biased=False)
    checked(algorithm, problem.replace(y_dtype="float32"), real, "leaky_relu")
    plan, x, w = (
        algorithm.serve(problem),
        np.zeros(problem.x_shape, np.uint8),
        np.zeros(problem.w_shape, np.int8),
    )
    with pytest.raises(ValueError, match="None or 'relu'"):
        plan(x, w, activation="relu6")
    with pytest.raises(ValueError, match="residual=ndarray must be None"):
        plan(x, w, residual=np.zeros(problem.y_shape, np.int32))
    with pytest.raises(ValueError, match="x_zero_point=300"):
        plan.prepare(w, Quantization(x_zero_point=300))


@pytest.mark.parametrize("text", ["n2 c0 h5 w5 k4 r3 s3 p1", "n0 c3 h5 w5 k4 r3 s3", "n1 c3 h5 w5 k0 r3 s3",
                                  "n1 c3 h2 w2 k4 r1 s1 p2:0,0 stride9"])  # fmt: skip
def test_nothing_to_sum_leaves_the_bias(text):
    """Zero sizes, and windows of padding alone."""
    algorithm = ImplicitGemm("int8")
    for x, w, y, given in KINDS:
        problem = ConvProblem.parse(text).replace(dtype=x, w_dtype=w, y_dtype=y, layout=("channels_last"))
        assert algorithm.why_not(problem) is None
        checked(algorithm, problem, Quantization(0.5, y_scale=90.0, **given), "relu")
        checked(algorithm, problem, Quantization(0.5, y_scale=90.0, **given), None, biased=False)
    problem = ConvProblem.parse(text).replace(dtype="int8", y_dtype="float32")
    checked(algorithm, problem, Quantization(0.5), "leaky_relu")
    binary = ImplicitGemm("binary").serve(ConvProblem.parse(text).replace(dtype="binary"))
    bias = np.arange(-1, binary.problem.K - 1, dtype=np.int32)
    y = binary(np.ones(binary.problem.x_shape, np.int8), np.ones(binary.problem.w_shape, np.int8), bias=bias)
    assert (y == bias.reshape(-1, 1, 1)).all()


@each_algorithm
def test_captured_calls_replay(algorithm):
    problem = ConvProblem.parse("n1 c16 h4 w5 k16 r3 s3 p1 groups16 uint8 w_int8 y_uint8")
    if algorithm.why_not(problem):
        problem = problem.replace(w_shape=(16, 16, 3, 3), groups=1)
    plan = algorithm.serve(problem)
    x = np.full(problem.x_shape, 3, np.uint8)
    w = plan.prepare(np.ones(problem.w_shape, np.int8), Quantization(x_zero_point=2, y_scale=4.0))
    replay = plan.capture(x, w, activation="relu")
    x[...] = 6
    assert np.array_equal(replay(), plan(x, w)) and replay.y.dtype == np.uint8 and replay.y.max() >= 9


def test_filters_beyond_eight_bits_are_sums():
    for dtype, zero_points, count in (
        ("int8", [0], 1), ("uint8", [128], 1), ("uint8", [0], 3), ("uint8", [5, 128], 2),
        ("int8", [-128, 127], 3),
    ):  # fmt: skip
        zero_point = np.array(zero_points, np.int32)
        assert terms_needed(dtype, zero_point) == count
        info = np.iinfo(dtype)
        w = np.arange(info.min, info.max + 1, dtype=np.int32) - zero_point[:, None]
        terms = signed_terms(np, w, count)
        assert all(term.dtype == np.int8 for term in terms)
        assert np.array_equal(sum(term.astype(np.int32) for term in terms), w)


def test_integers_go_to_their_fastest_units():
    dense = ConvProblem.parse("n8 c256 h28 w28 k256 r3 s3 p1 channels_last int8")
    thin = ConvProblem.parse("n8 c256 h28 w28 k256 r3 s3 p1 groups256 int8")
    for figures, problem, first in (
        (shim.A100, dense, "gpu.implicit_gemm.int8"),
        (shim.H200, dense, "gpu.implicit_gemm.wgmma_int8"),
        (shim.A100, thin, "gpu.depthwise.dp4a"),
    ):
        with use(shim.RecordingDevice(figures)):
            costs = {a.cost(problem, figures): a.id for a in INTEGER if not a.why_not(problem)}
            assert costs[min(costs)] == first
    assert shim.A100.tensor_peak("int8") == 2 * shim.A100.tensor_peak("float16")


def test_the_check_of_a_gpu_covers_integers(monkeypatch):
    """Every algorithm of them in both types and layouts, with zero points; a wrong offset is found."""
    chosen = [c for c in cases.of_texts("", [THIN[0]]) if "int8" in c.type]
    device = shim.ShimDevice()

    def results():
        every = checks.check_algorithms(device, chosen, True, until=math.inf, whose="ours")
        return [found for found in every if isinstance(found, Result)]

    found = results()
    assert {r.algorithm for r in found} == {a.id for a in INTEGER if not a.why_not(chosen[0].problem)}
    assert len(found) == 2 * len(chosen) * 3 and not any(r.wrong for r in found), list(map(str, found))
    record = integer_plan.quantized_record
    monkeypatch.setattr(integer_plan, "quantized_record", lambda p, **v: record(p, **v | {"flip": 0}))
    assert any(r.wrong for r in results())
