"""The command: `python -m convalgos.gpu_check [SUITE ...]`."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from convalgos import gpu_check, select
from convalgos.algorithm import Unsupported
from convalgos.bench import versions
from convalgos.gpu import device as gpu
from convalgos.gpu.plan import GpuAlgorithm
from convalgos.gpu_check import cases, checks, compiling, sanitize, times
from convalgos.gpu_check.report import Report
from convalgos.gpu_check.results import Result
from convalgos.gpu_check.worker import PATIENCE, Apart, Worker
from convalgos.problem import DIRECTIONS
from convalgos.suites import Layer, suites
from convalgos.version import __version__

SECONDS = 450.0  # of all, so that the whole command takes less than eight minutes
SPARE = 10.0  # of these, for what is under way when they are spent, and for the report
COMPILING = 120.0  # seconds, after which plans compile what they need themselves
CUDNN = 50.0  # seconds for its plans, which take long to be made
SANITIZING = 60.0
GRADIENTS = 60.0  # seconds for those of large layers
SIGNALS = 40.0
EVERY = 5.0  # seconds after which the report is brought up to date


@dataclass(frozen=True)
class Phase:
    """A part of the check. Where one that is needed was cut, the check has failed."""

    name: str
    found: Callable[[], Iterator[Any]]
    needed: bool = True


def phases(
    worker: Worker, layers: Sequence[Layer], device: gpu.Device, until: float, timing: bool
) -> Iterator[Phase]:
    """In their order: nothing is timed before all was checked.

    Args:
        until: a moment of `time.monotonic`; each phase ends soon after it.
        timing: whether anything is timed at all.
    """

    def run(
        function: Callable[..., Iterator[Any]], patience: float = PATIENCE, **arguments: Any
    ) -> Callable[[], Iterator[Any]]:
        return partial(worker.run, partial(function, **arguments), patience)

    last = min(until, time.monotonic() + COMPILING)
    yield Phase("compile", run(compiling.compile_all, COMPILING, until=last), needed=False)
    awkward = cases.of_texts("awkward", cases.AWKWARD)
    ours = run(checks.check, cases=awkward, thorough=True, until=until, whose="ours")
    yield Phase("awkward problems", ours)
    used = cases.of_texts("used", cases.USED)
    yield Phase("plans in use", run(checks.behave, cases=used, until=until))
    checked = cases.of_layers(layers)
    yield Phase("layers", run(checks.check, cases=checked, thorough=False, until=until, whose="ours"))
    turned = cases.of_texts("awkward", cases.AWKWARD[::2], DIRECTIONS[1:])
    ours = run(checks.check, cases=turned, thorough=True, until=until, whose="ours")
    yield Phase("gradients of awkward problems", ours)
    used = cases.of_texts("used", cases.USED_BACKWARD, DIRECTIONS[1:])
    yield Phase("gradients in use", run(checks.behave, cases=used, until=until))
    last = min(until, time.monotonic() + GRADIENTS)
    checked = cases.gradients(layers)
    ours = run(checks.check, cases=checked, thorough=False, until=last, whose="ours")
    yield Phase("gradients of layers", ours, needed=False)
    last = min(until, time.monotonic() + CUDNN)
    turned = cases.of_texts("awkward", cases.AWKWARD[::2], DIRECTIONS)
    theirs = run(checks.check, cases=turned, thorough=True, until=last, whose="cuDNN's")
    yield Phase("cuDNN", theirs, needed=False)
    program = sanitize.tool()
    if program is None:
        yield Phase("sanitizer: compute-sanitizer was not found", lambda: iter(()), needed=False)
    else:
        ids = [a.id for a in select.algorithms("gpu") if isinstance(a, GpuAlgorithm) and [*a.builds()]]
        last = min(until, time.monotonic() + SANITIZING)
        sanitizing = partial(sanitize.sanitize, program, ids, device.name, last)
        yield Phase("sanitizer", sanitizing, needed=False)
    if timing:
        yield Phase("ceilings", run(times.ceilings, until=until), needed=False)
        yield Phase("calls", run(times.calls, until=until), needed=False)
        last = min(until, time.monotonic() + SIGNALS)
        signals = run(times.layers, cases=cases.causal(), until=last, beside="FFTs")
        yield Phase("signals", signals, needed=False)
        ordered = cases.by_importance(layers)
        yield Phase("times", run(times.layers, cases=ordered, until=until), needed=False)


def carry_out(every: Iterator[Phase], report: Report, folder: Path) -> bool:
    """Run all phases, and keep the report up to date; False where a needed one was cut."""
    complete = True
    written = time.monotonic()
    for phase in every:
        begun = time.monotonic()
        print(f"{phase.name} ...", flush=True)
        for found in phase.found():
            report.add(phase.name, found)
            if isinstance(found, Result) and found.wrong:
                print(f"WRONG {found}", flush=True)
            if time.monotonic() > written + EVERY:
                report.write(folder)
                written = time.monotonic()
        took = f"{time.monotonic() - begun:.1f} s"
        cut = report.phases.get(phase.name)
        report.phases[phase.name] = f"{took}, {cut}" if cut else took
        print(f"{phase.name}: {report.phases[phase.name]}", flush=True)
        complete = complete and not (phase.needed and cut)
    return complete


def main(arguments: Sequence[str] | None = None, worker: Worker | None = None) -> int:
    """Check a GPU.

    Args:
        arguments: of the command line.
        worker: what runs the jobs; by default processes that are started for it.

    Returns:
        The exit status: 1 where a result is wrong, or where not all could be checked.
    """
    began = time.monotonic()
    parser = argparse.ArgumentParser(prog="python -m convalgos.gpu_check", description=gpu_check.__doc__)
    known = ", ".join(suites())
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {known}; all by default")
    parser.add_argument("--device", default="cuda:0", help="cuda:N")
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="folder of the report")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="that all may take")
    parser.add_argument("--no-times", action="store_true", help="check only")
    parser.add_argument("--one", metavar="ALGORITHM", help="run each of its kernels once, and nothing else")
    given = parser.parse_args(arguments)
    if unknown := set(given.suites) - set(suites()):
        parser.error(f"no suite {', '.join(sorted(unknown))}; there are {known}")
    try:
        device = gpu.named(given.device)
    except (ValueError, Unsupported) as error:
        parser.error(str(error))
    if given.one:
        with gpu.use(device):
            print(", ".join(sanitize.one(device, given.one)))
        return 0
    layers = [layer for name in given.suites or suites() for layer in suites()[name]]
    command = ["python", "-m", "convalgos.gpu_check", *(sys.argv[1:] if arguments is None else arguments)]
    report = Report(
        shlex.join(command), device.figures, {"convalgos": __version__} | versions() | device.versions()
    )
    until = began + given.seconds - SPARE
    worker = worker or Apart(device.name, until)
    try:
        every = phases(worker, layers, device, until, not given.no_times)
        complete = carry_out(every, report, given.out)
    finally:
        worker.close()
        path = report.write(given.out)
    checked = [r for r in report.results if r.error is not None]
    print(f"{len(report.results)} checks, {len(report.wrong)} wrong; report in {path}")
    return 0 if checked and complete and not report.wrong else 1


if __name__ == "__main__":
    sys.exit(main())
