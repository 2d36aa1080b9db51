"""Kernels compute what Python does with the same text, and what is no kernel is told by its line."""

import ctypes
import random
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="compiles kernels")

from convalgos.cpu.compile.lowering import NotAKernel, lower
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors.simd import call, carray, copy_bytes, pointer, zero_bytes

NINE = 9


class Pair(NamedTuple):
    low: int
    high: int


def compiled(function):
    """The function as a kernel, to be called from Python."""
    kernel = jit.compile_kernel(function, "integer")
    count = function.__code__.co_argcount
    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * count)(kernel)


# --- what both compute ----------------------------------------------------------------------------


def quotients(a, b):
    if b == 0:
        return 0
    return a // b * 1000 + a % b + a // 8 * 3 + a % 8 + a // 7 - a % 7 + a // -3 + a % -3


def comparisons(a, b):
    found = (a < b) + 2 * (a <= b) + 4 * (a > b) + 8 * (a >= b) + 16 * (a == b) + 32 * (a != b)
    found += 64 * (-5 <= a < b) + 128 * (not a)
    if (a > 0 and b // a > 1) or b < -4:
        found += 256
    return found


def bits(a, b):
    return (a << 3) ^ (b >> 2) | (a & b) + abs(a) + min(a, b, 3) * max(a, b) + int(a < b) - (-a)


def turns(a, b):
    total = 0
    for i in range(a % 11):
        if i == 7:
            break
        for j in range(b % 5, 12, 3):
            if (i + j) % 4 == 1:
                continue
            total += i * j
        a += 1  # the bounds were taken before
    for i in range(9, a % 6, -2):
        total = total * 3 + i
    while True:
        total -= NINE
        if total < 50:
            return total
        while total % 2:
            total //= 2


def runs(a, b):
    step = b % 3 + 1
    total = 0
    for i in range(a, a + 10, step):
        total = total * 2 + i
    for i in range(a + 10, a, -step):
        total = total * 2 - i
    return total


@jit.helper
def ordered(a, b):
    if a > b:
        return Pair(b, a)
    return Pair(a, b)


@jit.helper
def spread(pair, factor):
    pair = Pair(pair.low * factor, pair.high)
    if factor == 2:
        return (pair.high - pair.low, (factor, pair.low))
    return (pair.high, (factor + 1, 0))


def tuples(a, b):
    first = ordered(a, b)
    c, (d, e) = spread(first, 2)
    f, (g, h) = spread(ordered(b, NINE), 3)
    low, high = (a, 1) if a > 3 else (2, b)
    same = 100 if ordered(a, b) == (a, b) else 0
    return c + 3 * d - e + (f, g, h)[0] * 7 + g + low - high + first.low + same


@pytest.mark.parametrize("function", [quotients, comparisons, bits, turns, runs, tuples])
def test_as_python(function):
    kernel = compiled(function)
    draw = random.Random(3)
    edges = [-9, -8, -7, -1, 0, 1, 2, 7, 8, 9]
    pairs = [(a, b) for a in edges for b in edges]
    pairs += [(draw.randint(-(2**40), 2**40), draw.randint(-300, 300)) for _ in range(200)]
    for a, b in pairs:
        assert kernel(a, b) == function(a, b), (a, b)


def test_a_quotient_by_zero_is_zero():
    def kernel(a, b):
        return a // b * 10 + a % b

    assert [compiled(kernel)(a, 0) for a in (-5, 0, 5)] == [0, 0, 0]


# --- memory ---------------------------------------------------------------------------------------

AXIS = np.dtype([("size", np.int64), ("step", np.int64)])
RECORD = np.dtype([("x", np.int64), ("rows", AXIS), ("columns", AXIS), ("y", np.int64)])
DTYPES = (np.int16, np.uint16, np.int32, np.uint32, np.int64)


@jit.helper
def at(a, row, column):
    return row * a.rows.step + column * a.columns.step


@pytest.mark.parametrize("which", range(len(DTYPES)))
def test_words_of_all_widths(which):
    def kernel(x, rows, y):
        source = carray(pointer(x), (rows, 3), DTYPES[which])
        target = carray(pointer(y), rows, np.int64)
        for i in range(rows):
            target[i] = source[i, 0] - 2 * source[i, 2]
            source[i, 1] = target[i]
            source[i, 2] += 1

    x = np.array([[1, 2, 3], [-4, 5, -6], [2**15 - 1, 0, 7]]).astype(DTYPES[which])
    before, y = x.copy(), np.zeros(3, np.int64)
    run = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(jit.compile_kernel(kernel))
    run(x.ctypes.data, 3, y.ctypes.data)
    wide = before.astype(np.int64)
    expected = wide[:, 0] - 2 * wide[:, 2]
    assert (x[:, 1] == expected.astype(x.dtype)).all() and (x[:, 2] == before[:, 2] + x.dtype.type(1)).all()
    assert (y == expected).all()


def test_floats_compare_as_in_python():
    """What is no number, too."""
    numbers = np.float32([-1.5, -0.0, 0.0, 2, np.inf, np.nan])

    def below(a, b):
        x, y = carray(pointer(a), 1, np.float32)[0], carray(pointer(b), 1, np.float32)[0]
        return (x < y) + 2 * (x <= y) + 4 * (x > y) + 8 * (x >= y) + 16 * (x == y) + 32 * (x != y)

    compare, begin = compiled(below), numbers.ctypes.data
    for i, x in enumerate(numbers):
        for j, y in enumerate(numbers):
            right = (x < y) + 2 * (x <= y) + 4 * (x > y) + 8 * (x >= y) + 16 * (x == y) + 32 * (x != y)
            assert compare(begin + 4 * i, begin + 4 * j) == right, (x, y)


def test_records_and_kernels_that_call_kernels():
    def inner(record, row):
        a = carray(pointer(record), 2, RECORD)[1]
        for column in range(a.columns.size):
            carray(pointer(a.y), 100, np.int64)[at(a, row, column)] = row * 10 + column
        a.columns.size -= 1

    def outer(record, kernel):
        records = carray(pointer(record), 2, RECORD)
        for row in range(records[1].rows.size):
            call(kernel, (record, row))
        copy_bytes(records[1].x, records[1].y, 16)
        zero_bytes(records[1].y, 8)

    y, x = np.full(12, -1), np.zeros(2, np.int64)
    records = np.zeros(2, RECORD)
    records[1] = (x.ctypes.data, (3, 4), (3, 1), y.ctypes.data)
    run = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 2)(jit.compile_kernel(outer))
    run(records.ctypes.data, jit.compile_kernel(inner))
    assert y.tolist() == [0, 1, 2, -1, 10, 11, -1, -1, 20, -1, -1, -1]
    assert x.tolist() == [0, 1] and records[1]["columns"]["size"] == 0


# --- what is known ahead --------------------------------------------------------------------------


def test_what_is_known_ahead_is_folded():
    def kernel(WIDE):
        def kernel(address):
            if WIDE:
                zero_bytes(address, 8 * NINE)
            else:
                not_a_function(address)  # noqa: F821 - left out
            taps = 3 if WIDE and NINE > 8 else not_a_number  # noqa: F821
            carray(pointer(address), 1, np.int64)[0] = taps

        return kernel

    y = np.ones(10, np.int64)
    ctypes.CFUNCTYPE(None, ctypes.c_int64)(jit.compile_kernel(kernel(1)))(y.ctypes.data)
    assert y.tolist() == [3] + [0] * 8 + [1]
    with pytest.raises(NotAKernel, match="not_a_function has no value here"):
        lower(kernel(0))


# --- what is no kernel ----------------------------------------------------------------------------


def a_list(a):
    return [a]


def a_float(a):
    b = a / 2
    carray(pointer(a), 1, np.int64)[0] = b


def two_kinds(a):
    b = a
    if a > 0:
        b = np.float32(2.0)
    carray(pointer(a), 1, np.float32)[0] = b


def no_value(a):
    if a > 0:
        carray(pointer(a), 1, np.int64)[0] = later  # noqa: F821 - the test is that it has none
    later = 3
    later += a


def any_function(a):
    print(a)


def no_field(a):
    carray(pointer(a), 1, RECORD)[0].z = 1


def few_indices(a):
    carray(pointer(a), (2, 2), np.int64)[0] = 1


def no_constant(a):
    return (a, a)[a]


def while_else(a):
    while a:
        a -= 1
    else:
        return a


@pytest.mark.parametrize(
    ("function", "line", "told"),
    [
        (a_list, 1, "'[a]' is no expression of kernels"),
        (a_float, 1, "Div is no arithmetic of kernels"),
        (two_kinds, 3, "it has values of different kinds"),
        (no_value, 2, "later has no value here"),
        (any_function, 1, "'print' is no function of kernels"),
        (no_field, 1, "the record has no field z, but x, rows, columns, y"),
        (few_indices, 1, "2 indices are needed, not 1"),
        (no_constant, 1, "only words in memory have elements, and tuples those of a constant index"),
        (while_else, 1, "'while a:' is no statement of kernels"),
    ],
)
def test_what_is_no_kernel_is_told_by_its_line(function, line, told):
    with pytest.raises(NotAKernel) as caught:
        lower(function, returns=True)
    where = f"{__file__}:{function.__code__.co_firstlineno + line}: "
    assert str(caught.value).startswith(where + told)


def test_a_kernel_without_text_is_refused():
    scope: dict = {}
    exec("def kernel(a):\n    pass", scope)
    with pytest.raises(NotAKernel, match="the text of kernel is not in <string>"):
        lower(scope["kernel"])
