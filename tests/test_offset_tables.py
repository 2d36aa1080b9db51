"""Tables that kernels fill, against NumPy: where the pixels of blocks and the taps lie."""

from functools import reduce
from itertools import pairwise, product

import numpy as np
import pytest

import convalgos as ca
from convalgos.cpu.dwconv.row_strips import MANY_ROWS, pass_sizes
from convalgos.cpu.dwconv.tap_passes import PASS_ROWS
from convalgos.cpu.gemm.direct_blocking import direct_blocking
from convalgos.cpu.gemm.offset_tables import tables_of_offsets
from convalgos.cpu.gemm.row_blocking import row_blocking
from convalgos.cpu.gemm.row_tables import row_tables
from convalgos.cpu.gemm.row_tiles import MOST_RUNS, NONE, ROW_TILE, ROW_TILE_BYTES, RowTile, tile_table
from convalgos.cpu.runtime.record_changes import changed_record
from convalgos.cpu.separable.band_tiles import tiles_of_rows
from convalgos.cpu.vectors import microkernel

PROBLEMS = (
    "n1 c3 h7 w9 k5 r3 s3 p1",
    "n2 c4 h50 w61 k6 r3 s5 p1,2 stride2 dilation1,2",
    "n3 c2 d5 h6 w40 k3 t2 r3 s3 p1 stride1,2,1",
    "n5 c8 h4 w4 k16 r1 s1",
    "n1 c2 w3000 k3 s7 p3 stride3 dilation2",
    "n9 c16 h3 w5 k24 r1 s1 stride2 float64",
    "n1 c37 h6 w5 k5 r3 s2 p1",
    "n1 c4 h90 w17 k10 r5 s1 p2,0 groups2",
)


def short_blocks(sizes, totals):
    """Outputs of a block along the dimensions, for each way of being cut short: 16 of (N, O, P, Q)."""
    return list(product(*[(size, total % size or size) for size, total in zip(sizes, totals, strict=True)]))


@pytest.mark.parametrize("text", PROBLEMS)
def test_tables_of_rows_of_pixels(text):
    cut = row_blocking(ca.ConvProblem.parse(text))
    p, lanes = cut.problem, cut.lanes
    found = row_tables(cut)
    length, table = found["table_length"], found["vectors"]
    shapes = short_blocks((cut.images, *cut.block), (p.N, *p.spatial_out))
    ways = max(map(shapes.index, shapes)) + 1  # as a block numbers them that is short
    of_each = table[ways : ways * (1 + 3 * length)].reshape(3, ways, length)
    _, c, d, h = cut.strides
    steps = [s if step == 1 else 1 for s, step in zip(p.stride, cut.steps, strict=False)]
    for variant, (images, slices, rows, columns) in enumerate(shapes[:ways]):
        width, wanted = images * columns, []
        for o, i, q in product(range(slices), range(rows), range(0, width, lanes)):
            run = (o * rows + i) * width
            place = run if cut.staged else (o * p.spatial_out[1] + i) * p.spatial_out[2]
            end = slices * rows * width - run if cut.staged or columns == p.spatial_out[2] else width
            wanted.append((o * d * steps[0] + i * h * steps[1] + q, place + q, min(lanes, end - q)))
        assert table[variant] == len(wanted) <= length - cut.vectors
        assert of_each[:, variant, : len(wanted)].T.tolist() == [list(entry) for entry in wanted]
        assert (of_each[0, variant, len(wanted) :] == wanted[0][0]).all()
        assert not of_each[1:, variant, len(wanted) :].any()
    offsets = [
        k * c + t * p.dilation[0] * d + r * p.dilation[1] * h
        + s * p.dilation[2] % p.stride[2] * cut.phase + s * p.dilation[2] // p.stride[2]
        for k, t, r, s in product(range(p.w_shape[1]), *map(range, p.kernel))
    ]  # fmt: skip
    own = table[ways * (1 + 3 * length) :].tolist()
    assert own == offsets + offsets[-1:] * microkernel.PREFETCH_TAPS


@pytest.mark.parametrize("layout", ["channels_first", "channels_last", "blocked16"])
@pytest.mark.parametrize("text", PROBLEMS)
def test_offsets_of_pixels_and_taps(text, layout):
    problem = ca.ConvProblem.parse(text)
    if layout == "blocked16" and problem.groups > 1:
        pytest.skip("groups are no blocks")
    cut = direct_blocking(problem.replace(layout=layout))
    p = cut.problem
    n, c, *spatial = cut.strides
    steps = [1 if cut.copied and r == 1 else s for r, s in zip(p.kernel[:2], p.stride, strict=False)]
    strides = [n, *(a * s for a, s in zip(spatial, (*steps, p.stride[2]), strict=True))]
    table = cut.pixel_table(spare=3)
    shapes = short_blocks((cut.images, *cut.block), (p.N, *p.spatial_out))
    assert len(table) == max(map(shapes.index, shapes)) + 1
    for variant, counts in enumerate(shapes[: len(table)]):
        along = [np.arange(count) * stride for count, stride in zip(counts, strides, strict=True)]
        wanted = reduce(np.add.outer, along).ravel()
        assert np.array_equal(table[variant, : wanted.size], wanted)
        assert (table[variant, wanted.size :] == wanted[-1]).all()
    lanes = 16 if layout == "blocked16" else 1
    channels = [k // lanes * lanes * c + k % lanes for k in range(p.w_shape[1])]
    taps = [np.arange(r) * s * e for r, s, e in zip(p.kernel, spatial, p.dilation, strict=True)]
    taps = reduce(np.add.outer, taps).ravel()
    assert np.array_equal(cut.tap_offsets(True), np.add.outer(channels, taps).ravel())
    assert np.array_equal(cut.tap_offsets(False), np.add.outer(taps, channels).ravel())
    spare = cut.tap_offsets(True, spare=5)
    assert np.array_equal(spare[:-5], cut.tap_offsets(True)) and (spare[-5:] == spare[-6]).all()


def test_a_table_of_nothing_is_empty():
    assert tables_of_offsets((0, 1, 1, 1, 1), (0, 1, 1, 1, 1), (1, 1, 1, 1, 1), 0).shape == (1, 0)


@pytest.mark.parametrize("step", PASS_ROWS)
def test_rows_of_taps_in_few_and_even_passes(step):
    best = [(0, 0, 0)]  # of so many rows: passes, the largest, and less the smallest
    for rows in range(1, 3 * MANY_ROWS):
        ways = [(best[rows - s], s) for s in PASS_ROWS[step] if s <= rows]
        best.append(min((n + 1, max(m, s), max(k, -s) if n else -s) for (n, m, k), s in ways))
        found = pass_sizes(rows, step)
        assert sum(found) == rows and found == sorted(found, reverse=True)
        assert (len(found), found[0], -found[-1]) == best[rows]


@pytest.mark.parametrize("most", [3, 9, 14])
@pytest.mark.parametrize(
    ("block", "totals", "ends"),
    [
        ((1, 1, 40), (1, 1, 117), ()),
        ((1, 4, 3), (3, 9, 3), ()),
        ((2, 3, 5), (3, 7, 17), ()),
        ((1, 2, 12), (2, 3, 12), (0, 2, 3, 6, 8, 10, 12)),
    ],
)
def test_tables_of_tiles(block, totals, ends, most):
    x_steps, y_steps = (1000, 70, 16), (900, 64, 8)
    table, kinds = tile_table(block, totals, most, x_steps, y_steps, True, ends)
    shapes = short_blocks((2, *block), (3, *totals))
    assert len(table) == 1 + max(i for i, shape in enumerate(shapes) if shapes.index(shape) == i)
    seen = set()
    for (_, slices, rows, columns), tiles in zip(shapes, table, strict=False):
        high = 1 if ends else max(1, min(rows, most // columns, MOST_RUNS))
        count = -(-columns // most)
        borders = ends or [i * columns // count for i in range(count + 1)]
        wanted = []
        for i, j in product(range(slices), range(0, rows, high)):
            for begin, end in pairwise(borders):
                place = np.array([i, j, begin])
                kind = RowTile(min(high, rows - j), end - begin)
                seen.add(kind)
                outputs = kind.runs * kind.length
                wanted.append((place @ x_steps, place @ y_steps, outputs, kinds.index(kind)))
        assert tiles[: len(wanted)].tolist() == wanted
        assert (tiles["kernel"][len(wanted) :] == NONE).all() and len(tiles) > len(wanted)
    assert seen == {*kinds} and list(kinds) == sorted(kinds)


@pytest.mark.parametrize("most", [5, 14])
def test_tables_of_tiles_of_bands(most):
    counts, lanes = (0, 3, most, 41), 16
    found = tiles_of_rows(counts, most, lanes)
    words = np.frombuffer(found.table, ROW_TILE)
    for count in counts:
        first = (found.addresses[count] - found.table.ctypes.data) // ROW_TILE_BYTES
        borders = [i * count // -(-count // most) for i in range(-(-count // most) + 1)] if count else [0]
        wanted = [
            (begin * lanes, begin * lanes, end - begin, found.lengths.index(end - begin))
            for begin, end in pairwise(borders)
        ]
        tiles = words[first : first + len(borders)]
        assert tiles[:-1].tolist() == wanted and tiles["kernel"][-1] == NONE
    assert list(found.lengths) == sorted({*found.lengths}) and max(found.lengths) == most


def test_changed_records():
    pair = np.dtype([("low", np.int64), ("high", np.int64)])
    record = np.zeros(1, np.dtype([("first", np.int64), ("limits", pair), ("last", np.int64)]))
    record["first"], record["last"] = 7, 8
    made = changed_record(record, ("limits", "last"), [(5, 6), 9])
    assert made.tolist() == [(7, (5, 6), 9)] and made.dtype == record.dtype
    assert record.tolist() == [(7, (0, 0), 8)]
    assert changed_record(made, ("last",), [1]).tolist() == [(7, (5, 6), 1)]
