"""Steps that convert small arrays from one type to another, as SciPy does on the way to its sums and back."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convalgos.cpu.filtering.line_elements import KINDS, load_line, store_line
from convalgos.cpu.runtime.array_steps import CONVERT, ArrayStep, X, Y, chained
from convalgos.cpu.vectors import simd

WIDE = 8  # bytes of float64, by which integers of half as many are converted exactly


def conversion(of: np.dtype, into: np.dtype, count: int) -> list[ArrayStep] | None:
    """Steps from x to y of two real types, none where they are equal; None where they would round."""
    if of == into:
        return []
    if into == np.float64:
        return [_step(load_line, of, WIDE, count)]
    if of.kind == "f":
        return [_step(store_line, into, of.itemsize, count)]
    if of.itemsize == WIDE:
        return None
    return chained([[_step(load_line, of, WIDE, count)], [_step(store_line, into, WIDE, count)]])


def _step(kernel: Callable[..., int], dtype: np.dtype, size: int, count: int) -> ArrayStep:
    return ArrayStep(CONVERT, kernel(KINDS.index(dtype.name), size, simd.lanes(size)), X, Y, count)
