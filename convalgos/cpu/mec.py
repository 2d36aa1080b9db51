"""Memory-efficient convolution (MEC): columns are lowered, rows are shared by windows that overlap.

im2col writes each input element R*S times. MEC lays out the S columns under an output only; the R rows of a
window then follow one another in the lowered map, and the windows of the outputs below it begin a row later
in the same memory. So the lowered map is about R times smaller, and a row of outputs is one product of
matrices whose rows overlap. The paper claims much less memory than other ways that lower, and more speed,
on phones and servers.

Here our micro-kernel reads the windows through tables, in both layouts. It serves every problem, and beats
im2col where the matrix of patches leaves the caches; `cpu.direct`, which lowers nothing, is as fast or
faster.

Source: Cho and Brand 2017, "MEC: memory-efficient convolution for deep neural network", arXiv:1706.06873.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from convalgos.cpu.gemm.lowered_plan import LoweredProducts
from convalgos.cpu.gemm.lowering import COLUMNS


@dataclass(frozen=True)
class Mec(LoweredProducts):
    family: ClassVar[str] = "cpu.mec"
    laid_along: ClassVar[int] = COLUMNS


ALGORITHMS = (Mec(),)
