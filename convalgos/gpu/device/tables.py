"""Tables of plans in a GPU's memory: copied together, and freed when that costs nobody anything.

Kernels of any stream may read a table, so no pool of CuPy's can hold it: a pool gives memory to another use
on its stream as soon as nothing on the host refers to it. CUDA's own way of freeing waits for the whole
device, and breaks a capture. So what plans leave behind is put aside. A later plan that brings tables of its
own frees it, as it waits for its copy anyway.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

ALIGNED = 256  # bytes, at a multiple of which a table starts, as CUDA's own memory does
TOGETHER = 1 << 16  # bytes that tables of a plan of several share; a larger one has its own memory
ASIDE = 16 << 20  # bytes that plans may leave before they are freed,
MOST_ASIDE = 256  # and in how many pieces


class Tables:
    """Those of one device, which `xp`, the module of its arrays, has made current."""

    def __init__(self, xp: Any):
        self._xp = xp
        self._aside: list[Any] = []  # memory of tables that are gone; appending and clearing are atomic
        self._gathered = threading.local()

    def tables(self, *given: np.ndarray) -> list[Any]:
        """Copies, which are there when this returns, or at the end of `gathering`."""
        values = [np.ascontiguousarray(v) for v in given]
        size = sum(aligned(v.nbytes) for v in values)
        gathered: list[_Chunk] | None = getattr(self._gathered, "chunks", None)
        chunks = [] if gathered is None else gathered
        if not chunks or chunks[-1].left < size:
            least = 1 if gathered is None else TOGETHER
            chunks.append(_Chunk(self._memory(max(size, least)), self._aside))
        made = [chunks[-1].add(self._xp, v) for v in values]
        if gathered is None:
            self._copy(chunks)
        return made

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Within it, tables of the calling thread are put together, copied at its end, not read before."""
        if getattr(self._gathered, "chunks", None) is not None:
            yield  # within another, which copies all
            return
        chunks: list[_Chunk] = []
        self._gathered.chunks = chunks
        try:
            yield
        finally:
            self._gathered.chunks = None
        self._copy(chunks)

    # --- inside ------------------------------------------------------------------------------

    def _copy(self, chunks: list[_Chunk]) -> None:
        if not chunks:
            return
        stream = self._xp.cuda.Stream(non_blocking=True)
        for chunk in chunks:
            target = chunk.pointer(self._xp, 0, chunk.used)
            target.copy_from_host_async(chunk.host.ctypes.data, chunk.used, stream)
        stream.synchronize()
        for chunk in chunks:
            chunk.host = None

    def _memory(self, size: int) -> Any:
        """New memory; what was left behind is freed where it has become much, or is needed."""
        cuda = self._xp.cuda
        if len(self._aside) > MOST_ASIDE or sum(memory.size for memory in [*self._aside]) > ASIDE:
            self._aside.clear()
        try:
            return cuda.Memory(size)
        except cuda.memory.OutOfMemoryError:
            self._aside.clear()
            return cuda.Memory(size)


def aligned(nbytes: int) -> int:
    """The bytes that a table takes."""
    return -(-nbytes // ALIGNED) * ALIGNED


class _Chunk:
    """Memory that tables share; the last of them puts it aside."""

    def __init__(self, memory: Any, aside: list[Any]):
        self.memory, self.used, self._aside = memory, 0, aside
        self.host: Any = np.empty(memory.size, np.uint8)  # until it is copied

    def __del__(self) -> None:
        self._aside.append(self.memory)

    @property
    def left(self) -> int:
        return int(self.memory.size) - self.used

    def add(self, xp: Any, values: np.ndarray) -> Any:
        start = self.used
        self.host[start : start + values.nbytes] = values.reshape(-1).view(np.uint8)
        self.used += aligned(values.nbytes)
        return xp.ndarray(values.shape, values.dtype, self.pointer(xp, start, values.nbytes))

    def pointer(self, xp: Any, start: int, size: int) -> Any:
        """To a part, which keeps this object alive."""
        part = xp.cuda.UnownedMemory(self.memory.ptr + start, size, self, self.memory.device_id)
        return xp.cuda.MemoryPointer(part, 0)
