"""What ONNX says of a convolution, checked: the attributes of a node, and the problem that they describe.

A file may say anything, so what is not valid is a ValueError that names the attribute and its value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from convalgos.core.arguments import Pads, Shape
from convalgos.core.near_names import did_you_mean
from convalgos.core.problem import ConvProblem

AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
CONV_TRANSPOSE = (*CONV, "output_padding", "output_shape")
LARGEST = 2**31 - 1  # of a size: nothing that can be computed has a larger one


def checked_attributes(given: Mapping[str, Any], known: Sequence[str]) -> dict[str, Any]:
    """The attributes of a node that are there, of the types that ONNX gives them.

    Args:
        given: name -> value, as Python has it; None for an absent one.
        known: those that the operator has.
    """
    found: dict[str, Any] = {
        name: value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
        for name, value in given.items()
        if value is not None
    }
    for name, value in found.items():
        if name not in known:
            hint = did_you_mean(name, known) or f", of which there are {', '.join(known)}"
            raise ValueError(f"attribute {name!r} is none of the operator's{hint}")
        if name == "auto_pad":
            if value not in AUTO_PADS:
                raise ValueError(f"auto_pad={value!r} must be one of {', '.join(AUTO_PADS)}")
        elif name == "group":
            if not _is_whole(value) or not 1 <= value <= LARGEST:
                raise ValueError(f"group={value!r} must be a whole number of at least 1")
        elif (
            not isinstance(value, Sequence)
            or isinstance(value, str | bytes)
            or not all(map(_is_whole, value))
        ):
            raise ValueError(f"{name}={_told(value)} must be a list of whole numbers")
        elif not all(-LARGEST <= number <= LARGEST for number in value):
            raise ValueError(f"{name}={_told(value)} is beyond {LARGEST}")
    return found


def sizes(name: str, value: Sequence[int] | None, count: int, default: int, least: int | None) -> list[int]:
    """An attribute with a number for each of `count` dimensions, or for each of their ends."""
    if value is None or not len(value):
        return [default] * count
    if len(value) != count or (least is not None and min(value) < least):
        of_at_least = "" if least is None else f" of at least {least}"
        raise ValueError(f"{name}={_told(value)} must have {count} numbers{of_at_least}")
    return list(value)


def conv_problem(
    x_shape: Shape,
    w_shape: Shape,
    dtype: str,
    *,
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    group: int | None = None,
    auto_pad: str | None = None,
    kernel_shape: Sequence[int] | None = None,
    w_dtype: str | None = None,
    y_dtype: str | None = None,
    scales: str = "per_tensor",
) -> ConvProblem:
    """The problem of a Conv node, from its attributes as ONNX defines them; None is an absent one.

    w_dtype, y_dtype, scales: of the nodes that convolve integers.

    Raises:
        ValueError: they are not valid.
    """
    ndim = len(x_shape) - 2
    if not 1 <= ndim <= 3 or len(w_shape) != len(x_shape):
        raise ValueError(
            f"input {x_shape} and filter {w_shape} must have 3, 4 or 5 dimensions, the same number"
        )
    if kernel_shape and tuple(kernel_shape) != tuple(w_shape[2:]):
        raise ValueError(f"kernel_shape={_told(kernel_shape)} must be that of the filter {w_shape}")
    ends = sizes("pads", pads, 2 * ndim, 0, 0)  # every low, then every high
    padding: Any = tuple(zip(ends[:ndim], ends[ndim:], strict=True))
    if auto_pad not in (None, "NOTSET"):
        padding = "valid" if auto_pad == "VALID" else "same"
    problem = ConvProblem(
        x_shape,
        w_shape,
        tuple(sizes("strides", strides, ndim, 1, 1)),
        padding,
        tuple(sizes("dilations", dilations, ndim, 1, 1)),
        1 if group is None else group,
        dtype=dtype,
        w_dtype=w_dtype,
        y_dtype=y_dtype,
        scales=scales,
    )
    if auto_pad == "SAME_LOWER":
        problem = problem.replace(padding=_swapped(problem.padding))
    return problem


def _swapped(padding: Pads) -> Pads:
    return tuple((high, low) for low, high in padding)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _told(value: Any) -> str:
    """A value in a sentence: a graph or a tensor only by its type."""
    if isinstance(value, str | bytes | int | float):
        return repr(value)[:60]
    return str(list(value))[:60] if isinstance(value, Sequence) else f"a {type(value).__name__}"
