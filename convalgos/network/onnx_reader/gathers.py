"""Gathers and scatters of ONNX as calls of functions, which an Expand of the places becomes part of."""

from __future__ import annotations

from collections.abc import Callable

from convalgos.network.onnx_reader.model import OnnxModel, OnnxNode

Told = Callable[[OnnxNode, OnnxModel], bool]  # whether the shapes of what a node gives follow from others


def gather_call(node: OnnxNode, model: OnnxModel, told: Told) -> tuple[str, list[str]]:
    """The function of a Gather or a GatherElements, and what it reads."""
    if node.op == "Gather":
        return "gather", node.inputs
    x, places = node.inputs
    along, of_x = _expand(places, model, told), _expand(x, model, told)
    if along is None:
        return "gather_elements", node.inputs
    if of_x is not None:
        axis = node.attributes.get("axis", 0)
        x = of_x.inputs[0] if _keeps(of_x, axis, model) else x
    return "gather_expanded", [x, *along.inputs[:2]]


def places_of_rows(node: OnnxNode, model: OnnxModel) -> str | None:
    """The places of which a GatherND makes vectors of one, which are those of a Gather; None of others."""
    made, vectors = model.maker(node.inputs[1]), model.shape(node.inputs[1])
    if made is None or made.op != "Unsqueeze" or not vectors or node.attributes.get("batch_dims", 0):
        return None
    axes = model.axes(made)
    last = axes is not None and [int(axis) % len(vectors) for axis in axes] == [len(vectors) - 1]
    return made.inputs[0] if last else None


def scatter_call(node: OnnxNode, model: OnnxModel, told: Told) -> tuple[str, list[str]]:
    """The function of a ScatterElements, and what it reads."""
    x, places, updates = node.inputs
    along = _expand(places, model, told)
    if along is None:
        return "scatter_elements", node.inputs
    return "scatter_expanded", [x, *along.inputs[:2], updates]


def _expand(name: str, model: OnnxModel, told: Told) -> OnnxNode | None:
    """The Expand that makes a value of one of as many dimensions, if its sizes are known to planning."""
    node = model.maker(name)
    if node is None or node.op != "Expand" or not told(node, model):
        return None
    before, behind = model.shape(node.inputs[0]), model.shape(name)
    return node if before is not None and behind is not None and len(before) == len(behind) else None


def _keeps(node: OnnxNode, axis: int, model: OnnxModel) -> bool:
    """Whether an Expand keeps the size along an axis, whatever it is: one that is open may be 1."""
    before, behind = ((model.shape(name) or ())[axis] for name in (node.inputs[0], node.outputs[0]))
    sizes = model.constant(node.inputs[1])
    last = axis - len(model.shape(node.outputs[0]) or ()) if axis >= 0 else axis
    kept = sizes is not None and (-last > sizes.size or sizes[last] == 1)
    return kept or (before == behind and isinstance(before, int))
