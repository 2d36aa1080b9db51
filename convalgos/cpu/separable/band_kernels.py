"""The driver of separable blocks: bands of output rows, each through all convolutions while it is in L2.

Threads share images and bands; and where there is no projection, parts of the channels, of which each reads
all of x. For each band, a few vectors of channels at a time:

1. the expansion of the rows of x that the band needs, to scratch. Those that two bands need are computed
   twice. Where the channels of x lie apart, what they read is copied with its border, once for the band;
2. these channels filtered, to scratch again, or to y where nothing follows; then their sums may be wanted,
   of which `finish_means` makes the means of whole maps.

The projection of the band then reads all of its channels. The kernels are those of blocked layouts:
`block_tile` sums a tile of pixels, `filter_columns` a block of columns.

Source: MobileNetV2's inverted residuals, of which a few channels at a time suffice (Sandler et al. 2018,
arXiv:1801.04381, 5.1).
"""

from __future__ import annotations

from typing import Any

from convalgos.cpu.dwconv.channel_records import CHANNEL_BAND, CHANNEL_KERNEL_FIELDS, COLUMN_BLOCK
from convalgos.cpu.gemm.block_copies import copy_block_images
from convalgos.cpu.gemm.blocked_plan import BLOCKED_ARGUMENTS, sum_panels
from convalgos.cpu.gemm.blocking import BlockExtent
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.finish import finish_run
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors.simd import Value, Vec, call, carray, emitter, pointer

# Addresses of the records of the convolutions; where there is no expansion, or no projection, its `panels`
# are none. Scratch of a task: `hidden` for the expansion, then `middle` for what the projection reads.
SEPARABLE_FIELDS = fields(
    "tasks images band_count band_tiles expansion depthwise projection vectors scratch scratch_bytes "
    "hidden_bytes parts sum_pixels sums mean pixels"
)
# `sums`: (images, bands, vectors) vectors, or 0; `mean`: (images, vectors); `pixels`: address of their number
BAND_TILES = fields("expansion projection")  # addresses of tables of ROW_TILE
AT_ONCE = 4  # sums, none of which waits for another


@jit.specialise
def run_separable_bands() -> jit.Kernel:
    """Images x bands x parts of the channels, dealt to the tasks in equal runs."""

    def run_separable_bands(args: int, task: int) -> None:
        a = carray(pointer(args), 1, SEPARABLE_FIELDS)[0]
        e = carray(pointer(a.expansion), 1, BLOCKED_ARGUMENTS)[0]
        d = carray(pointer(a.depthwise), 1, CHANNEL_KERNEL_FIELDS)[0]
        p = carray(pointer(a.projection), 1, BLOCKED_ARGUMENTS)[0]
        bands = carray(pointer(d.bands), a.band_count, CHANNEL_BAND)
        tiles = carray(pointer(a.band_tiles), a.band_count, BAND_TILES)
        planes = a.scratch + task * a.scratch_bytes
        hidden = planes + e.input_bytes
        middle = hidden + a.hidden_bytes
        total = a.images * a.band_count * a.parts
        for item in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            part, image_band = item % a.parts, item // a.parts
            n, number = image_band // a.band_count, image_band % a.band_count
            band = bands[number]
            sums = 0
            if a.sums:
                sums = a.sums + image_band * a.vectors * d.from_pixel * d.size
            target = d.y + n * d.y_n * d.size  # of output row 0
            if p.panels:
                target = middle - band.y * d.to_pixel * d.size
            if e.panels:
                x = e.x + (n * e.x_n + band.x * d.from_pixel) * e.size
                if e.copied:
                    written = BlockExtent(n, 0, band.x // e.q, 0, 1, 1, band.x_pixels // e.q, e.q)
                    copy_block_images(e, written, e.x + n * e.x_n * e.size, planes, e.channels)
                    x = planes
                for panel in range(e.panels * part // a.parts, e.panels * (part + 1) // a.parts):
                    first = e.vectors * panel // e.panels
                    sum_panels(e, panel, panel + 1, 0, 1, tiles[number].expansion, x, 0,
                               hidden - first * e.y_block * e.size, 0, 0, 0)  # fmt: skip
                    source = hidden - (first * d.from_vector + band.x * d.from_pixel) * d.size
                    end = e.vectors * (panel + 1) // e.panels
                    filter_vectors(a, d, number, first, end, source, target, sums)
            else:
                source = d.x + n * d.x_n * d.size
                first, end = a.vectors * part // a.parts, a.vectors * (part + 1) // a.parts
                filter_vectors(a, d, number, first, end, source, target, sums)
            if p.panels:
                y = p.y + (n * p.y_n + band.y * d.to_pixel) * p.size
                sum_panels(p, 0, p.panels, 0, 1, tiles[number].projection, middle, 0, y, 0, 0, 0)

    return run_separable_bands


@jit.helper
def filter_vectors(
    a: Any, d: Any, number: int, first: int, end: int, source: int, target: int, sums: int
) -> None:
    """A band of some vectors of channels; source, target: addresses of row 0 of the first channel of all."""
    band = carray(pointer(d.bands), a.band_count, CHANNEL_BAND)[number]
    columns = carray(pointer(d.columns), d.column_count, COLUMN_BLOCK)
    for vector in range(first, end):
        x, y = source + vector * d.from_vector * d.size, target + vector * d.to_vector * d.size
        w = d.w + vector * d.w_block * d.size
        bias = d.bias + vector * d.from_pixel * d.size
        for j in range(d.column_count):
            call(
                d.filter_block,
                (
                    a.depthwise, d.bands + number * CHANNEL_BAND.itemsize,
                    d.columns + j * COLUMN_BLOCK.itemsize, x + columns[j].x * d.size, w, bias,
                    y + columns[j].y * d.size, 0, 0,
                ),
            )  # fmt: skip
        run = y + band.y * d.to_pixel * d.size
        finish_run(d, run, band.y_pixels * d.to_pixel)
        if sums:
            call(a.sum_pixels, (run, d.to_pixel, band.y_pixels, sums + vector * d.to_pixel * d.size))


@emitter
def add_vectors(v: Vec, source: Value, step: Value, count: Value, target: Value) -> None:
    """target = the sum of so many vectors, `step` elements apart."""
    totals = [v.register(v.zero()) for _ in range(AT_ONCE)]
    read = v.pointer(source)
    whole = v.idiv(count, AT_ONCE)
    with v.loop(whole) as i:
        for j, total in enumerate(totals):
            at = v.imul(v.iadd(v.imul(i, AT_ONCE), j), step)
            total.set(v.fadd(total.value, v.load(read, at)))
    done = v.imul(whole, AT_ONCE)
    with v.loop(v.isub(count, done)) as i:
        totals[0].set(v.fadd(totals[0].value, v.load(read, v.imul(v.iadd(done, i), step))))
    first, second, third, fourth = (total.value for total in totals)
    v.store(v.fadd(v.fadd(first, second), v.fadd(third, fourth)), v.pointer(target), 0)


@jit.specialise
def sum_vectors(SIZE: int, LANES: int) -> jit.Kernel:
    """`add_vectors`."""

    def sum_vectors(source: int, step: int, count: int, target: int) -> None:
        add_vectors(SIZE, LANES, source, step, count, target)

    return sum_vectors


@emitter
def divide_vector(v: Vec, target: Value, by: Value) -> None:
    """target /= the number at the address `by`."""
    to = v.pointer(target)
    v.store(v.b.fdiv(v.load(to), v.broadcast(v.pointer(by))), to)


@jit.specialise
def finish_means(SIZE: int, LANES: int) -> jit.Kernel:
    """The means of all maps, from the sums of their bands."""

    def finish_means(args: int, task: int) -> None:
        a = carray(pointer(args), 1, SEPARABLE_FIELDS)[0]
        image = a.vectors * LANES * SIZE
        for n in range(a.images):
            for vector in range(a.vectors):
                place = vector * LANES * SIZE
                target = a.mean + n * image + place
                source = a.sums + n * a.band_count * image + place
                add_vectors(SIZE, LANES, source, a.vectors * LANES, a.band_count, target)
                divide_vector(SIZE, LANES, target, a.pixels)

    return finish_means
