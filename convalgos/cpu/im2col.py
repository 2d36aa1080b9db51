"""im2col + GEMM: the input patches of a block of pixels laid out as a matrix, times the filters.

The baseline that every library has: it turns any convolution into one well-studied product, at the price
of writing each input element once per kernel element. Patches are made for as many pixels at a time as a
quarter of the last cache holds. Pointwise problems need none. The product runs through NumPy's BLAS
(`blas`), MKL (`mkl`) or our own micro-kernel (`own`).

Source: Chellapilla, Puri, Simard 2006, "High performance convolutional neural networks for document
processing".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from convalgos.core.algorithm import Algorithm, error_of_sums
from convalgos.core.allocator import aligned_empty, aligned_zeros
from convalgos.core.machine import cache_sizes
from convalgos.core.plan import Plan
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import panels
from convalgos.cpu.layout import channel_vectors
from convalgos.cpu.runtime import jit, mkl
from convalgos.cpu.runtime.plan import arguments
from convalgos.cpu.runtime.threads import worth_sharing
from convalgos.cpu.vectors import microkernel, simd
from convalgos.cpu.vectors.simd import call, carray, copy_bytes, pointer, zero_bytes

PIXELS = 256  # that a task of our own product takes at a time
GEMM_EFFICIENCY = {"blas": 0.85, "mkl": 0.8, "own": 0.9}  # of the peak, on large products; Zen 5
GEMM_CALL = {"blas": 6e-6, "mkl": 8e-6, "own": 6e-6}  # seconds of Python and launch around a product
IN_PLACE = 1.12  # times the sums of patches where x is read as it lies; 1x1 layers on a Xeon (Granite Rapids)
COPY_CALL = 2.5e-8  # seconds of a copy of one run of patch elements

# --- shapes ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Patches:
    """The patch matrix of a block: (groups, taps, pixels), or (pixels, groups, taps) in channels_last."""

    problem: ConvProblem  # the 3-D view
    images: int  # that share one run of pixels: all in channels_last, where y has no gap between them
    pixels: int  # of a block

    @property
    def runs(self) -> int:
        """Runs of neighbouring outputs: one per image, or one for all."""
        return self.problem.N // self.images

    @property
    def run_pixels(self) -> int:
        return self.images * math.prod(self.problem.spatial_out)

    @property
    def needed(self) -> bool:
        """A pointwise problem without stride or padding reads x as it is."""
        p = self.problem
        return not (p.is_pointwise and set(p.stride) == {1} and set(p.padding) == {(0, 0)})

    @property
    def row(self) -> int:
        """Elements of a row of patches in channels_first: an odd number of cache lines, so that the taps of
        a pixel do not all fall into one set of a cache."""
        line = 64 // self.problem.itemsize
        return (-(-self.pixels // line) | 1) * line

    @property
    def elements(self) -> int:
        width = self.pixels if self.problem.layout == "channels_last" else self.row
        return self.problem.groups * self.problem.gemm_k * width if self.needed else 0

    @property
    def blocks(self) -> int:
        return self.runs * -(-self.run_pixels // self.pixels)


@lru_cache(256)
def patches(problem: ConvProblem) -> Patches:
    p = problem.as_3d
    images = p.N if p.layout == "channels_last" else 1
    run = images * math.prod(p.spatial_out)
    room = cache_sizes()[2] // 4 // (p.groups * p.gemm_k * p.itemsize)
    pixels = min(run, max(16, room))
    return Patches(p, images, -(-run // -(-run // pixels)))


# --- kernels ---------------------------------------------------------------------------------

RECORD = arguments(
    "size patches sums sums_stride first pixels tasks groups channels filters taps chunk "
    "depth height width o p q kernel_d kernel_h kernel_w stride_d stride_h stride_w "
    "dilation_d dilation_h dilation_w pad_d pad_h pad_w "
    "row_pixels pixel_step group_step tap_table panel panels rows y_k y_pixel stream sum_panel store_run"
)


@jit.specialise
def fill_channels_first(SIZE):
    """patches[channel, t, r, s][pixel] = the input element under that kernel element, or 0."""

    def fill_channels_first(args, task):
        a = carray(pointer(args), 1, RECORD)[0]
        area = a.kernel_d * a.kernel_h * a.kernel_w
        total = a.groups * a.channels * area
        for row in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            c = row // area
            t = row % area // (a.kernel_h * a.kernel_w)
            r = row // a.kernel_w % a.kernel_h
            s = row % a.kernel_w
            target = a.patches + row * a.row_pixels * SIZE
            done = 0
            while done < a.pixels:
                q0 = (a.first + done) % a.q
                count = min(a.q - q0, a.pixels - done)  # pixels up to the end of this row of outputs
                p = (a.first + done) // a.q % a.p
                o = (a.first + done) // (a.q * a.p)
                d = o * a.stride_d - a.pad_d + t * a.dilation_d
                h = p * a.stride_h - a.pad_h + r * a.dilation_h
                w = q0 * a.stride_w - a.pad_w + s * a.dilation_w
                to = target + done * SIZE
                done += count
                if d < 0 or d >= a.depth or h < 0 or h >= a.height:
                    zero_bytes(to, count * SIZE)
                    continue
                # outputs [before, inside) of this row read inside of x
                before = min(count, max(0, (-w + a.stride_w - 1) // a.stride_w))
                inside = max(before, min(count, (a.width - 1 - w) // a.stride_w + 1))
                source = a.x + (((c * a.depth + d) * a.height + h) * a.width + w) * SIZE
                if before:
                    zero_bytes(to, before * SIZE)
                if inside < count:
                    zero_bytes(to + inside * SIZE, (count - inside) * SIZE)
                if a.stride_w == 1:
                    copy_bytes(to + before * SIZE, source + before * SIZE, (inside - before) * SIZE)
                else:
                    first = source + before * a.stride_w * SIZE
                    channel_vectors.copy_strided(to + before * SIZE, first, inside - before, a.stride_w, SIZE)

    return fill_channels_first


@jit.specialise
def fill_channels_last():
    """patches[pixel][group][t, r, s, channel] = the input element under that kernel element, or 0."""

    def fill_channels_last(args, task):
        a = carray(pointer(args), 1, RECORD)[0]
        run = a.channels * a.size
        every = a.groups * a.channels
        for pixel in range(a.pixels * task // a.tasks, a.pixels * (task + 1) // a.tasks):
            at = a.first + pixel
            w0 = at % a.q * a.stride_w - a.pad_w
            h0 = at // a.q % a.p * a.stride_h - a.pad_h
            d0 = at // (a.q * a.p) % a.o * a.stride_d - a.pad_d
            image = at // (a.q * a.p * a.o)
            to = a.patches + pixel * a.groups * a.taps * a.size
            for group in range(a.groups):
                for t in range(a.kernel_d):
                    d = d0 + t * a.dilation_d
                    for r in range(a.kernel_h):
                        h = h0 + r * a.dilation_h
                        for s in range(a.kernel_w):
                            w = w0 + s * a.dilation_w
                            inside = d >= 0 and d < a.depth and h >= 0 and h < a.height and w >= 0
                            if inside and w < a.width:
                                element = ((image * a.depth + d) * a.height + h) * a.width + w
                                copy_bytes(to, a.x + (element * every + group * a.channels) * a.size, run)
                            else:
                                zero_bytes(to, run)
                            to += run

    return fill_channels_last


@jit.specialise
def multiply():
    """Our own product: pieces of PIXELS pixels x groups x panels of filters, dealt to the tasks."""

    def multiply(args, task):
        a = carray(pointer(args), 1, RECORD)[0]
        table = a.sums + task * a.sums_stride
        sums = table + (PIXELS + 16) * 8
        pieces = (a.pixels + PIXELS - 1) // PIXELS
        per_piece = a.groups * a.panels
        total = pieces * per_piece
        for item in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            piece = item // per_piece
            group = item % per_piece // a.panels
            panel = item % a.panels
            first = piece * PIXELS
            count = min(PIXELS, a.pixels - first)
            rows = carray(pointer(table), PIXELS + 16, np.int64)
            for i in range(count + a.rows):  # spare rows of the micro-kernel read the last pixel
                rows[i] = min(i, count - 1) * a.pixel_step
            source = a.patches + (first * a.pixel_step + group * a.group_step) * a.size
            weights = a.w + (group * a.panels + panel) * a.taps * a.panel * a.size
            call(a.sum_panel, (source, table, count, a.tap_table, a.taps, a.chunk, weights, sums))
            k = group * a.filters + panel * a.panel
            y = a.y + (k * a.y_k + (a.first + first) * a.y_pixel) * a.size
            filters = min(a.panel, a.filters - panel * a.panel)
            bias = a.bias + k * a.size
            call(a.store_run, (sums, a.panel, count, filters, bias, a.relu, a.stream, y, a.y_k, a.y_pixel))

    return multiply


# --- plan ------------------------------------------------------------------------------------


class Im2colPlan(Plan):
    def __init__(self, problem: ConvProblem, algorithm: Im2col):
        super().__init__(problem, algorithm, algorithm.workspace_bytes(problem))
        cut = self._cut = patches(problem)
        p = self._p = cut.problem
        self._gemm = algorithm.gemm
        self._last = p.layout == "channels_last"
        # Our threads spin for a while after a launch, and would take the cores from NumPy's BLAS, whose
        # threads are others: then one thread makes the patches.
        tasks = self._tasks = 1 if self._gemm == "blas" else jit.thread_count()
        size, lanes = p.itemsize, simd.lanes(p.itemsize)
        rows, vectors = panels.tile_for(p.gemm_n, size)
        self._parallel = worth_sharing(problem)
        self._panel = vectors * lanes
        self._fill = fill_channels_last() if self._last else fill_channels_first(size)
        out = math.prod(p.spatial_out)
        # where the next tap and the next group lie, in the patches or in x itself
        ahead = cut.row if cut.needed else out
        tap_step = 1 if self._last else ahead
        self._tap_table = microkernel.padded_for_prefetch(np.arange(p.gemm_k, dtype=np.int64) * tap_step)
        self._record = np.zeros(1, RECORD)
        values = {
            "size": size, "tasks": tasks, "groups": p.groups, "channels": p.w_shape[1], "filters": p.gemm_n,
            "taps": p.gemm_k, "chunk": panels.chunk(p.gemm_k), "tap_table": self._tap_table.ctypes.data,
            "row_pixels": cut.row, "pixel_step": p.groups * p.gemm_k if self._last else 1,
            "group_step": p.gemm_k * tap_step, "panel": self._panel, "rows": rows,
            "panels": -(-p.gemm_n // self._panel), "sums_stride": _sums_bytes(problem),
            "y_k": 1 if self._last else out, "y_pixel": p.K if self._last else 1,
            "stream": int(panels.streams(p)),
        }  # fmt: skip
        axes = zip("dhw", p.kernel, p.stride, p.dilation, p.padding, strict=True)
        for axis, kernel, stride, dilation, pad in axes:
            values |= {f"kernel_{axis}": kernel, f"stride_{axis}": stride}
            values |= {f"dilation_{axis}": dilation, f"pad_{axis}": pad[0]}
        values |= dict(zip(("depth", "height", "width"), p.spatial, strict=True))
        values |= dict(zip("opq", p.spatial_out, strict=True))
        if self._gemm == "own":
            values["sum_panel"] = panels.sum_panel(size, lanes, rows, vectors, microkernel.PREFETCH_TAPS)
            values["store_run"] = panels.store_run(size, lanes)
        for name, value in values.items():
            self._record[name] = value

    def prepare_filter(self, w):
        p = self._p
        w = w.reshape(p.groups, p.gemm_n, p.w_shape[1], -1)  # (g, K/g, C/g, T*R*S)
        if self._last:
            w = w.swapaxes(2, 3)
        w = w.reshape(p.groups, p.gemm_n, p.gemm_k)  # (g, K/g, taps)
        if self._gemm == "own":
            return panels.pack(w, self._panel)
        return np.array(w.swapaxes(1, 2) if self._last else w, order="C")  # a copy: the caller owns w

    def new_workspace(self):
        record = self._record.copy()
        block = aligned_empty(self._cut.elements, self._dtype)
        sums = aligned_empty(self._tasks * _sums_bytes(self.problem) if self._gemm == "own" else 0, np.uint8)
        bias = aligned_zeros(self.problem.K + 64, self._dtype)
        record["patches"], record["sums"] = block.ctypes.data, sums.ctypes.data
        return record, block, sums, bias

    def run(self, x, w, bias, activation, y, workspace):
        record, block, _, padded_bias = workspace
        cut, p = self._cut, self._p
        fields, address = record[0], record.ctypes.data
        padded_bias[: p.K] = 0 if bias is None else bias
        fields["bias"], fields["relu"] = padded_bias.ctypes.data, activation is not None
        fields["w"] = w.ctypes.data
        x = x.reshape(cut.runs, -1)  # (runs, C * spatial), or one run of everything
        # (runs, K, pixels), or (1, pixels, K)
        y = y.reshape(1, -1, p.K) if self._last else y.reshape(p.N, p.K, -1)
        for run in range(cut.runs):
            fields["x"], fields["y"] = x[run].ctypes.data, y[run].ctypes.data
            for first in range(0, cut.run_pixels, cut.pixels):
                count = min(cut.pixels, cut.run_pixels - first)
                fields["first"], fields["pixels"] = first, count
                if cut.needed:
                    jit.launch(self._fill, address, self._tasks, self._parallel)
                else:
                    fields["patches"] = fields["x"] + first * fields["pixel_step"] * p.itemsize
                if self._gemm == "own":
                    jit.launch(multiply(), address, self._tasks, self._parallel)
                    continue
                source, at = (block, 0) if cut.needed else (x[run], first)
                self._product(source, at, w, y[run], first, count, bias, activation)

    def _product(self, source, at, w, y, first, count, bias, activation):
        """Outputs `first` to `first + count` from patches `at` to `at + count`, through a library's GEMM."""
        p = self._p
        if self._last:
            a = source.reshape(-1, p.groups, p.gemm_k)[at : at + count].swapaxes(0, 1)  # (g, count, taps)
            b = w  # (g, taps, K/g)
            c = y.reshape(-1, p.groups, p.gemm_n)[first : first + count].swapaxes(0, 1)  # (g, count, K/g)
            bias = None if bias is None else bias.reshape(p.groups, 1, p.gemm_n)
        else:
            a = w  # (g, K/g, taps)
            b = source.reshape(p.groups, p.gemm_k, -1)[:, :, at : at + count]  # (g, taps, count)
            c = y.reshape(p.groups, p.gemm_n, -1)[:, :, first : first + count]  # (g, K/g, count)
            bias = None if bias is None else bias.reshape(p.groups, p.gemm_n, 1)
        if self._gemm == "blas":
            np.matmul(a, b, out=c)
        else:
            mkl.gemm(a, b, c)
        if bias is not None:
            c += bias
        if activation == "relu":
            np.maximum(c, 0, out=c)


def _sums_bytes(problem: ConvProblem) -> int:
    """Scratch of a task of our own product: the pixel table, and sums with spare rows."""
    rows, vectors = panels.tile_for(problem.gemm_n, problem.itemsize)
    lanes = simd.lanes(problem.itemsize)
    return (PIXELS + 16) * 8 + (PIXELS + rows + lanes) * vectors * lanes * problem.itemsize


@dataclass(frozen=True)
class Im2col(Algorithm):
    family: ClassVar[str] = "cpu.im2col"
    exchanges: ClassVar[bool] = True
    gemm: str

    @property
    def variant(self) -> str:
        return self.gemm

    @property
    def spins(self):
        return self.gemm == "blas"

    def why_not(self, problem):
        return super().why_not(problem) or (mkl.why_not() if self.gemm == "mkl" else None)

    def cost(self, problem, machine):
        cut = patches(problem)
        p = cut.problem
        made = p.gemm_m * p.gemm_k * p.groups * p.itemsize if cut.needed else 0  # bytes of all patches
        # written, then read by the product, through the last cache; narrow rows cost a copy call each
        copies = made / p.itemsize / max(1, p.w_shape[1] if p.layout == "channels_last" else p.spatial_out[2])
        threads = 1 if self.gemm == "blas" else machine.threads
        filling = (2 * made / machine.cache_bandwidth * machine.threads + copies * COPY_CALL) / threads
        if self.gemm == "own":
            rows, _ = panels.tile_for(p.gemm_n, p.itemsize)
            spare = max(1, (rows - 1) / max(1, cut.pixels))  # the smallest tile has so many rows
            in_place = 1.0 if cut.needed else IN_PLACE * panels.crowding(p)
            product = panels.seconds(p, machine) * spare * in_place
            calls = 2 * cut.blocks
        else:
            # narrow products never reach the library's rate
            narrow = min(p.gemm_n, p.gemm_k, cut.pixels)
            rate = machine.peak(p.dtype) * GEMM_EFFICIENCY[self.gemm] * narrow / (narrow + 24)
            product = p.flops / rate
            calls = cut.blocks * (1 + p.groups)
        return calls * GEMM_CALL[self.gemm] + filling + product + machine.stream(p.x_bytes + 2 * p.y_bytes)

    def least(self, problem, machine):
        # the product at the library's full rate, and the bytes that have to move
        rate = 1 / panels.SUMS if self.gemm == "own" else GEMM_EFFICIENCY[self.gemm]
        product = problem.flops / (machine.peak(problem.dtype) * rate)
        return 2 * GEMM_CALL[self.gemm] + product + machine.stream(problem.x_bytes + 2 * problem.y_bytes)

    def workspace_bytes(self, problem):
        if problem.is_empty:
            return 0
        own = jit.thread_count() * _sums_bytes(problem) if self.gemm == "own" else 0
        return patches(problem).elements * problem.itemsize + own

    def error_bound(self, problem):
        return error_of_sums(problem)

    def plan(self, problem):
        return Im2colPlan(problem, self)


ALGORITHMS = (Im2col("blas"), Im2col("mkl"), Im2col("own"))
