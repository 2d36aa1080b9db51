"""Implicit GEMM for Hopper (compute capability 9.x): wgmma on tiles that the copy engine (TMA) brings.

The product of `gpu.direct` on the instructions that reach these GPUs' peak: products of a whole warpgroup on
operands in shared memory. Copies in im2col mode fill these without a thread computing an address. A step of
the sum is 128 bytes of channels of one tap, so with few channels much of the work is on zeros.

wgmma_half   multiplies 16-bit elements exactly.
wgmma_tf32   multiplies float32 elements rounded to TF32.
wgmma_3xtf32 splits both factors into two such parts, and comes close to float32 with three products; infinity
             gives NaN.
wgmma_int8   multiplies 8-bit integers, signed or not, and sums exactly in int32.
wgmma_float8 multiplies 8-bit floats of either type exactly.

Sums of floats are float32. Tensor cores keep those of 8-bit floats in 13 explicit bits: the sums of each
step, of 128 products, are added up in float32 by the threads.

The copy engine reads channels last, in pixels of whole 16 bytes. Other inputs are first packed by a kernel of
their own (`gemm.wgmma_operands`): where this algorithm wins, reading and writing x once takes a small part of
the products' time, while gathering single elements would take as much once more in every tap of the filter. y
is written in its own layout directly. Parts of a sum are added in a fixed order. Wins on dense layers of many
channels.

Never run on hardware: only in an emulation of what NVIDIA documents. Costs are estimates.

Source: NVIDIA's PTX ISA (wgmma, cp.async.bulk.tensor in im2col mode, mbarrier); Ootomo and Yokota 2022,
arXiv:2203.03341 (splitting); the division into warps that copy and warpgroups that multiply is CUTLASS 3's
("Efficient GEMM in CUDA" in its documentation). Sums of 8-bit floats: measured by Zhang et al. 2024,
arXiv:2411.10958, and DeepSeek-AI 2024, arXiv:2412.19437 (3.3.2); no document of NVIDIA's tells.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import ClassVar, NamedTuple

from convalgos.core.element_types import FLOAT8_DTYPES, INTEGERS
from convalgos.core.problem import ConvProblem
from convalgos.gpu.compile.module import Build
from convalgos.gpu.device import GpuMachine, current
from convalgos.gpu.gemm.wgmma_forms import FORMS, PLAIN, RACED, ROW_BYTES, WgmmaForm, WgmmaTile
from convalgos.gpu.gemm.wgmma_integers import WgmmaIntegers, is_padded, with_padding_in_x
from convalgos.gpu.gemm.wgmma_operands import (
    PIECE_BYTES,
    copied_bytes,
    im2col_view,
    packed_bytes,
    packing_blocks,
    step_channels,
)
from convalgos.gpu.gemm.wgmma_plan import WgmmaPlan, all_element_macros, sum_steps, wgmma_build, wgmma_tiles
from convalgos.gpu.launch.algorithm import GpuAlgorithm, exact_sums
from convalgos.gpu.launch.grid import COUNTED, GRID_X, ceil_div, waves
from convalgos.gpu.launch.plan import GpuPlan
from convalgos.gpu.launch.split_k import parts_bytes, splits_of

LEAST_GROUP = 32  # bytes of a group's channels that are worth a step
# Estimates. cuBLAS reaches 0.72 of the tensor peak on an H200; blocks that share no operands a little less.
REACHED = 0.68
L2_BYTES = (
    32  # that a multiprocessor reads in a clock where all read: what published GEMMs of such tiles need
)
FILL = 4  # steps that a tile takes besides its own, to fill the ring and to write: less where blocks overlap
PROMOTED = 0.85  # of the rate of products that wait for the step before, which is added up meanwhile
WGMMA_DTYPES = {
    **{"half": ("float16", "bfloat16"), "tf32": ("float32",), "3xtf32": ("float32",)},
    **{"int8": INTEGERS, "float8": FLOAT8_DTYPES},
}
SUMS = {"half": "float32", "int8": "int32", "float8": "float32"}  # what they must be asked for; else TF32
PEAKS = {"half": "float16", "int8": "int8", "float8": "float8_e4m3fn"}  # that they work at; else that of TF32

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
        return dict.fromkeys(self.dtypes, (SUMS.get(self.math, "tf32"),))

    @property
    def terms(self) -> int:
        """Products that make up one."""
        return 3 if self.math == "3xtf32" else 1

    def builds(self) -> Iterable[Build]:
        return [
            wgmma_build(*how, self.form) for how in product(all_element_macros(self.dtypes), self.form.tiles)
        ]

    def variants(self, problem: ConvProblem) -> Iterable[GpuAlgorithm]:
        """The other forms: until a device has decided, they are only measured."""
        raced = not self.form.name and not problem.is_empty and problem.itemsize > 1
        return [replace(self, form=form) for form in RACED] if raced else []

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem):
            return reason
        if problem.is_empty:
            return None
        filled = problem.w_shape[1] * problem.itemsize
        if problem.groups > 1 and filled < LEAST_GROUP:
            return f"multiplies {ROW_BYTES} bytes of channels at once, of which a group fills only {filled}"
        copied = self.copied(problem)
        for read in dict.fromkeys((problem, copied)):
            if reason := im2col_view(read, self.form.tiles[0], self.terms).why_not():
                return reason
        if math.prod(copied.x_shape[1:]) >= COUNTED:
            return f"counts in 32 bits, but an image with its padding has {COUNTED} elements or more"
        line = problem.gemm_n if problem.layout == "channels_last" else math.prod(problem.spatial_out)
        if self.form.bulk and line * problem.itemsize % PIECE_BYTES:
            return f"writes lines of whole {PIECE_BYTES} bytes, not of {line * problem.itemsize}"
        machine = current().figures
        tile, splits, _ = geometry(self, problem, machine)
        if (needed := self.form.shared_bytes(tile)) > machine.block_shared_bytes:
            return f"needs {needed} bytes of shared memory in a block, more than the device has"
        if max(wgmma_tiles(problem, tile) * splits, packing_blocks(copied)) > GRID_X:
            return "needs more blocks than a launch may have"
        if problem.gemm_m + self.form.cluster * tile.pixels(problem) >= COUNTED:
            return f"counts pixels in 32 bits to the end of a tile, but there are {problem.gemm_m}"
        return None

    def cost(self, problem: ConvProblem, machine: GpuMachine) -> float:
        return geometry(self, problem, machine).seconds + machine.launch

    def seconds(self, problem: ConvProblem, tile: WgmmaTile, splits: int, machine: GpuMachine) -> float:
        """Of all kernels, but for the time to launch the first one."""
        rate = (
            machine.constant("implicit_gemm_wgmma.REACHED", REACHED)
            * machine.tensor_peak(PEAKS.get(self.math, "tf32"))
            * (PROMOTED if self.math == "float8" else 1)
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
        if packed := packed_bytes(problem, self.terms):  # of integers x's zero point is taken to be 0
            seconds += machine.stream(problem.x_bytes + packed) + machine.launch
        if splits > 1:
            seconds += machine.stream(2 * parts_bytes(problem, splits)) + machine.launch
        return seconds

    def workspace_bytes(self, problem: ConvProblem) -> int:
        """x in the order of the copies, then the parts of a split sum, in float32."""
        if problem.is_empty:
            return 0
        found = geometry(self, problem, current().figures)
        return self.copy_bytes(problem, current().takes_wide_box()) + parts_bytes(problem, found.splits)

    def copied(self, problem: ConvProblem) -> ConvProblem:
        """The problem whose x a copy is: that of integers has the padding in it, where there is any."""
        return with_padding_in_x(problem) if self.math == "int8" and is_padded(problem) else problem

    def copy_bytes(self, problem: ConvProblem, wide: bool = True) -> int:
        copied = self.copied(problem)
        if copied is not problem:  # x's zero point, which is known with the filter, may be another than 0
            return copied_bytes(copied, self.terms, wide)
        return packed_bytes(problem, self.terms, wide)

    def error_bound(self, problem: ConvProblem) -> float:
        # Sums of products: a random walk, at twice the error of rounding since tensor cores cut sums off.
        # TF32: 4 * 2^-11 covers both factors rounded to 2^-11, and even cut off at 2^-10; three terms leave
        # out one of 2^-22, and round two more to that.
        # 8-bit floats: each of the four products of a step cuts 33 terms off 13 bits below the largest. In a
        # random walk that comes to 2^-11 of the step's sum; where all signs agree, to 2^-7 at most.
        if self.math == "int8":
            return exact_sums(problem)
        sums = 2**-23 * (8 * math.sqrt(max(1, self.terms * problem.gemm_k)) + 8)
        rounded = {"tf32": 4 * 2**-11, "3xtf32": 2**-20, "float8": problem.eps + 2**-9}
        return sums + rounded.get(self.math, problem.eps)

    def plan(self, problem: ConvProblem) -> GpuPlan:
        found = geometry(self, problem, current().figures)
        return self.planned(problem, found.tile, found.splits)

    def planned(self, problem: ConvProblem, tile: WgmmaTile, splits: int) -> GpuPlan:
        """The plan with this tile, and the sum in so many parts."""
        if self.math == "int8":
            return WgmmaIntegers(problem, self, self.form, tile, splits)
        return WgmmaPlan(problem, self, self.form, tile, splits, self.terms)


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


ALGORITHMS = tuple(Wgmma(name, FORMS.get(name, PLAIN)) for name in WGMMA_DTYPES)
