"""The input under a block of outputs, copied with its border into scratch that stays in L2."""

from __future__ import annotations

from typing import Any

from convalgos.cpu.gemm.blocking import BlockExtent, input_start
from convalgos.cpu.layout import strided_rows
from convalgos.cpu.layout.copied_borders import copy_bordered_plane, place_source
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors.simd import copy_bytes, zero_bytes


@jit.helper
def copy_block_images(a: Any, b: BlockExtent, x: int, scratch: int, channels: int) -> None:
    """The input under a block, image by image, with its border: `copy_block`. x: of the first image."""
    d, h, w = input_start(a, b)
    count_d = (b.slices - 1) * (a.stride_d if a.step_d == 1 else 1) + a.span_d
    count_h = (b.rows - 1) * (a.stride_h if a.step_h == 1 else 1) + a.span_h
    count_w = (b.columns - 1) * a.stride_w + a.span_w
    for i in range(b.images):
        from_, to = x + i * a.x_n * a.size, scratch + i * a.s_n * a.size
        copy_block(a, from_, to, channels, d, h, w, count_d, count_h, count_w)


@jit.helper
def copy_block(
    a: Any, x: int, scratch: int, channels: int, d0: int, h0: int, w0: int, count_d: int, count_h: int,
    count_w: int,
) -> None:  # fmt: skip
    """x[c, d0.., h0.., w0..] into scratch[c, count_d, count_h, count_w], zero outside of x; all in bytes.

    Channels first a row is one of `channels`; else `unit` of them lie side by side, all or a block of them.
    """
    before = min(count_w, max(0, -w0))
    inside = count_w - before - min(count_w - before, max(0, w0 + count_w - a.width))
    vectors = (count_w + a.lanes - 1) // a.lanes * a.lanes
    rows = strided_rows.rows_of(h0, a.step_h, count_h, a.height)
    bordered = a.sources_h or a.sources_w
    for c in range(0, channels, a.unit):
        for i in range(count_d):
            d = place_source(a.sources_d, a.pad_d, a.depth, d0 + i * a.step_d)
            plane = x + (c * a.x_c + d * a.x_d + (w0 + before) * a.x_w) * a.size
            to = scratch + (c * a.s_c + i * a.s_d) * a.size
            there = inside if d >= 0 else 0
            if a.unit == 1 and bordered and d >= 0:
                begin = plane - (w0 + before) * a.size
                copy_bordered_plane(
                    a, begin, a.x_h, rows, w0, count_w, before, inside, to, a.s_h, vectors, 1, 1
                )
            elif a.unit == 1:
                strided_rows.copy_plane(
                    a.copy_rows, a.size, plane, a.x_h, rows, before, there, to, a.s_h, vectors, 1, 1,
                )  # fmt: skip
            else:
                copy_pixel_rows(a, plane, h0, count_h, w0, before, inside, count_w, d >= 0, to)


@jit.helper
def copy_pixel_rows(
    a: Any, plane: int, h0: int, count_h: int, w0: int, before: int, inside: int, count_w: int, there: bool,
    to: int,
) -> None:  # fmt: skip
    """Rows of a slice of `count_w` pixels of `unit` channels from column w0 on, of which `inside` lie in x
    behind `before`; zeros unless the slice is there. plane: at the first column inside."""
    pixel = a.unit * a.size
    for j in range(count_h):
        h = place_source(a.sources_h, a.pad_h, a.height, h0 + j * a.step_h)
        row, from_ = to + j * a.s_h * a.size, plane + h * a.x_h * a.size
        if h < 0 or not there or (inside == 0 and not a.sources_w):
            zero_bytes(row, count_w * pixel)
            continue
        if a.sources_w:
            begin = from_ - (w0 + before) * pixel
            for place in range(count_w):
                if place < before or place >= before + inside:
                    w = place_source(a.sources_w, a.pad_w, a.width, w0 + place)
                    copy_bytes(row + place * pixel, begin + w * pixel, pixel)
            copy_bytes(row + before * pixel, from_, inside * pixel)
            continue
        if before:
            zero_bytes(row, before * pixel)
        copy_bytes(row + before * pixel, from_, inside * pixel)
        after = count_w - before - inside
        if after:
            zero_bytes(row + (before + inside) * pixel, after * pixel)
