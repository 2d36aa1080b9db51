"""Where candidates are timed: on the CPU by the wall clock, on a GPU by its own.

All that timing and checking need to know of a device is here: how data get there and back, what a sample
is, how long to pause and to warm up. Arrays of a device are of its library, and so `Any` here. On a GPU a
sample is the mean over a burst of calls, by events on the current stream, and what fits into L2 is still
there from the call before, as between layers of a network.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from convalgos.core.element_types import FLOAT8_DTYPES
from convalgos.core.interference import Meter, Samples
from convalgos.gpu import device as gpu

Call = Callable[[], object]

BURST = 5e-4  # seconds of a sample on a GPU, at least: its events tell half a microsecond
MOST_CALLS = 20  # of a sample


class Backend:
    """The CPU: arrays as they are, and the wall clock."""

    name = "cpu"
    idle = 0.05  # seconds; threads of OpenBLAS spin for 30 ms after a product, those of others up to 40
    warm_up = 0.04  # seconds in which the scheduler spreads the threads again
    least = 2e-3  # seconds that a race may take, however short its runs are

    def working(self) -> AbstractContextManager[Any]:
        """Within it, plans are made for the device of this backend."""
        return nullcontext()

    def put(self, array: np.ndarray) -> Any:
        """An array of the host as plans of the device take it."""
        return array

    def get(self, array: Any) -> np.ndarray:
        """An array of the device as the host reads it."""
        found: np.ndarray = array
        return found

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """An uninitialised array."""
        return np.empty(shape, dtype)

    def unwritten(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """An array of NaNs."""
        y = self.empty(shape, dtype)
        self.spoil(y)
        return y

    def spoil(self, y: Any) -> None:
        """Fill an array with NaNs."""
        y.view(np.uint8).fill(0xFF)  # all bits set are a NaN in every type

    def at(self, array: Any, where: np.ndarray) -> np.ndarray:
        """(count,) Single elements of an array of the device; `where` is (count, dimensions)."""
        found: np.ndarray = array[tuple(where.T)]
        return found

    def wait(self) -> None:
        """Until all that was asked of the device is done."""

    def ready(self, call: Call) -> None:
        """Pay what only a first call costs."""

    def seconds(self, call: Call) -> float:
        """A sample: the seconds of a call."""
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    def sample(self, call: Call, samples: Samples) -> float:
        """Add a sample, of which is told whether other programs took part in it."""
        meter = Meter()
        seconds = self.seconds(call)
        samples.add(seconds, meter.disturbed())
        return seconds

    def host_seconds(self, call: Call) -> float | None:
        """For how long a call keeps the host, where that is not the time of the call."""
        return None

    def versions(self) -> dict[str, str]:
        """Of what the device is worked with, beside Python's packages."""
        return {}

    def lost(self) -> bool:
        """Whether an error has left the device of no use to this process."""
        return False


class GpuBackend(Backend):
    """A GPU: its arrays, and the clock of its stream."""

    idle = 0.0
    warm_up = 2e-3  # in which the clocks rise
    least = 0.1  # samples cost more than the runs in them

    def __init__(self, device: gpu.Device):
        self.name, self._device = device.name, device

    def working(self) -> AbstractContextManager[Any]:
        return gpu.use(self._device)

    def put(self, array: np.ndarray) -> Any:
        with self._device.active():
            in_bits = array.dtype.name in FLOAT8_DTYPES  # which CuPy has not
            return self._device.xp.asarray(array.view(np.uint8) if in_bits else array)

    def get(self, array: Any) -> np.ndarray:
        xp = self._device.xp
        with self._device.active():
            found: np.ndarray = array if xp is np else xp.asnumpy(array)
        return found

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        with self._device.active():
            return self._device.xp.empty(shape, dtype)

    def spoil(self, y: Any) -> None:
        with self._device.active():
            super().spoil(y)

    def at(self, array: Any, where: np.ndarray) -> np.ndarray:
        bits = array.view(f"u{array.dtype.itemsize}")  # which every library can pick from
        with self._device.active():
            return self.get(bits[tuple(where.T)]).view(array.dtype)

    def wait(self) -> None:
        self._device.synchronize()

    def ready(self, call: Call) -> None:
        call()
        self.wait()

    def sample(self, call: Call, samples: Samples) -> float:
        seconds = self.seconds(call)  # by the clock of the device, while the host waits
        samples.add(seconds, False)
        return seconds

    def seconds(self, call: Call) -> float:
        once = self._device.elapsed(call)
        calls = min(MOST_CALLS, int(BURST / max(once, 1e-9)))
        return once if calls < 2 else self._device.elapsed(lambda: _repeat(call, calls)) / calls

    def host_seconds(self, call: Call) -> float:
        self.wait()
        start = time.perf_counter()
        _repeat(call, MOST_CALLS)  # no stream is full with as few
        took = time.perf_counter() - start
        self.wait()
        return took / MOST_CALLS

    def versions(self) -> dict[str, str]:
        return self._device.versions()

    def lost(self) -> bool:
        try:
            self.wait()
        except Exception:  # what the library of the device calls it
            return True
        return False


CPU = Backend()


def backend(device: str) -> Backend:
    """The backend of "cpu", "cuda" or "cuda:N"."""
    return CPU if device == "cpu" else GpuBackend(gpu.named(device))


def _repeat(call: Call, times: int) -> None:
    for _ in range(times):
        call()
