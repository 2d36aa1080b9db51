"""The kernels that add to a gradient of a map what comes to it from beyond its edges.

1. `gather_outputs` brings the pixels of dy that count, channels first, into scratch as vectors of channels.
2. `add_outer` takes images and panels of input channels: for each group of places it sums the products of
   all taps, `sum_outer_pixels` of all channels of dy or `sum_outer_channels` of each by itself, and adds the
   sums to what the places are copies of.
"""

from __future__ import annotations

from typing import Any

from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import Value, Vec, call, carray, copy_bytes, pointer, zero_bytes
from convalgos.cpu.vectors.transpose import transpose

# x is dy, and y dx. Offsets count elements. A panel is `width` input channels; dy is read in `blocks` of
# `block` channels each, `block_step` apart. What is gathered are `runs` of pixels in vectors of channels, and
# behind them a pixel of zeros: by all tasks before, or where `own` by each task what it reads.
OUTER_FIELDS = fields(
    "x w y scratch images channels filters panels width vectors size lanes by_channel tasks groups "
    "group_table x_n x_c y_n y_c y_pixel blocks block block_step zeros gathers own runs run_table "
    "gather turn sum add shared_bytes task_bytes sums"
)
# Places, taps; the tables of the outputs, of the taps' weights, and of the targets, which are runs of pixels.
OUTER_GROUP = fields("places taps outputs weights runs targets")
RUN = fields("first count step")  # of pixels
FEW = 4  # neighbouring pixels that are turned one by one


@simd.emitter
def sum_places(
    v: Vec, ROWS: int, VECTORS: int, args: Value, group: Value, first: Value, dy: Value, w: Value, sums: Value
) -> None:
    """sums[i][:] = sum_t sum_k dy[outputs[t][first + i]][k] * w[t][k][:], for i < ROWS, in whole vectors."""
    a, g = v.record(args, OUTER_FIELDS), v.record(group, OUTER_GROUP)
    wide, weights, panel = range(VECTORS), v.pointer(w), VECTORS * v.lanes
    totals = [[v.register(v.zero()) for _ in wide] for _ in range(ROWS)]
    with v.loop(g.taps) as t:
        entry = v.iadd(v.imul(t, g.places), first)
        pixels = [_pixel(v, dy, a.zeros, v.table64(g.outputs, v.iadd(entry, i))) for i in range(ROWS)]
        of_tap = v.at(weights, v.table64(g.weights, t))
        with v.loop(a.blocks) as b:
            done = v.imul(b, a.block)
            with v.loop(v.imin(a.block, v.isub(a.filters, done))) as k:
                row = v.at(of_tap, v.imul(v.iadd(done, k), a.channels))
                at = v.iadd(v.imul(b, a.block_step), k)
                loaded = [v.load(row, j * v.lanes) for j in wide]
                for total, pixel in zip(totals, pixels, strict=True):
                    value = v.broadcast(pixel, at)
                    for j in wide:
                        total[j].set(v.fma(value, loaded[j], total[j].value))
    for i, total in enumerate(totals):
        for j in wide:
            v.store(total[j].value, v.pointer(sums), i * panel + j * v.lanes)


def _pixel(v: Vec, dy: Value, zeros: Value, place: Value) -> Value:
    """Where a pixel begins, or zeros that stand for none."""
    inside = v.b.icmp_signed(">=", place, v.integer(0))
    return v.pointer(v.b.select(inside, v.iadd(dy, v.imul(place, v.size)), zeros))


@simd.emitter
def sum_channel_places(
    v: Vec, ROWS: int, WHOLE: int, args: Value, group: Value, first: Value, dy: Value, w: Value,
    channels: Value, sums: Value,
) -> None:  # fmt: skip
    """sums[i][:] = sum_t dy[outputs[t][first + i]][:] * w[t][:], i < ROWS; WHOLE: the channels are lanes."""
    a, g = v.record(args, OUTER_FIELDS), v.record(group, OUTER_GROUP)
    totals = [v.register(v.zero()) for _ in range(ROWS)]
    inside = v.mask(channels)
    with v.loop(g.taps) as t:
        entry = v.iadd(v.imul(t, g.places), first)
        weight = v.load(v.at(v.pointer(w), v.table64(g.weights, t)))
        for i, total in enumerate(totals):
            pixel = _pixel(v, dy, a.zeros, v.table64(g.outputs, v.iadd(entry, i)))
            value = v.load(pixel) if WHOLE else v.load_masked(pixel, 0, inside)
            total.set(v.fma(value, weight, total.value))
    for i, total in enumerate(totals):
        v.store(total.value, v.pointer(sums), i * v.lanes)


@jit.specialise
def sum_outer_pixels(SIZE: int, LANES: int, ROWS: int, VECTORS: int) -> jit.Kernel:
    """The sums of a group, of a panel of input channels over all channels of dy."""

    def sum_outer_pixels(args: int, group: int, dy: int, w: int, channels: int, sums: int) -> None:
        g = carray(pointer(group), 1, OUTER_GROUP)[0]
        row = VECTORS * LANES * SIZE
        whole = g.places if g.places >= ROWS else 0
        for start in range(0, whole, ROWS):
            first = min(start, whole - ROWS)  # the last tile overlaps the one before
            sum_places(SIZE, LANES, ROWS, VECTORS, args, group, first, dy, w, sums + first * row)
        for first in range(whole, g.places):
            sum_places(SIZE, LANES, 1, VECTORS, args, group, first, dy, w, sums + first * row)

    return sum_outer_pixels


@jit.specialise
def sum_outer_channels(SIZE: int, LANES: int, ROWS: int) -> jit.Kernel:
    """The sums of a group, of a vector of channels, each by itself."""

    def sum_outer_channels(args: int, group: int, dy: int, w: int, channels: int, sums: int) -> None:
        g = carray(pointer(group), 1, OUTER_GROUP)[0]
        whole = g.places if g.places >= ROWS and channels == LANES else 0
        for start in range(0, whole, ROWS):
            first = min(start, whole - ROWS)  # the last tile overlaps the one before
            sum_channel_places(
                SIZE, LANES, ROWS, 1, args, group, first, dy, w, channels, sums + first * LANES * SIZE
            )
        for first in range(whole, g.places):
            sum_channel_places(
                SIZE, LANES, 1, 0, args, group, first, dy, w, channels, sums + first * LANES * SIZE
            )

    return sum_outer_channels


@simd.emitter
def add_pixel(v: Vec, sums: Value, channels: Value, y: Value) -> None:
    """y[i] += sums[i], for i < channels <= lanes."""
    inside, to = v.mask(channels), v.pointer(y)
    v.store_masked(v.fadd(v.load_masked(to, 0, inside), v.load(v.pointer(sums))), to, 0, inside)


@simd.emitter
def add_turned(
    v: Vec, sums: Value, step: Value, channels: Value, pixels: Value, y: Value, y_c: Value
) -> None:
    """y[i * y_c + j] += sums[j * step + i], for i < channels <= lanes, j < pixels <= lanes."""
    read = v.pointer(sums)
    rows = [v.load(read, v.imul(v.imin(j, v.isub(pixels, 1)), step)) for j in range(v.lanes)]
    for i, row in enumerate(transpose(v, rows)):
        there = v.b.icmp_signed("<", v.integer(i), channels)
        inside = v.mask(v.b.select(there, pixels, v.integer(0)))
        to = v.at(v.pointer(y), v.imul(y_c, i))
        v.store_masked(v.fadd(v.load_masked(to, 0, inside), row), to, 0, inside)


@simd.emitter
def add_one(v: Vec, sums: Value, y: Value) -> None:
    """y[0] += sums[0]: in kernels of one lane."""
    to = v.pointer(y)
    v.store(v.fadd(v.load(to), v.load(v.pointer(sums))), to)


@jit.specialise
def add_to_targets(SIZE: int, LANES: int, LAST: int) -> jit.Kernel:
    """The sums of a vector of channels, to the pixels that places are copies of; LAST: channels lie last."""

    def add_to_targets(args: int, group: int, sums: int, channels: int, y: int) -> None:
        a = carray(pointer(args), 1, OUTER_FIELDS)[0]
        g = carray(pointer(group), 1, OUTER_GROUP)[0]
        runs = carray(pointer(g.targets), g.runs, RUN)
        row = a.width * SIZE
        for r in range(g.runs):
            run = runs[r]
            target, step = y + run.first * a.y_pixel * SIZE, run.step * a.y_pixel * SIZE
            if LAST:
                for j in range(run.count):
                    add_pixel(SIZE, LANES, sums + j * row, channels, target + j * step)
            elif run.step == 1 and run.count >= FEW:
                for j in range(0, run.count, LANES):
                    count = min(LANES, run.count - j)
                    add_turned(
                        SIZE, LANES, sums + j * row, a.width, channels, count, target + j * SIZE, a.y_c
                    )
            else:
                for i in range(channels):
                    from_, to = sums + i * SIZE, target + i * a.y_c * SIZE
                    for j in range(run.count):
                        add_one(SIZE, 1, from_ + j * row, to + j * step)
            sums += run.count * row

    return add_to_targets


@jit.helper
def gather_runs(a: Any, x: int, channels: int, target: int) -> None:
    """Runs of pixels of some channels, as vectors of channels; behind them a pixel of zeros."""
    runs = carray(pointer(a.run_table), a.runs, RUN)
    pixel = a.lanes * a.size
    for r in range(a.runs):
        run = runs[r]
        from_ = x + run.first * a.size
        if run.step == 1 and run.count >= FEW:
            call(a.gather, (from_, a.x_c, 1, channels, run.count, target))
        else:
            call(a.turn, (from_, a.x_c, run.step, channels, run.count, target))
        target += run.count * pixel
    zero_bytes(target, pixel)


@jit.specialise
def gather_stepped(SIZE: int, LANES: int) -> jit.Kernel:
    """target[j][i] = x[i * x_c + j * step], for i < channels <= LANES, j < pixels; element by element."""

    def gather_stepped(x: int, x_c: int, step: int, channels: int, pixels: int, target: int) -> None:
        for i in range(channels):
            for j in range(pixels):
                copy_bytes(target + (j * LANES + i) * SIZE, x + (i * x_c + j * step) * SIZE, SIZE)

    return gather_stepped


@jit.specialise
def gather_outputs() -> jit.Kernel:
    """Images x blocks of channels of dy, dealt to the tasks."""

    def gather_outputs(args: int, task: int) -> None:
        a = carray(pointer(args), 1, OUTER_FIELDS)[0]
        total = a.images * a.blocks
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            n, k = unit // a.blocks, unit % a.blocks * a.block
            x = a.x + (n * a.x_n + k * a.x_c) * a.size
            gather_runs(a, x, min(a.block, a.filters - k), a.scratch + unit * a.block_step * a.size)

    return gather_outputs


@jit.specialise
def add_outer() -> jit.Kernel:
    """Images x panels of input channels, dealt to the tasks."""

    def add_outer(args: int, task: int) -> None:
        a = carray(pointer(args), 1, OUTER_FIELDS)[0]
        own = a.scratch + a.shared_bytes + task * a.task_bytes
        sums = own + a.sums
        total = a.images * a.panels
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            n, panel = unit // a.panels, unit % a.panels
            c = panel * a.width
            dy = a.x + n * a.x_n * a.size
            if a.own:
                gather_runs(a, dy + c * a.x_c * a.size, min(a.lanes, a.channels - c), own)
                dy = own
            elif a.gathers:
                dy = a.scratch + n * a.blocks * a.block_step * a.size
            elif a.by_channel:
                dy += c * a.size
            w = a.w + c * a.size
            for g in range(a.groups):
                group = a.group_table + g * OUTER_GROUP.itemsize
                call(a.sum, (args, group, dy, w, min(a.width, a.channels - c), sums))
                for j in range(a.vectors):
                    first = c + j * a.lanes
                    channels = min(a.lanes, a.channels - first)
                    if channels > 0:
                        y = a.y + (n * a.y_n + first * a.y_c) * a.size
                        call(a.add, (args, group, sums + j * a.lanes * a.size, channels, y))

    return add_outer
