"""Nodes of ONNX that move the channels of maps, or have them in the last dimension, as steps on maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from convalgos.network.attention import Rearrangement
from convalgos.network.graph import (
    LayerNormalization,
    LocalResponseNormalization,
    Step,
    Transpose,
    View,
    channels_from_last,
    channels_to_last,
)
from convalgos.network.onnx_reader.model import OnnxModel, OnnxNode
from convalgos.network.onnx_reader.norms import CHANNEL_NORM
from convalgos.network.onnx_reader.value_types import DynamicShape
from convalgos.network.softmax import Softmax

Steps = list[Step] | None
Maker = Callable[[OnnxNode, OnnxModel], Steps]
TIMES_FIRST, IMAGES_FIRST = (2, 0, 1), (1, 2, 0)  # (N, C, T) to (T, N, C), and back
LRN_DEFAULTS = {"alpha": 1e-4, "beta": 0.75, "bias": 1.0}


def rank_of(node: OnnxNode, model: OnnxModel) -> int:
    """Dimensions of the first input; 0 where they are not known."""
    return len(model.shape(node.inputs[0]) or ())


def split_channels(
    first: OnnxNode, last: OnnxNode, model: OnnxModel
) -> tuple[DynamicShape, DynamicShape, int] | None:
    """(shape, shape after `first`, parts) where it cuts channels into parts, and `last` undoes it."""
    x, split, y = (model.tried_shape(name) for name in (first.inputs[0], first.outputs[0], last.outputs[0]))
    if x is None or split is None or x != y or min(len(x), len(split)) < 2:
        return None
    channels, parts = x[1], split[1]
    if not isinstance(channels, int) or not isinstance(parts, int) or channels % max(1, parts):
        return None
    return x, split, parts


def by_last_dimension(node: OnnxNode, model: OnnxModel, make: Callable[[str, str], Steps]) -> Steps:
    """Steps of a node whose channels are the last dimension, as those of a map between two transposes.

    Args:
        make: (map x, map y) -> the steps.
    """
    x = next(name for name in node.inputs if not model.is_constant(name))
    y, rank = node.outputs[0], len(model.shape(x) or ())
    if not 3 <= rank <= 5:
        return None
    of, made = f"{y}/x", f"{y}/maps"
    steps = make(of, made)
    if steps is None:
        return None
    return [
        Transpose(node.name, (x,), of, channels_from_last(rank)),
        *steps,
        Transpose(node.name, (made,), y, channels_to_last(rank)),
    ]


def by_rows(node: OnnxNode, model: OnnxModel, make: Callable[[str, str, int], Steps]) -> Steps:
    """The same of steps that compute each row of the last dimension by itself: arrays of more dimensions than
    maps have are seen with one of rows.

    Args:
        make: (map x, map y, dimensions of a map) -> the steps.
    """
    x = next(name for name in node.inputs if not model.is_constant(name))
    y, shape = node.outputs[0], model.shape(x) or ()
    if len(shape) <= 5:
        return by_last_dimension(node, model, lambda of, made: make(of, made, len(shape) - 2))
    known = [n for n in (*shape[1:], (model.shape(y) or ("",))[-1]) if isinstance(n, int) and n]
    if len(known) != len(shape):
        return None
    *inner, channels, width = known
    rows, of, made, given = (f"{y}/{name}" for name in ("rows", "x", "maps", "given"))
    steps, count = make(of, made, 1), math.prod(inner)
    if steps is None:
        return None
    return [
        View(node.name, (x,), rows, (0, count, channels)),
        Transpose(node.name, (rows,), of, channels_from_last(3)),
        *steps,
        Transpose(node.name, (made,), given, channels_to_last(3)),
        View(node.name, (given,), y, (0, *inner, width), back=(0, count, width)),
    ]


def of_one_pixel(node: OnnxNode, make: Callable[[str, str], Sequence[Step]]) -> Steps:
    """Steps of a node that takes (N, C), as those of maps of one pixel between two views."""
    x, y = node.inputs[0], node.outputs[0]
    of, made = f"{y}/maps", f"{y}/pixels"
    return [View(node.name, (x,), of, (0, -1, 1, 1)), *make(of, made), View(node.name, (made,), y, (0, -1))]


def moved_channels(node: OnnxNode, model: OnnxModel) -> Steps:
    """The channels of maps to the last dimension, or from there."""
    rank = rank_of(node, model)
    order = tuple(node.attributes.get("perm", range(rank)[::-1]))
    if rank == 3 and order in (TIMES_FIRST, IMAGES_FIRST):
        return _with_times_first(node, order)
    if not 3 <= rank <= 5 or order not in (channels_to_last(rank), channels_from_last(rank)):
        return None
    return [Transpose(node.name, (node.inputs[0],), node.outputs[0], order)]


def _with_times_first(node: OnnxNode, order: tuple[int, ...]) -> Steps:
    """Images of channels over time as recurrent layers read them, (T, N, C), or back."""
    x, y, between = node.inputs[0], node.outputs[0], f"{node.outputs[0]}/turned"
    swap = (("transpose", (1, 0, 2)),)
    if order == TIMES_FIRST:
        return [
            Transpose(node.name, (x,), between, channels_to_last(3)),
            Rearrangement(node.name, (between,), y, swap),
        ]
    return [
        Rearrangement(node.name, (x,), between, swap),
        Transpose(node.name, (between,), y, channels_from_last(3)),
    ]


def layer_norm(node: OnnxNode, model: OnnxModel) -> Steps:
    """Over the last dimension, or as patterns found it over the channels of maps."""
    rank, axis = rank_of(node, model), node.attributes.get("axis", -1)
    of_maps = node.op == CHANNEL_NORM and axis % max(1, rank) == 1
    if rank < 2 or any(node.outputs[1:]) or not (of_maps or axis % rank == rank - 1):
        return None
    scale, shift = (model.constant(name) if name else None for name in (*node.inputs[1:], "", "")[:2])
    channels = (model.shape(node.inputs[0]) or ())[axis % rank]
    for name, array in zip(node.inputs[1:], (scale, shift), strict=False):
        if name and (array is None or array.shape != (channels,)):
            return None
    scale, shift = node.attributes.get("numbers", (scale, shift))  # which a pattern found
    epsilon = float(node.attributes.get("epsilon", 1e-5))

    def norm(x: str, y: str, _: int = 0) -> list[Step]:
        return [LayerNormalization(node.name, (x,), y, scale, shift, epsilon)]

    if rank == 2:
        return of_one_pixel(node, norm)
    return norm(node.inputs[0], node.outputs[0]) if of_maps else by_rows(node, model, norm)


def local_response_norm(node: OnnxNode, model: OnnxModel) -> Steps:
    """Over windows of the channels of maps."""
    alpha, beta, bias = (float(node.attributes.get(k, d)) for k, d in LRN_DEFAULTS.items())
    if not 3 <= rank_of(node, model) <= 5 or bias <= 0 or alpha < 0:
        return None
    size = node.attributes["size"]
    return [
        LocalResponseNormalization(node.name, (node.inputs[0],), node.outputs[0], size, alpha, beta, bias)
    ]


def softmax(node: OnnxNode, model: OnnxModel) -> Steps:
    """Over the channels of maps, or the last dimension; LogSoftmax, too."""
    rank, x, y = rank_of(node, model), node.inputs[0], node.outputs[0]
    logs = node.op == "LogSoftmax"
    axis = node.attributes.get("axis", -1 if model.opset >= 13 else 1) % max(1, rank)
    behind, last = (model.shape(x) or ())[axis + 1 :], axis == rank - 1
    if rank < 2 or (model.opset < 13 and {*behind} - {1}):  # then over all dimensions from the axis on
        return None
    if rank == 2 and last:
        return of_one_pixel(node, lambda of, made: [Softmax(node.name, (of,), made, logs)])
    if 3 <= rank <= 5 and axis == 1:
        return [Softmax(node.name, (x,), y, logs)]
    if not last:
        return _in_the_middle(node, model.shape(x) or (), axis, logs)
    return by_rows(node, model, lambda of, made, _: [Softmax(node.name, (of,), made, logs)])


def _in_the_middle(node: OnnxNode, shape: DynamicShape, axis: int, logs: bool) -> Steps:
    """Over a dimension between others: what lies before it are images, what lies behind it pixels."""
    known = [n for n in shape[1:] if isinstance(n, int) and n]
    if axis < 2 or len(known) < len(shape) - 1:
        return None
    maps, given = f"{node.outputs[0]}/maps", f"{node.outputs[0]}/softmax"
    seen = (-1, known[axis - 1], math.prod(known[axis:]))
    return [
        View(node.name, (node.inputs[0],), maps, seen),
        Softmax(node.name, (maps,), given, logs),
        View(node.name, (given,), node.outputs[0], (-1, *known)),
    ]
