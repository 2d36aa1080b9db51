"""Direct convolution of blocks of channels: what the table of awkward problems does not reach."""

import numpy as np
import pytest
from helpers import check, check_output_step_on_images_apart
from narrow_vectors import run_on_haswell

from convalgos import ConvProblem
from convalgos.core.element_types import DTYPES
from convalgos.core.layouts import blocked_layout, to_logical
from convalgos.cpu import direct
from convalgos.cpu.gemm import dealt_panels
from convalgos.cpu.gemm.blocked_cut import blocked_cut, cut_like
from convalgos.cpu.gemm.blocked_plan import BlockedPlan
from convalgos.cpu.gemm.blocked_tiles import tile_kernels
from convalgos.cpu.gemm.reached_tiles import reached_taps
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
ATROUS = [  # most of their taps read padding alone
    "n1 c64 h3 w35 k32 r5 s3 p16,20:22 dilation8,20",  # more columns of outputs than of inputs
    "n2 c160 d3 h9 w14 k16 t1 r3 s3 p0,8,12 dilation1,8,12",
    "n2 c160 h9 w14 k48 r3 s3 p8,12 dilation8,12",  # passes that end with a tap
    "n1 c256 h11 w7 k64 r3 s5 p6,8 dilation6,4 stride2,1 groups2",
    "n1 c64 h4 w33 k16 r3 s3 p3,24 dilation3,24 stride1,2",
]


def blocked(text: str) -> ConvProblem:
    problem = ConvProblem.parse(text)
    return problem.replace(layout=blocked_layout(simd.lanes(DTYPES[problem.dtype])))


@pytest.mark.parametrize("filters", [8, 24, 33, 40, 72, 120])
def test_half_of_the_last_vector_is_summed_where_the_rest_is_padding(filters, monkeypatch):
    problem = blocked(f"n1 c20 h5 w9 k{filters} r3 s3 p1")
    answers = []
    rng = np.random.default_rng(filters)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in problem.array_shapes[:2]]
    for halves in (True, False):
        monkeypatch.setattr(dealt_panels, "sums_halves", lambda halves=halves: halves)
        blocked_cut.cache_clear()
        y = direct.Direct().serve(problem)(*arrays)
        answers.append(to_logical(y, problem.y_layout, filters))
        check(direct.Direct(), problem)
        kernels = tile_kernels(filters, 1, 4, [(1, 4, simd.lanes(4))])
        assert (kernels[0][0] != kernels[1][0]) == (
            halves and 0 < filters % simd.lanes(4) <= simd.lanes(4) // 2
        )
    blocked_cut.cache_clear()
    assert np.array_equal(*answers)


@pytest.mark.parametrize("text", LAYERS + ATROUS)
def test_blocks_of_channels(text):
    check(direct.Direct(), blocked(text))


def test_blocks_of_channels_on_narrow_vectors():
    problems = [f"{text} blocked{4 if 'float64' in text else 8}" for text in (*LAYERS[:3], *ATROUS)]
    run_on_haswell(f"""
from convalgos.cpu.direct import Direct
for text in {problems}:
    check(Direct(), ConvProblem.parse(text))
""")


@pytest.mark.parametrize("text", ATROUS)
def test_taps_that_read_padding_alone_are_passed_over(text):
    problem = blocked(text)
    cut = blocked_cut(problem)[1]
    assert cut.by_tap and not cut.copied
    p = problem.as_3d
    first = np.arange(p.spatial_out[1]) * p.stride[1] - p.padding[1][0]
    taps = np.arange(p.kernel[1])
    read = np.isin(first[:, None] + taps * p.dilation[1], np.arange(p.spatial[1]))  # (P, R)
    begin, end = reached_taps(p, 1).T
    assert np.array_equal(read, (taps >= begin[:, None]) & (taps < end[:, None]))


def test_a_plan_for_maps_whose_taps_all_read_has_another_filter():
    small = blocked(ATROUS[2])
    large = small.replace(x_shape=(1, small.C, 40, 50))
    for before, after in ((small, large), (large, small)):
        known, plan = direct.Direct().plan(before), direct.Direct().plan(after)
        like = direct.Direct().plan_like(after, known)
        assert known.filter_form() != like.filter_form() == plan.filter_form()


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


@pytest.mark.parametrize("text", ["c40 k72 r1 s1", "c1500 k16 r1 s1", "c64 k48 r1 s1 groups2"])
def test_plans_for_other_numbers_of_pixels_are_those_of_their_cut(text):
    known = direct.Direct().plan(blocked(f"n1 h6 w50 {text}"))
    for sizes in ("n1 h3 w7", "n1 h48 w171", "n1 h1 w16", "n7 h6 w9", "n3 h80 w80"):
        problem = blocked(f"{sizes} {text}")
        made = known.on_maps(problem)
        wanted = BlockedPlan(problem, direct.Direct(), cut_like(problem, known._cut))
        fields = made.record.dtype.names
        assert made.scratch_bytes == wanted.scratch_bytes == 0 and made._parallel == wanted._parallel
        for name in {*fields} - {*wanted._tables}:
            assert made.record[name] == wanted.record[name], (sizes, name)
        for name, table in wanted._tables.items():
            assert made._tables[name].tolist() == table.tolist(), (sizes, name)
            assert made.record[name] == made._tables[name].ctypes.data
        known = made
