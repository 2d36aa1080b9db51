"""Nodes of ONNX that make pixels of channels or channels of pixels, as steps; and what spells them out.

Exporters write a pixel shuffle as reshapes around transposes, and its inverse as slices side by side, too.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from convalgos.network.graph import Step
from convalgos.network.onnx_reader.channels import Steps, by_last_dimension
from convalgos.network.onnx_reader.model import OnnxModel, OnnxNode
from convalgos.network.onnx_reader.moves import sliced
from convalgos.network.onnx_reader.named import Named, with_patterns_named
from convalgos.network.pixel_moves import DepthToSpace, SpaceToDepth

PIXELS = (
    "convalgos.PixelMove"  # what is found; attributes: "to_space", "factors", "order", and "last", whether
)
# the channels are the last dimension
LONGEST = 5  # nodes of a spelled-out move
MOST = 1 << 23  # elements of a map, up to which its moves are followed


def pixels_moved(node: OnnxNode, model: OnnxModel) -> Steps:
    """DepthToSpace and SpaceToDepth."""
    shape, size = model.shape(node.inputs[0]) or (), node.attributes["blocksize"]
    if len(shape) != 4 or not isinstance(shape[1], int):
        return None
    order = None
    if node.attributes.get("mode", b"DCR") == b"CRD":  # of SpaceToDepth from opset 27 on
        if node.op != "DepthToSpace":
            return None
        order = np.arange(shape[1]).reshape(-1, size * size).T.reshape(-1)
    make = DepthToSpace if node.op == "DepthToSpace" else SpaceToDepth
    return [make(node.name, (node.inputs[0],), node.outputs[0], (size, size), order)]


def pixels_named(node: OnnxNode, model: OnnxModel) -> Steps:
    """What patterns found."""
    given = node.attributes
    make = DepthToSpace if given["to_space"] else SpaceToDepth

    def steps(x: str, y: str) -> list[Step]:
        return [make(node.name, (x,), y, given["factors"], given["order"])]

    if given["last"]:
        return by_last_dimension(node, model, steps)
    return steps(node.inputs[0], node.outputs[0])


def with_pixel_moves_named(model: OnnxModel) -> list[OnnxNode]:
    """The nodes of a model, where those that spell out a move between channels and pixels are one."""
    return with_patterns_named(model, _named)


def _named(last: OnnxNode, model: OnnxModel, readers: Counter[str]) -> Named | None:
    if not last.outputs or model.dtype(last.outputs[0]) != "float32":
        return None
    if last.op == "Concat":
        return _of_slices(last, model)
    return _of_moves(last, model, readers) if last.op == "Reshape" else None


def _of_moves(last: OnnxNode, model: OnnxModel, readers: Counter[str]) -> Named | None:
    """Reshapes and transposes that end in a reshape, from the first that gives them a meaning."""
    chain = [last]
    while len(chain) < LONGEST:
        x = chain[0].inputs[0]
        if len(chain) > 2 and (found := _moved_pixels(chain, model)) is not None:
            protos = tuple(p for node in chain for p in node.protos)
            return OnnxNode(PIXELS, last.name, [x], last.outputs, found, protos), {
                node.outputs[0] for node in chain[:-1]
            }
        before = model.maker(x)
        if before is None or before.op not in ("Reshape", "Transpose") or readers[x] != 1:
            return None
        chain.insert(0, before)
    return None


def _moved_pixels(chain: list[OnnxNode], model: OnnxModel) -> dict[str, object] | None:
    """What nodes that only move elements do between maps, as attributes."""
    shapes = [model.tried_shape(name) for name in (chain[0].inputs[0], chain[-1].outputs[0])]
    if any(s is None or len(s) != 4 or not all(isinstance(n, int) and n for n in s) for s in shapes):
        return None
    (n, c, h, w), (images, k, p, q) = ([int(size) for size in s or ()] for s in shapes)
    to_space = p > h
    if n != images or n * c * h * w > MOST or (c == k):
        return None
    deep, larger = ((c, h, w), (k, p, q)) if to_space else ((k, p, q), (c, h, w))
    a, b = larger[1] // deep[1], larger[2] // deep[2]
    if larger[1:] != (deep[1] * a, deep[2] * b) or deep[0] != larger[0] * a * b:
        return None
    x = y = np.arange(n * c * h * w, dtype=np.int32).reshape(n, c, h, w)
    for node in chain:
        if node.op == "Transpose":
            y = y.transpose(node.attributes.get("perm", range(y.ndim)[::-1]))
        else:
            y = y.reshape([int(size) for size in model.tried_shape(node.outputs[0]) or ()])
    moved, wanted = (y, x) if to_space else (x, y)  # larger maps, and the deep ones that they come from
    parts = moved.reshape(n, larger[0], deep[1], a, deep[2], b).transpose(0, 3, 5, 1, 2, 4)
    parts = parts.reshape(n, *deep)  # channel (i * b + j) * C + c
    first = {int(value): i for i, value in enumerate(wanted[0, :, 0, 0])}
    order = np.array([first.get(int(value), 0) for value in parts[0, :, 0, 0]])
    if not np.array_equal(parts, wanted[:, order]):
        return None
    order = order if to_space else np.argsort(order)
    as_it_is = np.array_equal(order, np.arange(len(order)))
    return {"to_space": to_space, "factors": (a, b), "order": None if as_it_is else order, "last": False}


def _of_slices(last: OnnxNode, model: OnnxModel) -> Named | None:
    """Every so many pixels of maps, from each first one on, side by side along the channels."""
    found = [_sampled(name, model) for name in last.inputs]
    parts = [part for part in found if part is not None]
    shape = model.shape(parts[0].x) if parts else None
    if len(parts) < len(found) or shape is None or len(shape) != 4 or len({part.x for part in parts}) > 1:
        return None
    axis = last.attributes["axis"] % 4
    spatial, channels = ((1, 2) if axis == 3 else (2, 3)), shape[axis]
    if axis not in (1, 3) or not isinstance(channels, int):
        return None
    a, b = (parts[0].taken.get(place, (0, 1))[1] for place in spatial)
    begins = []
    for part in parts:
        (row, rows), (column, columns) = (part.taken.get(place, (0, 1)) for place in spatial)
        if {*part.taken} - {*spatial} or (rows, columns) != (a, b):
            return None
        begins.append(row * b + column)
    sizes = [(shape[place], f) for place, f in zip(spatial, (a, b), strict=True)]
    undivided = any(isinstance(size, int) and size % f for size, f in sizes)
    if sorted(begins) != [*range(a * b)] or a * b == 1 or undivided:
        return None
    order = np.add.outer(np.array(begins) * channels, np.arange(channels)).reshape(-1)
    given = {"to_space": False, "factors": (a, b), "order": order, "last": axis == 3}
    protos = {id(p): p for part in parts for node in part.nodes for p in node.protos}  # slices may be shared
    made = OnnxNode(
        PIXELS, last.name, [parts[0].x], last.outputs, given, (*protos.values(), *last.protos)
    )  # fmt: skip
    return made, ()


class _Sampled(NamedTuple):
    """What is sliced, the begin and the step of each dimension that is, and the slices in their order."""

    x: str
    taken: dict[int, tuple[int, int]]
    nodes: list[OnnxNode]


def _sampled(name: str, model: OnnxModel) -> _Sampled | None:
    """Slices of slices, up to the end each."""
    taken: dict[int, tuple[int, int]] = {}
    nodes: list[OnnxNode] = []
    while (node := model.maker(name)) is not None and node.op == "Slice":
        moves = sliced(node, model)
        if moves is None:
            return None
        for _, axis, start, stop, step in moves:
            if axis in taken or stop is not None or not 0 <= start < step:
                return None
            taken[axis] = start, step
        nodes.insert(0, node)
        name = node.inputs[0]
    return _Sampled(name, taken, nodes) if nodes else None
