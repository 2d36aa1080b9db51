"""FFT convolution on the GPU by cuFFT: of whole planes, or of tiles that overlap (overlap-save).

Correlation is a product of spectra: transforms of C + K planes (or tiles) replace R*S products per output.
Steps of a pass:
1. `pack` copies the tiles of x, padded with zeros.
2. cuFFT transforms them.
3. `multiply` sums, at each frequency, the products over the channels of a group.
4. cuFFT transforms the sums back.
5. `unpack` picks the outputs, and runs the epilogue.

Stride picks from the positions of stride 1, dilation spreads the filter. Wins with kernels of hundreds of
taps: long 1-D filters, large depthwise kernels.

Source: Mathieu, Henaff and LeCun 2014, arXiv:1312.5851; Vasilache et al. 2015, arXiv:1412.7580; overlap-save:
Oppenheim and Schafer, "Discrete-time signal processing".
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from convalgos.core.problem import ConvProblem
from convalgos.gpu.compile.module import ELEMENTS, Build
from convalgos.gpu.device import GpuMachine, current
from convalgos.gpu.launch.algorithm import GpuAlgorithm
from convalgos.gpu.launch.grid import GRID_X, GRID_YZ, NO_BIAS, GridLaunch, ceil_div
from convalgos.gpu.launch.kernel_records import conv_record, record_of
from convalgos.gpu.launch.plan import PASS_BYTES, GpuPlan
from convalgos.gpu.spectral.cufft_tiles import CufftTiling, overlapping_tiling, whole_tiling

MULTIPLY_ROWS, MULTIPLY_FILTERS = 2, 4  # of a thread, as in fft.cu
TILE_FACTORS = (2, 4, 8)  # times the kernel's reach: lengths of tiles that are tried
TRANSFORM_PASSES = 2.5  # times that a transform of one dimension goes over its data; cuFFT, estimate
KERNELS = 8  # of a pass: three of ours, and two or three for each transform; estimate
L2_SPEED = 1.3  # times the memory's bandwidth that spectra are read with again and again; H200, estimate

# --- shapes ----------------------------------------------------------------------------------

# `Params` of fft.cu.
CUFFT_PARAMS = np.dtype(
    [
        ("size", np.int64),
        ("frequencies", np.int64),
        ("rows", np.int32),
        ("tiles", np.int32, 3),
        ("length", np.int32, 3),
        ("step", np.int32, 3),
    ]
)


class CufftPass(NamedTuple):
    """Images and groups that are computed at once: from first to first + count."""

    first_image: int
    images: int
    first_group: int
    groups: int


def real(problem: ConvProblem) -> np.dtype:
    """What tiles are made of: float32 but for float64."""
    return np.dtype("float64" if problem.dtype == "float64" else "float32")


def pass_bytes(problem: ConvProblem, tiles: CufftTiling) -> int:
    """Of an image of a group: tiles of x or y, both spectra, and as much as one of them for cuFFT."""
    channels, filters = problem.w_shape[1], problem.gemm_n
    spectra = 2 * tiles.frequencies * (channels + filters + max(channels, filters))
    return real(problem).itemsize * tiles.per_image * (spectra + tiles.reals * max(channels, filters))


def per_pass(problem: ConvProblem, tiles: CufftTiling) -> tuple[int, int]:
    """(images, groups) as many as fit PASS_BYTES: several images only with all groups."""
    each = pass_bytes(problem, tiles)
    groups = min(problem.groups, max(1, PASS_BYTES // each))
    images = min(problem.N, max(1, PASS_BYTES // (each * groups)))
    return (images if groups == problem.groups else 1), groups


def cufft_passes(problem: ConvProblem, tiles: CufftTiling) -> list[CufftPass]:
    images, groups = per_pass(problem, tiles)
    return [
        CufftPass(n, min(images, problem.N - n), g, min(groups, problem.groups - g))
        for n in range(0, problem.N, images)
        for g in range(0, problem.groups, groups)
    ]


# --- the figures for the selector --------------------------------------------------------------


@dataclass(frozen=True)
class Fft(GpuAlgorithm):
    overlap: bool = False
    family: ClassVar[str] = "gpu.fft"
    spreads_nan: ClassVar[bool] = True

    @property
    def variant(self) -> str:
        return "overlap" if self.overlap else "whole"

    def builds(self) -> Iterable[Build]:
        for dtype in self.dtypes:
            yield Build.of("fft.cu", element_t=ELEMENTS[dtype])

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem) or current().lacks("cufft"):
            return reason
        if problem.is_empty:
            return None
        tiles = self.tiling(problem, current().figures)
        if self.overlap and tiles.per_image == 1:
            return "would cut nothing: the input is not longer than a tile"
        if problem.groups * ceil_div(problem.gemm_n, MULTIPLY_FILTERS) > GRID_YZ:
            return f"multiplies at most {GRID_YZ} blocks of filters at once"
        images, groups = per_pass(problem, tiles)
        channels = groups * max(problem.w_shape[1], problem.gemm_n)
        if images * tiles.per_image * channels * tiles.reals > 256 * GRID_X:
            return "needs more blocks than a launch may have"
        return None

    def tiling(self, problem: ConvProblem, machine: GpuMachine) -> CufftTiling:
        return best_overlapping(problem, machine) if self.overlap else whole_tiling(problem)

    def cost(self, problem: ConvProblem, machine: GpuMachine) -> float:
        tiles = self.tiling(problem, machine)
        return (
            _seconds(problem, tiles, machine) + KERNELS * len(cufft_passes(problem, tiles)) * machine.launch
        )

    def prepare_cost(self, problem: ConvProblem, machine: GpuMachine) -> float:
        tiles = self.tiling(problem, machine)
        spectra = 2 * real(problem).itemsize * problem.K * problem.w_shape[1] * tiles.frequencies
        return 5 * machine.launch + 6 * machine.stream(spectra)

    def workspace_bytes(self, problem: ConvProblem) -> int:
        if problem.is_empty:
            return 0
        tiles = self.tiling(problem, current().figures)
        images, groups = per_pass(problem, tiles)
        return images * groups * pass_bytes(problem, tiles)

    def error_bound(self, problem: ConvProblem) -> float:
        # An FFT of n elements adds errors of about 0.6 eps sqrt(log2 n) of the root mean square of its result
        # (Schatzman 1996); here two forward transforms, a product and the way back. 4 log2(n) + 8 leaves room
        # for the largest of many elements.
        n = 1 if problem.is_empty else self.tiling(problem, current().figures).reals
        eps = float(np.finfo(real(problem)).eps)
        return eps * (4 * math.log2(n + 1) + 8) + (problem.itemsize == 2) * problem.eps

    def plan(self, problem: ConvProblem) -> GpuPlan:
        return FftPlan(problem, self)


@lru_cache(512)
def best_overlapping(problem: ConvProblem, machine: GpuMachine) -> CufftTiling:
    """The fastest tiles by prediction."""
    tried = [overlapping_tiling(problem, factor) for factor in TILE_FACTORS]
    return min(tried, key=lambda t: _seconds(problem, t, machine))


def _seconds(problem: ConvProblem, tiles: CufftTiling, machine: GpuMachine) -> float:
    """Transforms and packing are bound by memory; so is the product, unless there are many channels."""
    p, rows = problem, problem.N * tiles.per_image
    dims = sum(n > 1 for n in tiles.length)
    spectra = 2 * real(p).itemsize * tiles.frequencies
    x, y, w = rows * p.C * spectra, rows * p.K * spectra, p.K * p.w_shape[1] * spectra
    moved = p.x_bytes + p.y_bytes + (2 + TRANSFORM_PASSES * dims) * (x + y)
    again = ceil_div(p.gemm_n, MULTIPLY_FILTERS) * x + ceil_div(rows, MULTIPLY_ROWS) * w + y
    flops = 8 * rows * p.K * p.w_shape[1] * tiles.frequencies
    multiply = max(
        flops / (0.6 * machine.peak(p.dtype)), again / (L2_SPEED * machine.bandwidth), machine.stream(w)
    )
    return machine.stream(moved) + multiply


# --- the plan ----------------------------------------------------------------------------------


class LaunchedPass(NamedTuple):
    """A pass with all that it is launched with; slices are of flat x and y, of w and of bias."""

    x: slice
    y: slice
    filters: slice
    packed: tuple[int, ...]  # tiles of x
    rows: int
    conv: dict[bool, Any]  # by whether there is an activation
    params: Any
    pack: GridLaunch
    multiply: GridLaunch
    unpack: GridLaunch


class FftPlan(GpuPlan):
    uncapturable = "plans of cuFFT work in memory that other calls on the stream use, too"

    def __init__(self, problem: ConvProblem, algorithm: Fft):
        super().__init__(problem, algorithm, algorithm.workspace_bytes(problem))
        self._tiling = algorithm.tiling(problem, self.device.figures)
        self._real = real(problem)
        self._complex = np.dtype("complex64" if self._real == "float32" else "complex128")
        self._transforms = self.device.transforms(self._tiling.transformed, self._real.name)
        self._steps = [self._step(part) for part in cufft_passes(problem, self._tiling)]

    def _step(self, part: CufftPass) -> LaunchedPass:
        p, tiles = self.problem, self._tiling
        channels, filters = part.groups * p.w_shape[1], part.groups * p.gemm_n
        rows = part.images * tiles.per_image
        packed = (rows, channels, *tiles.length)
        size, outputs = math.prod(packed), part.images * filters * math.prod(p.spatial_out)
        sizes = {"size": size, "frequencies": tiles.frequencies, "rows": rows, **tiles._asdict()}
        params = record_of(CUFFT_PARAMS, sizes)
        record = {relu: conv_record(p, relu) for relu in (False, True)}
        for made in record.values():  # the strides are those of all
            made["images"], made["groups"] = part.images, part.groups
            made["channels"], made["filters"] = channels, filters
        whole = record[False][0]
        first_filter = part.first_group * p.gemm_n
        x = part.first_image * whole["x_image"] + part.first_group * p.w_shape[1] * whole["x_channel"]
        y = part.first_image * whole["y_image"] + first_filter * whole["y_channel"]
        module = Build.of("fft.cu", element_t=ELEMENTS[p.dtype])
        blocks = part.groups * ceil_div(p.gemm_n, MULTIPLY_FILTERS)
        grid = (ceil_div(tiles.frequencies, 128), blocks, min(GRID_YZ, ceil_div(rows, MULTIPLY_ROWS)))
        return LaunchedPass(
            slice(int(x), None),
            slice(int(y), None),
            slice(first_filter, first_filter + filters),
            packed,
            rows,
            {relu: self.by_value(made) for relu, made in record.items()},
            self.by_value(params),
            self.launch(module, "pack", (ceil_div(size, 256),), 256),
            self.launch(module, "multiply", grid, 128),
            self.launch(module, "unpack", (ceil_div(outputs, 256),), 256),
        )

    def workspace(self) -> Any:
        """Taken step by step, so that no more is held than a step needs."""
        return None

    def prepare_filter(self, w: Any) -> Any:
        """(K * C/groups, frequencies) complex: conjugate spectra, over the number of points of a tile."""
        xp, p, tiles = self.device.xp, self.problem.as_3d, self._tiling
        w = w.reshape(-1, *p.kernel)
        spectra = xp.empty((len(w), tiles.frequencies), self._complex)
        taps = tuple(slice(0, e, d) for e, d in zip(p.kernel_extent, p.dilation, strict=True))
        most = max(1, PASS_BYTES // (4 * self._real.itemsize * tiles.reals))
        for first in range(0, len(w), most):
            some = w[first : first + most]
            spread = xp.zeros((len(some), *tiles.length), self._real)
            spread[(slice(None), *taps)] = some.astype(self._real) / tiles.reals
            self._transforms.forward(spread.reshape(-1, *tiles.transformed), spectra[first : first + most])
        return xp.conj(spectra)

    def run(self, x: Any, w: Any, bias: Any, activation: str | None, y: Any, workspace: Any) -> None:
        x, y = x.reshape(-1), y.reshape(-1)
        for step in self._steps:
            self._run_step(step, x, w, bias, activation, y)

    def _run_step(
        self, step: LaunchedPass, x: Any, w: Any, bias: Any, activation: str | None, y: Any
    ) -> None:
        xp, tiles, conv = self.device.xp, self._tiling, step.conv[activation is not None]
        rows, channels, *_ = step.packed
        packed = xp.empty((rows, channels, *tiles.transformed), self._real)
        step.pack(x[step.x], packed, conv, step.params)
        spectra = xp.empty((rows, channels, tiles.frequencies), self._complex)
        self._transforms.forward(packed, spectra)
        del packed  # before the products, which may take its place
        filters = step.filters.stop - step.filters.start
        products = xp.empty((rows, filters, tiles.frequencies), self._complex)
        step.multiply(spectra, w[step.filters.start * self.problem.w_shape[1] :], products, conv, step.params)
        del spectra
        back = xp.empty((rows, filters, *tiles.transformed), self._real)
        self._transforms.backward(products, back)
        step.unpack(back, NO_BIAS if bias is None else bias[step.filters], y[step.y], conv, step.params)


ALGORITHMS = (Fft(), Fft(overlap=True))
