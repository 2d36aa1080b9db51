"""Products by MKL: the same bits for any number of threads, and sizes of 64 bits."""

import mmap

import numba
import numpy as np
import pytest

import convalgos as ca
from convalgos.cpu.runtime import mkl
from convalgos.select.measure.accuracy import random_arrays

pytestmark = pytest.mark.skipif(mkl.library() is None, reason="the mkl package is not installed")

NORESERVE = 0x4000  # Linux's flag of memory that is there when it is touched


def shifted(array: np.ndarray, offset: int) -> np.ndarray:
    """A copy that starts some elements behind where the memory does."""
    raw = np.empty(array.size + offset, array.dtype)
    raw[offset:] = array.ravel()
    return raw[offset:].reshape(array.shape)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("groups", "m", "k", "n"),
    [(1, 1, 1, 1), (3, 5, 7, 2), (1, 2048, 300, 49), (1, 64, 300, 3137), (2, 130, 700, 130)],
)
def test_products_with_gaps(groups, m, k, n, dtype):
    """Of whole numbers, so that every sum is exact; what lies in the gaps of c is left alone."""
    rng = np.random.default_rng(0)
    a = rng.integers(-4, 5, (groups, m + 1, k + 3)).astype(dtype)[:, :m, :k]
    b = rng.integers(-4, 5, (groups, k + 2, n + 5)).astype(dtype)[:, :k, :n]
    whole = np.full((groups, m + 1, n + 1), np.nan, dtype)
    mkl.gemm(a, b, whole[:, :m, :n])
    np.testing.assert_array_equal(whole[:, :m, :n], a @ b)
    assert np.isnan(whole[:, m]).all() and np.isnan(whole[:, :, n]).all()


@pytest.mark.parametrize("text", ["n1 c2048 h7 w7 k512 r1 s1", "n1 c30 h33 w35 k70 r3 s3 p1 channels_last"])
def test_the_same_bits_for_any_number_of_threads(text):
    problem = ca.ConvProblem.parse(text)
    x, w = random_arrays(problem)[:2]
    plan = ca.plan(problem, algorithm="cpu.im2col.mkl")
    threads = numba.get_num_threads()
    expected = plan(x, w)
    try:
        for count in range(1, numba.config.NUMBA_NUM_THREADS + 1):
            numba.set_num_threads(count)
            for offset in (0, 1, 5):  # elements: MKL's sums may not depend on the alignment either
                assert np.array_equal(plan(shifted(x, offset), w), expected), (count, offset)
    finally:
        numba.set_num_threads(threads)


def test_rows_that_lie_further_apart_than_32_bits_count():
    step = (1 << 31) + 64  # elements
    space = mmap.mmap(-1, 4 * (step + 8), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE)
    far = np.lib.stride_tricks.as_strided(np.frombuffer(space, "f4"), (1, 2, 8), (0, 4 * step, 4))
    a = np.array([[[1, 2], [3, 4]]], "f4")
    b = np.arange(16, dtype="f4").reshape(1, 2, 8)
    mkl.gemm(a, b, far)
    np.testing.assert_array_equal(far, a @ b)
    far[...] = b
    c = np.empty((1, 2, 8), "f4")
    mkl.gemm(a, far, c)
    np.testing.assert_array_equal(c, a @ b)


def test_the_threads_of_other_users_of_mkl_are_left_alone():
    library = mkl.library()
    before = library.MKL_Set_Num_Threads_Local(3)
    try:
        a = np.ones((1, 400, 400), "f4")
        mkl.gemm(a, a, np.empty_like(a))
        assert library.MKL_Set_Num_Threads_Local(3) == 3
    finally:
        library.MKL_Set_Num_Threads_Local(before)
