"""Steps that are bound to arrays: a record of their fields, and the launches that run them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from convalgos.core.bound_run import BoundRun, Launch
from convalgos.core.laid_arrays import as_laid
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.array_pass import SHARE
from convalgos.cpu.runtime.records import record_of_words

FLOAT = np.dtype(np.float32)


class BoundStep:
    """A step that is bound to arrays each time that it is run."""

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        """A run on these very arrays, the inputs and y, in their layout; images may lie apart.

        Raises:
            ValueError, TypeError, Unsupported: an array is not as the step takes it.
        """
        raise NotImplementedError

    def run(self, inputs: Sequence[np.ndarray], y: np.ndarray) -> None:
        """Write y."""
        self.bind(*map(as_laid, inputs), y).run()


def threads_worth(count: int) -> int:
    """Threads that so many elements are worth."""
    return max(1, min(jit.thread_count(), count // SHARE))


def launched(kernel: int, fields: np.dtype, values: dict[str, int], count: int, *kept: Any) -> BoundRun:
    """A run of a kernel, by as many threads as so many elements are worth."""
    tasks = threads_worth(count)
    values = values | {"tasks": tasks}
    record = record_of_words(fields, [values.get(name, 0) for name in fields.names or ()])
    return bound([Launch(kernel, jit.data_address()(record), tasks)], record, *kept)


def bound(launches: list[Launch], *kept: Any) -> BoundRun:
    """A run of these launches in order, which keeps alive what they point to."""
    return jit.bound_run(tuple(launches), *kept)
