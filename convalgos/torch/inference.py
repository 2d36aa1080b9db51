"""Convolutions of models that are not trained: around the operators, on filters that were prepared before.

An operator of torch costs tens of microseconds around a call, which is what gradients, graphs, modes and
profilers go by. Where none of these is at work a module calls its plan. Its filter, in the form that the plan
runs on, is kept for as long as it is the same: the same parameter, at the same address, which nobody can be
given anew while it is kept, and of the same version, which torch counts up with each write in place.

A write through `parameter.data`, NumPy or another process is not counted. So a filter that shares its memory
with other processes is not kept, and some of its elements are compared in each call: all of a small filter,
and SAMPLES spread over a large one. That finds what writes whole filters, as averaging them does; after
changing single elements in such a way, call `forget_filters`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from convalgos.api import call_plans
from convalgos.core import plan_cache
from convalgos.core.arrays import as_numpy, facts
from convalgos.core.plan import Plan
from convalgos.core.prepared_filter import PreparedFilter
from convalgos.torch import functions, operators, plain_calls
from convalgos.torch.eager import is_plain

ATTRIBUTE = "_convalgos_filters"  # of a module, in its __dict__
SHAPES = 4  # of inputs, for which a module keeps its filter prepared
SAMPLES = 128  # elements of a filter that are compared in each call; 0.4 us where they are in the caches


class PreparedCall(NamedTuple):
    """What a module does with inputs of one shape and order in memory."""

    plan: Plan
    prepared: PreparedFilter


class Held(NamedTuple):
    """A filter, what tells that it is the same, and what was prepared of it."""

    weight: Tensor
    version: int
    address: int
    forgotten: int  # `plan_cache.forgotten`
    how: tuple[Any, ...]  # stride, padding, dilation and groups of the module
    sample: np.ndarray  # a view, which keeps the memory, and so its address, taken
    sampled: bytes
    steps: dict[tuple[Any, ...], PreparedCall]

    def is_of(self, module: Any, weight: Tensor) -> bool:
        return (
            weight is self.weight
            and weight._version == self.version
            and weight.data_ptr() == self.address
            and self.forgotten == plan_cache.forgotten
            and self.how == (module.stride, module.padding, module.dilation, module.groups)
            and self.sample.tobytes() == self.sampled
        )


class Filters:
    """The prepared filters of one module. A copy of it, as of a model that is copied or stored, is empty."""

    def __init__(self) -> None:
        self._held: Held | None = None  # replaced as a whole: threads may share a module

    def __reduce__(self) -> tuple[type[Filters], tuple[()]]:
        return Filters, ()

    def find(self, module: Any, weight: Tensor, x: Tensor) -> PreparedCall | None:
        """The step for an input, where the filter is still the one that was prepared."""
        held = self._held
        if held is None or not held.is_of(module, weight):
            return None
        return held.steps.get((x.shape, x.stride(), x.dtype))

    def add(self, module: Any, weight: Tensor, x: Tensor, plan: Plan) -> PreparedCall:
        """Prepare the filter for inputs like x."""
        values = as_numpy("weight", weight.detach())
        held = self._held
        if held is None or not held.is_of(module, weight):
            sample = values.reshape(-1)[:: max(1, values.size // SAMPLES)]
            how = module.stride, module.padding, module.dilation, module.groups
            told = weight._version, weight.data_ptr(), plan_cache.forgotten
            held = Held(weight, *told, how, sample, sample.tobytes(), {})
        while len(held.steps) >= SHAPES:
            held.steps.pop(next(iter(held.steps)), None)
        step = held.steps[x.shape, x.stride(), x.dtype] = PreparedCall(plan, plan.prepare(values))
        self._held = held
        return step


def convolve_prepared(module: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    """y of a module's convolution, or None where an operator has to compute it."""
    if weight is not module._parameters.get("weight") or not is_plain(x, weight, bias):
        return None
    filters = module.__dict__.get(ATTRIBUTE)
    if filters is None:
        filters = module.__dict__[ATTRIBUTE] = Filters()
    if weight.is_inference():  # such tensors have no version
        return None
    step = filters.find(module, weight, x)
    if step is None:
        step = _planned(module, filters, x, weight, bias)
        if step is None:
            return None
    return plain_calls.convolve_tensors(step.plan, x, step.prepared, bias)


def _planned(
    module: Any, filters: Filters, x: Tensor, weight: Tensor, bias: Tensor | None
) -> PreparedCall | None:
    """The step for a new input; None where it needs a copy, or nobody would tell that the filter changes."""
    ndim = len(module.kernel_size)
    how = module.stride, module.padding, module.dilation, module.groups
    read = functions.read_arguments(ndim, x, weight, bias, *how)
    batched, weight, bias, stride, pads, dilation, groups, last = read
    memory = operators.LAST[x.dim()] if last else torch.contiguous_format
    shared = weight.is_shared()  # type: ignore[no-untyped-call] # torch leaves it so
    if batched is not x or not x.is_contiguous(memory_format=memory) or shared:
        return None
    problem = operators.how(stride, pads, dilation, groups, last)
    plan = call_plans.plan_for(
        tuple(x.shape), tuple(weight.shape), problem["stride"], problem["padding"], problem["dilation"],
        problem["groups"], "cross_correlation", problem["layout"], facts("input", x).dtype, "auto", "cpu",
        "forward", False, None, None, True,
    )  # fmt: skip
    return filters.add(module, weight, x, plan)


def forget_filters(model: nn.Module) -> None:
    """Let the convolutions of a model prepare their filters anew, and give back those that they keep.

    Needed only after single elements of a filter were written behind torch's back: through `parameter.data`,
    or an array that shares its memory. Everything else is noticed.

    Example:
        >>> from torch import nn
        >>> model = nn.Conv2d(3, 4, 3)
        >>> model.weight.data[0, 0, 0, 0] = 0
        >>> forget_filters(model)
    """
    for module in model.modules():
        module.__dict__.pop(ATTRIBUTE, None)
