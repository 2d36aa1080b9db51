"""Measure the figures of `convalgos.core.machine` that cannot be read: peak, bandwidth, launch cost.

The peak is what the micro-kernel reaches on data in the first cache, the bandwidth what a plain copy
reaches, or a sum of what is only read, all on all threads, best of several short bursts: other programs can
only make them slower.
Without llvmlite, NumPy's matrix product and copy stand in.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from convalgos.core.allocator import aligned_zeros
from convalgos.core.errors import missing
from convalgos.core.machine import Machine, cache_sizes, vector_bytes
from convalgos.core.processor import cpu_name
from convalgos.core.setting import thread_count
from convalgos.cpu.runtime import jit, word_peaks
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import microkernel, simd
from convalgos.cpu.vectors.atomics import X86, nanoseconds
from convalgos.cpu.vectors.simd import carray, copy_bytes, pointer

__all__ = ["measure", "thread_count"]

BURST = 0.02  # seconds
BURSTS = 6
BUSY = 0.85  # of the peak of one thread is expected of each of many
TASK = 20_000  # nanoseconds of the tasks of a region
DISTURBED_LAUNCH = 4e-6  # seconds; a longer one was measured while other programs held the cores
RATES = (  # better where larger
    "peak_float32", "peak_float64", "peak_int8", "peak_bfloat16", "bandwidth", "cache_bandwidth",
    "l2_bandwidth", "read_bandwidth", "clock",
)  # fmt: skip
PASSES, PAUSE = 6, 1.5  # of a careful measurement: seconds between two passes
AGREE = 0.08  # within which two passes are the same
LEAST_COPIED, MOST_COPIED = 64 << 20, 256 << 20  # bytes, unless one copy of the last cache takes more
LINKS, LINK_CYCLES = 20_000, 4  # of a chain of products and XORs of words: 3 and 1 on x86 since 2011
TAPS = 64  # of the peak's product: its filters fill a third of a 48 KiB cache

Moves = Callable[[int], Callable[[int], float]]  # bytes -> threads -> bytes/s


def _silent(what: str, share: float) -> None:
    """Progress that nobody watches."""


def measure(threads: int) -> Machine:
    """The figures of this machine, in about two seconds."""
    l1, l2, l3 = cache_sizes()
    of_int8 = of_bfloat16 = clock = read = None
    if missing("llvmlite"):
        peaks = [_numpy_peak(np.float32), _numpy_peak(np.float64)]
        copies, launch, source = _numpy_copies, 0.0, "measured with NumPy, as llvmlite is missing"
    else:
        peaks = [_peak(4, threads), _peak(8, threads)]
        of_int8, of_bfloat16 = _word_peak("int8", threads), _word_peak("bfloat16", threads)
        copies, launch, source = _copies, _launch(threads), "measured"
        clock = _clock() if X86 else None
        read = _beyond_caches(_reads, l3, threads)
    return Machine(
        name=cpu_name(),
        threads=threads,
        vector_bytes=vector_bytes(),
        l1_bytes=l1,
        l2_bytes=l2,
        l3_bytes=l3,
        peak_float32=peaks[0],
        peak_float64=peaks[1],
        bandwidth=_beyond_caches(copies, l3, threads),
        cache_bandwidth=_of_all(copies(min(l3 // 8, 4 << 20)), threads),
        launch=max(launch, 1e-6),
        source=source,
        peak_int8=of_int8,
        peak_bfloat16=of_bfloat16,
        clock=clock,
        l2_bandwidth=_of_all(copies(max(1, threads * l2 // 4)), threads),
        read_bandwidth=read,
    )


def repeated(
    threads: int,
    *,
    passes: int = PASSES,
    pause: float = PAUSE,
    progress: Callable[[str, float], None] = _silent,
) -> tuple[Machine, tuple[str, ...]]:
    """The best of several passes some time apart, and the figures on which no two passes agree.

    Other programs only make a figure worse; where two passes agree on the best, nothing disturbed these two.
    """
    found: list[Machine] = []
    for turn in range(passes):
        if turn:
            time.sleep(pause)
        progress(f"pass {turn + 1}", turn / passes)
        found.append(measure(threads))
        if turn and not _disagreeing(found):
            break
    return replace(best_of(found), passes=PASSES), _disagreeing(found)


def best_of(found: list[Machine]) -> Machine:
    """The best figures of several passes, or of what was the best of some; of `PASSES` where two agree."""
    last, passes = found[-1], sum(m.passes or 1 for m in found)
    best: dict[str, Any] = {
        name: max(getattr(m, name) or 0.0 for m in found) for name in _rates(last)
    }  # older files lack some
    best["launch"] = min(m.launch for m in found)
    return replace(last, **best, passes=min(passes, PASSES) if _disagreeing(found) else PASSES)


def _disagreeing(found: list[Machine]) -> tuple[str, ...]:
    """The figures whose best two values are not within AGREE of each other."""
    names = []
    for name in (*_rates(found[-1]), "launch"):
        values = sorted((getattr(m, name) or 0.0 for m in found), reverse=name != "launch")
        tolerated = AGREE if name != "launch" else 3 * AGREE
        if len(values) < 2 or abs(values[0] - values[1]) > tolerated * values[1]:
            names.append(name)
    return tuple(names)


def _rates(machine: Machine) -> tuple[str, ...]:
    """The names of those that were measured."""
    return tuple(name for name in RATES if getattr(machine, name) is not None)


# --- with our kernels ------------------------------------------------------------------------

CALIBRATION_FIELDS = fields("x w y repeats bytes tasks")


@jit.specialise
def product(SIZE: int, LANES: int, ROWS: int, VECTORS: int, TAPS: int) -> jit.Kernel:
    def product(args: int, task: int) -> None:
        a = carray(pointer(args), 1, CALIBRATION_FIELDS)[0]
        y = a.y + task * ROWS * VECTORS * LANES * SIZE
        for _ in range(a.repeats):
            microkernel.gemm_tile(SIZE, LANES, ROWS, VECTORS, 0, a.x, TAPS, a.w, TAPS, y, VECTORS * LANES)

    return product


@jit.specialise
def copy_part() -> jit.Kernel:
    def copy_part(args: int, task: int) -> None:
        a = carray(pointer(args), 1, CALIBRATION_FIELDS)[0]
        first = a.bytes * task // a.tasks
        for _ in range(a.repeats):
            copy_bytes(a.y + first, a.x + first, a.bytes * (task + 1) // a.tasks - first)

    return copy_part


@jit.specialise
def xor_part() -> jit.Kernel:
    def xor_part(args: int, task: int) -> None:
        a = carray(pointer(args), 1, CALIBRATION_FIELDS)[0]
        words, bits = carray(pointer(a.x), a.bytes // 8, np.int64), 0
        for i in range(a.bytes // 8 * task // a.tasks, a.bytes // 8 * (task + 1) // a.tasks):
            bits ^= words[i]
        carray(pointer(a.y), a.tasks, np.int64)[task] = bits

    return xor_part


@jit.specialise
def busy() -> jit.Kernel:
    def busy(args: int, task: int) -> None:
        a = carray(pointer(args), 1, CALIBRATION_FIELDS)[0]
        until = nanoseconds() + a.repeats
        while nanoseconds() < until:
            pass

    return busy


@jit.specialise
def chain() -> jit.Kernel:
    """Each product of words waits for the one before, and no part can be skipped.

    Golden Cove and later add constants while they rename registers, which takes no cycle.
    """

    def chain(args: int, task: int) -> None:
        a = carray(pointer(args), 1, CALIBRATION_FIELDS)[0]
        value, factor = a.bytes, a.bytes
        for _ in range(a.repeats):
            value = (value * factor) ^ factor
        carray(pointer(a.y), 1, np.int64)[0] = value

    return chain


def _clock() -> float:
    """Cycles a second."""
    y = aligned_zeros(1, np.int64)
    return LINKS * LINK_CYCLES / _best(_call(chain(), 1, y=y, bytes=3, repeats=LINKS))


def _peak(size: int, threads: int) -> float:
    lanes = simd.lanes(size)
    vectors = max(microkernel.REGISTER_TILES[vector_bytes()])
    rows = microkernel.REGISTER_TILES[vector_bytes()][vectors]
    dtype = np.float32 if size == 4 else np.float64
    x = aligned_zeros(rows * TAPS, dtype)
    w = aligned_zeros(TAPS * vectors * lanes, dtype)
    y = aligned_zeros(threads * rows * vectors * lanes, dtype)
    kernel = product(size, lanes, rows, vectors, TAPS)
    repeats = 2000
    flops = 2 * rows * vectors * lanes * TAPS * repeats  # of one task

    def rate(tasks: int) -> float:
        return flops * tasks / _best(_call(kernel, tasks, x=x, w=w, y=y, repeats=repeats))

    return _of_all(rate, threads)


def _word_peak(dtype: str, threads: int) -> float | None:
    kind = word_peaks.best_kind(dtype)
    if kind is None:
        return None
    kernel, operations, arguments = word_peaks.word_products_of(kind, threads)

    def rate(tasks: int) -> float:
        return operations * tasks / _best(_call(kernel, tasks, word_peaks.WORD_PEAK_FIELDS, **arguments))

    return _of_all(rate, threads)


def _of_all(rate: Callable[[int], float], threads: int) -> float:
    """What all threads reach together, of something that each has for itself.

    On a busy machine the threads may never have run all at once; one alone does find a free moment.
    """
    return max(rate(threads), BUSY * threads * rate(1))


def _beyond_caches(moves: Moves, l3: int, threads: int) -> float:
    """Bytes/s of a copy or reading of what no cache holds; of all threads or one, as others may disturb.

    The last cache may be that of a whole server, of which this machine is a part: pages of many times as
    much would take longer to get than to copy.
    """
    rate = moves(max(min(4 * l3, MOST_COPIED), l3, LEAST_COPIED))
    return max(rate(threads), rate(1))


def _copies(nbytes: int) -> Callable[[int], float]:
    """Bytes/s, read plus written, of a copy of so many bytes, as a function of its threads."""
    x, y = aligned_zeros(nbytes, np.uint8), aligned_zeros(nbytes, np.uint8)
    repeats = max(1, (16 << 20) // nbytes)

    def rate(threads: int) -> float:
        run = _call(copy_part(), threads, x=x, y=y, bytes=nbytes, repeats=repeats)
        return 2 * nbytes * repeats / _best(run)

    return rate


def _reads(nbytes: int) -> Callable[[int], float]:
    """Bytes/s in which so many are read, as a function of its threads."""
    x = aligned_zeros(nbytes, np.uint8)

    def rate(threads: int) -> float:
        y = aligned_zeros(threads, np.int64)
        return nbytes / _best(_call(xor_part(), threads, x=x, y=y, bytes=nbytes))

    return rate


def _launch(threads: int) -> float:
    """What a region takes beyond its tasks, which are long enough for every thread to come in time."""
    return min(DISTURBED_LAUNCH, _best(_call(busy(), threads, repeats=TASK)) - TASK * 1e-9)


def _call(
    kernel: int, tasks: int, record_fields: np.dtype = CALIBRATION_FIELDS, **values: int | np.ndarray
) -> Callable[[], None]:
    record = np.zeros(1, record_fields)
    for name, value in {"tasks": tasks, **values}.items():
        record[name] = value.ctypes.data if isinstance(value, np.ndarray) else value
    address = record.ctypes.data

    def run() -> None:
        jit.launch(kernel, address, tasks)

    run.keeps = (record, values)  # type: ignore[attr-defined]  # the addresses must stay valid
    return run


# --- with NumPy ------------------------------------------------------------------------------


def _numpy_peak(dtype: type) -> float:
    a: np.ndarray = np.zeros((768, 768), dtype)
    return 2 * 768**3 / _best(lambda: np.matmul(a, a))


def _numpy_copies(nbytes: int) -> Callable[[int], float]:
    x, y = np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    return lambda threads: 2 * nbytes / _best(lambda: np.copyto(y, x))


def _best(run: Callable[[], object]) -> float:
    """Least seconds of a call, over bursts that are long enough for the clock and the scheduler."""
    run()
    best = float("inf")
    for _ in range(BURSTS):
        until = time.perf_counter() + BURST
        while time.perf_counter() < until:
            start = time.perf_counter()
            run()
            best = min(best, time.perf_counter() - start)
    return best
