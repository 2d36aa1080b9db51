"""NVRTC from its wheel, without a GPU, a driver or CuPy: what CI compiles every CUDA source with."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from convalgos.gpu.compile.module import OPTIONS, Build, compile_error, source_text

WHEELS = ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc")  # of CUDA 12, and of 13 and later

# Lines of the log of --ptxas-options=-v for a kernel, in this order.
KERNEL = re.compile(r"Compiling entry function '(\w+)'")
MEMORY = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")
BOUNDS = re.compile(r"\.entry (\w+)\((?:[^{]*?\.maxntid (\d+))?")  # of PTX: the declared threads of a block


@dataclass(frozen=True)
class Resources:
    """What a kernel takes of a multiprocessor. A stack or spills mean slow local memory."""

    kernel: str
    registers: int  # of a thread
    most_threads: int  # of a block, by its launch bounds; 0 where it declares none
    shared_bytes: int  # static, of a block
    stack_bytes: int
    spill_bytes: int


@dataclass(frozen=True)
class Compiled:
    """The resources of a build's kernels, and what the compilers warned of."""

    kernels: tuple[Resources, ...]
    warnings: tuple[str, ...]


def library_path() -> Path | None:
    """NVRTC's shared library in one of its wheels, or None where none is installed."""
    found = _wheel()
    return found and found[1]


def library_version() -> str | None:
    """The version of the wheel that `library_path` is in, such as "12.9.86"."""
    found = _wheel()
    return found and found[0].version


@cache
def _wheel() -> tuple[metadata.Distribution, Path] | None:
    for name in WHEELS:
        try:
            wheel = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        for file in wheel.files or []:
            if re.fullmatch(r"libnvrtc\.so\.\d+", file.name):
                return wheel, Path(str(file.locate()))
    return None


def compile_build(build: Build, arch: str) -> Compiled:
    """Compile a build down to machine code for an architecture such as "sm_90a".

    Raises:
        CompileError: it does not compile. RuntimeError: NVRTC is not installed.
    """
    nvrtc = _library()
    code, program = source_text(build).encode(), ctypes.c_void_p()
    options = [o.encode() for o in (*OPTIONS, f"--gpu-architecture={arch}", "--ptxas-options=-v")]
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), code, build.source.encode(), 0, None, None))
    try:
        status = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        log = _text(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
        if status:
            raise compile_error(build, log)
        ptx = _text(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return read_resources(log, ptx)


def read_resources(log: str, ptx: str) -> Compiled:
    """The figures and the warnings of a log of NVRTC with --ptxas-options=-v, with the bounds in its PTX."""
    bounds = {name: int(threads or 0) for name, threads in BOUNDS.findall(ptx)}
    parts = KERNEL.split(log)[1:]  # name, lines, name, lines, ...
    kernels = []
    for name, lines in zip(parts[::2], parts[1::2], strict=True):
        memory, used = MEMORY.search(lines), USED.search(lines)
        if not memory or not used:
            raise RuntimeError(f"the log of NVRTC has no figures for {name}:\n{log}")
        stack, stores, loads = map(int, memory.groups())
        figures = (int(used[1]), bounds[name], int(used[2] or 0), stack, stores + loads)
        kernels.append(Resources(name, *figures))
    warnings = [
        line.strip() for line in log.splitlines() if re.search("warning|advisory", line, re.IGNORECASE)
    ]
    return Compiled(tuple(kernels), tuple(warnings))


@cache
def _library() -> ctypes.CDLL:
    path = library_path()
    if path is None:
        raise RuntimeError(f"needs NVRTC, which is not installed (pip install {WHEELS[0]})")
    return ctypes.CDLL(str(path))


def _text(program: ctypes.c_void_p, size_of: Callable[..., int], read: Callable[..., int]) -> str:
    """One of the texts that NVRTC made of a program."""
    size = ctypes.c_size_t()
    _check(size_of(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(read(program, buffer))
    return buffer.value.decode()


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"NVRTC failed with status {status}")
