"""What plans of +1 and -1 are given with a filter, checked."""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.core.arguments import shown
from convalgos.core.problem import ConvProblem

PADDING_VALUES = (0, 1, -1)


def checked_factors(problem: ConvProblem, padding_value: Any, scale: Any) -> np.ndarray:
    """What the sums of each filter are multiplied by, float32: (K,), or one number; 1 where scale is None.

    Raises:
        ValueError: padding_value or scale is not valid for the problem; the message names it.
    """
    if padding_value not in PADDING_VALUES:
        raise ValueError(f"padding_value={shown(padding_value)} must be 0, 1 or -1")
    factors = np.asarray(1.0 if scale is None else scale, np.float32)
    if factors.shape not in ((), (problem.K,)):
        raise ValueError(f"scale has shape {factors.shape}, but must be a number or ({problem.K},)")
    if scale is not None and problem.y_dtype != "float32":
        raise ValueError(f"scale={shown(scale)} must be None: y of {problem} is int32")
    return factors
