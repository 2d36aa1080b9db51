"""Steps that are bound to arrays: a record of their fields, and the launches that run them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from convalgos.core.bound_run import AddressWord, BoundRun, Launch
from convalgos.core.laid_arrays import as_laid
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.array_pass import SHARE
from convalgos.cpu.runtime.records import field_offset, record_of_fields

FLOAT = np.dtype(np.float32)


class BoundStep:
    """A step that is bound to arrays each time that it is run."""

    told = False  # whether its bound runs have words that say where the first input and y lie
    by_address = False  # whether `bound_at` serves

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        """A run on these very arrays, the inputs and y, in their layout; images may lie apart.

        Raises:
            ValueError, TypeError, Unsupported: an array is not as the step takes it.
        """
        raise NotImplementedError

    def bound_at(self, x: Sequence[int], y: int) -> BoundRun | None:
        """A run on contiguous arrays of its shapes at these addresses, which nothing is checked of.

        Their memory must outlive it. None where it has to be bound to arrays.
        """
        raise NotImplementedError

    def run(self, inputs: Sequence[np.ndarray], y: np.ndarray) -> None:
        """Write y."""
        self.bind(*map(as_laid, inputs), y).run()


def threads_worth(count: int) -> int:
    """Threads that so many elements are worth."""
    return max(1, min(jit.thread_count(), count // SHARE))


def launched(
    kernel: int,
    fields: np.dtype,
    values: dict[str, int],
    count: int,
    *kept: Any,
    told: tuple[str, str] = ("", ""),
    tasks_field: str = "tasks",
) -> BoundRun:
    """A run of a kernel, by as many threads as so many elements are worth.

    Args:
        told: the fields that say where the first input and y lie; "" of one that must stay.
        tasks_field: the one that says how many tasks there are.
    """
    tasks = threads_worth(count)
    record, begin = record_of_fields(fields, values | {tasks_field: tasks})
    places = [(AddressWord(begin + field_offset(fields, name), 0),) if name else () for name in told]
    launch = Launch(kernel, begin, tasks)
    return jit.bound_run((launch,), record, *kept, x_places=places[0], y_places=places[1])


def bound(launches: list[Launch], *kept: Any) -> BoundRun:
    """A run of these launches in order, which keeps alive what they point to."""
    return jit.bound_run(tuple(launches), *kept)
