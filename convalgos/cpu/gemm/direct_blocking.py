"""How the outputs of `cpu.direct` are cut, and dealt to threads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from convalgos.core.allocator import whole_lines
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.machine import Machine, cache_sizes
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import dealt_panels, packed_blocking, panels
from convalgos.cpu.gemm.blocking import Blocks, block_lengths, busiest, cut_map, flat_view
from convalgos.cpu.layout import strided_rows
from convalgos.cpu.runtime.threads import cached_by_threads, plan_threads
from convalgos.cpu.vectors import microkernel, simd

PIXELS = 896  # of a block: enough to reuse a panel of filters, few enough for scratch in L2; Zen 5
BLOCK_OUTPUTS = 4  # outputs of all filters computed in the time that a block begins and ends
FEW = 8  # tasks for each thread, up to which their sizes are weighed one by one


@dataclass(frozen=True)
class DirectBlocking(dealt_panels.DealtPanels, Blocks):
    """How the output is cut."""

    rows: int  # of the micro-kernel
    panels: int
    filter_parts: int  # into which the filters are cut to feed all threads

    @cached_attribute
    def parts_first(self) -> bool:
        """Whether threads get parts of the filters rather than blocks."""
        return _dealt(self.problem).parts_first

    @cached_attribute
    def scratch_bytes(self) -> int:
        """Per task: input, then [pixel][panel] sums with spare rows for the tail of the micro-kernel."""
        sums = (self.pixels + 2 * self.rows + simd.lanes(self.problem.itemsize)) * self.panel
        return whole_lines((self.input_elements + sums) * self.problem.itemsize)

    def busiest(self, threads: int) -> float:
        """Work of the busiest of some threads, in outputs of all filters."""
        sizes, block = (self.problem.N, *self.problem.spatial_out), (self.images, *self.block)
        return _busiest(sizes, block, self.rows, _dealt(self.problem), self.filter_parts, threads)


@cached_by_threads(256)
def direct_blocking(problem: ConvProblem) -> DirectBlocking:
    p, lanes, threads = flat_view(_as_stored(problem)), simd.lanes(problem.itemsize), plan_threads()
    rows, count = dealt_panels.panel_tile(p.gemm_n, p.itemsize)
    copied = any(pad != (0, 0) for pad in p.padding)
    pixels = PIXELS
    if copied:  # scratch of the input stays within half of L2
        room = cache_sizes()[1] // 2 // (p.itemsize * max(1, p.w_shape[1]))  # input pixels
        pixels = max(32, min(pixels, room // 2))
    parts = min(threads, count)  # at most
    sizes = (p.N, *p.spatial_out)
    dealt, waits = _dealt(p), 0
    if dealt.parts_first and p.y_layout == "channels_first":
        pixel = max(1.0, p.gemm_k / 2 * -(-p.gemm_n // lanes))  # cycles of all filters
        waits = round(packed_blocking.waiting(p, threads) / pixel)
    images, block, parts = _cut_outputs(sizes, pixels, lanes, rows, dealt, parts, waits, threads)
    count = dealt_panels.panels_of_parts(-(-p.gemm_n // lanes), count, parts)
    return DirectBlocking(p, images, block, copied, _even_rows(images, block, rows), count, parts)


def _as_stored(problem: ConvProblem) -> ConvProblem:
    """The problem whose outputs of one pixel have their filters as neighbours: channels last is the same
    memory, and stored and activated by whole vectors."""
    if math.prod(problem.spatial_out) != 1 or problem.y_layout != "channels_first":
        return problem
    return problem.with_valid(y_layout="channels_last")


def direct_fields(cut: DirectBlocking, known: bool = False) -> dict[str, Any]:
    """The fields of the record of a plan, which takes panels of this cut through a table of pixels.

    Args:
        known: whether those are known which are the same on maps of all sizes.
    """
    p, last = cut.problem, cut.problem.layout == "channels_last"
    size, lanes = p.itemsize, simd.lanes(p.itemsize)
    pixel_table = cut.pixel_table(spare=cut.rows)
    kernels = dealt_panels.panel_kernels(
        panels.sum_panel, size, cut.rows, cut.vectors_of, cut.panels, microkernel.PREFETCH_TAPS
    )
    return {
        **(cut.changed_fields() if known else cut.fields()),
        "parts": cut.filter_parts, "parts_first": int(cut.parts_first), "taps": p.gemm_k,
        "chunk": panels.chunk(p.gemm_k), "tasks": plan_threads(),
        "pixel_table": pixel_table, "table_length": pixel_table.shape[1],
        "offsets": cut.tap_offsets(by_channel=not last, spare=microkernel.PREFETCH_TAPS),
        "load_c": 1 if last else p.w_shape[1], "last": int(last),
        "scratch_stride": cut.scratch_bytes, "stream": int(panels.streams_panels(p)),
        "store_run": panels.store_run(size, lanes), **kernels,
    }  # fmt: skip


Sizes = tuple[int, int, int, int]  # along (N, O, P, Q)


class Dealt(NamedTuple):
    """In what order threads get their items. They share groups and parts of filters rather than pixels, and
    write no cache line in common, where maps lie apart and no input is copied for all parts."""

    groups: int  # one after the other,
    groups_of_block: int  # or all of them in each block
    parts_first: bool  # of the filters, or those of a block one after the other


def _dealt(p: ConvProblem) -> Dealt:
    if p.layout == "channels_last":
        return Dealt(1, p.groups, False)
    return Dealt(p.groups, 1, all(pad == (0, 0) for pad in p.padding))


@lru_cache(4096)
def _cut_outputs(
    sizes: Sizes, most: int, lanes: int, rows: int, dealt: Dealt, most_parts: int, waits: int, threads: int
) -> tuple[int, tuple[int, int, int], int]:
    """Images and outputs of a block, of about `most` pixels, and the parts of its filters.

    Kept for the next layer on a map of these sizes.

    Args:
        rows: of the micro-kernel.
        most_parts: of the filters of a group.
        waits: outputs of all filters computed in the time in which threads that share pixels wait.
    """
    n, o, p, q = sizes
    pixels, groups = most, dealt.groups * dealt.groups_of_block
    while pixels > 32 and dealt.groups * math.prod(sizes) / pixels < threads:  # work for every thread
        pixels //= 2
    images, block = 1, (o, p, q)
    if o * p * q <= pixels // 2:
        images = max(1, min(pixels // (o * p * q), -(-n // threads)))
        shares = -(-n // images)
        images = -(-n // min(n, -(-shares // threads) * threads))  # as many blocks for each thread
    else:
        block = cut_map(pixels, (o, p, q), lanes)
    blocks = -(-n // images) * math.prod(-(-size // b) for size, b in zip((o, p, q), block, strict=True))
    if blocks * groups >= FEW * threads:
        return images, block, 1
    # Few blocks: even ones, of fewer rows or with their filters in parts, for all threads to end at once.
    heights = {block[1]}
    if images == 1 and block[0] == 1 and block[2] == q:
        low, high = block[1] // 2, max(block[1], most // q)
        heights |= {h for h in (-(-p // count) for count in range(1, 4 * threads)) if low <= h <= high}
    columns = blocks // -(-p // block[1])  # of blocks
    bounds = sorted(  # of the work of the busiest thread, as if that of all were dealt evenly
        (
            groups * (math.prod(sizes) + BLOCK_OUTPUTS * parts * columns * -(-p // height)) / threads
            + (waits if parts == 1 else 0),
            -height,
            parts,
        )
        for height in heights
        for parts in {1, most_parts}
    )
    best = (math.inf, 0, 1)  # work, and of equals the largest blocks
    for least, minus_height, parts in bounds:
        if least > best[0]:
            break
        tried = (block[0], -minus_height, block[2])
        even = _even_rows(images, tried, rows)
        work = _busiest(sizes, (images, *tried), even, dealt, parts, threads) + (waits if parts == 1 else 0)
        best = min(best, (work, minus_height, parts))
    return images, (block[0], -best[1], block[2]), best[2]


def _even_rows(images: int, block: tuple[int, int, int], rows: int) -> int:
    """Of the micro-kernel, at most `rows`: equal tiles instead of a short last one."""
    pixels = images * math.prod(block)
    return -(-pixels // -(-pixels // rows))


@lru_cache(4096)
def _busiest(sizes: Sizes, block: Sizes, rows: int, dealt: Dealt, parts: int, threads: int) -> float:
    """Work of the busiest thread, in outputs of all filters, with what each block costs beside them."""
    pixels = [1] * dealt.groups  # of every block, the last ones of each dimension being cut short
    whole = math.prod(size for size, along in zip(sizes, block, strict=True) if along >= size)
    for size, along in zip(sizes, block, strict=True):
        if along < size:
            pixels = [n * m for n in pixels for m in block_lengths(size, along)]
    # in parts of filters, with the spare rows of tiles
    pixels = [n * whole for n in pixels]
    work = [max(n, -(-n // rows) * (rows - 1)) + BLOCK_OUTPUTS * parts for n in pixels]
    if dealt.parts_first:
        return busiest(work * parts, 1, threads) / parts
    return busiest(work, dealt.groups_of_block * parts, threads) / parts


def copied_seconds(cut: DirectBlocking, machine: Machine) -> float:
    """Seconds to copy the input of every block, once for each thread that computes parts of its filters."""
    if not cut.copied:
        return 0.0
    p, (d, h, w) = cut.problem, cut.spans
    lanes = simd.lanes(p.itemsize)
    planes = math.prod(cut.blocks) * p.groups * cut.filter_parts * cut.images * d
    if p.layout == "channels_last":  # rows of pixels of all channels
        rows, vectors = planes * h, -(-w * p.C // lanes)
    else:
        planes *= -(-p.w_shape[1] // cut.unit)
        rows, vectors = planes * h, -(-w * cut.unit // lanes)
    return strided_rows.copying_seconds(planes, rows, vectors, lanes, machine.peak(p.dtype))
