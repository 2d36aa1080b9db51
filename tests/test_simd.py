"""The vector toolkit: micro-kernel, transposes, masks and the compiled-kernel cache."""

import numpy as np
import pytest

from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import microkernel, simd, transpose

SIZES = {"float32": 4, "float64": 8}


@jit.specialise
def conv_tile_kernel(SIZE, LANES, ROWS, VECTORS, ACCUMULATE, PREFETCH_TAPS):
    def kernel(x, rows, offsets, w, taps, y, y_stride):
        microkernel.conv_tile(
            SIZE, LANES, ROWS, VECTORS, ACCUMULATE, PREFETCH_TAPS, x, rows, offsets, w, taps, y, y_stride, w
        )

    return kernel


@jit.specialise
def load_square_kernel(SIZE, LANES):
    def kernel(x, x_stride, rows, columns, target, target_stride):
        transpose.load_square(SIZE, LANES, x, x_stride, rows, columns, target, target_stride)

    return kernel


@jit.specialise
def store_square_kernel(SIZE, LANES):
    def kernel(x, x_stride, bias, relu, rows, columns, y, y_stride):
        transpose.store_square(SIZE, LANES, x, x_stride, bias, relu, rows, columns, y, y_stride)

    return kernel


def run(kernel, *arguments):
    """Call a kernel by address with arrays and integers."""
    import ctypes

    values = [a.ctypes.data if isinstance(a, np.ndarray) else a for a in arguments]
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(values))(kernel)(*values)


@pytest.mark.parametrize("dtype", SIZES)
def test_conv_tile_sums_over_the_offset_table(dtype):
    lanes = simd.lanes(SIZES[dtype])
    rng = np.random.default_rng(0)
    rows, vectors, taps = 3, 2, 7
    x = rng.integers(-9, 9, 400).astype(dtype)
    w = rng.integers(-9, 9, (taps, vectors * lanes)).astype(dtype)
    starts = np.array([5, 50, 120])
    offsets = rng.integers(0, 200, taps)
    y = np.full((rows, vectors * lanes + 3), np.nan, dtype)
    expected = x[starts[:, None] + offsets] @ w
    for accumulate, soon, factor in ((0, 0, 1), (1, microkernel.PREFETCH_TAPS, 2)):
        kernel = conv_tile_kernel(SIZES[dtype], lanes, rows, vectors, accumulate, soon)
        run(kernel, x, starts, microkernel.padded_for_prefetch(offsets), w, taps, y, y.shape[1])
        assert np.array_equal(y[:, :-3], factor * expected)
    assert np.isnan(y[:, -3:]).all()


@pytest.mark.parametrize("dtype", SIZES)
def test_squares_transpose_with_tails_and_stay_inside(dtype):
    lanes = simd.lanes(SIZES[dtype])
    rng = np.random.default_rng(0)
    for rows, columns in ((lanes, lanes), (1, 1), (2, lanes), (lanes, 2), (lanes - 1, lanes - 1)):
        x = np.full((lanes, lanes + 5), np.nan, dtype)
        x[:rows, :columns] = rng.integers(-9, 9, (rows, columns))
        pixels = np.full((lanes, lanes), np.nan, dtype)
        run(load_square_kernel(SIZES[dtype], lanes), x, lanes + 5, rows, columns, pixels, lanes)
        assert np.array_equal(pixels[:columns, :rows], x[:rows, :columns].T)
        assert not pixels[:, rows:].any()
        bias = rng.integers(-3, 3, lanes).astype(dtype)
        for relu in (0, 1):
            y = np.full((lanes, lanes + 1), np.nan, dtype)
            kernel = store_square_kernel(SIZES[dtype], lanes)
            run(kernel, pixels, lanes, bias, relu, rows, columns, y, lanes + 1)
            expected = x[:rows, :columns] + bias[:rows, None]
            assert np.array_equal(y[:rows, :columns], np.maximum(expected, 0) if relu else expected)
            assert np.isnan(y[rows:]).all() and np.isnan(y[:, columns:]).all()


def test_relu_keeps_nan():
    lanes = simd.lanes(4)
    pixels = np.full((lanes, lanes), np.nan, "f4")
    y = np.zeros((lanes, lanes), "f4")
    run(store_square_kernel(4, lanes), pixels, lanes, np.zeros(lanes, "f4"), 1, lanes, lanes, y, lanes)
    assert np.isnan(y).all()


@simd.emitter
def copy_window(v, x, first, end, y):
    v.store(v.load_masked(v.pointer(x), 0, v.window(first, end)), v.pointer(y))


@jit.specialise
def copy_window_kernel(SIZE, LANES):
    def kernel(x, first, end, y):
        copy_window(SIZE, LANES, x, first, end, y)

    return kernel


@pytest.mark.parametrize("dtype", SIZES)
def test_a_window_may_lie_anywhere(dtype):
    lanes = simd.lanes(SIZES[dtype])
    x = np.arange(1, lanes + 1).astype(dtype)
    for first in (-100, -1, 0, 1, lanes - 1, lanes, 200):
        for end in (-50, 0, 2, lanes, lanes + 1, 300):
            if end >= first:
                y = np.full(lanes, np.nan, dtype)
                run(copy_window_kernel(SIZES[dtype], lanes), x, first, end, y)
                lane = np.arange(lanes)
                assert np.array_equal(y, np.where((lane >= first) & (lane < end), x, 0))
