"""The kernels of `cpu.depthwise.channels`: blocks of columns of output pixels, with channels in the lanes.

1. `filter_channel_blocks`, the driver, deals images, vectors of whole groups and bands of rows to the
   threads.
2. Channels first, `gather_band` brings the input of a band into pixels of `lanes` channels; channels last it
   is read where it lies.
3. `filter_block` filters a block of columns, for all rows of a band. Its sums stay in registers over the
   whole kernel (`channel_taps`), and every pixel of x is loaded once for each kernel row. Where groups have
   several input channels, a shuffle copies each to the lanes of the filters of its group. Columns of padding
   are passed over.
4. Channels first, `place_band` takes the finished pixels back.

Usual kernels have code of their own. Others of a usual stride sum a few columns of taps at a time, and load a
pixel once for these. In the code of all others stride and dilation are arguments, and each product loads its
pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from convalgos.cpu.dwconv.channel_lines import LineChannels, in_lines, line_order
from convalgos.cpu.dwconv.channel_records import (
    BEYOND,
    CHANNEL_BAND,
    CHANNEL_KERNEL_FIELDS,
    COLUMN_BLOCK,
    ROW_RUN,
)
from convalgos.cpu.dwconv.channel_taps import (
    TAP_CHUNKS,
    AddRow,
    GroupChannels,
    Load,
    Total,
    add_any_row,
    add_usual_row,
    meetings,
)
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.finish import finish_run
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.activations import CLIP
from convalgos.cpu.vectors.simd import Value, Vec, call, carray, fetch_bytes, pointer


@simd.emitter
def filter_columns(
    v: Vec, FORM: int, IN: int, OUT: int, VECTORS: int, PIXELS: int, TAPS: int, STRIDE: int, DILATION: int,
    BORDER: int, KIND: int,
    args: Value, band: Value, column: Value, x: Value, w: Value, bias: Value, y: Value, ahead: Value,
    claim: Value,
) -> None:  # fmt: skip
    """A block of PIXELS columns, for all runs (see `ROW_RUN`) of output rows of a band.

    y[i][j][q] = sum_{t,r,s,g} x[i*from_next + j*from_vector + t*slice_step + r*row_step + q*stride +
    s*dilation][g] * w[j][g][t][r][s], where i counts the rows of a run and j vectors, both x[g] and w hold
    `lanes` filters, and a product is left out where its column of x is one of the first `left` or the last
    `right`. Starts from the bias, and ends with the activation of a KIND, whose numbers are `bounds`: with
    relu and within these if it is CLIP. TAPS, STRIDE and DILATION are those of
    the row. With TAPS 0 `taps` is an argument; with STRIDE 0 so are `stride` and `dilation`, and `ranges`
    tells from which to which output a tap meets the map. With BORDER nothing is left out: tables tell what
    lies beyond the edges, and `filler` is a row of x that holds the fill value. `fetch` asks for lines,
    `ahead` and `claim` elements behind each pixel of y, and `fetch_rows` for so many rows of x `ahead`.
    FORM tells the elements of x and y, see `halves`.
    """
    a, b = v.record(args, CHANNEL_KERNEL_FIELDS), v.record(band, CHANNEL_BAND)
    c = v.record(column, COLUMN_BLOCK)
    groups = v.lanes // max(IN, OUT)
    first = [v.load(v.pointer(bias), j * groups * OUT) for j in range(VECTORS)]
    numbers = v.pointer(a.bounds)
    of_kind = v.broadcast(numbers), v.broadcast(numbers, 1)
    if KIND == CLIP:
        of_kind = v.fmax(v.lower_bound(a.relu), of_kind[0]), of_kind[1]
    channels = GroupChannels(v, FORM, IN, OUT, a.w_channel)
    if in_lines(FORM, IN, OUT, VECTORS):
        channels = LineChannels(v, FORM, a.w_channel, a.w_vector)
        first = [v.shuffle(first[0], first[1], order) for order in line_order(v.lanes)]
    m = channels.maps

    def filtered(add: AddRow) -> None:
        runs = v.iadd(a.runs, v.imul(b.first_run, ROW_RUN.itemsize))
        with v.loop(b.runs) as n:
            run = v.record(v.iadd(runs, v.imul(n, ROW_RUN.itemsize)), ROW_RUN)
            with v.loop(run.rows) as i:
                source = m.at(v.pointer(x), v.iadd(run.x, v.imul(i, a.from_next)))
                target = m.at(v.pointer(y), v.iadd(run.y, v.imul(i, a.to_next)))
                sums = [[v.register(value) for _ in range(PIXELS)] for value in first]
                with v.loop(run.slice_taps) as t, v.loop(run.row_taps) as r:
                    if BORDER:
                        tap = v.iadd(v.imul(t, run.row_taps), r)
                        line = _at_source(m, source, run.lines, tap, m.at(v.pointer(a.filler), c.x))
                    else:
                        line = m.at(source, v.iadd(v.imul(t, a.slice_step), v.imul(r, a.row_step)))
                    taps = v.iadd(run.w, v.iadd(v.imul(t, a.w_slice), v.imul(r, a.w_row)))
                    of_row = v.at(v.pointer(w), taps)
                    for j, pixels in enumerate(channels.units(sums)):
                        from_ = m.at(line, v.imul(a.from_vector, j))
                        add(pixels, from_, v.at(of_row, v.imul(a.w_vector, j)))
                _finish(channels, a, (source, target), STRIDE, sums, (KIND, *of_kind), ahead, claim)

    def add_usual(padding: tuple[Value, Value] | None) -> AddRow:
        row = TAPS, STRIDE, DILATION

        def add(pixels: Sequence[Total], x: Value, w: Value) -> None:
            add_usual_row(v, channels, pixels, row, a.taps, x, a.from_pixel, w, padding)

        return add

    at_ends = add_usual((c.left, c.right))
    if BORDER:
        at_ends = _add_border_row(v, channels, (TAPS, STRIDE, DILATION), a, c.sources)
    if not STRIDE:
        filtered(at_ends if BORDER else add_any_row(v, channels, a, c.ranges))
        return
    with v.choose(v.isub(0, v.iadd(c.left, c.right))) as (inside, at_border):  # most blocks need no checks
        with inside:
            filtered(add_usual(None))
        with at_border:
            filtered(at_ends)


def _at_source(m: Vec, start: Value, table: Value, index: Value, filler: Value) -> Value:
    """What lies an entry of a table behind `start`, or the filler."""
    entry = m.table64(table, index)
    outside = m.b.icmp_signed("==", entry, m.integer(BEYOND))
    return m.b.select(outside, filler, m.at(start, entry))


def _add_border_row(
    v: Vec, channels: GroupChannels, row: tuple[int, int, int], a: Any, sources: Value
) -> AddRow:
    """The products of a row of taps with columns of which some lie beyond the map, by a table."""
    TAPS, STRIDE, DILATION = row
    m, filler = channels.maps, v.pointer(a.filler)

    def load_at(x: Value, column: Value, load: Load) -> Any:
        return load(_at_source(m, x, sources, column, filler))

    def add_chunk(pixels: Sequence[Total], x: Value, w: Value, first: Value, taps: int) -> None:
        """Some taps from `first` on: a pixel is loaded once for these."""

        def add_channel(x: Value, w: Value, load: Load) -> None:
            near = v.at(w, v.imul(first, channels.width))
            weights = [channels.weight(near, tap) for tap in range(taps)]
            at, before = first, 0
            for column, met in meetings(len(pixels), taps, STRIDE, DILATION).items():
                # else all columns would be loaded first, for too few registers
                at, before = v.after(v.iadd(at, column - before)), column
                value = load_at(x, at, load)
                for pixel, tap in met:
                    channels.add(pixels[pixel], value, weights[tap])

        channels.each(x, w, add_channel)

    def add_each(pixels: Sequence[Total], x: Value, w: Value) -> None:
        """Of any stride and dilation each product loads its pixel."""

        def add_channel(x: Value, w: Value, load: Load) -> None:
            with v.loop(a.taps) as s:
                weight = channels.weight(v.at(w, v.imul(s, channels.width)), 0)
                for pixel, total in enumerate(pixels):
                    column = v.iadd(v.imul(s, a.dilation), v.imul(a.stride, pixel))
                    channels.add(total, load_at(x, column, load), weight)

        channels.each(x, w, add_channel)

    def add(pixels: Sequence[Total], x: Value, w: Value) -> None:
        first = v.integer(0)
        for chunk in TAP_CHUNKS if not TAPS else ():
            count = v.idiv(v.isub(a.taps, first), chunk)
            with v.loop(count) as i:
                add_chunk(pixels, x, w, v.iadd(first, v.imul(i, chunk)), chunk)
            first = v.iadd(first, v.imul(count, chunk))
        if TAPS:
            add_chunk(pixels, x, w, first, TAPS)

    return add if STRIDE else add_each


def _finish(
    channels: GroupChannels, a: Any, row: tuple[Value, Value], stride: int,
    sums: Sequence[Sequence[Total]], activation: tuple[int, Value, Value], ahead: Value, claim: Value,
) -> None:  # fmt: skip
    """The sums of all vectors of a row of x and y with their activation, and what is asked for ahead."""
    m, (source, target) = channels.maps, row
    for j, pixels in enumerate(channels.units(sums)):
        to = m.at(target, m.imul(a.to_vector, j))
        for q, total in enumerate(pixels):
            to = m.step(to, a.to_pixel if q else 0)
            m.store(channels.finished(total, activation), to)
        if stride == 2:
            with m.loop(a.fetch_rows) as n:
                from_ = m.at(source, m.iadd(m.imul(a.from_vector, j), m.imul(a.row_step, n)))
                for _ in range(stride * len(pixels)):
                    m.prefetch(from_, ahead)
                    from_ = m.step(from_, a.from_pixel)
        with m.loop(a.fetch):
            to = m.at(target, m.imul(a.to_vector, j))
            for q in range(len(pixels)):
                to = m.step(to, a.to_pixel if q else 0)
                m.prefetch(to, ahead)
                m.prefetch(to, claim, write=True)


@jit.specialise
def filter_block(
    SIZE: int, LANES: int, FORM: int, IN: int, OUT: int, VECTORS: int, PIXELS: int, TAPS: int, STRIDE: int,
    DILATION: int, BORDER: int, KIND: int,
) -> jit.Kernel:  # fmt: skip
    """`filter_columns`."""

    def filter_block(
        args: int, band: int, column: int, x: int, w: int, bias: int, y: int, ahead: int, claim: int
    ) -> None:
        filter_columns(
            SIZE, LANES, FORM, IN, OUT, VECTORS, PIXELS, TAPS, STRIDE, DILATION, BORDER, KIND,
            args, band, column, x, w, bias, y, ahead, claim,
        )  # fmt: skip

    return filter_block


@jit.helper
def gather_band(a: Any, band: Any, first_group: int, x: int, scratch: int) -> None:
    """A band of some vectors of groups of x into scratch[vector][slice][pixel][lane]."""
    for j in range(a.vectors):
        groups = min(a.block_groups, a.groups - first_group - j * a.block_groups)
        for d in range(a.slices if groups > 0 else 0):
            source = x + (j * a.x_vector + d * a.x_slice + band.x * a.x_pixel) * a.size
            target = scratch + (j * a.from_vector + d * a.from_slice) * a.sum_size
            call(a.gather, (source, a.x_c, a.x_pixel, groups * a.channels, band.x_pixels, target))


@jit.helper
def place_band(a: Any, band: Any, first_group: int, sums: int, y: int) -> None:
    """The finished sums[vector][slice][pixel][lane] of a band into y."""
    for j in range(a.vectors):
        groups = min(a.block_groups, a.groups - first_group - j * a.block_groups)
        for o in range(a.slices_out if groups > 0 else 0):
            source = sums + (j * a.to_vector + o * a.to_slice) * a.sum_size
            target = y + (j * a.y_vector + o * a.y_slice + band.y * a.y_pixel) * a.size
            call(a.place, (source, a.y_k, a.y_pixel, groups * a.filters, band.y_pixels, target))


@jit.helper
def fold_maps(a: Any, args: int, first_group: int, sums: int, y: int) -> None:
    """The finished sums of maps with their border into y, folded; see `folded_maps`."""
    for j in range(a.vectors):
        groups = min(a.block_groups, a.groups - first_group - j * a.block_groups)
        if groups > 0:
            from_ = sums + j * a.to_vector * a.sum_size
            call(a.fold, (args, from_, groups * a.filters, y + j * a.y_vector * a.size))


@jit.helper
def finish_band(a: Any, band: Any, first_group: int, y: int) -> None:
    """The output step of a band of y that is stored: of blocks, or of channels."""
    for j in range(a.vectors):
        groups = min(a.block_groups, a.groups - first_group - j * a.block_groups)
        for o in range(a.slices_out if groups > 0 else 0):
            run = y + (j * a.y_vector + o * a.y_slice + band.y * a.y_pixel) * a.size
            if a.y_near:
                finish_run(a, run, band.y_pixels * a.y_pixel)
            else:
                for k in range(groups * a.filters):
                    finish_run(a, run + k * a.y_k * a.size, band.y_pixels)


@jit.helper
def fetch_next_band(a: Any, image: int, number: int, block: int) -> None:
    """Ask for a block's share of the rows of x that the next band brings, in the order of memory.

    A block reads few bytes of each pixel, in more pages than prefetchers follow.
    """
    bands = carray(pointer(a.bands), a.band_count, CHANNEL_BAND)
    n, following, first = image, number + 1, bands[number].x + bands[number].x_pixels
    if following == a.band_count:
        n, following, first = image + 1, 0, 0
    if n < a.images:
        band = bands[following]
        share = (band.x + band.x_pixels - first) * a.x_pixel * a.size // a.blocks
        fetch_bytes(8, 1, 0, a.x + (n * a.x_n + first * a.x_pixel) * a.size + share * block, share)


@jit.specialise
def filter_channel_blocks() -> jit.Kernel:
    """Images x blocks of groups x bands, dealt to the tasks in equal runs.

    Of channels_last in place, bands come before blocks, which find the lines they share in the cache.
    """

    def filter_channel_blocks(args: int, task: int) -> None:
        a = carray(pointer(args), 1, CHANNEL_KERNEL_FIELDS)[0]
        bands = carray(pointer(a.bands), a.band_count, CHANNEL_BAND)
        columns = carray(pointer(a.columns), a.column_count, COLUMN_BLOCK)
        scratch = a.scratch + task * a.scratch_bytes
        sums = scratch + a.sums * a.sum_size
        per_image = a.blocks * a.band_count
        total = a.images * per_image
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            n = unit // per_image
            rest = unit - n * per_image
            block = rest % a.blocks if a.shares_lines else rest // a.band_count
            number = rest // a.blocks if a.shares_lines else rest % a.band_count
            band = bands[number]
            group = min(block * a.vectors * a.block_groups, a.last_group)
            channel = group * a.channels
            within = channel % a.x_pixel  # channels of several vectors may lie side by side in blocks
            x = a.x + (n * a.x_n + (channel - within) * a.x_c + within) * a.size
            y = a.y + (n * a.y_n + group * a.filters * a.y_k) * a.size
            source, target = x, y
            # where x and y are alike, their lines some rows ahead lie as far from each pixel of y
            ahead, claim = (x - y) // a.size + a.rows_ahead * a.row_step, a.rows_ahead * a.to_next
            if a.fetch_rows:
                ahead = a.rows_ahead * a.row_step
            if a.band_ahead:
                fetch_next_band(a, n, number, block)
            if not a.x_near:
                gather_band(a, band, group, x, scratch)
                source = scratch - band.x * a.from_pixel * a.sum_size
            if not a.y_near:
                target = sums - band.y * a.to_pixel * a.sum_size
                # a pixel of sums is as large as what its vector has in x and y, behind one another
                ahead = (x - target) // a.size + a.vectors * a.x_vector
                claim = (y - target) // a.size
            w = a.w + block * a.w_block * a.sum_size
            bias = a.bias + group * a.filters * a.sum_size
            for j in range(a.column_count):
                column = columns[j]
                call(
                    a.filter_block,
                    (
                        args, a.bands + number * CHANNEL_BAND.itemsize, a.columns + j * COLUMN_BLOCK.itemsize,
                        source + column.x * a.near_size, w, bias, target + column.y * a.near_size, ahead,
                        claim,
                    ),
                )  # fmt: skip
            if a.fold:
                fold_maps(a, args, group, sums, y)
            elif not a.y_near:
                place_band(a, band, group, sums, y)
            if a.finish:
                finish_band(a, band, group, y)

    return filter_channel_blocks
