"""Sparse filters as their kernels read them: a list of (offset, weights) for each tile and chunk of channels.

A tile is one filter, or some that share the positions of their non-zero weights. A position is listed where
any of them has a weight that is not zero: so any filter is computed right, whatever a problem told of it.
"""

from __future__ import annotations

import numpy as np

from convalgos.core.allocator import aligned_empty, whole_lines
from convalgos.cpu.spconv.blocking import SparseBlocking


def pack_lists(w: np.ndarray, cut: SparseBlocking) -> np.ndarray:
    """The lists of all tiles in one array of bytes, whose parts begin on cache lines:

    where each list begins, (groups * tiles * chunks + 1,) int64; offsets in scratch, (listed,) int32;
    weights, (listed, filters of a tile).

    Args:
        w: (K, C/groups, *kernel).
    """
    p = cut.problem
    channels, taps = p.w_shape[1], p.gemm_k // p.w_shape[1]
    filled = np.zeros((p.groups, cut.tiles * cut.sharing, channels, taps), w.dtype)
    filled[:, : p.gemm_n] = w.reshape(p.groups, p.gemm_n, channels, taps)
    tiles = filled.reshape(p.groups * cut.tiles, cut.sharing, channels, taps)
    tile, channel, tap = np.nonzero((tiles != 0).any(axis=1))  # (listed,) each, in this order
    lists = p.groups * cut.tiles * cut.chunks
    lengths = np.bincount(tile * cut.chunks + channel // cut.chunk, minlength=lists)
    parts = (
        np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
        cut.offsets()[channel % cut.chunk, tap],
        tiles[tile, :, channel, tap],
    )
    packed = aligned_empty(sum(whole_lines(part.nbytes) for part in parts), np.uint8)
    at = 0
    for part in parts:
        packed[at : at + part.nbytes] = np.ascontiguousarray(part).ravel().view(np.uint8)
        at += whole_lines(part.nbytes)
    return packed
