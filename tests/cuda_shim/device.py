"""The stand-in for a GPU: NumPy arrays, and kernels that g++ compiles and the CPU executes."""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from convalgos.core.arrays import as_numpy
from convalgos.core.cache_files import cache_folder
from convalgos.gpu.compile.module import Build, CompileError, source_text
from convalgos.gpu.device import Device, GpuMachine
from convalgos.gpu.device.tma import encode

HERE = Path(__file__).parent
STAND_INS = (
    "ptx.cuh",
    "eight_bits.cuh",
    "one_bit.cuh",
    "two_of_four.cuh",
    "cluster.cuh",
    "hopper.cuh",
)  # for headers of kernels/ that are made of PTX
# Contraction is off so that sums round as they are written. The flags are a part of the key of the cache.
COMMAND = ("g++", "-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-U_FORTIFY_SOURCE", "-ffp-contract=off")
ONE_AT_A_TIME = threading.Lock()  # blocks share the memory of the library that they are in
INCLUDED = re.compile(r"^#include <.*>\n", re.MULTILINE)  # headers of C++
CLUSTER = r"\[\[shim::cluster\((\d+), 1, 1\)\]\]"
KERNEL = re.compile(rf'extern "C"\s+void\s+(?:{CLUSTER}\s+)?(\w+)\s*\(')  # after the preprocessor

A100 = GpuMachine(
    "A100", (8, 0), 108, 1.41e9, 1.37e12, 40 << 20, 166912, 167936, 65536, 2048, source="data sheet"
)
H200 = GpuMachine(
    "H200", (9, 0), 132, 1.98e9, 4.29e12, 50 << 20, 232448, 233472, 65536, 2048, source="data sheet"
)


def missing() -> str | None:
    return None if shutil.which("g++") else "the CUDA shim needs g++, which is not installed"


class ShimDevice(Device):
    """Runs kernels on the CPU. With `figures` of any GPU, whose limits each launch is held to."""

    xp = np
    name = "cuda:0"

    def __init__(self, figures: GpuMachine = H200):
        self.figures = figures
        self._recording: list | None = None  # launches, while a graph is captured

    def module(self, build: Build):
        return compiled(build)

    def function(self, build: Build, name: str, shared_bytes: int):
        library = self.module(build)
        launcher = launcher_of(library, name)
        limit = self.figures.block_shared_bytes
        assert shared_bytes <= limit, f"{build} asks for {shared_bytes} bytes of shared memory, over {limit}"

        def launch(grid, block, arguments, shared_mem=0):
            assert shared_mem <= shared_bytes
            run = launched(launcher, grid, block, shared_mem, [by_value(a) for a in arguments])
            if self._recording is None:
                run()
            else:
                self._recording.append((run, arguments))  # with the memory that it works on

        return launch

    def capture(self, work):
        work()
        self._recording = []
        try:
            work()
            return Recorded(self._recording)
        finally:
            self._recording = None

    def transforms(self, lengths, dtype):
        return NumpyTransforms(lengths)

    def elapsed(self, work):
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    def address(self, array):
        return array.ctypes.data

    def tensor_map(self, view, address):
        return encode(view, address, driver())

    def as_array(self, name, array):
        return as_numpy(name, array)


class NumpyTransforms:
    """What cuFFT does, by NumPy; spectra are lost on the way back, as there."""

    def __init__(self, lengths):
        self._lengths, self._axes = lengths, tuple(range(-len(lengths), 0))

    def forward(self, x, spectra):
        assert x.flags.c_contiguous and spectra.flags.c_contiguous
        found = np.fft.rfftn(x.reshape(-1, *self._lengths), axes=self._axes)
        spectra.reshape(found.shape)[...] = found

    def backward(self, spectra, x):
        assert x.flags.c_contiguous and spectra.flags.c_contiguous
        given = spectra.reshape(-1, *self._lengths[:-1], self._lengths[-1] // 2 + 1)
        found = np.fft.irfftn(given, self._lengths, self._axes, norm="forward")
        x.reshape(found.shape)[...] = found
        spectra.fill(np.nan)


class Recorded:
    """A graph of the stand-in."""

    def __init__(self, launches: list):
        self._launches = launches

    def launch(self):
        for run, _ in self._launches:
            run()


class RecordingDevice(ShimDevice):
    """Compiles nothing: for plans of which only the launches are looked at."""

    def function(self, build, name, shared_bytes):
        def launch(grid, block, arguments, shared_mem=0):
            raise AssertionError("this device only records")

        return launch


def launcher_of(library: ctypes.CDLL, name: str):
    """What runs a kernel; it returns None, or why a block never ended."""
    launcher = getattr(library, f"launch_{name}")
    launcher.restype = ctypes.c_char_p
    return launcher


def launched(launcher, grid, block, shared_bytes, values):
    """A launch, to be run as often as one likes; values: arrays that hold a parameter each."""
    whole = tuple((*grid, 1, 1)[:3])
    assert all(1 <= n <= m for n, m in zip(whole, (2**31 - 1, 65535, 65535), strict=True)), whole
    assert 1 <= block[0] <= 1024
    pointers = (ctypes.c_void_p * len(values))(*(v.ctypes.data for v in values))

    def run():
        with ONE_AT_A_TIME:
            failed = launcher((ctypes.c_uint * 3)(*whole), block[0], shared_bytes, pointers)
        assert failed is None, f"{launcher.__name__}: {failed.decode()}"
        return values  # alive until the kernel is done

    return run


def by_value(argument) -> np.ndarray:
    """(1,) What a kernel is given: records and scalars themselves, of arrays the address."""
    if argument is None:
        return np.zeros(1, np.uint64)
    if isinstance(argument, np.ndarray) and argument.dtype.names is None:
        return np.array([argument.ctypes.data], np.uint64)
    if isinstance(argument, np.ndarray):
        assert argument.size == 1, "a record is passed as an array of size one"
        return argument
    assert isinstance(argument, np.generic), f"{argument!r} must be an array or a NumPy scalar"
    return np.array([argument])


@cache
def compiled(build: Build) -> ctypes.CDLL:
    code = stood_in(build)

    def launchers() -> str:
        ours = INCLUDED.sub("", code)  # C++'s headers, which take long, hold no kernels
        found = KERNEL.findall(run_compiler(build, ours, "-E", "-P"))
        return "".join(
            f'extern "C" const char* launch_{name}(const unsigned* grid, unsigned threads, unsigned shared, '
            f"void** arguments) {{ "
            f"return shim::launch({name}, {cluster or 1}, grid, threads, shared, arguments); }}\n"
            for cluster, name in found
        )

    return ctypes.CDLL(library_of(build, code, launchers))


@cache
def driver() -> str:
    """The library that stands in for the driver: it makes the tensor maps that kernels here read."""
    build = Build("hopper.cuh")
    return library_of(build, stood_in(build), (HERE / "driver.cpp").read_text)


def stood_in(build: Build) -> str:
    """The text of a build as g++ takes it."""
    body = source_text(build, tuple((name, (HERE / name).read_text()) for name in STAND_INS))
    return f"{(HERE / 'shim.hpp').read_text()}\n{body}\n"


def key_of(*texts: str) -> str:
    """What names a compiled source in the cache: comments, lines and blanks change nothing in it."""
    bare = re.sub(r"//[^\n]*|^#line[^\n]*", "", "\n".join(texts), flags=re.MULTILINE)
    return hashlib.sha256(" ".join(bare.split()).encode()).hexdigest()[:24]


def library_of(build: Build, code: str, rest: Callable[[], str]) -> str:
    """Where the library of this code lies; compiled, with what `rest` adds, unless it was before."""
    folder, key = cache_folder() / "cuda_shim", key_of(*COMMAND, code)
    library = folder / f"{key}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f"{key}-{id(build)}.part"
        run_compiler(build, code + rest(), "-include", str(standard_headers()), "-o", str(part))
        part.replace(library)
    return str(library)


def standard_headers() -> Path:
    """Those of C++ that shim.hpp includes, precompiled: to read them takes half the time of a kernel."""
    text = "".join(INCLUDED.findall((HERE / "shim.hpp").read_text()))
    header = cache_folder() / "cuda_shim" / f"{key_of(*COMMAND, text)}.hpp"
    precompiled = header.with_suffix(".hpp.gch")
    if not precompiled.exists():
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_text(text)
        part = header.with_suffix(f".{threading.get_ident()}.part")
        subprocess.run([*COMMAND, "-x", "c++-header", header, "-o", part], check=True)
        part.replace(precompiled)
    return header


def run_compiler(build: Build, code: str, *options: str) -> str:
    done = subprocess.run([*COMMAND, "-x", "c++", "-", *options], input=code, capture_output=True, text=True)
    if done.returncode:
        raise CompileError(f"{build} does not compile with g++:\n{done.stderr}")
    return done.stdout
