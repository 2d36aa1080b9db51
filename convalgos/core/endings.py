"""What is left to do for objects that are gone, where it takes a lock.

Objects go amid any line of any thread, which may hold what the holder of that lock waits for: so nobody
waits here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any


class Endings:
    """Calls that are made under a lock: at once, or where another thread has it, when one settles them.

    Args:
        lock: an RLock, as objects may go while the same thread holds it.

    Example:
        >>> import threading
        >>> endings = Endings(threading.RLock())
        >>> endings.add(lambda: print("gone"))
        gone
    """

    def __init__(self, lock: Any):
        self._lock = lock
        self._waiting: deque[Callable[[], object]] = deque()

    def add(self, end: Callable[[], object]) -> None:
        """Call it now or later; this never waits."""
        self._waiting.append(end)
        if self._lock.acquire(blocking=False):
            try:
                self.settle()
            finally:
                self._lock.release()

    def settle(self) -> None:
        """Make the calls that wait, which is for those who hold the lock."""
        while True:
            try:  # amid any line another object may go, and all these calls be made
                end = self._waiting.popleft()
            except IndexError:
                return
            end()
