"""The driver of filter gradients on transformed tiles. x and dy are read in boxes, and their products summed:

1. clear: the sums M are set to zero;
2. for each box of tiles
   a. read: tiles of x are transformed into V, and the tiles of dy that meet them into D, at the same points,
   b. multiply: at each point M += V D, a sum over all tiles for every channel of x and filter of dy;
3. write: M is transformed back into dw.

V and D are what `reading.read_box` makes. Tiles of dy do not overlap; the tiles of x under them overlap their
neighbours by the kernel. M is (point, depth tap, phase, channel, filter). All threads share each box and the
points of M: every sum runs over the tiles in their order, whatever the number of threads. Where there is one
box, M need not hold all channels: a thread sums some channels for a panel of filters at all points, and
writes their dw at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.problem import ConvProblem
from convalgos.cpu.layout.channel_vectors import place
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import KernelPlan, Workspace, arguments
from convalgos.cpu.runtime.records import address_of_table, field_offset
from convalgos.cpu.tiled.blocking import BoxSizes
from convalgos.cpu.tiled.box_plan import box_values
from convalgos.cpu.tiled.driver import BOX_ARGUMENTS, Box, box_of, image_tiles
from convalgos.cpu.tiled.weights_blocking import ORDERED_CHANNELS, TiledWeightsBlocking
from convalgos.cpu.vectors import microkernel, simd
from convalgos.cpu.vectors.simd import call, carray, copy_bytes, pointer, zero_bytes

# --- the arguments of the kernels -------------------------------------------------------------------

_OWN_FIELDS = arguments(
    "box phase size lanes tasks own_bytes v_bytes d_bytes points point_phases panels panel m_row m_point "
    "chunks m_bytes stores channels filters filter_blocks phases phases_h phases_w taps_h taps_w "
    "kernel_d kernel_h kernel_w outer place_tile output_tiles dw_filter"
)
WEIGHT_BOX_ARGUMENTS = np.dtype([*_OWN_FIELDS.descr, ("inputs", BOX_ARGUMENTS), ("gradients", BOX_ARGUMENTS)])
INPUTS_AT, GRADIENTS_AT = (field_offset(WEIGHT_BOX_ARGUMENTS, name) for name in ("inputs", "gradients"))
CLEAR, READ, MULTIPLY, WRITE, SUM = range(5)  # steps; where there is one box, SUM is the last two in one

# --- kernels ---------------------------------------------------------------------------------


@simd.emitter
def outer_tile(
    v: simd.Vec, ROWS: int, VECTORS: int, a: Any, a_stride: Any, w: Any, w_stride: Any, taps: Any, y: Any,
    y_stride: Any, accumulate: Any,
) -> None:  # fmt: skip
    """y[i][:] (+)= sum_t a[t * a_stride + i] * w[t * w_stride:][:VECTORS * lanes], for i < ROWS."""
    wide = range(VECTORS)
    left, right = v.pointer(a), v.pointer(w)
    outputs = [v.at(v.pointer(y), v.imul(y_stride, i)) for i in range(ROWS)]
    sums = microkernel.begun_sums(v, outputs, VECTORS, accumulate)
    with v.loop(taps) as t:
        row, tap = v.at(left, v.imul(t, a_stride)), v.at(right, v.imul(t, w_stride))
        weights = [v.load(tap, j * v.lanes) for j in wide]
        for i, totals in enumerate(sums):
            value = v.broadcast(row, i)
            for total, weight in zip(totals, weights, strict=True):
                total.set(v.fma(value, weight, total.value))
    for totals, target in zip(sums, outputs, strict=True):
        for j, total in enumerate(totals):
            v.store(total.value, target, j * v.lanes)


@jit.specialise
def sum_outer_products(SIZE: int, LANES: int, ROWS: int, VECTORS: int) -> Callable[..., None]:
    """y[i][:] (+)= sum_t a[t][i] * w[t][:], for i < count, in tiles of ROWS and ROWS - 1."""
    FEWER = max(ROWS - 1, 1)

    def sum_outer_products(
        a: int, a_stride: int, w: int, w_stride: int, taps: int, y: int, y_stride: int, count: int,
        accumulate: int,
    ) -> None:  # fmt: skip
        tiles = (count + ROWS - 1) // ROWS
        for tile in range(tiles):
            first = count * tile // tiles
            from_, to = a + first * SIZE, y + first * y_stride * SIZE
            if count * (tile + 1) // tiles - first == ROWS:
                outer_tile(
                    SIZE, LANES, ROWS, VECTORS, from_, a_stride, w, w_stride, taps, to, y_stride, accumulate
                )
            else:
                outer_tile(
                    SIZE, LANES, FEWER, VECTORS, from_, a_stride, w, w_stride, taps, to, y_stride, accumulate
                )

    return sum_outer_products


@jit.helper
def multiply_point(
    a: Any, box: Box, point: int, panel: int, c0: int, channels: int, v: int, d: int, m: int
) -> None:
    """V and D of a point are multiplied into M (depth tap, phase, `channels` from c0 on, panel)."""
    x, dy = a.inputs, a.gradients
    point_phases = carray(pointer(a.point_phases), (a.points, 2), np.int64)
    tiles = (box.n1 - box.n0) * image_tiles(x, box)  # of a slice: one sum, as those of all images adjoin
    for tap in range(a.kernel_d):
        for o in range(box.o1 - box.o0):
            depth = (box.o0 + o) * x.depth.stride - x.depth.pad + tap * x.depth.dilation
            there = x.depth_sources or x.fills_depth  # slices beyond the map are read, too
            if not there and (depth < 0 or depth >= x.depth.size):
                continue
            slot = (o * x.depth.stride + tap * x.depth.dilation) // x.slot_step
            rows = v + (point * x.v_point + slot * x.slot_tiles * x.v_row + c0) * a.size
            weights = d + (point * dy.v_point + o * dy.slot_tiles * dy.v_row) * a.size
            weights += panel * a.panel * a.size
            for phase in range(point_phases[point, 0], point_phases[point, 1]):
                source = rows + phase * x.channel_blocks * a.lanes * a.size
                target = m + (tap * a.phases + phase) * channels * a.m_row * a.size
                place = target, a.m_row, channels, 1 - a.stores
                call(a.outer, (source, x.v_row, weights, dy.v_row, tiles, *place))


@jit.helper
def write_gradients(
    a: Any, group: int, c0: int, channels: int, block: int, own: int, m: int, m_rows: int
) -> None:
    """M -> dw, for some channels from c0 on, at most ORDERED_CHANNELS, and a vector of filters.

    m: of the first of the channels and filters; `m_rows` from a phase to the next.
    """
    pixel = a.lanes * a.size
    taps = a.kernel_d * a.kernel_h * a.kernel_w
    places = carray(pointer(a.inputs.phase_places), a.phases, np.int64)
    ordered = own + 64 * pixel  # (channel, tap, lane), behind room for the taps of a phase
    filters = min(a.lanes, a.filters - block * a.lanes)
    for tap in range(a.kernel_d):
        for phase in range(a.phases):
            phase_h, phase_w = phase // a.phases_w, phase % a.phases_w
            source = m + (tap * a.phases + places[phase]) * m_rows * a.m_row * a.size
            target = ordered + tap * a.kernel_h * a.kernel_w * pixel
            if a.phases == 1:
                down = a.kernel_w * a.lanes
                across = a.lanes if a.taps_w > 1 else down
                steps = (target, down, across, taps * a.lanes, a.taps_h, a.taps_w)
                call(a.output_tiles, (source, a.m_row, a.m_point, channels, *steps))
                continue
            down = a.taps_w * a.lanes
            across = a.lanes if a.taps_w > 1 else down
            for c in range(channels):
                steps = (own, down, across, 0, a.taps_h, a.taps_w)
                call(a.output_tiles, (source + c * a.m_row * a.size, 0, a.m_point, 1, *steps))
                for j in range(a.taps_h):
                    r = j * a.phases_h + phase_h
                    for i in range(a.taps_w):
                        s = i * a.phases_w + phase_w
                        if r < a.kernel_h and s < a.kernel_w:
                            to = target + (c * taps + r * a.kernel_w + s) * pixel
                            copy_bytes(to, own + (j * a.taps_w + i) * pixel, pixel)
    k = group * a.filters + block * a.lanes
    dw = a.y + (k * a.dw_filter + c0 * taps) * a.size
    call(a.place_tile, (ordered, a.dw_filter, 1, filters, channels * taps, dw))


@jit.helper
def sum_chunk(a: Any, box: Box, panel: int, c0: int, channels: int, own: int, v: int, d: int, m: int) -> None:
    """dw of some channels and a panel of filters, from V and D of all tiles; m is the thread's own."""
    if not a.stores:
        zero_bytes(m, a.points * a.m_point * a.size)
    for point in range(a.points):
        multiply_point(a, box, point, panel, c0, channels, v, d, m + point * a.m_point * a.size)
    vectors = a.panel // a.lanes
    first = panel * vectors
    for block in range(first, min(a.filter_blocks, first + vectors)):
        for c in range(0, channels, ORDERED_CHANNELS):
            at = m + (c * a.m_row + (block - first) * a.lanes) * a.size
            some = min(ORDERED_CHANNELS, channels - c)
            write_gradients(a, box.group, c0 + c, some, block, own, at, channels)


@jit.specialise
def share_weight_box() -> Callable[..., None]:
    """All tasks take parts of the phase `a.phase` of the box `a.box`."""

    def share_weight_box(args: int, task: int) -> None:
        a = carray(pointer(args), 1, WEIGHT_BOX_ARGUMENTS)[0]
        own = a.scratch + task * a.own_bytes
        v = a.scratch + a.tasks * a.own_bytes
        d = v + a.v_bytes
        m = d + a.d_bytes
        box = box_of(a.inputs, a.box)
        images = box.n1 - box.n0
        if a.phase == CLEAR:
            size = a.points * a.m_point * a.size
            first = size * task // a.tasks
            zero_bytes(m + first, size * (task + 1) // a.tasks - first)
        elif a.phase == READ:
            items = images * a.inputs.channel_blocks
            first, last = items * task // a.tasks, items * (task + 1) // a.tasks
            call(a.inputs.read_box, (args + INPUTS_AT, a.box, first, last, v, own))
            items = images * a.gradients.channel_blocks
            first, last = items * task // a.tasks, items * (task + 1) // a.tasks
            call(a.gradients.read_box, (args + GRADIENTS_AT, a.box, first, last, d, own))
        elif a.phase == MULTIPLY:
            items = a.points * a.panels
            for item in range(items * task // a.tasks, items * (task + 1) // a.tasks):
                point, panel = item // a.panels, item % a.panels
                at = m + (point * a.m_point + panel * a.panel) * a.size
                multiply_point(a, box, point, panel, 0, a.channels, v, d, at)
        elif a.phase == WRITE:
            items = (a.channels + ORDERED_CHANNELS - 1) // ORDERED_CHANNELS * a.filter_blocks
            for item in range(items * task // a.tasks, items * (task + 1) // a.tasks):
                block, c0 = item % a.filter_blocks, item // a.filter_blocks * ORDERED_CHANNELS
                at = m + (c0 * a.m_row + block * a.lanes) * a.size
                channels = min(ORDERED_CHANNELS, a.channels - c0)
                write_gradients(a, box.group, c0, channels, block, own, at, a.channels)
        else:
            items = a.panels * a.chunks  # a panel of D stays in L2 while all chunks of V pass
            for item in range(items * task // a.tasks, items * (task + 1) // a.tasks):
                panel, chunk = item // a.chunks, item % a.chunks
                c0 = a.channels * chunk // a.chunks
                channels = a.channels * (chunk + 1) // a.chunks - c0
                sum_chunk(a, box, panel, c0, channels, own, v, d, m + task * a.m_bytes)

    return share_weight_box


# --- plan ------------------------------------------------------------------------------------


class WeightBoxPlan(KernelPlan):
    """A plan on boxes of x and dy.

    Args:
        input_tiles, gradient_tiles: addresses of kernels as `box_plan.BoxPlan` takes for its `input_tiles`.
        output_tiles: of one as it takes for its `output_tiles`; its outputs are the taps of a phase.
    """

    def __init__(
        self,
        problem: ConvProblem,
        algorithm: Algorithm,
        cut: TiledWeightsBlocking,
        input_tiles: int,
        gradient_tiles: int,
        output_tiles: int,
    ):
        p, x = cut.problem, cut.inputs
        size, lanes = p.itemsize, x.lanes
        inputs, tables_x = _record(x, input_tiles)
        gradients, tables_dy = _record(cut.gradients, gradient_tiles)
        self._kept = (tables_x, tables_dy)
        point_phases = x.point_taps // p.w_shape[1]  # (points, 2): first and number of phases
        point_phases[:, 1] += point_phases[:, 0]
        one_slice = p.kernel[0] == 1 and p.spatial_out[0] == 1
        # Where every sum is made by one call, sums need not be cleared.
        stores = cut.chunks > 0 and one_slice and bool((point_phases == (0, x.phases)).all())
        tile = cut.product_rows, cut.vectors
        values: dict[str, Any] = {
            "box": 0, "phase": 0, "size": size, "lanes": lanes, "tasks": x.threads,
            "own_bytes": cut.own_bytes, "v_bytes": cut.v_bytes, "d_bytes": cut.d_bytes, "points": x.points,
            "point_phases": point_phases, "panels": cut.panels, "panel": cut.panel, "m_row": cut.m_row,
            "m_point": cut.m_point, "m_bytes": cut.m_bytes, "chunks": cut.chunks, "stores": int(stores),
            "channels": p.w_shape[1], "filters": p.gemm_n, "filter_blocks": x.filter_blocks,
            "phases": x.phases, "phases_h": x.rows.phases,
            "phases_w": x.columns.phases, "taps_h": x.rows.taps, "taps_w": x.columns.taps,
            "kernel_d": p.kernel[0], "kernel_h": p.kernel[1], "kernel_w": p.kernel[2],
            "outer": sum_outer_products(size, lanes, *tile),
            "place_tile": place(size, lanes), "output_tiles": output_tiles, "dw_filter": p.gemm_k,
            "inputs": inputs, "gradients": gradients,
        }  # fmt: skip
        steps = [(share_weight_box(), x.threads)]
        super().__init__(problem, algorithm, WEIGHT_BOX_ARGUMENTS, values, steps, cut.scratch_bytes)
        self.cut = cut

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        """dy itself, which the kernels read in boxes."""
        return w

    def run(
        self, x: np.ndarray, w: Any, bias: np.ndarray | None, activation: str | None, y: np.ndarray,
        workspace: Any,
    ) -> None:  # fmt: skip
        given = workspace.arguments
        given.inputs.x, given.gradients.x, given.y = x.ctypes.data, w.address, y.ctypes.data
        self.launch_steps(workspace)

    def launch_steps(self, workspace: Workspace) -> None:
        groups, boxes = self.problem.groups, self.cut.inputs.boxes

        def launch(phase: int, box: int) -> None:
            workspace.arguments.box, workspace.arguments.phase = box, phase
            super(WeightBoxPlan, self).launch_steps(workspace)

        each = boxes // groups  # groups are outermost
        for group in range(groups):
            if self.cut.chunks:
                launch(READ, group)
                launch(SUM, group)
                continue
            launch(CLEAR, group * each)
            for box in range(group * each, (group + 1) * each):
                launch(READ, box)
                launch(MULTIPLY, box)
            launch(WRITE, group * each)


def _record(cut: BoxSizes, input_tiles: int) -> tuple[tuple[Any, ...], list[np.ndarray]]:
    """The record of `read_box` on some tiles, zeros where it reads nothing, and tables that it points to."""
    values = box_values(cut) | {"input_tiles": input_tiles}
    tables = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    values |= {name: address_of_table(name, table) for name, table in tables.items()}
    return tuple(values.get(name, 0) for name in BOX_ARGUMENTS.names or ()), list(tables.values())
