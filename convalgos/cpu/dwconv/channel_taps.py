"""What a block of columns sums for a row of the kernel, on pixels whose channels lie in the lanes.

Every pixel of x is loaded once for each kernel row, and feeds all outputs that it meets (`add_usual_row`).
For strides of which no code knows, each product loads its pixel (`add_any_row`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from convalgos.cpu.dwconv.channel_forms import channels_read
from convalgos.cpu.vectors.activations import activate_in_turn
from convalgos.cpu.vectors.halves import maps
from convalgos.cpu.vectors.simd import Value, Vec

# Columns of taps that are summed at a time, of any number; the first again and again.
TAP_CHUNKS = (8, 4, 2, 1)
# Columns of padding on the left and on the right that most rows meet, which begin or end a map.
ONE_COLUMN = ((1, 1), (1, 0), (0, 1))

Total = Any  # the sums of a pixel: a `Register`, or what else `GroupChannels.add` takes
# (sums of pixels, x, w): add the products of a row of taps
AddRow = Callable[[Sequence[Total], Value, Value], None]
Load = Callable[[Value], Value]
Steps = dict[int, list[tuple[int, int]]]  # `meetings`


def meetings(pixels: int, taps: int, stride: int, dilation: int) -> dict[int, list[tuple[int, int]]]:
    """Input column, counted from the first of a block -> the (output, kernel column) pairs that read it."""
    found: dict[int, list[tuple[int, int]]] = {}
    for pixel in range(pixels):
        for tap in range(taps):
            found.setdefault(pixel * stride + tap * dilation, []).append((pixel, tap))
    return dict(sorted(found.items()))


class GroupChannels:
    """The input channels of a group: how one is brought to the lanes of the filters of its group.

    `maps` moves along pixels, and there are `width` elements of w between two taps.
    """

    def __init__(self, v: Vec, form: int, number: int, filters: int, step: Value):
        """form: of the elements of x, see `halves`. step: elements of w between two channels."""
        self._v, self._form, self.number, self._filters, self._step = v, form, number, filters, step
        self.maps = self._maps(v)
        self._groups, self.width = v.lanes // max(number, filters), v.lanes

    def _maps(self, v: Vec) -> Vec:
        return maps(v, self._form)

    def each(self, x: Value, w: Value, add: Callable[[Value, Value, Load], None]) -> None:
        """`add(x, w, load)` for every channel: where it begins in x, and its row of w."""
        v = self._v
        if self._groups == 1 and self.number > 1:
            with v.loop(self.number) as channel:
                near = v.at(w, v.imul(channel, self._step))
                add(self.maps.at(x, channel), near, self.maps.broadcast)
            return
        for channel in range(self.number):
            add(x, v.at(w, v.imul(self._step, channel)) if channel else w, self._loads(channel))

    def weight(self, w: Value, tap: int) -> Any:
        return self._v.load(w, tap * self.width)

    def add(self, total: Total, value: Any, weight: Any) -> None:
        """Add the products of a pixel with a tap."""
        total.set(self._v.fma(value, weight, total.value))

    def units(self, sums: Sequence[Sequence[Total]]) -> Sequence[Sequence[Total]]:
        """The sums of pixels (of vectors, of pixels) that are loaded together."""
        return sums

    def finished(self, total: Total, activation: tuple[int, Value, Value]) -> Any:
        """What is stored of a pixel: the activation of its sum, by a code and two numbers."""
        kind, a, b = activation
        return activate_in_turn(self._v, kind, total.value, a, b)

    def _loads(self, channel: int) -> Load:
        v, last = self._v, self._groups - 1
        lanes = [min(lane // self._filters, last) * self.number + channel for lane in range(v.lanes)]
        if lanes == list(range(v.lanes)):
            return self.maps.load
        read = channels_read(v.lanes, self.number, self._filters)
        if read == 1:
            return self.maps.broadcast
        part = self._maps(Vec(v.b, read, v.size)) if read else self.maps

        def load(at: Value) -> Value:
            value = part.load(at)
            return v.shuffle(value, value, lanes)

        return load


def add_usual_row(
    v: Vec, channels: GroupChannels, pixels: Sequence[Total], row: tuple[int, int, int], taps: Value,
    x: Value, x_pixel: Value, w: Value, padding: tuple[Value, Value] | None,
) -> None:  # fmt: skip
    """The products of one row of a kernel of TAPS columns, of which at least one meets any output; or of
    `taps` columns, chunk by chunk. padding: columns of x at both ends that are passed over, if any."""
    TAPS, STRIDE, DILATION = row
    reach = v.iadd((len(pixels) - 1) * STRIDE + 1, v.imul(v.isub(TAPS or taps, 1), DILATION))
    if padding:
        padding = padding[0], v.isub(reach, padding[1])
    if TAPS:
        _add_whole_row(v, channels, pixels, row, x, x_pixel, w, padding)
        return
    first = v.integer(0)
    for chunk in TAP_CHUNKS:
        steps = meetings(len(pixels), chunk, STRIDE, 1)
        last = max(steps)
        count = v.idiv(v.isub(taps, first), chunk)
        with v.loop(count) as c:
            s = v.iadd(first, v.imul(c, chunk))
            x_s, w_s = channels.maps.at(x, v.imul(x_pixel, s)), v.at(w, v.imul(s, channels.width))
            if padding:
                left, end = (v.isub(n, s) for n in padding)
                missing = v.imax(left, v.isub(last + 1, end))  # columns at one end
                with v.choose(v.isub(0, missing)) as (whole, part):
                    with whole:
                        _add_columns(v, channels, pixels, steps, x_s, x_pixel, w_s)
                    with part, v.unless_negative(v.isub(last, missing)):
                        _add_columns(v, channels, pixels, steps, x_s, x_pixel, w_s, last + 1, (left, end))
            else:
                _add_columns(v, channels, pixels, steps, x_s, x_pixel, w_s)
        first = v.iadd(first, v.imul(count, chunk))


def _add_whole_row(
    v: Vec, channels: GroupChannels, pixels: Sequence[Total], row: tuple[int, int, int], x: Value,
    x_pixel: Value, w: Value, inside: tuple[Value, Value] | None,
) -> None:  # fmt: skip
    """All columns of a row of taps; inside: as of `_add_columns`."""
    TAPS, STRIDE, DILATION = row
    steps = meetings(len(pixels), TAPS, STRIDE, DILATION)
    border = (TAPS - 1) * DILATION  # only so many columns at both ends may be padding
    last = max(steps)
    of_row = v, channels, pixels
    if channels.number == 1 or last < 2:
        _add_columns(*of_row, steps, x, x_pixel, w, border, inside)
        return
    if inside is None:
        _add_columns(*of_row, steps, x, x_pixel, w)
        return
    left, right = inside[0], v.isub(last + 1, inside[1])
    with ExitStack() as rest:
        for ends in ONE_COLUMN:  # no more loops than without any padding
            missing = [v.isub(n, end) for n, end in zip((left, right), ends, strict=True)]
            squares = v.iadd(*(v.imul(n, n) for n in missing))
            alike, other = rest.enter_context(v.choose(v.isub(0, squares)))
            with alike:
                met = {column: taps for column, taps in steps.items() if ends[0] <= column <= last - ends[1]}
                _add_columns(*of_row, met, x, x_pixel, w)
            rest.enter_context(other)
        _add_columns(*of_row, steps, x, x_pixel, w, border, inside)


def _add_columns(
    v: Vec, channels: GroupChannels, pixels: Sequence[Total], steps: Steps, x: Value, x_pixel: Value,
    w: Value, border: int = 0, inside: tuple[Value, Value] | None = None,
) -> None:  # fmt: skip
    """Some columns of taps.

    inside: the first column of x that lies in the map, and one behind the last, if not all of these do; the
    others are among the first and the last `border`.
    """
    last = max(steps)
    middle = [column for column in steps if border <= column <= last - border]
    ends = [[column] for column in steps if column not in middle]
    parts = [*([middle] if middle else []), *ends]
    weights: dict[int, Any] = {}
    if channels.number == 1:  # else they are too many for the registers, and each check is for all channels
        parts.sort()
        taps = sorted({tap for pairs in steps.values() for _, tap in pairs})
        weights = {tap: channels.weight(w, tap) for tap in taps}

    def add(columns: Sequence[int]) -> Callable[[Value, Value, Load], None]:
        def add_channel(x: Value, w: Value, load: Load) -> None:
            at = columns[0]
            for column in columns:
                x = channels.maps.step(x, v.imul(x_pixel, column - at))
                at = column
                value = load(x)
                for pixel, tap in steps[column]:
                    weight = weights[tap] if weights else channels.weight(w, tap)
                    channels.add(pixels[pixel], value, weight)

        return add_channel

    at = 0
    for columns in parts:
        x = channels.maps.step(x, v.imul(x_pixel, columns[0] - at))
        at = columns[0]
        with ExitStack() as where:
            if inside and columns is not middle:
                where.enter_context(v.within(v.isub(at, inside[0]), v.isub(inside[1], inside[0])))
            channels.each(x, w, add(columns))


def add_any_row(v: Vec, channels: GroupChannels, a: Any, ranges: Value) -> AddRow:
    """The same for any stride: `ranges` tells the first output that each tap meets, and one behind the
    last."""
    between, across = v.imul(a.from_pixel, a.stride), v.imul(a.from_pixel, a.dilation)

    def add(pixels: Sequence[Total], x: Value, w: Value) -> None:
        def add_channel(x: Value, w: Value, load: Load) -> None:
            with v.loop(a.taps) as s:
                weight = v.load(w, v.imul(s, v.lanes))
                start, end = (v.table64(ranges, v.iadd(v.imul(s, 2), i)) for i in (0, 1))
                at = channels.maps.at(x, v.imul(across, s))
                missing = v.iadd(start, v.isub(len(pixels), end))
                with v.choose(v.isub(0, missing)) as (whole, part):
                    with whole:
                        here = at
                        for pixel, total in enumerate(pixels):
                            here = channels.maps.step(here, between if pixel else 0)
                            channels.add(total, load(here), weight)
                    with part:
                        here = at
                        for pixel, total in enumerate(pixels):
                            here = channels.maps.step(here, between if pixel else 0)
                            behind_start = v.unless_negative(v.isub(pixel, start))
                            before_end = v.unless_negative(v.isub(v.isub(end, 1), pixel))
                            with behind_start, before_end:
                                channels.add(total, load(here), weight)

        channels.each(x, w, add_channel)

    return add
