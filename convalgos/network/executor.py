"""A planned network, run: kernels one after the other on arrays that stay where they are, in one arena.

Steps whose arrays never move are bound to them once, and between two steps that Python has to run the kernels
of all others are launched by one call, from a table. What moves are the inputs, which are read where they
lie, and the outputs, which are new arrays each time: steps that touch these are called with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.core.arguments import Shape
from convalgos.core.bound_run import BoundRun, Launch
from convalgos.core.errors import Unsupported
from convalgos.core.layouts import array_shape
from convalgos.cpu.layout.reorder import Reorder
from convalgos.cpu.pooling.plan import PoolPlan
from convalgos.cpu.runtime import jit
from convalgos.cpu.separable.records import BiasedActivation
from convalgos.network.arena import arrays_of
from convalgos.network.filters import Filters, filter_of
from convalgos.network.graph import Foreign, NetworkGraph
from convalgos.network.memory import Memory, MemoryPool
from convalgos.network.planned import JoinedConvolutions, Planned, PlannedStep, ScaledConvolution
from convalgos.network.step_options import CONVOLUTIONS

Arrays = dict[str, np.ndarray]
Part = Callable[[Arrays], None]  # of a run, on the arrays that move


class Executor:
    """Runs a plan on inputs. Any number of threads may call it at a time, each in an arena of its own.

    Args:
        filters: of the convolutions of the plan, prepared.
        memories: what runs compute in, which other plans may share.
    """

    def __init__(
        self, graph: NetworkGraph, planned: Planned, filters: Filters, memories: MemoryPool | None = None
    ):
        self.graph, self.planned, self.filters = graph, planned, filters
        self.memories = memories or MemoryPool()
        self.moving = {*graph.inputs, *graph.outputs}
        for planned_step in planned.steps:
            if planned_step.plan is None and self.moving & {*planned_step.step.inputs}:
                self.moving.add(planned_step.step.output)  # a view of what moves
        self._written = {name for planned_step in planned.steps for name in planned_step.step.outputs}
        self._contexts: WeakKeyDictionary[Memory, Context] = WeakKeyDictionary()

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs of the network, new arrays.

        Args:
            inputs: in the order of the graph's, C-contiguous, of the shapes that were planned for.
        """
        arrays = dict(zip(self.graph.inputs, inputs, strict=True))
        for name in self.graph.outputs:
            if name in self._written:
                arrays[name] = self.new_array(name)
        with self.memories.taken(self.planned.arena_bytes + self.planned.scratch_bytes) as memory:
            context = self._contexts.get(memory)
            if context is None:
                context = self._contexts[memory] = Context(self, memory)
            for part in context.parts:
                part(arrays)
        found: list[np.ndarray] = []
        for name in self.graph.outputs:
            y = arrays[name]
            found.append(y if name in self._written and all(y is not other for other in found) else y.copy())
        return found

    def new_array(self, name: str) -> np.ndarray:
        """An uninitialised array for a value."""
        shape = self.array_shape(name)
        return aligned_empty(math.prod(shape), self.planned.dtype(name)).reshape(shape)

    def array_shape(self, name: str) -> Shape:
        """The shape of the array of a value, in its layout."""
        return array_shape(self.planned.layouts.get(name, "channels_first"), self.planned.shapes[name])


class Context:
    """The steps of a plan bound to a piece of memory: the scratch and then the arena lie in it."""

    def __init__(self, executor: Executor, memory: Memory):
        planned, self._executor = executor.planned, executor
        self._scratch = memory.bytes[: planned.scratch_bytes]  # whole cache lines
        self._arrays = arrays_of(planned, executor.graph, memory.bytes[planned.scratch_bytes :])
        self.parts: list[Part] = []
        launches: list[Launch] = []
        self._runs: list[BoundRun] = []  # which keep alive what the tables point to
        for planned_step in planned.steps:
            names = (*planned_step.step.inputs, *planned_step.step.outputs)
            if executor.moving & {*names}:
                self._add_table(launches)
                self.parts.append(self._moving(planned_step))
                continue
            run = self._bound(planned_step)
            self._runs.append(run)
            if run.launches is None:
                self._add_table(launches)
                self.parts.append(_ignoring(run.run))
            else:
                launches += run.launches
        self._add_table(launches)

    def part_of(self, planned_step: PlannedStep) -> Part:
        """A step by itself."""
        if self._executor.moving & {*planned_step.step.inputs, *planned_step.step.outputs}:
            return self._moving(planned_step)
        run = self._bound(planned_step)
        self._runs.append(run)
        return _ignoring(run.run)

    def _add_table(self, launches: list[Launch]) -> None:
        """Make a part of these launches, which are then none."""
        if launches:
            table = jit.launch_table(launches)
            address, count = table.ctypes.data, len(table)

            def run(arrays: Arrays, kept: np.ndarray = table) -> None:
                jit.launch_all(address, count)

            self.parts.append(run)
            launches.clear()

    def _array(self, name: str) -> np.ndarray:
        if name not in self._arrays:
            self._arrays[name] = self._executor.new_array(name)
        return self._arrays[name]

    def _bound(self, planned_step: PlannedStep) -> BoundRun:
        """A step on arrays that do not move."""
        bound: BoundRun
        step, plan = planned_step.step, planned_step.plan
        x, y = [self._array(n) for n in step.inputs], [self._array(n) for n in step.outputs]
        if plan is None:
            if x[0].ctypes.data == y[0].ctypes.data:  # the arena has placed it so
                return BoundRun(_nothing, ())
            return BoundRun(lambda: np.copyto(y[0], x[0].reshape(y[0].shape)))
        try:
            if isinstance(step, CONVOLUTIONS):
                w = self._executor.filters[filter_of(planned_step)]
                residual = x[1] if len(x) > 1 else None
                bound = plan.bind(x[0], w, y[0], step.bias, step.activation, residual, self._scratch)
            elif isinstance(step, JoinedConvolutions):
                w = self._executor.filters[filter_of(planned_step)]
                outputs = [BiasedActivation(part.bias, part.activation) for part in step.parts]
                residual, mean = x[1] if len(x) > 1 else None, y[1] if step.mean else None
                bound = plan.bind(x[0], w, y[0], outputs, residual, self._scratch, mean)
            elif isinstance(step, ScaledConvolution):
                w, of = self._executor.filters[filter_of(planned_step)], step.convolution
                residual = x[2] if len(x) > 2 else None
                bound = plan.bind(x[0], x[1], w, y[0], of.bias, of.activation, residual, self._scratch)
            elif not hasattr(plan, "bind"):
                bound = BoundRun(lambda: self._call(planned_step, x, y))
            elif isinstance(step, Foreign):
                bound = plan.bind(x, y)
            else:
                bound = plan.bind(*x, *y)
        except Unsupported:  # a slice of an array, which the kernels do not take
            return BoundRun(lambda: self._call(planned_step, x, y))
        return bound

    def _moving(self, planned_step: PlannedStep) -> Part:
        """A step on arrays of which some are other ones in each run."""
        step, shape = planned_step.step, self._executor.array_shape(planned_step.step.output)
        known = {
            name: self._array(name)
            for name in (*step.inputs, *step.outputs)
            if name not in self._executor.moving
        }

        def run(arrays: Arrays) -> None:
            x = [arrays[name] if name in arrays else known[name] for name in step.inputs]
            if planned_step.plan is None:
                view = x[0].reshape(shape)
                if step.output in arrays:
                    arrays[step.output][...] = view
                else:
                    arrays[step.output] = view
                return
            y = [arrays[name] if name in arrays else known[name] for name in step.outputs]
            self._call(planned_step, x, y)

        return run

    def _call(self, planned_step: PlannedStep, x: list[np.ndarray], y: list[np.ndarray]) -> None:
        """Run a step on any arrays."""
        step, plan = planned_step.step, planned_step.plan
        if isinstance(step, CONVOLUTIONS):
            w = self._executor.filters[filter_of(planned_step)]
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


def _nothing() -> None:
    pass


def _ignoring(run: Callable[[], None]) -> Part:
    def part(arrays: Arrays) -> None:
        run()

    return part
