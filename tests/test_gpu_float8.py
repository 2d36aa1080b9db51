"""8-bit floats on Hopper's tensor cores, in emulation: sums of 13 bits, added up in float32."""

import re
from itertools import product

import numpy as np
import pytest
from cuda_shim import device as shim

pytest.importorskip("ml_dtypes")

import convalgos as ca
from convalgos.core.element_types import FLOAT8_DTYPES
from convalgos.core.plan import numpy_dtype
from convalgos.core.problem import ConvProblem
from convalgos.cpu.reference import answer, error_scale
from convalgos.gpu.device import use
from convalgos.select import find_algorithm
from convalgos.tools.gpu_check import cases, checks
from convalgos.tools.gpu_check.results import Result

pytestmark = pytest.mark.skipif(shim.missing() is not None, reason=str(shim.missing()))
WGMMA = find_algorithm("gpu.implicit_gemm.wgmma_float8")
FINE, WIDE = FLOAT8_DTYPES
PAIRS = list(product(FLOAT8_DTYPES, FLOAT8_DTYPES))
Y_DTYPES = ("float32", "float16", "bfloat16")
AWKWARD = (
    "n2 c45 h6 w5 k37 r3 s3 p1:0,2 stride2",
    "n1 c96 h6 w8 k24 r3 s2 p2 dilation2,1 groups2",
    "n1 c32 d3 h4 w5 k70 t2 r2 s3 p1 convolution",
    "n1 c144 w133 k9 s3 p2:0",
)
BAND = 1024  # elements on either side of a result, which stay as they are


@pytest.fixture(autouse=True)
def on_the_shim():
    with use(shim.ShimDevice()):
        yield


def drawn(problem, kind="reals"):
    rng = np.random.default_rng(1)
    arrays = []
    for name, shape in zip(problem.arrays, problem.array_shapes[:2], strict=False):
        values = rng.standard_normal(shape)
        if kind == "integers":
            values = np.clip(np.rint(values), -2, 2)
        elif kind == "positive":
            values = np.abs(values)
        arrays.append(values.astype(numpy_dtype(problem.dtype_of(name))))
    return arrays


def error(problem, plan, kind):
    """Of y with bias and ReLU, relative to the size of the sums; nothing beside y is written."""
    x, w = drawn(problem, kind)
    bias = np.linspace(-2, 2, problem.K).astype(numpy_dtype(problem.y_dtype))
    memory = np.full(np.prod(problem.array_shapes[2]) + 2 * BAND, 77, bias.dtype)
    y = memory[BAND:-BAND].reshape(problem.array_shapes[2])
    y.fill(np.nan)
    assert plan(x, plan.prepare(w), bias=bias, out=y, activation="relu") is y
    assert (memory[:BAND] == 77).all() and (memory[-BAND:] == 77).all(), "written outside"
    x = problem.logical(0, x).astype("f8")
    exact = answer(problem, x, w.astype("f8")) + bias.astype("f8").reshape(-1, *(1,) * problem.ndim)
    found = problem.logical(2, y).astype("f8")
    return abs(found - np.maximum(exact, 0)).max() / error_scale(problem, x, w.astype("f8"), exact)


def test_every_build_computes():
    """All pairs of types, types of y and tiles, whole and split sums; what 13 bits hold is exact."""
    launched, pairs = set(), set()
    for turn, (line, layout) in enumerate(product(AWKWARD, ("channels_last", "channels_first"))):
        tile, (of_x, of_w) = WGMMA.form.tiles[turn // 3 % 2], PAIRS[(turn + turn // 4) % 4]
        problem = ConvProblem.parse(line).replace(
            dtype=of_x, w_dtype=of_w, y_dtype=Y_DTYPES[turn % 3], layout=layout
        )
        assert WGMMA.why_not(problem) is None
        plan = WGMMA.planned(problem, tile, 1 + turn % 2)
        exact = turn < 4
        bound = problem.eps if exact else WGMMA.error_bound(problem)
        assert error(problem, plan, "integers" if exact else "reals") <= bound
        launched.add(plan.launches[0].build)
        pairs.add((of_x, of_w, layout))
    assert launched == set(WGMMA.builds()) and len(pairs) == 8


def test_long_sums_are_added_up_in_float32(monkeypatch):
    """Where all products have one sign, tensor cores alone would be off by much more."""
    problem = ConvProblem.parse(f"n1 c4608 w8 k8 s1 channels_last {FINE}")
    plan = WGMMA.planned(problem, WGMMA.form.tiles[1], 1)
    assert 2**-15 < error(problem, plan, "reals") < 2**-10
    assert error(problem, plan, "positive") < 2**-11

    whole = shim.source_text

    def unpromoted(build, replaced):
        body, count = re.subn(
            "#ifdef FLOAT8  // tensor cores", "#if 0  // tensor cores", whole(build, replaced)
        )
        assert count == 1, "the kernel reads otherwise now"
        return body.replace("#ifndef FLOAT8\n            wait", "#if 1\n            wait")

    monkeypatch.setattr(shim, "source_text", unpromoted)
    shim.compiled.cache_clear()
    plan = WGMMA.planned(problem, WGMMA.form.tiles[1], 1)
    assert error(problem, plan, "positive") > 2**-9
    shim.compiled.cache_clear()


def test_every_number_is_multiplied():
    """Denormal ones, infinity and NaN with the rest: by one, and by zeros of the padding."""
    for of_x, of_w in ((FINE, FINE), (WIDE, FINE)):
        every = np.arange(256, dtype="u1").view(numpy_dtype(of_x))
        w = np.ones((1, 1, 1), numpy_dtype(of_w))
        plan = WGMMA.serve(ConvProblem((1, 1, 256), w.shape, dtype=of_x, w_dtype=of_w))
        assert np.array_equal(plan(every.reshape(1, 1, 256), w).ravel(), every.astype("f4"), equal_nan=True)


def test_a_library_without_the_types_gives_bits():
    """As CuPy does, and torch on a GPU; a tensor of the other type is refused."""
    problem = ConvProblem((1, 32, 6), (4, 32, 3), dtype=FINE)
    x, w = drawn(problem)
    plan = WGMMA.serve(problem)
    y = plan(x, w)
    assert np.array_equal(plan(x.view("u1"), plan.prepare(w.view("u1"))), y)
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(x.view("u1")).view(torch.float8_e4m3fn)
    assert np.array_equal(plan(tensor, w).numpy(), y)
    for wrong in (tensor.view(torch.float8_e5m2), x.astype(numpy_dtype(WIDE)), x.view("i1")):
        with pytest.raises(TypeError, match=f"the problem has {FINE}"):
            plan(wrong, w)
    assert np.array_equal(plan(x, w, residual=y), 2 * y)  # which another kernel adds


def test_they_are_chosen_on_hopper_and_refused_elsewhere():
    problem = ConvProblem.parse(f"n8 c256 h28 w28 k256 r3 s3 p1 channels_last {FINE} w_{WIDE} y_float16")
    half = find_algorithm("gpu.implicit_gemm.wgmma_half")
    assert WGMMA.cost(problem, shim.H200) < half.cost(
        problem.replace(dtype="float16", w_dtype=None), shim.H200
    )
    assert ca.explain(problem, device="sm_90").candidates[0].id == WGMMA.id
    with use(shim.RecordingDevice(shim.A100)):
        assert "needs compute capability 9.0" in WGMMA.why_not(problem)
    assert shim.H200.tensor_peak(FINE) == shim.H200.peak_of(problem) == 2 * shim.H200.tensor_peak("float16")


def test_the_check_of_a_gpu_covers_them():
    chosen = [c for c in cases.of_texts("", ["n1 c40 h5 w6 k9 r3 s3 p1"]) if c.problem.dtype in FLOAT8_DTYPES]
    every = checks.check_algorithms(shim.ShimDevice(), chosen, True, until=1e99, whose="ours")
    found = [result for result in every if isinstance(result, Result)]
    assert {r.algorithm for r in found} == {WGMMA.id} and len(found) == 2 * len(chosen) == 8
    assert not any(r.wrong for r in found), list(map(str, found))
