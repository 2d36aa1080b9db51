"""Products of matrices by Intel's MKL, from the `mkl` wheel, whose functions kernels call by address.

MKL runs on one thread in each task of a launch: the pieces of a product are dealt to our own threads. How it
is cut depends on its size only, so that neither the bits of a result nor the end of a call depend on how many
threads there are, on other users of MKL in the process, or on a fork, which MKL's own threads would not
survive.

The library is loaded for itself alone (RTLD_LOCAL: it also exports FFTW's names), and called through the
interface whose sizes have 64 bits.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np

from convalgos.core.errors import EXTRAS
from convalgos.core.installed_packages import info_folders
from convalgos.core.library_record import keep_called, was_called
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors.simd import call, carray, pointer

GNU_THREADS = 3  # of MKL's threading layers the one that starts no library of its own
PIECE = 128  # rows or columns of a piece at least: of all others MKL makes a copy for each
PIECE_FLOPS = 16 << 20  # each of so much work: 60 us of a thread; Xeon with AVX-512
STEP = 16  # rows or columns that MKL computes together
GEMM = {"float32": "sgemm_64", "float64": "dgemm_64"}

FIELDS = "gemm set_threads no_transpose size groups step pieces cut_rows rows columns depth numbers"
MATRICES = (
    "a a_row a_group b b_row b_group c c_row c_group"  # addresses; elements, bytes from one to the next
)
MKL_FIELDS = np.dtype([(name, np.int64) for name in f"{FIELDS} {MATRICES}".split()])
NO_TRANSPOSE = ctypes.create_string_buffer(b"N")
_NO_TRANSPOSE_AT = ctypes.addressof(NO_TRANSPOSE)
NUMBERS = 8  # words of a task: what MKL wants addresses of


def why_no_mkl() -> str | None:
    """Why MKL cannot be called here, or None. (The wheel has no Python module: `needs` cannot see it.)"""
    if any(map(was_called, _candidates())) or library():
        return None
    return f"needs the mkl package, which is not installed ({EXTRAS['mkl']})"


@jit.specialise
def multiply_by_mkl() -> jit.Kernel:
    """c = a @ b in each group, a piece of the rows or columns of c by each task."""

    def multiply_by_mkl(args: int, task: int) -> None:
        r = carray(pointer(args), 1, MKL_FIELDS)[0]
        call(r.set_threads, (1,))
        group, piece = task // r.pieces, task % r.pieces
        a, b = r.a + group * r.a_group, r.b + group * r.b_group
        c = r.c + group * r.c_group
        at = r.numbers + 8 * NUMBERS * task
        numbers = carray(pointer(at), NUMBERS, np.int64)
        numbers[0], numbers[1], numbers[2] = r.columns, r.rows, r.depth
        numbers[3], numbers[4], numbers[5] = r.b_row, r.a_row, r.c_row
        numbers[6] = 0x3F800000 if r.size == 4 else 0x3FF0000000000000  # 1.0
        numbers[7] = 0
        first = r.step * piece
        end = min(first + r.step, r.rows if r.cut_rows else r.columns)
        if r.cut_rows:
            numbers[1] = end - first
            a, c = a + first * r.a_row * r.size, c + first * r.c_row * r.size
        else:
            numbers[0] = end - first
            b, c = b + first * r.size, c + first * r.size
        no = r.no_transpose
        # of MKL's matrices columns lie together: c' = b' a'
        call(
            r.gemm,
            (no, no, at, at + 8, at + 16, at + 48, b, at + 24, a, at + 32, at + 56, c, at + 40),
        )

    return multiply_by_mkl


def gemm(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """c = a @ b in each group: a (groups, m, k), b (groups, k, n), c (groups, m, n), of one dtype.

    Rows are contiguous; between them, and between the groups, there may be gaps.
    """
    mkl = library()
    assert mkl is not None
    groups, rows, depth = a.shape
    columns, size = b.shape[2], a.itemsize
    cut_rows = rows > columns
    extent = max(rows, columns)
    most = min(extent // PIECE, 2 * rows * columns * depth // PIECE_FLOPS)
    step = -(-extent // (STEP << most.bit_length() - 1)) * STEP if most > 1 else extent
    pieces = -(-extent // step)
    tasks = groups * pieces
    numbers = np.empty((tasks, NUMBERS), np.int64)
    steps = [(max(x.shape[2], x.strides[1] // size), x.strides[0]) for x in (a, b, c)]
    (a_row, a_group), (b_row, b_group), (c_row, c_group) = steps
    record = np.array(
        [(
            _address(mkl, GEMM[a.dtype.name]), _address(mkl, "MKL_Set_Num_Threads_Local"), _NO_TRANSPOSE_AT,
            size, groups, step, pieces, cut_rows, rows, columns, depth, numbers.ctypes.data,
            a.ctypes.data, a_row, a_group, b.ctypes.data, b_row, b_group, c.ctypes.data, c_row, c_group,
        )],
        MKL_FIELDS,
    )  # fmt: skip
    before = mkl.MKL_Set_Num_Threads_Local(1)
    try:
        jit.launch(multiply_by_mkl(), record.ctypes.data, tasks)
    finally:
        mkl.MKL_Set_Num_Threads_Local(before)


@cache
def library() -> ctypes.CDLL | None:
    """MKL, or None where it cannot be loaded."""
    for path in _candidates():
        try:
            mkl = ctypes.CDLL(str(path), mode=os.RTLD_LOCAL | os.RTLD_NOW)
            mkl.MKL_Set_Threading_Layer(GNU_THREADS)
            for name in (*GEMM.values(), "MKL_Set_Num_Threads_Local"):
                _address(mkl, name)
        except (OSError, AttributeError):
            continue
        keep_called(path)
        return mkl
    return None


@cache
def _address(library: ctypes.CDLL, name: str) -> int:
    address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    assert address is not None
    return address


@cache
def _candidates() -> tuple[Path, ...]:
    """libmkl_rt.so.N among the files of the mkl wheel."""
    folders = info_folders()
    if folders is not None:
        folder = next((f for f in folders if f.name.startswith("mkl-")), Path())
        with suppress(OSError):
            listed = (folder / "RECORD").read_text("utf-8").splitlines()
            names = [line.split(",")[0] for line in listed if "libmkl_rt.so" in line]
            return tuple((folder.parent / name).resolve() for name in names)
        return ()
    from importlib import metadata

    try:
        files = metadata.files("mkl") or []
    except metadata.PackageNotFoundError:
        return ()
    return tuple(Path(str(f.locate())).resolve() for f in files if f.name.startswith("libmkl_rt.so"))
