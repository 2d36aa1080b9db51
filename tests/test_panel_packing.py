"""Filters that are packed into panels from wherever they lie."""

from itertools import pairwise

import numpy as np
import pytest

from convalgos.cpu.gemm.panel_packing import packed_panels
from convalgos.cpu.vectors import simd

# (K, C, *kernel), and as what groups, filters and taps of it are read
VIEWS = {
    "as it is": lambda w: w[None],
    "channels last": lambda w: np.moveaxis(w, 1, -1)[None],
    "rotated": lambda w: w[:, :, ::-1, ::-1].swapaxes(0, 1)[None],
    "a phase": lambda w: w[:, :, 2::-2, ::-2].swapaxes(0, 1)[None],
    "rotated, channels last": lambda w: np.moveaxis(w[:, :, ::-1, ::-1].swapaxes(0, 1), 1, -1)[None],
    "groups": lambda w: w.reshape(w.shape[0] // 2, 2, *w.shape[1:]).swapaxes(0, 1),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("shape", [(34, 35, 3, 3), (2, 3, 5, 4), (40, 16, 1, 1), (6, 70, 7, 2)])
def test_a_view_is_packed_as_its_copy_is(shape, view, dtype):
    """And nothing is read outside the elements of w: beyond them and between rows lie NaNs."""
    lanes = simd.lanes(np.dtype(dtype).itemsize)
    around = np.full(np.prod(shape) + 128, np.nan, dtype)
    w = around[64:-64].reshape(shape)
    w[...] = np.arange(w.size).reshape(shape)
    taken = VIEWS[view](w)
    groups, filters, *taps = taken.shape
    vectors, count = -(-filters // lanes), int(np.prod(taps))
    order = np.random.default_rng(0).permutation(count)
    for panels in {1, vectors}:
        for by in (None, order):
            packed = packed_panels(taken, panels, by)[: groups * vectors * lanes * count]
            rows = taken.reshape(groups, filters, count)[..., slice(None) if by is None else by]
            filled = np.zeros((groups, vectors * lanes, count), dtype)
            filled[:, :filters] = rows
            ends = [vectors * p // panels * lanes for p in range(panels + 1)]
            parts = [filled[:, a:b].swapaxes(1, 2).reshape(groups, -1) for a, b in pairwise(ends)]
            np.testing.assert_array_equal(packed.reshape(groups, -1), np.concatenate(parts, axis=1))
