"""Maps lowered in part: the taps of one dimension of the kernel laid out side by side, those of the others
not.

im2col lays out all taps of a kernel, and so writes an input element T*R*S times. Where only those of one
dimension are laid out, it is written S times (columns) or R times (rows), or once (none: the map with its
zero border), and the taps of the other dimensions are steps from one element to another, which neighbouring
outputs share. Channels last a lowered map is [lowered output][others][tap][channel], so that a window is
one run of memory; channels first it is [channel][tap][slice][row][column].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from convalgos.core.allocator import whole_lines
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.machine import Machine, cache_sizes
from convalgos.core.problem import ConvProblem
from convalgos.cpu.layout import channel_vectors
from convalgos.cpu.layout.strides import map_strides
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import arguments
from convalgos.cpu.runtime.threads import cached_by_threads
from convalgos.cpu.vectors.simd import carray, copy_bytes, pointer, zero_bytes

ROWS, COLUMNS = 1, 2  # the dimension whose taps are laid out
COPY_CALL = 2.5e-8  # seconds of a copy of one run of elements; Zen 5


@dataclass(frozen=True)
class Lowering:
    """A problem and its lowered map."""

    problem: ConvProblem  # the 3-D view
    axis: int | None  # ROWS, COLUMNS, or None: the map with its zero border

    @property
    def laid_out(self) -> int:
        """Taps that lie side by side."""
        return 1 if self.axis is None else self.problem.kernel[self.axis]

    @property
    def in_place(self) -> bool:
        """Whether x is its own lowered map."""
        p = self.problem
        return self.axis is None and not any(map(any, p.padding))

    @cached_attribute
    def steps(self) -> tuple[int, ...]:
        """Input elements from one of the lowered map to the next, along (D, H, W)."""
        p = self.problem
        if self.in_place:
            return 1, 1, 1
        return tuple(
            s if r == 1 or i == self.axis else 1
            for i, (r, s) in enumerate(zip(p.kernel, p.stride, strict=True))
        )

    @cached_attribute
    def counts(self) -> tuple[int, ...]:
        """Elements of the lowered map along (D, H, W)."""
        p = self.problem
        if self.in_place:
            return p.spatial
        sizes = zip(p.spatial_out, p.stride, p.kernel, p.kernel_extent, strict=True)
        return tuple(
            n if r == 1 or i == self.axis else (n - 1) * s + e for i, (n, s, r, e) in enumerate(sizes)
        )

    @cached_attribute
    def strides(self) -> tuple[int, int, int, int, int, int]:
        """Elements of the lowered map between neighbours along (N, C, taps, D, H, W)."""
        p, counts = self.problem, self.counts
        if self.in_place:
            n, c, *spatial = map_strides(p.layout, p.C, p.spatial)
            return n, c, 0, *spatial  # type: ignore[return-value]
        if p.layout == "channels_last":
            order = [i for i in (self.axis, 0, 1, 2) if i is not None]
            order = list(dict.fromkeys(order))[::-1]  # innermost first
            steps, size = [0, 0, 0], self.laid_out * p.C
            for i in order:
                steps[i], size = size, size * counts[i]
            return size, 1, p.C, steps[0], steps[1], steps[2]
        d, h, w = counts[1] * counts[2], counts[2], 1
        plane = counts[0] * d
        channel = self.laid_out * plane + 64 // p.itemsize  # a line off a power of two
        return p.C * channel, channel, plane, d, h, w

    @cached_attribute
    def images(self) -> int:
        """Images that are lowered at a time: as many as a quarter of the last cache holds."""
        if self.in_place:
            return self.problem.N
        image = self.strides[0] * self.problem.itemsize
        return min(self.problem.N, max(1, cache_sizes()[2] // 4 // image))

    @cached_attribute
    def scratch_bytes(self) -> int:
        """Of the lowered map; vectors may be read a little beyond its end."""
        if self.in_place:
            return 0
        return whole_lines((self.images * self.strides[0]) * self.problem.itemsize + 256)

    def pixel_table(self, spare: int) -> np.ndarray:
        """(pixels + spare,) offsets of the outputs of an image in its lowered map."""
        p = self.problem
        steps = [n * s // t for n, s, t in zip(self.strides[3:], p.stride, self.steps, strict=True)]
        along = [np.arange(n, dtype=np.int64) * s for n, s in zip(p.spatial_out, steps, strict=True)]
        table = reduce(np.add.outer, along).ravel()
        return np.pad(table, (0, spare), mode="edge")

    def tap_offsets(self) -> np.ndarray:
        """(taps,) offsets of the taps of a group in the order of a filter: channels, then the kernel."""
        p = self.problem
        _, c, tap, *spatial = self.strides
        along = [np.arange(p.w_shape[1], dtype=np.int64) * c]
        for i, (r, e, s) in enumerate(zip(p.kernel, p.dilation, spatial, strict=True)):
            along.append(np.arange(r) * (tap if i == self.axis else e * s))
        return reduce(np.add.outer, along).ravel()

    def fields(self) -> dict[str, Any]:
        """What `lower_map` finds in its record."""
        p = self.problem
        values: dict[str, Any] = {
            "size": p.itemsize, "count": self.images, "lowered_channels": p.C, "laid_out": self.laid_out,
            "last": int(p.layout == "channels_last"), "images": p.N, "first": 0,
        }  # fmt: skip
        axes = zip("dhw", self.counts, self.steps, p.spatial, p.padding, strict=True)
        for axis, count, step, size, pad in axes:
            values |= {f"count_{axis}": count, f"step_{axis}": step, f"size_{axis}": size}
            values[f"pad_{axis}"] = pad[0]
        for i, axis in ((ROWS, "h"), (COLUMNS, "w")):
            values[f"move_{axis}"] = p.dilation[i] if i == self.axis else 0
        values |= dict(
            zip(("x_n", "x_c", "x_d", "x_h", "x_w"), map_strides(p.layout, p.C, p.spatial), strict=True)
        )
        values |= dict(zip(("l_n", "l_c", "l_t", "l_d", "l_h", "l_w"), self.strides, strict=True))
        return values

    @property
    def passes(self) -> list[dict[str, int]]:
        """The images that are lowered together, in turn."""
        n = self.problem.N
        return [{"first": i, "count": min(self.images, n - i)} for i in range(0, n, self.images)]

    def seconds(self, machine: Machine) -> float:
        """Predicted time to lower all images: what is written is read again, through the last cache."""
        p = self.problem
        if self.in_place:
            return 0.0
        d, h, w = self.counts
        made = p.N * p.C * self.laid_out * d * h * w
        run = w if p.layout == "channels_first" else p.C * (w if self.laid_out == 1 else 1)
        return 2 * made * p.itemsize / machine.cache_bandwidth + made / run * COPY_CALL / machine.threads


@cached_by_threads(256)
def lowering(problem: ConvProblem, axis: int | None) -> Lowering:
    """A problem lowered along one dimension, or along none."""
    return Lowering(problem.as_3d, axis)


# --- kernel ----------------------------------------------------------------------------------

LOWERING_FIELDS = (
    "size first count images lowered_channels laid_out last count_d count_h count_w step_d step_h step_w "
    "size_d size_h size_w pad_d pad_h pad_w move_h move_w x_n x_c x_d x_h x_w l_n l_c l_t l_d l_h l_w tasks "
)
LOWERING_ARGUMENTS = arguments(LOWERING_FIELDS)
"""What `lower_map` reads; the records of plans begin with these."""


@jit.helper
def lower_row(a: Any, x: int, to: int, t: int, size: int) -> None:
    """Channels first: a row of the lowered map, for one channel and one tap."""
    w = t * a.move_w - a.pad_w
    before = min(a.count_w, max(0, (a.step_w - 1 - w) // a.step_w))
    inside = max(before, min(a.count_w, (a.size_w - 1 - w) // a.step_w + 1))
    zero_bytes(to, before * size)
    zero_bytes(to + inside * size, (a.count_w - inside) * size)
    source = x + (w + before * a.step_w) * size
    if a.step_w == 1:
        copy_bytes(to + before * size, source, (inside - before) * size)
    else:
        channel_vectors.copy_strided(to + before * size, source, inside - before, a.step_w, size)


@jit.helper
def lower_pixels(a: Any, x: int, d: int, h: int, to: int, size: int) -> None:
    """Channels last: a row of pixels of the lowered map with all its taps. x: of the image."""
    run, all_taps = a.lowered_channels * size, a.laid_out * a.lowered_channels * size
    neighbours = a.move_h == 0 and (a.move_w == 1 or a.laid_out == 1)  # taps of a pixel, in x
    for i in range(a.count_w):
        w = i * a.step_w - a.pad_w
        at = to + i * a.l_w * size
        h0 = h * a.step_h - a.pad_h
        if neighbours and 0 <= d < a.size_d and 0 <= h0 < a.size_h and 0 <= w <= a.size_w - a.laid_out:
            copy_bytes(at, x + (d * a.x_d + h0 * a.x_h + w * a.x_w) * size, all_taps)
        else:
            for t in range(a.laid_out):
                row, column = h0 + t * a.move_h, w + t * a.move_w
                if 0 <= d < a.size_d and 0 <= row < a.size_h and 0 <= column < a.size_w:
                    copy_bytes(at + t * run, x + (d * a.x_d + row * a.x_h + column * a.x_w) * size, run)
                else:
                    zero_bytes(at + t * run, run)


@jit.specialise
def lower_map(SIZE: int) -> Callable[..., None]:
    """The lowered maps of `count` images from `first` on, to scratch."""

    def lower_map(args: int, task: int) -> None:
        a = carray(pointer(args), 1, LOWERING_ARGUMENTS)[0]
        each = a.count_d * a.count_h
        if not a.last:
            each *= a.lowered_channels * a.laid_out
        total = a.count * each
        for item in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            h, d = item % a.count_h, item // a.count_h % a.count_d * a.step_d - a.pad_d
            image = item // each
            x = a.x + (a.first + image) * a.x_n * SIZE
            to = a.scratch + (image * a.l_n + item // a.count_h % a.count_d * a.l_d + h * a.l_h) * SIZE
            if a.last:
                lower_pixels(a, x, d, h, to, SIZE)
            else:
                t = item // (a.count_h * a.count_d) % a.laid_out
                c = item // (a.count_h * a.count_d * a.laid_out) % a.lowered_channels
                row = h * a.step_h + t * a.move_h - a.pad_h
                to += (c * a.l_c + t * a.l_t) * SIZE
                if 0 <= d < a.size_d and 0 <= row < a.size_h:
                    lower_row(a, x + (c * a.x_c + d * a.x_d + row * a.x_h) * SIZE, to, t, SIZE)
                else:
                    zero_bytes(to, a.count_w * SIZE)

    return lower_map
