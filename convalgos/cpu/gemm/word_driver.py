"""The driver of products of words: blocks of outputs, dealt to threads.

Groups, blocks of a slice of the map and parts of the filters are dealt to the tasks in equal runs. For each:
the input of the block is read in place or brought to words, once for all parts; tiles of pixels are summed
for each panel of filters, and finished into y.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import arguments, fields
from convalgos.cpu.vectors import matrix_tiles
from convalgos.cpu.vectors.simd import call, carray, pointer

WORD_ARGUMENTS = arguments(
    "zero_points multiplier step pad ones one_tiles one_tile store_panel store_last "
    "n o p q groups channels filters blocks_p blocks_q parts tasks in_place flat tile together "
    "x_n x_c x_d x_h x_w depth height width stride_d stride_h stride_w pad_d pad_h pad_w "
    "dilation_d dilation_w taps_d taps_w reach_h reach_w row_slots row_step phases slots_of_phase "
    "slice_bytes row_bytes pixel_bytes pixel_words plain offsets chunks pieces words "
    "panel panels row_w last_row_w panel_w group_w y_n y_k y_pixel last "
    "planes x_word spill widen fill convert pick panel_tiles panel_tile last_tiles last_tile configuration "
    "lanes batch zeros tiles_at row_at sums_at windows_at scratch_stride"
)

WORD_TILE = fields("x y")  # an address, and bytes from the first pixel of the block


class WordBlock(NamedTuple):
    """A block of outputs: its image, slice, group, first row and column, and how many of them."""

    n: int
    o: int
    group: int
    p: int
    q: int
    rows: int
    columns: int


class Source(NamedTuple):
    """Where the words of a block lie: address, bytes between rows and between pixels of outputs."""

    address: int
    row: int
    pixel: int


@jit.specialise
def sum_word_blocks(MATRIX: int, LANES: int) -> jit.Kernel:
    def sum_word_blocks(args: int, task: int) -> None:
        a = carray(pointer(args), 1, WORD_ARGUMENTS)[0]
        if MATRIX:
            matrix_tiles.load_configuration(4, LANES, a.configuration)
        scratch = a.scratch + task * a.scratch_stride
        total = a.n * a.o * a.blocks_p * a.blocks_q * a.groups * a.parts
        loaded = -1
        for item in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            block, part = item // a.parts, item % a.parts
            place = word_block(a, block)
            if a.in_place == 0 and block != loaded:
                read_words(a, place, scratch)
            source = source_of(a, place, scratch)
            tiles = list_tiles(a, place, source, scratch + a.tiles_at)
            if a.one_tile and block != loaded:
                sum_x_windows(a, source.pixel, tiles, scratch)
            loaded = block
            for panel in range(a.panels * part // a.parts, a.panels * (part + 1) // a.parts):
                sum_word_panel(a, place, source.pixel, tiles, panel, scratch)
        if MATRIX:
            matrix_tiles.release_tiles(4, LANES)

    return sum_word_blocks


@jit.helper
def word_block(a: Any, block: int) -> WordBlock:
    group, index = block % a.groups, block // a.groups
    i, index = index % a.blocks_q, index // a.blocks_q
    j, index = index % a.blocks_p, index // a.blocks_p
    p, q = a.p * j // a.blocks_p, a.q * i // a.blocks_q
    rows, columns = a.p * (j + 1) // a.blocks_p - p, a.q * (i + 1) // a.blocks_q - q
    return WordBlock(index // a.o, index % a.o, group, p, q, rows, columns)


@jit.helper
def source_of(a: Any, b: WordBlock, scratch: int) -> Source:
    address, row, pixel = scratch, a.row_slots * a.row_bytes, a.pixel_bytes
    if a.flat == 0:
        pixel *= a.stride_w
    if a.in_place:
        first = b.n * a.x_n + b.group * a.channels * a.x_c + b.o * a.stride_d * a.x_d
        address = a.x + first + b.p * a.stride_h * a.x_h + b.q * a.stride_w * a.x_w
        row, pixel = a.stride_h * a.x_h, a.stride_w * a.x_w
    return Source(address, row, pixel)


@jit.helper
def read_words(a: Any, b: WordBlock, scratch: int) -> None:
    """The input of a block as words, with its border."""
    x = a.x + b.n * a.x_n + b.group * a.channels * a.x_c
    h, w = b.p * a.stride_h - a.pad_h, b.q * a.stride_w - a.pad_w
    count = (b.columns - 1) * a.stride_w + a.reach_w
    before, pixel = min(count, max(0, -w)), a.pixel_words * 4
    inside = max(0, min(a.width, w + count) - max(0, w))
    for t in range(a.taps_d):
        d = b.o * a.stride_d - a.pad_d + t * a.dilation_d
        for j in range((b.rows - 1) * a.row_slots + a.reach_h):
            slot = j % a.phases * a.slots_of_phase + j // a.phases
            to = scratch + t * a.slice_bytes + slot * a.row_bytes
            row = scratch + a.row_at if a.flat else to
            i = h + j * a.row_step
            if a.planes:
                there = inside if 0 <= d < a.depth and 0 <= i < a.height else 0
                from_ = x + d * a.x_d + i * a.x_h + (w + before) * a.x_w
                call(a.widen, (from_, a.x_c, a.channels, before if there else 0, there, count, to, a.x_word))
                continue
            if 0 <= d < a.depth and 0 <= i < a.height and inside > 0:
                if before:
                    call(a.fill, (row, before * a.pixel_words, a.pad))
                from_ = x + d * a.x_d + i * a.x_h + (w + before) * a.x_w
                at = row + before * pixel
                call(a.convert, (from_, a.x_c, a.x_w, a.channels, inside, at, a.pixel_words, a.plain))
                after = count - before - inside
                if after:
                    call(a.fill, (at + inside * pixel, after * a.pixel_words, a.pad))
            else:
                call(a.fill, (row, count * a.pixel_words, a.pad))
            if a.flat:
                step, words = a.stride_w * a.pixel_words, a.taps_w * a.pixel_words
                joined = a.taps_w if a.dilation_w == 1 else 1  # taps that lie side by side
                for s in range(0, a.taps_w, joined):
                    from_, tap = row + s * a.dilation_w * pixel, to + s * pixel
                    call(a.pick, (from_, step, b.columns, tap, words, a.pixel_words * joined))


@jit.helper
def run_of(a: Any, b: WordBlock) -> Any:
    """Pixels that tiles run over without a gap."""
    return b.rows * b.columns if a.flat else b.columns


@jit.helper
def list_tiles(a: Any, b: WordBlock, source: Source, table: int) -> Any:
    """Write where the tiles of a block begin, in x and in y; how many there are."""
    run, count = run_of(a, b), 0
    for row in range(1 if a.flat else b.rows):
        for first in range(0, run, a.tile):
            begin = first if a.spill else min(first, max(0, run - a.tile))
            tile = carray(pointer(table), 1, WORD_TILE)[count]
            tile.x = source.address + row * source.row + begin * source.pixel
            tile.y = (row * a.q + begin) * a.y_pixel
            count += 1
    return count


@jit.helper
def sum_tiles(
    a: Any, pixel: int, table: int, tiles: int, several: int, single: int, w: int, row_w: int, begin: int,
    sums: int,
) -> None:  # fmt: skip
    """The sums of tiles, in rows of `row_w` bytes: pieces of the filter that stay in the first cache, by all
    of the tiles, together where there are enough."""
    places, chunk, tile = carray(pointer(table), 1, WORD_TILE), a.words * row_w, a.tile * row_w
    for piece in range(a.pieces):
        first, end = a.chunks * piece // a.pieces, a.chunks * (piece + 1) // a.pieces
        offsets, filters = a.offsets + first * 8, w + first * chunk
        for i in range(0, tiles, a.together):
            count, to = min(a.together, tiles - i), sums + i * tile
            call(
                several if count == a.together else single,
                (
                    places[i].x, places[i + count - 1].x, pixel, a.x_word, offsets, end - first, a.words,
                    filters, row_w, chunk, to if piece else begin, row_w if piece else 0, to, tile,
                ),
            )  # fmt: skip


@jit.helper
def sum_x_windows(a: Any, pixel: int, tiles: int, scratch: int) -> None:
    """The sum of x over the window of each pixel, in all lanes: a product with a filter of ones."""
    table, sums = scratch + a.tiles_at, scratch + a.windows_at
    sum_tiles(a, pixel, table, tiles, a.one_tiles, a.one_tile, a.ones, a.lanes * 4, a.zeros, sums)


@jit.helper
def sum_word_panel(a: Any, b: WordBlock, pixel: int, tiles: int, panel: int, scratch: int) -> None:
    """y of a block for a panel of filters, some tiles of pixels at once."""
    k = b.group * a.filters + panel * a.panel
    filters = min(a.panel, a.filters - panel * a.panel)
    several, single, row_w, store = a.panel_tiles, a.panel_tile, a.row_w, a.store_panel
    if panel == a.panels - 1:
        several, single, row_w, store = a.last_tiles, a.last_tile, a.last_row_w, a.store_last
    w = a.w + b.group * a.group_w + panel * a.panel_w
    y = a.y + b.n * a.y_n + k * a.y_k + ((b.o * a.p + b.p) * a.q + b.q) * a.y_pixel
    y_step = a.y_pixel if a.last else a.y_k
    sums, windows, table = scratch + a.sums_at, scratch + a.windows_at, scratch + a.tiles_at
    run, begin, zero, by = run_of(a, b), a.bias + k * 4, a.zero_points + k * 4, a.multiplier + k * 4
    of_run = (run + a.tile - 1) // a.tile if a.spill else tiles
    for first in range(0, tiles, of_run):
        for i in range(first, first + of_run, a.batch):
            done, at = min(a.batch, first + of_run - i), windows + i * a.tile * a.lanes * 4
            sum_tiles(a, pixel, table + i * 16, done, several, single, w, row_w, begin, sums)
            if a.spill == 0:
                given = (zero, at, by, a.step, a.relu, y, y_step)
                call(store, (sums, a.tile, done, table + i * 16, min(a.tile, run), filters, *given))
                continue
            # neighbours in y: in vectors of pixels, and what is left
            inside, squares = min(done * a.tile, run - (i - first) * a.tile), table + tiles * 16
            whole = inside // a.lanes
            for t in range(whole + 1):
                from_ = carray(pointer(table), 1, WORD_TILE)[i].y
                carray(pointer(squares), 1, WORD_TILE)[t].y = from_ + t * a.lanes * a.y_pixel
            given = (zero, at, by, a.step, a.relu, y, y_step)
            call(store, (sums, a.lanes, whole, squares, a.lanes, filters, *given))
            if inside > whole * a.lanes:
                left, done = inside - whole * a.lanes, whole * a.lanes
                given = (zero, at + done * a.lanes * 4, by, a.step, a.relu, y, y_step)
                call(store, (sums + done * row_w, a.lanes, 1, squares + whole * 16, left, filters, *given))
