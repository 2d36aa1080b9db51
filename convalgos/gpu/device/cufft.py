"""Real FFTs of cuFFT through the plans of CuPy, which many streams and threads may run at once.

CuPy's own cache gives all streams of a thread the same plan, and a plan has one work area: two streams would
write it at once. Here each stream of each thread has plans of its own. They are called directly, without the
copies and the scaling of `cupy.fft`.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from typing import Any

CACHED_PLANS = 16  # plans, the latest; a work area may be as large as the arrays


class CufftTransforms:
    """Transforms over the last dimensions of arrays in C order.

    Args:
        cupy: the module.
        lengths: of one to three dimensions of reals.
        dtype: of the reals, "float32" or "float64".
    """

    def __init__(self, cupy: Any, lengths: tuple[int, ...], dtype: str):
        self._cuda, self._lengths = cupy.cuda, lengths
        from cupy.cuda import cufft

        self._cufft = cufft
        single = dtype == "float32"
        self._there = cufft.CUFFT_R2C if single else cufft.CUFFT_D2Z
        self._back = cufft.CUFFT_C2R if single else cufft.CUFFT_Z2D
        self._plans: OrderedDict[tuple[int, int, int, int], Any] = OrderedDict()
        self._lock = threading.Lock()

    def forward(self, x: Any, spectra: Any) -> None:
        """spectra (..., *lengths[:-1], lengths[-1] // 2 + 1) of x (..., *lengths)."""
        self._plan(self._there, x).fft(x, spectra, self._cufft.CUFFT_FORWARD)

    def backward(self, spectra: Any, x: Any) -> None:
        """x (..., *lengths) of spectra, times the product of the lengths. The spectra are lost."""
        self._plan(self._back, x).fft(spectra, x, self._cufft.CUFFT_INVERSE)

    def _plan(self, kind: int, x: Any) -> Any:
        """The plan of the current stream for as many transforms as x has."""
        batch = x.size // math.prod(self._lengths)
        key = self._cuda.get_current_stream().ptr, threading.get_ident(), kind, batch
        with self._lock:
            plan = self._plans.get(key)
            if plan is None:
                while len(self._plans) >= CACHED_PLANS:
                    self._plans.popitem(last=False)
                plan = self._plans[key] = self._made(kind, batch)
            self._plans.move_to_end(key)
            return plan

    def _made(self, kind: int, batch: int) -> Any:
        reals = self._lengths
        spectra = (*reals[:-1], reals[-1] // 2 + 1)
        read, written = (reals, spectra) if kind == self._there else (spectra, reals)
        return self._cufft.PlanNd(
            reals, read, 1, math.prod(read), written, 1, math.prod(written), kind, batch, "C", -1, written[-1]
        )
