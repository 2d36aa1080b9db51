"""How the kernels of pooling are run: on elements of which size, by how many threads, with which scratch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, Self

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.core.bound_run import BoundRun, Launch
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.machine import cache_sizes
from convalgos.core.pool_problem import PoolProblem
from convalgos.cpu.pooling.elements import FORMS, can_convert
from convalgos.cpu.runtime import half, jit
from convalgos.cpu.runtime.record_launch import RecordLaunch
from convalgos.cpu.runtime.records import WORD, by_name, copy_of_fields, copy_of_record
from convalgos.cpu.runtime.threads import BYTES, SMALL
from convalgos.cpu.vectors import simd

GRADIENT_PASSES = 4  # of so many forward passes a gradient takes the time, little of it waiting for memory
LEAVING = 5  # times the bytes of x that L3 is to hold for a gradient (Zen 4, two threads)
SHARED_EARLIER = 2  # times as early as other work, where its own time is known: one kernel wakes threads once


class Computed:
    """What the elements of a problem are computed in.

    `widens`: whether its 16-bit floats are converted as whole arrays, as this processor cannot convert them
    in registers. `kinds`: the first three parameters of the kernels. `sizes`: of an element in
    scratch, and in x. `threads`: among how many its work is shared, where it is cut into so many parts.

    Args:
        converts: whether the kernels convert floats of 16 bits where this processor can.
        seconds: that one thread takes, where they are known.
    """

    def __init__(
        self,
        problem: PoolProblem,
        gradient: bool = False,
        converts: bool = True,
        seconds: float | None = None,
    ):
        form = FORMS[problem.dtype]
        self.widens = not can_convert(form) or (problem.itemsize == 2 and not converts)
        size = {1: 1, 8: 8}.get(problem.itemsize, 4)
        self.kinds = size, simd.lanes(size), FORMS["float32"] if self.widens else form
        self.sizes = {"size": size, "stored": size if self.widens else problem.itemsize}
        elements = math.prod(problem.x_shape) + math.prod(problem.y_shape)
        moved = elements * (GRADIENT_PASSES * size if gradient else problem.itemsize)
        taken = moved / BYTES if seconds is None else SHARED_EARLIER * seconds
        self.threads = jit.thread_count() if taken > SMALL else 1

    def tasks(self, units: int) -> int:
        """Among how many threads so many units of work are shared."""
        return max(1, min(self.threads, units))


class KernelRuns:
    """A kernel with a record of int64 fields and a scratch for each run at a time.

    `launch` runs it on two or three arrays, whose addresses are the fields of the names `given`.

    Args:
        values: of the fields; arrays stand for their addresses. Those not given are 0.
    """

    def __init__(
        self, record: np.dtype, values: dict[str, int | np.ndarray], kernel: int, tasks: int,
        given: tuple[str, ...] = ("x", "y"),
    ):  # fmt: skip
        self._tables = tables = list[np.ndarray]()
        names = record.names or ()
        known: dict[str, Any] = dict.fromkeys(names, 0)
        known["tasks"] = tasks
        self._address = address = jit.data_address()
        known.update(values)
        for name, value in values.items():
            if type(value) is np.ndarray:
                tables.append(value)
                known[name] = address(value)
        words = np.fromiter(known.values(), WORD, len(names))
        self._record = np.ndarray(1, record, words)
        self._kernel, self._tasks = kernel, tasks
        self.scratch_bytes = known["scratch_bytes"] * tasks  # of a run
        self._given = given

    @cached_attribute
    def launch(self) -> RecordLaunch:
        """Runs the kernel on arrays; made by the first call, as networks bind it."""
        first, second, *third = self._given
        words, names = self._record.view(WORD), self._record.dtype.names
        name = third[0] if third else ""
        return RecordLaunch(
            self._kernel, words, names, self.scratch_bytes, self._tasks, self._tables, name, (first, second)
        )

    def like(self, values: dict[str, int], tasks: int, table: np.ndarray) -> Self:
        """The same with other values of some fields, which needs no other scratch.

        Args:
            table: that they point to.
        """
        made: Self = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        made.__dict__.pop("launch", None)
        made._record, made._tasks = copy_of_record(self._record), tasks
        made._tables = [*self._tables, table]
        fields = by_name(made._record)
        fields.tasks = tasks
        for name, value in values.items():
            setattr(fields, name, value)
        made.scratch_bytes = fields.scratch_bytes * tasks
        return made

    def bound(self, scratch: np.ndarray | None, kept: tuple[Any, ...], **values: int) -> BoundRun:
        """A run with the fields of these names set for good."""
        words, arguments, begin = copy_of_fields(self._record)
        if scratch is None:
            scratch = aligned_empty(self.scratch_bytes, np.uint8)
        arguments.scratch = self._address(scratch)
        for name, value in values.items():
            setattr(arguments, name, value)
        launch = Launch(self._kernel, begin, self._tasks, self._tasks == 1)
        return jit.bound_run((launch,), self, kept, words, scratch)


class MaximaRuns(ABC):
    """Runs that find maxima, and those of their gradient, each made when it is first asked for.

    The first take x, y and places, the others x, dy and dx.
    """

    @cached_attribute
    def _finding(self) -> KernelRuns:
        return self._runs(False)

    @cached_attribute
    def _gradient(self) -> KernelRuns:
        return self._runs(True)

    @staticmethod
    def given(gradient: bool) -> tuple[str, ...]:
        """The fields that are the addresses of these arrays."""
        return ("x", "y", "dx") if gradient else ("x", "y", "places")

    @abstractmethod
    def _runs(self, gradient: bool) -> KernelRuns: ...


def in_full_precision(problem: PoolProblem) -> PoolProblem:
    """The same of float64, or else of float32, which 16-bit floats are converted to as whole arrays."""
    if problem.dtype in ("float64", "float32"):
        return problem
    return replace(problem, dtype="float32")


def leaves_cache(problem: PoolProblem) -> bool:
    """Whether x and dx, and what is added, are more than L3 keeps."""
    return LEAVING * math.prod(problem.x_shape) * problem.itemsize > cache_sizes()[2]


def widened(x: np.ndarray) -> np.ndarray:
    """float32 of an array of 16-bit floats, `as_laid`."""
    wide = np.empty(x.shape, np.float32)
    half.convert(x, wide)
    return wide
