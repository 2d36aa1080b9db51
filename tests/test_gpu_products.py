"""Batched products of matrices on the GPU, with sides of every remainder."""

import numpy as np
import pytest
from cuda_shim import device as shim

from convalgos.core.problem import ConvProblem
from convalgos.gpu import winograd
from convalgos.gpu.device import use
from convalgos.gpu.gemm.batched import SIDES, BatchedGemm

pytestmark = pytest.mark.skipif(shim.missing() is not None, reason=str(shim.missing()))
PROBLEM = ConvProblem.parse("n1 c3 h9 w9 k5 r3 s3 p1")


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("rows, columns, depth", [(1, 4, 1), (130, 132, 9), (64, 128, 16), (37, 60, 23)])
def test_products_of_integers_are_exact(side, rows, columns, depth):
    """What fills u up may be multiplied, what lies around v may not even be read."""
    products, rng = BatchedGemm(3, rows, columns, depth), np.random.default_rng(0)
    u = rng.integers(-9, 10, (3, depth, rows)).astype(np.float32)
    padded = np.zeros((3, *products.padded(side)), np.float32)
    padded[:, :depth, :rows] = u
    around = np.full((5, depth, columns), np.nan, np.float32)
    around[1:4] = rng.integers(-9, 10, (3, depth, columns))
    result = np.full((5, rows, columns), np.nan, np.float32)
    with use(shim.ShimDevice()):
        plan = winograd.Winograd(2, fused=False).serve(PROBLEM)
        launch, sizes = products.launch(plan, side)
        launch(padded, around[1:4], result[1:4], sizes)
    assert np.array_equal(result[1:4], u.transpose(0, 2, 1) @ around[1:4])
    assert np.isnan(result[[0, 4]]).all()


def test_small_sides_have_small_tiles():
    assert BatchedGemm(36, 512, 3136, 512).side(shim.H200) == 128
    assert BatchedGemm(36, 64, 12544, 64).side(shim.H200) == 64
