"""SIGTERM, as batch systems send it, lets a command save its results, as Ctrl-C does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED, TERMINATED = 130, 143  # exit statuses: 128 and the number of the signal


class Terminated(KeyboardInterrupt):
    """The process was asked to end."""


def status(reason: KeyboardInterrupt) -> int:
    """The exit status of a command that ended early."""
    return TERMINATED if isinstance(reason, Terminated) else INTERRUPTED


@contextmanager
def terminable() -> Iterator[None]:
    """Within it a request to end is raised as `Terminated`."""
    if threading.current_thread() is not threading.main_thread():  # who else may not set a handler
        yield
        return
    before = signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _end(number: int, frame: FrameType | None) -> None:
    raise Terminated
