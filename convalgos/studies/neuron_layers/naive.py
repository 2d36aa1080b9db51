"""The three forms as they are written down, in loops over single numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np

from convalgos.studies.neuron_layers.forms import LINEAR, RBF, SUPPORT


def naive_linear(x: np.ndarray, w: np.ndarray, b: np.ndarray, a: np.ndarray, g: float, y: np.ndarray) -> None:
    """y[i, j] = b[j] + sum of x[i] * w[j]."""
    for i in range(x.shape[0]):
        for j in range(w.shape[0]):
            total = b[j]
            for k in range(x.shape[1]):
                total += x[i, k] * w[j, k]
            y[i, j] = total


def naive_rbf(x: np.ndarray, w: np.ndarray, b: np.ndarray, a: np.ndarray, g: float, y: np.ndarray) -> None:
    """y[i, j] = exp(-g * sum of (x[i] - w[j])^2)."""
    for i in range(x.shape[0]):
        for j in range(w.shape[0]):
            total = g * 0
            for k in range(x.shape[1]):
                difference = x[i, k] - w[j, k]
                total += difference * difference
            y[i, j] = math.exp(-g * total)


def naive_support(
    x: np.ndarray, w: np.ndarray, b: np.ndarray, a: np.ndarray, g: float, y: np.ndarray
) -> None:
    """y[i, l] = sum over j of exp(-g * sum of (x[i] - w[j])^2) * a[j, l]."""
    for i in range(x.shape[0]):
        for l in range(a.shape[1]):
            y[i, l] = 0
        for j in range(w.shape[0]):
            total = g * 0
            for k in range(x.shape[1]):
                difference = x[i, k] - w[j, k]
                total += difference * difference
            r = math.exp(-g * total)
            for l in range(a.shape[1]):
                y[i, l] += r * a[j, l]


LOOPS: dict[str, Callable[..., None]] = {LINEAR: naive_linear, RBF: naive_rbf, SUPPORT: naive_support}


@cache
def naive_loops(form: str, compiled: bool) -> Callable[..., None]:
    """The loops of a form, by Numba or as Python runs them."""
    if not compiled:
        return LOOPS[form]
    import numba

    made: Callable[..., None] = numba.njit(LOOPS[form])
    return made
