"""What the cost models predict for each target, without a device.

`python -m convalgos.tools.gpu_check.predicted` prints it. Nothing is measured:

- our times are those of our models on the GPU of a profile;
- those of cuDNN were recorded, or are those of its model;
- FFTs of a whole signal take the time in which their bytes can be moved;
- the time of the host has no model.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence

from convalgos.core import profiles
from convalgos.core.problem import ConvProblem
from convalgos.gpu import device as gpu
from convalgos.gpu.device import Device, GpuMachine
from convalgos.gpu.vendor import cost
from convalgos.gpu.vendor.recorded import is_recorded, recorded_seconds
from convalgos.tools.bench.suites import Layer, suites
from convalgos.tools.gpu_check.cases import Case, by_importance, causal
from convalgos.tools.gpu_check.checks import candidates
from convalgos.tools.gpu_check.steps import CUDNN
from convalgos.tools.gpu_check.targets import Reached, targets_reached
from convalgos.tools.gpu_check.timing import Ceiling, LayerTimes, Timed

FFTS = "FFTs of the whole signal"
ONE_PASS = 1 << 14  # points of a transform that a block holds; longer ones go through memory twice; estimate
FFT_KERNELS = 4  # that fill up, transform, multiply and transform back


def predicted(device: Device, layers: Iterable[Layer]) -> list[Reached]:
    """Every aim, with the prediction in the place of what was reached."""
    with gpu.use(device):
        timed = [*_layers(device, by_importance(layers))]
        signals = [*_layers(device, causal())]
        copy = Ceiling("copy bytes/s", device.figures.bandwidth)
        return targets_reached(timed, signals, [], [copy])


def cudnn_seconds(problem: ConvProblem, machine: GpuMachine) -> float:
    """Recorded, or by the model, which knows depthwise layers the least: of them all recorded times count."""
    known = recorded_seconds(problem) if problem.is_depthwise and is_recorded(machine) else None
    return cost.predicted_seconds(problem, machine) if known is None else known


def fft_seconds(problem: ConvProblem, machine: GpuMachine) -> float:
    """Of long causal filters by transforms of twice the length, each step reading and writing all."""
    n, signals = problem.spatial[0], problem.N * problem.C
    passes = 1 if 2 * n <= ONE_PASS else 2
    moved = signals * 4 * n * (3 + 2 * 4 * passes + 4)  # filled up; there and back; multiplied
    return machine.stream(moved) + FFT_KERNELS * machine.launch


def _layers(device: Device, cases: Sequence[Case]) -> Iterator[LayerTimes]:
    for case in cases:
        found, _ = candidates(case, device, "ours")
        rows = [Timed(c.id, (c.predicted_s,), c.predicted_s, c.workspace_bytes, c.error_bound) for c in found]
        others = {}
        if case.suite == "causal":
            others[FFTS] = fft_seconds(case.problem, device.figures)
        elif not case.problem.sums_integers:  # of which no model tells
            theirs = cudnn_seconds(case.problem, device.figures)
            rows.append(Timed(CUDNN, (theirs,), theirs, 0, 0.0))
        rows.sort(key=lambda row: row.median_s)
        if rows:
            yield LayerTimes(case, rows[0].algorithm, tuple(rows), others)


def predictions_table(found: Sequence[Reached], name: str) -> str:
    """The lines that are printed."""
    rows = [(t.what, f"{'<=' if t.at_most else '>='} {t.target:g}{t.unit}", _told(t), t.least) for t in found]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, (*widths, 0), strict=True)).rstrip()
        for row in (("aim of a check", "", "predicted", "furthest behind"), *rows)
    ]
    return "\n".join([f"predicted on {name} (nothing measured)", "", *lines])


def _told(aim: Reached) -> str:
    if aim.reached is None:
        return "no model"
    return f"{aim.reached:.2f}{aim.unit}{'' if aim.met else ' (not met)'}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the predictions for a profile."""
    parser = argparse.ArgumentParser(
        prog="python -m convalgos.tools.gpu_check.predicted", description=__doc__
    )
    known = profiles.of_gpus()
    parser.add_argument("profile", nargs="?", default="sm_90", choices=known, help=f"of {', '.join(known)}")
    name = parser.parse_args(arguments).profile
    layers = [layer for of in suites().values() for layer in of]
    print(predictions_table(predicted(gpu.named(name), layers), name))


if __name__ == "__main__":
    main()
