"""Tiles through the FFT: every way of cutting and sharing the work, the spectrum of the filter, predictions.

That each size is right on awkward problems is tested with all other algorithms, in test_algorithms.py.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from helpers import check, check_workspaces, example
from narrow_vectors import run_on_haswell

from convalgos import ConvProblem
from convalgos.core.machine import Machine
from convalgos.cpu.direct import Direct
from convalgos.cpu.fft_tiles import ALGORITHMS, FftTiles, FftTilesPlan
from convalgos.cpu.winograd import ALGORITHMS as WINOGRAD

MACHINE = Machine("test", 2, 64, 48 << 10, 1 << 20, 32 << 20, 5e11, 2.5e11, 4e10, 2e11, 2e-6)


@dataclass(frozen=True)
class Forced(FftTiles):
    """Tiles with a schedule of the test's choice; cuts beyond the tiles that there are become fewer."""

    cuts: tuple[int, int, int, int] = (1, 1, 1, 1)
    team: bool = False

    def plan(self, problem):
        whole = self._schedule(problem)
        cuts = tuple(min(c, n) for c, n in zip(self.cuts, whole.grid, strict=True))
        return FftTilesPlan(problem, self, whole.cut_into(cuts, self.team))


@pytest.mark.parametrize("team", [False, True], ids=["alone", "team"])
@pytest.mark.parametrize("cuts", [(1, 1, 1, 1), (2, 3, 2, 3), (1, 1, 1, 99)], ids=str)
@pytest.mark.parametrize(
    ("t", "text"),
    [
        (16, "n3 c18 h23 w40 k20 r5 s5 p2"),
        (16, "n2 c5 h19 w31 k36 r9 s4 p0:2,3:1 channels_last"),
        (16, "n2 c34 h7 w7 k6 r3 s3 p1 groups2 float64"),
        (32, "n2 c3 h40 w37 k5 r11 s17"),
        (16, "n1 c3 h40 w39 k5 r5 s3 p2 dilation2,3"),
        (16, "n1 c6 h51 w46 k10 r7 s7 p3 stride2"),
        (16, "n2 c4 h57 w9 k5 r9 s1 p4,0 stride1,2"),
        (32, "n2 c17 w170 k9 s16 p8 convolution"),
        (16, "n2 c4 d7 h19 w20 k6 t3 r3 s3 p1"),
        (16, "n1 c4 d9 h6 w17 k6 t2 r3 s3 p2,1,1 stride2,1,1 dilation4,1,1 channels_last"),
        (16, "n1 c4 d5 h3 w37 k6 t3 r1 s5 p3,0,1"),
    ],
    ids=str,
)
def test_every_schedule_is_right(t, text, cuts, team):
    check(Forced(t, cuts=cuts, team=team), ConvProblem.parse(text))


@pytest.mark.parametrize("t", [8, 10, 12, 30])
def test_other_sizes_are_right(t):
    check(FftTiles(t), ConvProblem.parse("n2 c5 h26 w23 k6 r4 s5 p2"))


def test_long_sums_go_in_passes():
    """More taps than a pass has; the second pass adds to the sums of the first."""
    check(FftTiles(16), ConvProblem.parse("n1 c300 d3 h12 w12 k20 t3 r3 s3"))


def test_answers_do_not_depend_on_the_schedule():
    problem = ConvProblem.parse("n3 c40 h30 w40 k50 r5 s5 p2")
    x, w, _, _ = example(problem, "reals")
    answers = [
        Forced(16, cuts=cuts, team=team).serve(problem)(x, w)
        for cuts in ((1, 1, 1, 1), (3, 1, 2, 1), (2, 1, 2, 4))
        for team in (False, True)
    ]
    assert all(np.array_equal(answers[0], other) for other in answers[1:])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "text", ["c20 h20 w20 k37 r5 s3", "c8 h5 w30 k6 r1 s9 groups2", "c3 h30 w9 k40 r5 s1"]
)
def test_spectrum_of_the_filter(text, dtype):
    """U (group, point, panel, tap, part, filter) is the transform of the taps over t^2, or over t in 1-D."""
    t = 16
    problem = ConvProblem.parse(text).replace(dtype=dtype)
    _, w, _, _ = example(problem, "reals")
    plan = FftTiles(t).serve(problem)
    cut, p = plan.cut, plan.cut.problem
    u = plan.prepare(w).data.array.reshape(p.groups, cut.points, cut.panels, cut.taps, 2, cut.lanes)
    w = w.reshape(p.groups, p.gemm_n, *p.w_shape[1:])[:, :, :, 0].astype(float)
    if cut.dims == 2:
        spectrum = np.fft.rfft2(w, (t, t)) / t**2  # (group, filter, channel, row, column)
        half = t // 2 + 1
        ends = [spectrum[..., :half, column] for column in (0, half - 1)]
        points = np.concatenate([*ends, *(spectrum[..., column] for column in range(1, half - 1))], -1)
    else:
        points = np.fft.rfft(w.reshape(*w.shape[:3], -1), t) / t
    expected = np.zeros(u.shape)
    for k in range(p.gemm_n):
        panel, lane = divmod(k, cut.lanes)
        point = np.moveaxis(points[:, k], 2, 1)  # (group, point, channel)
        expected[:, :, panel, :, 0, lane] = point.real
        expected[:, :, panel, :, 1, lane] = point.imag
    assert np.abs(u - expected).max() <= 8 * np.finfo(dtype).eps * np.abs(expected).max()
    assert not u[..., (p.gemm_n - 1) % cut.lanes + 1 :][:, :, -1].any()


def test_workspaces_are_what_is_taken_and_small():
    texts = "n1 c20 h40 w50 k30 r5 s5 p1", "n1 c512 h7 w7 k512 r3 s3 p1", "n2 c3 d5 h9 w9 k4 t3 r3 s3"
    check_workspaces(ALGORITHMS, FftTiles(16), texts)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: a.id)
@pytest.mark.parametrize("kind", ["reals", "integers"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_error_bounds_are_near_the_errors(algorithm, kind, dtype):
    for text in ("n1 c64 h34 w35 k20 r5 s5 p1", "n1 c8 w300 k20 s9", "n1 c400 h16 w16 k20 r3 s3"):
        problem = ConvProblem.parse(text).replace(dtype=dtype)
        if algorithm.why_not(problem):
            continue
        x, w, _, y = example(problem, kind)
        error = np.abs(algorithm.serve(problem)(x, w) - y).max() / np.abs(y).max()
        assert error <= algorithm.error_bound(problem)
        if kind == "reals":
            assert algorithm.error_bound(problem) <= 25 * error


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("c3 h9 w9 k4 r1 s1", "needs 2 to 9 taps in a dimension of the plane, and no more in the other; "
         "kernel 1x1 has 1 by 1"),
        ("c3 h19 w19 k4 r3 s11", "kernel 3x11 has 3 by 11"),
        ("c3 h9 w9 k4 r2 s2 stride2", "kernel 2x2 with stride 2x2 has 1 by 1"),
        ("c3 w39 k4 s12", "needs 2 to 9 taps; kernel 12 has 12"),
        ("c3 d9 h9 w9 k4 t3 r1 s1", "kernel 3x1x1 has 1 by 1"),
        ("c512 h39 w39 k1024 r3 s3 p16 dilation16", "the smallest box of tiles takes 39"),  # MiB
    ],
)  # fmt: skip
def test_refusals(text, reason):
    assert reason in FftTiles(16).why_not(ConvProblem.parse(text))


def test_long_tiles_are_for_one_dimension():
    plane, row = (ConvProblem.parse(text) for text in ("c3 h200 w200 k4 r5 s5", "c3 h2 w200 k4 r1 s60"))
    assert "tiles of 128 inputs are for one dimension" in FftTiles(128).why_not(plane)
    check(FftTiles(128), row)


@pytest.mark.parametrize(
    "text",
    [
        "c3 h9 w9 k4 r2 s2",
        "c3 h9 w9 k4 r9 s9",
        "c3 h9 w9 k4 r1 s9",
        "c3 h19 w9 k4 r9 s1 dilation2",
        "c3 h19 w19 k4 r11 s17 stride2",
        "c3 w9 k4 s3",
        "c3 d5 h9 w9 k4 t4 r3 s3",
        "c4 h3 w3 k4 r3 s3 groups4",
    ],
)
def test_what_is_served(text):
    assert FftTiles(16).why_not(ConvProblem.parse(text)) is None


def test_predictions_know_waste():
    def cost(t, text):
        return FftTiles(t).cost(ConvProblem.parse(text), MACHINE)

    wide = "n16 c64 h64 w64 k128 r9 s9"
    assert cost(16, wide) < cost(16, wide.replace("w64", "w72"))
    # a tile that reaches beyond the map costs as much as a whole one
    assert cost(16, "n8 c64 h12 w12 k64 r5 s5 p2") < 1.2 * cost(16, "n8 c64 h7 w7 k64 r5 s5 p2")
    # few tiles do not pay for a large spectrum of the filter
    assert cost(16, "c512 h7 w7 k512 r3 s3 p1") < cost(32, "c512 h7 w7 k512 r3 s3 p1")


@pytest.mark.parametrize("text", ["w16000 k257 s512 stride160", "w16000 k161 s320 stride160"])
def test_pixels_pages_apart_cost_their_way(text):
    """Spectra of speech as a layer: 160 phases of one channel, whose pixels come one by one."""
    problem = ConvProblem.parse("n1 c1 " + text)
    tiles = [w.cost(problem, MACHINE) for w in WINOGRAD if w.why_not(problem) is None]
    tiles += [FftTiles(16).cost(problem, MACHINE)]
    assert min(tiles) > 1.3 * Direct().cost(problem, MACHINE)  # 1.6 and 2.6 times was measured


PROGRAM = """
from convalgos.cpu.fft_tiles import FftTiles
for t, text in (
    (16, "n2 c20 h23 w30 k20 r5 s5 p1"),
    (16, "n2 c5 h9 w31 k36 r3 s3 p0:2,3:1 channels_last float64"),
    (32, "n1 c4 w100 k6 s15 p3"),
):
    check(FftTiles(t), ConvProblem.parse(text))
"""


def test_narrower_vectors():
    run_on_haswell(PROGRAM)
