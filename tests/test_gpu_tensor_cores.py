"""Tensor-core kernels on emulated mma: every build, both layouts, split sums, TF32 only on request."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from cuda_shim import device as shim
from helpers import KINDS, PROBLEMS, Guarded, check_rounded, example

from convalgos.core.problem import ConvProblem
from convalgos.gpu import implicit_gemm
from convalgos.gpu.compile.module import CompileError
from convalgos.gpu.device import use
from convalgos.gpu.implicit_gemm import ImplicitGemm, ImplicitGemmPlan
from convalgos.select import algorithms, find_algorithm

pytestmark = pytest.mark.skipif(shim.missing() is not None, reason=str(shim.missing()))
MOST_PRODUCTS = 2.5e6  # of a problem of the table: emulated tensor cores are slow
LAYOUTS = ("channels_first", "channels_last")
FLOATS = [
    a for a in implicit_gemm.ALGORITHMS if a.math not in ("int8", "binary", "sparse_half")
]  # have tests of their own
AWKWARD = [
    "n2 c16 h9 w7 k20 r3 s3 p1:0,2 stride2",  # 16 bytes of channels lie together
    "n1 c24 h7 w9 k69 r3 s3 p2 dilation2 groups3",
    "n3 c5 d3 h4 w5 k3 t2 r2 s3 p1",
    "n1 c7 w33 k9 s4 p3:0",
]


@pytest.fixture(autouse=True)
def aligned(monkeypatch):
    monkeypatch.setattr(Guarded, "BAND", 1024)


@pytest.mark.parametrize("algorithm", FLOATS, ids=lambda a: a.id)
def test_every_build_computes(algorithm):
    """All tiles, whole and split sums, on integers (exact) and on reals."""
    shim.ShimDevice().compile(algorithm.builds())
    launched = set()
    with use(shim.ShimDevice()):
        for text, layout, dtype in product(AWKWARD, LAYOUTS, algorithm.dtypes):
            (compute,) = algorithm.computes[dtype]
            problem = ConvProblem.parse(text).replace(layout=layout, dtype=dtype, compute_dtype=compute)
            assert algorithm.why_not(problem) is None
            tiles = algorithm.tiles(layout, implicit_gemm.is_copied(problem, problem.w_shape[1]))
            for turn, (tile, splits) in enumerate(product(tiles, (1, 2)), 2 * (layout == LAYOUTS[0])):
                if splits > implicit_gemm.tap_steps(problem):
                    continue
                plan = ImplicitGemmPlan(problem, algorithm, tile, splits)
                launched.add(plan.launches[0].build)
                wide = problem.itemsize > 2  # each tile on either kind, whole or in parts
                check_rounded(algorithm, problem, plan, KINDS[wide and (turn + turn // 2) % 2])
    missed = set(algorithm.builds()) - launched
    assert not missed, f"no problem runs {', '.join(map(str, missed))}"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_table_of_awkward_problems(layout):
    served, algorithm = 0, ImplicitGemm("tf32")
    with use(shim.ShimDevice()):
        for text in PROBLEMS:
            problem = ConvProblem.parse(text).replace(layout=layout, compute_dtype="tf32")
            if problem.is_empty or problem.flops > 2 * MOST_PRODUCTS or problem.mode == "convolution":
                continue
            served += 1
            check_rounded(algorithm, problem, algorithm.serve(problem), "integers")
    assert served > 30


def test_three_products_are_nearly_float32():
    problem = ConvProblem.parse("n1 c40 h9 w8 k24 r3 s3 p1").replace(compute_dtype="tf32")
    x, w, _, y = example(problem.replace(compute_dtype=None), "reals")
    errors = {}
    with use(shim.ShimDevice()):
        for name in ("tf32", "3xtf32"):
            errors[name] = np.abs(ImplicitGemm(name).serve(problem)(x, w) - y).max() / np.abs(y).max()
    assert 1e-5 < errors["tf32"] < 2e-3
    assert errors["3xtf32"] < 2e-6


def test_float32_is_never_rounded_to_tf32():
    problem = ConvProblem.parse("n1 c40 h9 w8 k24 r3 s3 p1")
    with use(shim.ShimDevice()):
        for name in ("tf32", "3xtf32"):
            assert "float32 in tf32, not in float32" in ImplicitGemm(name).why_not(problem)


FAULTS = {
    "rows of a fragment in another order": (
        "(i * 16 + e % 2 * 8) * A_ROW",
        "(i * 16 + (1 - e % 2) * 8) * A_ROW",
    ),
    "words of another column": ("k + e * 4]", "(k ^ 4) + e * 4]"),
    "steps of twice as many words": ("k += 4 * OF_B", "k += 8 * OF_B"),
    "tiles that do not wait for their copies": ("wait_for_copies();\n", ""),
    "sums in float32": ("sum_t sums[ROWS_A]", "float sums[ROWS_A]"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_float64_are_caught(monkeypatch, fault):
    old, new = FAULTS[fault]
    whole = shim.source_text

    def broken(build, replaced):
        body = whole(build, replaced)
        assert body.count(old) == 1, f"{fault}: the kernel reads otherwise now"
        return body.replace(old, new)

    monkeypatch.setattr(shim, "source_text", broken)
    shim.compiled.cache_clear()
    algorithm, problem = ImplicitGemm("double"), ConvProblem.parse("n1 c32 h9 w8 k24 r3 s3 p1 float64")
    problem = problem.replace(layout="channels_last")
    try:
        with use(shim.ShimDevice()), pytest.raises((AssertionError, CompileError)) as error:
            check_rounded(algorithm, problem, algorithm.serve(problem))
        assert "reads otherwise" not in str(error.value)
    finally:
        shim.compiled.cache_clear()


def test_float64_goes_to_tensor_cores_where_these_are_faster():
    """An H200's are twice as fast as its other units, an L40's as slow as those."""
    problem = ConvProblem.parse("n1 c64 h14 w14 k64 r3 s3 p1 float64").replace(layout="channels_last")
    l40 = replace(shim.A100, capability=(8, 9))
    for machine, first in ((shim.H200, True), (shim.A100, True), (l40, False)):
        with use(shim.RecordingDevice(machine)):
            costs = {a.cost(problem, machine): a.id for a in algorithms("gpu") if not a.why_not(problem)}
        assert (costs[min(costs)] == "gpu.implicit_gemm.double") == first, machine.name
    assert (
        shim.H200.tensor_peak("float64") == 2 * shim.H200.peak("float64") == shim.H200.exact_peak("float64")
    )
    assert l40.exact_peak("float64") == l40.peak("float64") and not l40.exact_peak("float32") > l40.peak(
        "float32"
    )


def test_compute_capability_10_is_served_by_mma_sync():
    """Its own instructions, tcgen05, are not used yet; those of 9.0 it does not have."""
    problem = ConvProblem.parse("n8 c256 h28 w28 k256 r3 s3 p1 float16").replace(layout="channels_last")
    with use(shim.RecordingDevice(replace(shim.H200, capability=(10, 0)))):
        wgmma = find_algorithm("gpu.implicit_gemm.wgmma_half", problem)
        assert "less than 10.0" in wgmma.why_not(problem) and "through mma.sync" in wgmma.why_not(problem)
        assert ImplicitGemm("half").why_not(problem) is None


def test_small_problems_split_their_sums():
    small = ConvProblem.parse("n1 c512 h7 w7 k512 r3 s3 p1 float16")
    large = ConvProblem.parse("n64 c256 h56 w56 k256 r3 s3 p1 float16")
    assert ImplicitGemm("half").geometry(small, shim.H200)[1] > 1
    assert ImplicitGemm("half").geometry(large, shim.H200) == (implicit_gemm.IMPLICIT_GEMM_TILES[0], 1)
