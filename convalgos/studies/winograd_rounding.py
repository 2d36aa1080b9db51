"""Rounding errors of F(m, 3) at any points and in any format, by transforms in NumPy."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from convalgos.core.cook_toom import POINTS, amplification, cook_toom
from convalgos.core.plan import numpy_dtype

TAPS = 3
LARGEST_M = 10
MIXED = "0 1 -1 2 -2 1/2 -1/2 4 -4 1/4 -1/4 3 -3"
CHEBYSHEV_STEP = 64  # denominator to which they are rounded: exact in floats, as their products are


def point_sets(m: int) -> dict[str, tuple[Fraction, ...]]:
    """The m + 1 finite points of F(m, 3), of each way to choose them that has so many."""
    count = m + TAPS - 2
    whole = [Fraction(0), *(Fraction(s * i) for i in range(1, count) for s in (1, -1))]
    mixed = tuple(map(Fraction, MIXED.split()))
    angles = (2 * np.arange(count) + 1) * np.pi / (2 * count)
    nodes = {Fraction(round(CHEBYSHEV_STEP * float(np.cos(a))), CHEBYSHEV_STEP) for a in angles}
    found = {"whole numbers": tuple(whole[:count]), "with inverses": mixed[:count]}
    if len(nodes) == count:
        found["Chebyshev nodes"] = tuple(sorted(nodes))
    if m + TAPS - 1 in POINTS:
        found["of this library"] = POINTS[m + TAPS - 1]
    return found


def rounding_error(
    x: np.ndarray, w: np.ndarray, m: int, points: tuple[Fraction, ...], dtype: str = "float32"
) -> float:
    """The largest error of F(m, 3) relative to the largest output, against direct sums in float64.

    Transformed inputs and filters are rounded to `dtype`; transforms and sums are in float32, or in float64
    with that. Errors of points grow with `amplification(m, 3, points)`.

    Args:
        x: (C, H, W), of which whole tiles are used. w: (K, C, 3, 3).
    """
    at, g, bt = (np.array(matrix, np.float64) for matrix in cook_toom(m, TAPS, points))
    wide: Any = np.float64 if dtype == "float64" else np.float32
    tiles = _tiles(x, m)  # (C, T, m + 2, m + 2)
    u = _transformed(w.astype(wide), g.astype(wide), dtype, wide)  # (K, C, m + 2, m + 2)
    v = _transformed(tiles.astype(wide), bt.astype(wide), dtype, wide)
    products = np.einsum("kcij,ctij->ktij", u, v, dtype=wide, optimize=False)
    y = at.astype(wide) @ products @ at.T.astype(wide)  # (K, T, m, m)
    right = _direct(tiles.astype(np.float64), w.astype(np.float64), m)
    return float(np.abs(y - right).max() / np.abs(right).max())


def error_growth(m: int, points: tuple[Fraction, ...]) -> float:
    """The predicted growth of errors in two dimensions over those of direct sums."""
    return amplification(m, TAPS, points) ** 2


def _transformed(values: np.ndarray, matrix: np.ndarray, dtype: str, wide: Any) -> np.ndarray:
    found: np.ndarray = (matrix @ values @ matrix.T).astype(numpy_dtype(dtype)).astype(wide)
    return found


def _tiles(x: np.ndarray, m: int) -> np.ndarray:
    side = m + TAPS - 1
    rows, columns = ((size - TAPS + 1) // m for size in x.shape[1:])
    found = [x[:, i * m : i * m + side, j * m : j * m + side] for i in range(rows) for j in range(columns)]
    return np.stack(found, axis=1)


def _direct(tiles: np.ndarray, w: np.ndarray, m: int) -> np.ndarray:
    """(K, T, m, m)"""
    y = np.zeros((len(w), tiles.shape[1], m, m))
    for i in range(TAPS):
        for j in range(TAPS):
            y += np.einsum("kc,ctab->ktab", w[:, :, i, j], tiles[:, :, i : i + m, j : j + m], optimize=True)
    return y
