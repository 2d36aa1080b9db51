"""Exact convolutions of integers of up to 64 bits, by number-theoretic transforms of blocks.

The larger array is cut into blocks that overlap by the filter (overlap-save), each of which is transformed
modulo as many primes as the largest possible sum asks for; arrays of several axes are convolved as one line,
whose rows have room for the filter's. Sums that int64 cannot hold wrap around, as they do when they are added
up one after the other.

Source: Pollard 1971, "The fast Fourier transform in a finite field"; Nussbaumer 1982, "Fast Fourier Transform
and Convolution Algorithms", chapter 8.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from convalgos.core.machine import cache_sizes, vector_bytes
from convalgos.cpu.runtime import jit
from convalgos.cpu.spectral import residue_kernels as kernels
from convalgos.cpu.spectral import residues

LEAST_BLOCK = 1 << 12  # elements; shorter ones spend their time between kernels
BLOCK_OF_FILTERS = 4  # blocks are at least so many times as long as the filter; Zen 4
LONGEST_BLOCK = 1 << residues.LOG_ORDER
# Seconds of a call, of a result, and of a level of an element modulo a prime; Sapphire Rapids, 2 threads
CALL, RESULT, BUTTERFLY = 1.5e-4, 8e-9, 1.5e-10
TOUCHED = 16  # bytes of an element of a block: as many times as these fill L2, up to 2, add half


def convolved_integers(x: np.ndarray, w: np.ndarray, largest: int) -> np.ndarray:
    """The full convolution of two arrays of equally many axes, int64, modulo 2^64.

    Args:
        x, w: int64; the larger one and the filter.
        largest: no exact sum has a larger absolute value.

    Raises:
        ValueError: a filter has more than half as many elements as a block may.
    """
    full = [n + k - 1 for n, k in zip(x.shape, w.shape, strict=True)]
    lines = []
    for a in (x, w):  # with rows as long as those of the result
        whole = np.zeros((a.shape[0], *full[1:]), np.int64)
        whole[tuple(map(slice, a.shape))] = a
        lines.append(whole.reshape(-1))
    y = _line(lines[0], lines[1][: _taps(full, w.shape)], math.prod(full), largest)
    return y.reshape(full)


def _taps(full: Sequence[int], w_shape: Sequence[int]) -> int:
    """Elements of the filter's line, in rows as long as those of the result."""
    taps = 1
    for i, k in enumerate(w_shape):
        taps += (k - 1) * math.prod(full[i + 1 :])
    return taps


def _line(x: np.ndarray, w: np.ndarray, count: int, largest: int) -> np.ndarray:
    """The first `count` elements of the convolution of two lines (n,), (k,)."""
    blocks = LineBlocks(count, w.size)
    padded = np.zeros(blocks.reads, np.int64)
    known = min(x.size, padded.size - (w.size - 1))
    padded[w.size - 1 : w.size - 1 + known] = x[:known]
    factors = blocks.factors(w, residues.primes_for(largest))
    y = np.empty(blocks.writes, np.int64)
    blocks.convolve(padded, factors, y, blocks.scratch(len(factors)))
    return y[:count]


class LineBlocks:
    """A line of `count` results of a filter of so many taps, in blocks that overlap by the filter.

    Result i is the sum of x[i + t] * w[taps - 1 - t]: x begins with what lies before the first result.
    """

    def __init__(self, count: int, taps: int):
        self.n = block_length(count, taps)
        self.taps = taps
        self.step = self.n - taps + 1
        self.blocks = -(-count // self.step)
        self.lanes = vector_bytes() // kernels.WORD
        self.reads = taps - 1 + self.blocks * self.step  # elements of x
        self.writes = -(-self.blocks * self.step // self.lanes) * self.lanes  # of y, in whole vectors

    def scratch(self, primes: int) -> np.ndarray:
        return np.empty((primes, self.writes), np.uint32)

    def factors(self, w: np.ndarray, primes: int) -> list[np.ndarray]:
        """The spectra of a filter w (taps,), int64: one for each of so many primes."""
        taps = np.zeros(self.n, np.int64)
        taps[: w.size] = w
        spectra = np.empty((primes, self.n), np.uint32)
        self._transform(taps, spectra, None, 0, self.n, 1)
        return [_interleaved(spectrum, residues.PRIMES[i], self.lanes) for i, spectrum in enumerate(spectra)]

    def convolve(self, x: np.ndarray, factors: list[np.ndarray], y: np.ndarray, scratch: np.ndarray) -> None:
        """x (reads,) to y (writes,), both of int64, or of int32 where x are short numbers."""
        primes = len(factors)
        self._transform(x, scratch, factors, self.taps - 1, self.step, self.blocks)
        table = residues.garner(primes)
        tasks = min(jit.thread_count(), self.writes // self.lanes)
        record = _record(
            kernels.GARNER_FIELDS, residues=scratch.ctypes.data, y=y.ctypes.data, plane=self.writes,
            count=self.writes, table=table.ctypes.data, tasks=tasks,
        )  # fmt: skip
        share = kernels.garner_share(self.lanes, primes, y.itemsize)
        jit.launch(share, record.ctypes.data, tasks)

    def _transform(
        self, x: np.ndarray, y: np.ndarray, factors: list[np.ndarray] | None, first: int, count: int,
        blocks: int,
    ) -> None:  # fmt: skip
        """Blocks of x (at least step * (blocks - 1) + n,) to residues or spectra y (primes, plane)."""
        primes = len(y) if factors is None else len(factors)
        tables = [residues.prime_for(i, self.n, self.lanes) for i in range(primes)]
        # a filter is divided by n, for the way back
        scales = [1 if factors else pow(self.n, -1, p) for p in residues.PRIMES[:primes]]
        constants = [residues.reduction_constants(i, scale) for i, scale in enumerate(scales)]
        rows = np.zeros(primes, kernels.PRIME_FIELDS)
        for i, table in enumerate(tables):
            arrays = (
                constants[i],
                table.roots,
                table.inverse_roots,
                table.tile_roots,
                table.inverse_tile_roots,
            )
            spectrum = 0 if factors is None else factors[i].ctypes.data
            rows[i] = (*(array.ctypes.data for array in arrays), spectrum)
        tasks = min(jit.thread_count(), blocks * primes)
        buffers = np.empty((tasks, self.n), np.uint32)
        record = _record(
            kernels.RESIDUE_FIELDS, x=x.ctypes.data, y=y.ctypes.data, n=self.n, step=self.step, first=first,
            count=count, plane=y.shape[-1], blocks=blocks, primes=rows.ctypes.data, prime_count=primes,
            prepares=int(factors is None), scratch=buffers.ctypes.data, tasks=tasks,
        )  # fmt: skip
        jit.launch(kernels.residue_share(self.lanes, x.itemsize), record.ctypes.data, tasks)


def ntt_seconds(x_shape: tuple[int, ...], w_shape: tuple[int, ...], largest: int) -> float:
    """Of `convolved_integers`; infinite for what it does not take."""
    full = [n + k - 1 for n, k in zip(x_shape, w_shape, strict=True)]
    count, taps = math.prod(full), _taps(full, w_shape)
    if 2 * taps > LONGEST_BLOCK or 4 * largest >= math.prod(residues.PRIMES):
        return math.inf
    n = block_length(count, taps)
    blocks = 1 + -(-count // (n - taps + 1))
    butterfly = BUTTERFLY * (1 + min(2, n * TOUCHED / cache_sizes()[1]) / 2)
    transforms = butterfly * residues.primes_for(largest) * blocks * n * math.log2(n)
    return CALL + RESULT * count + transforms


def block_length(count: int, taps: int) -> int:
    """Elements of a block: a power of 2, at least the result or some times the filter.

    Raises:
        ValueError: the filter is too long.
    """
    if 2 * taps > LONGEST_BLOCK:
        raise ValueError(f"a filter of {taps} elements is longer than half a block, {LONGEST_BLOCK // 2}")
    wished = min(count + taps, max(LEAST_BLOCK, BLOCK_OF_FILTERS * taps))
    return int(min(LONGEST_BLOCK, 1 << max(9, (wished - 1).bit_length())))


def _interleaved(spectrum: np.ndarray, p: int, lanes: int) -> np.ndarray:
    """uint32 (n / lanes, 2, lanes): the spectrum, with its c'."""
    rows = spectrum.reshape(-1, lanes)
    found = np.empty((len(rows), 2, lanes), np.uint32)
    found[:, 0] = rows
    wide = rows.astype(np.uint64)
    wide <<= np.uint64(32)
    wide //= np.uint64(p)  # in place: new arrays of so many elements take longer
    found[:, 1] = wide
    return found


def _record(kind: np.dtype, **values: int) -> np.ndarray:
    """(1,): the arguments of a kernel."""
    return np.array([tuple(values[name] for name in kind.names or ())], kind)
