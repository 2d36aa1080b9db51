"""Products of int8 by cuDNN: what it takes of them, and a kernel of it that writes their sums.

cuDNN sums int8 in int32 and can write these sums, from 8.6 on and on GPUs from 8.0 on. What a problem makes
of them (zero points, scales, rounding) is then done by the kernel that ends all of our sums, so that results
are the same bits.

Source: nvidia-cudnn-frontend, its sample of int8.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from convalgos.core.problem import ConvProblem
from convalgos.gpu.compile.module import INTEGER_ELEMENTS, Build
from convalgos.gpu.device import Device
from convalgos.gpu.launch.grid import ceil_div
from convalgos.gpu.vendor.graph import PLAIN
from convalgos.gpu.vendor.plans import Offer, listing
from convalgos.gpu.vendor.runner import Runner
from convalgos.gpu.vendor.verify import check_kernel

WORD = 4  # channels of int8 that are loaded at once, at least
LINE = 256  # bytes
FINISH_SUMS, FINISHERS = Build.of("finish_sums.cu", **INTEGER_ELEMENTS), 256  # threads of a block


def why_not_integers(problem: ConvProblem) -> str | None:
    """Why cuDNN does not multiply a problem of integers; words of 4 are what its engines load at least."""
    if not problem.sums_integers:
        return None
    if problem.w_dtype != "int8":
        return f"multiplies int8 by int8 alone, not by {problem.w_dtype}"
    if problem.layout != "channels_last" or problem.groups > 1:
        return "computes integers channels last and in one group only"
    if problem.C % WORD or problem.K % WORD:
        return f"takes integers of C and K in multiples of {WORD}, not {problem.C} and {problem.K}"
    return None


def of_sums(problem: ConvProblem) -> ConvProblem:
    """The problem that cuDNN is asked for: of integers that of the sums, whatever becomes of them."""
    if not problem.sums_integers:
        return problem
    return problem.replace(y_dtype="int32", scales="per_tensor", density=1.0, pattern="unstructured")


def int32_bytes(problem: ConvProblem) -> int:
    """Of int32 sums, in whole lines."""
    return LINE * ceil_div(4 * math.prod(problem.y_shape), LINE)


class CudnnSums:
    """A kernel that writes int32 sums (N, *spatial_out, K) of products of int8."""

    def __init__(self, problem: ConvProblem, offer: Offer, name: str, device: Device):
        self._problem, self._name, self._device = of_sums(problem), name, device
        self.workspace_bytes = offer.workspace_bytes
        self._runner = Runner(listing(self._problem, device).opened(offer.name), PLAIN, device)

    def __call__(self, x: Any, w: Any, sums: int, scratch: Any) -> None:
        """w: (K, *kernel, C). sums: an address."""
        address = self._device.address
        self._runner(address(scratch) if self.workspace_bytes else 0, address(x), address(w), sums)

    def fault(self) -> str | None:
        """Why it is not to be used."""

        def run(x: Any, w: Any, bias: Any, y: Any) -> None:
            xp = self._device.xp
            scratch, turned = xp.empty(self.workspace_bytes, np.uint8), xp.moveaxis(w, 1, -1)
            self(x, xp.ascontiguousarray(turned), self._device.address(y), scratch)

        return check_kernel(self._device, self._name, self._problem, 0.0, run)
