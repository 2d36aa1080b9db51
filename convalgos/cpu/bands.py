"""A band of a plane, copied with its zero border into scratch.

Kernels that are vectorised along rows read scratch without looking at borders. A stride of 2 splits each row
into a phase of its even and a phase of its odd elements, so that they load neighbours there too.
"""

from __future__ import annotations

from convalgos.cpu import jit, simd


@simd.emitter
def short_row(v, STRIDE, VECTORS, x, before, inside, target):
    """`before` zeros, x[:inside], zeros, in STRIDE phases of VECTORS vectors: i goes to phase i % STRIDE."""
    load = _padded(v, x, before, inside)
    for i in range(VECTORS):
        _store_phases(v, STRIDE, load, v.pointer(target), i, VECTORS * v.lanes)


@simd.emitter
def long_row(v, STRIDE, x, before, inside, target, phase):
    """The same for phases of any whole number of vectors; inside is at least 1."""
    width = STRIDE * v.lanes
    first = v.quotient(before, width)
    last = v.quotient(v.plus(before, v.minus(inside, 1)), width)
    second, behind = v.plus(first, 1), v.plus(last, 1)
    padded = _padded(v, x, before, inside)
    source = v.pointer(v.minus(x, v.mul(before, v.size)))
    for start, end, load in (
        (0, first, lambda at: v.zero()),
        (first, second, padded),
        (second, last, lambda at: v.load(source, at)),  # masks would double the time of these
        (v.larger(second, last), behind, padded),
        (behind, v.quotient(phase, v.lanes), lambda at: v.zero()),
    ):
        with v.loop(v.minus(end, start)) as i:
            _store_phases(v, STRIDE, load, v.pointer(target), v.plus(start, i), phase)


def _padded(v, x, before, inside):
    """Loads the vector of the row with its border that starts at an index."""
    source, end = v.pointer(v.minus(x, v.mul(before, v.size))), v.plus(before, inside)
    return lambda at: v.load_masked(source, at, v.window(v.minus(before, at), v.minus(end, at)))


def _store_phases(v, stride, load, target, i, phase):
    """Vector i of each phase."""
    row = [load(v.plus(v.mul(i, stride * v.lanes), j * v.lanes)) for j in range(stride)]
    if stride == 2:
        row = [v.shuffle(*row, range(j, 2 * v.lanes, 2)) for j in range(2)]
    for j, value in enumerate(row):
        v.store(value, target, v.plus(v.mul(i, v.lanes), v.mul(phase, j)))


@simd.emitter
def zero_row(v, target, count):
    """target[:count] = 0; count is a multiple of lanes."""
    with v.loop(v.quotient(count, v.lanes)) as i:
        v.store(v.zero(), v.pointer(target), v.mul(i, v.lanes))


@jit.specialise
def copy_band(SIZE, LANES, STRIDE, VECTORS):
    """x[d.., h.., w..] of a plane into scratch[depths][heights][STRIDE][phase], zero outside of x.

    A phase is VECTORS vectors, or any number of them where VECTORS is 0; `slice` is the elements between
    the slices of scratch. Where `ahead` is not 0, every row asks for the one so many bytes behind it, and
    for a part of the `claimed` bytes of y that will be written from this band.
    """

    def copy_band(
        x, depth, height, width, d, h, w, depths, heights, scratch, phase, slice, ahead, y, claimed
    ):
        before = max(0, -w)
        inside = min(width, w + phase * STRIDE) - max(0, w)
        x += max(0, w) * SIZE
        part = claimed // heights
        for i in range(depths):
            for j in range(heights):
                row = x + ((d + i) * height + h + j) * width * SIZE
                to = scratch + (i * slice + j * phase * STRIDE) * SIZE
                if ahead:
                    simd.fetch_bytes(SIZE, LANES, 0, row + ahead, width * SIZE)
                    simd.fetch_bytes(SIZE, LANES, 1, y + j * part, part)
                if d + i < 0 or d + i >= depth or h + j < 0 or h + j >= height or inside <= 0:
                    zero_row(SIZE, LANES, to, phase * STRIDE)
                elif VECTORS:
                    short_row(SIZE, LANES, STRIDE, VECTORS, row, before, inside, to)
                else:
                    long_row(SIZE, LANES, STRIDE, row, before, inside, to, phase)

    return copy_band
