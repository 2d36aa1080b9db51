"""Plans on boxes of tiles of problems of integers: zero points, offsets and the output step."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from convalgos.core.bound_run import BoundRun, image_step
from convalgos.core.integer_plan import IntegerFilter, IntegerPlan
from convalgos.core.quantization import OutputStep
from convalgos.cpu.layout import byte_pixels
from convalgos.cpu.layout.byte_pixels import MIDDLE, STEP_FIELDS
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.filter_sums import filter_sums
from convalgos.cpu.runtime.plan import Packed, Workspace
from convalgos.cpu.tiled.box_plan import BoxPlan


class IntegerWorkspace(Workspace):
    """With the output step of a run. `bias` are offsets and behind them multipliers."""

    def __init__(self, record: np.ndarray, scratch: np.ndarray, bias: np.ndarray):
        super().__init__(record, scratch, bias)
        self.step = np.zeros(1, STEP_FIELDS)
        self.step["multipliers"] = self.bias.nbytes // 2
        self.arguments.bias, self.arguments.relu = self.bias_address, self.step.ctypes.data
        self.offset: np.ndarray | None = None  # of the filter and with the output step that the record is for
        self.output: OutputStep | None = None


class IntegerBoxPlan(IntegerPlan, BoxPlan):
    """Its inputs are gathered as 16-bit integers between -128 and 127. Subclasses implement `pack` and
    `transformed`."""

    filter_sums = staticmethod(filter_sums)
    shift = 0  # bits of gathered pixels behind the point

    def new_workspace(self, scratch: np.ndarray | None = None) -> IntegerWorkspace:
        tables = np.zeros(2 * (self.problem.K + self.cut.sum_lanes), np.int32)
        return IntegerWorkspace(self.record, self._new_scratch() if scratch is None else scratch, tables)

    def prepare_filter(self, w: np.ndarray) -> Any:
        return IntegerPlan.prepare_filter(self, w)

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        raise TypeError("filters of integers are packed with their zero points: see `pack`")

    def middle(self, x: int) -> int:
        """An element of x as it is gathered."""
        return x if self.problem.dtype == "int8" else x - MIDDLE

    def middle_offset(self, w: np.ndarray) -> np.ndarray:
        """int32 (K,): what sums lack where x has lost `MIDDLE`; w (K, ...) has no zero point any more."""
        if self.problem.dtype == "int8":
            return np.zeros(self.problem.K, np.int32)
        sums: np.ndarray = MIDDLE * w.reshape(self.problem.K, -1).sum(1, dtype=np.int64)
        return sums.astype(np.int32)

    @abstractmethod
    def transformed(self, w: IntegerFilter, workspace: Any) -> tuple[Packed, np.ndarray]:
        """U, and int32 (K,): what its sums lack beside `w.offset`. May set more of the record."""

    def run_integers(self, x: np.ndarray, w: IntegerFilter, y: np.ndarray, workspace: Any) -> None:
        if w.offset is not workspace.offset or w.output is not workspace.output:
            self._make_ready(w, workspace)
        workspace.arguments.x, workspace.arguments.y = self._address(x), self._address(y)
        self.launch_steps(workspace)

    def bind_integers(
        self, x: np.ndarray, w: IntegerFilter, y: np.ndarray, scratch: np.ndarray | None
    ) -> BoundRun | None:
        if type(self).run_integers is not IntegerBoxPlan.run_integers:
            return None
        workspace = self.new_workspace(scratch)
        self._make_ready(w, workspace)
        arguments = workspace.arguments
        arguments.x, arguments.y = self._address(x), self._address(y)
        arguments.x_n, arguments.y_n = image_step(x), image_step(y)
        launches, records = self._launches(workspace)
        return jit.bound_run(tuple(launches), self, x, y, w, workspace, records)

    def _make_ready(self, w: IntegerFilter, workspace: Any) -> None:
        """Set what of the record and its tables hangs on the filter and the output step."""
        arguments, filters = workspace.arguments, self.problem.K
        packed, lacking = self.transformed(w, workspace)
        offsets, multipliers = workspace.bias.reshape(2, -1)
        np.add(w.offset, lacking, out=offsets[:filters])
        if w.output is not None:
            multipliers[:filters].view(np.float32)[:] = w.output.multiplier
            for name in ("before", "low", "high", "after"):
                workspace.step[name] = getattr(w.output, name)
        pad = self.middle(w.pad) << self.shift
        arguments.fill = (pad & 0xFFFF) * 0x0001000100010001 - (pad < 0) * (1 << 64)
        arguments.w = packed.address
        workspace.offset, workspace.output = w.offset, w.output


def output_kind(y_dtype: str) -> tuple[int, int]:
    """What `byte_pixels.scatter_sums` writes of a type of y, and the bytes of an element."""
    if y_dtype == "int32":
        return byte_pixels.WORDS, 4
    return (byte_pixels.FLOATS, 4) if y_dtype == "float32" else (byte_pixels.BYTES, 1)
