"""What cuDNN took on an H200: the times of 115 layers of networks, forward, in three precisions.

The fastest that was seen, in microseconds, in `cudnn_recorded.csv`: a row for each problem, a column for each
precision and layout. Most are those of torch (2.11, cuDNN 9.19, `benchmark=True`, November 2026), of
depthwise layers with kernels of torch's own among them. A call of torch's takes the host some ten
microseconds: a time below `HOST` may tell of the host, and is an upper bound. Others are of cuDNN alone,
through its front end in a captured graph; dense layers over `HOST` timed in both ways agree within 8 %.
"""

from __future__ import annotations

import csv
from functools import cache
from importlib import resources

from convalgos.core.problem import ConvProblem
from convalgos.gpu.device.machine import GpuMachine

DEVICE, CAPABILITY = "H200", (9, 0)
HOST = 30e-6  # seconds: what took longer kept the GPU busy, less may be the host's time; H200 under torch


def recorded_seconds(problem: ConvProblem) -> float | None:
    """Of cuDNN on an H200, or None where this problem, precision and layout was not timed.

    Example:
        >>> from convalgos import ConvProblem
        >>> from convalgos.gpu.vendor.recorded import recorded_seconds
        >>> recorded_seconds(ConvProblem.parse("n4 c256 h56 w56 k256 r3 s3 p1 channels_last float16"))
        2.75e-05
    """
    if problem.direction != "forward" or problem.dtype not in ("float32", "float16"):
        return None
    kind = "tf32" if problem.compute_dtype == "tf32" else problem.dtype
    found = _table().get(_plain(problem))
    return None if found is None else found.get(f"{kind} {problem.layout}")


def is_recorded(machine: GpuMachine) -> bool:
    """Whether the times are those of GPUs of this kind."""
    return machine.is_a(DEVICE) and machine.capability == CAPABILITY


def _plain(problem: ConvProblem) -> ConvProblem:
    """The problem as the rows name it: whichever way the filter lies, cuDNN takes as long."""
    return problem.replace(
        layout="channels_first", dtype="float32", compute_dtype="float32", mode="cross_correlation"
    )


@cache
def _table() -> dict[ConvProblem, dict[str, float]]:
    """Problem -> "precision layout" -> seconds."""
    text = (resources.files("convalgos.gpu.vendor") / "cudnn_recorded.csv").read_text("utf-8")
    head, *rows = csv.reader(text.splitlines())
    return {
        ConvProblem.parse(problem): {
            name: float(us) / 1e6 for name, us in zip(head[1:], times, strict=True) if us
        }
        for problem, *times in rows
    }
