"""The output step of whole arrays, for plans whose kernels do not call `finish_run`."""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.core import epilogue
from convalgos.core.bound_run import Launch, image_step
from convalgos.core.epilogue import Activation
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.finish import activation_numbers, compiled_for, finish_address
from convalgos.cpu.runtime.records import field_offset, record_of_words
from convalgos.cpu.vectors.simd import call, carray, pointer

SHARE = 1 << 14  # elements that are worth a thread; Xeon
# Arrays of images, each of so many elements that lie next to each other; steps are from one to the next.
PASS = "finish images count size numbers tasks source source_n added added_n target target_n"
PASS_FIELDS = np.dtype([(name, np.int64) for name in PASS.split()])


@jit.specialise
def finish_share() -> jit.Kernel:
    """Whole arrays, dealt to the tasks in equal runs."""

    def finish_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, PASS_FIELDS)[0]
        at = a.images * a.count * task // a.tasks
        end = a.images * a.count * (task + 1) // a.tasks
        while at < end:
            n, first = at // a.count, at % a.count
            run = min(a.count - first, end - at)
            source = a.source + (n * a.source_n + first) * a.size
            added = a.added + (n * a.added_n + first) * a.size if a.added else 0
            target = a.target + (n * a.target_n + first) * a.size
            call(a.finish, (source, added, target, run, a.numbers))
            at += run

    return finish_share


class ArrayPass:
    """target = activation(source + added) of whole arrays, as one `launch`.

    Args:
        source, added, target: arrays of one type and of as many images, each of which is contiguous; target
            may be one of the others. added may be None.
    """

    def __init__(
        self,
        source: np.ndarray,
        added: np.ndarray | None,
        target: np.ndarray,
        activation: Activation | None,
    ):
        dtype, address = target.dtype, jit.data_address()
        numbers = activation_numbers(dtype, activation)
        images, count = len(target), target.size // max(1, len(target))
        if all(a is None or a.flags.c_contiguous for a in (source, added, target)):
            images, count = 1, target.size
        tasks = max(1, min(jit.thread_count(), target.size // SHARE))
        values = [
            finish_address(dtype, activation), images if target.size else 0, count,
            dtype.itemsize, address(numbers), tasks,
        ]  # fmt: skip
        for array in (source, added, target):
            values += (0, 0) if array is None else (address(array), image_step(array))
        self._record = record_of_words(PASS_FIELDS, values)
        self.kept = source, added, target, numbers, self._record
        self.launch = Launch(finish_share(), address(self._record), tasks)

    @property
    def target_words(self) -> tuple[int, int]:
        """The addresses of the words that say where the source lies, and the target."""
        begin = self._record.ctypes.data
        return begin + field_offset(PASS_FIELDS, "source"), begin + field_offset(PASS_FIELDS, "target")

    def run(self) -> None:
        jit.launch(*self.launch[:3])


def finish_array(y: np.ndarray, residual: np.ndarray | None, activation: Activation | None) -> None:
    """y = activation(y + residual) in place, both `as_laid`: `epilogue.add_and_activate`, compiled."""
    if compiled_for(y.dtype):
        ArrayPass(y, residual, y, activation).run()
    else:
        epilogue.add_and_activate(y, residual, activation)


class CompiledPass:
    """Mixed into plans of the CPU: what their kernels leave of the output step is a compiled pass over y."""

    def add_and_activate(self, y: Any, residual: Any, activation: Activation | None) -> None:
        finish_array(y, residual, activation)
