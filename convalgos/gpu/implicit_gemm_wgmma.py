"""Implicit GEMM for Hopper (compute capability 9.x): wgmma on tiles that the copy engine (TMA) brings.

The product of `gpu.direct` on the instructions that reach these GPUs' peak: products of a whole warpgroup on
operands in shared memory. Copies in im2col mode fill these without a thread computing an address. A step of
the sum is 128 bytes of channels of one tap, so with few channels much of the work is on zeros.

wgmma_half   multiplies 16-bit elements exactly.
wgmma_tf32   multiplies float32 elements rounded to TF32.
wgmma_3xtf32 splits both factors into two such parts, and comes close to float32 with three products; infinity
             gives NaN.

Sums are float32. The copy engine reads channels last, in pixels of whole 16 bytes. Other inputs are first
packed by a kernel of their own (`gemm.wgmma_operands`): where this algorithm wins, reading and writing x once
takes a small part of the products' time, while gathering single elements would take as much once more in
every tap of the filter. y is written in its own layout directly. Parts of a sum are added in a fixed order.
Wins on dense layers of many channels.

Never run on hardware: only in an emulation of what NVIDIA documents. Costs are estimates.

Source: NVIDIA's PTX ISA (wgmma, cp.async.bulk.tensor in im2col mode, mbarrier); Ootomo and Yokota 2022,
arXiv:2203.03341 (splitting); the division into warps that copy and warpgroups that multiply is CUTLASS 3's
("Efficient GEMM in CUDA" in its documentation).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any, ClassVar, NamedTuple

import numpy as np

from convalgos.core.problem import ConvProblem
from convalgos.gpu.compile.module import ELEMENTS, Build
from convalgos.gpu.device import GpuMachine, current
from convalgos.gpu.device.tma import TensorMapCache
from convalgos.gpu.gemm.wgmma_forms import PLAIN, RACED, ROW_BYTES, WgmmaForm, WgmmaTile
from convalgos.gpu.gemm.wgmma_operands import (
    PACKED_PIXELS,
    PIECE_BYTES,
    im2col_view,
    packed_bytes,
    packing_blocks,
    padded_channels,
    step_channels,
    x_parts,
    x_steps,
)
from convalgos.gpu.launch.algorithm import GpuAlgorithm
from convalgos.gpu.launch.grid import COUNTED, GRID_X, ceil_div, waves
from convalgos.gpu.launch.kernel_records import record_of
from convalgos.gpu.launch.plan import GpuPlan
from convalgos.gpu.launch.split_k import parts_bytes, splits_of

THREADS, PACKERS = 384, 256  # of a block that multiplies, and of one that packs
LEAST_GROUP = 32  # bytes of a group's channels that are worth a step
# Estimates. cuBLAS reaches 0.72 of the tensor peak on an H200; blocks that share no operands a little less.
REACHED = 0.68
L2_BYTES = (
    32  # that a multiprocessor reads in a clock where all read: what published GEMMs of such tiles need
)
FILL = 4  # steps that a tile takes besides its own, to fill the ring and to write: less where blocks overlap
WGMMA_DTYPES = {"half": ("float16", "bfloat16"), "tf32": ("float32",), "3xtf32": ("float32",)}

# --- shapes ----------------------------------------------------------------------------------

# `Params` and `Packing` of implicit_gemm_wgmma.cu.
WGMMA_PARAMS = np.dtype(
    [
        (name, np.int32)
        for name in (
            *("channels_last", "dimensions", "filter_tiles", "band", "tiles"),
            *("splits", "channel_steps", "x_steps", "steps", "group_channels"),
        )
    ]
)
PACKING_PARAMS = np.dtype([(name, np.int32) for name in ("pixel_tiles", "channel_tiles", "padded", "parts")])


def sum_steps(problem: ConvProblem, terms: int) -> int:
    """Of the sum."""
    return terms * x_steps(problem) * math.prod(problem.kernel)


def wgmma_tiles(problem: ConvProblem, tile: WgmmaTile, cluster: int = 1) -> int:
    """Of all groups; in clusters, groups of tiles that so many blocks compute together."""
    pixel_tiles = ceil_div(ceil_div(problem.gemm_m, tile.pixels(problem)), cluster)
    return pixel_tiles * ceil_div(problem.gemm_n, tile.filters(problem)) * problem.groups


def band(problem: ConvProblem, tile: WgmmaTile, terms: int, machine: GpuMachine) -> int:
    """Tiles of filters that are computed side by side: all, or as many as stay in L2.

    Filters beyond that come from memory for each wave of tiles, or else x does for each band.
    """
    filter_tiles = ceil_div(problem.gemm_n, tile.filters(problem))
    w_bytes = problem.groups * filter_tiles * tile.filters(problem) * sum_steps(problem, terms) * ROW_BYTES
    bands = min(ceil_div(2 * w_bytes, machine.l2_bytes), filter_tiles)
    again = (waves(wgmma_tiles(problem, tile), machine) - 1) * w_bytes
    return ceil_div(filter_tiles, bands) if (bands - 1) * problem.x_bytes < again else filter_tiles


def wgmma_build(dtype: str, tile: WgmmaTile, form: WgmmaForm = PLAIN) -> Build:
    return Build.of(
        "implicit_gemm_wgmma.cu",
        element_t=ELEMENTS[dtype],
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        STAGES=tile.stages,
        BLOCKS=tile.blocks,
        PINGPONG=int(form.pingpong),
        CLUSTER=form.cluster,
        BULK=int(form.bulk),
    )


# --- the figures for the selector --------------------------------------------------------------


@dataclass(frozen=True)
class Wgmma(GpuAlgorithm):
    math: str  # a key of WGMMA_DTYPES
    form: WgmmaForm = PLAIN
    family: ClassVar[str] = "gpu.implicit_gemm"
    capability: ClassVar[tuple[int, int]] = (9, 0)
    until: ClassVar[tuple[int, int]] = (10, 0)

    @property
    def variant(self) -> str:
        return ".".join(filter(None, (f"wgmma_{self.math}", self.form.name)))

    @property
    def dtypes(self) -> tuple[str, ...]:  # type: ignore[override]  # of an instance: its arithmetic decides
        return WGMMA_DTYPES[self.math]

    @property
    def computes(self) -> dict[str, tuple[str, ...]]:  # type: ignore[override]  # the same
        return dict.fromkeys(self.dtypes, ("float32" if self.math == "half" else "tf32",))

    @property
    def terms(self) -> int:
        """Products that make up one."""
        return 3 if self.math == "3xtf32" else 1

    def builds(self) -> Iterable[Build]:
        return [wgmma_build(dtype, tile, self.form) for dtype, tile in product(self.dtypes, self.form.tiles)]

    def variants(self, problem: ConvProblem) -> Iterable[GpuAlgorithm]:
        """The other forms: until a device has decided, they are only measured."""
        return [] if self.form.name or problem.is_empty else [replace(self, form=form) for form in RACED]

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        if problem.is_empty:
            return None
        filled = problem.w_shape[1] * problem.itemsize
        if problem.groups > 1 and filled < LEAST_GROUP:
            return f"multiplies {ROW_BYTES} bytes of channels at once, of which a group fills only {filled}"
        if reason := im2col_view(problem, PLAIN.tiles[0], self.terms).why_not():
            return reason
        line = problem.gemm_n if problem.layout == "channels_last" else math.prod(problem.spatial_out)
        if self.form.bulk and line * problem.itemsize % PIECE_BYTES:
            return f"writes lines of whole {PIECE_BYTES} bytes, not of {line * problem.itemsize}"
        machine = current().figures
        tile, splits, _ = geometry(self, problem, machine)
        if (needed := self.form.shared_bytes(tile)) > machine.block_shared_bytes:
            return f"needs {needed} bytes of shared memory in a block, more than the device has"
        if max(wgmma_tiles(problem, tile) * splits, packing_blocks(problem)) > GRID_X:
            return "needs more blocks than a launch may have"
        if problem.gemm_m + self.form.cluster * tile.pixels(problem) >= COUNTED:
            return f"counts pixels in 32 bits to the end of a tile, but there are {problem.gemm_m}"
        return None

    def cost(self, problem: ConvProblem, machine: GpuMachine) -> float:
        return geometry(self, problem, machine).seconds + machine.launch

    def seconds(self, problem: ConvProblem, tile: WgmmaTile, splits: int, machine: GpuMachine) -> float:
        """Of all kernels, but for the time to launch the first one."""
        kind = "float16" if self.math == "half" else "tf32"
        rate = (
            machine.constant("implicit_gemm_wgmma.REACHED", REACHED)
            * machine.tensor_peak(kind)
            / machine.multiprocessors
        )
        flops = 2 * tile.rows * tile.columns * step_channels(problem)
        filling = machine.constant("implicit_gemm_wgmma.FILL", FILL) / tile.blocks
        read = self.form.read_bytes(tile, problem) / (
            machine.constant("implicit_gemm_wgmma.L2_BYTES", L2_BYTES) * machine.clock
        )
        busy = waves(wgmma_tiles(problem, tile, self.form.cluster) * splits * self.form.cluster, machine)
        each = ceil_div(sum_steps(problem, self.terms), splits)
        took = max(flops / rate, read) * self.form.duration(busy, each, filling)
        seconds = max(took, machine.stream(problem.bytes))
        if packed := packed_bytes(problem, self.terms):
            seconds += machine.stream(problem.x_bytes + packed) + machine.launch
        if splits > 1:
            seconds += machine.stream(2 * parts_bytes(problem, splits)) + machine.launch
        return seconds

    def workspace_bytes(self, problem: ConvProblem) -> int:
        """x in the order of the copies, then the parts of a split sum, in float32."""
        if problem.is_empty:
            return 0
        found = geometry(self, problem, current().figures)
        packed = packed_bytes(problem, self.terms, current().takes_wide_box())
        return packed + parts_bytes(problem, found.splits)

    def error_bound(self, problem: ConvProblem) -> float:
        # Sums of products: a random walk, at twice the error of rounding since tensor cores cut sums off.
        # TF32: 4 * 2^-11 covers both factors rounded to 2^-11, and even cut off at 2^-10; three terms leave
        # out one of 2^-22, and round two more to that.
        sums = 2**-23 * (8 * math.sqrt(max(1, self.terms * problem.gemm_k)) + 8)
        return sums + {"half": problem.eps, "tf32": 4 * 2**-11, "3xtf32": 2**-20}[self.math]

    def plan(self, problem: ConvProblem) -> GpuPlan:
        found = geometry(self, problem, current().figures)
        return WgmmaPlan(problem, self, found.tile, found.splits)


class WgmmaGeometry(NamedTuple):
    tile: WgmmaTile
    splits: int  # parts of the sum
    seconds: float


@lru_cache(1024)  # a choice asks for it several times
def geometry(algorithm: Wgmma, problem: ConvProblem, machine: GpuMachine) -> WgmmaGeometry:
    """The fastest by prediction."""
    allowed = splits_of(sum_steps(problem, algorithm.terms))
    choices = product(algorithm.form.tiles, allowed)
    tried = (WgmmaGeometry(*g, algorithm.seconds(problem, *g, machine)) for g in choices)
    return min(tried, key=lambda g: g.seconds)


# --- the plan ----------------------------------------------------------------------------------


class WgmmaPlan(GpuPlan):
    def __init__(self, problem: ConvProblem, algorithm: Wgmma, tile: WgmmaTile, splits: int):
        terms, form = algorithm.terms, algorithm.form
        wide = current().takes_wide_box()
        self._packed_bytes = packed_bytes(problem, terms, wide)
        super().__init__(problem, algorithm, self._packed_bytes + parts_bytes(problem, splits))
        self._tile, self._terms = tile, terms
        self._bits = np.uint32 if problem.itemsize == 4 else np.uint16
        self._filter_tiles = ceil_div(problem.gemm_n, tile.filters(problem))
        count = wgmma_tiles(problem, tile, form.cluster)
        side = band(problem, tile, terms, self.device.figures) if form.cluster > 1 else self._filter_tiles
        last = problem.layout == "channels_last"
        padded, parts, of_x = padded_channels(problem, terms, wide), x_parts(terms), x_steps(problem)
        params = {
            **{"channels_last": last, "dimensions": problem.ndim, "filter_tiles": self._filter_tiles},
            **{"band": side, "tiles": count, "splits": splits, "steps": sum_steps(problem, terms)},
            **{"channel_steps": terms * of_x, "x_steps": of_x, "group_channels": parts * padded},
        }
        self._params = self.by_value(record_of(WGMMA_PARAMS, params))
        self._maps = TensorMapCache(self.device.tensor_map, im2col_view(problem, tile, terms, wide))
        module = wgmma_build(problem.dtype, tile, form)
        resident = self.device.figures.multiprocessors * tile.blocks // form.cluster
        grid = (min(count * splits, resident) * form.cluster,)
        self._kernel = self.launch(module, "multiply", grid, THREADS, form.shared_bytes(tile))
        self._pack = self._reduce = None
        if self._packed_bytes:
            pixel_tiles = ceil_div(math.prod(problem.spatial), PACKED_PIXELS)
            packing = {"channel_tiles": of_x, "padded": padded, "parts": parts, "pixel_tiles": pixel_tiles}
            self._packing = self.by_value(record_of(PACKING_PARAMS, packing))
            self._pack = self.launch(module, "pack", (packing_blocks(problem),), PACKERS)
        if splits > 1:
            self._splits = np.int32(splits)
            self._reduce = self.launch(module, "reduce", (ceil_div(math.prod(problem.y_shape), 256),), 256)

    def prepare_filter(self, w: Any) -> Any:
        """(groups, filter tiles, steps, filters of a tile, pieces, elements of a piece), as stages hold it.

        Zeros beyond the filters and the channels; TF32 rounded to nearest; swizzled as the products read it.
        """
        p, xp = self.problem, self.device.xp
        channels, filters = x_steps(p) * step_channels(p), self._tile.filters(p)
        high = self._tf32(w) if p.itemsize == 4 else w
        with_terms = (high, self._tf32(w - high), high) if self._terms == 3 else (high,)
        taps = math.prod(p.kernel)
        rows = xp.zeros((p.groups, self._filter_tiles * filters, taps, self._terms, channels), self._bits)
        for term, part in enumerate(with_terms):
            part = part.view(self._bits).reshape(p.groups, p.gemm_n, p.w_shape[1], taps)
            rows[:, : p.gemm_n, :, term, : p.w_shape[1]] = part.transpose(0, 1, 3, 2)
        rows = rows.reshape(
            p.groups, self._filter_tiles, filters, sum_steps(p, self._terms), step_channels(p)
        )
        rows = rows.transpose(0, 1, 3, 2, 4)  # (groups, filter tiles, steps, filters, channels of a step)
        pieces = rows.reshape(*rows.shape[:3], filters // 8, 8, 8, PIECE_BYTES // p.itemsize)
        row = np.arange(8)[:, None]
        return xp.ascontiguousarray(pieces[..., xp.asarray(row), xp.asarray(np.arange(8) ^ row), :])

    def _tf32(self, w: Any) -> Any:
        """w rounded to 10 explicit bits of the significand; NaN stays NaN."""
        xp = self.device.xp
        nearest = (w.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
        return xp.where(xp.isnan(w), np.uint32(0x7FFFE000), nearest).view(np.float32)

    def run(self, x: Any, w: Any, bias: Any, activation: str | None, y: Any, workspace: Any) -> None:
        conv = self.conv[activation is not None]
        address = self.device.address(workspace if self._pack else x)
        if self._pack:
            self._pack(x, workspace, conv, self._packing)
        pixels = self._maps.at(address)
        if self._reduce is None:
            self._kernel(pixels, w, bias, y, None, conv, self._params)
        else:
            parts = np.uintp(self.device.address(workspace) + self._packed_bytes)
            self._kernel(pixels, w, None, y, parts, conv, self._params)
            self._reduce(parts, bias, y, conv, self._splits)


ALGORITHMS = tuple(Wgmma(name) for name in WGMMA_DTYPES)
