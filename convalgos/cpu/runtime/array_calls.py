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
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from convalgos.core.plan import numpy_dtype
from convalgos.core.problem import ConvProblem
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.half import widen_bias
from convalgos.cpu.runtime.records import record_of_words
from convalgos.cpu.vectors.simd import call, carray, copy_bytes, external, pointer

# Bytes from the first one of an object to what tells its type, and of an array to its fields
HEAD = object.__basicsize__
TYPE, DATA, NDIM, SIZES, DTYPE, FLAGS = HEAD - 8, HEAD, HEAD + 8, HEAD + 16, HEAD + 40, HEAD + 48
LAID, WRITEABLE = 0x101, 0x400  # flags: C-contiguous and aligned; may be written

# What a plan takes and runs: addresses of (ndim,) sizes and of (count, 2) steps, which are (kernel, tasks).
NAMES = (
    "type x_dtype x_ndim x_sizes x_bytes y_dtype y_ndim y_sizes y_bytes bias_dtype bias_sizes bias_bytes "
    "half no_bias launch steps count"
)
CALL = np.dtype([(name, np.int64) for name in NAMES.split()])
X, W, Y, BIAS, RELU = range(5)  # words of the record of a run
AS_IT_IS, HALF, BRAIN = range(3)  # a bias: copied, or widened from float16 or bfloat16
# What the filter and the output step of integers set: how many fields there are, where int32 are that sums
# start from, and where (count, 2) words are: which of the record, and its value.
COUNT, STARTS, FIELDS = range(3)

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


@jit.helper
def taken_as_laid(c: Any, x: int, y: int, bias: int, none: int) -> bool:
    """Whether x, y and a bias, which may be `none`, are laid as kernels read and write them, and apart."""
    if not lies(x, c.type, c.x_dtype, c.x_ndim, c.x_sizes, LAID):
        return False
    if not lies(y, c.type, c.y_dtype, c.y_ndim, c.y_sizes, LAID | WRITEABLE):
        return False
    if bias != none and not lies(bias, c.type, c.bias_dtype, 1, c.bias_sizes, LAID):
        return False
    return not overlap(word_at(x + DATA), c.x_bytes, word_at(y + DATA), c.y_bytes)


@jit.helper
def run_steps(c: Any, record: int, pool: int, threads: int) -> None:
    """All steps on a record, while other threads of Python go on."""
    state = _release()
    for step in range(c.steps, c.steps + c.count * 16, 16):
        call(c.launch, (pool, word_at(step), record, word_at(step + 8), threads))
    _resume(state)


def _call_arrays(this: int, given: int, count: int) -> int:
    """What Python calls as f(call, x, w, y, bias, relu, record, padded bias, pool, threads): y, or None.

    call, w, record, padded bias and pool are addresses; x, y and bias are arrays, or bias is None.
    """
    c = carray(pointer(_integer(word_at(given), 0)), 1, CALL)[0]
    x, y, bias = word_at(given + 8), word_at(given + 24), word_at(given + 32)
    result = this  # it is None
    if taken_as_laid(c, x, y, bias, this):
        result = y
        address = _integer(word_at(given + 48), 0)
        record = carray(pointer(address), 5, np.int64)
        record[X], record[Y], record[BIAS] = word_at(x + DATA), word_at(y + DATA), c.no_bias
        record[W], record[RELU] = _integer(word_at(given + 16), 0), _integer(word_at(given + 40), 0)
        if bias != this:  # a copy, as kernels read whole vectors of it
            record[BIAS] = _integer(word_at(given + 56), 0)
            if c.half == AS_IT_IS:
                copy_bytes(record[BIAS], word_at(bias + DATA), c.bias_bytes)
            else:
                widen_bias(int(c.half == BRAIN), word_at(bias + DATA), record[BIAS], c.bias_bytes // 2)
        run_steps(c, address, _integer(word_at(given + 64), 0), _integer(word_at(given + 72), 0))
    _count(result)
    return result


def _call_integers(this: int, given: int, count: int) -> int:
    """What Python calls as f(call, x, settings, y, bias, record, starts, pool, threads): y, or None.

    call, settings, record, starts and pool are addresses; x, y and bias are arrays, or bias is None.
    """
    c = carray(pointer(_integer(word_at(given), 0)), 1, CALL)[0]
    x, y, bias = word_at(given + 8), word_at(given + 24), word_at(given + 32)
    result = this  # it is None
    if taken_as_laid(c, x, y, bias, this):
        result = y
        settings, address = _integer(word_at(given + 16), 0), _integer(word_at(given + 40), 0)
        starts, fields = word_at(settings + 8 * STARTS), word_at(settings + 8 * FIELDS)
        for at in range(fields, fields + word_at(settings + 8 * COUNT) * 16, 16):
            carray(pointer(address + 8 * word_at(at)), 1, np.int64)[0] = word_at(at + 8)
        record = carray(pointer(address), 5, np.int64)
        record[X], record[Y], record[BIAS] = word_at(x + DATA), word_at(y + DATA), starts
        if bias != this:
            filters = c.bias_bytes // 4
            record[BIAS] = _integer(word_at(given + 48), 0)
            sums = carray(pointer(record[BIAS]), filters, np.int32)
            offsets = carray(pointer(starts), filters, np.int32)
            added = carray(pointer(word_at(bias + DATA)), filters, np.int32)
            for k in range(filters):
                sums[k] = offsets[k] + added[k]
        run_steps(c, address, _integer(word_at(given + 56), 0), _integer(word_at(given + 64), 0))
    _count(result)
    return result


class Taken:
    """What a plan of a problem takes and runs: the record of `CALL`, at `address`."""

    def __init__(self, problem: ConvProblem, no_bias: int, steps: Sequence[tuple[int, int]]):
        x_shape, _, y_shape = problem.array_shapes
        first, _, result = problem.arrays
        types = [problem.dtype_of(first), problem.dtype_of(result)]
        types.append("int32" if problem.sums_integers else types[1])  # of a bias
        self.dtypes = x_dtype, y_dtype, bias_dtype = [numpy_dtype(name) for name in types]
        half = {"float16": HALF, "bfloat16": BRAIN}.get(types[2], AS_IT_IS)
        ndim, bias_size = len(x_shape), problem.bias_size
        sizes = [*x_shape, *y_shape, bias_size, *(n for step in steps for n in step)]
        self._sizes = np.array(sizes, np.int64)
        at = jit.data_address()(self._sizes)
        values = (
            id(np.ndarray), id(x_dtype), ndim, at, math.prod(x_shape) * x_dtype.itemsize, id(y_dtype),
            len(y_shape), at + 8 * ndim, math.prod(y_shape) * y_dtype.itemsize, id(bias_dtype),
            at + 8 * (ndim + len(y_shape)), bias_size * bias_dtype.itemsize, half, no_bias,
            jit.launch_address(), at + 8 * (ndim + len(y_shape) + 1), len(steps),
        )  # fmt: skip
        self.record = record_of_words(CALL, values)
        self.address = jit.data_address()(self.record)


@functools.cache
def array_call() -> Callable[..., Any] | None:
    """The compiled function; None where the fields of NumPy's arrays are elsewhere."""
    frozen = np.zeros((3, 4, 5), np.float32)
    frozen.flags.writeable = False
    if all(_is_known(a) for a in (frozen, np.zeros((3, 4))[:, ::2], np.zeros(7), np.zeros((2, 0)))):
        return jit.from_python(b"array_call", _call_arrays, jit.FASTCALL)
    return None


@functools.cache
def integer_call() -> Callable[..., Any] | None:
    """The one of problems of integers; None where `array_call` is."""
    if array_call() is None:
        return None
    return jit.from_python(b"integer_call", _call_integers, jit.FASTCALL)


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
