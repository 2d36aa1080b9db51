"""Symbolic Fourier convolution (SFC): a ring of six inputs, transformed by additions, and corrections.

A Fourier transform of length 6 has roots of order 3 and 6. Kept as symbols, their powers are only sums and
differences, so that nothing is rounded by the transform but the sums themselves: 8 products for a cyclic
convolution of six, 3 for each complex one. Outputs near the ends, for which the ring has the inputs of its
other end, get a product each that puts this right. A tile of 6x6 outputs of 3x3 taps takes 100 products
instead of 324; the paper merges products of two complex values and has 88, and reports 3.68 times fewer
products than direct convolution at the error of Winograd's F(2, 3), which saves 2.25.

Errors grow 1.4 times in a dimension, where those of F(4, 3) grow 2.9 times and those of F(6, 3) 6.8 times;
integers are convolved exactly as long as their sums fit (36 times those of y). F(2, 3) errs as little and
moves fewer points through memory: here it is faster, by a fifth on 64 channels, and this is picked nowhere
in float32. Its place is quantised arithmetic.

Source: He et al. 2024, "SFC: achieve accurate fast convolution under low-precision arithmetic",
arXiv:2407.02913.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from convalgos.cpu.tiled.bilinear_tiles import BilinearTiles, SymbolicSchedule


@dataclass(frozen=True)
class SymbolicFourierTiles(BilinearTiles):
    family: ClassVar[str] = "cpu.symbolic_fourier"
    schedule: ClassVar = SymbolicSchedule


ALGORITHMS = (SymbolicFourierTiles(6), SymbolicFourierTiles(6, 5))
