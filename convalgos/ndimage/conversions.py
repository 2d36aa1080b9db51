"""Numbers between the types of arrays, as SciPy's casts have them: fill values, and results of filters."""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.cpu.sliding.reductions import MAXIMUM, MEAN, MINIMUM
from convalgos.ndimage.arguments import real_number


def fill_value_in(cval: Any, dtype: np.dtype, reduction: int, is_used: bool) -> float | None:
    """What stands for a fill value in an array of a dtype; None where none does."""
    value = real_number("cval", cval) if is_used else 0.0
    if dtype.kind == "f":
        return value
    limits = np.iinfo(dtype)
    if reduction == MEAN:
        return value if value.is_integer() and limits.min <= value <= limits.max else None
    if reduction == MAXIMUM and value < limits.min:  # each window has an element that is larger
        return int(limits.min)
    if reduction == MINIMUM and value > limits.max:
        return int(limits.max)  # float64 has none of 64 bits
    return float(int(value)) if limits.min <= value <= limits.max else None


def holds(value: float, dtype: np.dtype) -> bool:
    """Whether a dtype has just this number."""
    return dtype.kind == "f" or fill_value_in(value, dtype, MEAN, True) is not None


def cast(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """As C casts float64 on common processors: cut off behind the point; short ones are low bits of int32."""
    short = x.dtype.kind in "iu" and x.dtype.itemsize <= 2  # of which low bits are the same in any way
    if dtype.kind == "f" or x.dtype == dtype or dtype.itemsize == 8 or short:
        return x.astype(dtype, copy=False)
    with np.errstate(invalid="ignore"):
        whole = x.astype(np.float64, copy=False).astype(np.int64 if dtype == np.uint32 else np.int32)
    return whole.astype(dtype)
