"""What the transforms share of rows that are longer than the tile of a block: which problems they serve."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, TypeVar

from convalgos.core.problem import ConvProblem
from convalgos.gpu.device import GpuMachine, current
from convalgos.gpu.launch.algorithm import GpuAlgorithm
from convalgos.gpu.launch.grid import GRID_X
from convalgos.gpu.spectral import transposed_io
from convalgos.gpu.spectral.block_fft import CHAINS, resident, spectral_error

SHORT = 4  # times the reach of a kernel that the tile of a block has at least: too short for long rows


class RowGeometry(Protocol):
    """How a problem is computed: its tiles, each a row."""

    @property
    def points(self) -> int: ...  # of a tile
    @property
    def blocks(self) -> int: ...  # of the largest launch


G = TypeVar("G", bound=RowGeometry)


@dataclass(frozen=True)
class LongRowsFft(GpuAlgorithm, Generic[G]):
    """Base of those algorithms."""

    family: ClassVar[str] = "gpu.fft"
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float16", "bfloat16")
    spreads_nan: ClassVar[bool] = True
    longest: ClassVar[str]  # of its tiles, in words

    # --- for the implementor -----------------------------------------------------------------

    @property
    @abstractmethod
    def is_fixed(self) -> bool:
        """Whether it was made for tiles of one length, not for the fastest ones."""

    @abstractmethod
    def geometries(self, problem: ConvProblem, machine: GpuMachine) -> Sequence[G]:
        """All that the device can run."""

    @abstractmethod
    def seconds(self, problem: ConvProblem, geometry: G, machine: GpuMachine) -> float:
        """Of its kernels, by prediction."""

    # --- what they share ---------------------------------------------------------------------

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        if problem.w_shape[1] != 1:
            return f"takes one input channel per group, not {problem.w_shape[1]}: spectra are not summed"
        if problem.as_3d.kernel[:2] != (1, 1):
            return "transforms rows only; the kernel has several"
        if problem.is_empty:
            return None
        machine, reach = current().figures, problem.kernel_extent[-1]
        of_block = max((c.reals for c in CHAINS if resident(c, machine)), default=0)
        if not self.is_fixed and SHORT * reach <= of_block:
            told = "tiles of a block, as of gpu.fft.fused, overlap little"
            return f"the kernel reaches over {reach} only: {told}"
        found = self.geometries(problem, machine)
        if not found:
            return f"the kernel reaches over {reach}, more than {self.longest}"
        most = max(transposed_io.transpose_blocks(problem), *(geometry.blocks for geometry in found))
        return "needs more blocks than a launch may have" if most > GRID_X else None

    def choice(self, problem: ConvProblem, machine: GpuMachine) -> G:
        """The fastest by prediction, of a problem that is served."""
        found = self.geometries(problem, machine)
        return min(found, key=lambda geometry: self.seconds(problem, geometry, machine))

    def error_bound(self, problem: ConvProblem) -> float:
        points = 1 if problem.is_empty else self.choice(problem, current().figures).points
        return spectral_error(points) + (problem.itemsize == 2) * problem.eps
