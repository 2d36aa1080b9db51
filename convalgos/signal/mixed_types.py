"""Signals and filters of two types: brought into the one that both promote to, where that takes no time."""

from __future__ import annotations

from functools import cache

import numpy as np

NUMBERS, FLOATING = "bhilqBHILQfdFD", "fdFD"
OF_PYTHON = {int: "l", float: "d"}  # types of Python's numbers, as SciPy has them
FEW = 1 << 17  # products of real with complex numbers; Sapphire Rapids


def in_common(w: np.ndarray, x: np.ndarray, types: str) -> tuple[np.ndarray, np.ndarray, np.dtype] | None:
    """Both in the floating type that some promote to, and that; None where it takes long, or is none.

    Products of complex numbers are four, where one of both is real two would do.
    """
    wide = _common(types)
    if wide is None or (wide.kind == "c" and w.dtype.kind != x.dtype.kind and w.size * x.size > FEW):
        return None
    return w.astype(wide, copy=False), x.astype(wide, copy=False), wide


def promoted(x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.dtype] | None:
    """Both in the type that they promote to, and that; None as of `in_common`, but for integers, too."""
    wide = _promoted(x.dtype.char + w.dtype.char)
    if wide is None or (wide.kind == "c" and w.dtype.kind != x.dtype.kind and w.size * x.size > FEW):
        return None
    return x.astype(wide, copy=False), w.astype(wide, copy=False), wide


def filter_in_common(h: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.dtype] | None:
    """A filter and signals in the type that they and float32 promote to, and that; real filters stay real."""
    wide = _common(h.dtype.char + x.dtype.char + "f")
    if wide is None:
        return None
    of_h = np.dtype(wide.char.lower()) if h.dtype.kind != "c" else wide
    return h.astype(of_h, copy=False), x.astype(wide, copy=False), wide


@cache
def _promoted(types: str) -> np.dtype | None:
    return np.result_type(*types) if set(types) <= set(NUMBERS) else None


@cache
def _common(types: str) -> np.dtype | None:
    """The type that some promote to, if it is a floating one and all are plain numbers."""
    wide = _promoted(types)
    return wide if wide and wide.char in FLOATING else None
