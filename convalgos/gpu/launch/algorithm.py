"""The base of all GPU algorithms: which types and devices they serve, and plans that run on a GPU."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

from convalgos.core.algorithm import Algorithm
from convalgos.core.element_types import FLOAT8_DTYPES, needed_modules
from convalgos.core.epilogue import finish
from convalgos.core.errors import missing
from convalgos.core.plan import NOT_CHOSEN, Choice, Plan
from convalgos.core.problem import DTYPES, ConvProblem
from convalgos.gpu.compile.module import Build
from convalgos.gpu.device import GpuMachine, current, why_none
from convalgos.gpu.launch.grid import COUNTED
from convalgos.gpu.launch.integer_plan import NO_KERNELS, EmptySumsPlan
from convalgos.gpu.launch.plan import GpuPlan


class GpuAlgorithm(Algorithm):
    """An algorithm whose plan runs on the device that was current when it was made."""

    dtypes: ClassVar[tuple[str, ...]] = tuple(DTYPES)
    needs: ClassVar[tuple[str, ...]] = ()  # `why_none` tells of CuPy
    computes: ClassVar[dict[str, tuple[str, ...]]] = {  # dtype -> what its products may be computed in
        "float32": ("float32",),
        "float64": ("float64",),
        "float16": ("float32",),
        "bfloat16": ("float32",),
        "int8": ("int32",),
        "uint8": ("int32",),
        "binary": ("int32",),
        **dict.fromkeys(FLOAT8_DTYPES, ("float32",)),
    }
    capability: ClassVar[tuple[int, int]] = (7, 0)  # the least that the kernels compile for,
    until: ClassVar[tuple[int, int] | None] = None  # and the first beyond it that they do not

    @abstractmethod
    def builds(self) -> Iterable[Build]:
        """Every module that a plan of this algorithm may launch."""

    def spills(self, build: Build, arch: str) -> int:
        """Bytes that threads of a build may spill to local memory; overrides say why."""
        return 0

    def variants(self, problem: ConvProblem) -> Iterable[GpuAlgorithm]:
        return ()

    def why_not(self, problem: ConvProblem) -> str | None:
        needed = (*self.needs, *needed_modules(problem))
        if reason := why_none() or next(filter(None, map(missing, needed)), None):
            return reason
        if reason := self.why_not_facing(problem.direction):
            return reason
        if not self.knows_border(problem):
            return f"has no {' and '.join(dict.fromkeys(problem.boundary))} border of its own"
        if problem.dtype not in self.dtypes:
            return f"computes {' and '.join(self.dtypes)} only, not {problem.dtype}"
        if problem.dtype in DTYPES and problem.y_dtype != problem.dtype:
            return f"computes y of x's type, {problem.dtype}, not {problem.y_dtype}"
        allowed = self.computes.get(problem.dtype, ())
        if problem.compute_dtype not in allowed:
            return f"computes {problem.dtype} in {' or '.join(allowed)}, not in {problem.compute_dtype}"
        least = max((8, 0), self.capability) if problem.dtype == "bfloat16" else self.capability
        found = current().figures.capability
        if found < least or (self.until and found >= self.until):
            wanted = ".".join(map(str, least))
            wanted += f" and less than {'.'.join(map(str, self.until))}" if self.until else ""
            reason = f"needs compute capability {wanted}, but the device has {found[0]}.{found[1]}"
            beyond = "; gpu.cudnn and kernels through mma.sync, as of gpu.implicit_gemm.half, serve that"
            return reason + (beyond if found >= least else "")
        image = max(math.prod(problem.x_shape[1:]), math.prod(problem.y_shape[1:]))
        if image >= COUNTED or problem.gemm_m >= COUNTED:
            return f"counts in 32 bits, but an image or all pixels together are {COUNTED} or more"
        return None

    @abstractmethod
    def cost(self, problem: ConvProblem, machine: GpuMachine) -> float:
        """As `Algorithm.cost`, in seconds of the device."""

    def prepare_cost(self, problem: ConvProblem, machine: GpuMachine) -> float:
        return 3 * machine.launch + 3 * machine.stream(problem.w_bytes)

    def computed(self, problem: ConvProblem) -> ConvProblem:
        """The problem itself: 16-bit elements are converted by the kernels."""
        return problem

    def serve(self, problem: ConvProblem, choice: Choice = NOT_CHOSEN) -> GpuPlan:
        plan = super().serve(problem, choice)
        assert isinstance(plan, GpuPlan)
        return plan

    def built(
        self, problem: ConvProblem, computed: ConvProblem, choice: Choice = NOT_CHOSEN,
        known: Plan | None = None,
    ) -> Plan:  # fmt: skip
        if not problem.is_empty:
            return self.plan(problem).chosen(choice)
        empty = EmptySumsPlan if problem.sums_integers else EmptyGpuPlan
        return empty(problem, self).chosen(choice)


class EmptyGpuPlan(GpuPlan):
    """A problem with a zero-sized dimension: y is empty, or every element is an empty sum plus the bias."""

    uncapturable = NO_KERNELS
    fuses = False

    def prepare_filter(self, w: Any) -> None:
        return None

    def run(self, x: Any, w: Any, bias: Any, activation: str | None, y: Any, workspace: Any) -> None:
        y.fill(0)
        finish(y, bias, activation, self.problem)


def exact_sums(problem: ConvProblem) -> float:
    """The error bound of integers: 0, or of float32 y for rounding the sum and its product by the scale."""
    return 2 * problem.eps
