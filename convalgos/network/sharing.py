"""Which values of a network lie in the memory of others: views, slices of what is put side by side, and what
elementwise steps write over."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from convalgos.core.layouts import BLOCKS, array_shape
from convalgos.network.graph import Concatenation, Convolution, Elementwise, NetworkGraph, View
from convalgos.network.group_norms import GroupNormalization
from convalgos.network.planned import Planned, PlannedStep, Sharing
from convalgos.network.softmax import Softmax


def found_sharing(planned: Planned, graph: NetworkGraph) -> Sharing:
    """Who shares memory with whom in a plan."""
    return _Sharing(planned, graph).found()


def value_bytes(planned: Planned, name: str) -> int:
    """Of the array of a value."""
    layout, shape = planned.layouts.get(name, "channels_first"), planned.shapes[name]
    count = math.prod(array_shape(layout, shape) if layout in BLOCKS else shape)
    return count * (planned.dtype(name).itemsize if name in planned.dtypes else 4)


def is_view(planned_step: PlannedStep) -> bool:
    """Whether it computes nothing: its output is the memory of its input."""
    return isinstance(planned_step.step, View) or planned_step.plan is None


def _takes_slices(planned_step: PlannedStep) -> bool:
    """Whether its arrays may be slices, with more from one image to the next than they hold."""
    return isinstance(planned_step.step, Concatenation) or takes_strides(planned_step.plan)


def takes_strides(plan: Any) -> bool:
    return bool(getattr(plan, "strided_batch", False))


def _spans(times: Mapping[str, tuple[tuple[str, int, int], ...]], where: Mapping[str, Any]) -> dict[str, Any]:
    """The times of the buffers in which no slices lie."""
    return {
        root: (min(m[1] for m in members), max(m[2] for m in members))
        for root, members in times.items()
        if all(isinstance(where[name], str) for name, *_ in members)
    }


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
        inputs = planned_step.step.inputs
        if whole in self._outside or len({*inputs}) < len(inputs):  # a value lies at one place
            return
        channels = 0
        for name in inputs:
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
        if isinstance(step, Elementwise | GroupNormalization | Softmax):
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
