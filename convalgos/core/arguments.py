"""Reading the arguments of a problem: what may be written in several ways, and what is refused.

Every function takes the name of the argument for its error, which says what would be valid.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from numbers import Real
from pathlib import Path
from typing import Any

from convalgos.core import layouts

LAYOUTS = layouts.PLAIN  # of arrays that callers hand in; problems know blocked ones, too
MODES = ("cross_correlation", "convolution")
DIRECTIONS = ("forward", "backward_data", "backward_weights")
NAMED_PADDING = ("valid", "same", "full")
ARRAYS = {  # direction -> what a run reads first and second, and what it writes
    "forward": ("x", "w", "y"),
    "backward_data": ("dy", "w", "dx"),
    "backward_weights": ("x", "dy", "dw"),
}

LARGEST = 2**60 - 1  # of a size or of padding: more than addresses reach
LARGEST_STEP = 2**31 - 1  # of a stride or a dilation: times a row it is still an address
INTS = {int}  # the types of a shape that is one already
LONGEST_SHOWN = 120  # characters of an argument in an error

Shape = tuple[int, ...]
Pads = tuple[tuple[int, int], ...]
IntsLike = int | Sequence[int]  # one for all spatial dimensions, or one for each
PaddingLike = int | str | Sequence[int | Sequence[int]]  # the same, or (low, high) pairs, or a name


class TooLarge(ValueError):
    """Arrays of more elements than there can be."""


def integer(name: str, value: Any, least: int, most: int = LARGEST) -> int:
    """An int from what stands for one: not from a float, a bool, or an array of more than one number."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name}={shown(value)} must be an integer of at least {least}") from None
    if isinstance(value, bool) or number < least:
        raise ValueError(f"{name}={shown(value)} must be an integer of at least {least}")
    if number > most:
        raise ValueError(f"{name}={shown(number)} must be at most {most}")
    return number


def shown(value: Any) -> str:
    """An argument for an error: on one line, and not long."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # an int of more digits than Python writes, or an object that cannot be shown
        return f"<{type(value).__name__}>"
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "..."


def check_number(name: str, value: Any, least: float) -> None:
    """ValueError unless it is an int or a float, of Python's or NumPy's, of at least `least`."""
    if not isinstance(value, Real) or isinstance(value, bool) or not value >= least:  # type: ignore[operator]
        raise ValueError(f"{name}={shown(value)} must be None or at least {least}")


def file_path(name: str, value: Any) -> Path:
    """The path of a file, from text or what stands for one.

    Raises:
        TypeError: it is neither.
    """
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{name}={shown(value)} must be a path: a str or a pathlib.Path")
    return Path(value)


def is_sequence(value: Any) -> bool:
    """Lists, tuples and arrays, but neither text nor sets, nor an array that holds one number."""
    if isinstance(value, str | bytes | bytearray | set | frozenset | dict):
        return False
    return hasattr(value, "__iter__") and getattr(value, "ndim", 1) > 0


def shape(name: str, value: Any) -> Shape:
    if type(value) is tuple and set(map(type, value)) == INTS and min(value) >= 0 and max(value) <= LARGEST:
        return value  # as arrays have it, and most calls
    if not is_sequence(value):
        raise ValueError(f"{name}={shown(value)} must be a sequence of integers")
    return tuple(integer(name, v, 0) for v in value)


def per_dim(name: str, value: Any, ndim: int, least: int) -> Shape:
    """One int for every dimension, or one int per dimension, of steps through an array."""
    if not is_sequence(value):
        return (integer(name, value, least, LARGEST_STEP),) * ndim
    values = tuple(integer(name, v, least, LARGEST_STEP) for v in value)
    if len(values) != ndim:
        raise ValueError(f"{name}={shown(value)} must be one integer or {ndim} of them")
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
            f"padding={shown(value)} must be an integer, {ndim} integers, {ndim} (low, high) pairs, or one "
            "of " + ", ".join(map(repr, NAMED_PADDING))
        )
    pairs = []
    for v in values:
        if not is_sequence(v):
            pairs.append((integer("padding", v, 0),) * 2)
            continue
        pair: Sequence[Any] = tuple(v)
        if len(pair) != 2:
            raise ValueError(
                f"padding={shown(value)} must hold integers or (low, high) pairs, not {shown(v)}"
            )
        pairs.append((integer("padding", pair[0], 0), integer("padding", pair[1], 0)))
    return tuple(pairs)


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name}={shown(value)} must be one of {', '.join(map(repr, allowed))}")
    return value
