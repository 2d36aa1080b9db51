"""The drivers of elementwise steps: units of some rows, or of some elements of a row, dealt to the tasks.

What has an activation is finished by the function of `cpu/runtime/finish` while it lies in the first cache.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.lanes import load_lanes, store_lanes
from convalgos.cpu.vectors.simd import Value, Vec, call, carray, copy_bytes, pointer

COPY, ADD, MULTIPLY, SUBTRACT, DIVIDE, SLOPE, SUBTRACTED, DIVIDED = range(8)  # the last two: b - a, b / a

# y[n][g][r][i] = a[n][g][r][i] and b[n][g][i], or b[n][g] where not `by_element`; steps in elements. Units
# are of `row_chunk` rows or, where that is one, of `chunk` of its elements.
COMBINE_FIELDS = fields(
    "a b y operation by_element images groups rows count a_n a_g a_row b_n b_g y_n y_g y_row row_chunk chunk "
    "finish numbers tasks"
)
# Rows of `width` pixels, each of `count` elements, repeated `across` times along the row, and the row then
# along the other dimensions; steps in elements. A plane is of an image, or of a channel of it.
UPSAMPLE_FIELDS = fields(
    "x y images planes depth height width count deep high across x_n y_n x_plane y_plane y_slice y_row tasks"
)

# Runs of elements between a map and a deep one: of each image and row of the deep map, for each of `groups`
# as many as there are `parts`, and as many times again along the row. `places`: where the first runs of both
# begin; steps in elements.
SPACE_FIELDS = fields(
    "x y places images groups parts height width run x_n y_n x_row y_row x_step y_step tasks"
)


@jit.specialise
def combine_share(SIZE: int, LANES: int) -> jit.Kernel:
    """The units of a task."""

    def combine_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, COMBINE_FIELDS)[0]
        row_units = (a.rows + a.row_chunk - 1) // a.row_chunk
        units = (a.count + a.chunk - 1) // a.chunk
        total = a.images * a.groups * row_units * units
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            i = unit % units * a.chunk
            r = unit // units % row_units * a.row_chunk
            g = unit // (units * row_units) % a.groups
            n = unit // (units * row_units * a.groups)
            rows, count = min(a.row_chunk, a.rows - r), min(a.chunk, a.count - i)
            x = a.a + (n * a.a_n + g * a.a_g + r * a.a_row + i) * SIZE
            y = a.y + (n * a.y_n + g * a.y_g + r * a.y_row + i) * SIZE
            b = a.b + (n * a.b_n + g * a.b_g + (i if a.by_element else 0)) * SIZE
            combine_rows(SIZE, LANES, a.operation, a.by_element, x, b, y, rows, count, a.a_row, a.y_row)
            if a.finish and a.y_row == count:
                call(a.finish, (y, 0, y, rows * count, a.numbers))
            elif a.finish:
                for row in range(rows):
                    to = y + row * a.y_row * SIZE
                    call(a.finish, (to, 0, to, count, a.numbers))

    return combine_share


@simd.emitter
def combine_rows(
    v: Vec, operation: Value, by_element: Value, a: Value, b: Value, y: Value, rows: Value, count: Value,
    a_row: Value, y_row: Value,
) -> None:  # fmt: skip
    """y[r * y_row + i] = a[r * a_row + i] and b[i], or b[0] where not `by_element`, of each row."""
    with v.within(v.isub(operation, COPY), 1):
        _combined_rows(v, COPY, False, a, b, y, rows, count, a_row, y_row)
    for known, by in product(range(ADD, DIVIDED + 1), (False, True)):
        with v.within(v.isub(operation, known), 1), v.within(v.isub(by_element, int(by)), 1):
            _combined_rows(v, known, by, a, b, y, rows, count, a_row, y_row)


def _combined_rows(
    v: Vec, operation: int, by_element: bool, a: Value, b: Value, y: Value, rows: Value, count: Value,
    a_row: Value, y_row: Value,
) -> None:  # fmt: skip
    source, more, to = (v.pointer(address) for address in (a, b, y))
    same = v.broadcast(more) if operation != COPY and not by_element else None

    def sloped(value: Value, slope: Value) -> Value:
        return v.b.select(v.b.fcmp_ordered("<", value, v.zero()), v.fmul(value, slope), value)

    def elements(row: Value, out: Value, at: Value, mask: Value = None) -> None:
        def loaded(of: Value) -> Value:
            return load_lanes(v, of, at, mask)

        value = loaded(row)
        if operation != COPY:
            other = loaded(more) if same is None else same
            how = {
                ADD: v.fadd, MULTIPLY: v.fmul, SUBTRACT: v.fsub, DIVIDE: v.b.fdiv, SLOPE: sloped,
                SUBTRACTED: lambda a, b: v.fsub(b, a), DIVIDED: lambda a, b: v.b.fdiv(b, a),
            }  # fmt: skip
            value = how[operation](value, other)
        store_lanes(v, value, out, at, mask)

    whole = v.idiv(count, v.lanes)
    done = v.imul(whole, v.lanes)
    rest = v.isub(count, done)
    with v.loop(rows) as r:
        row, out = v.at(source, v.imul(r, a_row)), v.at(to, v.imul(r, y_row))
        with v.loop(whole) as i:
            elements(row, out, v.imul(i, v.lanes))
        with v.unless_negative(v.isub(rest, 1)):
            elements(row, out, done, v.mask(rest))


@jit.specialise
def upsample_share(SIZE: int, LANES: int) -> jit.Kernel:
    """The rows of x of a task: each is drawn out along itself, and then copied as often as it is repeated."""

    def upsample_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, UPSAMPLE_FIELDS)[0]
        total = a.images * a.planes * a.depth * a.height
        length = a.width * a.count
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            h = unit % a.height
            d = unit // a.height % a.depth
            plane = unit // (a.height * a.depth) % a.planes
            n = unit // (a.height * a.depth * a.planes)
            x = a.x + (n * a.x_n + plane * a.x_plane + (d * a.height + h) * length) * SIZE
            at = n * a.y_n + plane * a.y_plane + d * a.deep * a.y_slice + h * a.high * a.y_row
            y = a.y + at * SIZE
            if a.count > 1:
                for w in range(a.width):
                    repeat_pixel(SIZE, LANES, x + w * a.count * SIZE, y + w * a.across * a.count * SIZE,
                                 a.count, a.across)  # fmt: skip
            elif a.across == 2:
                double_elements(SIZE, LANES, x, y, a.width)
            else:
                source = carray(pointer(x), a.width, np.int32)
                target = carray(pointer(y), a.width * a.across, np.int32)
                for w in range(a.width):
                    for j in range(a.across):
                        target[w * a.across + j] = source[w]
            for i in range(1, a.deep * a.high):
                copy = y + (i // a.high * a.y_slice + i % a.high * a.y_row) * SIZE
                copy_bytes(copy, y, length * a.across * SIZE)

    return upsample_share


@simd.emitter
def repeat_pixel(v: Vec, x: Value, y: Value, count: Value, across: Value) -> None:
    """y[j * count + i] = x[i] of j < across."""
    source, to = v.pointer(x), v.pointer(y)
    whole = v.idiv(count, v.lanes)
    done = v.imul(whole, v.lanes)
    rest = v.isub(count, done)
    with v.loop(whole) as i:
        at = v.imul(i, v.lanes)
        value = v.load(source, at)
        with v.loop(across) as j:
            v.store(value, v.at(to, v.imul(j, count)), at)
    with v.unless_negative(v.isub(rest, 1)):
        mask = v.mask(rest)
        value = v.load_masked(source, done, mask)
        with v.loop(across) as j:
            v.store_masked(value, v.at(to, v.imul(j, count)), done, mask)


@simd.emitter
def double_elements(v: Vec, x: Value, y: Value, count: Value) -> None:
    """y[2 i] = y[2 i + 1] = x[i]."""
    source, to = v.pointer(x), v.pointer(y)
    whole = v.idiv(count, v.lanes)
    done = v.imul(whole, v.lanes)
    rest = v.isub(count, done)
    halves = [[(half * v.lanes + i) // 2 for i in range(v.lanes)] for half in (0, 1)]
    with v.loop(whole) as i:
        at = v.imul(i, v.lanes)
        value = v.load(source, at)
        for half, order in enumerate(halves):
            v.store(v.shuffle(value, value, order), to, v.iadd(v.imul(at, 2), half * v.lanes))
    with v.unless_negative(v.isub(rest, 1)):
        value = v.load_masked(source, done, v.mask(rest))
        for half, order in enumerate(halves):
            first = v.iadd(v.imul(done, 2), half * v.lanes)
            mask = v.mask(v.isub(v.imul(rest, 2), half * v.lanes))
            v.store_masked(v.shuffle(value, value, order), to, first, mask)


@jit.specialise
def space_share(SIZE: int, LANES: int) -> jit.Kernel:
    """The rows of a task. Elements have four bytes."""

    def space_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, SPACE_FIELDS)[0]
        places = carray(pointer(a.places), a.groups * a.parts * 2, np.int64)
        total = a.images * a.groups * a.height
        width, x_step, y_step = a.width, a.x_step, a.y_step  # read once
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            h = unit % a.height
            g = unit // a.height % a.groups
            n = unit // (a.height * a.groups)
            for part in range(g * a.parts, (g + 1) * a.parts):
                x = a.x + (n * a.x_n + h * a.x_row + places[2 * part]) * SIZE
                y = a.y + (n * a.y_n + h * a.y_row + places[2 * part + 1]) * SIZE
                if a.run > 1:
                    combine_rows(SIZE, LANES, COPY, 0, x, x, y, width, a.run, x_step, y_step)
                else:
                    source = carray(pointer(x), width * x_step, np.int32)
                    target = carray(pointer(y), width * y_step, np.int32)
                    for w in range(width):
                        target[w * y_step] = source[w * x_step]

    return space_share
