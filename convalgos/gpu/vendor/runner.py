"""Running a plan of cuDNN: handles bound to streams, and the call with bare pointers.

A handle serves one thread and one stream at a time. So handles are pooled: each call takes a lane (a handle
with room for the pointers) from those that are free on its stream, and puts it back. There are as many lanes
as there were calls at once, and a handle is bound to its stream once, when it is made. Front ends from 1.24
on have a call that takes an array of pointers, in the order of the arrays' names, in a quarter of the time of
the public one.

Source: nvidia-cudnn-frontend (`execute`, `_execute_with_raw_ptrs`).
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from convalgos.gpu.device import Device
from convalgos.gpu.vendor.graph import BIAS, Epilogue, uids

MOST_POINTERS = BIAS - 100  # arrays of the largest graph
MOST_STREAMS = 16  # that keep a handle of their own, tens of megabytes each


class Lane:
    """A handle, and an array for the pointers of a call."""

    __slots__ = ("address", "backend", "handle", "pointers")

    def __init__(self, handle: Any):
        self.handle = handle
        self.backend = getattr(handle, "backend_handle", handle)  # before 1.30 a handle is the number itself
        self.pointers = (ctypes.c_void_p * MOST_POINTERS)()
        self.address = ctypes.addressof(self.pointers)


_free: dict[tuple[Device, int], list[Lane]] = {}  # by device and stream; pop and append are atomic


@cache
def planner(device: Device) -> Any:
    """The handle of a device that graphs are planned with; it runs nothing."""
    import cudnn

    return cudnn.create_handle()


def make_lane(device: Device, stream: int) -> Lane:
    """A lane of a stream that has none free.

    Making a handle allocates, which a capture forbids: there a free one of another stream moves over, as the
    check of every plan leaves one behind. It moves, too, where there are many already.
    """
    import cudnn

    others = [lanes for (owner, _), lanes in [*_free.items()] if owner is device and lanes]
    lane = others[0].pop() if others and (len(others) >= MOST_STREAMS or device.capturing()) else None
    lane = lane or Lane(cudnn.create_handle())
    cudnn.set_stream(lane.handle, stream)
    return lane


class Runner:
    """A graph with the one plan that it runs."""

    def __init__(self, graph: Any, epilogue: Epilogue, device: Device):
        self._device, self._graph, self._uids = device, graph, uids(epilogue)
        lowered = getattr(graph, "_lowered_graph", None) or graph
        self._raw = getattr(lowered, "_execute_with_raw_ptrs", None)
        if self._raw is not None:
            lowered._prepare_variant_pack_template()
            if list(lowered._get_variant_pack_uids_sorted()) != self._uids:
                self._raw = None

    def __call__(self, workspace: int, *pointers: int) -> None:
        """Run on the current stream. `pointers` are those of the arrays of the graph, in their order."""
        device = self._device
        stream = device.stream()
        free = _free.get((device, stream))
        if free is None:
            free = _free.setdefault((device, stream), [])
        try:
            lane = free.pop()
        except IndexError:
            lane = make_lane(device, stream)
        try:
            if self._raw is None:
                arrays = dict(zip(self._uids, pointers, strict=True))
                self._graph.execute(arrays, workspace, handle=lane.handle)
            else:
                lane.pointers[: len(pointers)] = [*pointers]
                self._raw(lane.address, len(pointers), workspace, lane.backend)
        finally:
            free.append(lane)
