"""Calls as they were made before, found again by their arguments.

On a small image a filter takes a few microseconds, and to read its arguments by SciPy's rules takes tens. So
what fills the result is kept, by the shape and the type of the image and by all other arguments, and a call
with equal ones goes straight there.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Hashable
from typing import Any, ParamSpec

import numpy as np

from convalgos.core import laid_arrays, plan_cache
from convalgos.core.allocator import SMALL, new_array
from convalgos.core.forks import guarded
from convalgos.cpu.runtime.array_steps import ArrayRun, array_steps_of
from convalgos.cpu.runtime.recent_calls import RecentCalls
from convalgos.cpu.runtime.threads import plan_threads

Given = ParamSpec("Given")
Write = Callable[[np.ndarray, np.ndarray], None]  # (x, y): fills y, an array apart from x
PLAIN = frozenset((int, float, bool, str, type(None), type))  # of values that are what they hold
WRITTEN = "output"  # the argument that may be an array that is filled
COUNT = 256  # calls that are kept; the first of them goes for one more
MOST = 1 << 18  # bytes of an array of weights that is kept with its call,
FEW = 1 << 12  # and of one up to which they are not counted by themselves:
LARGE_COUNT = 16  # calls with more, of which the first goes for one more
LOOKED_AT = 256  # bytes of many that stand for all in a hash

_kept: dict[Hashable, tuple[Write, np.dtype]] = {}
_all_recent: list[RecentCalls] = []  # of each function (threads, write, dtype of y, where y is or 0)
_lock = guarded(threading.Lock())
_this = threading.local()  # of a thread: `told`, what filled the results of the call that it is in


def known_calls(function: Callable[Given, Any]) -> Callable[Given, Any]:
    """Makes calls of a filter short whose result is what `arguments.fill` has filled, and no more."""
    names = tuple(inspect.signature(function).parameters)
    written = names.index(WRITTEN) if WRITTEN in names else len(names)
    recent = RecentCalls()
    _all_recent.append(recent)

    @functools.wraps(function)
    def taken(*args: Given.args, **kwargs: Given.kwargs) -> Any:
        found = recent.find(args, kwargs)
        if type(found) is np.ndarray:
            return found
        if found is None or found[0] != plan_threads():
            return longer(args, kwargs)
        _, write, dtype, place = found
        x: Any = args[0]
        if place == 0:
            y: Any = new_array(x.shape, dtype)
        else:
            y = kwargs[WRITTEN] if place == WRITTEN else args[written]
        write(x, y)
        return y

    def longer(args: Any, kwargs: Any) -> Any:
        key = y = None
        x: Any = args[0] if args else None
        laid = True
        if type(x) is np.ndarray and x.dtype.isnative:
            laid = laid_arrays.is_laid(x.flags)
            y = args[written] if len(args) > written else kwargs.get(WRITTEN)
            if type(y) in PLAIN or isinstance(y, np.dtype):
                key = _key(function, args, kwargs)
            elif _is_filled(y, x):  # whatever else it holds is overwritten
                if len(args) > written:
                    read = (*args[:written], None, *args[written + 1 :])
                    key = _key(function, read, kwargs, y.dtype)
                else:
                    key = _key(function, args, {**kwargs, WRITTEN: None}, y.dtype)
        known = None if key is None else _kept.get(key)
        if known is None:
            return _told(function, args if laid else (laid_arrays.as_laid(x), *args[1:]), kwargs, key)
        write, dtype = known
        place: int | str = 0
        copied = False
        if type(y) is not np.ndarray:
            y = new_array(x.shape, dtype)
            filled = None
        else:
            filled, place = y, written if len(args) > written else WRITTEN
            copied = not laid_arrays.is_laid(y.flags) or (laid and not _is_apart(y, x))
        alone = write
        if copied or not laid:
            write = _through_copies(write, dtype, laid, copied)
        if recent.asks_for((key, laid, copied)):
            run = _run_of(alone, x, dtype, laid, copied, None if filled is None else place)
            recent.add((plan_threads(), write, dtype, place), args, kwargs, filled, laid, copied, run)
        write(x, y)
        return y

    return taken


def _run_of(
    write: Write, x: np.ndarray, dtype: np.dtype, laid: bool, copied: bool, place: int | str | None
) -> ArrayRun | None:
    """What compiled code does for a call of one thread with small arrays."""
    steps = None
    if x.ndim and 0 < x.size * max(x.itemsize, dtype.itemsize, 8) < SMALL and x.dtype.kind != "c":
        steps = array_steps_of(write)
    if steps is None:
        return None
    return ArrayRun(steps, x.shape, dtype, (0 if laid else x.itemsize, dtype.itemsize * copied), place)


def _through_copies(write: Write, dtype: np.dtype, laid: bool, copied: bool) -> Write:
    """What fills arrays of any strides: x unless `laid`, and y if it is to be, by copies."""

    def through(x: np.ndarray, y: np.ndarray) -> None:
        source = x if laid else laid_arrays.as_laid(x)
        if not copied:
            write(source, y)
        elif y.nbytes < SMALL:
            own = np.empty(x.shape, dtype)
            write(source, own)
            y[...] = own
        else:
            laid_arrays.copy_into(y, filled_apart(source, dtype, write))

    return through


def _told(function: Callable[..., Any], args: Any, kwargs: Any, key: Hashable) -> Any:
    """What a filter returns; what filled it is kept by the key, if there is one."""
    if key is None:
        return function(*args, **kwargs)
    outer, _this.told = getattr(_this, "told", None), []
    try:
        result = function(*args, **kwargs)
        told = _this.told
    finally:
        _this.told = outer
    if len(told) == 1 and told[0][0] is args[0] and told[0][1] is result:
        _keep(key, told[0][2], result.dtype)
    return result


def _forget() -> None:
    _kept.clear()
    for recent in _all_recent:
        recent.clear()


plan_cache.also_forget(_forget)


def tell_filled(x: np.ndarray, y: np.ndarray, write: Write) -> None:
    """That `write` has filled y from x, and would do so for all arrays like these."""
    told = getattr(_this, "told", None)
    if told is not None:
        told.append((x, y, write))


def keep_none() -> None:
    """That the call at hand does more than fill its result, such as to warn."""
    told = getattr(_this, "told", None)
    if told is not None:
        told.append((None, None, _does_more))


def _does_more(x: np.ndarray, y: np.ndarray) -> None:
    """Stands beside what fills a result."""


def filled_apart(x: np.ndarray, dtype: np.dtype, write: Write) -> np.ndarray:
    """What `write` makes of x, in an array of its own."""
    own = new_array(x.shape, dtype)
    write(x, own)
    return own


def _is_filled(y: Any, x: np.ndarray) -> bool:
    """Whether y is an array that can be filled, of x's shape."""
    if type(y) is not np.ndarray or y.shape != x.shape or not y.dtype.isnative:
        return False
    return bool(y.flags.writeable)


def _is_apart(y: np.ndarray, x: np.ndarray) -> bool:
    """Whether both share no memory."""
    both_own = y.base is None and x.base is None and y is not x
    return both_own or not np.may_share_memory(y, x)


def _key(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], written: np.dtype | None = None
) -> Hashable:
    """By what a call is found again; None where an argument may be another one next time.

    Types are told, too: 1, 1.0 and True are equal, and SciPy refuses some of them.

    written: the type of the array that is filled, which stands as None among the arguments.
    """
    x, given = args[0], (*args[1:], *kwargs.values())
    types = tuple(map(type, given))
    if not PLAIN.issuperset(types):
        parts = tuple(map(_part, given))
        if None in parts:
            return None
        given = parts
    return function, plan_threads(), x.shape, x.dtype, written, tuple(kwargs), types, given


def _part(given: Any) -> tuple[Any, ...] | None:
    """What one argument is told by; None where it may hold something else next time."""
    kind = type(given)
    if kind in PLAIN or isinstance(given, np.dtype):
        return kind, given
    if kind is np.ndarray and given.nbytes <= MOST and given.dtype.kind != "O":
        held = given.tobytes()
        return given.shape, given.dtype, held if len(held) <= FEW else _Numbers(held)
    if kind in (tuple, list) and PLAIN.issuperset(types := tuple(map(type, given))):
        return types, tuple(given)
    return None


class _Numbers:
    """Many bytes, told apart by all, and found again by some of them."""

    __slots__ = ("_held", "_some")

    def __init__(self, held: bytes):
        self._held, self._some = held, hash(held[:: len(held) // LOOKED_AT | 1])

    def __hash__(self) -> int:
        return self._some

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Numbers) and self._held == other._held


def _keep(key: Any, write: Write, dtype: np.dtype) -> None:
    with _lock:
        while len(_kept) >= COUNT:
            _kept.pop(next(iter(_kept)))
        large = [k for k in _kept if _is_large(k)] if _is_large(key) else []
        for old in large[: len(large) + 1 - LARGE_COUNT]:
            _kept.pop(old)
        _kept[key] = write, dtype


def _is_large(key: Any) -> bool:
    return any(type(part) is tuple and type(part[-1]) is _Numbers for part in key[-1] if part)
