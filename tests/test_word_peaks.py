"""The peaks of int8 and of bfloat16: what the kernels that measure them compute."""

import numpy as np
import pytest

from convalgos.core.machine import Machine
from convalgos.cpu.gemm.word_cost import word_peak
from convalgos.cpu.gemm.word_tiles import ENGINES
from convalgos.cpu.runtime import jit, word_peaks
from convalgos.cpu.runtime.word_peaks import BRAIN_DOTS, BYTE_DOTS, BYTE_PAIRS, FEATURES, WORD_PEAK_FIELDS

ONES = {1: 0x0101_0101, 2: 0x0001_0001}  # of words of bytes, and of pairs
FLOAT_ONES = 0x3F80_3F80


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
def test_products_are_as_many_as_are_counted(dtype):
    """With factors of one, all sums together are the number of the products."""
    best = word_peaks.best_kind(dtype)
    kinds = {best, *(k for k in (BYTE_PAIRS,) if dtype == "int8")} - {None}
    for kind in kinds:
        kernel, operations, arrays = word_peaks.word_products_of(kind, 2)
        ones = FLOAT_ONES if dtype == "bfloat16" else ONES[2 if kind == BYTE_PAIRS else 1]
        for name in ("x", "w"):
            arrays[name].view(np.uint32).fill(ones)
        record = np.zeros(1, WORD_PEAK_FIELDS)
        for name, value in {**arrays, "repeats": 3}.items():
            record[name] = value.ctypes.data if isinstance(value, np.ndarray) else value
        jit.launch(kernel, record.ctypes.data, 2)
        sums = arrays["y"].view(np.float32 if dtype == "bfloat16" else np.int32)
        assert sums.sum() == 2 * 3 * operations / 2 / word_peaks.ROUNDS


def test_the_best_instruction_is_taken(monkeypatch):
    tiles, dots, pairs = FEATURES["int8"]
    for there, permitted, of_int8, of_bfloat16 in (
        (("amx-int8", "avx512f", "avx512vnni", "avx512vl"), True, tiles, None),
        (("amx-int8", "avx512f", "avx512vnni", "avx512vl"), False, BYTE_DOTS, None),
        (("avx512bf16", "avx512vl"), True, BYTE_PAIRS, BRAIN_DOTS),
    ):
        monkeypatch.setattr(word_peaks, "has", lambda *names, there=there: set(names) <= set(there))
        monkeypatch.setattr(word_peaks.matrix_tiles, "permitted", lambda permitted=permitted: permitted)
        assert (word_peaks.best_kind("int8"), word_peaks.best_kind("bfloat16")) == (of_int8, of_bfloat16)
    assert (dots, pairs) == (BYTE_DOTS, BYTE_PAIRS)


def test_a_measured_peak_is_that_of_the_engine_it_is_near():
    machine = Machine("m", 2, 64, 1 << 15, 1 << 21, 1 << 25, 4e11, 2e11, 2e10, 6e10, 1e-6, peak_int8=9e12)
    tiles, dots, brain = ENGINES["amx", "int8"], ENGINES["vnni", "int8"], ENGINES["brain", "bfloat16"]
    assert word_peak(tiles, "int8", machine) == 9e12
    assert word_peak(dots, "int8", machine) == 4 * 4e11
    assert word_peak(brain, "bfloat16", machine) == brain.rate * 4e11
