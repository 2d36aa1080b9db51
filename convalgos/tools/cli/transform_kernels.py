"""The kernels of spectra and of tiles: FFTs, Winograd's and other short convolutions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

from convalgos.core.machine import vector_bytes
from convalgos.cpu import (
    fft_planes,
    fft_tiles,
    symbolic_fourier,
    winograd,
    winograd_data,
    winograd_nested,
    winograd_weights,
)
from convalgos.cpu.spectral import blocking, plane_driver, plane_transforms, products
from convalgos.cpu.spectral import kernels as spectral_kernels
from convalgos.cpu.tiled import (
    bilinear_transforms,
    fft_transforms,
    overlap_driver,
    spectral_schedule,
    winograd_transforms,
)
from convalgos.cpu.tiled.pooled_tiles import WINDOW

Compiled = tuple[Callable[..., object], tuple[int, ...]]  # a factory of `jit.specialise` and what it is given


def transform_kernels(size: int, lanes: int) -> Iterator[Compiled]:
    """Those of elements of so many bytes."""
    yield from _of_spectra(size, lanes)
    yield from _of_transforms(size, lanes)


def _of_spectra(size: int, lanes: int) -> Iterator[Compiled]:
    """Of products of spectra, of tiles and of whole maps."""
    wide = vector_bytes()
    for rows in range(1, spectral_schedule.ROWS[wide] + 1):
        yield fft_tiles.sum_complex_panel, (size, lanes, rows)
    filters, blocks = blocking.PRODUCT_TILES[wide]
    for f, b in product((1, 2, 4), (1, 2)):
        if f <= filters and b <= blocks:
            for parts in (2, 3):
                yield products.multiply_planes, (size, lanes, f, b, parts)
    for parts in (2, 3):
        yield spectral_kernels.pack_spectra, (size, lanes, parts)
    yield plane_driver.convolve_tiles, (size,)
    for factory in (
        plane_transforms.columns_to_spectrum,
        plane_transforms.multiply_spectrum,
        plane_transforms.spectrum_to_columns,
    ):
        for parts in fft_planes.PARTS:
            yield factory, (size, lanes, parts)


def _of_transforms(size: int, lanes: int) -> Iterator[Compiled]:
    """Of the tiles of all Winograd and FFT algorithms."""
    t = winograd_transforms
    for pooled in winograd.ALGORITHMS:
        if size == 4 and pooled.m % WINDOW == 0:  # networks, which pool so, are of float32
            yield t.winograd_pooled_tiles, (size, lanes, pooled.m, pooled.r)
    for factory in (overlap_driver.write_overlapping, overlap_driver.add_apart):
        yield factory, (size, lanes)
    for dims in (1, 2):
        for a in winograd.ALGORITHMS:
            yield t.winograd_point_tiles, (size, lanes, a.m, a.r, dims, t.INPUTS)
            for factory in (t.winograd_filter_tiles, t.winograd_finished_tiles):
                yield factory, (size, lanes, a.m, a.r, dims)
        for d in winograd_data.ALGORITHMS:
            yield t.winograd_point_tiles, (size, lanes, d.m, d.r, dims, t.OUTPUTS)
            yield t.winograd_added_tiles, (size, lanes, d.m, d.r, dims)
        for b in winograd_weights.ALGORITHMS:
            for of in (t.INPUTS, t.TAPS):
                yield t.winograd_point_tiles, (size, lanes, b.r, b.m, dims, of)
            yield t.winograd_output_tiles, (size, lanes, b.r, b.m, dims)
        for c in (*symbolic_fourier.ALGORITHMS, *winograd_nested.ALGORITHMS):
            for factory in (
                bilinear_transforms.bilinear_input_tiles,
                bilinear_transforms.bilinear_filter_tiles,
                bilinear_transforms.bilinear_finished_tiles,
            ):
                yield factory, (size, lanes, c.schedule.kind, c.m, c.r, dims)
        for f in fft_tiles.ALGORITHMS:
            for factory in (
                fft_transforms.spectral_input_tiles,
                fft_transforms.spectral_filter_tiles,
                fft_transforms.spectral_output_tiles,
            ):
                yield factory, (size, lanes, f.t, dims)
