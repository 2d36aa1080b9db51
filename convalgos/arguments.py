"""Reading the arguments of a problem: what may be written in several ways, and what is refused.

Every function takes the name of the argument for its error, which says what would be valid.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

LAYOUTS = ("channels_first", "channels_last")
MODES = ("cross_correlation", "convolution")
DIRECTIONS = ("forward", "backward_data", "backward_weights")
DTYPES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}  # bytes of an element
COMPUTE_DTYPES = ("float32", "float64", "tf32", "float16", "bfloat16")
NAMED_PADDING = ("valid", "same", "full")

Shape = tuple[int, ...]
Pads = tuple[tuple[int, int], ...]


def integer(name: str, value: Any, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name}={value!r} must be an integer of at least {least}") from None
    if isinstance(value, bool) or number < least:
        raise ValueError(f"{name}={value!r} must be an integer of at least {least}")
    return number


def is_sequence(value: Any) -> bool:
    """Lists, tuples and arrays, but neither text nor an array that holds one number."""
    return hasattr(value, "__iter__") and not isinstance(value, str) and getattr(value, "ndim", 1) > 0


def shape(name: str, value: Any) -> Shape:
    if not is_sequence(value):
        raise ValueError(f"{name}={value!r} must be a sequence of integers")
    return tuple(integer(name, v, 0) for v in value)


def per_dim(name: str, value: Any, ndim: int, least: int) -> Shape:
    """One int for every dimension, or one int per dimension."""
    if not is_sequence(value):
        return (integer(name, value, least),) * ndim
    values = tuple(integer(name, v, least) for v in value)
    if len(values) != ndim:
        raise ValueError(f"{name}={value!r} must be one integer or {ndim} of them")
    return values


def pads(value: Any, spatial: Shape, kernel: Shape, stride: Shape, dilation: Shape) -> Pads:
    ndim = len(spatial)
    if isinstance(value, str):
        one_of("padding", value, NAMED_PADDING)
        reach = [d * (r - 1) for r, d in zip(kernel, dilation, strict=True)]
        if value == "valid":
            return ((0, 0),) * ndim
        if value == "full":
            return tuple((e, e) for e in reach)
        total = [
            max(0, (-(-size // step) - 1) * step + e + 1 - size)
            for size, step, e in zip(spatial, stride, reach, strict=True)
        ]
        return tuple((t // 2, t - t // 2) for t in total)
    if not is_sequence(value):
        return ((integer("padding", value, 0),) * 2,) * ndim
    values = tuple(value)
    if len(values) != ndim:
        raise ValueError(
            f"padding={value!r} must be an integer, {ndim} integers, {ndim} (low, high) pairs, or one of "
            + ", ".join(map(repr, NAMED_PADDING))
        )
    pairs = []
    for v in values:
        if not is_sequence(v):
            pairs.append((integer("padding", v, 0),) * 2)
            continue
        pair: Sequence[Any] = tuple(v)
        if len(pair) != 2:
            raise ValueError(f"padding={value!r} must hold integers or (low, high) pairs, not {v!r}")
        pairs.append((integer("padding", pair[0], 0), integer("padding", pair[1], 0)))
    return tuple(pairs)


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name}={value!r} must be one of {', '.join(map(repr, allowed))}")
    return value


def default_compute(dtype: str) -> str:
    return "float64" if dtype == "float64" else "float32"


def dtype_name(dtype: Any) -> Any:
    """'float32' from a string, a type or anything with a dtype's `name`."""
    if isinstance(dtype, str):
        return dtype
    return getattr(dtype, "name", None) or getattr(dtype, "__name__", dtype)
