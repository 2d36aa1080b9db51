"""Memory of large arrays, used again when they are gone.

A fresh array of some megabytes costs a page fault for each 4 KiB that is first written, which may take longer
than what is then computed. Filters that are prepared for one call only, and results that a program drops,
leave their memory here for the next ones. More than what is kept so may stay, too, of results and of such
filters: the system is told that it may take their pages when it needs memory, and until it does they cost
nothing to write again.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from convalgos.core import workspaces
from convalgos.core.forks import guarded

ALIGNMENT = 64  # bytes: a cache line, and the widest vector
SMALL = 1 << 17  # bytes of a result that may begin anywhere: a place of its own takes 2 us
LARGE = 1 << 20  # bytes from which on memory is kept,
MOST = 1 << 26  # up to so much in all (`keep_up_to`),
IDLE = 4  # and up to so many times what plans keep (`workspaces`), of which the system may take all
WASTE = 1.25  # times what is asked for that may be given
PIECE = 1 << 21  # bytes that are moved at a time: a large page
LETS_GO = sys.platform == "linux"  # pages of an array, whose memory stays its own


class _Memory(NamedTuple):
    raw: np.ndarray
    idles: bool  # whether it may become one of `_idle`


_kept: list[_Memory] = []  # the oldest first
_idle: list[_Memory] = []  # what found no place among these, and whose pages are the system's to take
_of_call = threading.local()  # whether what a thread asks for now is of one call only, and its `offering`
# Only `release_arrays` waits for it: garbage may be collected, and an array go, amid any line here.
_lock = guarded(threading.Lock())


class _Lent:
    """The memory of one array; when the last view of it is gone, it is kept."""

    def __init__(self, raw: np.ndarray, nbytes: int, idles: bool):
        self._memory = _Memory(raw, idles)
        start = -raw.ctypes.data % ALIGNMENT
        self.__array_interface__ = raw[start : start + nbytes].__array_interface__

    def __del__(self) -> None:
        if _keep is not None and not sys.is_finalizing():
            _keep(self._memory)


def aligned_empty(count: int, dtype: Any, idles: bool = False) -> np.ndarray:
    """An uninitialised 1-D array of `count` elements that starts on a cache line.

    Args:
        idles: it may be kept as `_idle` is when it is gone, as within `of_one_call`.

    Example:
        >>> aligned_empty(3, np.float32).ctypes.data % 64
        0
    """
    nbytes = count * np.dtype(dtype).itemsize
    if nbytes >= LARGE:
        offer = getattr(_of_call, "offer", None)
        if offer is not None and (place := offer.of(nbytes)) is not None:
            return np.asarray(place.view(dtype))
        idles = idles or getattr(_of_call, "idles", False)
        new = _new if offer is None else memory_of_its_own
        return np.asarray(_Lent(_found(nbytes + ALIGNMENT, new), nbytes, idles)).view(dtype)
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.__array_interface__["data"][0] % ALIGNMENT  # in half the time of `ctypes.data`
    return raw[start : start + nbytes].view(dtype)


def new_array(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An uninitialised result; a large one of memory that others before it have left."""
    count = math.prod(shape)
    if count * dtype.itemsize < SMALL:
        return np.empty(shape, dtype)
    return aligned_empty(count, dtype, idles=True).reshape(shape)


def aligned_zeros(count: int, dtype: Any) -> np.ndarray:
    """`aligned_empty`, zeroed."""
    array = aligned_empty(count, dtype)
    array.fill(0)
    return array


def whole_lines(nbytes: int) -> int:
    """Bytes rounded up to whole cache lines, so that what lies behind starts on one."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def consecutive_empty(sizes: Sequence[int]) -> list[np.ndarray]:
    """Uninitialised arrays of so many bytes, one behind the other, each on a cache line."""
    ends = list(accumulate(map(whole_lines, sizes), initial=0))
    whole = aligned_empty(ends[-1], np.uint8)
    return [whole[begin : begin + size] for begin, size in zip(ends, sizes, strict=False)]


class PlaceOffer:
    """A place for one large array of some thread, which lies there where it asks for `least` to `most` bytes.

    Args:
        place: gives that of so many bytes, or None.
    """

    def __init__(self, least: int, most: int, place: Callable[[int], np.ndarray | None]):
        self.least, self.most, self._place = least, most, place
        self.asked = False  # whether it was asked for its place

    def of(self, nbytes: int) -> np.ndarray | None:
        """The place of an array of so many bytes, if it is for one of these."""
        if self.asked or not self.least <= nbytes <= self.most:
            return None
        self.asked = True
        return self._place(nbytes)


@contextmanager
def offering(offer: PlaceOffer) -> Iterator[None]:
    """Let this thread have an offer meanwhile; other large arrays go soon, and have memory of their own."""
    _of_call.offer = offer
    try:
        yield
    finally:
        _of_call.offer = None


@contextmanager
def of_one_call() -> Iterator[None]:
    """Large arrays that this thread asks for meanwhile are gone soon, and will be asked for again."""
    before, _of_call.idles = getattr(_of_call, "idles", False), True
    try:
        yield
    finally:
        _of_call.idles = before


def keep_up_to(nbytes: int) -> None:
    """Keep up to so many bytes in this process, in the place of what is kept by default."""
    global MOST
    MOST = nbytes


def memory_of_its_own(nbytes: int) -> np.ndarray:
    """Fresh memory that the system has back as soon as it is gone: heaps of the C library keep what threads
    leave there."""
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
    memory = mmap.mmap(-1, nbytes, **private)
    if private and hasattr(mmap, "MADV_HUGEPAGE"):  # 4 KiB at a time it takes ten times as long to fill
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def move(source: np.ndarray, target: np.ndarray) -> None:
    """Copy bytes, and give those of the source back to the system on the way, as far as it takes them.

    Args:
        source: the bytes of an array that nobody else has, and whose values are lost.
    """
    for begin in range(0, source.nbytes, PIECE):
        piece = source[begin : begin + PIECE]
        target[begin : begin + PIECE] = piece
        if LETS_GO and source.nbytes > PIECE:
            _advised(piece, mmap.MADV_DONTNEED)


def release_arrays() -> None:
    """Give back to the system what is kept, by the C library, too: it holds on to what large arrays leave."""
    with _lock:
        _kept.clear()
        _idle.clear()
    with suppress(AttributeError, OSError, TypeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


@cache
def _madvise() -> Callable[[int, int, int], int]:
    found = ctypes.CDLL(None).madvise
    found.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return found


def _new(nbytes: int) -> np.ndarray:
    return np.empty(nbytes, np.uint8)


def _found(nbytes: int, new: Callable[[int], np.ndarray]) -> np.ndarray:
    """The newest that is kept of about this size, as it is still in the caches, or a new one."""
    if _lock.acquire(blocking=False):
        try:
            for kept in (_kept, _idle):
                for i in reversed(range(len(kept))):
                    if nbytes <= kept[i].raw.nbytes <= WASTE * nbytes:
                        return kept.pop(i).raw
        finally:
            _lock.release()
    return new(nbytes)


def _keep(memory: _Memory) -> None:
    if memory.raw.nbytes > MOST and not memory.idles:
        return
    if _lock.acquire(blocking=False):
        try:
            if memory.raw.nbytes > MOST:
                over = [memory]
            else:
                over = []
                _kept.append(memory)
                while _bytes_of(_kept) > MOST:
                    over.append(_kept.pop(0))
            _idle.extend(m for m in over if m.idles and LETS_GO and _advised(m.raw, mmap.MADV_FREE))
            while _bytes_of(_idle) > IDLE * workspaces.most():
                _idle.pop(0)
        finally:
            _lock.release()


def _bytes_of(memories: Sequence[_Memory]) -> int:
    return sum(memory.raw.nbytes for memory in memories)


def _advised(array: np.ndarray, advice: int) -> bool:
    """Whether the system has heard what may become of the whole pages of an array."""
    first = -(-array.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (array.ctypes.data + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    return _madvise()(first, last - first, advice) == 0
