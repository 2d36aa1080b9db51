"""The predicted time of a problem by FFTs, and the blocks of a map that take the least.

There are hundreds of ways to cut a map into blocks, and a choice may ask for the best of them only to leave
it out. So lower bounds come first: of all ways (`least_one_block`, `least_overlapping`), of blocks by their
size alone (`closest_seconds`), and of each way. The ways are weighed in the order of their bounds.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import product

from convalgos.core.machine import Machine
from convalgos.core.problem import ConvProblem
from convalgos.cpu.runtime.threads import cached_by_threads
from convalgos.cpu.spectral.blocking import (
    BlockedAxis,
    ChunkSchedule,
    FftBlocking,
    blocked_axis,
    chunk_schedule,
)
from convalgos.cpu.spectral.lengths import spectrum_size, speed

FILTER_LIMIT = 256 << 20  # bytes of a filter's spectrum, beyond which no one would want it
SHORTEST, LONGEST = 2, 16  # FFT lengths that are tried for blocks, as multiples of the kernel
SMALLEST, LARGEST = 256, 1 << 18  # elements of a block; smaller ones only cost calls, larger ones leave L2

# Rates of one thread as shares of its peak, calibrated on Zen 5 with AVX-512 (2.6e11 and 1.3e11 flop/s).
# FFTW has 32-byte code only, so that its share doubles where the peak is one of 32-byte vectors.
FFT_RATE = {("fftw", 4): 0.18, ("fftw", 8): 0.24, ("mkl", 4): 0.16, ("mkl", 8): 0.17}
SEVERAL = {4: 0.7, 8: 0.85}  # of that rate, for transforms in more than one dimension
BEYOND_L1 = 0.88  # of that rate, for planes that do not fit it
SLOWER = {"fftw": 0.6, "mkl": 0.25}  # more time, for a plane as large as L2; at most twice that
PRODUCT_RATE = 0.6
FFT_CALL = 2e-7  # seconds around a transform
TRANSPOSED = 3  # times the cost of moving planes, where they are transposed from and to channels_last
PLANE_ROW = 7e-9  # seconds that a row of a plane takes at least, there or back,
TRANSPOSED_ROW = 2e-8  # and rows of channels that are transposed together; Sapphire Rapids
PYTHON_CALL = 8e-6  # seconds of Python around a shared chunk, or around all
SPECTRUM_CALL = 6e-5  # seconds to transform any filter,
SPECTRUM_RATE = 4e9  # and bytes of its spectrum in a second; Zen 5
COMPARED_ON = Machine("Zen 5", 2, 64, 48 << 10, 1 << 20, 32 << 20, 5.2e11, 2.6e11, 4.6e10, 2.2e11, 1.3e-6)

# --- shapes ----------------------------------------------------------------------------------


def one_block(problem: ConvProblem) -> FftBlocking:
    """Every dimension in one block."""
    return in_lengths(problem, (None, None, None))


@lru_cache(256)
def in_lengths(problem: ConvProblem, lengths: tuple[int | None, ...]) -> FftBlocking:
    """Every dimension of the 3-D view in blocks of its FFT length, or in one block for None."""
    p = problem.as_3d
    d, h, w = (blocked_axis(p, i, length) for i, length in enumerate(lengths))
    return FftBlocking(p, (d, h, w))


@cached_by_threads(256)
def blocked(problem: ConvProblem, length: int | None) -> FftBlocking:
    """Blocks of an FFT length along every dimension that is longer, or of the lengths of least work.

    One block, where no dimension is long enough to be cut.
    """
    p = problem.as_3d
    d, h, w = ([(a.length, a.blocks, a) for a in _choices(p, i, length)] for i in range(3))
    cuts = [(i * j * k, a * b * c, (x, y, z)) for i, a, x in d for j, b, y in h for k, c, z in w]
    cuts = [cut for cut in cuts if cut[1] > 1]  # elements of a block, blocks, axes
    if not cuts:
        return one_block(problem)
    sizes = [size for size, _, _ in cuts]
    low, high = min(SMALLEST, max(sizes)), max(LARGEST, min(sizes))
    if not any(low <= size <= high for size in sizes):  # as some are too small, all others too large
        low, high = min(sizes), max(sizes)
    several = sum(min(length for length, _, _ in dim) > 1 for dim in (d, h, w)) > 1
    bound = FftBound(p, "fftw", COMPARED_ON, several)
    bounds = [
        (bound.seconds(size, p.N * blocks * size), i, axes)
        for i, (size, blocks, axes) in enumerate(cuts)
        if low <= size <= high
    ]
    best, large = (math.inf, 0), []
    for least, i, axes in sorted(bounds):
        if least > best[0]:
            break
        cut = FftBlocking(p, axes)
        if cut.filter_bytes > FILTER_LIMIT:
            large.append(cut)
        elif (found := (spectral_seconds(cut, "fftw", COMPARED_ON), i)) < best:
            best, chosen = found, cut
    if best[0] < math.inf:
        return chosen
    return min(large, key=lambda cut: spectral_seconds(cut, "fftw", COMPARED_ON))


def _rate(p: ConvProblem, engine: str, machine: Machine, several: bool, plane_bytes: int) -> float:
    """Flops of a transform over the peak."""
    rate = FFT_RATE[engine, p.itemsize]
    if engine == "fftw" and machine.vector_bytes < 64:
        rate *= 2
    if several:
        rate *= SEVERAL[p.itemsize]
    if plane_bytes > machine.l1_bytes:
        rate *= BEYOND_L1
    return rate / (1 + SLOWER[engine] * min(2, plane_bytes / machine.l2_bytes))


def _choices(problem: ConvProblem, dimension: int, length: int | None) -> list[BlockedAxis]:
    """The dimension as one block, and in blocks of the lengths that are worth a try."""
    one = blocked_axis(problem, dimension, None)
    if length is not None:
        lengths = [max(length, one.taps)]
    elif one.taps == 1:
        lengths = [1]
    else:
        least, most = SHORTEST * one.taps, max(LONGEST * one.taps, SMALLEST)
        odd = (1,) if min(problem.kernel) > 1 else (1, 3)  # in 3-D a third of the ways are enough
        lengths = [n for n in (m << e for m in odd for e in range(1, 32)) if least <= n <= most]
    cut = [
        blocked_axis(problem, dimension, n) for n in lengths if n < one.length and n - one.taps + 1 < one.out
    ]
    return cut if cut and length is not None else [one, *cut]


# --- cost ------------------------------------------------------------------------------------


def spectral_seconds(cut: FftBlocking, engine: str, machine: Machine) -> float:
    """Predicted time of a run: transforms, products and what they stream, reading x and writing y."""
    p, dealt = cut.problem, chunk_schedule(cut)
    peak = machine.peak(p.dtype) / machine.threads
    transform = _transform_seconds(cut, engine, peak, machine)
    forward = cut.blocks * p.groups * cut.channels  # transforms
    inverse = cut.blocks * p.K
    multiplied = 8.0 * inverse * cut.channels * spectrum_size(cut.lengths)  # flops
    there, back = forward * transform, inverse * transform
    products = multiplied / (peak * PRODUCT_RATE)
    # work can only be shared out in whole units
    if dealt.alone:
        share = share_back = _shared(dealt.chunks, dealt.tasks)
        calls = 1
    else:
        share = _shared(dealt.groups * dealt.blocks * cut.channels // dealt.run, dealt.tasks)
        runs = -(-dealt.groups * cut.panels // dealt.panels)
        share_back = _shared(runs * -(-dealt.blocks // dealt.part), dealt.tasks)
        calls = dealt.chunks
    # products wait for the spectra they read, or these for them
    read = _stream(cut.filter_bytes * -(-cut.blocks // dealt.part), cut.filter_bytes, machine)
    read += _stream(forward * cut.panels * cut.plane_bytes, dealt.spectra_bytes, machine)
    computed = share * there + share_back * back + max(share_back * products, read)
    streamed = 2 * (forward + inverse) * cut.plane_bytes / machine.cache_bandwidth
    streamed *= TRANSPOSED if p.layout == "channels_last" else 1
    streamed = max(streamed, _row_seconds(cut, dealt, forward, inverse))
    streamed += machine.stream(p.x_bytes + p.y_bytes)
    return computed + streamed + calls * (PYTHON_CALL + 2 * machine.launch)


def spectrum_seconds(cut: FftBlocking) -> float:
    """Predicted time to transform the filter."""
    return SPECTRUM_CALL + cut.filter_bytes / SPECTRUM_RATE


def _row_seconds(cut: FftBlocking, dealt: ChunkSchedule, forward: int, inverse: int) -> float:
    """The least time of the rows of all planes: where these are columns, it is more than that of the rest."""
    p, d_h = cut.problem, cut.axes[:2]
    there, back = math.prod(a.length for a in d_h), math.prod(a.step for a in d_h)  # rows of a plane
    rows = forward * there + inverse * back
    runs = rows / min(dealt.run, p.groups * cut.channels) if p.layout == "channels_last" else 0.0
    return (PLANE_ROW * rows + TRANSPOSED_ROW * runs) / dealt.tasks


class FftBound:
    """A lower bound of `spectral_seconds`, from the size of a plane and the elements of a channel's planes.

    Args:
        several: whether transforms are in more than one dimension.
    """

    def __init__(self, p: ConvProblem, engine: str, machine: Machine, several: bool):
        phases = _phases(p)
        self._planes = p.C * phases + p.K  # of a block, there and back
        self._filter_bytes = p.K * p.w_shape[1] * phases * p.itemsize  # for each element of a plane
        self._products = _product_seconds(p, phases, machine)
        slower = TRANSPOSED if p.layout == "channels_last" else 1
        self._streamed = 2 * p.itemsize * slower / machine.cache_bandwidth
        self._of = p, engine, machine, several
        self._of_size: dict[int, tuple[float, float]] = {}

    def seconds(self, size: int, elements: float, largest: float | None = None) -> float:
        """Of planes of at least `size`, and at most `largest` elements, in all so many of each channel."""
        if size not in self._of_size:
            p, engine, machine, several = self._of
            rate = _rate(p, engine, machine, several, size * p.itemsize) * machine.peak(p.dtype)
            called = FFT_CALL / (size if largest is None else largest) / machine.threads
            transform = self._planes * (2.5 * math.log2(size) / rate + called + self._streamed)
            filters = size * self._filter_bytes
            self._of_size[size] = transform, _stream(filters, filters, machine)
        transform, read = self._of_size[size]
        return elements * transform + max(elements * self._products, read)


def least_products(p: ConvProblem, machine: Machine) -> float:
    """A lower bound of `spectral_seconds`, however the maps are cut: a product for each output."""
    products = p.gemm_m * _product_seconds(p, _phases(p), machine)
    return products + machine.stream(p.x_bytes + p.y_bytes) + PYTHON_CALL


@lru_cache(16)
def least_one_block(p: ConvProblem, engine: str, machine: Machine) -> float:
    """A lower bound of `spectral_seconds` of whole maps, from the least lengths that hold them."""
    size, dims = 1, 0
    steps = zip(p.spatial, p.spatial_out, p.padding, p.boundary, p.kernel_extent, p.stride, strict=True)
    for inputs, out, (low, _), boundary, extent, stride in steps:
        taps = -(-extent // stride)
        ahead = 0 if boundary == "wrap" else low
        length = max(out, taps, min(out + taps - 1, (inputs - 1 + ahead) // stride + 1))
        size *= length
        dims += length > 1
    computed = FftBound(p, engine, machine, dims > 1).seconds(size, p.N * size, math.inf)
    return computed + machine.stream(p.x_bytes + p.y_bytes) + PYTHON_CALL


def least_overlapping(p: ConvProblem, machine: Machine) -> float:
    """The same of blocks, whatever they are: each output is in a block of every channel it sums."""
    several = sum(r > s for r, s in zip(p.kernel_extent, p.stride, strict=True)) > 1
    outputs = math.prod(p.spatial_out)
    size = max(1, min(SMALLEST, outputs) >> p.ndim)
    computed = FftBound(p, "fftw", machine, several).seconds(size, p.N * outputs, LARGEST)
    return computed + machine.stream(p.x_bytes + p.y_bytes) + PYTHON_CALL


def closest_seconds(p: ConvProblem, machine: Machine) -> float:
    """A closer one: small blocks overlap more, and large ones take longer to transform."""
    outputs = math.prod(p.spatial_out)
    taps = [-(-e // s) for e, s in zip(p.kernel_extent, p.stride, strict=True)]
    dims = [(out, n - 1) for out, n in zip(p.spatial_out, taps, strict=True) if n > 1]
    uncut = any(n == 1 and out > 1 for out, n in zip(p.spatial_out, taps, strict=True))
    bound, best = FftBound(p, "fftw", machine, len(dims) > 1), math.inf
    smallest = 8 if outputs >= 2 * SMALLEST else max(1, outputs.bit_length() - 3)
    for e in range(smallest, LARGEST.bit_length()):
        largest = 1 << e + 1 if 1 << e < LARGEST else math.inf
        if (ratio := _overlap(dims, largest, uncut)) < math.inf:
            best = min(best, bound.seconds(1 << e, p.N * outputs * ratio, largest))
    return best + machine.stream(p.x_bytes + p.y_bytes) + PYTHON_CALL


def _overlap(dims: list[tuple[int, int]], size: float, uncut: bool) -> float:
    """The least ratio of elements to outputs of blocks of at most `size` elements.

    Args:
        dims: (outputs, elements by which blocks overlap) of the dimensions where they do.
        uncut: whether none of these need be cut, as others are.
    """
    best = math.inf
    for whole in product((False, True), repeat=len(dims)):
        if all(whole) and not uncut:
            continue
        room, overlap, cut = size, 1, 0
        for is_whole, (out, shared) in zip(whole, dims, strict=True):
            if is_whole:
                room /= out
            else:
                overlap *= shared
                cut += 1
        if room > overlap:  # the product of 1 - shared / length is largest where all factors are equal
            best = min(best, (1 - (overlap / room) ** (1 / cut)) ** -cut if cut else 1.0)
    return best


def _product_seconds(p: ConvProblem, phases: int, machine: Machine) -> float:
    """Of the products of all channels and filters, for each element of a plane."""
    return 4 * p.K * p.w_shape[1] * phases / (PRODUCT_RATE * machine.peak(p.dtype))


def _phases(p: ConvProblem) -> int:
    """Parts of a map that are transformed by themselves."""
    if max(p.stride) == 1:
        return 1
    return math.prod(
        min(r, s // math.gcd(s, d)) for r, s, d in zip(p.kernel, p.stride, p.dilation, strict=True)
    )


def _transform_seconds(cut: FftBlocking, engine: str, peak: float, machine: Machine) -> float:
    """Of one transform on one thread: 2.5 n log2(n) flops."""
    size = math.prod(cut.lengths)
    several = sum(n > 1 for n in cut.lengths) > 1
    rate = _rate(cut.problem, engine, machine, several, cut.plane_bytes)
    rate *= peak * min(speed(n) for n in cut.lengths)
    return FFT_CALL + 2.5 * size * math.log2(size + 1) / rate


def _shared(units: int, tasks: int) -> float:
    """Share of the work of `units` equal units that falls to the busiest of some tasks."""
    return -(-max(1, units) // tasks) / max(1, units)


def _stream(nbytes: float, footprint: float, machine: Machine) -> float:
    """Seconds to read `nbytes` in all out of an array of `footprint` bytes."""
    beyond = footprint > machine.l3_bytes / 2
    return nbytes / (machine.bandwidth if beyond else machine.cache_bandwidth)
