"""Nodes of ONNX that choose channels, as steps: slices, splits, gathers, and shuffles spelled out."""

from __future__ import annotations

from collections import Counter

import numpy as np

from convalgos.network.graph import ChannelSelection
from convalgos.network.onnx_reader.channels import Steps, rank_of, split_channels
from convalgos.network.onnx_reader.model import OnnxModel, OnnxNode
from convalgos.network.onnx_reader.moves import split_elements
from convalgos.network.onnx_reader.named import Named, with_patterns_named

SHUFFLE = "convalgos.ChannelShuffle"  # the operator of what is found; its attribute is "groups"


def with_shuffles_named(model: OnnxModel) -> list[OnnxNode]:
    """The nodes of a model, where a shuffle of channels is one: a transpose between two reshapes."""
    return with_patterns_named(model, _named)


def _named(last: OnnxNode, model: OnnxModel, readers: Counter[str]) -> Named | None:
    turned = model.maker(last.inputs[0]) if last.op == "Reshape" else None
    first = model.maker(turned.inputs[0]) if turned is not None and turned.op == "Transpose" else None
    if turned is None or first is None or first.op != "Reshape":
        return None
    groups = _shuffled_groups(first, turned, last, model)
    inside = turned.outputs[0], first.outputs[0]
    if not groups or any(readers[name] != 1 for name in inside):
        return None
    protos = (*first.protos, *turned.protos, *last.protos)
    return OnnxNode(SHUFFLE, last.name, [first.inputs[0]], last.outputs, {"groups": groups}, protos), inside


def _shuffled_groups(first: OnnxNode, turned: OnnxNode, last: OnnxNode, model: OnnxModel) -> int:
    """How many groups of channels are dealt out in turn; 0 where it is something else."""
    if (found := split_channels(first, last, model)) is None:
        return 0
    x, split, groups = found
    swapped = [0, 2, 1, *range(3, len(split))]
    as_it_was = len(split) == len(x) + 1 and (x[0], *x[2:]) == (split[0], *split[3:])
    return groups if as_it_was and list(turned.attributes.get("perm", ())) == swapped else 0


def channel_shuffle(node: OnnxNode, model: OnnxModel) -> Steps:
    channels = _channels(node, model)
    order = np.arange(channels).reshape(node.attributes["groups"], -1).T.reshape(-1)
    return [_selection(node, node.outputs[0], order)] if channels else None


def channel_split(node: OnnxNode, model: OnnxModel) -> Steps:
    channels, axis = _channels(node, model), node.attributes.get("axis", 0)
    sizes = node.attributes.get("split")
    if len(node.inputs) > 1 and node.inputs[1]:
        sizes = model.constant(node.inputs[1])
        if sizes is None:
            return None
    if sizes is not None:
        _check_parts(node, model, [int(n) for n in sizes], axis)
    if not channels or axis not in (1, 1 - rank_of(node, model)):
        return split_elements(node, model, sizes)
    if sizes is None:
        sizes = [-(-channels // len(node.outputs))] * len(node.outputs)
    ends = np.minimum(np.cumsum(sizes), channels)
    parts = np.split(np.arange(channels), ends[:-1])
    return [_selection(node, y, part) for y, part in zip(node.outputs, parts, strict=True)]


def _check_parts(node: OnnxNode, model: OnnxModel, sizes: list[int], axis: int) -> None:
    whole = model.shape(node.inputs[0])
    if len(sizes) != len(node.outputs):
        raise ValueError(f"it has {len(node.outputs)} outputs, and its sizes are {sizes}")
    if whole and isinstance(whole[axis], int) and sum(sizes) != whole[axis]:
        raise ValueError(f"its sizes {sizes} are not those of the parts of {whole[axis]}")


def channel_slice(node: OnnxNode, model: OnnxModel) -> Steps:
    channels, rank = _channels(node, model), rank_of(node, model)
    given = node.attributes
    if len(node.inputs) > 1:  # from opset 10 on
        names = zip(("starts", "ends", "axes", "steps"), node.inputs[1:], strict=False)
        given = {what: model.constant(name) for what, name in names if name}
    if not channels or any(numbers is None or len(numbers) != 1 for numbers in given.values()):
        return None
    begin, end, axis, step = (int(given.get(what, [0])[0]) for what in ("starts", "ends", "axes", "steps"))
    if axis % rank != 1:
        return None
    step = step or 1
    end_or_all = None if step < 0 and end < -channels else end
    order = np.arange(channels)[begin:end_or_all:step]
    whole = np.array_equal(order, np.arange(channels))  # the same elements
    return [_selection(node, node.outputs[0], order)] if len(order) and not whole else None


def channel_gather(node: OnnxNode, model: OnnxModel) -> Steps:
    channels, rank = _channels(node, model), rank_of(node, model)
    order = model.constant(node.inputs[1])
    if (
        not channels
        or order is None
        or order.ndim != 1
        or node.attributes.get("axis", 0) not in (1, 1 - rank)
    ):
        return None
    return [_selection(node, node.outputs[0], np.where(order < 0, order + channels, order))]


def _selection(node: OnnxNode, y: str, order: np.ndarray) -> ChannelSelection:
    return ChannelSelection(node.name, (node.inputs[0],), y, np.asarray(order, np.int64))


def _channels(node: OnnxNode, model: OnnxModel) -> int:
    """Of the maps that a node reads; 0 where these are none, or it is not known."""
    shape = model.shape(node.inputs[0]) or ()
    return shape[1] if 3 <= len(shape) <= 5 and isinstance(shape[1], int) else 0
