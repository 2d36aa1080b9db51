"""Layer functions on a GPU: torch's with cuDNN, and the convolutions of convalgos."""

from __future__ import annotations

from typing import Any

import numpy as np

import convalgos as ca
from convalgos.core.errors import missing
from convalgos.select import devices
from convalgos.select.measure.backends import backend
from convalgos.select.measure.timing import interleave, runner
from convalgos.studies.layer_functions import FUNCTIONS, PAD, LayerData
from convalgos.studies.library_functions import torch_steps
from convalgos.studies.study import Chart, Part, StudyColumn, StudySetting


def gpu_part(data: LayerData, seconds: dict[str, dict[str, float]], setting: StudySetting) -> Part:
    """The table of the GPU: each function there, and the lead over the fastest and over NumPy on the CPU."""
    device = devices.current_device("gpu")
    found: dict[str, dict[str, float]] = {"convalgos": _convolutions(data, device, setting)}
    if not missing("torch"):
        found["torch"] = _torch(data, device, setting)
    rows = []
    for function in FUNCTIONS:
        times = [by.get(function) for by in found.values()]
        there = min((t for t in times if t is not None), default=None)
        cpu = min(by[function] for by in seconds.values() if function in by)
        leads = (None, None) if there is None else (seconds["NumPy"][function] / there, cpu / there)
        rows.append((function, *(None if t is None else 1e6 * t for t in times), *leads))
    return Part(
        f"On the GPU, {data.sizes}",
        "Time of a call by the GPU's own clock, data in its memory; the lead over the CPU beside it.",
        (
            StudyColumn("function"),
            *(StudyColumn(name, "us") for name in found),
            StudyColumn("over NumPy", "x"),
            StudyColumn("over the fastest", "x"),
        ),
        tuple(rows),
        Chart("bars", "function", ("over NumPy", "over the fastest"), log_y=True),
    )


def _convolutions(data: LayerData, device: str, setting: StudySetting) -> dict[str, float]:
    d, of = data, backend(device)
    problem = ca.ConvProblem(d.x.shape, d.w.shape, padding=PAD)
    arrays = {
        "convolution": (problem, d.x, d.w),
        "convolution dx": (problem.replace(direction="backward_data"), d.dy, d.w),
        "convolution dw": (problem.replace(direction="backward_weights"), d.x, d.dy),
    }
    calls: dict[str, Any] = {}
    with of.working():
        for name, (asked, first, second) in arrays.items():
            y = of.empty(asked.result_shape, np.dtype(np.float32))
            calls[name] = runner(ca.plan(asked, device), of.put(first), of.put(second), y)
        timings = interleave(calls, backend=of, deadline=setting.deadline)
    return {name: timing.median for name, timing in timings.items()}


def _torch(data: LayerData, device: str, setting: StudySetting) -> dict[str, float]:
    steps = torch_steps(data, setting.threads, device)
    of = backend(device)
    with of.working():
        timings = interleave(dict(steps), backend=of, deadline=setting.deadline)
    return {name: timing.median for name, timing in timings.items()}
