"""Winograd: every way of cutting and sharing the work, the transformed filter, bounds and predictions.

That each size is right on awkward problems is tested with all other algorithms, in test_algorithms.py.
"""

import ctypes
from dataclasses import dataclass

import numpy as np
import pytest
from helpers import check, check_workspaces, example
from narrow_vectors import run_on_haswell

from convalgos import ConvProblem
from convalgos.core.allocator import aligned_empty
from convalgos.core.cook_toom import cook_toom
from convalgos.core.layouts import blocked_layout, laid
from convalgos.core.machine import Machine
from convalgos.cpu import winograd
from convalgos.cpu.runtime import jit
from convalgos.cpu.tiled import search
from convalgos.cpu.vectors import simd
from convalgos.cpu.winograd import ALGORITHMS, Winograd, WinogradPlan

MACHINE = Machine("test", 2, 64, 48 << 10, 1 << 20, 32 << 20, 5e11, 2.5e11, 4e10, 2e11, 2e-6)
BLOCKED = blocked_layout(simd.lanes(4))


@dataclass(frozen=True)
class Forced(Winograd):
    """Winograd with a schedule of the test's choice; cuts beyond the tiles that there are become fewer."""

    cuts: tuple[int, int, int, int] = (1, 1, 1, 1)
    team: bool = False

    def plan(self, problem):
        whole = winograd.winograd_schedule(problem, self.m, self.r)
        cuts = tuple(min(c, n) for c, n in zip(self.cuts, whole.grid, strict=True))
        return WinogradPlan(problem, self, whole.cut_into(cuts, self.team))


@pytest.mark.parametrize("team", [False, True], ids=["alone", "team"])
@pytest.mark.parametrize("cuts", [(1, 1, 1, 1), (2, 3, 2, 3), (1, 1, 1, 99)], ids=str)
@pytest.mark.parametrize(
    ("algorithm", "text"),
    [
        (Winograd(4), "n3 c18 h13 w30 k20 r3 s3 p1"),
        (Winograd(4), "n2 c5 h9 w11 k36 r3 s3 p0:2,3:1 channels_last"),
        (Winograd(2), "n2 c34 h7 w7 k6 r3 s3 p1 groups2 float64"),
        (Winograd(6), "n1 c3 h20 w19 k5 r3 s3 p2 dilation2,3"),
        (Winograd(4), "n1 c6 h21 w26 k10 r5 s5 p2 stride2"),
        (Winograd(2), "n2 c4 h17 w9 k5 r3 s1 p1,0 stride1,2"),
        (Winograd(4, 2), "n2 c18 h13 w14 k20 r3 s3 p1 stride2"),  # phases with a tap less in both dimensions,
        (Winograd(4, 2), "n1 c5 h12 w13 k7 r3 s4 p1 stride2 channels_last"),  # in rows,
        (Winograd(4, 2), "n1 c5 h12 w13 k7 r4 s3 p1 stride2 groups1"),  # in columns,
        (Winograd(4), "n1 c3 h41 w33 k9 r11 s10 p2 stride4"),  # in one or two of four phases,
        (Winograd(4, 2), "n2 c5 w61 k9 s3 p1 stride2"),
        (Winograd(4, 2), "n1 c4 d5 h9 w12 k6 t3 r3 s3 p1 stride2"),  # beside taps in depth
        (Winograd(4), "n2 c17 w70 k9 s3 p1"),
        (Winograd(4), "n2 c4 d7 h9 w10 k6 t3 r3 s3 p1"),
        (Winograd(2), "n1 c4 d9 h6 w7 k6 t2 r3 s3 p2,1,1 stride2,1,1 dilation4,1,1 channels_last"),
        (Winograd(4), "n1 c4 d5 h3 w17 k6 t3 r1 s3 p3,0,1"),
        (Winograd(4), "n1 c4 d1 h9 w9 k40 t1 r3 s3 p3:0,1,1"),
        (Winograd(4), f"n2 c32 h21 w50 k48 r3 s3 p9 {BLOCKED}"),  # tiles inside, at the border and beyond
        (Winograd(4), f"n1 c40 h13 w30 k24 r3 s3 p1 groups2 {BLOCKED}"),  # groups that begin amid a block
        (Winograd(2), f"n1 c32 d5 h9 w12 k16 t3 r3 s3 p1 channels_last y_{BLOCKED}"),
        (Winograd(4, 2), f"n1 c16 h20 w41 k32 r3 s3 p1 stride2 {BLOCKED} y_channels_first"),
    ],
    ids=str,
)
def test_every_schedule_is_right(algorithm, text, cuts, team):
    check(Forced(algorithm.m, algorithm.r, cuts=cuts, team=team), ConvProblem.parse(text))


@pytest.mark.parametrize("activation", [None, "hard_swish"])
@pytest.mark.parametrize("layout", ["channels_last", BLOCKED])
def test_teams_are_bound_again_for_other_sizes(layout, activation):
    """All passes are told where x and y lie, run after run."""
    rng, algorithm = np.random.default_rng(7), Forced(4, cuts=(2, 3, 2, 1), team=True)
    texts = [f"{size} c24 k32 r3 s3 p1 {layout}" for size in ("n2 h13 w30", "n3 h21 w9")]
    known, other = [algorithm.serve(ConvProblem.parse(text)) for text in texts]

    def arrays(plan):
        x, _, y = plan.problem.array_shapes
        return rng.standard_normal(x).astype("f4"), np.full(y, np.nan, "f4")

    x, y = arrays(known)
    w, bias = (rng.standard_normal(shape).astype("f4") for shape in (known.problem.w_shape, 32))
    w = known.prepare(w)
    settings = known.bind(x, w, y, bias, activation).settings
    scratch = aligned_empty(other.scratch_bytes, np.uint8)
    run = other.bound_again(settings, [0], [0], scratch.ctypes.data, True)
    assert len(run.x_places) == len(run.y_places) > 3
    for _ in range(3):
        x, y = arrays(other)
        for places, array in ((run.x_places, x), (run.y_places, y)):
            for place in places:
                ctypes.c_int64.from_address(place.word).value = array.ctypes.data + place.offset
        run.run()
        expected = np.full_like(y, np.nan)
        other.bind(x, w, expected, bias, activation).run()
        assert np.isfinite(y).all() and np.array_equal(y, expected)


def test_narrow_panels_are_right():
    problem = ConvProblem.parse("c20 h7 w7 k64 r3 s3 p1")
    cut = winograd.winograd_schedule(problem, 4, 3).cut_into((1, 1, 1, 1), True)
    wide = cut.vectors
    cut.narrow_panels()
    assert cut.vectors == 1 < wide, "there is one tile of rows"
    assert cut.panels == cut.filter_blocks
    check(Winograd(4), problem, plan=WinogradPlan(problem, Winograd(4), cut))


def test_output_steps_of_blocks_whose_images_lie_apart():
    problem = ConvProblem.parse(f"n2 c32 h9 w15 k40 r3 s3 p1 {BLOCKED}")
    plain = problem.replace(layout="channels_first")
    x, w, bias, y = example(plain, "reals")
    residual = np.cos(y).astype(np.float32)
    right = Winograd(4).serve(plain)(x, w, bias=bias, activation="silu", residual=residual)

    def apart(array):
        blocks = laid(array, BLOCKED)
        more = np.full((2, blocks.shape[1] + 1, *blocks.shape[2:]), np.nan, np.float32)
        more[:, 1:] = blocks
        return more[:, 1:]

    out = apart(np.zeros_like(y))
    plan = Winograd(4).serve(problem)
    plan.bind(apart(x), w, out, bias, "silu", apart(residual)).run()
    assert np.allclose(problem.logical(2, out), right, rtol=1e-5, atol=1e-5)
    assert np.isnan(out.base[:, 0]).all()


def test_answers_do_not_depend_on_the_schedule():
    problem = ConvProblem.parse("n3 c40 h19 w30 k50 r3 s3 p1")
    x, w, _, _ = example(problem, "reals")
    answers = [
        Forced(4, 3, cuts=cuts, team=team).serve(problem)(x, w)
        for cuts in ((1, 1, 1, 1), (3, 1, 5, 1), (2, 1, 2, 4))
        for team in (False, True)
    ]
    assert all(np.array_equal(answers[0], other) for other in answers[1:])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "text", ["c20 h9 w9 k37 r3 s3", "c8 d4 h9 w9 k12 t2 r5 s5 stride1,2,2 groups2", "c3 h5 w9 k90 r3 s1"]
)
def test_transformed_filter(text, dtype):
    """U (group, point, panel, tap, filter) holds G g GT; lanes behind the last filter are zero."""
    problem = ConvProblem.parse(text).replace(dtype=dtype)
    _, w, _, _ = example(problem, "reals")
    plan = Winograd(4).serve(problem)
    cut, p = plan.cut, plan.cut.problem
    u = plan.prepare(w).data.array
    g = np.array(cook_toom(4, 3).G, float)
    matrices = [g if axis.outputs > 1 else np.ones((1, 1)) for axis in (cut.rows, cut.columns)]
    w = w.reshape(p.groups, p.gemm_n, *p.w_shape[1:]).astype(float)
    expected = np.zeros(u.shape)
    for t in range(p.kernel[0]):
        for phase_h in range(cut.rows.phases):
            for phase_w in range(cut.columns.phases):
                part = w[:, :, :, t, phase_h :: cut.rows.phases, phase_w :: cut.columns.phases]
                part = np.pad(
                    part,
                    [(0, 0)] * 3
                    + [(0, m.shape[1] - s) for m, s in zip(matrices, part.shape[3:], strict=True)],
                )
                points = np.einsum("ia,gkcab,jb->gijck", matrices[0], part, matrices[1])
                points = points.reshape(p.groups, cut.points, p.w_shape[1], p.gemm_n)
                place = cut.phase_places[phase_h * cut.columns.phases + phase_w]
                tap = t * cut.slice_taps + place * p.w_shape[1]
                for k in range(p.gemm_n):
                    panel, lane = divmod(k, cut.panel)
                    expected[:, :, panel, tap : tap + p.w_shape[1], lane] = points[..., k]
    assert np.abs(u - expected).max() <= 4 * np.finfo(dtype).eps * np.abs(w).max()
    assert not u[expected == 0].any()


def test_workspaces_are_what_is_taken_and_small():
    texts = "n1 c20 h40 w50 k30 r3 s3 p1", "n1 c512 h7 w7 k512 r3 s3 p1", "n2 c3 d5 h9 w9 k4 t3 r3 s3"
    check_workspaces(ALGORITHMS, Winograd(4), texts)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: a.id)
@pytest.mark.parametrize("kind", ["reals", "integers"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_error_bounds_are_near_the_errors(algorithm, kind, dtype):
    r = algorithm.r
    for text in (f"n1 c64 h24 w25 k20 r{r} s{r} p1", f"n1 c8 w300 k20 s{r}"):
        problem = ConvProblem.parse(text).replace(dtype=dtype)
        if algorithm.split and (reason := algorithm.why_not(problem)):
            pytest.skip(f"{algorithm.id} {reason}")
        x, w, _, y = example(problem, kind)
        error = np.abs(algorithm.serve(problem)(x, w) - y).max() / np.abs(y).max()
        assert error <= algorithm.error_bound(problem)
        if kind == "reals":
            assert algorithm.error_bound(problem) <= 25 * error


@pytest.mark.parametrize(
    ("algorithm", "text", "reason"),
    [
        (Winograd(4), "c3 h9 w9 k4 r5 s5", "needs 3 taps in one dimension of the plane, and 3 or 1 in the "
         "other; kernel 5x5 has 5 by 5"),
        (Winograd(4), "c3 h9 w9 k4 r3 s3 stride2", "kernel 3x3 with stride 2x2 has 2 by 2"),
        (Winograd(4), "c3 h9 w9 k4 r3 s5", "kernel 3x5 has 3 by 5"),
        (Winograd(2, 5), "c3 w9 k4 s3", "needs 5 taps; kernel 3 has 3"),
        (Winograd(4), "c3 d9 h9 w9 k4 t3 r1 s1", "kernel 3x1x1 has 1 by 1"),
    ],
)  # fmt: skip
def test_refusals(algorithm, text, reason):
    assert reason in algorithm.why_not(ConvProblem.parse(text))


@pytest.mark.parametrize(
    "text",
    [
        "c3 h9 w9 k4 r3 s3",
        "c3 h9 w9 k4 r1 s3",
        "c3 h9 w9 k4 r3 s1 dilation2",
        "c3 h9 w9 k4 r5 s6 stride2",
        "c3 h9 w9 k4 r3 s3 stride2 dilation2",
        "c3 w9 k4 s3",
        "c3 d5 h9 w9 k4 t4 r3 s3",
        "c4 h3 w3 k4 r3 s3 groups4",
    ],
)
def test_what_three_taps_serve(text):
    assert Winograd(4).why_not(ConvProblem.parse(text)) is None


@pytest.mark.parametrize(
    ("m", "r", "text", "products"),
    [
        (4, 2, "c3 h9 w9 k4 r3 s3 stride2", (5 + 4) ** 2),
        (4, 2, "c3 h9 w9 k4 r4 s3 stride2", (5 + 5) * (5 + 4)),
        (4, 3, "c3 h19 w19 k4 r11 s11 stride4", (3 * 6 + 5) ** 2),
        (4, 3, "c3 h9 w9 k4 r3 s3", 6 * 6),
        (4, 2, "c3 w19 k4 s3 stride2", 5 + 4),
    ],
)
def test_phases_with_a_tap_less_take_fewer_products(m, r, text, products):
    cut = winograd.winograd_schedule(ConvProblem.parse(text), m, r)
    assert cut.point_taps[:, 1].sum() == products * 3  # of three channels
    assert cut.products_of(cut.rows.outputs, cut.columns.outputs) == products * 3


def test_predictions_know_waste():
    def cost(algorithm, text):
        return algorithm.cost(ConvProblem.parse(text), MACHINE)

    wide = "n8 c64 h56 w56 k64 r3 s3 p1"
    assert cost(Winograd(4), wide) < cost(Winograd(2), wide)
    # tiles that reach beyond the map cost as much as whole ones, channels that fill no vector as well
    assert cost(Winograd(4), "n8 c64 h8 w8 k64 r3 s3 p1") < 1.2 * cost(
        Winograd(4), "n8 c64 h5 w5 k64 r3 s3 p1"
    )
    assert cost(Winograd(2), "n8 c64 h5 w5 k64 r3 s3 p1") < cost(Winograd(4), "n8 c64 h5 w5 k64 r3 s3 p1")
    assert cost(Winograd(4), wide + " groups64") > 0.2 * cost(Winograd(4), wide)


PROGRAM = """
from convalgos.cpu.winograd import Winograd
for algorithm, text in (
    (Winograd(4), "n2 c20 h13 w30 k20 r3 s3 p1"),
    (Winograd(2), "n2 c5 h9 w11 k36 r3 s3 p0:2,3:1 channels_last float64"),
    (Winograd(4), "n1 c4 d5 h9 w10 k6 t3 r3 s3 p1"),
    (Winograd(4), "n2 c20 h13 w30 k20 r3 s3 p1 blocked8"),
):
    check(algorithm, ConvProblem.parse(text))
"""


def test_narrower_vectors():
    run_on_haswell(PROGRAM)


def test_threads_share_a_box_only_where_they_share_its_filter():
    threads = max(2, jit.thread_count())
    groups = ConvProblem.parse(f"c{32 * threads} h7 w7 k{32 * threads} r3 s3 p1 groups{threads}")
    assert not any(team for _, team in search.box_ways(winograd.one_box(groups, 4, 3, threads)))
    dense = winograd.one_box(ConvProblem.parse("c512 h7 w7 k512 r3 s3 p1"), 4, 3, threads)
    assert search.best(dense).team  # the filter is read once
    small = winograd.one_box(ConvProblem.parse("c48 h56 w56 k48 r3 s3 p1"), 4, 3, threads)
    assert not search.best(small).team  # no thread waits for tiles that another one writes


def test_channels_that_are_not_there_are_not_read():
    few, full = (ConvProblem.parse(f"n1 c{c} h64 w64 k64 r3 s3 p1") for c in (3, 16))
    lanes = simd.lanes(4)
    read = [winograd.one_box(p, 4, 3, 1).transform_bytes for p in (few, full)]
    tile, pixels = 6 * 6, 64 * 64 / 16**2  # points, and pixels under a tile, with a border
    assert winograd.one_box(few, 4, 3, 1).filled == pytest.approx(3 / lanes)
    assert read[1] - read[0] > (1 - 3 / lanes) * (tile + pixels) * lanes * 4
