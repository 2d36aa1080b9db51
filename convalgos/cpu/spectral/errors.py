"""How far convolution through the FFT may err."""

from __future__ import annotations

import math
from collections.abc import Callable

from convalgos.core.algorithm import room_for_few
from convalgos.core.problem import ConvProblem
from convalgos.cpu.spectral.blocking import FftBlocking

LARGEST = 8.0  # room for the largest of many elements, and for max|y| where it is less than x and w promise


def error_of_transforms(problem: ConvProblem, elements: int, more: float = 0.0) -> float:
    """An error bound, relative to max|y|, of transforms of so many elements.

    An FFT of n elements adds errors of about 0.6 eps sqrt(log2 n) of the root mean square of its result
    (Schatzman 1996), spread evenly over it; here two forward transforms, a product and the way back. Their
    size follows the norm of the block, so that small outputs beside large ones are only this exact relative
    to the large ones.

    Args:
        more: eps that others add.
    """
    return problem.eps * (4 * math.log2(elements + 1) + LARGEST + more) * room_for_few(problem)


def spectra_error(problem: ConvProblem, cut: Callable[[ConvProblem], FftBlocking]) -> float:
    """The bound of spectra that are summed over channels: a random walk, which maps of one pixel show alone,
    as their transforms are exact.

    Args:
        cut: the blocks of a problem that is not empty.
    """
    elements = 1 if problem.is_empty else math.prod(cut(problem).lengths)
    return error_of_transforms(problem, elements, math.sqrt(problem.w_shape[1]) / 2)
