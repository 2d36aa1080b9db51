"""A run of a network in the terminal: each library end to end, and the steps of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from convalgos.tools.bench.network_run import NetworkResults, NetworkTimes
from convalgos.tools.console.text_output import cell
from convalgos.tools.console.text_table import Cell, Column, print_table
from convalgos.tools.report.terminal import digits, print_lines

if TYPE_CHECKING:
    from convalgos.network.explanation import StepRow

STEPS = (
    Column("step", wraps=True),
    Column("what", wraps=True, spare=2),
    Column("algorithm", wraps=True),
    Column("layouts", wraps=True),
    Column("output", spare=3),
    Column("us", right=True),
    Column("predicted\nus", right=True, spare=1),
    Column("% of\ntime", right=True),
    Column("% of\npeak", right=True),
)
LIBRARIES = (
    Column("library"),
    Column("ms", right=True),
    Column("±%", right=True, spare=2),
    Column("times\nours", right=True),
    Column("difference", right=True),
    Column("load ms", right=True, spare=1),
    Column("memory MB", right=True, spare=1),
    Column("", wraps=True),
)


def layouts_told(row: StepRow) -> str:
    """What a step reads and writes, one word where they are the same."""
    reads = "+".join(dict.fromkeys(row.reads))
    return row.writes if reads == row.writes else f"{reads} > {row.writes}"


def show_network(results: NetworkResults, console: Console) -> None:
    """Print the tables of a run."""
    explained = results.explanation
    total = explained.measured_s or 1.0
    rows: list[list[Cell]] = []
    for row in explained.rows:
        seconds = row.measured_s or 0.0
        rows.append(
            [
                row.name, row.what, row.algorithm, layouts_told(row), "x".join(map(str, row.shape)),
                digits(seconds * 1e6), digits(row.predicted_s * 1e6), f"{100 * seconds / total:.1f}",
                f"{100 * row.of_peak:.0f}" if row.of_peak else "",
            ]
        )  # fmt: skip
    print_table(STEPS, rows, console)
    print_table(LIBRARIES, [_library(results, times) for times in results.times], console)
    print_lines([cell(line) for line in footer(results)], console)


def footer(results: NetworkResults) -> list[str]:
    """What it was run on, what layouts saved, and the memory of ours."""
    explained = results.explanation
    inputs = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in explained.shapes.items())
    lines = [f"{results.model} on {inputs}, {results.threads} threads of {results.machine.name}"]
    if results.opens:
        lines.append(f"not in the table, as they tell sizes of later steps: {', '.join(results.opens)}")
    for name, seconds in explained.alternatives.items():
        lines.append(f"layouts, {name}: {seconds / (explained.predicted_s or 1):.3f} times this, predicted")
    megabytes = [n / 1e6 for n in (explained.arena_bytes, explained.scratch_bytes, results.filter_bytes)]
    return [
        *lines,
        "memory: arena {:.1f} MB, {:.1f} MB of it scratch, filters {:.1f} MB".format(*megabytes),
    ]


def _library(results: NetworkResults, times: NetworkTimes) -> list[Cell]:
    timing, ratio = times.timing, results.ratio(times)
    return [
        times.name,
        digits(timing.median * 1e3) if timing else "",
        f"{50 * timing.spread:.0f}" if timing else "",
        f"{ratio:.2f}" if ratio else "",
        "" if times.error is None else f"{times.error:.1e}",
        "" if times.load_s is None else f"{times.load_s * 1e3:.0f}",
        "" if times.memory_bytes is None else f"{times.memory_bytes / 1e6:.1f}",
        times.why_not or "",
    ]
