"""A plan whose run is a sequence of kernels over one record of arguments.

The driver kernels of an algorithm read their arguments from a record of named int64 fields: those every
run sets (`RUN_FIELDS`: addresses of the data) and those the plan sets once (sizes, strides, addresses of
tables and of inner kernels). Each run has a copy of the record and a scratch of its own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from convalgos.core import epilogue
from convalgos.core.algorithm import Algorithm
from convalgos.core.allocator import aligned_empty, aligned_zeros
from convalgos.core.bound_run import (
    AddressWord,
    BoundRun,
    Launch,
    checked_scratch,
    image_step,
    rows_lie_apart,
    share_elements,
)
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.epilogue import Activation, ActivationLike
from convalgos.core.plan import QuickCall
from convalgos.core.prepared_filter import PreparedFilter
from convalgos.core.problem import ConvProblem
from convalgos.cpu.runtime import array_calls, half, jit
from convalgos.cpu.runtime.array_pass import ArrayPass, CompiledPass
from convalgos.cpu.runtime.finish import activation_numbers, compiled_for, finish_address
from convalgos.cpu.runtime.other_sizes import OtherSizes
from convalgos.cpu.runtime.rebinding import RUN_FIELDS, W_AT, X_AT, Y_AT, Rebinding, RunSettings
from convalgos.cpu.runtime.records import address_of_table, by_name, copy_of_record, record_of_words
from convalgos.cpu.vectors import simd

CALL = 1.0e-6  # seconds of Python around a run; Zen 4
ALONE = 0, 1  # no pool of threads, and the calling one
NO_RUN: dict[str, Any] = dict.fromkeys(RUN_FIELDS.split(), 0)


def fields(names: str) -> np.dtype:
    """A record of int64 fields: a row of a table, read as `carray(pointer(a.table), n, ROW)[i]`."""
    return np.dtype([(name, np.int64) for name in names.split()])


def arguments(names: str) -> np.dtype:
    """The record of a driver: `RUN_FIELDS`, then the fields that the plan sets.

    A driver reads it as `a = carray(pointer(args), 1, RECORD)[0]`, then `a.x`, `a.stride`, ...
    `bias` holds one element per filter and a vector of padding, zeros where there is none; `relu` is 0 or 1.
    The last three of `RUN_FIELDS` are those of `finish.finish_run`, zeros where nothing else is to be done.
    """
    return fields(f"{RUN_FIELDS} {names}")


@lru_cache(256)
def _zeros(count: int, dtype: str) -> np.ndarray:
    """Zeros that nobody writes, which plans share."""
    found = aligned_zeros(count, np.dtype(dtype))
    found.flags.writeable = False
    return found


class Packed(NamedTuple):
    """A filter in the form of a kernel."""

    array: np.ndarray
    address: int


class Workspace:
    """Record, scratch and padded bias of one run at a time; `arguments` sets fields of the record by name."""

    def __init__(self, record: np.ndarray, scratch: np.ndarray, bias: np.ndarray):
        address = jit.data_address()
        self.record = copy_of_record(record)
        self.address = address(self.record)
        self.arguments = by_name(self.record)
        self.scratch = scratch
        self.arguments.scratch = address(scratch)
        self.bias = bias.copy()
        self.bias_address = address(self.bias)
        self.numbers: np.ndarray | None = None  # those of the activation of the run


class KernelPlan(Rebinding, CompiledPass, OtherSizes):
    """Runs `steps` in order: each is a driver kernel (args, task) and its number of parallel tasks.

    Subclasses implement `pack_filter`, and say with `finishes` that their drivers call `finish_run`. `tables`
    are arrays whose addresses stand in the record; the plan keeps them alive.

    Args:
        passes: fields to be set for each time that the steps are run.
    """

    finishes = False
    times_runs = False  # whether `run` is the launches of the steps, and a look at the time
    adds_first = False  # whether drivers read the residual of an output before they store it: it may be y

    def __init__(
        self,
        problem: ConvProblem,
        algorithm: Algorithm,
        record: np.dtype,
        values: dict[str, int | np.ndarray],
        steps: Sequence[tuple[int, int]],
        scratch_bytes: int,
        passes: Sequence[dict[str, int]] = ({},),
    ):
        super().__init__(problem, algorithm, scratch_bytes)
        self._address = jit.data_address()
        known, names = NO_RUN | values, record.names or ()
        if len(known) != len(names) or not all(map(known.__contains__, names)):
            different = sorted(known.keys() ^ {*names})
            raise ValueError(f"{algorithm.id}: record and values differ in {different}")
        array = np.ndarray
        self._tables = {name: value for name, value in values.items() if type(value) is array}
        known |= {name: address_of_table(name, table) for name, table in self._tables.items()}
        self.record = record_of_words(record, list(map(known.__getitem__, names)))
        self.steps, self._passes = tuple(steps), tuple(passes)
        self._set_sharing(problem.flops, problem.bytes)
        self.scratch_bytes = scratch_bytes
        self._finishes = self.finishes and problem.dtype == problem.y_dtype and compiled_for(self._y_dtype)
        own = type(self)  # whether a run is its launches, and nothing else
        launches = own.run is KernelPlan.run or own.times_runs
        self._only_launches = launches and own.launch_steps is KernelPlan.launch_steps
        self._binds = self._only_launches and (problem.direction != "backward_weights" or self.reads_filter)
        self._only_launches = self._only_launches and problem.direction != "backward_weights"
        lanes = simd.lanes(half.computed_bytes(problem))
        self._no_bias = _zeros((-(-problem.bias_size // lanes) + 1) * lanes, problem.compute_dtype)
        self._no_bias_address = self._address(self._no_bias)
        self._where = None if problem.direction == "backward_weights" else self._address

    @cached_attribute
    def _quick(self) -> QuickCall | None:  # type: ignore[override]
        """Made by the first call: networks bind their plans, and never call them."""
        return self.quick_call(self.problem)

    @abstractmethod
    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        """The filter (K, C/groups, *kernel) in the order the kernels read it, C-contiguous."""

    def prepare_filter(self, w: np.ndarray) -> Packed:
        packed = self.pack_filter(w)
        return Packed(packed, address_of_table("filter", packed))

    def convert(self, source: np.ndarray, target: np.ndarray) -> None:
        half.convert(source, target)

    def new_workspace(self) -> Workspace:
        return Workspace(self.record, self._new_scratch(), self._no_bias)

    def _new_scratch(self) -> np.ndarray:
        return aligned_empty(self.scratch_bytes or 0, np.uint8)

    def quick_call(self, problem: ConvProblem) -> QuickCall | None:
        """The steps, where a run is nothing else."""
        if not self._only_launches or any(self._passes) or (compiled := array_calls.array_call()) is None:
            return None
        taken = array_calls.Taken(problem, self._no_bias_address, self.steps)
        free, parallel = self._free, self._parallel

        def call(x: np.ndarray, w: Any, y: np.ndarray, bias: np.ndarray | None, relu: bool) -> Any:
            kept = True
            try:
                workspace = free.pop()
            except IndexError:
                workspace = None
            if workspace is None:  # outside of the handler: what this raises is one error, not two
                workspace, kept = self.new_workspace(), self._comes_again()
            try:
                pool, threads = jit.pool_of_launch(True) if parallel else ALONE
                return compiled(
                    taken.address, x, w.address, y, bias, relu, workspace.address, workspace.bias_address,
                    pool, threads,
                )  # fmt: skip
            finally:
                if kept:
                    self._give_back(workspace)

        return call

    def run(
        self,
        x: np.ndarray,
        w: Any,
        bias: np.ndarray | None,
        activation: str | None,
        y: np.ndarray,
        workspace: Any,
    ) -> None:
        self._set_run(x, w, bias, activation is not None, y, workspace)
        self.launch_steps(workspace)

    def _set_run(
        self, x: np.ndarray, w: Any, bias: np.ndarray | None, relu: bool, y: np.ndarray, workspace: Workspace
    ) -> Any:
        """Complete the record of a run; returns its fields by name."""
        arguments = workspace.arguments
        arguments.x = self._address(x)
        arguments.w = w.address
        arguments.y = self._address(y)
        if bias is None:
            arguments.bias = self._no_bias_address
        else:
            workspace.bias[: self.problem.bias_size] = bias
            arguments.bias = workspace.bias_address
        arguments.relu = relu
        return arguments

    def launch_steps(self, workspace: Workspace) -> None:
        """Run all steps on a workspace whose record is complete."""
        for settings in self._passes:
            for name, value in settings.items():
                setattr(workspace.arguments, name, value)
            for kernel, tasks in self.steps:
                jit.launch(kernel, workspace.address, tasks, self._parallel)

    def run_finished(
        self, x: np.ndarray, w: Any, bias: np.ndarray | None, residual: np.ndarray | None,
        activation: Activation | None, y: np.ndarray, workspace: Any,
    ) -> None:  # fmt: skip
        if not self._finishes:
            super().run_finished(x, w, bias, residual, activation, y, workspace)
            return
        arguments = workspace.arguments
        added = None if residual is None else self._address(residual)
        workspace.numbers = self._set_finish(arguments, self._address(y), added, activation)
        try:
            self.run(x, w, bias, None, y, workspace)
        finally:
            arguments.finish = 0

    def _set_finish(
        self, fields: Any, y: int, residual: int | None, activation: Activation | None
    ) -> np.ndarray:
        numbers = activation_numbers(self._y_dtype, activation)
        fields.residual = 0 if residual is None else residual - y
        fields.finish_numbers = self._address(numbers)
        fields.finish = finish_address(self._y_dtype, activation)
        return numbers

    def bind(
        self, x: np.ndarray, w: ArrayLike | PreparedFilter, y: np.ndarray, bias: np.ndarray | None = None,
        activation: ActivationLike = None, residual: np.ndarray | None = None,
        scratch: np.ndarray | None = None,
    ) -> BoundRun:  # fmt: skip
        self._check_bound(x, y, residual)
        shares = residual is not None and share_elements(residual, y)
        in_place = residual is not None and shares and not self._adds_to(y, residual)
        wanted = epilogue.activation_of(activation)
        rest = None if wanted == epilogue.RELU and residual is None else wanted
        finishes = rest is not None or residual is not None
        fused = finishes and self._finishes and not in_place
        apart = rows_lie_apart(y)
        if residual is not None and (apart or image_step(residual) != image_step(y)):
            fused = False
        passes = fused or (compiled_for(self._y_dtype) and not apart)
        if not self._binds or (finishes and not passes):
            return super().bind(x, w, y, bias, activation, residual, scratch)
        w = self._own_filter(w)
        if w.read is not None and share_elements(w.read, y):
            raise ValueError(f"y must not overlap {self._w_name}")
        if bias is not None or self.problem.direction == "backward_weights":
            bias = self._output_step(bias, activation, None)[0]
        scratch = checked_scratch(scratch, self.scratch_bytes or 0)
        if scratch is None:
            scratch = self._new_scratch()
        workspace = Workspace(self.record, scratch, self._no_bias)
        target = self._new_target() if in_place else y
        relu = wanted is not None and not finishes
        arguments = self._set_run(x, w.data, bias, relu, target, workspace)
        for name, array in (("x", x), ("y", target)):
            if not array.flags.c_contiguous:
                self._set_steps(arguments, name, array)
        if fused:
            added = None if residual is None else self._address(residual)
            workspace.numbers = self._set_finish(arguments, self._address(y), added, rest)
        launches, records = self._launches(workspace)
        after = ArrayPass(target, residual, y, rest) if finishes and not fused else None
        if after is not None:
            launches.append(after.launch)
        kept = self, x, w, y, residual, target, workspace, records, after
        begins = [self._address(record) for record in records]
        told = target is y and residual is None and after is None  # else other words tell where y lies, too
        of_x, of_y = _words(begins, X_AT), _words(begins, Y_AT) if told else ()
        of_w = _words(begins, W_AT) if self.reads_filter else ()
        again, arrays = None, (x, y, *([] if residual is None else [residual]))
        contiguous = all(array.flags.c_contiguous for array in arrays)
        if contiguous and after is None and self.problem.direction != "backward_weights":
            added_bias = self._no_bias if bias is None else workspace.bias
            of_bias = added_bias, arguments.bias
            again = RunSettings(type(self), w, *of_bias, relu, fused, rest, shares)
        return jit.bound_run(
            tuple(launches), *kept, x_places=of_x, y_places=of_y, w_places=of_w, settings=again
        )

    def _set_steps(self, arguments: Any, name: str, array: np.ndarray) -> None:
        """Complete the record of a run on an x or y whose images, or rows, lie apart."""
        setattr(arguments, f"{name}_n", image_step(array))

    def _adds_to(self, y: np.ndarray, residual: np.ndarray) -> bool:
        """Whether y may begin as the residual that it shares elements with."""
        same = self._address(y) == self._address(residual) and image_step(y) == image_step(residual)
        return self.adds_first and same

    def _launches(self, workspace: Workspace) -> tuple[list[Launch], list[np.ndarray]]:
        """The steps of all passes, each with the record of its pass, and these records."""
        launches, records = [], []
        for settings in self._passes:
            record = copy_of_record(workspace.record) if settings else workspace.record
            for name, value in settings.items():
                record[name] = value
            records.append(record)
            for kernel, tasks in self.steps:
                launches.append(self._launch(kernel, self._address(record), tasks))
        return launches, records


def _words(begins: Sequence[int], at: int) -> tuple[AddressWord, ...]:
    """The words so many bytes from the begin of some records."""
    return tuple([AddressWord(begin + at, 0) for begin in begins])
