"""Lines of sums that meet what y has already: terms added up, or the root of the sum of their squares."""

from __future__ import annotations

from convalgos.cpu.filtering.line_elements import FLOAT
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.blocks import loop_blocks
from convalgos.cpu.vectors.instructions import ir
from convalgos.cpu.vectors.lanes import load_lanes, store_lanes
from convalgos.cpu.vectors.simd import Value, Vec, function_of

PLAIN, ADD, SQUARE, ADD_SQUARE, ROOT = range(5)  # y = s, y + s, s * s, y + s * s, sqrt(y + s * s)


@jit.specialise
def end_line(ENDING: int, KIND: int, SIZE: int, LANES: int) -> jit.Kernel:
    """A line of float32 or float64 sums meets that of y, of a kind of floats."""

    def end_line(source: int, target: int, count: int) -> None:
        meet_line(SIZE, LANES, ENDING, KIND, source, target, count)

    return end_line


@simd.emitter
def meet_line(v: Vec, ENDING: int, KIND: int, source: Value, target: Value, count: Value) -> None:
    """target[i] = what ENDING makes of it and of source[i], rounded to the kind first, as NumPy computes."""
    one, other = v.pointer(source), v.pointer(target)
    held = Vec(v.b, v.lanes, 4 if KIND == FLOAT else 8)

    def meet(at: Value, rest: Value = None) -> None:
        mask = None if rest is None else v.mask(rest)
        value = load_lanes(v, one, at, mask)
        value = v.b.fptrunc(value, held.type) if held.size < v.size else value
        if ENDING >= SQUARE:
            value = held.fmul(value, value)
        if ENDING not in (PLAIN, SQUARE):
            value = held.fadd(load_lanes(held, other, at, mask), value)
        if ENDING == ROOT:
            kind = ir.FunctionType(held.type, [held.type])
            value = held.b.call(function_of(held.b, kind, f"llvm.sqrt.{held.suffix}"), [value])
        store_lanes(held, value, other, at, mask)

    loop_blocks(v, count, v.lanes, meet)
