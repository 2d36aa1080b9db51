"""torch's face on the same plans: `conv1d`, `conv2d`, `conv3d` with gradients, `replace` and `freeze`.

The forward pass and both backward passes are custom operators, so that autograd, `torch.compile` and the
tools of `torch.library` know them. Each is linear in two arrays, and their gradients are one another: they
can be differentiated any number of times, backwards and forwards, and mapped by `torch.func`. Tensors may lie
on the CPU or on a GPU, in torch's order of memory or in channels_last, which then is that of the result.

Example:
    >>> import torch, convalgos.torch as ct
    >>> x, w = torch.ones(1, 3, 8, 8), torch.ones(4, 3, 3, 3, requires_grad=True)
    >>> ct.conv2d(x, w, padding=1).sum().backward()
    >>> w.grad.shape
    torch.Size([4, 3, 3, 3])
"""

from importlib import import_module
from typing import Any

from convalgos.torch.functions import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from convalgos.torch.inference import forget_filters
from convalgos.torch.modules import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    Replaced,
    replace,
    restore,
)

__all__ = [
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Replaced",
    "compile_backend",
    "forget_filters",
    "freeze",
    "replace",
    "restore",
]


def __getattr__(name: str) -> Any:
    if name == "freeze":
        return import_module("convalgos.torch.freezing").freeze
    if name == "compile_backend":  # imports torch's compiler, which takes its time
        return import_module("convalgos.torch.compiling").compile_backend
    raise AttributeError(f"module 'convalgos.torch' has no attribute {name!r}")
