"""Gradients of filters on emulated tensor cores: every build, sums in parts, precision, geometry."""

from itertools import product

import numpy as np
import pytest
from cuda_shim import device as shim
from helpers import KINDS, PROBLEMS, Guarded, check_filter_gradient, example

from convalgos.core.problem import LAYOUTS, ConvProblem
from convalgos.gpu import implicit_gemm_weights
from convalgos.gpu.device import use
from convalgos.gpu.device.offline import OfflineDevice
from convalgos.gpu.gemm import split_k_weights
from convalgos.gpu.gemm.split_k_weights import SplitKWeightsPlan
from convalgos.gpu.implicit_gemm_weights import ImplicitGemmWeights, implicit_gemm_weights_build, is_copied

pytestmark = pytest.mark.skipif(shim.missing() is not None, reason=str(shim.missing()))
MOST_PRODUCTS = 1e6  # of a problem of the table: emulated tensor cores are slow
AWKWARD = (  # 16 bytes together and not, tails of filters, taps and pixels, groups, all dimensions
    "n2 c16 h9 w7 k24 r3 s3 p1:0,2 stride2",
    "n1 c24 h7 w9 k72 r2 s3 p2 dilation2 groups3",
    "n3 c5 d3 h4 w5 k3 t2 r2 s3 p1",
    "n1 c7 w133 k9 s4 p3:0",
)


@pytest.fixture(autouse=True)
def aligned(monkeypatch):
    monkeypatch.setattr(Guarded, "BAND", 1024)


def asked(text, algorithm, **changes):
    compute = "float32" if algorithm.math == "half" else "tf32"
    changes = {"dtype": algorithm.dtypes[0], "compute_dtype": compute} | changes
    return ConvProblem.parse(text).replace(direction="backward_weights", **changes)


@pytest.mark.parametrize("algorithm", implicit_gemm_weights.ALGORITHMS, ids=lambda a: a.id)
def test_every_build_computes(algorithm):
    """All tiles, whole sums and sums in parts, on integers (exact) and on reals."""
    shim.ShimDevice().compile(algorithm.builds())
    launched = set()
    with use(shim.ShimDevice()):
        for text, layout, dtype in product(AWKWARD, LAYOUTS, algorithm.dtypes):
            problem = asked(text, algorithm, layout=layout, dtype=dtype)
            assert algorithm.why_not(problem) is None
            steps = -(-problem.gemm_m // algorithm.step(problem))
            for turn, tile in enumerate(algorithm.tiles(problem), layout == LAYOUTS[0]):
                for parts, kind in ((1, KINDS[turn % 2]), (steps, KINDS[1 - turn % 2])):
                    copied = is_copied(problem, problem.w_shape[1], problem.gemm_n)
                    module = implicit_gemm_weights_build(algorithm.math, dtype, tile, layout, copied)
                    plan = SplitKWeightsPlan(problem, algorithm, module, "implicit_gemm_weights", tile, parts)
                    launched.add(plan.launches[0].build)
                    check_filter_gradient(algorithm, problem, plan, kind)
    missed = set(algorithm.builds()) - launched
    assert not missed, f"no problem runs {', '.join(map(str, missed))}"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_table_of_awkward_problems(layout):
    served, algorithm = 0, ImplicitGemmWeights("half")
    with use(shim.ShimDevice()):
        for text in PROBLEMS:
            problem = asked(text, algorithm, layout=layout)
            if problem.is_empty or problem.flops > 2 * MOST_PRODUCTS:
                continue
            served += 1
            check_filter_gradient(algorithm, problem, algorithm.serve(problem), "integers")
    assert served > 30


def test_three_products_are_nearly_float32():
    text, errors = "n2 c10 h9 w8 k24 r3 s3 p1", {}
    x, dy, _, dw = example(ConvProblem.parse(text).replace(direction="backward_weights"), "reals")
    with use(shim.ShimDevice()):
        for algorithm in (ImplicitGemmWeights("tf32"), ImplicitGemmWeights("3xtf32")):
            found = algorithm.serve(asked(text, algorithm))(x, dy)
            errors[algorithm.math] = np.abs(found - dw).max() / np.abs(dw).max()
    assert 1e-5 < errors["tf32"] < 2e-3
    assert errors["3xtf32"] < 2e-6


def test_precision_is_explicit():
    with use(OfflineDevice(shim.H200)):
        for name in ("tf32", "3xtf32"):
            strict = asked("n1 c40 h9 w8 k24 r3 s3 p1", ImplicitGemmWeights("half"), dtype="float32")
            assert "float32 in tf32, not in float32" in ImplicitGemmWeights(name).why_not(strict)


def test_long_sums_fill_the_device_and_bound_their_error():
    """Many parts, where dw is small: each sums fewer pixels, with a smaller error."""
    algorithm = ImplicitGemmWeights("half")
    problem = asked("n8 c64 h224 w224 k64 r3 s3 p1", algorithm, layout="channels_last")
    with use(OfflineDevice(shim.H200)):
        tile, parts = algorithm.geometry(problem, shim.H200)
        assert split_k_weights.blocks_of_part(problem, tile) * parts > 0.9 * shim.H200.multiprocessors
        alone = algorithm.within(problem, workspace_limit=0, deterministic=False, strict_nan=False)
        assert alone.workspace_bytes(problem) == 0 < algorithm.workspace_bytes(problem)
        assert alone.error_bound(problem) > 1.5 * algorithm.error_bound(problem)
        assert alone.cost(problem, shim.H200) > 5 * algorithm.cost(problem, shim.H200)
