"""A progress bar on a terminal's stderr, nothing elsewhere."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from convalgos import measure


def bar() -> Progress:
    """The bar; add a task to it."""
    console = Console(stderr=True)
    return Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def teller(progress: Progress, task: Any, done: int, name: str = "") -> measure.Progress:
    """Moves the bar on from `done` steps while one is measured."""

    def tell(what: str, share: float) -> None:
        progress.update(task, completed=done + share, description=f"{name}: {what}" if name else what)

    return tell
