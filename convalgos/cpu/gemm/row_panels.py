"""Products of tiles of filters by rows of pixels: the counterpart of `gemm.panels`, with vectors along rows.

A tile is as many filters as the micro-kernel sums beside its vectors of pixels. In a packed tile the weights
of all its filters for a tap lie side by side.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.runtime.recorded_packing import launch_packing
from convalgos.cpu.vectors import microkernel, simd
from convalgos.cpu.vectors.simd import Value, carray, pointer

MOST_ROWS = 8  # filters of a tile
TURNED, TURNED_TAPS = 8, 16  # tiles that are packed together, and taps of them at a time
SPARE = 64  # elements behind the weights of a tile, which are read or written beyond its end


@jit.specialise
def sum_pixels(
    SIZE: int, LANES: int, ROWS: int, VECTORS: int, PREFETCH_TAPS: int, FORM: int
) -> Callable[..., None]:
    """`pixel_tile` for `rows` = ROWS or ROWS - 1 filters and any number of vectors. FORM: of y.

    The vectors are dealt to tiles of VECTORS and VECTORS - 1; where that cannot be, spare vectors are
    computed, for which the tables have room.
    """
    FEWER = max(VECTORS - 1, 1)
    LESS = max(ROWS - 1, 1)

    def sum_pixels(
        x: int, vectors: int, starts: int, offsets: int, taps: int, w: int, rows: int, bias: int, relu: int,
        y: int, y_k: int, places: int, counts: int,
    ) -> None:  # fmt: skip
        tiles = (vectors + VECTORS - 1) // VECTORS
        total = max(vectors, tiles * FEWER)
        for tile in range(tiles):
            first = total * tile // tiles
            at = first * 8
            if total * (tile + 1) // tiles - first == VECTORS:
                if rows == ROWS:
                    microkernel.pixel_tile(
                        SIZE, LANES, FORM, ROWS, VECTORS, PREFETCH_TAPS, x, starts + at, offsets, taps, w,
                        bias, relu, y, y_k, places + at, counts + at,
                    )  # fmt: skip
                else:
                    microkernel.pixel_tile(
                        SIZE, LANES, FORM, LESS, VECTORS, PREFETCH_TAPS, x, starts + at, offsets, taps, w,
                        bias, relu, y, y_k, places + at, counts + at,
                    )  # fmt: skip
            elif rows == ROWS:
                microkernel.pixel_tile(
                    SIZE, LANES, FORM, ROWS, FEWER, PREFETCH_TAPS, x, starts + at, offsets, taps, w,
                    bias, relu, y, y_k, places + at, counts + at,
                )  # fmt: skip
            else:
                microkernel.pixel_tile(
                    SIZE, LANES, FORM, LESS, FEWER, PREFETCH_TAPS, x, starts + at, offsets, taps, w,
                    bias, relu, y, y_k, places + at, counts + at,
                )  # fmt: skip

    return sum_pixels


@simd.emitter
def tile_of_taps(v: simd.Vec, w: Value, step: Value, taps: Value, count: Value, packed: Value) -> None:
    """packed[tap*count + i] = w[tap*step + i] for i < count, tap after tap: a whole vector is stored, on
    whose end the next tap is, or what lies behind the tile."""
    chunks = range(0, MOST_ROWS, v.lanes)
    inside = [v.mask(v.isub(count, first)) for first in chunks]
    with v.loop(taps) as t:
        source, target = v.at(v.pointer(w), v.imul(t, step)), v.at(v.pointer(packed), v.imul(t, count))
        for first, mask in zip(chunks, inside, strict=True):
            v.store(v.load_masked(source, first, mask), target, first)


@jit.specialise
def turn_weights(SIZE: int, LANES: int) -> Callable[..., None]:
    """Tiles of the filters w (taps, filters), `step` from tap to tap, from `begin` to `end` of `tiles`:
    packed, `tile_step` from one to the next. Some taps of all of them at a time, as they share lines of w."""

    def turn_weights(
        w: int, step: int, taps: int, filters: int, tiles: int, begin: int, end: int, packed: int,
        tile_step: int,
    ) -> None:  # fmt: skip
        for first in range(0, taps, TURNED_TAPS):
            some = min(TURNED_TAPS, taps - first)
            for tile in range(begin, end):
                k = filters * tile // tiles
                count = filters * (tile + 1) // tiles - k
                source = w + (first * step + k) * SIZE
                target = packed + ((tile - begin) * tile_step + first * count) * SIZE
                tile_of_taps(SIZE, LANES, source, step, some, count, target)

    return turn_weights


# Filters w (groups, filters, taps) of all groups, and where their packed tiles go.
PACK_ROWS_ARGUMENTS = fields("w packed filters taps tiles groups tasks")


@jit.specialise
def pack_tiles(SIZE: int) -> Callable[..., None]:
    """(groups, filters, taps) into (groups, tiles, taps, filters of the tile)."""

    def pack_tiles(args: int, task: int) -> None:
        a = carray(pointer(args), 1, PACK_ROWS_ARGUMENTS)[0]
        total = a.groups * a.tiles
        w = carray(pointer(a.w), 1, np.int32 if SIZE == 4 else np.int64)
        packed = carray(pointer(a.packed), 1, np.int32 if SIZE == 4 else np.int64)
        for item in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            tile = item % a.tiles
            first = item // a.tiles * a.filters + a.filters * tile // a.tiles
            count = item // a.tiles * a.filters + a.filters * (tile + 1) // a.tiles - first
            for t in range(a.taps):
                for i in range(count):
                    packed[first * a.taps + t * count + i] = w[(first + i) * a.taps + t]

    return pack_tiles


def pack_rows(w: np.ndarray, groups: int, filters: int, taps: int, tiles: int) -> np.ndarray:
    """(groups, filters, taps) as (groups, tiles, taps, filters of a tile), in one new array."""
    w = np.ascontiguousarray(w)
    packed = aligned_empty(w.size + SPARE, w.dtype)
    tasks = jit.thread_count()
    record = np.array(
        [(w.ctypes.data, packed.ctypes.data, filters, taps, tiles, groups, tasks)], PACK_ROWS_ARGUMENTS
    )
    launch_packing(pack_tiles(w.itemsize), record, tasks, w, packed)
    return packed
