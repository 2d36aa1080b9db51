"""Calibration of a GPU: figures of which the driver tells nominal values only are measured, and saved.

They are saved as those of the CPU are: in the cache folder, in a file named after GPUs of the kind.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from convalgos.core import cache_files, strict_json
from convalgos.core.cache_files import cache_folder, set_aside
from convalgos.gpu.device.machine import Device, GpuMachine

FORMAT = 1  # of the file; raise it when a figure changes its meaning
FIGURES = {"bandwidth": (1e3, 1e16), "efficiency": (1e-12, 1e3)}  # and what a file may say
TRIES = 5  # of which the fastest counts: other programs only slow a GPU down
COPIED = 1 << 30  # bytes: far more than L2 holds
SQUARE = 8192  # rows and columns of the matrices that are multiplied


def measure_gpu(device: Device) -> GpuMachine:
    """The figures, with a copy and a product of float32 matrices timed on the device."""
    figures = device.figures
    share = product_rate(device, "float32") / figures.peak("float32")  # of what the figures promised
    return replace(
        figures,
        bandwidth=copy_bandwidth(device),
        efficiency=figures.efficiency * share,
        source="measured",
    )


def copy_bandwidth(device: Device) -> float:
    """Bytes/s, read plus written, beyond L2."""
    source = device.xp.zeros(COPIED // 4, np.float32)
    target = device.xp.empty_like(source)
    return 2 * COPIED / _fastest(device, lambda: device.xp.copyto(target, source))


def product_rate(device: Device, dtype: str) -> float:
    """flop/s of a product of large matrices through cuBLAS."""
    numbers = np.random.default_rng(0).standard_normal((SQUARE, SQUARE), np.float32)
    a = device.xp.asarray(numbers.astype(dtype))
    product = device.xp.empty_like(a)
    return 2 * SQUARE**3 / _fastest(device, lambda: device.xp.matmul(a, a, out=product))


def save_figures(figures: GpuMachine) -> None:
    """For later processes."""
    text = json.dumps({"format": FORMAT, **{name: getattr(figures, name) for name in FIGURES}}, indent=1)
    cache_files.keep(_path(figures), text, "figures of the GPU")


def with_saved_figures(figures: GpuMachine) -> GpuMachine:
    """The figures with those that were measured before; a damaged file is set aside with a warning."""
    path = _path(figures)
    try:
        stored = strict_json.of_format(path.read_text("utf-8"), FORMAT)
        found: dict[str, Any] = {
            name: strict_json.number(name, stored.get(name), *limits) for name, limits in FIGURES.items()
        }
    except (FileNotFoundError, NotADirectoryError):
        return figures
    except (OSError, ValueError) as error:
        set_aside(path, str(error))
        return figures
    return replace(figures, **found, source="measured")


def _fastest(device: Device, call: Callable[[], object]) -> float:
    call()
    return min(device.elapsed(call) for _ in range(TRIES))


def _path(figures: GpuMachine) -> Path:
    return cache_folder() / "machine" / f"{figures.fingerprint}.json"
