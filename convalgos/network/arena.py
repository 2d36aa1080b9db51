"""The arena: one piece of memory for the values of a network, those of different times over each other.

Values first find what they share memory with: views lie where what they show lies; what is put side by side
is written into slices of the whole, and so costs nothing; elementwise steps write over what nobody reads
after them. What is left are buffers with a size and a time, which are packed. Where a whole lies in one piece
its slices have their own times: until a skip connection of a U-Net is joined, other values lie in the rest.
Scratch lies at the begin of the arena, for all steps at one place, which stays in the caches: values lie
behind what theirs take of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from convalgos.core.allocator import ALIGNMENT, whole_lines
from convalgos.core.layouts import BLOCKS, array_shape
from convalgos.network.graph import Concatenation, Convolution, Elementwise, NetworkGraph, View
from convalgos.network.group_norms import GroupNormalization
from convalgos.network.packing import (
    Above,
    Buffer,
    TimedBytes,
    most_alive,
    place_buffers,
    placed_above,
    what_lies_above,
)
from convalgos.network.planned import Planned, PlannedStep, Sharing

# Bytes up to which values lie apart from all scratch, which stays in the caches: MobileNetV2 by turns 0.97.
APART = 1 << 24
WIDER = 1.05  # times the waste of a plan for other sizes, up to which buffers take their places in its order


def with_places(planned: Planned, graph: NetworkGraph, known: Planned | None = None) -> Planned:
    """A plan with the places of its values, and the sizes of the arena and of the scratch.

    Inputs and outputs of the network have no place: they lie in arrays of the caller.

    Args:
        known: a plan of the same steps for other sizes, which has places: values share memory as in this one
            where they may, and no more memory is wasted.
    """
    if known is not None and known.sharing is not None and _still_shares(planned, known, known.sharing):
        waste = WIDER * known.arena_bytes / max(1, known.sharing.least)
        key = "above", "in the arena"
        above = known.made_like.get(key)
        if above is None:
            places = [known.places[root] for root in known.sharing.times]
            above = known.made_like[key] = what_lies_above(_buffers(known, known.sharing), places)
        placed = _placed_by(planned, known.sharing, waste, above)
        assert placed.sharing is not None
        if placed.arena_bytes <= waste * placed.sharing.least:
            return placed
    return _placed_by(planned, _Sharing(planned, graph).found())


def _placed_by(
    planned: Planned, sharing: Sharing, waste: float = 1.0, above: Above | None = None
) -> Planned:
    """A plan with places, where it is known which values share memory.

    Args:
        waste: of `place_buffers`.
        above: what lay above what in a plan for other sizes, which is tried first.
    """
    buffers, scratches = _buffers(planned, sharing), _scratches(planned)
    scratch, alive = max((nbytes for nbytes, *_ in scratches), default=0), most_alive(buffers)
    if scratch + alive < APART:
        scratches, least = [Buffer(scratch, 0, len(planned.steps))], scratch + alive
    else:
        least = most_alive([*buffers, *scratches])
    order, total = sharing.order, math.inf
    if above is not None:
        offsets, total = placed_above(buffers, scratches, above)
    if total > waste * least:
        offsets, total, order = place_buffers(buffers, scratches, sharing.order, waste)
    begins = dict(zip(sharing.times, offsets, strict=True))
    places = {
        name: begins[place] if isinstance(place, str) else place for name, place in sharing.where.items()
    }
    sharing = sharing._replace(order=order, least=least)
    return replace(planned, places=places, arena_bytes=int(total), scratch_bytes=scratch, sharing=sharing)


def _buffers(planned: Planned, sharing: Sharing) -> list[Buffer]:
    return [_buffer(planned, sharing, root) for root in sharing.times]


def _spans(times: Mapping[str, tuple[tuple[str, int, int], ...]], where: Mapping[str, Any]) -> dict[str, Any]:
    """The times of the buffers in which no slices lie."""
    return {
        root: (min(m[1] for m in members), max(m[2] for m in members))
        for root, members in times.items()
        if all(isinstance(where[name], str) for name, *_ in members)
    }


def _buffer(planned: Planned, sharing: Sharing, root: str) -> Buffer:
    nbytes, members = whole_lines(value_bytes(planned, root)), sharing.times[root]
    if root in sharing.whole:
        return Buffer(nbytes, *sharing.whole[root])
    first, last = min(m[1] for m in members), max(m[2] for m in members)
    used = [_part(planned, sharing, nbytes, *member) for member in members]
    edges = sorted({edge for part in used for edge in (part.begin, part.end)})
    times: list[TimedBytes] = []
    for begin, end in pairwise(edges):
        inside = [part for part in used if part.begin <= begin and end <= part.end]
        span = min(part.first for part in inside), max(part.last for part in inside)
        if times and times[-1][2:] == span:
            begin = times.pop().begin
        times.append(TimedBytes(begin, end, *span))
    return Buffer(nbytes, first, last, tuple(times) if len(times) > 1 else ())


def _part(planned: Planned, sharing: Sharing, nbytes: int, name: str, first: int, last: int) -> TimedBytes:
    """The bytes that a value takes of its buffer, of so many, in whole lines; and when."""
    size, begin = value_bytes(planned, name), 0
    while isinstance(place := sharing.where[name], tuple):
        name, channels = place
        shape = planned.shapes[name]
        if shape[0] != 1:  # slices of each image lie apart
            return TimedBytes(0, nbytes, first, last)
        begin += channels * math.prod(shape[2:]) * planned.dtype(name).itemsize
    return TimedBytes(begin // ALIGNMENT * ALIGNMENT, min(whole_lines(begin + size), nbytes), first, last)


def _still_shares(planned: Planned, known: Planned, sharing: Sharing) -> bool:
    """Whether values may share memory as in a plan of the same steps for other sizes."""
    pairs = [(own.plan, other.plan) for own, other in zip(planned.steps, known.steps, strict=True)]
    if any((own is None) != (other is None) for own, other in pairs):
        return False  # of what is moved in one of them only
    for name in sharing.slices:
        own, other = planned.shapes[name], known.shapes[name]
        if own[1] != other[1] or (own[0] == 1) != (other[0] == 1):
            return False
        if own[0] > 1 and any(_strided(a) != _strided(b) for a, b in pairs):
            return False
    for i, name in sharing.overwritten:
        by = planned.steps[i]
        if value_bytes(planned, name) != value_bytes(planned, by.step.output):
            return False
        if isinstance(by.step, Convolution) and not getattr(by.plan, "adds_first", False):
            return False
    return True


def value_bytes(planned: Planned, name: str) -> int:
    """Of the array of a value."""
    layout, shape = planned.layouts.get(name, "channels_first"), planned.shapes[name]
    count = math.prod(array_shape(layout, shape) if layout in BLOCKS else shape)
    return count * (planned.dtype(name).itemsize if name in planned.dtypes else 4)


def least_arena_bytes(planned: Planned, graph: NetworkGraph) -> int:
    """The bytes of a plan that are in use at the worst of its steps: no arena takes less."""
    return most_alive([*_buffers(planned, _Sharing(planned, graph).found()), *_scratches(planned)])


class _Sharing:
    """Which values lie in the memory of others."""

    def __init__(self, planned: Planned, graph: NetworkGraph):
        self._planned, self._graph = planned, graph
        self._outside = {*graph.inputs, *graph.outputs}
        self._same: dict[str, str] = {}  # value -> one that lies where it does
        self._slices: dict[str, tuple[str, int]] = {}  # value -> (whole, first channel)
        self._overwritten: list[tuple[int, str]] = []  # by which step, and which value
        self._members: dict[str, list[str]] = {}  # of each buffer, by the value that it is named after
        self._written: dict[str, int] = {}  # by which step
        self._read: dict[str, list[int]] = {name: [] for name in graph.inputs}  # by which steps
        for i, planned_step in enumerate(planned.steps):
            for name in planned_step.step.inputs:
                self._read[name].append(i)
            for name in planned_step.step.outputs:
                self._written[name], self._read[name] = i, []
        for name in graph.outputs:
            self._read[name].append(len(planned.steps))  # by the caller

    def found(self) -> Sharing:
        """Who shares memory with whom."""
        times = {root: tuple(map(self._timed, self._members[root])) for root in self._roots()}
        where = {name: place for name in self._read if (place := self._place(name)) is not None}
        return Sharing(where, times, _spans(times, where), dict(self._slices), tuple(self._overwritten))

    def _roots(self) -> list[str]:
        """The buffers that are left when all that may has found what it shares memory with, each named by a
        value."""
        steps = self._planned.steps
        for planned_step in sorted(steps, key=lambda s: -len(s.step.inputs)):  # the longest has the others
            if isinstance(planned_step.step, Concatenation):
                self._slice(planned_step)
        for planned_step in steps:
            if is_view(planned_step):
                self._same[planned_step.step.output] = planned_step.step.inputs[0]
        for name in self._read:
            self._members.setdefault(self._root(name), []).append(name)
        for i, planned_step in enumerate(steps):
            self._overwrite(i, planned_step)
        return [name for name in self._members if name not in self._outside]

    def _slice(self, planned_step: PlannedStep) -> None:
        """Let the inputs of a concatenation lie in its output, where its layout and their steps allow it."""
        whole, layout = planned_step.step.output, planned_step.writes
        if whole in self._outside:
            return
        channels = 0
        for name in planned_step.step.inputs:
            if self._may_lie_in(name, layout, channels):
                self._slices[name] = whole, channels
            channels += self._planned.shapes[name][1]
        self._slice_within(planned_step)

    def _slice_within(self, planned_step: PlannedStep) -> None:
        """Of a concatenation whose inputs lie side by side in another whole, the output is there already."""
        step = planned_step.step
        found = [self._slices.get(name, ("", 0)) for name in step.inputs]
        channels = [self._planned.shapes[name][1] for name in step.inputs]
        begins = [found[0][1] + sum(channels[:i]) for i in range(len(channels))]
        whole = found[0][0]
        if (
            whole == step.output
            or found != [(whole, c) for c in begins]
            or len(set(step.inputs)) < len(found)
        ):
            return
        if whole and self._may_lie_in(step.output, planned_step.writes, begins[0]):
            self._slices[step.output] = whole, begins[0]

    def _may_lie_in(self, name: str, layout: str, channels: int) -> bool:
        """Whether a value may be written into channels of a whole, from this one on."""
        shape = self._planned.shapes[name]
        if name in self._outside or name in self._slices or self._layout(name) != layout:
            return False
        if layout == "channels_last" or channels % BLOCKS.get(layout, 1):
            return False
        by = self._planned.steps[self._written[name]]
        if is_view(by):
            return False
        among = (by, *(self._planned.steps[i] for i in self._read[name]))
        return shape[0] == 1 or all(_takes_slices(s) for s in among)

    def _overwrite(self, i: int, planned_step: PlannedStep) -> None:
        """Let the output of a step lie where an input does that nobody reads later."""
        step, layout = planned_step.step, planned_step.writes
        if self._root(step.output) != step.output or step.output in self._outside:
            return
        if isinstance(step, Elementwise | GroupNormalization):
            candidates = step.inputs
        elif isinstance(step, Convolution) and getattr(planned_step.plan, "adds_first", False):
            x = self._root(step.inputs[0])  # which it reads until the end
            candidates = tuple(name for name in step.inputs[1:] if self._root(name) != x)
        else:
            return
        for name in candidates:
            root = self._root(name)
            if root in self._outside or root in (whole for whole, _ in self._slices.values()):
                continue
            free = all(r <= i for member in self._members[root] for r in self._read[member])
            if (
                free
                and self._layout(name) == layout
                and value_bytes(self._planned, name) == value_bytes(self._planned, step.output)
            ):
                self._same[step.output] = name
                self._overwritten.append((i, name))
                self._members[root] += self._members.pop(step.output)
                return

    def _root(self, name: str) -> str:
        """The value whose buffer it lies in."""
        while True:
            if name in self._same:
                name = self._same[name]
            elif name in self._slices:
                name = self._slices[name][0]
            else:
                return name

    def _place(self, name: str) -> str | tuple[str, int] | None:
        while name in self._same:
            name = self._same[name]
        return self._slices.get(name, None if name in self._outside else name)

    def _timed(self, name: str) -> tuple[str, int, int]:
        """A value, and the first and the last step that use it."""
        written = self._written[name]
        return name, written, max(self._read[name], default=written)

    def _layout(self, name: str) -> str:
        return self._planned.layouts.get(name, "channels_first")


def scratch_bytes(planned_step: PlannedStep) -> int:
    """What a step computes in besides its arrays, in whole cache lines."""
    return whole_lines(getattr(planned_step.plan, "scratch_bytes", 0) or 0)


def _scratches(planned: Planned) -> list[Buffer]:
    each = enumerate(map(scratch_bytes, planned.steps))
    return [Buffer(nbytes, i, i) for i, nbytes in each if nbytes]


def arrays_of(planned: Planned, graph: NetworkGraph, arena: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays, in their layouts, of all values that have a place in an arena.

    Args:
        arena: 1-D, of bytes, on a cache line.
    """
    found: dict[str, np.ndarray] = {}

    def array(name: str) -> np.ndarray:
        if name in found:
            return found[name]
        place, logical = planned.places[name], planned.shapes[name]
        shape = array_shape(planned.layouts.get(name, "channels_first"), logical)
        if isinstance(place, int):
            dtype = planned.dtype(name)
            flat = arena[place : place + math.prod(shape) * dtype.itemsize].view(dtype)
        else:
            whole, channel = array(place[0]), place[1]
            block = BLOCKS.get(planned.layouts.get(name, "channels_first"), 1)
            flat = whole[:, channel // block :]
            if logical[0] != 1:
                return found.setdefault(name, flat[:, : shape[1]])
            flat = flat.reshape(-1)[: math.prod(shape)]  # of one image
        return found.setdefault(name, flat.reshape(shape))

    for name in planned.places:
        array(name)
    return found


def is_view(planned_step: PlannedStep) -> bool:
    """Whether it computes nothing: its output is the memory of its input."""
    return isinstance(planned_step.step, View) or planned_step.plan is None


def _takes_slices(planned_step: PlannedStep) -> bool:
    """Whether its arrays may be slices, with more from one image to the next than they hold."""
    return isinstance(planned_step.step, Concatenation) or _strided(planned_step.plan)


def _strided(plan: Any) -> bool:
    return bool(getattr(plan, "strided_batch", False))
