"""A GPU through CuPy: the only file that asks it for devices, streams, kernels and graphs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from typing import Any

import numpy as np

from convalgos.core.arrays import as_cupy, torch_stream
from convalgos.core.errors import EXTRAS
from convalgos.gpu.compile.module import OPTIONS, Build, compile_error, source_text
from convalgos.gpu.device import calibrate, measured, timer
from convalgos.gpu.device.cufft import CufftTransforms
from convalgos.gpu.device.machine import STREAMED, Device, Function, GpuMachine
from convalgos.gpu.device.tables import Tables
from convalgos.gpu.device.tma import Im2colView, encode, takes_wide_box

FREE_SHARED_BYTES = 48 << 10  # dynamic shared memory that a kernel gets without asking


class CudaDevice(Device):
    def __init__(self, index: int):
        import cupy

        self.xp = cupy
        self.index = index
        self.name = f"cuda:{index}"
        self.figures = measured.with_saved_constants(calibrate.with_saved_figures(driver_figures(index)))
        self.out_of_memory = cupy.cuda.memory.OutOfMemoryError
        self._current = cupy.cuda.runtime.getDevice
        self._tables = Tables(cupy)
        self._takes_wide_box: bool | None = None  # asked for once
        self._modules: dict[Build, Any] = {}
        self._compiling: dict[Build, threading.Lock] = {}
        self._lock = threading.Lock()  # of the two above, and of the attributes of kernels

    def lacks(self, library: str) -> str | None:
        return lacks(library)

    # --- kernels -----------------------------------------------------------------------------

    def module(self, build: Build) -> Any:
        with self._lock:
            compiling = self._compiling.setdefault(build, threading.Lock())
        with compiling:  # other builds go on meanwhile: NVRTC works in many threads at once
            if build not in self._modules:
                self._modules[build] = self._compiled(build)
            return self._modules[build]

    def _compiled(self, build: Build) -> Any:
        """CuPy keeps what NVRTC made in its own folder, so that other processes load it."""
        known = self.figures.capability in _architectures()  # else CuPy takes the latest that NVRTC knows
        options = (*OPTIONS, f"-arch={self.figures.arch}") if known else OPTIONS
        module = self.xp.RawModule(code=source_text(build), options=options, backend="nvrtc")
        try:
            with self.xp.cuda.Device(self.index):
                module.compile()
        except self.xp.cuda.compiler.CompileException as error:
            raise compile_error(build, str(error)) from None
        return module

    def function(self, build: Build, name: str, shared_bytes: int) -> Function:
        module = self.module(build)
        with self._lock, self.xp.cuda.Device(self.index):
            function = module.get_function(name)
            if shared_bytes > FREE_SHARED_BYTES:  # an attribute that all who launch this kernel share
                function.max_dynamic_shared_size_bytes = max(
                    shared_bytes, function.max_dynamic_shared_size_bytes
                )
            kernel: Function = function.kernel  # of this device, whichever is current when it is launched
            return kernel

    def by_value(self, record: np.ndarray) -> Any:
        return _record_type()(record)

    def capture(self, work: Callable[[], None]) -> Graph:
        cuda = self.xp.cuda
        caller, stream, pool = cuda.get_current_stream(), cuda.Stream(non_blocking=True), cuda.MemoryPool()
        stream.wait_event(caller.record())
        try:
            with stream, cuda.using_allocator(pool.malloc):
                try:
                    work()  # loads what is loaded at first use, and fills the pool that the graph lives in
                except self.out_of_memory:  # what lies idle in CuPy's own pool serves this one, too
                    self.xp.get_default_memory_pool().free_all_blocks()
                    work()
                return Graph(self._captured(stream, work), pool)
        finally:
            caller.wait_event(stream.record())

    @staticmethod
    def _captured(stream: Any, work: Callable[[], None]) -> Any:
        stream.begin_capture()
        try:
            work()
        except BaseException:
            with suppress(Exception):  # a capture that was broken off ends with an error
                stream.end_capture()
            raise
        return stream.end_capture()

    # --- arrays ------------------------------------------------------------------------------

    def tables(self, *values: np.ndarray) -> list[Any]:
        with self.active():
            return self._tables.tables(*values)

    @contextmanager
    def gathering(self) -> Iterator[None]:
        with self.active(), self._tables.gathering():
            yield

    def address(self, array: Any) -> int:
        pointer: int = array.data.ptr
        return pointer

    def tensor_map(self, view: Im2colView, address: int) -> Any:
        return self.by_value(encode(view, address))

    def takes_wide_box(self) -> bool:
        if self._takes_wide_box is None:
            with self.active():
                self.xp.empty(1)  # the driver encodes within a context
                self._takes_wide_box = takes_wide_box()
        return self._takes_wide_box

    def as_array(self, name: str, array: Any) -> Any:
        view = array if type(array) is self.xp.ndarray else as_cupy(name, array)
        if view.data.device_id != self.index:
            raise ValueError(f"{name} lies on cuda:{view.data.device_id}, but the plan is for {self.name}")
        return view

    def transforms(self, lengths: tuple[int, ...], dtype: str) -> CufftTransforms:
        return CufftTransforms(self.xp, lengths, dtype)

    # --- streams, and what is current --------------------------------------------------------

    def is_current(self) -> bool:
        found: bool = self._current() == self.index
        return found

    def active(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.is_current() else self.xp.cuda.Device(self.index)

    def stream_of(self, array: Any) -> AbstractContextManager[Any]:
        pointer = torch_stream(array)
        return nullcontext() if pointer is None else self.xp.cuda.Stream.from_external(Borrowed(pointer))

    def stream(self) -> int:
        pointer: int = self.xp.cuda.get_current_stream().ptr
        return pointer

    def capturing(self) -> bool:
        try:
            return bool(self.xp.cuda.get_current_stream().is_capturing())
        except RuntimeError:  # CUDA does not answer for the default stream while another one is captured
            return True

    def versions(self) -> dict[str, str]:
        runtime = self.xp.cuda.runtime
        found = {"CUDA driver": runtime.driverGetVersion(), "CUDA runtime": runtime.runtimeGetVersion()}
        return {name: f"{v // 1000}.{v % 1000 // 10}" for name, v in found.items()}

    @contextmanager
    def new_stream(self) -> Iterator[None]:
        with self.active(), self.xp.cuda.Stream(non_blocking=True):
            yield

    def synchronize(self) -> None:
        with self.active():
            self.xp.cuda.runtime.deviceSynchronize()

    def elapsed(self, work: Callable[[], object]) -> float:
        with self.active():
            return timer.elapsed(self.xp.cuda, self._wait, work)

    def _wait(self, seconds: float) -> None:
        kernel = self.function(timer.WAIT, "wait_cycles", 0)
        kernel((1,), (1,), (np.int64(seconds * self.figures.clock),))


@cache
def lacks(library: str) -> str | None:
    """Why CuPy cannot call one of CUDA's libraries, which it looks for when they are first used, or None."""
    import cupy

    try:
        found = getattr(cupy.cuda, library)
        if library == "nvrtc":
            found.getVersion()
    except Exception:  # of several kinds, with the folders that were searched
        return f"needs {library}, which CuPy does not find ({EXTRAS['cupy']})"
    return None


class Borrowed:
    """The stream of another library, as CuPy takes it over without owning it."""

    def __init__(self, pointer: int):
        self._pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._pointer


class Graph:
    """A graph of CUDA with the pool in which its workspaces lie. `launch()` goes to CuPy's current stream."""

    def __init__(self, graph: Any, pool: Any):
        self.launch = graph.launch
        self._pool = pool


@cache
def _record_type() -> type:
    """Of records passed by value: packing a NumPy array anew costs 8 us in every launch."""
    from cupy.cuda.function import CPointer

    class Record(CPointer):  # type: ignore[misc]  # CuPy has no types
        def __init__(self, record: np.ndarray):
            super().__init__(record.ctypes.data)
            self._record = record

    return Record


@cache
def _architectures() -> frozenset[tuple[int, int]]:
    """The compute capabilities that the installed NVRTC compiles for."""
    from cupy_backends.cuda.libs import nvrtc

    return frozenset(divmod(arch, 10) for arch in nvrtc.getSupportedArchs())


def driver_figures(index: int) -> GpuMachine:
    """The figures of a GPU from the properties that the driver gives."""
    import cupy

    name = cupy.cuda.runtime.getDeviceProperties(index)["name"]
    attributes = cupy.cuda.Device(index).attributes  # which lacks the compute capability
    capability = cupy.cuda.Device(index).compute_capability  # "90", "120"
    bus_bytes = attributes["GlobalMemoryBusWidth"] / 8
    return GpuMachine(
        name=name.decode() if isinstance(name, bytes) else str(name),
        capability=(int(capability[:-1]), int(capability[-1])),
        multiprocessors=attributes["MultiProcessorCount"],
        clock=attributes["ClockRate"] * 1e3,
        bandwidth=STREAMED * 2 * attributes["MemoryClockRate"] * 1e3 * bus_bytes,  # two transfers a clock
        l2_bytes=attributes["L2CacheSize"],
        block_shared_bytes=attributes["MaxSharedMemoryPerBlockOptin"],
        sm_shared_bytes=attributes["MaxSharedMemoryPerMultiprocessor"],
        sm_registers=attributes["MaxRegistersPerMultiprocessor"],
        sm_threads=attributes["MaxThreadsPerMultiProcessor"],
    )
