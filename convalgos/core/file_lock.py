"""The lock beside a file, which one thread of one process holds at a time.

The system lets a lock go when the last process that has it open ends. A child that was forked meanwhile has
it open, too, and may outlive its parent: so a lock is let go in words, and a child closes what it inherited.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 60.0  # seconds to wait for others, each of which holds a lock for some milliseconds
POLL = 0.002  # seconds between two looks at a lock that another one holds

_held: dict[object, int] = {}  # file descriptors that this process has open


@contextmanager
def locked(path: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Hold the lock of a file, alone among all threads and processes.

    Raises:
        TimeoutError: others held it for all the time of our patience: one of them is stuck. OSError: the
            folder cannot be written, or its file system has no locks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(path.name + ".lock")
    holder = object()
    _held[holder] = file = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if not _taken(file, time.monotonic() + patience):
            raise TimeoutError(errno.ETIMEDOUT, "another process holds this lock", str(lock))
        try:
            yield
        finally:
            if holder in _held:  # or this is a child that was forked within: the lock is its parent's
                fcntl.flock(file, fcntl.LOCK_UN)
    finally:
        if _held.pop(holder, None) is not None:
            os.close(file)


def _taken(file: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL)


def _let_go() -> None:
    """In a child: the locks stay with its parent, which may be ended while the child lives on."""
    for file in _held.values():
        os.close(file)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)
