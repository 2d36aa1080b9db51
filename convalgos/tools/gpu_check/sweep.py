"""Constants of the cost models from times on this device: of a launch, cuDNN, FFTs, and tiles of wgmma.

For one group of constants after the other

1. problems whose time depends on them are timed,
2. the constants are fitted (`fit`),
3. those that the times tell are saved at once for the cost models (`convalgos.gpu.device.measured`), so that
   a kernel that crashes later loses nothing. The others stay estimates, and the report says so.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from itertools import product
from pathlib import Path

import numpy as np

from convalgos.core.cache_files import write_atomic
from convalgos.core.errors import Unsupported
from convalgos.core.plan import result_dtype
from convalgos.core.problem import ConvProblem
from convalgos.gpu import fft_four_step, fft_fused
from convalgos.gpu import implicit_gemm_wgmma as wgmma
from convalgos.gpu.cudnn import Cudnn
from convalgos.gpu.device import Device, GpuMachine, measured
from convalgos.gpu.direct import Direct
from convalgos.gpu.gemm.wgmma_forms import PLAIN, WgmmaTile
from convalgos.gpu.gemm.wgmma_plan import sum_steps
from convalgos.gpu.launch.plan import GpuPlan
from convalgos.gpu.launch.split_k import splits_of
from convalgos.gpu.spectral import block_fft, transposed_io
from convalgos.gpu.vendor import cost
from convalgos.select.measure.accuracy import repeating_arrays
from convalgos.select.measure.backends import Call, GpuBackend
from convalgos.tools.gpu_check.cases import Case
from convalgos.tools.gpu_check.fit import Fit, fit
from convalgos.tools.gpu_check.results import OutOfTime, Result, told
from convalgos.tools.gpu_check.steps import PLANNING, Begun

SUITE = "sweep"
DENSE = (  # of each the best tile is another one, and some need their sums split
    "n8 c64 h56 w56 k64 r3 s3 p1 channels_last float16",
    "n4 c256 h56 w56 k256 r3 s3 p1 channels_last float16",
    "n8 c512 h7 w7 k512 r3 s3 p1 channels_last float16",
    "n8 c128 h28 w28 k128 r3 s3 p1 channels_last compute_tf32",
    "n16 c256 h56 w56 k64 r1 s1 channels_last compute_tf32",
    "n4 c512 h28 w28 k512 r3 s3 p1 channels_last compute_tf32",
)
LARGE = (  # so that no time of the host's is in them; of cuDNN
    "n4 c64 h112 w112 k128 r3 s3 p1",
    "n4 c256 h56 w56 k256 r3 s3 p1",
    "n4 c512 h28 w28 k512 r3 s3 p1",
    "n16 c64 h56 w56 k192 r3 s3 p1",
    "n4 c128 h112 w112 k128 r3 s3 p1",
    "n8 c512 h56 w56 k256 r3 s3 p1",
    "n8 c1024 h28 w28 k512 r1 s1",
    "n16 c128 h56 w56 k512 r1 s1",
    "n1 c96 d32 h28 w28 k128 t3 r3 s3 p1",
)
SHORT = (  # filters that the tile of a block holds
    "n8 c128 h56 w56 k128 r31 s31 p15 groups128",
    "n4 c64 w8192 k64 s1024 p1023:0 groups64",
    "n4 c64 w4096 k64 s4096 p4095:0 groups64",
)
LONG = (  # filters that it does not hold
    "n4 c64 w32768 k64 s32768 p32767:0 groups64",
    "n4 c64 w131072 k64 s131072 p131071:0 groups64",
)
SHARES = (1, 3, 8, 24)  # parts of the tiles of a long filter: such as fit into L2, and such as do not
SPLITS_TRIED = 2  # numbers of parts of a sum that are tried for each tile, the most promising ones
TRIES = 3  # of which the median counts
LAUNCHES, ROWS = (16, 64), 7  # kernels in a row: a launch is what each more takes; and how often
SMALL = "n1 c1 h1 w1 k1 r1 s1"


@dataclass(frozen=True)
class SweepPoint:
    """One kernel in one form on a problem, and what the models say of it."""

    problem: ConvProblem
    algorithm: str
    plan: Callable[[], GpuPlan]
    predicted: Callable[[GpuMachine], float]  # seconds


@dataclass(frozen=True)
class Group:
    """Trials that tell some constants."""

    name: str
    estimates: dict[str, float]
    trials: Callable[[GpuMachine], Iterator[SweepPoint]]

    def known(self, figures: GpuMachine) -> dict[str, float]:
        """The constants as they are without this sweep."""
        return {name: figures.constant(name, value) for name, value in self.estimates.items()}


def sweep(
    device: Device, *, skip: Container[tuple[str, str]] = (), until: float, folder: Path | None = None
) -> Iterator[Begun | Result | OutOfTime]:
    """Time, fit and keep, a group of constants after the other.

    Args:
        skip: pairs of problem and algorithm that were tried before, or are barred.
        until: a moment of `time.monotonic`, after which nothing more is timed.
        folder: where a copy of the file of constants goes, beside the report.

    Yields:
        A `Result` for each group, which tells the constants; failures of kernels; `Cut` where time was short.
    """
    yield from _launches(device, skip, folder)
    for group in GROUPS:
        samples: list[tuple[SweepPoint, float]] = []
        trials = [t for t in group.trials(device.figures) if (str(t.problem), t.algorithm) not in skip]
        for done, trial in enumerate(trials):
            if time.monotonic() > until:
                yield OutOfTime(len(trials) - done)
                break
            yield Begun(_case(trial.problem), trial.algorithm, PLANNING)
            try:
                samples.append((trial, _seconds(device, trial)))
            except (Unsupported, MemoryError):
                continue
            except Exception as failure:
                yield Result(SUITE, str(trial.problem), trial.algorithm, group.name, failure=told(failure))
                if GpuBackend(device).lost():
                    return
        if samples:
            found = solved(group, samples, device.figures)
            yield _report(group.name, group.known(device.figures), found, len(samples))
            keep_constants(device, found.values, folder)


def solved(group: Group, samples: list[tuple[SweepPoint, float]], figures: GpuMachine) -> Fit:
    """The constants of a group from measured seconds of its trials."""

    def model(values: Mapping[str, float]) -> list[float]:
        machine = replace(figures, measured=tuple(values.items()))
        return [trial.predicted(machine) for trial, _ in samples]

    limits = {name: measured.LIMITS[name] for name in group.estimates}
    return fit(model, [seconds for _, seconds in samples], group.known(figures), limits)


def keep_constants(device: Device, values: Mapping[str, float], folder: Path | None = None) -> None:
    """Constants for this process and later ones, with those that were found before."""
    if not values:
        return
    known = dict(device.figures.measured) | dict(values)
    device.figures = measured.with_constants(device.figures, known, date.today().isoformat())
    path = measured.save_constants(device.figures)
    if folder is not None:
        write_atomic(folder / path.name, measured.constants_text(device.figures))


def _report(name: str, estimates: Mapping[str, float], found: Fit, count: int) -> Result:
    """A line for people, in which constants stand as in a profile."""
    words = [json.dumps({n: float(f"{v:.4g}") for n, v in found.values.items()})] if found.values else []
    words += [f"{n} stays {estimates[n]:.4g}: {reason}" for n, reason in found.kept.items()]
    off = f", off by a factor of {found.spread:.2f} as a rule" if found.values else ""
    return Result(SUITE, "", "", f"constants of {name} from {count} times{off}: {'; '.join(words)}")


# --- what is timed -------------------------------------------------------------------------------


def _tiles(machine: GpuMachine) -> Iterator[SweepPoint]:
    """Every tile of wgmma, and the numbers of parts that are promising for it."""
    for problem in map(ConvProblem.parse, DENSE):
        algorithm = wgmma.Wgmma("half" if problem.itemsize == 2 else "tf32")
        if not algorithm.capability <= machine.capability < algorithm.until:
            continue
        allowed = splits_of(sum_steps(problem, algorithm.terms))
        for tile in PLAIN.tiles:
            if algorithm.form.shared_bytes(tile) <= machine.block_shared_bytes:
                trials = [_product(algorithm, problem, tile, splits) for splits in allowed]
                yield from sorted(trials, key=lambda trial: trial.predicted(machine))[:SPLITS_TRIED]


def _product(algorithm: wgmma.Wgmma, problem: ConvProblem, tile: WgmmaTile, splits: int) -> SweepPoint:
    def predicted(machine: GpuMachine) -> float:
        return algorithm.seconds(problem, tile, splits, machine) + machine.launch

    return SweepPoint(problem, algorithm.id, lambda: algorithm.planned(problem, tile, splits), predicted)


def _vendor(machine: GpuMachine) -> Iterator[SweepPoint]:
    """The first plans of cuDNN, where it is there."""
    for text, kind in product(LARGE, ("compute_tf32", "float16")):
        problem, algorithm = ConvProblem.parse(f"{text} channels_last {kind}"), Cudnn()
        if algorithm.why_not(problem) is None:
            yield _first(algorithm, problem)


def _first(algorithm: Cudnn, problem: ConvProblem) -> SweepPoint:
    def predicted(machine: GpuMachine) -> float:
        return cost.model_seconds(problem, machine)

    return SweepPoint(problem, algorithm.id, lambda: algorithm.serve(problem), predicted)


def _transforms(machine: GpuMachine) -> Iterator[SweepPoint]:
    """Short filters in every tile of a block, long ones in several parts."""
    for problem in map(ConvProblem.parse, SHORT):
        for chain in fft_fused.tried(problem, None):
            if fft_fused.fused_geometries(problem, chain, machine):
                yield _fused(fft_fused.FusedFft(chain), problem)
    stepped = fft_four_step.FourStepFft()
    for problem in map(ConvProblem.parse, LONG):
        whole = {
            way.chain: way for way in stepped.geometries(problem, machine)
        }  # of each chain the smallest parts
        for way in whole.values():
            parts = dict.fromkeys(max(1, way.total // share) for share in SHARES)
            yield from (_long(stepped, problem, way._replace(per_pass=part)) for part in parts)


def _fused(algorithm: fft_fused.FusedFft, problem: ConvProblem) -> SweepPoint:
    return SweepPoint(
        problem,
        algorithm.id,
        lambda: algorithm.plan(problem),
        lambda machine: algorithm.cost(problem, machine),
    )


def _long(
    algorithm: fft_four_step.FourStepFft, problem: ConvProblem, way: fft_four_step.FourStepGeometry
) -> SweepPoint:
    def predicted(machine: GpuMachine) -> float:
        return fft_four_step.four_step_seconds(problem, way, machine) + transposed_io.transpose_seconds(
            problem, machine
        )

    return SweepPoint(
        problem, algorithm.id, lambda: fft_four_step.FourStepPlan(problem, algorithm, way), predicted
    )


GROUPS = (
    Group("cuDNN", {"vendor/cost.LOADS": cost.LOADS, "vendor/cost.FILL": cost.FILL}, _vendor),
    Group(
        "the FFTs",
        {"spectral/block_fft.ISSUED": block_fft.ISSUED, "fft_four_step.CACHED": fft_four_step.CACHED},
        _transforms,
    ),
    Group(
        "wgmma",
        {
            "implicit_gemm_wgmma.REACHED": wgmma.REACHED,
            "implicit_gemm_wgmma.L2_BYTES": float(wgmma.L2_BYTES),
            "implicit_gemm_wgmma.FILL": float(wgmma.FILL),
        },
        _tiles,
    ),
)


def _seconds(device: Device, trial: SweepPoint) -> float:
    """The median of some samples."""
    backend = GpuBackend(device)
    call = _call(backend, trial.problem, trial.plan())
    return float(np.median([backend.seconds(call) for _ in range(TRIES)]))


def _call(backend: GpuBackend, problem: ConvProblem, plan: GpuPlan) -> Call:
    """A run of a plan, after a first one."""
    first, second = map(backend.put, repeating_arrays(problem))
    y = backend.empty(problem.array_shapes[2], result_dtype(problem))
    prepared = plan.prepare(second)
    backend.ready(lambda: plan(first, prepared, out=y))
    return lambda: plan(first, prepared, out=y)


def _launches(
    device: Device, skip: Container[tuple[str, str]], folder: Path | None
) -> Iterator[Begun | Result]:
    """What a kernel takes that has next to nothing to do, behind another one."""
    problem, algorithm = ConvProblem.parse(SMALL), Direct()
    if (str(problem), algorithm.id) in skip:
        return
    yield Begun(_case(problem), algorithm.id, PLANNING)
    call = _call(GpuBackend(device), problem, algorithm.serve(problem))
    few, more = (lambda count=count: [call() for _ in range(count)] for count in LAUNCHES)
    apart = [(device.elapsed(more) - device.elapsed(few)) / (LAUNCHES[1] - LAUNCHES[0]) for _ in range(ROWS)]
    found = fit(
        lambda values: [values[measured.LAUNCH]] * len(apart),
        [max(1e-12, seconds) for seconds in apart],  # whatever other programs made of it
        {measured.LAUNCH: device.figures.launch},
        measured.LIMITS,
    )
    yield _report("a launch", {measured.LAUNCH: device.figures.launch}, found, len(apart))
    keep_constants(device, found.values, folder)


def _case(problem: ConvProblem) -> Case:
    return Case(SUITE, str(problem), problem)
