"""How far convolution through the FFT may err."""

from __future__ import annotations

import math
from collections.abc import Callable

from convalgos.core.algorithm import room_for_few
from convalgos.core.problem import ConvProblem
from convalgos.cpu.spectral.blocking import FftBlocking


def spectra_error(problem: ConvProblem, cut: Callable[[ConvProblem], FftBlocking]) -> float:
    """An error bound, relative to max|y|.

    Args:
        cut: the blocks of a problem that is not empty.
    """
    # An FFT of n elements adds errors of about 0.6 eps sqrt(log2 n) of the root mean square of its
    # result (Schatzman 1996), spread evenly over it; here two forward transforms, a product and the way
    # back. Their size follows the norm of the block, so that small outputs beside large ones are only
    # this exact relative to the large ones. 4 log2(n) + 8 leaves room for the largest of many elements,
    # and for max|y| where it is smaller than the norms of x and w promise. The sum over the channels is a
    # random walk, which maps of one pixel, of which the transforms are exact, show alone.
    n = 1 if problem.is_empty else math.prod(cut(problem).lengths)
    walk = math.sqrt(problem.w_shape[1]) / 2
    return problem.eps * (4 * math.log2(n + 1) + 8 + walk) * room_for_few(problem)
