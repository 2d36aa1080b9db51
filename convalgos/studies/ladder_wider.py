"""Beyond the ladder's top: batches, filters with zeros, and shorter numbers, as the selector serves them."""

from __future__ import annotations

from collections.abc import Iterator

import convalgos as ca
from convalgos.core.errors import Unsupported
from convalgos.select.measure.timing import interleave
from convalgos.studies.study import Answer, Chart, Finding, NotRun, Part, StudyColumn, StudySetting
from convalgos.studies.timed_plans import TimedPlan, timed_plan

BATCHES = (1, 2, 4, 8, 16, 32)
DENSITIES = (1.0, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02)
FORMATS = ("float32", "bfloat16", "float16", "uint8", "binary")
ALGORITHM = StudyColumn("algorithm")


def wider_parts(problem: ca.ConvProblem, setting: StudySetting) -> Iterator[Answer]:
    """A part for batches, one for pruning, one for formats; fewer points with --quick."""
    step = 2 if setting.quick else 1
    yield _batches(problem, BATCHES[::step], setting)
    yield from _pruned(problem, DENSITIES[::step], setting)
    yield from _formats(problem, setting)


def _timed(plans: list[TimedPlan], setting: StudySetting) -> list[float]:
    """Seconds of each plan, in turns."""
    calls = {str(i): plan.call for i, plan in enumerate(plans)}
    timings = interleave(calls, rounds=2 if setting.quick else 3, deadline=setting.deadline)
    return [timings[name].median for name in calls]


def _batches(problem: ca.ConvProblem, batches: tuple[int, ...], setting: StudySetting) -> Part:
    """The layer, and a linear layer of a network's end, whose filter is read once for all images."""
    setting.tell("batches")
    rows = []
    linear = ca.ConvProblem.parse("n1 c1024 h1 w1 k1024 r1 s1")
    for what, one in (("the layer", problem), ("linear, 1024 to 1024", linear)):
        for n in batches:
            asked = one.replace(x_shape=(n, *one.x_shape[1:]))
            made = timed_plan(asked)
            (taken,) = _timed([made], setting)
            rows.append(
                (
                    what,
                    n,
                    1e6 * taken / n,
                    asked.flops / taken / 1e9,
                    asked.flops / asked.bytes,
                    made.algorithm,
                )
            )
    return Part(
        "Batches",
        "Time of an image, and the rate, as images are added. A linear layer of one image is a product of a "
        "matrix and a vector, bound by reading the matrix; operations for each byte grow with the batch.",
        (
            StudyColumn("what"),
            StudyColumn("batch"),
            StudyColumn("an image", "us"),
            StudyColumn("rate", "GFLOP/s"),
            StudyColumn("operations / byte"),
            ALGORITHM,
        ),
        tuple(rows),
        Chart("lines", "batch", ("rate",), by="what", log_x=True, log_y=True),
    )


def _pruned(problem: ca.ConvProblem, densities: tuple[float, ...], setting: StudySetting) -> Iterator[Answer]:
    setting.tell("pruning")
    dense = timed_plan(problem)
    rows, even = [], None
    for density in densities:
        asked = problem if density == 1 else problem.replace(density=density)
        plans = [dense, *([timed_plan(asked, "cpu.sparse"), timed_plan(asked)] if density < 1 else [])]
        base, *times = _timed(plans, setting)
        sparse, picked = times or (None, base)
        even = even or (density if sparse is not None and sparse < base else None)
        rows.append(
            (
                density,
                1e6 * base,
                None if sparse is None else 1e6 * sparse,
                1e6 * picked,
                base / picked,
                plans[-1].algorithm,
            )
        )
    yield Part(
        "Pruning",
        "The smallest weights are set to zero, in no pattern. The sparse kernels sum what is left; the "
        "selector takes them once that is faster than all weights by a dense algorithm.",
        (
            StudyColumn("density"),
            StudyColumn("dense", "us"),
            StudyColumn("sparse", "us"),
            StudyColumn("pick", "us"),
            StudyColumn("gain of the pick", "x"),
            ALGORITHM,
        ),
        tuple(rows),
        Chart("lines", "density", ("dense", "sparse", "pick"), log_x=True, log_y=True),
    )
    told = f"from a density of {even} on" if even else "at none of these densities"
    yield Finding(
        "Pruning removes operations at once, and gains time only where few weights are left.",
        f"The sparse kernels pass the dense algorithm {told}; at {densities[-1]} the pick gains "
        f"{float(rows[-1][4] or 0):.1f} times for {1 / densities[-1]:.0f} times fewer products.",
        float(rows[-1][4] or 0) < 1 / densities[-1],
    )


def _formats(problem: ca.ConvProblem, setting: StudySetting) -> Iterator[Answer]:
    setting.tell("number formats")
    plans = []
    for name in FORMATS:
        try:
            plans.append(
                timed_plan(ca.ConvProblem.parse(f"{problem} {name}" if name != "float32" else str(problem)))
            )
        except Unsupported as reason:
            yield NotRun(f"the layer in {name}", str(reason))
    times = _timed(plans, setting)
    rows = [
        (
            p.problem.dtype,
            1e6 * s,
            p.problem.flops / s / 1e9,
            times[0] / s,
            p.problem.bytes / 1e6,
            p.error(),
            p.bound,
            p.algorithm,
        )
        for p, s in zip(plans, times, strict=True)
    ]
    yield Part(
        "Number formats",
        "The layer in shorter numbers: 16 bits, integers of 8 bits with sums of 32, and signs. Errors are "
        "those of the arithmetic against exact sums of the same numbers, relative to the largest output; "
        "what rounding a network's weights to these formats costs is not among them.",
        (
            StudyColumn("format"),
            StudyColumn("time", "us"),
            StudyColumn("rate", "GFLOP/s"),
            StudyColumn("gain", "x"),
            StudyColumn("arrays", "MB"),
            StudyColumn("error", digits=2),
            StudyColumn("error bound", digits=2),
            ALGORITHM,
        ),
        tuple(rows),
        Chart("bars", "format", ("time",)),
    )
    gains = ", ".join(f"{row[0]} {float(row[3]):.1f}" for row in rows[1:])
    yield Finding(
        "Shorter numbers gain by their width and by the instructions that multiply them.",
        f"Over float32: {gains} times.",
        max(times[1:], default=times[0]) < times[0],
    )
