"""Calls of a function as they were made lately, found again by compiled code.

To tell by Python whether a call has the arguments of another one takes some microseconds, a filter of a small
image no more. Here an array is told by its type and shape, and the numbers of a small one byte by byte; lists
and tuples item by item; all else by what object it is, or by its value.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from convalgos.cpu.runtime import array_calls, jit
from convalgos.cpu.runtime.array_calls import DATA, FLAGS, LAID, TYPE, WRITEABLE, lies, overlap, word_at
from convalgos.cpu.runtime.array_steps import RUN, ArrayRun, run_array_steps
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors.simd import carray, external, pointer

COUNT = 16  # calls of a function
AGAIN = 16  # times that one must be told otherwise, to be found in the place of one of so many
# An argument: a value, an array that is filled where it lies, one that is so by a copy, an array of numbers,
# one that is read, or values in a row
SAME, FILLED, COPIED, NUMBERS, READ, ITEMS = range(6)
# A call: the object that is found, the array x that is its first argument, whether that is `LAID`, one that
# is filled, if any, how many arguments it has by place and by name, and the addresses of `VALUE` of these, of
# three words, and of `RUN` or 0.
CALL = fields("kept type dtype ndim sizes nbytes laid y_dtype y_bytes args kwargs values cursor run")
# An argument: the name, or 0, its kind, the object, dtype of numbers or type of a row, and those numbers or
# the objects of a row, of which there are `ndim`.
VALUE = fields("name kind what ndim sizes nbytes data")

_integer = external("PyNumber_AsSsize_t", 2)
_count = external("Py_IncRef", 1, returns=False)
_tuple_size, _tuple_item = external("PyTuple_Size", 1), external("PyTuple_GetItem", 2)
_dict_size, _dict_next = external("PyDict_Size", 1), external("PyDict_Next", 4)
_list_size, _list_item = external("PyList_Size", 1), external("PyList_GetItem", 2)
_dict_item, _made = external("PyDict_GetItem", 2), external("PyObject_CallObject", 2)
_drop, _no_memory = external("Py_DecRef", 1, returns=False), external("PyErr_NoMemory", 0)
_compare, _equal = external("memcmp", 3), external("PyObject_RichCompareBool", 3)
EQUAL = 2  # Python's Py_EQ


@jit.helper
def holds_same(given: int, what: int) -> bool:
    """Whether an object is another one or, of the same type, equal: values of Python and dtypes."""
    if given == what:
        return True
    if word_at(given + TYPE) != word_at(what + TYPE):
        return False
    return _equal(given, what, EQUAL) & 0xFFFFFFFF == 1  # type: ignore[no-any-return]


@jit.helper
def are_items(v: Any, given: int, lists: int) -> bool:
    """Whether an object is a row of the same values: a list, whose type is `lists`, or a tuple."""
    if word_at(given + TYPE) != v.what:
        return False
    is_list = v.what == lists
    count = _list_size(given) if is_list else _tuple_size(given)
    if count != v.ndim:
        return False
    for i in range(count):
        item = _list_item(given, i) if is_list else _tuple_item(given, i)
        if not holds_same(item, word_at(v.data + i * 8)):
            return False
    return True


@jit.helper
def has_no_steps(array: int) -> bool:
    """Whether kernels may read an array where it lies: C-contiguous and aligned."""
    return carray(pointer(array + FLAGS), 1, np.int32)[0] & LAID == LAID  # type: ignore[no-any-return]


@jit.helper
def is_apart(a: Any, x: int, y: int) -> bool:
    """Whether kernels may fill y where it lies."""
    return has_no_steps(y) and not overlap(word_at(x + DATA), a.nbytes, word_at(y + DATA), a.y_bytes)


@jit.helper
def is_value(a: Any, values: int, x: int, name: int, given: int) -> bool:
    """Whether an argument is what it was in a call."""
    v = carray(pointer(values), 1, VALUE)[0]
    if v.name != name:
        return False
    if v.kind == SAME:
        return holds_same(given, v.what)
    if v.kind == ITEMS:
        return are_items(v, given, v.sizes)
    if v.kind == FILLED or v.kind == COPIED:
        if not lies(given, a.type, a.y_dtype, a.ndim, a.sizes, WRITEABLE):
            return False
        filled = has_no_steps(given) and (not a.laid or is_apart(a, x, given))
        return filled == (v.kind == FILLED)  # type: ignore[no-any-return]
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
    if not lies(x, a.type, a.dtype, a.ndim, a.sizes, 0) or has_no_steps(x) != (a.laid != 0):
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


@jit.helper
def array_filled(run: Any, args: int, kwargs: int, empty: int) -> int:
    """The array that a call fills: one of its arguments, or a new one; with a reference, or 0: no memory."""
    if run.y_place < 0 and run.y_name == 0:
        return _made(empty, run.made)  # type: ignore[no-any-return]
    y = _tuple_item(args, run.y_place) if run.y_place >= 0 else _dict_item(kwargs, run.y_name)
    _count(y)
    return y  # type: ignore[no-any-return]


def _find_call(this: int, given: int, count: int) -> int:
    """What Python calls as f(address of calls, their number, args, kwargs, np.empty): `kept` of one, or None.

    Or the array that it fills, where a record tells how. The interpreter's lock is held.
    """
    calls, known = _integer(word_at(given), 0), _integer(word_at(given + 8), 0)
    args, kwargs = word_at(given + 16), word_at(given + 24)
    found, at, i = this, 0, 0  # it is None
    while i < known:
        a = carray(pointer(calls + i * CALL.itemsize), 1, CALL)[0]
        i += 1
        if is_call(a, args, kwargs):
            found, at, i = a.kept, a.run, known
    _count(found)
    if at != 0:  # others may let go of the record meanwhile, but not of `kept`
        run = carray(pointer(at), 1, RUN)[0]
        y = array_filled(run, args, kwargs, word_at(given + 32))
        if y != 0 and not run_array_steps(run.steps, run.count, run.room, _tuple_item(args, 0), y):
            _drop(y)
            y = _no_memory()
        _drop(found)
        found = y
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
        return self._find(self._address, number, args, kwargs, np.empty) if number else None

    def clear(self) -> None:
        """Find none."""
        self._number = self._next = 0
        self._asked.clear()

    def asks_for(self, key: Hashable, least: int = 1) -> bool:
        """Whether a call that was not found, and is known by a key, is to be added now.

        least: times that it must be asked for at least, as of many sizes each comes once.
        """
        asked = self._asked
        if len(asked) > AGAIN * COUNT:
            asked.clear()
        asked[key] = times = asked.get(key, 0) + 1
        if times < (least if self._number < COUNT else AGAIN):
            return False
        asked[key] = 0  # another call may take its place
        return True

    def add(
        self, kept: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any],
        filled: np.ndarray | None = None, laid: bool = True, copied: bool = False,
        run: ArrayRun | None = None, read: Sequence[np.ndarray] = (),
    ) -> None:  # fmt: skip
        """Find `kept` by arguments: numbers, values of Python, rows of these, dtypes, and what is `filled`.

        Args:
            laid: whether the first argument is C-contiguous and aligned; others are told apart from those.
            copied: whether what is filled is not so, or shares memory with a laid first argument.
            run: what is found in the place of `kept`: the array that this fills.
            read: arrays beside the first, in whose place others of their type and shape may stand.
        """
        find = find_call()
        if find is None:
            return
        self._find = find
        x, y, held = args[0], args[0] if filled is None else filled, list[Any](kwargs)
        given = [*((0, v) for v in args[1:]), *((id(name), v) for name, v in kwargs.items())]
        kinds = {id(v): READ for v in read} | {id(filled): COPIED if copied else FILLED}
        values = np.array([(name, *_value(v, kinds.get(id(v)), held)) for name, v in given], VALUE)
        sizes, cursor = np.array(x.shape, np.int64), np.zeros(3, np.int64)
        whole = kept if run is None else (kept, run)
        call = (
            id(whole), id(np.ndarray), id(x.dtype), x.ndim, sizes.ctypes.data, x.nbytes, int(laid),
            id(y.dtype), y.nbytes, len(args), len(kwargs), values.ctypes.data, cursor.ctypes.data,
            0 if run is None else run.address,
        )  # fmt: skip
        place, before = self._next, self._held[self._next]
        self._calls[place] = call
        self._held[place] = whole, x.dtype, y.dtype, values, sizes, cursor, held
        del before  # only now, as others may have read its record
        self._next = (place + 1) % COUNT
        self._number = max(self._number, place + 1)


def _value(given: Any, array: int | None, held: list[Any]) -> tuple[int, ...]:
    """The fields of `VALUE` behind the name; appends what they point to.

    Args:
        array: the kind of an array that is filled, or read.
    """
    if array == READ:
        sizes = np.array(given.shape, np.int64)
        held.append((sizes, given.dtype))
        return READ, id(given.dtype), given.ndim, sizes.ctypes.data, 0, 0
    if array is not None and given is not None:
        return array, 0, 0, 0, 0, 0
    kind = type(given)
    if kind is list or kind is tuple:
        objects = np.array([id(item) for item in given], np.int64)
        held.append((tuple(given), objects))
        return ITEMS, id(kind), len(given), id(list), 0, objects.ctypes.data
    if kind is not np.ndarray:
        held.append(given)
        return SAME, id(given), 0, 0, 0, 0
    numbers, sizes = given.copy(), np.array(given.shape, np.int64)
    held.append((numbers, sizes, given.dtype))
    return NUMBERS, id(given.dtype), given.ndim, sizes.ctypes.data, given.nbytes, numbers.ctypes.data
