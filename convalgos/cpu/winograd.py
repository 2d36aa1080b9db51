"""Winograd's short convolutions: fewer products, on tiles that stay in the cache.

A tile of m x m outputs of an r x r kernel takes (m + r - 1)^2 products per pair of channels instead of
m^2 r^2: F(4, 3) saves a factor of 4. Input tiles, filters and products are transformed by the exact
matrices of `convalgos.transforms`; between the transforms every point of the tiles is a matrix product of
its own, which runs on the micro-kernel. Wins on 3x3 and 5x5 kernels with 16 and more channels.

Kernels with r taps in one dimension of the plane and 1 in the other use the 1-D form; taps in depth are
summed inside the product; stride and dilation are steps inside the tiles (`tiles.Axis`).

Source: Lavin and Gray, "Fast algorithms for convolutional neural networks", arXiv:1509.09308, with the
cache-resident blocks of Zlateski et al., "Anatomy of Winograd convolution on CPUs", arXiv:1809.10170.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from convalgos.algorithm import Algorithm
from convalgos.arrays import aligned_empty
from convalgos.cpu import jit, panels, schedule, simd, tiles
from convalgos.cpu.kernel_plan import KernelPlan, arguments
from convalgos.cpu.schedule import Schedule
from convalgos.cpu.simd import call, carray, pointer, zero_bytes
from convalgos.transforms import amplification, cook_toom, multiply_2d

ONE = ((1,),)  # the matrix of a dimension that is not transformed

# --- kernels: transforms of tiles ----------------------------------------------------------------


def _transform(v, matrix, dims, load, store):
    """store(i, j) the elements of matrix @ x @ matrix^T (dims 2) or x @ matrix^T (dims 1), x = load(i, j)."""
    rows = matrix if dims == 2 else ONE
    x = [[load(i, j) for j in range(len(matrix[0]))] for i in range(len(rows[0]))]
    for i, row in enumerate(multiply_2d(v.axpy, rows, matrix, x)):
        for j, value in enumerate(row):
            store(i, j, value)


def _at(v, row_step, column_step, i, j):
    return v.plus(v.mul(row_step, i), v.mul(column_step, j))


def _spread(v, matrix, dims, source, row_step, column_step, target, point_step):
    """Pixels at source + i * row_step + j * column_step to points, `point_step` apart."""
    read, to = v.pointer(source), v.pointer(target)
    _transform(
        v, matrix, dims,
        lambda i, j: v.load(read, _at(v, row_step, column_step, i, j)),
        lambda i, j, value: v.store(value, to, v.mul(point_step, i * len(matrix) + j)),
    )  # fmt: skip


@simd.emitter
def input_tile(v, M, R, DIMS, source, row_step, column_step, target, point_step):
    """BT d B: alpha x alpha pixels to points."""
    _spread(v, cook_toom(M, R).BT, DIMS, source, row_step, column_step, target, point_step)


@simd.emitter
def filter_tile(v, M, R, DIMS, source, row_step, column_step, target, point_step):
    """G g GT: r x r taps to points."""
    _spread(v, cook_toom(M, R).G, DIMS, source, row_step, column_step, target, point_step)


@simd.emitter
def output_tile(v, M, R, DIMS, source, point_step, target, row_step, column_step):
    """AT m A: points to m x m pixels."""
    read, to = v.pointer(source), v.pointer(target)
    matrix = cook_toom(M, R).AT
    _transform(
        v, matrix, DIMS,
        lambda i, j: v.load(read, v.mul(point_step, i * len(matrix[0]) + j)),
        lambda i, j, value: v.store(value, to, _at(v, row_step, column_step, i, j)),
    )  # fmt: skip


@jit.specialise
def input_tiles(SIZE, LANES, M, R, DIMS):
    def input_tiles(source, row_step, column_step, tile_step, count, target, target_step, point_step):
        for i in range(count):
            input_tile(
                SIZE, LANES, M, R, DIMS, source + i * tile_step * SIZE, row_step, column_step,
                target + i * target_step * SIZE, point_step,
            )  # fmt: skip

    return input_tiles


@jit.specialise
def filter_tiles(SIZE, LANES, M, R, DIMS):
    def filter_tiles(source, row_step, column_step, tile_step, count, target, target_step, point_step):
        for i in range(count):
            filter_tile(
                SIZE, LANES, M, R, DIMS, source + i * tile_step * SIZE, row_step, column_step,
                target + i * target_step * SIZE, point_step,
            )  # fmt: skip

    return filter_tiles


@jit.specialise
def output_tiles(SIZE, LANES, M, R, DIMS):
    def output_tiles(source, source_step, point_step, count, target, row_step, column_step, tile_step):
        for i in range(count):
            output_tile(
                SIZE, LANES, M, R, DIMS, source + i * source_step * SIZE, point_step,
                target + i * tile_step * SIZE, row_step, column_step,
            )  # fmt: skip

    return output_tiles


# --- kernels: the three phases of a box ----------------------------------------------------------

RECORD = arguments(
    "size lanes tasks box phase groups images slices tile_rows tile_columns cuts_n cuts_o cuts_h cuts_w "
    "channels filters channel_blocks filter_blocks panel panels vectors points lattices "
    "depth taps_d stride_d dilation_d pad_d slot_step slots "
    "tiles slice_taps chunk offsets v_row v_point m_panel m_point strip own_bytes table_bytes box_bytes "
    "height p outputs_h step_h stride_h dilation_h pad_h phases_h lattices_h taps_h tail_h "
    "width q outputs_w step_w stride_w dilation_w pad_w phases_w lattices_w taps_w tail_w "
    "x_n x_c x_d x_h x_w y_n y_k y_o y_p y_q transformed_w "
    "gather scatter input_tiles output_tiles sum_panel read_box multiply_box write_box"
)


@jit.helper
def span(tiles, outputs, taps, step, tail):
    """`tiles.Axis.span`."""
    return (tiles * outputs + taps - 2) * step + tail


@jit.helper
def part(total, cuts, index):
    """The first and one behind the last of a balanced cut."""
    return total * index // cuts, total * (index + 1) // cuts


@jit.helper
def box_of(a, box):
    """(group, n0, n1, o0, o1, h0, h1, w0, w1): images, output slices, rows and columns of tiles."""
    w0, w1 = part(a.tile_columns, a.cuts_w, box % a.cuts_w)
    box //= a.cuts_w
    h0, h1 = part(a.tile_rows, a.cuts_h, box % a.cuts_h)
    box //= a.cuts_h
    o0, o1 = part(a.slices, a.cuts_o, box % a.cuts_o)
    box //= a.cuts_o
    n0, n1 = part(a.images, a.cuts_n, box % a.cuts_n)
    return box // a.cuts_n, n0, n1, o0, o1, h0, h1, w0, w1


@jit.specialise
def read_box():
    """x -> V[point][image, slot, tile][phase, channel] for some (image, channel block) items of a box."""

    def read_box(args, box, first, last, shared, own):
        a = carray(pointer(args), 1, RECORD)[0]
        group, n0, _, o0, o1, h0, h1, w0, w1 = box_of(a, box)
        pixel = a.lanes * a.size
        slots = ((o1 - o0 - 1) * a.stride_d + (a.taps_d - 1) * a.dilation_d) // a.slot_step + 1
        left = w0 * a.outputs_w * a.step_w - a.pad_w  # of the region of x that is gathered
        columns = span(w1 - w0, a.outputs_w, a.taps_w, a.step_w, a.tail_w)
        column0, column1 = max(0, -left), min(columns, a.width - left)  # those that x has
        for h in range(h0, h1, a.strip):
            strip = min(a.strip, h1 - h)
            top = h * a.outputs_h * a.step_h - a.pad_h
            rows = span(strip, a.outputs_h, a.taps_h, a.step_h, a.tail_h)
            row0, row1 = max(0, -top), min(rows, a.height - top)
            if row0 > 0 or row1 < rows or column0 > 0 or column1 < columns:
                zero_bytes(own, rows * columns * pixel)
            for item in range(first, last):
                n, block = item // a.channel_blocks, item % a.channel_blocks
                channels = min(a.lanes, a.channels - block * a.lanes)
                for slot in range(slots):
                    d = o0 * a.stride_d - a.pad_d + slot * a.slot_step
                    if d < 0 or d >= a.depth:
                        continue  # the products leave it out
                    x = (n0 + n) * a.x_n + (group * a.channels + block * a.lanes) * a.x_c + d * a.x_d
                    x += (left + column0) * a.x_w
                    for row in range(row0, row1):
                        call(
                            a.gather,
                            (a.x + (x + (top + row) * a.x_h) * a.size, a.x_c, a.x_w, channels,
                             column1 - column0, own + (row * columns + column0) * pixel),
                        )  # fmt: skip
                    v = ((n * a.slots + slot) * a.tiles + (h - h0) * (w1 - w0) * a.lattices) * a.v_row
                    v = shared + (v + block * a.lanes) * a.size
                    for tile_row in range(strip * a.lattices_h):
                        i = tile_row // a.lattices_h * a.outputs_h * a.step_h
                        i += tile_row % a.lattices_h * a.stride_h
                        down = a.step_h * columns * a.lanes
                        across = a.step_w * a.lanes if a.transformed_w else down
                        for lattice in range(a.lattices_w):
                            for phase in range(a.phases_h * a.phases_w):
                                row = i + phase // a.phases_w * a.dilation_h
                                column = lattice * a.stride_w + phase % a.phases_w * a.dilation_w
                                call(
                                    a.input_tiles,
                                    (own + (row * columns + column) * pixel, down, across,
                                     a.outputs_w * a.step_w * a.lanes, w1 - w0,
                                     v + phase * a.channel_blocks * a.lanes * a.size, a.v_row, a.v_point),
                                )  # fmt: skip
                            v += (w1 - w0) * a.v_row * a.size

    return read_box


@jit.specialise
def multiply_box():
    """V and U -> M[point][panel][slice, image, tile][filter] for some (point, panel) items of a box."""

    def multiply_box(args, box, first, last, shared, own):
        a = carray(pointer(args), 1, RECORD)[0]
        group, n0, n1, o0, o1, h0, h1, w0, w1 = box_of(a, box)
        tiles = (h1 - h0) * (w1 - w0) * a.lattices
        per_slice = (n1 - n0) * tiles
        table = carray(pointer(own), a.table_bytes // 8, np.int64)
        i = 0
        for o in range(o1 - o0):
            for n in range(n1 - n0):
                start = (n * a.slots + o * a.stride_d // a.slot_step) * a.tiles
                for tile in range(tiles):
                    table[i] = (start + tile) * a.v_row
                    i += 1
        for spare in range(i, a.table_bytes // 8):
            table[spare] = table[i - 1]
        products = shared + a.points * a.v_point * a.size
        for item in range(first, last):
            point, panel = item // a.panels, item % a.panels
            v = shared + point * a.v_point * a.size
            m = products + (point * a.m_point + panel * a.m_panel) * a.size
            u = ((group * a.points + point) * a.panels + panel) * a.taps_d * a.slice_taps
            inside = o0 * a.stride_d >= a.pad_d and (o1 - 1) * a.stride_d - a.pad_d < a.depth
            slices = o1 - o0 if a.taps_d == 1 and inside else 1  # whose taps in depth are the same
            for o in range(o0, o1, slices):
                d = o * a.stride_d - a.pad_d
                tap0 = max(0, -(d // a.dilation_d))
                tap1 = max(tap0, min(a.taps_d, (a.depth - 1 - d) // a.dilation_d + 1))
                skip = tap0 * a.slice_taps
                row = (o - o0) * per_slice
                target = m + row * a.panel * a.size
                if tap0 == tap1:
                    zero_bytes(target, slices * per_slice * a.panel * a.size)
                    continue
                call(
                    a.sum_panel,
                    (v, own + row * 8, slices * per_slice, a.offsets + skip * 8, (tap1 - tap0) * a.slice_taps,
                     a.chunk, a.w + (u + skip) * a.panel * a.size, target),
                )  # fmt: skip

    return multiply_box


@jit.specialise
def write_box():
    """M -> y for some (image, filter block) items of a box."""

    def write_box(args, box, first, last, shared, own):
        a = carray(pointer(args), 1, RECORD)[0]
        group, n0, n1, o0, o1, h0, h1, w0, w1 = box_of(a, box)
        pixel = a.lanes * a.size
        tiles = (h1 - h0) * (w1 - w0) * a.lattices
        products = shared + a.points * a.v_point * a.size
        left = w0 * a.outputs_w * a.lattices_w
        columns = (w1 - w0) * a.outputs_w * a.lattices_w
        for h in range(h0, h1, a.strip):
            strip = min(a.strip, h1 - h)
            top = h * a.outputs_h * a.lattices_h
            rows = min(a.p - top, strip * a.outputs_h * a.lattices_h)
            for item in range(first, last):
                n, block = item // a.filter_blocks, item % a.filter_blocks
                k = group * a.filters + block * a.lanes
                filters = min(a.lanes, a.filters - block * a.lanes)
                for o in range(o0, o1):
                    m = ((o - o0) * (n1 - n0) + n) * tiles + (h - h0) * (w1 - w0) * a.lattices
                    m = block // a.vectors * a.m_panel + m * a.panel + block % a.vectors * a.lanes
                    m = products + m * a.size
                    down = a.lattices_h * columns * a.lanes
                    across = a.lattices_w * a.lanes if a.transformed_w else down
                    for tile_row in range(strip * a.lattices_h):
                        row = tile_row // a.lattices_h * a.outputs_h * a.lattices_h + tile_row % a.lattices_h
                        for lattice in range(a.lattices_w):
                            call(
                                a.output_tiles,
                                (m, a.panel, a.m_point, w1 - w0, own + (row * columns + lattice) * pixel,
                                 down, across, a.outputs_w * a.lattices_w * a.lanes),
                            )  # fmt: skip
                            m += (w1 - w0) * a.panel * a.size
                    y = (n0 + n) * a.y_n + k * a.y_k + o * a.y_o + left * a.y_q
                    for row in range(rows):
                        call(
                            a.scatter,
                            (own + row * columns * pixel, a.bias + k * a.size, a.relu, a.y_k, a.y_q, filters,
                             min(columns, a.q - left), a.y + (y + (top + row) * a.y_p) * a.size),
                        )  # fmt: skip

    return write_box


@jit.specialise
def run_boxes():
    """Every task on boxes of its own."""

    def run_boxes(args, task):
        a = carray(pointer(args), 1, RECORD)[0]
        own = a.scratch + task * (a.own_bytes + a.box_bytes)
        shared = own + a.own_bytes
        boxes = a.groups * a.cuts_n * a.cuts_o * a.cuts_h * a.cuts_w
        for box in range(boxes * task // a.tasks, boxes * (task + 1) // a.tasks):
            _, n0, n1, _, _, _, _, _, _ = box_of(a, box)
            call(a.read_box, (args, box, 0, (n1 - n0) * a.channel_blocks, shared, own))
            call(a.multiply_box, (args, box, 0, a.points * a.panels, shared, own))
            call(a.write_box, (args, box, 0, (n1 - n0) * a.filter_blocks, shared, own))

    return run_boxes


@jit.specialise
def share_box():
    """One phase of one box, its items dealt to all tasks."""

    def share_box(args, task):
        a = carray(pointer(args), 1, RECORD)[0]
        own = a.scratch + task * a.own_bytes
        shared = a.scratch + a.tasks * a.own_bytes
        _, n0, n1, _, _, _, _, _, _ = box_of(a, a.box)
        kernel, items = a.multiply_box, a.points * a.panels
        if a.phase == 0:
            kernel, items = a.read_box, (n1 - n0) * a.channel_blocks
        elif a.phase == 2:
            kernel, items = a.write_box, (n1 - n0) * a.filter_blocks
        call(kernel, (args, a.box, items * task // a.tasks, items * (task + 1) // a.tasks, shared, own))

    return share_box


# --- kernels: the filter -------------------------------------------------------------------------

FILTER_FIELDS = (
    "w u scratch size lanes tasks groups filters channels chunk taps_d phases_h phases_w rows columns "
    "panel panels vectors blocks points slice_taps scratch_stride transformed_w gather filter_tiles"
)
FILTER_RECORD = np.dtype([(name, np.int64) for name in FILTER_FIELDS.split()])


@jit.specialise
def transform_filters():
    """w (group, filter, channel, T, rows, columns) -> U (group, point, panel, depth tap, phase, channel, filter).

    Rows and columns are a multiple of the phases. An item is a group and a vector of filters.
    """

    def transform_filters(args, task):
        a = carray(pointer(args), 1, FILTER_RECORD)[0]
        scratch = a.scratch + task * a.scratch_stride
        pixel = a.lanes * a.size
        plane = a.rows * a.columns
        per_filter = a.channels * a.taps_d * plane
        u_panel = a.taps_d * a.slice_taps * a.panel
        down = a.phases_h * a.columns * a.lanes
        across = a.phases_w * a.lanes if a.transformed_w else down
        items = a.groups * a.blocks
        for item in range(items * task // a.tasks, items * (task + 1) // a.tasks):
            group, block = item // a.blocks, item % a.blocks
            first = block * a.lanes
            u = (group * a.points * a.panels + block // a.vectors) * u_panel + block % a.vectors * a.lanes
            for c in range(0, a.channels, a.chunk):
                channels = min(a.chunk, a.channels - c)
                w = (group * a.filters + first) * per_filter + c * a.taps_d * plane
                call(
                    a.gather,
                    (a.w + w * a.size, per_filter, 1, min(a.lanes, a.filters - first),
                     channels * a.taps_d * plane, scratch),
                )  # fmt: skip
                for tap in range(a.taps_d):
                    for phase in range(a.phases_h * a.phases_w):
                        element = tap * plane + phase // a.phases_w * a.columns + phase % a.phases_w
                        row = tap * a.slice_taps + phase * a.channels + c
                        call(
                            a.filter_tiles,
                            (scratch + element * pixel, down, across, a.taps_d * plane * a.lanes, channels,
                             a.u + (u + row * a.panel) * a.size, a.panel, a.panels * u_panel),
                        )  # fmt: skip

    return transform_filters


# --- plan ------------------------------------------------------------------------------------------

CHUNK = 512  # taps of a filter that are transposed at a time: 32 KiB


class WinogradPlan(KernelPlan):
    def __init__(self, problem, algorithm, cut):
        p = cut.problem
        size, lanes = p.itemsize, cut.lanes
        d, h, w = p.spatial
        _, rows_out, columns_out = p.spatial_out
        last = p.layout == "channels_last"
        points, points_out = d * h * w, rows_out * columns_out
        tile = (algorithm.m, algorithm.r, cut.dims)
        micro_rows = simd.TILES[simd.vector_bytes()][cut.vectors]
        count = (cut.box[0] * (cut.box[1] if p.kernel[0] == 1 else 1)) * cut.tiles
        micro_rows = -(-count // -(-count // micro_rows))
        n, o, tile_rows, tile_columns = cut.grid
        values = {
            "size": size, "lanes": lanes, "tasks": cut.threads, "box": 0, "phase": 0, "groups": p.groups,
            "images": n, "slices": o, "tile_rows": tile_rows, "tile_columns": tile_columns,
            "channels": p.w_shape[1], "filters": p.gemm_n,
            "depth": d, "taps_d": p.kernel[0], "stride_d": p.stride[0], "dilation_d": p.dilation[0],
            "pad_d": p.padding[0][0], "chunk": panels.chunk(cut.taps), "offsets": _offsets(cut),
            "p": rows_out, "q": columns_out, "height": h, "width": w,
            "transformed_w": int(cut.columns.outputs > 1),
            "x_n": p.C * points, "x_c": 1 if last else points,
            "x_d": h * w * (p.C if last else 1), "x_h": w * (p.C if last else 1), "x_w": p.C if last else 1,
            "y_n": p.K * p.spatial_out[0] * points_out, "y_k": 1 if last else p.spatial_out[0] * points_out,
            "y_o": points_out * (p.K if last else 1), "y_p": columns_out * (p.K if last else 1),
            "y_q": p.K if last else 1,
            "gather": tiles.gather(size, lanes), "scatter": tiles.scatter(size, lanes),
            "input_tiles": input_tiles(size, lanes, *tile), "output_tiles": output_tiles(size, lanes, *tile),
            "sum_panel": panels.sum_panel(size, lanes, micro_rows, cut.vectors),
            "read_box": read_box(), "multiply_box": multiply_box(), "write_box": write_box(),
        }  # fmt: skip
        for name, count in zip("nohw", cut.cuts, strict=True):
            values[f"cuts_{name}"] = count
        for name in RECORD.names:
            if name not in values and hasattr(cut, name):
                values[name] = getattr(cut, name)
        for letter, a in (("h", cut.rows), ("w", cut.columns)):
            values |= {
                f"outputs_{letter}": a.outputs, f"step_{letter}": a.step, f"stride_{letter}": a.stride,
                f"dilation_{letter}": a.dilation, f"pad_{letter}": a.pad, f"phases_{letter}": a.phases,
                f"lattices_{letter}": a.lattices, f"taps_{letter}": a.taps, f"tail_{letter}": a.tail,
            }  # fmt: skip
        steps = [(share_box() if cut.team else run_boxes(), cut.threads)]
        super().__init__(problem, algorithm, RECORD, values, steps, cut.scratch_bytes)
        self._cut = cut
        self._filter_tiles = filter_tiles(size, lanes, *tile)
        self._box = RECORD.names.index("box")

    def pack_filter(self, w):
        """U (groups, points, panels, taps, panel)."""
        cut, p = self._cut, self._cut.problem
        taps = [a.phases * a.taps for a in (cut.rows, cut.columns)]
        w = w.reshape(p.w_shape)  # (K, C/g, T, R, S)
        if taps != list(p.kernel[1:]):
            padded = np.zeros((*p.w_shape[:3], *taps), w.dtype)
            padded[..., : p.kernel[1], : p.kernel[2]] = w
            w = padded
        shape = (p.groups, cut.points, cut.panels, cut.taps, cut.panel)
        u = aligned_empty(math.prod(shape), w.dtype).reshape(shape)
        used = (cut.filter_blocks - 1) % cut.vectors * cut.lanes + cut.lanes
        u[:, :, -1, :, used:] = 0
        threads = jit.thread_count()
        chunk = max(1, CHUNK // math.prod(w.shape[2:]))
        stride = (chunk * math.prod(w.shape[2:]) + cut.lanes) * cut.lanes * p.itemsize
        scratch = aligned_empty(threads * stride, np.uint8)
        record = np.zeros(1, FILTER_RECORD)
        values = {
            "w": w.ctypes.data, "u": u.ctypes.data, "scratch": scratch.ctypes.data, "size": p.itemsize,
            "lanes": cut.lanes, "tasks": threads, "groups": p.groups, "filters": p.gemm_n,
            "channels": p.w_shape[1], "chunk": chunk, "taps_d": p.kernel[0], "phases_h": cut.rows.phases,
            "phases_w": cut.columns.phases, "rows": taps[0], "columns": taps[1], "panel": cut.panel,
            "panels": cut.panels, "vectors": cut.vectors, "blocks": cut.filter_blocks, "points": cut.points,
            "slice_taps": cut.slice_taps, "scratch_stride": stride,
            "transformed_w": int(cut.columns.outputs > 1), "gather": tiles.gather(p.itemsize, cut.lanes),
            "filter_tiles": self._filter_tiles,
        }  # fmt: skip
        for name, value in values.items():
            record[name] = value
        jit.launch(transform_filters(), record.ctypes.data, threads)
        return u

    def launch_steps(self, workspace):
        if not self._cut.team:
            return super().launch_steps(workspace)
        kernel, tasks = self._steps[0]
        for box in range(self._cut.boxes):
            workspace.fields[self._box] = box
            for phase in range(3):
                workspace.fields[self._box + 1] = phase
                jit.launch(kernel, workspace.address, tasks)


def _offsets(cut: Schedule) -> np.ndarray:
    """(taps,) elements of V from an output tile's row: depth, phase, channel."""
    p = cut.problem
    depth = (
        np.arange(p.kernel[0])
        * (p.dilation[0] // cut.slot_step if p.kernel[0] > 1 else 0)
        * cut.tiles
        * cut.v_row
    )
    phase = np.arange(cut.phases) * cut.channel_blocks * cut.lanes
    channel = np.arange(p.w_shape[1])
    return (depth[:, None, None] + phase[:, None] + channel).ravel().astype(np.int64)


@dataclass(frozen=True)
class Winograd(Algorithm):
    m: int
    r: int = 3

    family: ClassVar[str] = "cpu.winograd"

    @property
    def variant(self):
        return f"f{self.m}x{self.r}"

    def why_not(self, problem):
        if reason := super().why_not(problem):
            return reason
        found = schedule.form(problem, self.r)
        return found if isinstance(found, str) else None

    def cost(self, problem, machine):
        return 4 * problem.flops / machine.peak(problem.dtype)

    def workspace_bytes(self, problem):
        return 0 if problem.is_empty else schedule.schedule(problem, self.m, self.r).scratch_bytes

    def error_bound(self, problem):
        found = schedule.form(problem, self.r)
        dims = sum(found)
        eps = float(np.finfo(problem.dtype).eps)
        return eps * amplification(self.m, self.r) ** dims * (4 * problem.gemm_k**0.5 + 8)

    def plan(self, problem):
        return WinogradPlan(problem, self, schedule.schedule(problem, self.m, self.r))


ALGORITHMS = (Winograd(2), Winograd(4), Winograd(6), Winograd(4, 5), Winograd(2, 5))
