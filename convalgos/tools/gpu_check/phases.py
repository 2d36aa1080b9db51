"""The parts of a check in their order, and the seconds that each may take.

The quick ones come first, those of a full check after them. Parts of a stage run at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from convalgos.core.near_names import did_you_mean
from convalgos.core.problem import DIRECTIONS
from convalgos.gpu.launch.algorithm import GpuAlgorithm
from convalgos.select import registry
from convalgos.tools.bench.suites import Layer
from convalgos.tools.gpu_check import cases, checks, compiling, pooling, probe, quick, sanitize, sweep, timing
from convalgos.tools.gpu_check.reference_answers import Answers
from convalgos.tools.gpu_check.results import Result
from convalgos.tools.gpu_check.worker import Task, Worker

QUICK_STEP = 15.0  # seconds that a step of a quick phase may take: a plan compiles beside all the others
ANSWERING = 15.0  # seconds that algorithms wait for the answers of large problems
LANES = 6  # processes that check at once: small problems, and some of them may hang
CHECKED = 0.35  # of their time, for their results
OF_EACH = 3  # layers of a kind in the quick times


@dataclass
class Setting:
    """What all phases know.

    Attributes:
        answers: of large problems, for those that compare with them.
        failed: the algorithms that were wrong so far.
    """

    worker: Worker
    layers: Sequence[Layer]
    device: str
    until: float  # a moment of `time.monotonic`
    answers: Answers
    folder: Path  # of the report
    failed: set[str] = field(default_factory=set)


Found = Iterator[tuple[str, Any]]  # (phase, what was found)


@dataclass(frozen=True)
class CheckPhase:
    """A part of the check.

    Attributes:
        seconds: that it may take, of those of the whole check.
        begin: its tasks, which are to end at a moment.
        needed: where it was cut, the check has failed.
    """

    name: str
    about: str
    seconds: float
    begin: Callable[[Setting, float], list[Task]]
    needed: bool = False


@dataclass(frozen=True)
class Stage:
    """Phases that run at once, in so many processes."""

    phases: tuple[CheckPhase, ...]
    lanes: int = 1

    def run(self, setting: Setting) -> Found:
        now = time.monotonic()
        ends = {p.name: min(setting.until, now + p.seconds) for p in self.phases}
        tasks = [task for phase in self.phases for task in phase.begin(setting, ends[phase.name])]
        for task, found in setting.worker.run(tasks, max(ends.values()), self.lanes):
            yield task.phase, found


def _job(
    name: str, function: Callable[..., Iterator[Any]], most: float | None = None, **arguments: Any
) -> Task:
    task = Task(name, partial(function, **arguments))
    if most is not None:
        task.most = most
    return task


# --- the quick ones ------------------------------------------------------------------------------


def _ceilings(setting: Setting, until: float) -> list[Task]:
    return [_job("ceilings", timing.ceilings, QUICK_STEP, until=until)]


def _driver(setting: Setting, until: float) -> list[Task]:
    return [_job("driver", probe.tensor_maps, QUICK_STEP)]


def _compile(setting: Setting, until: float) -> list[Task]:
    return [_job("compile", compiling.compile_builds, until=until)]


def _algorithms(setting: Setting, until: float) -> list[Task]:
    """The answers of large problems, then a process for each algorithm, which do not wait for ever."""
    answering = _job(
        "algorithms", quick.answer_large_problems, QUICK_STEP, answers=setting.answers, until=until
    )
    found, latest = [answering], time.monotonic() + ANSWERING
    for name in quick.gpu_algorithms():
        task = _job(
            "algorithms", quick.check_each, QUICK_STEP, algorithm=name, answers=setting.answers, until=until
        )
        task.own, task.after, task.not_after = True, answering, latest
        found.append(task)
    return found


def _telling(setting: Setting, until: float) -> list[Task]:
    """The same layers are checked first, at some places."""
    chosen = cases.telling(setting.layers, OF_EACH)
    name, now = "telling", time.monotonic()
    soon = now + CHECKED * (until - now)
    first = _job(
        name, checks.check_algorithms, QUICK_STEP, cases=chosen, thorough=False, until=soon, whose="ours"
    )
    then = _job(name, timing.layers, QUICK_STEP, cases=chosen, until=until)
    return [first, then]


QUICK = (
    Stage(
        (
            CheckPhase("ceilings", "a copy beyond L2, products of large matrices", 15.0, _ceilings),
            CheckPhase(
                "driver", "which maps the driver encodes for copies of the copy engine", 15.0, _driver
            ),
        )
    ),
    Stage(
        (
            CheckPhase("compile", "all kernels, CuPy's own too, in the background", 25.0, _compile),
            CheckPhase(
                "algorithms", "one regular and one odd problem for each algorithm and type", 45.0, _algorithms
            ),
        ),
        LANES,
    ),
    Stage((CheckPhase("telling", "three of each kind, checked and timed beside cuDNN", 80.0, _telling),)),
)

# --- the others ----------------------------------------------------------------------------------

WHOLE = 1e6  # seconds: as many as there are
SWEEPING = 60.0  # of these, which times leave


def _awkward(setting: Setting, until: float) -> list[Task]:
    chosen = cases.of_texts("awkward", cases.AWKWARD)
    return [_job("awkward", checks.check_algorithms, cases=chosen, thorough=True, until=until, whose="ours")]


def _in_use(setting: Setting, until: float) -> list[Task]:
    return [_job("in-use", checks.behave, cases=cases.of_texts("used", cases.USED), until=until)]


def _layers(setting: Setting, until: float) -> list[Task]:
    chosen = [case for case in cases.by_importance(setting.layers) if case.problem.direction == DIRECTIONS[0]]
    return [_job("layers", checks.check_algorithms, cases=chosen, thorough=False, until=until, whose="ours")]


def _gradients(setting: Setting, until: float) -> list[Task]:
    name, turned = "gradients", DIRECTIONS[1:]
    awkward = cases.of_texts("awkward", cases.AWKWARD[::2], turned)
    used = cases.of_texts("used", cases.USED_BACKWARD, turned)
    return [
        _job(name, checks.check_algorithms, cases=awkward, thorough=True, until=until, whose="ours"),
        _job(name, checks.behave, cases=used, until=until),
        _job(
            name,
            checks.check_algorithms,
            cases=cases.gradient_cases(setting.layers),
            thorough=False,
            until=until,
            whose="ours",
        ),
    ]


def _cudnn(setting: Setting, until: float) -> list[Task]:
    chosen = cases.of_texts("awkward", cases.AWKWARD[::2], DIRECTIONS)
    return [_job("cudnn", checks.check_algorithms, cases=chosen, thorough=True, until=until, whose="cuDNN's")]


def _pooling(setting: Setting, until: float) -> list[Task]:
    return [_job("pooling", pooling.check_pooling, until=until)]


def _calls(setting: Setting, until: float) -> list[Task]:
    return [_job("calls", timing.calls, until=until)]


def _signals(setting: Setting, until: float) -> list[Task]:
    return [_job("signals", timing.layers, cases=cases.causal(), until=until, beside="FFTs")]


def _times(setting: Setting, until: float) -> list[Task]:
    last = until - SWEEPING
    return [_job("times", timing.layers, cases=cases.by_importance(setting.layers), until=last)]


def _sweep(setting: Setting, until: float) -> list[Task]:
    return [_job("sweep", sweep.sweep, until=until, folder=setting.folder)]


class Sanitizing(Stage):
    """NVIDIA's tool over what failed; it starts processes of its own."""

    def run(self, setting: Setting) -> Found:
        (phase,) = self.phases
        kernels = [a.id for a in registry.algorithms("gpu") if isinstance(a, GpuAlgorithm) and [*a.builds()]]
        failed = [name for name in kernels if name in setting.failed]
        program = sanitize.tool()
        if failed and program is None:
            yield phase.name, Result("sanitizer", "", "", "not run: compute-sanitizer was not found")
        elif failed and program is not None:
            last = min(setting.until, time.monotonic() + phase.seconds)
            for found in sanitize.sanitize(program, failed, setting.device, last):
                yield phase.name, found


REST = (
    Stage((CheckPhase("awkward", "sizes that are awkward for kernels", WHOLE, _awkward, True),)),
    Stage((CheckPhase("in-use", "plans repeated, captured, in threads, on views", WHOLE, _in_use, True),)),
    Stage((CheckPhase("layers", "the layers of the suites", 120.0, _layers),)),
    Stage((CheckPhase("gradients", "of awkward problems and of layers", 60.0, _gradients),)),
    Stage((CheckPhase("cudnn", "cuDNN's plans on awkward problems", 50.0, _cudnn),)),
    Stage((CheckPhase("pooling", "maxima and means of windows", 30.0, _pooling),)),
    Sanitizing((CheckPhase("sanitizer", "compute-sanitizer over what failed", 60.0, lambda *_: []),)),
    Stage((CheckPhase("calls", "the host's time", 30.0, _calls),)),
    Stage((CheckPhase("signals", "long causal filters beside FFTs", 40.0, _signals),)),
    Stage((CheckPhase("times", "all layers beside cuDNN", WHOLE, _times),)),
    Stage((CheckPhase("sweep", "constants of the cost models", SWEEPING, _sweep),)),
)


def stages(quick_only: bool, names: Collection[str] | None) -> list[Stage]:
    """The stages of a check.

    Args:
        names: of phases; None for all.

    Raises:
        ValueError: there is no such phase.
    """
    every = QUICK if quick_only else QUICK + REST
    known = [phase.name for stage in every for phase in stage.phases]
    for name in names or ():
        if name not in known:
            raise ValueError(f"no phase {name!r}{did_you_mean(name, known)} (of {', '.join(known)})")
    parts = ((stage, tuple(p for p in stage.phases if names is None or p.name in names)) for stage in every)
    return [replace(stage, phases=phases) for stage, phases in parts if phases]
