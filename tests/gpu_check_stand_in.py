"""What the check's processes serve in the tests: a device on which algorithms answer, hang or crash as told.

The processes, their pipes and their ends are the real ones. Plans compute by the reference.
"""

import os
import signal
import sys
import time
from functools import cache
from multiprocessing.connection import Connection

import numpy as np
from cuda_shim.device import RecordingDevice

from convalgos.cpu.reference import answer
from convalgos.gpu.device import calibrate
from convalgos.gpu.launch.algorithm import GpuAlgorithm
from convalgos.tools.gpu_check import cases, compiling, process, quick, timing

COMMAND = (sys.executable, "-c", "from gpu_check_stand_in import main; main()")
BEHAVIOUR = "CONVALGOS_TEST_BEHAVIOUR"  # "gpu.a=hangs,gpu.b=crashes"


class Simulated(RecordingDevice):
    """Compiles and launches nothing."""

    def module(self, build):
        return None

    def elapsed(self, work):
        work()
        return 1e-4


class Plan:
    """Calls like a plan of a GPU's."""

    launches = ()
    workspace_bytes = 0

    def __init__(self, problem, algorithm):
        self.problem, self.how = problem, behaviour().get(algorithm.id)
        if self.how == "hangs in its plan":
            hang()

    def prepare(self, w, quantization=None):
        return w

    def __call__(self, x, w, *, bias=None, out=None, activation=None):
        if self.how == "hangs":
            hang()
        if self.how == "crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
        p = self.problem
        y = right(p, x.tobytes(), w.tobytes()).copy()
        if self.how == "is wrong":
            y += 1
        if bias is not None:
            y += bias.astype(np.float64).reshape(-1, *(1,) * p.ndim)
        y = np.maximum(y, 0) if activation == "relu" else y
        out = np.empty(p.array_shapes[2], x.dtype) if out is None else out
        p.logical(2, out)[...] = y
        return out


@cache
def right(problem, x, w):
    shapes = problem.array_shapes
    dtype = np.dtype(problem.dtype)
    x, w = (np.frombuffer(data, dtype).reshape(shape) for data, shape in zip((x, w), shapes, strict=False))
    return answer(problem, problem.logical(0, x), problem.logical(1, w))


def hang():
    """As in a kernel that never ends: no signal that can be ignored ends it."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        time.sleep(60)


@cache
def behaviour():
    return dict(part.split("=") for part in os.environ.get(BEHAVIOUR, "").split(",") if part)


def main():
    cases.types = compiling.types = lambda names: [n for n in names if n != "bfloat16"]
    quick.REGULAR = ("n1 c16 h6 w6 k16 r3 s3 p1", "n1 c4 h6 w6 k4 r3 s3 p1 groups4")
    quick.ODD = ("n1 c3 h5 w4 k5 r3 s3 p1",)
    calibrate.COPIED, calibrate.SQUARE = 1 << 12, 16
    timing.HOST_TRIES = 1
    sys.modules["torch"] = None  # its import takes seconds
    GpuAlgorithm.serve = lambda algorithm, problem: Plan(problem, algorithm)
    process.serve_jobs(Connection(int(sys.argv[1])), Simulated)
