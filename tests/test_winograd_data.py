"""Gradients of inputs by Winograd turned round: boxes that share rows of dx, and what lies beyond the edges.

That each size is right on awkward problems is tested with all other algorithms, in test_gradients.py.
"""

from dataclasses import dataclass

import pytest
from helpers import check

from convalgos import ConvProblem
from convalgos.cpu.tiled.overlap_schedule import overlap_schedule
from convalgos.cpu.winograd_data import WinogradData


@dataclass(frozen=True)
class Forced(WinogradData):
    """With boxes of the test's choice; cuts beyond the tiles that there are become fewer."""

    cuts: tuple[int, int, int, int] = (1, 1, 1, 1)
    team: bool = True

    def _boxes(self, problem):
        found = overlap_schedule(problem, self.m, 2)
        cuts = tuple(min(c, n) for c, n in zip(self.cuts, found.grid, strict=True))
        return found.cut_into(cuts, self.team)


@pytest.mark.parametrize(
    ("cuts", "team"), [((1, 1, 1, 1), True), ((1, 1, 3, 1), False), ((2, 2, 9, 1), True)], ids=str
)
@pytest.mark.parametrize(
    ("algorithm", "text"),
    [
        (WinogradData(4), "n3 c18 h29 w14 k20 r3 s3 p1"),
        (WinogradData(4), "n3 c18 h29 w14 k20 r3 s3 p1 wrap channels_last"),
        (WinogradData(5), "n1 c6 h31 w19 k4 r3 s3 p3:0,2:4 symmetric,edge dilation3,1 groups2"),
        (WinogradData(2, 5), "n2 c3 h7 w5 k5 r5 s5 p6 reflect"),  # copies of copies
        (WinogradData(6), "n2 c5 d3 h20 w9 k7 t1 r3 s1 p0,1,2 zero,wrap,constant fill2 channels_last"),
        (WinogradData(4), "n2 c7 w33 k9 s3 p2:0 edge"),
    ],
    ids=str,
)
def test_every_cut_into_boxes_is_right(algorithm, text, cuts, team):
    problem = ConvProblem.parse(text).replace(direction="backward_data")
    check(Forced(algorithm.m, algorithm.r, cuts=cuts, team=team), problem)


def test_small_maps_with_a_border_take_the_products_of_the_forward_pass():
    problem = ConvProblem.parse("n1 c256 h14 w14 k256 r3 s3 p1 reflect backward_data")
    assert WinogradData(5)._boxes(problem).tile_count == 9  # 16 of the map with its border


def test_what_it_does_not_serve_is_told():
    for text, told in (("r3 s3 p1 stride2", "stride"), ("t3 r3 s3 p1", "depth"), ("r4 s3", "needs 3 taps")):
        depth = "d8 " if "t3" in text else ""
        problem = ConvProblem.parse(f"n1 c16 {depth}h14 w14 k16 {text} backward_data")
        assert told in WinogradData(4).why_not(problem)
