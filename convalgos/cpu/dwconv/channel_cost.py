"""What blocks of `cpu.depthwise.channels` cost."""

from __future__ import annotations

from functools import lru_cache

from convalgos.core.machine import cache_sizes
from convalgos.core.problem import ConvProblem
from convalgos.core.problem_views import one_group
from convalgos.core.taps import taps_met
from convalgos.cpu.dwconv.channel_blocking import ChannelBlocking, channel_blocking
from convalgos.cpu.dwconv.channel_taps import ONE_COLUMN

# Cycles of grouped layers: Xeon (Granite Rapids), 25 of 4 to 16 channels a group.
SHUFFLE = 1.0  # that copies a channel to the lanes of its group, and its load: few units can do it
BORDER = 4.0  # a channel, of a block that meets more padding than a column at an end: it is summed in parts
RANGED = 3.0  # a channel and a tap of a block whose outputs come from a table,
CHECKED = 1.0  # and an output of one that meets padding: each is checked


def block_cycles(problem: ConvProblem) -> float:
    """Of a block of groups of one image, on one core."""
    c, first_cache = channel_blocking(problem), cache_sizes()[0]
    return _block_cycles(one_group(problem), (c.x_near, c.y_near), c.vectors, c.pixels, c.bands, first_cache)


@lru_cache(4096)
def _block_cycles(
    problem: ConvProblem, near: tuple[bool, bool], vectors: int, pixels: int, bands: int, first_cache: int
) -> float:
    """The same of the fields of a `ChannelBlocking`, of one group: kept for other numbers of them. Zen 5 with
    AVX-512: two products a cycle, pixels turned in 2 cycles in the first cache, 3.5 beyond."""
    c = ChannelBlocking(problem.as_3d, *near, vectors, pixels, bands)
    p = c.problem
    # nothing is left out of what meets a border
    whole = [taps * outputs for taps, outputs in zip(p.kernel, p.spatial_out, strict=True)]
    slices, rows, columns = whole if c.has_border else (taps_met(p, axis) for axis in range(3))
    blocks = -(-p.spatial_out[2] // c.pixels)
    products = columns * blocks * c.pixels / p.spatial_out[2]  # the last block overlaps
    loads = products if c.ranged else min(products, blocks * c.reach)
    channels = p.w_shape[1]
    shuffles = loads if max(channels, p.gemm_n) > 1 and c.groups > 1 else 0
    of_row = channels * (0.5 * products + SHUFFLE * shuffles) + 4 * blocks
    if c.ranged:
        checked = [-(-n // p.dilation[2]) for _, left, right in c.columns for n in (left, right)]
        checked_taps = sum(min(n, p.kernel[2]) for n in checked)
        of_row += channels * (RANGED * p.kernel[2] * blocks + CHECKED * c.pixels * checked_taps)
    elif channels > 1:
        at_once = {(0, 0), *ONE_COLUMN} if c.code[0] else {(0, 0)}
        of_row += BORDER * channels * sum((left, right) not in at_once for _, left, right in c.columns)
    kernel = slices * rows * of_row
    outputs = p.spatial_out[0] * (p.spatial_out[1] * (6 + 0.6 * c.pixels) * blocks)
    calls = 50 * blocks * c.bands + 15 * blocks * p.spatial_out[0] * (c.bands + p.kernel[1] - 1)
    turned = c.turned * c.bands / c.lanes
    turned *= 2 if c.scratch_bytes <= first_cache else 3.5
    return c.vectors * (kernel + outputs + turned) + calls + 80 * c.bands
