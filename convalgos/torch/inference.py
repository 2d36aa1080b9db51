"""Convolutions of models that are not trained: around the operators, on filters that were prepared before.

An operator of torch costs tens of microseconds around a call, which is what gradients, graphs, modes and
profilers go by. Where none of these is at work a module calls its plan. Its filter, in the form that the plan
runs on, is kept for as long as it is the same: the same parameter, at the same address, which nobody can be
given anew while it is kept, and of the same version, which torch counts up with each write in place.

A write through `parameter.data`, NumPy or another process is not counted. So a filter that shares its memory
with other processes is not kept, and its elements are compared in each call: all of a small filter, and
SAMPLES spread over a large one. That finds what writes whole filters, as averaging them does; after changing
single elements of a large one in such a way, call `forget_filters`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from convalgos.core import plan_cache
from convalgos.core.laid_arrays import in_memory_order, is_laid
from convalgos.core.plan import Plan
from convalgos.core.prepared_filter import FilterKey, PreparedFilter
from convalgos.torch import functions, operators, plain_calls
from convalgos.torch.eager import is_differentiated, is_idle, plain_values

BOUNDARIES = {
    "zeros": "zero",
    "reflect": "reflect",
    "replicate": "edge",
    "circular": "wrap",
}  # torch's -> ours
Kept = TypeVar("Kept")

ATTRIBUTE = "_convalgos_filters"  # of a module, in its __dict__
SHAPES = 16  # of inputs, whose plans a module keeps; those of others are looked for among all plans
FORMS = 4  # in which a module keeps its filter prepared: plans for many shapes read the same
SMALL = (
    1 << 14
)  # bytes of a filter that is compared as a whole in each call; 0.4 us where it is in the caches,
SAMPLES = 128  # as are so many elements of a larger one


class PreparedCall(NamedTuple):
    """What a module does with inputs of one shape and order in memory."""

    plan: Plan
    prepared: PreparedFilter


class Lying(NamedTuple):
    """Where a parameter lies, and a view of its numbers, which keeps its memory, and so the address taken."""

    tensor: Tensor
    address: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    values: np.ndarray

    @classmethod
    def of(cls, tensor: Tensor) -> Lying | None:
        """None of a tensor that is not an ordinary one."""
        values = plain_values(tensor)
        return (
            None if values is None else cls(tensor, tensor.data_ptr(), tensor.shape, tensor.stride(), values)
        )

    def is_of(self, tensor: Tensor) -> bool:
        """Whether it still is this parameter, and lies there: its `data` may be set, also to a view of it."""
        return (
            tensor is self.tensor
            and tensor.data_ptr() == self.address
            and tensor.shape == self.shape
            and tensor.stride() == self.stride
        )


class Held(NamedTuple):
    """A filter, what tells that it is the same, and what was prepared of it."""

    weight: Lying
    bias: Lying | None
    version: int
    forgotten: int  # `plan_cache.forgotten`
    how: tuple[Any, ...]  # stride, padding, dilation, groups and padding mode of the module
    sample: np.ndarray  # a view
    sampled: bytes
    steps: dict[tuple[Any, ...], PreparedCall]
    forms: dict[FilterKey, PreparedFilter]

    @classmethod
    def of(cls, module: Any, weight: Tensor, bias: Tensor | None) -> Held | None:
        """None where nobody would tell that the filter changes."""
        if weight.is_inference() or weight.is_shared():  # type: ignore[no-untyped-call] # torch leaves it so
            return None
        filters, added = Lying.of(weight), None if bias is None else Lying.of(bias)
        if filters is None or (bias is not None and added is None):
            return None
        values = in_memory_order(filters.values)
        if not is_laid(values.flags):  # a flat copy would be compared with itself
            return None
        sample = values.reshape(-1)[:: 1 if values.nbytes <= SMALL else values.size // SAMPLES]
        how = _how(module)
        told = weight._version, plan_cache.forgotten, how, sample, sample.tobytes()
        return cls(filters, added, *told, {}, {})

    def is_of(self, module: Any, weight: Tensor, bias: Tensor | None) -> bool:
        return (
            self.weight.is_of(weight)
            and weight._version == self.version
            and (bias is None if self.bias is None else bias is not None and self.bias.is_of(bias))
            and self.forgotten == plan_cache.forgotten
            and self.how == _how(module)
            and self.sample.tobytes() == self.sampled
        )


def _how(module: Any) -> tuple[Any, ...]:
    return module.stride, module.padding, module.dilation, module.groups, module.padding_mode


class Filters:
    """The prepared filters of one module. A copy of it, as of a model that is copied or stored, is empty."""

    def __init__(self) -> None:
        self.held: Held | None = None  # replaced as a whole: threads may share a module

    def __reduce__(self) -> tuple[type[Filters], tuple[()]]:
        return Filters, ()


def convolve_prepared(module: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    """y of a module's convolution, or None where an operator has to compute it."""
    if (
        not is_idle()
        or is_differentiated(input, weight, bias)
        or weight is not module._parameters.get("weight")
    ):
        return None
    x = plain_values(input)
    if x is None:
        return None
    filters = module.__dict__.get(ATTRIBUTE)
    if filters is None:
        filters = module.__dict__[ATTRIBUTE] = Filters()
    held = filters.held
    if held is None or not held.is_of(module, weight, bias):
        held = Held.of(module, weight, bias)
        if held is None:
            return None
    step = held.steps.get((x.shape, x.strides, x.dtype))
    if step is None:
        step = _planned(module, held, input, x)
        if step is None:
            return None
        filters.held = held
    added = None if held.bias is None else held.bias.values
    return plain_calls.run_on_numbers(step.plan, input, x, step.prepared, added)


def _planned(module: Any, held: Held, input: Tensor, x: np.ndarray) -> PreparedCall | None:
    """The step for a new input; None where it needs a copy."""
    weight, bias = held.weight, held.bias
    ndim = len(module.kernel_size)
    *how, mode = held.how
    read = functions.read_arguments(ndim, input, weight.tensor, bias and bias.tensor, *how)
    batched, last = read[0], read[-1]
    if batched is not input:
        return None
    memory = operators.LAST[input.dim()] if last else torch.contiguous_format
    if not input.is_contiguous(memory_format=memory):
        return None
    limits = False, None, None, BOUNDARIES[mode], 0.0, True
    plan = plain_calls.plan_of_numbers(x, weight.values, *read[3:], *limits)
    prepared = held.forms.pop(plan._key, None) or plan.prepare(weight.values)
    _keep(held.forms, plan._key, prepared, FORMS)
    return _keep(held.steps, (x.shape, x.strides, x.dtype), PreparedCall(plan, prepared), SHAPES)


def _keep(kept: dict[Any, Kept], key: Any, value: Kept, most: int) -> Kept:
    """Keep a value as the last one, and let go of the first where there are more than so many."""
    while len(kept) >= most:
        kept.pop(next(iter(kept)), None)
    kept[key] = value
    return value


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
