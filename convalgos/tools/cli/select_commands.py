"""The commands about choosing: `convalgos tune`, `capture`, `wisdom ...` and `select ...`."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click

from convalgos.api import wisdom
from convalgos.core.cache_files import write_atomic
from convalgos.core.element_types import DTYPES, FLOAT8_DTYPES, INTEGERS
from convalgos.core.problem import COMPUTE_DTYPES, DIRECTIONS, LAYOUTS, ConvProblem
from convalgos.select import devices, ranker
from convalgos.select.measure import capture
from convalgos.tools.bench import cluster_hosts, tune, tune_cluster
from convalgos.tools.bench import read_target as targets
from convalgos.tools.cli import completion
from convalgos.tools.console.progress_bar import bar, teller
from convalgos.tools.console.text_output import console, echo
from convalgos.tools.evaluate import adapting, learned, recorded_tables, regret, splits
from convalgos.tools.evaluate import report as evaluate_report
from convalgos.tools.evaluate.model_errors import model_errors
from convalgos.tools.report import terminal

DEVICE = click.option(
    "--device",
    default="cpu",
    show_default=True,
    metavar="[cpu|cuda|cuda:N]",
    shell_complete=completion.devices,
    help="Where plans run.",
)
ELEMENTS = click.Choice((*DTYPES, *FLOAT8_DTYPES, *INTEGERS))
BATCH = click.option(
    "--batch",
    type=click.IntRange(1),
    metavar="N",
    help="Batch size in place of the layers' own; 1 where a model leaves it open.",
)


def changing(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that change layers: dtype, compute_dtype, layout and direction."""
    direction = click.option("--direction", type=click.Choice(DIRECTIONS), help="The pass, not forward.")
    return changing_elements(direction(command))


def changing_elements(command: Callable[..., None]) -> Callable[..., None]:
    """Adds those of all three passes: dtype, compute_dtype and layout."""
    for option in (
        click.option("--layout", type=click.Choice(LAYOUTS), help="Memory layout, not channels_first."),
        click.option("--compute-dtype", type=click.Choice(COMPUTE_DTYPES), help="What products are made in."),
        click.option("--dtype", type=ELEMENTS, help="Element type, not the layers' own."),
    ):
        command = option(command)
    return command


@click.group("wisdom")
def wisdom_group() -> None:
    """What was measured on this machine, or on a GPU: keep it, share it, check it, forget it.

    The file lies in the folder that CONVALGOS_WISDOM names, or in the cache folder; `show` prints its path.
    """


@wisdom_group.command("export")
@click.argument("path", type=click.Path(path_type=Path, dir_okay=False))
@DEVICE
def export_command(path: Path, device: str) -> None:
    """Write what is known to a file."""
    echo(f"{wisdom.export(path, device)} problems in {path}")


@wisdom_group.command("merge")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False))
def merge_command(paths: tuple[Path, ...]) -> None:
    """Add what files tell; the newest time of each candidate wins, and conflicts are listed."""
    for path in paths:
        echo(f"{path}: {wisdom.merge(path)}")


@wisdom_group.command("show")
@click.argument("problem", nargs=-1)
@DEVICE
def show_command(problem: tuple[str, ...], device: str) -> None:
    """List the fastest candidate of every known problem, or all that is known of one PROBLEM."""
    echo(wisdom.show(" ".join(problem) or None, device))


@wisdom_group.command("verify")
@click.option("--sample", type=click.IntRange(0), default=10, show_default=True, help="How many problems.")
@click.option("--rounds", type=click.IntRange(1), default=2, show_default=True, help="Rounds of timing.")
@DEVICE
def verify_command(sample: int, rounds: int, device: str) -> None:
    """Time a sample of what is known again, and report by how much it drifted."""
    with bar() as progress:
        task = progress.add_task("", total=1)
        tell = teller(progress, task, 0)
        found = wisdom.verify(sample, rounds=rounds, device=device, progress=tell)
    echo(str(found))


@wisdom_group.command("forget")
@click.argument("problem", nargs=-1)
@click.option(
    "--algorithm", metavar="ID", shell_complete=completion.ids, help="Only what is known of this algorithm."
)
@click.option("--all", "everything", is_flag=True, help="Forget every problem of this machine.")
@DEVICE
def forget_command(problem: tuple[str, ...], algorithm: str | None, everything: bool, device: str) -> None:
    """Forget a PROBLEM, an algorithm, or all."""
    if not (problem or algorithm or everything):
        raise ValueError("name a PROBLEM, an --algorithm, or --all")
    text = " ".join(problem) or None
    count = wisdom.forget(ConvProblem.parse(text) if text else None, algorithm, device)
    echo(f"forgot {count} candidates")


@click.group("select")
def select_group() -> None:
    """Judge selectors on recorded tables, which `convalgos bench --json` writes."""


@select_group.command("evaluate")
@click.argument("tables", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--selector", "names", multiple=True, help="A selector to judge; may be repeated.")
@click.option(
    "--load",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A Python file to run first, which calls convalgos.select.register.",
)
@click.option(
    "--hold-out",
    "held_out",
    multiple=True,
    type=click.Choice(splits.HELD_OUT),
    help="What a selector that learns must not have seen; may be repeated. By default the network, the kind "
    "of layers and, each for itself, a tenth of the layers at random.",
)
@click.option("--models", is_flag=True, help="Tell for each kind of layers how far the cost models are off.")
@click.option("--html", "page", type=click.Path(path_type=Path, dir_okay=False), help="Write a page here.")
def evaluate_command(
    tables: tuple[Path, ...],
    names: tuple[str, ...],
    load: Path | None,
    held_out: tuple[str, ...],
    models: bool,
    page: Path | None,
) -> None:
    """Tell how far the picks of selectors are from the fastest candidate on every layer of TABLES.

    By default the cost models ("analytic"), their learned correction ("learned"), and what --load registers.
    The fastest is chosen on one half of the samples and scored on the other; ties count as right. How much of
    the regret that is timed is noise stands beside it. A selector that learns is judged on each network, or
    kind, or machine, by what it learned from the others.
    """
    if "learned" not in ranker.rankers():
        ranker.register("learned", learned.Learned())
    before = set(ranker.rankers())
    if load is not None:
        runpy.run_path(str(load))
    new = [name for name in ranker.rankers() if name not in before]
    chosen = list(dict.fromkeys(names or ("analytic", "learned", *new)))
    read = [recorded_tables.read_table_file(path) for path in tables]
    found = regret.measured_layers(read)
    evaluations = []
    for name in chosen:
        judged = ranker.find_ranker(name)
        for part in (held_out or splits.DEFAULT) if hasattr(judged, "fit") else splits.DEFAULT[:1]:
            evaluations.append(regret.evaluate(name, judged, found, held_out=part))
    single, errors = regret.single_best(found), model_errors(found, by_kind=models)
    evaluate_report.show_evaluation(evaluations, single, errors, console())
    echo(f"\n{adapting.replay_adapting(found)}")
    if page is not None:
        write_atomic(page, evaluate_report.evaluation_page(evaluations, single, errors, read))
        echo(f"the picks are plotted in {page}")


@select_group.command("compact")
@click.argument("table", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("path", type=click.Path(path_type=Path, dir_okay=False))
def compact_command(table: Path, path: Path) -> None:
    """Write what a selector is judged by, of a TABLE of `bench --json`, to a small file for git."""
    found = recorded_tables.read_table_file(table)
    write_atomic(path, recorded_tables.compact_text(found))
    echo(f"{len(found.layers)} layers of {found.machine.name} in {path}")


@select_group.command("scipy")
@click.argument("tables", nargs=-1, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--count", type=click.IntRange(1), default=60, show_default=True, help="Problems to draw.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Which ones.")
@click.option("--json", "path", type=click.Path(path_type=Path, dir_okay=False), help="Keep the times here.")
def scipy_command(tables: tuple[Path, ...], count: int, seed: int, path: Path | None) -> None:
    """Compare choices with those of SciPy's choose_conv_method, about a second for each random problem.

    With TABLES, which --json wrote, nothing is timed.
    """
    from convalgos.tools.evaluate import scipy_choice  # imports SciPy

    if tables:
        found = scipy_choice.read_choices(tables)
    else:
        with bar() as progress:
            task = progress.add_task("", total=1)
            found = scipy_choice.record_choices(count, seed, progress=teller(progress, task, 0))
    if path is not None:
        scipy_choice.write_choices(path, found)
    scipy_choice.show_choices(found, console())
    echo(scipy_choice.speedups(found))


@click.command("tune")
@click.argument(
    "target",
    nargs=-1,
    metavar="[SUITE | TABLE.csv | MODEL.onnx | CAPTURED.txt | PROBLEM]",
    shell_complete=completion.complete_target,
)
@click.option(
    "--machine", "figures", is_flag=True, help="Measure the peak and the bandwidth of the device again."
)
@click.option(
    "--effort",
    type=click.Choice(tune.EFFORTS),
    default="exhaustive",
    show_default=True,
    help="Time and check all candidates, or race the promising ones.",
)
@click.option("--budget", type=click.FloatRange(0), metavar="SECONDS", help="Time for each problem.")
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="Tune on the machines of a Dask cluster, and keep what each found, too.",
)
@BATCH
@click.option("--again", is_flag=True, help="Time what is known already, too.")
@changing
@DEVICE
def tune_command(
    target: tuple[str, ...],
    figures: bool,
    effort: str,
    budget: float | None,
    scheduler: str | None,
    batch: int | None,
    again: bool,
    device: str,
    **changes: str | None,
) -> None:
    """Time the candidates of every layer and remember the result, for all later choices.

    What is known is passed over: a tuning that was interrupted goes on where it stopped.
    """
    if not (target or figures):
        raise ValueError("name what to tune, or --machine")
    if figures:
        with bar() as progress:
            task = progress.add_task("", total=1)
            found, warnings = tune.tune_device(device, teller(progress, task, 0))
        terminal.show_machine(found, console())
        for line in warnings:
            echo(f"warning: {line}", err=True)
    if not target:
        return
    layers, _ = targets.read_target(" ".join(target), batch)
    layers = targets.changed(layers, **changes)
    problems = list(dict.fromkeys(layer.problem for layer in layers))
    names = {layer.problem: layer.name for layer in reversed(layers)}
    if scheduler is not None:
        _tune_on_cluster(scheduler, problems, names, effort, budget, again)
        return
    open_ = [p for p in problems if again or not tune.is_known(p, effort, device)]
    done = []
    if open_:
        devices.measured_figures(device)
    try:
        with bar() as progress:
            task = progress.add_task("", total=len(open_))
            for i, problem in enumerate(open_):
                tell = teller(progress, task, i, names[problem])
                done.append(
                    tune.tune(problem, device=device, effort=effort, time_budget=budget, progress=tell)
                )
    finally:
        for t in done:
            if t.gain is not None:
                echo(f"{names[t.problem]}: {t.after} instead of {t.before}, {t.gain:.2f}x faster")
        known = len(problems) - len(open_)
        echo(f"{len(done)} of {len(open_)} problems tuned, {known} known before")


def _tune_on_cluster(
    scheduler: str,
    problems: list[ConvProblem],
    names: dict[ConvProblem, str],
    effort: str,
    budget: float | None,
    again: bool,
) -> None:
    """Tell what each machine found as it comes, and keep all of it here."""
    with cluster_hosts.connected(scheduler) as client, bar() as progress:
        hosts = cluster_hosts.hosts_by_kind(client)
        task = progress.add_task("", total=len(problems) * len(hosts))
        for done, found in enumerate(
            tune_cluster.tune_all(client, hosts, problems, effort=effort, time_budget=budget, again=again)
        ):
            progress.update(task, completed=done + 1, description=names[found.problem])
            if not found.merged.candidates:
                told = "no times are kept, as other programs ran meanwhile or the budget is short"
                echo(f"warning: {names[found.problem]} on {found.machine}: {told}", err=True)
    for machine, of_kind in hosts.items():
        echo(f"{machine}: {len(problems)} problems tuned on {len(of_kind)} of its kind")


@click.command("capture", context_settings={"allow_interspersed_args": False})
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("captured.txt"),
    show_default=True,
    help="Counts are added to those in this file.",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def capture_command(output: Path, command: tuple[str, ...]) -> None:
    """Run a COMMAND, and note which problems its Python processes run, for `convalgos tune captured.txt`.

    The exit status is that of the command.
    """
    before = capture.gather_counts(output)
    environment = {**os.environ, capture.VARIABLE: str(output.absolute())}
    try:
        status = subprocess.run(command, env=environment).returncode
    except FileNotFoundError:
        raise ValueError(f"{command[0]!r} is no program that can be run") from None
    found = capture.gather_counts(output)
    runs = found.total() - before.total()
    echo(f"{runs} runs; {len(found)} problems in {output}" if runs else "nothing was run", err=True)
    sys.exit(status if status >= 0 else 128 - status)


COMMANDS: tuple[click.Command, ...] = (wisdom_group, select_group, tune_command, capture_command)
