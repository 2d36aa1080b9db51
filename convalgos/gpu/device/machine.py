"""A GPU as the algorithms see it: its figures, and what they may ask of it."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from convalgos.core.element_types import BINARY, FLOAT8_DTYPES, INTEGERS, SHORT_FLOATS
from convalgos.core.errors import Unsupported
from convalgos.core.problem import ConvProblem
from convalgos.gpu.compile.module import Build
from convalgos.gpu.device.tma import Im2colView

Function = Callable[..., None]  # (grid, block, arguments, shared_mem=bytes)

# Per multiprocessor and clock: float32 and float64 fused multiply-adds outside tensor cores, and float16 and
# float64 ones in them (dense, summed in float32 and float64). From the programming guide and NVIDIA's
# architecture papers, so nominal: 19.5 TFLOP/s of float64 in an A100's tensor cores, 67 in an H200's.
RATES = {
    (7, 0): (64, 32, 512, 0),
    (7, 5): (64, 2, 512, 0),
    (8, 0): (64, 32, 1024, 64),
    (8, 6): (128, 2, 512, 2),
    (8, 9): (128, 2, 512, 2),
    (9, 0): (128, 64, 2048, 128),
    (10, 0): (128, 64, 4096, 64),
    (12, 0): (128, 2, 512, 2),
}
FOURS = (
    64  # products of four 8-bit integers (dp4a) per multiprocessor and clock; programming guide, as of 6.1
)
EFFICIENCY = 0.85  # of the product of clock and rate that cuBLAS reaches; H200
STREAMED = 0.88  # of the memory's nominal bandwidth that a copy reaches; H200: 4.29 of 4.89 TB/s
LAUNCH = 3e-6  # seconds from one kernel of a stream to the next, the first waves' latency with it; H200


@dataclass(frozen=True)
class GpuMachine:
    """Figures of one GPU. Bytes, seconds and hertz; flops count a fused multiply-add as two."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    clock: float
    bandwidth: float  # bytes/s of a copy, read plus written, beyond L2
    l2_bytes: int
    block_shared_bytes: int  # the most that one block may ask for
    sm_shared_bytes: int  # of a multiprocessor
    sm_registers: int
    sm_threads: int
    launch: float = LAUNCH
    efficiency: float = EFFICIENCY
    source: str = "read from the driver"
    measured: tuple[tuple[str, float], ...] = ()  # (constant of a cost model, value); see `gpu.measured`
    measured_on: str = ""  # 2026-11-30
    packing_pace: ClassVar[float] = 1.0  # as `Machine`'s, which nobody timed on a GPU

    def constant(self, name: str, estimate: float) -> float:
        """A constant of a cost model, "file.NAME": as measured on GPUs of this kind, or the estimate."""
        return next((value for known, value in self.measured if known == name), estimate)

    @property
    def summary(self) -> str:
        """For the foot of a table."""
        return (
            f"{self.name}, {self.multiprocessors} multiprocessors, {self.arch}, "
            f"peak {self.peak('float32') / 1e12:.0f} TFLOP/s float32, "
            f"{self.tensor_peak('tf32') / 1e12:.0f} TF32, {self.tensor_peak('float16') / 1e12:.0f} float16, "
            f"{self.bandwidth / 1e9:.0f} GB/s"
        )

    @property
    def arch(self) -> str:
        """The architecture to compile for; from 9.0 on the one with features of its own."""
        major, minor = self.capability
        return f"sm_{major}{minor}{'a' if major >= 9 else ''}"

    def is_a(self, name: str) -> bool:
        """Whether the driver calls it by this name, with or without NVIDIA's."""
        return self.name.removeprefix("NVIDIA ") == name

    @property
    def fingerprint(self) -> str:
        """A file name for what is measured on GPUs of this kind."""
        words = "".join(c if c.isalnum() else " " for c in self.name.lower()).split()
        return "-".join(("gpu", *words, f"{self.multiprocessors}sm"))

    @property
    def _rates(self) -> tuple[int, int, int, int]:
        known = [c for c in RATES if c <= self.capability]
        return RATES[max(known) if known else min(RATES)]

    def peak(self, dtype: str) -> float:
        """flop/s of CUDA cores; 16-bit elements are computed in float32, 8-bit integers four at a time."""
        rate = 4 * FOURS if dtype in INTEGERS else self._rates[1 if dtype == "float64" else 0]
        return 2 * self.efficiency * rate * self.multiprocessors * self.clock

    def exact_peak(self, dtype: str) -> float:
        """flop/s of the fastest units that round as the type does: float64 has such tensor cores."""
        return max(self.peak(dtype), self.tensor_peak("float64") if dtype == "float64" else 0)

    def tensor_peak(self, compute_dtype: str) -> float:
        """flop/s of tensor cores in "float16", "bfloat16", "tf32", "float64", "int8", "binary", 8-bit floats.

        Dense int8 runs at twice the rate of float16: 624 Top/s in an A100, 1,979 in an H200 (data sheets). So
        do floats of 8 bits, of which GPUs before 8.9 have no products. Bits run at 16 times that of float16
        in an A100 (4,992 Top/s); on 9.0, of which no document tells, as many are assumed per clock, and from
        10.0 on eight products of integers stand in for one of them.
        """
        *_, half, double = self._rates
        bits = 16 * half if self.capability < (9, 0) else (8 if self.capability < (10, 0) else 2) * half
        bytes_ = dict.fromkeys(("int8", *FLOAT8_DTYPES), 2 * half)
        rate = ({"tf32": half / 2, "float64": double, BINARY: bits} | bytes_).get(compute_dtype, half)
        return 2 * self.efficiency * rate * self.multiprocessors * self.clock

    def peak_of(self, problem: ConvProblem) -> float:
        """flop/s of the units that the precision admits: tensor cores for all but strict float32."""
        if problem.sums_integers:
            return self.tensor_peak(BINARY if problem.dtype == BINARY else "int8")
        if problem.dtype in SHORT_FLOATS:
            return self.tensor_peak(problem.dtype)
        return self.tensor_peak("tf32") if problem.compute_dtype == "tf32" else self.exact_peak(problem.dtype)

    def stream(self, nbytes: float, footprint: float | None = None) -> float:
        """Seconds to move `nbytes`; what stays in L2 moves about three times as fast."""
        cached = (nbytes if footprint is None else footprint) < self.l2_bytes / 2
        return nbytes / (self.bandwidth * (3 if cached else 1))


class Transforms(Protocol):
    """Transforms of reals and back, which any stream and thread may run; arrays are in C order."""

    def forward(self, x: Any, spectra: Any) -> None:
        """spectra (..., *lengths[:-1], lengths[-1] // 2 + 1) of x (..., *lengths)."""

    def backward(self, spectra: Any, x: Any) -> None:
        """x (..., *lengths) of spectra, times the product of the lengths. The spectra are lost."""


class Device(ABC):
    """One GPU as the algorithms see it. `xp` is the module of its arrays, with NumPy's functions."""

    xp: Any
    figures: GpuMachine
    name: str  # "cuda:0"
    out_of_memory: type[Exception] = MemoryError

    def lacks(self, library: str) -> str | None:
        """Why a library of CUDA's, "cublas" or "cufft", cannot be called; None where it can."""
        return None

    @abstractmethod
    def module(self, build: Build) -> Any:
        """A build, compiled once for this device; many threads may ask for it.

        Raises:
            CompileError: the source does not compile.
        """

    @abstractmethod
    def function(self, build: Build, name: str, shared_bytes: int) -> Function:
        """A kernel of a build, which may then be launched with that much dynamic shared memory.

        Raises:
            CompileError: the source does not compile.
        """

    def compile(self, builds: Iterable[Build]) -> None:
        """Compile on all cores what plans are going to need; they compile the rest themselves.

        Raises:
            CompileError: a source does not compile; all others are compiled nevertheless.
        """
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            waiting = [pool.submit(self.module, build) for build in dict.fromkeys(builds)]
        for made in waiting:
            made.result()

    def tables(self, *values: np.ndarray) -> list[Any]:
        """Copies of values on the device, for a plan: any stream may read them from now on."""
        return [self.xp.asarray(array) for array in values]

    def table(self, values: np.ndarray) -> Any:
        """(...) The one copy of `tables`."""
        (made,) = self.tables(values)
        return made

    def gathering(self) -> AbstractContextManager[Any]:
        """Within it, tables of the calling thread are copied at once, at its end: none is read before."""
        return nullcontext()

    def by_value(self, record: np.ndarray) -> Any:
        """(1,) A record in the form in which it costs a launch the least; changes to it still count."""
        return record

    @abstractmethod
    def capture(self, work: Callable[[], None]) -> Any:
        """Run `work`, then once more to record what it launches on the current stream.

        Returns:
            What holds on to all memory that `work` allocates, and launches it anew, as often as one likes, on
            the then current stream by its method `launch`.
        """

    @abstractmethod
    def address(self, array: Any) -> int:
        """Where an array of this device starts."""

    @abstractmethod
    def tensor_map(self, view: Im2colView, address: int) -> Any:
        """What kernels take by value to copy pixels of an input at this address."""

    def takes_wide_box(self) -> bool:
        """Whether a tensor map's box may have more channels than the input, which no document tells."""
        return True

    @abstractmethod
    def as_array(self, name: str, array: Any) -> Any:
        """An array of `xp` over the memory of an array on this device; TypeError for others."""

    @abstractmethod
    def elapsed(self, work: Callable[[], object]) -> float:
        """Seconds of this device for what `work` puts on the current stream; waits, and may repeat it."""

    def stream(self) -> int:
        """The number by which libraries of CUDA know the current stream.

        Raises:
            Unsupported: this device is none of CUDA's; libraries cannot run on it.
        """
        raise Unsupported(f"needs a device of CUDA, but {self.name} is none")

    def transforms(self, lengths: tuple[int, ...], dtype: str) -> Transforms:
        """Real Fourier transforms over the last dimensions, of these lengths, of arrays of a dtype.

        Raises:
            Unsupported: this device has no library for them.
        """
        raise Unsupported(f"needs a library of Fourier transforms, but {self.name} has none")

    def capturing(self) -> bool:
        """Whether what is put on the current stream is recorded, not run."""
        return False

    def synchronize(self) -> None:
        """Wait for all that this device has to do; errors of kernels come to light here."""
        return None

    def stream_of(self, array: Any) -> AbstractContextManager[Any]:
        """Within it, work goes to the stream that the library of this array works on."""
        return nullcontext()

    def versions(self) -> dict[str, str]:
        """Of what this device is worked with, beside Python's packages."""
        return {}

    def new_stream(self) -> AbstractContextManager[Any]:
        """Within it, work goes to a stream of its own, which waits for no other."""
        return nullcontext()

    def is_current(self) -> bool:
        """Whether arrays are made and kernels launched on this device."""
        return True

    def active(self) -> AbstractContextManager[Any]:
        """Within it, this device is current."""
        return nullcontext()
