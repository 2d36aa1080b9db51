"""Real FFTs through FFTW's interface, called by address: from the FFTW that pyFFTW brings, or from MKL.

Kernels run a transform as `call(execute, (plan, source, target))`. Executing a plan on arrays of one's own
is the part of FFTW that is thread-safe, so one plan serves all threads, each with its own arrays, and no
Python object stands between. pyFFTW's own objects hold their arrays, must not be shared, and take the
interpreter's lock around every call. MKL exports the same names, so both engines are one code.

FFTW measures its plans of `MEASURED_SIZES` elements. That takes about a tenth of a second and makes it up to
three times as fast, as its estimate ignores the caches; where sizes may come once, it waits
(`later_search`). The search is pruned: in full it takes seven times as long and finds what is 5 % faster (36
shapes, Zen 5). What it learned, its wisdom, is kept in the user's cache folder. Its wheel holds FFTW 3.3.5
with SSE2 and AVX code only. Source: Frigo and Johnson 2005, "The design and implementation of FFTW3".
"""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import importlib.util
import math
import os
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from convalgos.core.allocator import aligned_zeros
from convalgos.core.cache_files import (
    NOWHERE,
    cache_folder,
    private_folder,
    read_trusted,
    sealed,
    set_aside,
    unsealed,
    warn_once,
    write_private,
)
from convalgos.core.endings import Endings
from convalgos.core.errors import missing
from convalgos.core.forks import guarded
from convalgos.core.later_search import searches_later
from convalgos.core.library_record import keep_called, was_called
from convalgos.core.machine import fingerprint
from convalgos.cpu.runtime import mkl
from convalgos.cpu.spectral.lengths import longer_lengths, spectrum_size

NO_FUNCTIONS = "pyfftw is there, but the FFTW functions inside could not be found"
ENGINES = {"fftw": "pyfftw", "mkl": "mkl"}  # and the module that brings the library
WISDOM_MAGIC = b"convalgos FFTW wisdom 1\n"  # of the form of its file; raise it when that changes
PREFIX = {"float32": "fftwf", "float64": "fftw"}
# Elements of the plans that are measured: smaller ones gain nothing, larger ones take seconds (Zen 5).
MEASURED_SIZES = range(1024, 1 << 17)
PLANNING_SECONDS = 0.5  # of one direction, after which FFTW estimates
MEASURE, ESTIMATE, DIRECT, PRUNE, WISDOM_ONLY = 0, 1 << 6, 1 << 12, 1 << 20, 1 << 21  # FFTW's flags
# Times as long as FFTW takes to estimate, of runs by its estimates, after which the search, of 15 to 50 times
# that (30 in the middle of 40 shapes, Zen 5), is worth it: in all, one never takes twice as long as needed.
WORTH = 60
# Elements of rows for which pruning leaves a single plan, up to 1.3 times as slow as those that are found
# where no passes over memory only move elements (Zen 5)
UNROLLED = 128

_lock = guarded(threading.RLock())  # FFTW's planner and its wisdom belong to one thread at a time
_ended = Endings(_lock)  # of plans that nobody has


class Transform:
    """Plans of a real FFT in place and back, and the addresses of the functions that execute them.

    `forward` turns reals of some lengths, in rows of `strides(lengths)`, into `spectrum_size` complex numbers
    in the same place; `inverse` is the way back, times the product of the lengths. Arrays start on a cache
    line.

    Made to search `later`, it has FFTW's estimates until runs have taken as long as the search is worth; the
    plans that it had before then stay valid.
    """

    def __init__(self, engine: str, dtype: str, lengths: tuple[int, ...], later: bool = False):
        self._engine, self._dtype, self._lengths = engine, dtype, lengths
        self._prefix = PREFIX[dtype]
        library = _library(engine)
        if library is None:  # though it was known to be there
            raise RuntimeError(f"{engine} can no longer be loaded; was its package changed?")
        self._library = library
        self._measures = engine == "fftw" and 2 * spectrum_size(lengths) in MEASURED_SIZES
        began = time.perf_counter()
        self._plan(later)
        self._left = WORTH * (time.perf_counter() - began)  # seconds of runs until the search is worth it
        self.execute_forward = _address(library, f"{self._prefix}_execute_dft_r2c")
        self.execute_inverse = _address(library, f"{self._prefix}_execute_dft_c2r")

    def ran(self, seconds: float) -> None:
        """Count a run of so many seconds with estimated plans, and search if such runs have paid for it."""
        self._left -= seconds
        if self._left <= 0:
            self._left = math.inf  # other threads do not wait for this one
            self.settle()

    def settle(self) -> None:
        """Search for the plans now, where that is left to do."""
        if not self.is_settled:
            with _lock:
                if not self.is_settled:
                    self._plan(False)

    def _plan(self, later: bool) -> None:
        plane = aligned_zeros(2 * spectrum_size(self._lengths), self._dtype)
        with _lock:
            _ended.settle()
            if self._measures:
                learn_wisdom(self._prefix)
            one_thread = _function(self._library, f"{self._prefix}_plan_with_nthreads", ctypes.c_int)
            one_thread(1)  # the threads are ours
            set_limit = _function(self._library, f"{self._prefix}_set_timelimit", ctypes.c_double)
            set_limit(PLANNING_SECONDS)
            try:
                (self.forward, known), (self.inverse, also) = (
                    self._planned(name, plane.ctypes.data, later) for name in ("r2c", "c2r")
                )
            finally:
                set_limit(-1.0)
            self.is_settled = (known and also) or not (self._measures and later)
            if self._measures and not later and not (known and also):
                keep_wisdom(self._prefix)

    def _planned(self, name: str, plane: int, later: bool) -> tuple[int, bool]:
        """The address of a plan, and whether wisdom told it."""
        shape = longer_lengths(self._lengths)
        plan = _function(
            self._library, f"{self._prefix}_plan_dft_{name}", *PLAN_ARGUMENTS, result=ctypes.c_void_p
        )
        given = len(shape), (ctypes.c_int * len(shape))(*shape), plane, plane
        search = MEASURE | (DIRECT if shape[-1] == UNROLLED else PRUNE)
        known: int = plan(*given, search | WISDOM_ONLY) if self._measures else 0
        address = known or plan(*given, search if self._measures and not later else ESTIMATE)
        if not address:
            raise RuntimeError(f"{self._engine} has no {name} plan for lengths {shape}")
        destroy = _function(self._library, f"{self._prefix}_destroy_plan", ctypes.c_void_p)
        weakref.finalize(self, _ended.add, functools.partial(destroy, address)).atexit = False
        return address, bool(known)


@functools.lru_cache(256)
def _transform(engine: str, dtype: str, lengths: tuple[int, ...]) -> Transform:
    return Transform(engine, dtype, lengths, later=True)


def plan_transform(engine: str, dtype: str, lengths: tuple[int, ...]) -> Transform:
    """The plans of an engine for some lengths, made once. Who executes them keeps the result alive."""
    with _lock:
        found = _transform(engine, dtype, lengths)
    if not searches_later():
        found.settle()
    return found


def why_not_engine(engine: str) -> str | None:
    """Why an engine cannot be called here, or None."""
    if engine == "mkl":
        return mkl.why_no_mkl()
    if reason := missing("pyfftw"):
        return reason
    path = _pyfftw()
    if (path is not None and was_called(path)) or _library(engine):
        return None
    return NO_FUNCTIONS


# --- wisdom ----------------------------------------------------------------------------------


def wisdom_path(prefix: str) -> Path:
    """Where FFTW's wisdom of a precision is kept, for this processor and version of FFTW."""
    text = ctypes.c_char.in_dll(_library("fftw"), f"{prefix}_version")  # type: ignore[arg-type]
    version = ctypes.string_at(ctypes.addressof(text)).decode().split("-")[1]
    return cache_folder() / "fftw" / f"{fingerprint(1)}-{version}-{prefix}.wisdom"


@functools.cache
def learn_wisdom(prefix: str) -> None:
    """Read the kept wisdom, once; a damaged file is set aside with a warning, and FFTW never sees it."""
    _read(prefix)


def keep_wisdom(prefix: str) -> None:
    """Write FFTW's wisdom, together with what other processes have kept meanwhile."""
    _read(prefix)
    path = wisdom_path(prefix)
    if not _usable(path.parent):
        return
    try:
        write_private(path, WISDOM_MAGIC + sealed(_known(prefix, path.parent)))
    except OSError as error:
        warn_once(f"FFTW's wisdom could not be kept: {error}")


def _read(prefix: str) -> None:
    path = wisdom_path(prefix)
    if not _usable(path.parent):
        return
    try:
        file = read_trusted(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        warn_once(f"FFTW's wisdom could not be read: {error}")
        return
    try:
        if not file.startswith(WISDOM_MAGIC):
            raise ValueError("not wisdom of this version")
        text = unsealed(file.removeprefix(WISDOM_MAGIC))  # FFTW ends the process where it finds anything else
    except ValueError as error:
        set_aside(path, str(error))
        return
    if not _accept(prefix, text):
        set_aside(path, "FFTW does not accept it")


def _known(prefix: str, folder: Path) -> bytes:
    """FFTW's wisdom, through a file: a text would be memory of an allocator that we may not have, and letter
    by letter it took longer than planning.

    Raises:
        OSError: nothing can be written in the folder.
    """
    export = _function(
        _library("fftw"), f"{prefix}_export_wisdom_to_filename", ctypes.c_char_p, result=ctypes.c_int
    )
    with tempfile.TemporaryDirectory(dir=folder) as private:
        path = Path(private, "wisdom")
        if not export(os.fsencode(path)):
            raise OSError(f"FFTW could not write {path}")
        return path.read_bytes()


def _accept(prefix: str, wisdom: bytes) -> bool:
    """Whether FFTW takes some text as wisdom; of what is anything else it may end the process."""
    name = f"{prefix}_import_wisdom_from_string"
    return bool(_function(_library("fftw"), name, ctypes.c_char_p, result=ctypes.c_int)(wisdom))


@functools.cache
def _usable(folder: Path) -> bool:
    return NOWHERE not in folder.parents and private_folder(folder)


# --- inside ----------------------------------------------------------------------------------

PLAN_ARGUMENTS = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint)


@functools.cache
def _library(engine: str) -> ctypes.CDLL | None:
    """The library with FFTW's names, or None where it cannot be found."""
    if engine == "mkl":
        return mkl.library()
    path = _pyfftw()
    if path is None:
        return None
    try:
        # MKL's layers put FFTW's names before all others once it has run; FFTW must find its own.
        deep = getattr(os, "RTLD_DEEPBIND", 0)
        library = ctypes.CDLL(str(path), mode=os.RTLD_LOCAL | os.RTLD_NOW | deep)
        for prefix in PREFIX.values():
            with _lock:
                # as pyFFTW does: wisdom is accepted only where the same solvers are, those of threads too
                _function(library, f"{prefix}_init_threads", result=ctypes.c_int)()
                _function(library, f"{prefix}_make_planner_thread_safe")()  # others may plan through pyFFTW
            for name in (
                "plan_dft_r2c",
                "plan_dft_c2r",
                "execute_dft_r2c",
                "execute_dft_c2r",
                "destroy_plan",
            ):
                _address(library, f"{prefix}_{name}")
    except (OSError, AttributeError):
        return None
    keep_called(path)
    return library


@functools.cache
def _pyfftw() -> Path | None:
    """pyFFTW's compiled module: FFTW's names are looked up in it and in the libraries that it is linked with.

    It is not imported as a module: that takes longer than everything else in a first call.
    """
    package = importlib.util.find_spec("pyfftw")
    folders = package.submodule_search_locations if package else None
    module = importlib.machinery.PathFinder.find_spec("pyfftw.pyfftw", folders)
    return Path(module.origin) if module and module.origin else None


def _function(library: Any, name: str, *arguments: Any, result: Any = None) -> Callable[..., Any]:
    kind = ctypes.CFUNCTYPE(result, *arguments)
    return kind(_address(library, name))


def _address(library: Any, name: str) -> int:
    address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    assert address is not None
    return address
