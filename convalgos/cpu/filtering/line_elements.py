"""Lines between memory and sums: elements of any kind as float32 or float64, and back."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.blocks import loop_blocks
from convalgos.cpu.vectors.instructions import ir
from convalgos.cpu.vectors.integers import Integers
from convalgos.cpu.vectors.lanes import load_lanes, store_lanes
from convalgos.cpu.vectors.simd import Value, Vec

KINDS = (  # of elements in memory, by the names of their dtypes
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64",
)  # fmt: skip
FLOAT, DOUBLE = KINDS.index("float32"), KINDS.index("float64")
HIGHEST = 2.0**63  # of what is converted to integers of 64 bits


@lru_cache(64)
def element_kind(dtype: np.dtype) -> int:
    """The place of a dtype in `KINDS`; NumPy takes microseconds to tell its name."""
    return KINDS.index(dtype.name)


def _integers(v: Vec, KIND: int) -> tuple[Integers, bool]:
    """(vectors of a kind of integers, whether they are signed)."""
    dtype = np.dtype(KINDS[KIND])
    return Integers(v.b, v.lanes, dtype.itemsize), dtype.kind == "i"


def loaded(v: Vec, KIND: int, source: Value, at: Value, mask: Value = None) -> Value:
    """Numbers of a kind in memory as v computes with them."""
    if KIND in (FLOAT, DOUBLE):
        held = Vec(v.b, v.lanes, 4 if KIND == FLOAT else 8)
        value = load_lanes(held, source, at, mask)
        return value if held.size == v.size else v.b.fpext(value, v.type)
    integers, signed = _integers(v, KIND)
    value = load_lanes(integers, source, at, mask)
    if integers.size < 4:
        value, signed = integers.resized(value, 4, signed), True
    return (v.b.sitofp if signed else v.b.uitofp)(value, v.type)


def stored(v: Vec, KIND: int, value: Value, target: Value, at: Value, mask: Value = None) -> None:
    """Numbers of v as a kind in memory; integers are what SciPy's casts make of float64 on this processor.

    Towards zero, and then the low bits of 32 or 64.
    """
    if KIND in (FLOAT, DOUBLE):
        held = Vec(v.b, v.lanes, 4 if KIND == FLOAT else 8)
        value = v.b.fptrunc(value, held.type) if held.size < v.size else value
    else:
        held, signed = _integers(v, KIND)
        narrow = held.size < 4 or (held.size == 4 and signed)
        word = ir.VectorType(ir.IntType(32 if narrow else 64), v.lanes)
        if held.size == 8 and not signed:
            high = v.b.fcmp_ordered(">=", value, v.const(HIGHEST))
            value = v.b.select(high, v.fsub(value, v.const(HIGHEST)), value)
            value = v.b.fptosi(value, word)
            upper = v.b.xor(value, ir.Constant(word, [-(2**63)] * v.lanes))
            value = v.b.select(high, upper, value)
        else:
            value = v.b.fptosi(value, word)
            value = value if held.type == word else v.b.trunc(value, held.type)
    store_lanes(held, value, target, at, mask)


@jit.specialise
def load_line(KIND: int, SIZE: int, LANES: int) -> jit.Kernel:
    """A line of a kind in memory, as float32 or float64."""

    def load_line(source: int, target: int, count: int) -> None:
        convert_line(SIZE, LANES, KIND, 1, source, target, count)

    return load_line


@jit.specialise
def store_line(KIND: int, SIZE: int, LANES: int) -> jit.Kernel:
    """A line of float32 or float64, as a kind in memory."""

    def store_line(source: int, target: int, count: int) -> None:
        convert_line(SIZE, LANES, KIND, 0, source, target, count)

    return store_line


@jit.specialise
def store_within(KIND: int, SIZE: int, LANES: int) -> jit.Kernel:
    """A line of float32 or float64, as a kind of short integers, which ends where that does."""

    def store_within(source: int, target: int, count: int) -> None:
        limit_line(SIZE, LANES, KIND, source, target, count)

    return store_within


@simd.emitter
def limit_line(v: Vec, KIND: int, source: Value, target: Value, count: Value) -> None:
    """target[i] = source[i], towards zero, or the smallest or largest number of the kind."""
    one, other = v.pointer(source), v.pointer(target)
    limits = np.iinfo(KINDS[KIND])
    low, high = v.const(float(limits.min)), v.const(float(limits.max))

    def move(at: Value, rest: Value = None) -> None:
        mask = None if rest is None else v.mask(rest)
        value = v.fmax(load_lanes(v, one, at, mask), low)
        value = v.b.select(v.b.fcmp_ordered("<", value, high), value, high)
        stored(v, KIND, value, other, at, mask)

    loop_blocks(v, count, v.lanes, move)


@simd.emitter
def convert_line(v: Vec, KIND: int, LOAD: int, source: Value, target: Value, count: Value) -> None:
    """target[i] = source[i], which LOAD takes from a kind in memory, and else brings to it."""
    one, other = v.pointer(source), v.pointer(target)

    def move(at: Value, rest: Value = None) -> None:
        mask = None if rest is None else v.mask(rest)
        if LOAD:
            value = loaded(v, KIND, one, at, mask)
            store_lanes(v, value, other, at, mask)
        else:
            value = load_lanes(v, one, at, mask)
            stored(v, KIND, value, other, at, mask)

    loop_blocks(v, count, v.lanes, move)
