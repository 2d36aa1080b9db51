"""Floats of 16 bits to float32 and back, and of 8 bits to float32, on all threads: around plans of float32.

By NumPy one thread of a Xeon with AMX converts 1.0 float16 per nanosecond and rounds 0.3, and by ml_dtypes it
rounds 1.8 bfloat16, which took longer than the convolution between. Here it is a few integer operations for
each, put into vectors by the compiler: 4 to 10 on two threads. Rounding is to the nearest, ties to even; NaN
stays NaN; what is too large for float16 becomes infinity.

Source: F. Giesen, https://gist.github.com/rygorous/2156668 (float_to_half_fast3_rtne, half_to_float_fast4).
"""

from __future__ import annotations

import numpy as np

from convalgos.core.element_types import HALF_DTYPES, ml_dtype
from convalgos.core.problem import ConvProblem
from convalgos.cpu.compile.code_generation import has
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import halves, simd
from convalgos.cpu.vectors.simd import carray, pointer

SMALL = 1 << 12  # elements below which NumPy is as fast,
PIECE = 1 << 15  # and those that are worth a thread; Xeon with AMX
HALF_FIELDS = np.dtype([(name, np.int64) for name in ("source", "target", "count", "tasks")])


def computed_bytes(problem: ConvProblem) -> int:
    """Bytes of an element that is computed with: of float32 for 16 bits."""
    return 8 if problem.compute_dtype == "float64" else 4


def in_float32(problem: ConvProblem) -> ConvProblem:
    """The problem in float32, where its elements are shorter."""
    if problem.itemsize >= 4:
        return problem
    return problem.with_valid(dtype="float32", w_dtype="float32", y_dtype="float32")


def map_form(dtype: str) -> int:
    """What a kernel that computes in float32 has to know of the elements of x and y; see `halves`."""
    if dtype not in HALF_DTYPES:
        return halves.SAME
    if dtype == "float16":
        return halves.HALF
    return halves.NATIVE_BRAIN if has("avx512bf16", "avx512vl") else halves.BRAIN


def why_not(dtype: str) -> str | None:
    """Why elements of a type cannot be widened in registers, or None."""
    if dtype == "float16" and simd.vector_bytes() > 16 and not has("f16c"):
        return "needs instructions that widen float16 (F16C)"
    return None


@jit.helper
def widen_bias(brain: int, source: int, target: int, count: int) -> None:
    """float32 of so many bfloat16, or of float16."""
    halves = carray(pointer(source), count, np.uint16)
    wide = carray(pointer(target), count, np.uint32)
    if brain:
        for i in range(count):
            wide[i] = np.uint32(halves[i]) << np.uint32(16)
    else:
        for i in range(count):
            bits = np.uint32(halves[i])
            # the exponent is too small by 112, and that of infinity and NaN by as much again
            scaled = np.uint32((bits & np.uint32(0x7FFF)) << np.uint32(13)).view(np.float32)
            number = np.float32(scaled * np.float32(2.0**112)).view(np.uint32)
            special = np.uint32(0x7F800000) if bits & np.uint32(0x7C00) == 0x7C00 else np.uint32(0)
            wide[i] = number | special | np.uint32((bits & np.uint32(0x8000)) << np.uint32(16))


@jit.specialise
def widen(BRAIN: int) -> jit.Kernel:
    """`widen_bias` of a share of an array."""

    def widen(args: int, task: int) -> None:
        a = carray(pointer(args), 1, HALF_FIELDS)[0]
        first = a.count * task // a.tasks
        count = a.count * (task + 1) // a.tasks - first
        widen_bias(BRAIN, a.source + 2 * first, a.target + 4 * first, count)

    return widen


@jit.specialise
def widen_bytes(FOUR: int) -> jit.Kernel:
    """float32 of float8_e4m3fn, which has four bits of exponent, or of float8_e5m2."""

    def widen_bytes(args: int, task: int) -> None:
        a = carray(pointer(args), 1, HALF_FIELDS)[0]
        first = a.count * task // a.tasks
        count = a.count * (task + 1) // a.tasks - first
        source = carray(pointer(a.source + first), count, np.uint8)
        target = carray(pointer(a.target + 4 * first), count, np.uint32)
        for i in range(count):
            bits = np.uint32(source[i])
            size = np.uint32(bits & np.uint32(0x7F))
            # the exponent is too small by 120 or 112; of four bits, the largest number alone is NaN
            if FOUR:
                wide = np.float32(np.uint32(size << np.uint32(20)).view(np.float32) * np.float32(2.0**120))
                special = np.uint32(0x7FC00000) if size == np.uint32(0x7F) else np.uint32(0)
            else:
                wide = np.float32(np.uint32(size << np.uint32(21)).view(np.float32) * np.float32(2.0**112))
                special = np.uint32(0x7F800000) if size >= np.uint32(0x7C) else np.uint32(0)
            target[i] = wide.view(np.uint32) | special | np.uint32((bits & np.uint32(0x80)) << np.uint32(24))

    return widen_bytes


@jit.specialise
def narrow(BRAIN: int) -> jit.Kernel:
    """bfloat16 of float32, or float16."""

    def narrow(args: int, task: int) -> None:
        a = carray(pointer(args), 1, HALF_FIELDS)[0]
        first = a.count * task // a.tasks
        count = a.count * (task + 1) // a.tasks - first
        source = carray(pointer(a.source + 4 * first), count, np.uint32)
        target = carray(pointer(a.target + 2 * first), count, np.uint16)
        for i in range(count):
            bits = source[i]
            size = np.uint32(bits & np.uint32(0x7FFFFFFF))
            if BRAIN:
                odd = np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(1))
                rounded = np.uint32(np.uint32(bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))
                quiet = np.uint32(np.uint32(bits >> np.uint32(16)) | np.uint32(0x40))
                target[i] = quiet if size > np.uint32(0x7F800000) else rounded
            else:
                odd = np.uint32(np.uint32(size >> np.uint32(13)) & np.uint32(1))
                moved = np.uint32(size - np.uint32(0x38000000) + np.uint32(0xFFF) + odd)
                normal = np.uint32(moved >> np.uint32(13))
                # float32 adds the elements of a subnormal up where its last bit is theirs
                added = np.float32(size.view(np.float32) + np.float32(0.5)).view(np.uint32)
                tiny = np.uint32(added - np.uint32(0x3F000000))
                finite = tiny if size < np.uint32(0x38800000) else normal
                special = np.uint32(0x7E00) if size > np.uint32(0x7F800000) else np.uint32(0x7C00)
                half = special if size >= np.uint32(0x47800000) else finite
                target[i] = half | (np.uint32(bits >> np.uint32(16)) & np.uint32(0x8000))

    return narrow


def convert(source: np.ndarray, target: np.ndarray) -> None:
    """target[...] = source, one of them float32 and the other of 16 bits, or source of 8; both `as_laid`."""
    if source.size < SMALL:
        with np.errstate(over="ignore"):  # infinity without a word, as in the kernels
            target[...] = source
        return
    if source.itemsize == 1:
        kernel = widen_bytes(int(source.dtype == ml_dtype("float8_e4m3fn")))
    elif target.dtype == np.float32:
        kernel = widen(int(source.dtype != np.float16))
    else:
        kernel = narrow(int(target.dtype != np.float16))
    tasks = min(jit.thread_count(), -(-source.size // PIECE))
    record = np.array([(source.ctypes.data, target.ctypes.data, source.size, tasks)], HALF_FIELDS)
    jit.launch(kernel, record.ctypes.data, tasks)
