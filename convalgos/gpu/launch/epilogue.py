"""The epilogue on a GPU: macros that build an activation into kernels, and a kernel for what they leave."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from convalgos.core.epilogue import KINDS, Activation
from convalgos.gpu.compile.module import ELEMENTS, Build
from convalgos.gpu.device.machine import Device
from convalgos.gpu.launch.grid import VECTOR_BYTES

THREADS = 256  # of a block, as in epilogue.cu


class FusedEpilogue(NamedTuple):
    """What kernels are built with, beside bias and ReLU, which all have."""

    activation: Activation | None = None
    residual: bool = False

    @property
    def macros(self) -> dict[str, str | int]:
        """For `finished` and `with_residual` of common.cuh."""
        found: dict[str, str | int] = {}
        if self.activation is not None:
            name, a, b = self.activation
            found = {"ACTIVATION": KINDS[name].code, "ACTIVATION_A": repr(a), "ACTIVATION_B": repr(b)}
        return found | ({"RESIDUAL": 1} if self.residual else {})


def epilogue_build(dtype: str, activation: Activation | None) -> Build:
    return Build.of("epilogue.cu", element_t=ELEMENTS[dtype], **FusedEpilogue(activation).macros)


class EpilogueKernel:
    """y = activation(y + residual) in place, of arrays of one type that start where vectors may."""

    def __init__(self, device: Device, dtype: str, activation: Activation | None):
        self._function = device.function(epilogue_build(dtype, activation), "epilogue", 0)
        self._active = np.int32(activation is not None)

    def __call__(self, y: Any, residual: Any) -> None:
        blocks = -(-y.nbytes // (THREADS * VECTOR_BYTES))
        if blocks:
            self._function((blocks,), (THREADS,), (y, residual, np.int64(y.size), self._active), shared_mem=0)
