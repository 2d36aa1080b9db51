"""Searches that leave out what bounds rule out find what a plain minimum over everything finds."""

import math
from itertools import product

import pytest
from helpers import random_problems

from convalgos.core import profiles
from convalgos.core.problem import ConvProblem
from convalgos.cpu import fft_tiles, winograd
from convalgos.cpu.spectral import cost
from convalgos.cpu.spectral.blocking import FftBlocking
from convalgos.cpu.tiled import search

THREADS = (1, 2, 8)
PROBLEMS = random_problems(120, seed=5)


def wholes(problem, threads):
    """The problem in tiles of every kind, all of them in one box."""
    for a in winograd.ALGORITHMS:
        if a.why_not(problem) is None:
            yield winograd.one_box(problem, a.m, a.r, threads, a.kind)
    for a in fft_tiles.ALGORITHMS:
        if not isinstance(fft_tiles.tile_outputs(problem, a.t), str):
            yield fft_tiles.one_spectral_box(problem, a.t, threads)


@pytest.mark.parametrize("threads", THREADS)
def test_boxes(threads):
    searched = 0
    for problem in PROBLEMS:
        for whole in wholes(problem, threads):
            ways = search.box_ways(whole)
            all_ways = [type(whole)(whole.problem, whole.rows, whole.columns, *w, threads) for w in ways]
            kinds = [[s for s in all_ways if s.team is team] for team in (False, True)]
            least = [min(kind, key=lambda s: (s.effort, s.scratch_bytes)) for kind in kinds if kind]
            plain = min(least, key=lambda s: s.seconds(profiles.nominal(threads)))
            found = search.best(whole)
            assert (found.effort, found.scratch_bytes) == (plain.effort, plain.scratch_bytes), str(problem)
            searched += len(all_ways)
    assert searched > 500


def test_blocks():
    searched = 0
    for problem in PROBLEMS:
        p = problem.as_3d
        choices = (cost._choices(p, d, None) for d in range(3))
        cuts = [cut for cut in (FftBlocking(p, axes) for axes in product(*choices)) if not cut.is_whole]
        found = cost.blocked(problem, None)
        if not cuts:
            assert found == cost.one_block(problem)
            continue
        sizes = [math.prod(cut.lengths) for cut in cuts]
        low = min(cost.SMALLEST, max(sizes))
        high = max(cost.LARGEST, min(sizes))
        cuts = [cut for cut, size in zip(cuts, sizes, strict=True) if low <= size <= high]
        small = [cut for cut in cuts if cut.filter_bytes <= cost.FILTER_LIMIT] or cuts
        seconds = [cost.spectral_seconds(cut, "fftw", cost.COMPARED_ON) for cut in small]
        assert cost.spectral_seconds(found, "fftw", cost.COMPARED_ON) == min(seconds), str(problem)
        assert found in small
        searched += len(small)
    assert searched > 200


def test_boxes_are_about_as_large_as_their_targets():
    whole = winograd.one_box(ConvProblem.parse("n4 c64 h64 w64 k64 r3 s3 p1"), 4, 3, 1)
    assert whole.grid == (4, 1, 16, 16)
    assert search.box_ways(whole, 16) == {((4, 1, 16, 1), False)}  # a row
    assert search.box_ways(whole, 3) == {((4, 1, 16, 6), False)}  # rows are cut where they are much longer
    assert search.box_ways(whole, 64) == {((4, 1, 4, 1), False)}
    deep = winograd.one_box(ConvProblem.parse("n4 c64 d6 h16 w16 k64 t3 r3 s3 p1"), 4, 3, 1)
    assert deep.grid == (4, 6, 4, 4)
    assert search.box_ways(deep, 12) == {((4, 2, 4, 1), False)}  # slices are kept together: they share inputs
