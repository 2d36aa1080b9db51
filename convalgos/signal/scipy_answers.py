"""What is left to SciPy: a function of ours returns None for it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy  # whose parts are imported when they are used


def or_scipy(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that asks SciPy's of the same name where it has no answer of its own (None).

    SciPy is not told of `out`, an array that the function may write into.
    """
    name = function.__name__

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        y = function(*arguments, **options)
        if y is not None:
            return y
        options.pop("out", None)
        return getattr(scipy.signal, name)(*arguments, **options)

    return call


def plain(value: Any) -> np.ndarray | None:
    """An array, unless its class says how to compute with it, or its elements are no plain numbers."""
    if type(value) is not np.ndarray:
        if isinstance(value, np.ndarray) or not isinstance(
            value, list | tuple | int | float | complex | np.generic
        ):
            return None
        try:
            value = np.asarray(value)
        except ValueError:
            return None  # a list of lists of different lengths
    return value if value.dtype.kind in "biu" or value.dtype.char in "efdFD" else None
