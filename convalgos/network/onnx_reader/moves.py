"""Nodes of ONNX that move elements, as rearrangements: the last dimension, or runs of it, stay together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from convalgos.core.moves import Move
from convalgos.network.attention import Rearrangement
from convalgos.network.graph import Transpose, View, channels_from_last, channels_to_last
from convalgos.network.onnx_reader.channels import Steps, rank_of
from convalgos.network.onnx_reader.model import OnnxModel, OnnxNode


def moved_elements(node: OnnxNode, model: OnnxModel) -> Steps:
    """Of a Transpose, Gather, Slice or Pad, where its numbers are constant; None of others."""
    if not rank_of(node, model):
        return None
    if node.op == "Transpose":
        made = _swapped(node, model) or _windows(node, model)
        if made is not None:
            return made
    of = {"Transpose": _transposed, "Gather": _one_taken, "Slice": sliced, "Pad": _not_padded}.get(node.op)
    moves = None if of is None else of(node, model)
    if moves is None:
        return None
    x, y = node.inputs[0], node.outputs[0]
    if not moves:
        return [View(node.name, (x,), y, (0,) * rank_of(node, model))]
    return [Rearrangement(node.name, (x,), y, tuple(moves))]


def rolled_elements(node: OnnxNode, model: OnnxModel) -> Steps:
    """Of a Concat of the end of an array and its begin."""
    parts = [model.maker(name) for name in node.inputs]
    if len(parts) != 2 or any(part is None or part.op != "Slice" for part in parts):
        return None
    end, begin = (sliced(part, model) for part in parts if part is not None)
    sources = {part.inputs[0] for part in parts if part is not None}
    if end is None or begin is None or len(end) != 1 or len(begin) != 1 or len(sources) != 1:
        return None
    (_, axis, first, last, step), (_, other, start, stop, by) = end[0], begin[0]
    rank = rank_of(node, model)
    alike = axis == other == node.attributes["axis"] % max(1, rank) and step == by == 1
    if not alike or start not in (0, None) or stop != first or last is not None or first is None:
        return None
    return [Rearrangement(node.name, (*sources,), node.outputs[0], (("roll", axis, -first),))]


def split_elements(node: OnnxNode, model: OnnxModel, sizes: Sequence[int] | np.ndarray | None) -> Steps:
    """Of a Split along any dimension; sizes None are equal, but for the last."""
    shape = model.shape(node.inputs[0]) or ()
    if len(shape) < 2 or not all(node.outputs):
        return None
    axis, count = node.attributes.get("axis", 0) % len(shape), len(node.outputs)
    if sizes is None:
        size = shape[axis]
        if not isinstance(size, int):
            return None
        sizes = [min(-(-size // count), size - i * -(-size // count)) for i in range(count)]
    if len(sizes) != count or min(sizes) < 0:
        return None
    sizes = [int(n) for n in sizes]
    ends = np.cumsum(sizes).tolist()
    return [
        Rearrangement(node.name, (node.inputs[0],), y, (("slice", axis, end - size, end, 1),))
        for y, size, end in zip(node.outputs, sizes, ends, strict=True)
    ]


def _transposed(node: OnnxNode, model: OnnxModel) -> list[Move] | None:
    rank = rank_of(node, model)
    order = tuple(node.attributes.get("perm", range(rank)[::-1]))
    return [("transpose", order)] if rank > 2 and order[-1] == rank - 1 else None


def _swapped(node: OnnxNode, model: OnnxModel) -> Steps:
    """Of two runs of dimensions that change places behind those that stay: channels and pixels of maps."""
    rank, shape, y = rank_of(node, model), model.shape(node.inputs[0]) or (), node.outputs[0]
    order = tuple(node.attributes.get("perm", range(rank)[::-1]))
    stay = next((i for i, at in enumerate(order) if i != at), rank)
    if stay == rank or order[-1] == rank - 1 or sum(not isinstance(n, int) for n in shape) > 1 or 0 in shape:
        return None
    behind = order[stay]
    if order[stay:] != (*range(behind, rank), *range(stay, behind)):
        return None
    lead, first, second = shape[:stay], shape[stay:behind], shape[behind:]
    collapsed = tuple(map(_size, (lead, first, second)))
    names = [f"{y}/{part}" for part in ("rows", "turned")]
    target = [n if isinstance(n, int) else -1 for n in (*lead, *second, *first)]
    return [
        View(node.name, (node.inputs[0],), names[0], collapsed),
        Transpose(node.name, (names[0],), names[1], channels_to_last(3)),
        View(node.name, (names[1],), y, tuple(target)),
    ]


def _size(part: Sequence[int | str]) -> int:
    """Of dimensions as one; -1 where one of them is open."""
    sizes = [n for n in part if isinstance(n, int)]
    return math.prod(sizes) if len(sizes) == len(part) else -1


def _windows(node: OnnxNode, model: OnnxModel) -> Steps:
    """Of maps in more dimensions than they have, as windows of pixels: channels go to the last one, or come
    from there, while others change places."""
    x, y, rank = node.inputs[0], node.outputs[0], rank_of(node, model)
    order = tuple(node.attributes.get("perm", range(rank)[::-1]))
    before, after = ([n for n in (model.shape(name) or ())[1:] if isinstance(n, int)] for name in (x, y))
    if rank < 4 or order[0] or not len(before) == len(after) == rank - 1 or 0 in before:
        return None
    names = [f"{y}/{part}" for part in ("pixels", "last", "rows")]
    if order[-1] == 1:
        moves = (("transpose", (0, *(i - 1 for i in order[1:-1]), rank - 1)),)
        return [
            View(node.name, (x,), names[0], (0, before[0], -1)),
            Transpose(node.name, (names[0],), names[1], channels_to_last(3)),
            View(node.name, (names[1],), names[2], (0, *before[1:], before[0])),
            Rearrangement(node.name, (names[2],), y, moves),
        ]
    if order[1] == rank - 1:
        moves = (("transpose", (0, *order[2:], rank - 1)),)
        return [
            Rearrangement(node.name, (x,), names[0], moves),
            View(node.name, (names[0],), names[1], (0, -1, before[-1])),
            Transpose(node.name, (names[1],), names[2], channels_from_last(3)),
            View(node.name, (names[2],), y, (0, *after)),
        ]
    return None


def _one_taken(node: OnnxNode, model: OnnxModel) -> list[Move] | None:
    index, rank = model.constant(node.inputs[1]), rank_of(node, model)
    axis = node.attributes.get("axis", 0) % rank
    if index is None or index.ndim or axis == rank - 1:
        return None
    return [("index", axis, int(index))]


def sliced(node: OnnxNode, model: OnnxModel) -> list[Move] | None:
    """The slices that take something away; None where their ends are computed, or the rank is not known."""
    shape = model.shape(node.inputs[0])
    if not shape:
        return None
    given = [node.attributes.get(name) for name in ("starts", "ends", "axes")]
    for i, name in enumerate(node.inputs[1:]):
        array = model.constant(name) if name else None
        if name and array is None:
            return None
        given[i : i + 1] = [None if array is None else array.reshape(-1).tolist()]
    starts, ends, axes, *more = given
    if starts is None or ends is None:
        return None
    steps = (more[0] if more else None) or [1] * len(starts)
    axes = [axis % len(shape) for axis in axes] if axes is not None else [*range(len(starts))]
    return _slices(shape, zip(axes, starts, ends, steps, strict=True))


def _slices(shape: Sequence[int | str], parts: zip[tuple[int, ...]]) -> list[Move] | None:
    moves: list[Move] = []
    for axis, start, end, step in parts:
        size = shape[axis]
        if step < 1:
            return None
        stop = None if end >= np.iinfo(np.int32).max or end == size else int(end)
        from_begin = start == 0 or (isinstance(size, int) and start <= -size)
        if not (from_begin and stop is None and step == 1):
            moves.append(("slice", axis, int(start), stop, int(step)))
    return moves


def _not_padded(node: OnnxNode, model: OnnxModel) -> list[Move] | None:
    """Of a Pad by nothing."""
    pads = node.attributes.get("pads")
    if pads is None and len(node.inputs) > 1:
        pads = model.constant(node.inputs[1])
    return [] if pads is not None and not np.any(pads) else None
