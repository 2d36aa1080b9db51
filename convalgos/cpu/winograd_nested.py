"""Winograd nested in Winograd: large kernels as blocks of three taps, with the constants of small ones.

Nine taps are three blocks of three. F(2, 3) over the blocks, whose products are convolutions with three
taps each, done by F(3, 3): 20 products for 6 outputs of 9 taps, and in two dimensions 7.3 times fewer than
direct convolution. A transform of 14 points would save more, but its constants span so many digits that
none of them are left in float32; nested, errors grow 3 times in a dimension.

Twice as fast as direct convolution on 9x9 kernels and 1.2 times on 5x5 and 7x7; tiled FFTs
(`cpu.fft_tiles`) take fewer products of a tile and are 1.5 to 2.6 times as fast again, so it is picked
nowhere.

Source: the nesting of short convolutions, Agarwal and Cooley 1977, "New algorithms for digital
convolution"; for neural networks Jiang, Chen and Tsui 2021, "Accelerating large kernel convolutions with
nested Winograd transformation", arXiv:2102.13272, which claims 1.4 to 10.5 times fewer products than a sum
of small kernels takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from convalgos.cpu.tiled.bilinear_tiles import BilinearTiles, NestedSchedule


@dataclass(frozen=True)
class NestedWinograd(BilinearTiles):
    family: ClassVar[str] = "cpu.winograd.nested"
    schedule: ClassVar = NestedSchedule


ALGORITHMS = (NestedWinograd(6, 5), NestedWinograd(6, 7), NestedWinograd(6, 9))
