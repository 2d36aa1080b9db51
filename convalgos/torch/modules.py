"""torch's modules of convolutions computed by convalgos, and `replace`, which swaps those of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize
from torch.overrides import has_torch_function

from convalgos.core.element_types import DTYPES
from convalgos.core.errors import Unsupported
from convalgos.torch import functions, inference

CONVS = {1: functions.conv1d, 2: functions.conv2d, 3: functions.conv3d}
TRANSPOSED = {
    1: functions.conv_transpose1d,
    2: functions.conv_transpose2d,
    3: functions.conv_transpose3d,
}


class _Ours:
    """Mixed into torch's modules: the same parameters, another way to compute."""

    def __prepare_scriptable__(self) -> None:
        raise Unsupported(
            "torch.jit.script cannot compile convolutions of convalgos: use torch.compile or torch.export, "
            "or convalgos.torch.restore(model) before"
        )


class _Convolution(_Ours):
    def forward(self: Any, input: Tensor) -> Tensor:
        parameters = self._parameters  # where the way to an attribute of a module comes late
        try:
            weight, bias = parameters["weight"], parameters["bias"]
        except KeyError:  # another module computes them
            weight, bias = self.weight, self.bias
        y: Tensor = self._conv_forward(input, weight, bias)
        return y

    def _conv_forward(self: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = inference.convolve_prepared(self, input, weight, bias)
        if y is not None:
            return y
        ndim, how = len(self.kernel_size), (self.stride, self.padding, self.dilation, self.groups)
        if self.padding_mode == "zeros":
            return CONVS[ndim](input, weight, bias, *how)
        if has_torch_function(
            (input, weight, bias)
        ):  # it is torch's, pad and convolution, that is overridden
            theirs: Tensor = super()._conv_forward(input, weight, bias)  # type: ignore[misc]
            return theirs
        boundary = inference.BOUNDARIES[self.padding_mode]
        return functions.conv_with_border(ndim, input, weight, bias, *how, boundary)


class Conv1d(_Convolution, nn.Conv1d):
    """`torch.nn.Conv1d`, computed by convalgos."""


class Conv2d(_Convolution, nn.Conv2d):
    """`torch.nn.Conv2d`, computed by convalgos."""


class Conv3d(_Convolution, nn.Conv3d):
    """`torch.nn.Conv3d`, computed by convalgos."""


class _Transposed(_Ours):
    def forward(self: Any, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        ndim = len(self.kernel_size)
        more = self._output_padding(
            input, output_size, self.stride, self.padding, self.kernel_size, ndim, self.dilation
        )
        how = (self.stride, self.padding, more, self.groups, self.dilation)
        return TRANSPOSED[ndim](input, self.weight, self.bias, *how)


class ConvTranspose1d(_Transposed, nn.ConvTranspose1d):
    """`torch.nn.ConvTranspose1d`, computed by convalgos."""


class ConvTranspose2d(_Transposed, nn.ConvTranspose2d):
    """`torch.nn.ConvTranspose2d`, computed by convalgos."""


class ConvTranspose3d(_Transposed, nn.ConvTranspose3d):
    """`torch.nn.ConvTranspose3d`, computed by convalgos."""


OURS: dict[type, type] = {
    nn.Conv1d: Conv1d,
    nn.Conv2d: Conv2d,
    nn.Conv3d: Conv3d,
    nn.ConvTranspose1d: ConvTranspose1d,
    nn.ConvTranspose2d: ConvTranspose2d,
    nn.ConvTranspose3d: ConvTranspose3d,
}
THEIRS = {ours: cls for cls, ours in OURS.items()}


@dataclass(frozen=True)
class Replaced:
    """What `replace` did: names of the modules that it swapped, and why it left others."""

    swapped: tuple[str, ...] = ()
    left: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        count = len(self.swapped)
        verb = "convolution is" if count == 1 else "convolutions are"
        lines = [f"{count} {verb} computed by convalgos"]
        lines += [f"  {name or WHOLE}" for name in self.swapped]
        lines += [f"  left: {name or WHOLE}: {why}" for name, why in self.left.items()]
        return "\n".join(lines)


WHOLE = "the model itself"  # whose name in `named_modules` is empty


def replace(model: nn.Module) -> Replaced:
    """Let the convolutions of a model be computed by convalgos, in place.

    Modules stay what they are but for their class: parameters, hooks, names and state dictionaries do not
    change, nor does what `torch.nn.utils` did to them. `restore` turns them back.

    Returns:
        What was swapped, and what was left and why; it prints as text. A module that a model holds twice has
        the first of its names.

    Raises:
        TypeError: model is no module.

    Example:
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3, padding_mode="reflect"), nn.LazyConv2d(4, 3))
        >>> print(replace(model))
        1 convolution is computed by convalgos
          0
          left: 1: is a LazyConv2d, whose sizes are not known before its first call
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model={type(model).__name__} must be a torch.nn.Module")
    swapped, left = [], {}
    for name, module in model.named_modules():
        if not _convolves(module) or _plain_class(module) in THEIRS:
            continue
        if reason := _why_left(module):
            left[name] = reason
        else:
            _swap(module, OURS)
            swapped.append(name)
    return Replaced(tuple(swapped), left)


def restore(model: nn.Module) -> None:
    """Turn back what `replace` did to a model, in place.

    Example:
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3))
        >>> replace(model).swapped
        ('0',)
        >>> restore(model)
        >>> type(model[0]) is nn.Conv2d
        True
    """
    for module in model.modules():
        if _plain_class(module) in THEIRS:
            _swap(module, THEIRS)
    inference.forget_filters(model)


# --- inside ----------------------------------------------------------------------------------


def _convolves(module: nn.Module) -> bool:
    """Whether it is a convolution of torch's, also a compiled or a quantised one."""
    if isinstance(module, torch.jit.ScriptModule):
        return module.original_name in {cls.__name__ for cls in OURS}
    quantized = type(module).__module__.startswith("torch.ao.nn.") and hasattr(module, "kernel_size")
    return isinstance(module, tuple(OURS)) or quantized


def _plain_class(module: nn.Module) -> type:
    """The class of a module, or that which `torch.nn.utils.parametrize` put one of its own over."""
    cls = type(module)
    return cls.__bases__[0] if parametrize.is_parametrized(module) else cls


def _swap(module: nn.Module, classes: dict[type, type]) -> None:
    """Give a module the class that stands for its own."""
    cls, plain = type(module), _plain_class(module)
    if cls is plain:
        module.__class__ = classes[cls]
        return
    own = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
    module.__class__ = type(cls.__name__, (classes[plain],), own)


def _why_left(module: Any) -> str | None:
    if isinstance(module, torch.jit.ScriptModule):
        return "is compiled by torch.jit: replace before torch.jit.script or trace"
    if any(is_lazy(parameter) for parameter in module.parameters(recurse=False)):
        return f"is a {type(module).__name__}, whose sizes are not known before its first call"
    cls = _plain_class(module)
    if cls not in OURS:
        return f"is a {cls.__module__}.{cls.__qualname__}, which may compute in its own way"
    if "forward" in vars(module) or "_conv_forward" in vars(module):
        return "has a forward method of its own"
    if module.padding_mode not in inference.BOUNDARIES:
        return f"pads with padding_mode={module.padding_mode!r}, which torch has not"
    if module.weight.dtype not in functions.DTYPE_NAMES:
        return f"computes in {module.weight.dtype}; convalgos in {', '.join(DTYPES)}"
    if module.weight.device.type not in ("cpu", "cuda", "meta"):
        return f"lies on {module.weight.device}; convalgos computes on cpu and cuda"
    return None
