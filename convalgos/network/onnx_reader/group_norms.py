"""Norms of groups of channels in ONNX, as steps; and those that a model spells out, found and made one node.

Before opset 18 there is none of groups: channels are put together by a Reshape, normalised as instances, and
taken apart again.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from convalgos.network.group_norms import GroupNormalization
from convalgos.network.onnx_reader.channels import Steps, split_channels
from convalgos.network.onnx_reader.model import OnnxModel, OnnxNode
from convalgos.network.onnx_reader.named import Named, with_patterns_named

GROUP_NORM = "convalgos.GroupNormalization"  # the operator of what is found, with ONNX's attributes


def with_group_norms_named(model: OnnxModel) -> list[OnnxNode]:
    """The nodes of a model, where a norm of instances between two reshapes is one of groups."""
    return with_patterns_named(model, _named)


def _named(last: OnnxNode, model: OnnxModel, readers: Counter[str]) -> Named | None:
    norm = model.maker(last.inputs[0]) if last.op == "Reshape" else None
    if norm is None or norm.op != "InstanceNormalization":
        return None
    first = model.maker(norm.inputs[0])
    if first is None or first.op != "Reshape":
        return None
    inside = norm.outputs[0], first.outputs[0]
    groups = _groups(first, last, model)
    if not groups or any(readers[name] != 1 for name in inside):
        return None
    made = OnnxNode(
        GROUP_NORM, last.name, [first.inputs[0], *norm.inputs[1:]], last.outputs,
        {"num_groups": groups, "epsilon": norm.attributes.get("epsilon", 1e-5)},
        (*first.protos, *norm.protos, *last.protos),
    )  # fmt: skip
    return None if group_norm(made, model) is None else (made, inside)


def _groups(first: OnnxNode, last: OnnxNode, model: OnnxModel) -> int:
    """Into how many groups channels are put before they are as they were; 0 where they are not."""
    if (found := split_channels(first, last, model)) is None:
        return 0
    x, split, groups = found
    return groups if len(split) == 3 and split[0] == x[0] else 0


def group_norm(node: OnnxNode, model: OnnxModel) -> Steps:
    """Of groups, or of instances; scale and shift are of channels, or of groups as in opset 18."""
    shape = model.shape(node.inputs[0]) or ()
    channels = shape[1] if 3 <= len(shape) <= 5 else None
    if not isinstance(channels, int) or not channels or model.dtype(node.inputs[0]) != "float32":
        return None
    groups = int(node.attributes.get("num_groups", channels))
    arrays = [model.constant(name) for name in node.inputs[1:3]]
    if channels % groups or any(a is None or a.size not in (groups, channels) for a in arrays):
        return None
    scale, shift = (np.repeat(a.reshape(-1), channels // a.size) for a in arrays if a is not None)
    epsilon = float(node.attributes.get("epsilon", 1e-5))
    return [GroupNormalization(node.name, (node.inputs[0],), node.outputs[0], groups, scale, shift, epsilon)]
