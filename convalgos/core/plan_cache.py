"""Plans by the raw arguments of a call, bounded in number and in bytes, the least recently used first out.

They are kept by the `setting` that they were made for, too: by threads, and by profile.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import numpy as np

from convalgos.core import workspaces
from convalgos.core.forks import guarded
from convalgos.core.plan import Plan
from convalgos.core.setting import Setting, setting

COUNT = 2048  # plans that are kept at most,
OBJECTS = 1 << 13  # bytes that Python takes for a plan beside its arrays, about
SHARE = 1 / 8  # and of `workspaces.most` what their tables and small workspaces take
BATCH = 8  # one in so many, by number or by bytes, goes at once where there is too much: sorting takes time

forgotten = 0  # how often `forget_all_plans` was called: what others keep of plans is then out of date

_lock = guarded(threading.Lock())
_caches: weakref.WeakSet[PlanCache] = weakref.WeakSet()
_others: list[Callable[[], None]] = []


class CachedPlan:
    """A plan that is kept."""

    __slots__ = ("nbytes", "plan", "used")

    def __init__(self, plan: Plan, used: int):
        self.plan = plan
        self.nbytes = weight(plan)
        self.used = used  # when it was last given out, by the clock of the cache


class PlanCache:
    """(key, setting) -> plan. Looking one up takes no lock; adding one does.

    Who cannot afford a call of `find` does what it does.

    Example:
        >>> cache = PlanCache()
        >>> cache.find(("a", 1)) is None, len(cache)
        (True, 0)
    """

    def __init__(self, count: int = COUNT, nbytes: int | None = None):
        self.nbytes = 0  # of all plans, as `weight` counts them
        self._count, self._most = count, nbytes
        self.kept: dict[tuple[Hashable, Setting], CachedPlan] = {}
        self.clock = itertools.count(1)
        _caches.add(self)

    def __len__(self) -> int:
        return len(self.kept)

    def find(self, key: Hashable) -> Plan | None:
        """The plan of a key. TypeError: it has no hash."""
        kept = self.kept.get((key, setting()))
        if kept is None:
            return None
        kept.used = next(self.clock)
        return kept.plan

    def add(self, key: Hashable, plan: Plan) -> None:
        """Keep a plan, and let go of those that are then too many; the new one stays in any case."""
        at, kept = (key, setting()), CachedPlan(plan, next(self.clock))
        most = int(SHARE * workspaces.most()) if self._most is None else self._most
        with _lock:
            self._drop(at)
            self.kept[at] = kept
            self.nbytes += kept.nbytes
            if self.nbytes <= most and len(self.kept) <= self._count:
                return
            count = self._count - (self._count // BATCH if len(self.kept) > self._count else 0)
            most -= most // BATCH if self.nbytes > most else 0
            for old in sorted(self.kept, key=lambda k: self.kept[k].used)[:-1]:
                if self.nbytes <= most and len(self.kept) <= count:
                    break
                self._drop(old)

    def clear(self) -> None:
        """Let go of all plans."""
        with _lock:
            self.kept.clear()
            self.nbytes = 0

    def _drop(self, at: tuple[Hashable, Setting]) -> None:
        kept = self.kept.pop(at, None)
        self.nbytes -= kept.nbytes if kept else 0


def forget_all_plans() -> None:
    """Let go of the plans of all caches, and of what else is kept of plans."""
    global forgotten
    forgotten += 1
    for cache in list(_caches):
        cache.clear()
    for forget in _others:
        forget()


def also_forget(forget: Callable[[], None]) -> None:
    """Have `forget_all_plans` call what lets go of things that a module keeps beside plans."""
    _others.append(forget)


def weight(plan: Plan) -> int:
    """Bytes of a plan, of the arrays that it holds, and of a workspace that is not counted by itself."""
    nbytes = OBJECTS + (plan.workspace_bytes if plan.workspace_bytes < workspaces.LARGE else 0)
    seen: set[int] = set()  # arrays, plans and their workspaces, each of which counts once
    waiting: list[Iterable[Any]] = [(plan,)]  # what is reached through attributes and containers
    while waiting:
        for value in waiting.pop():
            kind = type(value)
            if kind in _holds_none or id(value) in seen:
                continue
            if kind is dict:
                waiting.append(value.values())
            elif kind is list or kind is tuple:
                waiting.append(value)
            elif isinstance(value, np.ndarray):
                seen.add(id(value))
                nbytes += value.nbytes
            elif isinstance(value, Plan):
                seen |= {id(value), id(value._free)}
                waiting.append(vars(value).values())
            else:
                _holds_none.add(kind)
    return nbytes


_holds_none: set[type] = {int, str, bool, type(None)}  # classes of which no array is reached
