"""Weights that stay in their file until a filter is prepared from them, and leave memory again after it.

They are memory maps: what is read of one is in memory for as long as the system likes, or until `let_go`.
A map holds a file descriptor, of which a process may have few: all weights of a file are views of one map.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.lib.array_utils import byte_bounds

from convalgos.core.allocator import aligned_empty, memory_of_its_own

MAPPED = 1 << 16  # bytes from which on an array is left in its file: a map is of whole pages
WRITTEN = 1 << 18  # bytes of weights that are computed and written at a time: they stay in a core's cache
PIECE = 1 << 22  # bytes that are copied at a time, of an array that lies at an odd address
ROOMY = 2  # times the bytes of a copy that the memory which it is made in may have
SHARED = 1 << 24  # bytes of a file without a name, which weights of less than a piece share
LETS_GO = hasattr(mmap, "MADV_DONTNEED")


class MappedWeights(np.memmap):
    """An array in a file; its views know that file, too."""

    _mmap: mmap.mmap | None  # of NumPy
    stamp: tuple[int, ...] | None = None  # which file it is, as it was when it was mapped

    def __array_finalize__(self, of: Any) -> None:
        super().__array_finalize__(of)
        self.stamp = getattr(of, "stamp", None)


class _Shared(MappedWeights):
    """A file without a name, which lives as long as views of it: weights are written one behind the other."""

    file: BinaryIO
    used: int

    @classmethod
    def of(cls, size: int) -> _Shared:
        """One of so many bytes, which take no room before they are written; it is closed with its map."""
        file = tempfile.TemporaryFile(prefix="convalgos-", buffering=0)  # noqa: SIM115
        try:
            file.truncate(size)
            shared = cls(file, np.uint8, "r", 0, (size,))
        except BaseException:
            file.close()
            raise
        weakref.finalize(shared, file.close)
        shared.file, shared.used = file, 0
        return shared

    def add(self, pieces: Iterable[np.ndarray], dtype: np.dtype, shape: tuple[int, ...]) -> MappedWeights:
        """Weights as they lie in the file, from a page on; of contiguous pieces."""
        begin = end = self.used
        self.file.seek(begin)
        for piece in pieces:
            left = piece.reshape(-1).view(np.uint8).data
            end += len(left)
            while left:
                left = left[self.file.write(left) :]
        self.used = begin + -(-(end - begin) // mmap.PAGESIZE) * mmap.PAGESIZE
        return _part(self, dtype, begin, shape)


_lock = threading.Lock()  # over the two that follow
_whole: weakref.WeakValueDictionary[tuple[Any, ...], MappedWeights] = weakref.WeakValueDictionary()
_shared: weakref.WeakValueDictionary[str, _Shared] = weakref.WeakValueDictionary()  # the last, if it lives


def mapped_weights(path: Path, dtype: np.dtype, offset: int, shape: tuple[int, ...]) -> MappedWeights:
    """The array of a shape that begins at an offset of a file, which is only read.

    Raises:
        ValueError: the file is shorter. OSError: as of `open`.
    """
    end = offset + math.prod(shape) * dtype.itemsize
    with open(os.path.abspath(path), "rb") as file:
        found = os.fstat(file.fileno())
        if not 0 <= offset <= end <= found.st_size:
            raise ValueError(f"{path} has {found.st_size} bytes, and its weights should be {offset} to {end}")
        with _lock:
            key = file.name, *_stamp(found)
            whole = _whole.get(key)
            if whole is None:
                whole = _whole[key] = MappedWeights(file, np.uint8, "r", 0, (found.st_size,))
                whole.stamp = _stamp(found)
    return _part(whole, dtype, offset, shape)


def put_in_file(w: np.ndarray) -> np.ndarray:
    """Weights that were computed, large ones in a file without a name, if there can be one; not those that
    are one number again and again.

    A network reads them when it prepares its filters, and rarely again, as those that a model has.
    """
    if w.nbytes < MAPPED or not any(w.strides) or (w.flags.c_contiguous and _mapped(w) is not None):
        return w
    try:
        return _in_file([np.ascontiguousarray(w)], w.dtype, w.shape)
    except OSError:  # no room, or no folder that may be written
        return w


def scaled_weights(w: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """w times a scale of as many dimensions, in a file as those of `put_in_file` are.

    They lie in the order of w, and are made piece by piece.
    """
    if (scale == 1).all():
        return w
    repeats = any(not stride and n > 1 for stride, n in zip(w.strides, w.shape, strict=True))
    if w.nbytes < MAPPED or repeats:
        return put_in_file(w * scale)
    order = np.argsort(w.strides)[::-1]
    read, factors = w.transpose(order), np.broadcast_to(scale, w.shape).transpose(order)
    step = max(1, WRITTEN * len(read) // w.nbytes)

    def pieces() -> Iterator[np.ndarray]:
        for i in range(0, len(read), step):
            yield np.multiply(read[i : i + step], factors[i : i + step], order="C")

    try:
        found = _in_file(pieces(), w.dtype, read.shape).transpose(np.argsort(order))
    except OSError:
        found = w * scale
    let_go(w)
    return found


def _in_file(pieces: Iterable[np.ndarray], dtype: np.dtype, shape: tuple[int, ...]) -> MappedWeights:
    """Weights in a file without a name; of contiguous pieces.

    Raises:
        OSError: there is no room, or no folder that may be written.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes >= PIECE:  # whose room is free again with it
        return _Shared.of(nbytes).add(pieces, dtype, shape)
    with _lock:
        shared = _shared.get("last")
        if shared is None or shared.used + nbytes > SHARED:
            shared = _shared["last"] = _Shared.of(SHARED)
        return shared.add(pieces, dtype, shape)


class Copies(threading.local):
    """Memory of each thread for one copy of weights at a time, which is gone before the next is made.

    Large ones have memory of their own, which the system has back at once.
    """

    room: np.ndarray | None = None

    def of(self, nbytes: int) -> np.ndarray:
        """So many bytes."""
        room = self.room
        if room is None or not nbytes <= room.nbytes <= ROOMY * nbytes:
            self.room = None  # before there is another one
            room = memory_of_its_own(nbytes)
            self.room = room if nbytes <= PIECE else None
        return room[:nbytes]

    def leave(self) -> None:
        """Let the copy that was made last stay."""
        self.room = None


def as_prepared_from(w: np.ndarray, copies: Copies | None = None) -> np.ndarray:
    """A filter as preparation takes it: at an address that suits its elements.

    Args:
        copies: where to make one, if need be; memory of its own by default.

    Raises:
        ValueError: it lies in a file that has changed since.
    """
    whole = _mapped(w)
    if whole is None:
        return w
    if _is_rewritten(whole):
        raise ValueError(f"{whole.filename} has changed since the network was read from it: read it again")
    if w.flags.aligned:
        return w
    room = (memory_of_its_own(w.nbytes) if copies is None else copies.of(w.nbytes)).view(w.dtype)
    order = np.argsort(w.strides)[::-1]  # of the file: w may be a matrix transposed
    read = w.transpose(order)
    written = room.reshape(read.shape)
    copy: np.ndarray = written.transpose(np.argsort(order))
    step = max(1, PIECE * len(read) // w.nbytes)
    for i in range(0, len(read), step):
        written[i : i + step] = read[i : i + step]
        let_go(w)
    return copy


def let_go(w: np.ndarray) -> None:
    """Let what was read of an array leave memory, where it lies in a file: it is there to be read again."""
    whole = _mapped(w)
    if LETS_GO and whole is not None and w.size:
        start, _ = byte_bounds(np.frombuffer(whole._mmap, np.uint8))
        begin, end = (at - start for at in byte_bounds(w))
        begin -= begin % mmap.PAGESIZE  # what others have of its first and last page is read again
        whole._mmap.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def in_memory(array: np.ndarray, place: np.ndarray | None = None) -> np.ndarray:
    """An array of a file as runs read it, which may not change with the file: a copy on a cache line.

    Args:
        place: as many bytes for the copy.
    """
    if _mapped(array) is None:
        return array
    if place is None:
        place = aligned_empty(array.nbytes, np.uint8)
    copy: np.ndarray = place.view(array.dtype).reshape(array.shape)
    copy[...] = array
    copy.flags.writeable = False
    let_go(array)
    return copy


def _part(whole: MappedWeights, dtype: np.dtype, offset: int, shape: tuple[int, ...]) -> MappedWeights:
    """An array within a file."""
    end = offset + math.prod(shape) * dtype.itemsize
    part = whole[offset:end].view(dtype).reshape(shape)
    return cast(MappedWeights, part)


def _mapped(w: Any) -> Any:
    """The `MappedWeights` of which an array is a view; None of others."""
    while isinstance(w, np.ndarray):
        if isinstance(w, MappedWeights) and w._mmap is not None:
            return w
        w = w.base
    return None


def _is_rewritten(whole: MappedWeights) -> bool:
    """Whether the file was written since. To remove it, or to put another in its place, leaves the map."""
    with suppress(FileNotFoundError):
        then, now = whole.stamp, _stamp(os.stat(str(whole.filename)))
        return then is not None and then[:2] == now[:2] and then != now
    return False


def _stamp(found: os.stat_result) -> tuple[int, ...]:
    """Which file it is, and when it was written."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _forked() -> None:
    """In a child: the lock may have been held, and the parent goes on to write where it was."""
    global _lock
    _lock = threading.Lock()
    _shared.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
