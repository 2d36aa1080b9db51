"""How far a command is: a bar on a terminal's stderr, and in a file a line now and then."""

from __future__ import annotations

import time
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from convalgos.select.measure import timing
from convalgos.tools.console.text_output import console, echo, one_line

EVERY = 20.0  # seconds between two lines in a file
LONG_LEFT = 120.0  # seconds left that are told there


class _Lines(Progress):
    """What stands in for the bar where stderr is a file: a line when there is news, and not too often."""

    _next = 0.0

    def start(self) -> None:
        super().start()
        self._next = time.monotonic() + EVERY

    def update(self, task_id: Any, **changes: Any) -> None:
        super().update(task_id, **changes)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY
            task = self.tasks[task_id]
            share = (
                f"{task.completed:.0f} of {task.total:.0f}" if task.total != 1 else f"{task.percentage:.0f} %"
            )
            elapsed = task.elapsed or 0.0
            left = elapsed * (task.total / task.completed - 1) if task.completed else 0.0
            told = f" and {left / 60:.0f} min left" if left >= LONG_LEFT else ""
            echo(f"{share} after {elapsed:.0f} s{told}, {task.description}", err=True)


def bar() -> Progress:
    """The bar; add a task to it."""
    stderr = console(err=True)
    if not stderr.is_terminal:
        return _Lines(console=stderr, disable=True)
    return Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
        console=stderr,
        transient=True,
    )


def teller(progress: Progress, task: Any, done: int, name: str = "") -> timing.Progress:
    """Moves the bar on from `done` steps while one is measured."""

    def tell(what: str, share: float) -> None:
        description = one_line(f"{name}: {what}" if name else what)
        progress.update(task, completed=done + share, description=description)

    return tell
