"""Random numbers for large arrays, made at the speed of a copy."""

from __future__ import annotations

import math

import numpy as np

PERIOD = 16381  # after which numbers repeat: a prime, so that no two rows, channels or images are the same


def repeating_normal(
    shape: tuple[int, ...],
    seed: int | np.random.Generator,
    dtype: np.dtype | type = np.float32,
    scale: float = 1.0,
    period: int = PERIOD,
) -> np.ndarray:
    """Normal numbers of this standard deviation, made in float32, which repeat after a period."""
    values = np.random.default_rng(seed).standard_normal(min(period, math.prod(shape)), np.float32)
    values *= np.float32(scale)
    return np.resize(values.astype(dtype, copy=False), shape)
