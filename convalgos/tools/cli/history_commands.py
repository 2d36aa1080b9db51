"""The commands `convalgos history run | backfill | publish | compare | quick`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from convalgos.tools.bench import results as bench_results
from convalgos.tools.console.exit_status import FAILED
from convalgos.tools.console.progress_bar import bar, teller
from convalgos.tools.console.text_output import cell, console, echo
from convalgos.tools.console.text_table import Cell, Column, print_table
from convalgos.tools.history import asv
from convalgos.tools.history import compare as history_quick
from convalgos.tools.history.compare import Compared, PickTimed
from convalgos.tools.report import terminal

EVERY = 16  # commits from one milestone to the next


@click.group("history")
def history_group() -> None:
    """Measure this library's commits by asv, and look at how they developed.

    A commit is measured in the Python that runs this, with the files of the commit: uncommitted changes do
    not count. Results are kept under asv_bench/results, in a folder for each machine.
    """


def _choices(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options about what is measured."""
    for option in (
        click.option(
            "--machine", metavar="NAME", help="What to call this machine, such as epyc-zen5-2t-avx512."
        ),
        click.option(
            "--bench", "only", multiple=True, metavar="REGEX", help="Only benchmarks that match (repeatable)."
        ),
        click.option("--layers", metavar="GLOBS", help="Other layers, such as 'vgg16/*,resnet50/conv1'."),
        click.option("--dtype", "dtypes", metavar="LIST", help="Element types, such as float32,float64."),
        click.option("--threads", metavar="LIST", help="Counts of threads, such as 1,all."),
        click.option(
            "--attribute",
            "attributes",
            multiple=True,
            metavar="NAME=VALUE",
            help="One of asv's, as rounds=1.",
        ),
    ):
        command = option(command)
    return command


@history_group.command("run")
@click.argument("commit", default="HEAD")
@_choices
def run_command(commit: str, **choices: Any) -> None:
    """Measure a COMMIT (the newest by default); half an hour, or less with --bench.

    What is known of the commit already stays where it is not measured again.
    """
    _run([commit], choices)


@history_group.command("backfill")
@click.option(
    "--every", type=click.IntRange(1), default=EVERY, show_default=True, help="Commits between milestones."
)
@click.option("--list", "only_list", is_flag=True, help="Print the milestones, and measure nothing.")
@_choices
def backfill_command(every: int, only_list: bool, **choices: Any) -> None:
    """Measure the milestones of the past: every 16th commit that changes the package, and the newest.

    One that cannot be built or imported here is told and passed over.
    """
    root = asv.source_tree()
    found = asv.milestones(root, every)
    if only_list:
        for commit in found:
            echo(asv.git(root, "log", "-1", "--format=%h %as %s", commit))
        return
    _run(found, choices)


@history_group.command("publish")
@click.option(
    "--output",
    "-o",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder, other than asv_bench/html.",
)
def publish_command(output: Path | None) -> None:
    """Make pages of curves from all results that are kept."""
    page = asv.publish(output)
    echo(f"the curves are in {page}")


@history_group.command("compare")
@click.argument("before", required=False)
@click.argument("after", required=False)
@click.option("--machine", metavar="NAME", help="Whose results; those of this machine by default.")
@click.option(
    "--factor", type=click.FloatRange(1), default=1.1, show_default=True, help="A change to be told."
)
def compare_command(before: str | None, after: str | None, machine: str | None, factor: float) -> None:
    """Print how two measured commits differ, by default the two newest."""
    echo(asv.compare_commits(before, after, machine, factor))


@history_group.command("quick")
@click.argument("base", default="HEAD^")
@click.option(
    "--budget",
    type=click.FloatRange(0),
    default=history_quick.BUDGET,
    show_default=True,
    metavar="SECONDS",
    help="No further layer is begun after them.",
)
def quick_command(base: str, budget: float) -> None:
    """Time the working tree beside another commit (its parent by default), layer by layer in turns.

    Prints the least time now / before: below 1 it is faster now. Noise never fails; the exit status is 1 only
    where a layer that ran before no longer does.
    """
    if reason := history_quick.why_not_compared(base):
        echo(f"nothing to compare with: {reason}")
        return
    found: list[Compared] = []
    try:
        with bar() as progress:
            task = progress.add_task("", total=1)
            found += history_quick.quick(base, budget=budget, progress=teller(progress, task, 0))
    except history_quick.Incomparable as reason:
        echo(f"nothing to compare with: {reason}")
        return
    print_table(*_table(found, base), console())
    mean = bench_results.geometric_mean(c.ratio for c in found)
    echo(f"geometric mean {mean:.2f}" if mean else "no layer ran on both sides")
    if lost := [c for c in found if c.before.timing and not c.now.timing]:
        for c in lost:
            echo(f"{c.layer} ran on {base} and no longer does: {c.now.why_not}", err=True)
        sys.exit(FAILED)


# --- inside ----------------------------------------------------------------------------------


def _run(commits: Sequence[str], choices: dict[str, Any]) -> None:
    """Measure commits; the exit status is 1 where one of them gave nothing."""
    measured = 0
    with bar() as progress:
        task = progress.add_task("", total=len(commits))
        for i, commit in enumerate(commits):
            echo(f"commit {i + 1} of {len(commits)}: {commit[:8]}")
            try:
                tell = teller(progress, task, i, commit[:8])
                path, count = asv.run(commit, **choices, tell=echo, progress=tell)
            except asv.NothingMeasured as reason:
                echo(f"Error: {reason}", err=True)
            else:
                measured += 1
                echo(f"{count} values in {path}")
    if measured < len(commits):
        echo(f"{measured} of {len(commits)} commits were measured", err=True)
        sys.exit(FAILED)


def _table(found: Sequence[Compared], base: str) -> tuple[list[Column], list[tuple[Cell, ...]]]:
    columns = [
        *(terminal.LAYER, terminal.PROBLEM, Column(f"{base}: pick", wraps=True, spare=2)),
        *(Column("ms", right=True, spare=1), Column("now: pick", wraps=True, spare=2)),
        *(Column("ms", right=True, spare=1), Column("ratio", right=True), Column("")),
    ]
    styles = {"slower": "bold yellow", "faster": "green", "": ""}
    rows: list[tuple[Cell, ...]] = [
        (
            c.layer,
            c.problem,
            *_cells(c.before),
            *_cells(c.now),
            f"{c.ratio:.2f}" if c.ratio else "n/a",
            cell(c.verdict, styles[c.verdict]),
        )
        for c in found
    ]
    return columns, rows


def _cells(side: PickTimed) -> tuple[str, str]:
    """Pick and milliseconds."""
    if side.least is None:
        return "n/a", ""
    return terminal.short(side.pick or ""), terminal.digits(side.least * 1e3)
