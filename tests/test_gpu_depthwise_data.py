"""The gradient of the input of strided depthwise layers on a GPU: all phases at once."""

from itertools import product

import numpy as np
import pytest
from cuda_shim import device as shim
from helpers import KINDS, Guarded, check, example
from page_edges import EdgeDevice

from convalgos.core.errors import Unsupported
from convalgos.core.plan import numpy_dtype
from convalgos.core.problem import ConvProblem
from convalgos.gpu import depthwise_data
from convalgos.gpu.device import use
from convalgos.select import algorithms_on

(ALGORITHM,) = depthwise_data.ALGORITHMS
needs_shim = pytest.mark.skipif(shim.missing() is not None, reason=str(shim.missing()))

PROBLEMS = [
    f"{text} {layout}"
    for text, layout in product(
        (
            *(
                f"n2 c3 h9 w{w} k3 r{r} s{r} p{r // 2} groups3 stride2"
                for w, r in product((16, 14, 13), (3, 5, 7))
            ),
            "n1 c3 h10 w24 k6 r3 s3 p0 groups3 stride2",  # a multiplier, inputs that no output reads
            "n2 c3 h8 w18 k3 r4 s2 p2:1,1:0 groups3 stride2",
            "n1 c2 h5 w4 k4 r3 s3 p7:1,0:6 groups2 stride2",  # outputs that see no input
            "n1 c2 h7 w8 k2 r8 s7 p4,3 groups2 stride2",
            "n2 c3 w37 k3 s5 p2 groups3 stride2",
            "n2 c2 d5 h7 w8 k2 t3 r3 s3 p1 groups2 stride2",
            "n1 c2 d6 h5 w8 k4 t2 r3 s3 p1:0,1,2 groups2 stride1,2,2 dilation2,1,1",
            "n1 c1 h1 w1 k1 r1 s1 stride2",
            "n2 c3 h9 w8 k3 r3 s3 p1 groups3 stride2 convolution",
        ),
        ("channels_first", "channels_last"),
    )
]


@pytest.fixture(autouse=True)
def on_the_shim(monkeypatch):
    """Arrays that start where a vector may, as CuPy's do: others would be copied first."""
    monkeypatch.setattr(Guarded, "BAND", 1024)
    with use(shim.ShimDevice()) as chosen:
        yield chosen


def parsed(text: str, **changes) -> ConvProblem:
    return ConvProblem.parse(text).replace(direction="backward_data", **changes)


@needs_shim
def test_every_build_gives_exact_answers(on_the_shim):
    # float16 differs from bfloat16 in the conversions alone, which other tests see
    declared = {b for b in ALGORITHM.builds() if dict(b.macros)["element_t"] != "float16_t"}
    on_the_shim.compile(declared)
    launched = set()
    for text, dtype in product(PROBLEMS, ("float32", "bfloat16")):
        problem = parsed(text, dtype=dtype)
        wide = problem.replace(dtype="float32", layout="channels_first")
        dy, w, bias, dx = example(wide, "integers")
        dx = np.maximum(dx + bias.reshape(-1, *(1,) * problem.ndim), 0)
        if problem.layout == "channels_last":
            dy, dx = (np.moveaxis(a, 1, -1) for a in (dy, dx))
        dy, w, bias, dx = (a.astype(numpy_dtype(dtype)) for a in (dy, w, bias, dx))
        plan = ALGORITHM.serve(problem)
        launched |= {launch.build for launch in plan.launches}
        out = np.full(dx.shape, np.nan, dx.dtype)
        assert np.array_equal(plan(dy, plan.prepare(w), bias=bias, out=out, activation="relu"), dx), problem
    assert launched == declared


@needs_shim
@pytest.mark.parametrize("edge", ["start", "end"])
def test_nothing_is_read_beyond_the_arrays(edge):
    with use(EdgeDevice(edge)):
        for text, dtype in product(PROBLEMS[::2] + PROBLEMS[1::4], ("float32", "bfloat16")):
            problem = parsed(text, dtype=dtype)
            dy, w = (np.ones(shape, numpy_dtype(dtype)) for shape in problem.array_shapes[:2])
            assert np.isfinite(ALGORITHM.serve(problem)(dy, w).astype(np.float32)).all()


@needs_shim
def test_real_data_stay_within_the_bound():
    for text, kind in product(PROBLEMS, KINDS):
        check(ALGORITHM, parsed(text), kind)


def test_it_says_what_it_cannot_serve():
    for text, reason in (
        ("n1 c4 h8 w8 k4 r3 s3 stride2", "one input channel per group, not 4"),
        ("n1 c4 h8 w8 k4 r3 s3 groups4", r"stride 2 along rows and columns, not \(1, 1\)"),
        ("n1 c4 h8 w8 k4 r3 s3 groups4 stride2,3", r"stride 2 along rows and columns, not \(2, 3\)"),
        ("n1 c4 h9 w9 k4 r3 s3 groups4 stride2 dilation2", r"no dilation of rows and columns, not \(2, 2\)"),
        ("n1 c4 h9 w9 k4 r8 s8 p1 groups4 stride2", "up to 8 taps, one less where padding is odd"),
    ):
        with pytest.raises(Unsupported, match=reason):
            ALGORITHM.serve(parsed(text))


def test_it_is_chosen_where_phases_would_be_copied():
    problem = parsed("n32 c144 h56 w56 k144 r3 s3 p1 groups144 stride2")
    found = [a for a in algorithms_on("cuda:0", "backward_data") if a.why_not(problem) is None]
    costs = {a.id: a.cost(problem, shim.H200) for a in found if "cudnn" not in a.id}
    floor = shim.H200.stream(problem.x_bytes + problem.y_bytes) + shim.H200.launch
    assert min(costs, key=costs.get) == "gpu.depthwise.data" and costs["gpu.depthwise.data"] < 1.5 * floor
