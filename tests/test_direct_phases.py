"""Phases of strides too wide for registers: vectors of neighbouring phases at one place after the other."""

import numpy as np
import pytest
from helpers import check

import convalgos as ca
from convalgos.cpu.backward.phase_tiles import most_ways
from convalgos.select import find_algorithm

PROBLEMS = """
n2 c2 w600 k2 s40 p3:17 stride17               # blocks of vectors and some behind them, both borders
n1 c3 w4000 k3 s1001 p500 stride160 groups3    # displacements, of which two have fewer taps
n3 c1 w2100 k1 s23 stride32                    # phases without a tap
n1 c1 w420 k1 s400 p0:30 stride20              # fewer places than displacements
n2 c4 h9 w150 k2 r3 s64 p1:0,13 stride2,32 dilation2,1 groups2
n1 c2 w700 k1 s64 p64:5 stride64 float64       # outputs that nothing reaches
"""


@pytest.mark.parametrize("text", [line.split("#")[0].strip() for line in PROBLEMS.strip().splitlines()])
def test_wide_strides_are_summed_exactly(text):
    problem = ca.ConvProblem.parse(f"{text} backward_data")
    assert problem.stride[-1] > most_ways()
    check(find_algorithm("cpu.direct.phases"), problem)


def test_numbers_that_are_not_finite_reach_their_own_outputs_only():
    """Phases without a tap are next to some that have one."""
    problem = ca.ConvProblem.parse("n1 c1 w230 k1 s23 p5:0 stride32 backward_data")
    dy, w = np.ones(problem.array_shapes[0], np.float32), np.ones(problem.array_shapes[1], np.float32)
    dy[0, 0, 2] = np.inf
    dx = ca.plan(problem, algorithm="cpu.direct.phases")(dy, w)[0, 0]
    assert np.flatnonzero(~np.isfinite(dx)).tolist() == list(range(64 - 5, 64 - 5 + 23))
