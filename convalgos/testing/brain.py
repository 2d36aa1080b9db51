"""What processors compute of bfloat16, in NumPy: the reference of kernels that use these instructions.

Sums are float32. A product of two bfloat16 is exact; each addition rounds to the nearest, ties to even.
Denormal numbers count as zero where they are read, and become zero where they would be written; signs stay.
Neither rounding modes nor exceptions of the processor matter.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, VDPBF16PS, TDPBF16PS, VCVTNEPS2BF16.

>>> total, a, b = np.float32([1]), np.float32([[2**-25, 3]]), np.float32([[1, 2]])
>>> vdpbf16ps(total, a, b)
array([7.], dtype=float32)
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
LEAST = 2.0**-126  # of the normal numbers of float32,
NEARLY = LEAST - 2.0**-151  # and from where on numbers are rounded to it


def vdpbf16ps(total: Array, a: Array, b: Array) -> Array:
    """total + the two products of each word, the second one first: (...) of words (..., 2).

    Args:
        total: float32.
        a, b: numbers of bfloat16, in any type of NumPy.
    """
    first, second = (_products(a[..., i], b[..., i]) for i in (1, 0))
    return _added(_added(_read(total), first), second)


def tdpbf16ps(total: Array, a: Array, b: Array) -> Array:
    """total + the products of some words (..., words, 2): those of either half of the words are summed by
    themselves, from 0 on, then both together, and last with the total."""
    halves = []
    for half in (0, 1):
        found = np.zeros(np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), np.float32)
        for word in range(a.shape[-2]):
            found = _added(found, _products(a[..., word, half], b[..., word, half]))
        halves.append(found)
    return _added(_read(total), _added(*halves).astype(np.float64))


def vcvtneps2bf16(values: Array) -> Array:
    """float32 as the nearest numbers of bfloat16, ties to even; still in float32."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
    nan = np.isnan(values)
    return np.where(nan, np.float32(np.nan), np.where(nan, 0, _read(values, rounded)).view(np.float32))


def _read(values: Array, instead: Array | None = None) -> Array:
    """Numbers as they are, or others instead of them, with denormal ones as zeros of their sign."""
    values = np.asarray(values, np.float32)
    bits = values.view(np.uint32)
    tiny = (bits & np.uint32(0x7F800000)) == 0
    found: Array = np.where(tiny, bits & np.uint32(0x80000000), bits if instead is None else instead)
    return found.view(np.float32) if instead is None else found


def _products(a: Array, b: Array) -> Array:
    with np.errstate(invalid="ignore"):
        found: Array = _read(a).astype(np.float64) * _read(b)
    return found


def _added(total: Array, exact: Array) -> Array:
    """float32 of a sum: float64 rounds what is below the last bit that counts, if anything."""
    with np.errstate(invalid="ignore", over="ignore"):
        wide = total.astype(np.float64) + exact
        found = wide.astype(np.float32)
    tiny = np.abs(wide) < LEAST
    found[tiny] = np.copysign(np.where(np.abs(wide[tiny]) < NEARLY, 0, LEAST), wide[tiny])
    return found
