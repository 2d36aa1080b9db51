"""Arrays of integers, or of booleans, that meet term by term, as NumPy adds them up."""

from __future__ import annotations

import numpy as np

from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.array_steps import CONVERT, ArrayStep, X, Y
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.blocks import loop_blocks
from convalgos.cpu.vectors.instructions import ir
from convalgos.cpu.vectors.integers import Integers
from convalgos.cpu.vectors.lanes import load_lanes, store_lanes
from convalgos.cpu.vectors.simd import Value, Vec


@jit.specialise
def add_terms(LOGICAL: int, SIZE: int, LANES: int) -> jit.Kernel:
    """target += source, which wraps around; LOGICAL: 1 where a byte of either is not 0, else 0."""

    def add_terms(source: int, target: int, count: int) -> None:
        add_integers(SIZE, LANES, LOGICAL, source, target, count)

    return add_terms


@simd.emitter
def add_integers(v: Vec, LOGICAL: int, source: Value, target: Value, count: Value) -> None:
    n = Integers(v.b, v.lanes, v.size)
    one, other = n.pointer(source), n.pointer(target)

    def add(at: Value, rest: Value = None) -> None:
        mask = None if rest is None else n.mask(rest)
        a, b = load_lanes(n, one, at, mask), load_lanes(n, other, at, mask)
        if LOGICAL:
            found = n.b.icmp_unsigned("!=", n.b.or_(a, b), ir.Constant(n.type, None))
            total = n.b.zext(found, n.type)
        else:
            total = n.add(a, b)
        store_lanes(n, total, other, at, mask)

    loop_blocks(n, count, n.lanes, add)


def adding_step(dtype: np.dtype, count: int, source: int = X) -> ArrayStep:
    """The step that adds an array of integers or booleans, of so many elements, to y."""
    size = dtype.itemsize
    return ArrayStep(CONVERT, add_terms(int(dtype.kind == "b"), size, simd.lanes(size)), source, Y, count)
