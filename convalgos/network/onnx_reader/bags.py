"""Bags of embeddings that a model spells out in several nodes, found and made one node.

The sum, mean or maximum of rows that are gathered from a table; with a mask, by which the rows are
multiplied, also their mean over what the mask leaves. The rows then need not be written anywhere.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from convalgos.network.array_functions import ArrayFunction
from convalgos.network.graph import Step
from convalgos.network.onnx_reader.channels import Steps
from convalgos.network.onnx_reader.model import OnnxModel, OnnxNode
from convalgos.network.onnx_reader.named import Named, with_patterns_named

BAG = "convalgos.EmbeddingBag"  # the operator of what is found; inputs: table, places, and weights if any
REDUCTIONS = {"ReduceSum": "sum", "ReduceMean": "mean", "ReduceMax": "max"}
MASKS = ("Expand", "Cast", "Unsqueeze")  # of which a mask of places becomes one of rows
WEIGHTS = ("float32", "int64", "int32", "bool")


class _Mask(NamedTuple):
    weights: str | None  # of the shape of the places; None where it is places that are not `pad`
    pad: int | None
    wide: bool  # whether it is one of rows, with a last dimension of its own
    inside: tuple[OnnxNode, ...]


class _Bag(NamedTuple):
    table: str
    places: str
    of: str
    axis: int
    keepdims: bool
    mask: _Mask | None
    inside: tuple[OnnxNode, ...]  # all nodes but the last


def with_bags_named(model: OnnxModel) -> list[OnnxNode]:
    """The nodes of a model, where those that spell out a bag are one."""
    return with_patterns_named(model, _named)


def embedding_bag(node: OnnxNode, model: OnnxModel) -> Steps:
    """What the pattern found."""
    table, places, *weights = node.inputs
    given = [model.constant(table), None, *[None for _ in weights]]
    y, options, steps = node.outputs[0], tuple(node.attributes.items()), list[Step]()
    if weights and model.dtype(weights[0]) != "float32":
        cast = f"{y}/weights"
        steps.append(ArrayFunction(node.name, (weights[0],), cast, "cast", "float32", (None,)))
        weights = [cast]
    inputs = (places, *weights)
    return [*steps, ArrayFunction(node.name, inputs, y, "embedding_bag", "float32", tuple(given), options)]


def _named(last: OnnxNode, model: OnnxModel, readers: Counter[str]) -> Named | None:
    bag, least = _bag_ending_in(last, model), None
    inside = () if bag is None else (*bag.inside, *(bag.mask.inside if bag.mask else ()))
    if last.op == "Div" and (averaged := _average(last, model)) is not None:
        bag, least, inside = averaged
    if bag is None:
        return None
    closed = _closed(inside, last, readers)
    if any(n.outputs[0] not in closed for n in bag.inside if n.op != "Gather"):  # others may read the rows
        return None
    attributes = {
        "of": bag.of, "axis": bag.axis, "keepdims": bag.keepdims, "pad": bag.mask.pad if bag.mask else None,
        "least": least,
    }  # fmt: skip
    weights = [bag.mask.weights] if bag.mask and bag.mask.weights is not None else []
    names = {n.outputs[0] for n in inside}
    protos = tuple(p for n in model.nodes if n.outputs and n.outputs[0] in names for p in n.protos)
    inputs = [bag.table, bag.places, *weights]
    return OnnxNode(BAG, last.name, inputs, last.outputs, attributes, (*protos, *last.protos)), closed


def _closed(inside: tuple[OnnxNode, ...], last: OnnxNode, readers: Counter[str]) -> set[str]:
    """Outputs of the nodes of a pattern that nothing outside of it reads."""
    nodes = {n.outputs[0]: n for n in inside}
    while True:
        read = Counter(name for n in (*nodes.values(), last) for name in n.inputs)
        own = {name: n for name, n in nodes.items() if readers[name] == read[name]}
        if len(own) == len(nodes):
            return {*own}
        nodes = own


def _bag_ending_in(last: OnnxNode, model: OnnxModel) -> _Bag | None:
    """A bag whose last node reduces rows."""
    if last.op not in REDUCTIONS or last.attributes.get("noop_with_empty_axes", 0):
        return None
    made, mask = model.maker(last.inputs[0]), None
    gather = made
    if made is not None and made.op == "Mul":
        gathers = [n for name in made.inputs if _is_lookup(n := model.maker(name), model)]
        if len(gathers) != 1 or last.op != "ReduceSum":
            return None
        gather = gathers[0]
        assert gather is not None
        other = made.inputs[made.inputs[0] == gather.outputs[0]]
        mask = _mask(other, gather, model)
        if mask is None or not mask.wide:
            return None
    if gather is None or not _is_lookup(gather, model):
        return None
    axes, rank = model.axes(last), len(model.shape(gather.inputs[1]) or ())
    if axes is None or len(axes) != 1 or not rank or not 0 <= (axis := int(axes[0]) % (rank + 1)) < rank:
        return None
    inside = (gather,) if mask is None or made is None else (gather, made)
    keeps = bool(last.attributes.get("keepdims", 1))
    table, places = gather.inputs
    return _Bag(table, places, REDUCTIONS[last.op], axis, keeps, mask, inside)


def _is_lookup(node: OnnxNode | None, model: OnnxModel) -> bool:
    """Whether a node gathers rows of a constant table."""
    if node is None or node.op != "Gather" or node.attributes.get("axis", 0) != 0:
        return False
    table = model.constant(node.inputs[0]) if model.is_constant(node.inputs[0]) else None
    if table is None or table.ndim != 2 or table.dtype != np.float32 or not table.flags.c_contiguous:
        return False
    return not model.is_constant(node.inputs[1]) and model.dtype(node.inputs[1]) in ("int64", "int32")


def _average(last: OnnxNode, model: OnnxModel) -> tuple[_Bag, float, tuple[OnnxNode, ...]] | None:
    """A sum of masked rows over the sum of the mask, which may be taken for at least a number."""
    total, count = (model.maker(name) for name in last.inputs)
    bag = None if total is None else _bag_ending_in(total, model)
    if bag is None or bag.mask is None or count is None or total is None:
        return None
    least, ends = -math.inf, [count]
    if count.op in ("Clip", "Max"):
        number = model.number(count.inputs[1]) if len(count.inputs) > 1 and count.inputs[1] else None
        if number is None or any(count.inputs[2:]) or (of_mask := model.maker(count.inputs[0])) is None:
            return None
        least, ends = number, [count, of_mask]
    gather, of_mask = bag.inside[0], ends[-1]
    mask = _mask(of_mask.inputs[0], gather, model) if of_mask.op == "ReduceSum" else None
    if mask is None or mask[:2] != bag.mask[:2] or not _reduces_alike(of_mask, mask, bag, model):
        return None
    inside = (*bag.inside, total, *ends)
    return bag._replace(inside=inside), least, (*inside, *bag.mask.inside, *mask.inside)


def _reduces_alike(node: OnnxNode, mask: _Mask, bag: _Bag, model: OnnxModel) -> bool:
    """Whether the sum of a mask stands beside each sum of rows."""
    axes, rank = model.axes(node), len(model.shape(node.inputs[0]) or ())
    if axes is None or [int(a) % rank for a in axes] != [bag.axis]:
        return False
    keeps = bool(node.attributes.get("keepdims", 1))
    if mask.wide:
        return keeps == bag.keepdims
    return keeps and not bag.keepdims and bag.axis == rank - 1


def _mask(name: str, gather: OnnxNode, model: OnnxModel) -> _Mask | None:
    """What makes a mask of gathered rows, as one of places."""
    rank = len(model.shape(gather.inputs[1]) or ())
    inside: list[OnnxNode] = []
    node, wide = model.maker(name), False
    while node is not None and node.op in MASKS:
        if node.op == "Expand" and not _expands_to(node, gather, model):
            return None
        if node.op == "Cast" and model.dtype(node.inputs[0]) not in WEIGHTS:
            return None
        if node.op == "Cast" and not _keeps_numbers(node, model):  # the weights are what it makes
            break
        if node.op == "Unsqueeze":
            axes = model.axes(node)
            if wide or axes is None or [int(a) % (rank + 1) for a in axes] != [rank]:
                return None
            wide = True
        inside.append(node)
        name = node.inputs[0]
        node = model.maker(name)
    if model.dtype(name) not in WEIGHTS or model.is_constant(name):
        return None
    if not any(shape(name) == shape(gather.inputs[1]) for shape in (model.shape, model.tried_shape)):
        return None
    if node is None and None in (model.shape(name) or ()):
        return None  # an input, whose sizes without names may be one
    pad, nodes = _pad(node, gather, model)
    return _Mask(None if pad is not None else name, pad, wide, (*inside, *nodes))


def _keeps_numbers(cast: OnnxNode, model: OnnxModel) -> bool:
    """Whether a change of type keeps weights what they are, up to the rounding of float32."""
    source, target = model.dtype(cast.inputs[0]), model.dtype(cast.outputs[0])
    return target == "float32" or np.can_cast(source, target)


def _expands_to(node: OnnxNode, gather: OnnxNode, model: OnnxModel) -> bool:
    """Whether a mask is expanded to gathered rows: as inference tells, or by their own sizes."""
    rows = gather.outputs[0]
    if model.tried_shape(node.outputs[0]) == model.tried_shape(rows):
        return True
    rank = len(model.shape(node.outputs[0]) or ())
    own = {rows, gather.inputs[1]}
    return rank == len(model.shape(rows) or ()) and _follows_from(node.inputs[1], own, model)


def _follows_from(name: str, others: set[str], model: OnnxModel) -> bool:
    """Whether a value is computed of others, and of constants, alone."""
    seen, more = set(others), [name]
    while more:
        if (name := more.pop()) in seen or model.is_constant(name):
            continue
        seen.add(name)
        if (node := model.maker(name)) is None:
            return False
        more += filter(None, node.inputs)
    return True


def _pad(
    node: OnnxNode | None, gather: OnnxNode, model: OnnxModel
) -> tuple[int | None, tuple[OnnxNode, ...]]:
    """The place that a mask leaves out, where it is true of all others; its row is finite."""
    equal = model.maker(node.inputs[0]) if node is not None and node.op == "Not" else None
    if node is None or equal is None or equal.op != "Equal" or gather.inputs[1] not in equal.inputs:
        return None, ()
    number = model.number(equal.inputs[equal.inputs[0] == gather.inputs[1]])
    table: Any = model.constant(gather.inputs[0])
    if number is None or not 0 <= number < len(table) or not np.isfinite(table[int(number)]).all():
        return None, ()
    return int(number), (node, equal)
