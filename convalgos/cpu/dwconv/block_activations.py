"""Activations that the kernels of depthwise blocks apply to sums in registers.

All of them keep sums within two limits, CLIP. Those of usual depthwise layers are compiled for what networks
have besides, too: a pass behind them would read large maps from L2 again.
"""

from __future__ import annotations

from functools import lru_cache

from convalgos.core.epilogue import KINDS, Activation
from convalgos.cpu.dwconv.channel_blocking import ChannelBlocking
from convalgos.cpu.dwconv.channel_forms import DEPTHWISE_ROWS
from convalgos.cpu.runtime.half import computed_bytes, map_form
from convalgos.cpu.vectors.activations import CLIP
from convalgos.cpu.vectors.halves import SAME

BlockKernel = tuple[int, ...]  # what `channel_kernels.filter_block` is compiled for, but for the activation

OTHERS = "silu", "hard_swish"


def block_kernel(c: ChannelBlocking) -> BlockKernel:
    """That of a layer."""
    p, near = c.problem, map_form(c.problem.dtype) if c.in_place else SAME
    of_tile = p.w_shape[1], p.gemm_n, c.vectors, c.pixels
    return computed_bytes(p), c.lanes, near, *of_tile, *c.code, int(c.has_border)


def kinds_of_block(kernel: BlockKernel) -> list[int]:
    """The codes of activations that it is compiled with."""
    size, _, form, channels, filters, vectors, _, *row, border = kernel
    usual = (size, form, channels, filters, vectors, border) == (4, SAME, 1, 1, 1, 0)
    others = OTHERS if usual and row[0] and tuple(row) in DEPTHWISE_ROWS else ()
    return [CLIP, *(KINDS[name].code for name in others)]


@lru_cache(512)
def kind_of_block(kernel: BlockKernel, activation: Activation | None) -> int:
    """The code of an activation where there is such a kernel; else CLIP, and `finish` is to do it."""
    kind = CLIP if activation is None else KINDS[activation.name].code
    return kind if kind in kinds_of_block(kernel) else CLIP
