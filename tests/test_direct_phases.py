"""Phases of strides too wide for registers: vectors of neighbouring phases at one place after the other.

And of strides with dilations along rows, whose filters are filled with zeros.
"""

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
FILLED = """
n2 c3 w61 k2 s5 p1:3 stride3 dilation2 convolution      # phases are interleaved
n1 c2 w64 k2 s4 p2 stride4 dilation6 groups2            # common factors: phases without a tap
n2 c1 w700 k1 s7 p5:2 stride40 dilation9                # vectors of phases, several displacements
n1 c1 w300 k1 s2 stride17 dilation51 float64            # the stride divides the dilation
n2 c4 h9 w90 k2 r3 s5 p1:0,13 stride2,5 dilation3,2 groups2
"""


def problems(texts):
    lines = (line.split("#")[0].strip() for line in texts.strip().splitlines())
    return [ca.ConvProblem.parse(f"{line} backward_data") for line in lines]


@pytest.mark.parametrize("problem", problems(PROBLEMS), ids=str)
def test_wide_strides_are_summed_exactly(problem):
    assert problem.stride[-1] > most_ways()
    check(find_algorithm("cpu.direct.phases"), problem)


@pytest.mark.parametrize("problem", problems(FILLED), ids=str)
def test_filters_filled_with_zeros_are_summed_exactly(problem):
    check(find_algorithm("cpu.direct.phases.filled"), problem)


def test_filters_filled_for_another_dilation_are_refused():
    """Their shapes are equal, and so is all else that filters depend on."""
    two, three = (f"n1 c1 w200 k1 s9 stride20 dilation{d} backward_data" for d in (2, 3))
    plans = [ca.plan(ca.ConvProblem.parse(t), algorithm="cpu.direct.phases.filled") for t in (two, three)]
    prepared = plans[0].prepare(np.ones((1, 1, 9), np.float32))
    with pytest.raises(ValueError, match="filter"):
        plans[1](np.ones(plans[1].problem.array_shapes[0], np.float32), prepared)


def test_zeros_between_taps_are_not_for_strict_nan():
    """Where a number that is not finite must reach its own outputs only, filters are not filled."""
    problem = ca.ConvProblem.parse("n1 c1 w612355 k1 s119 stride68 dilation3 backward_data")
    assert ca.plan(problem, strict_nan=True).algorithm != "cpu.direct.phases.filled"
    refused = ca.explain(problem, strict_nan=True).rejected
    assert any(r.id == "cpu.direct.phases.filled" for r in refused)


def test_numbers_that_are_not_finite_reach_their_own_outputs_only():
    """Phases without a tap are next to some that have one."""
    problem = ca.ConvProblem.parse("n1 c1 w230 k1 s23 p5:0 stride32 backward_data")
    dy, w = np.ones(problem.array_shapes[0], np.float32), np.ones(problem.array_shapes[1], np.float32)
    dy[0, 0, 2] = np.inf
    dx = ca.plan(problem, algorithm="cpu.direct.phases")(dy, w)[0, 0]
    assert np.flatnonzero(~np.isfinite(dx)).tolist() == list(range(64 - 5, 64 - 5 + 23))
