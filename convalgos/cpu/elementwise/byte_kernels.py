"""The drivers of elementwise steps of maps of uint8 with scale and zero point: from and to float32, sums,
products, tables of all 256 integers, and runs of bytes copied beside each other.

Numbers are computed in float32, each operation rounded, limited, and rounded to whole numbers, ties to even.
"""

from __future__ import annotations

import numpy as np

from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.integers import ROUNDING, ROUNDING_BITS, Integers, bytes_of, words_of
from convalgos.cpu.vectors.requantise import limited, store_bytes
from convalgos.cpu.vectors.simd import Value, Vec, carray, copy_bytes, function_of, ir, pointer

ADD, MULTIPLY, QUANTISE, DEQUANTISE = range(4)

# What is done to integers a and b; `low` and `high` are whole numbers with ROUNDING added, `after` is the
# zero point of y less ROUNDING_BITS.
BYTE_NUMBERS = np.dtype(
    [(name, "f4") for name in ("a_scale", "b_scale", "low", "high")]
    + [(name, "i4") for name in ("a_zero", "b_zero", "after")]
)
# Rows of `count` elements; b is a row of as many where `by_element`, else one number a row, and is the same
# for `repeats` rows. Units are `row_chunk` rows or, where that is one, `chunk` elements of a row.
BYTES_FIELDS = fields("a b y by_element rows count repeats row_chunk chunk numbers table tasks")
# Runs of `count` bytes, x_row and y_row bytes apart.
RUNS_FIELDS = fields("x y rows count x_row y_row tasks")


def byte_numbers(
    a_scale: float, a_zero: int, low: float, high: float, y_zero: int, b_scale: float = 0.0, b_zero: int = 0
) -> np.ndarray:
    """The record of an operation; low and high: of whole numbers, without the zero point of y."""
    limits = low + ROUNDING, high + ROUNDING
    return np.array([(a_scale, b_scale, *limits, a_zero, b_zero, y_zero - ROUNDING_BITS)], BYTE_NUMBERS)


class ByteOperation:
    """`BYTE_NUMBERS` as vectors. v: of float32."""

    def __init__(self, v: Vec, address: Value):
        at, words = v.pointer(address), words_of(v)
        self.v, self.words = v, words
        self.a_scale, self.b_scale, self.low, self.high = (v.broadcast(at, i) for i in range(4))
        self.a_zero, self.b_zero, self.after = (words.broadcast(at, i) for i in range(4, 7))

    def finished(self, value: Value) -> Value:
        """Words of y, of numbers below 2**22."""
        v = self.v
        value = limited(v, v.fadd(value, v.const(ROUNDING)), self.low, self.high)
        return self.words.add(v.b.bitcast(value, self.words.type), self.after)

    def quantised(self, value: Value) -> Value:
        """Words of y of any numbers; NaN becomes the least."""
        v = self.v
        spread = v.const(ROUNDING)
        low, high = v.fsub(self.low, spread), v.fsub(self.high, spread)
        value = v.b.fdiv(value, self.a_scale)
        value = v.b.select(v.b.fcmp_ordered(">", value, low), value, low)
        value = v.b.select(v.b.fcmp_ordered("<", value, high), value, high)
        return self.words.add(v.b.bitcast(v.fadd(value, spread), self.words.type), self.after)

    def integers(self, loaded: Value, zero: Value) -> Value:
        """Words of bytes, less their zero point."""
        return self.words.sub(bytes_of(self.v).resized(loaded, 4, False), zero)


@simd.emitter
def change_bytes(
    v: Vec, OPERATION: int, BY_ELEMENT: int, a: Value, b: Value, y: Value, count: Value, numbers: Value
) -> None:
    """y[i] of a[i] and b[i], or b[0], of bytes; a of QUANTISE, and y of DEQUANTISE, are float32."""
    by, narrow = ByteOperation(v, numbers), bytes_of(v)
    source, more, to = (v.pointer(address) for address in (a, b, y))

    def other(at: Value, mask: Value) -> Value:
        loaded = narrow.load(more, at) if mask is None else narrow.load_masked(more, at, mask)
        return by.integers(loaded, by.b_zero)

    same = None
    if OPERATION <= MULTIPLY and not BY_ELEMENT:
        same = by.integers(narrow.broadcast(more), by.b_zero)

    def elements(at: Value, mask: Value = None) -> None:
        of = v if OPERATION == QUANTISE else narrow
        loaded = of.load(source, at) if mask is None else of.load_masked(source, at, mask)
        if OPERATION == QUANTISE:
            words = by.quantised(loaded)
        else:
            integers = by.integers(loaded, by.a_zero)
            if OPERATION == DEQUANTISE:
                value = v.fmul(by.words.floats(integers), by.a_scale)
                if mask is None:
                    v.store(value, to, at)
                else:
                    v.store_masked(value, to, at, mask)
                return
            second = same if same is not None else other(at, mask)
            if OPERATION == ADD:
                first = v.fmul(by.words.floats(integers), by.a_scale)
                value = v.fadd(first, v.fmul(by.words.floats(second), by.b_scale))
            else:
                value = v.fmul(by.words.floats(by.words.mul(integers, second)), by.a_scale)
            words = by.finished(value)
        store_bytes(v, words, narrow.at(to, at), mask)

    whole = v.idiv(count, v.lanes)
    with v.loop(whole) as i:
        elements(v.imul(i, v.lanes))
    done = v.imul(whole, v.lanes)
    with v.unless_negative(v.isub(v.isub(count, done), 1)):
        elements(done, narrow.mask(v.isub(count, done)))


@jit.specialise
def change_share(LANES: int, OPERATION: int) -> jit.Kernel:
    """The units of a task."""
    x_size, y_size = (4 if OPERATION == QUANTISE else 1), (4 if OPERATION == DEQUANTISE else 1)

    def change_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, BYTES_FIELDS)[0]
        row_units = (a.rows + a.row_chunk - 1) // a.row_chunk
        units = (a.count + a.chunk - 1) // a.chunk
        total = row_units * units
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            i = unit % units * a.chunk
            r = unit // units * a.row_chunk
            rows, count = min(a.row_chunk, a.rows - r), min(a.chunk, a.count - i)
            for row in range(r, r + rows):
                x, y = a.a + (row * a.count + i) * x_size, a.y + (row * a.count + i) * y_size
                if a.by_element:
                    b = a.b + row // a.repeats * a.count + i
                    change_bytes(4, LANES, OPERATION, 1, x, b, y, count, a.numbers)
                else:
                    change_bytes(4, LANES, OPERATION, 0, x, a.b + row, y, count, a.numbers)

    return change_share


@simd.emitter
def look_up(v: Vec, PERMUTES: int, x: Value, y: Value, count: Value, table: Value) -> None:
    """y[i] = table[x[i]]. v: of bytes.

    PERMUTES: whether vectors are of 64 bytes, and the processor has "avx512vbmi".
    """
    i = Integers(v.b, v.lanes, 1)
    source, to, entries = i.pointer(x), i.pointer(y), i.pointer(table)
    begin = v.integer(0)
    if PERMUTES:
        quarters = [i.load(entries, i.lanes * n) for n in range(4)]
        kind = ir.FunctionType(i.type, [i.type] * 3)
        permute = function_of(i.b, kind, "llvm.x86.avx512.vpermi2var.qi.512")

        def found(index: Value) -> Value:
            low, high = (i.b.call(permute, [quarters[n], index, quarters[n + 1]]) for n in (0, 2))
            return i.b.select(i.b.icmp_signed("<", index, i.zero()), high, low)

        whole = v.idiv(count, v.lanes)
        with v.loop(whole) as n:
            at = v.imul(n, v.lanes)
            i.store(found(i.load(source, at)), to, at)
        begin = v.imul(whole, v.lanes)
    with v.loop(v.isub(count, begin)) as n:
        at = v.iadd(begin, n)
        index = i.b.zext(i.b.load(i.at(source, at), typ=i.element), ir.IntType(64))
        i.b.store(i.b.load(i.at(entries, index), typ=i.element), i.at(to, at))


@jit.specialise
def look_up_share(LANES: int, PERMUTES: int) -> jit.Kernel:
    """A run of the elements for each task."""

    def look_up_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, BYTES_FIELDS)[0]
        first, end = a.count * task // a.tasks, a.count * (task + 1) // a.tasks
        look_up(1, LANES, PERMUTES, a.a + first, a.y + first, end - first, a.table)

    return look_up_share


@jit.specialise
def copy_runs() -> jit.Kernel:
    """A share of the runs for each task."""

    def copy_runs(args: int, task: int) -> None:
        a = carray(pointer(args), 1, RUNS_FIELDS)[0]
        for row in range(a.rows * task // a.tasks, a.rows * (task + 1) // a.tasks):
            copy_bytes(a.y + row * a.y_row, a.x + row * a.x_row, a.count)

    return copy_runs
