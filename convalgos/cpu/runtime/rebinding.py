"""Runs bound again: of a layer on maps of other sizes, as a network binds it for each shape of its inputs.

What the sizes do not change was found, and checked, for the first run; arrays are told by their addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.bound_run import AddressWord, BoundRun, Launch
from convalgos.core.epilogue import Activation
from convalgos.core.prepared_filter import FilterKey, PreparedFilter
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.records import copy_of_fields

RUN_FIELDS = "x w y bias relu scratch residual finish finish_numbers"
X_AT, W_AT, Y_AT = (8 * RUN_FIELDS.split().index(name) for name in "xwy")  # bytes from the begin of a record


class RunSettings(NamedTuple):
    """What runs of a layer on contiguous arrays have in common, whatever the sizes of its maps."""

    kind: type  # of the plan
    w: PreparedFilter
    bias: np.ndarray | None  # padded, as kernels read it
    bias_address: int
    relu: bool
    fused: bool  # whether kernels add the residual, and apply the activation
    activation: Activation | None
    in_place: bool  # whether y lies where the residual does


class Rebinding:
    """Mixed into plans of kernels over one record, which begins with `RUN_FIELDS`."""

    record: np.ndarray
    steps: tuple[tuple[int, int], ...]
    _key: FilterKey
    _binds: bool
    _finishes: bool
    _parallel: bool
    _short: bool  # whether it is worth the threads that are awake, and no others
    _passes: tuple[dict[str, int], ...]

    def bound_again(
        self, settings: RunSettings, x: Sequence[int], y: Sequence[int], scratch: int, told: bool
    ) -> BoundRun | None:
        """A run as `bind` gave it for other sizes of the maps; see `Plan.bound_again`."""
        key = settings.w.key
        known = type(self) is settings.kind and (self._key is key or self._key == key) and self._binds
        if not known or (settings.fused and not self._finishes):
            return None
        residual = x[1] if len(x) > 1 else None
        if settings.in_place != (residual == y[0]):
            return None
        (words, fields, begin), numbers = copy_of_fields(self.record), None
        fields.x, fields.w, fields.y, fields.scratch = x[0], settings.w.data.address, y[0], scratch
        fields.bias, fields.relu = settings.bias_address, settings.relu
        if settings.fused:
            numbers = self._set_finish(fields, y[0], residual, settings.activation)
        kept, begins = [self, settings, words, numbers], [begin]
        if any(self._passes):
            passes, begins = self._records_of_passes(words)
            kept += passes
        launches = tuple([self._launch(kernel, at, tasks) for at in begins for kernel, tasks in self.steps])
        of_x: tuple[AddressWord, ...] = ()
        of_y: tuple[AddressWord, ...] = ()
        if told:
            of_x, of_y = (tuple([AddressWord(at + word, 0) for at in begins]) for word in (X_AT, Y_AT))
        return jit.bound_run(launches, *kept, x_places=of_x, y_places=of_y, settings=settings)

    def _launch(self, kernel: int, record: int, tasks: int) -> Launch:
        """A step, on a record at an address."""
        if self._short and tasks > 1:
            return Launch(kernel, record, -tasks)
        return Launch(kernel, record, tasks, not self._parallel)

    def _records_of_passes(self, words: np.ndarray) -> tuple[list[np.ndarray], list[int]]:
        """(the words of the record of each pass, which keep its memory; where each begins)."""
        record, found, begins = np.ndarray(1, self.record.dtype, words), [], []
        for settings in self._passes:
            own, fields, begin = copy_of_fields(record)
            for name, value in settings.items():
                setattr(fields, name, value)
            found.append(own)
            begins.append(begin)
        return found, begins

    def _set_finish(
        self, fields: Any, y: int, residual: int | None, activation: Activation | None
    ) -> np.ndarray:
        """Set the fields of an output step.

        Args:
            y, residual: addresses.

        Returns: the numbers of the activation, to be kept as long as the record is.
        """
        raise NotImplementedError
