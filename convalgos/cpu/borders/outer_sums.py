"""What comes to a gradient of a map from beyond its edges, added to that of the map with zeros around it.

Only the products that reach beyond the edges are computed, and only the elements that these are copies of are
read and written again: an extended gradient and its folding would move all of it once more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from convalgos.core.allocator import aligned_empty, whole_lines
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.machine import Machine, vector_bytes
from convalgos.core.plan import numpy_dtype
from convalgos.core.problem import ConvProblem
from convalgos.cpu.borders.outer_kernels import (
    FEW,
    OUTER_FIELDS,
    OUTER_GROUP,
    RUN,
    add_outer,
    add_to_targets,
    gather_outputs,
    gather_stepped,
    sum_outer_channels,
    sum_outer_pixels,
)
from convalgos.cpu.borders.outer_places import (
    NOWHERE,
    PlaceGroup,
    outer_places,
    place_groups,
    products_beyond,
)
from convalgos.cpu.layout.channel_vectors import gather
from convalgos.cpu.layout.strides import map_strides
from convalgos.cpu.runtime import jit, threads
from convalgos.cpu.runtime.records import copy_of_record
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.microkernel import REGISTER_TILES

WHOLE_MAPS = 4  # times the pixels that count, of maps that are turned as a whole
CHANNEL_ROWS = 4  # places of which a channel is summed at a time
# Cycles of a thread, of two vectors of products each: Zen 4.
PLACE_CYCLES = 3.0, 2.0  # for a channel of a place, channels first and last,
PRODUCT_CYCLES = 0.12  # and for each of its products, where a channel is by itself
SUMMED = 0.45  # of the peak, where all channels are summed
SHARED = 3e4  # cycles that are worth several threads


def packed_taps(w: np.ndarray) -> np.ndarray:
    """w (K, C/groups, *kernel) tap by tap: (taps, K, C/groups), and a vector behind them."""
    taps = math.prod(w.shape[2:])
    spare = 2 * simd.lanes(w.itemsize)
    packed = np.zeros(w.size + spare, w.dtype)
    packed[: w.size].reshape(taps, -1)[...] = w.reshape(-1, taps).T
    return packed


def _is_by_channel(problem: ConvProblem) -> bool:
    return problem.groups > 1


def outer_cycles(problem: ConvProblem) -> float:
    """Of a thread, in all."""
    p = problem
    _, products = products_beyond(p)
    moved = PLACE_CYCLES[p.layout == "channels_last"] * outer_places(p) * p.N * p.C
    if _is_by_channel(p):
        return moved + PRODUCT_CYCLES * products * p.N * p.C
    return moved + products * p.N * p.C * p.K / (2 * SUMMED * simd.lanes(p.itemsize))


def outer_seconds(problem: ConvProblem, machine: Machine) -> float:
    """Predicted time on all threads."""
    seconds = outer_cycles(problem) * 4 * simd.lanes(problem.itemsize) / machine.peak(problem.dtype)
    return machine.launch + seconds


def stepped_runs(pixels: np.ndarray) -> np.ndarray:
    """(runs,) `RUN`: pixels that are equally far apart, in their order."""
    found: list[tuple[int, int, int]] = []
    for pixel in pixels.tolist():
        first, count, step = found[-1] if found else (0, 0, 0)
        if count == 1:
            found[-1] = first, 2, pixel - first
        elif count and pixel == first + count * step:
            found[-1] = first, count + 1, step
        else:
            found.append((pixel, 1, 1))
    return np.array(found, RUN)


def in_columns(pixels: np.ndarray, width: int) -> np.ndarray:
    """Pixels, which ascend, in an order of few runs: those of runs along rows, then the others by columns."""
    starts = np.flatnonzero(np.diff(pixels, prepend=-2) != 1)
    counts = np.diff(np.append(starts, len(pixels)))
    alone = np.repeat(counts < FEW, counts)
    others = pixels[alone]
    return np.concatenate([pixels[~alone], others[np.argsort(others % width, kind="stable")]])


@dataclass(frozen=True)
class OuterTables:
    """What is read of dy, and how the channels are shared."""

    problem: ConvProblem  # in 3-D

    @staticmethod
    @lru_cache(64)
    def of(problem: ConvProblem) -> OuterTables:
        return OuterTables(problem.as_3d)

    @cached_attribute
    def groups(self) -> list[PlaceGroup]:
        return place_groups(self.problem)

    @cached_attribute
    def kept(self) -> np.ndarray:
        """Pixels of dy that count, in the order in which they are gathered."""
        read = [g.outputs[g.outputs != NOWHERE] for g in self.groups]
        kept = np.unique(np.concatenate([np.zeros(0, np.int64), *read]))
        out = self.problem.spatial_out
        if math.prod(out) < WHOLE_MAPS * len(kept):
            return np.arange(math.prod(out))
        return in_columns(kept, out[2])

    @property
    def by_channel(self) -> bool:
        return _is_by_channel(self.problem)

    @cached_attribute
    def lanes(self) -> int:
        return simd.lanes(self.problem.itemsize)

    @property
    def gathers(self) -> bool:
        return self.problem.layout == "channels_first"

    @property
    def vectors(self) -> int:
        """Of input channels, side by side."""
        several = not self.by_channel and self.lanes < self.problem.C
        return 2 if several else 1

    @property
    def width(self) -> int:
        return self.vectors * self.lanes

    @property
    def panels(self) -> int:
        return -(-self.problem.C // self.width)

    @property
    def blocks(self) -> int:
        """Of channels of dy that are read one after the other."""
        return -(-self.problem.K // self.lanes) if self.gathers and not self.by_channel else 1

    @property
    def block(self) -> int:
        return self.lanes if self.gathers else self.problem.K

    @property
    def gathered(self) -> int:
        """Elements of a block that is gathered: its pixels, one of zeros, and what squares write behind."""
        return (len(self.kept) + 1 + self.lanes) * self.lanes

    @property
    def own_bytes(self) -> int:
        """That a task gathers."""
        return whole_lines(self.gathered * self.problem.itemsize) if self.gathers and self.by_channel else 0

    @property
    def shared_bytes(self) -> int:
        """That all tasks gather before they sum."""
        p = self.problem
        return p.N * self.blocks * self.gathered * p.itemsize if self.gathers and not self.by_channel else 0

    @property
    def task_bytes(self) -> int:
        places = max((len(g.targets) for g in self.groups), default=0)
        return self.own_bytes + whole_lines(places * self.width * self.problem.itemsize)

    @property
    def tasks(self) -> int:
        most = threads.plan_threads() if outer_cycles(self.problem) > SHARED else 1
        return min(most, self.problem.N * self.panels)

    @property
    def scratch_bytes(self) -> int:
        return self.shared_bytes + self.tasks * self.task_bytes


class OuterSums:
    """dx += what comes from beyond the edges, of a gradient of all channels or of each by itself."""

    def __init__(self, problem: ConvProblem):
        c = OuterTables.of(problem)
        p = c.problem
        size, lanes, pixels = p.itemsize, c.lanes, math.prod(p.spatial_out)
        y_n, y_c, *_, y_pixel = map_strides(p.layout, p.C, p.spatial)
        x_n, x_c, *_, x_pixel = map_strides(p.layout, p.K, p.spatial_out)
        where = np.full(pixels + 1, NOWHERE)  # of each output in what is read; the last entry is NOWHERE's
        if c.gathers:
            where[:] = len(c.kept) * lanes
            where[c.kept] = np.arange(len(c.kept)) * lanes
        else:
            where[:-1] = np.arange(pixels) * x_pixel
        runs, zeros = stepped_runs(c.kept), np.zeros(p.K + lanes, numpy_dtype(p.dtype))
        self._kept = [runs, zeros]  # what the record has addresses of
        table = np.array([self._group(g, where, w_tap=p.w_shape[1] * p.K) for g in c.groups], OUTER_GROUP)
        self._kept.append(table)
        rows = REGISTER_TILES[vector_bytes()][c.vectors]
        of_pixels, of_channels = (sum_outer_pixels, rows, c.vectors), (sum_outer_channels, CHANNEL_ROWS)
        kernel, *figures = of_channels if c.by_channel else of_pixels
        values = {
            "x": 0, "w": 0, "y": 0, "scratch": 0, "images": p.N, "channels": p.C, "filters": p.K,
            "panels": c.panels, "width": c.width, "vectors": c.vectors, "size": size, "lanes": lanes,
            "by_channel": int(c.by_channel), "tasks": c.tasks, "groups": len(c.groups),
            "group_table": table.ctypes.data, "x_n": x_n, "x_c": x_c, "y_n": y_n, "y_c": y_c,
            "y_pixel": y_pixel, "blocks": c.blocks, "block": c.block, "block_step": c.gathered,
            "zeros": zeros.ctypes.data, "gathers": int(c.gathers), "own": int(c.own_bytes > 0),
            "runs": len(runs), "run_table": runs.ctypes.data, "gather": gather(size, lanes),
            "turn": gather_stepped(size, lanes), "sum": kernel(size, lanes, *figures),
            "add": add_to_targets(size, lanes, int(not c.gathers)), "shared_bytes": c.shared_bytes,
            "task_bytes": c.task_bytes, "sums": c.own_bytes,
        }  # fmt: skip
        self.record = np.array([tuple(values[n] for n in OUTER_FIELDS.names or ())], OUTER_FIELDS)
        self.scratch_bytes, self.tasks = c.scratch_bytes, c.tasks
        self.steps = [gather_outputs()] if c.shared_bytes else []
        self.steps.append(add_outer())

    def _group(self, group: PlaceGroup, where: np.ndarray, w_tap: int) -> tuple[int, ...]:
        """Its `OUTER_GROUP`; w_tap: weights of a tap."""
        outputs = where[group.outputs].astype(np.int64)
        weights, targets = (group.taps * w_tap).astype(np.int64), stepped_runs(group.targets)
        self._kept += [outputs, weights, targets]
        addresses = outputs.ctypes.data, weights.ctypes.data
        return len(group.targets), len(group.taps), *addresses, len(targets), targets.ctypes.data


class OuterRun:
    """Record and scratch of one run at a time."""

    def __init__(self, sums: OuterSums):
        self._sums = sums
        self._record = copy_of_record(sums.record)
        self._scratch = aligned_empty(sums.scratch_bytes, np.uint8)
        self._fields = self._record.view(np.int64)
        self._fields[3] = self._scratch.ctypes.data
        self._address = jit.data_address()

    def add(self, dy: np.ndarray, w: np.ndarray, dx: np.ndarray) -> None:
        """w: `packed_taps`."""
        address, fields = self._address, self._fields
        fields[0], fields[1], fields[2] = address(dy), address(w), address(dx)
        record = address(self._record)
        for step in self._sums.steps:
            jit.launch(step, record, self._sums.tasks)
