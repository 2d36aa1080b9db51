"""Tables that fit a terminal, without cutting any text.

1. Words continue in the next line of their cell.
2. Where that is not enough, the least important columns are left out, and named below the table.
3. Where even the important columns do not fit, each row is printed as a block of lines.

In a file a table is as wide as it needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from convalgos.tools.console.text_output import cell, clean

LONGEST = 24  # characters of a word that make a column wider; longer words are broken
EDGES = 2  # characters beside a table
APART, CLOSE = 2, 1  # characters between columns where there is room, and where there is not

Cell = str | Text


@dataclass(frozen=True)
class Column:
    """How a column gives way.

    Args:
        heading: may have several lines.
        right: numbers, which stand to the right and are never broken.
        wraps: words may go on in the next line.
        spare: where there is no room the column with the largest goes first; 0 never goes.
    """

    heading: str
    right: bool = False
    wraps: bool = False
    spare: int = 0

    @property
    def name(self) -> str:
        return self.heading.replace("\n", " ")


def print_table(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]], console: Console, title: str = ""
) -> None:
    """Print rows of cells as wide as the terminal, or in a file as wide as they take."""
    columns = [replace(column, heading=clean(column.heading)) for column in columns]
    cells = [[cell(value) for value in row] for row in rows]
    widths = [_natural(column, i, cells) for i, column in enumerate(columns)]
    if not console.is_terminal:
        console.width = max(console.width, _total(widths, APART), len(title))
    shown, widths, gap = fitted(columns, cells, console.width)
    if title:
        console.print(cell(title, style="italic"))
    if not widths:
        _print_lines(columns, cells, console)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, gap - CLOSE, 0, 0), header_style="bold")
    for i, width in zip(shown, widths, strict=True):
        column = columns[i]
        table.add_column(
            Text(column.heading), justify="right" if column.right else "left", width=width, overflow="fold"
        )
    for row in cells:
        table.add_row(*(row[i] for i in shown))
    console.print(table)
    if gone := [column.name for i, column in enumerate(columns) if i not in shown]:
        note = f"no room here for: {', '.join(gone)}; a wider terminal, or a file, has all columns"
        console.print(Text(note, style="dim"))


def fitted(
    columns: Sequence[Column], cells: Sequence[Sequence[Text]], width: int
) -> tuple[list[int], list[int], int]:
    """(indices of the columns that are shown, their widths, the gap between them).

    No widths where not even the columns that never go have room.
    """
    natural = [_natural(column, i, cells) for i, column in enumerate(columns)]
    least = [_least(column, i, cells) for i, column in enumerate(columns)]
    shown = list(range(len(columns)))
    if _total(natural, APART) <= width:
        return shown, natural, APART
    while _total([least[i] for i in shown], CLOSE) > width:
        last = max(shown, key=lambda i: columns[i].spare)
        if not columns[last].spare:
            return shown, [], CLOSE
        shown.remove(last)
    widths = [least[i] for i in shown]
    room = width - _total(widths, CLOSE)
    for _ in range(room):  # to the column that is broken most
        at = max(range(len(shown)), key=lambda at: natural[shown[at]] / max(1, widths[at]))
        if natural[shown[at]] <= widths[at]:
            break
        widths[at] += 1
    return shown, widths, APART if _total(widths, APART) <= width else CLOSE


# --- inside ----------------------------------------------------------------------------------


def _total(widths: Sequence[int], gap: int) -> int:
    return sum(widths) + gap * max(0, len(widths) - 1) + EDGES


def _natural(column: Column, i: int, cells: Sequence[Sequence[Text]]) -> int:
    """Characters of its longest line."""
    lines = [line for text in (column.heading, *(row[i].plain for row in cells)) for line in text.split("\n")]
    return max(map(cell_len, lines))


def _least(column: Column, i: int, cells: Sequence[Sequence[Text]]) -> int:
    """The characters without which it would be cut."""
    if not column.wraps:
        return _natural(column, i, cells)
    words = [w for text in (column.heading, *(row[i].plain for row in cells)) for w in text.split()]
    return min(LONGEST, max(map(cell_len, words), default=1))


def _print_lines(columns: Sequence[Column], cells: Sequence[Sequence[Text]], console: Console) -> None:
    """A row as a block of lines, a column on each."""
    for row in cells:
        console.print(row[0], overflow="fold", style="bold")
        for column, value in zip(columns[1:], row[1:], strict=True):
            if value.plain:
                line = Text.assemble(f"{column.name}: ", Text(" ").join(value.split("\n")))
                console.print(Padding(line, (0, 0, 0, 2)), overflow="fold")
