"""Compares two files of `bench --json`, or of `training --json`, layer by layer and as a whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from convalgos.select.measure.timing import Timing
from convalgos.tools.bench.recorded_machine import machine_figures
from convalgos.tools.bench.results import LayerResult, Results, geometric_mean
from convalgos.tools.bench.training import StepResult
from convalgos.tools.console.text_output import cell
from convalgos.tools.console.text_table import Cell, Column, print_table
from convalgos.tools.report.terminal import LAYER, PROBLEM, digits, layer_name, short

CALIBRATED = 0.05  # share by which measured figures of one machine differ between two calibrations


@dataclass(frozen=True)
class PickOfFile:
    """What is compared of a layer in one of the files."""

    pick: str
    seconds: float
    quartiles: tuple[float, float]


@dataclass(frozen=True)
class Pair:
    """A layer that both files have."""

    name: str
    problem: str
    before: PickOfFile
    after: PickOfFile

    @property
    def ratio(self) -> float:
        """Time after / time before: below 1 it is faster after."""
        return self.after.seconds / self.before.seconds

    @property
    def verdict(self) -> str:
        """Nothing where the middle halves of the samples overlap."""
        if self.after.quartiles[0] > self.before.quartiles[1]:
            return "slower"
        return "faster" if self.after.quartiles[1] < self.before.quartiles[0] else ""


@dataclass(frozen=True)
class Comparison:
    """All layers of two files, and where what they were measured with differs."""

    names: tuple[str, str]
    pairs: tuple[Pair, ...]
    differences: tuple[str, ...]
    left_out: tuple[str, ...]  # layers that have no time on both sides, with the reason

    @property
    def mean(self) -> float | None:
        """Geometric mean of the ratios."""
        return geometric_mean(pair.ratio for pair in self.pairs)


def compare_results(before: Results[Any], after: Results[Any], names: tuple[str, str]) -> Comparison:
    """Two results of one kind; layers are the same where suite, name and problem are.

    Raises:
        ValueError: they are not of one kind, or have no layer in common.
    """
    kinds = [results.layers[0].kind if results.layers else "" for results in (before, after)]
    if kinds[0] != kinds[1]:
        raise ValueError(
            f"{names[0]} is of {kinds[0] or 'no layers'}, and {names[1]} of {kinds[1] or 'none'}"
        )
    first, second = _by_layer(before), _by_layer(after)
    pairs, left_out = [], []
    for key in dict.fromkeys([*first, *second]):
        name = " ".join(filter(None, key[:2]))
        if key not in first or key not in second:
            left_out.append(f"{name}, {key[2]}: only in {names[0] if key in first else names[1]}")
            continue
        sides = _side(first[key]), _side(second[key])
        if sides[0] is None or sides[1] is None:
            left_out.append(f"{name}: has no time in {names[0] if sides[0] is None else names[1]}")
            continue
        pairs.append(Pair(layer_name(before, first[key]), key[2], sides[0], sides[1]))
    if not pairs:
        raise ValueError(f"{names[0]} and {names[1]} have no layer in common that both have a time of")
    return Comparison(names, tuple(pairs), tuple(_differences(before, after)), tuple(left_out))


def show_comparison(found: Comparison, console: Console) -> None:
    """The table of all layers, and what it amounts to."""
    columns = [
        *(LAYER, PROBLEM, Column("A: pick", wraps=True, spare=2), Column("A\nms", right=True)),
        *(Column("B: pick", wraps=True, spare=2), Column("B\nms", right=True), Column("B / A", right=True)),
        Column(""),
    ]
    styles = {"slower": "yellow", "faster": "green", "": ""}
    rows: list[tuple[Cell, ...]] = [
        (
            pair.name,
            pair.problem,
            *_cells(pair.before),
            *_cells(pair.after),
            cell(f"{pair.ratio:.2f}", styles[pair.verdict]),
            cell(pair.verdict, styles[pair.verdict]),
        )
        for pair in found.pairs
    ]
    print_table(columns, rows, console)
    worst, best = (choose(found.pairs, key=lambda p: p.ratio) for choose in (max, min))
    counts = {word: sum(p.verdict == word for p in found.pairs) for word in ("faster", "slower")}
    lines = [
        f"A is {found.names[0]}, B is {found.names[1]}",
        f"geometric mean of B / A: {found.mean or 1:.3f} over {len(found.pairs)} layers, "
        f"least {best.ratio:.2f} ({best.name}), most {worst.ratio:.2f} ({worst.name})",
        f"B is faster on {counts['faster']}, slower on {counts['slower']}; elsewhere their samples overlap",
        *found.left_out,
        *(f"differs: {line}" for line in found.differences),
    ]
    for line in lines:
        console.print(cell(line), soft_wrap=not console.is_terminal)


# --- inside ----------------------------------------------------------------------------------


def _by_layer(results: Results[Any]) -> dict[tuple[str, str, str], Any]:
    return {(r.layer.suite, r.layer.name, str(r.problem)): r for r in results.layers}


def _side(result: LayerResult | StepResult) -> PickOfFile | None:
    """The pick of a layer, or its whole step."""
    if isinstance(result, LayerResult):
        row = result.pick_row
        return PickOfFile(row.algorithm, row.median_s, Timing(row.samples_s).quartiles) if row else None
    timings = [p.timing for p in result.passes if p.timing is not None]
    if result.seconds is None:
        return None
    low, high = (math.fsum(t.quartiles[i] for t in timings) for i in (0, 1))
    return PickOfFile(
        " + ".join(short(p.algorithm or "") for p in result.passes), result.seconds, (low, high)
    )


def _cells(side: PickOfFile) -> tuple[str, str]:
    return short(side.pick), digits(side.seconds * 1e3)


def _differences(before: Results[Any], after: Results[Any]) -> Sequence[str]:
    """What was not the same: the machine, its measured figures, the versions, the command."""
    machines = machine_figures(before.machine), machine_figures(after.machine)
    figures = [
        f"the machine's {name}: {_told(a, b)}" for name, a, b in _unequal(*machines) if not _near(a, b)
    ]
    versions = [f"{name}: {_told(a, b)}" for name, a, b in _unequal(before.versions, after.versions)]
    commands = (
        [] if before.command == after.command else [f"the command: {before.command!r}, {after.command!r}"]
    )
    return [*figures, *versions, *commands]


def _unequal(first: dict[str, Any], second: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    names = dict.fromkeys([*first, *second])
    return [(n, first.get(n), second.get(n)) for n in names if first.get(n) != second.get(n)]


def _near(a: Any, b: Any) -> bool:
    """Whether two figures are measurements of the same."""
    return isinstance(a, float) and isinstance(b, float) and abs(a - b) <= CALIBRATED * max(abs(a), abs(b))


def _told(a: Any, b: Any) -> str:
    words = [f"{v:.4g}" if isinstance(v, float) else "none" if v is None else str(v) for v in (a, b)]
    return f"{words[0]} in A, {words[1]} in B"
