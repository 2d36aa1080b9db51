"""Nodes of ONNX that give an array another shape, as views."""

from __future__ import annotations

import math
from typing import Any

from convalgos.network.attention import Rearrangement
from convalgos.network.graph import Concatenation, View
from convalgos.network.onnx_reader.channels import Steps
from convalgos.network.onnx_reader.model import OnnxModel, OnnxNode
from convalgos.network.onnx_reader.reductions import sizes_after
from convalgos.network.onnx_reader.value_types import DynamicShape


def view(node: OnnxNode, model: OnnxModel) -> Steps:
    """Flatten, Reshape, Squeeze, Unsqueeze whose shape follows from x; Identity, Cast to the type of x."""
    old = model.shape(node.inputs[0])
    if old is None or (node.op == "Cast" and _changes_type(node, model)):
        return None
    axes = None
    if node.op in ("Identity", "Cast"):
        x, y = node.inputs[0], node.outputs[0]
        seen = model.maker(x) is not None or (x in model.inputs and y not in model.outputs)
        new: Any = (0,) * len(old) if seen else None
    elif node.op == "Flatten":
        new = (0, -1) if node.attributes.get("axis", 1) == 1 else None
    elif node.op == "Reshape":
        new = model.constant(node.inputs[1])
        if new is None:
            new = _of_images(model.shape(node.outputs[0]))
        elif node.attributes.get("allowzero", 0) and 0 in new:
            return None
    elif (axes := model.axes(node)) is None:
        return None
    elif node.op == "Squeeze":
        gone = {a % len(old) for a in axes}
        new = sizes_after([(i, n) for i, n in enumerate(old) if i not in gone])
        if new is None and all(old[i] == 1 for i in gone) and len(old) - 1 not in gone:
            # open sizes change their places, which no view tells
            moves = tuple(("index", i, 0) for i in sorted(gone, reverse=True))
            return [Rearrangement(node.name, (node.inputs[0],), node.outputs[0], moves)]
    else:
        rank = len(old) + len(axes)
        one = {a % rank for a in axes}
        rest = iter(enumerate(old))
        new = sizes_after([(-1, 1) if i in one else next(rest) for i in range(rank)])
    if new is None or not len(new):
        return None
    shape = tuple(map(int, new))
    back = shape if node.op in ("Identity", "Cast") else ()
    return [View(node.name, (node.inputs[0],), node.outputs[0], shape, back)]


def _changes_type(node: OnnxNode, model: OnnxModel) -> bool:
    """Whether a Cast does, as far as the types are known."""
    before = model.dtype(node.inputs[0])
    return not before or before != model.dtype(node.outputs[0])


def _of_images(shape: DynamicShape | None) -> list[int] | None:
    """The sizes of a reshape that are known but for the first, of images."""
    rest = [n for n in (shape or ())[1:] if isinstance(n, int) and n]
    return [-1, *rest] if shape and len(rest) == len(shape) - 1 else None


def concatenated_rows(node: OnnxNode, model: OnnxModel) -> Steps:
    """Arrays side by side along any dimension, as rows of what lies from there on."""
    shapes, y = [model.shape(name) or () for name in node.inputs], node.outputs[0]
    rank = len(shapes[0])
    axis = node.attributes["axis"] % max(1, rank)
    behind = [shape[axis:] for shape in shapes]
    if axis and not all(isinstance(n, int) and n for sizes in behind for n in sizes):
        return None
    rows = [(-1, math.prod(map(int, sizes))) if axis else (1, -1) for sizes in behind]
    sizes = [n if isinstance(n, int) else -1 for n in model.shape(y) or ()]
    if len(sizes) != rank or sizes.count(-1) > 1 or 0 in sizes:
        return None
    names = tuple(f"{y}/{i}" for i in range(len(rows)))
    views = [View(node.name, (x,), to, row) for x, to, row in zip(node.inputs, names, rows, strict=True)]
    joined = f"{y}/rows"
    return [*views, Concatenation(node.name, names, joined), View(node.name, (joined,), y, tuple(sizes))]
