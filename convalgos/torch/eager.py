"""Whether a call has to be one of torch's operators, or whether its numbers are all that is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from convalgos.core.arrays import as_numpy
from convalgos.torch.tensor_views import FLOAT32

BFLOAT16 = torch.bfloat16
ORDINARY = {Tensor}  # types of tensors
is_compiling, is_grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled
is_autocast, profiling = torch.is_autocast_enabled, torch.autograd._profiler_enabled  # type: ignore[attr-defined]
function_modes, dispatch_modes = torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack
transforms, tracing_state = torch._C._are_functorch_transforms_active, torch._C._get_tracing_state


def is_idle() -> bool:
    """Whether no graph, mode, transform, autocast or profiler is at work."""
    if is_compiling() or function_modes() or dispatch_modes() or transforms() or profiling():
        return False
    return tracing_state() is None and forward_ad._current_level < 0 and not is_autocast("cpu")


def is_differentiated(*tensors: Any) -> bool:
    """Whether torch records what is computed of some tensors, for their gradients."""
    return is_grad_enabled() and any(
        isinstance(tensor, Tensor) and tensor.requires_grad for tensor in tensors
    )


def plain_values(tensor: Any) -> np.ndarray | None:
    """A view of the numbers of an ordinary tensor of the CPU; None of others, as sparse and negated ones."""
    kind = type(tensor)
    if kind is not Tensor and kind is not nn.Parameter:
        return None
    try:
        if tensor.requires_grad:
            tensor = tensor.detach()
        values: np.ndarray = tensor.numpy() if tensor.dtype is not BFLOAT16 else as_numpy("tensor", tensor)
    except (TypeError, RuntimeError):  # torch's words for what does not lie there as it is
        return None
    return values


def quick_views(tensors: Sequence[Any]) -> list[np.ndarray] | None:
    """Views of ordinary tensors of the CPU, of float32 or no floats, where only their numbers are asked for.

    None of all others, and of some that would do, such as parameters: to look at each takes longer.
    """
    if {*map(type, tensors)} != ORDINARY or not is_idle():
        return None
    try:
        views = [tensor.numpy() for tensor in tensors]
    except (TypeError, RuntimeError):  # torch's words for what does not lie there as it is
        return None
    for view in views:
        if view.dtype is not FLOAT32 and view.dtype.kind == "f":
            return None
    return views


def is_plain(*tensors: Tensor | None) -> bool:
    """Whether nothing but numbers and their gradients is asked for, of ordinary tensors of the CPU."""
    return is_idle() and all(tensor is None or plain_values(tensor) is not None for tensor in tensors)
