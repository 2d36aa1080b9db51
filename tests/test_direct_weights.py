"""cpu.direct.weights: rows of dw that are summed in another order than they lie in it."""

from dataclasses import replace

import numpy as np
import pytest

import convalgos as ca
from convalgos.cpu.gemm.weights_blocking import weights_blocking


def problem(text):
    return ca.ConvProblem.parse(f"{text} backward_weights")


@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_rows_of_a_block_go_tap_by_tap_in_channels_last(blocks):
    cut = weights_blocking(problem("n1 c7 h9 w8 k5 r3 s2 p1 channels_last"))
    order, first = replace(cut, row_blocks=blocks).row_order
    rows = first + order
    assert sorted(rows) == list(range(7 * 6))
    for block in range(blocks):
        of_block = rows[42 * block // blocks : 42 * (block + 1) // blocks]
        assert {*of_block} == {*range(42 * block // blocks, 42 * (block + 1) // blocks)}
        assert list(of_block) == sorted(of_block, key=lambda row: (row % 6, row // 6))


@pytest.mark.parametrize(
    "text",
    [
        "n2 c40 h14 w9 k8 r3 s3 p1",  # few filters: the rows are cut for several threads
        "n3 c34 h9 w11 k40 r3 s3 p1 stride2 groups2",
        "n2 c51 h13 w12 k9 r2 s3 p1 groups3",
        "n1 c12 h30 w31 k24 r5 s5 p2 groups6",  # several blocks of pixels
    ],
)
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_of_filters_are_exact(text, layout, dtype):
    p = problem(f"{text} {layout} {dtype}")
    rng = np.random.default_rng(7)
    x, dy = (rng.integers(-4, 5, shape).astype(dtype) for shape in p.array_shapes[:2])
    dw = np.full(p.w_shape, np.nan, dtype)
    ca.plan(p, algorithm="cpu.direct.weights")(x, dy, out=dw)
    assert np.array_equal(dw, ca.plan(p, algorithm="cpu.reference")(x, dy))
