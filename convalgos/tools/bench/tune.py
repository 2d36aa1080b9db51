"""Fill the wisdom: time every candidate of many problems, and measure the machine again.

Results are saved after each problem, and problems that are known are skipped: a tuning that was interrupted
goes on where it stopped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from convalgos.api import planning
from convalgos.core import machine
from convalgos.core.machine import Machine
from convalgos.core.problem import ConvProblem
from convalgos.gpu import device as gpu
from convalgos.gpu.device import GpuMachine, measured
from convalgos.gpu.device import calibrate as gpu_calibrate
from convalgos.select import choose, devices
from convalgos.select.constraints import Constraints
from convalgos.select.measure import accuracy, race, remembered
from convalgos.select.measure.backends import backend
from convalgos.select.measure.table import time_candidates, worth_timing
from convalgos.select.measure.timing import Progress, silent

EFFORTS = ("measure", "exhaustive")
BUSY = "measured beside other programs"


@dataclass(frozen=True)
class Tuned:
    """One problem. `gain` is the time of the former pick over that of the new one, where both were timed."""

    problem: ConvProblem
    before: str | None  # what "auto" picked; None where nothing serves
    after: str | None
    gain: float | None


def is_known(problem: ConvProblem, effort: str, device: str = "cpu") -> bool:
    """Whether a problem was tuned before: with "exhaustive", whether that tried all that are not hopeless."""
    known = {i: m for i, m in devices.store(device).lookup(problem).items() if not m.adapted}
    if not any(m.failure is None for m in known.values()):
        return False
    if effort == "measure":
        return True
    return worth_timing(choose.rank(problem, device)) <= known.keys()


def tune(
    problem: ConvProblem,
    *,
    device: str = "cpu",
    effort: str = "exhaustive",
    time_budget: float | None = None,
    progress: Progress = silent,
) -> Tuned:
    """Time the candidates of a problem and remember the result.

    Args:
        device: "cpu", "cuda" or "cuda:N".
        effort: "exhaustive" times and checks all that are not hopeless; "measure" races the promising ones.
        time_budget: seconds that it may take.
    """
    ranking = choose.rank(problem, device, exhaustive=effort == "exhaustive")
    if not ranking.candidates or problem.is_empty:
        return Tuned(problem, None, None, None)
    if effort == "exhaustive":
        check = accuracy.AccuracyCheck(problem, backend(device))
        table = time_candidates(ranking, time_budget=time_budget, check=check, progress=progress)
        found = remembered.of_table(table)
    else:
        candidates, here = ranking.candidates, backend(device)
        found = race.race(problem, candidates, time_budget=time_budget, backend=here, progress=progress)
    planning.remember(problem, found, device)
    before = ranking.candidates[0].id
    decided = choose.rank(problem, device, Constraints(), measured_only=True)
    if not decided.candidates:
        return Tuned(problem, before, None, None)
    after = decided.candidates[0]
    timed = next((c.measured_s for c in decided.candidates if c.id == before), None)
    gain = timed / after.measured_s if timed and after.measured_s and before != after.id else None
    return Tuned(problem, before, after.id, gain)


def tune_device(device: str, progress: Progress = silent) -> tuple[Machine | GpuMachine, list[str]]:
    """Measure the figures of "cpu", "cuda" or "cuda:N" again and keep them; see `tune_machine`."""
    if device == "cpu":
        return tune_machine(progress)
    progress("copy and product", 0.0)
    chosen = gpu.named(device)
    with gpu.use(chosen):
        chosen.figures = measured.with_saved_constants(gpu_calibrate.measure_gpu(chosen))
    gpu_calibrate.save_figures(chosen.figures)
    planning.forget_plans()
    return chosen.figures, []


def tune_machine(progress: Progress = silent) -> tuple[Machine, list[str]]:
    """Measure the figures of this machine again and keep them.

    Returns:
        The figures, and what is wrong with them: where other programs ran, no two passes may agree. Of such a
        figure the better one of now and before is kept, since programs only make it worse.
    """
    from convalgos.cpu.runtime import calibrate  # imports llvmlite

    threads = calibrate.thread_count()
    found, disagreeing = calibrate.repeated(threads, progress=progress)
    stored = machine.load_machine(threads)
    warnings = [f"{name} differs from pass to pass: other programs are running" for name in disagreeing]
    if stored is not None:
        best = calibrate.best_of([stored, found])
        kept: dict[str, Any] = {name: getattr(best, name) for name in disagreeing}
        found = replace(found, **kept)
    doubts = machine.doubts(found)
    if disagreeing or doubts:
        found = replace(found, source=BUSY)
    machine.save_machine(found)
    devices.forget_figures()
    planning.forget_plans()
    return found, warnings + doubts
