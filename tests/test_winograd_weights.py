"""Gradients of filters by Winograd: every way of cutting x and dy into boxes, and layers with odd maps.

That each size is right on awkward problems is tested with all other algorithms, in test_gradients.py.
"""

from dataclasses import dataclass, replace

import pytest
from helpers import check

from convalgos import ConvProblem, plan
from convalgos.cpu import winograd_weights
from convalgos.cpu.winograd_weights import WinogradWeights
from convalgos.select import find_algorithm


@dataclass(frozen=True)
class Forced(WinogradWeights):
    """With boxes of the test's choice; cuts beyond the tiles that there are become fewer."""

    cuts: tuple[int, int, int, int] = (1, 1, 1, 1)

    def _boxes(self, problem):
        found = winograd_weights.tiled_weights_blocking(problem, self.r, self.m, 2)
        cuts = tuple(min(c, n) for c, n in zip(self.cuts, found.inputs.grid, strict=True))
        parts = (tiles.cut_into(cuts, True) for tiles in (found.inputs, found.gradients))
        return replace(found, **dict(zip(("inputs", "gradients"), parts, strict=True)))


@pytest.mark.parametrize("cuts", [(1, 1, 1, 1), (1, 1, 3, 1), (2, 2, 2, 3), (3, 1, 1, 2)], ids=str)
@pytest.mark.parametrize(
    ("algorithm", "text"),
    [
        (WinogradWeights(3, 4), "n5 c18 h29 w14 k20 r3 s3 p1"),  # boxes of fewer rows, columns and images
        (WinogradWeights(3, 2), "n3 c5 h9 w11 k36 r3 s3 p0:2,3:1 channels_last float64"),
        (WinogradWeights(3, 6), "n3 c6 h44 w19 k4 r3 s3 p2 dilation1,3 groups2"),
        (WinogradWeights(2, 4), "n4 c7 h37 w34 k17 r3 s3 p1 stride2"),
        (WinogradWeights(5, 4), "n3 c3 w70 k9 s5 p2"),
        (WinogradWeights(3, 4), "n3 c4 d7 h17 w10 k6 t3 r3 s3 p1 stride2,1,1"),  # sums of several slices
        (WinogradWeights(3, 4), "n2 c4 d6 h17 w10 k6 t2 r3 s3 p1 dilation3,1,1 channels_last"),
    ],
    ids=str,
)
def test_every_cut_into_boxes_is_right(algorithm, text, cuts):
    problem = ConvProblem.parse(text).replace(direction="backward_weights")
    check(Forced(algorithm.r, algorithm.m, cuts=cuts), problem)


@pytest.mark.parametrize(
    "text",
    [
        "n2 c16 h38 w29 k128 r3 s3 p1",
        "n2 c64 h33 w16 k32 r3 s3 p1",
        "n2 c256 h34 w8 k32 r3 s3 p1",
        "n2 c54 h35 w36 k15 r3 s3 p2 stride3,1 dilation1,3 groups3",
        "n2 c33 h9 w14 k1 r1 s2",
        "n2 c3 h17 w14 k5 r3 s3 p1,2",
        "n2 c3 h20 w11 k3 r3 s3 p2 groups3 channels_last float64",
    ],
)
def test_layers_of_odd_maps(text):
    """Maps that no number of boxes divides, by every size that serves them and by the one that is picked."""
    problem = ConvProblem.parse(text).replace(direction="backward_weights")
    picked = find_algorithm(plan(problem).algorithm, problem)
    for algorithm in {picked, *winograd_weights.ALGORITHMS}:
        if algorithm.why_not(problem) is None:
            check(algorithm, problem)
