"""`out`: an array of the caller's that a result is written into, by the rules of NumPy's functions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from convalgos.core.arrays import as_numpy, is_tensor
from convalgos.core.errors import read_only


def takes_out(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that writes its result into `out` where that is given, and returns `out` then.

    One that has an argument `out` itself may write there at once: it gets a NumPy array, which serves where
    `holds_result` says so. What any other one returns is copied.

    Raises:
        TypeError: out is no array that can be written, or of a type that the result is not cast to.
        ValueError: it is read-only, or of another shape than the result; or there are several results.
    """
    signature = inspect.signature(function)
    writes = "out" in signature.parameters
    if not writes:
        out = inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="Any")
        signature = signature.replace(parameters=[*signature.parameters.values(), out])

    @functools.wraps(function)
    def call(*arguments: Any, out: Any = None, **options: Any) -> Any:
        if out is None:
            return function(*arguments, **options)
        if not (isinstance(out, np.ndarray) or is_tensor(out)):
            raise TypeError(f"out={type(out).__name__} must be an array of NumPy or a tensor in host memory")
        target = as_numpy("out", out)
        if not target.flags.writeable:
            raise read_only("out")
        y = function(*arguments, **options, out=target) if writes else function(*arguments, **options)
        if y is not target:
            _write(y, target)
        return out

    call.__signature__ = signature  # type: ignore[attr-defined] # what `inspect.signature` asks for
    return call


def holds_result(out: np.ndarray | None, shape: tuple[int, ...], dtype: np.dtype) -> bool:
    """Whether a plan may write a result of a shape and a type into `out` at once, in any other shape."""
    return out is not None and out.shape == shape and out.dtype == dtype and out.flags.c_contiguous


def _write(y: Any, out: np.ndarray) -> None:
    """Copy a result, which may share memory with `out`."""
    if isinstance(y, tuple):
        raise ValueError(f"out is one array, but these arguments give {len(y)} results; leave out away")
    y = np.asanyarray(y)
    if out.shape != y.shape:
        raise ValueError(f"out has shape {out.shape}; it must be {y.shape}, that of the result")
    if not np.can_cast(y.dtype, out.dtype, "same_kind"):
        raise TypeError(
            f"out has dtype {out.dtype}; it must be {y.dtype}, that of the result, or one that NumPy casts "
            "this to by its rule 'same_kind'"
        )
    np.copyto(out, y, casting="same_kind")
