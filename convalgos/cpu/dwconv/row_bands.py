"""Bands of rows of outputs, and the rows of a map under them."""

from __future__ import annotations

from convalgos.cpu.runtime.threads import THREAD_UNITS, plan_threads

EVEN_UNITS = 16  # units of work for each thread, from which on it matters little if one has one more


def band_ends(rows: int, bands: int) -> list[tuple[int, int]]:
    """Of each band of some rows the first one, and one behind the last."""
    return [(rows * i // bands, rows * (i + 1) // bands) for i in range(bands)]


def plain_rows_under(
    first: int, end: int, height: int, stride: int, pad: int, extent: int
) -> tuple[int, int]:
    """Rows of a map that ends in zeros which some output rows read: the first, and one behind the last."""
    begin = min(height, max(0, first * stride - pad))
    return begin, max(begin, min(height, (end - 1) * stride - pad + extent))


def band_count(rows_out: int, rows: int, each: int, overlap: int, in_blocks: bool) -> int:
    """Bands for all threads.

    Args:
        rows: of outputs, that a band has at most.
        each: units of work of a band.
        overlap: rows of x that two bands share.
        in_blocks: whether these are read where they lie, in blocks of channels.
    """
    threads, bands = plan_threads(), -(-rows_out // rows)
    while bands < rows_out:
        units = each * bands
        if units >= THREAD_UNITS * threads or (units >= threads and rows_out // (bands + 1) <= overlap):
            break
        bands += 1
    units = each * bands
    uneven = units % threads and units < EVEN_UNITS * threads
    if in_blocks and uneven and rows_out // (threads * bands) > overlap:
        bands *= threads
    return bands
