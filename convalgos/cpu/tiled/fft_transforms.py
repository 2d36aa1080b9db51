"""Real Fourier transforms of tiles, on vectors of channels or filters.

A tile is transformed along its rows, of whose spectra t / 2 + 1 columns are kept, then along these columns.
The points of a tile lie column by column: first the first and the last column, which are real before their
transform, with t / 2 + 1 values each; then all others with t values. A value is a vector of real parts and
then one of imaginary parts. Inverse transforms are not scaled: `spectral_filter_tiles` scales the filter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import fft_codelets, simd


def _load(v: simd.Vec, pointer: Any) -> fft_codelets.Complex:
    return v.load(pointer), v.load(pointer, v.lanes)


def _store(v: simd.Vec, value: fft_codelets.Complex, pointer: Any) -> None:
    re, im = value
    v.store(re, pointer)
    v.store(v.zero() if im is None else im, pointer, v.lanes)


def _store_points(v: simd.Vec, values: list[fft_codelets.Complex], target: Any, point_step: Any) -> None:
    for i, value in enumerate(values):
        target = v.step(target, point_step if i else 0)
        _store(v, value, target)


def _load_points(v: simd.Vec, count: int, source: Any, point_step: Any) -> list[fft_codelets.Complex]:
    values = []
    for i in range(count):
        source = v.step(source, point_step if i else 0)
        values.append(_load(v, source))
    return values


def _clamped(v: simd.Vec, count: int, end: Any, stride: Any) -> list[tuple[int, Any]]:
    """(i, offset) for i < count, from behind: those from `end` on share the place of the last one before."""
    return [(i, v.imul(v.imin(i, v.isub(end, 1)), stride)) for i in reversed(range(count))]


class _Spectrum:
    """A tile between its transforms along rows and along columns: (row, column) of complex vectors."""

    def __init__(self, v: simd.Vec, t: int) -> None:
        self.v = v
        self.t = t
        self.half = t // 2 + 1  # columns that are kept
        self.row = self.half * 2 * v.lanes  # elements
        self.values = v.buffer(t * self.half * 2)

    def at(self, row: Any, column: Any) -> Any:
        v = self.v
        return v.at(self.values, v.iadd(v.imul(row, self.row), v.imul(column, 2 * v.lanes)))

    def clear(self) -> None:
        with self.v.loop(self.t * self.half * 2) as i:
            self.v.store(self.v.zero(), self.values, self.v.imul(i, self.v.lanes))

    def put_row(self, i: Any, pixels: list[Any]) -> None:
        for j, value in enumerate(fft_codelets.rfft(self.v.axpy, pixels)):
            _store(self.v, value, self.at(i, j))

    def get_row(self, i: Any) -> list[Any]:
        values = [_load(self.v, self.at(i, j)) for j in range(self.half)]
        return fft_codelets.irfft(self.v.axpy, _real_ends(values), self.t)

    def columns_to_points(self, target: Any, point_step: Any) -> None:
        """The first and the last column are real before their transform, and half redundant behind it."""
        v, t, half = self.v, self.t, self.half
        with v.loop(2) as end:
            column = v.imul(end, half - 1)
            values = fft_codelets.rfft(v.axpy, [v.load(self.at(i, column)) for i in range(t)])
            _store_points(v, values, v.at(target, v.imul(point_step, v.imul(end, half))), point_step)
        with v.loop(half - 2) as j:
            column = v.iadd(j, 1)
            values = fft_codelets.fft(
                v.axpy, [_load(v, self.at(i, column)) for i in range(t)], fft_codelets.FORWARD
            )
            first = v.imul(point_step, v.iadd(v.imul(j, t), 2 * half))
            _store_points(v, values, v.at(target, first), point_step)

    def points_to_columns(self, source: Any, point_step: Any, rows: Any) -> None:
        """`columns_to_points` run backwards, for the first `rows` rows."""
        v, t, half = self.v, self.t, self.half
        with v.loop(2) as end:
            points = _load_points(v, half, v.at(source, v.imul(point_step, v.imul(end, half))), point_step)
            real = fft_codelets.irfft(v.axpy, _real_ends(points), t)
            for i, offset in _clamped(v, t, rows, self.row):
                v.store(real[i], self.at(0, v.imul(end, half - 1)), offset)
        with v.loop(half - 2) as j:
            first = v.imul(point_step, v.iadd(v.imul(j, t), 2 * half))
            points = _load_points(v, t, v.at(source, first), point_step)
            values = fft_codelets.fft(v.axpy, points, fft_codelets.INVERSE)
            for i, offset in _clamped(v, t, rows, self.row):
                _store(v, values[i], v.at(self.at(0, v.iadd(j, 1)), offset))


def _real_ends(values: list[fft_codelets.Complex]) -> list[fft_codelets.Complex]:
    """The spectrum of reals: its first and its last value are real."""
    ends = (0, len(values) - 1)
    return [(re, None if i in ends else im) for i, (re, im) in enumerate(values)]


@simd.emitter
def spectral_input_tile(
    v: simd.Vec, T: int, DIMS: int, source: Any, row_step: Any, column_step: Any, target: Any, point_step: Any
) -> None:
    """t x t pixels, or t in one dimension, to points."""
    pixels, points = v.pointer(source), v.pointer(target)

    def row(start: Any) -> Any:
        return [v.load(start, v.imul(column_step, j)) for j in range(T)]

    if DIMS == 1:
        _store_points(v, fft_codelets.rfft(v.axpy, row(pixels)), points, point_step)
        return
    spectrum = _Spectrum(v, T)
    with v.loop(T) as i:
        spectrum.put_row(i, row(v.at(pixels, v.imul(row_step, i))))
    spectrum.columns_to_points(points, point_step)


@simd.emitter
def spectral_filter_tile(
    v: simd.Vec, T: int, DIMS: int, source: Any, row_step: Any, column_step: Any, target: Any,
    point_step: Any, rows: Any, columns: Any,
) -> None:  # fmt: skip
    """rows x columns taps, or `columns` in one dimension, to points, scaled for the way back."""
    taps, points = v.pointer(source), v.pointer(target)
    padded = v.buffer(T)
    for j in range(T):
        v.store(v.zero(), padded, j * v.lanes)

    def row(start: Any) -> Any:
        with v.loop(columns) as j:
            tap = v.scale(T**-DIMS, v.load(start, v.imul(column_step, j)))
            v.store(tap, padded, v.imul(j, v.lanes))
        return [v.load(padded, j * v.lanes) for j in range(T)]

    if DIMS == 1:
        _store_points(v, fft_codelets.rfft(v.axpy, row(taps)), points, point_step)
        return
    spectrum = _Spectrum(v, T)
    spectrum.clear()
    with v.loop(rows) as i:
        spectrum.put_row(i, row(v.at(taps, v.imul(row_step, i))))
    spectrum.columns_to_points(points, point_step)


@simd.emitter
def spectral_output_tile(
    v: simd.Vec, T: int, DIMS: int, source: Any, point_step: Any, target: Any, row_step: Any,
    column_step: Any, rows: Any, columns: Any,
) -> None:  # fmt: skip
    """Points to the first rows x columns pixels of a tile, or `columns` in one dimension."""
    points, pixels = v.pointer(source), v.pointer(target)

    def store(values: Any, start: Any) -> None:
        for j, offset in _clamped(v, T, columns, column_step):
            v.store(values[j], start, offset)

    if DIMS == 1:
        values = _real_ends(_load_points(v, T // 2 + 1, points, point_step))
        store(fft_codelets.irfft(v.axpy, values, T), pixels)
        return
    spectrum = _Spectrum(v, T)
    spectrum.points_to_columns(points, point_step, rows)
    with v.loop(rows) as i:
        store(spectrum.get_row(i), v.at(pixels, v.imul(row_step, i)))


@jit.specialise
def spectral_input_tiles(SIZE: int, LANES: int, T: int, DIMS: int) -> Callable[..., None]:
    def spectral_input_tiles(
        source: int, row_step: int, column_step: int, tile_step: int, count: int, target: int,
        target_step: int, point_step: int,
    ) -> None:  # fmt: skip
        for i in range(count):
            spectral_input_tile(
                SIZE, LANES, T, DIMS, source + i * tile_step * SIZE, row_step, column_step,
                target + i * target_step * SIZE, point_step,
            )  # fmt: skip

    return spectral_input_tiles


@jit.specialise
def spectral_filter_tiles(SIZE: int, LANES: int, T: int, DIMS: int) -> Callable[..., None]:
    def spectral_filter_tiles(
        source: int, row_step: int, column_step: int, tile_step: int, count: int, target: int,
        target_step: int, point_step: int, rows: int, columns: int,
    ) -> None:  # fmt: skip
        for i in range(count):
            spectral_filter_tile(
                SIZE, LANES, T, DIMS, source + i * tile_step * SIZE, row_step, column_step,
                target + i * target_step * SIZE, point_step, rows, columns,
            )  # fmt: skip

    return spectral_filter_tiles


@jit.specialise
def spectral_output_tiles(SIZE: int, LANES: int, T: int, DIMS: int) -> Callable[..., None]:
    def spectral_output_tiles(
        source: int, source_step: int, point_step: int, count: int, target: int, row_step: int,
        column_step: int, tile_step: int, rows: int, columns: int,
    ) -> None:  # fmt: skip
        for i in range(count):
            spectral_output_tile(
                SIZE, LANES, T, DIMS, source + i * source_step * SIZE, point_step,
                target + i * tile_step * SIZE, row_step, column_step, rows, columns,
            )  # fmt: skip

    return spectral_output_tiles
