"""float32 as three bfloat16 or digits: each product is summed, blocks are joined, who cannot says so."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from convalgos.core.algorithm import Algorithm
from convalgos.core.errors import Unsupported
from convalgos.core.layouts import laid, to_logical
from convalgos.core.machine import cache_sizes
from convalgos.core.problem import ConvProblem
from convalgos.core.profiles import nominal
from convalgos.cpu import bf16x3, int8x3
from convalgos.cpu.gemm import split_filter
from convalgos.cpu.gemm.blocked_cut import row_view
from convalgos.cpu.gemm.split_cut import SplitCut, split_cycles
from convalgos.cpu.gemm.split_plan import SplitSumsPlan
from convalgos.cpu.reference import reference
from convalgos.cpu.runtime.threads import plan_threads
from convalgos.cpu.vectors import matrix_tiles

FORMS = *bf16x3.ALGORITHMS, *int8x3.ALGORITHMS
each_form = pytest.mark.parametrize("split", FORMS, ids=lambda a: a.id)
POINT = ConvProblem.parse("n1 c1 h6 w8 k16 r1 s1 blocked16")
CUTS = {  # images, rows and columns of blocks, and parts of the filters
    "n4 c40 h7 w7 k48 r3 s3 p1 blocked16": (3, 7, 7, 1),
    "n1 c96 h23 w40 k33 r1 s1 blocked16": (1, 1, 96, 2),
    "n3 c64 h9 w15 k90 r1 s1 blocked16": (1, 1, 64, 1),  # the last run of an image has 7 pixels
    "n3 c32 h5 w13 k160 r1 s1 blocked16": (1, 1, 32, 2),  # and here one
    "n2 c70 h13 w11 k50 r3 s3 p1 stride2 channels_last": (1, 3, 6, 1),
    "n1 c640 h5 w6 k64 r1 s1 stride2 blocked16": (1, 3, 3, 2),
}


BITS = {  # that numbers may have whose terms are the first, the first two, or all three
    "cpu.bf16x3": {"x1 w1": (8, 8), "x2 w1": (16, 8), "x1 w2": (8, 16), "x2 w2": (12, 12)}
    | {"x3 w1": (24, 1), "x1 w3": (1, 24)},
    "cpu.int8x3": {"x1 w1": (7, 7), "x2 w1": (15, 7), "x1 w2": (7, 15), "x2 w2": (12, 12)}
    | {"x3 w1": (23, 1), "x1 w3": (1, 23)},
}


def served(split: Algorithm, problem: ConvProblem):
    if reason := split.why_not(problem):
        pytest.skip(f"{split.id} {reason}")
    return split.plan(problem)


@each_form
@pytest.mark.parametrize("terms", BITS["cpu.bf16x3"])
def test_each_product_of_terms_is_summed(split, terms):
    """Odd numbers of so many bits, whose products of 24 bits are exact in float32."""
    x_bits, w_bits = BITS[split.id][terms]
    rng = np.random.default_rng(x_bits)
    plan = served(split, POINT)
    x, w = (
        (2 * rng.integers(0, 2 ** (bits - 1), shape) + 1).astype(np.float32)
        for bits, shape in ((x_bits, POINT.x_shape), (w_bits, POINT.w_shape))
    )
    y = to_logical(plan(laid(x, "blocked16"), w), "blocked16", 16)
    assert np.array_equal(y, x * w.reshape(1, 16, 1, 1))


@each_form
@pytest.mark.parametrize("text", CUTS)
def test_blocks_are_cut_and_joined(split, text):
    problem, rng = ConvProblem.parse(text), np.random.default_rng(0)
    served(split, problem)
    plan = SplitSumsPlan(problem, split, SplitCut(row_view(problem), *CUTS[text], split.form))
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in (problem.x_shape, problem.w_shape))
    y = to_logical(plan(laid(x, problem.layout), w), problem.y_layout, problem.K)
    plain = problem.replace(layout="channels_first", y_layout="channels_first", dtype="float64")
    exact = reference(plain, x.astype(float), w.astype(float))
    assert np.abs(y - exact).max() <= split.error_bound(problem) / 4 * np.abs(exact).max()


@each_form
def test_filters_serve_all_sizes_of_maps(split):
    small, large = served(split, POINT), served(split, ConvProblem.parse("n2 c1 h30 w40 k16 r1 s1 blocked16"))
    w = np.ones(POINT.w_shape, np.float32)
    x = np.ones((2, 1, 30, 40, 16), np.float32)
    assert (large(x, small.prepare(w)) == 1).all()


FEW_AND_MANY = (  # channels
    "n8 c32 h160 w160 k32 r1 s1 channels_last",
    "n1 c512 h14 w14 k512 r1 s1 channels_last",
)
LIKE = [  # a known size of a layer, and another one
    ("n1 c64 h30 w41 k48 r3 s3 p1 blocked16", (1, 64, 17, 90)),
    ("n1 c40 h30 w41 k48 r1 s1 channels_last", (3, 40, 25, 11)),
    ("n1 c512 h60 w60 k16 r1 s1 stride2 blocked16", (1, 512, 7, 8)),  # blocks of rows, then a whole image
    ("n1 c512 h7 w8 k16 r1 s1 stride2 blocked16", (1, 512, 60, 60)),
]


@each_form
@pytest.mark.parametrize(
    "text",
    [
        "n1 c70 h5 w5 k150 r1 s1 blocked16",
        "n1 c30 h9 w9 k97 r3 s3 p1 blocked16",
        "n1 c64 h5 w5 k128 r1 s1 blocked16",
    ],
)
@pytest.mark.parametrize("unlike", [False, True])
def test_huge_filters_are_packed_a_piece_at_a_time(split, text, unlike, monkeypatch):
    """The same bits as at once, also of channels that are scaled; the last vectors and panels are partial."""
    problem = ConvProblem.parse(text)
    plan = served(split, problem)
    rng = np.random.default_rng(3)
    x, w = (rng.standard_normal(shape, np.float32) for shape in (problem.x_shape, problem.w_shape))
    if unlike:
        w[:, ::3] *= 1e-4

    def outputs():
        return to_logical(plan(laid(x, problem.layout), w.copy()), problem.y_layout, problem.K)

    whole = outputs()
    for nbytes in (1, w.nbytes // 3):
        monkeypatch.setattr(split_filter, "PIECE", nbytes)
        assert np.array_equal(outputs(), whole)


@each_form
@pytest.mark.parametrize(("text", "x_shape"), LIKE)
def test_other_sizes_are_cut_like_known_ones(split, text, x_shape):
    known, rng = served(split, ConvProblem.parse(text)), np.random.default_rng(1)
    problem = known.problem.replace(x_shape=x_shape)
    plan = split.plan_like(problem, known)
    best = split.plan(problem)
    cycles = [split_cycles(cut, plan_threads()) for cut in (plan.cut, best.cut)]
    assert plan.cut.scratch_bytes <= cache_sizes()[1] and cycles[0] <= 1.3 * cycles[1]
    names = [name for name in plan.record.dtype.names if name not in plan._tables]
    own = split.plan_like(known.problem, plan)
    again = SplitSumsPlan(known.problem, split, own.cut)
    assert all(own.record[name] == again.record[name] for name in names), "a field kept another size"
    w = rng.integers(-9, 9, problem.w_shape).astype(np.float32)
    plain = problem.replace(layout="channels_first", y_layout="channels_first", dtype="float64")
    for made, kept in ((plan, known), (own, plan)):
        x = rng.integers(-9, 9, made.problem.x_shape).astype(np.float32)
        y = np.full(made.problem.array_shapes[2], np.nan, np.float32)
        made(laid(x, made.problem.layout), kept.prepare(w), out=y)
        exact = reference(plain.replace(x_shape=x.shape), x.astype(float), w.astype(float))
        assert np.array_equal(to_logical(y, made.problem.y_layout, made.problem.K), exact)


@each_form
def test_sizes_whose_rows_have_no_room_are_told(split):
    known = served(split, ConvProblem.parse("n1 c512 h6 w40 k16 r3 s3 p1 blocked16"))
    wide = known.problem.replace(x_shape=(1, 512, 6, 40000))
    with pytest.raises(Unsupported, match="room in L2"):
        split.plan_like(wide, known)


@each_form
def test_plans_are_permitted_tiles_unasked(split):
    """A process that makes a plan without `why_not`, as a saved network does, was killed by its first run."""
    served(split, POINT)
    code = (
        "import numpy as np; from convalgos.core.problem import ConvProblem; "
        f"from convalgos.{split.family} import ALGORITHMS; "
        f"plan = ALGORITHMS[0].plan(ConvProblem.parse({str(POINT)!r})); "
        f"plan(np.ones((1, 1, 6, 8, 16), np.float32), np.ones({POINT.w_shape}, np.float32))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@each_form
def test_without_matrix_tiles_it_says_so(split, monkeypatch):
    served(split, POINT)
    monkeypatch.setattr(matrix_tiles, "permitted", lambda: False)
    assert "AMX" in split.why_not(POINT)


@each_form
def test_layers_of_few_channels_cost_the_more_the_slower_memory_is(split):
    """Their products take less time than their maps take to come."""
    figures = {"bandwidth": 25e9, "cache_bandwidth": 60e9, "peak_int8": 12e12, "peak_bfloat16": 6e12}
    machine = replace(nominal(2), l3_bytes=32 << 20, **figures)
    slow = replace(machine, bandwidth=machine.bandwidth / 4)
    wide, deep = (ConvProblem.parse(text) for text in FEW_AND_MANY)
    assert wide.x_bytes + wide.y_bytes > machine.l3_bytes > deep.x_bytes + deep.y_bytes
    assert split.cost(wide, slow) > 1.5 * split.cost(wide, machine)
    assert split.cost(deep, slow) == split.cost(deep, machine)
