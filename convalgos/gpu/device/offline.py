"""An offline device: of a GPU that is not at hand only the figures, enough for reasons, costs and choices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from convalgos.core.errors import Unsupported
from convalgos.gpu.compile.module import Build
from convalgos.gpu.device.machine import Device, GpuMachine
from convalgos.gpu.device.tma import Im2colView


class OfflineDevice(Device):
    """Ranks the algorithms as the GPU of these figures would, and runs nothing."""

    xp = np

    def __init__(self, figures: GpuMachine, name: str = "cuda:0"):
        self.figures, self.name = figures, name

    def module(self, build: Build) -> NoReturn:
        raise self._absent()

    def function(self, build: Build, name: str, shared_bytes: int) -> NoReturn:
        raise self._absent()

    def capture(self, work: Callable[[], None]) -> NoReturn:
        raise self._absent()

    def address(self, array: Any) -> NoReturn:
        raise self._absent()

    def tensor_map(self, view: Im2colView, address: int) -> NoReturn:
        raise self._absent()

    def as_array(self, name: str, array: Any) -> NoReturn:
        raise self._absent()

    def elapsed(self, work: Callable[[], object]) -> NoReturn:
        raise self._absent()

    def _absent(self) -> Unsupported:
        return Unsupported(f"{self.figures.name} is not at hand: only its figures are known")
