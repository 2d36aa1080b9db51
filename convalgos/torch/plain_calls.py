"""Convolutions by the functions where only their numbers are asked for: plans, found by the arguments.

An operator of torch costs tens of microseconds around a call, and so do the checks of its arguments. Where
nothing but numbers is asked for (`eager.is_plain`), arguments like those of a call before are known to be
valid, and their plan is run. The filter is prepared in each call: a module keeps it (`inference`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from convalgos.api import call_plans
from convalgos.core.arrays import as_numpy, facts, like
from convalgos.core.plan import Plan
from convalgos.core.plan_cache import PlanCache
from convalgos.core.prepared_filter import PreparedFilter
from convalgos.torch import operators, threads

_plans = PlanCache()


def key_of(input: Tensor, weight: Tensor, bias: Tensor | None, *how: Any) -> tuple[Any, ...] | None:
    """What a plan goes by, where it can be told in short.

    Args:
        how: dimensions, stride, padding, dilation, groups as a function has them; 1.0 and True are equal to
            1, and not what it is.
    """
    for value in how:
        if not (call_plans.are_ints(value) or value == "valid" or value == "same"):
            return None
    of_bias = None if bias is None else (bias.shape, bias.dtype)
    return (
        input.shape, input.stride(), input.dtype, weight.shape, weight.stride(), weight.dtype, of_bias, how
    )  # fmt: skip


def known_plan(key: tuple[Any, ...]) -> Plan | None:
    """The plan of a call before."""
    return _plans.find(key)


def plan_of(
    key: tuple[Any, ...], x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, pads: Any,
    dilation: Any, groups: int, last: bool,
) -> Plan:  # fmt: skip
    """A plan for arguments that are valid, and for all calls with the same."""
    how = operators.how(stride, pads, dilation, groups, last)
    plan = call_plans.plan_for(
        tuple(x.shape), tuple(weight.shape), how["stride"], how["padding"], how["dilation"], groups,
        "cross_correlation", how["layout"], facts("input", x).dtype, "auto", "cpu", "forward",
    )  # fmt: skip
    _plans.add(key, plan)
    return plan


def convolve_tensors(plan: Plan, x: Tensor, weight: Tensor | PreparedFilter, bias: Tensor | None) -> Tensor:
    """y of tensors of the CPU, (N, C, *spatial) whatever the layout of the plan."""
    threads.share()
    values, added = _values("input", x), None if bias is None else _values("bias", bias)
    w = weight if isinstance(weight, PreparedFilter) else _values("weight", weight)
    y: Tensor
    if plan.problem.layout == "channels_first":
        y = like(plan(values, w, bias=added), x)
    else:
        spatial = range(2, x.dim())
        laid = values.transpose(0, *spatial, 1)
        y = like(plan(laid, w, bias=added).transpose(0, x.dim() - 1, *range(1, x.dim() - 1)), x)
    return y


def _values(name: str, tensor: Tensor) -> Any:
    if tensor.dtype is torch.float32:
        return tensor.numpy() if not tensor.requires_grad else tensor.detach().numpy()
    return as_numpy(name, tensor.detach())
