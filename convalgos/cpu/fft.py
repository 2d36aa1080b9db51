"""Convolution through the FFT: blocks of the map transformed, multiplied by the filter's spectrum, and back.

y = IFFT(sum_c FFT(x_c) * conj(FFT(w_c))): the work hardly depends on the size of the kernel, which makes it
the way for long filters with few channels (long causal depthwise, FIR filters, large images), where nothing
else comes near. `fftw` and `mkl` transform whole maps; `overlap` cuts them into blocks that overlap by the
kernel (overlap-save), which keeps the transforms in the cache and lets threads share one map.

A stride s splits the map into s phases that are summed like channels, so that nothing is computed only to be
thrown away; a dilation puts zeros between the taps, before their spectrum is taken.

Sources: Stockham 1966, "High-speed convolution and correlation"; Vasilache et al. 2015, "Fast convolutional
nets with fbfft", arXiv:1412.7580.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from convalgos.core.algorithm import Algorithm
from convalgos.core.boundaries import BOUNDARIES, fills_alike
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem
from convalgos.cpu.spectral import cost as spectral_cost
from convalgos.cpu.spectral import engines
from convalgos.cpu.spectral.blocking import FftBlocking, chunk_schedule
from convalgos.cpu.spectral.errors import spectra_error
from convalgos.cpu.spectral.plan import SpectraPlan


@dataclass(frozen=True)
class Fft(Algorithm):
    """`overlap` cuts maps into blocks, with FFTs of `length` or of the lengths that are estimated best.

    of_whole: those of the map that it computes a part of, for each dimension of the 3-D view; None where that
        is not cut.
    """

    family: ClassVar[str] = "cpu.fft"
    least_prepare: ClassVar[float] = spectral_cost.SPECTRUM_CALL
    exchanges: ClassVar[bool] = True
    spreads_nan: ClassVar[bool] = True
    boundaries: ClassVar[tuple[str, ...]] = BOUNDARIES
    bounded_with: ClassVar[str] = "spectra of maps"
    engine: str = "fftw"
    overlap: bool = False
    length: int | None = None
    of_whole: tuple[int | None, ...] = ()

    @property
    def variant(self) -> str:
        if not self.overlap:
            return self.engine
        return "overlap" if self.length is None else f"overlap.{self.length}"

    @property
    def library(self) -> str:
        """The engine that transforms. Blocks go through FFTW, or through MKL where FFTW is left out."""
        return (
            "mkl"
            if self.overlap and engines.why_not_engine("fftw") and not engines.why_not_engine("mkl")
            else self.engine
        )

    def cut(self, problem: ConvProblem) -> FftBlocking:
        if self.of_whole:
            return spectral_cost.in_lengths(problem, self.of_whole)
        return (
            spectral_cost.blocked(problem, self.length) if self.overlap else spectral_cost.one_block(problem)
        )

    def knows_border(self, problem: ConvProblem) -> bool:
        return fills_alike(problem)

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem) or engines.why_not_engine(self.library):
            return reason
        if problem.is_empty:
            return None
        cut = self.cut(problem)
        if cut.filter_bytes > spectral_cost.FILTER_LIMIT:
            needed, limit = cut.filter_bytes >> 20, spectral_cost.FILTER_LIMIT >> 20
            return f"the filter's spectrum would take {needed} MiB, more than the {limit} it may"
        if self.overlap and not self.of_whole and cut.is_whole:
            return "no dimension is long enough to be cut: one block holds the whole map, as in cpu.fft.fftw"
        return None

    def variants(self, problem: ConvProblem) -> Iterator[Algorithm]:
        if not self.searches or problem.is_empty or self.why_not(problem):
            return
        cut = self.cut(problem)
        for length in sorted({n for a in cut.axes if a.blocks > 1 for n in (a.length // 2, 2 * a.length)}):
            yield replace(self, length=length)

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        return spectral_cost.spectral_seconds(self.cut(problem), self.engine, machine)

    def prepare_cost(self, problem: ConvProblem, machine: Machine) -> float:
        return 0.0 if problem.is_empty else spectral_cost.spectrum_seconds(self.cut(problem))

    def filter_bytes(self, problem: ConvProblem) -> int:
        return 0 if problem.is_empty else self.cut(problem).filter_bytes

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        if problem.is_empty:
            return 0.0
        if self.overlap:
            return spectral_cost.least_overlapping(problem, machine)
        return spectral_cost.least_one_block(problem, self.engine, machine)

    def least_of_all(self, problem: ConvProblem, machine: Machine) -> float:
        return 0.0 if problem.is_empty else spectral_cost.least_products(problem, machine)

    @property
    def searches(self) -> bool:
        return self.overlap and self.length is None and not self.of_whole

    def closely(self, problem: ConvProblem, machine: Machine) -> float:
        return spectral_cost.closest_seconds(problem, machine) if self.searches else 0.0

    def block_starts(self, problem: ConvProblem) -> tuple[int, ...]:
        if problem.is_empty or not self.overlap:
            return self.granule(problem)
        # That of the whole, also where a part of it is no longer than a block.
        axes = self.cut(problem).axes
        lengths = self.of_whole or [axis.length if axis.blocks > 1 else None for axis in axes]
        steps = [1 if n is None else n - a.taps + 1 for n, a in zip(lengths, axes, strict=True)]
        return tuple(steps[-problem.ndim :])

    def for_parts(self, problem: ConvProblem) -> Algorithm:
        if problem.is_empty or not self.overlap:
            return self
        lengths = tuple(axis.length if axis.blocks > 1 else None for axis in self.cut(problem).axes)
        return replace(self, of_whole=lengths)

    def workspace_bytes(self, problem: ConvProblem) -> int:
        return 0 if problem.is_empty else chunk_schedule(self.cut(problem)).workspace_bytes

    def error_bound(self, problem: ConvProblem) -> float:
        return spectra_error(problem, self.cut)

    def plan(self, problem: ConvProblem) -> Plan:
        return SpectraPlan(problem, self, self.cut(problem), self.library)


ALGORITHMS = (Fft("fftw"), Fft("mkl"), Fft("fftw", overlap=True))
