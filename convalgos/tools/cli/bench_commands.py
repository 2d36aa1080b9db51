"""The commands that measure networks: `convalgos bench`, `training` and `report`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import click

from convalgos.core.cache_files import write_atomic
from convalgos.core.errors import Unsupported, missing
from convalgos.core.near_names import did_you_mean
from convalgos.select import devices, registry
from convalgos.select.measure import timing
from convalgos.select.measure.backends import backend
from convalgos.tools.bench import peers, results_file, training
from convalgos.tools.bench import read_target as targets
from convalgos.tools.bench import results as bench_results
from convalgos.tools.bench import run as bench_run
from convalgos.tools.bench.suites import Layer, sampling
from convalgos.tools.cli import completion
from convalgos.tools.cli.select_commands import BATCH, DEVICE, changing, changing_elements
from convalgos.tools.console import termination
from convalgos.tools.console.exit_status import FAILED
from convalgos.tools.console.progress_bar import bar, teller
from convalgos.tools.console.text_output import console, echo
from convalgos.tools.report import comparison, page, terminal
from convalgos.tools.report import training as report_training

Run = Callable[[Layer, timing.Progress], Any]  # measures a layer


def drawing(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the argument and the options that say which layers to measure, and where."""
    for option in (
        DEVICE,
        BATCH,
        click.option(
            "--layers", "pattern", metavar="GLOB", help="Only layers whose name, or suite/name, matches."
        ),
        click.option(
            "--sample", type=click.IntRange(1), metavar="N", help="N of the layers, drawn at random."
        ),
        click.option("--seed", type=int, default=0, show_default=True, help="Of --sample."),
        click.option(
            "--weights",
            type=click.Choice(sampling.WEIGHTS),
            default="layers",
            show_default=True,
            help="What --sample draws in proportion to: layers that are like it, their products, or nothing.",
        ),
        click.argument(
            "target",
            nargs=-1,
            metavar="[SUITE | TABLE.csv | MODEL.onnx | CAPTURED.txt | PROBLEM]",
            shell_complete=completion.complete_target,
        ),
    ):
        command = option(command)
    return command


def measuring(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the same, and beside what, for how long, and where to keep it."""
    for option in (
        click.option(
            "--rounds", type=click.IntRange(1), default=3, show_default=True, help="Rounds of timing."
        ),
        click.option(
            "--peers",
            "peer_names",
            metavar="LIST",
            shell_complete=completion.peers,
            help="Libraries to compare with, like torch,onnxruntime, or none; all installed by default.",
        ),
        click.option(
            "--json",
            "json_path",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="Save everything measured; the file is complete after every layer.",
        ),
    ):
        command = option(command)
    return drawing(command)


@click.command("bench")
@measuring
@changing
@click.option(
    "--html",
    "html_path",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a page with charts and sortable tables that needs nothing else.",
)
@click.option(
    "--algorithm",
    "only",
    multiple=True,
    metavar="ID",
    shell_complete=completion.ids,
    help="Run this algorithm only (repeatable); auto is the one that is picked.",
)
def bench_command(
    target: tuple[str, ...],
    json_path: Path | None,
    html_path: Path | None,
    peer_names: str | None,
    only: tuple[str, ...],
    pattern: str | None,
    sample: int | None,
    seed: int,
    weights: str,
    rounds: int,
    batch: int | None,
    device: str,
    **changes: str | None,
) -> None:
    """Run every algorithm on every layer of a network, beside other libraries.

    The layers come from an embedded suite (resnet50 by default, "all" for every one), a table in the format
    of the suites, the Conv nodes of an ONNX model, or one problem. Each result is checked against the
    float64 reference; the exit status is 1 if one is over its error bound.

    The table shows what auto picks, its median time (± half the spread between quartiles; n=1 is a single
    sample), effective
    GFLOP/s (those of the direct convolution), the oracle (the fastest measured, where that is another),
    the regret (time of the pick / of the oracle), and for each peer its time / the time of the pick.

    With --device cuda the times are those of the GPU, and the host's time per call stands beside that of the
    pick; peers are cuDNN's best plan in either layout, and torch.
    """
    layers, skipped = read_layers(target, batch, pattern, changes, sample, seed, weights)
    for algorithm in set(only) - {"auto"}:
        registry.find_algorithm(algorithm)
    chosen = peers.choose_peers(peer_names, device, {layer.problem.dtype for layer in layers})
    if html_path is not None and (reason := missing("plotly")):
        raise Unsupported(f"--html {reason}")
    results = new_results(device, skipped)

    def run(layer: Layer, progress: timing.Progress) -> bench_results.LayerResult:
        return bench_run.run_layer(layer, chosen, only=only, rounds=rounds, device=device, progress=progress)

    def show() -> None:
        terminal.show_results(results, console())
        if html_path is not None:
            write_atomic(html_path, page.results_page(results))

    measure_layers(target, layers, run, results, json_path, show)
    if all(result.pick is None for result in results.layers):
        raise Unsupported("no algorithm can serve any of these layers")
    if results.complaints():
        sys.exit(FAILED)


@click.command("training")
@measuring
@changing_elements
def training_command(
    target: tuple[str, ...],
    json_path: Path | None,
    peer_names: str | None,
    pattern: str | None,
    sample: int | None,
    seed: int,
    weights: str,
    rounds: int,
    batch: int | None,
    device: str,
    **changes: str | None,
) -> None:
    """Run a whole training step of every layer of a network, beside other libraries.

    A step is the forward pass and both gradients, each by what auto picks where every call brings another
    filter: preparing it is a part of each run. The first layer of a network, whose input needs no gradient,
    counts like the others. Layers come from where those of bench do, and results are checked as there; a
    gradient among them stands for its layer.

    The table shows for each layer the median times of the forward pass, of dx and of dw, what was picked,
    the step (± half the spread between quartiles), and for each peer the time of its forward pass and of
    the call by which autograd computes both gradients / that of ours; below it all layers in a row, each
    as often as the model has it (a suite lists each once). Peers are torch in both layouts, and on a GPU
    cuDNN.
    """
    layers, skipped = read_layers(target, batch, pattern, changes, sample, seed, weights)
    layers = training.steps_of(layers)
    chosen = training.training_peers(peer_names, device)
    results: bench_results.Results[training.StepResult] = new_results(device, skipped)

    def run(layer: Layer, progress: timing.Progress) -> training.StepResult:
        return training.run_step(layer, chosen, rounds=rounds, device=device, progress=progress)

    measure_layers(
        target, layers, run, results, json_path, lambda: report_training.show_steps(results, console())
    )
    if all(p.algorithm is None for result in results.layers for p in result.passes):
        raise Unsupported("no algorithm can serve any of these layers")
    if results.complaints():
        sys.exit(FAILED)


@click.command("report")
@click.argument("table", type=click.Path(dir_okay=False, path_type=Path), metavar="TABLE.json")
@click.argument(
    "other",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="[PAGE.html | OTHER.json]",
    required=False,
)
def report_command(table: Path, other: Path | None) -> None:
    """Show again what `bench --json` or `training --json` wrote, or make the page of `bench --html`.

    With OTHER.json it compares the two, layer by layer: the time of our pick in OTHER / in TABLE, above 1
    where OTHER is slower; and it says where the machines, the versions or the picks differ.
    """
    results: bench_results.Results[Any] = results_file.read_results(table)
    steps = any(isinstance(result, training.StepResult) for result in results.layers)
    if other is None:
        (report_training.show_steps if steps else terminal.show_results)(results, console())
    elif other.suffix.lower() == ".json":
        names = str(table), str(other)
        comparison.show_comparison(
            comparison.compare_results(results, results_file.read_results(other), names), console()
        )
    elif steps:
        raise ValueError(f"{table} is of training steps, of which there is no page")
    else:
        write_atomic(other, page.results_page(results))


COMMANDS: tuple[click.Command, ...] = (bench_command, training_command, report_command)


# --- what bench and training share -----------------------------------------------------------


def read_layers(
    target: tuple[str, ...],
    batch: int | None,
    pattern: str | None,
    changes: dict[str, str | None],
    sample: int | None,
    seed: int,
    weights: str,
) -> tuple[tuple[Layer, ...], dict[str, str]]:
    """The layers to measure, and the nodes of a model that are skipped; see `bench.read_target`."""
    layers, skipped = targets.read_target(" ".join(target) or "resnet50", batch)
    layers = targets.changed(_matching(layers, pattern), **changes)
    return layers if sample is None else sampling.sample(layers, sample, seed, weights), skipped


def _matching(layers: tuple[Layer, ...], pattern: str | None) -> tuple[Layer, ...]:
    if pattern is None:
        return layers
    matching = tuple(
        la for la in layers if fnmatch(la.name, pattern) or fnmatch(f"{la.suite}/{la.name}", pattern)
    )
    if layers and not matching:
        hint = did_you_mean(pattern, [layer.name for layer in layers])
        names = ", ".join(layer.name for layer in layers[:20])
        names += ", ..." * (len(layers) > 20)
        raise ValueError(f"--layers {pattern!r} matches none of {names}{hint}")
    return matching


def new_results(device: str, skipped: dict[str, str]) -> bench_results.Results[Any]:
    """With no layer yet."""
    return bench_results.Results(
        command=shlex.join(["convalgos", *sys.argv[1:]]),
        machine=devices.measured_figures(device),
        versions=bench_results.versions() | backend(device).versions(),
        skipped=skipped,
    )


def measure_layers(
    target: tuple[str, ...],
    layers: tuple[Layer, ...],
    run: Run,
    results: bench_results.Results[Any],
    json_path: Path | None,
    show: Callable[[], None],
) -> None:
    """Add what is found on every layer to the results, save them after each, and show them in the end.

    Where it is interrupted, it shows what there is by then, and ends with the status of that.
    """
    if not layers:
        show()
        raise ValueError(f"{' '.join(target)} has no convolution to run")
    interrupted = 0
    try:
        _save(results, json_path)
        with bar() as progress:
            task = progress.add_task("", total=len(layers))
            for i, layer in enumerate(layers):
                results.layers.append(run(layer, teller(progress, task, i, layer.name)))
                _save(results, json_path)
    except KeyboardInterrupt as reason:
        interrupted = termination.status(reason)
        _save(results, json_path)  # it may have come between a layer and its being saved
    show()
    if interrupted:
        echo(f"interrupted after {len(results.layers)} of {len(layers)} layers", err=True)
        sys.exit(interrupted)


def _save(results: bench_results.Results[Any], path: Path | None) -> None:
    if path is not None:
        write_atomic(path, json.dumps(bench_results.as_json(results), indent=1) + "\n")
