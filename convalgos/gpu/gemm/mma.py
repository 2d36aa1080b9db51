"""What the algorithms share that multiply on tensor cores through mma.sync: their arithmetic and its speed.

`half` multiplies 16-bit elements exactly; `tf32` rounds float32 elements to 10 bits of significand, and
serves only where that is asked for; `3xtf32` splits each element into two such parts and comes close to
float32 at a third of the speed, for those who ask for TF32 with a small `max_rel_error`. Sums are float32 in
these. `double` multiplies and adds float64 as the other units do, with a rounding for each. `int8` multiplies
8-bit integers, signed or not, and sums exactly in int32. `binary` multiplies +1 and -1 as bits. `sparse_half`
is `half` with filters of pattern 2:4.

Source: Markidis et al. 2018, arXiv:1803.04014 (splitting); Ootomo and Yokota 2022, arXiv:2203.03341; NVIDIA's
PTX ISA, mma.sync.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from convalgos.core.element_types import BINARY, HALF_DTYPES, INTEGERS
from convalgos.core.problem import ConvProblem
from convalgos.gpu.device import GpuMachine
from convalgos.gpu.launch.algorithm import GpuAlgorithm

COPIED, GATHERED = 0.5, 0.25  # of the tensor peak where 16 bytes lie together, and where not; estimates
MMA_SYNC = {9: 0.63}  # by major capability: of the tensor peak that mma.sync reaches; arXiv:2402.13499
LOADS = (  # layouts, and whether 16 bytes that lie together are copied whole
    ("channels_first", False),
    ("channels_last", False),
    ("channels_last", True),
)
STEP_BYTES = 128  # of a step of the sum, for each row of a tile in shared memory
MATHS = {
    "half": 0,
    "tf32": 1,
    "3xtf32": 2,
    "double": 3,
    "int8": 4,
    "binary": 5,
    "sparse_half": 0,
}  # as kernels know them
MATH_DTYPES = {  # others: float32
    "half": HALF_DTYPES,
    "double": ("float64",),
    "int8": INTEGERS,
    "binary": (BINARY,),
    "sparse_half": HALF_DTYPES,
}
COMPUTES = {  # what they must be asked for; else TF32
    "half": "float32",
    "double": "float64",
    "int8": "int32",
    "binary": "int32",
    "sparse_half": "float32",
}
PEAKS = {
    "half": "float16",
    "double": "float64",
    "int8": "int8",
    "binary": "binary",
    "sparse_half": "float16",
}  # the peak that they work at; else that of TF32


def is_copied(problem: ConvProblem, channels: int, *others: int) -> bool:
    """Whether 16 bytes of arrays that have so many channels in a group lie together, and are copied whole."""
    whole = all(count * problem.itemsize % 16 == 0 for count in (channels, *others))
    return problem.layout == "channels_last" and whole


@dataclass(frozen=True)
class TensorCores(GpuAlgorithm):
    """Base of those algorithms."""

    math: str  # a key of MATHS
    capability: ClassVar[tuple[int, int]] = (8, 0)

    @property
    def dtypes(self) -> tuple[str, ...]:  # type: ignore[override]  # of an instance: its arithmetic decides
        return MATH_DTYPES.get(self.math, ("float32",))

    @property
    def computes(self) -> dict[str, tuple[str, ...]]:  # type: ignore[override]  # the same
        return dict.fromkeys(self.dtypes, (COMPUTES.get(self.math, "tf32"),))

    def rate(self, share: float, machine: GpuMachine) -> float:
        """flop/s of a multiprocessor whose loads leave this share of the tensor peak."""
        if self.math != "double":  # for which there are no other instructions
            share *= MMA_SYNC.get(machine.capability[0], 1.0) / (3 if self.math == "3xtf32" else 1)
        return machine.tensor_peak(PEAKS.get(self.math, "tf32")) * share / machine.multiprocessors

    def rounding(self, problem: ConvProblem) -> float:
        """Error of the factors and of the result.

        TF32 rounds both factors to 2^-11; their errors average, 4 covers the largest of many outputs.
        """
        return {"half": problem.eps, "sparse_half": problem.eps, "tf32": 4 * 2**-11, "3xtf32": 2**-20}.get(
            self.math, 0.0
        )
