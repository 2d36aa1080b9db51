"""Where the vectors of a block of rows of pixels begin and go, and where its taps lie: tables of its kernels.

A block at the end of a map is cut short. For each way of being so, as `blocking.table_number` counts them,
there is a table. They are filled by a kernel: plans are made for every size of a map.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.cpu.gemm.offset_tables import short_counts, ways_to_be_short
from convalgos.cpu.gemm.row_blocking import RowBlocking
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.runtime.records import record_of_words
from convalgos.cpu.vectors import microkernel
from convalgos.cpu.vectors.simd import carray, pointer

ROW_TABLE_FIELDS = fields(
    "variants images slices rows columns last_images last_slices last_rows last_columns lanes out_h out_w "
    "staged length step_d step_h channels taps_d taps_h taps_w dilation_d dilation_h dilation_w s_c s_d s_h "
    "stride_w phase more vectors starts places counts offsets"
)


def row_tables(cut: RowBlocking) -> dict[str, int | np.ndarray]:
    """The tables of a block, int64, by their fields in the record of `row_driver`; the first holds them all.

    vectors (ways of being cut short,): how many there are; starts, places and counts (ways, table_length) of
    each: where it begins in scratch, where its pixels go (in y, or in the staged row), how many these are.
    offsets (taps,): where they lie in scratch, channels outermost, and some more that are only asked for.
    """
    p = cut.problem
    _, s_c, s_d, s_h = cut.strides
    step_d = s_d * (p.stride[0] if cut.steps[0] == 1 else 1)
    step_h = s_h * (p.stride[1] if cut.steps[1] == 1 else 1)
    sizes, totals = (cut.images, *cut.block), (p.N, *p.spatial_out)
    lasts = short_counts(sizes, totals)
    variants = ways_to_be_short(sizes, lasts)
    length, more = cut.vectors_of + cut.vectors, microkernel.PREFETCH_TAPS if p.gemm_k else 0
    table = aligned_empty(variants * (1 + 3 * length) + p.gemm_k + more, np.int64)
    begin = jit.data_address()(table)
    starts, places, counts, offsets = (begin + 8 * variants * (1 + n * length) for n in range(4))
    values = (
        variants, *sizes, *lasts, cut.lanes, *p.spatial_out[1:], cut.staged, length, step_d, step_h,
        p.w_shape[1], *p.kernel, *p.dilation, s_c, s_d, s_h, p.stride[2], cut.phase, more,
        begin, starts, places, counts, offsets,
    )  # fmt: skip
    record = record_of_words(ROW_TABLE_FIELDS, values)
    jit.launch(fill_row_tables(), jit.data_address()(record), 1)
    return {
        "vectors": table, "starts": starts, "places": places, "counts": counts, "offsets": offsets,
        "table_length": length,
    }  # fmt: skip


@jit.specialise
def fill_row_tables() -> Callable[..., None]:
    """`row_tables`."""

    def fill_row_tables(args: int, task: int) -> None:
        a = carray(pointer(args), 1, ROW_TABLE_FIELDS)[0]
        vectors = carray(pointer(a.vectors), a.variants, np.int64)
        for variant in range(a.variants):
            images = a.last_images if variant // 8 % 2 else a.images
            slices = a.last_slices if variant // 4 % 2 else a.slices
            rows = a.last_rows if variant // 2 % 2 else a.rows
            columns = a.last_columns if variant % 2 else a.columns
            starts = carray(pointer(a.starts + variant * a.length * 8), a.length, np.int64)
            places = carray(pointer(a.places + variant * a.length * 8), a.length, np.int64)
            counts = carray(pointer(a.counts + variant * a.length * 8), a.length, np.int64)
            width, found = images * columns, 0
            for o in range(slices):
                for i in range(rows):
                    row = (o * rows + i) * width
                    begin, end = o * a.step_d + i * a.step_h, width
                    place = row if a.staged else (o * a.out_h + i) * a.out_w
                    if a.staged or columns == a.out_w:
                        end = slices * rows * width - row  # what is stored behind a row, the next overwrites
                    for q in range(0, width, a.lanes):
                        starts[found], places[found] = begin + q, place + q
                        counts[found] = min(a.lanes, end - q)
                        found += 1
            vectors[variant] = found
            for spare in range(found, a.length):
                starts[spare], places[spare], counts[spare] = starts[0], 0, 0
        offsets = carray(pointer(a.offsets), 1, np.int64)
        tap = 0
        for c in range(a.channels):
            for t in range(a.taps_d):
                for r in range(a.taps_h):
                    outer = c * a.s_c + t * a.dilation_d * a.s_d + r * a.dilation_h * a.s_h
                    for s in range(a.taps_w):
                        column = s * a.dilation_w
                        offsets[tap] = outer + column % a.stride_w * a.phase + column // a.stride_w
                        tap += 1
        for spare in range(tap, tap + a.more):
            offsets[spare] = offsets[tap - 1]

    return fill_row_tables
