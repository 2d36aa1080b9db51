"""The steps of a plan bound to a piece of memory: tables of launches, and what Python runs between them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Protocol
from weakref import proxy

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.bound_run import AddressWord, BoundRun, Launch
from convalgos.core.errors import Unsupported
from convalgos.cpu.runtime import jit
from convalgos.cpu.separable.run_outputs import BiasedActivation
from convalgos.network.arena import ArenaArrays, scratch_bytes
from convalgos.network.array_copies import bound_copy, takes_copies
from convalgos.network.filters import Filters, filter_of
from convalgos.network.graph import Foreign, Step
from convalgos.network.memory import Memory
from convalgos.network.planned import JoinedConvolutions, Planned, PlannedStep, ScaledConvolution
from convalgos.network.run_parts import Arrays, MovingPlaces, Part, TablePart, ignoring, nothing
from convalgos.network.run_structure import RunStructure, can_be_told
from convalgos.network.sharing import value_bytes
from convalgos.network.step_options import CONVOLUTIONS

COPIED = 1 << 17  # bytes that move up to which a step is bound to copies by Python: to call it takes longer,
COPIED_BY_KERNELS = 1 << 19  # and by kernels; Zen 5
NONE: Arrays = {}
VIEWED = BoundRun(nothing, ())
BY_ADDRESS = "by address"  # the settings of runs that are bound again by `bound_at`


class RunsPlan(Protocol):
    """What has contexts: it runs the steps of a plan on any arrays."""

    planned: Planned
    structure: RunStructure
    filters: Filters
    moving: set[str]
    lies_in: dict[str, str]

    @property
    def known(self) -> Mapping[str, np.ndarray]:
        """Values that are the same in all runs."""

    def new_array(self, name: str) -> np.ndarray:
        """An uninitialised array for a value."""

    def untouched(self, name: str) -> np.ndarray:
        """An array for a value whose memory the system gives only when it is written."""

    def array_shape(self, name: str) -> Shape:
        """The shape of the array of a value, in its layout."""

    def call(self, planned_step: PlannedStep, x: list[np.ndarray], y: list[np.ndarray]) -> None:
        """Run a step on any arrays."""


class Context:
    """The steps of a plan bound to a piece of memory, the arena.

    Args:
        executor: must outlive it. It keeps its contexts, which know it weakly: what is let go of is gone at
            once, and leaves nothing to the search for cycles, which takes 20 ms and more.
        fixed: arrays of values that lie beside the arena.
    """

    def __init__(self, executor: RunsPlan, memory: Memory, fixed: Arrays = NONE):
        planned = executor.planned
        self._executor: RunsPlan = proxy(executor)
        self._structure = executor.structure
        self._moved, self._placed = executor.moving, planned.places
        self._arena = memory.bytes
        self._places, self._begin = ArenaArrays(planned, self._arena), int(self._arena.ctypes.data)
        self._arrays = {**executor.known, **fixed}  # of values that have no place in the arena
        self._where = self._addresses()
        self._kept: list[Any] = []  # what the tables point to
        self.parts = self._parts_of(self._structure.order)

    def _addresses(self) -> dict[str, int]:
        """Where values lie that are wholes of the arena; 0 of what moves."""
        begin = self._begin
        found = {name: begin + at for name, at in self._placed.items() if type(at) is int}
        for name in self._arrays:
            found.pop(name, None)
        return found | dict.fromkeys(self._moved, 0)

    def run(self, arrays: Arrays) -> None:
        """All steps, on what moves."""
        for part in self.parts:
            part(arrays)

    def part_of(self, number: int) -> Part:
        """A step by itself."""
        parts = self._parts_of([number] if number in self._structure.order else [])

        def run(arrays: Arrays) -> None:
            for part in parts:
                part(arrays)

        return run

    def _parts_of(self, numbers: Sequence[int]) -> list[Part]:
        """Of the steps of these numbers, which are bound one after the other."""
        steps = self._executor.planned.steps
        bound = {i: self._run_of(i) for i in numbers}
        parts: list[Part] = []
        launches: list[Launch] = []
        words: list[MovingPlaces] = []
        checks: list[Callable[[], None]] = []

        def add(part: Part | None = None) -> None:
            """The launches so far as a part, and this one behind it."""
            if launches:
                parts.append(TablePart(launches, words, checks))
                for own in (launches, words, checks):
                    own.clear()
            if part is not None:
                parts.append(part)

        for i in sorted(numbers):
            told = bound[i]
            if told is None:
                if not self._is_shown(steps[i]):
                    add(self._moving(steps[i]))
                continue
            run, of_step = told
            if run.launches is None:
                add(ignoring(run.run))
            else:
                self._kept += run.kept
                launches += run.launches
                words += of_step
                checks += [] if run.check is None else [run.check]
        add()
        return parts

    def _run_of(self, number: int) -> tuple[BoundRun, Sequence[MovingPlaces]] | None:
        """A step, bound, and by which words it is told of what moves; None where it cannot be."""
        planned_step = self._executor.planned.steps[number]
        moves, settings = self._structure.moves[number], self._structure.settings
        if planned_step.plan is None and not moves and self._lies_there(planned_step):
            return VIEWED, ()
        if number in settings and (run := self._bound_again(planned_step, settings[number], moves)):
            words = self._words_of(planned_step, run) if moves else ()
            if words is not None:
                return run, words
        if moves and self._is_shown(planned_step):
            return None
        found = self._told(planned_step) if moves else (self._bound(planned_step), ())
        if found is None:
            return self._on_copies(planned_step)
        if getattr(planned_step.plan, "by_address", False):
            settings[number] = BY_ADDRESS
        elif found[0].settings is not None:
            settings[number] = found[0].settings
        return found

    def _bound_again(self, planned_step: PlannedStep, settings: Any, moves: bool) -> BoundRun | None:
        """A run like that of the step in another plan; None where it is bound as if it were the first."""
        step, where, address = planned_step.step, self._where, self._address
        x = [where[name] if name in where else address(name) for name in step.inputs]
        y = [where[name] if name in where else address(name) for name in step.outputs]
        if None in x or None in y:
            return None
        plan = planned_step.plan
        run: BoundRun | None
        if settings is BY_ADDRESS:
            run = plan.bound_at(x, y[0]) if plan.by_address else None
        else:
            run = plan.bound_again(settings, x, y, self._begin, moves)
        return run

    def _lies_there(self, planned_step: PlannedStep) -> bool:
        """Whether the arena has placed the output of a view where its input is."""
        x = self._address(planned_step.step.inputs[0])
        return x is not None and x == self._address(planned_step.step.output)

    def _address(self, name: str) -> int | None:
        """Where a value lies, as a whole; 0 of what moves, and None where it does not."""
        if name in self._where:
            return self._where[name]
        if name not in self._arrays and name in self._placed:
            return self._places.address(name)
        return int(self._array(name).ctypes.data)

    def _is_shown(self, planned_step: PlannedStep) -> bool:
        """Whether what a view reads, which moves, lies where its output does."""
        step = planned_step.step
        return planned_step.plan is None and self._whole(step.inputs[0]) == self._whole(step.output)

    def _whole(self, name: str) -> str:
        """The input or output that a value is a view of, or itself."""
        return self._executor.lies_in.get(name, name)

    def _told(self, planned_step: PlannedStep) -> tuple[BoundRun, Sequence[MovingPlaces]] | None:
        """A run that is told where what moves lies, and by which words; None where there is none."""
        step, moving = planned_step.step, self._executor.moving
        if moving & {*step.inputs[1:], *step.outputs[1:]} or not can_be_told(planned_step):
            return None
        run = self._bound(planned_step)
        words = self._words_of(planned_step, run)
        return None if words is None else (run, words)

    def _words_of(
        self, planned_step: PlannedStep, run: BoundRun, copies: Container[str] = ()
    ) -> list[MovingPlaces] | None:
        """Those by which a run is told where what moves lies, but for copies; None where there are none."""
        step, found = planned_step.step, []
        for name, places in ((step.inputs[0], run.x_places), (step.output, run.y_places)):
            if name in self._executor.moving and name not in copies:
                if not places or run.launches is None:
                    return None
                found.append(self._moving_places(name, places))
        return found

    def _moving_places(self, name: str, places: Sequence[AddressWord]) -> MovingPlaces:
        cells = [(ctypes.c_int64.from_address(place.word), place.offset) for place in places]
        return MovingPlaces(self._whole(name), cells)

    def _on_copies(self, planned_step: PlannedStep) -> tuple[BoundRun, Sequence[MovingPlaces]] | None:
        """A run on copies, which kernels make, of what moves and it cannot be told of; None where these are
        large, or there is more to it than kernels."""
        step, executor = planned_step.step, self._executor
        if not takes_copies(planned_step):
            return None
        moving = executor.moving.intersection((*step.inputs, *step.outputs))
        others = {*step.inputs[1:], *step.outputs[1:]} if can_be_told(planned_step) else moving
        for copied in (moving & others, moving):
            if sum(value_bytes(executor.planned, name) for name in copied) > COPIED_BY_KERNELS:
                return None
            copies = {name: executor.new_array(name) for name in sorted(copied)}
            bound = self._bound(planned_step, copies)
            if bound.launches is None:
                return None
            words = self._words_of(planned_step, bound, copies)
            if words is not None:
                return self._between_copies(planned_step.step, bound, words, copies)
        return None

    def _between_copies(
        self, step: Step, bound: BoundRun, words: list[MovingPlaces], copies: Mapping[str, np.ndarray]
    ) -> tuple[BoundRun, Sequence[MovingPlaces]] | None:
        """Copies of inputs, a run, and copies of outputs, as one run."""
        runs = [bound]
        for name, copy in copies.items():
            reads = name in step.inputs
            moving = self._array(name)
            copying = bound_copy(moving, copy) if reads else bound_copy(copy, moving)
            if copying is None:
                return None
            words.append(self._moving_places(name, copying.x_places if reads else copying.y_places))
            runs.insert(0 if reads else len(runs), copying)
        launches = tuple([launch for run in runs for launch in run.launches or ()])
        return jit.bound_run(launches, *runs, copies)._replace(check=bound.check), words

    def _array(self, name: str) -> np.ndarray:
        """Where a value lies; of what moves, memory that is never touched."""
        if name not in self._arrays and name in self._executor.planned.places:
            return self._places.array(name)
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
            stays = self._moved.isdisjoint((*step.inputs, *step.outputs))
            if stays and x[0].ctypes.data == y[0].ctypes.data:  # the arena has placed it so
                return VIEWED
            return bound_copy(x[0], y[0]) or BoundRun(lambda: np.copyto(y[0], x[0].reshape(y[0].shape)))
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
        step, moving = planned_step.step, self._executor.moving
        if not takes_copies(planned_step):
            return None
        names = moving.intersection((*step.inputs, *step.outputs))
        if sum(value_bytes(self._executor.planned, name) for name in names) > COPIED:
            return None
        copies = {name: self._executor.new_array(name) for name in names}
        bound = self._bound(planned_step, copies)
        read = [(self._whole(name), copies[name]) for name in dict.fromkeys(step.inputs) if name in moving]
        written = [(self._whole(name), copies[name]) for name in step.outputs if name in moving]

        def run(arrays: Arrays) -> None:
            for name, copy in read:
                np.copyto(copy, arrays[name].reshape(copy.shape))
            bound.run()
            for name, copy in written:
                np.copyto(arrays[name].reshape(copy.shape), copy)

        return run

    def _moving(self, planned_step: PlannedStep) -> Part:
        """A step on arrays of which some are other ones in each run."""
        copying = self._copying(planned_step)
        if copying is not None:
            return copying
        step, executor = planned_step.step, self._executor
        names = {*step.inputs, *step.outputs}
        known = {name: self._array(name) for name in names if name not in executor.moving}
        moving = {name: (self._whole(name), executor.array_shape(name)) for name in names - {*known}}

        def run(arrays: Arrays) -> None:
            every = {name: arrays[whole].reshape(shape) for name, (whole, shape) in moving.items()} | known
            x, y = [every[name] for name in step.inputs], [every[name] for name in step.outputs]
            if planned_step.plan is None:
                y[0][...] = x[0].reshape(y[0].shape)
            else:
                executor.call(planned_step, x, y)

        return run
