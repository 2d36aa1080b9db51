"""Loading a batch by one thread, by several, and by processes that share the memory of the batch.

Each way gives the same batch: what is random of an image depends on its seed alone. No process outlives its
loader, and none is waited for longer than `PATIENCE`.
"""

from __future__ import annotations

import math
import multiprocessing
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.pool import MapResult, Pool
from multiprocessing.shared_memory import SharedMemory
from types import TracebackType
from typing import Protocol, Self

import numpy as np

from convalgos.studies.image_input.decoding import SHAPE, ImageTask, Times, load_image

PATIENCE = 60.0  # seconds for a batch, and for processes to start
IMAGE_BYTES = 4 * math.prod(SHAPE)


class Loading(Protocol):
    """A batch that is on its way."""

    def get(self) -> list[Times]:
        """Wait for it, and tell when the steps of each image began and ended."""


class Loader(ABC):
    """A way to fill a batch (images, 3, 224, 224) float32, with what it needs for that.

    Example:
        >>> with SerialLoader(2) as loader:
        ...     loader.batch.shape
        (2, 3, 224, 224)
    """

    batch: np.ndarray

    @abstractmethod
    def start(self, tasks: Sequence[ImageTask]) -> Loading:
        """Begin to load images into their places of the batch."""

    def load(self, tasks: Sequence[ImageTask]) -> list[Times]:
        """Load images, and tell when the steps of each began and ended."""
        return self.start(tasks).get()

    def close(self) -> None:
        """End what works for it, and let go of the batch."""
        del self.batch

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SerialLoader(Loader):
    """One image after the other, in the calling thread, when the batch is waited for."""

    def __init__(self, images: int):
        self.batch = np.empty((images, *SHAPE), np.float32)

    def start(self, tasks: Sequence[ImageTask]) -> Loading:
        return _Serial(tasks, self.batch)


class _Serial:
    def __init__(self, tasks: Sequence[ImageTask], batch: np.ndarray):
        self._tasks, self._batch = tasks, batch

    def get(self) -> list[Times]:
        return [load_image(task, self._batch) for task in self._tasks]


class ThreadLoader(Loader):
    """By threads of this process: Pillow lets others run while it decodes and resizes."""

    def __init__(self, threads: int, images: int):
        self.batch = np.empty((images, *SHAPE), np.float32)
        self._pool = ThreadPoolExecutor(threads)

    def start(self, tasks: Sequence[ImageTask]) -> Loading:
        return _Threaded([self._pool.submit(load_image, task, self.batch) for task in tasks])

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        super().close()


class _Threaded:
    def __init__(self, futures: Sequence[Future[Times]]):
        self._futures = futures

    def get(self) -> list[Times]:
        return [future.result(PATIENCE) for future in self._futures]


class ProcessLoader(Loader):
    """By processes, which write into memory that they share with this one.

    Raises:
        RuntimeError: the processes do not start within `patience` seconds, or a batch does not come: one of
            them may have been killed. What a process raises is raised here.
    """

    def __init__(self, processes: int, images: int, patience: float = PATIENCE):
        self._patience = patience
        self._memory = SharedMemory(create=True, size=images * IMAGE_BYTES)
        self.batch = _batch_in(self._memory, images)
        context = multiprocessing.get_context("spawn")  # a fork would copy locks that other threads hold
        self._pool: Pool | None = None
        try:
            self._pool = context.Pool(processes, _attach, (self._memory.name, images))
            _Processed(self._pool.map_async(_answer, range(processes), 1), patience).get()
        except BaseException:
            self.close()
            raise

    def start(self, tasks: Sequence[ImageTask]) -> Loading:
        assert self._pool is not None
        return _Processed(self._pool.map_async(_load_shared, tasks, 1), self._patience)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.terminate()
            self._pool.join()
        super().close()
        with suppress(BufferError):  # somebody looks at the batch yet: the memory goes with that
            self._memory.close()
        self._memory.unlink()


class _Processed:
    def __init__(self, result: MapResult[Times], patience: float):
        self._result, self._patience = result, patience

    def get(self) -> list[Times]:
        try:
            return self._result.get(self._patience)
        except multiprocessing.TimeoutError:
            raise RuntimeError(
                f"the processes did not answer within {self._patience:g} s: one may have been killed"
            ) from None


# --- what runs in the processes ----------------------------------------------------------------

_shared: list[tuple[SharedMemory, np.ndarray]] = []  # the batch of this process


def _attach(name: str, images: int) -> None:
    memory = SharedMemory(name)
    _shared.append((memory, _batch_in(memory, images)))


def _load_shared(task: ImageTask) -> Times:
    return load_image(task, _shared[0][1])


def _answer(number: int) -> Times:
    """Tells that a process has started."""
    return (float(number),)


def _batch_in(memory: SharedMemory, images: int) -> np.ndarray:
    return np.ndarray((images, *SHAPE), np.float32, memory.buf)
