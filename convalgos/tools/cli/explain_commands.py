"""The commands about one problem, or every layer of a network: `convalgos explain` and `find`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from convalgos.api import planning
from convalgos.core.cache_files import write_atomic
from convalgos.core.element_types import PRECISIONS
from convalgos.core.near_names import near
from convalgos.core.problem import ConvProblem
from convalgos.select import choose, devices
from convalgos.select.measure import accuracy, timing
from convalgos.select.measure.backends import backend
from convalgos.select.measure.table import time_candidates
from convalgos.tools.bench import read_target as targets
from convalgos.tools.bench import results as bench_results
from convalgos.tools.bench import run as bench_run
from convalgos.tools.bench.suites import Layer, names
from convalgos.tools.cli import completion
from convalgos.tools.cli.bench_commands import measure_layers, new_results
from convalgos.tools.cli.select_commands import BATCH, DEVICE, changing
from convalgos.tools.console.exit_status import FAILED
from convalgos.tools.console.progress_bar import bar, teller
from convalgos.tools.console.text_output import console
from convalgos.tools.report import frontier_page, terminal
from convalgos.tools.report import ranking as report_ranking

TARGET = click.argument(
    "target",
    nargs=-1,
    required=True,
    metavar="PROBLEM | SUITE | TABLE.csv | MODEL.onnx",
    shell_complete=completion.complete_target,
)


@click.command("explain")
@TARGET
@click.option(
    "--workspace-limit", type=click.IntRange(0), metavar="BYTES", help="Scratch that a call may take."
)
@click.option("--max-rel-error", type=click.FloatRange(0), help="Largest error bound, relative to max|y|.")
@click.option("--deterministic", is_flag=True, help="The same bits on every run.")
@click.option("--strict-nan", is_flag=True, help="A NaN stays in its footprint: no Winograd, no FFT.")
@click.option(
    "--allow",
    multiple=True,
    metavar="FAMILY",
    shell_complete=completion.families,
    help="Only this family or id; may be repeated.",
)
@click.option(
    "--deny",
    multiple=True,
    metavar="FAMILY",
    shell_complete=completion.families,
    help="Not this family or id; may be repeated.",
)
@click.option("--expected-calls", type=click.IntRange(1), help="Runs that share the preparing of the filter.")
@click.option(
    "--weights-constant/--weights-change",
    default=True,
    help="Whether every call brings the same filter, or another, which is then prepared each time.",
)
@click.option(
    "--exhaustive", is_flag=True, help="With other settings that are worth a try, as cuDNN's plans."
)
@click.option(
    "--precision",
    multiple=True,
    type=click.Choice(PRECISIONS),
    help="Choose among this number format, too, for a float32 problem; may be repeated.",
)
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a page with error against time.",
)
@changing
@BATCH
@DEVICE
def explain_command(
    target: tuple[str, ...],
    allow: tuple[str, ...],
    precision: tuple[str, ...],
    page: Path | None,
    batch: int | None,
    dtype: str | None,
    compute_dtype: str | None,
    layout: str | None,
    direction: str | None,
    **limits: Any,
) -> None:
    """Show the ranking of a problem as the selector sees it, and why the others are rejected.

    With limits it also shows what each of them costs: the time of the pick / without this limit. Of a
    network it shows the pick of every layer, and the second.
    """
    limits |= {"allow": allow or None, "precisions": precision or None}
    layers, skipped, single = _read(
        target, batch, dtype=dtype, compute_dtype=compute_dtype, layout=layout, direction=direction
    )
    if page is not None and not single:
        raise ValueError(f"--html {page} is of one problem, not of {' '.join(target)}")
    if single:
        ranking = planning.explain(layers[0].problem, **limits)
        report_ranking.show_ranking(ranking, console())
        if page is not None:
            write_atomic(page, frontier_page.ranking_page(ranking))
        return
    with bar() as progress:
        task = progress.add_task("", total=len(layers))
        found = []
        for i, layer in enumerate(layers):
            teller(progress, task, i, layer.name)("explain", 0.0)
            found.append((layer, planning.explain(layer.problem, **limits)))
    report_ranking.show_picks(found, skipped, console())
    if layers and not any(ranking.candidates for _, ranking in found):
        sys.exit(FAILED)


@click.command("find")
@TARGET
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Rounds of timing.")
@changing
@BATCH
@DEVICE
def find_command(
    target: tuple[str, ...], rounds: int, batch: int | None, device: str, **changes: str | None
) -> None:
    """Time and check every algorithm on a problem, or on every layer of a network.

    Of a network it shows what `convalgos bench --peers none` does. The exit status is 1 if a result is
    wrong, or an algorithm fails.
    """
    layers, skipped, single = _read(target, batch, **changes)
    if not single:
        results = new_results(device, skipped)

        def run(layer: Layer, progress: timing.Progress) -> bench_results.LayerResult:
            return bench_run.run_layer(layer, rounds=rounds, device=device, progress=progress)

        measure_layers(target, layers, run, results, None, lambda: terminal.show_results(results, console()))
        sys.exit(FAILED if results.complaints() else None)
    problem = layers[0].problem
    devices.measured_figures(device)
    with bar() as progress:
        task = progress.add_task("", total=1)
        ranking, check = choose.rank(problem, device), accuracy.AccuracyCheck(problem, backend(device))
        table = time_candidates(
            ranking, rounds=rounds, check=check, progress=teller(progress, task, 0, "problem")
        )
    report_ranking.show_table(table, console())
    if table.failed or not table.rows or any(not r.error <= r.error_bound for r in table.rows):
        sys.exit(FAILED)


COMMANDS: tuple[click.Command, ...] = (explain_command, find_command)


def _read(
    words: tuple[str, ...], batch: int | None, **changes: str | None
) -> tuple[tuple[Layer, ...], dict[str, str], bool]:
    """(layers, nodes of a model that are skipped, whether it is a single problem given as text)."""
    text = " ".join(words)
    skipped: dict[str, str] = {}
    single = text not in ("all", *names()) and Path(text).suffix.lower() not in targets.SUFFIXES
    if single:
        try:
            problem = ConvProblem.parse(text)
        except ValueError as error:
            close = near(text, names()) if " " not in text else []
            hint = f"; did you mean the suite {' or '.join(close)}?" if close else ""
            raise ValueError(f"{error}{hint}") from None
        if batch is not None:
            problem = problem.replace(x_shape=(batch, *problem.x_shape[1:]))
        layers: tuple[Layer, ...] = (Layer("", "problem", problem),)
    else:
        layers, skipped = targets.read_target(text, batch)
    return targets.changed(layers, **changes), skipped, single
