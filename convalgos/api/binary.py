"""Convolution of arrays of +1 and -1, and arrays of such whose channels are packed in bits (`ca.binary`).

In a network of binary layers the first one is mostly of floats: what it gives goes into `conv` as it is,
which takes its signs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.api import planning
from convalgos.api.types import Activation, Array, ArrayLike, Layout, Padding, Sizes
from convalgos.core import epilogue
from convalgos.core.arguments import shown
from convalgos.core.arrays import as_numpy, writable_view
from convalgos.core.plan_cache import PlanCache
from convalgos.core.problem import ConvProblem
from convalgos.cpu.binary import BinaryPlan
from convalgos.cpu.binconv.packing import WORD, pack_signs, unpack_signs


def conv(
    x: ArrayLike,
    w: ArrayLike,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    padding_value: int = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    scale: Any = None,
    bias: ArrayLike | None = None,
    activation: Activation = None,
    layout: Layout = "channels_first",
    channels: int | None = None,
    out: Array = None,
) -> Array:
    """Convolve signs with signs: exact sums of +1 and -1, by xor and population counts.

    Args:
        x: (N, C, *spatial), or (N, *spatial, C) in layout="channels_last", of +1 and -1 as int8; of float32,
            whose signs are taken: -1 below 0, and +1 from -0.0 on and for NaN; or packed, of uint64.
        w: (K, C/groups, *kernel) of the same; packed (K, words, *kernel).
        padding_value: what x is beyond its border: 0, +1 or -1.
        scale: None, for y of int32; or a number or (K,), which the sums are multiplied by, for y of float32.
        bias: (K,) of int32, added to the sums, or None.
        activation: None or "relu"; of float32 y any of `ca.conv`.
        channels: C/groups, where x and w are packed both.
        stride, padding, dilation, groups, layout, out: see `ca.conv`.

    Returns:
        y (N, K, *spatial_out) of x's kind of array.

    Raises:
        ValueError, TypeError: an argument is invalid; the message names it. Unsupported: llvmlite is missing.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> x = np.where(np.arange(2 * 5 * 5).reshape(1, 2, 5, 5) % 3, 1, -1).astype(np.int8)
        >>> y = ca.binary.conv(x, np.ones((4, 2, 3, 3), np.int8), padding=1, padding_value=-1)
        >>> y.dtype, y.shape, int(y[0, 0, 2, 2])  # of 18 products 6 are -1
        (dtype('int32'), (1, 4, 5, 5), 6)
    """
    given, filters = as_numpy("x", x), as_numpy("w", w)
    last = layout == "channels_last"
    if given.ndim != filters.ndim or not 3 <= given.ndim <= 5:
        raise ValueError(
            f"x has shape {given.shape} and w {filters.shape}: both must have 3, 4 or 5 dimensions, "
            "(N, C, *spatial) and (K, C/groups, *kernel)"
        )
    each = _channels(given.shape[-1 if last else 1], given, filters, channels, groups)
    spatial = given.shape[1:-1] if last else given.shape[2:]
    problem = ConvProblem(
        (given.shape[0], each * groups, *spatial), (filters.shape[0], each, *filters.shape[2:]),
        stride, padding, dilation, groups, layout=layout, dtype="binary",
        y_dtype="int32" if scale is None else "float32",
    )  # fmt: skip
    if problem.is_empty:
        return _of_padding(problem, given, filters, padding_value, scale, bias, activation, out)
    plan = _kept_plan(problem)
    prepared = plan.prepare(filters, padding_value=padding_value, scale=scale)
    return plan(x, prepared, bias=bias, activation=activation, out=out)


def pack(x: ArrayLike, *, groups: int = 1, layout: Layout = "channels_first") -> np.ndarray:
    """Pack signs of channels in bits: 64 channels in a word, the first in its lowest bit, set where x is -1.

    Args:
        x: (N, C, ...), or (N, ..., C) in layout="channels_last", of +1 and -1, or of floats whose signs are
            taken. A filter (K, C/groups, *kernel) is packed in the same way, always with groups=1.
        groups: of the convolution: the channels of each begin with a new word.

    Returns:
        (N, words, ...), or (N, ..., words), of uint64.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> x = np.array([1, -1, -1, 1], np.int8).reshape(1, 4, 1)
        >>> ca.binary.pack(x)
        array([[[6]]], dtype=uint64)
        >>> ca.binary.unpack(ca.binary.pack(x), 4).ravel()
        array([ 1, -1, -1,  1], dtype=int8)
    """
    given = as_numpy("x", x)
    last = layout == "channels_last"
    first = np.moveaxis(given, -1, 1) if last else given
    if given.ndim < 2 or groups < 1 or first.shape[1] % groups:
        raise ValueError(
            f"groups={shown(groups)} must divide the channels of x, whose shape is {given.shape}"
        )
    packed = pack_signs(first, groups)
    return np.ascontiguousarray(np.moveaxis(packed, 1, -1)) if last else packed


def unpack(
    packed: np.ndarray, channels: int, *, groups: int = 1, layout: Layout = "channels_first"
) -> np.ndarray:
    """The +1 and -1 that `pack` packed, as int8.

    Args:
        channels: of all groups together.
    """
    last = layout == "channels_last"
    first = np.moveaxis(packed, -1, 1) if last else packed
    if groups < 1 or channels % groups or first.shape[1] != groups * -(-(channels // groups) // WORD):
        raise ValueError(
            f"channels={shown(channels)} and groups={shown(groups)} do not fit words of shape {packed.shape}"
        )
    found = unpack_signs(first, channels, groups)
    return np.ascontiguousarray(np.moveaxis(found, 1, -1)) if last else found


def _channels(given: int, x: np.ndarray, w: np.ndarray, told: int | None, groups: int) -> int:
    """Of a group, by whichever of x and w is not packed."""
    if w.dtype != np.uint64:
        return int(w.shape[1])
    if x.dtype != np.uint64:
        return given // max(1, groups)
    if told is None:
        raise ValueError("channels=None must be C/groups, as x and w are packed both")
    return told


def _kept_plan(problem: ConvProblem) -> BinaryPlan:
    plan = _plans.find(problem)
    if plan is None:
        plan = planning.plan(problem, algorithm="cpu.binary")
        _plans.add(problem, plan)
    assert isinstance(plan, BinaryPlan)
    return plan


_plans = PlanCache()


def _of_padding(
    p: ConvProblem, x: np.ndarray, w: np.ndarray, padding_value: int, scale: Any, bias: Any, activation: Any,
    out: Any,
) -> Any:  # fmt: skip
    """Where all windows meet nothing but padding: its values are given like any others."""
    if x.dtype == np.uint64:
        x = unpack(x, p.C, groups=p.groups, layout=p.layout)  # type: ignore[arg-type]
    first = p.layout == "channels_first"
    if 0 in (p.N, *p.w_shape, *p.y_shape) or padding_value == 0:
        integers = planning.plan(p.replace(y_dtype="int32"))
        given = x.astype(np.int8), np.zeros(p.w_shape, np.int8)
        if scale is None:
            return integers(*given, bias=bias, activation=activation, out=out)
        factors = np.broadcast_to(np.asarray(scale, np.float32), (p.K,))
        y = integers(*given, bias=bias).astype(np.float32) * factors.reshape(
            -1, *(1,) * (p.ndim if first else 0)
        )
        epilogue.add_and_activate(y, None, epilogue.activation_of(activation))
        if out is None:
            return y
        if writable_view("out", out).shape != y.shape:
            raise ValueError(f"out has shape {tuple(out.shape)}; it must be {y.shape}")
        out[...] = y
        return out
    around = [(0, 0), (0, 0), *p.padding] if first else [(0, 0), *p.padding, (0, 0)]
    padded = np.pad(x, around, constant_values=padding_value)
    return conv(
        padded, w, stride=p.stride, dilation=p.dilation, groups=p.groups, scale=scale, bias=bias,
        activation=activation, layout=p.layout, out=out,  # type: ignore[arg-type]
    )  # fmt: skip
