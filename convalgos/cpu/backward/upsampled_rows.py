"""Rows of dx of a depthwise layer with stride 2, whose two phases lie in turns in every vector.

Elements 2i and 2i + 1 of a row of dx meet dy[i + front - d] at a displacement d, each by a tap of its own: so
half a vector of dy is loaded, each element goes to two lanes, and is multiplied by a pair of taps, over and
over. A tap that a phase has not is a zero. The sums are a row of dx as it lies.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convalgos.cpu.backward.row_taps import ROW_TAPS
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import arguments
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import Value, call, carray, pointer

UPSAMPLED_ARGUMENTS = arguments(
    "size images channels height width out_width front tap_rows w_c w_row x_n x_c y_n y_c tasks sum_plane"
)


@simd.emitter
def upsampled_columns(
    v: simd.Vec, DISPLACEMENTS: int, x: Value, w: Value, y: Value, bias: Value, relu: Value, first: Value,
    out_width: Value, width: Value, count: Value, tap_rows: Value, height: Value, w_row: Value,
) -> None:  # fmt: skip
    """A vector of each row of dx: `count` elements of rows of `width`, the first of which meet dy[first]."""
    half = simd.Vec(v.b, v.lanes // 2, v.size)
    twice = [lane // 2 for lane in range(v.lanes)]
    starts = [v.isub(first, d) for d in range(DISPLACEMENTS)]
    inside = [half.window(v.isub(0, start), v.isub(out_width, start)) for start in starts]
    dy, taps, written = v.pointer(x), v.pointer(w), v.mask(count)
    added, low = v.broadcast(v.pointer(bias)), v.lower_bound(relu)
    with v.loop(height) as i:
        meets = v.record(v.iadd(tap_rows, v.imul(i, ROW_TAPS.itemsize)), ROW_TAPS)
        total = v.register(added)
        with v.loop(meets.count) as t:
            line = v.at(dy, v.imul(v.isub(meets.row, t), out_width))
            pairs = v.at(taps, v.imul(v.iadd(meets.tap, v.imul(t, 2)), w_row))
            for d, (start, mask) in enumerate(zip(starts, inside, strict=True)):
                values = half.load_masked(line, start, mask)  # (lanes/2,)
                total.set(
                    v.fma(v.shuffle(values, values, twice), v.broadcast_pair(pairs, 2 * d), total.value)
                )
        v.store_masked(v.fmax(total.value, low), v.pointer(y), v.imul(i, width), written)


@jit.specialise
def sum_upsampled_plane(SIZE: int, LANES: int, DISPLACEMENTS: int) -> Callable[..., None]:
    """dx of a channel of an image."""

    def sum_upsampled_plane(
        x: int, w: int, y: int, bias: int, relu: int, front: int, out_width: int, width: int, tap_rows: int,
        height: int, w_row: int,
    ) -> None:  # fmt: skip
        for j in range(0, width, LANES):
            upsampled_columns(
                SIZE, LANES, DISPLACEMENTS, x, w, y + j * SIZE, bias, relu, j // 2 + front, out_width, width,
                min(LANES, width - j), tap_rows, height, w_row,
            )  # fmt: skip

    return sum_upsampled_plane


@jit.specialise
def sum_upsampled_planes() -> Callable[..., None]:
    """Images x channels, dealt to the tasks in equal runs."""

    def sum_upsampled_planes(args: int, task: int) -> None:
        a = carray(pointer(args), 1, UPSAMPLED_ARGUMENTS)[0]
        total = a.images * a.channels
        for item in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            n, c = item // a.channels, item % a.channels
            x, y = a.x + (n * a.x_n + c * a.x_c) * a.size, a.y + (n * a.y_n + c * a.y_c) * a.size
            w, bias = a.w + c * a.w_c * a.size, a.bias + c * a.size
            call(
                a.sum_plane,
                (x, w, y, bias, a.relu, a.front, a.out_width, a.width, a.tap_rows, a.height, a.w_row),
            )

    return sum_upsampled_planes


def most_displacements(taps: int, low: int) -> int:
    """At which a row of so many taps meets dy, with `low` elements of padding before the map; at least 2."""
    return max(2, (taps - 1 + 2 * front_of(low) - low) // 2 + 1)


def front_of(low: int) -> int:
    """The element of dy that the first two elements of dx meet at the first displacement."""
    return (low + 1) // 2


def pairs_of_taps(w: np.ndarray, low: int) -> np.ndarray:
    """(C, 1, R, S) as (C, R, displacements, 2): the taps of both phases; zeros where a phase has none."""
    channels, _, rows, taps = w.shape
    d, phase = np.ogrid[: most_displacements(taps, low), :2]
    tap = 2 * (d - front_of(low)) + low + phase  # (displacements, 2)
    found = np.where((tap >= 0) & (tap < taps), tap, taps)
    padded = np.zeros((channels, rows, taps + 1), w.dtype)
    padded[..., :taps] = w[:, 0]
    return np.ascontiguousarray(padded[..., found])
