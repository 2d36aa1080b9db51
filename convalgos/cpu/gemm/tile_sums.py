"""Sums of tiles that were computed apart, as of parts of the pixels or of products."""

from __future__ import annotations

from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors.simd import Value, Vec, emitter


@emitter
def add_more(v: Vec, more: Value, target: Value, count: Value) -> None:
    """target[:] += more[:], for so many vectors."""
    source, to = v.pointer(more), v.pointer(target)
    with v.loop(count) as i:
        at = v.imul(i, v.lanes)
        v.store(v.fadd(v.load(to, at), v.load(source, at)), to, at)


@jit.specialise
def add_tile(SIZE: int, LANES: int) -> jit.Kernel:
    """`add_more`."""

    def add_tile(more: int, target: int, count: int) -> None:
        add_more(SIZE, LANES, more, target, count)

    return add_tile
