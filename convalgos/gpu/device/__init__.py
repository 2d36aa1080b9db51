"""Which GPU to work on.

`current()` is the device that the calling thread works on: CuPy's current one, or the one chosen by `use`.
`Device` is all that algorithms see of CuPy; the tests have a device that runs kernels on the CPU.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

from convalgos.core import profiles
from convalgos.core.errors import EXTRAS, Unsupported, missing
from convalgos.gpu.device.cuda import CudaDevice, lacks
from convalgos.gpu.device.machine import Device as Device
from convalgos.gpu.device.machine import GpuMachine as GpuMachine
from convalgos.gpu.device.measured import shipped

LEAST_CUPY = 14  # whose streams wrap those of other libraries

_chosen: ContextVar[Device | None] = ContextVar("chosen device", default=None)


@contextmanager
def use(device: Device) -> Iterator[Device]:
    """Within it, `current()` is this device."""
    token = _chosen.set(device)
    try:
        with device.active():
            yield device
    finally:
        _chosen.reset(token)


def current() -> Device:
    """The device of the calling thread.

    Raises:
        Unsupported: there is none; says what is missing.
    """
    chosen = _chosen.get()
    if chosen is not None:
        return chosen
    if reason := why_none():
        raise Unsupported(reason)
    import cupy

    return cuda_device(cupy.cuda.runtime.getDevice())


def named(name: str) -> Device:
    """The device of a name, "cuda" (the current one) or "cuda:N"; a profile's tells only what it would do.

    Raises:
        ValueError: no such name, or no device of that number. Unsupported: there is no GPU at all.
    """
    kind, colon, index = name.partition(":")
    if name in profiles.of_gpus():
        return _of_profile(name)
    if kind != "cuda" or (colon and not index.isdecimal()):
        known = ", ".join(profiles.of_gpus())
        raise ValueError(f"device={name!r} must be 'cpu', 'cuda' or 'cuda:N', or to explain choices {known}")
    if not index:
        if reason := why_none():
            raise Unsupported(f"device={name!r}: {reason}")
        return current()
    chosen = _chosen.get()
    if chosen is not None and chosen.name == name:
        return chosen
    if reason := _why_no_cuda():
        raise Unsupported(f"device={name!r}: {reason}")
    import cupy

    count = cupy.cuda.runtime.getDeviceCount()
    if int(index) >= count:
        raise ValueError(f"device={name!r}: there are {count} devices, cuda:0 to cuda:{count - 1}")
    return cuda_device(int(index))


@cache
def _of_profile(name: str) -> Device:
    """A GPU of which only the shipped figures are known."""
    from convalgos.gpu.device.offline import OfflineDevice

    figures = dict(profiles.profiles()[name])
    source, capability = f"profile {name}: {figures.pop('origin')}", tuple(figures.pop("capability"))
    figures.pop("measured", None)  # which `shipped` finds by the name of the GPU
    found = GpuMachine(**figures, capability=capability, source=source)
    return OfflineDevice(shipped(found), name)


_devices: dict[int, CudaDevice] = {}
_making = threading.Lock()


def cuda_device(index: int) -> CudaDevice:
    """The device of a number; one object for each."""
    with _making:
        if index not in _devices:
            _devices[index] = CudaDevice(index)
        return _devices[index]


def why_none() -> str | None:
    """Why there is no GPU to work on, or None where there is one."""
    return None if _chosen.get() is not None else _why_no_cuda()


@cache
def _why_no_cuda() -> str | None:
    if reason := missing("cupy"):
        return reason
    try:
        import cupy

        found = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # a driver that is missing or too old, in the words of CUDA
        first, *_ = str(error).splitlines() or [type(error).__name__]
        return f"needs a CUDA device, but CuPy finds none ({first})"
    if int(cupy.__version__.partition(".")[0]) < LEAST_CUPY:
        return f"needs CuPy {LEAST_CUPY} or later, but {cupy.__version__} is installed ({EXTRAS['cupy']})"
    return lacks("nvrtc") if found else "needs a CUDA device, but there is none"
