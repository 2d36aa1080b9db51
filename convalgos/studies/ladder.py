"""One convolution from plain Python loops to the selector's pick: what each step gains, and its floor.

Source: a seminar on fast convolution that climbs from naive loops to libraries, one constant factor or better
algorithm at a time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

import convalgos as ca
from convalgos.core.errors import missing
from convalgos.core.machine import Machine
from convalgos.gpu import device as gpu
from convalgos.select import devices
from convalgos.select.measure.accuracy import AccuracyCheck
from convalgos.select.measure.timing import interleave
from convalgos.studies import ladder_gpu, ladder_loops, numba_functions
from convalgos.studies.ladder_wider import wider_parts
from convalgos.studies.study import (
    Answer,
    Chart,
    Finding,
    NotRun,
    Part,
    Study,
    StudyColumn,
    StudySetting,
)
from convalgos.studies.timed_plans import timed_plan

LIBRARY = {  # id of an algorithm -> what the rung adds
    "cpu.im2col.blas": "im2col, product by NumPy's BLAS",
    "cpu.im2col.mkl": "im2col, product by MKL",
    "cpu.im2col.own": "im2col, own product of packed panels",
    "cpu.direct": "direct, sums in registers over blocked channels",
    "cpu.fft.fftw": "FFT of whole maps",
    "cpu.fft_tiles.t16": "FFT of tiles of 16 x 16",
    "cpu.winograd.f2x3": "Winograd F(2, 3)",
    "cpu.winograd.f4x3": "Winograd F(4, 3)",
    "cpu.winograd.f6x3": "Winograd F(6, 3)",
    "cpu.int8x3": "direct, three digits for a float32 in matrix tiles",
    "cpu.winograd.f4x3.int8x3": "Winograd F(4, 3), three digits for a float32 in matrix tiles",
}
SPLIT = {"int8x3": "int8", "bf16x3": "bfloat16"}  # end of an id -> what matrix tiles multiply,
SPLIT_PRODUCTS = 6  # so many times for a product of float32
FIRST_ROWS = 2  # of outputs of the first filter that plain Python computes; the rest takes as long each


@dataclass(frozen=True)
class Rung:
    """A step of the ladder: its call, what share of the work that does, and what it may use.

    `flops` and `moved` are of the whole convolution, done as this rung does it.
    """

    name: str
    call: Callable[[], object]
    flops: float
    moved: float
    threads: int
    lanes: int  # float32 elements of an instruction
    share: float = 1.0
    multiplies: str = "float32"

    def floor(self, machine: Machine) -> tuple[float, str]:
        """The least time of this arithmetic on so many threads and lanes, and what bounds it."""
        peak = machine.peak(self.multiplies) * self.threads / machine.threads
        peak *= self.lanes / (machine.vector_bytes // 4)
        computing, moving = self.flops / peak, machine.stream(self.moved)
        return max(computing, moving), "arithmetic" if computing > moving else "memory"


class LadderStudy(Study):
    """The rungs of one layer in turns, then batch, pruning and number formats."""

    name = "ladder"
    question = "What does each step from plain loops to the best algorithm gain, and how near is its floor?"
    source = (
        "A seminar that climbs from naive loops to libraries: constant factors first (compiled code, tiling, "
        "vectors, threads), then better algorithms (im2col, FFT, Winograd), then batches, pruning, "
        "quantisation and binarisation; on a GPU from a naive kernel to tensor cores."
    )
    method = (
        "One 3x3 layer in float32, filters prepared where a rung can. Plain Python computes the first rows "
        "of one filter, NumPy's planes a few filters, and both are scaled up; the others compute all of it, "
        "in turns, and every answer is compared with float64. The floor of a rung is that of its own "
        "arithmetic: operations over the peak of the threads and lanes that it uses, or its bytes over the "
        "bandwidth."
    )
    look_at = (
        "The gains: constant factors multiply to thousands before the first better algorithm. Then the share "
        "of the floor, and where an algorithm beats the floor of the direct sums."
    )
    problem: ClassVar[str] = "n1 c64 h56 w56 k64 r3 s3 p1"
    rounds: ClassVar[int] = 9

    def parts(self, setting: StudySetting) -> Iterator[Answer]:
        if reason := missing("numba"):
            yield NotRun("the rungs of compiled loops", reason.removeprefix("needs "))
        problem, machine = ca.ConvProblem.parse(self.problem), devices.current_machine()
        rungs = self._rungs(problem, machine, setting)
        seconds = _timed(rungs, 1 if setting.quick else self.rounds, setting)
        yield _table(problem, rungs, seconds, machine)
        yield from _findings(problem, rungs, seconds, machine)
        yield from wider_parts(problem, setting)
        if reason := gpu.why_none():
            yield NotRun("CUDA kernels, from naive to tensor cores", reason.removeprefix("needs "))
        yield from ladder_gpu.gpu_parts(problem, setting)

    def _rungs(self, problem: ca.ConvProblem, machine: Machine, setting: StudySetting) -> list[Rung]:
        setting.tell("making the rungs")
        check = AccuracyCheck(problem)
        rungs = _loop_rungs(problem, machine, check)
        served = {candidate.id for candidate in ca.explain(problem).candidates}
        names = [name for name in LIBRARY if name in served] + ["auto"]
        return rungs + [_library_rung(problem, machine, check, name) for name in names]


def _loop_rungs(problem: ca.ConvProblem, machine: Machine, check: AccuracyCheck) -> list[Rung]:
    """The rungs below the library's algorithms."""
    p = problem
    x = np.pad(check.x[0], ((0, 0), *p.padding))  # (C, H + 2, W + 2)
    w, lists = check.w, (x.tolist(), check.w.tolist())
    height, width = p.spatial_out
    rows, planes, lanes = min(FIRST_ROWS, height), min(4, p.K), machine.vector_bytes // 4
    least = float(p.flops), float(p.x_bytes + p.w_bytes + p.y_bytes)

    def rung(name: str, call: Callable[[], object], threads: int, lanes: int, share: float = 1.0) -> Rung:
        return Rung(name, call, *least, threads, lanes, share)

    found = [
        rung(
            "plain Python loops", lambda: ladder_loops.python_loops(*lists, rows, width), 1, 1,
            rows / (height * p.K),
        ),
        rung(
            "NumPy, plane by plane", lambda: ladder_loops.numpy_planes(x, w, planes), 1, lanes, planes / p.K
        ),
    ]  # fmt: skip
    _compare_loops(check, problem, found[1].call, planes)
    if missing("numba"):
        return found
    y = np.empty(p.y_shape, np.float32)
    ones, zeros = np.ones(p.K, np.float32), np.zeros(p.K, np.float32)
    steps: tuple[tuple[str, Callable[..., None], tuple[Any, ...], bool, int, int], ...] = (
        ("Numba, the same loops", ladder_loops.scalar_loops, (x, w, y[0]), False, 1, 1),
        ("tiling: eight sums in registers", ladder_loops.tiled_loops, (x, w, y[0]), False, 1, 1),
        *(
            (name, numba_functions.convolve_rows, (x[None], w, ones, zeros, np.float32(-np.inf), y), *how)
            for name, how in (
                ("vectors: along a row", (False, 1, lanes)),
                ("threads: filters dealt to all", (True, machine.threads, lanes)),
            )
        ),
    )
    for name, loops, arguments, parallel, threads, wide in steps:
        fast = numba_functions.compiled(loops, parallel=parallel, fastmath=wide > 1)
        call = _bound_call(fast, arguments)
        y[:] = np.nan
        call()
        if not check.error(y) < 1e-4:
            raise ValueError(f"{name} has error {check.error(y):.1e}")
        found.append(rung(name, call, threads, wide))
    return found


def _bound_call(function: Callable[..., None], arguments: tuple[Any, ...]) -> Callable[[], object]:
    return lambda: function(*arguments)


def _compare_loops(check: AccuracyCheck, p: ca.ConvProblem, call: Callable[[], Any], planes: int) -> None:
    """Plane sums of a few filters against those of the reference."""
    right = ca.conv(check.x, check.w[:planes], padding=p.padding, algorithm="cpu.reference")[0]
    error = float(np.abs(call() - right).max() / np.abs(right).max())
    if not error < 1e-4:
        raise ValueError(f"the planes of NumPy have error {error:.1e}")


def _library_rung(problem: ca.ConvProblem, machine: Machine, check: AccuracyCheck, name: str) -> Rung:
    made = timed_plan(problem, name, check=check)
    if not made.error() <= made.bound:
        raise ValueError(f"{made.algorithm} has error {made.error():.1e}, over its bound {made.bound:.1e}")
    told = LIBRARY.get(name, f"the selector's pick: {made.algorithm}")
    flops, moved = least_work(problem, made.algorithm)
    return Rung(
        told, made.call, flops, moved, machine.threads, machine.vector_bytes // 4,
        multiplies=SPLIT.get(made.algorithm.rpartition(".")[2], "float32"),
    )  # fmt: skip


def least_work(problem: ca.ConvProblem, algorithm: str) -> tuple[float, float]:
    """(operations, bytes) of an algorithm on a 3x3 layer: products of its points, and arrays moved once.

    Transforms count no operations, and what stays in a cache no bytes: a floor under the algorithm's own.
    Of float32 that is split, operations are those of its parts.
    """
    p, outputs = problem, problem.spatial_out
    products = SPLIT_PRODUCTS if algorithm.endswith(tuple(SPLIT)) else 1
    algorithm = algorithm if products == 1 else algorithm.rpartition(".")[0]
    pairs = 2.0 * p.N * p.C * p.K * products
    moved = float(p.x_bytes + p.w_bytes + p.y_bytes)
    variant = algorithm.rpartition(".")[2]
    if algorithm.startswith("cpu.winograd.f"):
        m = int(variant[1:].partition("x")[0])
        tiles = math.prod(-(-size // m) for size in outputs)
        return pairs * tiles * (m + 2) ** 2, moved + p.w_bytes * ((m + 2) ** 2 / 9 - 1)
    if algorithm.startswith("cpu.fft_tiles"):
        t = int(variant[1:])
        tiles, points = math.prod(-(-size // (t - 2)) for size in outputs), t * (t // 2 + 1)
        return 4 * pairs * tiles * points, moved + p.w_bytes * (2 * points / 9 - 1)
    if algorithm.startswith("cpu.fft."):
        high, wide = (size + low + after for size, (low, after) in zip(p.spatial, p.padding, strict=True))
        points = high * (wide // 2 + 1)
        return 4 * pairs * points, moved + 8.0 * points * p.K * p.C  # filters, complex
    return float(p.flops) * products, moved


def _timed(rungs: list[Rung], rounds: int, setting: StudySetting) -> dict[str, float]:
    """Seconds of the whole convolution by each rung; plain Python is timed once."""
    setting.tell(rungs[0].name)
    start = time.perf_counter()
    rungs[0].call()
    seconds = {rungs[0].name: (time.perf_counter() - start) / rungs[0].share}
    setting.tell("the other rungs, in turns")
    calls = {rung.name: rung.call for rung in rungs[1:]}
    timings = interleave(calls, rounds=rounds, deadline=setting.deadline)
    return seconds | {rung.name: timings[rung.name].median / rung.share for rung in rungs[1:]}


def _table(problem: ca.ConvProblem, rungs: list[Rung], seconds: dict[str, float], machine: Machine) -> Part:
    rows, before, first = [], 0.0, seconds[rungs[0].name]
    for rung in rungs:
        taken, (floor, bound) = seconds[rung.name], rung.floor(machine)
        rows.append(
            (
                rung.name, 1e3 * taken, problem.flops / taken / 1e9, before / taken if before else None,
                first / taken, 1e3 * floor, 100 * floor / taken, bound,
            )
        )  # fmt: skip
        before = taken
    return Part(
        f"The ladder of {problem}",
        "Gains are over the rung before and over the first one. GFLOP/s count the operations of the direct "
        "sums. The floor is that of the rung's own arithmetic on the threads and vector lanes that it uses.",
        (
            StudyColumn("rung"), StudyColumn("time", "ms"), StudyColumn("rate", "GFLOP/s"),
            StudyColumn("gain", "x"), StudyColumn("gain in all", "x"), StudyColumn("floor", "ms"),
            StudyColumn("of the floor", "%"), StudyColumn("bound by"),
        ),
        tuple(rows),
        Chart("bars", "rung", ("time", "floor"), log_y=True),
    )  # fmt: skip


def _findings(
    problem: ca.ConvProblem, rungs: list[Rung], seconds: dict[str, float], machine: Machine
) -> Iterator[Finding]:
    first, pick = seconds[rungs[0].name], seconds[rungs[-1].name]
    loops = min(
        seconds[rung.name] for rung in rungs if rung.name not in LIBRARY.values() and rung is not rungs[-1]
    )
    direct = max(problem.flops / machine.peak_float32, machine.stream(problem.bytes))
    yield Finding(
        "Constant factors - compiled code, tiling, vectors, threads - gain thousands of times on plain "
        "Python, before any better algorithm.",
        f"Loops alone gain {first / loops:,.0f} times, the selector's pick {first / pick:,.0f} times.",
        first / loops >= 1000,
    )
    yield Finding(
        "A better algorithm passes the floor of the direct sums.",
        f"The pick takes {1e3 * pick:.3f} ms; direct sums take {1e3 * direct:.3f} ms at the machine's peak.",
        pick < direct,
    )


STUDY = LadderStudy()
