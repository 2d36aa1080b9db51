"""The drivers of elementwise steps of maps of uint8 with scale and zero point: from and to float32, sums,
products, tables of all 256 integers, and runs of bytes copied beside each other.

Numbers are computed in float32, each operation rounded, limited, and rounded to whole numbers, ties to even.
"""

from __future__ import annotations

import numpy as np

from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.blocks import loop_blocks
from convalgos.cpu.vectors.integers import ROUNDING, ROUNDING_BITS, Integers, bytes_of, words_of
from convalgos.cpu.vectors.lanes import load_lanes, store_lanes
from convalgos.cpu.vectors.packing import (
    added_shorts,
    bytes_of_shorts,
    limited_bytes,
    packed_in_order,
    shorts_of_words,
    to_nearest,
)
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

    def of_packed(self) -> tuple[Value, Value, Value]:
        """What is added to numbers of 16 bits, and the limits of bytes."""
        v, words = self.v, self.words
        zero = words.add(self.after, words.const(ROUNDING_BITS))
        limits = [words.add(v.b.bitcast(n, words.type), self.after) for n in (self.low, self.high)]
        low, high = (packed_in_order(v, [limit] * 4, False) for limit in limits)
        return shorts_of_words(v, zero, zero), low, high

    def quarters(self, loaded: Value, zero: Value) -> list[Value]:
        """Words of four vectors of bytes as `packed_in_order` takes them, less their zero point."""
        v, count = self.v, 4 * self.v.lanes
        nothing, found = Integers(v.b, count, 1).zero(), []
        for n in range(4):
            places = [16 * (lane // 4) + 4 * n + lane % 4 for lane in range(v.lanes)]
            order = [place for first in places for place in (first, count, count, count)]
            words = v.b.bitcast(v.shuffle(loaded, nothing, order), self.words.type)
            found.append(self.words.sub(words, zero))
        return found

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
def change_bytes(v: Vec, OPERATION: int, a: Value, y: Value, count: Value, numbers: Value) -> None:
    """y[i] of a[i]: float32 to bytes (QUANTISE), or bytes to float32 (DEQUANTISE)."""
    by, narrow = ByteOperation(v, numbers), bytes_of(v)
    source, to = v.pointer(a), v.pointer(y)

    def elements(at: Value, left: Value = None) -> None:
        mask = None if left is None else narrow.mask(left)
        of = v if OPERATION == QUANTISE else narrow
        loaded = load_lanes(of, source, at, mask)
        if OPERATION == QUANTISE:
            store_bytes(v, by.quantised(loaded), narrow.at(to, at), mask)
            return
        value = v.fmul(by.words.floats(by.integers(loaded, by.a_zero)), by.a_scale)
        store_lanes(v, value, to, at, mask)

    loop_blocks(v, count, v.lanes, elements)


@simd.emitter
def combine_bytes(
    v: Vec, OPERATION: int, PACKS: int, BY_ELEMENT: int, a: Value, b: Value, y: Value, count: Value,
    numbers: Value,
) -> None:  # fmt: skip
    """y[i] of bytes a[i] and b[i], or b[0].

    PACKS: whether four vectors at a time become bytes by packing, for which numbers are below 2**31.
    """
    by, narrow, line = ByteOperation(v, numbers), bytes_of(v), Integers(v.b, 4 * v.lanes, 1)
    source, more, to = (v.pointer(address) for address in (a, b, y))
    same = None if BY_ELEMENT else by.integers(narrow.broadcast(more), by.b_zero)

    def numbers_of(first: Value, second: Value) -> Value:
        """float32 of words less their zero points."""
        if OPERATION == MULTIPLY:
            return v.fmul(by.words.floats(by.words.mul(first, second)), by.a_scale)
        of_a, of_b = by.words.floats(first), by.words.floats(second)
        return v.fadd(v.fmul(of_a, by.a_scale), v.fmul(of_b, by.b_scale))

    def elements(at: Value, mask: Value = None) -> None:
        def integers(of: Value, zero: Value) -> Value:
            return by.integers(load_lanes(narrow, of, at, mask), zero)

        second = integers(more, by.b_zero) if same is None else same
        words = by.finished(numbers_of(integers(source, by.a_zero), second))
        store_bytes(v, words, narrow.at(to, at), mask)

    def vectors(begin: Value, count: Value) -> None:
        def vector(at: Value, left: Value = None) -> None:
            elements(v.iadd(begin, at), None if left is None else narrow.mask(left))

        loop_blocks(v, count, v.lanes, vector)

    def packed(at: Value, left: Value = None) -> None:
        if left is not None:
            vectors(at, left)
            return
        firsts = by.quarters(line.load(source, at), by.a_zero)
        seconds = [same] * 4 if same is not None else by.quarters(line.load(more, at), by.b_zero)
        words = [
            to_nearest(v, numbers_of(first, second)) for first, second in zip(firsts, seconds, strict=True)
        ]
        firsts, lasts = (added_shorts(v, shorts_of_words(v, words[n], words[n + 1]), after) for n in (0, 2))
        line.store(limited_bytes(v, bytes_of_shorts(v, firsts, lasts, False), low, high, False), to, at)

    if PACKS:
        after, low, high = by.of_packed()
        loop_blocks(v, count, line.lanes, packed)
    else:
        vectors(v.integer(0), count)


@jit.specialise
def change_share(LANES: int, OPERATION: int) -> jit.Kernel:
    """A run of the elements for each task."""
    x_size, y_size = (4, 1) if OPERATION == QUANTISE else (1, 4)

    def change_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, BYTES_FIELDS)[0]
        first, end = a.count * task // a.tasks, a.count * (task + 1) // a.tasks
        change_bytes(4, LANES, OPERATION, a.a + first * x_size, a.y + first * y_size, end - first, a.numbers)

    return change_share


@jit.specialise
def combine_bytes_share(LANES: int, OPERATION: int, PACKS: int) -> jit.Kernel:
    """The units of a task."""

    def combine_bytes_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, BYTES_FIELDS)[0]
        row_units = (a.rows + a.row_chunk - 1) // a.row_chunk
        units = (a.count + a.chunk - 1) // a.chunk
        total = row_units * units
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            i = unit % units * a.chunk
            r = unit // units * a.row_chunk
            rows, count = min(a.row_chunk, a.rows - r), min(a.chunk, a.count - i)
            for row in range(r, r + rows):
                at = row * a.count + i
                if a.by_element:
                    b = a.b + row // a.repeats * a.count + i
                    combine_bytes(4, LANES, OPERATION, PACKS, 1, a.a + at, b, a.y + at, count, a.numbers)
                else:
                    b = a.b + row
                    combine_bytes(4, LANES, OPERATION, PACKS, 0, a.a + at, b, a.y + at, count, a.numbers)

    return combine_bytes_share


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
