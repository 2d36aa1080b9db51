"""Functions of whole arrays by name: what networks compute beside convolutions, on values of any type.

NumPy computes them. They stand for what is small, or rare: what networks spend their time in has kernels.
"""

from __future__ import annotations

from convalgos.core.array_arithmetic import ARITHMETIC
from convalgos.core.array_bags import BAGS
from convalgos.core.array_extremes import EXTREMES
from convalgos.core.array_moves import MOVES
from convalgos.core.array_operands import WholeArrays
from convalgos.core.array_resampling import RESAMPLING

ARRAY_FUNCTIONS: dict[str, WholeArrays] = {**ARITHMETIC, **BAGS, **EXTREMES, **MOVES, **RESAMPLING}
