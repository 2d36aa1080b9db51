"""Convolutions by the functions where only numbers and their gradients are asked for: plans by arguments.

An operator of torch costs tens of microseconds around a call, and so do the checks of its arguments. Where
nothing but numbers is asked for (`eager`), arguments like those of a call before are known to be
valid, and their plan is run on views of the tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from convalgos.api import call_plans
from convalgos.core.plan import Plan
from convalgos.core.plan_cache import PlanCache
from convalgos.core.prepared_filter import PreparedFilter
from convalgos.core.setting import setting
from convalgos.torch import operators, threads
from convalgos.torch.eager import plain_values
from convalgos.torch.tensor_views import laid_last, numbers_as_tensor, seen

_plans = PlanCache()
_kept, _clock = _plans.kept, _plans.clock


class PlannedCall(NamedTuple):
    """A call of a function of which only numbers are asked, and their gradients."""

    plan: Plan
    key: tuple[Any, ...]  # what tells it from other calls, but its values
    x: np.ndarray  # views of the tensors
    w: np.ndarray
    bias: np.ndarray | None

    def run(self, input: Tensor) -> Tensor:
        """y, as the input is."""
        return run_on_numbers(self.plan, input, self.x, self.w, self.bias)


def planned_call(
    read: Callable[..., tuple[Any, ...]], ndim: int, input: Any, weight: Any, bias: Any, stride: Any,
    padding: Any, dilation: Any, groups: Any,
) -> PlannedCall | None:  # fmt: skip
    """The plan for a function's arguments; None where more is to be looked at than ordinary tensors.

    Args:
        read: raises for arguments that are invalid, and returns what `plan_of_numbers` takes of others.
    """
    x, w, b = (
        plain_values(input),
        plain_values(weight),
        None if bias is None else plain_values(bias),
    )
    if x is None or w is None or x.dtype != w.dtype:
        return None
    if bias is not None and (b is None or b.dtype != x.dtype):
        return None
    if not (type(stride) is type(padding) is type(dilation) is type(groups) is int):
        for value in (stride, padding, dilation, groups):  # 1.0 and True are equal to 1, and not what it is
            if not call_plans.are_ints(value) and value != "valid" and value != "same":
                return None
    key = (
        x.shape, x.strides, x.dtype, w.shape, w.strides, None if b is None else b.shape, ndim,
        stride, padding, dilation, groups,
    )  # fmt: skip
    kept = _kept.get((key, setting()))
    if kept is not None:
        kept.used = next(_clock)
        return PlannedCall(kept.plan, key, x, w, b)
    arguments = read(ndim, input, weight, bias, stride, padding, dilation, groups)
    if x.ndim != ndim + 2:  # one image without a batch
        return None
    plan = plan_of_numbers(x, w, *arguments[3:])
    _plans.add(key, plan)
    return PlannedCall(plan, key, x, w, b)


def plan_of_numbers(
    x: np.ndarray, w: np.ndarray, stride: Any, pads: Any, dilation: Any, groups: int, last: bool, *others: Any
) -> Plan:
    """A plan for arguments that are valid. others: the last ones of `call_plans.plan_for`."""
    how = operators.how(stride, pads, dilation, groups, last)
    return call_plans.plan_for(
        x.shape, w.shape, how["stride"], how["padding"], how["dilation"], groups, "cross_correlation",
        how["layout"], x.dtype, "auto", "cpu", "forward", *others,
    )  # fmt: skip


def run_on_numbers(
    plan: Plan, input: Tensor, x: np.ndarray, w: np.ndarray | PreparedFilter, bias: np.ndarray | None
) -> Tensor:
    """y of views of tensors of the CPU, like the input, (N, C, *spatial) whatever the layout of the plan."""
    threads.share()
    if plan.problem.layout == "channels_first":
        return numbers_as_tensor(plan(x, w, bias=bias), input)
    return numbers_as_tensor(seen(plan(laid_last(x), w, bias=bias)), input)
