"""Non-temporal stores: copies of finished runs that leave the caches alone."""

from __future__ import annotations

from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd


@simd.emitter
def stream_run(v, source, y, count):
    """y[:count] = source[:count], whole aligned vectors of y around the caches; count is at least `lanes`."""
    start, to = v.pointer(source), v.pointer(y)
    elements = v.idiv(y, v.size)
    before = v.isub(v.imul(v.idiv(v.iadd(elements, v.lanes - 1), v.lanes), v.lanes), elements)
    whole = v.idiv(v.isub(count, before), v.lanes)
    behind = v.iadd(before, v.imul(whole, v.lanes))
    # the ends must not touch the lines between them: those would be fetched first
    v.store_masked(v.load(start), to, 0, v.mask(before))
    with v.loop(whole) as i:
        at = v.iadd(before, v.imul(i, v.lanes))
        v.store_nontemporal(v.load(start, at), to, at)
    inside = v.mask(v.isub(count, behind))
    v.store_masked(v.load_masked(start, behind, inside), to, behind, inside)


@jit.specialise
def stream(SIZE, LANES):
    """`stream_run`."""

    def stream(source, y, count):
        if count < LANES:
            simd.copy_bytes(y, source, count * SIZE)
        else:
            stream_run(SIZE, LANES, source, y, count)

    return stream


@simd.emitter
def copy_run(v, source, y, count, stream):
    """y[:count] = source[:count]; with `stream`, whole vectors where y is aligned go around the caches."""
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
