"""How a gradient of the input gets the border of its map: three ways, and which one a problem is computed in.

Measured beside zeros on Zen 4 and on Sapphire Rapids, depthwise and dense layers of maps from 7x7 to 112x112.
"""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from typing import Any

from convalgos.core.algorithm import Algorithm
from convalgos.core.backward.polyphase import is_whole
from convalgos.core.borders.extended import extended
from convalgos.core.boundaries import ZERO
from convalgos.core.problem import ConvProblem
from convalgos.cpu.backward.data import BackwardData
from convalgos.cpu.borders.outer_places import products_beyond
from convalgos.cpu.vectors import simd

# Products that reach beyond the edges for each in the map: from so many on kernels fold small maps,
FOLDED_SHARE = 0.08
# and up to so many are added: where each channel is by itself; where all are summed, by direct sums and by
# transforms, which compute them in fewer products; and where channels fill less than half of a vector.
ADDED_SHARE, SUMMED_SHARE, TRANSFORMED_SHARE = 1.0, 0.15, 0.005
FEW_ADDED_SHARE, FEW_SUMMED_SHARE = 0.15, 0.005


class Way(Enum):
    EXTENDED = "the gradient of the map with its border, which is then folded onto the map"
    FOLDED = "the same, folded by the kernels in scratch"
    ADDED = "the gradient of the map with zeros around it, to which what comes from beyond the edges is added"


TOLD = {Way.FOLDED: "with its border folded in scratch", Way.ADDED: "its border added"}


@lru_cache(1024)
def gradient_way(inner: Algorithm, problem: ConvProblem) -> Way:
    """Of a problem that an algorithm computes, of zeros only."""
    p = problem
    if p.direction != "backward_data" or p.is_empty:
        return Way.EXTENDED
    inside, outer = products_beyond(p)
    if outer >= FOLDED_SHARE * inside and _folds(inner, p):
        return Way.FOLDED
    by_channel = p.groups > 1 and p.w_shape[1] == p.gemm_n == 1
    if p.groups > 1 and not by_channel:
        return Way.EXTENDED
    return Way.ADDED if outer <= _added_share(inner, p, by_channel) * inside else Way.EXTENDED


def _added_share(inner: Algorithm, problem: ConvProblem, by_channel: bool) -> float:
    """Products beyond the edges for each in the map, up to which they are added."""
    few = simd.lanes(problem.itemsize) > 2 * problem.C
    if by_channel:
        return FEW_ADDED_SHARE if few else ADDED_SHARE
    if inner.spreads_nan:
        return TRANSFORMED_SHARE
    return FEW_SUMMED_SHARE if few else SUMMED_SHARE


def _folds(inner: Algorithm, problem: ConvProblem) -> bool:
    """Whether the kernels of a forward algorithm fold what they compute at once."""
    if not isinstance(inner, BackwardData) or not hasattr(inner.inner, "folds"):
        return False
    whole = extended(problem).problem
    if whole.is_empty or not is_whole(whole):
        return False
    (forward,) = inner.forwards(whole)
    if forward.spatial != problem.spatial_out:  # which leaves out what lies under padding alone
        return False
    return inner.inner.why_not(forward) is None and bool(inner.inner.folds(forward))


def folded_bytes(inner: Any, problem: ConvProblem) -> int:
    """Scratch of all threads, of kernels that fold."""
    (forward,) = inner.forwards(extended(problem).problem)
    nbytes: int = inner.inner.folding_bytes(forward)
    return nbytes


def without_border(problem: ConvProblem) -> ConvProblem:
    return problem.replace(boundary=ZERO, fill_value=0.0)
