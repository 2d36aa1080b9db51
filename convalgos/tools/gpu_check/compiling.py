"""Compiles all builds of all algorithms on all cores, and CuPy's own kernels, while the first checks run."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed

import numpy as np

from convalgos.core.plan import numpy_dtype
from convalgos.core.problem import ConvProblem
from convalgos.gpu.compile.module import Build
from convalgos.gpu.device import Device, timer
from convalgos.gpu.launch.algorithm import GpuAlgorithm
from convalgos.select.measure.backends import GpuBackend
from convalgos.tools.gpu_check import quick
from convalgos.tools.gpu_check.cases import TYPES, Case, types
from convalgos.tools.gpu_check.results import OutOfTime, Result, told
from convalgos.tools.gpu_check.steps import DATA, NOTHING, Begun, Skip

NO_PROBLEM = ConvProblem.parse("n1 c1 w1 k1 s1")


def builds_to_try(device: Device) -> list[Build]:
    """Those that this device can be asked for, in the order in which they are checked first."""
    ordered = [
        a
        for a in quick.gpu_algorithms().values()
        if isinstance(a, GpuAlgorithm) and a.capability <= device.figures.capability
    ]
    return list(dict.fromkeys([timer.WAIT, *(build for a in ordered for build in a.builds())]))


def compile_builds(
    device: Device, until: float, skip: Skip = NOTHING
) -> Iterator[Begun | Result | OutOfTime]:
    """A failure for every build that does not compile; the others are ready to run.

    Args:
        until: a moment of `time.monotonic`, after which none is begun: plans compile what they need.
        skip: is of no matter: nobody is to blame for a compiler that does not end.
    """
    kinds = types(dict.fromkeys(kind["dtype"] for kind in TYPES.values()))
    wanted = builds_to_try(device)
    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        waiting = {pool.submit(warm, device, kind): f"CuPy's kernels of {kind}" for kind in kinds}
        waiting |= {pool.submit(device.module, build): str(build) for build in wanted}
        for done, made in enumerate(as_completed(waiting), 1):
            what = waiting[made]
            yield Begun(Case("compile", what, NO_PROBLEM), patience=DATA)  # a sign of life
            if (error := made.exception()) is not None:
                yield Result("compile", "", "", what, failure=told(error))
            if time.monotonic() > until and done < len(waiting):
                yield OutOfTime(len(waiting) - done)
                return
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def warm(device: Device, dtype: str) -> None:
    """Call what CuPy compiles at its first use for a type: the elementwise kernels and reductions of checks.

    CuPy keeps them on disk, so that other processes need not wait for them in a step of a check.
    """
    xp, backend = device.xp, GpuBackend(device)
    with device.active():
        y = backend.put(np.ones((2, 3, 4), numpy_dtype(dtype)))
        backend.spoil(backend.empty(y.shape, y.dtype))
        backend.at(y, np.zeros((1, 3), np.int64))
        spread = xp.zeros((2, 3, 8), y.dtype)
        spread[..., ::2] = y
        xp.ascontiguousarray(y.transpose(0, 2, 1))
        wide = y.astype(np.float32) if y.dtype.itemsize == 2 else y
        written = ~xp.isnan(wide)
        int(written.sum()), int(xp.argmin(written))
        for right in (wide, wide.astype(np.float64)):
            int(xp.argmax(xp.abs(wide - right)))
    backend.wait()
