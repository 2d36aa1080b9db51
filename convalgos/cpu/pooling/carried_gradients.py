"""Gradients of maxima found axis by axis, whose places are carried along: of two or three dimensions.

A slice of x at a time, the maxima of each row are found over the columns of windows, those of these over
the rows, and these stay in a ring of as many slices as a window has. A window's maximum is then that of one
of its slices, and dy is added where that lies. So a window of t x r x s elements takes about t + r + s steps,
fewer where windows share them, and an output one addition. Of two dimensions rows are the slices.

Channels lie in the lanes, or with channels first planes, brought into pixels by transposes.
"""

from __future__ import annotations

from typing import Any

from convalgos.cpu.pooling.elements import FLOAT, MAX, PoolElements
from convalgos.cpu.pooling.maxima import INDEX, lane_numbers
from convalgos.cpu.pooling.phase_maxima import TAP, find_maxima
from convalgos.cpu.pooling.reductions import COLUMN, UNROLLED, zero_pixels
from convalgos.cpu.pooling.tables import GRADIENT_BAND
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.blocks import loop_chunks
from convalgos.cpu.vectors.instructions import ir
from convalgos.cpu.vectors.integers import words_of
from convalgos.cpu.vectors.simd import Value, Vec, call, carray, pointer, zero_bytes

# Bytes from the scratch of a task on, after the pixels of a slice of x: `lines`, maxima of its rows; `ring`,
# those of slices, each of `slot` elements; and their places. `best`, `found`: of a slice of outputs.
CARRIED_FIELDS = fields(
    "x y dx scratch scratch_bytes stored size tasks planes blocks channels block_channels bands band_table "
    "slices slice_windows slices_out reach ring_dilation ring_table ring_taps rows row_windows rows_out "
    "row_taps columns windows outputs inner inner_end stride dilation x_plane pixel y_plane gather lines "
    "line_places ring ring_places best found slot"
)

SLICE_WINDOW = fields("first taps begin")  # the first slice of this and all later windows is `begin`


@simd.emitter
def maxima_of_columns(
    v: Vec, PLANES: int, TOGETHER: int, x: Value, maxima: Value, places: Value, channels: Value,
    windows: Value, begin: Value, end: Value, stride: Value, step: Value, dilation: Value, index: Value,
    pixel: Value,
) -> None:  # fmt: skip
    """maxima[q * channels + c] of the windows begin <= q < end of a row of x, and their places in dx.

    Args:
        TOGETHER: windows that are gone over at a time, which then lie inside; so many are a part of all.
        step, pixel: elements from one pixel to the next, of x and of dx.
        index: place of the first pixel of the row.
    """
    of, words = PoolElements(v, FLOAT, MAX), words_of(v)
    source = v.pointer(x)
    with v.loop(v.idiv(v.isub(end, begin), TOGETHER)) as i:
        q = v.iadd(begin, v.imul(i, TOGETHER))
        window = v.record(v.iadd(windows, v.imul(q, COLUMN.itemsize)), COLUMN)
        columns = [v.iadd(window.first, v.imul(stride, j)) for j in range(TOGETHER)]

        def chunk(
            first: Value, vectors: int, mask: Value = None, *, q: Value = q, window: Any = window,
            columns: list[Value] = columns,
        ) -> None:  # fmt: skip
            each = [(j, k * v.lanes) for j in range(TOGETHER) for k in range(vectors)]
            begins = [v.iadd(index, v.imul(column, pixel)) for column in columns]
            corners = [v.at(source, v.iadd(first, v.imul(column, step))) for column in columns]
            totals = [v.register(of.identity()) for _ in each]
            found = [words.register(words.spread(begins[j])) for j, _ in each]
            with v.loop(window.taps) as s:
                t = v.imul(s, dilation)
                passed, further = v.imul(t, step), v.imul(t, pixel)
                numbers = [words.spread(v.iadd(here, further)) for here in begins]
                for (j, at), total, where in zip(each, totals, found, strict=True):
                    value = of.load(v.at(corners[j], passed), at, mask)
                    larger = of.exceeds(value, total.value)
                    where.set(v.b.select(larger, numbers[j], where.value))
                    total.set(v.b.select(larger, value, total.value))
            for (j, k), total, where in zip(each, totals, found, strict=True):
                at, place = v.iadd(v.iadd(v.imul(v.iadd(q, j), channels), first), k), where.value
                if not PLANES:
                    place = words.add(place, words.spread(v.iadd(first, k)))
                    place = words.add(place, lane_numbers(words))
                if mask is None:
                    v.store(total.value, v.pointer(maxima), at)
                    words.store(place, v.pointer(places), at)
                else:
                    v.store_masked(total.value, v.pointer(maxima), at, mask)
                    words.store_masked(place, v.pointer(places), at, mask)

        loop_chunks(v, v, channels, UNROLLED // TOGETHER, chunk)


@simd.emitter
def add_found(
    v: Vec, dx: Value, dy: Value, places: Value, count: Value, step: Value, first: Value, elements: Value
) -> None:
    """dx[places[i * step] - first] += dy[i] for i < count, where that is one of so many elements."""
    word, to, given = ir.IntType(32), v.pointer(dx), v.pointer(dy)
    table = v.pointer(places)
    with v.loop(count) as i:
        number = v.b.load(v.b.gep(table, [v.imul(i, step)], source_etype=word), typ=word)
        place = v.isub(v.b.sext(number, ir.IntType(64)), first)
        with v.within(place, elements):
            at = v.at(to, place)
            v.b.store(v.fadd(v.b.load(at, typ=v.element), v.b.load(v.at(given, i), typ=v.element)), at)


@jit.helper
def bring_slice(
    SIZE: int, LANES: int, PLANES: int, args: int, scratch: int, x: int, number: int, channels: int
) -> None:
    """The maxima of a slice of x over the columns and rows of windows, into the ring; x: of its map."""
    a = carray(pointer(args), 1, CARRIED_FIELDS)[0]
    rows = carray(pointer(a.row_windows), a.rows_out, COLUMN)
    width = LANES if PLANES else channels
    step = LANES if PLANES else a.pixel
    source = x + number * a.rows * a.columns * a.pixel * SIZE
    if PLANES:
        call(a.gather, (source, a.x_plane, 1, channels, a.rows * a.columns, scratch))
        source = scratch
    slot = number % a.reach * a.slot
    ring, ring_places = scratch + a.ring + slot * SIZE, scratch + a.ring_places + slot * INDEX
    lines, line_places = scratch + a.lines, scratch + a.line_places
    line = a.outputs * width
    pitch = a.outputs * a.block_channels  # of the last block, too
    if a.row_taps == 0:  # of one row
        lines, line_places = ring, ring_places
    for row in range(a.rows):
        from_, to = source + row * a.columns * step * SIZE, lines + row * pitch * SIZE
        found = line_places + row * pitch * INDEX
        index = (number * a.rows + row) * a.columns * a.pixel
        maxima_of_columns(
            SIZE, LANES, PLANES, UNROLLED, from_, to, found, width, a.windows, a.inner, a.inner_end, a.stride,
            step, a.dilation, index, a.pixel,
        )  # fmt: skip
        for side in range(2):
            maxima_of_columns(
                SIZE, LANES, PLANES, 1, from_, to, found, width, a.windows, a.inner_end if side else 0,
                a.outputs if side else a.inner, a.stride, step, a.dilation, index, a.pixel,
            )  # fmt: skip
    for p in range(a.rows_out if a.row_taps != 0 else 0):
        window = rows[p]
        known = line_places + window.first * pitch * INDEX
        find_maxima(
            SIZE, LANES, True, lines + window.first * pitch * SIZE, known, ring + p * line * SIZE,
            ring_places + p * line * INDEX, line, window.taps, a.row_taps, known, 1,
        )  # fmt: skip


@jit.helper
def add_slice(
    SIZE: int, LANES: int, PLANES: int, args: int, scratch: int, number: int, channels: int, dy: int, dx: int,
    first: int, elements: int,
) -> None:  # fmt: skip
    """dy of a slice of outputs to so many elements of dx, from place `first` on; dy, dx: of maps."""
    a = carray(pointer(args), 1, CARRIED_FIELDS)[0]
    window = carray(pointer(a.slice_windows), a.slices_out, SLICE_WINDOW)[number]
    slot = window.first % a.reach
    pixels = a.rows_out * a.outputs
    known = scratch + a.ring_places
    found = scratch + a.found
    find_maxima(
        SIZE, LANES, True, scratch + a.ring, known, scratch + a.best, found,
        pixels * (LANES if PLANES else channels), window.taps,
        a.ring_table + slot * a.ring_taps * TAP.itemsize, known + slot * a.slot * INDEX, 1,
    )  # fmt: skip
    given = dy + number * pixels * a.pixel * SIZE
    if PLANES:
        for lane in range(channels):
            add_found(
                SIZE, LANES, dx + (lane * a.x_plane + first) * SIZE, given + lane * a.y_plane * SIZE,
                found + lane * INDEX, pixels, LANES, first, elements,
            )  # fmt: skip
        return
    runs = 1 if channels == a.pixel else pixels
    run = pixels * channels // runs
    for i in range(runs):
        add_found(
            SIZE, LANES, dx + first * SIZE, given + i * a.pixel * SIZE, found + i * run * INDEX, run, 1,
            first, elements,
        )  # fmt: skip


@jit.helper
def zero_slices(
    SIZE: int, LANES: int, PLANES: int, args: int, dx: int, first: int, end: int, channels: int
) -> None:
    """Slices of dx, of so many channels or planes; dx: of the map."""
    a = carray(pointer(args), 1, CARRIED_FIELDS)[0]
    pixels = (end - first) * a.rows * a.columns
    begin = dx + first * a.rows * a.columns * a.pixel * SIZE
    if PLANES:
        for lane in range(channels):
            zero_bytes(begin + lane * a.x_plane * SIZE, pixels * SIZE)
    elif channels == a.pixel:
        zero_bytes(begin, pixels * channels * SIZE)
    else:
        zero_pixels(SIZE, LANES, begin, pixels, a.pixel, channels)


@jit.specialise
def carried_gradient(SIZE: int, LANES: int, PLANES: int) -> jit.Kernel:
    """dx of dy and x (N, *spatial, C); or with PLANES (planes, *spatial)."""

    def carried_gradient(args: int, task: int) -> None:
        a = carray(pointer(args), 1, CARRIED_FIELDS)[0]
        bands = carray(pointer(a.band_table), a.bands, GRADIENT_BAND)
        windows = carray(pointer(a.slice_windows), a.slices_out, SLICE_WINDOW)
        scratch = a.scratch + task * a.scratch_bytes
        slice_elements = a.rows * a.columns * a.pixel
        total = a.planes * a.blocks * a.bands
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            # bands before blocks: threads on blocks of the same pixels wait for each other's cache lines
            first = unit % a.blocks * a.block_channels
            channels = min(a.block_channels, a.channels - first)
            band = bands[unit // a.blocks % a.bands]
            plane = unit // (a.blocks * a.bands)
            x_at = first * a.x_plane if PLANES else plane * a.x_plane + first
            y_at = first * a.y_plane if PLANES else plane * a.y_plane + first
            dx = a.dx + x_at * SIZE
            brought = 0  # slices of x up to this one are in the ring,
            zeroed = band.first  # and those of dx are begun
            for number in range(band.outputs, band.outputs_end):
                window = windows[number]
                end = window.first + (window.taps - 1) * a.ring_dilation + 1
                brought = max(brought, window.begin)
                while brought < end:
                    bring_slice(SIZE, LANES, PLANES, args, scratch, a.x + x_at * SIZE, brought, channels)
                    brought += 1
                ready = min(end, band.end)
                if ready > zeroed:
                    zero_slices(SIZE, LANES, PLANES, args, dx, zeroed, ready, channels)
                    zeroed = ready
                add_slice(
                    SIZE, LANES, PLANES, args, scratch, number, channels, a.y + y_at * SIZE, dx,
                    band.first * slice_elements, (zeroed - band.first) * slice_elements,
                )  # fmt: skip
            if band.end > zeroed:
                zero_slices(SIZE, LANES, PLANES, args, dx, zeroed, band.end, channels)

    return carried_gradient
