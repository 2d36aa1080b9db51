"""Transforms of lines: every number of levels, borders, and what a plan and a prepared filter share."""

import numpy as np
import pytest
from helpers import check
from narrow_vectors import run_on_haswell

import convalgos as ca
from convalgos.cpu.fft_lines import FftLines
from convalgos.cpu.spectral.line_roots import roots_of_lines
from convalgos.cpu.vectors import simd

CASES = (
    (512, "n1 c1 w100 k1 s20"),  # one block, longer than the line
    (512, "n1 c1 w600 k1 s511"),  # blocks of two outputs
    (1024, "n2 c3 w2500 k3 s31 p40:7 groups3 dilation3"),  # an odd number of levels over memory; blocks cut
    (2048, "n1 c2 h3 w1200 k2 r1 s300 p0,299:0 groups2"),  # causal rows of maps
    (4096, "n1 c1 w9000 k1 s200 p199 convolution"),
)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("length", "text"), CASES)
def test_blocks_of_every_length(length, text, dtype):
    check(FftLines(length), ca.ConvProblem.parse(f"{text} {dtype}"))


def test_other_lengths_are_those_that_vectors_have():
    for dtype in ("float32", "float64"):
        problem = ca.ConvProblem.parse(f"n1 c1 w9 k1 s4 {dtype}")
        lengths = [other.length for other in FftLines().variants(problem)]
        shortest = 2 * simd.lanes(problem.itemsize) ** 2
        assert lengths == [2 * shortest]
        with pytest.raises(
            ca.Unsupported, match=f"of {shortest} elements and more here, not of {shortest // 2}"
        ):
            FftLines(shortest // 2).serve(problem)


def test_on_narrow_vectors():
    run_on_haswell("""
from convalgos.cpu.fft_lines import FftLines

for length, text in ((128, "n2 c3 w700 k3 s31 p30:7 groups3"), (256, "n1 c1 w600 k1 s99 float64")):
    check(FftLines(length), ConvProblem.parse(text))
""")


def test_roots_are_those_of_the_leaves():
    """Every leaf is X - r with r^(n / 2) = i, and no two are alike."""
    inside = roots_of_lines(512, 16, "float64")[1]  # (tiles, 15, 2, lanes)
    last = inside[:, 3:].reshape(1, 4, 3, 2, 16)[:, :, 0]  # d of the nodes of the last level
    d = last[..., 0, :] + 1j * last[..., 1, :]
    leaves = np.concatenate([d * 1j**k for k in range(4)]).ravel()
    assert np.allclose(leaves**256, 1j) and len(np.unique(leaves.round(9))) == 256


def test_a_filter_is_prepared_for_its_own_length():
    with pytest.raises(ca.Unsupported, match="takes kernels that span up to 512 elements, not 600"):
        FftLines(512).serve(ca.ConvProblem.parse("n1 c1 w900 k1 s600"))
