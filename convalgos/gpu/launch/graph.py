"""A call of a plan as a CUDA graph: what `GpuPlan.capture` returns."""

from __future__ import annotations

from typing import Any

from convalgos.gpu.device.machine import Device


class CapturedCall:
    """Replays a call on the arrays that it was captured with. Not for two threads at once.

    A replay on one stream waits for those of the same graph on others, as they share a workspace.
    """

    def __init__(self, device: Device, graph: Any, y: Any, arrays: tuple[Any, ...]):
        self.y = y
        self._device = device
        self._launch = graph.launch
        self._alive = (graph, *arrays)
        self._plain = type(y) is device.xp.ndarray  # else another library says which stream is current

    def __call__(self) -> Any:
        """Launch the graph on the current stream, of CuPy or of the library of y; returns y."""
        if self._plain and self._device.is_current():
            self._launch()
        else:
            with self._device.active(), self._device.stream_of(self.y):
                self._launch()
        return self.y
