"""Blocks of maps to spectra and back: the kernels of the FFT algorithms.

1. `forward_chunk` reads blocks of the input with their zero border, and transforms them in place.
2. `backward_chunk` multiplies their spectra by those of the filters, transforms the sums back in place and
   writes y with bias and activation.

Both work on one chunk of groups and blocks at a time, in either layout: sizes and strides stand in their
argument record. Threads share a chunk, or each has chunks to itself (`run_chunks`). Filters are transformed
by `forward_chunk` too, as maps of one block, and `pack_spectra` brings them into the order of the products.

A plane is a block of one channel: rows of reals, each with room for one frequency more, and then its
spectrum in the same place. Strides count elements; addresses are bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from convalgos.core.allocator import whole_lines
from convalgos.cpu.layout import channel_vectors
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.finish import finish_run
from convalgos.cpu.runtime.plan import arguments
from convalgos.cpu.vectors import simd, transpose
from convalgos.cpu.vectors.simd import call, carray, copy_bytes, pointer, zero_bytes

CHUNK_ARGUMENTS = arguments(
    # the chunk, and the work in it
    "chunk chunk_groups chunk_blocks groups channels filters panels panel_filters run run_panels part "
    "blocks blocks_d blocks_h blocks_w block_pair phases phase_table tasks parts "
    # planes and scratch
    "plane plane_d plane_h length_d length_h length_w vectors vectors_part lane_bytes spectra_bytes "
    # the maps
    "size_d size_h size_w out_d out_h out_w stride_d stride_h stride_w low_d low_h low_w "
    "step_d step_h step_w x_n x_c x_d x_h x_w y_n y_k y_d y_h y_w "
    # where something else than zeros lies beyond the edges: for each place of the padded map that of x, or
    # OUTSIDE, which stands for the element at `fill`
    "sources_d sources_h sources_w places_d places_h places_w fill "
    # what is called
    "transform execute_forward inverse execute_inverse multiply forward backward chunks task_bytes"
)
ARGUMENT_BYTES = CHUNK_ARGUMENTS.itemsize
STRIP_PIXELS = 128  # pixels of a row that are transposed from channels_last at a time


def argument_bytes() -> int:
    """Scratch of a task that works alone, behind its strip: a record of its own, in whole cache lines."""
    return whole_lines(ARGUMENT_BYTES)


def strip_bytes(itemsize: int) -> int:
    """Scratch of a thread, behind its products: a strip of pixels of all lanes."""
    return STRIP_PIXELS * simd.lanes(itemsize) * itemsize


@jit.helper
def chunk_ranges(a: Any) -> tuple[int, int, int, int]:
    """(first group, number of groups, first block, number of blocks)."""
    chunks = (a.blocks + a.chunk_blocks - 1) // a.chunk_blocks
    group = a.chunk // chunks * a.chunk_groups
    block = a.chunk % chunks * a.chunk_blocks
    return group, min(a.chunk_groups, a.groups - group), block, min(a.chunk_blocks, a.blocks - block)


@jit.helper
def block_place(a: Any, block: int) -> tuple[int, int, int, int]:
    """(image, first output in each dimension) of a block."""
    n = block // (a.blocks_w * a.blocks_h * a.blocks_d)
    d = block // (a.blocks_w * a.blocks_h) % a.blocks_d
    h = block // a.blocks_w % a.blocks_h
    return n, d * a.step_d, h * a.step_h, block % a.blocks_w * a.step_w


@jit.helper
def source_at(table: int, places: int, place: int) -> int:
    """What lies at a place of the padded map; -1 behind its end, too."""
    sources = carray(pointer(table), places, np.int64)
    return sources[place] if place < places else -1


@jit.helper
def fill_ends(a: Any, line: int, first: int, end: int, w0: int, count: int, row: int, size: int) -> None:
    """Elements [first, end) of a row of `count` planes, which lie beyond the map.

    Args:
        line: where the row of x begins, or 0 where the whole row lies beyond the map.
        w0: the place in x of the row's first element.
    """
    for i in range(first, end):
        source = -1
        if line:
            source = source_at(a.sources_w, a.places_w, w0 + a.low_w + i * a.stride_w)
        for j in range(count):
            from_ = a.fill if source < 0 else line + (source * a.x_w + j * a.x_c) * size
            copy_bytes(row + (j * a.plane + i) * size, from_, size)


@jit.specialise
def forward_chunk(SIZE: int, LANES: int) -> Callable[..., None]:
    """Spectra of a chunk of x: [block][phase][group][channel][frequency]. For each run of channels:

    1. find the input under the block, and which elements of a row lie inside of x;
    2. copy its rows, with zeros around them or what else lies there, one plane for each channel;
    3. transform the planes in place.
    """

    def forward_chunk(args: int, task: int) -> None:
        a = carray(pointer(args), 1, CHUNK_ARGUMENTS)[0]
        strip = a.scratch + a.spectra_bytes + task * a.lane_bytes
        group0, groups, block0, blocks = chunk_ranges(a)
        plane = a.plane * SIZE
        units = (groups * a.channels + a.run - 1) // a.run * a.phases * blocks
        for unit in range(units * task // a.tasks, units * (task + 1) // a.tasks):
            local = unit % blocks
            phase = unit // blocks % a.phases
            channel = unit // (blocks * a.phases) * a.run  # of the chunk
            count = min(a.run, groups * a.channels - channel)
            planes = a.scratch + ((local * a.phases + phase) * a.chunk_groups * a.channels + channel) * plane
            # the input under the first element of the block, in x
            n, d0, h0, w0 = block_place(a, block0 + local)
            offsets = carray(pointer(a.phase_table + phase * 24), 3, np.int64)
            d0 = d0 * a.stride_d + offsets[0] - a.low_d
            h0 = h0 * a.stride_h + offsets[1] - a.low_h
            w0 = w0 * a.stride_w + offsets[2] - a.low_w
            # elements [before, behind) of a row lie inside of x
            before = min(a.length_w, max(0, (a.stride_w - 1 - w0) // a.stride_w))
            behind = max(before, min(a.length_w, (a.size_w - 1 - w0) // a.stride_w + 1))
            step = a.stride_w * a.x_w
            image = a.x + (n * a.x_n + (group0 * a.channels + channel) * a.x_c + w0 * a.x_w) * SIZE
            for i in range(a.length_d * a.length_h):
                d = d0 + i // a.length_h * a.stride_d
                h = h0 + i % a.length_h * a.stride_h
                row = planes + (i // a.length_h * a.plane_d + i % a.length_h * a.plane_h) * SIZE
                if a.sources_w:
                    d = source_at(a.sources_d, a.places_d, d + a.low_d)
                    h = source_at(a.sources_h, a.places_h, h + a.low_h)
                inside = behind if 0 <= d < a.size_d and 0 <= h < a.size_h else before
                source = image + (d * a.x_d + h * a.x_h) * SIZE
                for j in range(count):
                    zero_bytes(row + j * plane, before * SIZE)
                    zero_bytes(row + j * plane + inside * SIZE, (a.length_w - inside) * SIZE)
                if a.sources_w:
                    line = source - w0 * a.x_w * SIZE if d >= 0 and h >= 0 else 0
                    fill_ends(a, line, 0, before, w0, count, row, SIZE)
                    fill_ends(a, line, inside, a.length_w, w0, count, row, SIZE)
                if a.run == 1 and step == 1:
                    copy_bytes(row + before * SIZE, source + before * SIZE, (inside - before) * SIZE)
                elif a.run == 1:
                    at = source + before * step * SIZE
                    channel_vectors.copy_strided(row + before * SIZE, at, inside - before, step, SIZE)
                else:
                    for first in range(before, inside, STRIP_PIXELS):
                        pixels = min(STRIP_PIXELS, inside - first)
                        for w in range(0, pixels, LANES):
                            transpose.load_square(
                                SIZE, LANES, source + (first + w) * step * SIZE, step,
                                min(LANES, pixels - w), count, strip + w * SIZE, STRIP_PIXELS,
                            )  # fmt: skip
                        for j in range(count):
                            copy_bytes(
                                row + j * plane + first * SIZE, strip + j * STRIP_PIXELS * SIZE, pixels * SIZE
                            )
            for j in range(count):
                call(a.execute_forward, (a.transform, planes + j * plane, planes + j * plane))

    return forward_chunk


@jit.helper
def multiply_chunk(
    a: Any, block_from: int, block_to: int, panel_from: int, panel_to: int, first_filter: int, filters: int,
    products: int, size: int, lanes: int,
) -> None:  # fmt: skip
    """Products of panels of a chunk with some of its blocks: [filter][block][frequency]."""
    summed = a.phases * a.channels
    step_block = a.chunk_groups * summed * a.plane
    vector = 2 * lanes * size
    for f in range(0, a.vectors, a.vectors_part):
        vectors = min(a.vectors_part, a.vectors - f)
        for panel in range(panel_from, panel_to):
            group = panel // a.panels
            # a last panel that is not full writes zeros beyond it, which the next one overwrites
            k = group * a.filters + panel % a.panels * a.panel_filters - first_filter
            w = ((filters + panel) * a.vectors + f) * summed * a.panel_filters
            w = a.w + w * a.parts * lanes * size
            for block in range(block_from, block_to, a.block_pair):
                more = int(block + 1 < block_to)  # the last pair of an odd number is one block twice
                x = a.scratch + (block * step_block + group * a.channels * a.plane) * size + f * vector
                y = products + (k * a.part + block - block_from) * a.plane * size + f * vector
                call(
                    a.multiply,
                    (
                        x, more * step_block, a.chunk_groups * a.channels * a.plane, a.plane, w, a.phases,
                        a.channels, vectors, y, a.part * a.plane, more * a.plane,
                    ),
                )  # fmt: skip


@simd.emitter
def store_plane_row(v: simd.Vec, x: Any, bias: Any, relu: Any, count: Any, y: Any) -> None:
    """y[i] = x[i] + bias[0] for i < count, at least 0 with relu."""
    source, to = v.pointer(x), v.pointer(y)
    add, low = v.broadcast(v.pointer(bias)), v.lower_bound(relu)
    whole = v.b.sdiv(count, v.integer(v.lanes))
    with v.loop(whole) as i:
        at = v.imul(i, v.lanes)
        v.store(v.fmax(v.fadd(v.load(source, at), add), low), to, at)
    at = v.imul(whole, v.lanes)
    inside = v.mask(v.b.sub(count, at))
    v.store_masked(v.fmax(v.fadd(v.load_masked(source, at, inside), add), low), to, at, inside)


@jit.specialise
def backward_chunk(SIZE: int, LANES: int) -> Callable[..., None]:
    """Outputs of a chunk. For each run of filters and part of the blocks:

    1. multiply the spectra of the blocks by those of the filters, and sum over channels and phases;
    2. transform the sums back in place;
    3. store their rows in y, as far as they are outputs, with bias and activation.
    """

    def backward_chunk(args: int, task: int) -> None:
        a = carray(pointer(args), 1, CHUNK_ARGUMENTS)[0]
        products = a.scratch + a.spectra_bytes + task * a.lane_bytes
        strip = products + a.run_panels * a.panel_filters * a.part * a.plane * SIZE
        group0, groups, block0, blocks = chunk_ranges(a)
        panels = groups * a.panels
        parts = (blocks + a.part - 1) // a.part
        units = (panels + a.run_panels - 1) // a.run_panels * parts
        for unit in range(units * task // a.tasks, units * (task + 1) // a.tasks):
            panel0 = unit // parts * a.run_panels
            panel1 = min(panels, panel0 + a.run_panels)
            first = blocks * (unit % parts) // parts
            last = blocks * (unit % parts + 1) // parts
            # filters [k, k + count) of the chunk
            k = panel0 // a.panels * a.filters + panel0 % a.panels * a.panel_filters
            count = panel1 // a.panels * a.filters + panel1 % a.panels * a.panel_filters - k
            multiply_chunk(a, first, last, panel0, panel1, k, group0 * a.panels, products, SIZE, LANES)
            k += group0 * a.filters
            for block in range(first, last):
                planes = products + (block - first) * a.plane * SIZE
                between = a.part * a.plane  # from one filter's plane to the next
                for j in range(count):
                    plane = planes + j * between * SIZE
                    call(a.execute_inverse, (a.inverse, plane, plane))
                n, d0, h0, w0 = block_place(a, block0 + block)
                height = min(a.step_h, a.out_h - h0)
                width = min(a.step_w, a.out_w - w0)
                corner = a.y + (n * a.y_n + k * a.y_k + d0 * a.y_d + h0 * a.y_h + w0 * a.y_w) * SIZE
                for i in range(min(a.step_d, a.out_d - d0) * height):
                    row = planes + (i // height * a.plane_d + i % height * a.plane_h) * SIZE
                    y = corner + (i // height * a.y_d + i % height * a.y_h) * SIZE
                    if a.run == 1:
                        for j in range(count):
                            source, to = row + j * between * SIZE, y + j * a.y_k * SIZE
                            store_plane_row(SIZE, LANES, source, a.bias + (k + j) * SIZE, a.relu, width, to)
                            finish_run(a, to, width)
                    else:
                        for w in range(0, width, LANES):
                            pixels = min(LANES, width - w)
                            transpose.load_square(
                                SIZE, LANES, row + w * SIZE, between, count, pixels, strip, LANES
                            )
                            channel_vectors.finish_pixels(
                                SIZE, LANES, strip, a.bias + k * SIZE, a.relu, count, pixels,
                                y + w * a.y_w * SIZE, a.y_w,
                            )  # fmt: skip
                            for pixel in range(w, w + pixels if a.finish else w):
                                finish_run(a, y + pixel * a.y_w * SIZE, count)

    return backward_chunk


@simd.emitter
def split_plane(v: simd.Vec, PARTS: int, x: Any, scale: Any, vectors: Any, y: Any, y_stride: Any) -> None:
    """y[f] = (re, -im) of x[f], times scale[0], for `vectors` vectors of frequencies f: parts apart.

    Of c + id = (re, -im) three PARTS are c, d - c and c + d.
    """
    n = v.lanes
    source, to, factor = v.pointer(x), v.pointer(y), v.broadcast(v.pointer(scale))
    with v.loop(vectors) as f:
        at = v.at(source, v.imul(f, 2 * n))
        pairs = v.load(at), v.load(at, n)
        re, im = v.shuffle(*pairs, range(0, 2 * n, 2)), v.shuffle(*pairs, range(1, 2 * n, 2))
        target = v.at(to, v.imul(f, y_stride))
        c, d = v.fmul(re, factor), v.fmul(v.fsub(v.zero(), im), factor)
        for i, value in enumerate((c, v.fsub(d, c), v.fadd(c, d)) if PARTS == 3 else (c, d)):
            v.store(value, target, i * n)


@jit.specialise
def pack_spectra(SIZE: int, LANES: int, PARTS: int) -> Callable[..., None]:
    """Spectra of filters [panel][filter][channel], in scratch, to w: [panel][f][channel][filter][parts].

    Conjugated and multiplied by the element at `bias`.
    """

    def pack_spectra(args: int, task: int) -> None:
        a = carray(pointer(args), 1, CHUNK_ARGUMENTS)[0]
        vector = PARTS * LANES * SIZE
        planes = a.groups * a.channels
        for plane in range(planes * task // a.tasks, planes * (task + 1) // a.tasks):
            channel = plane % a.channels
            k = plane // a.channels % a.panel_filters
            panel = plane // (a.channels * a.panel_filters)
            y = a.w + ((panel * a.vectors * a.channels + channel) * a.panel_filters + k) * vector
            split_plane(
                SIZE, LANES, PARTS, a.scratch + plane * a.plane * SIZE, a.bias, a.vectors,
                y, a.channels * a.panel_filters * PARTS * LANES,
            )  # fmt: skip

    return pack_spectra


@jit.specialise
def run_chunks() -> Callable[..., None]:
    """All chunks, each by one task in scratch of its own, from start to end."""

    def run_chunks(args: int, task: int) -> None:
        a = carray(pointer(args), 1, CHUNK_ARGUMENTS)[0]
        scratch = a.scratch + task * a.task_bytes
        own_args = scratch + a.spectra_bytes + a.lane_bytes
        copy_bytes(own_args, args, ARGUMENT_BYTES)
        own = carray(pointer(own_args), 1, CHUNK_ARGUMENTS)
        own[0].scratch = scratch
        own[0].tasks = 1
        for chunk in range(a.chunks * task // a.tasks, a.chunks * (task + 1) // a.tasks):
            own[0].chunk = chunk
            call(a.forward, (own_args, 0))
            call(a.backward, (own_args, 0))

    return run_chunks
