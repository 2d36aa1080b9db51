"""Products of pixels that are copied tile by tile, in the order in which the micro-kernel reads them.

Channels of a map lie far apart: a tile of pixels that is read where it lies takes a line of each, of which it
wants a part, and these lines stay in no first cache. Packed as [tile][tap][pixel] the pixels of a block are
read one after the other, by every panel of filters again.

Source: the packed panels of Goto and van de Geijn, "Anatomy of high-performance matrix multiplication",
2008.
"""

from __future__ import annotations

import numpy as np

from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import microkernel
from convalgos.cpu.vectors.simd import Value, Vec, carray, emitter, pointer

TAPS = 32  # packed tile by tile: stores to so many tiles by turns would miss the TLB; Xeon (Granite Rapids)


@emitter
def pack_tile(v: Vec, COUNT: int, source: Value, step: Value, taps: Value, target: Value) -> None:
    """target[t][:COUNT] = source[t * step][:COUNT]; no more elements are read, but vectors are written."""
    from_, to = v.pointer(source), v.pointer(target)
    with v.loop(taps) as t:
        row, packed = v.imul(t, step), v.imul(t, COUNT)
        for i in range(0, COUNT, v.lanes):
            left, at = COUNT - i, v.iadd(row, i)
            value = v.load(from_, at) if left >= v.lanes else v.load_masked(from_, at, v.first_lanes(left))
            v.store(value, to, v.iadd(packed, i))


@jit.specialise
def pack_pixel_tiles(SIZE: int, LANES: int, ROWS: int) -> jit.Kernel:
    """packed[tile][tap][i] = x[tap][first pixel of the tile + i], for `pixels` neighbours.

    Channels are `x_c` elements apart, tiles `pitch`. Tiles of ROWS pixels come first, then those of ROWS - 1;
    the last one has spare rows where that cannot be, and repeats its last pixel there.
    """
    FEWER = max(ROWS - 1, 1)
    WIDTH = min(LANES, 1 << (ROWS - 1).bit_length())  # wider stores than a row cross more lines

    def pack_pixel_tiles(x: int, x_c: int, pixels: int, taps: int, pitch: int, packed: int) -> None:
        tiles = (pixels + ROWS - 1) // ROWS
        whole = max(pixels - tiles * FEWER, 0)  # tiles of ROWS pixels
        full = min(tiles, whole + (pixels - whole * ROWS) // FEWER)  # tiles without spare rows
        elements_x = carray(pointer(x), 1, np.int32 if SIZE == 4 else np.int64)
        elements = carray(pointer(packed), 1, np.int32 if SIZE == 4 else np.int64)
        for tap in range(0, taps, TAPS):
            count = min(TAPS, taps - tap)
            source = x + tap * x_c * SIZE
            to = packed + tap * ROWS * SIZE
            for tile in range(whole):
                pack_tile(
                    SIZE, WIDTH, ROWS, source + tile * ROWS * SIZE, x_c, count, to + tile * pitch * SIZE
                )
            to = packed + tap * FEWER * SIZE
            for tile in range(whole, full):
                first = tile * FEWER + whole
                pack_tile(SIZE, WIDTH, FEWER, source + first * SIZE, x_c, count, to + tile * pitch * SIZE)
        for tile in range(full, tiles):
            for tap in range(taps):
                for i in range(FEWER):
                    pixel = min(tile * FEWER + whole + i, pixels - 1)
                    elements[tile * pitch + tap * FEWER + i] = elements_x[tap * x_c + pixel]

    return pack_pixel_tiles


@jit.specialise
def sum_packed_tiles(SIZE: int, LANES: int, ROWS: int, VECTORS: int) -> jit.Kernel:
    """sums[pixel][:] = sum over taps of what `pack_pixel_tiles` packed, for one panel of filters, as
    `panels.sum_panel`."""
    FEWER = max(ROWS - 1, 1)

    def sum_packed_tiles(
        packed: int, pitch: int, pixels: int, taps: int, chunk: int, w: int, sums: int
    ) -> None:
        tiles = (pixels + ROWS - 1) // ROWS
        whole = max(pixels - tiles * FEWER, 0)  # tiles of ROWS pixels
        width = VECTORS * LANES
        tap = 0
        while tap < taps:
            count = min(chunk, taps - tap)
            weights = w + tap * width * SIZE
            ahead = weights + count * width * SIZE  # the next pass or panel, fetched a part with each tile
            for tile in range(tiles):
                full = tile < whole
                x = packed + (tile * pitch + tap * (ROWS if full else FEWER)) * SIZE
                target = sums + (tile * FEWER + min(tile, whole)) * width * SIZE
                if tap == 0 and full:
                    microkernel.packed_tile(
                        SIZE, LANES, ROWS, VECTORS, 0, x, weights, count, target, width, ahead
                    )
                elif tap == 0:
                    microkernel.packed_tile(
                        SIZE, LANES, FEWER, VECTORS, 0, x, weights, count, target, width, ahead
                    )
                elif full:
                    microkernel.packed_tile(
                        SIZE, LANES, ROWS, VECTORS, 1, x, weights, count, target, width, ahead
                    )
                else:
                    microkernel.packed_tile(
                        SIZE, LANES, FEWER, VECTORS, 1, x, weights, count, target, width, ahead
                    )
                if tile < VECTORS - 1:
                    ahead += count * LANES * SIZE
            tap += count

    return sum_packed_tiles
