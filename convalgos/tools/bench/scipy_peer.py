"""SciPy as a peer: overlap-add on single planes."""

from __future__ import annotations

import numpy as np

from convalgos.core.problem import ConvProblem
from convalgos.tools.bench.peer import PeerCall


def scipy_call(problem: ConvProblem, x: np.ndarray, w: np.ndarray, threads: int) -> PeerCall:
    """`oaconvolve` of single planes; it has no argument for threads."""
    from scipy.signal import oaconvolve

    plane, kernel = x[0, 0], np.flip(w[0, 0])
    if all(pair == (0, 0) for pair in problem.padding):
        return lambda: oaconvolve(plane, kernel, "valid")[None, None]
    inside = tuple(
        slice(r - 1 - low, r - 1 - low + size)
        for r, (low, _), size in zip(problem.kernel, problem.padding, problem.spatial_out, strict=True)
    )
    return lambda: oaconvolve(plane, kernel, "full")[inside][None, None]


def only_single_planes(problem: ConvProblem) -> str | None:
    """Why SciPy is not compared on a problem."""
    if (problem.N, problem.C, problem.K) != (1, 1, 1):
        return "scipy.signal.oaconvolve is compared on single planes only (N = C = K = 1)"
    if any(v != 1 for v in (*problem.stride, *problem.dilation)):
        return "scipy.signal.oaconvolve has no stride and no dilation"
    if any(max(pair) >= r for pair, r in zip(problem.padding, problem.kernel, strict=True)):
        return "scipy.signal.oaconvolve pads by less than the kernel only"
    return None
