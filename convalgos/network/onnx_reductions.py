"""Nodes of ONNX that reduce dimensions, as steps: of the pixels of maps, and of their channels."""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.network.graph import Convolution, Pooling, View
from convalgos.network.onnx_channels import Steps, rank_of
from convalgos.network.onnx_model import OnnxModel, OnnxNode


def reduced_sum(node: OnnxNode, model: OnnxModel) -> Steps:
    """The sum, or the mean, of the channels of maps: a convolution with one filter."""
    axes, shape = model.axes(node), model.shape(node.inputs[0]) or ()
    rank = len(shape)
    if not 3 <= rank <= 5 or axes is None or [a % rank for a in axes] != [1] or type(shape[1]) is not int:
        return None
    ones, kept = (1,) * (rank - 2), bool(node.attributes.get("keepdims", 1))
    after = [(0, shape[0]), *enumerate(shape[2:], 2)]
    sizes = None if kept else sizes_after(after)
    if not shape[1] or (not kept and sizes is None):
        return None
    w = np.full((1, shape[1], *ones), 1 / shape[1] if node.op == "ReduceMean" else 1, np.float32)
    y = node.outputs[0] if kept else f"{node.outputs[0]}/kept"
    step = Convolution(node.name, (node.inputs[0],), y, w, None, ones, ((0, 0),) * len(ones), ones)
    return [step] if sizes is None else [step, View(node.name, (y,), node.outputs[0], tuple(sizes))]


def reduced_mean(node: OnnxNode, model: OnnxModel) -> Steps:
    """The mean of whole maps, or of channels."""
    axes, rank = model.axes(node), rank_of(node, model)
    if axes is None or not 3 <= rank <= 5 or sorted(a % rank for a in axes) != [*range(2, rank)]:
        return reduced_sum(node, model)
    if node.attributes.get("keepdims", 1):
        return [Pooling(node.name, (node.inputs[0],), node.outputs[0], "mean")]
    mean = f"{node.outputs[0]}/kept"
    return [
        Pooling(node.name, (node.inputs[0],), mean, "mean"),
        View(node.name, (mean,), node.outputs[0], (0, 0)),
    ]


def sizes_after(kept: list[tuple[int, Any]]) -> list[int] | None:
    """The shape of a view: (dimension of x that it was, size) of each of its dimensions."""
    sizes = [0 if i == at else n for at, (i, n) in enumerate(kept)]
    open_sizes = [at for at, n in enumerate(sizes) if not isinstance(n, int)]
    if len(open_sizes) > 1:
        return None
    return [-1 if at in open_sizes else n for at, n in enumerate(sizes)]
