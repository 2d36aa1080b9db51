"""What the selector knows of the devices: their figures, and what was measured on them."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache
from typing import Any

from convalgos.core import machine as machine_figures
from convalgos.core import profiles
from convalgos.core.machine import Machine
from convalgos.core.setting import Setting, setting
from convalgos.select.wisdom_file import Store

_figures: dict[Setting, Machine] = {}  # of this machine
_unkept: dict[int, Machine] = {}  # by threads, what this process measured, and may not be able to keep
_measurings = 0  # how often figures were forgotten


def current_machine() -> Machine:
    """The figures of this machine: those that were measured, or nominal ones; nothing is timed here.

    They are those of as many threads as there are now. CONVALGOS_PROFILE names shipped ones to take instead.
    """
    now = setting()
    found = _figures.get(now)
    if found is None:
        threads = now[0]
        found = _figures[now] = (
            profiles.chosen(threads)
            or machine_figures.load_machine(threads)
            or _unkept.get(threads)
            or profiles.nominal(threads)
        )
    return found


def forget_figures() -> None:
    """Read the figures of this machine again when they are asked for next; choices by the old ones end."""
    global _measurings
    _measurings += 1
    _figures.clear()


def choice_key(device: str) -> tuple[Any, ...]:
    """What choices on a device depend on beside the problem: threads, profile, and the figures measured."""
    return (device, *setting(), _measurings)


def measured_machine() -> Machine:
    """`current_machine`, measured in two seconds where it never was: for what takes its time anyway.

    Other programs make figures worse, so that the next processes that come here measure again and keep the
    best, until two passes agree. Later choices go by what was measured.
    """
    from convalgos.cpu.runtime import calibrate  # imports llvmlite

    known, (threads, profile) = current_machine(), setting()
    settled = profile or (known.passes or 1) >= calibrate.PASSES or threads in _unkept
    if not known.is_nominal and settled:
        return known
    found = calibrate.measure(threads)
    if not known.is_nominal:
        found = calibrate.best_of([known, found])
    elif machine_figures.doubts(found):
        found, _ = calibrate.repeated(threads)
    if doubts := machine_figures.doubts(found):
        found = replace(found, source="measured beside other programs")
        told = f"{'; '.join(doubts)}; convalgos tune --machine measures again"
        warnings.warn(f"other programs disturbed the measuring of this machine: {told}", stacklevel=2)
    machine_figures.save_machine(found)
    _unkept[threads] = found
    forget_figures()
    return found


def figures(device: str) -> Any:
    """The figures of "cpu" (a `Machine`) or of "cuda:N" (a `GpuMachine`), as cost models read them."""
    return current_machine() if device == "cpu" else _gpu().named(device).figures


def measured_figures(device: str) -> Any:
    """`figures`, which of the CPU are measured where they never were."""
    return measured_machine() if device == "cpu" else figures(device)


def working_on(device: str) -> AbstractContextManager[Any]:
    """Within it, the GPU algorithms look at, compile for and run on this device."""
    return nullcontext() if device == "cpu" else _gpu().use(_gpu().named(device))


def current_device(kind: str) -> str:
    """The name of the device of a kind, "cpu" or "gpu", that the calling thread works on."""
    found: str = kind if kind == "cpu" else _gpu().current().name
    return found


def _gpu() -> Any:
    """What there is of GPUs, imported where one is asked for."""
    from convalgos.gpu import device

    return device


def store(device: str = "cpu") -> Store:
    """What was measured on this machine with as many threads as now, or on GPUs of one kind."""
    return _cpu_store(setting()[0]) if device == "cpu" else store_of(figures(device).fingerprint)


@cache
def _cpu_store(threads: int) -> Store:
    return Store(machine_figures.fingerprint(threads))


@cache
def store_of(fingerprint: str) -> Store:
    """What was measured on another machine, or on GPUs of a kind."""
    return Store(fingerprint)
