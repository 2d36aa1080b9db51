"""Operators of torch that choose channels of maps, as steps: slices, chunks, splits, shuffles spelled out.

A shuffle is a transpose between two reshapes. What lies between its ends is the same map in a form of its own
(`TensorPlace.form`), so that nothing is moved before the last of them, and nothing where another operator
reads it, which torch then runs.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from torch import fx

from convalgos.network.graph import ChannelSelection
from convalgos.network.torch_reader.conversion import Arguments, Conversion, Left, module_name
from convalgos.network.torch_reader.region import DEALT, SPLIT, TensorPlace
from convalgos.network.torch_reader.shapes import shape_of_tensor, spatial_dimensions


def _selection(c: Conversion, node: fx.Node, value: str, order: np.ndarray) -> TensorPlace:
    c.steps.append(ChannelSelection(module_name(node), (value,), node.name, np.asarray(order, np.int64)))
    return TensorPlace(node.name)


def _channels(c: Conversion, x: Any, dim: int) -> int:
    """Of a map whose channels are chosen."""
    if c.form_of(x) != "same":
        raise Left("takes a tensor whose channels are not its second dimension")
    spatial_dimensions(x)
    shape = shape_of_tensor(x)
    if dim % len(shape) != 1:
        raise Left("does not divide the channels")
    if type(shape[1]) is not int:
        raise Left("divides a number of channels that is not known")
    return int(shape[1])


def split_step(c: Conversion, node: fx.Node, a: Arguments) -> TensorPlace:
    """Channels in several parts, each of which is a step."""
    x = a["self"]
    _channels(c, x, a["dim"])
    if any(user.target is not operator.getitem for user in node.users):
        raise Left("gives tensors that are read as a list")
    value = c.value(x)
    ends = np.cumsum([0, *(part.shape[1] for part in node.meta["val"])])
    for user in node.users:
        i = int(user.args[1])  # type: ignore[arg-type]
        c.places[user] = _selection(c, user, value, np.arange(ends[i], ends[i + 1]))
    return TensorPlace(value)


def slice_step(c: Conversion, node: fx.Node, a: Arguments) -> TensorPlace:
    x, bounds = a["self"], (a["start"], a["end"], a["step"])
    channels = _channels(c, x, a["dim"])
    if any(type(n) is not int for n in bounds if n is not None):
        raise Left("has bounds that are computed")
    return _selection(c, node, c.value(x), np.arange(channels)[slice(*bounds)])


def shuffle_step(c: Conversion, node: fx.Node, a: Arguments) -> TensorPlace:
    channels = _channels(c, a["self"], 1)
    return _selection(c, node, c.value(a["self"]), dealt_channels(channels, a["groups"]))


def dealt_channels(channels: int, groups: int) -> np.ndarray:
    """The order of channels after a shuffle: the first of each group, then the second of each."""
    return np.arange(channels).reshape(groups, -1).T.reshape(-1)


def regrouped(c: Conversion, node: fx.Node, x: fx.Node) -> TensorPlace | None:
    """A reshape that divides the channels into groups, or ends a shuffle; None of another one."""
    place = c.places.get(x)
    if place is None:
        return None
    before, after = shape_of_tensor(x), shape_of_tensor(node)
    if place.form == "same" and _is_split(before, after):
        return TensorPlace(place.value, f"{SPLIT}{after[1]}")
    if place.form.startswith(SPLIT) and _is_split(after, before):
        return TensorPlace(place.value)
    if place.form.startswith(DEALT) and _is_split(after, before):
        return _selection(c, node, place.value, dealt_channels(after[1], before[2]))
    return None


def _is_split(whole: tuple[Any, ...], parts: tuple[Any, ...]) -> bool:
    """Whether shapes are (N, C, *spatial) and (N, groups, C / groups, *spatial)."""
    if not 3 <= len(whole) <= 5 or len(parts) != len(whole) + 1:
        return False
    if any(type(n) is not int for n in (whole[1], *parts[1:3])):
        return False
    around = [*map(str, parts[:1]), *map(str, parts[3:])]
    return whole[1] == parts[1] * parts[2] and [str(whole[0]), *map(str, whole[2:])] == around


def dealt(c: Conversion, x: fx.Node, order: list[int]) -> TensorPlace | None:
    """A transpose of groups and their channels; None of another one."""
    place = c.places.get(x)
    if place is None or not place.form.startswith(SPLIT) or order != [0, 2, 1, *range(3, len(order))]:
        return None
    return TensorPlace(place.value, DEALT + place.form.removeprefix(SPLIT))
