"""Bands of rows of outputs, and the rows of a map under them."""

from __future__ import annotations


def band_ends(rows: int, bands: int) -> list[tuple[int, int]]:
    """Of each band of some rows the first one, and one behind the last."""
    return [(rows * i // bands, rows * (i + 1) // bands) for i in range(bands)]


def plain_rows_under(
    first: int, end: int, height: int, stride: int, pad: int, extent: int
) -> tuple[int, int]:
    """Rows of a map that ends in zeros which some output rows read: the first, and one behind the last."""
    begin = min(height, max(0, first * stride - pad))
    return begin, max(begin, min(height, (end - 1) * stride - pad + extent))
