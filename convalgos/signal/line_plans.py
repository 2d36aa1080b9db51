"""Lines of real numbers filtered by a plan that keeps the filter it ran last, in the plan's own form.

A filter that comes again costs no transform of its own. The first call with one is another way's to answer,
but where a plan prepares filters at once, and while `capture` counts the runs of plans. Lines of sizes that
come seldom are filled up with zeros, and filtered by plans of few sizes, which know the filter.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from convalgos.core import recent_filters
from convalgos.core.plan import Plan, watchers
from convalgos.core.plan_cache import weight
from convalgos.core.problem import ConvProblem
from convalgos.core.setting import setting
from convalgos.select import choose
from convalgos.select.constraints import Constraints
from convalgos.signal.new_sizes import (
    calls_by_size,
    forget_size,
    is_nearly_as_long,
    is_new,
    is_new_with_such_taps,
)
from convalgos.signal.outputs import holds_result
from convalgos.signal.size_cache import UNKNOWN, SizeCache

PRODUCTS = 1 << 19  # from which on plans are faster than small calls; Sapphire Rapids, two threads
WAYS = ("cpu.depthwise.rows", "cpu.fft_lines")  # other plans are no faster than small calls
SHARE = 1 / 8  # of a run that preparing a filter may take where it is prepared at once
LIMITS = Constraints(deny="cpu.reference")
KEPT = 1 << 26  # bytes of plans that are kept
# Elements of a size that has a plan of its own at once; those for which the next longer size has one of those
# that are kept for sizes that come seldom, and has it in its second call; their digits, in binary; Zen 4, the
# first of Zen 5
LARGE, LONGER_AT_ONCE, LONGER_AT_SECOND, LONGER = 1 << 20, 1 << 14, 1 << 13, 4


class LinePlan(NamedTuple):
    """A plan, and whether it prepares a filter that it has not seen."""

    plan: Plan
    x_shape: tuple[int, ...]  # (lines, 1, n)
    at_once: bool


_known = SizeCache(KEPT)  # a `LinePlan`, or None where there is no plan that is faster


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
    n, taps = x.shape[-1], h.size
    padding = taps - 1 - first, first + count - n
    if taps > n or min(padding) < 0:
        return None
    key = x.shape, taps, x.dtype.char, padding, setting()
    known = _known[key]
    if known is UNKNOWN:
        if is_nearly_as_long(taps, n):
            if is_new_with_such_taps(n, taps, x.dtype.char):
                return None
        elif x.size < LARGE and is_new(key):
            return _as_longer(x, h, padding, count)
        else:
            forget_size(key)  # if its plan is let go, it has to come as often again
        known = _kept(key)
    if known is None:
        return None
    if out is not None and (
        not holds_result(out, (*x.shape[:-1], count), x.dtype) or np.may_share_memory(out, x)
    ):
        out = None
    laid = None if out is None else out.reshape(known.plan.problem.y_shape)
    y = _run(known, x, h, known.at_once, laid)
    if y is None:
        return None
    return out if out is not None else y.reshape(*x.shape[:-1], count)


# --- inside ----------------------------------------------------------------------------------


def _as_longer(x: np.ndarray, h: np.ndarray, padding: tuple[int, int], count: int) -> np.ndarray | None:
    """`filtered_lines` of a size that comes seldom, by the plan of the next one that is kept for such."""
    n = x.shape[-1]
    step = 1 << max(0, n.bit_length() - LONGER)
    longer = -(-n // step) * step
    key = (*x.shape[:-1], longer), h.size, x.dtype.char, padding, setting()
    known = _known[key]
    if known is UNKNOWN:
        if is_new(key, calls_by_size(x.size, LONGER_AT_ONCE, LONGER_AT_SECOND)):
            return None
        known = _kept(key)
    if known is None:
        return None
    wide = np.empty((*x.shape[:-1], longer), x.dtype)
    wide[..., :n], wide[..., n:] = x, 0
    y = _run(known, wide, h, True)
    return None if y is None else np.ascontiguousarray(y.reshape(*x.shape[:-1], -1)[..., :count])


def _run(
    known: LinePlan, x: np.ndarray, h: np.ndarray, at_once: bool, laid: np.ndarray | None = None
) -> np.ndarray | None:
    """(lines, 1, outputs), `laid` if it is given; None of filters that are not prepared, or not finite."""
    plan, w = known.plan, h.reshape(1, 1, -1)
    prepared = recent_filters.find_recent(plan._key, recent_filters.ANYWHERE, w)
    if prepared is None:
        if not np.isfinite(h).all():
            return None  # zeros beyond the ends would spread it
        prepared = recent_filters.known_filter(plan, w, at_once or bool(watchers))
        if prepared is None:
            return None
    y: np.ndarray = plan(x.reshape(known.x_shape), prepared, out=laid)
    if (together := plan.outputs_together) is not None:
        some = y[..., ::together]
        if not math.isfinite(np.vdot(some, some)):
            return None  # transforms have spread what is not finite
    return y


def _kept(key: Any) -> LinePlan | None:
    """What is made for a key of `_known`, and kept."""
    (*lines, n), taps, char, padding, _ = key
    problem = ConvProblem(
        (math.prod(lines), 1, n), (1, 1, taps), padding=(padding,), mode="convolution",
        dtype=np.dtype(char).name,
    )  # fmt: skip
    known = None
    found = choose.close_candidates(problem, "cpu", LIMITS, 1.0)
    if found and (best := found[0]).algorithm.id in WAYS:
        plan = choose.plan_candidate(best, LIMITS)
        if plan.algorithm == best.algorithm.id:
            known = LinePlan(plan, problem.x_shape, best.prepare_s < SHARE * best.predicted_s)
    _known.keep(key, known, 0 if known is None else weight(known.plan))
    return known
