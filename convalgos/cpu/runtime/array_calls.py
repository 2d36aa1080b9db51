"""Calls of a plan with arrays that its kernels read and write where they lie, in compiled code.

On a problem of a microsecond, Python's checks of the arrays, the arguments of the kernels and their launch
take longer than the sums. Compiled, they take a tenth of a microsecond: `array_call` reads the objects of
NumPy where `PyArrayObject_fields` of its C API has their fields, which is tried on examples first.

What it does not know - arrays of other kinds, dtypes, shapes or strides, and those that overlap - it leaves
to the caller, untouched.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from convalgos.core.problem import ConvProblem
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors.simd import call, carray, copy_bytes, external, pointer

# Bytes from the first one of an object to what tells its type, and of an array to its fields
HEAD = object.__basicsize__
TYPE, DATA, NDIM, SIZES, DTYPE, FLAGS = HEAD - 8, HEAD, HEAD + 8, HEAD + 16, HEAD + 40, HEAD + 48
LAID, WRITEABLE = 0x101, 0x400  # flags: C-contiguous and aligned; may be written

# What a plan takes and runs: addresses of (ndim,) sizes and of (count, 2) steps, which are (kernel, tasks).
NAMES = (
    "type dtype x_ndim x_sizes x_bytes y_ndim y_sizes y_bytes bias_sizes bias_bytes no_bias launch steps "
    "count"
)
CALL = np.dtype([(name, np.int64) for name in NAMES.split()])
X, W, Y, BIAS, RELU = range(5)  # words of the record of a run

_integer = external("PyNumber_AsSsize_t", 2)
_release = external("PyEval_SaveThread", 0)
_resume = external("PyEval_RestoreThread", 1, returns=False)
_count = external("Py_IncRef", 1, returns=False)


@jit.helper
def word_at(address: int) -> int:
    return int(carray(pointer(address), 1, np.int64)[0])


@jit.helper
def lies(array: int, type: int, dtype: int, ndim: int, sizes: int, flags: int) -> bool:
    """Whether an object is an array of just this type, dtype and shape, with these flags."""
    if word_at(array + TYPE) != type or word_at(array + DTYPE) != dtype:
        return False
    if carray(pointer(array + NDIM), 1, np.int32)[0] != ndim:
        return False
    if carray(pointer(array + FLAGS), 1, np.int32)[0] & flags != flags:
        return False
    found = word_at(array + SIZES)
    same = True
    for at in range(0, ndim * 8, 8):
        same = same and word_at(found + at) == word_at(sizes + at)
    return same


@jit.helper
def overlap(one: int, one_bytes: int, other: int, other_bytes: int) -> bool:
    """Whether two pieces of memory share a byte."""
    return one < other + other_bytes and other < one + one_bytes


def _call_arrays(this: int, given: int, count: int) -> int:
    """What Python calls as f(call, x, w, y, bias, relu, record, padded bias, pool, threads): y, or None.

    call, w, record, padded bias and pool are addresses; x, y and bias are arrays, or bias is None.
    """
    c = carray(pointer(_integer(word_at(given), 0)), 1, CALL)[0]
    x, y, bias = word_at(given + 8), word_at(given + 24), word_at(given + 32)
    result = this  # it is None
    if (
        lies(x, c.type, c.dtype, c.x_ndim, c.x_sizes, LAID)
        and lies(y, c.type, c.dtype, c.y_ndim, c.y_sizes, LAID | WRITEABLE)
        and (bias == this or lies(bias, c.type, c.dtype, 1, c.bias_sizes, LAID))
    ):
        from_, to = word_at(x + DATA), word_at(y + DATA)
        if not overlap(from_, c.x_bytes, to, c.y_bytes):
            result = y
            address = _integer(word_at(given + 48), 0)
            record = carray(pointer(address), 5, np.int64)
            record[X], record[Y], record[BIAS] = from_, to, c.no_bias
            record[W], record[RELU] = _integer(word_at(given + 16), 0), _integer(word_at(given + 40), 0)
            if bias != this:  # a copy, as kernels read whole vectors of it
                record[BIAS] = _integer(word_at(given + 56), 0)
                copy_bytes(record[BIAS], word_at(bias + DATA), c.bias_bytes)
            pool, threads = _integer(word_at(given + 64), 0), _integer(word_at(given + 72), 0)
            state = _release()
            for step in range(c.steps, c.steps + c.count * 16, 16):
                call(c.launch, (pool, word_at(step), address, word_at(step + 8), threads))
            _resume(state)
    _count(result)
    return result


class Taken:
    """What a plan of a problem takes and runs: the record of `CALL`, at `address`."""

    def __init__(self, problem: ConvProblem, no_bias: int, steps: Sequence[tuple[int, int]]):
        x_shape, _, y_shape = problem.array_shapes
        self.dtype = np.dtype(problem.dtype)
        self._parts = [np.array(part, np.int64) for part in (x_shape, y_shape, (problem.bias_size,), steps)]
        x_sizes, y_sizes, bias_sizes, pairs = (part.ctypes.data for part in self._parts)
        x_bytes, y_bytes, bias_bytes = (int(part.prod()) * problem.itemsize for part in self._parts[:3])
        values = (
            id(np.ndarray), id(self.dtype), len(x_shape), x_sizes, x_bytes, len(y_shape), y_sizes, y_bytes,
            bias_sizes, bias_bytes, no_bias, jit.launch_address(), pairs, len(steps),
        )  # fmt: skip
        self.record = np.array([values], CALL)
        self.address = self.record.ctypes.data


@functools.cache
def array_call() -> Callable[..., Any] | None:
    """The compiled function; None where the fields of NumPy's arrays are elsewhere."""
    frozen = np.zeros((3, 4, 5), np.float32)
    frozen.flags.writeable = False
    if all(_is_known(a) for a in (frozen, np.zeros((3, 4))[:, ::2], np.zeros(7), np.zeros((2, 0)))):
        return jit.from_python(b"array_call", _call_arrays, jit.FASTCALL)
    return None


def _is_known(array: np.ndarray) -> bool:
    """Whether an array's fields are where they are read."""
    at, whole, half = id(array), ctypes.c_int64, ctypes.c_int32
    sizes = whole.from_address(at + SIZES).value if ctypes.sizeof(ctypes.c_void_p) == 8 else 0
    return (
        sizes != 0
        and whole.from_address(at + TYPE).value == id(type(array))
        and whole.from_address(at + DATA).value == array.ctypes.data
        and half.from_address(at + NDIM).value == array.ndim
        and tuple((whole * array.ndim).from_address(sizes)) == array.shape
        and whole.from_address(at + DTYPE).value == id(array.dtype)
        and half.from_address(at + FLAGS).value == array.flags.num
    )
