"""Products of rows of inputs by a matrix of filters: fully connected layers of a batch, and other 1x1 layers
whose inputs lie in rows of neighbours.

A tile of rows by a panel of filters is summed in registers, from rows that are read where they lie, and is
stored in y with bias, residual and limits. Threads share the panels, or the rows of a panel where there are
few of them; the filters of a panel stay in L2 for all rows.

Source: the register tile of Goto and van de Geijn, "Anatomy of high-performance matrix multiplication"
(2008), without the packing of the rows, which few filters do not pay for.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Self

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.arguments import Shape
from convalgos.core.epilogue import KINDS
from convalgos.core.layouts import PLAIN
from convalgos.core.machine import Machine, cache_sizes
from convalgos.core.prepared_filter import FilterForm
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import packed_blocking, panel_packing, panels
from convalgos.cpu.gemm.register_finish import RegisterFinish
from convalgos.cpu.gemm.unpacked_rows_cut import UnpackedRowsCut, heights, unpacked_rows_cut
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.filter_reads import reading_seconds
from convalgos.cpu.runtime.plan import CALL, arguments
from convalgos.cpu.runtime.threads import plan_threads, worth_sharing
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.activations import activate
from convalgos.cpu.vectors.simd import Value, Vec, call, carray, emitter, fetch_bytes, pointer

CLIP = KINDS["clip"].code
SUMS = 1.08  # times `tile_cycles`: 30 layers channels last, Zen 5
LEAST_ROWS = 3  # for fewer, `gemv` keeps sums of an output apart
# Of maps, 130 layers channels last, Zen 5: other forms have kernels for filters that fill no vector, and read
# inputs of many channels once for all panels.
FILLED, MOST_TAPS = 0.88, 200  # of the lanes of all vectors, at least; and channels
MANY_ROWS = 32  # that pay for filters from beyond L2: heads of many classes, Zen 5

UNPACKED_ROWS_ARGUMENTS = arguments(
    "size rows x_n y_n filters taps chunk lanes vectors panels tiles tall tile_bytes kernels tasks unlimited "
    "limits adds"
)


@emitter
def row_tile(
    v: Vec, ROWS: int, VECTORS: int, x: Value, x_row: Value, rows: Value, w: Value, taps: Value, ahead: Value,
    begin: Value, y: Value, y_row: Value, last: Value, bias: Value, added: Value, limits: Value,
) -> None:  # fmt: skip
    """y[i][:] = start + sum_t x[i][t] * w[t][:], for i < rows, and that within two `limits`, low and high.

    Where `rows` are fewer than ROWS, the last one is computed again for those that lack. w: (taps,
    VECTORS*lanes); rows are x_row and y_row elements apart, and of the last vector of y there are `last`
    elements. The sums start with the bias; where `begin` is 2 with the bias and what lies like y from `added`
    on; and where it is 0 with what y holds. For each tap a line from `ahead` on, which may be any address, is
    asked for.
    """
    filters, inside = v.pointer(w), v.mask(last)
    places = [v.imin(i, v.isub(rows, 1)) for i in range(ROWS)]
    inputs = [v.at(v.pointer(x), v.imul(x_row, place)) for place in places]
    outputs = [v.imul(y_row, place) for place in places]
    sums = [[v.register(v.zero()) for _ in range(VECTORS)] for _ in range(ROWS)]

    def values_at(base: Value) -> list[list[Value]]:
        """What lies like y, from an address on, as vectors."""
        whole = range(VECTORS - 1)
        rows = [v.at(v.pointer(base), row) for row in outputs]
        ends = [v.load_masked(row, (VECTORS - 1) * v.lanes, inside) for row in rows]
        return [
            [*(v.load(row, j * v.lanes) for j in whole), end] for row, end in zip(rows, ends, strict=True)
        ]

    with v.choose(v.isub(begin, 1)) as (fresh, further):
        with fresh:
            for j in range(VECTORS):
                first = v.load(v.pointer(bias), j * v.lanes)
                for row in sums:
                    row[j].set(first)
        with further:
            for row, values in zip(sums, values_at(y), strict=True):
                for total, value in zip(row, values, strict=True):
                    total.set(value)
    with v.within(v.isub(begin, 2), 1):
        for row, values in zip(sums, values_at(added), strict=True):
            for total, value in zip(row, values, strict=True):
                total.set(v.fadd(total.value, value))
    with v.loop(taps) as t:
        tap = v.at(filters, v.imul(t, VECTORS * v.lanes))
        weights = [v.load(tap, j * v.lanes) for j in range(VECTORS)]
        v.prefetch(v.pointer(ahead), v.imul(t, v.lanes))
        for row, input_ in zip(sums, inputs, strict=True):
            value = v.broadcast(input_, t)
            for total, weight in zip(row, weights, strict=True):
                total.set(v.fma(value, weight, total.value))
    low, high = (v.broadcast(v.pointer(limits), i) for i in (0, 1))
    for row, output in zip(sums, outputs, strict=True):
        to = v.at(v.pointer(y), output)
        values = [activate(v, CLIP, total.value, low, high) for total in row]
        for j, value in enumerate(values[:-1]):
            v.store(value, to, j * v.lanes)
        v.store_masked(values[-1], to, (VECTORS - 1) * v.lanes, inside)


@jit.specialise
def sum_row_tile(SIZE: int, LANES: int, ROWS: int, VECTORS: int) -> jit.Kernel:
    """`row_tile`."""

    def sum_row_tile(
        x: int, x_row: int, rows: int, w: int, taps: int, ahead: int, begin: int, y: int, y_row: int,
        last: int, bias: int, added: int, limits: int,
    ) -> None:  # fmt: skip
        row_tile(
            SIZE, LANES, ROWS, VECTORS,
            x, x_row, rows, w, taps, ahead, begin, y, y_row, last, bias, added, limits,
        )  # fmt: skip

    return sum_row_tile


@jit.specialise
def multiply_unpacked_rows() -> jit.Kernel:
    """Panels of filters x tiles of rows, in this order, dealt to the tasks in equal runs."""

    def multiply_unpacked_rows(args: int, task: int) -> None:
        a = carray(pointer(args), 1, UNPACKED_ROWS_ARGUMENTS)[0]
        units = a.panels * a.tiles
        begin, end = units * task // a.tasks, units * (task + 1) // a.tasks
        unit = begin
        while unit < end:
            panel = unit // a.tiles
            stop = min(end, (panel + 1) * a.tiles)
            multiply_panel(a, panel, unit - panel * a.tiles, stop - panel * a.tiles, unit < begin + a.tiles)
            unit = stop

    return multiply_unpacked_rows


@jit.helper
def multiply_panel(a: Any, panel: int, begin: int, end: int, fresh: int) -> None:
    """Some of the tiles of rows by a panel of filters, in passes of `chunk` taps.

    fresh: whether the rows are read for the first time, so that those of the next tile are asked for.
    """
    first = a.vectors * panel // a.panels
    count = a.vectors * (panel + 1) // a.panels - first
    k = first * a.lanes
    last = min(a.lanes, a.filters - k - (count - 1) * a.lanes)
    width = (count - 1) * a.lanes + last
    kernel = carray(pointer(a.kernels), 4, np.int64)
    narrow = 0 if count * a.panels >= a.vectors else 2
    w, bias = a.w + k * a.taps * a.size, a.bias + k * a.size
    tap = 0
    while tap < a.taps:
        taps = min(a.chunk, a.taps - tap)
        start, limits = 1 + a.adds if tap == 0 else 0, a.unlimited
        ends = tap + taps == a.taps
        if ends:
            limits = a.unlimited + 2 * a.size if a.relu else a.limits
        part = taps * a.lanes * a.size
        weights = w + tap * count * a.lanes * a.size
        ahead = weights + count * part  # the next pass or panel, fetched a part with each tile
        for tile in range(begin, end):
            row = tile * a.tall
            rows = min(a.tall, a.rows - row)
            x, y = a.x + (row * a.x_n + tap) * a.size, a.y + (row * a.y_n + k) * a.size
            if fresh and tile + 1 < end:
                fetch_bytes(8, 8, 0, x + a.tall * a.x_n * a.size, a.tile_bytes)
            call(
                kernel[narrow + (tile == a.tiles - 1)],
                (
                    x, a.x_n, rows, weights, taps, ahead,
                    start, y, a.y_n, last, bias, y + a.residual, limits,
                ),
            )  # fmt: skip
            if ends and a.finish:
                for i in range(rows):
                    run = y + i * a.y_n * a.size
                    call(a.finish, (run, 0, run, width, a.finish_numbers))
            if tile - begin < count - 1:
                ahead += part
        tap += taps


def fields_of_rows(cut: UnpackedRowsCut) -> dict[str, int | np.ndarray]:
    """What the number of rows tells: tiles, and the kernels of wide and of narrow panels."""
    p, rows, tall, tiles = cut.problem, cut.rows, cut.tall, cut.tiles
    row_bytes = p.gemm_k * p.itemsize
    kernels = _kernels_of(p.itemsize, cut.vectors_of, cut.panels, tall, rows - (tiles - 1) * tall)
    asked = tall * row_bytes if rows * row_bytes > cache_sizes()[1] else 0  # bytes, with each tile
    return {"rows": rows, "tiles": tiles, "tall": tall, "tile_bytes": asked, "kernels": kernels}


@lru_cache(1024)  # networks meet few kinds of tiles
def _kernels_of(size: int, vectors: int, panels: int, tall: int, rest: int) -> np.ndarray:
    """Of wide and of narrow panels: the kernel of whole tiles, and of the last one, which has the rest."""
    last = min(n for n in heights(vectors, panels) if n >= rest)
    widths = -(-vectors // panels), vectors // panels
    kernels = [sum_row_tile(size, simd.lanes(size), rows, n) for n in widths for rows in (tall, last)]
    return np.array(kernels, np.int64)


def is_matrix_product(problem: ConvProblem) -> bool:
    """Whether inputs and outputs are rows of neighbours, and filters stay in L2: those of many taps that come
    from memory in each run took 1.1 times as long so, with 50 rows (ViT-B/32, Zen 5)."""
    p = problem
    plain = p.is_plain_product and p.groups == 1 and p.dtype == "float32" and not p.is_empty
    laid = p.layout == p.y_layout and p.layout in PLAIN
    if not (plain and laid and p.gemm_m >= _least_rows(p)):
        return False
    if math.prod(p.spatial_out) == 1:
        return p.w_bytes <= cache_sizes()[1] or p.gemm_k <= MOST_TAPS
    lanes = simd.lanes(p.itemsize)
    filled = p.gemm_n >= FILLED * lanes * -(-p.gemm_n // lanes)
    return p.layout == "channels_last" and filled and p.gemm_k <= MOST_TAPS


def _least_rows(problem: ConvProblem) -> int:
    return LEAST_ROWS if problem.w_bytes <= cache_sizes()[1] else MANY_ROWS


class UnpackedRowsPlan(RegisterFinish):
    takes_views = any_order = True

    def __init__(self, problem: ConvProblem, algorithm: Algorithm):
        cut = unpacked_rows_cut(problem)
        p = cut.problem
        values: dict[str, int | np.ndarray] = {
            "size": p.itemsize, "x_n": p.C, "y_n": p.K, "filters": p.K, "taps": p.gemm_k,
            "chunk": panels.chunk(p.gemm_k), "lanes": simd.lanes(p.itemsize), "vectors": cut.vectors_of,
            "panels": cut.panels,
            "tasks": cut.tasks, **self.limit_fields(p), **fields_of_rows(cut),
        }  # fmt: skip
        steps = [(multiply_unpacked_rows(), cut.tasks)]
        super().__init__(problem, algorithm, UNPACKED_ROWS_ARGUMENTS, values, steps, 0)
        self._set_cut(cut)

    def _set_cut(self, cut: UnpackedRowsCut) -> None:
        self._cut = cut
        self.strided_batch = math.prod(cut.problem.spatial_out) == 1  # else images are rows of pixels

    def on_maps(self, problem: ConvProblem) -> Self | None:
        """This plan for another number of rows; None where filters lie in other panels, for other threads."""
        cut = unpacked_rows_cut(problem)
        if cut.panels != self._cut.panels:
            return None
        plan = self.resized(problem, fields_of_rows(cut), 0)
        plan._set_cut(cut)
        return plan

    def on_sizes(self, x_shape: Shape, y_shape: Shape) -> Self | None:
        pixels, known = math.prod(x_shape[2:]), self._cut
        rows = x_shape[0] * pixels
        if (pixels == 1) != self.strided_batch or known.tasks != plan_threads():
            return None  # single pixels are rows in other layouts as well
        if rows < _least_rows(known.problem):
            return None
        cut = known.of_rows(rows)
        plan = self._of_sizes(x_shape, y_shape, fields_of_rows(cut))
        plan._cut = cut
        return plan

    def filter_form(self) -> FilterForm:
        return FilterForm.of(self.problem, "rows", self._cut.panels)

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        """(panels, taps, filters of a panel)."""
        return panel_packing.packed_panels(w.reshape(1, *w.shape[:2]), self._cut.panels)


class UnpackedRows:
    """The form of direct convolution that reads inputs as rows of a matrix."""

    def seconds(self, problem: ConvProblem, machine: Machine) -> float:
        cut, p = unpacked_rows_cut(problem), problem
        shared = worth_sharing(p)
        sums = SUMS * packed_blocking.seconds(cut.cycles, p, machine) * (1 if shared else cut.tasks)
        moved = machine.stream(p.x_bytes + 2 * p.y_bytes, p.x_bytes + p.y_bytes)
        moved += reading_seconds(p.w_bytes, p.w_bytes / cut.tasks, p.w_bytes, machine)
        return CALL + (machine.launch if shared else 0.0) + math.hypot(sums, moved)

    least = seconds

    def scratch_bytes(self, problem: ConvProblem) -> int:
        return 0

    def plan(self, problem: ConvProblem, algorithm: Algorithm) -> UnpackedRowsPlan:
        return UnpackedRowsPlan(problem, algorithm)
