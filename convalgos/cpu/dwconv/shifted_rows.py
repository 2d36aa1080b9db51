"""Usual kernels on rows of x: each vector of a row is loaded once, and shifted to each kernel column.

A shuffle of two neighbours shifts a vector, and a stride of 2 is split into even and odd columns by shuffles
too. Loads at every column would each cross a cache line, which takes as long as two products; shuffles are
cheaper for few columns. Vectors begin at a fixed tap, so that padding shows in no code: what lies outside of
the row is masked as it is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from convalgos.cpu.dwconv.row_lines import line_operands, reads_lines
from convalgos.cpu.vectors.halves import lines_of
from convalgos.cpu.vectors.lanes import load_lanes
from convalgos.cpu.vectors.simd import Register, Value, Vec

REGISTERS = {64: 32, 32: 16, 16: 16}  # of vectors, by their bytes


class LoadedVectors(NamedTuple):
    """Neighbouring vectors of outputs."""

    vectors: int
    begin: Value  # of the first in a line of x
    lanes: dict[int, Value]  # of vectors of x that lie in the row, where not all of them do


def loaded_vectors(vectors: int, size: int, stride: int) -> int:
    """Vectors of a row of x that some vectors of outputs read; of those at the ends only some lanes."""
    return vectors * stride + (before(size, stride) > 0) + (behind(size, stride) > 0)


def before(size: int, stride: int) -> int:
    """Elements of a row of x before its first whole vector: with a stride, the usual padding.

    Rows of maps are often whole lines then, and no load crosses one.
    """
    return 0 if stride == 1 else size // 2


def behind(size: int, stride: int) -> int:
    """Elements that are read behind the last whole vector."""
    return size - before(size, stride) - stride


def add_kernel(
    v: Vec,
    m: Vec,
    sums: Sequence[Sequence[Register]],
    step: int,
    size: int,
    stride: int,
    lines: Sequence[Value],
    w: Value,
    sets: Sequence[LoadedVectors],
) -> None:
    """Add to sums[o][k] the products of lines, o * step further for each o, with a square kernel at w.

    m: what loads from lines. Those of bfloat16 are loaded as in `row_lines`, and without a stride sums[o] of
    two neighbouring vectors are of even and of odd outputs then.
    """
    weights: dict[int, Any] = {}
    if len(sums) * len(sums[0]) + size * size + 2 * stride + 3 <= REGISTERS[v.lanes * v.size]:
        weights = {i: v.broadcast(w, i) for i in range(size * size)}
    meets: list[tuple[int, int]] = []  # (output row, tap row) that the row of x before meets
    for i, line in enumerate(lines):
        # else all rows would be loaded first, for too few registers
        line = v.after(line, [total.value for o, _ in meets for total in sums[o]])
        meets = [(o, i - o * step) for o in range(len(sums)) if 0 <= i - o * step < size]
        near, first = v.step(w, 0), 0
        for vectors, begin, lanes in sets if meets else ():
            at, whole = m.at(line, begin), lines_of(m)
            if whole is not None and reads_lines(vectors, stride):
                ends = before(size, stride), behind(size, stride)
                operand = line_operands(v, whole, ends, vectors, stride, at, lanes)
            else:
                operand = _operands(v, m, vectors, size, stride, at, lanes)
            # phase by phase, so that few vectors are in registers
            for s in sorted(range(size), key=lambda s: (s - before(size, stride)) % stride):
                values = [operand(s, k) for k in range(vectors)]
                for o, r in meets:
                    at = r * size + s
                    weight = weights[at] if weights else v.broadcast(near, at)
                    for k, value in enumerate(values):
                        total = sums[o][first + k]
                        total.set(v.fma(value, weight, total.value))
            first += vectors


def _operands(
    v: Vec, m: Vec, vectors: int, size: int, stride: int, line: Value, lanes: dict[int, Value]
) -> Callable[[int, int], Value]:
    """(s, k) -> line[stride * (k*lanes + i) + s - before(size, stride)] for i in lanes."""
    words, ahead = m.words(), before(size, stride)
    first, last = -1 if ahead else 0, vectors * stride
    loaded: dict[int, Any] = {}
    for n in range(first, first + loaded_vectors(vectors, size, stride)):
        few = None
        if n < 0:
            few = v.lanes_from(v.lanes - ahead)
        elif n == last:
            few = v.first_lanes(behind(size, stride))
        mask = lanes.get(n - first, few)
        loaded[n] = load_lanes(words, line, n * v.lanes, mask)
    split: dict[tuple[int, int], Any] = {}

    def phase(p: int, k: int) -> Value:
        """Every stride-th element from p on, in vectors; at the ends only the lanes that are read."""
        if stride == 1:
            return loaded[k]
        if k < 0 and p == 1 and ahead == 1:
            return loaded[-1]  # the last lane is in place
        if k == vectors and p == 0 and behind(size, stride) == 1:
            return loaded[last]  # and so is the first
        if (p, k) not in split:
            ends = [loaded[min(max(n, first), max(loaded))] for n in (2 * k, 2 * k + 1)]
            split[p, k] = v.shuffle(ends[0], ends[1], range(p, 2 * v.lanes, 2))
        return split[p, k]

    def operand(s: int, k: int) -> Value:
        column, p = divmod(s - ahead, stride)
        beside, lane = divmod(column, v.lanes)
        if lane == 0:
            return v.floats(phase(p, k + beside))
        return v.floats(
            v.shuffle(phase(p, k + beside), phase(p, k + beside + 1), range(lane, lane + v.lanes))
        )

    return operand
