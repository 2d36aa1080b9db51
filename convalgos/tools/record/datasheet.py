"""The datasheet of a recorded table, from what is in it: machine, versions, protocol, what is missing.

The questions are those of Gebru et al. 2021, *Datasheets for Datasets* (arXiv:1803.09010).
"""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Sequence
from statistics import fmean, median

from convalgos.core.interference import LONG
from convalgos.select.measure.table import HOPELESS, SLOW
from convalgos.tools.evaluate.noise import halves_of, noise_floor
from convalgos.tools.evaluate.recorded_tables import Recorded, RecordedLayer
from convalgos.tools.record import layer_timing
from convalgos.tools.report.kinds import layer_kind

Row = Sequence[object]
WIDTH = 118


def datasheet(table: Recorded) -> str:
    """The page, in Markdown."""
    target = table.protocol.get("asked", {}).get("target", "layers")
    parts = [
        f"# Recorded table: {len(table.layers)} layers of {target}, {table.machine.name}",
        f"How long each algorithm took on each of {len(table.layers)} layers, to judge selectors without the "
        "hardware, and to fit cost models. `convalgos select evaluate` reads it.",
        "## How it was recorded",
        _bullets(_origin(table)),
        *_protocol(table),
        "## What is in it",
        _by_kind(table.layers),
        _by_algorithm(table.layers),
        "The noise floor is the regret of what one half of the samples finds to be the fastest, as the other "
        "half times it: no selector can be told to be better than that.",
        "## What is missing",
        _bullets(_missing(table)),
        "## What it is good for, and what not",
        "Good for comparing selectors and for fitting cost models: split it by network, by kind or at "
        "random, and judge on what was not fitted to. Not good for the speed of later kernels, or of another "
        "machine.",
    ]
    return "\n\n".join(part if part[0] in "#-|" else textwrap.fill(part, WIDTH) for part in parts) + "\n"


def _origin(table: Recorded) -> list[str]:
    protocol = table.protocol
    versions = ", ".join(f"{name} {version}" for name, version in table.versions.items())
    return [
        f"Command: `{protocol.get('command', 'not told')}`",
        f"From {protocol.get('started', '?')} to {protocol.get('ended', '?')}",
        f"Machine: {table.machine.summary} ({table.machine.source})",
        f"Versions: {versions}",
    ]


def _protocol(table: Recorded) -> tuple[str, ...]:
    t = layer_timing
    whole = table.protocol.get("asked", {}).get("check")
    return (
        "Layers were timed in a random order. Each candidate of a layer was planned and its kernels "
        "compiled, which is in no time; then it was run, its result compared with float64 "
        f"({'all of it, where feasible' if whole else 'at some places'}), and a few samples were taken. "
        f"One that took more than {SLOW:g} times the best by then was stopped: it has one sample. The others "
        "were timed in two halves, one sample at a time in turns, each after untimed calls that bring the "
        f"data into the caches: those within {t.NEAR:g} times the best got {2 * t.MANY} samples "
        f"({2 * t.ENOUGH} from {t.BRIEF * 1e3:g} ms on), the others {2 * t.FEW}, and half of that from "
        f"{LONG * 1e3:g} ms on. Samples alternate between the halves. Meanwhile each thread had a core "
        "of its own, where the system can be told so.",
        "A sample during which other programs ran was taken again. Where that did not help, or the medians "
        f"of the halves of a near candidate were more than {t.AGREE:g}x apart, the layer was timed again, up "
        f"to {t.TRIES} times in all; what was no better then is marked as disturbed.",
    )


def _by_kind(layers: Sequence[RecordedLayer]) -> str:
    kinds: dict[str, list[RecordedLayer]] = {}
    for layer in layers:
        kinds.setdefault(layer_kind(layer.problem), []).append(layer)
    rows = [_kind_row(kind, found) for kind, found in sorted(kinds.items(), key=lambda kv: -len(kv[1]))]
    return _markdown(
        (
            "kind",
            "layers",
            "candidates timed",
            "samples",
            "stopped",
            "disturbed",
            "failed",
            *("ms of the fastest", "noise floor"),
        ),
        [*rows, _kind_row("all", layers)],
    )


def _kind_row(kind: str, layers: Sequence[RecordedLayer]) -> Row:
    floors = [math.log(noise_floor(halves_of(la.times, la.times))) for la in layers if la.times]
    fastest = [min(m.median_s for m in layer.times.values()) * 1e3 for layer in layers if layer.times]
    return (
        kind,
        len(layers),
        sum(len(layer.times) for layer in layers),
        sum(len(m.samples_s) for layer in layers for m in layer.times.values()),
        sum(len(layer.stopped) for layer in layers),
        sum(len(layer.disturbed) for layer in layers),
        sum(len(layer.failed) for layer in layers),
        f"{min(fastest):.2g} to {max(fastest):.2g}, median {median(fastest):.2g}" if fastest else "",
        f"{math.exp(fmean(floors)):.4f}" if floors else "",
    )


def _by_algorithm(layers: Sequence[RecordedLayer]) -> str:
    counts: dict[str, Counter[str]] = {}
    for layer in layers:
        for what, names in (
            ("timed", layer.times), ("stopped", layer.stopped), ("hopeless", layer.hopeless),
            ("failed", layer.failed),
        ):  # fmt: skip
            for name in names:
                counts.setdefault(name, Counter())[what] += 1
        if layer.times:
            counts[min(layer.times, key=lambda i: layer.times[i].median_s)]["fastest"] += 1
    order = sorted(counts, key=lambda name: (-counts[name]["fastest"], -counts[name]["timed"], name))
    columns = ("timed", "stopped", "fastest", "hopeless", "failed")
    return _markdown(("algorithm", *columns), [(name, *(counts[name][c] for c in columns)) for name in order])


def _missing(table: Recorded) -> list[str]:
    layers = table.layers
    asked = table.protocol.get("layers_asked_for", len(layers))
    hopeless = sum(len(layer.hopeless) for layer in layers)
    lines = [
        f"{asked - len(layers)} of the {asked} layers that were asked for",
        f"{hopeless} times of candidates that were predicted to take more than {HOPELESS:g} times the best, "
        "and not run",
        "Algorithms that cannot serve a layer",
        "The times of preparing filters, and of the first call in a process",
    ]
    if empty := sum(not layer.times for layer in layers):
        lines.append(f"Times of {empty} layers that no candidate served")
    if failed := sum(len(layer.failed) for layer in layers):
        lines.append(f"{failed} candidates that failed or gave a wrong result; the table says how")
    return lines


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _markdown(heading: Sequence[str], rows: Sequence[Row]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
