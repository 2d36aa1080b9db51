"""The memory of runs: each run at a time has a piece, which the plans of a network take by turns."""

from __future__ import annotations

import threading

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.core.forks import guarded

GROWN = 1.25  # times what is asked for: maps of other sizes come next


class Memory:
    """Bytes that one run at a time computes in."""

    def __init__(self, nbytes: int):
        self.bytes = aligned_empty(nbytes, np.uint8)  # on a cache line
        self.nbytes = self.bytes.nbytes


class MemoryPool:
    """As many pieces of memory as there were runs at a time, each as large as the largest of them needed."""

    def __init__(self) -> None:
        self._lock = guarded(threading.Lock())
        self.free: list[Memory] = []
        self._made = False

    def take(self, nbytes: int) -> Memory:
        """A piece of at least so many bytes, which is nobody else's until it is given back."""
        try:
            found = self.free.pop()  # one of the list's steps, for which no lock is needed
        except IndexError:
            pass
        else:
            if found.nbytes >= nbytes:
                return found
        with self._lock:
            room = GROWN if self._made else 1.0  # the first is that of a network of one shape, mostly
            self._made = True
        return Memory(int(nbytes * room))

    def give_back(self, memory: Memory) -> None:
        """What was taken may be taken again."""
        self.free.append(memory)
