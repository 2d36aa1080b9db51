"""The drivers of pooling: planes, rows of outputs and blocks of columns, dealt to the tasks in equal runs.

Each row of outputs is done in two steps: the rows of x under it are reduced to one, in scratch that stays in
L1, and that one is reduced along its columns. So a window of r x s elements takes r + s steps, not r * s.
Where channels lie side by side and this takes no fewer steps, windows are reduced as a whole.
"""

from __future__ import annotations

from convalgos.cpu.pooling.elements import FLOAT, SIGNED, UNSIGNED
from convalgos.cpu.pooling.reductions import (
    COLUMN,
    fill_identity,
    reduce_along,
    reduce_columns,
    reduce_planes,
    reduce_rows,
)
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors.simd import call, carray, pointer

# Steps and offsets in elements; `size` is that of an element in scratch, `stored` that of one in x and y.
POOL_FIELDS = fields(
    "x y scratch scratch_bytes stored size tasks planes blocks channels block_channels rows row_table "
    "pixels pixels_out row_elements columns_out column_blocks block_table windows slice_step row_step "
    "x_plane x_block x_pixel y_plane y_block y_row y_pixel taps stride dilation counts row_counts gather "
    "place columns whole slices slice_table slice_elements pitch"
)
ROW = fields("x slices rows")  # the rows of x under a row of outputs
COLUMN_BLOCK = fields("x columns before after q outputs")  # of x, with padding, and of its outputs


@jit.specialise
def pool_channels_first(SIZE: int, LANES: int, FORM: int, REDUCTION: int, STRIDE: int) -> jit.Kernel:
    """x and y (planes, *spatial)."""

    def pool_channels_first(args: int, task: int) -> None:
        a = carray(pointer(args), 1, POOL_FIELDS)[0]
        rows = carray(pointer(a.row_table), a.rows, ROW)
        blocks = carray(pointer(a.block_table), a.column_blocks, COLUMN_BLOCK)
        scratch = a.scratch + task * a.scratch_bytes
        total = a.planes * a.rows * a.column_blocks
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            block = blocks[unit % a.column_blocks]
            number = unit // a.column_blocks
            plane = number // a.rows
            number = number % a.rows
            row = rows[number]
            x = a.x + (plane * a.x_plane + row.x + block.x) * a.stored
            y = a.y + (plane * a.y_plane + number * a.y_row + block.q) * a.stored
            inside = scratch + block.before * SIZE
            fill_identity(SIZE, LANES, FORM, REDUCTION, scratch, block.before)
            reduce_rows(
                SIZE, LANES, FORM, REDUCTION, x, inside, block.columns, row.slices, row.rows, a.slice_step,
                a.row_step,
            )  # fmt: skip
            fill_identity(SIZE, LANES, FORM, REDUCTION, inside + block.columns * SIZE, block.after)
            reduce_along(
                SIZE, LANES, FORM, REDUCTION, STRIDE, scratch, y, block.outputs, a.taps, a.dilation, a.stride,
                a.counts + block.q * SIZE, a.row_counts + number * SIZE,
            )  # fmt: skip

    return pool_channels_first


@jit.specialise
def pool_slices(SIZE: int, LANES: int, FORM: int, REDUCTION: int, STRIDE: int) -> jit.Kernel:
    """x and y (planes, slices, rows, columns): windows are reduced over slices, then rows, then columns.

    A slice is one long row at first. Its rows are all reduced before the first of them is reduced along:
    to load across what was just stored would wait.
    """
    WITHIN = FORM if FORM in (SIGNED, UNSIGNED) else FLOAT  # of scratch

    def pool_slices(args: int, task: int) -> None:
        a = carray(pointer(args), 1, POOL_FIELDS)[0]
        rows = carray(pointer(a.row_table), a.rows, ROW)
        slices = carray(pointer(a.slice_table), a.slices, ROW)
        block = carray(pointer(a.block_table), a.column_blocks, COLUMN_BLOCK)[0]
        slab = a.scratch + task * a.scratch_bytes
        lines = slab + (a.slice_elements + a.pitch) * SIZE
        width = (block.columns + LANES - 1) // LANES * LANES  # whole vectors, as scratch goes on
        total = a.planes * a.slices
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            number = unit % a.slices
            of_slices = slices[number]
            reduce_rows(
                SIZE, LANES, FORM, REDUCTION, a.x + (unit // a.slices * a.x_plane + of_slices.x) * a.stored,
                slab, a.slice_elements, of_slices.slices, 1, a.slice_step, 0,
            )  # fmt: skip
            for i in range(a.rows):
                row, line = rows[i], lines + i * a.pitch * SIZE
                inside = line + block.before * SIZE
                fill_identity(SIZE, LANES, FORM, REDUCTION, line, block.before)
                reduce_rows(
                    SIZE, LANES, WITHIN, REDUCTION, slab + row.x * SIZE, inside, width, 1, row.rows, 0,
                    a.row_step,
                )  # fmt: skip
                fill_identity(SIZE, LANES, FORM, REDUCTION, inside + block.columns * SIZE, block.after)
            for i in range(a.rows):
                of_row = number * a.rows + i
                reduce_along(
                    SIZE, LANES, FORM, REDUCTION, STRIDE, lines + i * a.pitch * SIZE,
                    a.y + (unit * a.rows + i) * a.y_row * a.stored, block.outputs, a.taps, a.dilation,
                    a.stride, a.counts, a.row_counts + of_row * SIZE,
                )  # fmt: skip

    return pool_slices


@jit.specialise
def pool_channels_last(SIZE: int, LANES: int, FORM: int, REDUCTION: int) -> jit.Kernel:
    """x and y (planes, *spatial, C), C in blocks of channels."""

    def pool_channels_last(args: int, task: int) -> None:
        a = carray(pointer(args), 1, POOL_FIELDS)[0]
        rows = carray(pointer(a.row_table), a.rows, ROW)
        blocks = carray(pointer(a.block_table), a.column_blocks, COLUMN_BLOCK)
        scratch = a.scratch + task * a.scratch_bytes
        total = a.planes * a.blocks * a.rows * a.column_blocks
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            block = blocks[unit % a.column_blocks]
            number = unit // a.column_blocks
            rest = number // a.rows
            number = number % a.rows
            plane = rest // a.blocks
            first = rest % a.blocks * a.block_channels
            channels = min(a.block_channels, a.channels - first)
            row = rows[number]
            x = a.x + (plane * a.x_plane + row.x + block.x * a.x_pixel + first) * a.stored
            y = a.y + (plane * a.y_plane + number * a.y_row + block.q * a.y_pixel + first) * a.stored
            counts, row_count = a.counts + block.q * SIZE, a.row_counts + number * SIZE
            windows = a.windows + block.q * COLUMN.itemsize
            if a.whole:
                reduce_columns(
                    SIZE, LANES, FORM, REDUCTION, True, x, y, channels, windows, block.outputs, a.x_pixel,
                    a.dilation * a.x_pixel, a.y_pixel, counts, row_count, row.slices, row.rows, a.slice_step,
                    a.row_step,
                )  # fmt: skip
                continue
            # a run of all channels of all columns, or one for each column
            runs = 1 if channels == a.channels else block.columns
            run = block.columns // runs * channels
            for i in range(runs):
                reduce_rows(
                    SIZE, LANES, FORM, REDUCTION, x + i * a.x_pixel * a.stored, scratch + i * run * SIZE, run,
                    row.slices, row.rows, a.slice_step, a.row_step,
                )  # fmt: skip
            reduce_columns(
                SIZE, LANES, FORM, REDUCTION, False, scratch, y, channels, windows, block.outputs, channels,
                a.dilation * channels, a.y_pixel, counts, row_count, 1, 1, 0, 0,
            )  # fmt: skip

    return pool_channels_last


@jit.specialise
def pool_in_pixels(SIZE: int, LANES: int, FORM: int, REDUCTION: int) -> jit.Kernel:
    """x and y (N, C, *spatial) of small maps: vectors of channels are brought into pixels, and back.

    Rows shorter than some vectors would leave most of their lanes empty.
    """

    def pool_in_pixels(args: int, task: int) -> None:
        a = carray(pointer(args), 1, POOL_FIELDS)[0]
        rows = carray(pointer(a.row_table), a.rows, ROW)
        x_pixels = a.scratch + task * a.scratch_bytes
        y_pixels = x_pixels + (a.pixels + LANES) * LANES * SIZE
        scratch = y_pixels + (a.pixels_out + LANES) * LANES * SIZE
        total = a.planes * a.blocks
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            first = unit % a.blocks * LANES
            channels = min(LANES, a.channels - first)
            plane = unit // a.blocks * a.channels + first
            call(a.gather, (a.x + plane * a.pixels * SIZE, a.pixels, 1, channels, a.pixels, x_pixels))
            for number in range(a.rows):
                row = rows[number]
                reduce_rows(
                    SIZE, LANES, FORM, REDUCTION, x_pixels + row.x * SIZE, scratch, a.row_elements,
                    row.slices, row.rows, a.slice_step, a.row_step,
                )  # fmt: skip
                target = y_pixels + number * a.y_row * SIZE
                reduce_columns(
                    SIZE, LANES, FORM, REDUCTION, False, scratch, target, LANES, a.windows, a.columns_out,
                    LANES, a.dilation * LANES, LANES, a.counts, a.row_counts + number * SIZE, 1, 1, 0, 0,
                )  # fmt: skip
            call(
                a.place,
                (y_pixels, a.pixels_out, 1, channels, a.pixels_out, a.y + plane * a.pixels_out * SIZE),
            )

    return pool_in_pixels


@jit.specialise
def pool_planes(SIZE: int, LANES: int, FORM: int, REDUCTION: int) -> jit.Kernel:
    """x (planes, elements), and one y of each."""

    def pool_planes(args: int, task: int) -> None:
        a = carray(pointer(args), 1, POOL_FIELDS)[0]
        first = a.planes * task // a.tasks
        count = a.planes * (task + 1) // a.tasks - first
        reduce_planes(
            SIZE, LANES, FORM, REDUCTION, a.x + first * a.x_plane * a.stored, a.y + first * a.stored, count,
            a.taps, a.x_plane, a.counts, a.row_counts,
        )  # fmt: skip

    return pool_planes
