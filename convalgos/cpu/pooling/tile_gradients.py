"""Gradients of maxima of windows side by side, with channels first: x is read once, dx written once.

Elements of a row are taken apart by their tap, so that a vector is of the same tap of as many windows; what
dy gives to each tap is brought back into a row by the same shuffles turned round. Nothing lies in scratch.
"""

from __future__ import annotations

from convalgos.cpu.layout.strided_rows import elements_in_turns, strided_elements
from convalgos.cpu.pooling.elements import FLOAT, MAX, PoolElements
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.instructions import ir
from convalgos.cpu.vectors.integers import words_of
from convalgos.cpu.vectors.simd import Value, Vec, carray, pointer, zero_bytes

TILE_FIELDS = fields(
    "x y dx scratch scratch_bytes stored size tasks planes bands height columns rows outputs"
)


def number_of_maximum(v: Vec, taps: list[Value]) -> Value:
    """Which of the taps is the maximum of a window: the first of equals, the last NaN."""
    of, words = PoolElements(v, FLOAT, MAX), words_of(v)
    total, found = of.identity(), words.const(0)
    for number, value in enumerate(taps):
        larger = of.exceeds(value, total)
        found = v.b.select(larger, words.const(number), found)
        total = v.b.select(larger, value, total)
    return found


@simd.emitter
def scatter_tiles(
    v: Vec, ROWS: int, TAPS: int, x: Value, dy: Value, dx: Value, columns: Value, rows: Value, outputs: Value
) -> None:
    """dx of `rows` rows of windows of ROWS x TAPS, and zeros in columns behind the last window."""
    source, given, to = v.pointer(x), v.pointer(dy), v.pointer(dx)
    words, whole = words_of(v), v.idiv(outputs, v.lanes)
    done, covered = v.imul(whole, v.lanes), v.imul(outputs, TAPS)
    rest = v.isub(outputs, done)

    def block(line: Value, output: Value, q: Value, masks: list[Value] | None) -> None:
        """Windows q, ... of a row whose first elements of x and of dy are these."""
        spots = [v.iadd(v.iadd(line, v.imul(columns, r)), v.imul(q, TAPS)) for r in range(ROWS)]
        taps: list[Value] = []
        for spot in spots:
            ats = [v.iadd(spot, j * v.lanes) for j in range(TAPS)]
            if masks is None:
                row = [v.load(source, at) for at in ats]
            else:
                row = [v.load_masked(source, at, m) for at, m in zip(ats, masks[1:], strict=True)]
            taps += [strided_elements(v, row, s) if TAPS > 1 else row[0] for s in range(TAPS)]
        number, at = number_of_maximum(v, taps), v.iadd(output, q)
        part = v.load(given, at) if masks is None else v.load_masked(given, at, masks[0])
        for r, spot in enumerate(spots):
            mine = [words.const(r * TAPS + s) for s in range(TAPS)]
            shares = [v.b.select(v.b.icmp_signed("==", number, m), part, v.zero()) for m in mine]
            for j, value in enumerate(elements_in_turns(v, shares)):
                if masks is None:
                    v.store(value, to, v.iadd(spot, j * v.lanes))
                else:
                    v.store_masked(value, to, v.iadd(spot, j * v.lanes), masks[1 + j])

    left = [v.mask(v.isub(v.imul(rest, TAPS), j * v.lanes)) for j in range(TAPS)]
    with v.loop(rows) as i:
        line, output = v.imul(i, v.imul(columns, ROWS)), v.imul(i, outputs)
        with v.loop(whole) as b:
            block(line, output, v.imul(b, v.lanes), None)
        with v.unless_negative(v.isub(rest, 1)):
            block(line, output, done, [v.mask(rest), *left])
        with v.loop(v.isub(columns, covered)) as c:
            for r in range(ROWS):
                at = v.iadd(v.iadd(line, v.imul(columns, r)), v.iadd(covered, c))
                v.b.store(ir.Constant(v.element, 0), v.at(to, at))


@jit.specialise
def tile_gradient(SIZE: int, LANES: int, ROWS: int, TAPS: int) -> jit.Kernel:
    """dx of dy and x (planes, H, W), of windows of ROWS x TAPS."""

    def tile_gradient(args: int, task: int) -> None:
        a = carray(pointer(args), 1, TILE_FIELDS)[0]
        total = a.planes * a.bands
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            plane = unit // a.bands
            band = unit % a.bands
            first = a.rows * band // a.bands
            rows = a.rows * (band + 1) // a.bands - first
            at = (plane * a.height + first * ROWS) * a.columns * SIZE
            scatter_tiles(
                SIZE, LANES, ROWS, TAPS, a.x + at, a.y + (plane * a.rows + first) * a.outputs * SIZE,
                a.dx + at, a.columns, rows, a.outputs,
            )  # fmt: skip
            if band == a.bands - 1 and a.height > a.rows * ROWS:
                behind = (a.height - a.rows * ROWS) * a.columns * SIZE
                zero_bytes(a.dx + (plane + 1) * a.height * a.columns * SIZE - behind, behind)

    return tile_gradient
