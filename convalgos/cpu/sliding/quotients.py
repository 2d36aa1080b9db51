"""What sums are divided by."""

from __future__ import annotations

import numpy as np

from convalgos.cpu.sliding.reductions import SHORT


def mean_numbers(size: int, count: int) -> np.ndarray:
    """(2,) that `SlidingElements` divides sums of so many elements by, where it computes in `size` bytes."""
    if size == SHORT:
        return np.array(short_quotient(count), np.uint16)
    return np.array([count, 0], f"f{size}")


def short_quotient(count: int) -> tuple[int, int] | None:
    """(m, s) with sum * m >> (16 + s) == sum // count of all sums of `count` bytes; None where there is none.

    Of a count of 1, whose sums are means already, m is 0.

    Source: Granlund, Montgomery 1994, "Division by invariant integers using multiplication", theorem 4.2.
    """
    if count == 1:
        return 0, 0
    most = 255 * count
    for shift in range(16 if most < 1 << 16 else 0):
        factor = -(-(1 << (16 + shift)) // count)
        if factor < 1 << 16 and (factor * count - (1 << (16 + shift))) * most < 1 << (16 + shift):
            return factor, shift
    return None


def float_quotient(dtype: np.dtype, count: int) -> bool:
    """Whether float32 has the sums of so many elements of short integers, and the whole parts of their means.

    A mean that is not whole is at least 1 / count less than the next number that is, away from zero; means of
    16 bits are rounded by 2**-9 at most, where counts are up to 256, and those of 15 and 8 bits by less.
    """
    limits = np.iinfo(dtype)
    return max(-int(limits.min), int(limits.max)) * count <= 1 << 24
