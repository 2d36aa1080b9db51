"""Whether numbers are finite: transforms spread what is not."""

from __future__ import annotations

import math

import numpy as np


def has_finite_norm(x: np.ndarray) -> bool:
    """Whether all numbers are finite, and no square of theirs is infinite."""
    return x.dtype.kind not in "fc" or math.isfinite(np.vdot(x, x).real)
