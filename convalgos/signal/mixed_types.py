"""Signals and filters of two types: brought into the one that both promote to, where that takes no time."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

NUMBERS, FLOATING = "bhilqBHILQfdFD", "fdFD"
WIDENED = "?e"  # types that are computed in the ones that they promote to with others
HALVES = frozenset(("ee", "eb", "eB", "e?", "be", "Be", "?e"))  # pairs of types that promote to float16
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
    wide = promoted_type(x, w)
    if wide is None:
        return None
    # to ask NumPy for no copy takes as long as a small one
    return x if x.dtype is wide else x.astype(wide), w if w.dtype is wide else w.astype(wide), wide


def promoted_type(x: np.ndarray, w: np.ndarray) -> np.dtype | None:
    """The type of `promoted`."""
    wide = _promoted(x.dtype.char + w.dtype.char)
    if wide is None or (wide.kind == "c" and w.dtype.kind != x.dtype.kind and w.size * x.size > FEW):
        return None
    return wide


def filter_in_common(h: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.dtype] | None:
    """A filter and signals in the type that they and float32 promote to, and that; real filters stay real."""
    wide = _common(h.dtype.char + x.dtype.char + "f")
    if wide is None:
        return None
    of_h = np.dtype(wide.char.lower()) if h.dtype.kind != "c" else wide
    return h.astype(of_h, copy=False), x.astype(wide, copy=False), wide


def as_floating(x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both in what SciPy's FFT computes in, where they are of float16 or of booleans."""
    if not {x.dtype.char, w.dtype.char} & set(WIDENED):
        return x, w
    wide = np.dtype("f" if x.dtype.char in "efF" and w.dtype.char in "efF" else "d")
    x, w = (a.astype(wide) if a.dtype.char in WIDENED else a for a in (x, w))
    return x, w


def without_halves(x: Any, w: Any) -> tuple[Any, Any]:
    """Two arrays, that of float16 in the precision of what both promote to; as given if that is float16."""
    if not _has_halves(x, w):
        return x, w
    wide = _promoted(x.dtype.char + w.dtype.char)
    if wide is not None:
        real = np.dtype(wide.char.lower())
        x, w = (a.astype(real) if a.dtype.char == "e" else a for a in (x, w))
    return x, w


def halves_widened(x: Any, w: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """Signals whose convolution is of float16, in float32; None of others."""
    if not _has_halves(x, w) or x.dtype.char + w.dtype.char not in HALVES:
        return None
    if not 0 < x.ndim == w.ndim or not x.size or not w.size:
        return None
    return x.astype(np.float32), w.astype(np.float32)


def are_booleans(x: Any, w: Any) -> bool:
    """Whether two objects are arrays of booleans, whose sums are no numbers."""
    return type(x) is type(w) is np.ndarray and x.dtype.char == w.dtype.char == "?"


def _has_halves(x: Any, w: Any) -> bool:
    """Whether two objects are arrays, and one of them of float16."""
    return type(x) is type(w) is np.ndarray and "e" in x.dtype.char + w.dtype.char


def listed_array(value: Any) -> Any:
    """A list as the array that SciPy makes of it; anything else as it is."""
    return np.asarray(value) if type(value) is list else value


@cache
def _promoted(types: str) -> np.dtype | None:
    if not set(types) <= set(NUMBERS + WIDENED):
        return None
    wide = np.result_type(*types)
    return wide if wide.char in NUMBERS else None


@cache
def _common(types: str) -> np.dtype | None:
    """The type that some promote to, if it is a floating one and all are plain numbers."""
    wide = _promoted(types)
    return wide if wide and wide.char in FLOATING else None
