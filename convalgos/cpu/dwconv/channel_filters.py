"""The filters of `cpu.depthwise.channels`, as its kernels read them: lanes are the filters of a vector."""

from __future__ import annotations

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.cpu.dwconv.channel_blocking import ChannelBlocking
from convalgos.cpu.dwconv.channel_tables import lane_filters, lanes_in_lines


def packed_lanes(c: ChannelBlocking, w: np.ndarray) -> np.ndarray:
    """(K, C/groups, T, R, S) as (blocks, vectors, C/groups, T, R, S, lanes), with zeros where a lane has no
    filter."""
    p = c.problem
    filters, outside = lane_filters(c)
    packed = aligned_empty(c.blocks * c.vectors * p.gemm_k * c.lanes, np.dtype(p.compute_dtype))
    packed = packed.reshape(c.blocks, c.vectors, p.w_shape[1], *p.kernel, c.lanes)
    chosen = w.reshape(p.K, p.w_shape[1], *p.kernel)[filters]  # (blocks, vectors, lanes, C/g, T, R, S)
    packed[...] = chosen.transpose(0, 1, 3, 4, 5, 6, 2)
    if outside is not None:
        np.copyto(packed, 0, where=outside[:, :, None, None, None, None, :])
    return packed


def taps_by_channel(c: ChannelBlocking, w: np.ndarray) -> np.ndarray | None:
    """(filters, C/groups*taps), so many filters as all vectors have lanes, in their order.

    None where vectors hold something else, which `packed_lanes` knows.
    """
    p = c.problem
    if c.groups * p.gemm_n < c.lanes or lanes_in_lines(c):
        return None
    taps = np.asarray(w, p.compute_dtype).reshape(p.K, p.gemm_k)
    filters = c.blocks * c.vectors * c.lanes  # with those that the last block has in common with another
    if c.overlaps:
        taps = np.concatenate([taps[: filters - c.vectors * c.lanes], taps[c.last_group * p.gemm_n :]])
    missing = (filters - len(taps)) // c.lanes * c.lanes  # of vectors without any filter
    return np.concatenate([taps, np.zeros((missing, p.gemm_k), taps.dtype)]) if missing else taps
