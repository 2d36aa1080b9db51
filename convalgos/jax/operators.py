"""The forward pass and both backward passes as primitives of JAX, with their gradients and batching.

Each is linear in its two arrays, and their gradients are one another, so that JAX can differentiate them any
number of times, backwards and forwards. Under `jax.vmap` the mapped dimension is folded into one that a
convolution has anyway: that of the images or the filters, and if both arrays are mapped, that of the groups.

On the CPU a primitive becomes a call of `handler`'s function; on other devices JAX's own convolution.

Shapes: maps lie in `layout`, (N, C, *spatial) or (N, *spatial, C); filters are (K, C/groups, *kernel).
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.epilogue import ActivationLike
from convalgos.core.errors import Unsupported
from convalgos.core.problem import ConvProblem, Shape
from convalgos.jax import calls, handler
from convalgos.jax.activations import activation_by_jax
from convalgos.jax.engine import (
    JaxArray,
    ad,
    batching,
    convolution_of_lax,
    extend_core,
    ffi,
    jax,
    jnp,
    mlir,
    xla,
)
from convalgos.jax.filter_order import FilterOrder


class ConvSettings(NamedTuple):
    """What a convolution has beside its arrays. `sizes` are the spatial ones of x, and `kernel` of w."""

    stride: Shape
    padding: tuple[tuple[int, int], ...]
    dilation: Shape
    groups: int
    layout: str
    sizes: Shape
    kernel: Shape
    choice: calls.Selection
    order: FilterOrder | None = None  # of filters that do not lie as (K, C/groups, *kernel)

    @property
    def channel(self) -> int:
        """The axis of the channels of maps."""
        return 1 if self.layout == "channels_first" else len(self.sizes) + 1


def problem_of_arrays(direction: str, first: Any, second: Any, how: ConvSettings) -> ConvProblem:
    """The problem of a primitive on two arrays, of which shape and dtype are looked at.

    Raises:
        ValueError, TypeError: what they are does not go together.
    """
    return _problem(direction, first.shape, second.shape, str(first.dtype), how)


@functools.lru_cache(4096)
def _problem(direction: str, first: Shape, second: Shape, dtype: str, how: ConvSettings) -> ConvProblem:
    if how.order:
        second = how.order.own_shape
    channels, filters = first[how.channel], second[0]
    if direction == "backward_data":
        channels = second[1] * how.groups
    if direction == "backward_weights":
        w_shape = (second[how.channel], channels // how.groups, *how.kernel)
    else:
        w_shape = (filters, second[1], *how.kernel)
    return ConvProblem(
        (first[0], channels, *how.sizes), w_shape, how.stride, how.padding, how.dilation, how.groups,
        layout=how.layout, dtype=dtype, direction=direction,
    )  # fmt: skip


def _primitive(name: str, direction: str) -> Any:
    made = extend_core.Primitive(f"convalgos_{name}")

    def result(
        first: Any, second: Any, *bias: Any, how: ConvSettings, activation: ActivationLike = None
    ) -> Any:
        shape = problem_of_arrays(direction, first, second, how).array_shapes[2]
        return jax.core.ShapedArray(shape, first.dtype)

    def lowered(ctx: Any, *operands: Any, how: ConvSettings, activation: ActivationLike = None) -> Any:
        problem = problem_of_arrays(direction, ctx.avals_in[0], ctx.avals_in[1], how)
        call = calls.Call(problem, how.choice, activation, len(operands) == 3, how.order)
        served = calls.served_call(call)
        served.plan()  # what it refuses is told now
        if not calls.can_be_called():
            back = functools.partial(jax.pure_callback, served.on_host, ctx.avals_out[0])
            return mlir.lower_fun(back, multiple_results=False)(ctx, *operands)
        lowering = ffi.ffi_lowering(handler.TARGET)
        return lowering(ctx, *operands, number=np.int64(call.number), text=call.text)

    made.def_impl(functools.partial(xla.apply_primitive, made))
    made.def_abstract_eval(result)
    mlir.register_lowering(made, lowered, platform="cpu")
    elsewhere = functools.partial(_by_lax, direction)
    mlir.register_lowering(made, mlir.lower_fun(elsewhere, multiple_results=False))
    batching.primitive_batchers[made] = functools.partial(_batched, made, direction)
    return made


def _by_lax(
    direction: str, first: JaxArray, second: JaxArray, *bias: JaxArray, how: ConvSettings,
    activation: ActivationLike = None,
) -> JaxArray:  # fmt: skip
    """What a primitive computes, by JAX's own convolution."""
    if how.choice.algorithm != "auto":
        raise Unsupported(f"algorithm={how.choice.algorithm!r} is one of the CPU: give 'auto' elsewhere")
    spatial = "DHW"[-len(how.sizes) :]
    maps = f"NC{spatial}" if how.layout == "channels_first" else f"N{spatial}C"

    def forward(x: JaxArray, w: JaxArray) -> JaxArray:
        return convolution_of_lax(
            x, w, how.stride, how.padding, rhs_dilation=how.dilation, feature_group_count=how.groups,
            dimension_numbers=(maps, f"OI{spatial}", maps),
        )  # fmt: skip

    second, how = in_own_order(second, how)
    problem = problem_of_arrays(direction, first, second, how)
    shape = jax.ShapeDtypeStruct(problem.array_shapes[2], first.dtype)
    if direction == "forward":
        y = forward(first, second)
    elif direction == "backward_data":
        (y,) = jax.linear_transpose(lambda x: forward(x, second), shape)(first)
    else:
        (y,) = jax.linear_transpose(lambda w: forward(first, w), shape)(second)
    return plain_output(y, bias[0] if bias else None, activation, how)


def in_own_order(w: JaxArray, how: ConvSettings) -> tuple[JaxArray, ConvSettings]:
    """A filter brought into our order by JAX, and the settings that are left."""
    return (how.order.own(w, jnp), how._replace(order=None)) if how.order else (w, how)


def plain_output(
    y: JaxArray, bias: JaxArray | None, activation: ActivationLike, how: ConvSettings
) -> JaxArray:
    """The output step by JAX: bias (channels,) and activation."""
    if bias is not None:
        shape = [1] * y.ndim
        shape[how.channel] = -1
        y = y + bias.reshape(shape)
    return activation_by_jax(y, activation)


# --- batching --------------------------------------------------------------------------------

IMAGES, CHANNELS, FILTERS, INPUTS = "images", "channels", "filters", "inputs"  # dimensions that take it up
Places = tuple[str, str, str]  # those of first, second and result
FOLDS: dict[str, tuple[Places, Places, Places]] = {  # where the first, the second, or both are mapped
    "forward": ((IMAGES, "", IMAGES), ("", FILTERS, CHANNELS), (CHANNELS, FILTERS, CHANNELS)),
    "backward_data": ((IMAGES, "", IMAGES), ("", INPUTS, CHANNELS), (CHANNELS, FILTERS, CHANNELS)),
    "backward_weights": ((CHANNELS, "", INPUTS), ("", CHANNELS, FILTERS), (CHANNELS, CHANNELS, FILTERS)),
}
BOTH = 2  # of these three


def _fold(array: JaxArray, axis: int, groups: int) -> JaxArray:
    """(M, *shape) -> shape, this axis M times as large: within each of so many groups of it."""
    count, *shape = array.shape
    split = array.reshape(count, *shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :])
    moved = jnp.moveaxis(split, 0, axis + 1)
    return moved.reshape(*shape[:axis], count * shape[axis], *shape[axis + 1 :])


def _unfold(array: JaxArray, axis: int, groups: int, count: int) -> JaxArray:
    """`_fold` turned back."""
    shape = array.shape
    size = shape[axis] // count
    split = array.reshape(*shape[:axis], groups, count, size // groups, *shape[axis + 1 :])
    return jnp.moveaxis(split, axis + 1, 0).reshape(count, *shape[:axis], size, *shape[axis + 1 :])


def _batched(
    primitive: Any, direction: str, arrays: Any, dims: Any, *, how: ConvSettings, **step: Any
) -> tuple[JaxArray, int]:
    """A primitive on arrays of which some have a mapped dimension more, which is the first of the result."""
    first, second, *bias = arrays
    mapped = [dim is not None for dim in dims]
    at = mapped.index(True)
    count = arrays[at].shape[dims[at]]
    if not count:
        one, other = (_without(a, dim) for a, dim in zip((first, second), dims, strict=False))
        shape = problem_of_arrays(direction, one, other, how).array_shapes[2]
        return jnp.zeros((0, *shape), first.dtype), 0
    if (bias or how.order) and any(mapped[1:]):
        return _in_steps(direction, arrays, dims, how, **step), 0
    which = BOTH if mapped[0] and mapped[1] else mapped.index(True)
    places = FOLDS[direction][which]
    axes = {IMAGES: 0, CHANNELS: how.channel, FILTERS: 0, INPUTS: 1}
    groups = {p: 1 if which == BOTH or p in (IMAGES, INPUTS) else how.groups for p in axes}
    folded = [
        _fold(jnp.moveaxis(array, dim, 0), axes[place], groups[place]) if place else array
        for array, dim, place in zip((first, second), dims, places, strict=False)
    ]
    wider = how._replace(groups=how.groups * count) if which == BOTH else how
    y = primitive.bind(*folded, *bias, how=wider, **step)
    return _unfold(y, axes[places[2]], groups[places[2]], count), 0


def _without(array: JaxArray, dim: int | None) -> Any:
    """The shape and the type of an array without its mapped dimension."""
    kept = tuple(n for axis, n in enumerate(array.shape) if axis != dim)
    return jax.ShapeDtypeStruct(kept, array.dtype)


def _in_steps(
    direction: str, arrays: Any, dims: Any, how: ConvSettings, activation: ActivationLike = None
) -> JaxArray:
    """A mapped filter or bias: the convolution, then the bias and the activation of each element by JAX."""

    def each(first: JaxArray, second: JaxArray, *bias: JaxArray) -> JaxArray:
        return by_steps(direction, how, activation, first, second, *bias)

    return jax.vmap(each, dims)(*arrays)


def by_steps(
    direction: str, how: ConvSettings, activation: ActivationLike, x: JaxArray, w: JaxArray, *bias: JaxArray
) -> JaxArray:
    """What a primitive of `FINISHED` computes, in steps that have gradients."""
    w, how = in_own_order(w, how)
    return plain_output(BILINEAR[direction].bind(x, w, how=how), bias[0] if bias else None, activation, how)


# --- the primitives --------------------------------------------------------------------------

conv_p = _primitive("conv", "forward")  # x, w -> y
backward_data_p = _primitive("backward_data", "backward_data")  # dy, w -> dx
backward_weights_p = _primitive("backward_weights", "backward_weights")  # x, dy -> dw
BILINEAR = {"forward": conv_p, "backward_data": backward_data_p, "backward_weights": backward_weights_p}
FINISHED = {  # with the output step; x, w [, bias] -> y, whose gradients are those of `by_steps`
    "forward": _primitive("conv_finished", "forward"),
    "backward_data": _primitive("backward_data_finished", "backward_data"),
}

# Gradients, of the cotangent g of the result and one of the arrays, a and b.


def _rule(primitive: Any, order: str) -> Any:
    """Of g, first and second those two that `order` names, put into a primitive."""

    def rule(g: Any, first: Any, second: Any, **how: Any) -> Any:
        arrays = {"g": g, "a": first, "b": second}
        return primitive.bind(arrays[order[0]], arrays[order[1]], **how)

    return rule


ad.defbilinear(conv_p, _rule(backward_data_p, "gb"), _rule(backward_weights_p, "ag"))
ad.defbilinear(backward_data_p, _rule(conv_p, "gb"), _rule(backward_weights_p, "ga"))
ad.defbilinear(backward_weights_p, _rule(backward_data_p, "bg"), _rule(conv_p, "ag"))


def _steps_of(
    direction: str, how: ConvSettings, activation: ActivationLike, arrays: Any, free: list[bool]
) -> Any:
    """`by_steps` as a function of those arrays that are free; the others are as they are."""

    def steps(*some: JaxArray) -> JaxArray:
        left = iter(some)
        given = [next(left) if of else a for of, a in zip(free, arrays, strict=True)]
        return by_steps(direction, how, activation, *given)

    return steps


def _differentiated(
    direction: str, primals: Any, tangents: Any, *, how: ConvSettings, activation: ActivationLike = None
) -> Any:
    """The rule of `FINISHED` for derivatives by those arrays that change. (It is no `jax.custom_jvp`, which
    does not take arrays of NumPy under `jax.vmap` in a compiled function.)"""
    free = [type(t) is not ad.Zero for t in tangents]
    steps = _steps_of(direction, how, activation, primals, free)
    given = [[a for of, a in zip(free, arrays, strict=True) if of] for arrays in (primals, tangents)]
    return jax.jvp(steps, *given)


def _transposed(
    direction: str, g: Any, *arrays: Any, how: ConvSettings, activation: ActivationLike = None
) -> list[Any]:
    """The rule of `FINISHED` for `jax.linear_transpose`, where all is linear in the arrays not known."""
    unknown = [ad.is_undefined_primal(a) for a in arrays]
    avals = [a.aval for a, of in zip(arrays, unknown, strict=True) if of]
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    steps = _steps_of(direction, how, activation, arrays, unknown)
    found = iter(jax.linear_transpose(steps, *shapes)(ad.instantiate_zeros(g)))
    return [next(found) if of else None for of in unknown]


for _direction, _finished in FINISHED.items():
    ad.primitive_jvps[_finished] = functools.partial(_differentiated, _direction)
    ad.primitive_transposes[_finished] = functools.partial(_transposed, _direction)
