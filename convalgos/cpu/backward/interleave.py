"""Depth to space: the phases of a strided gradient, computed one by one, are interleaved into dx."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.bound_run import Launch
from convalgos.core.machine import Machine, cache_sizes
from convalgos.core.plan import numpy_dtype
from convalgos.core.problem import ConvProblem
from convalgos.cpu.layout.channel_vectors import place_strided
from convalgos.cpu.layout.streaming import stream
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import arguments
from convalgos.cpu.runtime.rebinding import RUN_FIELDS, Y_AT
from convalgos.cpu.runtime.records import by_name
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import call, carray, copy_bytes, pointer
from convalgos.cpu.vectors.transpose import interleaved, shuffles

# Cycles of a thread; calibrated on Zen 5 with AVX-512.
ROW_CYCLES = 20  # to begin a row of dx,
WOVEN_CYCLES = 1.5  # a vector of it, beside
SHUFFLE_CYCLES = 1.0  # each of its shuffles,
ELEMENT_CYCLES = 2  # an element by itself,
PIXEL_CYCLES = 10  # a pixel of all channels, beside its vectors

# x: `places` (stride_d, stride_h, stride_w) addresses of the phases, 0 for those that no tap reaches. y: dx
# (planes, depth, height, width) of units. bias: what rows of phases without taps are filled with, (fills,
# fill_row bytes). `sizes_*`: of the phases along each dimension; `pitches_*`: of the arrays that they lie in.
# step: bytes between their units; skip: planes between those of one image and of the next. Where dx goes
# around the caches, `stage_rows` rows at a time are brought together in scratch, which has room for
# as many vectors more as there are phases along a row.
INTERLEAVE_ARGUMENTS = arguments(
    "size planes depth height width stride_d stride_h stride_w unit step skip sizes_d sizes_h sizes_w "
    "pitches_d pitches_h pitches_w fills fill_row stage_rows stream tasks"
)


class Interleaving:
    """dx[..., start::stride] = phase, for each of the `polyphase.phases` of a problem. One run at a time."""

    def __init__(self, problem: ConvProblem, addresses: Sequence[int], together: int):
        """
        Args:
            addresses: of the phases in their order, C-contiguous in the problem's layout; 0 where no tap
                reaches it.
            together: phases whose channels are side by side, as those of an array of so many times C; or 1.
        """
        self._problem, self._tasks = problem, jit.thread_count()
        self._kernel = interleave_kernel(problem)
        self._fills = not all(addresses)
        self._fill = fill_rows(problem, np.zeros(problem.C if self._fills else 0, numpy_dtype(problem.dtype)))
        self._tables = (phase_sizes(problem, together), places(problem, addresses))
        record = interleave_arguments(problem, self._tasks, self._tables[0], together)
        record["x"], record["bias"] = self._tables[1].ctypes.data, self._fill.ctypes.data
        self._record, self._address, self._arguments = record, record.ctypes.data, by_name(record)

    def __call__(self, bias: np.ndarray | None, activation: str | None, dx: np.ndarray) -> None:
        """Write all of dx, C-contiguous in the problem's layout.

        Args:
            bias, activation: of the output step, which a phase that no tap reaches consists of.
        """
        launch, _ = self.bind(bias, activation, dx)
        jit.launch(*launch[:3])

    def bind(
        self, bias: np.ndarray | None, activation: str | None, dx: np.ndarray
    ) -> tuple[Launch, tuple[int]]:
        """What writes this dx, and the address of the word that holds the address of dx."""
        if self._fills:
            fill = np.zeros(self._problem.C, dx.dtype) if bias is None else bias
            fill = fill if activation is None else np.maximum(fill, 0)
            self._fill[...] = fill_rows(self._problem, fill)
        self._arguments.y = dx.ctypes.data
        return Launch(self._kernel, self._address, self._tasks), (self._address + Y_AT,)


def interleave_kernel(problem: ConvProblem) -> int:
    """The `interleave_rows` of a problem."""
    if problem.layout == "channels_last":
        return interleave_rows(0, 0, 0)
    return interleave_rows(problem.itemsize, simd.lanes(problem.itemsize), woven(problem))


def woven(problem: ConvProblem) -> int:
    """Phases along a row that are brought together in vectors; 0 where their units go one by one."""
    stride = problem.stride[-1]
    most = most_woven(problem.itemsize)
    return stride if problem.layout == "channels_first" and 1 < stride <= most else 0


def most_woven(itemsize: int) -> int:
    """Phases that are brought together in vectors, at most; of whole pixels (0 bytes) none."""
    return {0: 0, 2: 2}.get(itemsize, 16)


def phase_sizes(problem: ConvProblem, together: int) -> list[np.ndarray]:
    """`sizes_d`, `sizes_h` and `sizes_w` of the phases, and `pitches_*`: those of the arrays they lie in."""
    p = problem.as_3d
    sizes = [
        np.array([max(0, -(-(size - start) // stride)) for start in range(stride)], np.int64)
        for size, stride in zip(p.spatial, p.stride, strict=True)
    ]
    return sizes + [s if together == 1 else np.full_like(s, s.max()) for s in sizes]


def interleave_arguments(
    problem: ConvProblem, tasks: int, sizes: Sequence[np.ndarray], together: int, stage_rows: int = 0
) -> np.ndarray:
    """The arguments of the kernel but for x, y, bias and scratch.

    Args:
        sizes: `phase_sizes`, which must outlive the record.
        stage_rows: of `stage`; 0 where dx is written as it is.
    """
    p = problem.as_3d
    size = p.itemsize
    last = p.layout == "channels_last"
    planes, unit, fills = (p.N, p.C * size, 1) if last else (p.N * p.C, size, p.C)
    step, skip = (together * unit, 0) if last else (unit, (together - 1) * p.C)
    addresses = (s.ctypes.data for s in sizes)
    given = (0,) * len(RUN_FIELDS.split())
    streaming = (stage_rows, stream(size, simd.lanes(size)) if stage_rows else 0)
    row = (
        *given, size, planes, *p.spatial, *p.stride, unit, step, skip, *addresses, fills, fill_row(problem),
        *streaming, tasks,
    )  # fmt: skip
    return np.array([row], INTERLEAVE_ARGUMENTS)


def stage(problem: ConvProblem) -> tuple[int, int]:
    """(rows, bytes) of dx brought together in the first cache, to be stored around the others."""
    p = problem
    row = p.spatial[-1] * p.itemsize * (p.C if p.layout == "channels_last" else 1)
    rows = max(1, cache_sizes()[0] // 2 // row)
    return rows, rows * row + max(2, woven(p)) * simd.lanes(p.itemsize) * p.itemsize


def places(problem: ConvProblem, addresses: Sequence[int]) -> np.ndarray:
    """Addresses of the phases of a problem, in their order, where the kernel looks for them."""
    p = problem.as_3d
    table = np.zeros(p.stride, np.int64)
    counts = [min(s, n) for s, n in zip(p.stride, p.spatial, strict=True)]  # of phases, per dimension
    for place, address in zip(np.ndindex(*counts), addresses, strict=True):
        table[place] = address
    return table


def interleave_seconds(problem: ConvProblem, machine: Machine) -> float:
    """Predicted time on all threads, from phases in the caches."""
    p, lanes = problem, simd.lanes(problem.itemsize)
    rows = p.N * math.prod(p.spatial[:-1]) * (1 if p.layout == "channels_last" else p.C)
    units = rows * p.spatial[-1]
    if p.layout == "channels_last":
        each = PIXEL_CYCLES + p.C / lanes
    else:
        ways = woven(problem)
        each = (WOVEN_CYCLES + SHUFFLE_CYCLES * shuffles(ways)) / lanes if ways else ELEMENT_CYCLES
    cycles: float = rows * ROW_CYCLES + units * each
    return cycles * 4 * lanes / machine.peak(p.dtype)


def fill_row(problem: ConvProblem) -> int:
    """Bytes of a row of a phase: of one channel, or channels_last of all."""
    longest = -(-problem.spatial[-1] // problem.stride[-1])
    nbytes: int = longest * problem.itemsize
    return nbytes * problem.C if problem.layout == "channels_last" else nbytes


def fill_rows(problem: ConvProblem, fill: np.ndarray) -> np.ndarray:
    """Rows of a phase (C, longest) that are all `fill` (C,); channels_last one, (longest, C)."""
    longest = -(-problem.spatial[-1] // problem.stride[-1])
    return np.tile(fill, longest) if problem.layout == "channels_last" else np.repeat(fill, longest)


def _lines(v: simd.Vec, ways: int, phases: Any, pitches: Any, at: Any, fill: Any) -> list[Any]:
    """Row `at` of each phase, by tables of addresses and pitches: `fill` where no tap reaches the phase."""
    found = []
    for p in range(ways):
        phase, pitch = v.table64(phases, p), v.table64(pitches, p)
        row = v.iadd(phase, v.imul(v.imul(at, pitch), v.size))
        found.append(v.pointer(v.b.select(v.b.icmp_signed("==", phase, v.integer(0)), fill, row)))
    return found


@simd.emitter
def weave(
    v: simd.Vec, WAYS: int, phases: simd.Value, pitches: simd.Value, at: simd.Value, fill: simd.Value,
    count: simd.Value, y: simd.Value,
) -> None:  # fmt: skip
    """y[i * WAYS + p] = phase p[at][i], for i < count, at least lanes. The last vectors may overlap."""
    sources, to = _lines(v, WAYS, phases, pitches, at, fill), v.pointer(y)
    last = v.isub(count, v.lanes)
    with v.loop(v.idiv(v.iadd(count, v.lanes - 1), v.lanes)) as i:
        first = v.imin(v.imul(i, v.lanes), last)
        target = v.at(to, v.imul(first, WAYS))
        for j, part in enumerate(interleaved(v, [v.load(source, first) for source in sources])):
            v.store(part, target, j * v.lanes)


@simd.emitter
def weave_few(
    v: simd.Vec, WAYS: int, phases: simd.Value, pitches: simd.Value, at: simd.Value, fill: simd.Value,
    count: simd.Value, y: simd.Value, room: simd.Value,
) -> None:  # fmt: skip
    """The same for fewer than lanes. Where there is room, at least 0, what lies behind is destroyed."""
    inside, elements, to = v.mask(count), v.imul(count, WAYS), v.pointer(y)
    sources = _lines(v, WAYS, phases, pitches, at, fill)
    parts = interleaved(v, [v.load_masked(source, 0, inside) for source in sources])
    with v.choose(room) as (whole, part):  # masked stores are slower
        with whole:
            for j, value in enumerate(parts):
                v.store(value, to, j * v.lanes)
        with part:
            for j, value in enumerate(parts):
                v.store_masked(value, to, j * v.lanes, v.mask(v.isub(elements, j * v.lanes)))


class PhaseTables(NamedTuple):
    """Addresses of tables of the phases along a row."""

    places: int
    sizes_w: int
    pitches_w: int


@jit.specialise
def interleave_rows(SIZE: int, LANES: int, WAYS: int) -> Callable[..., None]:
    """dx[d, h, w] = phase[d % stride, h % stride, w % stride][d // stride, h // stride, w // stride].

    Units are elements of SIZE bytes, or runs of `unit` bytes where SIZE is 0: all channels of a pixel. The
    rows of dx are dealt to the tasks in equal runs:

    1. for a slice of dx, find the slices of the phases that it consists of;
    2. bring together each of its rows (`interleave_row`), in dx itself or in a stage;
    3. store the stage around the caches when it is full, and at the end.
    """

    def interleave_rows(args: int, task: int) -> None:
        a = carray(pointer(args), 1, INTERLEAVE_ARGUMENTS)[0]
        pitches_d = carray(pointer(a.pitches_d), a.stride_d, np.int64)
        pitches_h = carray(pointer(a.pitches_h), a.stride_h, np.int64)
        tables = PhaseTables(a.x, a.sizes_w, a.pitches_w)
        rows = a.planes * a.depth * a.height
        row, end = rows * task // a.tasks, rows * (task + 1) // a.tasks
        y_row, stride_w, unit = a.width * a.unit, a.stride_w, a.unit
        dx = a.y + row * y_row
        y = a.scratch if a.stage_rows else dx
        last = a.y + end * y_row - WAYS * LANES * SIZE  # where so many vectors may be stored at last
        if a.stage_rows:
            last = y + a.stage_rows * y_row
        h, slice_ = row % a.height, row // a.height
        while row < end:
            d, plane = slice_ % a.depth, slice_ // a.depth
            rest_d, rest_h, at_h = d % a.stride_d, h % a.stride_h, h // a.stride_h
            slices = (plane + plane // a.fills * a.skip) * pitches_d[rest_d] + d // a.stride_d
            fill = a.bias + plane % a.fills * a.fill_row
            here = min(a.height - h, end - row)
            for _ in range(here):
                phase = (rest_d * a.stride_h + rest_h) * stride_w
                at = slices * pitches_h[rest_h] + at_h
                interleave_row(a, tables, phase, at, fill, y, last, stride_w, unit, SIZE, LANES, WAYS)
                y += y_row
                if a.stage_rows and y >= last:
                    call(a.stream, (a.scratch, dx, (y - a.scratch) // a.size))
                    dx, y = dx + y - a.scratch, a.scratch
                rest_h += 1
                if rest_h == a.stride_h:
                    rest_h = 0
                    at_h += 1
            row, slice_, h = row + here, slice_ + 1, 0
        if a.stage_rows and y > a.scratch:
            call(a.stream, (a.scratch, dx, (y - a.scratch) // a.size))

    return interleave_rows


@jit.helper
def interleave_row(
    a: Any, tables: PhaseTables, phase: int, at: int, fill: int, y: int, last: int, stride_w: int, unit: int,
    size: int, lanes: int, ways: int,
) -> None:  # fmt: skip
    """A row of dx at y, from row `at` of each of the `stride_w` phases from `phase` on.

    WAYS phases are brought together in vectors; what is left over, and other numbers, unit by unit.
    """
    places = carray(pointer(tables.places), a.stride_d * a.stride_h * stride_w, np.int64)
    sizes_w = carray(pointer(tables.sizes_w), stride_w, np.int64)
    pitches_w = carray(pointer(tables.pitches_w), stride_w, np.int64)
    done = 0  # elements of each phase that lie in their places
    if ways and a.width >= ways:
        done = sizes_w[ways - 1]
        addresses = tables.places + phase * 8
        if done >= lanes:
            weave(size, lanes, ways, addresses, tables.pitches_w, at, fill, done, y)
        else:
            weave_few(size, lanes, ways, addresses, tables.pitches_w, at, fill, done, y, last - y)
    for rest_w in range(min(stride_w, a.width)):
        count = sizes_w[rest_w]
        if count == done:
            continue
        source = line(places[phase + rest_w], at * pitches_w[rest_w] * a.step, fill)
        to = y + rest_w * unit
        if stride_w == 1 and a.step == unit:
            copy_bytes(to, source, count * unit)
        elif size:
            step = stride_w * size
            place_strided(to + done * step, source + done * size, count - done, stride_w, size)
        else:
            for i in range(count):
                copy_bytes(to + i * stride_w * unit, source + i * a.step, unit)


@jit.helper
def line(phase: int, offset: int, fill: int) -> int:
    """Where a row of a phase lies, whose offset counts bytes: `fill` where no tap reaches the phase."""
    return phase + offset if phase else fill
