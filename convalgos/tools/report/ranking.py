"""What `convalgos explain` and `find` show on a terminal: rankings and measured tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from convalgos.select.measure.table import Table
from convalgos.select.ranking import Ranking, Rejection, worth_telling
from convalgos.tools.bench.suites import Layer
from convalgos.tools.console.text_output import cell, clean, one_line
from convalgos.tools.console.text_table import Cell, Column, print_table
from convalgos.tools.report.terminal import LAYER, PROBLEM, digits, half_spread, short

BASES = {"near": "near problem"}


def show_ranking(ranking: Ranking, console: Console) -> None:
    """The candidates in order, and why the others are out; in a file the text of the ranking."""
    if not console.is_terminal:
        console.print(cell(str(ranking)), soft_wrap=True)
        return
    timed = any(c.measured_s is not None for c in ranking.candidates)
    notes = [c.note() for c in ranking.candidates]
    columns = [
        *(Column("algorithm"), Column("predicted\nus", right=True)),
        *((Column("measured\nus", right=True), Column("±%", right=True, spare=4)) if timed else ()),
        *(Column("x best", right=True), Column("prepare\nus", right=True, spare=3)),
        *(Column("workspace\nMB", right=True, spare=2), Column("error\nbound", right=True, spare=1)),
        *([Column("", wraps=True)] if any(notes) else []),
    ]
    best = ranking.candidates[0].estimate_s if ranking.candidates else 0.0
    rows: list[tuple[Cell, ...]] = []
    for c, note in zip(ranking.candidates, notes, strict=True):
        measured = "" if c.measured_s is None else digits(c.measured_s * 1e6)
        rows.append(
            (
                c.id,
                digits(c.predicted_s * 1e6),
                *((measured, half_spread(c.spread) if measured else "") if timed else ()),
                f"{c.estimate_s / best if best else 1.0:.2f}",
                digits(c.prepare_s * 1e6),
                digits(c.workspace_bytes / 1e6),
                f"{c.error_bound:.1e}",
                *([note] if any(notes) else []),
            )
        )
    for line in ranking.header():
        console.print(cell(line))
    if rows:
        print_table(columns, rows, console)
    _print_rejected(ranking.rejected, console)
    for line in ranking.footer():
        console.print(cell(line))


def show_table(table: Table, console: Console) -> None:
    """The candidates from the fastest on, and those that were not timed; in a file the text of the table."""
    if not console.is_terminal:
        console.print(cell(str(table)), soft_wrap=True)
        return
    columns = [
        *(Column("algorithm"), Column("median\nus", right=True), Column("±%", right=True)),
        *(Column("GFLOP\n/s", right=True, spare=2), Column("workspace\nMB", right=True, spare=1)),
        Column("error", right=True),
    ]
    rows = [
        (
            r.algorithm,
            digits(r.median_s * 1e6),
            half_spread(r.spread if len(r.samples_s) > 1 else None),
            digits(table.problem.flops / r.median_s / 1e9),
            digits(r.workspace_bytes / 1e6),
            f"{r.error:.1e}",
        )
        for r in table.rows
    ]
    console.print(cell(str(table.problem)))
    if rows:
        print_table(columns, rows, console)
    _print_rejected(table.rejected, console)
    for failed in table.failed:
        console.print(cell(f"{failed.id} FAILED: {failed.why_not}", style="bold red"))


def show_picks(found: Sequence[tuple[Layer, Ranking]], skipped: dict[str, str], console: Console) -> None:
    """One line for each layer of a network: what is picked, by what, and by how much it is ahead."""
    columns = [
        *(LAYER, PROBLEM, Column("pick"), Column("time\nus", right=True), Column("as", wraps=True, spare=2)),
        *(Column("second", spare=1), Column("x", right=True, spare=1)),
    ]
    rows: list[tuple[Cell, ...]] = []
    for layer, ranking in found:
        first, second = (*ranking.candidates[:2], None, None)[:2]
        if first is None:
            pick: tuple[Cell, ...] = (cell("none", style="bold red"), "", "")
        else:
            basis = BASES.get(ranking.basis, ranking.basis)
            pick = short(first.id), digits(first.estimate_s * 1e6), basis
        behind = (short(second.id), f"{ranking.margin or 1:.2f}") if second else ("", "")
        name = one_line(layer.name) + (f" x{layer.count}" if layer.count > 1 else "")
        rows.append((name, str(layer.problem), *pick, *behind))
    print_table(columns, rows, console)
    whole = sum(r.candidates[0].estimate_s * la.count for la, r in found if r.candidates)
    calls = sum(la.count for la, r in found if r.candidates)
    lines = [f"all {calls} convolutions in a row: {digits(whole * 1e3)} ms"] if calls else []
    lines += [f"skipped {name}: {why_not}" for name, why_not in skipped.items()]
    for line in lines:
        console.print(cell(line), soft_wrap=not console.is_terminal)


def _print_rejected(rejected: Sequence[Rejection], console: Console) -> None:
    told, others = worth_telling(rejected)
    for r in told:
        reason = Text.assemble(clean(r.id), (" no: ", "dim"), clean(r.why_not))
        console.print(Padding(reason, (0, 0, 0, 2)), overflow="fold")
    if others:
        console.print(cell(f"  {others}", style="dim"))
