"""The command that runs whole networks: `convalgos run`."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import click

from convalgos import network as networks
from convalgos.core.cache_files import write_atomic
from convalgos.core.errors import Unsupported, missing
from convalgos.select import devices
from convalgos.tools.bench import network_inputs, network_peers, network_run
from convalgos.tools.bench.results import versions
from convalgos.tools.cli.select_commands import BATCH
from convalgos.tools.cli.thread_option import threads_asked
from convalgos.tools.console.exit_status import FAILED
from convalgos.tools.console.progress_bar import bar, teller
from convalgos.tools.console.text_output import console, echo
from convalgos.tools.report import network as report_network
from convalgos.tools.report import network_page

DIFFERENT = 1e-2  # relative to the largest output: so far apart, one of two libraries is wrong

FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("run")
@click.argument("model", type=FILE, metavar="MODEL.onnx")
@click.option("--image", type=FILE, metavar="FILE", help="A picture as input, normalised as for ImageNet.")
@click.option("--random", "at_random", is_flag=True, help="Random numbers as input, as without --image.")
@BATCH
@click.option("--size", metavar="H,W", help="Sizes that the model leaves open; 224 by default.")
@click.option(
    "--peers",
    "peer_names",
    metavar="LIST",
    help="Of onnxruntime, openvino and torch, or none; by default those installed, without torch.",
)
@click.option(
    "--threads", type=click.IntRange(1), metavar="N", help="Of all libraries; all cores by default."
)
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Rounds of timing.")
@click.option("--json", "json_path", type=FILE, metavar="FILE", help="Save everything measured.")
@click.option("--html", "html_path", type=FILE, metavar="FILE", help="Write a page with charts and tables.")
def network_command(
    model: Path,
    image: Path | None,
    at_random: bool,
    batch: int | None,
    size: str | None,
    peer_names: str | None,
    threads: int | None,
    rounds: int,
    json_path: Path | None,
    html_path: Path | None,
) -> None:
    """Run a whole network end to end, beside other libraries.

    Every library loads the model itself and is timed in the same rounds; outputs are compared with ours, and
    the exit status is 1 where they differ. The first table has the steps of our plan, each timed by itself;
    the second each library: its time, that over ours, the largest difference of an output relative to the
    largest output, the time to load the model and run it first, and by how much the memory of a process
    grows that does so. torch runs the steps that we read, compiled by torch.compile.
    """
    if image is not None and at_random:
        raise ValueError("name --image or --random, not both")
    if html_path is not None and (reason := missing("plotly")):
        raise Unsupported(f"--html {reason}")
    chosen = network_peers.choose_network_peers(peer_names)
    threads_asked(threads)  # as have the processes that tell their memory
    graph = networks.from_onnx(model).graph
    shapes = network_inputs.input_shapes(graph, batch, _sizes(size))
    feeds = (
        network_inputs.image_input(image, shapes) if image else network_inputs.random_inputs(graph, shapes)
    )
    with bar() as progress:
        task = progress.add_task("", total=1)
        results = network_run.run_network(
            model, feeds, chosen, command=shlex.join(["convalgos", *sys.argv[1:]]),
            machine=devices.measured_figures("cpu"), versions=versions(), rounds=rounds,
            progress=teller(progress, task, 0),
        )  # fmt: skip
    report_network.show_network(results, console())
    if json_path is not None:
        write_atomic(json_path, json.dumps(results.as_json(), indent=1) + "\n")
    if html_path is not None:
        write_atomic(html_path, network_page.network_page(results))
    wrong = [times for times in results.times if times.error is not None and not times.error <= DIFFERENT]
    for times in wrong:
        echo(f"outputs of {times.name} differ from ours by {times.error:.1e}", err=True)
    if wrong:
        sys.exit(FAILED)


def _sizes(words: str | None) -> tuple[int, ...] | None:
    """The numbers of --size."""
    if words is None:
        return None
    numbers = words.replace("x", ",").split(",")
    if not all(number.strip().isdigit() and int(number) > 0 for number in numbers):
        raise ValueError(f"--size {words!r} must be numbers such as 640,480")
    return tuple(map(int, numbers))


COMMANDS: tuple[click.Command, ...] = (network_command,)
