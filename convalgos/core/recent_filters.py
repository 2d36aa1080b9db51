"""Small filters that calls brought as they are, in the form that a plan runs on, for later calls.

To prepare a filter takes Python ten microseconds, which is several times a small convolution. So what was
prepared is kept with a copy of the filter's bytes, and serves as long as a filter at the same address has
the very same bytes: whoever writes to it, and in whatever way, the next call goes by what is written. Of one
that has changed, as in each step of training, only the bytes are kept until they come a second time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from convalgos.core import workspaces
from convalgos.core.allocator import of_one_call
from convalgos.core.forks import guarded
from convalgos.core.prepared_filter import FilterKey, PreparedFilter

LARGEST = 1 << 17  # bytes of a filter that is kept, which are compared in 4 us
SHARE = 1 / 32  # of `workspaces.most` that all of them take
ANYWHERE = 0  # in the place of an address


class Preparing(Protocol):
    """What is asked of a plan here."""

    @property
    def _key(self) -> FilterKey: ...

    @property
    def _where(self) -> Callable[[np.ndarray], int] | None: ...

    def _in_own_form(self, w: np.ndarray) -> PreparedFilter: ...


class Recent(NamedTuple):
    """A filter as it was, and what was prepared of it."""

    key: FilterKey  # of the plan: while it is kept here, no other object has its id
    shape: tuple[int, ...]
    dtype: np.dtype
    content: bytes
    prepared: PreparedFilter | None  # None while it is not known whether it comes again
    nbytes: int

    def holds(self, w: np.ndarray, content: bytes) -> bool:
        """Whether it is this filter, whose bytes are the content."""
        return w.shape == self.shape and w.dtype is self.dtype and content == self.content


_lock = guarded(threading.Lock())
_kept: dict[tuple[int, int], Recent] = {}  # by the id of the plan's key, and the address; oldest first
_total = 0


def find_recent(key: FilterKey, address: int, w: np.ndarray) -> PreparedFilter | None:
    """What was prepared of a filter at this address for the plan of a key, where it has not changed since."""
    recent = _kept.get((id(key), address))
    if recent is None or w.shape != recent.shape or w.dtype is not recent.dtype:
        return None
    return recent.prepared if w.tobytes() == recent.content else None


def prepare_recent(plan: Preparing, w: np.ndarray) -> PreparedFilter:
    """A filter in the form of a plan, made now or in a call before; a small one is kept for the next."""
    if plan._where is None or w.nbytes > LARGEST:
        with of_one_call():
            return plan._in_own_form(w)
    key, address = plan._key, plan._where(w)
    content = w.tobytes()  # what is prepared is this copy, as others may write to w meanwhile
    before = _kept.get((id(key), address))
    if before is not None and before.prepared is not None and before.holds(w, content):
        return before.prepared
    if before is not None and before.content != content:
        _add((id(key), address), Recent(key, w.shape, w.dtype, content, None, len(content)))
        return plan._in_own_form(w)
    return _prepared_of(content, plan, address, w)


def known_filter(plan: Preparing, w: np.ndarray, at_once: bool) -> PreparedFilter | None:
    """The filter that a plan ran last, wherever this one lies, in the form of the plan.

    Args:
        at_once: prepare one that is not known, too, for which it else returns None the first time.
    """
    if w.nbytes > LARGEST:
        if not at_once:
            return None
        with of_one_call():
            return plan._in_own_form(w)
    key, content = plan._key, w.tobytes()
    before = _kept.get((id(key), ANYWHERE))
    known = before is not None and before.holds(w, content)
    if before is not None and known and before.prepared is not None:
        return before.prepared
    if known or at_once:
        return _prepared_of(content, plan, ANYWHERE, w)
    _add((id(key), ANYWHERE), Recent(key, w.shape, w.dtype, content, None, len(content)))
    return None


def _prepared_of(content: bytes, plan: Preparing, address: int, w: np.ndarray) -> PreparedFilter:
    """A filter with this content in the form of a plan, which is kept."""
    key = plan._key
    prepared = plan._in_own_form(np.frombuffer(content, w.dtype).reshape(w.shape))
    nbytes = len(content) + max(len(content), _bytes_of(prepared.data))
    _add((id(key), address), Recent(key, w.shape, w.dtype, content, prepared, nbytes))
    return prepared


def forget_recent() -> None:
    """Let go of all that is kept."""
    global _total
    with _lock:
        _kept.clear()
        _total = 0


def bytes_held() -> int:
    """Bytes that are kept now."""
    return _total


def _add(at: tuple[int, int], recent: Recent) -> None:
    """Keep a filter, and let go of the oldest where there is too much."""
    global _total
    most = int(SHARE * workspaces.most())
    with _lock:
        _drop(at)
        _kept[at] = recent
        _total += recent.nbytes
        while _total > most:
            _drop(next(iter(_kept)))


def _drop(at: tuple[int, int]) -> None:
    global _total
    recent = _kept.pop(at, None)
    _total -= recent.nbytes if recent else 0


def _bytes_of(data: Any) -> int:
    """Bytes of the arrays of a prepared filter."""
    if isinstance(data, np.ndarray):
        return data.nbytes
    return sum(map(_bytes_of, data)) if isinstance(data, tuple | list) else 0
