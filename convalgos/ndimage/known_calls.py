"""Calls as they were made before, found again by their arguments.

On a small image a filter takes a few microseconds, and to read its arguments by SciPy's rules takes tens. So
what fills results is kept, by the type of the image and by all arguments but its sizes, and a call with equal
ones goes straight there: to what fills results of these sizes, or to what makes that for any.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, ParamSpec

import numpy as np

from convalgos.core import laid_arrays, plan_cache
from convalgos.core.allocator import SMALL, new_array
from convalgos.core.arguments import Shape
from convalgos.core.forks import guarded
from convalgos.cpu.runtime.array_steps import ArrayRun, array_steps_of
from convalgos.cpu.runtime.recent_calls import RecentCalls
from convalgos.cpu.runtime.threads import plan_threads

Given = ParamSpec("Given")
Write = Callable[[np.ndarray, np.ndarray], None]  # (x, y): fills y, an array apart from x
WriteOf = Callable[[Shape], Write]  # of arrays of a shape, which have elements
PLAIN = frozenset((int, float, bool, str, type(None), type))  # of values that are what they hold
WRITTEN = "output"  # the argument that may be an array that is filled
COUNT = 1024  # sets of arguments that are kept; of one more, the first of them goes
MOST = 1 << 18  # bytes of an array of weights that is kept with its call,
FEW = 1 << 12  # and of one up to which it is told by all of its bytes at once,
LARGE_COUNT = 16  # sets with more, of which the first goes for one more
LOOKED_AT = 256  # bytes of many that stand for all in a hash
# Sizes for which it is kept what fills results, by the bytes of the largest array among arguments: a plan
# holds weights, and that of a transform their spectrum
SIZES = ((1 << 9, 2048), (FEW, 256), (MOST, 16))

_kept: dict[Hashable, _Calls] = {}
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
        if known is None or not x.size:
            return _told(function, args if laid else (laid_arrays.as_laid(x), *args[1:]), kwargs, key)
        write, dtype = known.written(known, x.shape), known.dtype
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
        if recent.asks_for((known, x.shape, laid, copied), least=2):
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
    if len(told) == 1 and told[0].x is args[0] and told[0].y is result:
        _keep(key, told[0])
    return result


def _forget() -> None:
    _kept.clear()
    for _, written in _written:
        written.cache_clear()
    for recent in _all_recent:
        recent.clear()


plan_cache.also_forget(_forget)


class _Told(NamedTuple):
    """Of a call that has filled y from x."""

    x: np.ndarray | None
    y: np.ndarray | None
    write: Write
    write_of: WriteOf


def tell_filled(x: np.ndarray, y: np.ndarray, write: Write, write_of: WriteOf) -> None:
    """That `write` has filled y from x, and would do so for all arrays like these; and what `write_of` makes,
    for all of their types and another shape of as many axes."""
    told = getattr(_this, "told", None)
    if told is not None:
        told.append(_Told(x, y, write, write_of))


def keep_none() -> None:
    """That the call at hand does more than fill its result, such as to warn."""
    told = getattr(_this, "told", None)
    if told is not None:
        told.append(_Told(None, None, _does_more, lambda shape: _does_more))


def _does_more(x: np.ndarray, y: np.ndarray) -> None:
    """Stands beside what fills a result."""


class _Calls:
    """Calls with the same arguments, of images of one type and any sizes.

    nbytes: of the largest array among the arguments.
    """

    def __init__(self, told: _Told, nbytes: int):
        assert told.x is not None and told.y is not None
        self.dtype, self.nbytes = told.y.dtype, nbytes
        self.written = next(written for most, written in _written if nbytes <= most)  # finds it, or makes it
        self._write_of = told.write_of
        self._first: tuple[Shape, Write] | None = (told.x.shape, told.write)

    def write_of(self, shape: Shape) -> Write:
        """What fills y: of the first call's shape, as it was told."""
        first, self._first = self._first, None
        return first[1] if first is not None and first[0] == shape else self._write_of(shape)


_written = [(most, functools.lru_cache(count)(_Calls.write_of)) for most, count in SIZES]


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
    """By what a call is found again, but for x's sizes; None where an argument may be another one next time.

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
    return function, plan_threads(), x.ndim, x.dtype, written, tuple(kwargs), types, given


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

    def __len__(self) -> int:
        return len(self._held)

    def __hash__(self) -> int:
        return self._some

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Numbers) and self._held == other._held


def _keep(key: Any, told: _Told) -> None:
    calls = _Calls(told, max((_bytes_of(part) for part in key[-1]), default=0))
    with _lock:
        while len(_kept) >= COUNT:
            _kept.pop(next(iter(_kept)))
        large = [k for k, c in _kept.items() if c.nbytes > FEW] if calls.nbytes > FEW else []
        for old in large[: len(large) + 1 - LARGE_COUNT]:
            _kept.pop(old)
        _kept[key] = calls


def _bytes_of(part: Any) -> int:
    """Of the numbers that one argument is told by."""
    held = part[-1] if type(part) is tuple else None
    return len(held) if isinstance(held, bytes | _Numbers) else 0
