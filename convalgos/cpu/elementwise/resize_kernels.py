"""The driver of linear interpolation between pixels, along rows and then between rows, in every layout."""

from __future__ import annotations

import numpy as np

from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import Value, Vec, carray, pointer

# Planes of `height` rows of `width` pixels of `count` elements become planes of `y_height` rows of `y_width`;
# steps in elements. `columns` and `rows`: for each of y the two of x that it lies between; `shares`: how far
# it is from the first to the second, addresses of floats. Units are `chunk` rows of y. `drawn`: room for two
# rows of x drawn out to the width of y, for each task.
RESIZE_FIELDS = fields(
    "x y columns column_shares rows row_shares drawn images planes width y_height y_width count x_n y_n "
    "x_plane y_plane chunk tasks"
)
BETWEEN = np.dtype([("first", np.int64), ("second", np.int64)])


@jit.specialise
def resize_share(SIZE: int, LANES: int) -> jit.Kernel:
    """The units of a task. Rows of x that the last row of y was between are not drawn out again."""

    def resize_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, RESIZE_FIELDS)[0]
        between = carray(pointer(a.rows), a.y_height, BETWEEN)
        length = a.y_width * a.count
        bands = (a.y_height + a.chunk - 1) // a.chunk
        total = a.images * a.planes * bands
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            begin = unit % bands * a.chunk
            plane = unit // bands % a.planes
            n = unit // (bands * a.planes)
            x = a.x + (n * a.x_n + plane * a.x_plane) * SIZE
            y = a.y + (n * a.y_n + plane * a.y_plane) * SIZE
            above = a.drawn + task * 2 * length * SIZE
            below = above + length * SIZE
            is_above, is_below = -1, -1  # the rows of x that they are
            for i in range(begin, min(begin + a.chunk, a.y_height)):
                row = between[i]
                if row.first == is_below:
                    above, below = below, above
                    is_above, is_below = is_below, is_above
                if row.first != is_above:
                    draw_row(SIZE, LANES, x + row.first * a.width * a.count * SIZE, above, a.columns,
                             a.column_shares, a.y_width, a.count)  # fmt: skip
                    is_above = row.first
                if row.second != is_below:
                    draw_row(SIZE, LANES, x + row.second * a.width * a.count * SIZE, below, a.columns,
                             a.column_shares, a.y_width, a.count)  # fmt: skip
                    is_below = row.second
                blend_rows(SIZE, LANES, above, below, a.row_shares + i * SIZE, y + i * length * SIZE, length)

    return resize_share


@simd.emitter
def draw_row(v: Vec, x: Value, y: Value, columns: Value, shares: Value, width: Value, count: Value) -> None:
    """Each pixel of y is between two of a row of x."""
    with v.choose(v.isub(count, 2)) as (several, one):
        with several:
            _draw_pixels(v, x, y, columns, shares, width, count)
        with one:
            _draw_elements(Vec(v.b, 1, v.size), x, y, columns, shares, width)


def _draw_pixels(
    v: Vec, x: Value, y: Value, columns: Value, shares: Value, width: Value, count: Value
) -> None:
    source, to = v.pointer(x), v.pointer(y)
    vectors = v.idiv(v.iadd(count, v.lanes - 1), v.lanes)
    with v.loop(width) as i:
        first, second = (v.imul(place, count) for place in _places(v, columns, i))
        share, out = v.broadcast(v.pointer(shares), i), v.imul(i, count)
        with v.loop(vectors) as j:
            at = v.imul(j, v.lanes)
            mask = v.mask(v.isub(count, at))
            a, b = (v.load_masked(source, v.iadd(pixel, at), mask) for pixel in (first, second))
            v.store_masked(v.fma(v.fsub(b, a), share, a), to, v.iadd(out, at), mask)


def _draw_elements(v: Vec, x: Value, y: Value, columns: Value, shares: Value, width: Value) -> None:
    """In vectors of one element."""
    source, to = v.pointer(x), v.pointer(y)
    with v.loop(width) as i:
        a, b = (v.load(source, place) for place in _places(v, columns, i))
        v.store(v.fma(v.fsub(b, a), v.load(v.pointer(shares), i), a), to, i)


def _places(v: Vec, columns: Value, i: Value) -> tuple[Value, Value]:
    """The two pixels of x that a pixel of y lies between."""
    return v.table64(columns, v.imul(i, 2)), v.table64(columns, v.iadd(v.imul(i, 2), 1))


@simd.emitter
def blend_rows(v: Vec, above: Value, below: Value, share: Value, y: Value, count: Value) -> None:
    """y = above + share * (below - above)."""
    first, second, to = (v.pointer(address) for address in (above, below, y))
    part = v.broadcast(v.pointer(share))
    whole = v.idiv(count, v.lanes)
    with v.loop(whole) as i:
        at = v.imul(i, v.lanes)
        a, b = v.load(first, at), v.load(second, at)
        v.store(v.fma(v.fsub(b, a), part, a), to, at)
    done = v.imul(whole, v.lanes)
    with v.unless_negative(v.isub(v.isub(count, done), 1)):
        mask = v.mask(v.isub(count, done))
        a, b = v.load_masked(first, done, mask), v.load_masked(second, done, mask)
        v.store_masked(v.fma(v.fsub(b, a), part, a), to, done, mask)
