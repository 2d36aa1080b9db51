"""The command: `python -m convalgos.tools.gpu_check [SUITE ...]`."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from convalgos.core.errors import Unsupported
from convalgos.core.version import __version__
from convalgos.gpu import device as gpu
from convalgos.tools import gpu_check
from convalgos.tools.bench.results import versions
from convalgos.tools.bench.suites import suites
from convalgos.tools.console.exit_status import DONE, FAILED, REFUSED
from convalgos.tools.console.termination import status, terminable
from convalgos.tools.gpu_check import baselines, phases, sanitize
from convalgos.tools.gpu_check.reference_answers import Answers
from convalgos.tools.gpu_check.report import Report
from convalgos.tools.gpu_check.results import Result
from convalgos.tools.gpu_check.summary import summary
from convalgos.tools.gpu_check.worker import Apart, NoDeviceError, Worker

SECONDS = 450.0  # of all, so that the whole command takes less than eight minutes
QUICK_SECONDS = 150.0
SPARE = 10.0  # of these, for what is under way when they are spent, and for the report


def main(arguments: Sequence[str] | None = None, worker: Worker | None = None) -> int:
    """Check a GPU.

    Args:
        arguments: of the command line.
        worker: what runs the jobs; by default processes that are started for it.

    Returns:
        The exit status: 1 where a result is wrong, or where not all could be checked.
    """
    began = time.monotonic()
    parser = _parser()
    given = parser.parse_args(arguments)
    if unknown := set(given.suites) - set(suites()):
        parser.error(f"no suite {', '.join(sorted(unknown))}; there are {', '.join(suites())}")
    try:
        stages = phases.stages(given.quick, given.phases.split(",") if given.phases else None)
    except ValueError as error:
        parser.error(f"--phases: {error}")
    if given.one:
        return _one(parser, given.device, given.one)
    command = [
        "python",
        "-m",
        "convalgos.tools.gpu_check",
        *(sys.argv[1:] if arguments is None else arguments),
    ]
    with tempfile.TemporaryDirectory(prefix="convalgos-gpu-check-") as folder, terminable():
        wheels, answers = Path(folder, "wheels"), Path(folder, "answers")
        answers.mkdir()
        notes = _front_end(wheels)
        worker = worker or Apart(given.device, paths=[str(wheels)])
        try:
            found = worker.ready()
        except (NoDeviceError, KeyboardInterrupt) as error:
            worker.close()
            if isinstance(error, KeyboardInterrupt):
                return status(error)
            print(f"{given.device}: {error}", file=sys.stderr)
            return REFUSED
        every = {"convalgos": __version__} | versions() | found.versions
        report = Report(shlex.join(command), found.figures, every, notes=notes)
        layers = [layer for name in given.suites or suites() for layer in suites()[name]]
        seconds = given.seconds or (QUICK_SECONDS if given.quick else SECONDS)
        until = began + seconds - SPARE
        setting = phases.Setting(worker, layers, given.device, until, Answers(answers), given.out)
        try:
            report.write(given.out)
        except OSError as error:
            worker.close()
            parser.error(f"--out: {error}")
        return _carried_out(stages, setting, report, given.out)


def _carried_out(
    stages: Sequence[phases.Stage], setting: phases.Setting, report: Report, folder: Path
) -> int:
    """Run all stages; the report is whole after every case, and the summary is printed last."""
    ended = None
    try:
        for stage in stages:
            _run(stage, setting, report, folder)
    except KeyboardInterrupt as reason:
        ended = status(reason)
        report.notes.append("ended before its time by a signal")
    except NoDeviceError as error:
        ended = FAILED
        report.notes.append(f"the device was lost: {error}")
    finally:
        report.write(folder)  # who sent a signal may not wait for long
        setting.worker.close()
        if abandoned := setting.worker.abandoned:
            report.notes.append(f"{abandoned} processes could not be ended, and were left to themselves")
        path = report.write(folder)
    print("\n".join(summary(report, path)), flush=True)
    if ended is not None:
        return ended
    needed = {phase.name for stage in stages for phase in stage.phases if phase.needed}
    complete = not needed & set(report.unfinished)
    checked = [r for r in report.results if r.error is not None]
    return DONE if checked and complete and not report.wrong else FAILED


def _run(stage: phases.Stage, setting: phases.Setting, report: Report, folder: Path) -> None:
    """A stage; the report is written where a case ends."""
    began, last = time.monotonic(), ""
    names = [phase.name for phase in stage.phases]
    print(f"{', '.join(names)} ...", flush=True)
    for name, found in stage.run(setting):
        report.add(name, found)
        report.barred = [*setting.worker.quarantine.told()]
        if isinstance(found, Result) and found.wrong:
            setting.failed.add(found.algorithm)
            print(f"WRONG {found}", flush=True)
        now = found.problem if isinstance(found, Result) else ""
        if now != last or not now:
            report.write(folder)
            last = now
    took = f"{time.monotonic() - began:.1f} s"
    for name in names:
        cut = report.phases.get(name)
        report.phases[name] = f"{took}, {cut}" if cut else took
        print(f"{name}: {report.phases[name]}", flush=True)
    report.write(folder)


def _parser() -> argparse.ArgumentParser:
    every = [phase for stage in phases.QUICK + phases.REST for phase in stage.phases]
    listed = "\n".join(f"  {phase.name:12}{phase.about}" for phase in every)
    quick = ", ".join(phase.name for stage in phases.QUICK for phase in stage.phases)
    parser = argparse.ArgumentParser(
        prog="python -m convalgos.tools.gpu_check",
        description=gpu_check.__doc__,
        epilog=f"phases:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = ", ".join(suites())
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {known}; all by default")
    parser.add_argument("--device", default="cuda:0", help="cuda:N")
    out = Path(os.environ.get("OUT") or "docs/results")
    parser.add_argument("--out", type=Path, default=out, help="folder of the report: $OUT, or docs/results")
    parser.add_argument(
        "--quick", action="store_true", help=f"{quick} only, in at most {QUICK_SECONDS:.0f} seconds"
    )
    parser.add_argument("--phases", metavar="NAME,...", help="of those below; all by default")
    parser.add_argument("--seconds", type=float, help=f"that all may take: {SECONDS:.0f} by default")
    parser.add_argument("--one", metavar="ALGORITHM", help="run each of its kernels once, and nothing else")
    return parser


def _one(parser: argparse.ArgumentParser, name: str, algorithm: str) -> int:
    """What the sanitizer watches."""
    try:
        device = gpu.named(name)
    except (ValueError, Unsupported) as error:
        parser.error(str(error))
    with gpu.use(device):
        print(", ".join(sanitize.one(device, algorithm)))
    return DONE


def _front_end(folder: Path) -> list[str]:
    """Unpack cuDNN's front end where a wheel of it was brought along; what is to be told of that."""
    if not (wheels := os.environ.get(baselines.FOLDER)):
        return []
    try:
        return [f"cuDNN's front end is {baselines.unpack_wheels(Path(wheels), folder)}"]
    except ValueError as error:
        return [str(error)]


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # what could not be ended is not waited for
