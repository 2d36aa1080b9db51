"""FFTs that a block computes in its registers and shared memory: their stages, twiddle factors and tiles.

A `Chain` is such a transform, of a tile of (height, 2 width) reals: `fft_passes.cuh` and `fft_fused.cu` say
how it is computed. Of a row of 2n reals, the first n are taken as real parts and the others as imaginary
parts, of n complex points. Products of their spectra wrap around with the other sign (modulo X^2n + 1), and
need no points beside these n.

Source: Cooley and Tukey 1965 (stages); Crandall and Fagin 1994, "Discrete weighted transforms and
large-integer arithmetic"; overlap-save: Oppenheim and Schafer, "Discrete-time signal processing".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.problem import ConvProblem
from convalgos.gpu.compile.module import Build
from convalgos.gpu.device import GpuMachine
from convalgos.gpu.launch.grid import ceil_div
from convalgos.gpu.launch.kernel_records import record_of

CIRCLE = 128  # parts of a circle that the constants of a thread's transforms are
ELEMENT_CODES = {"float32": 0, "float16": 1, "bfloat16": 2}  # of a tile's elements, as in fft_tiles.cuh
ISSUED = 0.5  # of the instructions that a multiprocessor could issue; estimate
PREPARE_BYTES = 1 << 28  # of filters whose taps are spread over tiles at a time
LATENCY = 1e-6  # seconds until a block's first loads have come, and its last stores are gone; estimate

# --- stages ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chain:
    """A transform of height x width points, in stages of `radices` points, first those along the height."""

    height: int
    width: int
    radices: tuple[int, ...]
    threads: int  # of a block
    resident: int  # blocks that the registers of a multiprocessor hold

    @property
    def points(self) -> int:
        return self.height * self.width

    @property
    def reals(self) -> int:
        """Of a row of a tile."""
        return 2 * self.width

    @property
    def shared_bytes(self) -> int:
        """One point is left out after each 16, or as many as the last stage has, as in fft_fused.cu."""
        return 8 * (self.points + self.points // max(16, self.radices[-1]))

    def build(self, source: str, *, weighted: bool, **more: int) -> Build:
        """Of one of its programs.

        Args:
            weighted: the transform along the width, as for tiles; not for rows, whose columns were weighted.
        """
        return Build.of(
            source,
            HEIGHT=self.height,
            WIDTH=self.width,
            RADICES=",".join(map(str, self.radices)),
            THREADS=self.threads,
            RESIDENT=self.resident,
            WEIGHTS=int(weighted),
            **more,
            COSINES=cosines(),
        )

    def tables(self, weighted: bool) -> np.ndarray:
        """(factors,) complex64 of all stages, one behind the other; `weighted` as for the build."""
        tables, span = [], self.points
        for radix in self.radices:
            inner = self.width if span > self.width else 1
            if span // radix > inner:
                table = factors(radix, span // radix // inner, weighted and span == self.width)
                tables.append(table.ravel())
            span //= radix
        return np.concatenate([*tables, np.zeros(1, np.complex64)])  # of one stage alone there are none

    def slots(self) -> float:
        """Instructions of a point, there and back, with reading x and writing y; counted in the code."""
        return 6 * math.log2(self.points) + 7 * len(self.radices) + 20


CHAINS = (
    Chain(1, 1024, (32, 32), 32, 16),
    Chain(1, 2048, (16, 16, 8), 128, 5),
    Chain(1, 4096, (16, 16, 16), 256, 3),
    Chain(1, 8192, (32, 16, 16), 256, 2),
    Chain(1, 16384, (32, 32, 16), 512, 1),
)
PLANE_CHAINS = (
    Chain(32, 32, (32, 32), 32, 12),
    Chain(64, 32, (8, 8, 32), 64, 6),
    Chain(128, 64, (32, 4, 4, 16), 256, 2),
    Chain(128, 128, (32, 4, 8, 16), 512, 1),
)


@cache
def cosines() -> str:
    """Those of a quarter of the circle, as a list in C."""
    quarter = CIRCLE // 4
    exact = [math.cos(math.tau * k / CIRCLE) for k in range(quarter)]
    return ",".join(f"{float(np.float32(c))!r}f" for c in (*exact, 0.0))


def factors(radix: int, steps: int, weighted: bool) -> np.ndarray:
    """(rows, steps) complex64: what the results of a stage are multiplied by, at each of its places.

    Rows are results 0 (where weighted) or 1 to `fine` - 1, then results fine, 2 fine, ... without the weight;
    the factor of a result between them is a product of two. Computed in float64.
    """
    fine = 8 if radix > 16 else min(radix, 4)
    results = [k - weighted / 4 for k in range(0 if weighted else 1, fine)]
    results += [float(k) for k in range(fine, radix, fine)]
    angles = -math.tau / (radix * steps) * np.outer(results, np.arange(steps))
    table: np.ndarray = np.exp(1j * angles).astype(np.complex64)
    return table


# --- tiles -----------------------------------------------------------------------------------

# `Tiling` of fft_tiles.cuh.
TILING = np.dtype(
    [
        *((name, np.int32, 2) for name in ("tiles", "step", "lead", "positions")),
        *((name, np.int32) for name in ("first", "upper_in", "upper_out", "element", "channels", "filters")),
    ]
)


class BlockTiling(NamedTuple):
    """Tiles of (height, reals) over the last two dimensions; pairs are along (h, w)."""

    height: int
    reals: int
    tiles: tuple[int, int]  # of a plane
    step: tuple[int, int]  # positions of stride 1 that a tile computes
    lead: tuple[int, int]  # place (0, 0) of a tile is x at (tile * step - lead)
    positions: tuple[int, int]  # of stride 1, from the first to the last output
    first: int  # column of a tile's first output
    shift: int  # of the filter along w, which turns it around where it is not 0
    upper_in: bool  # whether the columns of imaginary parts hold input
    upper_out: bool  # and outputs

    def count(self, problem: ConvProblem) -> int:
        """All tiles of a problem."""
        p = problem.as_3d
        return p.N * p.K * p.spatial_out[0] * math.prod(self.tiles)

    def record(self, problem: ConvProblem) -> np.ndarray:
        """(1,) As kernels read it, by value."""
        more = {
            "element": ELEMENT_CODES[problem.dtype],
            "channels": problem.w_shape[1],
            "filters": problem.gemm_n,
        }
        names = TILING.names or ()
        return record_of(TILING, {n: more[n] if n in more else getattr(self, n) for n in names})


def block_tiling(problem: ConvProblem, height: int, reals: int) -> BlockTiling | None:
    """Tiles of a size over a problem whose kernel has one plane, or None where its kernel is larger.

    With a height of 1 for kernels of one row: the tiles of a row of outputs.
    """
    p = problem.as_3d
    _, reach_h, reach_w = p.kernel_extent
    if p.kernel[0] > 1 or reach_h > height or reach_w > reals:
        return None
    positions_h, positions_w = ((o - 1) * s + 1 for o, s in zip(p.spatial_out[1:], p.stride[1:], strict=True))
    step_h = p.stride[1] if height == 1 else min(positions_h, height - reach_h + 1)
    (low_h, _), (low, high) = p.padding[1:]
    size = p.spatial[2]
    half = reals // 2
    # All of x and what it reaches fit a tile: x comes first, where its padding would be, so that outputs of a
    # causal filter need no more places than x, and both keep out of the upper half.
    if max(low, high) < reach_w and size + reach_w - 1 <= reals:
        first, lead, shift, step_w = reach_w - 1 - low, 0, reach_w - 1, positions_w
        upper_in, upper_out = size > half, first + positions_w > half
    else:
        first, lead, shift, step_w = 0, low, 0, min(positions_w, reals - reach_w + 1)
        upper_in, upper_out = True, step_w > half
    return BlockTiling(
        height,
        reals,
        (ceil_div(positions_h, step_h), ceil_div(positions_w, step_w)),
        (step_h, step_w),
        (low_h, lead),
        (positions_h, positions_w),
        first,
        shift,
        upper_in,
        upper_out,
    )


def spread_filters(xp: Any, w: Any, problem: ConvProblem, tiles: BlockTiling) -> Any:
    """(filters, height, reals) float32: the reals whose spectra multiply those of x.

    A tap at place k contributes x to the output k before it: it is -k around the tile, where the sign changes
    along w; or, with a shift, at shift - k. Divided by the number of points, as transforms there and back
    multiply by it.

    Args:
        w: (filters, *kernel), one for each pair of filter and channel.
    """
    p = problem.as_3d
    rows, columns = (d * np.arange(r) for d, r in zip(p.dilation[1:], p.kernel[1:], strict=True))
    columns = tiles.shift - columns
    signs = np.where(columns < 0, -1.0, 1.0)  # (S,)
    places = -rows[:, None] % tiles.height * tiles.reals + columns % tiles.reals  # (R, S)
    scale = np.broadcast_to(signs * 2 / (tiles.height * tiles.reals), places.shape).astype(np.float32)
    spread = xp.zeros((len(w), tiles.height * tiles.reals), np.float32)
    taps = w.reshape(len(w), -1).astype(np.float32) * xp.asarray(scale.ravel())  # (filters, R * S)
    spread[:, xp.asarray(places.ravel())] = taps
    return spread


def filter_problem(filters: int, tiles: BlockTiling) -> tuple[ConvProblem, BlockTiling]:
    """The planes of `filter_tiles` as an input, and the one tile that each is."""
    size = (tiles.height, tiles.reals)
    problem = ConvProblem((1, filters, *size), (filters, 1, 1, 1), groups=filters)
    whole = BlockTiling(*size, (1, 1), size, (0, 0), size, 0, 0, True, True)
    return problem, whole


# --- the figures for the selector --------------------------------------------------------------


def spectral_error(points: int) -> float:
    # A transform of n elements adds errors of about 0.6 eps sqrt(log2 n) of the root mean square of its
    # result (Schatzman 1996); here there and back, with a filter's beside it. log2(n) + 8 leaves room for the
    # largest of many elements.
    return float(np.finfo(np.float32).eps) * (math.log2(points) + 8)


def instructions(points: float, slots: float, machine: GpuMachine) -> float:
    """Seconds of points of `slots` instructions each, on all multiprocessors."""
    return (
        points * slots / (machine.peak("float32") / 2 * machine.constant("spectral/block_fft.ISSUED", ISSUED))
    )


def block_seconds(blocks: int, chain: Chain, slots: float, machine: GpuMachine) -> float:
    """Of blocks that are bound by their instructions, `slots` for each point."""
    busy = ceil_div(blocks, machine.multiprocessors) * machine.multiprocessors
    return instructions(busy * chain.points, slots, machine) + LATENCY


def resident(chain: Chain, machine: GpuMachine, channels: int = 1) -> bool:
    """Whether a block fits the device; sums over several channels lie beside its points."""
    return block_bytes(chain, channels) <= machine.block_shared_bytes


def block_bytes(chain: Chain, channels: int) -> int:
    """Shared memory of a block, as laid out in fft_fused.cu."""
    return chain.shared_bytes * (2 if channels > 1 else 1)
