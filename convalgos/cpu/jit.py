"""How kernels are compiled, kept on disk, and run on all cores.

A kernel is a plain Python function over integers (addresses and sizes), compiled by Numba to a C function
and called by address: `specialise` turns a factory over small integers (element bytes, lanes, tile sizes)
into one compiled kernel per combination. Kernels call kernels through `simd.call`, so that a driver is
compiled once for all tiles and dtypes. `launch` is the only parallel region of the library.

Compiled kernels are kept on disk by `kernel_cache`.

Without Numba everything here imports, and only compiling fails.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
import warnings
from collections.abc import Callable
from typing import Any

from convalgos.cpu import kernel_cache
from convalgos.cpu.simd import call
from convalgos.machine import cpu_count

try:
    import numba
    from numba.core import ccallback
except Exception:  # it is missing, or does not go with what else is installed: `missing` says how
    numba = None  # type: ignore[assignment]

OPTIONS: dict[str, Any] = {"boundscheck": False, "error_model": "numpy"}
_lock = threading.RLock()
_kept: list[Any] = []  # what was compiled must outlive its address
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
    key = kernel_cache.key(function, f"void({count} addresses or sizes)")
    if (address := kernel_cache.load(key)) is not None:
        return address
    signature = numba.types.void(*[numba.types.intp] * count)
    kernel: Any = ccallback.CFunc(function, (signature.args, signature.return_type), {}, dict(OPTIONS))
    kernel.compile()
    _kept.append(kernel)
    kernel_cache.save(key, *_object_code(kernel))
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


def _object_code(kernel: Any) -> tuple[str, list[str], bytes]:
    """(name of the function, names that its code needs, code) of a compiled kernel."""
    library = kernel._library
    _, _, (code, _) = library.serialize_using_object_code()
    module = library._final_module
    declared = [v.name for v in (*module.functions, *module.global_variables) if v.is_declaration]
    return kernel.native_name, [name for name in declared if not name.startswith("llvm.")], code


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
