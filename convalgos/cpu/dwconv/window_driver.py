"""The driver of `cpu.depthwise.windows`: bands of maps, their padded rows, and sums of all filters."""

from __future__ import annotations

from convalgos.cpu.dwconv.byte_rows import ROW_BAND_FIELDS
from convalgos.cpu.dwconv.window_sums import SUM_FIELDS
from convalgos.cpu.dwconv.window_tiling import OUTPUT_BAND, RECORDS
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import arguments
from convalgos.cpu.vectors.simd import call, carray, pointer

WINDOW_FIELDS = arguments(
    "tasks images groups group_blocks at_once channels filters size_y bands band_count x_image y_image "
    "x_c x_pixel y_k y_pixel y_plane sums turn_in turn_out "
    "slices slice_step depth height width vectors pad flip phases pitch plane planes "
    "scratch_bytes parts offsets way multiplier step place sum_four sum_two sum_one most"
)


@jit.specialise
def sum_window_bands() -> jit.Kernel:
    """Images x blocks of groups x bands, dealt to the tasks in equal runs."""

    def sum_window_bands(args: int, task: int) -> None:
        a = carray(pointer(args), 1, WINDOW_FIELDS)[0]
        scratch = a.scratch + task * a.scratch_bytes
        made = carray(pointer(scratch), 1, ROW_BAND_FIELDS)[0]
        sums = carray(pointer(scratch + ROW_BAND_FIELDS.itemsize), 1, SUM_FIELDS)[0]
        made.x_channel, made.x_pixel, made.turn = a.x_c, a.x_pixel, a.turn_in
        made.slices, made.slice_step, made.depth = a.slices, a.slice_step, a.depth
        made.height, made.width, made.vectors = a.height, a.width, a.vectors
        made.pad, made.flip = a.pad, a.flip
        made.phases, made.pitch, made.plane = a.phases, a.pitch, a.plane
        made.target, sums.x = scratch + RECORDS, scratch + RECORDS
        sums.taps, sums.offsets, sums.step = a.parts, a.offsets, a.step
        sums.y_filter, sums.y_step = a.y_plane, a.y_plane * a.filters
        sums.x_step, sums.w_step, sums.k_step = a.planes * a.plane, a.filters * a.parts * a.way, a.filters
        bands = carray(pointer(a.bands), a.band_count, OUTPUT_BAND)
        units = a.group_blocks * a.band_count
        total = a.images * units
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            image = unit // units
            block = (unit - image * units) // a.band_count
            band = bands[unit - image * units - block * a.band_count]
            group = block * a.at_once
            groups = min(a.at_once, a.groups - group)
            made.x = a.x + image * a.x_image + group * a.channels * a.x_c
            made.channels = groups * a.channels
            made.slice, made.parts, made.first = band.slice, band.parts, band.first
            call(a.place, (scratch,))
            sums.groups = groups
            sums.tiles, sums.blocks, sums.runs = band.tiles, band.blocks, band.runs
            of_band = a.y + (image * a.y_image + group * a.filters * a.y_k + band.y * a.y_pixel) * a.size_y
            y = scratch + a.sums if a.turn_out else of_band
            done = 0
            while done < a.filters:
                k = group * a.filters + done
                sums.w = a.w + k * a.parts * a.way
                sums.start, sums.multiplier = a.bias + 4 * k, a.multiplier + 4 * k
                sums.y = y + done * a.y_plane * a.size_y
                left = min(a.most, a.filters - done)
                if left >= 4:
                    call(a.sum_four, (scratch + ROW_BAND_FIELDS.itemsize,))
                    done += 4
                elif left >= 2:
                    call(a.sum_two, (scratch + ROW_BAND_FIELDS.itemsize,))
                    done += 2
                else:
                    call(a.sum_one, (scratch + ROW_BAND_FIELDS.itemsize,))
                    done += 1
            if a.turn_out:
                call(
                    a.turn_out,
                    (
                        y, a.y_plane * a.size_y, groups * a.filters, band.outputs, 0,
                        of_band, a.y_pixel * a.size_y,
                    ),
                )  # fmt: skip

    return sum_window_bands
