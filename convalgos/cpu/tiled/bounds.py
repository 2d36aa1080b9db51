"""Lower bounds of the time of a problem in tiles of any size, without a search for its boxes."""

from __future__ import annotations

import math
from functools import lru_cache

from convalgos.core.machine import Machine
from convalgos.core.problem import ConvProblem
from convalgos.core.taps import taps_met
from convalgos.cpu.runtime.filter_reads import reading_seconds
from convalgos.cpu.runtime.plan import CALL
from convalgos.cpu.tiled.cost import PRODUCT_CALL, ROW_CALL, BoxSchedule, overlapped
from convalgos.cpu.tiled.geometry import outputs_of_tile
from convalgos.cpu.tiled.search import uncut
from convalgos.cpu.vectors import simd


def least_of_tiles(kind: type[BoxSchedule], problem: ConvProblem, machine: Machine) -> float:
    """A lower bound of tiles of a kind of any size, found in less time: if nothing overlapped.

    Each output then takes one product with each channel of its group. Channels and filters of a group fill
    whole vectors.
    """
    p, lanes = problem, simd.lanes(problem.itemsize)
    peak = machine.peak("float64" if p.dtype == "float64" else "float32")  # of 16-bit data at most
    inputs, outputs = -(-p.w_shape[1] // lanes) * lanes, -(-p.gemm_n // lanes) * lanes
    depth_taps = taps_met(p, 0) / max(1, p.spatial_out[0]) if p.ndim == 3 else 1
    products = kind.least_flops * depth_taps * p.w_shape[1] * outputs / peak
    vectors = (inputs + p.w_shape[1] + 2 * outputs) * p.itemsize / machine.vector_bytes
    moved = vectors / (kind.transform_cycles(machine) * kind.transform_speed)
    outer = kind.shown * machine.stream(p.x_bytes + 2 * p.y_bytes)
    return CALL + machine.launch + p.gemm_m * p.groups * (products + moved) + outer


def least_of_products(problem: ConvProblem, m: int, r: int, machine: Machine) -> float:
    """A lower bound of a gradient in tiles of F(m, r): its products at the peak; infinite for other taps."""
    tile = None if problem.is_empty else outputs_of_tile(problem, m, r)
    if tile is None:
        return math.inf
    saved = math.prod(r * outputs / (r + outputs - 1) for outputs in tile)
    return CALL + machine.launch + problem.flops / saved / machine.peak(problem.dtype)


class Bounds:
    """Of `BoxSchedule.seconds`, whatever the boxes: each choice asks for every size of a tile.

    What does not depend on the size is multiplied out once: bytes for each point of a tile and for each of
    its outputs, seconds for each product that is summed and for each row of outputs of all tiles.
    """

    def __init__(self, whole: BoxSchedule, machine: Machine):
        p, rows, columns = whole.problem, whole.rows, whole.columns
        self._whole, self._machine = whole, machine
        self._high, self._wide = rows.size_out, columns.size_out
        self._row_step, self._column_step = rows.lattices, columns.lattices
        self._stacks = whole.stacks
        self._blocks = whole.channel_blocks * whole.phases + whole.filter_blocks
        written = whole.filter_blocks * whole.lanes * whole.size  # bytes of one value of all filters
        self._point = (1 + whole.filled) * whole.v_row * whole.size + written * whole.parts
        self._output: float = whole.output_moves * written
        if rows.taps > 1 and columns.taps > 1:  # else steps of a stride may be left out
            pixels = whole.pixel_moves * whole.channel_blocks * rows.stride * columns.stride
            self._output += whole.filled * pixels * whole.lanes * whole.size
        self._near, self._far = whole.byte_seconds(machine)
        self._filter = p.groups * whole.point_bytes
        self._product = whole.point_flops / whole.product_speed(machine.pace) / whole.peak(machine)
        pixel_rows = p.groups * p.N * p.spatial_out[0] * (whole.channel_blocks + whole.filter_blocks)
        self._row = ROW_CALL * pixel_rows * rows.lattices / whole.threads
        self._call = PRODUCT_CALL * p.groups * whole.panels / whole.threads
        self._fixed = CALL + machine.launch + whole.moving(0.0, machine)

    def seconds(self, h: int, w: int, points: int = 0) -> float:
        """Of tiles of h x w outputs.

        Args:
            points: of a tile, where these are more than those of the kind.
        """
        whole = self._whole
        high, wide = -(-self._high // (h * self._row_step)), -(-self._wide // (w * self._column_step))
        products_of = points * whole.slice_taps if points else whole.products_of(h, w)
        tiles, points = self._stacks * high * wide, points or whole.points_of(h, w)
        byte = self._near + whole.missing(points) * self._far  # seconds
        moved = (points * self._point + h * w * self._output) * byte
        computed = self._blocks * whole.transforming(points, self._machine)
        products = tiles * products_of * self._product
        if whole.filters_apart:
            filters = points * self._filter  # bytes
            read = reading_seconds(filters, filters / whole.threads, filters, self._machine)
            products = overlapped(products, read)
        calls = high * h * self._row + points * self._call
        return self._fixed + products + tiles * (moved + computed) + calls


@lru_cache(512)
def bounds(kind: type[BoxSchedule], problem: ConvProblem, machine: Machine) -> Bounds:
    """The bounds of a problem in a kind of tiles."""
    return Bounds(uncut(kind, problem, machine.threads), machine)
