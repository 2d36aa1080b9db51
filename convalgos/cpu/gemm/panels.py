"""Products of pixels by panels of filters: the part of a product that all algorithms on it share.

A panel is as many filters as the micro-kernel holds in registers beside its rows of pixels. A product sums
a block of pixels, found through a table, for one panel; the output step adds the bias, applies the
activation and writes y in its layout.
"""

from __future__ import annotations

import math
from functools import lru_cache

from convalgos.core.machine import Machine, cache_sizes, vector_bytes
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import dealt_panels
from convalgos.cpu.layout import streaming
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import microkernel, simd, transpose
from convalgos.cpu.vectors.simd import Value, Vec

TAPS = 512  # of a pass over a panel: 128 KiB of filters, which the pixels of a block reuse from L2
# Calibrated on Zen 5 with AVX-512.
SUMS = 0.82  # times flops over the measured peak: the sums, with every register of them in use,
WAITS = 4.3  # and this much over the registers, as small tiles wait for their loads
OUTPUT_CYCLES = 4.3  # of the output step, for a vector of y
# Of 1x1 layers on a Xeon (Granite Rapids), where so many channels or more lie far apart (bytes), or pages.
APART, CROWDED, FAR, PAGE, WAYS = 1.15, 1.3, 1024, 4096, 32
NARROW = 2  # columns of windows that do not overlap; 105 layers of 2x2 to 16x16 taps, Zen 5


@lru_cache(1024)
def tile_for(filters: int, dtype_bytes: int) -> tuple[int, int]:
    """(rows, vectors) of the micro-kernel for a number of filters: large tiles, but few lanes of padding.

    A tile of few registers waits for its loads and sums: 8 registers give 0.8 of the speed of 24.
    """
    table = microkernel.REGISTER_TILES[vector_bytes()]
    needed = -(-filters // simd.lanes(dtype_bytes))  # vectors

    def product_seconds(vectors: int) -> float:
        registers = table[vectors] * vectors
        return -(-needed // vectors) * vectors * (registers + 3) / registers

    vectors = min(table, key=lambda v: (product_seconds(v), -v))
    return table[vectors], vectors


def chunk(taps: int, most: int = TAPS) -> int:
    """Taps of a pass: equal passes of at most `most`."""
    return max(1, -(-taps // -(-taps // most))) if taps else 1


def product_seconds(problem: ConvProblem, machine: Machine) -> float:
    """Predicted time of all sums and of the output step on all threads, from data in the caches."""
    p, lanes = problem, simd.lanes(problem.itemsize)
    rows, count = dealt_panels.panel_tile(p.gemm_n, p.itemsize)
    needed = -(-p.gemm_n // lanes)  # vectors of filters, the last one with lanes of padding
    vector = p.flops / max(1, p.gemm_n) * lanes / machine.peak(p.dtype)
    sums = vector * (SUMS * needed + WAITS * count / rows)
    sums = max(sums, filter_seconds(p, machine))
    vectors_out = p.gemm_m * p.groups * needed
    return sums + vectors_out * OUTPUT_CYCLES / machine.cycles


def filter_seconds(problem: ConvProblem, machine: Machine) -> float:
    """To read the filter, which takes longer than the sums where there are few pixels."""
    return problem.w_bytes / machine.cache_bandwidth


def crowding(problem: ConvProblem) -> float:
    """How much longer sums take where the channels of a map are read as they lie, far apart.

    Each line of x, from which several tiles read, is gone from the first cache before the next one: always
    where channels lie whole pages apart and meet few of its sets, else where they do not stay in L2 either.
    """
    p = problem
    apart = math.prod(p.spatial) * p.itemsize
    if p.layout != "channels_first" or p.w_shape[1] < WAYS or apart < FAR:
        return 1.0
    if apart % PAGE == 0:
        return CROWDED
    return APART if p.w_shape[1] * apart > cache_sizes()[1] // 4 else 1.0


def windows_share_lines(problem: ConvProblem) -> bool:
    """Whether windows that do not overlap take a line of x once, for all taps of a row, and no more.

    Wide ones share none with their neighbours, and wait for those that come from afar.
    """
    p = problem
    near = p.kernel[-1] <= NARROW or p.x_bytes <= cache_sizes()[2] // 3
    return p.kernel[-1] == p.stride[-1] and near


def crowding_of_windows(problem: ConvProblem) -> float:
    """`crowding` of sums in which the taps of a row follow each other."""
    shared = problem.kernel[-1] if windows_share_lines(problem) else 1
    return 1 + (crowding(problem) - 1) / shared


@jit.specialise
def sum_panel(SIZE: int, LANES: int, ROWS: int, VECTORS: int, PREFETCH_TAPS: int) -> jit.Kernel:
    """sums[pixel][:] = sum over taps, for one panel of filters, in passes of `chunk` taps.

    The pixels are dealt to tiles of ROWS and ROWS - 1; where that cannot be, the last tile computes spare
    rows, for which the table and the sums have room. PREFETCH_TAPS is that of `microkernel.conv_tile`: for an
    x that is read where it lies, whose channels are far apart.
    """
    FEWER = max(ROWS - 1, 1)

    def sum_panel(
        x: int, table: int, pixels: int, offsets: int, taps: int, chunk: int, w: int, sums: int
    ) -> None:
        tiles = (pixels + ROWS - 1) // ROWS
        rows = max(pixels, tiles * FEWER)
        width = VECTORS * LANES
        tap = 0
        while tap < taps:
            count = min(chunk, taps - tap)
            at = offsets + tap * 8
            weights = w + tap * width * SIZE
            ahead = weights + count * width * SIZE  # the next pass or panel, fetched a part with each tile
            for tile in range(tiles):
                first = rows * tile // tiles
                full = rows * (tile + 1) // tiles - first == ROWS
                start = table + first * 8
                target = sums + first * width * SIZE
                if tap == 0 and full:
                    microkernel.conv_tile(
                        SIZE, LANES, ROWS, VECTORS, 0, PREFETCH_TAPS,
                        x, start, at, weights, count, target, width, ahead,
                    )  # fmt: skip
                elif tap == 0:
                    microkernel.conv_tile(
                        SIZE, LANES, FEWER, VECTORS, 0, PREFETCH_TAPS,
                        x, start, at, weights, count, target, width, ahead,
                    )  # fmt: skip
                elif full:
                    microkernel.conv_tile(
                        SIZE, LANES, ROWS, VECTORS, 1, PREFETCH_TAPS,
                        x, start, at, weights, count, target, width, ahead,
                    )  # fmt: skip
                else:
                    microkernel.conv_tile(
                        SIZE, LANES, FEWER, VECTORS, 1, PREFETCH_TAPS,
                        x, start, at, weights, count, target, width, ahead,
                    )  # fmt: skip
                if tile < VECTORS - 1:
                    ahead += count * LANES * SIZE
            tap += count

    return sum_panel


def streams_panels(problem: ConvProblem) -> bool:
    """Whether y is too large for the caches, and its planes are aligned alike, to be stored around them."""
    plane = math.prod(problem.spatial_out) * problem.itemsize
    aligned = plane % vector_bytes() == 0
    return (
        problem.y_layout == "channels_first"
        and aligned
        and streaming.outgrows_caches(problem.y_bytes, streaming.STREAMED_PANELS, own=True)
    )


@simd.emitter
def finish_rows(
    v: Vec, x: Value, x_step: Value, rows: Value, bias: Value, relu: Value, columns: Value, y: Value,
    y_step: Value,
) -> None:  # fmt: skip
    """y[i * y_step + j] = x[i * x_step + j] + bias[j] for i < rows, j < columns <= lanes, or 0 with relu."""
    source, target, added, low = v.pointer(x), v.pointer(y), v.load(v.pointer(bias)), v.lower_bound(relu)

    def value(i: Value) -> Value:
        return v.fmax(v.fadd(v.load(source, v.imul(i, x_step)), added), low)

    with v.choose(v.isub(columns, v.lanes)) as (whole, part):
        with whole, v.loop(rows) as i:
            v.store(value(i), target, v.imul(i, y_step))
        with part, v.loop(rows) as i:
            v.store_masked(value(i), target, v.imul(i, y_step), v.mask(columns))


@simd.emitter
def finish_whole_rows(
    v: Vec, x: Value, x_step: Value, rows: Value, bias: Value, relu: Value, columns: Value, y: Value,
    y_step: Value,
) -> None:  # fmt: skip
    """`finish_rows` of any number of columns, which lie together in y.

    All of a row is stored before the next one: its cache lines follow one another, and are fetched ahead.
    Lines that lie 1 KB apart are not, and took twice as long (1x1, C=64, K=256; Xeon, AVX-512).
    """
    added, low = v.pointer(bias), v.lower_bound(relu)
    whole = v.idiv(columns, v.lanes)
    done = v.imul(whole, v.lanes)
    rest = v.isub(columns, done)
    with v.loop(rows) as i:
        source = v.pointer(v.iadd(x, v.imul(v.imul(i, x_step), v.size)))
        target = v.pointer(v.iadd(y, v.imul(v.imul(i, y_step), v.size)))

        def value(at: Value) -> Value:
            return v.fmax(v.fadd(v.load(source, at), v.load(added, at)), low)

        with v.loop(whole) as j:
            at = v.imul(j, v.lanes)
            v.store(value(at), target, at)
        with v.unless_negative(v.isub(rest, 1)):
            v.store_masked(value(done), target, done, v.mask(rest))


@jit.helper
def store_in_planes(
    SIZE: int, LANES: int, source: int, width: int, pixels: int, count: int, bias: int, relu: int,
    stream: int, y: int, y_k: int,
) -> None:  # fmt: skip
    """y[filter * y_k + pixel] = source[pixel][filter] + bias[filter], for count <= LANES filters.

    With `stream` (see `streams_panels`), pieces that fill a vector are stored around the caches.
    """
    whole = stream and count == LANES
    piece = -(y // SIZE) % LANES if whole else 0  # pixels up to the first aligned one
    i = 0
    while i < pixels:
        columns = min(piece if piece else LANES, pixels - i)
        from_ = source + i * width * SIZE
        to = y + i * SIZE
        if whole and columns == LANES:
            transpose.stream_square(SIZE, LANES, from_, width, bias, relu, to, y_k)
        elif columns == LANES and count == LANES:
            transpose.store_whole_square(SIZE, LANES, from_, width, bias, relu, to, y_k)
        else:
            transpose.store_square(SIZE, LANES, from_, width, bias, relu, count, columns, to, y_k)
        i += columns
        piece = 0


@jit.specialise
def store_run(SIZE: int, LANES: int) -> jit.Kernel:
    """y[filter, pixel] = sums[pixel][filter] + bias, for a run of pixels, in any layout."""

    def store_run(
        sums: int, width: int, pixels: int, filters: int, bias: int, relu: int, stream: int, y: int,
        y_k: int, y_pixel: int,
    ) -> None:  # fmt: skip
        if y_k == 1 and y_pixel != 1:
            finish_whole_rows(SIZE, LANES, sums, width, pixels, bias, relu, filters, y, y_pixel)
        else:
            for k in range(0, filters, LANES):
                count, source, added = min(LANES, filters - k), sums + k * SIZE, bias + k * SIZE
                to = y + k * y_k * SIZE
                if y_pixel == 1:
                    store_in_planes(SIZE, LANES, source, width, pixels, count, added, relu, stream, to, y_k)
                else:
                    finish_rows(SIZE, LANES, source, width, pixels, added, relu, count, to, y_pixel)

    return store_run
