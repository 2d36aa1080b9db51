"""Nodes of ONNX that reduce dimensions, as steps: of the pixels of maps, and of their channels."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from convalgos.network.array_functions import ArrayFunction
from convalgos.network.functions import ElementFunction
from convalgos.network.graph import Convolution, Elementwise, Pooling, Step, Transpose, View, channels_to_last
from convalgos.network.onnx_reader.channels import Steps
from convalgos.network.onnx_reader.model import OnnxModel, OnnxNode
from convalgos.network.onnx_reader.value_types import DynamicShape

REDUCTIONS = {"ReduceMean": "mean", "ReduceSum": "sum", "ReduceMax": "max", "ReduceL2": "length"}


class _Reduced(NamedTuple):
    """Dimensions next to each other that are reduced, by how many elements, and the shape of the result."""

    first: int
    behind: int
    elements: int
    y_shape: DynamicShape


def reduced(node: OnnxNode, model: OnnxModel) -> Steps:
    """The mean, the sum, the maximum, or the root of the sum of squares."""
    axes, shape = model.axes(node), model.shape(node.inputs[0]) or ()
    found = None if axes is None or not axes else _reduced(node, axes, shape)
    if found is None:
        return None
    kind, x, y = REDUCTIONS[node.op], node.inputs[0], node.outputs[0]
    if kind != "length":
        return _steps(node.name, kind, x, y, found, shape)
    squares, total = f"{y}/squares", f"{y}/sum"
    made = _steps(node.name, "sum", squares, total, found, shape)
    squared: list[Step] = [Elementwise(node.name, (x, x), squares, "multiply")]
    return made and [*squared, *made, ElementFunction(node.name, (total,), y, "sqrt")]


def _reduced(node: OnnxNode, axes: Any, shape: DynamicShape) -> _Reduced | None:
    rank = len(shape)
    if rank < 2:
        return None
    places = sorted(a % rank for a in axes)
    first, behind = places[0], places[-1] + 1
    maps = places == [*range(2, rank)] and rank <= 5
    if places != [*range(first, behind)] or not first:
        return None
    inside = [n for n in shape[first:behind] if isinstance(n, int)]
    if not maps and (len(inside) < behind - first or not all(inside)):
        return None
    ones = (1,) * (behind - first) if node.attributes.get("keepdims", 1) else ()
    known = len(inside) == behind - first
    y_shape = (*shape[:first], *ones, *shape[behind:])
    return _Reduced(first, behind, math.prod(inside) if known else 0, y_shape)


def _viewed(name: str, x: str, y: str, of: _Reduced, images: bool) -> list[Step] | None:
    """x in the shape of the result; whether its first dimension is that of images already."""
    sizes = [0 if images and not i else n if isinstance(n, int) else -1 for i, n in enumerate(of.y_shape)]
    return [View(name, (x,), y, tuple(sizes))] if sizes.count(-1) <= 1 else None


def _steps(name: str, kind: str, x: str, y: str, of: _Reduced, shape: DynamicShape) -> Steps:
    """Of a kind other than a length."""
    rank, tail = len(shape), shape[of.behind :]
    if kind in ("mean", "max") and of.first == 2 and not tail and rank <= 5:  # whole maps
        if len(of.y_shape) == rank:
            return [Pooling(name, (x,), y, kind)]
        return [Pooling(name, (x,), f"{y}/kept", kind), View(name, (f"{y}/kept",), y, (0, 0))]
    if not of.elements:
        return None
    if kind == "max":
        rows_of_maps = of.first > 2 and not tail and rank <= 5
        return (_largest_of_rows if rows_of_maps else _largest)(name, x, y, of, shape)
    if of.first != 1 or of.behind != 2 or not 3 <= rank <= 5:
        kept = len(of.y_shape) == rank
        options = ("of", kind), ("axes", tuple(range(of.first, of.behind))), ("keepdims", kept)
        return [ArrayFunction(name, (x,), y, "reduce", constants=(None,), options=options)]
    # sums of channels are convolutions with one filter
    factor, ones = 1 / of.elements if kind == "mean" else 1.0, (1,) * (rank - 2)
    w = np.full((1, of.elements, *ones), factor, np.float32)
    made = y if len(of.y_shape) == rank else f"{y}/sums"
    steps: list[Step] = [Convolution(name, (x,), made, w, None, ones, ((0, 0),) * len(ones), ones)]
    if made == y:
        return steps
    seen = _viewed(name, made, y, of, images=True)
    return seen and [*steps, *seen]


def _rows(of: _Reduced, shape: DynamicShape) -> tuple[int, ...] | None:
    """The view (rows, elements of which one is left, elements of each) of x."""
    tail = [n for n in shape[of.behind :] if isinstance(n, int)]
    if len(tail) < len(shape) - of.behind:
        return None
    return (0 if of.first == 1 else -1, of.elements, math.prod(tail))


def _largest_of_rows(name: str, x: str, y: str, of: _Reduced, shape: DynamicShape) -> Steps:
    """The maximum over the last dimensions of maps, as of windows that have all of them."""
    kernel = (*(1,) * (of.first - 2), *(int(n) for n in shape[of.first :]))
    if len(of.y_shape) == len(shape):
        return [Pooling(name, (x,), y, "max", kernel, kernel)]
    made = f"{y}/kept"
    return [Pooling(name, (x,), made, "max", kernel, kernel), View(name, (made,), y, (0,) * of.first)]


def _largest(name: str, x: str, y: str, of: _Reduced, shape: DynamicShape) -> Steps:
    """The maximum of what is seen as the pixels of maps."""
    rank, last = len(shape), f"{y}/last"
    pixels, made = f"{y}/pixels", f"{y}/kept"
    steps: list[Step]
    seen = _viewed(name, made, y, of, of.first == 1 or of.behind == rank)
    if of.first == 1 and of.behind == 2 and 3 <= rank <= 5:
        steps = [
            Transpose(name, (x,), last, channels_to_last(rank)),
            View(name, (last,), pixels, (0, -1, of.elements)),
        ]
    elif of.behind == rank:
        steps = [View(name, (x,), pixels, (0, -1 if of.first > 1 else 1, of.elements))]
    elif (target := _rows(of, shape)) is not None:
        steps = [
            View(name, (x,), f"{y}/rows", target),
            Transpose(name, (f"{y}/rows",), pixels, channels_to_last(3)),
        ]
    else:
        return None
    return seen and [*steps, Pooling(name, (pixels,), made, "max"), *seen]


def sizes_after(kept: list[tuple[int, Any]]) -> list[int] | None:
    """The shape of a view: (dimension of x that it was, size) of each of its dimensions; None where no view
    tells it, as of a dimension without elements that is another one then."""
    if any(n == 0 and i != at for at, (i, n) in enumerate(kept)):
        return None
    sizes = [0 if i == at else n for at, (i, n) in enumerate(kept)]
    open_sizes = [at for at, n in enumerate(sizes) if not isinstance(n, int)]
    if len(open_sizes) > 1:
        return None
    return [-1 if at in open_sizes else n for at, n in enumerate(sizes)]
