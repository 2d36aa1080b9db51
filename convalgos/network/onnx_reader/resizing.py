"""Nodes of ONNX that change the size of maps, as steps: elements repeated, or interpolated between."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from convalgos.core.moves import scaled_size
from convalgos.network.graph import Resizing, Upsampling, View
from convalgos.network.onnx_reader.channels import Steps
from convalgos.network.onnx_reader.model import OnnxModel, OnnxNode
from convalgos.network.onnx_reader.value_types import DynamicShape

REPEATS = {  # how coordinates are transformed and rounded, where whole factors repeat elements
    ("asymmetric", "floor"),
    ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"),
    ("pytorch_half_pixel", "round_prefer_floor"),
    ("pytorch_half_pixel", "round_prefer_ceil"),
}
LINEAR = {  # of coordinates: what `cpu.elementwise.resizing.resized_coordinates` calls them
    "half_pixel": "half_pixel",
    "pytorch_half_pixel": "half_pixel",  # but where one pixel is made
    "align_corners": "align_corners",
    "asymmetric": "asymmetric",
}
ODD = ("axes", "antialias", "exclude_outside", "keep_aspect_ratio_policy")  # attributes that are not taken


class _Resize(NamedTuple):
    """What a node says."""

    mode: str
    coordinates: str
    rounded: str
    scales: np.ndarray | None
    sizes: np.ndarray | None


def resized(node: OnnxNode, model: OnnxModel) -> Steps:
    shape, found = model.shape(node.inputs[0]), _told(node, model)
    if shape is None or not 3 <= len(shape) <= 5:
        return None
    if any(node.attributes.get(name) not in (None, 0, b"stretch") for name in ODD):
        return None
    if found.scales is None and found.sizes is None:
        found = found._replace(sizes=_sizes_of_maps(node, model, shape))
    return _repeated(node, found, shape) or _interpolated(node, found, shape)


def _told(node: OnnxNode, model: OnnxModel) -> _Resize:
    given = node.attributes.get
    coordinates = given("coordinate_transformation_mode", b"half_pixel").decode()
    rounded, where = given("nearest_mode", b"round_prefer_floor").decode(), 2
    if node.op == "Upsample" or model.opset < 11:
        coordinates, rounded, where = "asymmetric", "floor", 1
    scales, sizes = (
        model.constant(node.inputs[i]) if len(node.inputs) > i and node.inputs[i] else None
        for i in (where, where + 1)
    )
    scales = None if scales is None or not scales.size else scales
    return _Resize(given("mode", b"nearest").decode(), coordinates, rounded, scales, sizes)


def _sizes_of_maps(node: OnnxNode, model: OnnxModel, shape: DynamicShape) -> np.ndarray | None:
    """Sizes that are computed as images or channels are open, where those of maps do not depend on it."""
    x, y = (model.tried_shape(name) for name in (node.inputs[0], node.outputs[0]))
    sizes = (model.shape(node.outputs[0]) or ())[2:]
    if x is None or y is None or len(sizes) != len(shape) - 2:
        return None
    if x[:2] != y[:2] or not all(isinstance(n, int) for n in (*x[:2], *sizes)):
        return None
    return np.array([*shape[:2], *sizes], object)


def _scales(found: _Resize, shape: DynamicShape) -> np.ndarray | None:
    """By which sizes grow, where they are known."""
    if found.scales is not None or not _keeps_channels(found.sizes, shape):
        return found.scales
    assert found.sizes is not None
    if not all(isinstance(n, int) and n for n in shape[2:]):
        return None
    return np.array([1, 1, *(new / int(old) for new, old in zip(found.sizes[2:], shape[2:], strict=True))])


def _keeps_channels(sizes: np.ndarray | None, shape: DynamicShape) -> bool:
    return sizes is not None and len(sizes) == len(shape) and [*sizes[:2]] == [*shape[:2]]


def _repeated(node: OnnxNode, found: _Resize, shape: DynamicShape) -> Steps:
    """The nearest element, where that repeats each a whole number of times."""
    scales = _scales(found, shape)
    if found.mode != "nearest" or scales is None or len(scales) != len(shape):
        return None
    if any(s != int(s) or s < 1 for s in scales) or (scales[:2] != 1).any():
        return None
    how = found.coordinates, found.rounded
    if how not in REPEATS and not (how == ("asymmetric", "round_prefer_floor") and max(scales) <= 2):
        return None
    return [Upsampling(node.name, (node.inputs[0],), node.outputs[0], tuple(map(int, scales[2:])))]


def _interpolated(node: OnnxNode, found: _Resize, shape: DynamicShape) -> Steps:
    """Between the pixels of maps; of three dimensions first those of planes, and then those of others."""
    rank, coordinates = len(shape), LINEAR.get(found.coordinates)
    if found.mode != "linear" or coordinates is None:
        return None
    sizes: tuple[int, ...] = ()
    scales: tuple[float, ...] = ()
    if found.scales is not None and len(found.scales) == rank and (found.scales[:2] == 1).all():
        scales = tuple(map(float, found.scales[2:]))
    elif found.sizes is not None and _keeps_channels(found.sizes, shape):
        sizes = tuple(map(int, found.sizes[2:]))
    else:
        return None
    if found.coordinates == "pytorch_half_pixel" and (1 in sizes or any(s < 1 for s in scales)):
        return None
    if rank == 5:
        return _by_planes(node, shape, sizes, scales, coordinates)
    return [Resizing(node.name, (node.inputs[0],), node.outputs[0], sizes, scales, coordinates)]


def _by_planes(
    node: OnnxNode, shape: DynamicShape, sizes: tuple[int, ...], scales: tuple[float, ...], coordinates: str
) -> Steps:
    """Planes as maps of their own, and then the planes: rows of maps whose pixels lie next to each other."""
    known, name, y = [n for n in shape[1:] if isinstance(n, int) and n], node.name, node.outputs[0]
    if len(known) < 4:
        return None
    channels, depth, *plane = known
    new = sizes or tuple(scaled_size(n, s) for n, s in zip(known[1:], scales, strict=True))
    pixels = math.prod(new[1:])
    names = [f"{y}/{part}" for part in ("planes", "larger", "rows", "deeper")]
    return [
        View(name, (node.inputs[0],), names[0], (0, channels * depth, *plane)),
        Resizing(name, (names[0],), names[1], sizes[1:], scales[1:], coordinates),
        View(name, (names[1],), names[2], (0, channels, depth, pixels)),
        Resizing(
            name, (names[2],), names[3], (new[0], pixels), (*scales[:1], 1.0) if scales else (), coordinates
        ),
        View(name, (names[3],), y, (0, channels, *new)),
    ]
