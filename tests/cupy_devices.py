"""The library on two devices of the stand-in for CuPy: setting up, and what tests on them share."""

from contextlib import contextmanager

from cuda_shim import cupy_stand_in as stand_in

import convalgos as ca
from convalgos.api import planning
from convalgos.gpu import device
from convalgos.gpu.device import cuda

PROBLEM = ca.ConvProblem.parse("n1 c3 h6 w7 k4 r3 s3 p1")
CACHED = (device._why_no_cuda, cuda._architectures, cuda._record_type, cuda.lacks)


@contextmanager
def two_devices(monkeypatch):
    """CuPy on two devices, and no plans or devices of other tests, nor any left for them."""

    def forget():
        for cached in CACHED:
            cached.cache_clear()
        planning.forget_plans()

    monkeypatch.setattr(cuda, "source_text", lambda build: build)  # the stand-in compiles builds
    monkeypatch.setattr(device, "_devices", {})
    stand_in.install(monkeypatch)
    monkeypatch.setattr(device, "missing", lambda name: None)
    forget()
    yield
    forget()


def served(problem, name="cuda:0", algorithm="gpu.direct"):
    return ca.plan(problem, device=name, algorithm=algorithm)


def on(index, *arrays):
    with stand_in.Device(index):
        return tuple(stand_in.asarray(a) for a in arrays)


def launches():
    """What ran on the devices: (what, device, stream) of each kernel and copy."""
    return [entry for entry in stand_in.log if entry[0] not in ("synchronize", "graph", "upload")]
