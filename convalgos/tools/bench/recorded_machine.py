"""The figures of the machine or GPU on which a table was recorded, read from its JSON and checked."""

from __future__ import annotations

from dataclasses import MISSING, asdict, fields
from typing import Any

from convalgos.core import strict_json
from convalgos.core.machine import Machine, checked_figures
from convalgos.gpu.device import GpuMachine
from convalgos.gpu.device.measured import with_constants


def read_machine(found: dict[str, Any]) -> Machine | GpuMachine:
    """The figures of the machine of a table."""
    if "capability" not in found:
        # old tables do not have the figures that may be None
        names = (f.name for f in fields(Machine) if f.default is not None or f.name in found)
        return checked_figures({name: found[name] for name in names})
    major, minor = found["capability"]
    values = {f.name: found[f.name] for f in fields(GpuMachine) if f.name in found or f.default is MISSING}
    for name, value in values.items():
        if name in ("name", "source", "measured_on"):
            strict_json.text(name, value, 1000)
        elif name not in ("capability", "measured"):
            strict_json.number(name, value, 0.0, 1e20)
    constants, day = dict(values.pop("measured", ())), values.pop("measured_on", "")
    machine = GpuMachine(**{**values, "capability": (int(major), int(minor))})
    return with_constants(machine, constants, day) if constants else machine


def machine_figures(machine: Machine | GpuMachine) -> dict[str, Any]:
    """What a table keeps of a machine: figures that nobody measured are left out, and how often they were."""
    return {n: value for n, value in asdict(machine).items() if value is not None and n != "passes"}
