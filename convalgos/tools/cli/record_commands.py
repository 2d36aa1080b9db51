"""`convalgos record`: tables for `convalgos select evaluate`, recorded for as long as it takes."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from convalgos.core.cache_files import write_atomic
from convalgos.core.file_lock import locked
from convalgos.select import devices
from convalgos.select.measure.backends import backend
from convalgos.select.measure.timing import Progress
from convalgos.tools.bench import cluster_hosts, peers
from convalgos.tools.bench import results as bench_results
from convalgos.tools.bench.suites import Layer
from convalgos.tools.cli import completion
from convalgos.tools.cli.bench_commands import drawing, read_layers
from convalgos.tools.cli.select_commands import changing
from convalgos.tools.console import termination
from convalgos.tools.console.exit_status import FAILED
from convalgos.tools.console.progress_bar import bar, teller
from convalgos.tools.console.text_output import echo
from convalgos.tools.evaluate.recorded_tables import Recorded, compact_text
from convalgos.tools.record import recording
from convalgos.tools.record.datasheet import datasheet
from convalgos.tools.record.journal import Journal

JOURNAL, TABLE, DATASHEET = "journal.jsonl", "table.json", "DATASHEET.md"


@click.command("record")
@drawing
@changing
@click.option(
    "--out",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="Where the recording is kept, and gone on with.",
)
@click.option(
    "--time-limit", type=click.FloatRange(0), metavar="SECONDS", help="Begin no other layer after that."
)
@click.option("--check", is_flag=True, help="Compare all of each result with float64, not only some places.")
@click.option(
    "--peers",
    "peer_names",
    default="none",
    metavar="LIST",
    shell_complete=completion.peers,
    help="Libraries to time beside the candidates, like torch,onnxruntime; none by default.",
)
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="Record on the machines of a Dask cluster: a folder in DIR for each kind of them.",
)
def record_command(
    target: tuple[str, ...],
    folder: Path,
    time_limit: float | None,
    check: bool,
    peer_names: str,
    scheduler: str | None,
    pattern: str | None,
    sample: int | None,
    seed: int,
    weights: str,
    batch: int | None,
    device: str,
    **changes: str | None,
) -> None:
    """Time every candidate on layers of a suite or a file, to judge selectors by, and to fit cost models.

    It takes about a second for each layer, on a machine on which nothing else should run. DIR gets
    journal.jsonl, to which each layer is added; and in the end, or where it is interrupted, table.json, which
    `convalgos select evaluate` reads, and DATASHEET.md, which says what is in it. The same command goes on
    where it was stopped or killed. The exit status is 1 if a result was wrong.
    """
    layers, _ = read_layers(target, batch, pattern, changes, sample, seed, weights)
    chosen = peers.choose_peers(peer_names, device, {layer.problem.dtype for layer in layers})
    asked: dict[str, Any] = {
        "target": " ".join(target) or "resnet50", "layers": pattern, "batch": batch, "sample": sample,
        "seed": seed, "weights": weights, "device": device, "check": check, "peers": peer_names, **changes,
    }  # fmt: skip
    protocol = {
        "command": _command(asked),
        "started": _now(),
        "asked": {name: value for name, value in asked.items() if value not in (None, False)},
    }
    if scheduler is not None:
        _record_on_cluster(scheduler, layers, folder, protocol, seed, time_limit)
        return
    figures = devices.measured_figures(device)
    head = Recorded(figures, bench_results.versions() | backend(device).versions(), (), protocol)
    time_one = recording.time_on(device, chosen, whole_check=check)
    with locked(folder / JOURNAL, patience=0.0):
        journal = Journal(folder / JOURNAL, head)
        todo = recording.open_layers(layers, journal)
        if journal.layers:
            echo(f"{len(layers) - len(todo)} of {len(layers)} layers were recorded before", err=True)
        interrupted = 0
        try:
            with bar() as progress:
                task = progress.add_task("", total=len(todo))

                def watch(done: int, layer: Layer) -> Progress:
                    return teller(progress, task, done, layer.name)

                recording.record(layers, journal, time_one, seed=seed, time_limit=time_limit, watch=watch)
        except KeyboardInterrupt as reason:
            interrupted = termination.status(reason)
        _finish(layers, journal, folder)
    _exit(interrupted, [journal])


def _record_on_cluster(
    scheduler: str,
    layers: Sequence[Layer],
    folder: Path,
    protocol: dict[str, Any],
    seed: int,
    time_limit: float | None,
) -> None:
    """A recording of each kind of machine, in a folder that is called by it."""
    from convalgos.tools.record import record_cluster  # needs Dask

    asked = protocol["asked"]
    how = record_cluster.HowTimed(asked["device"], asked["peers"], bool(asked.get("check")))
    with cluster_hosts.connected(scheduler) as client, ExitStack() as locks:
        hosts = cluster_hosts.hosts_by_kind(client)
        journals = {}
        for machine, of_kind in hosts.items():
            path = folder / machine / JOURNAL
            locks.enter_context(locked(path, patience=0.0))
            journals[machine] = Journal(path, record_cluster.head_on(client, of_kind[0], how, protocol))
        total = sum(len(recording.open_layers(layers, journal)) for journal in journals.values())
        interrupted = 0
        try:
            with bar() as progress:
                task = progress.add_task("", total=total)
                for done, (machine, layer) in enumerate(record_cluster.record_all(
                    client, hosts, journals, layers, how, seed=seed, time_limit=time_limit
                )):  # fmt: skip
                    progress.update(task, completed=done + 1, description=f"{machine}: {layer.name}")
        except KeyboardInterrupt as reason:
            interrupted = termination.status(reason)
        for machine, journal in journals.items():
            _finish(layers, journal, folder / machine)
    _exit(interrupted, journals.values())


def _exit(interrupted: int, journals: Iterable[Journal]) -> None:
    """End with what a recording came to, if it is not success."""
    if interrupted:
        sys.exit(interrupted)
    if any(layer.failed for journal in journals for layer in journal.layers):
        sys.exit(FAILED)


def _finish(layers: Sequence[Layer], journal: Journal, folder: Path) -> None:
    """Write the table and its datasheet, and tell what is there and what is wrong with it."""
    table = recording.recorded_table(layers, journal)
    table = replace(table, protocol=table.protocol | {"ended": _now()})
    if table.layers:
        write_atomic(folder / TABLE, compact_text(table))
        write_atomic(folder / DATASHEET, datasheet(table))
    for layer in table.layers:
        for name, why in layer.failed.items():
            echo(f"{layer.name}: {name}: {why}", err=True)
    missing = len(layers) - len(table.layers)
    rest = f"; {missing} are missing, and the same command goes on" if missing else ""
    echo(f"{len(table.layers)} of {len(layers)} layers in {folder / TABLE}{rest}")


def _command(asked: dict[str, Any]) -> str:
    """What records the same, anywhere."""
    words = ["convalgos", "record", asked["target"]]
    for name, value in asked.items():
        if name != "target" and value not in (None, False):
            words += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return shlex.join(words)


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"


COMMANDS: tuple[click.Command, ...] = (record_command,)
