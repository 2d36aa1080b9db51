"""im2win: the rows under an output are lowered, so that each window is one run of memory, and neighbours
overlap.

Where im2col writes each input element R*S times, im2win takes one row of outputs at a time and writes the
column of R elements under each input column once: R (less the stride) times each element. The window of an
output is S such columns, the next one begins a stride further in the same memory. The paper reports 0.58 of
the memory of PyTorch's im2col, and 3.6 times its speed on average; the version for three layouts
(arXiv:2408.00278) finds channels last, for which this is made, up to 4.5 times as fast as channels first.

Here our micro-kernel reads the windows through tables. Channels first there are whole rows side by side
instead of columns, as turning them would cost more. It serves every problem; `cpu.direct` is as fast or
faster.

Source: Lu, Chu and Liu 2023, "Im2win: memory efficient convolution on SIMD architectures",
arXiv:2306.14320.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from convalgos.cpu.gemm.lowered_plan import LoweredProducts
from convalgos.cpu.gemm.lowering import ROWS


@dataclass(frozen=True)
class Im2win(LoweredProducts):
    family: ClassVar[str] = "cpu.im2win"
    laid_along: ClassVar[int] = ROWS  # a window is a run of memory


ALGORITHMS = (Im2win(),)
