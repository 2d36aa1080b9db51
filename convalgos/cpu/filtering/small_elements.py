"""Arrays of Python as compiled calls for small ones read them: their fields, and single elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors.simd import carray, copy_bytes, external, pointer

HEAD = object.__basicsize__  # bytes of an object before the fields of an array
TYPE, NDIM, STRIDES, DTYPE, FLAGS = HEAD - 8, HEAD + 8, HEAD + 24, HEAD + 40, HEAD + 48  # see `array_calls`
ALIGNED = 0x100  # a flag

integer_of = external("PyNumber_AsSsize_t", 2)
count_reference = external("Py_IncRef", 1, returns=False)


@jit.helper
def word_of(address: int) -> int:
    return int(carray(pointer(address), 1, np.int64)[0])


@jit.helper
def copy_element(target: int, source: int, size: int) -> None:
    if size == 4:
        carray(pointer(target), 1, np.int32)[0] = carray(pointer(source), 1, np.int32)[0]
    elif size == 8:
        carray(pointer(target), 1, np.int64)[0] = carray(pointer(source), 1, np.int64)[0]
    elif size == 16:
        to, of = carray(pointer(target), 2, np.int64), carray(pointer(source), 2, np.int64)
        to[0], to[1] = of[0], of[1]
    elif size == 2:
        carray(pointer(target), 1, np.int16)[0] = carray(pointer(source), 1, np.int16)[0]
    elif size == 1:
        carray(pointer(target), 1, np.int8)[0] = carray(pointer(source), 1, np.int8)[0]
    else:
        copy_bytes(target, source, size)


@jit.helper
def is_aligned(array: int) -> bool:
    return carray(pointer(array + FLAGS), 1, np.int32)[0] & ALIGNED != 0  # type: ignore[no-any-return]


@jit.helper
def step_of_columns(array: int) -> int:
    """Bytes between neighbours along the last axis."""
    last = carray(pointer(array + NDIM), 1, np.int32)[0] - 1
    return word_of(word_of(array + STRIDES) + last * 8)


@jit.helper
def taps_are_finite(a: Any) -> bool:
    """What is not would spread from the zeros beyond the ends, of which SciPy computes no products."""
    bad = 0
    if a.part == 4:
        narrow = carray(pointer(a.taps), a.tap_rows * a.tap_columns * (a.size // 4), np.int32)
        for i in range(a.tap_rows * a.tap_columns * (a.size // 4)):
            bad += narrow[i] & 0x7F800000 == 0x7F800000
    elif a.part == 8:
        wide = carray(pointer(a.taps), a.tap_rows * a.tap_columns * (a.size // 8), np.int64)
        for i in range(a.tap_rows * a.tap_columns * (a.size // 8)):
            bad += wide[i] & 0x7FF0000000000000 == 0x7FF0000000000000
    return bad == 0
