"""A plan whose run is a sequence of kernels over one record of arguments.

The driver kernels of an algorithm read their arguments from a record of named int64 fields: those every
run sets (`RUN_FIELDS`: addresses of the data) and those the plan sets once (sizes, strides, addresses of
tables and of inner kernels). Each run has a copy of the record and a scratch of its own.
"""

from __future__ import annotations

import ctypes
from abc import abstractmethod
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from convalgos.core import workspaces
from convalgos.core.algorithm import Algorithm
from convalgos.core.allocator import aligned_empty, aligned_zeros
from convalgos.core.plan import Plan, QuickCall
from convalgos.core.problem import ConvProblem
from convalgos.cpu.runtime import array_calls, half, jit
from convalgos.cpu.runtime.threads import worth_sharing
from convalgos.cpu.vectors import simd

CALL = 3.5e-6  # seconds of Python and tables around a run; Zen 5
ALONE = 0, 1  # no pool of threads, and the calling one
RUN_FIELDS = "x w y bias relu scratch"


def fields(names: str) -> np.dtype:
    """A record of int64 fields: a row of a table, read as `carray(pointer(a.table), n, ROW)[i]`."""
    return np.dtype([(name, np.int64) for name in names.split()])


def arguments(names: str) -> np.dtype:
    """The record of a driver: `RUN_FIELDS`, then the fields that the plan sets.

    A driver reads it as `a = carray(pointer(args), 1, RECORD)[0]`, then `a.x`, `a.stride`, ...
    `bias` holds one element per filter and a vector of padding, zeros where there is none; `relu` is 0 or 1.
    """
    return fields(f"{RUN_FIELDS} {names}")


@cache
def _structure(record: np.dtype) -> type[ctypes.Structure]:
    """A record for ctypes."""
    kinds = {name: record[name] for name in record.names or ()}
    members = [(n, _structure(kind) if kind.names else ctypes.c_int64) for n, kind in kinds.items()]
    return type("Structure", (ctypes.Structure,), {"_fields_": members})


def by_name(record: np.ndarray) -> Any:
    """The fields of a record as attributes of an object, set in a third of the time that NumPy takes.

    Args:
        record: (1,), of int64 fields and of records of these; it must outlive the object.
    """
    return _structure(record.dtype).from_address(record.ctypes.data)


class Packed(NamedTuple):
    """A filter in the form of a kernel."""

    array: np.ndarray
    address: int


class Workspace:
    """Record, scratch and padded bias of one run at a time; `arguments` sets fields of the record by name."""

    def __init__(self, record: np.ndarray, scratch_bytes: int, bias: np.ndarray):
        self.record = record.copy()
        self.address = self.record.ctypes.data
        self.arguments = by_name(self.record)
        self.scratch = aligned_empty(scratch_bytes, np.uint8)
        self.arguments.scratch = self.scratch.ctypes.data
        self.bias = bias.copy()
        self.bias_address = self.bias.ctypes.data


class KernelPlan(Plan):
    """Runs `steps` in order: each is a driver kernel (args, task) and its number of parallel tasks.

    Subclasses implement `pack_filter`. `tables` are arrays whose addresses stand in the record; the plan
    keeps them alive.
    """

    def __init__(
        self,
        problem: ConvProblem,
        algorithm: Algorithm,
        record: np.dtype,
        values: dict[str, int | np.ndarray],
        steps: Sequence[tuple[int, int]],
        scratch_bytes: int,
    ):
        super().__init__(problem, algorithm, scratch_bytes)
        self._tables = [v for v in values.values() if isinstance(v, np.ndarray)]
        self._address = address = jit.data_address()
        known = dict.fromkeys(RUN_FIELDS.split(), 0)
        known |= {name: address(v) if isinstance(v, np.ndarray) else v for name, v in values.items()}
        if different := known.keys() ^ set(record.names or ()):
            raise ValueError(f"{algorithm.id}: record and values differ in {sorted(different)}")
        self.record = np.array([tuple(known[name] for name in record.names or ())], record)
        self.steps = tuple(steps)
        self._parallel = worth_sharing(problem)
        self._scratch_bytes = scratch_bytes
        lanes = simd.lanes(half.computed_bytes(problem))
        self._no_bias = aligned_zeros((-(-problem.K // lanes) + 1) * lanes, np.dtype(problem.compute_dtype))
        self._no_bias_address = self._no_bias.ctypes.data
        self._quick = self.quick_call(problem)
        self._where = None if problem.direction == "backward_weights" else address

    @abstractmethod
    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        """The filter (K, C/groups, *kernel) in the order the kernels read it, C-contiguous."""

    def prepare_filter(self, w: np.ndarray) -> Packed:
        packed = self.pack_filter(w)
        return Packed(packed, self._address(packed))

    def convert(self, source: np.ndarray, target: np.ndarray) -> None:
        half.convert(source, target)

    def new_workspace(self) -> Workspace:
        return Workspace(self.record, self._scratch_bytes, self._no_bias)

    def quick_call(self, problem: ConvProblem) -> QuickCall | None:
        """The steps, where a run is nothing else."""
        own = type(self)
        if own.run is not KernelPlan.run or own.launch_steps is not KernelPlan.launch_steps:
            return None
        if problem.direction == "backward_weights" or (compiled := array_calls.array_call()) is None:
            return None
        taken = array_calls.Taken(problem, self._no_bias_address, self.steps)
        free, parallel = self._free, self._parallel

        def call(x: np.ndarray, w: Any, y: np.ndarray, bias: np.ndarray | None, relu: bool) -> Any:
            try:
                workspace = free.pop()
            except IndexError:
                workspace = None
            if workspace is None:  # outside of the handler: what this raises is one error, not two
                workspace = self.new_workspace()
            try:
                pool, threads = jit.pool_of_launch(True) if parallel else ALONE
                return compiled(
                    taken.address, x, w.address, y, bias, relu, workspace.address, workspace.bias_address,
                    pool, threads,
                )  # fmt: skip
            finally:
                free.append(workspace)
                if self._counted:
                    workspaces.returned(self)

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
        arguments = workspace.arguments
        arguments.x = self._address(x)
        arguments.w = w.address
        arguments.y = self._address(y)
        if bias is None:
            arguments.bias = self._no_bias_address
        else:
            workspace.bias[: self.problem.K] = bias
            arguments.bias = workspace.bias_address
        arguments.relu = activation is not None
        self.launch_steps(workspace)

    def launch_steps(self, workspace: Workspace) -> None:
        """Run all steps on a workspace whose record is complete."""
        for kernel, tasks in self.steps:
            jit.launch(kernel, workspace.address, tasks, self._parallel)
