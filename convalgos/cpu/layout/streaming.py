"""Non-temporal stores: when an output goes around the caches, and copies of finished runs that do.

A store through the caches reads its line first. Where an output is so large that nobody will find it in a
cache, non-temporal stores save that, and leave in the caches what is there.
"""

from __future__ import annotations

from convalgos.core.machine import cache_sizes, whole_l3
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import Value, Vec

# Outputs of more than these shares of L3 go around the caches; each was measured.
STREAMED_PANELS = 0.5  # what panels of filters compute, in the planes of channels_first
STREAMED_PIXELS = 0.5  # what `cpu.direct.pixels` computes
STREAMED_PLANES = 1.0  # of depthwise filters,
STREAMED_SLICES = 1.0  # and of gradients that threads compute slice by slice


def outgrows_caches(nbytes: int, share: float, own: bool = False) -> bool:
    """Whether an output of so many bytes is stored around the caches: it takes more than a share of L3.

    Args:
        share: of L3.
        own: of the part of L3 that belongs to the cores of this machine, not of all that the system tells of.
    """
    return nbytes > share * (cache_sizes()[2] if own else whole_l3())


@simd.emitter
def copy_run(v: Vec, source: Value, y: Value, count: Value, stream: Value) -> None:
    """y[:count] = source[:count]; with `stream`, whole vectors where y is aligned go around the caches.

    The ends are masked: to touch the lines between them would fetch these first.
    """
    to, from_ = v.pointer(y), v.pointer(source)
    elements = v.idiv(y, v.size)
    over = v.isub(elements, v.imul(v.idiv(elements, v.lanes), v.lanes))
    head = v.imin(v.isub(v.imul(v.idiv(v.iadd(over, v.lanes - 1), v.lanes), v.lanes), over), count)
    v.store_masked(v.load_masked(from_, 0, v.mask(head)), to, 0, v.mask(head))
    whole = v.idiv(v.isub(count, head), v.lanes)
    with v.choose(v.isub(stream, 1)) as (around, through):
        with around, v.loop(whole) as i:
            at = v.iadd(head, v.imul(i, v.lanes))
            v.store_nontemporal(v.load(from_, at), to, at)
        with through, v.loop(whole) as i:
            at = v.iadd(head, v.imul(i, v.lanes))
            v.store(v.load(from_, at), to, at)
    done = v.iadd(head, v.imul(whole, v.lanes))
    tail = v.mask(v.isub(count, done))
    v.store_masked(v.load_masked(from_, done, tail), to, done, tail)


@jit.specialise
def stream(SIZE: int, LANES: int) -> jit.Kernel:
    """`copy_run` of whole vectors around the caches."""

    def stream(source: int, y: int, count: int) -> None:
        copy_run(SIZE, LANES, source, y, count, 1)

    return stream
