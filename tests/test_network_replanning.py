"""New shapes of a network's inputs: planned from what it has, with the answers of a plan of their own."""

import gc
import itertools
import math
import operator
import threading
import weakref

import numpy as np
import pytest
from helpers import check
from test_blocked_direct import LAYERS, blocked

import convalgos as ca
from convalgos.core.epilogue import RELU, activation_of
from convalgos.core.layouts import blocked_layout
from convalgos.core.machine import vector_bytes
from convalgos.cpu.direct import Direct
from convalgos.cpu.runtime.plan import KernelPlan
from convalgos.cpu.separable.plan import SeparablePlan
from convalgos.network import arena, batch_parts
from convalgos.network import choice as choice_module
from convalgos.network.graph import (
    Concatenation,
    Convolution,
    Elementwise,
    NetworkGraph,
    Pooling,
    Transpose,
    View,
)
from convalgos.network.network import Network
from convalgos.network.packing import (
    Buffer,
    TimedBytes,
    most_alive,
    most_alive_above,
    part_stack_of,
    place_buffers,
    stack_of,
    times_of_parts,
)
from convalgos.network.planned import JoinedConvolutions, ScaledConvolution
from convalgos.network.step_options import moves_nothing
from convalgos.select import find_algorithm
from convalgos.select.choose import plan_like
from convalgos.select.constraints import Constraints

TOLERANCE = 2e-6  # of the largest: the same sums in another order


def gated_network(rng):
    """Steps of every kind that is planned for the sizes of its maps: joined, scaled, side by side, ..."""

    def conv(name, inputs, k, c, kernel, groups=1, activation=RELU, stride=1):
        w = rng.standard_normal((k, c // groups, kernel, kernel)).astype(np.float32)
        w /= math.sqrt(w[0].size)
        bias = rng.standard_normal(k).astype(np.float32)
        pads = ((kernel // 2,) * 2,) * 2
        return Convolution(
            name, inputs, name, w, bias, stride=(stride,) * 2, padding=pads, groups=groups,
            activation=activation,
        )  # fmt: skip

    steps = (
        conv("stem", ("x",), 32, 3, 3, stride=2),
        conv("wide", ("stem",), 96, 32, 1),
        conv("deep", ("wide",), 96, 96, 5, 96),
        conv("out", ("deep", "stem"), 32, 96, 1, activation=None),
        conv("mixed", ("out",), 64, 32, 1),
        conv("filtered", ("mixed",), 64, 64, 3, 64),
        Pooling("mean", ("filtered",), "mean", "mean"),
        conv("gate", ("mean",), 64, 64, 1, activation=activation_of("sigmoid")),
        Elementwise("scaled", ("filtered", "gate"), "scaled", "multiply"),
        conv("narrow", ("scaled",), 32, 64, 1, activation=None),
        conv("square", ("narrow",), 32, 32, 3, stride=2),
        Pooling("pooled", ("narrow",), "pooled", "max", (3, 3), (2, 2), ((1, 1), (1, 1))),
        Concatenation("both", ("square", "pooled"), "both"),
        conv("y", ("both",), 20, 64, 1),
        Pooling("means", ("both",), "means", "mean"),
        View("flat", ("means",), "flat", (0, -1)),
    )
    return NetworkGraph(("x",), ("y", "flat"), steps)


def same(found, expected):
    for y, right in zip(found, expected, strict=True):
        assert y.shape == right.shape and np.abs(y - right).max() <= TOLERANCE * np.abs(right).max()


def poison(net):
    """NaN in what the network computes in."""
    for memory in net._memories.free:
        memory.bytes.fill(255)


def test_new_shapes_take_the_steps_and_filters_that_are_there(shipped_figures, monkeypatch):
    rng = np.random.default_rng(1)
    graph = gated_network(rng)
    net = Network(graph)
    first = net.plan((1, 3, 40, 56))
    kinds = {type(planned_step.step) for planned_step in first.planned.steps}
    assert {JoinedConvolutions, ScaledConvolution, Convolution, Pooling, Concatenation} <= kinds
    assert {bool(s.step.mean) for s in first.planned.steps if isinstance(s.step, JoinedConvolutions)} == {
        True, False,
    }  # fmt: skip
    prepared = {id(w) for w in first.filters.values()}
    shapes = [(1, 3, 40, 57), (1, 3, 33, 91), (2, 3, 41, 40), (1, 3, 64, 64), (1, 3, 11, 13), (1, 3, 97, 130)]
    for shape in shapes:
        x = rng.standard_normal(shape).astype(np.float32)
        expected = Network(graph)(x)
        with monkeypatch.context() as patch:
            patch.setattr(choice_module, "planned_by", None)  # nothing is searched for
            same(net(x), expected)
        poison(net)
        same(net(x), expected)
        plan = net.plans()[-1]
        assert [s.step for s in plan.planned.steps] == [s.step for s in first.planned.steps]
        assert {id(w) for w in plan.filters.values()} == prepared
        assert 0 < plan.planned.seconds == pytest.approx(plan.choice.seconds, rel=0.5)
        assert str(plan.explain())


def test_any_sizes_give_what_a_plan_of_their_own_gives(shipped_figures):
    """Small maps, other batches, rows of no whole vectors; some go on where another kernel serves."""
    rng = np.random.default_rng(5)
    graph = gated_network(rng)
    net = Network(graph)
    net.plan((1, 3, 40, 56))
    sizes = [(5, 1, 6), (1, 3, 1), (1, 2, 9), (3, 22, 66), (2, 38, 6), (1, 53, 36), (1, 5, 150), (1, 41, 16)]
    for n, h, w in sizes:
        x = rng.standard_normal((n, 3, h, w)).astype(np.float32)
        poison(net)
        y = net(x)
        same(y, Network(graph)(x))
        poison(net)
        assert all(map(np.array_equal, net(x), y))
        assert graph.shapes_of({"x": x.shape}).items() <= net.plans()[-1].planned.shapes.items()


def test_sizes_that_several_threads_bring_in_any_order(shipped_figures):
    """Bit for bit what one thread gets in another order, whatever was planned before, or is beside it."""
    rng = np.random.default_rng(12)
    graph = gated_network(rng)
    sizes = [(1, 3, 24, int(width)) for width in rng.choice(np.arange(8, 400), 24, replace=False)]
    sizes += [(2, 3, 19, 33), (1, 3, 7, 90), (3, 3, 24, 120)]
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in sizes]
    net, other = Network(graph), Network(graph)
    for each in (net, other):
        each.plan((1, 3, 24, 56))
    expected = [net(x) for x in arrays]
    found = {}

    def work(seed):
        for i in np.random.default_rng(seed).permutation(len(arrays)):
            found[seed, i] = other(arrays[i])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3 * len(arrays)
    for (_, i), y in found.items():
        assert all(map(np.array_equal, y, expected[i])), sizes[i]


def test_plans_of_layers_serve_further_shapes(shipped_figures, monkeypatch):
    """Layers that are alike in two shapes are planned once; what is cut for more work serves its like."""
    rng = np.random.default_rng(9)
    graph = gated_network(rng)
    net = Network(graph)
    known = net.plan((1, 3, 40, 56)).planned
    plans = []
    for width in (301, 302, 301):
        x = rng.standard_normal((1, 3, 40, width)).astype(np.float32)
        same(net(x), Network(graph)(x))
        plans.append([s.plan for s in net.plans()[-1].planned.steps])
    alike = [a is b for a, b in zip(*plans[:2], strict=True)]
    assert any(alike) and not all(alike) and all(map(operator.is_, plans[0], plans[2]))
    others = [found for key, found in known.made_like.items() if len(key) == 1]
    assert others and {len(found) for found in others} == {2}, "the known plan, and that of 301"
    monkeypatch.setattr("convalgos.network.layers_on_sizes.MADE", 3)
    for width in (90, 91, 93, 95):
        x = rng.standard_normal((1, 3, 40, width)).astype(np.float32)
        same(net(x), Network(graph)(x))
        assert len(known.made_like) <= 4


@pytest.mark.parametrize(
    ("order", "reads", "writes", "nothing"),
    [
        ((0, 2, 1), "channels_first", "channels_last", True),
        ((0, 2, 1), "channels_last", "channels_first", True),  # the same order moves channels both ways
        ((0, 2, 1), "channels_first", "channels_first", False),
        ((0, 2, 3, 1), "channels_last", "channels_first", True),
        ((0, 2, 3, 1), "channels_first", "channels_last", False),
        ((0, 3, 1, 2), "channels_first", "channels_last", True),
        ((0, 3, 1, 2), "channels_last", "channels_first", False),
    ],
)
def test_transposes_that_move_nothing(order, reads, writes, nothing):
    x = (6, 49, 96, 5)[: len(order)]
    shapes = {"x": x, "y": tuple(x[axis] for axis in order)}
    assert moves_nothing(Transpose("t", ("x",), "y", order), reads, writes, shapes) is nothing


def test_values_share_memory_as_in_the_known_plan(shipped_figures, monkeypatch):
    """In maps of other sizes those that live at one time lie apart, too; with images it is found anew."""
    graph = gated_network(np.random.default_rng(8))
    net = Network(graph)
    first = net.plan((1, 3, 40, 56)).planned
    for shape in ((1, 3, 33, 91), (1, 3, 200, 24), (1, 3, 11, 13)):
        net(np.zeros(shape, np.float32))
        own = arena.with_places(net.plans()[-1].planned, graph)
        with monkeypatch.context() as patch:
            patch.setattr(arena, "found_sharing", None)  # nobody asks again who may share
            planned = arena.with_places(own, graph, first)
        assert planned.sharing.where == first.sharing.where
        assert planned.arena_bytes <= 1.06 * own.arena_bytes * first.arena_bytes / first.sharing.least
        lives = [
            TimedBytes(planned.places[root] + part.begin, planned.places[root] + part.end, *part[2:])
            for root in planned.sharing.times
            for part in arena._buffer(planned, planned.sharing, root).parts
        ]
        for a, b in itertools.combinations(lives, 2):
            assert a.end <= b.begin or b.end <= a.begin or a.last < b.first or b.last < a.first
        assert max(part.end for part in lives) <= planned.arena_bytes
    net(np.zeros((2, 3, 40, 56), np.float32))
    images = net.plans()[-1].planned
    assert len(images.steps) == len(first.steps) and not arena._still_shares(images, first, first.sharing)


def test_filters_in_another_order_are_not_taken():
    """Of one algorithm, for maps in different layouts."""
    problem = ca.ConvProblem((1, 3, 9, 20), (8, 3, 3, 3), padding=1)
    blocks = blocked_layout(vector_bytes() // 4)
    layouts = ("channels_last", "channels_last"), ("channels_first", blocks)
    keys = {Direct().plan(problem.with_valid(layout=x, y_layout=y))._key for x, y in layouts}
    assert len(keys) == len(layouts)


def test_what_a_plan_does_not_fit_is_planned_anew(shipped_figures):
    """A mean that was one of whole maps, and maps of one pixel."""
    rng = np.random.default_rng(2)
    graph = gated_network(rng)
    mean = Pooling("mean", ("filtered",), "mean", "mean", (20, 28), (1, 1), ((0, 0), (0, 0)))
    steps = tuple(mean if step.name == "mean" else step for step in graph.steps)
    for fixed, shape in ((NetworkGraph(("x",), ("y",), steps), (1, 3, 41, 57)), (graph, (1, 3, 1, 1))):
        net = Network(fixed)
        net.plan((1, 3, 40, 56))
        x = rng.standard_normal(shape).astype(np.float32)
        if fixed is graph:
            same(net(x), Network(fixed)(x))
        else:  # means of 20 x 28 of 21 x 29 pixels
            with pytest.raises(ValueError, match="scaled"):
                net(x)


def test_threads_come_with_new_shapes_at_once():
    rng = np.random.default_rng(3)
    graph = gated_network(rng)
    net = Network(graph)
    net.plan((1, 3, 40, 56))
    arrays = [rng.standard_normal((1, 3, 40, 30 + 3 * i)).astype(np.float32) for i in range(6)]
    expected = [Network(graph)(x) for x in arrays]
    failed = []

    def work(turn):
        try:
            for i in (0, 1, 2, 3, 4, 5, 0, 3):
                k = (i + 3 * turn) % 6
                same(net(arrays[k]), expected[k])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(turn,)) for turn in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_plans_of_other_shapes_are_saved(tmp_path, shipped_figures):
    rng = np.random.default_rng(4)
    net = Network(gated_network(rng))
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((1, 3, 40, 56), (1, 3, 97, 130))]
    expected = [net(x) for x in arrays]
    net.save(tmp_path / "net")
    again = ca.network.load(tmp_path / "net")
    for x, right in zip(arrays, expected, strict=True):
        same(again(x), right)
    same(again(np.ascontiguousarray(arrays[1][..., 7:])), net(np.ascontiguousarray(arrays[1][..., 7:])))


class LikeAnother(Direct):
    """Cut as for maps of another size."""

    def plan(self, problem):
        other = problem.replace(x_shape=(1, problem.C, *(24 + size for size in problem.spatial)))
        known = Direct().plan(other)
        plan = Direct().plan_like(problem, known)
        assert plan._key == known._key
        return plan


@pytest.mark.parametrize("text", LAYERS)
def test_direct_in_blocks_is_cut_like_other_sizes(text):
    check(LikeAnother(), blocked(text))


def test_plans_that_others_are_made_like_stay(monkeypatch):
    net = Network(gated_network(np.random.default_rng(3)))
    steps = len(net.plan((1, 3, 32, 30)).planned.steps)
    monkeypatch.setattr("convalgos.network.recent_plans.STEPS", 3 * steps)
    for size in (32, 33, 34, 35, 32, 36):
        net(np.zeros((1, 3, size, 30), np.float32))
    heights = [plan.planned.shapes["x"][2] for plan in net.plans()]
    assert heights == [35, 32, 36], "of other shapes those that came last, and the first"
    assert [plan.choice.of_other_shapes for plan in net.plans()] == [True, False, True]


def test_plans_that_are_let_go_of_are_gone_at_once(monkeypatch):
    monkeypatch.setattr("convalgos.network.recent_plans.STEPS", 1)
    net = Network(gated_network(np.random.default_rng(3)))
    gc.disable()
    try:
        net(np.zeros((1, 3, 32, 30), np.float32))
        executor = weakref.ref(net.plans()[0]._executor)
        net(np.zeros((2, 3, 40, 30), np.float32))
        assert executor() is None, "no cycle of references waits for the collector"
    finally:
        gc.enable()


def test_sizes_that_are_told_ahead_are_bound_to_memory(monkeypatch):
    """The first run is like any other, where the largest is told first; that in parts of a batch, too."""
    rng = np.random.default_rng(8)
    graph = gated_network(rng)
    net, parted = Network(graph), Network(graph)
    shapes = [(1, 3, 64, 50), (1, 3, 40, 56), (1, 3, 33, 41)]
    xs = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    known = [Network(graph)(x) for x in xs]
    for shape in shapes:
        net.plan(shape)
    monkeypatch.setattr(batch_parts, "GAIN", -math.inf)
    monkeypatch.setattr(batch_parts, "_images_of_part", lambda *_: 2)
    monkeypatch.setattr(batch_parts._Seconds, "gained", lambda _, of_all, of_part: of_all)
    parted.plan((6, 3, 40, 56))
    assert parted.plans()[0].parts is not None
    monkeypatch.setattr("convalgos.network.context.Context.__init__", None)  # nothing is bound from here on
    for x, expected in zip(xs, known, strict=True):
        same(net(x), expected)
    same([y[5:] for y in parted(np.repeat(xs[1], 6, axis=0))], known[1])


def test_sizes_at_which_all_taps_read_padding():
    """A plan of products is not like one of none."""
    algorithm, known = find_algorithm("cpu.depthwise.channels"), None
    w, bias = np.ones((32, 1, 1, 1), np.float32), np.full(32, 2, np.float32)
    for height, sums in ((7, (2, 3, 3)), (1, (2,)), (4, (2, 3))):
        problem = ca.ConvProblem(
            (1, 32, height, 4), w.shape, padding=((1, 0), (0, 0)), stride=(3, 1), groups=32,
            y_layout=blocked_layout(vector_bytes() // 4),
        )  # fmt: skip
        known = plan_like(algorithm, problem, Constraints(), known or algorithm.plan(problem))
        y = known(np.ones(problem.x_shape, np.float32), known.prepare(w), bias=bias)
        assert np.array_equal(y[0, 0, :, 0, 0], sums)


def test_numbers_that_scale_maps_may_be_an_output(shipped_figures):
    """They lie elsewhere in each run, which kernels that scale what they read are not told."""
    rng = np.random.default_rng(6)
    graph = gated_network(rng)
    x = rng.standard_normal((1, 3, 40, 56)).astype(np.float32)
    y, gate = Network(NetworkGraph(("x",), ("y", "gate"), graph.steps))(x)
    same([y], Network(graph)(x)[:1])
    assert gate.shape == (1, 64, 1, 1)


def test_forms_of_direct_sums_without_borders_are_not_taken():
    """Of few outputs, that of a known plan for more images has borders of its own."""
    layouts = {"layout": "channels_first", "y_layout": "channels_last"}
    alike = [
        ca.ConvProblem((n, 17, 6), (17, 17, 3), stride=2, padding=1, boundary="wrap", **layouts)
        for n in (4, 3, 1)
    ]
    known = ca.plan(alike[0], algorithm="cpu.direct")
    assert plan_like(Direct(), alike[1], Constraints(), known).algorithm == "cpu.direct"
    with pytest.raises(ca.Unsupported, match="wrap border"):
        plan_like(Direct(), alike[2], Constraints(), known)


@pytest.mark.parametrize(
    ("name", "text", "sizes"),
    [
        ("cpu.direct", "n1 c5 h9 w30 k20 r3 s3 p1 stride2", (9, 47)),
        ("cpu.direct", "n2 c7 h12 w31 k40 r3 s3 p1 channels_last", (13, 20)),
        ("cpu.direct", "n1 c8 h6 w50 k24 r1 s1", (6, 77)),
        ("cpu.depthwise.channels", "n1 c48 h24 w80 k48 r5 s5 p2 groups48 channels_last", (31, 97)),
        ("cpu.depthwise.channels", "n1 c32 d5 h6 w40 k32 t3 r3 s3 p1 stride2,2,1 groups32", (6, 9, 61)),
        ("cpu.depthwise.channels", "n1 c48 h24 w80 k48 r5 s5 p2 groups48 blocked", (31, 97)),
        ("cpu.depthwise.channels", "n1 c40 h12 w80 k40 r3 s3 p1 groups40 stride2 blocked", (13, 61)),
        ("cpu.depthwise.channels", "n1 c32 d5 h6 w40 k32 t3 r3 s3 p1 groups32 blocked", (6, 9, 61)),
        ("cpu.depthwise.channels", "n1 c32 h12 w40 k32 r7 s7 p3 groups32 blocked", (3, 61)),
        ("cpu.depthwise.channels", "n1 c40 h12 w40 k80 r3 s3 p1 groups40 blocked", (9, 61)),
    ],
)
def test_what_is_made_like_another_plan_is_that_of_its_own_sizes(name, text, sizes):
    """Every field of the record, and what the tables hold that it points to."""
    text = text.replace("blocked", blocked_layout(vector_bytes() // 4))
    known, algorithm = ca.plan(ca.ConvProblem.parse(text), algorithm=name), find_algorithm(name)
    problem = known.problem.replace(x_shape=(*known.problem.x_shape[:2], *sizes))
    like, own = plan_like(algorithm, problem, Constraints(), known), algorithm.plan(problem)
    assert like._key is known._key and like._key == own._key and like.scratch_bytes == own.scratch_bytes
    assert like._tables.keys() == own._tables.keys() and like.strided_batch == own.strided_batch
    pointers = {"bounds", *own._tables}
    for field in own.record.dtype.names:
        if field not in pointers:
            assert like.record[field] == own.record[field], field
    for field, table in own._tables.items():
        assert np.array_equal(like._tables[field], table), field


def test_layers_are_bound_again_for_other_sizes(monkeypatch):
    """By what their first run was bound by, and with the answers of plans that were made alone."""
    rng = np.random.default_rng(25)
    graph = gated_network(rng)
    net, asked, given = Network(graph), [], []
    for kind in (KernelPlan, SeparablePlan):
        bound_again = kind.bound_again

        def watched(self, *arguments, bound_again=bound_again):
            found = bound_again(self, *arguments)
            asked.append(type(self))
            given.append(found)
            return found

        monkeypatch.setattr(kind, "bound_again", watched)
    for shape in ((1, 3, 40, 56), (1, 3, 33, 47), (2, 3, 40, 40), (1, 3, 33, 47), (1, 3, 25, 61)):
        x = rng.standard_normal(shape).astype(np.float32)
        alone = Network(graph)(x)
        for _ in range(2):
            same(net(x), alone)
    bound = {kind for kind, run in zip(asked, given, strict=True) if run is not None}
    assert bound, "plans for further shapes are bound by what the first was"
    structures = {id(plan._executor.structure) for plan in net.plans() if plan.planned.shapes["x"][0] == 1}
    assert len(structures) == 1


def test_buffers_lie_upon_each_other_as_before():
    rng = np.random.default_rng(26)
    for _ in range(200):
        count = int(rng.integers(1, 12))
        spans = [tuple(sorted(map(int, rng.integers(0, 9, 2)))) for _ in range(count)]
        buffers = [Buffer(int(64 * rng.integers(1, 9)), *span) for span in spans]
        known, _, _ = place_buffers(buffers)
        stack = stack_of(spans, known)
        sizes = [int(64 * rng.integers(0, 20)) for _ in spans]
        others = [Buffer(size, *span) for size, span in zip(sizes, spans, strict=True)]
        assert stack.most_alive(sizes) == most_alive(others)
        places, end = stack.placed(sizes, [128] * count)
        assert end == max(map(int.__add__, places, sizes)) and min(places) == 128
        for i, a in enumerate(others):
            for j, b in enumerate(others[:i]):
                if a.first <= b.last and b.first <= a.last:
                    apart = places[i] + a.nbytes <= places[j] or places[j] + b.nbytes <= places[i]
                    assert apart
        again, total = stack.placed([b.nbytes for b in buffers], [0] * count)
        assert total <= max(p + b.nbytes for p, b in zip(known, buffers, strict=True))
        assert all(new <= old for new, old in zip(again, known, strict=True))


def random_parts(rng, times):
    """A buffer whose parts, of any sizes, are in use at these times."""
    ends = np.cumsum([0, *(64 * rng.integers(1, 9, len(times)))]).tolist()
    parts = [TimedBytes(*edges, *span) for edges, span in zip(itertools.pairwise(ends), times, strict=True)]
    spans = np.array(times)
    return Buffer(ends[-1], int(spans.min()), int(spans.max()), tuple(parts) if len(parts) > 1 else ())


def test_parts_of_buffers_lie_upon_each_other_as_before():
    rng, fitted = np.random.default_rng(31), 0
    for _ in range(300):
        spans = [
            [tuple(sorted(map(int, rng.integers(0, 9, 2)))) for _ in range(rng.integers(1, 4))]
            for _ in range(rng.integers(1, 9))
        ]
        buffers = [random_parts(rng, times) for times in spans]
        known, total, _ = place_buffers(buffers)
        stack = part_stack_of(buffers, known)
        again = stack.placed(buffers, [0] * len(buffers))
        assert again is None or again[1] <= total
        others, begins = [random_parts(rng, times) for times in spans], [64] * len(spans)
        assert times_of_parts(others) == stack.times
        if (found := stack.placed(others, begins)) is None:
            continue
        fitted += 1
        places, end = found
        assert end == max(p + b.nbytes for p, b in zip(places, others, strict=True)) and min(places) >= 64
        for (i, a), (j, b) in itertools.combinations(enumerate(others), 2):
            for own, other in itertools.product(a.parts, b.parts):
                if own.first <= other.last and other.first <= own.last:
                    apart = places[i] + own.end <= places[j] + other.begin
                    assert apart or places[j] + other.end <= places[i] + own.begin
    assert fitted > 100


def test_buffers_above_the_scratch_of_their_steps():
    rng = np.random.default_rng(28)
    for _ in range(100):
        count = int(rng.integers(1, 12))
        spans = [tuple(sorted(map(int, rng.integers(0, 9, 2)))) for _ in range(count)]
        below = [int(64 * rng.integers(0, 5)) for _ in range(9)]
        buffers = [Buffer(int(64 * rng.integers(1, 9)), *span) for span in spans]
        scratches = [Buffer(nbytes, i, i) for i, nbytes in enumerate(below) if nbytes]
        sizes = [buffer.nbytes for buffer in buffers]
        assert most_alive_above(spans, sizes, below) == most_alive([*buffers, *scratches])
        known, total, _ = place_buffers(buffers, scratches)
        begins = [max(below[first : last + 1]) for first, last in spans]
        places, end = stack_of(spans, known).placed(sizes, begins)
        assert end <= total and all(map(int.__ge__, places, begins))


def test_steps_are_known_by_the_shapes_of_their_inputs(monkeypatch):
    monkeypatch.setattr("convalgos.network.replanning.LIKE", 5)
    rng = np.random.default_rng(27)
    graph = gated_network(rng)
    net = Network(graph)
    for size in (40, 39, 41, 40, 38):
        for other in (30, 29):
            x = rng.standard_normal((1, 3, size, other)).astype(np.float32)
            same(net(x), Network(graph)(x))
            assert max(len(plan.planned.steps_like) for plan in net.plans()) <= 5


@pytest.mark.parametrize("kernels", [(1, 3), (3, 5), (5, 3, 1)])
def test_layers_that_are_the_same_on_maps_of_one_pixel_only(kernels):
    rng = np.random.default_rng(8)
    filters = [rng.standard_normal((8, 8, size, size)).astype(np.float32) for size in kernels]
    layers = [
        Convolution(f"{i}", ("x",), f"y{i}", w, padding=((len(w[0, 0]) // 2,) * 2,) * 2)
        for i, w in enumerate(filters)
    ]
    graph = NetworkGraph(("x",), tuple(step.output for step in layers), tuple(layers))
    known = Network(graph)
    for shape in ((2, 8, 1, 1), (3, 8, 9, 2), (1, 8, 1, 5), (1, 8, 7, 6)):
        x = rng.standard_normal(shape).astype(np.float32)
        for y, w in zip(known(x), filters, strict=True):
            expected = ca.conv(x, w, padding=len(w[0, 0]) // 2)
            np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
