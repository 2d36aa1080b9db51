"""Runs a plan whose first steps take some images at a time: see `batch_parts`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from convalgos.core.allocator import new_array, whole_lines
from convalgos.network.batch_parts import BatchParts, ends
from convalgos.network.context import Context
from convalgos.network.executor import Executor
from convalgos.network.filters import Filters
from convalgos.network.graph import NetworkGraph
from convalgos.network.memory import Memory, MemoryPool


class PartedContexts(NamedTuple):
    """Steps bound to a piece of memory."""

    first: list[Context]  # one for each part of the images, or one for all parts,
    rest: Context | None  # where what they write is an output


class PartedRun:
    """Runs as an `Executor` of all steps for all images does.

    Args:
        images: of the batch.
        filters: of the convolutions of both plans of `parts`, prepared.
    """

    def __init__(
        self, graph: NetworkGraph, images: int, parts: BatchParts, filters: Filters, memories: MemoryPool
    ):
        self._images, self._of_part, self._between = images, parts.images, parts.between
        self._memories = memories
        self._rest: Executor | None = None
        self._arena_bytes, self._between_bytes = parts.first.arena_bytes, 0
        if parts.rest is None:
            self._first = Executor(graph, parts.first, filters, memories)
        else:
            self._first = Executor(ends(graph.inputs, ()), parts.first, filters, memories)
            self._rest = Executor(ends((), graph.outputs), parts.rest, filters, memories)
            self._arena_bytes = whole_lines(max(self._arena_bytes, parts.rest.arena_bytes))
            shape, dtype = self._rest.array_shape(self._between), parts.rest.dtype(self._between)
            self._between_bytes = math.prod(shape) * dtype.itemsize
        self._contexts: WeakKeyDictionary[Memory, PartedContexts] = WeakKeyDictionary()

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs of the network, new arrays; see `Executor.run`."""
        memory = self._memories.take(self._arena_bytes + self._between_bytes)
        try:
            contexts = self._contexts.get(memory)
            if contexts is None:
                contexts = self._contexts[memory] = self._bound(memory)
            if self._rest is None or contexts.rest is None:
                return self._outputs_by_parts(contexts.first[0], inputs)
            for part, context in zip(self._parts(), contexts.first, strict=True):
                context.run(self._first.arrays([x[part] for x in inputs]))
            arrays = self._rest.arrays(())
            contexts.rest.run(arrays)
            return self._rest.outputs_of(arrays)
        finally:
            self._memories.give_back(memory)

    def _outputs_by_parts(self, context: Context, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        first = self._first
        outputs = [new_array((self._images, *shape[1:]), dtype) for _, shape, dtype in first.results]
        for part in self._parts():
            context.run(first.arrays([x[part] for x in inputs], [y[part] for y in outputs]))
        found = {name: y for (name, _, _), y in zip(first.results, outputs, strict=True)}
        return [found[name] for name in first.graph.outputs]

    def _parts(self) -> list[slice]:
        """The images of each."""
        return [slice(i, i + self._of_part) for i in range(0, self._images, self._of_part)]

    def _bound(self, memory: Memory) -> PartedContexts:
        """All steps, bound to a piece of memory, at whose end lies what the first ones write for the rest."""
        if self._rest is None:
            return PartedContexts([Context(self._first, memory)], None)
        shape, dtype = self._rest.array_shape(self._between), self._rest.planned.dtype(self._between)
        flat = memory.bytes[self._arena_bytes : self._arena_bytes + self._between_bytes]
        value = flat.view(dtype).reshape(shape)  # (N, ...), in its layout
        first = [Context(self._first, memory, {self._between: value[part]}) for part in self._parts()]
        return PartedContexts(first, Context(self._rest, memory, {self._between: value}))
