"""A GPU that is not at hand: its figures are enough for reasons and costs, so for choosing and judging."""

from __future__ import annotations

import numpy as np

from convalgos.core.errors import Unsupported
from convalgos.gpu.device.machine import Device, GpuMachine


class PaperDevice(Device):
    """Ranks the algorithms as the GPU of these figures would, and runs nothing."""

    xp = np

    def __init__(self, figures: GpuMachine, name: str = "cuda:0"):
        self.figures, self.name = figures, name

    def module(self, build):
        raise self._absent()

    def function(self, build, name, shared_bytes):
        raise self._absent()

    def capture(self, work):
        raise self._absent()

    def address(self, array):
        raise self._absent()

    def tensor_map(self, view, address):
        raise self._absent()

    def as_array(self, name, array):
        raise self._absent()

    def elapsed(self, work):
        raise self._absent()

    def _absent(self) -> Unsupported:
        return Unsupported(f"{self.figures.name} is not at hand: only its figures are known")
