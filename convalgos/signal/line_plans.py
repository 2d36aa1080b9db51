"""Lines of real numbers filtered by a plan that keeps the filter it ran last, in the plan's own form.

A filter that comes again costs no transform of its own. The first call with one is another way's to answer,
but where a plan prepares filters at once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from convalgos.core import recent_filters
from convalgos.core.plan import Plan
from convalgos.core.plan_cache import also_forget, weight
from convalgos.core.problem import ConvProblem
from convalgos.core.setting import setting
from convalgos.select import choose
from convalgos.select.constraints import Constraints
from convalgos.signal.outputs import holds_result
from convalgos.signal.size_cache import UNKNOWN, SizeCache
from convalgos.signal.whole_transforms import is_new_of_lines

PRODUCTS = 1 << 19  # from which on plans are faster than small calls; Sapphire Rapids, two threads
WAYS = ("cpu.depthwise.rows", "cpu.fft_lines")  # other plans are no faster than small calls
SHARE = 1 / 8  # of a run that preparing a filter may take where it is prepared at once
LIMITS = Constraints(deny="cpu.reference")
KEPT = 1 << 24  # bytes of plans that are kept


class LinePlan(NamedTuple):
    """A plan, and whether it prepares a filter that it has not seen."""

    plan: Plan
    x_shape: tuple[int, ...]  # (lines, 1, n)
    at_once: bool


_known = SizeCache(KEPT)  # a `LinePlan`, or None where there is no plan that is faster
also_forget(_known.clear)


def filtered_lines(
    x: np.ndarray, h: np.ndarray, first: int, count: int, out: np.ndarray | None = None
) -> np.ndarray | None:
    """Elements [first, first + count) of the full convolution of the lines (..., n) with h (k,).

    Both are float32 or float64. None where there is no plan that is faster than the other ways, or x is not
    finite.

    Args:
        out: an array for the result, used where it is laid as plans write and shares no memory with x.
    """
    if h.size * x.size < PRODUCTS or x.dtype.char not in "fd" or x.dtype is not h.dtype:
        return None
    if out is not None and (
        not holds_result(out, (*x.shape[:-1], count), x.dtype) or np.may_share_memory(out, x)
    ):
        out = None
    key = x.shape, h.size, x.dtype.char, first, count, setting()
    known = _known[key]
    if known is UNKNOWN:
        if is_new_of_lines(key, x.shape[-1], h.size, x.size):
            return None
        known = _made(x, h.size, first, count)
        _known.keep(key, known, 0 if known is None else weight(known.plan))
    if known is None:
        return None
    plan, w = known.plan, h.reshape(1, 1, -1)
    prepared = recent_filters.find_recent(plan._key, recent_filters.ANYWHERE, w)
    if prepared is None:
        if not np.isfinite(h).all():
            return None  # zeros beyond the ends would spread it
        prepared = recent_filters.known_filter(plan, w, known.at_once)
        if prepared is None:
            return None
    laid = None if out is None else out.reshape(plan.problem.y_shape)
    y: np.ndarray = plan(x.reshape(known.x_shape), prepared, out=laid)
    if (together := plan.outputs_together) is not None:
        some = y[..., ::together]
        if not math.isfinite(np.vdot(some, some)):
            return None  # transforms have spread what is not finite
    return out if out is not None else y.reshape(*x.shape[:-1], count)


def _made(x: np.ndarray, taps: int, first: int, count: int) -> LinePlan | None:
    n = x.shape[-1]
    padding = taps - 1 - first, first + count - n
    if taps > n or min(padding) < 0:
        return None
    problem = ConvProblem(
        (x.size // n, 1, n), (1, 1, taps), padding=(padding,), mode="convolution", dtype=x.dtype.name
    )
    found = choose.close_candidates(problem, "cpu", LIMITS, 1.0)
    if not found or found[0].algorithm.id not in WAYS:
        return None
    best = found[0]
    plan = choose.plan_candidate(best, LIMITS)
    if plan.algorithm != best.algorithm.id:
        return None
    return LinePlan(plan, problem.x_shape, best.prepare_s < SHARE * best.predicted_s)
