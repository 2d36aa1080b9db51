"""`conv` and `conv_transpose` of JAX's arrays, which `jax.jit`, `jax.grad` and `jax.vmap` take."""

from __future__ import annotations

from typing import Any

from convalgos.api.types import Activation, Layout, Padding, Sizes
from convalgos.core import arguments
from convalgos.core.element_types import DTYPES
from convalgos.core.epilogue import activation_of
from convalgos.core.problem import ConvProblem
from convalgos.core.transposed_sizes import transposed_rows, transposed_spatial
from convalgos.jax import operators
from convalgos.jax.calls import Call, Selection
from convalgos.jax.engine import JaxArray, jax, jnp
from convalgos.jax.operators import ConvSettings


def conv(
    x: JaxArray,
    w: JaxArray,
    bias: JaxArray | None = None,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    layout: Layout = "channels_first",
    activation: Activation = None,
    algorithm: str = "auto",
    weights_constant: bool = False,
    strict_nan: bool = False,
    max_rel_error: float | None = None,
) -> JaxArray:
    """Convolve x with w in 1, 2 or 3 dimensions: `convalgos.conv` for JAX's arrays.

    Args:
        x: (N, C, *spatial), or (N, *spatial, C) with layout="channels_last"; float32, float64 (where
            jax_enable_x64 is on), float16 or bfloat16.
        w: (K, C/groups, *kernel), of the same type.
        bias: (K,), added to every output, or None.
        stride, padding, dilation, groups, activation, algorithm: as `convalgos.conv` takes them.
        weights_constant: True where the filter is the same in most calls, as after training: preparing it
            then counts for nothing in the choice of the algorithm. A filter that a traced function has as
            an array of its own, not as an argument, is constant in any case.
        strict_nan, max_rel_error: those of `convalgos.plan`.

    Returns:
        y (N, K, *spatial_out), or (N, *spatial_out, K). It can be differentiated any number of times.

    Raises:
        ValueError, TypeError: an argument is invalid; the message names it.
        Unsupported: the forced algorithm cannot serve this problem.

    Example:
        >>> import jax, jax.numpy as jnp, convalgos.jax as cj
        >>> x, w = jnp.ones((1, 3, 8, 8)), jnp.ones((4, 3, 3, 3))
        >>> dw = jax.jit(jax.grad(lambda w: cj.conv(x, w, padding=1).sum()))(w)
        >>> dw.shape
        (4, 3, 3, 3)
    """
    weights_constant = weights_constant or is_constant(x, w)
    arrays = _arrays(x, w, bias)
    x, w = arrays[:2]
    arguments.one_of("layout", layout, arguments.LAYOUTS)
    sizes = x.shape[2:] if layout == "channels_first" else x.shape[1:-1]
    how = _settings(stride, padding, dilation, groups, layout, sizes, w.shape[2:], Selection(
        algorithm, weights_constant, strict_nan, max_rel_error
    ))  # fmt: skip
    problem = _checked("forward", x, w, how)
    return _finished("forward", arrays, how, activation, problem.K)


def conv_transpose(
    x: JaxArray,
    w: JaxArray,
    bias: JaxArray | None = None,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    layout: Layout = "channels_first",
    activation: Activation = None,
    algorithm: str = "auto",
    weights_constant: bool = False,
    strict_nan: bool = False,
    max_rel_error: float | None = None,
) -> JaxArray:
    """The transpose of a convolution: `convalgos.conv_transpose` for JAX's arrays.

    Args:
        x: (N, K, *spatial), or (N, *spatial, K) with layout="channels_last".
        w: (K, C/groups, *kernel): its first dimension is that of x.
        bias: (C,), added to every output, or None.
        stride, padding, dilation, groups: those of the convolution whose transpose this is.
        output_padding: outputs more on the high side, fewer than the stride or the dilation.
        activation, algorithm, weights_constant, strict_nan, max_rel_error: as `conv` takes them.

    Returns:
        y (N, C, *sizes), size = (in - 1) * stride + dilation * (r - 1) + 1 - low - high + output_padding.

    Raises:
        ValueError, TypeError, Unsupported: as `conv`.

    Example:
        >>> import jax.numpy as jnp, convalgos.jax as cj
        >>> cj.conv_transpose(jnp.ones((1, 4, 5)), jnp.ones((4, 3, 3)), stride=2, padding=1).shape
        (1, 3, 9)
    """
    weights_constant = weights_constant or is_constant(x, w)
    arrays = _arrays(x, w, bias)
    x, w = arrays[:2]
    arguments.one_of("layout", layout, arguments.LAYOUTS)
    ndim, first = w.ndim - 2, 2 if layout == "channels_first" else 1
    spatial = x.shape[first : first + ndim]
    channels = x.shape[1 if first == 2 else -1]
    if channels != w.shape[0]:
        raise ValueError(
            f"x has {channels} channels, but w {w.shape} has {w.shape[0]} in its first dimension"
        )
    sizes = transposed_spatial(spatial, w.shape[2:], stride, padding, dilation, output_padding)
    rows = transposed_rows(stride, output_padding, ndim)
    if any(rows):
        widths = [(0, 0)] * first + [(0, n) for n in rows] + [(0, 0)] * (2 - first)
        arrays = (jnp.pad(x, widths), *arrays[1:])
    how = _settings(stride, padding, dilation, groups, layout, sizes, w.shape[2:], Selection(
        algorithm, weights_constant, strict_nan, max_rel_error
    ))  # fmt: skip
    problem = _checked("backward_data", arrays[0], w, how)
    return _finished("backward_data", arrays, how, activation, problem.C)


def is_constant(x: Any, w: Any) -> bool:
    """Whether a traced function has the filter as an array of its own: in a compiled program it is the same
    in all calls."""
    return isinstance(x, jax.core.Tracer) and not isinstance(w, jax.core.Tracer)


# --- inside ----------------------------------------------------------------------------------


def _arrays(x: Any, w: Any, bias: Any) -> tuple[JaxArray, ...]:
    """x, w and, where there is one, the bias, as arrays of JAX of one type."""
    found = tuple(jnp.asarray(a) for a in (x, w, bias) if a is not None)
    dtype = found[0].dtype
    if dtype.name not in DTYPES:
        raise TypeError(f"x has dtype {dtype}, which must be one of {', '.join(DTYPES)}")
    for name, array in zip(("w", "bias"), found[1:], strict=False):
        if array.dtype != dtype:
            raise TypeError(f"{name} has dtype {array.dtype}, but x has {dtype}; they must be the same")
    if found[0].ndim != found[1].ndim or not 3 <= found[0].ndim <= 5:
        raise ValueError(
            f"x has shape {found[0].shape} and w {found[1].shape}: both must have 3, 4 or 5 dimensions, of "
            "which all but two are spatial; jax.vmap maps over more"
        )
    return found


def _settings(
    stride: Sizes, padding: Padding, dilation: Sizes, groups: int, layout: str, sizes: tuple[int, ...],
    kernel: tuple[int, ...], choice: Selection,
) -> ConvSettings:  # fmt: skip
    ndim = len(kernel)
    steps = arguments.per_dim("stride", stride, ndim, 1)
    spread = arguments.per_dim("dilation", dilation, ndim, 1)
    pads = arguments.pads(padding, sizes, kernel, steps, spread)
    groups = arguments.integer("groups", groups, 1)
    return ConvSettings(steps, pads, spread, groups, layout, tuple(sizes), tuple(kernel), choice)


def _checked(direction: str, x: JaxArray, w: JaxArray, how: ConvSettings) -> ConvProblem:
    """The problem, which a forced algorithm serves."""
    problem = operators.problem_of_arrays(direction, x, w, how)
    if how.choice.algorithm != "auto":
        Call(problem, how.choice).plan()
    return problem


def _finished(
    direction: str, arrays: tuple[JaxArray, ...], how: ConvSettings, activation: Activation, channels: int
) -> JaxArray:
    """A convolution with its output step, which the kernels do unless gradients are wanted."""
    if len(arrays) == 3 and arrays[2].shape != (channels,):
        raise ValueError(f"bias has shape {arrays[2].shape}, which must be ({channels},)")
    found = activation_of(activation)
    if len(arrays) == 2 and found is None:
        return operators.BILINEAR[direction].bind(*arrays, how=how)
    given = None if found is None else _as_given(found)
    return operators.FINISHED[direction].bind(*arrays, how=how, activation=given)


def _as_given(activation: tuple[str, float, float]) -> Any:
    """An activation as names and as many numbers as it takes."""
    name, a, b = activation
    return {"clip": (name, a, b), "leaky_relu": (name, a), "elu": activation}.get(name, name)
