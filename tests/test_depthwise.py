"""Depthwise and small grouped convolution: every way of cutting the work, on shapes that need it.

That both variants are right on awkward problems in general is tested with all other algorithms, in
test_algorithms.py.
"""

from itertools import product

import numba
import numpy as np
import pytest
from helpers import check, example
from narrow_vectors import run_on_haswell
from page_edges import at_edge

from convalgos import ConvProblem, Unsupported
from convalgos.core.epilogue import activated, activation_of
from convalgos.core.layouts import blocked_layout, laid
from convalgos.core.machine import Machine, vector_bytes
from convalgos.cpu.depthwise_channels import Channels
from convalgos.cpu.depthwise_rows import Rows
from convalgos.cpu.dwconv import block_layers, channel_blocking, channel_caches, row_tiling
from convalgos.cpu.dwconv.channel_tables import plain_columns
from convalgos.cpu.dwconv.channel_taps import meetings
from convalgos.cpu.dwconv.row_kernels import ROW_BAND, ROW_STRIP, ROW_TILE, SQUARE_KERNELS
from convalgos.cpu.dwconv.row_tables import RowTables
from convalgos.cpu.layout import streaming
from convalgos.cpu.reference import reference
from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd
from convalgos.select.registry import facing

# The machine that the costs were calibrated on.
MACHINE = Machine("AMD EPYC, Zen 5", 2, 64, 48 << 10, 1 << 20, 32 << 20, 5e11, 2.5e11, 4.6e10, 2.2e11, 1.5e-6)

BOTH = """
n2 c3 h7 w7 k3 r3 s3 p1 groups3
n2 c35 h9 w10 k35 r3 s3 p1 groups35              # several vectors of channels, the last one short
n1 c5 h1 w1 k5 r1 s1 groups5                     # nothing but a product
n1 c5 h2 w3 k5 r5 s5 p2 groups5                  # planes smaller than the kernel and than a vector
n1 c4 h40 w45 k4 r3 s3 p1:0,2:1 groups4          # asymmetric, several tiles in each direction
n1 c4 h12 w13 k4 r3 s3 p5:4,6:9 groups4          # rows and columns of outputs that meet padding only
n1 c3 h21 w22 k3 r5 s5 p2 stride2 groups3
n1 c3 h21 w40 k3 r3 s4 p1 stride3,2 groups3
n1 c3 h30 w31 k3 r3 s3 p4 dilation4,3 groups3    # interleaved sets of rows
n1 c3 h33 w31 k3 r3 s3 p4 stride4,2 dilation6,3 groups3
n1 c3 h5 w31 k3 r3 s3 p6 dilation6 groups3       # more sets than rows
n1 c2 h20 w35 k2 r9 s9 p4 groups2                # kernels in chunks of rows, some shorter
n1 c2 h18 w17 k2 r17 s3 p8,1 groups2
n1 c2 h14 w14 k2 r27 s27 p13 groups2
n1 c3 h9 w10 k6 r3 s3 p1 groups3                 # filters for each channel
n2 c5 h8 w19 k15 r3 s2 p1 stride2 groups5
n2 c7 w33 k7 s4 p3:0 groups7                     # causal
n1 c2 w5001 k2 s4 p3:0 groups2                   # a row in several bands
n1 c3 w70 k3 s3 p8 dilation8 stride2 groups3
n1 c2 w37 k2 s9 p150:300 groups2                 # strips that begin behind the row
n1 c2 h3 w70 k2 r2 s3 p0,400 dilation1,190 stride1,2 groups2
n1 c1 w100 k1 s17 p16
n1 c2 w300 k2 s65 p32 groups2
n2 c3 d5 h6 w7 k3 t3 r3 s3 p1 groups3
n1 c2 d9 h8 w20 k4 t2 r3 s3 p1:2,0:1,2 stride2,1,2 dilation3,2,1 groups2
n1 c1 h70 w300 k1 r3 s3 p1                       # a single plane, cut to feed all threads
n2 c3 h9 w10 k3 r3 s2 p1 groups3 convolution
"""
GROUPED = """
n1 c6 h9 w9 k6 r3 s3 p1 groups3                  # two channels and two filters
n2 c12 h7 w17 k12 r3 s3 p1 groups4
n1 c40 h8 w9 k40 r3 s3 p1 groups10
n1 c24 h10 w11 k24 r3 s3 p1 stride2 groups3
n2 c32 h6 w15 k32 r3 s3 p1 groups2 float32       # one group fills a vector
n1 c9 h7 w8 k15 r3 s3 p1 groups3                 # fewer channels than filters, lanes to spare
n1 c20 h7 w8 k4 r3 s3 p1 groups4                 # more
n1 c70 h5 w18 k70 r3 s3 p1 groups35 stride3
n1 c16 h6 w40 k16 r3 s3 p2:1,2:3 dilation2 groups8
n1 c8 w90 k8 s7 p3 groups4
n1 c8 d4 h5 w6 k8 t3 r2 s3 p1,0,1 groups2
"""
MULTIPLIED = """
n1 c40 h9 w30 k80 r3 s3 p1 groups40              # vectors of filters read half a block of channels
n2 c24 h8 w17 k96 r3 s3 p1 stride2 groups24      # a quarter
n1 c24 h6 w9 k72 r3 s3 p1 groups24               # no part of a block
n1 c32 h7 w15 k64 r5 s4 p2:1,0:3 groups16
n1 c68 h6 w44 k136 r3 s3 p3,2 dilation2 groups17 # the last block is not full
n2 c3 h5 w6 k6 r3 s3 p1 groups3                  # nor is any other
"""


def lines(table: str) -> list[str]:
    return [line.partition("#")[0].strip() for line in table.strip().splitlines()]


each_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])
each_kind = pytest.mark.parametrize("kind", ["integers", "reals"])


def check_if_groups_fit(problem: ConvProblem, kind: str) -> None:
    """`check` the channel variant; on narrow machines, and in float64, large groups do not fit a vector."""
    if max(problem.w_shape[1], problem.gemm_n) > simd.lanes(problem.itemsize):
        with pytest.raises(Unsupported, match="lanes"):
            Channels().serve(problem)
    else:
        check(Channels(), problem, kind)


@pytest.mark.parametrize("text", ["w9 s3 p1", "w31 s5 p2", "w40 s5 p2 stride2", "w17 s7 p3", "w200 s3"])
def test_columns_are_those_of_the_cut(text):
    """(first output, padding on both sides) of each block, at every width from there on."""
    for more in range(25):
        width, *rest = text.split()
        problem = ConvProblem.parse(
            f"c32 k32 groups32 channels_last w{int(width[1:]) + more} {' '.join(rest)}"
        )
        c = channel_blocking.channel_blocking(problem)
        p, of_row = c.problem, (c.problem.stride[2], c.problem.padding[2][0])
        found = plain_columns(c.pixels, c.reach, p.spatial[2], p.spatial_out[2], *of_row, 3, 5)
        starts = [first * of_row[0] - of_row[1] for first, *_ in c.columns]
        right = [(3 * s, 5 * first, *pads, 0, 0) for s, (first, *pads) in zip(starts, c.columns, strict=True)]
        assert found.tolist() == right


@each_dtype
@each_kind
@pytest.mark.parametrize("text", lines(BOTH))
def test_rows(text, dtype, kind):
    check(Rows(), ConvProblem.parse(text).replace(dtype=dtype), kind)


@each_dtype
@each_kind
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("text", lines(BOTH) + lines(GROUPED))
def test_channels(text, layout, dtype, kind):
    check_if_groups_fit(ConvProblem.parse(text).replace(layout=layout, dtype=dtype), kind)


@each_dtype
@pytest.mark.parametrize("layouts", list(product(("channels_last", "blocked"), repeat=2)), ids=" to ".join)
@pytest.mark.parametrize("text", lines(MULTIPLIED))
def test_channels_with_more_filters_in_place(text, layouts, dtype):
    problem = ConvProblem.parse(text).replace(dtype=dtype)
    lanes, groups = simd.lanes(problem.itemsize), channel_blocking.groups_of_vector(problem)
    blocked = [blocked_layout(lanes) if layout == "blocked" else layout for layout in layouts]
    problem = problem.replace(layout=blocked[0], y_layout=blocked[1])
    parts = groups and lanes % (groups * problem.w_shape[1]), groups and lanes % problem.gemm_n
    if any(rest and layout == "blocked" for rest, layout in zip(parts, layouts, strict=True)):
        assert "no block" in Channels().why_not(problem)
        return
    check_if_groups_fit(problem, "integers")
    if groups and problem.groups % groups == 0:
        in_place = channel_blocking.channel_blocking(problem).in_place
        assert in_place == (lanes % problem.gemm_n == 0)


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("text", ["k8 groups4", "k8 groups2", "k16 groups4"])
def test_groups_in_rows_of_every_width(text, layout):
    """Blocks of columns that begin or end with a column of padding, with more, and with none."""
    for stride, padding in product((1, 2), ("0", "1", "1:0", "0:1", "2", "1:2", "0:3")):
        for width in range(3, 34):
            rest = f"r3 s3 p1,{padding} stride1,{stride} {layout}"
            check(Channels(), ConvProblem.parse(f"n1 c8 h2 w{width} {text} {rest}"), "integers")


@pytest.mark.parametrize("blocked", [False, True])
def test_channels_with_more_filters_touch_nothing_outside_the_arrays(blocked):
    layout = blocked_layout(simd.lanes(4)) if blocked else "channels_last"
    problem = ConvProblem.parse("n1 c32 h5 w17 k64 r3 s3 p1 groups32")
    x, w, _, y = example(problem, "integers")
    plan = Channels().serve(problem.replace(layout=layout, y_layout=layout))
    expected = laid(y, layout)
    for edge in ("start", "end"):
        out = at_edge(np.full(expected.shape, np.nan, np.float32), edge)
        plan(at_edge(np.ascontiguousarray(laid(x, layout)), edge), at_edge(w, edge), out=out)
        assert np.array_equal(out, expected)


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize(
    "text",
    [
        "n1 c35 h13 w21 k35 r3 s3 p1 stride2 groups35 bfloat16",
        "n2 c8 h9 w13 k8 r2 s3 p1 stride3,2 groups2 float16",
        "n2 c4 h5 w70 k4 r1 s1 stride2 groups4 bfloat16",  # phases that no tap reaches
    ],
)
def test_strided_gradients_of_16_bits_interleave_them(text, layout):
    problem = ConvProblem.parse(text).replace(layout=layout, direction="backward_data")
    check(facing(Channels(), "backward_data"), problem)


@each_dtype
@pytest.mark.parametrize(
    "text",
    [
        "n3 c35 h13 w21 k35 r3 s3 p1 stride2 groups35 channels_last",  # the last vectors overlap
        "n1 c64 h7 w9 k64 r5 s4 p2:1,0:3 stride3,2 groups64 channels_last",
        "n2 c33 h1 w50 k33 r1 s7 p0,3 stride1,4 dilation1,3 groups33 channels_last",
        "n2 c16 d5 h4 w7 k16 t2 r3 s2 p1,0,0 stride2,1,2 groups16 channels_last",
    ],
)
def test_phases_of_pixels_are_written_where_they_lie(text, dtype):
    algorithm = facing(Channels(), "backward_data")
    problem = ConvProblem.parse(text).replace(dtype=dtype, direction="backward_data")
    assert algorithm.workspace_bytes(problem) == 0
    check(algorithm, problem, "integers")
    plan, rng = algorithm.serve(problem), np.random.default_rng(3)
    dy, w = (rng.integers(-9, 10, shape).astype(dtype) for shape in (plan._x_shape, problem.w_shape))
    dx = np.full(plan._y_shape, np.nan, dtype)
    plan.bind(dy, plan.prepare(w), dx).run()
    np.testing.assert_array_equal(dx, plan(dy, w))


@pytest.mark.parametrize(
    "text",
    [
        "n1 c2 h9 w25 k2 r3 s3 p1 groups2",  # less than a line
        "n1 c2 h12 w119 k2 r5 s5 p2 groups2",
        "n1 c2 h12 w57 k2 r7 s7 p3:0,1:4 stride2 groups2",
        "n1 c2 h20 w32 k2 r3 s3 groups2",
        "n1 c2 h12 w43 k2 r7 s7 p3 groups2",
    ],
)
def test_rows_in_lines(text):
    check(Rows(), ConvProblem.parse(f"{text} bfloat16"), "integers")


def forget_cuts():
    row_tiling.row_tiling.cache_clear()
    channel_blocking.channel_blocking.cache_clear()


@pytest.fixture
def small_caches(monkeypatch):
    """Caches so small that small problems are cut in every direction."""
    for module in (row_tiling, channel_blocking):
        monkeypatch.setattr(module, "cache_sizes", lambda: (1 << 11, 1 << 13, 1 << 20))
    forget_cuts()
    monkeypatch.setattr(row_tiling, "BAND_COLUMNS", 64)
    yield
    forget_cuts()


@pytest.mark.parametrize(
    ("text", "rows", "columns"),
    [
        ("n1 c3 h50 w600 k3 r3 s3 p1 groups3", True, False),
        ("n1 c3 h50 w600 k3 r9 s3 p4,1 groups3", True, True),
        ("n1 c3 h91 w30 k3 r5 s5 p2 stride2 groups3", True, False),
        ("n1 c2 h70 w20 k4 r3 s3 p3 dilation3,1 groups2", True, False),
        ("n1 c2 w900 k2 s9 p4 groups2", False, True),
        ("n1 c2 w900 k2 s9 p4 stride2 groups2", False, True),
        ("n1 c2 d12 h20 w40 k2 t3 r3 s3 p1 stride1,1,2 groups2", True, False),
    ],
)
def test_bands_in_every_direction(text, rows, columns, small_caches):
    problem = ConvProblem.parse(text)
    c = row_tiling.row_tiling(problem)
    assert c.row_bands > 1 or not rows
    assert c.column_bands > 1 or not columns
    check(Rows(), problem, "integers")
    if rows:
        assert channel_blocking.channel_blocking(problem).bands > 1
    check(Channels(), problem, "integers")
    lanes = simd.lanes(4)
    wide = problem.replace(
        x_shape=(1, 3 * lanes + 1, *problem.spatial),
        w_shape=(3 * lanes + 1, 1, *problem.kernel),
        groups=3 * lanes + 1,
        layout="channels_last",
    )
    assert channel_blocking.channel_blocking(wide).in_place
    check(Channels(), wide, "integers")


@pytest.mark.parametrize("text", ["k48 groups48 stride2", "k96 groups48 stride1,2", "k48 groups12 stride3,2"])
def test_rows_that_strided_kernels_fetch_ahead(text, monkeypatch):
    monkeypatch.setattr(channel_caches, "cache_sizes", lambda: (1 << 11, 1 << 13, 1 << 14))
    forget_cuts()
    problem = ConvProblem.parse(f"n1 c48 h9 w31 r3 s3 p1 {text} {blocked_layout(simd.lanes(4))}")
    assert channel_blocking.channel_blocking(problem).fetch_rows == problem.stride[0]
    check(Channels(), problem, "integers")
    forget_cuts()


@pytest.mark.parametrize(
    "text", ["k48 groups48", "k96 groups48", "k48 groups48 stride2", "k96 groups48 stride2"]
)
def test_plans_on_other_maps_fetch_what_their_own_would(text, monkeypatch):
    for module in (channel_blocking, channel_caches, block_layers):
        monkeypatch.setattr(module, "cache_sizes", lambda: (1 << 11, 1 << 13, 1 << 14))
    forget_cuts()
    small, large = (
        ConvProblem.parse(f"n1 c48 {size} r3 s3 p1 {text} {blocked_layout(simd.lanes(4))}")
        for size in ("h3 w29", "h9 w31")
    )
    known, own = Channels().plan(small), Channels().plan(large)
    like = known.on_maps(large)
    for field in ("fetch", "fetch_rows"):
        assert like.record[field] == own.record[field]
    assert own.record["fetch"] == (text == "k48 groups48")
    assert own.record["fetch_rows"] == large.stride[0] * (large.stride[0] == 2)
    forget_cuts()


def test_small_maps_whose_kernels_fetch_the_next():
    check(Channels(), ConvProblem.parse("n16 c70 h7 w8 k70 r3 s3 p1 groups70"), "integers")


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("width", [1, 15, 16, 17, 31, 33, 64, 70, 100, 129, 250, 300])
def test_rows_of_every_length(width, stride):
    """Parts of vectors at the end of a row, and strips that are alike in any number."""
    for taps, padding in ((3, "1"), (4, "3:0"), (2, "0:1"), (1, "0")):
        text = f"n1 c2 h5 w{width} k2 r{taps} s{taps} p{padding} stride1,{stride} groups2"
        check(Rows(), ConvProblem.parse(text), "integers")


@each_dtype
@pytest.mark.parametrize(
    "text", ["n2 c3 h9 w100 k3 r3 s3 p1 groups3", "n1 c2 h6 w40 k2 r5 s5 p2 stride2 groups2"]
)
def test_rows_touch_nothing_outside_the_arrays(text, dtype):
    problem = ConvProblem.parse(text).replace(dtype=dtype)
    plan = Rows().serve(problem)
    x, w, _, y = example(problem, "integers")
    for edge in ("start", "end"):
        arrays = [at_edge(array, edge) for array in (x, w, np.full(y.shape, np.nan, dtype))]
        plan(*arrays[:2], out=arrays[2])
        assert np.array_equal(arrays[2], y)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [3, 5, 7])
def test_rows_that_end_anywhere_in_what_usual_kernels_load(size, stride):
    """Vectors of x are loaded once and shifted: all ends of a row fall into each of them."""
    for columns in (7, 14, 28, 33, 56, 63, 65, 67, 112):
        for left, right in ((0, 0), (size // 2, size // 2), (size - 1, 2), (2 * size, 40)):
            text = f"n1 c1 h5 w{columns} k1 r{size} s{size} p{size // 2},{left}:{right} stride{stride}"
            problem = ConvProblem.parse(text)
            assert row_tiling.row_tiling(problem).square == (size if size in SQUARE_KERNELS[stride] else 0)
            x, w, _, y = example(problem, "integers")
            for edge in ("start", "end"):
                arrays = [at_edge(array, edge) for array in (x, w, np.full(y.shape, np.nan, x.dtype))]
                Rows().serve(problem)(*arrays[:2], out=arrays[2])
                assert np.array_equal(arrays[2], y), text


@each_dtype
@pytest.mark.parametrize(
    "text",
    [
        "n2 c3 w1001 k3 s4 p3:0 groups3",
        "n2 c3 w5 k3 s3 p1 groups3",  # shorter than a vector
        "n1 c2 w5000 k4 s9 p4 groups2",  # in several bands
        "n2 c3 h1 w90 k3 r1 s3 p0,1 stride1,2 groups3",
        "n1 c2 h13 w50 k6 r3 s3 groups2",
        "n1 c2 h13 w20 k2 r3 s3 p2 dilation2 groups2",
        "n1 c1 h9 w9000 k1 r7 s7 p3",  # in bands of rows and columns
    ],
)
def test_rows_stored_around_the_caches(text, dtype, monkeypatch):
    monkeypatch.setattr(row_tiling, "cache_sizes", lambda: (48 << 10, 1 << 20, 1 << 20))
    monkeypatch.setattr(streaming, "STREAMED_PLANES", 0)
    row_tiling.row_tiling.cache_clear()
    problem = ConvProblem.parse(text).replace(dtype=dtype)
    assert row_tiling.row_tiling(problem).streams
    check(Rows(), problem, "integers")
    x, w, bias, y = example(problem, "integers")
    plan = Rows().serve(problem)
    for offset in range(64 // problem.itemsize):  # wherever y lies
        room = np.full(y.size + 64, np.nan, dtype)
        out = room[offset : offset + y.size].reshape(y.shape)
        plan(x, w, bias=bias, out=out)
        assert np.array_equal(out, y + bias.reshape(-1, *(1,) * problem.ndim))
        assert np.isnan(room[:offset]).all() and np.isnan(room[offset + y.size :]).all()
    apart = np.full([n + 3 for n in y.shape], np.nan, dtype)
    part = apart[tuple(slice(1, 1 + n) for n in y.shape)]
    plan.bind(x, w, part, bias).run()
    assert np.array_equal(part, out) and np.isnan(apart).sum() == apart.size - y.size
    row_tiling.row_tiling.cache_clear()


def test_tiles_cover_every_output_in_one_band(small_caches):
    problem = ConvProblem.parse("n1 c1 d5 h43 w130 k1 t2 r3 s3 p1 dilation1,2,1 stride1,1,2 groups1")
    c = row_tiling.row_tiling(problem)
    o, p, q = problem.spatial_out
    tables = RowTables(c)
    bands, strips, tiles = (
        np.array(rows, kind)
        for rows, kind in ((tables.bands, ROW_BAND), (tables.strips, ROW_STRIP), (tables.tiles, ROW_TILE))
    )
    written = np.zeros((o, p, q), int)
    for band in bands:
        columns = set()
        for name in ("left", "right", "double", "single"):
            first = band[f"first_{name}"]
            for strip in strips[first : first + band[name]]:
                starts = [0] if name == "single" else [0, strip["second"]]
                columns |= {strip["q"] + start + i for start in starts for i in range(strip["columns"])}
        for i in range(band["plain"]):
            first = band["plain_q"] + 2 * c.lanes * i
            columns |= set(range(first, first + 2 * c.lanes))
        assert not band["folded"]
        inside = np.zeros(o * p * q, int)
        for tile in tiles[band["first_tile"] : band["first_tile"] + band["tiles"]]:
            for i in range(c.rows):
                row = band["o"] * p + band["p"] + tile["p"] + i * c.row_sets
                inside[[row * q + column for column in columns]] = 1
        assert inside.sum() == band["rows"] * band["columns"]
        written += inside.reshape(o, p, q)
    assert (written == 1).all()


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2, 5])
def test_column_blocks_leave_out_padding_and_nothing_else(stride, dilation):
    text = f"n1 c3 h4 w40 k3 r1 s4 p0,7:6 stride1,{stride} dilation1,{dilation} groups3"
    problem = ConvProblem.parse(text).as_3d
    c = channel_blocking.channel_blocking(problem)
    met, by_ranges = set(), set()
    for first, left, right in c.columns:
        steps = meetings(c.pixels, 4, stride, dilation)
        for step, pairs in steps.items():
            column = first * stride - 7 + step
            kept = left <= step <= max(steps) - right
            assert kept == (0 <= column < 40)
            met |= {(first + pixel, tap) for pixel, tap in pairs if kept}
        for tap, (start, end) in enumerate(c.ranges(first)):
            by_ranges |= {(first + pixel, tap) for pixel in range(start, end)}
    outputs, taps = problem.spatial_out[2], range(4)
    expected = {(q, s) for q in range(outputs) for s in taps if 0 <= q * stride + s * dilation - 7 < 40}
    assert met == by_ranges == expected


@pytest.mark.parametrize("variant", [Rows(), Channels()], ids=lambda v: v.variant)
def test_the_number_of_threads_does_not_matter(variant):
    problem = ConvProblem.parse("n2 c19 h23 w30 k19 r3 s3 p1 groups19")
    x, w, bias, _ = example(problem, "reals")
    answers = []
    threads = numba.get_num_threads()
    for count in (1, threads):
        numba.set_num_threads(count)
        forget_cuts()
        try:
            answers.append(variant.serve(problem)(x, w, bias=bias))
        finally:
            numba.set_num_threads(threads)
    assert np.array_equal(*answers)


@pytest.mark.parametrize(
    ("variant", "text", "reason"),
    [
        (Rows(), "n1 c4 h8 w8 k4 r3 s3 groups2", "sums over several"),
        (Rows(), "n1 c4 h8 w8 k4 r3 s3", "sums over several"),
        (Rows(), "n1 c4 h8 w8 k4 r3 s3 groups4 channels_last", "channels_first"),
        (Rows(), "n1 c4 h8 w9 k4 r3 s3 groups4 stride1,3", "at most 2, not 3"),
        (Channels(), "n1 c4 h8 w8 k4 r3 s3", "one group of all"),
        (Channels(), "n1 c64 h8 w8 k64 r3 s3 groups2", "32 channels and 32 filters"),
        (Channels(), "n1 c2 w1000000 k2 s9 groups2", "copies whole rows"),
    ],
)
def test_refusals_say_why(variant, text, reason):
    with pytest.raises(Unsupported, match=reason):
        variant.serve(ConvProblem.parse(text))


@pytest.mark.skipif(simd.lanes(4) != 16, reason="the costs are those of AVX-512")
@pytest.mark.parametrize(
    ("text", "better"),
    [
        ("n8 c32 h112 w112 k32 r3 s3 p1 groups32", Rows()),
        ("n8 c96 h112 w112 k96 r3 s3 p1 stride2 groups96", Rows()),
        ("n8 c1536 w2048 k1536 s4 p3:0 groups1536", Rows()),
        ("n8 c384 h14 w14 k384 r3 s3 p1 groups384", Channels()),
        ("n8 c960 h7 w7 k960 r3 s3 p1 groups960", Channels()),
        ("n8 c240 h28 w28 k240 r5 s5 p2 groups240", Rows()),
        ("n8 c512 h14 w14 k512 r27 s27 p13 groups512", Channels()),
    ],
)
def test_costs_rank_the_variants_as_measured(text, better):
    problem = ConvProblem.parse(text)
    costs = {v.id: v.cost(problem, MACHINE) for v in (Rows(), Channels())}
    assert min(costs, key=costs.__getitem__) == better.id


def test_scratch_stays_in_the_caches():
    for text in (
        "n8 c32 h112 w112 k32 r3 s3 p1 groups32",
        "n1 c64 w131072 k64 s4 p3 groups64",
        "n1 c1 h2048 w2048 k1 r63 s63 p31",
        "n8 c54 d16 h56 w56 k54 t3 r3 s3 p1 groups54",
    ):
        problem = ConvProblem.parse(text)
        assert Rows().workspace_bytes(problem) <= jit.thread_count() * (1 << 20), text


@pytest.mark.parametrize(
    ("text", "layouts"),
    [
        ("n2 c40 h9 w14 k40 r3 s3 p1 groups40", ("own", "own")),
        ("n2 c40 h9 w14 k40 r3 s3 p1 groups40", ("own", "channels_first")),
        ("n2 c48 h7 w7 k48 r3 s3 p1 groups48", ("own", "own")),  # blocks of two vectors overlap
        ("n2 c5 h30 w40 k5 r3 s3 p1 groups5", ("channels_first", "channels_first")),
    ],
)
def test_the_output_step_in_kernels(text, layouts):
    """Bounds in registers, SiLU and a residual behind each band; on arrays, and on images that lie apart."""
    own = blocked_layout(vector_bytes() // 4)
    x_layout, y_layout = (own if name == "own" else name for name in layouts)
    p = ConvProblem.parse(text).replace(layout=x_layout, y_layout=y_layout)
    rng = np.random.default_rng(0)
    x, w, residual = (rng.standard_normal(s, np.float32) for s in (p.x_shape, p.w_shape, p.y_shape))
    sums = reference(p, x, w)
    x, residual_laid = np.ascontiguousarray(laid(x, x_layout)), np.ascontiguousarray(laid(residual, y_layout))
    for algorithm in (Channels(), Rows()):
        if algorithm.why_not(p):
            continue
        plan = algorithm.plan(p)
        for added in (None, residual):
            for form in (("clip", -1, 0.5), "silu", "relu"):  # what one run sets, the next does not see
                given = None if added is None else residual_laid
                expected = activated(sums if added is None else sums + added, activation_of(form))
                y = plan(x, plan.prepare(w), activation=form, residual=given)
                assert np.allclose(p.logical(2, y), expected, atol=1e-4), (algorithm.id, form)
                apart = np.full((2, 2, *y.shape[1:]), 7, np.float32)
                if added is None:
                    plan.bind(x, plan.prepare(w), apart[:, 1], activation=form).run()
                    assert np.array_equal(apart[:, 1], y) and (apart[:, 0] == 7).all(), (algorithm.id, form)


PROGRAM = """
from convalgos.cpu.depthwise_rows import Rows
from convalgos.cpu.depthwise_channels import Channels
for text in (
    "n2 c19 h17 w30 k19 r3 s3 p1 groups19",
    "n1 c3 h20 w21 k3 r9 s9 p4 groups3",
    "n1 c3 h21 w22 k6 r5 s5 p2 stride2 groups3 float64",
    "n1 c2 h20 w37 k2 r5 s5 p2 wrap,reflect groups2",
    "n1 c2 h20 w37 k2 r3 s3 p1 wrap groups2 stride2",
):
    check(Rows(), ConvProblem.parse(text), "integers")
    for layout in ("channels_first", "channels_last"):
        check(Channels(), ConvProblem.parse(text).replace(layout=layout), "integers")
check(Channels(), ConvProblem.parse("n2 c19 h17 w30 k19 r3 s3 p1 groups19 blocked8"), "reals")
for text in ("n1 c24 h9 w10 k24 r3 s3 p1 groups6", "n1 c24 h9 w10 k24 r3 s3 p1 groups3 channels_last"):
    check(Channels(), ConvProblem.parse(text), "integers")
for dtype in ("bfloat16", "float16"):  # bfloat16 is rounded by operations on integers there
    check(Rows(), ConvProblem.parse(f"n1 c3 h7 w25 k3 r3 s3 p1 groups3 {dtype}"), "reals")
    check(Channels(), ConvProblem.parse(f"n1 c19 h7 w9 k19 r3 s3 p1 groups19 {dtype} channels_last"), "reals")
"""


def test_narrow_vectors():
    run_on_haswell(PROGRAM)
