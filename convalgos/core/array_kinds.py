"""Functions of NumPy arrays, for arrays of every kind: torch, CuPy, JAX, others of the array API standard."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any, ParamSpec

import numpy as np

from convalgos.core import arrays
from convalgos.core.errors import Unsupported

Given = ParamSpec("Given")
OUTPUTS = ("output", "out")  # names of arguments that are written
PLAIN = frozenset((np.ndarray, list, tuple, str, int, float, bool, type(None)))


def any_kind(cupy_module: str) -> Callable[[Callable[Given, Any]], Callable[Given, Any]]:
    """Makes a function of NumPy arrays one of arrays of any kind, whose results are of the first one's kind.

    Host arrays are viewed without a copy, through DLPack or as `core.arrays` tells. Of arrays on a GPU the
    function of the same name in a module of CuPy is called. Lists and NumPy's arrays pass through untouched.
    An array that is given as `output` or `out` is what is returned.

    Raises:
        TypeError: an array holds what would be lost, such as what torch needs for gradients.
        Unsupported: `out` is given with arrays on a GPU, for which CuPy has no such argument.
    """

    def decorated(function: Callable[Given, Any]) -> Callable[Given, Any]:
        names = tuple(inspect.signature(function).parameters)

        @functools.wraps(function)
        def taken(*args: Given.args, **kwargs: Given.kwargs) -> Any:
            for given in args:
                if type(given) not in PLAIN and _is_foreign(given):
                    return _converted(function, cupy_module, names, given, args, kwargs)
            if not kwargs:
                return function(*args)  # type: ignore[call-arg] # empty keywords take longer
            for given in kwargs.values():
                if type(given) not in PLAIN and _is_foreign(given):
                    return _converted(function, cupy_module, names, given, args, kwargs)
            return function(*args, **kwargs)

        return taken

    return decorated


def _is_foreign(given: Any) -> bool:
    """Whether something is an array of another library than NumPy."""
    if isinstance(given, np.ndarray | np.generic | type):
        return False
    marks = ("__dlpack__", "__cuda_array_interface__")
    return arrays.is_tensor(given) or any(hasattr(given, mark) for mark in marks)


def _converted(
    function: Callable[..., Any], cupy_module: str, names: tuple[str, ...], example: Any,
    args: tuple[Any, ...], kwargs: dict[str, Any],
) -> Any:  # fmt: skip
    """What the function computes of views of the arrays, like the example: an array, or a tuple of them."""
    on_host = arrays.device_of(example) == "cpu"
    if not on_host:
        if kwargs.get("out") is not None:
            raise Unsupported(
                f"out is for arrays on the CPU: {cupy_module}.{function.__name__} has no such argument"
            )
        function = getattr(import_module(cupy_module), function.__name__)

    def view(name: str, a: Any) -> Any:
        if not _is_foreign(a) or (on_host and name in OUTPUTS):  # which is written, and viewed for that
            return a
        return arrays.as_numpy(name, a) if on_host else arrays.as_cupy(name, a)

    known = (*names, *(f"argument {i}" for i in range(len(names), len(args))))
    positional = [view(name, a) for name, a in zip(known, args, strict=False)]
    named = {name: view(name, a) for name, a in kwargs.items()}
    found = function(*positional, **named)
    for name, given in (*zip(known, args, strict=False), *kwargs.items()):
        if name in OUTPUTS and (isinstance(given, np.ndarray) or _is_foreign(given)):
            return given
    if isinstance(found, tuple):
        return tuple(_like(part, example) for part in found)
    return _like(found, example)


def _like(found: Any, example: Any) -> Any:
    """A result as the kind of array that an example is; torch has no arrays that run backwards."""
    if isinstance(found, np.ndarray) and any(step < 0 for step in found.strides):
        found = np.ascontiguousarray(found)
    return arrays.like(found, example)
