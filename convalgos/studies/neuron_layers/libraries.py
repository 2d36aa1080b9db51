"""The product of a chunk of vectors by each library, on one thread: out = x w' + b.

x is (load, n), contiguous or a view of which the columns lie together; w (m, n), b (m,), out (load, m).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import numpy as np

import convalgos as ca
from convalgos.core.errors import missing
from convalgos.cpu.runtime import mkl
from convalgos.cpu.runtime.threads import on_one_thread
from convalgos.studies.neuron_layers.naive import naive_linear

Product = Callable[[np.ndarray, np.ndarray], None]  # (x, out)
NewProduct = Callable[[np.ndarray, np.ndarray, int], Product]  # (w, b, load)

ROWS, NO, YES = 101, 111, 112  # of CBLAS: rows are contiguous; not transposed, and transposed


def product_by_convalgos(w: np.ndarray, b: np.ndarray, load: int) -> Product:
    """A pointwise convolution of a line of vectors, channels last, planned for one thread.

    Products by NumPy's BLAS are not picked: that starts threads of its own.
    """
    problem = ca.ConvProblem((1, w.shape[1], load), (*w.shape, 1), layout="channels_last")
    with on_one_thread():
        plan = ca.plan(problem, deny="cpu.im2col")
    prepared = plan.prepare(w[:, :, None])

    def product(x: np.ndarray, out: np.ndarray) -> None:
        plan(x[None], prepared, bias=b, out=out[None])

    return product


def product_by_mkl(w: np.ndarray, b: np.ndarray, load: int) -> Product:
    """MKL's sgemm, called by each thread for itself."""
    library = mkl.library()
    assert library is not None
    gemm, integer, number, address = library.cblas_sgemm_64, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
    neurons, dimension = w.shape

    def product(x: np.ndarray, out: np.ndarray) -> None:
        library.MKL_Set_Num_Threads_Local(1)
        out[:] = b
        by_rows = x.strides[1] == x.itemsize
        step = x.strides[0 if by_rows else 1] // x.itemsize
        gemm(
            ROWS, NO if by_rows else YES, YES, integer(len(x)), integer(neurons), integer(dimension),
            number(1), address(x.ctypes.data), integer(step), address(w.ctypes.data), integer(dimension),
            number(1), address(out.ctypes.data), integer(out.strides[0] // out.itemsize),
        )  # fmt: skip

    return product


def product_by_numba(w: np.ndarray, b: np.ndarray, load: int) -> Product:
    """Loops compiled by Numba, sums in any order."""
    loops = fast_loops()
    return lambda x, out: loops(x, w, b, w, 0.0, out)


@cache
def fast_loops() -> Callable[..., None]:
    """The naive loops with sums in any order, and so in vectors; other threads of Python go on meanwhile."""
    import numba

    made: Callable[..., None] = numba.njit(nogil=True, fastmath=True)(naive_linear)
    return made


LIBRARIES: dict[str, NewProduct] = {
    "Numba": product_by_numba,
    "MKL": product_by_mkl,
    "convalgos": product_by_convalgos,
}


def why_absent(library: str) -> str | None:
    """What a library needs to be called here, or None."""
    if library == "MKL":
        return mkl.why_no_mkl()
    return missing("numba" if library == "Numba" else "llvmlite")
