"""Direct convolution of float32 as sums of three digits of eight bits, on matrix tiles (AMX).

x = (d1 2^16 + d2 2^8 + d3) u and w likewise, with whole digits from -128 to 127, and a unit u for each pixel
of x (for all of a block where the kernel has several taps) and for each filter: a float32 has 24 bits, the
largest number of a unit 23. Of the nine products six are summed, in whole numbers, which do not round, and
two more where single numbers are much larger than most (see `digit_terms.SPREAD`); what is left out is below
the rounding of float32, so that errors are within the bound of direct convolution.
Matrix tiles multiply bytes at twice the rate of bfloat16, and a filter takes half the bytes of `cpu.bf16x3`.

Errors are relative to the largest number of a unit: of a pixel with channels of very unlike sizes the small
ones have fewer bits. A kernel with several taps mixes the pixels of a block, as transforms do.

Source: Ootomo, Ozaki and Yokota 2024, "DGEMM on integer matrix multiplication unit" (arXiv:2306.11975).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm.split_forms import DIGITS, SplitForm
from convalgos.cpu.gemm.split_sums import SplitSums

MOST_PRODUCTS = 2**31 // (3 * 2**14)  # that sums of 32 bits hold of the third group, of three each


@dataclass(frozen=True)
class DigitSums(SplitSums):
    family: ClassVar[str] = "cpu.int8x3"
    form: ClassVar[SplitForm] = DIGITS
    spreads_nan: ClassVar[bool] = True

    def why_not(self, problem: ConvProblem) -> str | None:
        if problem.reduction > MOST_PRODUCTS:
            return f"sums at most {MOST_PRODUCTS} products; there are {problem.reduction}"
        return super().why_not(problem)


ALGORITHMS = (DigitSums(),)
