"""Locks and forks: a lock that another thread holds at the moment of a fork would never be free in the
child.

A fork waits for the guarded locks, so that what they protect is whole in the child. It does not wait for
ever: of what was amid a change even then the child is told, and its lock is made anew.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

PATIENCE = 20.0  # seconds that a fork waits for all locks: most kernels compile in less
TURNS = 8  # at most that it takes all of them, as others are made meanwhile
PAUSE = 5e-4  # seconds in which a thread that waits for a lock wakes up and takes it,
PAUSES = 0.05  # or all of these, where other programs have the cores

Lock = TypeVar("Lock")

# locks that forks wait for, and what is told of them, by their number
_guarded: dict[int, tuple[weakref.ref[Any], Callable[[], None]]] = {}
_renewed: weakref.WeakSet[Any] = weakref.WeakSet()
_numbers = itertools.count()
_forking = threading.local()  # .taken: the locks that this thread has taken for its fork
_waiting: set[int] = set()  # threads whose forks wait for locks


def guarded(lock: Lock, broken: Callable[[], None] = lambda: None) -> Lock:
    """Let forks wait for a lock of `threading`, and leave it free in the child; returns the lock.

    Locks that are taken while others are held are guarded before those. Whoever has the lock keeps it alive.

    Args:
        broken: called in a child that was forked while another thread went on holding the lock.

    Example:
        >>> lock = guarded(threading.Lock())
    """
    number = next(_numbers)
    _guarded[number] = weakref.ref(lock, lambda _: _guarded.pop(number, None)), broken
    return lock


def renewed(lock: Lock) -> Lock:
    """Let a lock of `threading` be free in the child of a fork, which does not wait for it; returns the lock.

    It is for one that is held for long, and over what is whole at any time. An RLock that the forking thread
    holds stays its own in the child, where that thread goes on.
    """
    _renewed.add(lock)
    return lock


def let_forks_in() -> None:
    """Let a fork that waits have the lock that this thread has just let go of.

    Who holds a lock for long, time after time, would take it again before the waiting thread is awake.
    """
    until = time.monotonic() + PAUSES
    while _waiting and time.monotonic() < until:
        time.sleep(PAUSE)


def _before() -> None:
    until, known = time.monotonic() + PATIENCE, dict[int, Any]()
    _forking.taken = []
    _waiting.add(threading.get_ident())
    # Again where another thread has made more of them meanwhile, as imports do, but not for ever: networks
    # may be made all the time. Copied at once, as locks may go at any time.
    for _ in range(TURNS):
        now = _guarded.copy()
        if now.keys() <= known.keys():
            break
        _in_parent()
        known = now
        locks = [(lock, broken) for kept, broken in reversed(now.values()) if (lock := kept()) is not None]
        _forking.taken = [
            (lock, broken, lock.acquire(timeout=max(0.0, until - time.monotonic()))) for lock, broken in locks
        ]
    _waiting.discard(threading.get_ident())


def _in_parent() -> None:
    for lock, _, taken in _taken():
        if taken:
            lock.release()


def _in_child() -> None:
    _waiting.clear()  # of threads that are not here
    for lock, broken, taken in _taken():
        if taken:
            lock.release()
        else:
            lock._at_fork_reinit()
            broken()
    for lock in tuple(_renewed):
        if not (hasattr(lock, "_is_owned") and lock._is_owned()):
            lock._at_fork_reinit()


def _taken() -> list[tuple[Any, Callable[[], None], bool]]:
    """What this thread has taken for its fork, the last one first; from now on these locks may go."""
    taken: list[tuple[Any, Callable[[], None], bool]] = _forking.taken
    _forking.taken = []
    return taken[::-1]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
