"""The taps of a filter as a table of offsets (implicit precomputed GEMM).

It is all that kernels know of layout, dilation and the number of dimensions.
"""

from __future__ import annotations

import math

import numpy as np

from convalgos.core.problem import ConvProblem

NOWHERE = 1 << 29  # place of taps that fill a table up: outside of every input


def why_not_counted(problem: ConvProblem) -> str | None:
    """Why the places of a problem cannot be told from `NOWHERE`, or None."""
    reach = max(e + p for e, ps in zip(problem.spatial, problem.padding, strict=True) for p in ps)
    if max(reach, *problem.kernel_extent) >= NOWHERE:
        return f"counts positions up to {NOWHERE}, but the input or the kernel reaches {reach}"
    return None


def tap_table(problem: ConvProblem, multiple: int = 1, channels_inner: bool | None = None) -> np.ndarray:
    """(taps, 4) int32 (offset in x, d, h, w) of each tap of a group, filled up to a multiple of taps.

    Offsets are elements from the first input under the kernel; d, h, w are places in the dilated kernel. Taps
    run in the order of memory: channels first over (C/groups, kernel), last over (kernel, C/groups).

    Args:
        channels_inner: whether they run over (kernel, C/groups) whatever the layout.
    """
    p = problem.as_3d
    last = p.layout == "channels_last"
    channel = 1 if last else math.prod(p.spatial)
    pixel = p.C if last else 1
    c, d, h, w = np.indices(p.w_shape[1:], dtype=np.int64)  # each (C/groups, T, R, S)
    d, h, w = (i * step for i, step in zip((d, h, w), p.dilation, strict=True))
    _, rows, columns = p.spatial
    offset = c * channel + ((d * rows + h) * columns + w) * pixel
    table = np.stack([offset, d, h, w], axis=-1)  # (C/groups, T, R, S, 4)
    inner = last if channels_inner is None else channels_inner
    table = (np.moveaxis(table, 0, 3) if inner else table).reshape(-1, 4)
    fill = np.tile([0, NOWHERE, NOWHERE, NOWHERE], (-len(table) % multiple, 1))
    return np.concatenate([table, fill]).astype(np.int32)
