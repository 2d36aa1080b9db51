"""Micro-kernels over words of 32 bits: four integers of 8 bits, two numbers of 16 bits, or one float32.

Sums of a tile of pixels by filters: y[pixel][filter] = sum over chunks and their words of
x[pixel + offset[chunk]][word] * w[chunk][word][filter]. A pixel's channels lie side by side in x, and a chunk
is as many of its words as an instruction takes, or all that lie in a run: kernel size, stride, dilation and
dimensions are content of the table of offsets. One form of the filter serves matrix tiles, whose rows are
words and whose columns are filters, and vectors of filters, multiplied with a word of x in all lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from convalgos.core.processor import cpuinfo
from convalgos.cpu.compile.code_generation import has
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import matrix_tiles, microkernel
from convalgos.cpu.vectors.integers import words_of
from convalgos.cpu.vectors.matrix_tiles import bytes_behind
from convalgos.cpu.vectors.simd import Value, Vec, emitter


@dataclass(frozen=True)
class Engine:
    """What multiplies words, and what x and w are brought to for it."""

    kind: int  # for kernels
    features: tuple[str, ...]  # of the processor, by LLVM's names
    item_bytes: int  # of an element in a word
    flips: str  # the type of x whose numbers get 128 added, or ""
    matrix: bool  # tiles, or vectors
    rate: float  # peak over that of float32: usually, and of bytes brought to pairs at most

    def missing(self) -> str | None:
        """Why it does not run here, or None."""
        if not has(*self.features):
            return f"the processor does not have {' and '.join(self.features)}"
        if self.matrix and not matrix_tiles.permitted():
            return "the system does not lend matrix tiles (AMX) to this process"
        return None


# Of `vdpbf16ps` over float32: Zen 5, and Xeon (Granite Rapids), which has matrix tiles for such products
BRAIN_RATE = 2.0 if cpuinfo("vendor_id") == "AuthenticAMD" else 0.5

TILES_U8, TILES_S8, TILES_BRAIN, BYTES, PAIRS, BRAIN, SINGLES = range(7)
TILE_KINDS = ("usd", "ssd", "bf16ps")
ENGINES = {  # by the name of an algorithm's variant and the type of x
    ("amx", "uint8"): Engine(TILES_U8, ("amx-int8", "avx512f"), 1, "", True, 27),
    ("amx", "int8"): Engine(TILES_S8, ("amx-int8", "avx512f"), 1, "", True, 27),
    ("amx", "bfloat16"): Engine(TILES_BRAIN, ("amx-bf16", "avx512bf16"), 2, "", True, 13.5),
    ("vnni", "uint8"): Engine(BYTES, ("avx512vnni", "avx512vl"), 1, "", False, 4),
    ("vnni", "int8"): Engine(BYTES, ("avx512vnni", "avx512vl"), 1, "int8", False, 4),
    ("pairs", "uint8"): Engine(PAIRS, (), 2, "", False, 1.83),
    ("pairs", "int8"): Engine(PAIRS, (), 2, "", False, 1.83),
    ("brain", "bfloat16"): Engine(BRAIN, ("avx512bf16", "avx512vl"), 2, "", False, BRAIN_RATE),
    ("fma", "bfloat16"): Engine(SINGLES, (), 4, "", False, 1),
    ("fma", "float16"): Engine(SINGLES, ("f16c",), 4, "", False, 1),
}


@emitter
def matrix_sums(
    v: Vec, KIND: int, PIXEL_TILES: int, FILTER_TILES: int, first: Value, second: Value, pixel: Value,
    offsets: Value, chunks: Value, w: Value, w_row: Value, w_chunk: Value, begin: Value, begin_row: Value,
    y: Value, y_tile: Value,
) -> None:  # fmt: skip
    """y = begin + the sums of tiles of pixels, from the addresses `first` and `second` on, by tiles of 16
    filters. begin: rows of a number for each filter, begin_row bytes apart; where that is 0, one for all.

    pixel, w_row, w_chunk, y_tile: bytes between pixels of x, words and chunks of w, and tiles of pixels in y,
    whose rows are of all filters; offsets: an int64 table, in bytes. Tiles are configured as `tile_shapes`.
    """
    starts = [v.pointer(a) for a in (first, second)[:PIXEL_TILES]]
    filters, row = v.pointer(w), 64 * FILTER_TILES
    tiles = [[2 * i + j for j in range(FILTER_TILES)] for i in range(PIXEL_TILES)]
    further = v.b.select(v.b.icmp_signed("!=", begin_row, v.integer(0)), y_tile, v.integer(0))
    for i, row_of_tiles in enumerate(tiles):
        source = bytes_behind(v, v.pointer(begin), v.imul(further, i))
        for j, total in enumerate(row_of_tiles):
            matrix_tiles.load_tile(v, total, bytes_behind(v, source, 64 * j), begin_row)
    with v.loop(chunks) as t:
        at = bytes_behind(v, filters, v.imul(t, w_chunk))
        for j in range(FILTER_TILES):
            matrix_tiles.load_tile(v, 6 + j, bytes_behind(v, at, 64 * j), w_row)
        offset = v.table64(offsets, t)
        for i, start in enumerate(starts):
            matrix_tiles.load_tile(v, 4 + i, bytes_behind(v, start, offset), pixel)
            for j in range(FILTER_TILES):
                matrix_tiles.tile_dot(v, TILE_KINDS[KIND], tiles[i][j], 4 + i, 6 + j)
    for i in range(PIXEL_TILES):
        target = bytes_behind(v, v.pointer(y), v.imul(i, y_tile))
        for j in range(FILTER_TILES):
            matrix_tiles.store_tile(v, tiles[i][j], bytes_behind(v, target, 64 * j), row)


def tile_shapes(pixels: int, words: int) -> list[tuple[int, int]]:
    """(rows, words) of the eight tiles: four of sums, two of pixels, two of filters."""
    return [(pixels, 16)] * 4 + [(pixels, words)] * 2 + [(words, 16)] * 2


@emitter
def vector_sums(
    v: Vec, KIND: int, PIXELS: int, VECTORS: int, first: Value, pixel: Value, x_word: Value, offsets: Value,
    chunks: Value, words: Value, w: Value, w_row: Value, w_chunk: Value, begin: Value, y: Value,
) -> None:  # fmt: skip
    """The same for one tile of pixels by vectors of filters; words: of a chunk, x_word bytes apart in x."""
    i = words_of(v)
    start = v.pointer(first)
    starts = [bytes_behind(v, start, v.imul(pixel, n)) for n in range(PIXELS)]
    filters, target, wide = v.pointer(w), v.pointer(y), range(VECTORS)
    of = v if KIND in (BRAIN, SINGLES) else i
    dot: dict[int, Callable[..., Any]] = {
        BYTES: i.dot4, PAIRS: lambda total, x, w: i.dot2(total, x, w, False), BRAIN: i.brain_dot2,
        SINGLES: lambda total, x, w: v.fma(v.b.bitcast(x, v.type), v.b.bitcast(w, v.type), total),
    }  # fmt: skip
    sums = [[of.register(of.load(v.pointer(begin), j * v.lanes)) for j in wide] for _ in range(PIXELS)]
    with v.loop(chunks) as t:
        offset, at = v.table64(offsets, t), bytes_behind(v, filters, v.imul(t, w_chunk))
        with v.loop(words) as k:
            here = bytes_behind(v, at, v.imul(k, w_row))
            weights = [i.load(here, j * v.lanes) for j in wide]
            word = v.iadd(offset, v.imul(k, x_word))
            if KIND == SINGLES:  # in planes, where a processor foresees nothing
                soon = v.iadd(word, v.imul(x_word, microkernel.PREFETCH_TAPS))
                v.prefetch(bytes_behind(v, starts[0], soon), near=True)
            for row, place in zip(sums, starts, strict=True):
                value = i.broadcast(bytes_behind(v, place, word))
                for total, weight in zip(row, weights, strict=True):
                    total.set(dot[KIND](total.value, value, weight))
    for n, row in enumerate(sums):
        for j, total in enumerate(row):
            of.store(total.value, target, (n * VECTORS + j) * v.lanes)


@jit.specialise
def sum_word_tile(KIND: int, LANES: int, PIXELS: int, VECTORS: int) -> jit.Kernel:
    """Tiles of pixels by a panel of filters. PIXELS: of a tile; of matrix tiles, how many tiles."""

    def sum_word_tile(
        first: int, second: int, pixel: int, x_word: int, offsets: int, chunks: int, words: int, w: int,
        w_row: int, w_chunk: int, begin: int, begin_row: int, y: int, y_tile: int,
    ) -> None:  # fmt: skip
        if KIND <= TILES_BRAIN:
            matrix_sums(
                4, LANES, KIND, PIXELS, VECTORS, first, second, pixel, offsets, chunks, w, w_row, w_chunk,
                begin, begin_row, y, y_tile,
            )  # fmt: skip
        else:
            vector_sums(
                4, LANES, KIND, PIXELS, VECTORS, first, pixel, x_word, offsets, chunks, words, w, w_row,
                w_chunk, begin, y,
            )  # fmt: skip

    return sum_word_tile


def register_tile(vector_bytes: int) -> dict[int, int]:
    """{vectors of filters: pixels} that fit the registers."""
    return microkernel.REGISTER_TILES[vector_bytes]
