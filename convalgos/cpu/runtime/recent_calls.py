"""Calls of a function as they were made lately, found again by compiled code.

To tell by Python whether a call has the arguments of another one takes some microseconds, a filter of a small
image no more. Here an array is told by its type and shape, and the numbers of a small one byte by byte; all
else by what object it is, which holds for what cannot change, and tuples of integers by these.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from convalgos.cpu.runtime import array_calls, jit
from convalgos.cpu.runtime.array_calls import DATA, LAID, TYPE, WRITEABLE, lies, overlap, word_at
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors.simd import carray, external, pointer

COUNT = 8  # calls of a function
LARGEST = 1 << 62  # of integers in a tuple
AGAIN = 32  # times that one must be told otherwise, to be found in the place of one of so many
# An argument: an object, an array that is written, one of numbers, one that is read, or a tuple of integers
SAME, FILLED, NUMBERS, READ, SIZES = range(5)
# A call: the object that is found, the array x that is its first argument, one that is filled, if any, how
# many arguments it has by place and by name, and the addresses of `VALUE` of these and of three words.
CALL = fields("kept type dtype ndim sizes nbytes y_dtype y_bytes args kwargs values cursor")
# An argument: the name, or 0, its kind, the object or the dtype of an array, and the numbers.
VALUE = fields("name kind what ndim sizes nbytes data")

_integer = external("PyNumber_AsSsize_t", 2)
_count = external("Py_IncRef", 1, returns=False)
_tuple_size, _tuple_item = external("PyTuple_Size", 1), external("PyTuple_GetItem", 2)
_dict_size, _dict_next = external("PyDict_Size", 1), external("PyDict_Next", 4)
_compare = external("memcmp", 3)


@jit.helper
def is_tuple(v: Any, given: int) -> bool:
    """Whether an object is a tuple of just these integers."""
    if word_at(given + TYPE) != v.what or _tuple_size(given) != v.ndim:
        return False
    for i in range(v.ndim):
        item = _tuple_item(given, i)
        if word_at(item + TYPE) != v.sizes or _integer(item, 0) != word_at(v.data + 8 * i):
            return False
    return True


@jit.helper
def is_value(a: Any, values: int, x: int, name: int, given: int) -> bool:
    """Whether an argument is what it was in a call."""
    v = carray(pointer(values), 1, VALUE)[0]
    if v.name != name:
        return False
    if v.kind == SAME:
        return given == v.what  # type: ignore[no-any-return]
    if v.kind == FILLED:
        if not lies(given, a.type, a.y_dtype, a.ndim, a.sizes, LAID | WRITEABLE):
            return False
        return not overlap(word_at(x + DATA), a.nbytes, word_at(given + DATA), a.y_bytes)
    if v.kind == SIZES:
        return is_tuple(v, given)
    if not lies(given, a.type, v.what, v.ndim, v.sizes, LAID):
        return False
    if v.kind == READ:
        return True
    return _compare(word_at(given + DATA), v.data, v.nbytes) & 0xFFFFFFFF == 0  # type: ignore[no-any-return]


@jit.helper
def is_call(a: Any, args: int, kwargs: int) -> bool:
    """Whether arguments are those of a call."""
    if a.args != _tuple_size(args) or a.kwargs != _dict_size(kwargs):
        return False
    x = _tuple_item(args, 0)
    if not lies(x, a.type, a.dtype, a.ndim, a.sizes, LAID):
        return False
    values, size = a.values, VALUE.itemsize
    for i in range(1, a.args):
        if not is_value(a, values + (i - 1) * size, x, 0, _tuple_item(args, i)):
            return False
    values += (a.args - 1) * size
    carray(pointer(a.cursor), 1, np.int64)[0] = 0
    for i in range(a.kwargs):
        _dict_next(kwargs, a.cursor, a.cursor + 8, a.cursor + 16)
        if not is_value(a, values + i * size, x, word_at(a.cursor + 8), word_at(a.cursor + 16)):
            return False
    return True


def _find_call(this: int, given: int, count: int) -> int:
    """What Python calls as f(address of calls, their number, args, kwargs): `kept` of one, or None.

    The interpreter's lock is held.
    """
    calls, known = _integer(word_at(given), 0), _integer(word_at(given + 8), 0)
    args, kwargs = word_at(given + 16), word_at(given + 24)
    found, i = this, 0  # it is None
    while i < known:
        a = carray(pointer(calls + i * CALL.itemsize), 1, CALL)[0]
        i += 1
        if is_call(a, args, kwargs):
            found, i = a.kept, known
    _count(found)
    return int(found)


@functools.cache
def find_call() -> Callable[..., Any] | None:
    """The function of Python; None where the objects of this NumPy cannot be read."""
    return jit.from_python(b"find_call", _find_call, jit.FASTCALL) if array_calls.array_call() else None


class RecentCalls:
    """The last calls of one function whose first argument is an array. Threads may ask while one adds."""

    def __init__(self) -> None:
        self._calls = np.zeros(COUNT, CALL)
        self._held: list[Any] = [None] * COUNT  # what the records point to
        self._number = self._next = 0
        self._asked: dict[Hashable, int] = {}
        self._address = self._calls.ctypes.data

    def find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What was added with these arguments, if they are found."""
        number = self._number
        return self._find(self._address, number, args, kwargs) if number else None

    def clear(self) -> None:
        """Find none."""
        self._number = self._next = 0
        self._asked.clear()

    def asks_for(self, key: Hashable) -> bool:
        """Whether a call that was not found, and is known by a key, is to be added now."""
        asked = self._asked
        if len(asked) > AGAIN * COUNT:
            asked.clear()
        asked[key] = times = asked.get(key, 0) + 1
        return times == (1 if self._number < COUNT else AGAIN)

    def add(
        self, kept: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any],
        filled: np.ndarray | None = None, read: Sequence[np.ndarray] = (),
    ) -> None:  # fmt: skip
        """Find `kept` by arguments: numbers, what is `filled`, and what cannot change; by no list.

        read: arrays beside the first, in whose place others of their type and shape may stand.
        """
        find = find_call()
        if find is None or list in map(type, (*args, *kwargs.values())):
            return
        self._find = find
        x, y, held = args[0], args[0] if filled is None else filled, list[Any](kwargs)
        given = [*((0, v) for v in args[1:]), *((id(name), v) for name, v in kwargs.items())]
        values = np.array(
            [(name, *_value(v, v is filled, any(v is r for r in read), held)) for name, v in given], VALUE
        )
        sizes, cursor = np.array(x.shape, np.int64), np.zeros(3, np.int64)
        call = (
            id(kept), id(np.ndarray), id(x.dtype), x.ndim, sizes.ctypes.data, x.nbytes, id(y.dtype), y.nbytes,
            len(args), len(kwargs), values.ctypes.data, cursor.ctypes.data,
        )  # fmt: skip
        place, before = self._next, self._held[self._next]
        self._calls[place] = call
        self._held[place] = kept, x.dtype, y.dtype, values, sizes, cursor, held
        del before  # only now, as others may have read its record
        self._next = (place + 1) % COUNT
        self._number = max(self._number, place + 1)


def _value(given: Any, is_filled: bool, is_read: bool, held: list[Any]) -> tuple[int, ...]:
    """The fields of `VALUE` behind the name; appends what they point to."""
    if is_filled:
        return FILLED, 0, 0, 0, 0, 0
    if is_read:
        sizes = np.array(given.shape, np.int64)
        held.append((sizes, given.dtype))
        return READ, id(given.dtype), given.ndim, sizes.ctypes.data, 0, 0
    if type(given) is tuple and all(type(v) is int and abs(v) < LARGEST for v in given):
        integers = np.array(given, np.int64)
        held.append(integers)
        return SIZES, id(tuple), len(given), id(int), 0, integers.ctypes.data
    if type(given) is not np.ndarray:
        held.append(given)
        return SAME, id(given), 0, 0, 0, 0
    numbers, sizes = given.copy(), np.array(given.shape, np.int64)
    held.append((numbers, sizes, given.dtype))
    return NUMBERS, id(given.dtype), given.ndim, sizes.ctypes.data, given.nbytes, numbers.ctypes.data
