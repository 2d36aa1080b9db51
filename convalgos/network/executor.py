"""A planned network, run: kernels one after the other on arrays that stay where they are, in one arena.

Steps whose arrays never move are bound to them once, and between two steps that Python has to run the kernels
of all others are launched by one call, from a table. What moves are the inputs, which are read where they
lie, and the outputs, which are new arrays each time: kernels that touch these are told where they lie. Where
that is not possible small arrays are copied to and from where a step is bound; with large ones it is called,
which takes Python 20 us, and 100 where other things have its place in the caches by then (Zen 4).
"""

from __future__ import annotations

import ctypes
import math
import mmap
from collections import Counter
from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary, proxy

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.core.arguments import Shape
from convalgos.core.bound_run import BoundRun, Launch
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.errors import Unsupported
from convalgos.core.layouts import array_shape
from convalgos.cpu.layout.reorder import Reorder
from convalgos.cpu.pooling.plan import PoolPlan
from convalgos.cpu.separable.records import BiasedActivation
from convalgos.network.arena import arrays_of, scratch_bytes
from convalgos.network.array_plans import ArrayFunctionPlan
from convalgos.network.filters import Filters, filter_of
from convalgos.network.graph import Foreign, NetworkGraph
from convalgos.network.known_values import known_arrays, known_steps
from convalgos.network.memory import Memory, MemoryPool
from convalgos.network.planned import (
    JoinedConvolutions,
    Planned,
    PlannedStep,
    ScaledConvolution,
    alike_together,
    moving_values,
)
from convalgos.network.run_parts import Arrays, MovingPlaces, Part, ignoring, nothing, table_part
from convalgos.network.sharing import value_bytes
from convalgos.network.step_options import CONVOLUTIONS

COPIED = 1 << 17  # bytes that move up to which a step is bound to copies: to call it takes longer
NONE: Arrays = {}


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
        self.moving = moving_values(planned.steps, graph)
        self.shown = self._outputs_shown()
        self.moving |= {*self.shown}
        self._known_steps = known_steps(planned, self.moving)
        self.known_names = {planned_step.step.output for planned_step in self._known_steps}
        self._written = {name for planned_step in planned.steps for name in planned_step.step.outputs}
        self._contexts: WeakKeyDictionary[Memory, Context] = WeakKeyDictionary()

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs of the network, new arrays.

        Args:
            inputs: in the order of the graph's, C-contiguous, of the shapes that were planned for.
        """
        arrays = self.arrays(inputs)
        with self.memories.taken(self.planned.arena_bytes) as memory:
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

    @cached_attribute
    def known(self) -> Mapping[str, np.ndarray]:
        """Values that are the same in all runs, of those that steps of a run read."""
        return known_arrays(self.planned, self._known_steps, self.call)

    def arrays(self, inputs: Sequence[np.ndarray]) -> Arrays:
        """What moves: the inputs, in their order, and new arrays for the outputs."""
        arrays = dict(zip(self.graph.inputs, inputs, strict=True))
        for name in self.graph.outputs:
            if name in self._written:
                arrays[name] = self.new_array(name)
        for name, output in self.shown.items():
            arrays[name] = arrays[output].reshape(self.array_shape(name))
        return arrays

    def new_array(self, name: str) -> np.ndarray:
        """An uninitialised array for a value."""
        shape = self.array_shape(name)
        return aligned_empty(math.prod(shape), self.planned.dtype(name)).reshape(shape)

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

    def _outputs_shown(self) -> dict[str, str]:
        """Values of which an output is a view: they are computed where it lies. Each with the output."""
        found: dict[str, str] = {}
        steps = self.planned.steps
        reads = Counter(name for planned_step in steps for name in planned_step.step.inputs)
        told = {s.step.output for s in steps if s.plan is None or _can_be_told(s)}
        for step in (planned_step.step for planned_step in reversed(steps) if planned_step.plan is None):
            name, output = step.inputs[0], found.get(step.output, step.output)
            if output in self.graph.outputs and name in told - self.moving and reads[name] == 1:
                found[name] = output
        return found


class Context:
    """The steps of a plan bound to a piece of memory, the arena.

    Args:
        executor: must outlive it. It keeps its contexts, which know it weakly: what is let go of is gone at
            once, and leaves nothing to the search for cycles, which takes 20 ms and more.
    """

    def __init__(self, executor: Executor, memory: Memory):
        planned = executor.planned
        self._executor: Executor = proxy(executor)
        self._arena = memory.bytes
        self._arrays = arrays_of(planned, executor.graph, self._arena) | dict(executor.known)
        self._runs: list[BoundRun] = []  # which keep alive what the tables point to
        self.parts = self._parts_of(planned.steps)

    def part_of(self, planned_step: PlannedStep) -> Part:
        """A step by itself."""
        parts = self._parts_of((planned_step,))

        def run(arrays: Arrays) -> None:
            for part in parts:
                part(arrays)

        return run

    def _parts_of(self, steps: Sequence[PlannedStep]) -> list[Part]:
        known = self._executor.known_names
        steps = [planned_step for planned_step in steps if planned_step.step.output not in known]
        parts: list[Part] = []
        launches: list[Launch] = []
        words: list[MovingPlaces] = []

        def add(part: Part | None = None) -> None:
            """The launches so far as a part, and this one behind it."""
            if launches:
                parts.append(table_part(launches, words))
                launches.clear()
                words.clear()
            if part is not None:
                parts.append(part)

        found: dict[int, tuple[BoundRun, list[MovingPlaces]] | None] = {}
        for i in alike_together(steps):
            values = *steps[i].step.inputs, *steps[i].step.outputs
            moves = not self._executor.moving.isdisjoint(values)
            if not (moves and self._is_shown(steps[i])):
                found[i] = self._told(steps[i]) if moves else (self._bound(steps[i]), [])
        for i, told in sorted(found.items()):
            if told is None:
                add(self._moving(steps[i]))
                continue
            run, of_step = told
            self._runs.append(run)
            if run.launches is None:
                add(ignoring(run.run))
            else:
                launches += run.launches
                words += of_step
        add()
        return parts

    def _is_shown(self, planned_step: PlannedStep) -> bool:
        """Whether what a view reads lies where its output does."""
        shown, step = self._executor.shown, planned_step.step
        if planned_step.plan is not None or step.inputs[0] not in shown:
            return False
        return shown[step.inputs[0]] == shown.get(step.output, step.output)

    def _told(self, planned_step: PlannedStep) -> tuple[BoundRun, list[MovingPlaces]] | None:
        """A run that is told where what moves lies, and by which words; None where there is none."""
        step, moving, found = planned_step.step, self._executor.moving, []
        if moving & {*step.inputs[1:], *step.outputs[1:]} or not _can_be_told(planned_step):
            return None
        run = self._bound(planned_step)
        for name, places in ((step.inputs[0], run.x_places), (step.output, run.y_places)):
            if name in moving:
                if not places or run.launches is None:
                    return None
                cells = [(ctypes.c_int64.from_address(place.word), place.offset) for place in places]
                found.append(MovingPlaces(name, cells))
        return run, found

    def _array(self, name: str) -> np.ndarray:
        """Where a value lies; of what moves, memory that is never touched."""
        if name not in self._arrays:
            made = self._executor.untouched if name in self._executor.moving else self._executor.new_array
            self._arrays[name] = made(name)
        return self._arrays[name]

    def _bound(self, planned_step: PlannedStep, copies: Mapping[str, np.ndarray] = NONE) -> BoundRun:
        """A step on arrays that do not move.

        Args:
            copies: of values, where it shall have these.
        """
        bound: BoundRun
        step, plan, executor = planned_step.step, planned_step.plan, self._executor
        x, y = (
            [copies[n] if n in copies else self._array(n) for n in names]
            for names in (step.inputs, step.outputs)
        )
        scratch = self._arena[: scratch_bytes(planned_step)]
        if plan is None:
            if x[0].ctypes.data == y[0].ctypes.data:  # the arena has placed it so
                return BoundRun(nothing, ())
            return BoundRun(lambda: np.copyto(y[0], x[0].reshape(y[0].shape)))
        try:
            if isinstance(step, CONVOLUTIONS):
                w = executor.filters[filter_of(planned_step)]
                residual = x[1] if len(x) > 1 else None
                bound = plan.bind(x[0], w, y[0], step.bias, step.activation, residual, scratch)
            elif isinstance(step, JoinedConvolutions):
                w = executor.filters[filter_of(planned_step)]
                outputs = [BiasedActivation(part.bias, part.activation) for part in step.parts]
                residual, mean = x[1] if len(x) > 1 else None, y[1] if step.mean else None
                bound = plan.bind(x[0], w, y[0], outputs, residual, scratch, mean)
            elif isinstance(step, ScaledConvolution):
                w, of = executor.filters[filter_of(planned_step)], step.convolution
                residual = x[2] if len(x) > 2 else None
                bound = plan.bind(x[0], x[1], w, y[0], of.bias, of.activation, residual, scratch)
            elif not hasattr(plan, "bind"):
                bound = BoundRun(lambda: executor.call(planned_step, x, y))
            elif isinstance(step, Foreign):
                bound = plan.bind(x, y)
            else:
                bound = plan.bind(*x, *y)
        except Unsupported:  # a slice of an array, which the kernels do not take
            return BoundRun(lambda: executor.call(planned_step, x, y))
        return bound

    def _copying(self, planned_step: PlannedStep) -> Part | None:
        """A step on copies of the arrays that move; None where these are large, or no kernels need them."""
        step, plan, moving = planned_step.step, planned_step.plan, self._executor.moving
        if not hasattr(plan, "bind") or isinstance(step, Foreign) or isinstance(plan, ArrayFunctionPlan):
            return None
        names = moving.intersection((*step.inputs, *step.outputs))
        if sum(value_bytes(self._executor.planned, name) for name in names) > COPIED:
            return None
        copies = {name: self._executor.new_array(name) for name in names}
        bound = self._bound(planned_step, copies)
        read = [(name, copies[name]) for name in dict.fromkeys(step.inputs) if name in moving]
        written = [(name, copies[name]) for name in step.outputs if name in moving]

        def run(arrays: Arrays) -> None:
            for name, copy in read:
                np.copyto(copy, arrays[name])
            bound.run()
            for name, copy in written:
                np.copyto(arrays[name], copy)

        return run

    def _moving(self, planned_step: PlannedStep) -> Part:
        """A step on arrays of which some are other ones in each run."""
        copying = self._copying(planned_step)
        if copying is not None:
            return copying
        step, executor = planned_step.step, self._executor
        shape = executor.array_shape(step.output)
        known = {
            name: self._array(name) for name in (*step.inputs, *step.outputs) if name not in executor.moving
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
            executor.call(planned_step, x, y)

        return run


def _can_be_told(planned_step: PlannedStep) -> bool:
    """Whether its kernels may read words that say where its arrays lie."""
    plan = planned_step.plan
    return (
        isinstance(planned_step.step, CONVOLUTIONS)
        or isinstance(plan, Reorder)
        or getattr(plan, "told", False)
    )
