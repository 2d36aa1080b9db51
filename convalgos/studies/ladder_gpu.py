"""The ladder on a GPU: CUDA kernels from direct sums to tensor cores, predicted, and timed where one is."""

from __future__ import annotations

from collections.abc import Iterator

import convalgos as ca
from convalgos.gpu import device as gpu
from convalgos.select import devices
from convalgos.studies.study import Answer, Chart, Part, StudyColumn, StudySetting

OFFLINE = "sm_90"  # an H200 by its figures


def gpu_parts(problem: ca.ConvProblem, setting: StudySetting) -> Iterator[Answer]:
    """All kernels that serve the layer, slowest first: by their cost models, and timed on a GPU."""
    yield _predicted(problem)
    if setting.device == "gpu" and gpu.why_none() is None:
        setting.tell("CUDA kernels")
        device = devices.current_device("gpu")
        table = ca.find(problem, device=device, time_budget=max(1.0, setting.left() / 2))
        rows = [
            (row.algorithm, 1e6 * row.median_s, problem.flops / row.median_s / 1e9, row.error)
            for row in sorted(table.rows, key=lambda row: -row.median_s)
        ]
        columns = (
            StudyColumn("kernel"), StudyColumn("time", "us"), StudyColumn("rate", "GFLOP/s"),
            StudyColumn("error", digits=2),
        )  # fmt: skip
        yield Part(
            f"CUDA kernels on {devices.figures(device).name}",
            "Every kernel that serves the layer, slowest first, by the GPU's own clock.",
            columns,
            tuple(rows),
            Chart("bars", "kernel", ("time",), log_y=True),
        )


def _predicted(problem: ca.ConvProblem) -> Part:
    """The kernels for float32 and for 16 bits, as the cost models see an H200."""
    rows = []
    for dtype in ("float32", "float16"):
        asked = problem if dtype == "float32" else ca.ConvProblem.parse(f"{problem} {dtype}")
        for candidate in reversed(ca.explain(asked, device=OFFLINE).candidates):
            taken = candidate.predicted_s
            rows.append((f"{dtype}: {candidate.id}", 1e6 * taken, asked.flops / taken / 1e9))
    return Part(
        "CUDA kernels, predicted",
        "Nothing here ran: these are the times that the cost models predict for "
        f"{devices.figures(OFFLINE).name}, from a thread for each output over tiles in shared memory to "
        "tensor cores in 16 bits.",
        (StudyColumn("kernel"), StudyColumn("predicted", "us"), StudyColumn("rate", "GFLOP/s")),
        tuple(rows),
        Chart("bars", "kernel", ("predicted",), log_y=True),
    )
