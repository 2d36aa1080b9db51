"""Finds the studies of this room, runs one, and collects its answer."""

from __future__ import annotations

import pkgutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib import import_module

import convalgos.studies
from convalgos.core.machine import Machine
from convalgos.core.near_names import did_you_mean
from convalgos.gpu import device as gpu
from convalgos.gpu.device import GpuMachine
from convalgos.select import devices
from convalgos.studies.study import Answer, Finding, NotRun, Part, Study, StudySetting
from convalgos.tools.bench.results import versions


@dataclass
class StudyResult:
    """The answer of a study as it grows, and on what it was found."""

    study: Study
    machine: Machine | GpuMachine
    versions: dict[str, str]
    command: str
    threads: int
    started: str = field(default_factory=lambda: f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC")
    seconds: float = 0.0
    parts: list[Part] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    not_run: list[NotRun] = field(default_factory=list)

    def add(self, answer: Answer) -> None:
        """Take in a part of the answer."""
        if isinstance(answer, Part):
            self.parts.append(answer)
        elif isinstance(answer, Finding):
            self.findings.append(answer)
        else:
            self.not_run.append(answer)


@cache
def studies() -> dict[str, Study]:
    """name -> study, of every file of this room that has a `STUDY`."""
    found = []
    for info in pkgutil.iter_modules(convalgos.studies.__path__, "convalgos.studies."):
        study = getattr(import_module(info.name), "STUDY", None)
        if isinstance(study, Study):
            found.append(study)
    return {study.name: study for study in sorted(found, key=lambda study: study.name)}


def find_study(name: str) -> Study:
    """The study of a name.

    Raises:
        ValueError: there is none; the message suggests the nearest.
    """
    known = studies()
    if name not in known:
        raise ValueError(f"study={name!r} must be one of {', '.join(known)}{did_you_mean(name, list(known))}")
    return known[name]


def new_result(study: Study, device: str, threads: int, command: str) -> StudyResult:
    """An empty result, with the figures of the machine: of the GPU where there is one and it is asked for."""
    on_gpu = device == "gpu" and gpu.why_none() is None
    machine = devices.measured_figures(devices.current_device("gpu") if on_gpu else "cpu")
    return StudyResult(study, machine, versions(), command, threads)


def run_study(result: StudyResult, setting: StudySetting, shown: Callable[[Answer], None]) -> None:
    """Fill a result, and show each part of the answer as it comes."""
    began = time.perf_counter()
    for answer in result.study.parts(setting):
        result.add(answer)
        result.seconds = time.perf_counter() - began
        shown(answer)
    result.seconds = time.perf_counter() - began
