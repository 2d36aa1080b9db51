"""Whether a call has to be one of torch's operators, or whether its numbers are all that is asked for."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

is_compiling, is_grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled
is_autocast, profiling = torch.is_autocast_enabled, torch.autograd._profiler_enabled  # type: ignore[attr-defined]
function_modes, dispatch_modes = torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack
transforms, tracing_state = torch._C._are_functorch_transforms_active, torch._C._get_tracing_state
keys_of = torch._C._dispatch_keys


def _plain() -> frozenset[int]:
    """What torch dispatches ordinary tensors of the CPU by; sparse or mapped ones have other keys."""
    with torch.inference_mode():
        without_gradients = torch.empty(0)
    return frozenset(keys_of(tensor).raw_repr() for tensor in (torch.empty(0), without_gradients))


PLAIN = _plain()


def is_plain(*tensors: Tensor | None) -> bool:
    """Whether no gradient, graph, mode, transform, autocast or profiler is at work on tensors of the CPU."""
    if is_compiling() or function_modes() or dispatch_modes() or transforms() or profiling():
        return False
    if tracing_state() is not None or forward_ad._current_level >= 0 or is_autocast("cpu"):
        return False
    recorded = is_grad_enabled()
    for tensor in tensors:
        if tensor is None:
            continue
        if type(tensor) is not Tensor and type(tensor) is not nn.Parameter:
            return False
        if (recorded and tensor.requires_grad) or keys_of(tensor).raw_repr() not in PLAIN:
            return False
    return True
