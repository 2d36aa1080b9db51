"""What a study is: a question, where it comes from, how it is measured, and an answer in parts.

A study is one file of this room with a `STUDY`; it reads in the same order everywhere: question and source,
constants, the class, what it measures with, `STUDY`. Libraries that need not be installed are imported where
they are used: all files are imported where studies are listed.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

SECONDS, QUICK_SECONDS = 600.0, 60.0  # that a study may take, and with --quick
CHARTS = ("bars", "lines", "points", "timeline")

StudyCell = str | float | None


def untold(what: str) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True)
class StudySetting:
    """What a study is asked for: where it runs, on how many threads, and for how long.

    Args:
        quick: a first answer within a minute.
        device: "cpu", or "gpu" for what runs there as well.
        threads: of all libraries.
        seconds: that the whole study may take; it asks `left` and makes its grids smaller on slow machines.
        tell: what is done next, for who waits.

    Example:
        >>> StudySetting(quick=True).left() <= 60
        True
    """

    quick: bool = False
    device: str = "cpu"
    threads: int = 1
    seconds: float = SECONDS
    tell: Callable[[str], None] = untold
    began: float = field(default_factory=time.perf_counter)

    def left(self) -> float:
        """Seconds until the study should have ended."""
        return self.deadline - time.perf_counter()

    @property
    def deadline(self) -> float:
        """Of `time.perf_counter`, as `interleave` takes it."""
        return self.began + (min(self.seconds, QUICK_SECONDS) if self.quick else self.seconds)


@dataclass(frozen=True)
class StudyColumn:
    """A column of a table: its name, the unit of its numbers, and how many digits of them are shown."""

    name: str
    unit: str = ""  # "ms", "us", "x", "GFLOP/s", "MB"
    digits: int = 3  # significant


@dataclass(frozen=True)
class Chart:
    """How columns of a table are drawn.

    Args:
        kind: "bars", "lines" and "points" of each column of `y` over `x`; "timeline", a bar on the line that
            `x` names from the first column of `y` to the second.
        by: a column each of whose values is a series of its own.
    """

    kind: str
    x: str
    y: tuple[str, ...]
    by: str | None = None
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Part:
    """A part of the answer: what it shows in plain words, a table, and a chart of that.

    Raises:
        ValueError: a row has not the length of the columns, a number is not finite (None stands for what
            there is not), or the chart names no columns of the table. TypeError: a cell is of another type.
    """

    title: str
    text: str
    columns: tuple[StudyColumn, ...]
    rows: tuple[tuple[StudyCell, ...], ...]
    chart: Chart | None = None

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.title}: row {row} must have {len(self.columns)} cells")
            for cell in row:
                if not isinstance(cell, str | int | float | None) or isinstance(cell, bool):
                    raise TypeError(f"{self.title}: {cell!r} must be text, a number or None")
                if isinstance(cell, float) and not math.isfinite(cell):
                    raise ValueError(f"{self.title}: {cell!r} must be finite, or None for what there is not")
        if self.chart:
            _check_chart(self.title, self.chart, {column.name for column in self.columns})

    def values(self, column: str) -> list[StudyCell]:
        """The cells of a column, from the first row to the last."""
        at = [c.name for c in self.columns].index(column)
        return [row[at] for row in self.rows]


@dataclass(frozen=True)
class Finding:
    """What the original work found, with its figures, beside what was found here with its own.

    `holds` is whether the claim does here; None where this machine cannot tell.
    """

    claim: str
    here: str
    holds: bool | None


@dataclass(frozen=True)
class NotRun:
    """What this machine or this installation cannot measure, and what it would need."""

    what: str
    needs: str


Answer = Part | Finding | NotRun


class Study(ABC):
    """A question that is answered by running it; each is one file of this room."""

    name: ClassVar[str]
    question: ClassVar[str]  # in one sentence
    source: ClassVar[str]  # what the original work was, and what it found
    method: ClassVar[str]  # how it is measured here
    look_at: ClassVar[str]  # what to look at in the result

    @abstractmethod
    def parts(self, setting: StudySetting) -> Iterator[Answer]:
        """The answer, part by part, as each is known."""


def _check_chart(title: str, chart: Chart, names: set[str]) -> None:
    if chart.kind not in CHARTS:
        raise ValueError(f"{title}: kind={chart.kind!r} must be one of {', '.join(CHARTS)}")
    if missing := {chart.x, *chart.y, *([chart.by] if chart.by else [])} - names:
        raise ValueError(f"{title}: the chart draws {sorted(missing)}, which are no columns")
    if chart.kind == "timeline" and len(chart.y) != 2:
        raise ValueError(f"{title}: a timeline draws two columns, beginning and end, not {chart.y}")
