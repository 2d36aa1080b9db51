"""The pixels of a task, in runs within an image; those that lie together in vectors: several at once, and a
masked one for what is left of a row; and what all lanes of a vector make together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors.simd import Value, Vec

LOWEST = -3.4028234663852886e38  # of float32: what a row of nothing but -inf is less than, and becomes NaN
TOGETHER = 2  # pixels whose channels lie together, or rows, at a time
AT_ONCE = 4  # vectors of pixels, whose sums are independent of each other


@jit.helper
def pixels_of(a: Any, task: int) -> tuple[int, int]:
    """(the first pixel of a task, the one behind its last) of those of all images."""
    total = a.images * a.pixels
    return total * task // a.tasks, total * (task + 1) // a.tasks


@jit.helper
def run_of_pixels(a: Any, at: int, end: int, SIZE: int) -> tuple[int, int, int]:
    """(pixels from this one on, before `end`, that lie in one image; where the first lies in x, and in y)."""
    n, first = at // a.pixels, at % a.pixels
    x = a.x + (n * a.x_n + first * a.pixel_step) * SIZE
    y = a.y + (n * a.y_n + first * a.pixel_step) * SIZE
    return min(a.pixels - first, end - at), x, y


def each_pixel_vector(v: Vec, count: Value, vectors: Callable[[Value, range, Value], None]) -> None:
    """Emit `vectors(first, offsets, mask)` for all of so many pixels.

    Args:
        vectors: emits what is done with the pixels at first + each offset; a mask (or None) tells which lanes
            of the last vector there are.
    """
    width = AT_ONCE * v.lanes
    groups = v.idiv(count, width)
    with v.loop(groups) as group:
        vectors(v.imul(group, width), range(0, width, v.lanes), None)
    done = v.imul(groups, width)
    with v.loop(v.idiv(v.iadd(v.isub(count, done), v.lanes - 1), v.lanes)) as i:
        first = v.iadd(done, v.imul(i, v.lanes))
        vectors(first, range(1), v.mask(v.isub(count, first)))


def in_all_lanes(v: Vec, x: Value, combine: Callable[[Value, Value], Value]) -> Value:
    """All lanes combined, in each of them."""
    distance = v.lanes // 2
    while distance:
        x = combine(x, v.shuffle(x, x, [lane ^ distance for lane in range(v.lanes)]))
        distance //= 2
    return x
