"""A planned network, run: kernels one after the other on arrays that stay where they are, in one arena.

Steps whose arrays never move are bound to them once, and between two steps that Python has to run the kernels
of all others are launched by one call, from a table. What moves are the inputs, which are read where they
lie, and the outputs, which are new arrays each time: kernels that touch these are told where they lie. Where
that is not possible small arrays are copied to and from where a step is bound; with large ones it is called,
which takes Python 20 us, and 100 where other things have its place in the caches by then (Zen 4).
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Mapping, Sequence
from weakref import WeakKeyDictionary, ref

import numpy as np

from convalgos.core import allocator
from convalgos.core.arguments import Shape
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.layouts import array_shape
from convalgos.cpu.layout.reorder import Reorder
from convalgos.cpu.pooling.plan import PoolPlan
from convalgos.network.context import Context
from convalgos.network.filters import Filters, filter_of
from convalgos.network.graph import Foreign, NetworkGraph
from convalgos.network.known_run import Arguments, KnownRun, can_be_known
from convalgos.network.known_values import known_arrays
from convalgos.network.memory import Memory, MemoryPool
from convalgos.network.planned import Planned, PlannedStep
from convalgos.network.run_parts import Arrays, TablePart, nothing
from convalgos.network.run_structure import RunStructure
from convalgos.network.step_options import CONVOLUTIONS


class Executor:
    """Runs a plan on inputs. Any number of threads may call it at a time, each in an arena of its own.

    Args:
        filters: of the convolutions of the plan, prepared.
        memories: what runs compute in, which other plans may share.
        like: of a plan of the same steps for other sizes.
    """

    def __init__(
        self, graph: NetworkGraph, planned: Planned, filters: Filters, memories: MemoryPool | None = None,
        like: Executor | None = None,
    ):  # fmt: skip
        self.graph, self.planned, self.filters = graph, planned, filters
        self.memories = memories or MemoryPool()
        self.structure = self._structure_of(like)
        self.moving, self.lies_in = self.structure.moving, self.structure.lies_in
        self._contexts: WeakKeyDictionary[Memory, Context] = WeakKeyDictionary()
        self._recent: tuple[Callable[[], Memory | None], Callable[[], Context | None]] = nothing, nothing

    def _structure_of(self, like: Executor | None) -> RunStructure:
        """That of one for other sizes, whose values share memory alike; runs ask by themselves whether their
        filters are the same."""
        planned = self.planned
        if like is not None and planned.shares_as(like.planned) and like.structure.is_of(planned):
            return like.structure
        return RunStructure(planned, self.graph)

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs of the network, new arrays.

        Args:
            inputs: in the order of the graph's, C-contiguous, of the shapes that were planned for.
        """
        arrays = self.arrays(inputs)
        memory = self.memories.take(self.planned.arena_bytes)
        try:
            self._context_of(memory).run(arrays)
        finally:
            self.memories.give_back(memory)
        return self.outputs_of(arrays)

    def bind(self) -> None:
        """Bind the steps to memory, as the first run does, which is then as fast as others."""
        memory = self.memories.take(self.planned.arena_bytes)
        try:
            self._context_of(memory)
        finally:
            self.memories.give_back(memory)

    def known_run(self) -> KnownRun | None:
        """Runs like the last one; None where there is more to them than one table of launches."""
        of_memory, of_context = self._recent
        memory, context = of_memory(), of_context()
        if memory is None or context is None or not self._writes_each or not can_be_known():
            return None
        part = context.parts[0] if len(context.parts) == 1 else None
        if not isinstance(part, TablePart):
            return None
        inputs = [
            Arguments(name, self.planned.shapes[name], np.dtype(self.planned.dtype(name)))
            for name in self.graph.inputs
        ]
        outputs = [Arguments(*result) for result in self.results]
        return KnownRun(part, inputs, outputs, memory, self.memories, (self, context))

    def outputs_of(self, arrays: Arrays) -> list[np.ndarray]:
        """The outputs of a run on what moved."""
        found = list(map(arrays.__getitem__, self.graph.outputs))
        return found if self._writes_each else self._each_by_itself(found)

    def _context_of(self, memory: Memory) -> Context:
        """That of a piece of memory; mostly the one of the last run, which is found sooner."""
        of_memory, recent = self._recent
        context = recent() if of_memory() is memory else None
        if context is None:
            context = self._contexts.get(memory)
            if context is None:
                context = self._contexts[memory] = Context(self, memory)
            self._recent = ref(memory), ref(context)
        return context

    @cached_attribute
    def _writes_each(self) -> bool:
        """Whether each output is written by a step, and none twice."""
        outputs = self.graph.outputs
        return self.structure.written.issuperset(outputs) and len({*outputs}) == len(outputs)

    def _each_by_itself(self, outputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Outputs of which some are inputs, or known, or the same, with copies of these."""
        found: list[np.ndarray] = []
        for name, y in zip(self.graph.outputs, outputs, strict=True):
            own = name in self.structure.written and all(y is not other for other in found)
            found.append(y if own else y.copy())
        return found

    @cached_attribute
    def known(self) -> Mapping[str, np.ndarray]:
        """Values that are the same in all runs, of those that steps of a run read."""
        return known_arrays(self.planned, self.structure.known_steps(self.planned), self.call)

    def arrays(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray] | None = None) -> Arrays:
        """What moves: the inputs, in their order, and the outputs.

        Args:
            outputs: that steps write, in their order; new arrays where none are given.
        """
        arrays = dict(zip(self.graph.inputs, inputs, strict=True))
        if outputs is None:
            for name, shape, dtype in self.results:
                arrays[name] = allocator.new_array(shape, dtype)
        else:
            arrays |= zip([name for name, _, _ in self.results], outputs, strict=True)
        return arrays

    @cached_attribute
    def results(self) -> tuple[tuple[str, Shape, np.dtype], ...]:
        """Outputs that steps write, with the shapes and types of their arrays."""
        names = [name for name in self.graph.outputs if name in self.structure.written]
        return tuple([(n, self.array_shape(n), np.dtype(self.planned.dtype(n))) for n in names])

    def new_array(self, name: str) -> np.ndarray:
        """An uninitialised array for a value."""
        shape = self.array_shape(name)
        return allocator.aligned_empty(math.prod(shape), self.planned.dtype(name)).reshape(shape)

    def array_shape(self, name: str) -> Shape:
        """The shape of the array of a value, in its layout."""
        return array_shape(self.planned.layouts.get(name, "channels_first"), self.planned.shapes[name])

    def untouched(self, name: str) -> np.ndarray:
        """An array for a value whose memory the system gives only when it is written."""
        shape, dtype = self.array_shape(name), self.planned.dtype(name)
        nbytes = math.prod(shape) * dtype.itemsize
        return np.frombuffer(mmap.mmap(-1, max(1, nbytes)), dtype, math.prod(shape)).reshape(shape)

    def call(self, planned_step: PlannedStep, x: list[np.ndarray], y: list[np.ndarray]) -> None:
        """Run a step on any arrays."""
        step, plan = planned_step.step, planned_step.plan
        if isinstance(step, CONVOLUTIONS):
            w = self.filters[filter_of(planned_step)]
            residual = x[1] if len(x) > 1 else None
            plan(x[0], w, bias=step.bias, activation=step.activation, residual=residual, out=y[0])
        elif isinstance(plan, PoolPlan):
            plan.run(x[0], y[0])
        elif isinstance(plan, Reorder):
            plan.bind(x[0], y[0]).run()
        elif isinstance(step, Foreign):
            plan.run(x, y)
        else:
            plan.run(x, y[0])
