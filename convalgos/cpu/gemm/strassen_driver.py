"""The driver of Strassen's products: blocks of pixels by panels of filters, dealt to threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from convalgos.cpu.gemm.strassen_scheme import STEP
from convalgos.cpu.gemm.strassen_tiles import SOURCE
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.finish import finish_panel
from convalgos.cpu.runtime.plan import arguments
from convalgos.cpu.vectors import transpose
from convalgos.cpu.vectors.simd import Value, Vec, call, carray, emitter, fetch_bytes, pointer

STRASSEN_ARGUMENTS = arguments(
    "size lanes side images image channels filters x_n x_block x_pixel x_row wide strided y_n y_k y_pixel "
    "blocks parts panels pixels tiles rows whole_tiles vectors passes depth section pass_bytes "
    "operand_bytes tile_bytes sums_bytes held turned_bytes sources_at starts_at places_at turned_at "
    "packed_at sums_at partial_at way_at scratch_stride tasks steps step_count zeros pack sum_whole "
    "sum_less add in_planes store "
    "unlimited limits adds"
)


@jit.specialise
def sum_parts(SIZE: int, LANES: int) -> Callable[..., None]:
    """Parts of the filters x images x blocks, in this order, dealt to the tasks in equal runs. For each:

    1. pack the sums of the pixels of the block;
    2. sum a panel of filters in passes over the channels, tile by tile;
    3. store its outputs, of each tile or of all tiles together.
    """

    def sum_parts(args: int, task: int) -> None:
        a = carray(pointer(args), 1, STRASSEN_ARGUMENTS)[0]
        scratch = a.scratch + task * a.scratch_stride
        units = a.images * a.blocks
        total = units * a.parts
        for item in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            part, n, block = item // units, item % units // a.blocks, item % a.blocks
            first = a.image * block // a.blocks
            count = a.image * (block + 1) // a.blocks - first  # pixels
            begin, end = a.panels * part // a.parts, a.panels * (part + 1) // a.parts
            fetched = a.w + begin * a.passes * a.pass_bytes
            pack_block(SIZE, LANES, a, scratch, n, first, count, fetched)
            y = a.y + (n * a.y_n + first * a.y_pixel) * a.size
            for panel in range(begin, end):
                for number in range(a.passes):
                    for tile in range(a.tiles):
                        sum_tile_steps(SIZE, LANES, a, scratch, panel, number, tile, y, count)
                if a.held:
                    store_parts(a, scratch + a.sums_at, panel, 0, a.pixels, y, count)

    return sum_parts


@jit.helper
def pack_block(
    SIZE: int, LANES: int, a: Any, scratch: int, n: int, first: int, count: int, fetched: int
) -> None:
    """Operands of `count` pixels of an image, while the filters of the first pass are `fetched` into L2."""
    sources = carray(pointer(scratch + a.sources_at), a.side, SOURCE)
    starts = carray(pointer(scratch + a.starts_at), a.side, "int64")
    for i in range(a.side):
        starts[i] = min(i * a.pixels, count - a.pixels)
    piece = a.pass_bytes // a.section
    for block in range(a.section):
        fetch_bytes(SIZE, LANES, 0, fetched + block * piece, piece)
        for k in range(a.side):
            number = k * a.section + block
            channels = min(LANES, a.channels - number * LANES)
            x = a.x + (n * a.x_n + number * a.x_block) * SIZE
            turned = scratch + a.turned_at + k * a.turned_bytes
            if a.strided and channels > 0:
                copy_strided_pixels(SIZE, LANES, a, x, first, count, channels, turned)
            x += first * a.x_pixel * SIZE
            sources[k].pixels, sources[k].step, sources[k].channels = x, a.x_pixel * SIZE, channels
            if channels <= 0:
                sources[k].pixels, sources[k].step, sources[k].channels = a.zeros, 0, LANES
            elif a.turned_bytes:
                if not a.strided:
                    for pixel in range(0, count, LANES):
                        transpose.load_square(
                            SIZE, LANES, x + pixel * SIZE, a.image, channels, min(LANES, count - pixel),
                            turned + pixel * LANES * SIZE, LANES,
                        )  # fmt: skip
                sources[k].pixels, sources[k].step, sources[k].channels = turned, LANES * SIZE, LANES
        packed = scratch + a.packed_at + block * a.pixels * LANES * SIZE
        tables, starting = scratch + a.sources_at, scratch + a.starts_at
        call(a.pack, (tables, starting, a.pixels, packed, a.operand_bytes, a.x_block * SIZE))


@emitter
def copy_apart(
    v: Vec, x: Value, x_pixel: Value, pixels: Value, channels: Value, ahead: Value, target: Value
) -> None:
    """target[p][:] = x[p * x_pixel][:channels], and zeros behind; what lies `ahead` of x is asked for."""
    source, to = v.pointer(x), v.pointer(target)
    with v.choose(v.isub(channels, v.lanes)) as (whole, part):
        for side, masked in ((whole, False), (part, True)):
            with side, v.loop(pixels) as p:
                pixel = v.at(source, v.imul(p, x_pixel))
                v.prefetch(v.at(pixel, ahead))
                value = v.load_masked(pixel, 0, v.mask(channels)) if masked else v.load(pixel)
                v.store(value, to, v.imul(p, v.lanes))


@jit.helper
def copy_strided_pixels(
    SIZE: int, LANES: int, a: Any, x: int, first: int, count: int, channels: int, target: int
) -> None:
    """A block of channels of the pixels from `first` on, that lie a stride apart, next to each other.

    x: address of the block of the first pixel of the image.
    """
    done = 0
    while done < count:
        row, column = (first + done) // a.wide, (first + done) % a.wide
        run = min(count - done, a.wide - column)
        copy_apart(
            SIZE, LANES, x + (row * a.x_row + column * a.x_pixel) * SIZE, a.x_pixel, run, channels,
            a.x_block, target + done * LANES * SIZE,
        )  # fmt: skip
        done += run


@jit.helper
def sum_tile_steps(
    SIZE: int, LANES: int, a: Any, scratch: int, panel: int, number: int, tile: int, y: int, count: int
) -> None:
    """All steps of a tile in a pass; then its outputs are stored, unless they are held for all tiles.

    y: address of the first pixel of the block, which has `count`.
    """
    row = tile * a.rows - max(0, tile - a.whole_tiles)
    rows = a.rows if tile < a.whole_tiles else a.rows - 1
    kernel = a.sum_whole if rows == a.rows else a.sum_less
    squares = a.side * a.side
    vector = LANES * SIZE
    sums = scratch + a.sums_at + (row * a.vectors * vector if a.held else 0)
    to, apart = sums, a.sums_bytes
    if number > 0:
        to, apart = scratch + a.partial_at, a.tile_bytes
    places = carray(pointer(scratch + a.places_at), squares + 3, "int64")
    places[0] = 0
    for i in range(squares):
        places[i + 1] = to + i * apart
    places[squares + 1] = scratch + a.way_at
    places[squares + 2] = scratch + a.way_at + a.tile_bytes
    steps = carray(pointer(a.steps), a.step_count, STEP)
    x = scratch + a.packed_at + (number * a.depth * a.pixels + row) * vector
    w = a.w + (panel * a.passes + number) * a.pass_bytes
    operand = a.depth * LANES * a.vectors * vector  # bytes of filters
    for s in range(a.step_count):
        step = steps[s]
        if step.operand < 0:
            call(a.add, (places[step.first], places[step.out], rows * a.vectors))
            call(a.add, (places[step.first], places[step.also], rows * a.vectors))
        else:
            used = w + step.operand * operand
            ahead = used
            if step.operand % a.tiles == tile:  # each tile asks for a part of the next pass
                ahead += a.pass_bytes
            call(
                kernel,
                (
                    x + step.operand * a.operand_bytes, a.pixels * vector, a.depth, used, ahead,
                    places[step.first], places[step.started], places[step.out], places[step.out_with],
                    places[step.also], places[step.also_with],
                ),
            )  # fmt: skip
        if s < squares and number == a.passes - 1:
            fetch_outputs(SIZE, LANES, a, panel, s, row, rows, y, count)
    if number > 0:
        for i in range(squares):
            call(a.add, (to + i * apart, sums + i * a.sums_bytes, rows * a.vectors))
    if not a.held:
        store_parts(a, sums, panel, row, rows, y, count)


@jit.helper
def fetch_outputs(
    SIZE: int, LANES: int, a: Any, panel: int, square: int, row: int, rows: int, y: int, count: int
) -> None:
    """Ask for the lines of y that a part of a tile will be stored in: a store would wait for them."""
    if not a.in_planes:
        i, j = square // a.side, square % a.side
        pixel = min(i * a.pixels, count - a.pixels) + row
        k = (panel * a.side + j) * a.vectors * LANES
        to = y + (k * a.y_k + pixel * a.y_pixel) * SIZE
        if k < a.filters and a.y_k == 1:
            for r in range(rows):
                fetch_bytes(SIZE, LANES, 1, to + r * a.y_pixel * SIZE, a.vectors * LANES * SIZE)
        elif k < a.filters:
            for f in range(0, min(a.vectors * LANES, a.filters - k), LANES):
                fetch_bytes(SIZE, LANES, 1, to + f * a.y_k * SIZE, rows * LANES * SIZE)


@jit.helper
def store_parts(a: Any, sums: int, panel: int, row: int, rows: int, y: int, count: int) -> None:
    """Sums of rows of all parts to y: each pixel by the first part that has it.

    sums: of the first row of the first part; y: address of the first pixel of the block, which has `count`.
    """
    width = a.vectors * a.lanes
    for i in range(a.side):
        start = min(i * a.pixels, count - a.pixels)
        begin = max(row, i * a.pixels - start)
        pixels = row + rows - begin
        for j in range(a.side):
            k = (panel * a.side + j) * width
            filters = min(width, a.filters - k)
            if pixels > 0 and filters > 0:
                source = sums + (i * a.side + j) * a.sums_bytes + (begin - row) * width * a.size
                to = y + (k * a.y_k + (start + begin) * a.y_pixel) * a.size
                store_neighbours(a, source, width, pixels, filters, a.bias + k * a.size, to)


@jit.helper
def store_neighbours(a: Any, sums: int, width: int, pixels: int, filters: int, bias: int, y: int) -> None:
    """The sums [pixel][filter] of neighbouring pixels to y, with bias, residual and activation."""
    if a.in_planes:
        call(a.store, (sums, width, pixels, filters, bias, a.relu, 0, y, a.y_k, a.y_pixel))
        finish_panel(a, y, pixels, filters, a.y_k, a.y_pixel)
    else:
        limits = a.unlimited + 2 * a.size if a.relu else a.limits
        added = y + a.residual if a.adds else 0
        call(a.store, (sums, width, pixels, filters, bias, added, limits, y, a.y_k, a.y_pixel))
        if a.finish and a.y_k == 1:
            for r in range(pixels):
                run = y + r * a.y_pixel * a.size
                call(a.finish, (run, 0, run, filters, a.finish_numbers))
        elif a.finish:
            for k in range(0, filters, a.lanes):
                run = y + k * a.y_k * a.size
                call(a.finish, (run, 0, run, pixels * a.lanes, a.finish_numbers))
