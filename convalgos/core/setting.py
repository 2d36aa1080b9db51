"""What a choice is made for: so many threads, and the figures of this machine or of a profile in their place.

Both may change while a program runs: by `numba.set_num_threads`, and by the variable CONVALGOS_PROFILE. What
is kept of choices is kept by `setting`, so that the next call goes by the new one, and finds what was kept
when the old one comes back.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from convalgos.core.machine import cpu_count
from convalgos.core.profiles import VARIABLE

Setting = tuple[int, Any]  # threads, and what CONVALGOS_PROFILE is, as the system keeps it; None where unset


class Variable:
    """A variable of the environment that is looked at in every call.

    A look into the dict behind os.environ takes 20 ns, one into os.environ itself 700.

    Example:
        >>> Variable("NO_SUCH_VARIABLE").get() is None
        True
    """

    def __init__(self, name: str):
        self.values: Mapping[Any, Any] = getattr(os.environ, "_data", os.environ)
        self.key: Any = name if self.values is os.environ else os.environ.encodekey(name)

    def get(self) -> str | None:
        value = self.values.get(self.key)
        return None if value is None else os.fsdecode(value)


_profile = Variable(VARIABLE)
_values, _key = _profile.values, _profile.key


def setting() -> Setting:
    """The threads and the profile that choices are made for now."""
    return thread_count(), _values.get(_key)


def thread_count() -> int:
    """Threads that kernels run on.

    1. Within `threads_of_calls` those that it says.
    2. Where a program has loaded Numba, its count, which numba.set_num_threads changes.
    3. Else the variable CONVALGOS_NUM_THREADS as it was at first, or NUMBA_NUM_THREADS.
    4. Else as many as there are cores for this process.
    """
    if _limited and (own := getattr(_this, "threads", None)) is not None:
        return int(own)
    numba = sys.modules.get("numba.np.ufunc.parallel")
    if numba is not None and getattr(numba, "_is_initialized", False):
        count: int = numba._get_num_threads()
        return count
    return _threads_at_start()


@contextlib.contextmanager
def threads_of_calls(count: int) -> Iterator[None]:
    """Within it, calls by this thread of Python run on so many threads: others may have calls of their own.

    Example:
        >>> with threads_of_calls(1):
        ...     thread_count()
        1
    """
    global _limited
    _limited = True
    before, _this.threads = getattr(_this, "threads", None), count
    try:
        yield
    finally:
        _this.threads = before


_this = threading.local()  # threads: of calls by a thread
_limited = False  # whether any thread ever said how many


@functools.cache
def _threads_at_start() -> int:
    for name in ("CONVALGOS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        with contextlib.suppress(KeyError, ValueError):
            return max(1, int(os.environ[name]))
    return cpu_count()
