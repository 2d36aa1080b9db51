"""Plans of kernels over one record made for other sizes of the maps, with what the sizes do not change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem
from convalgos.cpu.runtime.record_changes import changed_record
from convalgos.cpu.runtime.records import address_of_table
from convalgos.cpu.runtime.threads import are_worth_sharing, is_short

Values = dict[str, Any]  # of fields of the record: numbers, and arrays for their addresses


class OtherSizes(Plan):
    """What `KernelPlan` has to become a plan for other sizes."""

    record: np.ndarray
    steps: tuple[tuple[int, int], ...]
    _tables: dict[str, np.ndarray]
    _parallel: bool
    _short: bool

    def resized(
        self, problem: ConvProblem, values: Values, scratch_bytes: int,
        steps: Sequence[tuple[int, int]] | None = None,
    ) -> Self:  # fmt: skip
        """This plan for other sizes of the maps, cut so that its prepared filters serve it.

        Args:
            values: of the fields of the record that are others. steps: those of the plan by default.
        """
        made = self._on_maps(problem, scratch_bytes)
        made._change(values, scratch_bytes)
        made._set_sharing(problem.flops, problem.bytes)
        if steps is not None:
            made.steps = tuple(steps)
        return made

    def on_sizes(self, x_shape: Shape, y_shape: Shape) -> Self | None:
        """This plan for other sizes of its maps, by arithmetic alone: nobody needs its problem for that.

        None where these sizes have to be looked at as a problem of their own. The layer goes forward, with
        zeros around its maps.
        """
        return None

    def _of_sizes(self, x_shape: Shape, y_shape: Shape, values: Values) -> Self:
        """`resized`, without scratch, whose problem is made when somebody asks for it."""
        made, p = self._on_later_map(x_shape), self.problem
        made._change(values, 0)
        outputs, inputs = math.prod(y_shape), math.prod(x_shape)
        moved = (outputs + inputs) * p.itemsize + p.w_bytes
        made._set_sharing(2 * outputs * p.gemm_k, moved)
        return made

    def _set_sharing(self, flops: int, moved: int) -> None:
        """Tell what shares the tasks of so many operations, and bytes moved."""
        self._parallel = are_worth_sharing(flops, moved)
        self._short = is_short(flops, moved)

    def _change(self, values: Values, scratch_bytes: int) -> None:
        """Take other values of some fields, and the tables among them."""
        array = np.ndarray
        tables = {name: value for name, value in values.items() if type(value) is array}
        words = values | {name: address_of_table(name, table) for name, table in tables.items()}
        self.record = changed_record(self.record, tuple(words), list(words.values()))
        self._tables, self.scratch_bytes = self._tables | tables, scratch_bytes
