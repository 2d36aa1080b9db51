"""Plans made for other sizes by arithmetic alone are those that their problems lead to."""

import ctypes
import math
from dataclasses import fields

import numpy as np
import pytest
from test_separable import LANES, block_of

import convalgos as ca
from convalgos.core.allocator import aligned_empty
from convalgos.core.epilogue import activation_of
from convalgos.core.layouts import blocked_layout
from convalgos.core.machine import vector_bytes
from convalgos.core.problem_views import on_map, y_shape_on
from convalgos.cpu.direct import Direct, DirectPlan
from convalgos.cpu.dwconv.channel_records import CHANNEL_BAND, COLUMN_BLOCK, ROW_RUN
from convalgos.cpu.gemm.blocked_cut import blocked_cut, cut_like
from convalgos.cpu.gemm.blocked_plan import BlockedPlan
from convalgos.cpu.gemm.row_tiles import ROW_TILE, ROW_TILE_BYTES
from convalgos.cpu.gemm.scaled_plan import ScaledPlan
from convalgos.cpu.separable.band_cut import BandCut, band_cut_like
from convalgos.cpu.separable.block import BlockShapes
from convalgos.cpu.separable.plan import SeparablePlan
from convalgos.network.graph import Convolution, NetworkGraph
from convalgos.network.network import Network
from convalgos.select import find_algorithm
from convalgos.select.choose import plan_like
from convalgos.select.constraints import Constraints

BLOCKS = blocked_layout(vector_bytes() // 4)


def known_plan(name, text):
    return ca.plan(ca.ConvProblem.parse(f"{text} {BLOCKS}"), algorithm=name), find_algorithm(name)


@pytest.mark.parametrize(
    ("name", "text", "sizes"),
    [
        ("cpu.direct", "n1 c40 h9 w30 k72 r1 s1", (1, 9, 47)),
        ("cpu.direct", "n1 c33 h9 w30 k7 r1 s1", (3, 2, 300)),
        ("cpu.direct", "n4 c64 h7 w7 k64 r1 s1", (5, 3, 6)),
        ("cpu.direct", "n1 c48 w90 k96 s1", (2, 31)),
        ("cpu.depthwise.channels", "n1 c48 h24 w80 k48 r5 s5 p2 groups48", (1, 31, 97)),
        ("cpu.depthwise.channels", "n1 c40 h12 w80 k40 r3 s3 p1 groups40 stride2", (2, 13, 61)),
        ("cpu.depthwise.channels", "n1 c32 d5 h6 w40 k32 t3 r3 s3 p1 groups32", (1, 6, 9, 61)),
    ],
)
def test_plans_by_sizes_alone(name, text, sizes):
    """Every field of the record, what its tables hold, and what is looked at late."""
    known, algorithm = known_plan(name, text)
    x_shape = sizes[0], known.problem.C, *sizes[1:]
    problem = on_map(known.problem, x_shape)
    found = known.on_sizes(x_shape, y_shape_on(known.problem, x_shape))
    assert type(found) is type(known) and "problem" not in found.__dict__
    like = plan_like(algorithm, problem, Constraints(), known)
    assert found._key is known._key and found.scratch_bytes == like.scratch_bytes == 0
    assert (found._parallel, found.steps, found.strided_batch) == (
        like._parallel, like.steps, like.strided_batch,
    )  # fmt: skip
    pointers = {"bounds", "unlimited", "limits", *like._tables}
    for field in like.record.dtype.names:
        assert field in pointers or found.record[field] == like.record[field], field
    for field, table in like._tables.items():
        assert np.array_equal(found._tables[field], table), field
    assert found._x_shape == like._x_shape and found._y_shape == like._y_shape
    assert found.problem == problem and found._aligns == like._aligns
    rng = np.random.default_rng(1)
    x = rng.standard_normal(like._x_shape).astype("f4")
    w = known.prepare(rng.standard_normal(problem.w_shape).astype("f4"))
    assert np.array_equal(found(x, w), like(x, w))


@pytest.mark.parametrize("boundary", ["zero", "reflect"])
@pytest.mark.parametrize("layouts", [("channels_first", BLOCKS), (BLOCKS, BLOCKS), ("channels_first",) * 2])
@pytest.mark.parametrize("kernel", [(3, 2, 1, 1), (5, 1, 2, 1), (3, 1, 3, 3), (1, 2, 0, 1)], ids=str)
def test_direct_plans_on_other_maps(kernel, layouts, boundary):
    """The record and the tables are those of a plan in the same cut that is made from the ground up."""
    size, stride, padding, dilation = kernel
    rng = np.random.default_rng(size + stride)
    blocks = layouts[1] == BLOCKS
    channels = 5 if layouts[0] != BLOCKS else 2 * LANES - 3 * (stride - 1)
    known = algorithm = None
    for _ in range(30):
        sizes = rng.integers(1, 4), channels, *rng.integers(4, 40, 2)
        problem = ca.ConvProblem(
            tuple(map(int, sizes)), (3 * LANES, channels, size, size), stride, padding, dilation,
            boundary=boundary, layout=layouts[0], y_layout=layouts[1],
        )  # fmt: skip
        if known is None:
            algorithm = Direct()
            cut = blocked_cut(problem)[1] if blocks else None
            known = BlockedPlan(problem, algorithm, cut) if blocks else DirectPlan(problem, algorithm)
        found = known.on_maps(problem)
        if found is None:
            assert blocks and cut_like(problem, known._cut).by_tap != known._cut.by_tap
            continue
        cut = cut_like(problem, known._cut) if blocks else None
        own = BlockedPlan(problem, algorithm, cut) if blocks else DirectPlan(problem, algorithm)
        assert found.steps == own.steps and found.scratch_bytes == own.scratch_bytes
        assert found._tables.keys() == own._tables.keys()
        for field in found.record.dtype.names:
            if field not in own._tables:
                assert found.record[field] == own.record[field], field
        for field, table in own._tables.items():
            assert np.array_equal(found._tables[field], table), field


@pytest.mark.parametrize("name", ["cpu.direct", "cpu.depthwise.channels", "cpu.winograd.f2x3"])
@pytest.mark.parametrize("text", ["k24 r1 s1 groups2", "k24 r3 s3 p1 groups2", "k16 r3 s1 p1,0 groups4"])
def test_layers_that_meet_maps_of_one_pixel(name, text):
    """These are computed channels last, as a layer of its own."""
    rng, algorithm = np.random.default_rng(3), find_algorithm(name)
    sizes = ("h5 w5", "h1 w1", "h1 w7", "h9 w2")
    problems = [ca.ConvProblem.parse(f"n1 c8 {size} {text}") for size in sizes]
    problems = [problem for problem in problems if not algorithm.why_not(problem)]
    w = rng.integers(-3, 4, ca.ConvProblem.parse(f"c8 h9 w9 {text}").w_shape).astype("f4")
    for known in map(algorithm.serve, problems):
        for problem in problems:
            x = rng.integers(-3, 4, problem.x_shape).astype("f4")
            expected = find_algorithm("cpu.reference").serve(problem)(x, w)
            found = plan_like(algorithm, problem, Constraints(), known)
            assert np.array_equal(found(x, w), expected), (str(known.problem), str(problem))


def test_few_outputs_and_wide_filters_are_looked_at():
    known, _ = known_plan("cpu.direct", "n1 c40 h9 w30 k72 r1 s1")
    assert known.on_sizes((1, 40, 1, 2), (1, 72, 1, 2)) is None, "which other kernels compute"
    wide, _ = known_plan("cpu.direct", "n1 c40 h9 w30 k72 r3 s3 p1")
    assert wide.on_sizes((1, 40, 9, 31), (1, 72, 9, 31)) is None, "whose padding has to be looked at"


@pytest.mark.parametrize("sizes", [(1, 40, 0, 3), (1, 40, 2, 1), (1 << 20, 40, 1 << 10, 1 << 10)])
def test_shapes_that_are_looked_at_closely(sizes):
    problem = ca.ConvProblem((1, 40, 9, 30), (40, 1, 5, 5), groups=40, padding=((1, 1), (0, 0)))
    assert y_shape_on(problem, sizes) is None
    assert y_shape_on(problem, (2, 40, 9, 31)) == (2, 40, 7, 27) == on_map(problem, (2, 40, 9, 31)).y_shape


@pytest.mark.parametrize(
    ("sizes", "x_shape"),
    [
        ((2, 5, 3 * LANES + 2, 9, (7, 19), 3, 1), (3, 5, 12, 70)),
        ((1, LANES, 2 * LANES, 2 * LANES, (9, 10), 5, 2), (1, LANES, 80, 14)),
        ((1, 7, LANES + 4, 0, (6, 40), 7, 1), (1, 7, 11, 41)),
        ((2, 0, 5 * LANES - 1, 0, (6, 31), 3, 2), (1, 5 * LANES - 1, 18, 600)),
        ((1, 3, 2 * LANES, 9, (6, 31), 3, 1, ((3, 3), 2, 1, (12, 62))), (1, 3, 17, 599)),
        ((1, 3, 2 * LANES, 0, (6, 31), 3, 2, ((3, 3), 1, 1, (6, 31))), (2, 3, 40, 5)),
    ],
    ids=str,
)
def test_joined_convolutions_on_other_maps(sizes, x_shape):
    block = block_of(*sizes)
    _check_like(block, SeparablePlan(block, not block.projection), x_shape)


def test_shapes_of_joined_convolutions_on_any_maps():
    """By few steps as looked at one by one, where sizes are empty, too small or too many, too."""
    rng = np.random.default_rng(6)
    first = (3, 5), (2, 3), ((0, 2), (4, 1)), (22, 61)
    blocks = [
        block_of(2, 5, LANES, 9, (7, 19), 5, 2), block_of(1, 7, LANES, 0, (6, 40), 7, 1),
        block_of(1, 3, LANES, 9, (11, 21), 3, 2, first), block_of(1, 0, LANES, 4, (9, 9), 3, 1),
    ]  # fmt: skip
    for block in blocks:
        quick = BlockShapes(block)
        for _ in range(300):
            batch, height, width = map(int, rng.choice([0, 1, 2, 3, 4, 5, 9, 60, 1 << 20, 1 << 26], 3))
            x_shape = batch, block.problems[0].C, height, width
            assert quick.on(x_shape) == block.shapes_on(x_shape), (x_shape, str(block))


def _check_cut(cut):
    """What it was told at once is what it finds by itself."""
    own = BandCut(cut.layers, cut.sizes, cut.expansion, cut.projection, cut.bands, cut.parts)
    told = set(cut.__dict__) - {field.name for field in fields(BandCut)}
    assert "scratch_bytes" in told and all(getattr(own, name) == getattr(cut, name) for name in told)


def _check_like(block, known, x_shape):
    """The record is the one that is made from the ground up for a cut."""
    mean, own = known._mean, block.on_map(x_shape)
    like = known.on_map(x_shape)
    assert like.block == own and like._key is known._key and like.told == known.told
    cut = band_cut_like(known._cut, own.sizes)
    _check_cut(cut)
    assert (cut.bands, cut.scratch_bytes, cut.rows) == (
        like._cut.bands, like._cut.scratch_bytes, like._cut.rows,
    )  # fmt: skip
    from_ground = SeparablePlan.__new__(SeparablePlan)
    from_ground._mean, from_ground._lanes = mean, known._lanes
    from_ground._set_cut(cut)
    assert like.scratch_bytes == from_ground.scratch_bytes
    made, expected = like._records, from_ground._records
    made, expected = made.record[0], expected.record[0]
    for part in ("run", "expansion", "depthwise", "projection"):
        for field in made[part].dtype.names:
            if field not in POINTERS:
                assert made[part][field] == expected[part][field], (part, field)
    for part, field, count in _tables_of(like, block):
        words = [_words_at(int(record[part][field]), count) for record in (made, expected)]
        assert np.array_equal(*words), (part, field)
    if mean:
        pixels = [ctypes.c_float.from_address(int(record["run"]["pixels"])) for record in (made, expected)]
        assert pixels[0].value == pixels[1].value == math.prod(own.depthwise.spatial_out)
    tiles = [_words_at(int(record["run"]["band_tiles"]), 2 * like.bands) for record in (made, expected)]
    for own, other in zip(*tiles, strict=True):
        assert bool(own) == bool(other)
        assert not own or _tiles_at(int(own)) == _tiles_at(int(other))


POINTERS = "offsets", "unlimited", "band_tiles", "pixels", "bands", "runs", "columns"


def _tables_of(plan, block):
    """The tables of a record, but for tiles, and how many words each has."""
    depthwise = plan._records.record[0]["depthwise"]
    bands = _words_at(int(depthwise["bands"]), plan.bands * len(CHANNEL_BAND.names)).reshape(plan.bands, -1)
    yield "depthwise", "bands", bands.size
    yield "depthwise", "runs", int(bands[-1, -2:].sum()) * len(ROW_RUN.names)
    yield "depthwise", "columns", int(depthwise["column_count"]) * len(COLUMN_BLOCK.names)
    for part in block.parts:
        if part != "depthwise":
            yield part, "offsets", getattr(plan._cut, part).entries + 1


def _words_at(address, count):
    return np.array((ctypes.c_int64 * count).from_address(address), np.int64)


def _tiles_at(address):
    """The tiles of a table, up to its end."""
    found = []
    while (tile := _words_at(address + len(found) * ROW_TILE_BYTES, len(ROW_TILE.names)).tolist())[3] >= 0:
        found.append(tile)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_joined_convolutions_of_random_sizes(seed):
    """On maps of any height, and again on others of a height that was met."""
    rng = np.random.default_rng(seed)
    sizes = (
        (1, 0, 3 * LANES - 1, 2 * LANES, (9, 33), 3, 1), (2, 2 * LANES, 3 * LANES + 2, 9, (7, 19), 5, 2),
        (1, LANES + 3, LANES, 0, (12, 40), 3, 1), (1, 0, 2 * LANES, 0, (6, 31), 7, 2),
    )[seed]  # fmt: skip
    block = block_of(*sizes)
    known = SeparablePlan(block, not block.projection)
    heights = rng.integers(1, 60, 6)
    for _ in range(100):
        channels = block.problems[0].C
        x_shape = (int(rng.integers(1, 4)), channels, int(rng.choice(heights)), int(rng.integers(1, 700)))
        _check_like(block, known, x_shape)


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("activation", [None, "relu", "silu"])
@pytest.mark.parametrize("adds", [False, True])
def test_scaled_layers_are_bound_again(images, activation, adds):
    """By what a run on other maps was bound by, and of plans by sizes alone; with the same bits."""
    rng = np.random.default_rng(2)
    text = f"n1 c40 h9 w30 k{2 * LANES + 3} r1 s1"
    convolution, _ = known_plan("cpu.direct", text)
    known = ScaledPlan(convolution)
    p = convolution.problem
    w = known.prepare(rng.standard_normal(p.w_shape).astype("f4"))
    bias, wanted = rng.standard_normal(p.K).astype("f4"), activation and activation_of(activation)

    def arrays(problem):
        x, _, y = problem.array_shapes
        scale = problem.N, x[1], 1, 1, LANES
        return [rng.standard_normal(shape).astype("f4") for shape in (x, scale, y, y)]

    x, scale, y, residual = arrays(p)
    added = residual if adds else None
    settings = known.bind(x, scale, w, y, bias, wanted, added).settings
    x_shape = images, p.C, 7, 61
    other = on_map(p, x_shape)
    sized = known.of_sizes(convolution.on_sizes(x_shape, other.y_shape))
    own = ScaledPlan(plan_like(Direct(), other, Constraints(), convolution))
    assert isinstance(own.plan, BlockedPlan) and sized.scratch_bytes == own.scratch_bytes
    x, scale, y, residual = arrays(other)
    added = residual if adds else None
    own.bind(x, scale, w, y, bias, wanted, added).run()
    expected, y[...] = y.copy(), np.nan
    scratch = aligned_empty(sized.scratch_bytes, np.uint8)
    places = [a.ctypes.data for a in (x, scale, *((residual,) if adds else ()))]
    sized.bound_again(settings, places, [y.ctypes.data], scratch.ctypes.data, False).run()
    assert np.array_equal(y, expected)


def test_what_is_looked_at_late_explains_itself(shipped_figures, wisdom):
    """A network on a new size: its plans tell their problems and why they were chosen when they are asked."""
    rng = np.random.default_rng(3)
    w = [rng.standard_normal(shape).astype("f4") for shape in ((64, 64, 1, 1), (64, 64, 1, 1))]
    steps = tuple(
        Convolution(f"s{i}", (name,), output, own)
        for i, (name, output, own) in enumerate((("x", "a", w[0]), ("a", "y", w[1])))
    )
    net = Network(NetworkGraph(("x",), ("y",), steps))
    net(rng.standard_normal((1, 64, 24, 24)).astype("f4"))  # by which other sizes are bound
    x = rng.standard_normal((1, 64, 24, 29)).astype("f4")
    y = net(x)
    planned = net.plans()[-1].planned
    plans = [s.plan for s in planned.steps if isinstance(s.step, Convolution)]
    late = [plan for plan in plans if "problem" not in plan.__dict__]
    assert late or not any(isinstance(plan, BlockedPlan) for plan in plans)
    assert str(net.explain((1, 64, 24, 29)))
    for plan in plans:
        assert plan.problem.x_shape == (1, 64, 24, 29) and plan.algorithm in plan.explain()
    assert all("problem" in plan.__dict__ for plan in late)
    assert np.array_equal(net(x), y)
