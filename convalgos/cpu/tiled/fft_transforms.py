"""Real Fourier transforms of tiles, on vectors of channels or filters: the kernels that `boxes` calls.

A tile is transformed along its rows, whose spectra keep t / 2 + 1 columns, then along these. Points lie in
the order of columns: the first and the last, which are real before their transform and keep t / 2 + 1 values
each, then all others with t values. A value is a vector of real parts before one of imaginary parts. Inverse
transforms are not scaled: `filter_tiles` does that for them.
"""

from __future__ import annotations

from typing import Any

from convalgos.cpu.runtime import jit
from convalgos.cpu.tiled import fft_codelets
from convalgos.cpu.vectors import simd


def _load(v, pointer: Any) -> fft_codelets.Complex:
    return v.load(pointer), v.load(pointer, v.lanes)


def _store(v, value: fft_codelets.Complex, pointer: Any) -> None:
    re, im = value
    v.store(re, pointer)
    v.store(v.zero() if im is None else im, pointer, v.lanes)


def _store_points(v, values: list[fft_codelets.Complex], target: Any, point_step: Any) -> None:
    for i, value in enumerate(values):
        target = v.step(target, point_step if i else 0)
        _store(v, value, target)


def _load_points(v, count: int, source: Any, point_step: Any) -> list[fft_codelets.Complex]:
    values = []
    for i in range(count):
        source = v.step(source, point_step if i else 0)
        values.append(_load(v, source))
    return values


def _clamped(v, count: int, end: Any, stride: Any) -> list[tuple[int, Any]]:
    """(i, offset) for i < count, from behind: those from `end` on share the place of the last one before."""
    return [(i, v.imul(v.imin(i, v.isub(end, 1)), stride)) for i in reversed(range(count))]


class _Spectrum:
    """A tile between its transforms along rows and along columns: (row, column) of complex vectors."""

    def __init__(self, v, t: int):
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
def input_tile(v, T, DIMS, source, row_step, column_step, target, point_step):
    """t x t pixels, or t in one dimension, to points."""
    pixels, points = v.pointer(source), v.pointer(target)

    def row(start):
        return [v.load(start, v.imul(column_step, j)) for j in range(T)]

    if DIMS == 1:
        _store_points(v, fft_codelets.rfft(v.axpy, row(pixels)), points, point_step)
        return
    spectrum = _Spectrum(v, T)
    with v.loop(T) as i:
        spectrum.put_row(i, row(v.at(pixels, v.imul(row_step, i))))
    spectrum.columns_to_points(points, point_step)


@simd.emitter
def filter_tile(v, T, DIMS, source, row_step, column_step, target, point_step, rows, columns):
    """rows x columns taps, or `columns` in one dimension, to points, scaled for the way back."""
    taps, points = v.pointer(source), v.pointer(target)
    padded = v.buffer(T)
    for j in range(T):
        v.store(v.zero(), padded, j * v.lanes)

    def row(start):
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
def output_tile(v, T, DIMS, source, point_step, target, row_step, column_step, rows, columns):
    """Points to the first rows x columns pixels of a tile, or `columns` in one dimension."""
    points, pixels = v.pointer(source), v.pointer(target)

    def store(values, start):
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
def input_tiles(SIZE, LANES, T, DIMS):
    def input_tiles(source, row_step, column_step, tile_step, count, target, target_step, point_step):
        for i in range(count):
            input_tile(
                SIZE, LANES, T, DIMS, source + i * tile_step * SIZE, row_step, column_step,
                target + i * target_step * SIZE, point_step,
            )  # fmt: skip

    return input_tiles


@jit.specialise
def filter_tiles(SIZE, LANES, T, DIMS):
    def filter_tiles(
        source, row_step, column_step, tile_step, count, target, target_step, point_step, rows, columns
    ):
        for i in range(count):
            filter_tile(
                SIZE, LANES, T, DIMS, source + i * tile_step * SIZE, row_step, column_step,
                target + i * target_step * SIZE, point_step, rows, columns,
            )  # fmt: skip

    return filter_tiles


@jit.specialise
def output_tiles(SIZE, LANES, T, DIMS):
    def output_tiles(
        source, source_step, point_step, count, target, row_step, column_step, tile_step, rows, columns
    ):
        for i in range(count):
            output_tile(
                SIZE, LANES, T, DIMS, source + i * source_step * SIZE, point_step,
                target + i * tile_step * SIZE, row_step, column_step, rows, columns,
            )  # fmt: skip

    return output_tiles
