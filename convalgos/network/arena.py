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
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from convalgos.core.allocator import ALIGNMENT, whole_lines
from convalgos.core.arguments import Shape
from convalgos.core.layouts import BLOCKS, array_shape
from convalgos.network.graph import Convolution, NetworkGraph
from convalgos.network.packing import (
    Buffer,
    Stack,
    TimedBytes,
    most_alive,
    most_alive_above,
    part_stack_of,
    place_buffers,
    place_in_order,
    stack_of,
    times_of_parts,
)
from convalgos.network.planned import Planned, PlannedStep, Sharing
from convalgos.network.sharing import found_sharing, takes_strides, value_bytes

# Bytes up to which values lie apart from all scratch, which stays in the caches: MobileNetV2 by turns 0.97.
APART = 1 << 24
STACKS = 8  # ways in which values lie upon each other, of plans for other sizes
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
        if stacked := _stacked(planned, known, waste):
            return stacked
        places: list[Any] = [known.places[root] for root in known.sharing.times]
        lowest_first = sorted(range(len(places)), key=places.__getitem__)
        placed = _placed_by(planned, known.sharing, waste, lowest_first)
        assert placed.sharing is not None
        if placed.arena_bytes <= waste * placed.sharing.least:
            _keep_stack(placed, known, known.sharing)
            return placed
    return _placed_by(planned, found_sharing(planned, graph))


def _placed_by(
    planned: Planned, sharing: Sharing, waste: float = 1.0, tried: Sequence[int] | None = None
) -> Planned:
    """A plan with places, where it is known which values share memory.

    Args:
        waste: of `place_buffers`.
        tried: an order of the buffers that is tried first.
    """
    buffers, scratches = _buffers(planned, sharing), _scratches(planned)
    scratch, alive = max((nbytes for nbytes, *_ in scratches), default=0), most_alive(buffers)
    if scratch + alive < APART:
        scratches, least = [Buffer(scratch, 0, len(planned.steps))], scratch + alive
    else:
        least = most_alive([*buffers, *scratches])
    order, total = sharing.order, math.inf
    if tried is not None:
        offsets, total = place_in_order(buffers, tried, scratches)
    if total > waste * least:
        offsets, total, order = place_buffers(buffers, scratches, sharing.order, waste)
    sharing = sharing._replace(order=order, spans=_spans_as_whole(buffers, alive))
    return _with_offsets(planned, sharing, offsets, int(total), scratch, least)


def _spans_as_whole(buffers: Sequence[Buffer], alive: int) -> tuple[tuple[int, int], ...]:
    """When buffers are in use, those of slices as a whole; none where the most of all times were more so."""
    if most_alive([buffer._replace(times=()) for buffer in buffers]) > alive:
        return ()
    return tuple([(buffer.first, buffer.last) for buffer in buffers])


def _stacked(planned: Planned, known: Planned, waste: float) -> Planned | None:
    """A plan whose values lie upon each other as in a known one; None where that wastes more."""
    sharing = known.sharing
    if sharing is None:
        return None
    found = None
    if known.stack is not None and not known.part_stacks:  # which are asked for where wholes waste more
        found = _stacked_as_wholes(planned, known, sharing, known.stack, waste)
    if found is None and len(sharing.whole) < len(sharing.times):
        found = _stacked_in_parts(planned, known, sharing, waste)
    return found


def _stacked_as_wholes(
    planned: Planned, known: Planned, sharing: Sharing, stack: Stack, waste: float
) -> Planned | None:
    """Likewise, with slices in use as long as the whole that they lie in."""
    sizes = [whole_lines(value_bytes(planned, root)) for root in sharing.times]
    each = [getattr(planned_step.plan, "scratch_bytes", 0) or 0 for planned_step in planned.steps]
    scratch = whole_lines(max(each, default=0))
    least = scratch + stack.most_alive(sizes)
    begins = [scratch] * len(sizes)
    if least >= APART:
        least = most_alive_above(sharing.spans, sizes, list(map(whole_lines, each)))
        begins = [whole_lines(max(each[first : last + 1], default=0)) for first, last in sharing.spans]
        stack = _stack_above_scratch(known, sharing, stack)
    offsets, total = stack.placed(sizes, begins)
    total = max(total, scratch)
    return None if total > waste * least else _with_offsets(planned, sharing, offsets, total, scratch, least)


def _stack_above_scratch(known: Planned, sharing: Sharing, stack: Stack) -> Stack:
    """How the values of a plan lie upon each other where each lies above the scratch of its own steps.

    Args:
        stack: how they lie in it, which is so already in large plans.
    """
    if sharing.least >= APART:
        return stack
    if not known.stack_above:
        buffers = [buffer._replace(times=()) for buffer in _buffers(known, sharing)]
        places, *_ = place_buffers(buffers, _scratches(known), sharing.order)
        known.stack_above.append(stack_of(sharing.spans, places))
    return known.stack_above[0]


def _stacked_in_parts(planned: Planned, known: Planned, sharing: Sharing, waste: float) -> Planned | None:
    """Likewise, with slices in use at times of their own: as in a known plan, or as in one made like that for
    other sizes."""
    buffers = _buffers(planned, sharing)
    each = list(map(scratch_bytes, planned.steps))
    scratch, times = max(each, default=0), times_of_parts(buffers)
    begins, least = [scratch] * len(buffers), scratch + most_alive(buffers)
    if least >= APART:
        least = most_alive([*buffers, *_scratches(planned)])
        begins = [max(each[b.first : b.last + 1], default=0) for b in buffers]
    if not known.part_stacks:
        _keep_stack(known, known, sharing)
    for stack in tuple(known.part_stacks):
        if stack.times == times and (found := stack.placed(buffers, begins)):
            total = max(found[1], scratch)
            if total <= waste * least:
                return _with_offsets(planned, sharing, found[0], total, scratch, least)
    return None


def _keep_stack(placed: Planned, known: Planned, sharing: Sharing) -> None:
    """Remember how slices lie upon each other in a plan, for sizes that come."""
    if len(known.part_stacks) < STACKS and len(sharing.whole) < len(sharing.times):
        places: list[Any] = [placed.places[root] for root in sharing.times]
        known.part_stacks.append(part_stack_of(_buffers(placed, sharing), places))


def _with_offsets(
    planned: Planned, sharing: Sharing, offsets: Sequence[int], total: int, scratch: int, least: int
) -> Planned:
    """A plan whose buffers begin at these places."""
    begins = dict(zip(sharing.times, offsets, strict=True))
    places = {
        name: begins[place] if isinstance(place, str) else place for name, place in sharing.where.items()
    }
    sharing = sharing._replace(least=least)
    return replace(planned, places=places, arena_bytes=total, scratch_bytes=scratch, sharing=sharing)


def _buffers(planned: Planned, sharing: Sharing) -> list[Buffer]:
    return [_buffer(planned, sharing, root) for root in sharing.times]


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
        if own[0] > 1 and any(takes_strides(a) != takes_strides(b) for a, b in pairs):
            return False
    for i, name in sharing.overwritten:
        by = planned.steps[i]
        if value_bytes(planned, name) != value_bytes(planned, by.step.output):
            return False
        if isinstance(by.step, Convolution) and not getattr(by.plan, "adds_first", False):
            return False
    return True


def least_arena_bytes(planned: Planned, graph: NetworkGraph) -> int:
    """The bytes of a plan that are in use at the worst of its steps: no arena takes less."""
    return most_alive([*_buffers(planned, found_sharing(planned, graph)), *_scratches(planned)])


def scratch_bytes(planned_step: PlannedStep) -> int:
    """What a step computes in besides its arrays, in whole cache lines."""
    return whole_lines(getattr(planned_step.plan, "scratch_bytes", 0) or 0)


def _scratches(planned: Planned) -> list[Buffer]:
    each = enumerate(map(scratch_bytes, planned.steps))
    return [Buffer(nbytes, i, i) for i, nbytes in each if nbytes]


class ArenaArrays:
    """The arrays of values that have a place in an arena, in their layouts, each made when it is asked for.

    Args:
        arena: 1-D, of bytes, on a cache line.
    """

    def __init__(self, planned: Planned, arena: np.ndarray):
        self._planned, self._arena = planned, arena
        self._begin: int = arena.ctypes.data
        self._made: dict[str, np.ndarray] = {}

    def array(self, name: str) -> np.ndarray:
        """That of a value."""
        if name in self._made:
            return self._made[name]
        planned, place = self._planned, self._planned.places[name]
        shape = self._shape(name)
        if isinstance(place, int):
            dtype = planned.dtype(name)
            flat = self._arena[place : place + math.prod(shape) * dtype.itemsize].view(dtype)
        else:
            whole, channel = place
            flat = self.array(whole)[:, channel // self._block(whole) :]
            if planned.shapes[whole][0] != 1:
                return self._made.setdefault(name, flat[:, : shape[1]])
            flat = flat.reshape(-1)[: math.prod(shape)]  # of one image; views of it may have other layouts
        return self._made.setdefault(name, flat.reshape(shape))

    def address(self, name: str) -> int | None:
        """Where a value lies that is contiguous; None of slices of several images, which are not."""
        planned, place = self._planned, self._planned.places[name]
        if isinstance(place, int):
            return self._begin + place
        whole, channel = place
        if planned.shapes[whole][0] != 1:
            return None
        begin = self.address(whole)
        if begin is None:
            return None
        elements = channel // self._block(whole) * math.prod(self._shape(whole)[2:])
        return begin + elements * planned.dtype(name).itemsize

    def _shape(self, name: str) -> Shape:
        return array_shape(self._layout(name), self._planned.shapes[name])

    def _layout(self, name: str) -> str:
        return self._planned.layouts.get(name, "channels_first")

    def _block(self, name: str) -> int:
        """Channels that lie side by side."""
        return BLOCKS.get(self._layout(name), 1)
