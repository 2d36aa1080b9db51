"""Calls as they were made before, found again by their arguments.

On a small image a filter takes a few microseconds, and to read its arguments by SciPy's rules takes tens. So
what fills the result is kept, by the shape and the type of the image and by all other arguments, and a call
with equal ones goes straight there.
"""

from __future__ import annotations

import functools
import inspect
import math
import threading
from collections.abc import Callable, Hashable
from typing import Any, ParamSpec

import numpy as np

from convalgos.core import allocator, arrays
from convalgos.core.forks import guarded
from convalgos.cpu.runtime.threads import plan_threads

Given = ParamSpec("Given")
Write = Callable[[np.ndarray, np.ndarray], None]  # (x, y): fills y, an array apart from x
PLAIN = frozenset((int, float, bool, str, type(None), type))  # of values that are what they hold
WRITTEN, MARKED = "output", "footprint"  # arguments that are arrays, and are not kept
COUNT = 256  # calls that are kept; the first of them goes for one more
MOST = 1 << 12  # bytes of an array of weights that is kept with its call
SMALL = 1 << 14  # bytes of a result that may begin anywhere

_kept: dict[Hashable, tuple[Write, np.dtype]] = {}
_lock = guarded(threading.Lock())
_this = threading.local()  # of a thread: `told`, what filled the results of the call that it is in


def known_calls(function: Callable[Given, Any]) -> Callable[Given, Any]:
    """Makes calls of a filter short whose result is what `arguments.fill` has filled, and no more."""
    names = tuple(inspect.signature(function).parameters)
    arrays_at = [(name, names.index(name)) for name in (WRITTEN, MARKED) if name in names]

    @functools.wraps(function)
    def taken(*args: Given.args, **kwargs: Given.kwargs) -> Any:
        key = None
        if args and type(args[0]) is np.ndarray and arrays.is_laid(args[0].flags):
            for name, at in arrays_at:
                given = args[at] if len(args) > at else kwargs.get(name)
                if given is not None and type(given) not in PLAIN:
                    return function(*args, **kwargs)
            key = _key(function, args, kwargs)
        if key is None:
            return function(*args, **kwargs)
        x: Any = args[0]
        if (known := _kept.get(key)) is not None:
            write, dtype = known
            y = new_array(x.shape, dtype)
            write(x, y)
            return y
        outer, _this.told = getattr(_this, "told", None), []
        try:
            result = function(*args, **kwargs)
            told = _this.told
        finally:
            _this.told = outer
        if len(told) == 1 and told[0][0] is x and told[0][1] is result:
            _keep(key, told[0][2], result.dtype)
        return result

    return taken


def tell_filled(x: np.ndarray, y: np.ndarray, write: Write) -> None:
    """That `write` has filled y from x, and would do so for all arrays like these."""
    told = getattr(_this, "told", None)
    if told is not None:
        told.append((x, y, write))


def new_array(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Uninitialised; a large one of memory that others before it have left."""
    count = math.prod(shape)
    if count * dtype.itemsize < SMALL:
        return np.empty(shape, dtype)
    return allocator.aligned_empty(count, dtype, idles=True).reshape(shape)


def _key(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
    """By what a call is found again; None where an argument may be another one next time.

    Types are told, too: 1, 1.0 and True are equal, and SciPy refuses some of them.
    """
    x = args[0]
    parts: list[Any] = [function, plan_threads(), x.shape, x.dtype, *kwargs]
    for given in (*args[1:], *kwargs.values()):
        kind = type(given)
        if kind in PLAIN:
            parts += kind, given
        elif kind is np.ndarray and given.nbytes <= MOST and given.dtype.kind != "O":
            parts += kind, given.shape, given.dtype, given.tobytes()
        elif kind in (tuple, list) and all(type(each) in PLAIN for each in given):
            parts += kind, tuple(map(type, given)), tuple(given)
        else:
            return None
    return tuple(parts)


def _keep(key: Hashable, write: Write, dtype: np.dtype) -> None:
    with _lock:
        while len(_kept) >= COUNT:
            _kept.pop(next(iter(_kept)))
        _kept[key] = write, dtype
