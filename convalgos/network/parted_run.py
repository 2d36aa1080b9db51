"""Runs a plan whose first steps take some images at a time: see `batch_parts`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from convalgos.core.allocator import new_array
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
        filters: of the convolutions that run, prepared.
    """

    def __init__(self, graph: NetworkGraph, parts: BatchParts, filters: Filters, memories: MemoryPool):
        self._parts, self._memories = parts, memories
        of_first, of_rest = ((), graph.outputs) if parts.between else (graph.outputs, ())
        self._first = Executor(ends(graph.inputs, of_first), parts.first, filters, memories)
        self._rest = Executor(ends((), of_rest), parts.rest, filters, memories)
        self._images = [slice(i, i + parts.images) for i in range(0, parts.batch, parts.images)]
        self._contexts: WeakKeyDictionary[Memory, PartedContexts] = WeakKeyDictionary()

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs of the network, new arrays; see `Executor.run`."""
        memory = self._memory()
        try:
            contexts = self._contexts_of(memory)
            if contexts.rest is None:
                return self._outputs_in_parts(contexts.first[0], inputs)
            for images, context in zip(self._images, contexts.first, strict=True):
                context.run(self._first.arrays([x[images] for x in inputs]))
            arrays = self._rest.arrays(())
            contexts.rest.run(arrays)
            return self._rest.outputs_of(arrays)
        finally:
            self._memories.give_back(memory)

    def bind(self) -> None:
        """Bind the steps to memory; see `Executor.bind`."""
        memory = self._memory()
        try:
            self._contexts_of(memory)
        finally:
            self._memories.give_back(memory)

    def _memory(self) -> Memory:
        return self._memories.take(self._parts.arena_bytes + self._parts.between_bytes)

    def _contexts_of(self, memory: Memory) -> PartedContexts:
        contexts = self._contexts.get(memory)
        if contexts is None:
            contexts = self._contexts[memory] = self._bound(memory)
        return contexts

    def _outputs_in_parts(self, context: Context, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Those of a network all of whose steps run in parts."""
        first, batch = self._first, self._parts.batch
        outputs = [new_array((batch, *shape[1:]), dtype) for _, shape, dtype in first.results]
        for images in self._images:
            context.run(first.arrays([x[images] for x in inputs], [y[images] for y in outputs]))
        return outputs

    def _bound(self, memory: Memory) -> PartedContexts:
        """All steps, bound to a piece of memory, at whose end lies what the first ones write for the rest."""
        between, arena_bytes = self._parts.between, self._parts.arena_bytes
        if not between:
            return PartedContexts([Context(self._first, memory)], None)
        flat = memory.bytes[arena_bytes : arena_bytes + self._parts.between_bytes]
        value = flat.view(self._parts.rest.dtype(between)).reshape(
            self._rest.array_shape(between)
        )  # (N, ...)
        first = [Context(self._first, memory, {between: value[images]}) for images in self._images]
        return PartedContexts(first, Context(self._rest, memory, {between: value}))
