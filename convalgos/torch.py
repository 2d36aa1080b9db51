"""torch's face on the same plans: `conv1d`, `conv2d` and `conv3d` with gradients, and `replace` for models.

The forward pass and both backward passes are custom operators, so that autograd, `torch.compile` and the
tools of `torch.library` know them. Each is linear in two arrays, and their gradients are one another: they
can be differentiated any number of times. Tensors may lie on the CPU or on a GPU, in torch's order of memory
or in channels_last, which then is that of the result.

Example:
    >>> import torch, convalgos.torch as ct
    >>> x, w = torch.ones(1, 3, 8, 8), torch.ones(4, 3, 3, 3, requires_grad=True)
    >>> ct.conv2d(x, w, padding=1).sum().backward()
    >>> w.grad.shape
    torch.Size([4, 3, 3, 3])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from convalgos import api, gradients
from convalgos.problem import DTYPES, transposed_rows, transposed_spatial

Ints = list[int]
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # dimensions -> memory format
DTYPE_NAMES = {getattr(torch, name) for name in DTYPES}

# --- operators -------------------------------------------------------------------------------
# `pads` are (low, high) of each dimension in turn.


@torch.library.custom_op("convalgos::conv", mutates_args=())
def _conv(
    x: Tensor, w: Tensor, bias: Tensor | None, stride: Ints, pads: Ints, dilation: Ints, groups: int
) -> Tensor:
    x, layout = _ordered(x)
    return api.conv(
        x, w.contiguous(), bias, stride=stride, padding=_pairs(pads), dilation=dilation, groups=groups,
        layout=layout,
    )  # fmt: skip


@torch.library.custom_op("convalgos::conv_backward_data", mutates_args=())
def _backward_data(
    dy: Tensor, w: Tensor, sizes: Ints, stride: Ints, pads: Ints, dilation: Ints, groups: int
) -> Tensor:
    dy, layout = _ordered(dy)
    shape = (dy.shape[0], w.shape[1] * groups, *sizes)
    return gradients.conv_backward_data(
        dy, w.contiguous(), shape, stride=stride, padding=_pairs(pads), dilation=dilation, groups=groups,
        layout=layout,
    )  # fmt: skip


@torch.library.custom_op("convalgos::conv_backward_weights", mutates_args=())
def _backward_weights(
    x: Tensor, dy: Tensor, kernel: Ints, stride: Ints, pads: Ints, dilation: Ints, groups: int
) -> Tensor:
    x, layout = _ordered(x)
    dy = dy.contiguous() if layout == "channels_first" else dy.contiguous(memory_format=LAST[dy.dim()])
    shape = (dy.shape[1], x.shape[1] // groups, *kernel)
    return gradients.conv_backward_weights(
        x, dy, shape, stride=stride, padding=_pairs(pads), dilation=dilation, groups=groups, layout=layout
    )


@_conv.register_fake
def _(x, w, bias, stride, pads, dilation, groups):
    spatial = [
        (n + low + high - d * (r - 1) - 1) // s + 1
        for n, (low, high), d, r, s in zip(
            x.shape[2:], _pairs(pads), dilation, w.shape[2:], stride, strict=True
        )
    ]
    return _empty_like(x, (x.shape[0], w.shape[0], *spatial))


@_backward_data.register_fake
def _(dy, w, sizes, stride, pads, dilation, groups):
    return _empty_like(dy, (dy.shape[0], w.shape[1] * groups, *sizes))


@_backward_weights.register_fake
def _(x, dy, kernel, stride, pads, dilation, groups):
    return x.new_empty((dy.shape[1], x.shape[1] // groups, *kernel))


# --- their gradients, which are the operators themselves ---------------------------------------


def _keep(ctx: Any, inputs: tuple, output: Tensor) -> None:
    first, second, *rest = inputs
    ctx.save_for_backward(first, second)
    ctx.rest = rest


def _conv_gradients(ctx: Any, dy: Tensor) -> tuple:
    x, w = ctx.saved_tensors
    _, *how = ctx.rest
    dx = _backward_data(dy, w, list(x.shape[2:]), *how) if ctx.needs_input_grad[0] else None
    dw = _backward_weights(x, dy, list(w.shape[2:]), *how) if ctx.needs_input_grad[1] else None
    db = dy.sum((0, *range(2, dy.dim()))) if ctx.needs_input_grad[2] else None
    return dx, dw, db, None, None, None, None


def _data_gradients(ctx: Any, g: Tensor) -> tuple:
    dy, w = ctx.saved_tensors
    _, *how = ctx.rest
    ddy = _conv(g, w, None, *how) if ctx.needs_input_grad[0] else None
    dw = _backward_weights(g, dy, list(w.shape[2:]), *how) if ctx.needs_input_grad[1] else None
    return ddy, dw, None, None, None, None, None


def _weights_gradients(ctx: Any, g: Tensor) -> tuple:
    x, dy = ctx.saved_tensors
    _, *how = ctx.rest
    dx = _backward_data(dy, g, list(x.shape[2:]), *how) if ctx.needs_input_grad[0] else None
    ddy = _conv(x, g, None, *how) if ctx.needs_input_grad[1] else None
    return dx, ddy, None, None, None, None, None


_conv.register_autograd(_conv_gradients, setup_context=_keep)
_backward_data.register_autograd(_data_gradients, setup_context=_keep)
_backward_weights.register_autograd(_weights_gradients, setup_context=_keep)


# --- functions -------------------------------------------------------------------------------


def conv1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """`torch.nn.functional.conv1d`, of (N, C, W) or (C, W), by convalgos.

    Raises:
        ValueError, TypeError: an argument is invalid; the message names it.
    """
    return _convolved(1, input, weight, bias, stride, padding, dilation, groups)


def conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """`torch.nn.functional.conv2d`, of (N, C, H, W) or (C, H, W), by convalgos; raises as `conv1d`."""
    return _convolved(2, input, weight, bias, stride, padding, dilation, groups)


def conv3d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """`torch.nn.functional.conv3d`, of (N, C, D, H, W) or (C, D, H, W), by convalgos; raises as `conv1d`."""
    return _convolved(3, input, weight, bias, stride, padding, dilation, groups)


def conv_transpose(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Tensor:  # fmt: skip
    """`torch.nn.functional.conv_transpose1d`, `2d` or `3d`, by the dimensions of the weight.

    Raises:
        ValueError, TypeError: an argument is invalid; the message names it.
    """
    ndim = weight.dim() - 2
    batched = _batched(ndim, input, weight)
    steps, spread = _each("stride", stride, ndim), _each("dilation", dilation, ndim)
    pads = _pads(ndim, padding, weight, steps, spread)
    sizes = transposed_spatial(
        tuple(batched.shape[2:]), tuple(weight.shape[2:]), steps, _pairs(pads), spread, output_padding
    )
    rows = transposed_rows(steps, output_padding, ndim)
    if any(rows):
        batched = nn.functional.pad(batched, [side for n in reversed(rows) for side in (0, n)])
    y = _backward_data(batched, weight, list(sizes), steps, pads, spread, groups)
    y = y if bias is None else y + bias.reshape(-1, *(1,) * ndim)
    return y if input.dim() == weight.dim() else y.squeeze(0)


# --- modules ---------------------------------------------------------------------------------


class _Convolution:
    """Mixed into torch's modules: the same parameters, another way to compute."""

    def _conv_forward(self: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ndim = weight.dim() - 2
        return _convolved(ndim, input, weight, bias, self.stride, self.padding, self.dilation, self.groups)


class Conv1d(_Convolution, nn.Conv1d):
    """`torch.nn.Conv1d`, computed by convalgos."""


class Conv2d(_Convolution, nn.Conv2d):
    """`torch.nn.Conv2d`, computed by convalgos."""


class Conv3d(_Convolution, nn.Conv3d):
    """`torch.nn.Conv3d`, computed by convalgos."""


class _Transposed:
    """The same for the modules of transposed convolutions."""

    def forward(self: Any, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        ndim = self.weight.dim() - 2
        more = self._output_padding(
            input, output_size, self.stride, self.padding, self.kernel_size, ndim, self.dilation
        )
        return conv_transpose(
            input, self.weight, self.bias, self.stride, self.padding, more, self.groups, self.dilation
        )


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


@dataclass(frozen=True)
class Replaced:
    """What `replace` did: names of the modules that it swapped, and why it left others."""

    swapped: tuple[str, ...] = ()
    left: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{len(self.swapped)} convolutions are computed by convalgos"]
        lines += [f"  {name}" for name in self.swapped]
        lines += [f"  left: {name}: {why}" for name, why in self.left.items()]
        return "\n".join(lines)


def replace(model: nn.Module) -> Replaced:
    """Let the convolutions of a model be computed by convalgos, in place.

    Modules stay what they are but for their class: parameters, hooks, names and state dictionaries do not
    change. `restore` turns them back.

    Returns:
        What was swapped, and what was left and why; it prints as text.

    Example:
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"))
        >>> print(replace(model))
        1 convolutions are computed by convalgos
          0
          left: 1: pads with padding_mode='reflect', not with zeros
    """
    swapped, left = [], {}
    for name, module in model.named_modules():
        if not isinstance(module, tuple(OURS)) or type(module) in OURS.values():
            continue
        if reason := _why_left(module):
            left[name] = reason
        else:
            module.__class__ = OURS[type(module)]
            swapped.append(name)
    return Replaced(tuple(swapped), left)


def restore(model: nn.Module) -> None:
    """Turn back what `replace` did to a model."""
    theirs = {ours: cls for cls, ours in OURS.items()}
    for module in model.modules():
        module.__class__ = theirs.get(type(module), module.__class__)


def _why_left(module: Any) -> str | None:
    if type(module) not in OURS:
        return f"is a {type(module).__name__}, which may compute in its own way"
    if module.padding_mode != "zeros":
        return f"pads with padding_mode={module.padding_mode!r}, not with zeros"
    if module.weight.dtype not in DTYPE_NAMES:
        return f"computes in {module.weight.dtype}; convalgos in {', '.join(DTYPES)}"
    if module.weight.device.type not in ("cpu", "cuda"):
        return f"lies on {module.weight.device}; convalgos computes on cpu and cuda"
    return None


# --- inside ----------------------------------------------------------------------------------


def _convolved(
    ndim: int, input: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any,
    groups: int,
) -> Tensor:  # fmt: skip
    batched = _batched(ndim, input, weight)
    steps, spread = _each("stride", stride, ndim), _each("dilation", dilation, ndim)
    pads = _pads(ndim, padding, weight, steps, spread)
    y = _conv(batched, weight, bias, steps, pads, spread, groups)
    return y if input.dim() == weight.dim() else y.squeeze(0)


def _batched(ndim: int, input: Tensor, weight: Tensor) -> Tensor:
    """The input with a dimension of images."""
    if weight.dim() != ndim + 2 or input.dim() not in (ndim + 1, ndim + 2):
        raise ValueError(
            f"input has {input.dim()} dimensions and weight {weight.dim()}: a {ndim}-D convolution takes "
            f"{ndim + 1} or {ndim + 2}, and {ndim + 2}"
        )
    return input if input.dim() == ndim + 2 else input.unsqueeze(0)


def _each(name: str, value: Any, ndim: int) -> Ints:
    """One integer for every dimension, or one, or a sequence of one, for all of them."""
    values = [int(v) for v in value] if isinstance(value, Sequence) else [int(value)] * ndim
    values = values * ndim if len(values) == 1 else values
    if len(values) != ndim:
        raise ValueError(f"{name}={value!r} must be one integer or {ndim} of them")
    return values


def _pads(ndim: int, padding: Any, weight: Tensor, stride: Ints, dilation: Ints) -> Ints:
    """(low, high) of each dimension in turn."""
    if padding == "valid":
        return [0] * 2 * ndim
    if padding == "same":
        if any(s != 1 for s in stride):
            raise ValueError(f"padding='same' must go with a stride of 1, not {stride}")
        totals = [d * (r - 1) for d, r in zip(dilation, weight.shape[2:], strict=True)]
        return [side for t in totals for side in (t // 2, t - t // 2)]
    if isinstance(padding, str):
        raise ValueError(f"padding={padding!r} must be integers, 'valid' or 'same'")
    return [side for p in _each("padding", padding, ndim) for side in (p, p)]


def _pairs(pads: Ints) -> list[tuple[int, int]]:
    return list(zip(pads[::2], pads[1::2], strict=True))


def _is_last(x: Tensor) -> bool:
    """Whether channels lie last in memory."""
    last = LAST.get(x.dim())
    return last is not None and x.is_contiguous(memory_format=last) and not x.is_contiguous()


def _ordered(x: Tensor) -> tuple[Tensor, str]:
    """The tensor in one of the two orders of memory, and which."""
    return (x, "channels_last") if _is_last(x) else (x.contiguous(), "channels_first")


def _empty_like(x: Tensor, shape: Any) -> Tensor:
    """An uninitialised tensor in the order of memory that a result has."""
    y = x.new_empty(shape)
    return y.contiguous(memory_format=LAST[y.dim()]) if _is_last(x) else y
