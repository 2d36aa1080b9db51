"""The micro-kernels of Strassen's products: operands made of sums, tiles that begin and end with others.

Pixels, channels and filters are halved: y[i][j] = sum_k x[i][k] w[k][j], with i a half of the pixels, k of
the channels and j of the filters. 7 products of sums of halves give what 8 products of halves do, and 49 of
sums of quarters what 64 do. Operands of the pixels are packed as [operand][block of channels][pixel][channel
of the block], and those of the filters as [panel][pass][operand][channel][filter], as tiles read them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from convalgos.core.epilogue import KINDS
from convalgos.cpu.gemm.strassen_scheme import PRODUCTS
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors.activations import activate
from convalgos.cpu.vectors.lanes import load_lanes, store_lanes
from convalgos.cpu.vectors.simd import Value, Vec, carray, emitter, pointer

CLIP = KINDS["clip"].code
AHEAD = 6  # taps ahead of a product whose filters are asked for into the first cache; Zen 4
SOURCE = fields("pixels step channels")  # of a part of the channels: address, bytes from pixel to pixel
SOURCE_WORDS = 3
Quarters = Sequence[Sequence[Any]]
Operation = Callable[[Any, Any], Any]


def pixel_operands(x: Quarters, add: Operation, sub: Operation) -> list[Any]:
    """Operands of the 7 products in their order, from x[half of the pixels][half of the channels]."""
    (a, b), (c, d) = x
    s = add(c, d)
    t = sub(s, a)
    return [a, b, t, sub(a, c), d, s, sub(b, t)]


def filter_operands(w: Quarters, add: Operation, sub: Operation) -> list[Any]:
    """The same from w[half of the channels][half of the filters]; the fifth has its sign turned."""
    (a, b), (c, d) = w
    s = sub(b, a)
    t = sub(d, s)
    return [a, c, t, sub(d, b), sub(c, t), s, d]


def all_operands(
    parts: Quarters, sums: Callable[..., list[Any]], add: Operation, sub: Operation
) -> list[Any]:
    """Operands of all products of 1, 2 or 4 parts a side: those of an outer product one after the other."""
    half = len(parts) // 2
    if half == 0:
        return [parts[0][0]]
    rows = range(half)
    outer = [
        [
            sums([[parts[i + a][k + b] for b in (0, half)] for a in (0, half)], add, sub)
            for k in rows
        ]
        for i in rows
    ]  # fmt: skip
    found = []
    for number in range(PRODUCTS):
        found += all_operands([[outer[i][k][number] for k in rows] for i in rows], sums, add, sub)
    return found


@emitter
def pack_operands(
    v: Vec, SIDE: int, MASKED: int, sources: Value, starts: Value, pixels: Value, packed: Value,
    operand_bytes: Value, ahead: Value,
) -> None:  # fmt: skip
    """The sums of `pixel_operands` of a block of channels of each part, for the pixels from `starts` on.

    sources: SIDE of SOURCE; starts: SIDE first pixels of parts; packed: [operand][pixel][lanes]. MASKED: of
    a source only as many channels are read as it has. What lies `ahead` bytes on is asked for into L2.
    """
    rows = range(SIDE)
    entry = [[v.table64(sources, SOURCE_WORDS * k + i) for i in range(SOURCE_WORDS)] for k in rows]
    first = [[v.iadd(at, v.imul(v.table64(starts, i), step)) for at, step, _ in entry] for i in rows]
    masks = [v.mask(count) if MASKED else None for _, _, count in entry]

    with v.loop(pixels) as p:

        def part(i: int, k: int) -> Value:
            source = v.pointer(v.iadd(first[i][k], v.imul(p, entry[k][1])))
            v.prefetch(v.at(source, v.idiv(ahead, v.size)))
            return v.load_masked(source, 0, masks[k]) if MASKED else v.load(source)

        target = v.at(v.pointer(packed), v.imul(p, v.lanes))
        parts = [[part(i, k) for k in rows] for i in rows]
        for value in all_operands(parts, pixel_operands, v.fadd, v.fsub):
            v.store(value, target)
            target = v.step(target, v.idiv(operand_bytes, v.size))


@jit.specialise
def pack_sums(SIZE: int, LANES: int, SIDE: int, MASKED: int) -> jit.Kernel:
    """`pack_operands`."""

    def pack_sums(
        sources: int, starts: int, pixels: int, packed: int, operand_bytes: int, ahead: int
    ) -> None:
        pack_operands(SIZE, LANES, SIDE, MASKED, sources, starts, pixels, packed, operand_bytes, ahead)

    return pack_sums


@emitter
def product_step(
    v: Vec, ROWS: int, VECTORS: int, x: Value, x_step: Value, blocks: Value, w: Value, ahead: Value,
    first: Value, started: Value, out: Value, out_with: Value, also: Value, also_with: Value,
) -> None:  # fmt: skip
    """A `SumStep` with its product, whose places are addresses of ROWS rows of VECTORS vectors, or 0.

    The product: x[block][i][lane] * w[block][lane][:], for i < ROWS, blocks x_step bytes apart. For each
    channel the lines of w that come soon and a line of x of the next block are asked for into the first
    cache, and a line from `ahead` on into L2.
    """
    base, filters, later = v.pointer(x), v.pointer(w), v.pointer(ahead)
    wide = range(VECTORS)
    sums = [[v.register(v.zero()) for _ in wide] for _ in range(ROWS)]
    flat = [total for row in sums for total in row]

    def with_more(address: Value, k: int) -> Value:
        return v.fadd(flat[k].value, v.load(v.pointer(address), k * v.lanes))

    def store(address: Value, added: Value) -> None:
        with v.choose(v.isub(added, 1)) as (more, alone):
            with more:
                for k in range(len(flat)):
                    v.store(with_more(added, k), v.pointer(address), k * v.lanes)
            with alone:
                for k, total in enumerate(flat):
                    v.store(total.value, v.pointer(address), k * v.lanes)

    with v.unless_negative(v.isub(first, 1)):
        for k, total in enumerate(flat):
            total.set(v.load(v.pointer(first), k * v.lanes))
    with v.unless_negative(v.isub(started, 1)):
        for k, total in enumerate(flat):
            total.set(with_more(started, k))
    with v.loop(blocks) as e:
        step = v.imul(e, v.idiv(x_step, v.size))
        block, following = v.at(base, step), v.at(base, v.iadd(step, v.idiv(x_step, v.size)))
        with v.loop(v.lanes) as d:
            t = v.iadd(v.imul(e, v.lanes), d)
            tap = v.at(filters, v.imul(t, VECTORS * v.lanes))
            v.prefetch(later, v.imul(t, v.lanes))
            v.prefetch(following, v.imul(d, v.lanes), near=True)
            for j in wide:
                v.prefetch(tap, (AHEAD * VECTORS + j) * v.lanes, near=True)
            weights = [v.load(tap, j * v.lanes) for j in wide]
            inputs = v.at(block, d)
            for i, row in enumerate(sums):
                value = v.broadcast(inputs, i * v.lanes)
                for total, weight in zip(row, weights, strict=True):
                    total.set(v.fma(value, weight, total.value))
    store(out, out_with)
    with v.unless_negative(v.isub(also, 1)):
        store(also, also_with)


@jit.specialise
def sum_step(SIZE: int, LANES: int, ROWS: int, VECTORS: int) -> jit.Kernel:
    """`product_step`."""

    def sum_step(
        x: int, x_step: int, blocks: int, w: int, ahead: int, first: int, started: int, out: int,
        out_with: int, also: int, also_with: int,
    ) -> None:  # fmt: skip
        product_step(
            SIZE, LANES, ROWS, VECTORS,
            x, x_step, blocks, w, ahead, first, started, out, out_with, also, also_with,
        )  # fmt: skip

    return sum_step


@emitter
def store_columns(
    v: Vec, sums: Value, width: Value, rows: Value, columns: Value, bias: Value, added: Value, limits: Value,
    y: Value, y_step: Value,
) -> None:  # fmt: skip
    """y[i * y_step + j] = sums[i * width + j] + bias[j] within limits, for i < rows, j < columns <= lanes.

    Where `added` is not 0, what lies like y from there on is added before.
    """
    source, target, start = v.pointer(sums), v.pointer(y), v.load(v.pointer(bias))
    low, high = (v.broadcast(v.pointer(limits), i) for i in (0, 1))

    def rows_with(residual: bool, mask: Value | None) -> None:
        with v.loop(rows) as i:
            at = v.imul(i, y_step)
            value = v.fadd(v.load(source, v.imul(i, width)), start)
            if residual:
                more = v.pointer(added)
                value = v.fadd(value, load_lanes(v, more, at, mask))
            value = activate(v, CLIP, value, low, high)
            store_lanes(v, value, target, at, mask)

    with v.choose(v.isub(added, 1)) as (more, alone):
        for side, residual in ((more, True), (alone, False)):
            with side, v.choose(v.isub(columns, v.lanes)) as (whole, part):
                with whole:
                    rows_with(residual, None)
                with part:
                    rows_with(residual, v.mask(columns))


@jit.specialise
def store_summed(SIZE: int, LANES: int) -> jit.Kernel:
    """`store_columns` of any number of filters of neighbouring pixels, that lie in y in vectors."""

    def store_summed(
        sums: int, width: int, pixels: int, filters: int, bias: int, added: int, limits: int, y: int,
        y_k: int, y_pixel: int,
    ) -> None:  # fmt: skip
        for k in range(0, filters, LANES):
            at = k * y_k * SIZE
            store_columns(
                SIZE, LANES, sums + k * SIZE, width, pixels, min(LANES, filters - k), bias + k * SIZE,
                added + at if added else 0, limits, y + at, y_pixel,
            )  # fmt: skip

    return store_summed


@emitter
def sum_filter_parts(
    v: Vec, SIDE: int, VECTORS: int, w: Value, part: Value, taps: Value, out: Value, operand: Value
) -> None:
    """The sums of `filter_operands` of so many taps of each part of the channels, `part` elements apart.

    w: rows of SIDE * VECTORS vectors; out: rows of VECTORS vectors, operands `operand` elements apart.
    """
    source, rows = v.pointer(w), range(SIDE)
    with v.loop(taps) as t:
        for j in range(VECTORS):
            tap = v.at(source, v.imul(t, SIDE * VECTORS * v.lanes))
            parts = [
                [v.load(tap, v.iadd(v.imul(part, k), (i * VECTORS + j) * v.lanes)) for i in rows]
                for k in rows
            ]  # fmt: skip
            target = v.at(v.pointer(out), v.iadd(v.imul(t, VECTORS * v.lanes), j * v.lanes))
            for value in all_operands(parts, filter_operands, v.fadd, v.fsub):
                v.store(value, target)
                target = v.step(target, operand)


SUM_FILTERS = fields("w out panels passes section depth operands tasks")


@jit.specialise
def sum_filter_panels(SIZE: int, LANES: int, SIDE: int, VECTORS: int) -> jit.Kernel:
    """[panel][channel][filter of SIDE parts] to [panel][pass][operand][channel][filter]; depth: of a pass."""

    def sum_filter_panels(args: int, task: int) -> None:
        a = carray(pointer(args), 1, SUM_FILTERS)[0]
        total = a.panels * a.passes
        row = VECTORS * LANES * SIZE
        for item in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            panel, number = item // a.passes, item % a.passes
            w = a.w + (panel * SIDE * a.section + number * a.depth) * SIDE * row
            out = a.out + item * a.operands * a.depth * row
            part = a.section * SIDE * VECTORS * LANES
            sum_filter_parts(SIZE, LANES, SIDE, VECTORS, w, part, a.depth, out, a.depth * VECTORS * LANES)

    return sum_filter_panels
