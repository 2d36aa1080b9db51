"""`jax.lax.conv_general_dilated`, and what of it convalgos computes.

A dilated x (zeros between its elements) is a transposed convolution, whose zeros are not multiplied here:
y[i] = sum_r w[r] x[(i - low + r d) / l], over those r where l divides, is the gradient of a convolution with
stride l, of the filter turned round.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from convalgos.core.element_types import DTYPES
from convalgos.core.problem import Shape
from convalgos.jax import operators
from convalgos.jax.calls import Selection
from convalgos.jax.engine import JaxArray, convolution_of_lax, jnp, lax
from convalgos.jax.filter_order import FilterOrder
from convalgos.jax.functions import is_constant
from convalgos.jax.operators import ConvSettings


def conv_general_dilated(
    lhs: JaxArray,
    rhs: JaxArray,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    **others: Any,
) -> JaxArray:
    """`jax.lax.conv_general_dilated`, by convalgos where it serves, else by JAX itself.

    Served are 1 to 3 spatial dimensions of float32, float64, float16 and bfloat16 in every order of
    `dimension_numbers`, with any `window_strides`, or with any `lhs_dilation`, as transposed convolutions
    have it; `rhs_dilation`, groups of features, and padding that is not negative. Left to JAX are both
    strides and a dilated lhs in one call, `batch_group_count` above 1, another `preferred_element_type`, and
    what is invalid.

    Args:
        others: `precision`, which changes nothing on a CPU, `preferred_element_type` and `out_sharding`.

    Example:
        >>> import jax.numpy as jnp, convalgos.jax as cj
        >>> x, w = jnp.ones((1, 8, 8, 3)), jnp.ones((3, 3, 3, 4))
        >>> cj.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")).shape
        (1, 8, 8, 4)
    """
    y: JaxArray | None = None
    if others.get("out_sharding") is None and batch_group_count == 1 and _is_served(lhs, rhs, others):
        order = lax.conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)
        ones = (1,) * (lhs.ndim - 2)
        given = [ones if n is None else n for n in (window_strides, lhs_dilation, rhs_dilation)]
        try:
            strides, *dilations = (tuple(map(operator.index, n)) for n in given)
            y = _convolve(lhs, rhs, padding, strides, dilations, order, feature_group_count)
        except (TypeError, ValueError):  # what is invalid, JAX tells in its own words
            y = None
    if y is not None:
        return y
    return convolution_of_lax(
        lhs, rhs, window_strides, padding, lhs_dilation, rhs_dilation, dimension_numbers, feature_group_count,
        batch_group_count, **others,
    )  # fmt: skip


# --- inside ----------------------------------------------------------------------------------


def _is_served(lhs: Any, rhs: Any, others: dict[str, Any]) -> bool:
    dtypes = [getattr(a, "dtype", None) for a in (lhs, rhs)]
    if None in dtypes or dtypes[0] != dtypes[1] or str(dtypes[0]) not in DTYPES:
        return False
    wanted = others.get("preferred_element_type")
    return lhs.ndim == rhs.ndim and 3 <= lhs.ndim <= 5 and (wanted is None or jnp.dtype(wanted) == dtypes[0])


def _convolve(
    lhs: JaxArray, rhs: JaxArray, padding: Any, strides: Shape, dilations: list[Shape], order: Any,
    groups: int,
) -> JaxArray | None:  # fmt: skip
    """The convolution with dimensions in an order, or None where it is not served."""
    lhs_dilation, dilation = dilations
    ndim = lhs.ndim - 2
    if not len(strides) == len(lhs_dilation) == len(dilation) == ndim:
        return None
    transposed = any(n != 1 for n in lhs_dilation)
    if transposed and (isinstance(padding, str) or any(s != 1 for s in strides)):
        return None
    last = order.lhs_spec == (0, ndim + 1, *range(1, ndim + 1))
    x = lhs if last else jnp.transpose(lhs, order.lhs_spec)
    kernel = tuple(rhs.shape[axis] for axis in order.rhs_spec[2:])
    sizes = x.shape[1:-1] if last else x.shape[2:]
    if isinstance(padding, str):
        reach = [(r - 1) * d + 1 for r, d in zip(kernel, dilation, strict=True)]
        padding = lax.padtype_to_pads(sizes, reach, strides, padding)
    pads = tuple((operator.index(low), operator.index(high)) for low, high in padding)
    layout = "channels_last" if last else "channels_first"
    choice = Selection(weights_constant=is_constant(lhs, rhs))
    how = ConvSettings(strides, pads, dilation, groups, layout, sizes, kernel, choice)
    own = tuple(order.rhs_spec) == tuple(range(ndim + 2))
    how = how._replace(order=None if own else FilterOrder(rhs.shape, tuple(order.rhs_spec)))
    y = _transposed(x, rhs, how, lhs_dilation) if transposed else _run("forward", x, rhs, how)
    if y is None:
        return None
    made = (0, ndim + 1, *range(1, ndim + 1)) if last else tuple(range(ndim + 2))
    if order.out_spec == made:
        return y
    logical = jnp.transpose(y, made)  # (N, K, *spatial)
    return jnp.transpose(logical, [order.out_spec.index(axis) for axis in range(ndim + 2)])


def _run(direction: str, x: JaxArray, w: JaxArray, how: ConvSettings) -> JaxArray:
    operators.problem_of_arrays(direction, x, w, how)
    primitives = operators.FINISHED if how.order else operators.BILINEAR
    return primitives[direction].bind(x, w, how=how)


def _transposed(x: JaxArray, w: JaxArray, how: ConvSettings, steps: tuple[int, ...]) -> JaxArray | None:
    """The convolution of a dilated x, as the gradient of one with these strides."""
    reach = [(r - 1) * d for r, d in zip(how.kernel, how.dilation, strict=True)]
    sides = list(zip(reach, how.padding, strict=True))
    pads = tuple((max(0, far - low), max(0, far - high)) for far, (low, high) in sides)
    beyond = [(max(0, low - far), max(0, high - far)) for far, (low, high) in sides]  # all zeros
    sizes = tuple(
        (n - 1) * s + 1 + far - low - high
        for n, s, far, (low, high) in zip(how.sizes, steps, reach, pads, strict=True)
    )
    if min(sizes) < 1:
        return None
    order = how.order or FilterOrder(w.shape, tuple(range(w.ndim)))
    how = how._replace(stride=steps, padding=pads, sizes=sizes, order=order._replace(turned=how.groups))
    y = _run("backward_data", x, w, how)
    if not any(map(any, beyond)):
        return y
    one = [(0, 0)]
    return jnp.pad(y, one + beyond + one if how.layout == "channels_last" else one * 2 + beyond)
