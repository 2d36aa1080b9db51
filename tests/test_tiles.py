"""Pixels of `lanes` channels: gather from and scatter to maps of either layout."""

import ctypes

import numpy as np
import pytest

from convalgos import ConvProblem
from convalgos.cpu.layout import channel_vectors
from convalgos.cpu.tiled import geometry
from convalgos.cpu.vectors import simd

SIZES = {"float32": 4, "float64": 8}
GUARD = 7  # elements around an output that must stay untouched


def run(kernel, *arguments):
    """Call a kernel by address with arrays and integers."""
    values = [a.ctypes.data if isinstance(a, np.ndarray) else a for a in arguments]
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(values))(kernel)(*values)


def shapes(lanes):
    """(channels, pixels) around and below the width of a vector."""
    return [
        (lanes, 3 * lanes),
        (lanes, 2 * lanes + 3),
        (min(3, lanes), lanes + 1),
        (lanes - 1, 1),
        (1, 2),
        (lanes, 1),
    ]


@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_gather_reads_a_run_of_pixels(dtype, layout):
    lanes = simd.lanes(SIZES[dtype])
    rng = np.random.default_rng(0)
    for channels, pixels in shapes(lanes):
        x = rng.integers(-9, 9, (channels, pixels)).astype(dtype)
        stored = np.ascontiguousarray(x if layout == "channels_first" else x.T)
        strides = (pixels, 1) if layout == "channels_first" else (1, channels)
        room = -(-pixels // lanes) * lanes
        target = np.full((room + 1, lanes), np.nan, dtype)
        run(channel_vectors.gather(SIZES[dtype], lanes), stored, *strides, channels, pixels, target)
        assert np.array_equal(target[:pixels, :channels], x.T)
        assert not target[:pixels, channels:].any()
        assert np.isnan(target[room:]).all()


@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("relu", [0, 1])
def test_scatter_adds_bias_and_stays_inside(dtype, layout, relu):
    lanes = simd.lanes(SIZES[dtype])
    rng = np.random.default_rng(0)
    for channels, pixels in shapes(lanes):
        source = rng.integers(-9, 9, (-(-pixels // lanes) * lanes, lanes)).astype(dtype)
        bias = rng.integers(-3, 3, lanes).astype(dtype)
        expected = source[:pixels, :channels].T + bias[:channels, None]
        if relu:
            expected = np.maximum(expected, 0)
        first = layout == "channels_first"
        y = np.full((channels, pixels + GUARD) if first else (pixels, channels + GUARD), np.nan, dtype)
        strides = (pixels + GUARD, 1) if first else (1, channels + GUARD)
        run(channel_vectors.scatter(SIZES[dtype], lanes), source, bias, relu, *strides, channels, pixels, y)
        inside = y[:, :-GUARD] if first else y[:, :-GUARD].T
        assert np.array_equal(inside, expected)
        assert np.isnan(y[:, -GUARD:]).all()


@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_place_turns_gather_round(dtype, layout):
    lanes = simd.lanes(SIZES[dtype])
    rng = np.random.default_rng(0)
    for channels, pixels in shapes(lanes):
        source = rng.integers(-9, 9, (-(-pixels // lanes) * lanes, lanes)).astype(dtype)
        first = layout == "channels_first"
        y = np.full((channels, pixels + GUARD) if first else (pixels, channels + GUARD), np.nan, dtype)
        strides = (pixels + GUARD, 1) if first else (1, channels + GUARD)
        run(channel_vectors.place(SIZES[dtype], lanes), source, *strides, channels, pixels, y)
        inside = y[:, :-GUARD] if first else y[:, :-GUARD].T
        assert np.array_equal(inside, source[:pixels, :channels].T)
        assert np.isnan(y[:, -GUARD:]).all()


@pytest.mark.parametrize("taps", [1, 2, 3, 5])
@pytest.mark.parametrize("stride", [1, 2, 3, 4])
@pytest.mark.parametrize("dilation", [1, 2, 3, 6])
def test_an_axis_reads_what_the_convolution_reads(taps, stride, dilation):
    problem = ConvProblem((1, 1, 50), (1, 1, taps), stride, ((2, 1),), dilation)
    axis = geometry.tiled_axis(problem, 0, 4)
    covered = set()
    for output in range(axis.size_out):
        tile, lattice = output // axis.lattices // 4, output % axis.lattices
        element = output // axis.lattices % 4
        assert tile < axis.tiles
        covered.add((tile, lattice))
        first = tile * axis.outputs * axis.step - axis.pad  # input under the first element of the tile
        for tap in range(taps):
            phase, k = tap % axis.phases, tap // axis.phases
            assert k < axis.taps
            place = (element + k) * axis.step + lattice * axis.stride + phase * axis.dilation
            assert first + place == output * stride + tap * dilation - axis.pad
            assert 0 <= place < axis.span(1)
    assert max(tile for tile, _ in covered) == axis.tiles - 1
    assert axis.span(3) - axis.span(1) == 2 * axis.outputs * axis.step
