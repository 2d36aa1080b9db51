"""What the integers of a map of uint8 stand for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

BYTE = np.dtype(np.uint8)
LEAST, MOST = 0, 255  # that uint8 holds


class ByteScale(NamedTuple):
    """Integers q of uint8 stand for the numbers (q - zero_point) * scale."""

    scale: float  # one of float32
    zero_point: int

    def numbers(self) -> np.ndarray:
        """What all 256 integers stand for, float32 (256,)."""
        found: np.ndarray = (np.arange(256) - self.zero_point).astype(np.float32) * np.float32(self.scale)
        return found

    def integers(self, numbers: np.ndarray) -> np.ndarray:
        """uint8 nearest to float32 numbers, ties to even; NaN becomes the least."""
        with np.errstate(over="ignore", invalid="ignore"):
            v = numbers.astype(np.float32) / np.float32(self.scale)
        low, high = np.float32(LEAST - self.zero_point), np.float32(MOST - self.zero_point)
        v = np.rint(np.minimum(np.fmax(v, low), high))
        found: np.ndarray = (v.astype(np.int32) + self.zero_point).astype(np.uint8)
        return found
