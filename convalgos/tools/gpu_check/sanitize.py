"""NVIDIA's compute-sanitizer, where it is installed, on one shape for every kernel of algorithms that failed.

It runs `python -m convalgos.tools.gpu_check --one ALGORITHM`, in which every array is an allocation of its
own: an access beyond an array is seen.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from convalgos.core.problem import DIRECTIONS
from convalgos.gpu.device import Device
from convalgos.gpu.launch.plan import GpuPlan
from convalgos.select.measure.backends import GpuBackend
from convalgos.tools.gpu_check import cases
from convalgos.tools.gpu_check.checks import candidates
from convalgos.tools.gpu_check.reference_answers import Truth
from convalgos.tools.gpu_check.results import Result

TOOLS = ("memcheck", "racecheck")
FOUND = 33  # the exit status of the tool where it finds something
AT_ONCE = 4
ENDING = 2.0  # seconds that one has to end after it was killed
LINES = 12  # of what it says, in the report
PLACES = ("/usr/local/cuda/bin", "/opt/cuda/bin")


def tool() -> str | None:
    """Where compute-sanitizer is, or None."""
    return shutil.which("compute-sanitizer", path=os.pathsep.join((os.environ.get("PATH", ""), *PLACES)))


def sanitize(program: str, algorithms: Iterable[str], device: str, until: float) -> Iterator[Result]:
    """A result for every algorithm and tool, until a moment of `time.monotonic`."""
    pairs = [(kind, algorithm) for kind in TOOLS for algorithm in algorithms]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(lambda pair: _run(program, pair[0], pair[1], device, until), pairs)


def _run(program: str, kind: str, algorithm: str, device: str, until: float) -> Result:
    result = Result("sanitizer", "one shape of each kernel", algorithm, kind)
    left = until - time.monotonic()
    if left < 1:
        return replace(result, what=f"{kind}: no time was left")
    command = [program, "--tool", kind, "--error-exitcode", str(FOUND), sys.executable, "-m"]
    command += ["convalgos.tools.gpu_check", "--device", device, "--one", algorithm]
    with tempfile.TemporaryFile() as log:  # no pipe, which what hangs would keep open
        running = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            status = running.wait(left)
        except subprocess.TimeoutExpired:
            return replace(result, what=f"{kind}: not done in {left:.0f} s")
        finally:
            with suppress(ProcessLookupError):  # with the program that it watches
                os.killpg(running.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):  # what is stuck in the driver is left to itself
                running.wait(ENDING)
        if status == 0:
            return result
        log.seek(0)
        lines = log.read().decode(errors="replace").splitlines()
    said = [line for line in lines if line.startswith("=")][:LINES]
    return replace(result, failure=" | ".join(said or lines[-3:]) or f"status {status}")


def one(device: Device, algorithm: str) -> Collection[str]:
    """Run small problems through an algorithm until each of its kernels ran once; their names."""
    cuda = getattr(device.xp, "cuda", None)
    if cuda is not None:
        cuda.set_allocator(None)  # no pool
    backend = GpuBackend(device)
    seen: set[tuple[str, str]] = set()
    every = cases.of_texts("one", cases.AWKWARD, DIRECTIONS)
    for case in sorted(every, key=lambda case: case.problem.flops):
        if case.problem.is_empty:
            continue
        found, _ = candidates(case, device, "ours")
        for candidate in (c for c in found if c.id == algorithm):
            plan = candidate.algorithm.serve(case.problem)
            kernels = (
                {(la.build.source, la.name) for la in plan.launches} if isinstance(plan, GpuPlan) else set()
            )
            if kernels <= seen and seen:
                continue
            seen |= kernels or {(algorithm, algorithm)}
            truth = Truth(case.problem)
            forward = case.problem.direction == "forward"
            bias, activation = (backend.put(truth.bias), "relu") if forward else (None, None)
            plan(backend.put(truth.first), backend.put(truth.second), bias=bias, activation=activation)
            backend.wait()
    return sorted(name for _, name in seen)
