"""The part of CuPy 14 that the library calls, over NumPy arrays and the kernels of the shim, on two devices.

Names, arguments and what they do are those of CuPy, as far as they go; where CuPy fails, this does: on arrays
of another library, on kernels launched for another device, on memory asked for while a stream is captured.
`log` tells which kernel went to which device and stream.
"""

from __future__ import annotations

import contextlib
import ctypes
import operator
import sys
import threading
import time
from types import ModuleType, SimpleNamespace

import numpy as np

from cuda_shim import device as shim

DEVICES = 2
log: list[tuple[str, int, int]] = []  # (kernel or event, device, stream)
state = threading.local()
refused: set[int] = set()  # bytes of blocks for which there is no memory
waits: list[tuple[int, int]] = []  # (stream, the stream it waits for)
architectures = [75, 80, 86, 89, 90, 100, 120]


compiled: list[tuple] = []  # (build, device, options) of every call of the compiler
ATTRIBUTES = {  # of an H200; kHz, bits, bytes
    "GlobalMemoryBusWidth": 6144,
    "MultiProcessorCount": 132,
    "ClockRate": 1980000,
    "MemoryClockRate": 3201000,
    "L2CacheSize": 50 << 20,
    "MaxSharedMemoryPerBlockOptin": 232448,
    "MaxSharedMemoryPerMultiprocessor": 233472,
    "MaxRegistersPerMultiprocessor": 65536,
    "MaxThreadsPerMultiProcessor": 2048,
}


class OutOfMemoryError(MemoryError):
    pass


class CompileException(Exception):
    pass


def get_device() -> int:
    return getattr(state, "device", 0)


class Device:
    attributes = ATTRIBUTES
    compute_capability = "90"

    def __init__(self, index=None):
        self.id = get_device() if index is None else index

    def __enter__(self):
        self._before, state.device = get_device(), self.id

    def __exit__(self, *_):
        state.device = self._before


# --- streams ---------------------------------------------------------------------------------


class Event:
    def __init__(self):
        self.stream, self.time = None, 0.0

    def record(self, stream=None):
        self.stream, self.time = stream or get_current_stream(), time.perf_counter()

    def synchronize(self):
        log.append(("synchronize", get_device(), self.stream.ptr))


class Stream:
    null: Stream

    def __init__(self, null=False, non_blocking=False):
        self.ptr = 0 if null else id(self)
        self.device_id = -1 if null else get_device()
        self.graph = None  # what is recorded, while it is captured

    @classmethod
    def from_external(cls, other):
        version, pointer = other.__cuda_stream__()
        assert version == 0
        made = cls()
        made.ptr, made.device_id = pointer, -1
        return made

    def __enter__(self):
        if self.device_id not in (-1, get_device()):
            raise RuntimeError(
                "The device that the stream is created on does not match with the current device"
            )
        self._before = get_current_stream()
        streams()[get_device()] = self

    def __exit__(self, *_):
        streams()[get_device()] = self._before

    def record(self):
        event = Event()
        event.record(self)
        return event

    def wait_event(self, event):
        waits.append((self.ptr, event.stream.ptr))

    def synchronize(self):
        log.append(("synchronize", get_device(), self.ptr))

    def begin_capture(self):
        if self.ptr == 0:
            raise RuntimeError("cannot capture on the default (legacy) stream")
        self.graph = []

    def is_capturing(self):
        return self.graph is not None

    def end_capture(self):
        recorded, self.graph = self.graph, None
        return Graph(recorded)


class Graph:
    def __init__(self, launches):
        self.launches = launches

    def launch(self, stream=None):
        log.append(("graph", get_device(), (stream or get_current_stream()).ptr))
        for launch in self.launches:
            launch()


Stream.null = Stream(null=True)


def streams() -> list:
    if not hasattr(state, "streams"):
        state.streams = [Stream.null] * DEVICES
    return state.streams


def get_current_stream(device_id=-1):
    return streams()[get_device() if device_id == -1 else device_id]


# --- memory and arrays -----------------------------------------------------------------------


class Pool:
    """Blocks of one size serve only calls for this size."""

    def __init__(self):
        self.free: dict[int, list[np.ndarray]] = {}

    def malloc(self, size):
        if self.free.get(size):
            return Block(self, self.free[size].pop())
        assert get_current_stream().graph is None, (
            "memory was asked of the device while a stream was captured"
        )
        if size in refused:
            raise OutOfMemoryError(f"Out of memory allocating {size} bytes")
        raw = np.empty(size + 256, np.uint8)
        start = -raw.ctypes.data % 256
        return Block(self, raw[start : start + size])

    def free_all_blocks(self):
        self.free.clear()


class Block:
    """Memory that goes back to its pool."""

    def __init__(self, pool, raw):
        self.pool, self.raw = pool, raw

    def __del__(self):
        self.pool.free.setdefault(self.raw.size, []).append(self.raw)


default_pool = Pool()
freed: list[int] = []  # bytes of each `Memory` that is gone


@contextlib.contextmanager
def using_allocator(allocate):
    before, state.allocate = getattr(state, "allocate", None), allocate
    try:
        yield
    finally:
        state.allocate = before


class Memory:
    """Memory of no pool; freeing it waits for the device, and breaks a capture."""

    def __init__(self, size):
        self.raw, self.size, self.device_id = Pool().malloc(size).raw, size, get_device()
        self.ptr = self.raw.ctypes.data

    def __del__(self, freed=freed):  # also once the module is gone
        freed.append(self.size)


class UnownedMemory:
    """Memory of another library."""

    def __init__(self, pointer, size, owner, device_id):
        self.raw = np.frombuffer((ctypes.c_uint8 * size).from_address(pointer), np.uint8)
        self.owner, self.device_id = owner, device_id


class MemoryPointer:
    def __init__(self, memory, offset):
        self.memory, self.ptr = memory, memory.raw.ctypes.data + offset
        self.device_id = getattr(memory, "device_id", get_device())

    def copy_from_host_async(self, pointer, size, stream):
        log.append(("upload", self.device_id, stream.ptr))
        ctypes.memmove(self.ptr, pointer, size)


class ndarray(np.lib.mixins.NDArrayOperatorsMixin):
    """A NumPy array that lies on a device. Results of NumPy's functions and methods do, too."""

    def __init__(self, shape, dtype=float, memptr=None, strides=None):
        self._lie(np.ndarray(shape, dtype, memptr.memory.raw, 0, strides), memptr.device_id, memptr)

    @classmethod
    def over(cls, array, device, owner):
        """A NumPy array as it lies on a device, in memory of the owner."""
        made = cls.__new__(cls)
        made._lie(array, device, owner)
        return made

    def _lie(self, array, device, owner):
        self.array, self.device, self._owner = array, Device(device), owner
        upload = getattr(owner, "copy_from_host_async", None)
        self.data = SimpleNamespace(ptr=array.ctypes.data, device_id=device, copy_from_host_async=upload)

    def __getattr__(self, name):
        found = getattr(self.array, name)
        return (
            (lambda *args, **kwargs: on_device(found, self, args, kwargs))
            if callable(found)
            else wrapped(found, self)
        )

    def __getitem__(self, key):
        return wrapped(self.array[key], self)

    def __setitem__(self, key, value):
        self.array[on_host(key)] = on_host(value)

    def __mul__(self, other):
        return on_device(operator.mul, self, (self, other), {})

    def __truediv__(self, other):
        return on_device(operator.truediv, self, (self, other), {})

    def __len__(self):
        return len(self.array)

    def __array__(self, *_, **__):
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        return on_device(getattr(ufunc, method), self, inputs, kwargs)

    def __array_function__(self, function, types, args, kwargs):
        return on_device(function, self, args, kwargs)

    def __dlpack_device__(self):
        return 2, self.data.device_id

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        return Capsule(self.array, self.data.device_id)


class Capsule:
    """What goes from one library to another: the memory."""

    def __init__(self, array, device):
        self.array, self.device = array, device


def wrapped(value, like):
    return ndarray.over(value, like.data.device_id, like) if isinstance(value, np.ndarray) else value


def on_host(value):
    if isinstance(value, ndarray):
        return value.array
    if isinstance(value, tuple | list):
        return type(value)(map(on_host, value))
    assert not isinstance(value, np.ndarray) or value.ndim == 0, "CuPy takes no arrays of NumPy"
    return value


def on_device(function, like, args, kwargs):
    return wrapped(function(*on_host(args), **{k: on_host(v) for k, v in kwargs.items()}), like)


def empty(shape, dtype=float):
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    block = (getattr(state, "allocate", None) or default_pool.malloc)(size)
    block.raw.fill(0xFF)  # NaNs: memory that was not written shows
    return ndarray.over(block.raw.view(dtype).reshape(shape), get_device(), block)


def array(value, order=None):
    host = value.array if isinstance(value, ndarray) else np.asarray(value)
    made = empty(host.shape, host.dtype)
    made.array[...] = host
    return made


def asarray(value):
    if isinstance(value, ndarray):
        return value
    if hasattr(value, "__cuda_array_interface__"):
        return ndarray.over(value.viewed, 0, value)
    return array(value)


def zeros(shape, dtype=float):
    return array(np.zeros(shape, dtype))


def ascontiguousarray(value):
    return value if value.flags.c_contiguous else array(value)


def of_numpy(name, module=np):
    """CuPy's function of the same name and arguments."""
    function = getattr(module, name)
    return lambda first, *args, **kwargs: on_device(function, first, (first, *args), kwargs)


def asnumpy(value):
    return value.array.copy()


def from_dlpack(value):
    kind, index = value.__dlpack_device__()
    assert kind in (2, 13), "CPU arrays cannot be directly imported to CuPy."
    with Device(index):
        capsule = value.__dlpack__(stream=get_current_stream().ptr or 1, max_version=(1, 0), copy=None)
    return ndarray.over(capsule.array, capsule.device, capsule)


# --- kernels ---------------------------------------------------------------------------------


class CPointer:
    def __init__(self, p=0):
        self.ptr = p


class RawModule:
    def __init__(self, *, code, options=(), backend="nvrtc"):
        assert backend == "nvrtc" and isinstance(options, tuple)
        self.code, self.options = code, options

    def compile(self):
        compiled.append((self.code, get_device(), self.options))
        if self.code.source == "broken.cu":
            raise CompileException('direct.cu(7): error: identifier "oops" is undefined\n')
        self._library = shim.compiled(self.code)

    def get_function(self, name):
        return RawKernel(self._library, name)


class RawKernel:
    max_dynamic_shared_size_bytes = 48 << 10

    def __init__(self, library, name):
        self.kernel = Function(library, name, get_device())


class Function:
    def __init__(self, library, name, device):
        self._launcher, self.name, self._device = shim.launcher_of(library, name), name, device

    def __call__(self, grid, block, args, shared_mem=0):
        assert get_device() == self._device, "CUDA_ERROR_INVALID_HANDLE"
        stream = get_current_stream()
        values = [self.pointer(a) for a in args]
        run = shim.launched(self._launcher, grid, block, shared_mem, values)
        if stream.graph is not None:
            stream.graph.append(run)
            return
        log.append((self.name, self._device, stream.ptr))
        run()

    @staticmethod
    def pointer(argument):
        if isinstance(argument, ndarray):
            return np.array([argument.data.ptr], np.uint64)
        if isinstance(argument, CPointer):
            return SimpleNamespace(ctypes=SimpleNamespace(data=argument.ptr), record=argument)
        return shim.by_value(argument)


class PlanNd:
    """A plan of cuFFT, which has one work area: its transforms must stay on one stream."""

    def __init__(self, shape, inembed, istride, idist, onembed, ostride, odist, kind, batch, order, *_):
        self._there, self._shape, self._stream = kind in (CUFFT["R2C"], CUFFT["D2Z"]), shape, None
        spectrum = (*shape[:-1], shape[-1] // 2 + 1)
        self._read, self._written = (shape, spectrum) if self._there else (spectrum, shape)
        self._single, self._batch = kind in (CUFFT["R2C"], CUFFT["C2R"]), batch
        assert (inembed, onembed) == (self._read, self._written) and order == "C" and istride == ostride == 1
        assert (idist, odist) == (np.prod(self._read), np.prod(self._written))

    def fft(self, a, out, direction):
        stream = get_current_stream()
        assert self._stream in (None, stream.ptr), "two streams write to one work area"
        assert direction == CUFFT["FORWARD" if self._there else "INVERSE"]
        assert stream.graph is None and a.flags.c_contiguous and out.flags.c_contiguous
        assert (a.dtype.itemsize == 4 or out.dtype.itemsize == 4) == self._single
        self._stream = stream.ptr
        log.append(("cufft", get_device(), stream.ptr))
        given, axes = a.array.reshape(self._batch, *self._read), tuple(range(-len(self._shape), 0))
        found = (
            np.fft.rfftn(given, axes=axes)
            if self._there
            else np.fft.irfftn(given, self._shape, axes, norm="forward")
        )
        out.array.reshape(found.shape)[...] = found


CUFFT = {"R2C": 0x2A, "C2R": 0x2C, "D2Z": 0x6A, "Z2D": 0x6C, "FORWARD": -1, "INVERSE": 1}


def install(monkeypatch) -> None:
    """Make this what `import cupy` finds."""
    here = sys.modules[__name__]
    packages = ("cupy", "cupy.cuda", "cupy.cuda.cufft", "cupy.cuda.function")
    packages += ("cupy_backends", "cupy_backends.cuda", "cupy_backends.cuda.libs")
    modules = {name: ModuleType(name) for name in packages}
    cupy, cuda = modules["cupy"], modules["cupy.cuda"]
    for name in ("ndarray", "empty", "array", "asarray", "zeros", "ascontiguousarray", "asnumpy"):
        setattr(cupy, name, getattr(here, name))
    cupy.__getattr__ = of_numpy
    cupy.fft = SimpleNamespace(**{name: of_numpy(name, np.fft) for name in ("rfftn", "irfftn")})
    cupy.__version__, cupy.cuda, cupy.RawModule, cupy.from_dlpack = "14.2.0", cuda, RawModule, from_dlpack
    cupy.get_default_memory_pool = lambda: default_pool
    cuda.get_elapsed_time = lambda first, last: (last.time - first.time) * 1e3  # milliseconds
    for name in ("Device", "Stream", "Event", "get_current_stream", "using_allocator"):
        setattr(cuda, name, getattr(here, name))
    cuda.Memory, cuda.UnownedMemory, cuda.MemoryPointer = Memory, UnownedMemory, MemoryPointer
    cuda.MemoryPool, cuda.memory = Pool, SimpleNamespace(OutOfMemoryError=OutOfMemoryError)
    cuda.compiler = SimpleNamespace(CompileException=CompileException)
    cuda.runtime = SimpleNamespace(
        getDevice=get_device,
        getDeviceCount=lambda: DEVICES,
        getDeviceProperties=lambda index: {"name": b"NVIDIA H200"},
        deviceSynchronize=lambda: log.append(("synchronize", get_device(), -1)),
    )
    modules["cupy.cuda.function"].CPointer = CPointer
    cuda.cufft = modules["cupy.cuda.cufft"]
    cuda.cufft.PlanNd = PlanNd
    for name, value in CUFFT.items():
        setattr(cuda.cufft, f"CUFFT_{name}", value)
    nvrtc = SimpleNamespace(getSupportedArchs=lambda: tuple(architectures), getVersion=lambda: (13, 0))
    modules["cupy_backends.cuda.libs"].nvrtc = cuda.nvrtc = nvrtc
    cuda.cublas = SimpleNamespace()
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    for record in (log, waits, refused, compiled):
        record.clear()
    default_pool.free.clear()
