"""One piece of memory in which prepared filters lie one behind the other, as a run reads them.

Kernels fetch ahead: behind the end of a filter that is now the beginning of the next one. And one piece has
large pages, where the system gives these to arrays of megabytes only. Filters are written there as they are
prepared: to fill memory that is fresh takes up to ten times as long as to pack a filter into memory that was
used before, so that what is prepared apart and moved takes twice as long, or more.
"""

from __future__ import annotations

import threading

import numpy as np

from convalgos.core.allocator import PlaceOffer, aligned_empty, whole_lines

SPARE, PART = 1 << 15, 16  # bytes of a filter beyond what is told of it, and part of that, at most


class FilterRow:
    """Places of filters by number, which threads ask for in any order: each waits for those before it.

    Args:
        nbytes: what is told of all filters; more memory is taken where they need it.
    """

    def __init__(self, nbytes: int):
        self._whole = aligned_empty(nbytes, np.uint8)
        self._used = 0
        self._turn = 0
        self._turns = threading.Condition()

    def place(self, number: int, nbytes: int) -> np.ndarray:
        """That of a filter, which begins on a cache line."""
        with self._turns:
            self._turns.wait_for(lambda: self._turn == number)
            try:
                if self._used + nbytes > self._whole.nbytes:
                    more = max(nbytes, self._whole.nbytes // 2)
                    self._whole, self._used = aligned_empty(more, np.uint8), 0
                found = self._whole[self._used : self._used + nbytes]
                self._used += whole_lines(nbytes)
            finally:  # where there is no memory, too: others wait
                self._turn += 1
                self._turns.notify_all()
        return found

    def offer(self, number: int, told: int) -> PlaceOffer:
        """The place of a filter of about so many bytes, for the array that is asked for as it is prepared."""
        slack = at_most(told) - told
        most = told + slack if told else 0  # of nothing, where nothing is told
        return PlaceOffer(max(1, told - slack), most, lambda nbytes: self.place(number, nbytes))


def at_most(told: int) -> int:
    """Bytes of a place for what is told of a filter."""
    return told + told // PART + SPARE
