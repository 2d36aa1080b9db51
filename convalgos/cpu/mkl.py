"""The GEMM of Intel's MKL, from the `mkl` wheel, called by address.

The library is loaded for itself alone (RTLD_LOCAL: it also exports FFTW's names), on GNU's OpenMP, which
Numba uses too, so that both share one set of threads.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

from convalgos.algorithm import EXTRAS
from convalgos.cpu.jit import thread_count

ROW_MAJOR, NO_TRANSPOSE, GNU_THREADS = 101, 111, 3


def why_not() -> str | None:
    """Why MKL cannot be called here, or None. (The wheel has no Python module: `needs` cannot see it.)"""
    return None if library() else f"needs the mkl package, which is not installed ({EXTRAS['mkl']})"


def gemm(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """c = a @ b, on rows of neighbours: a (m, k), b (k, n), c (m, n), each row contiguous."""
    mkl = library()
    assert mkl is not None
    m, k = a.shape
    n = b.shape[1]
    single = a.dtype == np.float32
    scalar = ctypes.c_float if single else ctypes.c_double
    function = mkl.cblas_sgemm if single else mkl.cblas_dgemm
    mkl.MKL_Set_Num_Threads(thread_count())
    leading = [ctypes.c_int(max(1, array.strides[0] // array.itemsize)) for array in (a, b, c)]
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (a, b, c)]
    function(
        ROW_MAJOR, NO_TRANSPOSE, NO_TRANSPOSE, m, n, k, scalar(1),
        pointers[0], leading[0], pointers[1], leading[1], scalar(0), pointers[2], leading[2],
    )  # fmt: skip


@cache
def library() -> ctypes.CDLL | None:
    """MKL, or None where it cannot be loaded."""
    for path in _candidates():
        try:
            mkl = ctypes.CDLL(str(path), mode=os.RTLD_LOCAL | os.RTLD_NOW)
            mkl.MKL_Set_Threading_Layer(GNU_THREADS)
        except (OSError, AttributeError):
            continue
        return mkl
    return None


def _candidates() -> Iterator[Path]:
    """libmkl_rt.so.N among the files of the mkl wheel."""
    try:
        files = importlib.metadata.files("mkl") or []
    except importlib.metadata.PackageNotFoundError:
        return
    for file in files:
        if file.name.startswith("libmkl_rt.so"):
            yield Path(str(file.locate())).resolve()
