"""The operators with gradients of any order, backwards and forwards, and under the transforms of torch.func.

Each operator is linear in its first two arrays, and the gradients are the operators themselves: a product of
two of x, w and y has the shape of the third. Forward gradients are two products. Under `torch.vmap` the
mapped dimension is folded into one that an operator has anyway: that of the images, the channels or the
filters, and if both arrays are mapped, as for gradients of single samples, that of the groups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from convalgos.torch import operators
from convalgos.torch.eager import is_differentiated, is_plain
from convalgos.torch.operators import Operator

try:  # as `torch.compiler.disable`, but loads the compiler only when what it makes is called
    from torch._compile import _disable_dynamo as without_compiler
except ImportError:  # a torch without it
    without_compiler = torch.compiler.disable

Product = Callable[..., Tensor]  # (first, second, extra, *how): those of the operators
SETTINGS = 6  # of these, how many follow the first three


class Place(NamedTuple):
    """Where an array takes up the mapped dimension: before an axis, or within each group of it."""

    axis: int
    in_groups: bool = False

    def fold(self, array: Tensor, groups: int) -> Tensor:
        """(M, *shape) -> shape, this axis M times as large."""
        groups = groups if self.in_groups else 1
        count, *shape = array.shape
        size = shape[self.axis]
        folded = array.unflatten(self.axis + 1, (groups, size // groups))  # type: ignore[no-untyped-call]
        split: Tensor = folded.movedim(0, self.axis + 1)
        return split.reshape(*shape[: self.axis], count * size, *shape[self.axis + 1 :])

    def unfold(self, array: Tensor, groups: int, count: int) -> Tensor:
        """`fold` turned back."""
        groups = groups if self.in_groups else 1
        size = array.shape[self.axis] // count // groups
        parts = array.unflatten(self.axis, (groups, count, size))  # type: ignore[no-untyped-call]
        split: Tensor = parts.movedim(self.axis + 1, 0)
        return split.flatten(self.axis + 1, self.axis + 2)


Places = tuple[Place | None, Place | None, Place]  # of first, second and result


class Folds(NamedTuple):
    """What takes up the mapped dimension, by which of the two arrays have it."""

    first: Places
    second: Places
    both: Places

    def of(self, first: bool, second: bool) -> Places | None:
        if first and second:
            return self.both
        return self.first if first else self.second if second else None


def _product(
    operator: Operator, gradients: Callable[[Any, Tensor], tuple[Tensor | None, ...]], folds: Folds
) -> Product:
    """An operator with its gradients.

    Args:
        gradients: (context, gradient of the result) -> those of first, second and extra. The context has
            `saved_tensors`, first and second, and `how`, the settings.
    """

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        first, second, _, *ctx.how = inputs
        ctx.save_for_backward(first, second)

    def differentiate(ctx: Any, g: Tensor | None) -> tuple[Tensor | None, ...]:
        found = (None,) * 3 if g is None else gradients(ctx, g)
        return *found, *(None,) * SETTINGS

    class Transformed(torch.autograd.Function):
        """What torch.func and forward gradients ask for, and operators alone do not have; slower to call."""

        @staticmethod
        def forward(*inputs: Any) -> Any:
            return operator(*inputs)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
            keep(ctx, inputs, output)
            _keep_for_forward_gradient(ctx, inputs, output)

        @staticmethod
        def jvp(ctx: Any, *of_inputs: Any) -> Tensor:
            return _forward_gradient(apply, ctx, *of_inputs[:3])

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
            return _mapped(apply, folds, info.batch_size, in_dims, *inputs)

        backward = staticmethod(differentiate)

    class Recorded(torch.autograd.Function):
        """What autograd alone asks for, of ordinary tensors: without the time of an operator."""

        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Tensor:
            keep(ctx, inputs, inputs[0])
            ctx.set_materialize_grads(False)
            return operator.directly(*inputs)

        backward = staticmethod(differentiate)

    operator.register_autograd(differentiate, setup_context=keep)

    @without_compiler
    def transformed(*inputs: Any) -> Any:
        return Transformed.apply(*inputs)  # type: ignore[no-untyped-call] # torch leaves it so

    def apply(*inputs: Any) -> Any:
        first, second, extra, *_ = inputs
        tensors = first, second, extra if isinstance(extra, Tensor) else None
        if is_plain(*tensors):
            run = Recorded.apply if is_differentiated(*tensors) else operator.directly
            return run(*inputs)
        return transformed(*inputs) if _is_transformed() else operator(*inputs)

    return apply


def _keep_for_forward_gradient(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    first, second, extra, *_ = inputs
    ctx.extra = None if isinstance(extra, Tensor) else extra
    ctx.shape = output.shape
    ctx.save_for_forward(first, second)
    ctx.set_materialize_grads(False)


def _forward_gradient(
    apply: Product, ctx: Any, of_first: Tensor | None, of_second: Tensor | None, of_extra: Tensor | None
) -> Tensor:
    """The sum of what the directions of first, second and bias make of the result."""
    first, second = ctx.saved_tensors
    parts: list[Tensor] = []
    if of_first is not None:
        parts.append(apply(of_first, second, ctx.extra, *ctx.how))
    if of_second is not None:
        parts.append(apply(first, of_second, ctx.extra, *ctx.how))
    if of_extra is not None:
        parts.append(_of_each_channel(of_extra, len(ctx.shape) - 2).expand(ctx.shape))
    return sum(parts[1:], parts[0])


def _mapped(
    apply: Product, folds: Folds, count: int, in_dims: tuple[int | None, ...], first: Tensor, second: Tensor,
    extra: Any, *how: Any,
) -> tuple[Tensor, int]:  # fmt: skip
    """The operator under `torch.vmap` over `count` elements, and the mapped dimension of the result.

    1. The mapped dimension of each array that has one is folded into the dimension that `folds` says.
    2. The operator computes once; where both arrays are mapped, on so many times the groups.
    3. The result is unfolded, the mapped dimension first; a bias, mapped or not, is added.
    """
    at_first, at_second, at_extra = in_dims[:3]
    *settings, groups, last, boundary = how
    bias, extra = (extra, None) if isinstance(extra, Tensor) else (None, extra)
    places = folds.of(at_first is not None, at_second is not None)
    if places is None:  # the bias alone
        y = apply(first, second, extra, *how).unsqueeze(0)
    else:
        of_first, of_second, of_y = places
        if of_first is not None and at_first is not None:
            first = of_first.fold(first.movedim(at_first, 0), groups)
        if of_second is not None and at_second is not None:
            second = of_second.fold(second.movedim(at_second, 0), groups)
        wider = groups * count if places is folds.both else groups
        y = of_y.unfold(apply(first, second, extra, *settings, wider, last, boundary), groups, count)
    if bias is not None:
        bias = bias.unsqueeze(0) if at_extra is None else bias.movedim(at_extra, 0)
        y = y + _of_each_channel(bias, y.dim() - 3).unsqueeze(1)
    return y, 0


def _is_transformed() -> bool:
    """Whether a transform of torch.func is at work, or forward gradients are."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def _of_each_channel(bias: Tensor, ndim: int) -> Tensor:
    """(..., K) -> (..., K, 1, ...), which goes along the spatial dimensions."""
    return bias.reshape(*bias.shape, *(1,) * ndim)


# --- the three, whose gradients are one another -------------------------------------------------


def conv_gradients(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    """Those of x, w and bias; the context has `how`, the settings."""
    x, w = ctx.saved_tensors
    dx = backward_data(dy, w, list(x.shape[2:]), *ctx.how) if ctx.needs_input_grad[0] else None
    dw = backward_weights(x, dy, list(w.shape[2:]), *ctx.how) if ctx.needs_input_grad[1] else None
    db = dy.sum((0, *range(2, dy.dim()))) if ctx.needs_input_grad[2] else None
    return dx, dw, db


def _of_backward_data(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    dy, w = ctx.saved_tensors
    ddy = conv(g, w, None, *ctx.how) if ctx.needs_input_grad[0] else None
    dw = backward_weights(g, dy, list(w.shape[2:]), *ctx.how) if ctx.needs_input_grad[1] else None
    return ddy, dw, None


def _of_backward_weights(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    x, dy = ctx.saved_tensors
    dx = backward_data(dy, g, list(x.shape[2:]), *ctx.how) if ctx.needs_input_grad[0] else None
    ddy = conv(x, g, None, *ctx.how) if ctx.needs_input_grad[1] else None
    return dx, ddy, None


conv = _product(  # x, w -> y
    operators.conv,
    conv_gradients,
    Folds(
        first=(Place(0), None, Place(0)),
        second=(None, Place(0, in_groups=True), Place(1, in_groups=True)),
        both=(Place(1), Place(0), Place(1)),
    ),
)
backward_data = _product(  # dy, w -> dx
    operators.backward_data,
    _of_backward_data,
    Folds(
        first=(Place(0), None, Place(0)),
        second=(None, Place(1), Place(1, in_groups=True)),
        both=(Place(1), Place(0), Place(1)),
    ),
)
backward_weights = _product(  # x, dy -> dw
    operators.backward_weights,
    _of_backward_weights,
    Folds(
        first=(Place(1, in_groups=True), None, Place(1)),
        second=(None, Place(1, in_groups=True), Place(0, in_groups=True)),
        both=(Place(1), Place(1), Place(0)),
    ),
)
