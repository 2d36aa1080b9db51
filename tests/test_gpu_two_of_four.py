"""Filters of pattern 2:4 on emulated sparse products: every build, odd shapes, and what is refused."""

import math
from itertools import product

import numpy as np
import pytest
from cuda_shim import device as shim

import convalgos as ca
from convalgos.core.problem import ConvProblem
from convalgos.cpu.reference import reference
from convalgos.gpu.device import use
from convalgos.gpu.gemm import two_of_four
from convalgos.gpu.implicit_gemm import ImplicitGemm, ImplicitGemmSparse
from convalgos.tools.gpu_check import cases, checks
from convalgos.tools.gpu_check.results import Result

pytestmark = pytest.mark.skipif(shim.missing() is not None, reason=str(shim.missing()))
ALGORITHM = ImplicitGemm("sparse_half")
LAYERS = (
    "n2 c16 h6 w5 k20 r3 s3 p1:0,2 stride2 2:4",
    "n1 c24 h5 w6 k69 r3 s3 p2 dilation2 groups3 1:4",
    "n1 c40 w33 k9 s4 p3:0 convolution 1:2",
)


@pytest.fixture(autouse=True)
def on_the_shim():
    with use(shim.ShimDevice()):
        yield


def drawn(p, seed=0):
    """x, w and bias of small integers, w of the pattern; -0 is a zero."""
    rng = np.random.default_rng(seed)
    x, w, bias = (rng.integers(-4, 5, s).astype(np.float32) for s in (p.x_shape, p.w_shape, p.K))
    w[w == 0] = 3
    return x, ca.prune(w, pattern=p.pattern) * np.where(rng.integers(0, 2, w.shape), 1, -1), bias


def test_every_build_gives_the_definition():
    served = set()
    for (turn, text), layout, dtype in product(
        enumerate(LAYERS), ("channels_first", "channels_last"), ALGORITHM.dtypes
    ):
        p = ConvProblem.parse(text).replace(layout=layout, dtype=dtype)
        assert ALGORITHM.why_not(p) is None
        x, w, bias = drawn(p, turn)
        expected = np.maximum(reference(p.replace(dtype="float32", layout="channels_first"), x, w, bias), 0)
        last = layout == "channels_last"
        of_x, of_w, of_bias = (
            a.astype(plan_dtype(p)) for a in (np.moveaxis(x, 1, -1) if last else x, w, bias)
        )
        (tile,) = ALGORITHM.tiles(layout, last)
        plan = ImplicitGemmSparse(p, ALGORITHM, tile, splits=1 + (p.gemm_k > 64))
        y = plan(of_x, plan.prepare(of_w), bias=of_bias, activation="relu").astype(np.float32)
        rounded = expected.astype(plan_dtype(p)).astype(np.float32)
        assert np.array_equal(np.moveaxis(y, -1, 1) if last else y, rounded), (text, layout, dtype)
        served |= {launch.build for launch in plan.launches}
    assert served == set(ALGORITHM.builds())


def plan_dtype(p):
    return ALGORITHM.serve(p)._dtype


def test_it_says_what_it_does_not_take():
    p = ConvProblem.parse("n1 c8 h3 w3 k3 r3 s2 float16 2:4 convolution")
    w = np.zeros(p.w_shape, np.float16)
    w[2, 4:7, 0, 1] = 1
    with pytest.raises(ValueError, match=r"at most 2 of 4 .* but w\[2, 4:8, 0, 1\] has 3"):
        ALGORITHM.serve(p).prepare(w)
    dense = p.replace(pattern="unstructured", density=0.5)
    assert ALGORITHM.why_not(dense) == "takes filters of pattern 2:4, not unstructured"
    assert "multiples of 4 input channels" in ALGORITHM.why_not(
        ConvProblem.parse("n1 c6 w9 k8 s3 float16 2:4")
    )
    last = ConvProblem.parse("n1 c12 w9 k8 s3 float16 2:4 channels_last")
    assert "multiples of 8 input channels" in ALGORITHM.why_not(last)


def test_a_choice_takes_them():
    p = ConvProblem.parse("n64 c256 h28 w28 k256 r3 s3 p1 channels_last float16 2:4")
    found = {c.id: c.predicted_s for c in ca.explain(p, device="sm_80").candidates}
    assert min(found, key=found.get) == ALGORITHM.id
    assert ALGORITHM.skips_zeros


def test_the_check_of_a_gpu_covers_them(monkeypatch):
    """With bias and ReLU, in both layouts; elements that are taken from elsewhere are found."""
    chosen = [c for c in cases.of_texts("", ["n1 c8 h5 w6 k9 r3 s3 p1"]) if c.type == "float16 2:4"]

    def results():
        every = checks.check_algorithms(shim.ShimDevice(), chosen, True, until=math.inf, whose=ALGORITHM.id)
        return [found for found in every if isinstance(found, Result)]

    found = results()
    assert len(found) == 4 and not any(r.wrong for r in found), list(map(str, found))
    monkeypatch.setattr(two_of_four, "PAIRS", two_of_four.PAIRS[::-1])
    assert not any(r.wrong for r in results()), "other zeros may be held"
    monkeypatch.setattr(two_of_four, "_pairs_of_masks", lambda: np.tile([0, 1], (16, 1)))
    assert all(r.wrong for r in results())
