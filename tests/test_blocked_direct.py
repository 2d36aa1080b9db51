"""Direct convolution of blocks of channels: what the table of awkward problems does not reach."""

import numpy as np
import pytest
from helpers import check, check_output_step_on_images_apart
from narrow_vectors import run_on_haswell

from convalgos import ConvProblem
from convalgos.core.element_types import DTYPES
from convalgos.core.layouts import blocked_layout
from convalgos.cpu import direct
from convalgos.cpu.gemm.blocked_cut import blocked_cut
from convalgos.cpu.gemm.row_tiles import along_row
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd

LAYERS = [
    "n1 c150 h8 w11 k40 r3 s3 p1",  # several passes over a panel, the last of them with a short block
    "n1 c64 h9 w3 k32 r3 s3 p1 stride2 groups2",  # rows so short that a tile takes several of them
    "n5 c20 h3 w5 k100 r1 s1",  # several images in a block, and panels of two widths
    "n1 c16 h7 w33 k33 r1 s1 stride2",
    "n2 c17 h6 w9 k16 r3 s3 p1 stride3",  # no tile has such a stride
    "n1 c8 d4 h5 w6 k16 t3 r1 s3 p1,0,1 dilation1,1,2 float64",
]


def blocked(text: str) -> ConvProblem:
    problem = ConvProblem.parse(text)
    return problem.replace(layout=blocked_layout(simd.lanes(DTYPES[problem.dtype])))


@pytest.mark.parametrize("text", LAYERS)
def test_blocks_of_channels(text):
    check(direct.Direct(), blocked(text))


def test_blocks_of_channels_on_narrow_vectors():
    problems = [f"{text} blocked{4 if 'float64' in text else 8}" for text in LAYERS[:3]]
    run_on_haswell(f"""
from convalgos.cpu.direct import Direct
for text in {problems}:
    check(Direct(), ConvProblem.parse(text))
""")


@pytest.mark.parametrize("activation", [None, "relu", ("clip", 0, 1), "silu"], ids=str)
def test_output_steps_and_images_that_lie_apart(activation):
    """In passes over the panels, of several images in a block."""
    plan = direct.Direct().serve(blocked("n3 c300 h3 w5 k40 r1 s1"))
    check_output_step_on_images_apart(plan, activation)


def test_groups_are_whole_blocks():
    lanes = simd.lanes(4)
    reason = direct.Direct().why_not(blocked(f"c{3 * lanes} w8 k{4 * lanes} s3 groups2"))
    assert reason == f"takes groups of whole blocks of {lanes} channels only, not of {3 * lanes // 2}"


@pytest.mark.parametrize("columns, most", [(1, 14), (13, 14), (15, 14), (49, 14), (112, 9)])
def test_tiles_of_a_row_are_even(columns, most):
    ends = along_row(columns, most)
    lengths = np.diff(ends)
    assert ends[0] == 0 and ends[-1] == columns
    assert 0 < max(lengths) <= most and max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("text", ["c64 h56 w56 k256 r1 s1", "c512 h14 w14 k512 r3 s3 p1 stride2"])
def test_threads_share_outputs_or_filters_evenly(text):
    cut, threads = blocked_cut(blocked(text))[1], jit.thread_count()
    items = int(np.prod(cut.blocks)) * cut.parts
    assert items % threads == 0 or items > 8 * threads
