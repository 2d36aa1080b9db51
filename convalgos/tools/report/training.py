"""What `convalgos training` shows, made from the data of `convalgos.tools.bench.training`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from convalgos.select.measure.timing import Timing
from convalgos.tools.bench.results import Results
from convalgos.tools.bench.training import PassResult, StepResult
from convalgos.tools.console.text_output import cell
from convalgos.tools.console.text_table import Cell, Column, print_table
from convalgos.tools.report import terminal
from convalgos.tools.report.terminal import digits

WORDS = {"forward": "forward", "backward_data": "dx", "backward_weights": "dw"}

Steps = Results[StepResult]


def show_steps(results: Steps, console: Console) -> None:
    """The table of all layers, and what it amounts to."""
    if results.layers:
        print_table(*step_table(results), console)
    terminal.print_lines(steps_footer(results), console)


def step_table(results: Steps) -> tuple[list[Column], list[tuple[Cell, ...]]]:
    """Two lines per layer: milliseconds of each pass, and what was picked, without the device.

    Of a peer the time of its step / that of ours, and the milliseconds of its two calls.
    """
    peers = peers_of_steps(results)
    columns = [
        *(terminal.LAYER, terminal.PROBLEM),
        *(Column(f"{word}\nms", right=True) for word in WORDS.values()),
        *(Column("step\nms", right=True), Column("±%", right=True, spare=5)),
        *map(terminal.peer_column, peers),
    ]
    rows: list[tuple[Cell, ...]] = [
        (
            terminal.layer_name(results, r),
            str(r.problem),
            *map(_pass, r.passes),
            digits(r.seconds * 1e3) if r.seconds else "",
            f"{r.spread / 2:.0%}".rstrip("%") if r.spread is not None else "",
            *(_peer(r, name) for name in peers),
        )
        for r in results.layers
    ]
    return columns, rows


def steps_footer(results: Steps) -> list[Text]:
    """Means over the layers, the whole network, the machine, and what went wrong."""
    lines = []
    for name in peers_of_steps(results):
        ratios = {terminal.layer_name(results, r): r.ratio(name) for r in results.layers}
        lines += terminal.mean(name, ratios, "least", min)
    if lines:
        lines.insert(0, "geometric means: time of each peer's step / of ours")
    lines += _whole_network(results)
    unserved = [
        f"{terminal.layer_name(results, r)} {p.direction}"
        for r in results.layers
        for p in r.passes
        if p.algorithm is None
    ]
    return [cell(line) for line in lines] + terminal.closing(results, unserved)


def peers_of_steps(results: Steps) -> list[str]:
    """The peers that have a whole step on some layer."""
    found = [p for r in results.layers for p in r.peers]
    return list(dict.fromkeys(p.name for p in found if p.seconds is not None))


def _pass(p: PassResult) -> Text:
    """The cell of a pass: its time, and what was picked."""
    if p.algorithm is None or p.failed:
        return cell("failed" if p.failed else "none", style="bold red" if p.failed else "")
    time = digits(p.timing.median * 1e3) if p.timing else ""
    return cell(f"{time}\n{terminal.short(p.algorithm)}", style="bold red" if p.wrong else "")


def _peer(r: StepResult, name: str) -> Text:
    """The cell of a peer: its step / ours, and the milliseconds of its forward pass and of both gradients."""
    step = r.peer(name)
    if step is None or step.seconds is None:
        return cell("n/a")
    parts = "+".join(digits(t.median * 1e3) for t in step.timings if t)
    return Text.assemble(terminal.ratio(r.ratio(name)), f"\n{parts}")


def _whole_network(results: Steps) -> list[str]:
    """Steps of all layers as often as they occur: ours, and those of the peers that have them all."""
    layers = results.layers
    calls = sum(r.layer.count for r in layers)
    if calls < 2:
        return []
    ours = _milliseconds(results, [[p.timing for p in r.passes] for r in layers])
    if ours is None:
        return []
    lines = [f"a step of all {calls} convolutions: {_terms(list(WORDS.values()), ours)}"]
    for name in peers_of_steps(results):
        steps = [r.peer(name) for r in layers]
        theirs = _milliseconds(results, [s.timings if s else (None, None) for s in steps])
        if theirs is not None:
            told = _terms(["forward", "both gradients"], theirs)
            lines.append(f"  {name:22s} {sum(theirs) / sum(ours):6.2f}   {told}")
    return lines


def _milliseconds(results: Steps, timings: Sequence[Sequence[Timing | None]]) -> list[float] | None:
    """The parts of a step over the whole network, from those on each layer; None where one is missing."""
    layers = []
    for r, parts in zip(results.layers, timings, strict=True):
        medians = [t.median for t in parts if t is not None]
        if len(medians) < len(parts):
            return None
        layers.append([1e3 * r.layer.count * m for m in medians])
    return [sum(part) for part in zip(*layers, strict=True)]


def _terms(words: Sequence[str], milliseconds: Sequence[float]) -> str:
    terms = " + ".join(f"{word} {digits(ms)}" for word, ms in zip(words, milliseconds, strict=True))
    return f"{terms} = {digits(sum(milliseconds))} ms"
