"""How kernels are compiled, kept on disk, and run on all cores.

A kernel is a plain Python function over integers (addresses and sizes), compiled to a C function (`lowering`
has the language that it is written in, `code_generation` what becomes of it) and called by address:
`specialise` turns a factory over small integers (element bytes, lanes, tile sizes) into one compiled kernel
per combination. Kernels call kernels through `simd.call`, so that a driver is
compiled once for all tiles and dtypes. `launch` is the only parallel region of the library; its threads are
those of `thread_pool`.

Compiled kernels are kept on disk by `kernel_cache`.

Without llvmlite everything here imports, and only compiling fails.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import inspect
import os
import threading
import time
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from convalgos.core.bound_run import AddressWord, BoundRun, Launch
from convalgos.core.errors import Unsupported, missing
from convalgos.core.forks import guarded, let_forks_in
from convalgos.core.setting import thread_count
from convalgos.cpu.compile import code_generation, kernel_cache
from convalgos.cpu.compile.lowering import helper, lower
from convalgos.cpu.runtime import compile_notice, thread_pool
from convalgos.cpu.vectors import atomics
from convalgos.cpu.vectors.simd import call, carray, external, pointer

__all__ = [
    "Kernel", "borrow", "bound_run", "compile_kernel", "data_address", "from_python", "helper", "launch",
    "launch_address", "launch_all", "launch_table", "of_borrowed", "of_threads", "pool_of_launch",
    "specialise", "table_address", "thread_count", "thread_layer",
]  # fmt: skip

Kernel = Callable[..., None]  # a function over integers, as it is written in Python
_uncompilable: str | None = None  # why this process cannot compile


def _broken() -> None:
    global _uncompilable
    _uncompilable = (
        "this process was forked while another thread compiled, which left the compiler amid its work: "
        "compile before forking, or start processes with spawn"
    )


# functions of Python's own
_integer = external("PyNumber_AsSsize_t", 2)
_release = external("PyEval_SaveThread", 0)
_resume = external("PyEval_RestoreThread", 1, returns=False)
_count = external("Py_IncRef", 1, returns=False)
_number = external("PyLong_FromSsize_t", 1)

_compiler = guarded(code_generation.Lock(), _broken)  # which forks wait for
_lock = guarded(threading.RLock(), _broken)


def specialise(factory: Callable[..., Callable[..., Any]]) -> Callable[..., int]:
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

    compiled: dict[tuple[int, ...], int] = {}

    @functools.wraps(factory)
    def address(*parameters: int) -> int:
        if parameters not in compiled:
            with _lock:  # one thread compiles, the others wait for its result
                if parameters not in compiled:
                    compiled[parameters] = compile_kernel(factory(*map(int, parameters)))
            let_forks_in()
            compile_notice.say_what_takes_long()  # a fork may have the logs' lock, and wait for this one's
        return compiled[parameters]

    return address


def compile_kernel(function: Callable[..., Any], result: str = "void") -> int:
    """The address of a compiled function over integers, which returns an "integer" or nothing.

    Raises:
        NotAKernel: it is not written in the language of kernels.
    """
    if _uncompilable:
        raise Unsupported(_uncompilable)
    count = len(inspect.signature(function).parameters)
    key = kernel_cache.kernel_key(function, f"{result}({count} addresses or sizes)")
    if (address := kernel_cache.load_kernel(key)) is not None:
        return address
    began = time.perf_counter()
    name, needs, code = _object_code(function, result)
    compile_notice.spend(time.perf_counter() - began)
    kernel_cache.save_kernel(key, name, needs, code)
    return code_generation.link(name, needs, code)


def launch(kernel: int, arguments_address: int, tasks: int, parallel: bool = True) -> None:
    """kernel(arguments_address, task) for every task in range(tasks), in parallel or by this thread alone."""
    if tasks > 0:
        run, _ = _launcher or _start()
        pool, threads = pool_of_launch(parallel and tasks > 1)
        run(pool, kernel, arguments_address, tasks, threads)


LAUNCH = np.dtype([(name, np.int64) for name in ("kernel", "record", "tasks", "alone")])


def launch_table(launches: Sequence[Launch]) -> np.ndarray:
    """What `launch_all` reads; the records must outlive it."""
    words = np.fromiter(chain.from_iterable(launches), np.int64, len(launches) * len(Launch._fields))
    return np.ndarray(len(launches), LAUNCH, words)


def launch_all(table: int, count: int) -> None:
    """Run so many launches in order, one after the other, while other threads of Python go on.

    Args:
        table: address of a `launch_table`.
    """
    pool, threads = pool_of_launch(True)
    _invoker()(table_address(), pool, table, count, threads, launch_address())


def bound_run(
    launches: tuple[Launch, ...], *kept: Any, x_places: tuple[AddressWord, ...] = (),
    y_places: tuple[AddressWord, ...] = (), w_places: tuple[AddressWord, ...] = (), settings: Any = None,
) -> BoundRun:  # fmt: skip
    """A run that is these launches; `kept` holds their records and all that these point to."""
    return BoundRun(_Launched(launches), launches, kept, x_places, y_places, w_places, settings)


class _Launched:
    """Runs launches, by a table that the first call makes: in networks they are parts of another one."""

    __slots__ = ("_launches", "_table")

    def __init__(self, launches: tuple[Launch, ...]):
        self._launches = launches
        self._table: np.ndarray | None = None

    def __call__(self) -> None:
        if self._table is None:
            self._table = launch_table(self._launches)
        launch_all(self._table.ctypes.data, len(self._launches))


def pool_of_launch(parallel: bool) -> tuple[int, int]:
    """(address of the pool, threads) that a launch of this thread has now."""
    _, pool = _launcher or _start()
    if _borrowed:  # else no thread has another one
        pool = getattr(_this, "pool", pool)
    threads = thread_count() if parallel else 1
    if threads > pool.threads:
        with _lock:
            pool.grow(threads)
    return pool.address, threads


def borrow(loop: int) -> None:
    """Let the launches of this thread run on the threads of an OpenMP, which its other work runs on anyway.

    Two sets of threads would share the cores: those of OpenMP spin for milliseconds after each loop, and
    convolutions among the other steps of a network took up to twice the time. In a child of a fork nothing
    changes, as no OpenMP's threads survive that.

    Args:
        loop: address of its GOMP_parallel.
    """
    if not _forked and getattr(_this, "loop", 0) != loop:
        with _lock:
            if loop not in _borrowed:
                _start()
                _, work, stop = of_threads()
                _borrowed[loop] = thread_pool.Pool(work, stop)
                _borrowed[loop].borrow(loop, of_borrowed())
        _this.loop, _this.pool = loop, _borrowed[loop]


def thread_layer() -> str:
    """What runs the tasks of `launch`: "pool", our own threads, or "caller"; "none" without llvmlite."""
    if missing("llvmlite"):
        return "none"
    return "pool" if atomics.CAN_SLEEP else "caller"


# --- inside ----------------------------------------------------------------------------------

_launcher: tuple[Callable[..., None], thread_pool.Pool] | None = None
_this = threading.local()  # of a thread that borrows others: `loop`, and the `pool` of it
_borrowed: dict[int, thread_pool.Pool] = {}  # by the loop
_forked = False


def _object_code(function: Callable[..., Any], result: str) -> tuple[str, list[str], bytes]:
    """(name of the function, names that its code needs, code) of a kernel."""
    name, text = lower(function, result == "integer")
    return name, *code_generation.object_code(text)


def _start() -> tuple[Callable[..., None], thread_pool.Pool]:
    """Make the pool of this process; its workers start when they are needed."""
    global _launcher
    with _lock:
        if _launcher is None:
            run, work, stop = of_threads()
            _launcher = run, thread_pool.Pool(work, stop)
        return _launcher


@functools.cache
def of_threads() -> tuple[Callable[..., None], int, int]:
    """What threads run, compiled: `launch` for Python to call, and the addresses of `work` and `stop`."""
    run = functools.partial(_invoker(), launch_address())
    return run, compile_kernel(thread_pool.work), compile_kernel(thread_pool.stop)


@functools.cache
def _invoker() -> Callable[..., None]:
    return from_python(b"invoke", _invoke, FASTCALL)


@functools.cache
def table_address() -> int:
    """The kernel that runs a table of launches."""
    return compile_kernel(_launch_rows)


def _launch_rows(pool: int, table: int, count: int, threads: int, launch: int) -> None:
    rows = carray(pointer(table), count, LAUNCH)
    for i in range(count):
        row = rows[i]
        call(launch, (pool, row.kernel, row.record, row.tasks, 1 if row.alone else threads))


@functools.cache
def launch_address() -> int:
    """The kernel that deals tasks to threads."""
    return compile_kernel(thread_pool.launch_tasks)


@functools.cache
def of_borrowed() -> int:
    """What the threads of an OpenMP run, compiled."""
    return compile_kernel(thread_pool.share_tasks)


def _invoke(this: int, arguments: int, count: int) -> int:
    """What Python calls as f(kernel, a, b, c, d, e), all integers; other threads of Python go on meanwhile.

    `arguments` is the address of the addresses of the objects. (ctypes takes 0.5 us longer.)
    """
    given = carray(pointer(arguments), 6, np.intp)
    kernel, a, b = _integer(given[0], 0), _integer(given[1], 0), _integer(given[2], 0)
    c, d, e = _integer(given[3], 0), _integer(given[4], 0), _integer(given[5], 0)
    state = _release()
    call(kernel, (a, b, c, d, e))
    _resume(state)
    _count(this)  # it is None, and is returned
    return this


class _Method(ctypes.Structure):
    """Python's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("help", ctypes.c_char_p),
    )


FASTCALL, ONE = 0x80, 0x08  # Python's METH_FASTCALL and METH_O


def from_python(name: bytes, function: Callable[..., int], flags: int) -> Callable[..., Any]:
    """A compiled function of objects' addresses as a function of Python."""
    method = _Method(name, compile_kernel(function, "integer"), flags, None)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(method))  # for ever: Python frees functions last
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    function_of_python: Callable[..., Any] = make(ctypes.addressof(method), None, None)
    return function_of_python


HEAD = object.__basicsize__  # bytes of every object of Python; an array's begin with the address of its data


def _data_of(this: int, array: int) -> int:
    """What Python calls as f(array)."""
    return int(_number(carray(pointer(array + HEAD), 1, np.intp)[0]))


@functools.cache
def data_address() -> Callable[[np.ndarray], int]:
    """A function that tells the address of an array's data, in a tenth of the time of `array.ctypes.data`."""
    found = from_python(b"data_address", _data_of, ONE)
    example = np.zeros(9)
    if all(found(a) == a.ctypes.data for a in (example, example[3:], example[::-2])):
        return found
    return lambda array: array.ctypes.data  # arrays of this NumPy begin otherwise


@atexit.register
def _end_threads() -> None:
    if _launcher is not None:
        _launcher[1].close()


def _after_fork() -> None:
    """Workers do not survive a fork; the child starts its own."""
    global _launcher, _this, _forked
    _launcher, _this, _forked = None, threading.local(), True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
