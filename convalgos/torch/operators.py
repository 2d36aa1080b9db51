"""The forward pass and both backward passes as operators of torch, which run on CPU and CUDA tensors.

Shapes: x (N, C, *spatial), w (K, C/groups, *kernel), y and dy (N, K, *spatial_out); `sizes` and `kernel` are
the spatial ones of a result. `pads` are (low, high) of each dimension in turn. `last` says whether channels
lie last in the memory of x, y and their gradients, and of dw, as they do in torch. `boundary` is that of
`convalgos.conv`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.utils.flop_counter import conv_flop_count, register_flop_formula

from convalgos.api import forward, gradients
from convalgos.torch import threads
from convalgos.torch.eager import plain_values
from convalgos.torch.plain_operators import compute_plain, plain_arrays

Ints = list[int]
DEVICES = ("cpu", "cuda")  # others, sparse and quantised tensors are refused by torch
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # dimensions -> memory format

# Ints may be symbols, for graphs of any size; the rest are numbers, which torch.jit.trace can record.
HOW = "int[] stride, int[] pads, int[] dilation, int groups, bool last, str boundary"


Function = TypeVar("Function", bound=Callable[..., Any])


class Operator(Protocol):
    """A custom operator of torch, with the function that it was made of."""

    directly: Callable[..., Tensor]

    def __call__(self, *inputs: Any) -> Tensor: ...

    def register_fake(self, function: Function) -> Function: ...

    def register_autograd(
        self, backward: Callable[..., Any], *, setup_context: Callable[..., None]
    ) -> None: ...


def _operator(name: str, arguments: str) -> Callable[[Callable[..., Tensor]], Operator]:
    """Makes a function an operator, whose `directly` is the function itself."""
    schema = f"({arguments}, {HOW}) -> Tensor"

    def decorated(function: Callable[..., Tensor]) -> Operator:
        @functools.wraps(function)
        def shared(*given: Any) -> Tensor:
            threads.share()
            return function(*given)

        made: Any = torch.library.custom_op(
            f"convalgos::{name}", shared, mutates_args=(), device_types=DEVICES, schema=schema
        )
        made.directly = shared
        operator: Operator = made
        return operator

    return decorated


@_operator("conv", "Tensor x, Tensor w, Tensor? bias")
def conv(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    stride: Ints,
    pads: Ints,
    dilation: Ints,
    groups: int,
    last: bool,
    boundary: str,
) -> Tensor:
    settings = how(stride, pads, dilation, groups, last) | {"boundary": boundary}
    x_shape, x = x.shape, _laid(x, last)
    if arrays := plain_arrays(x, w, *(() if bias is None else (bias,))):
        added = arrays[2] if bias is not None else None
        return compute_plain("forward", arrays[:2], added, x_shape, w.shape, settings, x)
    return _seen(forward.conv(x, _filter(w), bias, **settings), last)


@_operator("conv_backward_data", "Tensor dy, Tensor w, SymInt[] sizes")
def backward_data(
    dy: Tensor, w: Tensor, sizes: Ints, stride: Ints, pads: Ints, dilation: Ints, groups: int, last: bool,
    boundary: str,
) -> Tensor:  # fmt: skip
    channels = w.shape[1] * groups
    shape = (dy.shape[0], *sizes, channels) if last else (dy.shape[0], channels, *sizes)
    settings = how(stride, pads, dilation, groups, last) | {"boundary": boundary}
    dy = _laid(dy, last)
    if arrays := plain_arrays(dy, w):
        x_shape = (dy.shape[0], channels, *sizes)
        return compute_plain("backward_data", arrays, None, x_shape, w.shape, settings, dy)
    return _seen(gradients.conv_backward_data(dy, _filter(w), shape, **settings), last)


@_operator("conv_backward_weights", "Tensor x, Tensor dy, SymInt[] kernel")
def backward_weights(
    x: Tensor, dy: Tensor, kernel: Ints, stride: Ints, pads: Ints, dilation: Ints, groups: int, last: bool,
    boundary: str,
) -> Tensor:  # fmt: skip
    shape = (dy.shape[1], x.shape[1] // groups, *kernel)
    settings = how(stride, pads, dilation, groups, last) | {"boundary": boundary}
    out = _empty(x, shape, last) if last or x.is_cuda else None  # else dw would lie in CuPy's memory
    x_shape, x, dy = x.shape, _laid(x, last), _laid(dy, last)
    if arrays := plain_arrays(x, dy):
        into = None if out is None else plain_values(out)
        return compute_plain("backward_weights", arrays, None, x_shape, shape, settings, x, into)
    dw: Tensor = gradients.conv_backward_weights(x, dy, shape, out=out, **settings)
    return dw


@conv.register_fake
def _(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    stride: Ints,
    pads: Ints,
    dilation: Ints,
    groups: int,
    last: bool,
    boundary: str,
) -> Tensor:
    sizes = [
        (size + low + high - d * (r - 1) - 1) // s + 1
        for size, (low, high), d, r, s in zip(
            x.shape[2:], pairs(pads), dilation, w.shape[2:], stride, strict=True
        )
    ]
    if any(size < 1 for size in sizes) and all(size > 0 for size in x.shape[2:]):
        raise ValueError(
            f"weight has the kernel {tuple(w.shape[2:])}, with dilation={list(dilation)}: more than input "
            f"{tuple(x.shape[2:])} with padding={pairs(pads)}"
        )
    return _empty(x, (x.shape[0], w.shape[0], *sizes), last)


@backward_data.register_fake
def _(
    dy: Tensor, w: Tensor, sizes: Ints, stride: Ints, pads: Ints, dilation: Ints, groups: int, last: bool,
    boundary: str,
) -> Tensor:  # fmt: skip
    return _empty(dy, (dy.shape[0], w.shape[1] * groups, *sizes), last)


@backward_weights.register_fake
def _(
    x: Tensor, dy: Tensor, kernel: Ints, stride: Ints, pads: Ints, dilation: Ints, groups: int, last: bool,
    boundary: str,
) -> Tensor:  # fmt: skip
    return _empty(x, (dy.shape[1], x.shape[1] // groups, *kernel), last)


# What torch.utils.flop_counter counts: multiplications and additions of the direct sums.


@register_flop_formula(torch.ops.convalgos.conv)
def _(x_shape: Ints, w_shape: Ints, *_: Any, out_shape: Any = None, **__: Any) -> int:
    return conv_flop_count(x_shape, w_shape, out_shape)


@register_flop_formula(torch.ops.convalgos.conv_backward_data)
def _(dy_shape: Ints, w_shape: Ints, *_: Any, out_shape: Any = None, **__: Any) -> int:
    return conv_flop_count(dy_shape, w_shape, out_shape, transposed=True)


@register_flop_formula(torch.ops.convalgos.conv_backward_weights)
def _(x_shape: Ints, dy_shape: Ints, *_: Any, out_shape: Any = None, **__: Any) -> int:
    return conv_flop_count(x_shape, out_shape, dy_shape)


def _empty(example: Tensor, shape: tuple[int, ...], last: bool) -> Tensor:
    if not last:
        return example.new_empty(shape)
    return torch.empty(shape, dtype=example.dtype, device=example.device, memory_format=LAST[len(shape)])


def _laid(x: Tensor, last: bool) -> Tensor:
    """x as it lies, (N, C, *spatial) or (N, *spatial, C): a view, or a copy where it lies otherwise."""
    return x.contiguous(memory_format=LAST[x.dim()]).movedim(1, -1) if last else x.contiguous()


def _filter(w: Tensor) -> Tensor:
    """w as it lies where that is read faster than torch copies it."""
    return w.contiguous() if w.is_cuda else w


def _seen(y: Tensor, last: bool) -> Tensor:
    """A result as torch sees it: (N, C, *spatial). A view could not be changed in place, as by nn.ReLU."""
    return y.movedim(-1, 1).detach() if last else y


def how(stride: Ints, pads: Ints, dilation: Ints, groups: int, last: bool) -> dict[str, Any]:
    return {
        "stride": tuple(stride),
        "padding": tuple(pairs(pads)),
        "dilation": tuple(dilation),
        "groups": groups,
        "layout": "channels_last" if last else "channels_first",
    }


def pairs(pads: Ints) -> list[tuple[int, int]]:
    return list(zip(pads[::2], pads[1::2], strict=True))
