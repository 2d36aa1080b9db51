"""Direct convolution of float32 as sums of three bfloat16, on matrix tiles (AMX).

x = x1 + x2 + x3 and w = w1 + w2 + w3, each term a bfloat16: 24 bits of float32 are three times eight. Of the
nine products x1 w1, x1 w2, x2 w1, x2 w2, x1 w3 and x3 w1 are summed, in float32; the others are below its
rounding, so that the result is as exact as that of direct convolution. Matrix tiles multiply bfloat16 at 13
times the rate of float32; six products for one leave twice the peak of float32. Wins on 1x1 and strided
layers, and on 3x3 layers of small maps. Numbers below 1e-33 lose the last bits, as tiles take denormal
numbers for zeros.

Source: Henry, Tang and Heinecke 2019, "Leveraging the bfloat16 artificial intelligence datatype for
higher-precision computations" (arXiv:1904.06376).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from convalgos.cpu.gemm.split_forms import BRAIN_FLOATS, SplitForm
from convalgos.cpu.gemm.split_sums import SplitSums


@dataclass(frozen=True)
class BrainSums(SplitSums):
    family: ClassVar[str] = "cpu.bf16x3"
    form: ClassVar[SplitForm] = BRAIN_FLOATS


ALGORITHMS = (BrainSums(),)
