"""Products of short elements on transformed tiles: rows of V by panels of U, with sums of 32 bits.

Rows of V are neighbours, and all channels of a tile lie side by side: U is (group, point, panel, depth tap,
word, filter), where a word holds as many channels as one instruction sums.
"""

from __future__ import annotations

from convalgos.cpu.runtime import jit
from convalgos.cpu.tiled.driver import BOX_ARGUMENTS, box_of, depth_taps, image_tiles
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.integers import words_of
from convalgos.cpu.vectors.simd import Value, Vec, call, carray, pointer, zero_bytes

WORD = 4  # bytes


@simd.emitter
def pair_tile(
    v: Vec, ROWS: int, VECTORS: int, VNNI: int, ACCUMULATE: int, x: Value, x_step: Value, w: Value,
    words: Value, y: Value, ahead: Value,
) -> None:  # fmt: skip
    """y[i][:] (+)= sum_t x[i][t] * w[t][:], for i < ROWS: of words of two signed 16-bit integers.

    x: rows `x_step` bytes apart; w: (words, VECTORS * lanes) words; y: rows of VECTORS * lanes sums. For each
    word of x a vector from `ahead` on, which may be any address, is asked for.
    """
    a = words_of(v)
    first, later, filters, target = v.pointer(x), v.pointer(ahead), v.pointer(w), v.pointer(y)
    inputs = [v.pointer(v.iadd(x, v.imul(x_step, i))) for i in range(ROWS)] if ROWS > 1 else [first]
    wide = range(VECTORS)
    sums = [
        [a.register(a.load(target, (i * VECTORS + j) * v.lanes) if ACCUMULATE else a.zero()) for j in wide]
        for i in range(ROWS)
    ]
    with v.loop(words) as t:
        v.prefetch(a.at(later, v.imul(t, v.lanes)))
        weights = [a.load(filters, v.iadd(v.imul(t, VECTORS * v.lanes), j * v.lanes)) for j in wide]
        for row, input_ in zip(sums, inputs, strict=True):
            value = a.broadcast(input_, t)
            for total, weight in zip(row, weights, strict=True):
                total.set(a.dot2(total.value, value, weight, bool(VNNI)))
    for i, row in enumerate(sums):
        for j, total in enumerate(row):
            a.store(total.value, target, (i * VECTORS + j) * v.lanes)


@jit.helper
def dealt_rows(rows: int, MOST: int, tile: int) -> tuple[int, bool]:
    """The first row of a tile, and whether it has MOST rows or one less.

    Where rows cannot be dealt so, the last tile computes spare rows, for which x and the sums have room.
    """
    tiles = (rows + MOST - 1) // MOST
    dealt = max(rows, tiles * max(MOST - 1, 1))
    first = dealt * tile // tiles
    return first, dealt * (tile + 1) // tiles - first == MOST


@jit.specialise
def sum_pairs(LANES: int, ROWS: int, VECTORS: int, VNNI: int) -> jit.Kernel:
    """sums[row][:] (+)= sum of products over words, for one panel of filters, in tiles of `dealt_rows`."""
    FEWER = max(ROWS - 1, 1)

    def sum_pairs(x: int, x_step: int, rows: int, words: int, w: int, sums: int, accumulate: int) -> None:
        tiles = (rows + ROWS - 1) // ROWS
        ahead = w + words * VECTORS * LANES * 4  # the next panel, fetched a part with each tile
        for tile in range(tiles):
            first, full = dealt_rows(rows, ROWS, tile)
            source = x + first * x_step
            target = sums + first * VECTORS * LANES * 4
            if accumulate and full:
                pair_tile(4, LANES, ROWS, VECTORS, VNNI, 1, source, x_step, w, words, target, ahead)
            elif accumulate:
                pair_tile(4, LANES, FEWER, VECTORS, VNNI, 1, source, x_step, w, words, target, ahead)
            elif full:
                pair_tile(4, LANES, ROWS, VECTORS, VNNI, 0, source, x_step, w, words, target, ahead)
            else:
                pair_tile(4, LANES, FEWER, VECTORS, VNNI, 0, source, x_step, w, words, target, ahead)
            if tile < VECTORS - 1:
                ahead += words * LANES * 4

    return sum_pairs


@jit.specialise
def multiply_words() -> jit.Kernel:
    """V and U -> M, for some (point, panel) items of a box: `driver.multiply_box` of short elements."""

    def multiply_words(args: int, index: int, first: int, last: int, shared: int, own: int) -> None:
        a = carray(pointer(args), 1, BOX_ARGUMENTS)[0]
        box = box_of(a, index)
        rows = (box.n1 - box.n0) * image_tiles(a, box)  # of a slice
        products = shared + a.points * a.v_point * a.v_size
        u_tap = a.slice_taps * a.panel * a.v_size
        words = a.slice_taps * a.v_size // 4
        for item in range(first, last):
            point, panel = item // a.panels, item % a.panels
            m = products + (point * a.m_point + panel * a.m_panel) * a.sum_size
            u = a.w + ((box.group * a.points + point) * a.panels + panel) * a.depth.taps * u_tap
            for o in range(box.o1 - box.o0):
                target = m + o * rows * a.panel * a.sum_size
                tap0, tap1 = depth_taps(a, box.o0 + o)
                if tap0 == tap1:
                    zero_bytes(target, rows * a.panel * a.sum_size)
                for tap in range(tap0, tap1):
                    slot = (o * a.depth.stride + tap * a.depth.dilation) // a.slot_step
                    v = (point * a.v_point + slot * a.slot_tiles * a.v_row) * a.v_size
                    call(
                        a.sum_panel,
                        (shared + v, a.v_row * a.v_size, rows, words, u + tap * u_tap, target, tap - tap0),
                    )

    return multiply_words
