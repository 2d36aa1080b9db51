"""Kernels of sparse filters: one pass over the non-zero weights of a tile for a row of vectors of pixels.

The sums of a tile stay in registers while the list of its weights is read: each brings an offset, at which
all vectors of the tile are loaded, and a weight for each filter. Between the chunks of channels the sums lie
in scratch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from convalgos.cpu.layout import streaming, strided_rows
from convalgos.cpu.layout.strides import first_output
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.finish import finish_run
from convalgos.cpu.runtime.plan import arguments
from convalgos.cpu.vectors.simd import Value, Vec, call, carray, emitter, fetch_bytes, ir, pointer

ARGUMENTS = arguments(
    "size block_o block_p block_q blocks_o blocks_p blocks_q n o p q channels filters groups parts "
    "tiles sharing chunk chunks tasks x_n x_c depth height width "
    "stride_d stride_h stride_w pad_d pad_h pad_w dilation_d dilation_w taps_d copies beside reach_h reach_w "
    "phases phase_count pitch copied plane channel runs run sums_row input_bytes scratch_stride stream y_n "
    "y_k copy_rows store_rows sum_sparse_tiles"
)


@emitter
def sparse_tile(
    v: Vec, SHARING: int, VECTORS: int, x: Value, offsets: Value, w: Value, count: Value, sums: Value,
    sums_row: Value, bias: Value, begins: Value, relu: Value,
) -> None:  # fmt: skip
    """sums[i][:] += sum_t w[t][i] * x[offsets[t] + :], for i < SHARING and VECTORS vectors.

    Where it `begins`, from bias[i] on instead; at least 0 with relu. offsets: int32.
    """
    base, weights, listed = v.pointer(x), v.pointer(w), v.pointer(offsets)
    rows = [v.at(v.pointer(sums), v.imul(sums_row, i)) for i in range(SHARING)]
    totals = [[v.register(v.zero()) for _ in range(VECTORS)] for _ in rows]
    with v.choose(v.isub(begins, 1)) as (first, further):
        with first:
            for i, row in enumerate(totals):
                start = v.broadcast(v.pointer(bias), i)
                for total in row:
                    total.set(start)
        with further:
            for source, row in zip(rows, totals, strict=True):
                for j, total in enumerate(row):
                    total.set(v.load(source, j * v.lanes))
    word = ir.IntType(32)
    with v.loop(count) as t:
        offset = v.b.load(v.b.gep(listed, [t], source_etype=word), typ=word)
        at = v.at(base, v.b.sext(offset, ir.IntType(64)))
        given = [v.broadcast(weights, v.iadd(v.imul(t, SHARING), i)) for i in range(SHARING)]
        for j in range(VECTORS):
            pixels = v.load(at, j * v.lanes)
            for row, weight in zip(totals, given, strict=True):
                row[j].set(v.fma(weight, pixels, row[j].value))
    low = v.lower_bound(relu)
    for target, row in zip(rows, totals, strict=True):
        for j, total in enumerate(row):
            v.store(v.fmax(total.value, low), target, j * v.lanes)


@jit.specialise
def sum_sparse_tiles(SIZE: int, LANES: int, SHARING: int, VECTORS: int) -> Callable[..., None]:
    """`sparse_tile` for some tiles of filters, whose lists begin at starts[0], starts[step], ..., and for
    `runs` tiles of pixels one behind the other."""

    def sum_sparse_tiles(
        x: int, starts: int, step: int, tiles: int, offsets: int, w: int, sums: int, sums_row: int, bias: int,
        begins: int, relu: int, runs: int,
    ) -> None:  # fmt: skip
        listed = carray(pointer(starts), tiles * step + 1, np.int64)
        for tile in range(tiles):
            begin = listed[tile * step]
            count = listed[tile * step + 1] - begin
            to = sums + tile * SHARING * sums_row * SIZE
            if tile + 1 < tiles:
                fetch_bytes(8, 8, 1, to + SHARING * sums_row * SIZE, SHARING * sums_row * SIZE)
            for run in range(runs):
                at = run * VECTORS * LANES * SIZE
                sparse_tile(
                    SIZE, LANES, SHARING, VECTORS, x + at, offsets + begin * 4, w + begin * SHARING * SIZE,
                    count, to + at, sums_row, bias + tile * SHARING * SIZE, begins, relu,
                )  # fmt: skip

    return sum_sparse_tiles


@emitter
def store_row(v: Vec, sums: Value, y: Value, count: Value) -> None:
    """y[:count] = sums[:count]."""
    from_, to = v.pointer(sums), v.pointer(y)
    whole = v.idiv(count, v.lanes)
    with v.loop(whole) as i:
        v.store(v.load(from_, v.imul(i, v.lanes)), to, v.imul(i, v.lanes))
    done = v.imul(whole, v.lanes)
    v.store_masked(v.load(from_, done), to, done, v.mask(v.isub(count, done)))


@jit.specialise
def store_rows(SIZE: int, LANES: int) -> Callable[..., None]:
    """Finished sums to y: `rows` rows of `columns` pixels of each of `count` filters."""

    def store_rows(
        sums: int, sums_row: int, count: int, pitch: int, rows: int, columns: int, y: int, y_k: int,
        y_row: int, stream: int,
    ) -> None:  # fmt: skip
        for i in range(count):
            for j in range(rows):
                from_, to = sums + (i * sums_row + j * pitch) * SIZE, y + (i * y_k + j * y_row) * SIZE
                if stream:
                    streaming.copy_run(SIZE, LANES, from_, to, columns, stream)
                else:
                    store_row(SIZE, LANES, from_, to, columns)

    return store_rows


@jit.helper
def read_chunk(
    a: Any, x: int, channels: int, o: int, p: int, q: int, rows: int, columns: int, to: int
) -> None:
    """The input of some channels under a block, from output (o, p, q) on, as `blocking` lays it out.

    x: of the first channel.
    """
    phases = carray(pointer(a.phases), a.phase_count, np.int64)
    above = p * a.stride_h - a.pad_h
    needed = rows + a.copied - a.block_p
    for c in range(channels):
        for t in range(a.taps_d):
            d = o * a.stride_d - a.pad_d + t * a.dilation_d
            for s in range(a.copies):
                w = q * a.stride_w - a.pad_w + s * a.dilation_w
                end = min(a.width, w + columns * a.stride_w + a.beside)
                inside = end - max(0, w) if 0 <= d < a.depth else 0
                from_ = x + (c * a.x_c + d * a.height * a.width + max(0, w)) * a.size
                for i in range(a.phase_count):
                    at = to + (((t * a.copies + s) * a.phase_count + i) * a.plane + c * a.channel) * a.size
                    lines = strided_rows.rows_of(above + phases[i], a.stride_h, needed, a.height)
                    strided_rows.copy_plane(
                        a.copy_rows, a.size, from_, a.width, lines, max(0, -w), inside, at, a.pitch, a.run,
                        a.stride_w, 1,
                    )  # fmt: skip


@jit.helper
def fetch_chunk(a: Any, x: int, channels: int, o: int, p: int, q: int, rows: int, columns: int) -> None:
    """Ask for the input that `read_chunk` will read, into the second cache."""
    first = max(0, p * a.stride_h - a.pad_h)
    end = min(a.height, (p + rows - 1) * a.stride_h - a.pad_h + a.reach_h)
    left = max(0, q * a.stride_w - a.pad_w)
    width = min(a.width, (q + columns) * a.stride_w + a.reach_w - a.pad_w) - left
    for c in range(channels):
        for t in range(a.taps_d):
            d = o * a.stride_d - a.pad_d + t * a.dilation_d
            if 0 <= d < a.depth:
                plane = x + (c * a.x_c + d * a.height * a.width + left) * a.size
                for h in range(first, end):
                    fetch_bytes(8, 8, 0, plane + h * a.width * a.size, width * a.size)


@jit.helper
def fetch_rows(a: Any, y: int, count: int, rows: int, columns: int) -> None:
    """Ask for the rows of y of some filters, which are soon written."""
    for i in range(count):
        for j in range(rows):
            fetch_bytes(8, 8, 1, y + (i * a.y_k + j * a.q) * a.size, columns * a.size)


@jit.helper
def find_lists(a: Any) -> tuple[int, int]:
    """Addresses of the offsets and of the weights of all lists, in what `filters.pack_lists` made."""
    lists = a.groups * a.tiles * a.chunks
    listed = carray(pointer(a.w), lists + 1, np.int64)[lists]
    offsets = a.w + ((lists + 1) * 8 + 63) // 64 * 64
    return offsets, offsets + (listed * 4 + 63) // 64 * 64


@jit.specialise
def sum_sparse() -> Callable[..., None]:
    """Groups x parts of the filters x images x blocks, in this order, dealt to the tasks: so the lists of a
    part are found in the second cache again. For each:

    1. find the block of pixels and the part of the filters;
    2. for each chunk of the channels, copy its input;
    3. for each tile of filters, add what its non-zero weights in the chunk bring to the sums in scratch,
       which after the last chunk go on to y.
    """

    def sum_sparse(args: int, task: int) -> None:
        a = carray(pointer(args), 1, ARGUMENTS)[0]
        scratch = a.scratch + task * a.scratch_stride
        sums = scratch + a.input_bytes
        blocks = a.n * a.blocks_o * a.blocks_p * a.blocks_q
        total = a.groups * blocks * a.parts
        offsets, weights = find_lists(a)
        for item in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            group, part = item // (blocks * a.parts), item // blocks % a.parts
            n, o, p, q = first_output(a, item % blocks)
            rows, columns = min(a.block_p, a.p - p), min(a.block_q, a.q - q)
            first, end = a.tiles * part // a.parts, a.tiles * (part + 1) // a.parts
            for chunk in range(a.chunks):
                c = chunk * a.chunk
                x = a.x + (n * a.x_n + (group * a.channels + c) * a.x_c) * a.size
                read_chunk(a, x, min(a.chunk, a.channels - c), o, p, q, rows, columns, scratch)
                if chunk + 1 < a.chunks:
                    further = x + a.chunk * a.x_c * a.size
                    more = min(a.chunk, a.channels - c - a.chunk)
                    fetch_chunk(a, further, more, o, p, q, rows, columns)
                lists = a.w + ((group * a.tiles + first) * a.chunks + chunk) * 8
                if chunk + 1 < a.chunks:
                    call(
                        a.sum_sparse_tiles,
                        (
                            scratch, lists, a.chunks, end - first, offsets, weights, sums, a.sums_row,
                            a.bias + (group * a.filters + first * a.sharing) * a.size, chunk == 0, 0, a.runs,
                        ),
                    )  # fmt: skip
            y = a.y + (n * a.y_n + group * a.filters * a.y_k + (o * a.p + p) * a.q + q) * a.size
            if a.pitch == a.q == columns:
                columns, rows = columns * rows, 1
            stream = 0 if a.finish else a.stream
            for tile in range(first, end):
                k = tile * a.sharing
                to = y + k * a.y_k * a.size
                count = min(a.sharing, a.filters - k)
                if not stream:
                    fetch_rows(a, to, count, rows, columns)
                lists = a.w + ((group * a.tiles + tile + 1) * a.chunks - 1) * 8
                of_tile = sums + (tile - first) * a.sharing * a.sums_row * a.size
                call(
                    a.sum_sparse_tiles,
                    (
                        scratch, lists, a.chunks, 1, offsets, weights, of_tile, a.sums_row,
                        a.bias + (group * a.filters + k) * a.size, a.chunks == 1, a.relu, a.runs,
                    ),
                )  # fmt: skip
                call(
                    a.store_rows,
                    (of_tile, a.sums_row, count, a.pitch, rows, columns, to, a.y_k, a.q, stream),
                )
                for i in range(count * rows if a.finish else 0):
                    finish_run(a, to + (i // rows * a.y_k + i % rows * a.q) * a.size, columns)

    return sum_sparse
