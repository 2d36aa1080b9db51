"""Depthwise convolutions joined with the pointwise ones around them, band by band."""

import gc
import math
import weakref
from dataclasses import replace

import numpy as np
import pytest

import convalgos as ca
from convalgos.core import profiles
from convalgos.core.allocator import aligned_empty
from convalgos.core.epilogue import RELU, Activation, activation_of
from convalgos.core.errors import Unsupported
from convalgos.core.layouts import blocked_layout, laid, to_logical
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import dealt_panels
from convalgos.cpu.separable import plan as separable_plan
from convalgos.cpu.separable.band_cut import FILTER, band_cut
from convalgos.cpu.separable.block import SeparableBlock
from convalgos.cpu.separable.plan import SeparablePlan
from convalgos.cpu.separable.run_outputs import BiasedActivation
from convalgos.cpu.vectors import simd
from convalgos.network import choice, joining
from convalgos.network.graph import Convolution, NetworkGraph, Pooling
from convalgos.network.network import Network
from convalgos.network.planned import JoinedConvolutions

LANES = simd.lanes(4)
PLAIN = {"layout": "channels_first", "y_layout": "channels_first"}
LAYOUTS = {"layout": blocked_layout(LANES), "y_layout": blocked_layout(LANES)}


SCALED = Activation("hard_swish", -0.5, 0.25)


def block_of(n, c, hidden, k, size, kernel, stride, planes=None):
    """c or k 0: no expansion, or no projection.

    planes: the kernel, stride and padding of an expansion that reads planes, and their height and width.
    """
    deep = ConvProblem(
        (n, hidden, *size), (hidden, 1, kernel, kernel), stride, kernel // 2, groups=hidden, **LAYOUTS
    )
    expansion = ConvProblem((n, c, *size), (hidden, c, 1, 1), **LAYOUTS) if c else None
    if planes:
        of_planes, step, padding, whole = planes
        to_blocks = {**LAYOUTS, "layout": "channels_first"}
        expansion = ConvProblem((n, c, *whole), (hidden, c, *of_planes), step, padding, **to_blocks)
        assert expansion.y_shape == deep.x_shape
    return SeparableBlock(
        expansion, deep, ConvProblem(deep.y_shape, (k, hidden, 1, 1), **LAYOUTS) if k else None
    )


def blocks_of(array, beyond=np.nan):
    """In blocks of channels, with what nobody may read in the lanes beyond the last channel."""
    found = np.ascontiguousarray(laid(array, LAYOUTS["layout"]))
    if array.shape[1] % LANES:
        found[:, -1, ..., array.shape[1] % LANES :] = beyond
    return found


def planes_of(sizes):
    """Whether x lies in planes, of the sizes of a block."""
    return len(sizes) > 7


def integers(rng, shape):
    return rng.integers(-3, 4, shape).astype(np.float32)


@pytest.mark.parametrize(
    "sizes, bands, parts, activation",
    [
        ((2, 5, 3 * LANES + 2, 9, (7, 19), 3, 1), 3, 1, ("clip", 0.0, 6.0)),  # filters and channels cut short
        ((1, LANES, 2 * LANES, 2 * LANES, (9, 10), 5, 2), 2, 1, "relu"),
        ((3, 0, LANES + 1, 20, (5, 8), 3, 1), 5, 1, "relu"),  # a row to each band
        ((1, 7, LANES + 4, 0, (6, 11), 7, 1), 2, 1, SCALED),  # which is applied to what is stored
        ((2, 9, 5 * LANES - 1, 0, (6, 11), 3, 1), 3, 2, "relu"),  # channels shared, too
        ((2, 0, 5 * LANES - 1, 0, (6, 11), 3, 2), 2, 3, "relu"),  # for the mean alone
        # a first layer, in one panel and in two, with uneven and without any padding, and for the mean
        ((2, 3, 2 * LANES, LANES + 3, (9, 33), 3, 1, ((3, 3), 2, 1, (17, 65))), 4, 1, ("clip", 0.0, 6.0)),
        ((1, 4, 3 * LANES + 2, 7, (8, 5), 5, 2, ((7, 5), (1, 3), ((4, 2), (0, 1)), (8, 16))), 3, 1, "relu"),
        ((3, 1, LANES, 9, (7, 20), 3, 1, ((2, 3), 1, 0, (8, 22))), 7, 1, SCALED),
        ((1, 3, LANES + 5, 0, (6, 31), 3, 1, ((3, 3), 2, 1, (12, 62))), 2, 1, "relu"),
    ],
    ids=str,
)
def test_bands_give_what_the_convolutions_give_one_by_one(monkeypatch, sizes, bands, parts, activation):
    rng, block = np.random.default_rng(0), block_of(*sizes)
    cut = replace(band_cut(block), bands=bands, parts=parts)
    monkeypatch.setattr(separable_plan, "band_cut", lambda block: cut)
    plan = SeparablePlan(block, mean=not block.projection)
    first, last = block.problems[0], block.problems[-1]
    filters = [integers(rng, p.w_shape) for p in block.problems]
    outputs = [BiasedActivation(integers(rng, (p.K,)), activation_of(activation)) for p in block.problems]
    wide = integers(rng, first.x_shape)
    x, right = wide if planes_of(sizes) else blocks_of(wide), wide
    residual = integers(rng, last.y_shape) if block.projection else None
    for problem, w, output in zip(block.problems, filters, outputs, strict=True):
        plain = ca.plan(problem.with_valid(**PLAIN), algorithm="cpu.reference")
        added = residual if problem is last else None
        right = plain(right, w, bias=output.bias, activation=output.activation, residual=added)
    y = np.full(last.array_shapes[2], np.nan, np.float32)
    added = None if residual is None else blocks_of(residual)
    scratch = aligned_empty(plan.scratch_bytes, np.uint8)
    scratch[:] = 255  # NaN, which must be written before it is read
    mean = None if block.projection else np.full((*y.shape[:2], 1, 1, LANES), np.nan, np.float32)
    run = plan.bind(x, plan.prepare(filters), y, outputs, added, scratch, mean)
    for _ in range(2):
        run.run()
        off = np.abs(to_logical(y, LAYOUTS["y_layout"], last.K) - right).max()
        assert off <= (1e-6 * np.abs(right).max() if activation == SCALED else 0)  # it is not exact
        if mean is not None:
            found, wanted = to_logical(mean, LAYOUTS["y_layout"], last.K), right.mean((2, 3), keepdims=True)
            assert np.allclose(found, wanted, rtol=1e-5, atol=1e-5 * np.abs(right).max())


@pytest.mark.parametrize(
    "sizes, other, row, activation",
    [
        ((2, 5, 3 * LANES + 2, 9, (7, 19), 3, 1), (12, 70), 1, "relu"),
        ((1, LANES, 2 * LANES, 2 * LANES, (9, 10), 5, 2), (40, 7), 3, ("clip", 0.0, 6.0)),
        ((3, 0, LANES + 1, 20, (5, 8), 3, 1), (5, 3), 1, "silu"),
        ((1, 7, LANES + 4, 0, (6, 40), 7, 1), (11, 41), 1, SCALED),  # of tables that say what each tap meets
        ((2, 0, 5 * LANES - 1, 0, (6, 31), 3, 2), (9, 300), 2, "relu"),  # for the mean alone
        ((1, 3, 2 * LANES, 9, (6, 31), 3, 1, ((3, 3), 2, 1, (12, 62))), (9, 300, 17, 599), 1, "relu"),
    ],
    ids=str,
)
def test_a_plan_like_another_runs_as_one_of_its_own_sizes(sizes, other, row, activation):
    """Bound anew, and from a run on other maps, whose residual comes from another row."""
    rng, known_block = np.random.default_rng(row), block_of(*sizes)
    block = block_of(*sizes[:4], other[:2], *sizes[5:7], sizes[7:] and (*sizes[7][:3], other[2:]))
    mean = not block.projection
    known, own = SeparablePlan(known_block, mean), SeparablePlan(block, mean)
    like = known.on_map(block.problems[0].x_shape)
    first, last = block.problems[0], block.problems[-1]
    filters = [integers(rng, p.w_shape) for p in block.problems]
    outputs = [BiasedActivation(integers(rng, (p.K,)), activation_of(activation)) for p in block.problems]
    w = known.prepare(filters)

    def run_of(plan, from_known):
        problems = plan.block.problems
        x, y = (np.zeros(problems[i].array_shapes[2 * -i], np.float32) for i in (0, -1))
        laid_x = maps if planes_of(sizes) else blocks_of(maps, 0)
        x[...], added = laid_x if plan is not known else 0, None
        if block.projection:
            added = blocks_of(residual, 0) if plan is not known else np.zeros_like(y)
        means = np.zeros((*y.shape[:2], 1, 1, LANES), np.float32) if mean else None
        if not from_known:
            run = plan.bind(x, plan.prepare(filters), y, outputs, added, None, means)
            return run, y, means
        settings = known.bind(*known_arrays, w, *known_target, outputs).settings
        scratch = aligned_empty(plan.scratch_bytes, np.uint8)
        places = [[a.ctypes.data for a in pair if a is not None] for pair in ((x, added), (y, means))]
        run = plan.bound_again(settings, *places, scratch.ctypes.data, False)
        kept.extend((x, added, scratch))
        return run, y, means

    maps, residual, kept = integers(rng, first.x_shape), integers(rng, last.y_shape), []
    known_arrays = [np.zeros(known_block.problems[0].array_shapes[0], np.float32)]
    known_target = [np.zeros(known_block.problems[-1].array_shapes[2], np.float32)]
    answers = []
    for plan, from_known in ((own, False), (like, False), (like, True)):
        run, *found = run_of(plan, from_known)
        run.run()
        answers.append([None if a is None else to_logical(a, LAYOUTS["y_layout"], last.K) for a in found])
    for y, means in answers[1:]:
        assert np.array_equal(y, answers[0][0]) and np.any(y)
        assert not mean or np.allclose(means, answers[0][1], rtol=1e-5, atol=1e-5 * np.abs(y).max())


def test_filters_are_held_by_their_runs_only():
    """A plan serves several layers, and their filters may be replaced."""
    rng, plan = np.random.default_rng(0), SeparablePlan(block := block_of(1, 8, 32, 8, (6, 6), 3, 1))
    x, y = (np.zeros(block.problems[i].array_shapes[2 * -i], np.float32) for i in (0, -1))
    w = plan.prepare([integers(rng, p.w_shape) for p in block.problems])
    outputs = [BiasedActivation(integers(rng, (p.K,))) for p in block.problems]
    runs, held = [plan.bind(x, w, y, outputs)], [weakref.ref(array) for array in w.data]
    runs.append(plan.bound_again(runs[0].settings, [0], [0], 0, False))
    del w
    gc.collect()
    assert all(each() is not None for each in held) and None not in runs
    runs.clear()
    gc.collect()
    assert all(each() is None for each in held)


def test_other_convolutions_are_not_joined():
    block = block_of(1, 8, 32, 8, (6, 6), 3, 1)
    strided = ConvProblem((1, 8, 12, 12), (32, 8, 1, 1), 2, **LAYOUTS)
    grouped = ConvProblem((1, 32, 6, 6), (32, 2, 3, 3), 1, 1, groups=16, **LAYOUTS)
    plain = block.depthwise.with_valid(**PLAIN)
    for other in (
        block._replace(expansion=strided), block._replace(depthwise=grouped),
        block._replace(depthwise=plain), block._replace(expansion=None, projection=None),
    ):  # fmt: skip
        with pytest.raises(Unsupported):
            SeparablePlan(other)


def inverted_residual(name, rng, x, channels, hidden, size=3, activation="relu"):
    """Steps from x to what is added to it."""

    def step(part, inputs, shape, groups=1, active=activation):
        w = rng.standard_normal(shape).astype(np.float32) / math.prod(shape[1:])
        bias = rng.standard_normal(shape[0]).astype(np.float32)
        return Convolution(
            f"{name}.{part}", inputs, f"{name}.{part}", w, bias, padding=((shape[2] // 2,) * 2,) * 2,
            groups=groups, activation=active and activation_of(active),
        )  # fmt: skip

    return [
        step("wide", (x,), (hidden, channels, 1, 1)),
        step("deep", (f"{name}.wide",), (hidden, 1, size, size), hidden),
        step("out", (f"{name}.deep", x), (channels, hidden, 1, 1), 1, None),
    ]


def test_a_network_joins_what_it_may_and_saves_it(tmp_path, shipped_figures):
    rng = np.random.default_rng(1)
    stem = Convolution("stem", ("x",), "a", rng.standard_normal((24, 3, 3, 3)).astype(np.float32))
    first, second = inverted_residual("b", rng, "a", 24, 64), inverted_residual("c", rng, "b.out", 24, 64)
    last = Convolution("head", ("c.out",), "y", rng.standard_normal((8, 24, 1, 1)).astype(np.float32))
    graph = NetworkGraph(("x",), ("y",), (stem, *first, *second, last), {"x": ("n", 3, 58, 58)})
    shown = replace(graph, outputs=("y", "b.deep"))  # which two steps read: its layout is changed, too
    x = rng.standard_normal((2, 3, 58, 58)).astype(np.float32)
    net, other = Network(graph), Network(shown)
    joined = [joined_parts(n.plan(x.shape)) for n in (net, other)]
    assert joined[0] == [["b.wide", "b.deep", "b.out"], ["c.wide", "c.deep", "c.out"]]
    assert joined[1] == [["b.wide", "b.deep"], ["c.wide", "c.deep", "c.out"]]
    y, right = net(x), other(x)[0]
    assert np.allclose(y, right, rtol=1e-5, atol=1e-5 * abs(right).max())
    told = next(row for row in net.explain(x.shape).rows if row.what == "3 convolutions")
    shapes = [(2, c, 56, 56) for c in (24, 64, 64)]
    assert told.flops == sum(s.problem(shape).flops for s, shape in zip(first, shapes, strict=True))
    net.save(tmp_path / "net")
    again = ca.network.load(tmp_path / "net")
    assert joined_parts(again.plan(x.shape)) == joined[0] and np.array_equal(again(x), y)


@pytest.mark.parametrize("mean", [False, True])
def test_the_first_layer_joins_in_and_reads_each_input_where_it_lies(monkeypatch, mean, shipped_figures):
    """In further sizes, too, whose runs are bound again from the first."""
    rng = np.random.default_rng(5)
    filters = 2 * LANES
    w, of_head = (rng.standard_normal(s).astype(np.float32) for s in ((filters, 3, 3, 3), (8, filters, 1, 1)))
    pads = ((1, 1), (0, 1))
    stem = Convolution("stem", ("x",), "a", w, w[:, 0, 0, 0].copy(), (2, 2), pads, activation=RELU)
    _, deep, out = inverted_residual("b", rng, "a", filters, filters)
    last = Pooling("m", ("b.deep",), "m", "mean") if mean else replace(out, inputs=("b.deep",))
    head = Convolution("head", (last.output,), "y", of_head)
    graph = NetworkGraph(
        ("x",), ("y",), (stem, replace(deep, inputs=("a",)), last, head), {"x": ("n", 3, "h", "w")}
    )
    net, apart = Network(graph), Network(graph)
    for shape in ((1, 3, 130, 162), (1, 3, 130, 162), (2, 3, 131, 170), (1, 3, 64, 50)):
        x = rng.standard_normal(shape).astype(np.float32)
        y = net(x)
        assert joined_parts(net.plan(shape)) == [["stem", "b.deep"] if mean else ["stem", "b.deep", "b.out"]]
        with monkeypatch.context() as alone:
            alone.setattr(choice, "joined", lambda planned, *_: planned)
            right = apart(x)
            assert all("stem" not in parts for parts in joined_parts(apart.plan(shape)))
        assert np.allclose(y, right, rtol=1e-5, atol=1e-5 * abs(right).max())


def test_a_byte_of_filters_takes_the_same_time_where_cycles_are_twice_as_long(monkeypatch):
    block = block_of(1, 160, 960, 0, (7, 7), 3, 1)
    cut = band_cut(block)
    cycles = []
    for narrow in (False, True):
        monkeypatch.setattr(profiles, "units_are_narrow", lambda narrow=narrow: narrow)
        monkeypatch.setattr(dealt_panels, "sums_halves", bool)  # which change other cycles
        cycles.append(cut.cycles(1))
    filters = sum(p.w_bytes for p in block.problems) / cut.parts
    assert cycles[0] - cycles[1] == pytest.approx(filters * FILTER[True])


def test_depthwise_layers_of_their_own_are_joined_where_they_take_longer(monkeypatch, shipped_figures):
    """With what a step takes beyond its prediction, from nothing to a second."""
    rng = np.random.default_rng(3)
    stem = Convolution("stem", ("x",), "a", rng.standard_normal((32, 3, 3, 3)).astype(np.float32))
    *parts, _ = inverted_residual("b", rng, "a", 32, 192)
    last = Convolution("head", ("b.deep",), "y", rng.standard_normal((8, 192, 1, 1)).astype(np.float32))
    graph = NetworkGraph(("x",), ("y",), (stem, *parts, last), {"x": (1, 3, 16, 16)})
    counts = []
    monkeypatch.setattr(joining, "plan_threads", lambda: 2)
    for apart in (-1.0, 1.0):
        monkeypatch.setattr(joining, "APART", dict.fromkeys((False, True), apart))
        counts.append(sum(map(len, joined_parts(Network(graph).plan((1, 3, 16, 16))))))
    assert counts[0] == 0 < counts[1]


def test_depthwise_layers_in_a_row_are_not_taken_for_pointwise_ones(monkeypatch):
    """Layers of equal problems share one, as those of a residual block of a temporal network."""
    rng, x = np.random.default_rng(3), np.random.default_rng(4).standard_normal((2, 14, 1, 30)).astype("f4")
    weights = rng.standard_normal((3, 14, 1, 1, 4)).astype("f4")
    sizes = {"padding": ((0, 0), (3, 0)), "groups": 14}
    steps = tuple(
        Convolution(name, (read,), name, w, **sizes)
        for name, read, w in zip("abc", ("x", "a", "b"), weights, strict=True)
    )
    monkeypatch.setattr(joining, "APART", dict.fromkeys((False, True), 1.0))
    net = Network(NetworkGraph(("x",), ("c",), steps, {"x": x.shape}))
    expected = x
    for w in weights:
        expected = ca.conv(expected, w, algorithm="cpu.reference", **sizes)
    np.testing.assert_allclose(net(x), expected, rtol=1e-4, atol=1e-4)
    one = ConvProblem(x.shape, weights[0].shape, **sizes, **LAYOUTS)
    with pytest.raises(Unsupported, match="is 1x1 around"):
        SeparablePlan(SeparableBlock(None, one, one))


def joined_parts(plan):
    steps = [planned_step.step for planned_step in plan.planned.steps]
    return [[part.name for part in step.parts] for step in steps if isinstance(step, JoinedConvolutions)]
