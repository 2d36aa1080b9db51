"""The functions of `torch.nn.functional` by convalgos: arguments -> the operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from convalgos.core import arguments
from convalgos.core.boundaries import ZERO
from convalgos.core.element_types import DTYPES
from convalgos.core.errors import Unsupported
from convalgos.core.transposed_sizes import transposed_rows, transposed_spatial
from convalgos.torch import autograd, plain_calls, training
from convalgos.torch.eager import is_differentiated, is_idle
from convalgos.torch.operators import DEVICES, LAST, Ints, pairs

DTYPE_NAMES = {getattr(torch, name): name for name in DTYPES}


def conv1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """`torch.nn.functional.conv1d`, of (N, C, W) or (C, W), by convalgos.

    Raises:
        ValueError, TypeError: an argument is invalid; the message names it.

    Example:
        >>> import torch, convalgos.torch as ct
        >>> ct.conv1d(torch.ones(2, 3, 16), torch.ones(4, 3, 5), padding="same").shape
        torch.Size([2, 4, 16])
    """
    return _conv(conv1d, 1, input, weight, bias, stride, padding, dilation, groups)


def conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """`torch.nn.functional.conv2d`, of (N, C, H, W) or (C, H, W), by convalgos; raises as `conv1d`.

    Example:
        >>> import torch, convalgos.torch as ct
        >>> ct.conv2d(torch.ones(2, 3, 8, 9), torch.ones(4, 3, 3, 3), stride=2, padding=1).shape
        torch.Size([2, 4, 4, 5])
    """
    return _conv(conv2d, 2, input, weight, bias, stride, padding, dilation, groups)


def conv3d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """`torch.nn.functional.conv3d`, of (N, C, D, H, W) or (C, D, H, W), by convalgos; raises as `conv1d`.

    Example:
        >>> import torch, convalgos.torch as ct
        >>> ct.conv3d(torch.ones(1, 2, 5, 6, 7), torch.ones(3, 2, 3, 3, 3)).shape
        torch.Size([1, 3, 3, 4, 5])
    """
    return _conv(conv3d, 3, input, weight, bias, stride, padding, dilation, groups)


def conv_transpose1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Tensor:  # fmt: skip
    """`torch.nn.functional.conv_transpose1d`, of (N, C, W) or (C, W), by convalgos; raises as `conv1d`."""
    how = (stride, padding, output_padding, groups, dilation)
    return _conv_transpose(conv_transpose1d, 1, input, weight, bias, *how)


def conv_transpose2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Tensor:  # fmt: skip
    """`torch.nn.functional.conv_transpose2d`, of (N, C, H, W) or (C, H, W); raises as `conv1d`."""
    how = (stride, padding, output_padding, groups, dilation)
    return _conv_transpose(conv_transpose2d, 2, input, weight, bias, *how)


def conv_transpose3d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Tensor:  # fmt: skip
    """`torch.nn.functional.conv_transpose3d`, of (N, C, D, H, W) or (C, D, H, W); raises as `conv1d`."""
    how = (stride, padding, output_padding, groups, dilation)
    return _conv_transpose(conv_transpose3d, 3, input, weight, bias, *how)


def conv_transpose(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Tensor:  # fmt: skip
    """`conv_transpose1d`, `2d` or `3d`, by the dimensions of the weight; raises as `conv1d`.

    Example:
        >>> import torch, convalgos.torch as ct
        >>> x, w = torch.ones(1, 4, 5, 6), torch.ones(4, 2, 3, 3)  # w (C, K/groups, *kernel)
        >>> ct.conv_transpose(x, w, stride=2, padding=1, output_padding=1).shape
        torch.Size([1, 2, 10, 12])
    """
    how = (stride, padding, output_padding, groups, dilation)
    return _conv_transpose(conv_transpose, weight.dim() - 2, input, weight, bias, *how)


# --- inside ----------------------------------------------------------------------------------


def _conv(
    function: Any, ndim: int, input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any,
    groups: Any,
) -> Tensor:  # fmt: skip
    if is_idle():
        call = plain_calls.planned_call(
            read_arguments, ndim, input, weight, bias, stride, padding, dilation, groups
        )
        if call is not None:
            differentiated = is_differentiated(input, weight, bias)
            return training.record_call(call, input, weight, bias) if differentiated else call.run(input)
    tensors, how = (input, weight, bias), (stride, padding, dilation, groups)
    if has_torch_function(tensors):  # a subclass of tensors, a proxy of torch.fx, or a mode
        theirs: Tensor = handle_torch_function(function, tensors, *tensors, *how)
        return theirs
    return conv_with_border(ndim, *tensors, *how, ZERO)


def conv_with_border(
    ndim: int, input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: Any,
    boundary: str,
) -> Tensor:  # fmt: skip
    """A convolution of tensors with something else than zeros around them: see `convalgos.conv`."""
    y = autograd.conv(*read_arguments(ndim, input, weight, bias, stride, padding, dilation, groups), boundary)
    return y if input.dim() == ndim + 2 else y.squeeze(0)


def read_arguments(
    ndim: int, input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: Any
) -> tuple[Tensor, Tensor, Tensor | None, Ints, Ints, Ints, int, bool]:
    """The arguments of `autograd.conv`, once they are known to be valid: a batch, weight, bias, settings."""
    input, weight, bias = _operands(ndim, input, weight, bias)
    groups = arguments.integer("groups", groups, 1)
    if input.shape[-ndim - 1] != weight.shape[1] * groups:
        raise ValueError(
            f"input has {input.shape[-ndim - 1]} channels, but weight {tuple(weight.shape)} with "
            f"groups={groups} takes {weight.shape[1] * groups}"
        )
    _check_filters(weight, bias, groups, weight.shape[0])
    steps, spread = _each("stride", stride, ndim, 1), _each("dilation", dilation, ndim, 1)
    pads = _pads(ndim, padding, weight, steps, spread)
    batched = input if input.dim() == ndim + 2 else input.unsqueeze(0)
    last = _is_last(batched) or _is_last(weight)
    return batched, weight, bias, steps, pads, spread, groups, last


def _conv_transpose(
    function: Any, ndim: int, input: Any, weight: Any, bias: Any, stride: Any, padding: Any,
    output_padding: Any, groups: Any, dilation: Any,
) -> Tensor:  # fmt: skip
    tensors = (input, weight, bias)
    if has_torch_function(tensors):
        how = (stride, padding, output_padding, groups, dilation)
        theirs: Tensor = handle_torch_function(function, tensors, *tensors, *how)
        return theirs
    if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call] # torch leaves it so
        raise Unsupported(
            "torch.jit.trace cannot record a transposed convolution of convalgos: use torch.export, or "
            "convalgos.torch.restore(model) before"
        )
    input, weight, bias = _operands(ndim, input, weight, bias)
    groups = arguments.integer("groups", groups, 1)
    if input.shape[-ndim - 1] != weight.shape[0]:
        raise ValueError(
            f"input has {input.shape[-ndim - 1]} channels, but weight {tuple(weight.shape)} takes "
            f"{weight.shape[0]}"
        )
    _check_filters(weight, bias, groups, weight.shape[1] * groups)
    steps, spread = _each("stride", stride, ndim, 1), _each("dilation", dilation, ndim, 1)
    pads = [side for p in _each("padding", padding, ndim, 0) for side in (p, p)]
    more = _each("output_padding", output_padding, ndim, 0)
    batched = input if input.dim() == ndim + 2 else input.unsqueeze(0)
    sizes = transposed_spatial(
        tuple(batched.shape[2:]), tuple(weight.shape[2:]), steps, pairs(pads), spread, more
    )
    last = _is_last(batched) or _is_last(weight)
    rows = transposed_rows(steps, more, ndim)
    if any(rows):
        batched = torch.nn.functional.pad(batched, [side for n in reversed(rows) for side in (0, n)])
    y = autograd.backward_data(batched, weight, list(sizes), steps, pads, spread, groups, last, ZERO)
    y = y if bias is None else y + bias.reshape(-1, *(1,) * ndim)
    return y if input.dim() == ndim + 2 else y.squeeze(0)


def _operands(ndim: int, input: Any, weight: Any, bias: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    """The tensors as they are computed with: within torch.autocast in its dtype."""
    for name, tensor in (("input", input), ("weight", weight), ("bias", bias)):
        if not isinstance(tensor, Tensor) and (tensor is not None or name != "bias"):
            raise TypeError(f"{name}={type(tensor).__name__} must be a tensor")
        if tensor is not None and (tensor.layout != torch.strided or tensor.is_nested):
            kind = "nested" if tensor.is_nested else tensor.layout
            raise TypeError(f"{name} is a tensor of layout {kind}, which must be torch.strided")
    if weight.dim() != ndim + 2 or input.dim() not in (ndim + 1, ndim + 2):
        raise ValueError(
            f"input has {input.dim()} dimensions and weight {weight.dim()}: a {ndim}-D convolution takes "
            f"{ndim + 1} or {ndim + 2}, and {ndim + 2}"
        )
    if input.device.type in DEVICES and torch.is_autocast_enabled(input.device.type):
        input, weight, bias = _cast(input), _cast(weight), None if bias is None else _cast(bias)
    dtype, device = input.dtype, input.device
    if dtype not in DTYPE_NAMES:
        raise TypeError(f"input has dtype {dtype}, which must be one of {', '.join(DTYPES)}")
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and tensor.dtype != dtype:
            raise TypeError(f"{name} has dtype {tensor.dtype}, but input {dtype}; they must be the same")
        if tensor is not None and tensor.device != device:
            raise ValueError(f"{name} lies on {tensor.device}, but input on {device}; they must be the same")
    return input, weight, bias


def _cast(tensor: Tensor) -> Tensor:
    """What torch.autocast does to the operands of a convolution."""
    kind = tensor.device.type
    if tensor.is_floating_point() and tensor.dtype != torch.float64:
        return tensor.to(torch.get_autocast_dtype(kind))
    return tensor


def _check_filters(weight: Tensor, bias: Tensor | None, groups: int, outputs: int) -> None:
    if weight.shape[0] % groups:
        raise ValueError(f"groups={groups} must divide the {weight.shape[0]} filters of weight")
    if bias is not None and (bias.dim() != 1 or bias.shape[0] != outputs):
        raise ValueError(f"bias has shape {tuple(bias.shape)}, which must be ({outputs},)")


def _each(name: str, value: Any, ndim: int, least: int) -> Ints:
    """One integer for every dimension; a sequence of one counts for all of them, as in torch."""
    value = value[0] if isinstance(value, Sequence) and len(value) == 1 else value
    return list(arguments.per_dim(name, value, ndim, least))


def _pads(ndim: int, padding: Any, weight: Tensor, stride: Ints, dilation: Ints) -> Ints:
    """(low, high) of each dimension in turn."""
    if not isinstance(padding, str):
        return [side for p in _each("padding", padding, ndim, 0) for side in (p, p)]
    if padding == "valid":
        return [0] * 2 * ndim
    if padding != "same":
        raise ValueError(f"padding={padding!r} must be integers, 'valid' or 'same'")
    if any(s != 1 for s in stride):
        raise ValueError(f"padding='same' must go with a stride of 1, not {stride}")
    totals = [d * (r - 1) for d, r in zip(dilation, weight.shape[2:], strict=True)]
    return [side for t in totals for side in (t // 2, t - t // 2)]


def _is_last(x: Tensor) -> bool:
    """Whether torch sees a tensor as channels_last: by its strides, which for one channel say more than
    `is_contiguous`.

    Source: `is_channels_last_strides_2d_s4` in torch's c10/core/MemoryFormat.h.
    """
    if x.dim() not in LAST:
        return False
    sizes, strides = x.shape, x.stride()
    least = 0
    if strides[1] == 0:
        return False
    for d in (1, *range(x.dim() - 1, 1, -1), 0):
        if sizes[d] == 0 or strides[d] < least or (d == 0 and least == strides[1]):
            return False
        least = strides[d] * max(sizes[d], 1)
    return True
