"""Constants of the cost models that the check of a GPU found, for all GPUs of that kind.

`gpu_check` fits them to times of kernels and saves them, in the cache folder, in a file that names the GPU
and its compute capability. What it could not find stays the estimate that stands in the code. Those of a
profile (`profiles.json`: `date`, `efficiency` and `constants` of such a file, under "measured") hold for GPUs
of its name that nobody checked yet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from convalgos.core import cache_files, profiles, strict_json
from convalgos.core.cache_files import cache_folder, set_aside
from convalgos.gpu.device.calibrate import FIGURES
from convalgos.gpu.device.machine import GpuMachine

FORMAT = 1  # of the file; raise it when a constant changes its meaning
LAUNCH = "device/machine.LAUNCH"  # which is a figure of the machine, too
LIMITS = {  # constant -> what it may be. Its name: path of its file below convalgos/gpu, then the constant's
    LAUNCH: (1e-7, 1e-4),  # seconds
    "implicit_gemm_wgmma.REACHED": (0.05, 1.2),  # of what cuBLAS reaches of the peak
    "implicit_gemm_wgmma.L2_BYTES": (4.0, 256.0),
    "implicit_gemm_wgmma.FILL": (0.1, 64.0),
    "vendor/cost.LOADS": (5.0, 500.0),
    "vendor/cost.FILL": (10.0, 10000.0),
    "spectral/block_fft.ISSUED": (0.02, 1.0),
    "fft_four_step.CACHED": (0.02, 1.0),
}
POWERS = {  # of the machine's efficiency, by which a constant changes when that is measured anew
    "implicit_gemm_wgmma.REACHED": 1,
    "spectral/block_fft.ISSUED": 1,
    "vendor/cost.LOADS": -1,
}
OLD_FILES = {  # files whose names stand in what was kept before they were renamed
    "machine": "device/machine",
    "wgmma": "implicit_gemm_wgmma",
    "cudnn_cost": "vendor/cost",
    "fft_chain": "spectral/block_fft",
    "fft_steps": "fft_four_step",
}
LONGEST_NAME = 1000  # characters


def with_constants(
    figures: GpuMachine, values: Mapping[str, Any], day: Any, efficiency: float | None = None
) -> GpuMachine:
    """The figures with constants that were measured on a day, 2026-11-30.

    Args:
        efficiency: of the figures that they were measured with, if it was another one: the peak that they
            stand by has changed since, and speeds have not.

    Raises:
        ValueError: there is no such constant or day, or it cannot be that much.
    """
    values = {_today(name): value for name, value in values.items()}
    if unknown := sorted(values.keys() - LIMITS.keys()):
        raise ValueError(f"{', '.join(unknown)}: the constants are {', '.join(LIMITS)}")
    date.fromisoformat(strict_json.text("date", day, len("2026-11-30")))
    found = {name: strict_json.number(name, values[name], *LIMITS[name]) for name in sorted(values)}
    if efficiency is not None:
        scale = efficiency / figures.efficiency
        found |= {name: scale**power * found[name] for name, power in POWERS.items() if name in found}
    launch = found.get(LAUNCH, figures.launch)
    return replace(figures, launch=launch, measured=tuple(found.items()), measured_on=day)


def _today(name: str) -> str:
    """The name of a constant, also where its file had another name when it was kept."""
    file, dot, constant = name.rpartition(".")
    return f"{OLD_FILES.get(file, file)}{dot}{constant}"


def constants_text(figures: GpuMachine) -> str:
    """The file of the constants in these figures."""
    kind = {"name": figures.name, "capability": figures.capability, "date": figures.measured_on}
    found = {"efficiency": figures.efficiency, "constants": dict(figures.measured)}
    return json.dumps({"format": FORMAT, **kind, **found}, indent=1) + "\n"


def save_constants(figures: GpuMachine) -> Path:
    """For later processes; where."""
    path = _path(figures)
    cache_files.keep(path, constants_text(figures), "constants of the GPU")
    return path


def with_saved_constants(figures: GpuMachine) -> GpuMachine:
    """The figures with what was measured on GPUs of this kind; a damaged file is set aside with a warning."""
    path = _path(figures)
    try:
        stored = strict_json.of_format(path.read_text("utf-8"), FORMAT)
        told = [strict_json.text("name", stored.get("name"), LONGEST_NAME), stored.get("capability")]
        if told != [figures.name, [*figures.capability]]:
            raise ValueError("of another kind of GPU")
        values = stored.get("constants")
        if not isinstance(values, dict):
            raise ValueError("without constants")
        efficiency = strict_json.number("efficiency", stored.get("efficiency"), *FIGURES["efficiency"])
        return with_constants(figures, values, stored.get("date"), efficiency)
    except (FileNotFoundError, NotADirectoryError):
        return shipped(figures)
    except (OSError, ValueError) as error:
        set_aside(path, str(error))
        return shipped(figures)


def shipped(figures: GpuMachine) -> GpuMachine:
    """The figures with what the profile of GPUs of this name says, if anything."""
    for name in profiles.of_gpus():
        profile = profiles.profiles()[name]
        of_kind = figures.is_a(profile["name"]) and [*figures.capability] == profile["capability"]
        if of_kind and (found := profile.get("measured")):
            return with_constants(figures, found["constants"], found["date"], found["efficiency"])
    return figures


def _path(figures: GpuMachine) -> Path:
    major, minor = figures.capability
    return cache_folder() / "machine" / f"{figures.fingerprint}-sm{major}{minor}-constants.json"
