"""Whole maps through the FFT, with three real products for each complex one (Gauss) instead of four.

(a + ib)(c + id) is p - r + i (p + q), with p = (a + b) c, q = a (d - c) and r = b (c + d). What belongs to
the filter is made when it is prepared, so that a product takes three multiply-adds and an addition that all
filters share. The price is half as much memory again for the filter, of which every element is used once
for an image. The paper's model says that the more arithmetic a processor has for its bandwidth, the less
that pays, and here the four products of `cpu.fft.fftw`, which is the same otherwise, are faster. Both lose
to `cpu.fft_tiles` where channels are many, which takes Gauss's products on tiles whose factors stay in the
cache.

Source: Zlateski, Jia, Li and Durand 2018, "FFT convolutions are faster than Winograd on modern CPUs, here's
why", arXiv:1809.07851 ("Gauss-FFT").
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
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

ENGINE = "fftw"


@lru_cache(256)
def gauss_blocking(problem: ConvProblem) -> FftBlocking:
    """Whole maps, with three parts of the filter's spectrum."""
    return replace(spectral_cost.one_block(problem), parts=3)


@dataclass(frozen=True)
class FftGauss(Algorithm):
    family: ClassVar[str] = "cpu.fft"
    least_prepare: ClassVar[float] = spectral_cost.SPECTRUM_CALL
    spreads_nan: ClassVar[bool] = True
    boundaries: ClassVar[tuple[str, ...]] = BOUNDARIES
    bounded_with: ClassVar[str] = "spectra of maps"

    @property
    def variant(self) -> str:
        return "gauss"

    def knows_border(self, problem: ConvProblem) -> bool:
        return fills_alike(problem)

    def why_not(self, problem: ConvProblem) -> str | None:
        if reason := super().why_not(problem) or engines.why_not_engine(ENGINE):
            return reason
        if (
            not problem.is_empty
            and (needed := gauss_blocking(problem).filter_bytes) > spectral_cost.FILTER_LIMIT
        ):
            limit = spectral_cost.FILTER_LIMIT >> 20
            return f"the filter's spectrum would take {needed >> 20} MiB, more than the {limit} it may"
        return None

    def cost(self, problem: ConvProblem, machine: Machine) -> float:
        return spectral_cost.spectral_seconds(gauss_blocking(problem), ENGINE, machine)

    def least(self, problem: ConvProblem, machine: Machine) -> float:
        return 0.0 if problem.is_empty else spectral_cost.least_one_block(problem, ENGINE, machine)

    def least_of_all(self, problem: ConvProblem, machine: Machine) -> float:
        return 0.0 if problem.is_empty else spectral_cost.least_products(problem, machine)

    def prepare_cost(self, problem: ConvProblem, machine: Machine) -> float:
        return 0.0 if problem.is_empty else spectral_cost.spectrum_seconds(gauss_blocking(problem))

    def filter_bytes(self, problem: ConvProblem) -> int:
        return 0 if problem.is_empty else gauss_blocking(problem).filter_bytes

    def workspace_bytes(self, problem: ConvProblem) -> int:
        return 0 if problem.is_empty else chunk_schedule(gauss_blocking(problem)).workspace_bytes

    def error_bound(self, problem: ConvProblem) -> float:
        # a and b in one product, and the difference of two sums, as large as both
        return 2 * spectra_error(problem, gauss_blocking)

    def plan(self, problem: ConvProblem) -> Plan:
        return SpectraPlan(problem, self, gauss_blocking(problem), ENGINE)


ALGORITHMS = (FftGauss(),)
