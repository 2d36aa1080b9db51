"""Depthwise convolution by Fourier transforms of tiles of planes, which stay in the second cache.

A tile of H x W elements gives the (H - r + 1) x (W - s + 1) outputs that the wrap-around of its transform
leaves whole (overlap-save in both dimensions). Reals are transformed along columns first, where vectors hold
neighbours of a row, and the H / 2 rows of complex values that this leaves along rows, where vectors hold
frequencies of columns; there each row is multiplied by the filter's and transformed back at once, in the
first cache. So a tile takes three passes over the second cache, whatever the kernel. Wins on single images
and depthwise maps, with kernels from about 9x9 up.

Sources: Stockham 1966, "High-speed convolution and correlation", of blocks; Cooley, Lewis and Welch 1970,
"The fast Fourier transform algorithm: programming considerations", of two real rows as a complex one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar, NamedTuple

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.allocator import whole_lines
from convalgos.core.boundaries import BOUNDARIES, OUTSIDE, ZERO, fills_alike, source_indices
from convalgos.core.machine import Machine, cache_sizes
from convalgos.core.plan import Plan, numpy_dtype
from convalgos.core.prepared_filter import FilterForm
from convalgos.core.problem import ConvProblem
from convalgos.cpu.runtime.plan import CALL, KernelPlan
from convalgos.cpu.runtime.threads import cached_by_threads, plan_threads
from convalgos.cpu.spectral import plane_transforms as transforms
from convalgos.cpu.spectral.errors import error_of_transforms
from convalgos.cpu.spectral.plane_driver import PLANE_FIELDS, convolve_tiles
from convalgos.cpu.spectral.plane_transforms import POINTS, turns_of
from convalgos.cpu.vectors import simd

PARTS = 2, 4, 6, 8, 12, 16  # by POINTS: the sides of tiles
FILTER_LIMIT = 256 << 20  # bytes of all spectra of filters
# Of `paced_cycles` of a thread, for a vector of a tile and each doubling of its elements, and the share that
# is added as rows of frequencies with their copy outgrow the first cache; Zen 4
DOUBLING, BEYOND_L1 = 2.3, 0.38
BEGIN = 1000.0  # cycles to begin a tile
SPECTRUM_CALL = 5e-5  # seconds to transform any filter,
SPECTRUM_RATE = 1.5e8  # and bytes of spectra in a second; Zen 4
TWO_ROWS = 1.0  # eps of error more than others tell: the first row of a spectrum is two real ones

# --- shapes ----------------------------------------------------------------------------------


class PlaneAxis(NamedTuple):
    """A dimension of the map in tiles of `length` elements, of which each gives `step` outputs."""

    length: int
    step: int
    out: int

    @property
    def tiles(self) -> int:
        return -(-self.out // self.step)


class PlaneCut(NamedTuple):
    """Tiles of all planes; both axes of the plane."""

    rows: PlaneAxis
    columns: PlaneAxis
    tasks: int
    cycles: float  # of a thread, of all its tiles
    units: int  # tiles of a thread


def _tiled_axis(p: ConvProblem, dimension: int, length: int, of_whole: PlaneAxis | None) -> PlaneAxis | None:
    """A dimension in tiles of a length; None where the kernel leaves no outputs of them.

    of_whole: where the map is a part of another one, that one in tiles of this length.
    """
    size, out, extent = p.spatial[dimension], p.spatial_out[dimension], p.kernel_extent[dimension]
    fits = p.boundary[dimension] == ZERO and max(size + max(p.padding[dimension]), out, extent) <= length
    if fits and (of_whole is None or of_whole.tiles == 1):
        return PlaneAxis(length, out, out)  # what goes round are zeros, of both borders
    # Whatever the size, as parts of a map have the same tiles then; equal steps, or steps of whole vectors,
    # save nothing.
    return None if extent > length else PlaneAxis(length, length - extent + 1, out)


@cached_by_threads(256)
def _cut(problem: ConvProblem, of_whole: tuple[PlaneAxis, ...]) -> PlaneCut | None:
    """The tiles that are predicted to take the least time; None where the kernel is larger than all.

    of_whole: the axes of the map that this is a part of, or ().
    """
    p, lanes = problem, simd.lanes(problem.itemsize)
    planes, best = p.N * p.K, None
    known = of_whole or (None, None)
    sides = [PARTS if axis is None else (axis.length // POINTS,) for axis in known]
    for high, wide in product(*sides):
        rows = _tiled_axis(p, 0, POINTS * high, known[0])
        columns = _tiled_axis(p, 1, POINTS * wide, known[1])
        if rows is None or columns is None or POINTS * high // 2 % lanes:
            continue
        tasks = max(1, min(plan_threads(), planes * rows.tiles * columns.tiles))
        units = -(-planes * rows.tiles * columns.tiles // tasks)  # of the busiest task
        cycles = units * _tile_cycles(rows.length, columns.length, lanes)
        if best is None or cycles < best.cycles:
            best = PlaneCut(rows, columns, tasks, cycles, units)
    return best


def _tile_cycles(height: int, width: int, lanes: int) -> float:
    in_rows = 4 * width * simd.vector_bytes()  # of a group of frequencies, and of what is made of them
    beyond = 1 + BEYOND_L1 * max(0.0, 1 - cache_sizes()[0] / in_rows)
    return BEGIN + height * width / lanes * DOUBLING * math.log2(height * width) * beyond


# --- plan ------------------------------------------------------------------------------------


class PlanePlan(KernelPlan):
    """Tiles of planes, one after the other in scratch that stays in the second cache."""

    finishes = strided_batch = rows_apart = True

    def __init__(self, problem: ConvProblem, algorithm: FftPlanes, cut: PlaneCut):
        p, size, lanes = problem, problem.itemsize, simd.lanes(problem.itemsize)
        self._cut = cut
        height, width = cut.rows.length, cut.columns.length
        parts_h, parts_w = height // POINTS, width // POINTS
        dtype, layout = numpy_dtype(p.dtype), _scratch(cut, size)
        values: dict[str, int | np.ndarray] = {
            "planes": p.N * p.K, "channels": p.C, "filters": p.K, "tiles_h": cut.rows.tiles,
            "tiles_w": cut.columns.tiles, "height": height, "width": width, "step_h": cut.rows.step,
            "step_w": cut.columns.step, "out_h": p.spatial_out[0], "out_w": p.spatial_out[1],
            **_steps("x", p.x_shape, size), **_steps("y", p.y_shape, size),
            "size_w": p.spatial[1], "low_w": p.padding[1][0], "row_sources": _sources(p, 0, cut.rows),
            "column_sources": _sources(p, 1, cut.columns), "borders": int(not p.is_zero_padded),
            "fill": np.full(width, p.fill_value, dtype),
            "w_step": _spectrum_elements(cut, lanes) * size, "group": _group(cut, size),
            "groups": height // 2 // lanes, "turns_h": np.array(turns_of(parts_h), dtype),
            "turns_w": np.array(turns_of(parts_w), dtype),
            "forward": transforms.columns_to_spectrum(size, lanes, parts_h),
            "multiply": transforms.multiply_spectrum(size, lanes, parts_w),
            "backward": transforms.spectrum_to_columns(size, lanes, parts_h),
            "tasks": cut.tasks, **layout,
        }  # fmt: skip
        steps = [(convolve_tiles(size), cut.tasks)]
        super().__init__(p, algorithm, PLANE_FIELDS, values, steps, cut.tasks * layout["scratch_stride"])

    def filter_form(self) -> FilterForm:
        lengths = self._cut.rows.length, self._cut.columns.length
        return FilterForm.of(self.problem, self.problem.dilation, lengths, simd.lanes(self.problem.itemsize))

    def _set_steps(self, arguments: Any, name: str, array: np.ndarray) -> None:
        for axis, step in zip(("n", "plane", "row"), array.strides[:3], strict=True):
            setattr(arguments, f"{name}_{axis}", step)

    def pack_filter(self, w: np.ndarray) -> np.ndarray:
        """(K, elements): conjugated spectra, as `multiply_frequencies` reads them."""
        p, lanes = self.problem, simd.lanes(self.problem.itemsize)
        height, width = self._cut.rows.length, self._cut.columns.length
        taps = np.zeros((p.K, *p.kernel_extent))
        taps[:, :: p.dilation[0], :: p.dilation[1]] = w[:, 0]
        along_columns = np.fft.rfft(taps, height, axis=1)  # (K, height / 2 + 1, columns of the kernel)
        spectra = np.conj(np.fft.fft(along_columns, width)) / (height * width)  # (K, height / 2 + 1, width)
        ends = spectra[:, 0], spectra[:, height // 2]  # of the two real rows
        first = np.zeros((2, p.K, lanes, width), complex)  # factors of a spectrum, and of its mirror image
        first[0] = spectra[:, :lanes]
        first[0, :, 0], first[1, :, 0] = (ends[0] + ends[1]) / 2, (ends[0] - ends[1]) / 2
        first = np.stack([first.real, first.imag], 1)  # (2, 2, K, lanes, width)
        others = spectra[:, lanes : height // 2].reshape(p.K, -1, lanes, width // POINTS, POINTS)
        others = np.stack([others.real, others.imag])  # (2, K, groups, lanes, S, 16)
        packed = [first.transpose(2, 4, 0, 1, 3), others.transpose(1, 2, 5, 4, 0, 3)]
        flat = np.concatenate([part.reshape(p.K, -1) for part in packed], 1)
        return flat.astype(numpy_dtype(p.dtype))


def _steps(name: str, shape: tuple[int, ...], size: int) -> dict[str, int]:
    """Bytes from one image, plane and row of a whole map to the next."""
    _, c, h, w = shape
    return {f"{name}_n": c * h * w * size, f"{name}_plane": h * w * size, f"{name}_row": w * size}


def _sources(p: ConvProblem, dimension: int, axis: PlaneAxis) -> np.ndarray:
    """(places,) int64: what of x lies at each place of the padded map that tiles read, or OUTSIDE."""
    known = source_indices(p.boundary[dimension], p.spatial[dimension], *p.padding[dimension])
    table = np.full((axis.tiles - 1) * axis.step + axis.length, OUTSIDE, np.int64)
    table[: len(known)] = known[: len(table)]
    return table


def _group(cut: PlaneCut, size: int) -> int:
    """Elements from one group of frequencies to the next: not a power of 2, against set conflicts."""
    return 2 * cut.columns.length * simd.lanes(size) + simd.LINE // size


def _spectrum_elements(cut: PlaneCut, lanes: int) -> int:
    """Of a filter."""
    return cut.rows.length * cut.columns.length + 2 * lanes * cut.columns.length


def _scratch(cut: PlaneCut, size: int) -> dict[str, int]:
    """Where the parts of the scratch of a task begin, behind the table of rows."""
    height, width = cut.rows.length, cut.columns.length
    targets = whole_lines(8 * height)
    copy = 2 * targets
    spectrum = copy + whole_lines(height * width * size + simd.vector_bytes())
    groups = height // 2 // simd.lanes(size)
    end = whole_lines(spectrum + groups * _group(cut, size) * size)
    return {"targets_at": targets, "copy_at": copy, "spectrum_at": spectrum, "scratch_stride": end}


@dataclass(frozen=True)
class FftPlanes(Algorithm):
    """Tiles of the size that is estimated best, or those of a map that it computes a part of."""

    family: ClassVar[str] = "cpu.fft_planes"
    least_prepare: ClassVar[float] = SPECTRUM_CALL
    boundaries: ClassVar[tuple[str, ...]] = BOUNDARIES
    spreads_nan: ClassVar[bool] = True
    of_whole: tuple[PlaneAxis, ...] = ()  # the axes of the map that it computes a part of, in their tiles

    def knows_border(self, problem: ConvProblem) -> bool:
        return super().knows_border(problem) and fills_alike(problem)

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem) or _unsuited(problem):
            return reason
        if problem.is_empty:
            return None
        if self._cut(problem) is None:
            most = POINTS * PARTS[-1]
            return f"has tiles of up to {most}x{most}, and the kernel spans {problem.kernel_extent}"
        if (needed := self.filter_bytes(problem)) > FILTER_LIMIT:
            limit = FILTER_LIMIT >> 20
            return f"the spectra of its filters would take {needed >> 20} MiB, more than the {limit} they may"
        return None

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        p, cut = problem, self._cut(problem)
        assert cut is not None
        begun = CALL + float(machine.launch if cut.tasks > 1 else 0)
        computed = cut.cycles * machine.threads / machine.paced_cycles
        return float(begun + computed + machine.stream(p.x_bytes + p.y_bytes, p.bytes))

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        p = problem
        if _unsuited(p):
            return math.inf
        vectors, smallest = math.prod(p.y_shape) / simd.lanes(p.itemsize), (POINTS * PARTS[0]) ** 2
        computed = vectors * DOUBLING * math.log2(smallest) / machine.paced_cycles
        return CALL + float(computed + machine.stream(p.x_bytes + p.y_bytes, p.bytes))

    def prepare_cost(self, problem: ConvProblem, machine: Machine) -> float:
        return 0.0 if problem.is_empty else SPECTRUM_CALL + self.filter_bytes(problem) / SPECTRUM_RATE

    def filter_bytes(self, problem: ConvProblem) -> int:
        cut, lanes = None if problem.is_empty else self._cut(problem), simd.lanes(problem.itemsize)
        return 0 if cut is None else problem.K * _spectrum_elements(cut, lanes) * problem.itemsize

    def block_starts(self, problem: ConvProblem) -> tuple[int, ...]:
        cut = None if problem.is_empty else self._cut(problem)
        if cut is None:
            return self.granule(problem)
        # That of the whole, also where a part of it is no longer than a tile.
        tiled = [axis.tiles > 1 for axis in self.of_whole or (cut.rows, cut.columns)]
        return tuple(axis.step if of else 1 for axis, of in zip((cut.rows, cut.columns), tiled, strict=True))

    def for_parts(self, problem: ConvProblem) -> Algorithm:
        cut = None if problem.is_empty else self._cut(problem)
        return self if cut is None else replace(self, of_whole=(cut.rows, cut.columns))

    def _cut(self, problem: ConvProblem) -> PlaneCut | None:
        return _cut(problem, self.of_whole)

    def workspace_bytes(self, problem: ConvProblem) -> int:
        cut = None if problem.is_empty else self._cut(problem)
        return 0 if cut is None else cut.tasks * _scratch(cut, problem.itemsize)["scratch_stride"]

    def error_bound(self, problem: ConvProblem) -> float:
        cut = None if problem.is_empty else self._cut(problem)
        elements = 1 if cut is None else cut.rows.length * cut.columns.length
        return error_of_transforms(problem, elements, TWO_ROWS)

    def plan(self, problem: ConvProblem) -> Plan:
        cut = self._cut(problem)
        assert cut is not None
        return PlanePlan(problem, self, cut)


def _unsuited(problem: ConvProblem) -> str | None:
    p = problem
    if p.w_shape[1] != 1:
        return "filters every channel by itself, and here a filter sums over several"
    if p.ndim != 2:
        return "cuts planes into tiles, of two dimensions"
    if p.layout != "channels_first":
        return "reads rows of channels_first maps"
    if max(p.stride) > 1:
        return "computes every output of a plane, without a stride"
    if p.is_pointwise:
        return "sums products of several taps: one needs no transform, which would round"
    return None


ALGORITHMS = (FftPlanes(),)
