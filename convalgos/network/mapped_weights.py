"""Weights that stay in their file until a filter is prepared from them, and leave memory again after it.

They are memory maps: what is read of one is in memory for as long as the system likes, or until `let_go`.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from convalgos.core.allocator import aligned_empty

MAPPED = 1 << 16  # bytes from which on an array is left in its file: a map is of whole pages
PIECE = 1 << 22  # bytes that are copied at a time, of an array that lies at an odd address
LETS_GO = hasattr(mmap, "MADV_DONTNEED")


class MappedWeights(np.memmap):
    """An array in a file; its views know that file, too."""

    _mmap: mmap.mmap | None  # of NumPy
    stamp: tuple[int, ...] | None = None  # which file it is, as it was when it was mapped

    def __array_finalize__(self, of: Any) -> None:
        super().__array_finalize__(of)
        self.stamp = getattr(of, "stamp", None)


def mapped_weights(path: Path, dtype: np.dtype, offset: int, shape: tuple[int, ...]) -> MappedWeights:
    """The array of a shape that begins at an offset of a file, which is only read.

    Raises:
        ValueError: the file is shorter. OSError: as of `open`.
    """
    end = offset + math.prod(shape) * dtype.itemsize
    if os.stat(path).st_size < end:
        raise ValueError(f"{path} ends before byte {end}, to which its weights should reach")
    array = MappedWeights(path, dtype, "r", offset, shape)
    array.stamp = _stamp(path)
    return array


def put_in_file(w: np.ndarray) -> np.ndarray:
    """Weights that were computed, large ones in a file without a name, if there can be one.

    A network reads them when it prepares its filters, and rarely again, as those that a model has.
    """
    if w.nbytes < MAPPED or (w.flags.c_contiguous and _mapped(w) is not None):
        return w
    try:
        with tempfile.TemporaryFile(prefix="convalgos-") as file:
            file.write(np.ascontiguousarray(w).data)
            file.flush()
            return MappedWeights(file, w.dtype, "r", 0, w.shape)
    except OSError:  # no room, or no folder that may be written
        return w


def as_prepared_from(w: np.ndarray) -> np.ndarray:
    """A filter as preparation takes it: at an address that suits its elements.

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
    # which no pool keeps, and no heap of the C library: both hold on to what large arrays leave
    copy = np.frombuffer(mmap.mmap(-1, w.nbytes), w.dtype).reshape(w.shape)
    order = np.argsort(w.strides)[::-1]  # of the file: w may be a matrix transposed
    read, written = w.transpose(order), copy.transpose(order)
    step = max(1, PIECE * len(read) // w.nbytes)
    for i in range(0, len(read), step):
        written[i : i + step] = read[i : i + step]
        let_go(w)
    return copy


def let_go(w: np.ndarray) -> None:
    """Let what was read of an array leave memory, where it lies in a file: it is there to be read again."""
    whole = _mapped(w)
    if LETS_GO and whole is not None:
        whole._mmap.madvise(mmap.MADV_DONTNEED)


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
        then, now = whole.stamp, _stamp(Path(str(whole.filename)))
        return then is not None and then[:2] == now[:2] and then != now
    return False


def _stamp(path: Path) -> tuple[int, ...]:
    """Which file it is, and when it was written."""
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
