"""Text for the terminal, made from the data of `convalgos.tools.bench.results`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from rich.console import Console
from rich.text import Text

from convalgos.core.machine import Machine
from convalgos.gpu.device import GpuMachine
from convalgos.gpu.device.measured import LAUNCH
from convalgos.tools.bench.results import Findings, LayerResult, LayerResults, Results, geometric_mean
from convalgos.tools.console.text_output import cell, one_line
from convalgos.tools.console.text_table import Cell, Column, print_table
from convalgos.tools.report import kinds as report_kinds
from convalgos.tools.report.model_constants import Constant

PEER_HEADINGS = {
    "cudnn.channels_first": "cudnn\nfirst",
    "cudnn.channels_last": "cudnn\nlast",
    "torch.channels_first": "torch\nfirst",
    "torch.channels_last": "torch\nlast",
    "torch.x86": "torch\nx86",
    "torch.onednn": "torch\nonednn",
    "onnxruntime": "onnx\nrt",
}
MACHINE_SOURCES = {
    "name": "the system",
    "threads": "the process (CONVALGOS_NUM_THREADS sets it)",
    "vector_bytes": "the instruction set (NUMBA_CPU_NAME sets it)",
    "l1_bytes": "the system",
    "l2_bytes": "the system",
    "l3_bytes": "the system",
}
GPU_SOURCES = {
    f.name: "the driver" for f in fields(GpuMachine) if f.name not in ("bandwidth", "efficiency")
} | {"launch": "convalgos, from an H200"}
UNTOLD = ("source", "measured", "measured_on", "passes")  # of the figures, which stand beside others
NOTABLE_REGRET = 1.1
LAYER, PROBLEM = Column("layer", wraps=True), Column("problem", wraps=True, spare=3)


# --- bench -----------------------------------------------------------------------------------


def show_results(results: LayerResults, console: Console) -> None:
    """The table of all layers, and what it amounts to."""
    if results.layers:
        print_table(*layer_table(results), console)
    if kinds := report_kinds.kinds_table(results):
        print_table(*kinds, console)
        print_lines([cell(line) for line in report_kinds.weighted(results)], console)
    print_lines(results_footer(results), console)


def print_lines(lines: list[Text], console: Console) -> None:
    """What is told below a table."""
    for line in lines:
        console.print(line, soft_wrap=not console.is_terminal)


def layer_table(results: LayerResults) -> tuple[list[Column], list[tuple[Cell, ...]]]:
    """One line per layer. Ids leave out the device, and the oracle where the pick is the oracle."""
    hosts = any(r.pick_row and r.pick_row.host_s is not None for r in results.layers)
    peers = timed_peers(results)
    columns = [
        *(LAYER, PROBLEM, Column("pick"), Column("time\nms", right=True)),
        *(
            Column(name, right=True, spare=spare)
            for name, spare in (("±%", 8), ("GFLOP\n/s", 7), ("% of\npeak", 9))
        ),
        *([Column("host\nus", right=True, spare=4)] if hosts else []),
        *(Column("oracle", spare=6), Column("regret", right=True, spare=5)),
        *map(peer_column, peers),
    ]
    rows: list[tuple[Cell, ...]] = [
        (
            layer_name(results, result),
            str(result.problem),
            *_pick(result, results.machine),
            *([_host(result)] if hosts else []),
            *_oracle(result),
            *(ratio(result.ratio(name)) for name in peers),
        )
        for result in results.layers
    ]
    return columns, rows


def peer_column(name: str) -> Column:
    """The column of a peer's time / ours."""
    return Column(PEER_HEADINGS.get(name, name), right=True, spare=1)


def results_footer(results: LayerResults) -> list[Text]:
    """Means over the layers, the machine, and what went wrong."""
    lines = []
    regrets = {layer_name(results, r): r.regret for r in results.layers}
    lines += mean("regret", regrets, "worst", max)
    for name in timed_peers(results):
        ratios = {layer_name(results, r): r.ratio(name) for r in results.layers}
        lines += mean(name, ratios, "least", min)
    if lines:
        lines.insert(0, "geometric means: regret, and time of each peer / of the pick")
    lines += _whole_network(results)
    lines += absent_peers(results)
    unserved = [layer_name(results, r) for r in results.layers if r.pick is None]
    return [cell(line) for line in lines] + closing(results, unserved)


def closing(results: Results[Any], unserved: list[str]) -> list[Text]:
    """What was measured on, what was left out or not served, and what went wrong."""
    lines = [results.machine.summary]
    lines.append(", ".join(f"{name} {version}" for name, version in results.versions.items()))
    lines += [f"skipped {name}: {why_not}" for name, why_not in results.skipped.items()]
    lines += [f"{name}: no algorithm can serve it (convalgos explain says why)" for name in unserved]
    return [cell(line) for line in lines] + [cell(c, style="bold red") for c in results.complaints()]


def mean(what: str, by_layer: dict[str, float | None], extreme: str, choose: Any) -> list[str]:
    """A line with a geometric mean and the layer at its bad end, or none."""
    there = {name: value for name, value in by_layer.items() if value}
    if not there:
        return []
    at = choose(there, key=there.__getitem__)
    of = "" if len(there) == len(by_layer) else f", {len(there)} of {len(by_layer)} layers"
    return [f"  {what:22s} {geometric_mean(there.values()):6.2f}   {extreme} {there[at]:.2f} ({at}){of}"]


def timed_peers(results: LayerResults) -> list[str]:
    """The peers that have a time on some layer."""
    names = dict.fromkeys(p.name for r in results.layers for p in r.peers)
    return [name for name in names if any(r.peer_seconds(name) for r in results.layers)]


def absent_peers(results: LayerResults) -> list[str]:
    """A line for each peer that is not installed."""
    told = {p.name: p.why_not or "" for r in results.layers for p in r.peers}
    return [f"not run: {name} {why}" for name, why in told.items() if "which is not installed" in why]


def layer_name(results: Results[Any], result: Findings) -> str:
    """Its name, with its suite where there are several, and its count where the model says so."""
    layer = result.layer
    several = len({r.layer.suite for r in results.layers}) > 1
    count = f" x{layer.count}" if layer.count > 1 else ""
    return one_line(f"{layer.suite}/{layer.name}" if several else layer.name) + count


def _pick(result: LayerResult, machine: Machine | GpuMachine) -> tuple[Cell, ...]:
    """Cells pick, time, spread, GFLOP/s, percent of peak."""
    row = result.pick_row
    if row is None:
        return (cell("failed", style="bold red") if result.pick else "none", "", "", "", "")
    rate = result.problem.flops / row.median_s
    return (
        cell(short(row.algorithm), style="bold red" if row in result.wrong else ""),
        digits(row.median_s * 1e3),
        half_spread(row.spread if len(row.samples_s) > 1 else None),
        digits(rate / 1e9),
        f"{rate / machine.peak_of(result.problem):.0%}".rstrip("%"),
    )


def half_spread(spread: float | None) -> str:
    """Cell of percent around a median; a single sample has none."""
    return "n=1" if spread is None else f"{spread / 2:.0%}".rstrip("%")


def _host(result: LayerResult) -> str:
    """Cell of the host's time per call."""
    row = result.pick_row
    return "" if row is None or row.host_s is None else digits(row.host_s * 1e6)


def _oracle(result: LayerResult) -> tuple[Cell, ...]:
    """Cells oracle and regret."""
    oracle, regret = result.oracle, result.regret
    same = oracle is None or oracle.algorithm == result.pick
    return (
        "" if same or oracle is None else short(oracle.algorithm),
        cell(f"{regret:.2f}", style="yellow" if regret > NOTABLE_REGRET else "") if regret else "n/a",
    )


def ratio(value: float | None) -> Text | str:
    """A peer's time / ours: green where we are faster."""
    return cell(f"{value:.2f}", style="green" if value >= 1 else "yellow") if value else "n/a"


def _whole_network(results: LayerResults) -> list[str]:
    """Time of all layers as often as they occur, where a model says how often that is."""
    calls = sum(r.layer.count for r in results.layers)
    if calls == len(results.layers):
        return []

    def total(name: str, seconds: list[float | None]) -> list[str]:
        if not all(seconds):
            return []
        milliseconds = sum(
            1e3 * (s or 0) * r.layer.count for s, r in zip(seconds, results.layers, strict=True)
        )
        return [f"{name} {digits(milliseconds)} ms"]

    parts = total("picks", [r.seconds for r in results.layers])
    for name in timed_peers(results):
        parts += total(name, [r.peer_seconds(name) for r in results.layers])
    return [f"all {calls} convolutions in a row: {', '.join(parts)}"] if parts else []


def short(algorithm: str) -> str:
    """An id without its device."""
    return algorithm.removeprefix("cpu.").removeprefix("gpu.")


def digits(value: float) -> str:
    """Three significant digits, without an exponent."""
    decimals = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:.{decimals}f}"


# --- the machine and the constants -----------------------------------------------------------


def show_machine(machine: Machine | GpuMachine, console: Console) -> None:
    """The figures that cost models read, and where each came from."""
    title, sources = "machine", MACHINE_SOURCES
    if isinstance(machine, GpuMachine):
        title, sources = "gpu", gpu_sources(dict(machine.measured), machine.measured_on)
    figures = [
        (name, figure, sources.get(name, machine.source)) for name, figure in figures_of(machine).items()
    ]
    print_pairs(title, figures, console)


def figures_of(machine: Machine | GpuMachine) -> dict[str, str]:
    """The figures of a machine with their units, but for those that nobody measured."""
    told = {f.name: getattr(machine, f.name) for f in fields(machine) if f.name not in UNTOLD}
    constants = dict(machine.measured) if isinstance(machine, GpuMachine) else {}
    return {name: figure(name, value) for name, value in (told | constants).items() if value is not None}


def gpu_sources(constants: Iterable[str], day: str) -> dict[str, str]:
    """Where the figures of a GPU come from, and its constants that were measured on a day."""
    check = f"measured by gpu-check on {day}"
    launch = {"launch": check} if LAUNCH in constants else {}
    return GPU_SOURCES | launch | dict.fromkeys(constants, check)


def show_constants(found: list[Constant], console: Console) -> None:
    """The constants of the cost models, by file."""
    headings = ("file", "constant", "value", "what it is, and where it was found")
    rows = [(c.file, c.name, c.value, c.comment) for c in found]
    print_table([Column(heading, wraps=True) for heading in headings], rows, console)


def print_pairs(title: str, rows: list[tuple[str, str, str]], console: Console) -> None:
    """Names, values and where these come from."""
    print_table([Column(heading, wraps=True) for heading in (title, "", "")], rows, console)


def figure(name: str, value: object) -> str:
    """A figure of the machine with its unit."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return str(value)
    if name.startswith("peak"):
        return f"{value / 1e9:.0f} GFLOP/s"
    if "bandwidth" in name:
        return f"{value / 1e9:.1f} GB/s"
    if name == "clock":
        return f"{value / 1e6:.0f} MHz"
    if name == "efficiency":
        return f"{value:.0%} of peak"
    if name == "launch":
        return f"{value * 1e6:.1f} us"
    if name.endswith("_bytes") and value >= 64 << 20:
        return f"{value / 2**20:.0f} MiB"
    if name.endswith("_bytes") and value >= 1024:
        return f"{value / 1024:.0f} KiB"
    return f"{value} bytes" if name.endswith("_bytes") else str(value)
