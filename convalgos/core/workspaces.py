"""Scratch memory that plans keep between calls: bounded over all plans, the least recently used goes first.

A plan that is called again finds its workspace as it left it, still in the caches. But a program that brings
ever new shapes would leave one with each plan, and 16-bit data leave whole maps of float32 there. So large
ones are counted here, and those of the plans that have not run for longest are let go.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

from convalgos.core.endings import Endings
from convalgos.core.forks import guarded

LARGE = 1 << 20  # bytes of a workspace from which on it is counted; smaller ones count with their plan
SHARE = 1 / 16  # of the machine's memory that may be kept
VARIABLE = "CONVALGOS_KEPT_BYTES"  # sets how many bytes instead
MEMORY = 8 << 30  # bytes of a machine that does not tell


class Owner(Protocol):
    """What of a plan is asked for here."""

    workspace_bytes: int
    _free: list[Any]


class OwnWorkspaces:
    """What a plan has of workspaces that are not in use.

    It keeps those of its second call and later ones: a plan for sizes that come once leaves its memory to the
    next, which finds it in the caches, and need not ask the system for new pages.
    """

    def _set_workspace(self, workspace_bytes: int) -> None:
        self.workspace_bytes = workspace_bytes
        self._free: list[Any] = []  # list.pop and append are atomic
        self._counted = workspace_bytes >= LARGE
        self._called = False

    def _comes_again(self) -> bool:
        """Whether a call asked for a workspace before."""
        before, self._called = self._called, True
        return before

    def _give_back(self, workspace: Any) -> None:
        self._free.append(workspace)
        if self._counted:
            returned(self)


# A plan may go, and be forgotten, amid any line here, in the same thread.
_lock = guarded(threading.RLock())
_kept: OrderedDict[int, tuple[weakref.ref[Owner], int]] = (
    OrderedDict()
)  # id of a plan -> it, bytes it is counted with
_ended = Endings(_lock)  # of plans that are gone and still counted
_total = 0
_limit: int | None = None  # bytes of memory that this process has been told to use at most


@cache
def most() -> int:
    """Bytes that may be kept: those that CONVALGOS_KEPT_BYTES says, or a share of the memory.

    Raises:
        ValueError: CONVALGOS_KEPT_BYTES is no number of bytes.
    """
    given = os.environ.get(VARIABLE)
    if not given:
        return int(SHARE * _memory())
    if not given.isascii() or not given.isdigit():
        raise ValueError(f"{VARIABLE}={given!r} must be a number of bytes")
    return int(given)


def limit_memory(nbytes: int) -> None:
    """Tell that this process may use no more than so many bytes of memory."""
    global _limit
    _limit = nbytes
    most.cache_clear()


def returned(plan: Owner) -> None:
    """Count what a plan keeps after a run, and let go of what is too much in all."""
    global _total
    nbytes = len(plan._free) * plan.workspace_bytes
    key = id(plan)
    with _lock:
        _ended.settle()
        known = _kept.get(key)
        if known is not None and known[1] >= nbytes:
            _kept.move_to_end(key)
            return
        _total += nbytes - (known[1] if known else 0)
        kept = known[0] if known else weakref.ref(plan, lambda _: _ended.add(partial(_forget, key)))
        _kept[key] = kept, nbytes
        _kept.move_to_end(key)
        while _total > most() and _kept:
            _, (oldest, counted) = _kept.popitem(last=False)
            _total -= counted
            owner = oldest()
            if owner is not None:
                owner._free.clear()


def workspace_bytes_held() -> int:
    """Bytes of workspaces that are counted now."""
    with _lock:
        _ended.settle()
        return _total


def release_workspaces() -> None:
    """Let go of all that no call is using."""
    global _total
    with _lock:
        for kept, _ in [*_kept.values()]:
            owner = kept()
            if owner is not None:
                owner._free.clear()
        _kept.clear()
        _total = 0


def _forget(key: int) -> None:
    global _total
    entry = _kept.pop(key, None)
    _total -= entry[1] if entry else 0


def _memory() -> int:
    """Bytes of memory that this process may use."""
    try:
        found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        found = MEMORY
    found = found if _limit is None else min(found, _limit)
    try:
        return min(found, int(Path("/sys/fs/cgroup/memory.max").read_text()))  # of a container
    except (OSError, ValueError):  # none, or "max"
        return found
