"""How kernels are compiled, kept on disk, and run on all cores.

A kernel is a plain Python function over integers (addresses and sizes), compiled by Numba to a C function
and called by address: `specialise` turns a factory over small integers (element bytes, lanes, tile sizes)
into one compiled kernel per combination. Kernels call kernels through `simd.call`, so that a driver is
compiled once for all tiles and dtypes. `launch` is the only parallel region of the library.

Compiled kernels are kept in the user's cache folder, keyed by the text of the file that defines them and
of the toolkit: Numba itself would not see a change in an imported file.

Without Numba everything here imports, and only compiling fails.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from convalgos.cpu.simd import call
from convalgos.machine import cache_folder, cpu_count, set_aside

try:
    import numba
    from numba.core import caching, ccallback
except ImportError:
    numba = None  # type: ignore[assignment]

OPTIONS: dict[str, Any] = {"boundscheck": False, "error_model": "numpy"}
TOOLKIT = (
    "jit.py",
    "simd.py",
    "squares.py",
    "kernel_plan.py",
    "tiles.py",
    "blocks.py",
    "boxes.py",
    "phases.py",
    "codelets.py",
    "../transforms.py",
)  # a change in these recompiles all kernels

_lock = threading.RLock()
_kept: list[Any] = []  # compiled kernels must outlive their addresses
_forked = False  # OpenMP does not survive a fork: the child runs serially


def specialise(factory: Callable[..., Callable]) -> Callable[..., int]:
    """Compile a kernel for each combination of a factory's integer arguments, once.

    The inner function takes addresses and sizes only, and must close over nothing but the integers, so
    that its compiled form can be kept on disk. Calling the result returns the kernel's address.

    Example:
        >>> @specialise
        ... def add(step):
        ...     def add(address, count):
        ...         y = carray(pointer(address), count, np.int64)
        ...         for i in range(count):
        ...             y[i] += step
        ...     return add
        >>> address = add(3)  # doctest: +SKIP
    """

    @functools.cache
    def compiled(*parameters: int) -> int:
        return compile_kernel(factory(*parameters))

    @functools.wraps(factory)
    def address(*parameters: int) -> int:
        with _lock:  # one thread compiles, the others wait for its result
            return compiled(*map(int, parameters))

    return address


def helper(function: Callable) -> Callable:
    """A function that kernels call by name; compiled into each of them. Define it at module level."""
    return function if numba is None else numba.njit(**OPTIONS)(function)


def compile_kernel(function: Callable[..., None]) -> int:
    """The address of a compiled function over integers that returns nothing."""
    count = len(inspect.signature(function).parameters)
    signature = numba.types.void(*[numba.types.intp] * count)
    kernel: Any = ccallback.CFunc(function, (signature.args, signature.return_type), {}, dict(OPTIONS))
    cache = _disk_cache(function)
    if cache is not None:
        kernel._cache = cache
    kernel.compile()
    _kept.append(kernel)
    return kernel.address


def launch(kernel: int, arguments_address: int, tasks: int) -> None:
    """kernel(arguments_address, task) for every task in range(tasks), in parallel."""
    if tasks > 0:
        _launcher()(kernel, arguments_address, tasks)


def thread_count() -> int:
    """Threads that `launch` runs on: Numba's count, which NUMBA_NUM_THREADS and set_num_threads change."""
    return cpu_count() if numba is None else numba.get_num_threads()


def thread_layer() -> str:
    """What runs the threads of `launch`: "omp", "tbb" or "workqueue"; "none" without Numba."""
    if numba is None:
        return "none"
    _parallel_launch()
    return numba.threading_layer()


# --- inside ----------------------------------------------------------------------------------


def _launcher() -> Callable[[int, int, int], None]:
    return _serial_launch() if _forked else _parallel_launch()


@functools.cache
def _serial_launch() -> Callable[[int, int, int], None]:
    def run_serial(kernel, args, tasks):
        for task in range(tasks):
            call(kernel, (args, task))

    return _jitted(run_serial, False)


@functools.cache
def _parallel_launch() -> Callable[[int, int, int], None]:
    def run_parallel(kernel, args, tasks):
        if tasks == 1:
            call(kernel, (args, 0))
        else:
            for task in numba.prange(tasks):
                call(kernel, (args, task))

    launcher = _jitted(run_parallel, {"fusion": False})
    if numba.threading_layer() == "workqueue":
        warnings.warn(
            "Numba found no OpenMP (libgomp): parallel calls cost 50x more and run one at a time",
            RuntimeWarning,
            stacklevel=2,
        )
        return _one_at_a_time(launcher)
    return launcher


def _jitted(function: Callable[[int, int, int], None], parallel: Any) -> Callable[[int, int, int], None]:
    with _lock:
        dispatcher: Any = numba.njit(parallel=parallel, nogil=True, **OPTIONS)(function)
        cache = _disk_cache(function)
        if cache is not None:
            dispatcher._cache = cache
        dispatcher(compile_kernel(_nothing), 0, 2)  # compiles, and starts the threads
    return dispatcher


def _nothing(args, task):
    pass


def _one_at_a_time(launcher: Callable[[int, int, int], None]) -> Callable[[int, int, int], None]:
    turn = threading.Lock()

    def locked(kernel: int, args: int, tasks: int) -> None:
        with turn:
            launcher(kernel, args, tasks)

    return locked


def _after_fork() -> None:
    global _forked
    _forked = _parallel_launch.cache_info().currsize > 0


os.register_at_fork(after_in_child=_after_fork)


if numba is not None:

    class _Folder(caching._CacheLocator):
        """Numba's question where to keep a function: a folder per file and text of file and toolkit."""

        def __init__(self, py_func: Callable, py_file: str):
            self._line = py_func.__code__.co_firstlineno
            self._path = cache_folder() / "kernels" / f"{Path(py_file).stem}-{_digest(py_file)}"

        def get_cache_path(self) -> str:
            return str(self._path)

        def get_source_stamp(self) -> str:
            return self._path.name

        def get_disambiguator(self) -> str:
            return str(self._line)

        @classmethod
        def from_function(cls, py_func: Callable, py_file: str) -> _Folder | None:
            folder = cls(py_func, py_file)
            try:
                folder.ensure_cache_path()
            except OSError:
                return None
            return folder

    class _Impl(caching.CompileResultCacheImpl):
        _locator_classes = [_Folder]  # noqa: RUF012 (Numba's name)

    class _Cache(caching.FunctionCache):
        """Numba's cache of a function; a damaged file is set aside with a warning, and rebuilt."""

        _impl_class = _Impl

        def load_overload(self, sig: Any, target_context: Any) -> Any:
            try:
                return super().load_overload(sig, target_context)
            except Exception as error:
                set_aside(Path(self._cache_file._index_path), f"{type(error).__name__}: {error}")
                return None

        def save_overload(self, sig: Any, data: Any) -> None:
            try:
                super().save_overload(sig, data)
            except OSError as error:
                warnings.warn(f"a compiled kernel could not be kept: {error}", RuntimeWarning, stacklevel=2)


@functools.cache
def _digest(py_file: str) -> str:
    digest = hashlib.sha256()
    here = Path(__file__).parent
    for path in (Path(py_file), *(here / name for name in TOOLKIT)):
        digest.update(path.read_bytes() if path.exists() else b"")
    return digest.hexdigest()[:16]


def _disk_cache(function: Callable) -> Any:
    """Where to keep a compiled function, or None with a warning where nothing can be kept."""
    try:
        return _Cache(function)
    except RuntimeError:
        _warn_unwritable(str(cache_folder()))
        return None


@functools.cache
def _warn_unwritable(folder: str) -> None:
    warnings.warn(
        f"{folder} cannot be written: kernels are compiled anew in every process (set CONVALGOS_CACHE_DIR)",
        RuntimeWarning,
        stacklevel=2,
    )
