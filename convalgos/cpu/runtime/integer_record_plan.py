"""Plans of integers whose run is one driver over one record, of which the filter and its output step set some
fields: what they set is made once, and a call in compiled code copies it.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from convalgos.core import epilogue
from convalgos.core.allocator import aligned_empty, aligned_zeros
from convalgos.core.bound_run import BoundRun, Launch
from convalgos.core.integer_plan import IntegerFilter, IntegerPlan
from convalgos.core.plan import Named, QuickCall
from convalgos.core.problem import ConvProblem
from convalgos.core.quantization import OutputStep
from convalgos.cpu.runtime import array_calls, jit
from convalgos.cpu.runtime.array_calls import BIAS, STARTS, X, Y
from convalgos.cpu.runtime.array_pass import CompiledPass
from convalgos.cpu.runtime.filter_sums import filter_sums
from convalgos.cpu.runtime.plan import ALONE
from convalgos.cpu.runtime.records import address_of_table, by_name
from convalgos.cpu.runtime.threads import worth_sharing
from convalgos.cpu.vectors.requantise import STEP_FIELDS

INTEGER_CALL = 1.0e-6  # seconds around a run; Xeon (Granite Rapids)
BEHIND = 64  # elements behind those of the filters, which whole vectors may read
STEP = struct.Struct("fffi")  # `STEP_FIELDS`


class Settings(NamedTuple):
    """What a filter and an output step set."""

    fields: np.ndarray  # (count, 2) int64: which word of the record, and its value
    starts: np.ndarray  # int32 (K,), and zeros behind: what sums start from, without a bias
    table: np.ndarray  # as `array_calls` reads it
    address: int  # of the table
    kept: Any  # arrays whose addresses stand in the fields


class RecordWorkspace:
    """Of one run at a time: its record, scratch, and what its sums start from."""

    def __init__(self, record: np.ndarray, scratch: np.ndarray, filters: int):
        self.record, self.scratch = record.copy(), scratch
        self.words = self.record.view(np.int64)
        self.address = self.record.ctypes.data
        self.arguments = by_name(self.record)
        self.arguments.scratch = self.scratch.ctypes.data
        self.starts = aligned_zeros(filters + BEHIND, np.int32)
        self.arguments.bias = self.starts_address = self.starts.ctypes.data


class IntegerRecordPlan(CompiledPass, IntegerPlan):
    """Subclasses implement `pack`, `settings` and `correction`, and set `_driver` and its `_record`."""

    _record: np.ndarray
    _driver: int
    new_scratch: Callable[[int, Any], np.ndarray] = staticmethod(aligned_empty)
    filter_sums = staticmethod(filter_sums)

    def __init__(self, problem: ConvProblem, algorithm: Named, workspace_bytes: int, tasks: int):
        super().__init__(problem, algorithm, workspace_bytes)
        self._tasks, self._parallel = tasks, worth_sharing(problem)
        self.scratch_bytes = workspace_bytes
        self._address = self._where = jit.data_address()

    @abstractmethod
    def settings(self, packed: Any, pad: int, output: OutputStep | None) -> dict[str, Any]:
        """Fields of the record that a filter and an output step set: integers, or arrays whose address it
        is; None for those that are kept alive only. Those of the output step are set here already."""

    @abstractmethod
    def correction(self, packed: Any) -> np.ndarray | int:
        """int32 (K,): what the sums of a filter lack beside the offset of its zero points."""

    def new_workspace(self) -> RecordWorkspace:
        return RecordWorkspace(self._record, self.new_scratch(self.workspace_bytes, np.uint8), self.problem.K)

    def run(
        self, x: np.ndarray, w: IntegerFilter, bias: np.ndarray | None, activation: Any, y: np.ndarray,
        workspace: Any,
    ) -> None:  # fmt: skip
        self._run_on(self._ready(w, activation), bias, x, y, workspace)
        if activation is not None and w.output is None:
            np.maximum(y, 0, out=y)

    def run_integers(self, x: np.ndarray, w: IntegerFilter, y: np.ndarray, workspace: Any) -> None:
        self._run_on(self._settings_of(w), None, x, y, workspace)

    def bind_integers(
        self, x: np.ndarray, w: IntegerFilter, y: np.ndarray, scratch: np.ndarray | None
    ) -> BoundRun:
        if scratch is None:
            scratch = self.new_scratch(self.workspace_bytes, np.uint8)
        workspace, made = RecordWorkspace(self._record, scratch, self.problem.K), self._settings_of(w)
        words = workspace.words
        words[made.fields[:, 0]] = made.fields[:, 1]
        words[X], words[Y], words[BIAS] = self._address(x), self._address(y), made.table[STARTS]
        launch = Launch(self._driver, workspace.address, self._tasks, not self._parallel)
        return jit.bound_run((launch,), self, x, y, w, made, workspace)

    def _run_on(
        self, made: Settings, bias: np.ndarray | None, x: np.ndarray, y: np.ndarray, workspace: Any
    ) -> None:
        words, starts = workspace.words, made.table[STARTS]
        words[made.fields[:, 0]] = made.fields[:, 1]
        if bias is not None:
            filters = self.problem.K
            np.add(made.starts[:filters], bias, out=workspace.starts[:filters])
            starts = workspace.starts_address
        words[X], words[Y], words[BIAS] = self._address(x), self._address(y), starts
        jit.launch(self._driver, workspace.address, self._tasks, self._parallel)

    def quick_call(self, problem: ConvProblem) -> QuickCall | None:
        """The driver on the settings of a filter. ReLU of sums that are not scaled is left to `run`."""
        if (compiled := array_calls.integer_call()) is None:
            return None
        taken = array_calls.Taken(problem, 0, [(self._driver, self._tasks)])
        free, scaled = self._free, problem.y_dtype != "int32"
        parallel = self._parallel and self._tasks > 1

        def call(x: np.ndarray, w: IntegerFilter, y: np.ndarray, bias: np.ndarray | None, relu: bool) -> Any:
            if relu and not scaled:
                return None
            made = self._ready(w, epilogue.RELU if relu else None)
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
                    taken.address, x, made.address, y, bias, workspace.address, workspace.starts_address,
                    pool, threads,
                )  # fmt: skip
            finally:
                if kept:
                    self._give_back(workspace)

        return call

    def _ready(self, w: IntegerFilter, activation: epilogue.Activation | None) -> Settings:
        """The settings of a filter with an activation, made once."""
        made: Settings | None = w.ready.get(activation)
        if made is None:
            made = w.ready[activation] = self._settings_of(w.activated(self.problem, activation))
        return made

    def _settings_of(self, w: IntegerFilter) -> Settings:
        filters, step = self.problem.K, np.zeros(1, STEP_FIELDS)
        multiplier = aligned_zeros(filters + BEHIND, np.float32)
        if w.output is not None:
            multiplier[:filters] = w.output.multiplier
            STEP.pack_into(step.data, 0, *w.output[1:])
        values = {"multiplier": multiplier, "step": step, **self.settings(w.packed, w.pad, w.output)}
        starts = aligned_zeros(filters + BEHIND, np.int32)
        starts[:filters] = w.offset + self.correction(w.packed)
        places = self._record.dtype.names or ()
        fields = np.array(
            [
                (places.index(name), address_of_table(name, v) if isinstance(v, np.ndarray) else v)
                for name, v in values.items()
            ],
            np.int64,
        )
        table = np.array([len(fields), starts.ctypes.data, fields.ctypes.data], np.int64)
        return Settings(fields, starts, table, table.ctypes.data, values)
