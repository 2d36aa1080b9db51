"""Convolutions of a training step: recorded for their gradients, which are found by the forward call.

In a step each convolution is computed three times, and of small layers the checks around a call take longer
than the kernels. What a forward call has checked holds for its gradients, too: their plans are kept by the
same key, and filters, which are others in each step, are prepared without a look at those of earlier calls.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from convalgos.api import planning
from convalgos.core.allocator import of_one_call
from convalgos.core.boundaries import ZERO
from convalgos.core.plan import Plan
from convalgos.core.plan_cache import PlanCache
from convalgos.core.prepared_filter import PreparedFilter
from convalgos.torch import autograd, threads
from convalgos.torch.eager import is_idle, plain_values
from convalgos.torch.operators import LAST
from convalgos.torch.plain_calls import PlannedCall, run_on_numbers
from convalgos.torch.tensor_views import laid_last, numbers_as_tensor, seen

INPUTS = 4  # of `RecordedCall`
_plans = {direction: PlanCache() for direction in ("backward_data", "backward_weights")}


def record_call(call: PlannedCall, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """y of a call, for whose gradients autograd will ask."""
    y: Tensor = RecordedCall.apply(input, weight, bias, call)  # type: ignore[no-untyped-call]
    return y


class RecordedCall(torch.autograd.Function):
    """A planned call. Where gradients are themselves recorded, or transformed, they are operators."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, call: PlannedCall) -> Tensor:
        ctx.save_for_backward(input, weight)
        ctx.set_materialize_grads(False)
        ctx.plan, ctx.key = call.plan, call.key
        return run_on_numbers(call.plan, input, call.x, _prepared(call.plan, call.w), call.bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None) -> tuple[Tensor | None, ...]:
        found: tuple[Tensor | None, ...] = (None,) * 3
        if dy is not None:
            numbers = None if torch.is_grad_enabled() or not is_idle() else plain_values(dy)
            found = _operators(ctx, dy) if numbers is None else _gradients(ctx, dy)
        return *found, *(None,) * (INPUTS - 3)


def _operators(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients by what has gradients itself."""
    p = ctx.plan.problem
    pads, last = [side for pair in p.padding for side in pair], p.layout == "channels_last"
    ctx.how = list(p.stride), pads, list(p.dilation), p.groups, last, ZERO
    return autograd.conv_gradients(ctx, dy)


def _gradients(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    """Those of x, w and bias that are asked for, as they are laid."""
    threads.share()
    of_x, of_w, of_bias, *_ = ctx.needs_input_grad
    x, w = ctx.saved_tensors
    last = ctx.plan.problem.layout == "channels_last"
    dy = dy.contiguous(memory_format=LAST[dy.dim()] if last else torch.contiguous_format)
    numbers = _numbers(dy, last)
    dx = dw = None
    if of_x:
        plan = _plan(ctx, "backward_data")
        result = plan(numbers, _prepared(plan, _numbers(w, False)))
        dx = numbers_as_tensor(seen(result) if last else result, dy)
    if of_w:
        x = x.contiguous(memory_format=LAST[x.dim()] if last else torch.contiguous_format)
        out = None
        if last and w.shape[2:].numel() > 1:  # else the order of its elements is the same
            out = torch.empty(w.shape, dtype=w.dtype, memory_format=LAST[w.dim()])
        result = _plan(ctx, "backward_weights")(
            _numbers(x, last), numbers, out=None if out is None else _numbers(out, False)
        )
        dw = numbers_as_tensor(result, dy) if out is None else out
    return dx, dw, dy.sum((0, *range(2, dy.dim()))) if of_bias else None


def _numbers(tensor: Tensor, last: bool) -> np.ndarray:
    """A view of a tensor's numbers, (N, *spatial, C) where channels lie last."""
    values = plain_values(tensor)
    assert values is not None, "tensors of a recorded call are ordinary ones"
    return laid_last(values) if last else values


def _plan(ctx: Any, direction: str) -> Plan:
    """The plan of a gradient of a call."""
    plans = _plans[direction]
    plan = plans.find(ctx.key)
    if plan is None:
        plan = planning.plan(ctx.plan.problem.replace(direction=direction), weights_constant=False)
        plans.add(ctx.key, plan)
    return plan


def _prepared(plan: Plan, w: np.ndarray) -> PreparedFilter:
    """A filter that changes until the next call."""
    with of_one_call():
        return plan.prepare(w)
