"""How a network is planned: layouts, algorithms and memory."""

import itertools
import json
import math
import weakref
from hashlib import sha256

import numpy as np
import pytest
from random_picks import picked_at_random

import convalgos as ca
from convalgos.core.allocator import aligned_empty
from convalgos.core.epilogue import RELU
from convalgos.core.errors import Unsupported
from convalgos.core.layouts import array_shape, blocked_layout
from convalgos.cpu.backward.per_thread import SlicedPlan
from convalgos.cpu.im2col import Im2col
from convalgos.cpu.runtime.plan import KernelPlan
from convalgos.network import choice as choice_module
from convalgos.network import saved as saved_module
from convalgos.network import step_options
from convalgos.network.arena import ArenaArrays, least_arena_bytes, scratch_bytes, with_places
from convalgos.network.choice import choose_layouts, layout_problem, plan_network, planned_by, worst_error
from convalgos.network.graph import (
    ChannelSelection,
    Concatenation,
    Convolution,
    Elementwise,
    Foreign,
    NetworkGraph,
    Pooling,
    TransposedConvolution,
    Upsampling,
    View,
)
from convalgos.network.layout_choice import LayoutProblem
from convalgos.network.network import Network
from convalgos.network.network_plan import NetworkPlan
from convalgos.network.onnx_reader.graph import from_onnx
from convalgos.network.packing import Buffer, TimedBytes, most_alive, place_buffers
from convalgos.network.pbqp import Pbqp
from convalgos.network.planned import LayoutChange, PlanLimits, Planned, PlannedStep
from convalgos.network.sharing import is_view
from convalgos.network.step_options import SLACK, StepOption, StepOptions
from convalgos.select import choose

# --- partitioned Boolean quadratic problems -------------------------------------------------------


def random_pbqp(rng, nodes, density, forbidden=0.15):
    """(a problem of integer costs, the number of options of each node)."""
    problem, options = Pbqp(), rng.integers(1, 4, nodes)

    def costs(shape):
        found = rng.integers(0, 9, shape).astype(float)
        found[rng.random(shape) < forbidden] = np.inf
        return found

    for count in options:
        problem.add_node(costs(count))
    for u, v in itertools.product(range(nodes), repeat=2):  # loops and parallel edges among them
        if rng.random() < density:
            problem.add_edge(u, v, costs((options[u], options[v])))
    return problem, options


def test_small_problems_are_solved_exactly():
    rng = np.random.default_rng(3)
    for _ in range(150):
        problem, options = random_pbqp(rng, rng.integers(1, 7), rng.uniform(0, 0.6))
        found = problem.solve()
        least = min(map(problem.cost, itertools.product(*map(range, options))))
        assert found.exact
        assert found.cost == problem.cost(found.choices) == least


def test_large_problems_are_never_worse_than_what_is_known():
    rng = np.random.default_rng(4)
    problem, options = random_pbqp(rng, 40, 0.2, forbidden=0)
    known = [rng.integers(0, options) for _ in range(20)]
    quick, best = (problem.solve(branches=n) for n in (1, 50))
    assert not best.exact
    assert best.cost <= quick.cost
    assert problem.solve([best.choices], branches=1).cost <= best.cost
    assert problem.solve(known, branches=1).cost <= min(map(problem.cost, known))


# --- layouts --------------------------------------------------------------------------------------


def random_layout_problem(rng, steps):
    """(graph, options of each step by step, seconds of a change): costs are whole numbers, made up."""
    layouts = ["channels_first", "channels_last", "blocked16"][: rng.integers(2, 4)]
    values, made = ["x"], []
    for i in range(steps):
        inputs = tuple(map(str, rng.choice(values, rng.integers(1, 3))))
        made.append(Elementwise(f"step{i}", inputs, f"v{i}"))
        values.append(f"v{i}")
    graph = NetworkGraph(("x",), (values[-1], str(rng.choice(values[1:]))), tuple(made))
    options = {}
    for step in made:
        every = itertools.product(layouts, repeat=len(step.inputs) + 1)
        found = [StepOption(w[:-1], w[-1], float(rng.integers(1, 20))) for w in every if rng.random() < 0.7]
        options[step] = [*found, StepOption(("channels_first",) * len(step.inputs), "channels_first", 30.0)]
    changes = {
        (v, a, b): float(rng.integers(0, 9)) for v in values for a, b in itertools.permutations(layouts, 2)
    }
    return graph, options, lambda *change: changes[change]


def seconds_of(graph, options, conversion):
    """Of an option of each step, and a change of each value into each layout that somebody reads."""
    written = dict.fromkeys(graph.inputs, "channels_first")
    written |= {step.output: option.writes for step, option in options.items()}
    needed = {(name, "channels_first") for name in graph.outputs}
    for step, option in options.items():
        needed |= set(zip(step.inputs, option.reads, strict=True))
    changes = [conversion(v, written[v], layout) for v, layout in needed if written[v] != layout]
    return sum(option.seconds for option in options.values()) + sum(changes)


def test_layouts_are_the_best_of_all():
    rng = np.random.default_rng(6)
    for _ in range(25):
        graph, options, conversion = random_layout_problem(rng, rng.integers(1, 4))
        problem = LayoutProblem(graph, options, conversion)
        found = problem.solve()
        every = itertools.product(*options.values())
        least = min(seconds_of(graph, dict(zip(options, those, strict=True)), conversion) for those in every)
        assert found.exact
        assert found.seconds == seconds_of(graph, found.options, conversion) == least


def test_no_rule_of_thumb_beats_the_choice():
    rng = np.random.default_rng(7)
    for _ in range(10):
        graph, options, conversion = random_layout_problem(rng, 25)
        problem = LayoutProblem(graph, options, conversion)
        found = problem.solve()
        simple = [problem.step_by_step(), *map(problem.in_layout, problem.layouts())]
        for choice in simple:
            assert choice.seconds == seconds_of(graph, choice.options, conversion)
            assert found.seconds <= choice.seconds
        assert problem.solve(known=simple, branches=1).seconds <= min(c.seconds for c in simple)


def small_network(rng):
    """A network with every kind of step: two branches, a sum in a convolution, and side by side again."""

    def conv(name, inputs, k, c, kernel, **geometry):
        w = rng.standard_normal((k, c, kernel, kernel), np.float32) / np.float32(c**0.5 * kernel)
        bias = rng.standard_normal(k, np.float32)
        return Convolution(name, inputs, name, w, bias, padding=kernel // 2, activation=RELU, **geometry)

    steps = (
        conv("a", ("x",), 32, 3, 3, stride=2),
        conv("b", ("a",), 32, 32, 3),
        conv("c", ("b", "a"), 32, 32, 1),
        Pooling("pooled", ("c",), "pooled", "max", (3, 3), (1, 1), (1, 1)),
        Elementwise("sum", ("pooled", "b"), "sum", "add"),
        Pooling("mean", ("sum",), "mean", "mean"),
        conv("gate", ("mean",), 32, 32, 1),
        Elementwise("scaled", ("sum", "gate"), "scaled", "multiply"),
        Concatenation("both", ("scaled", "c", "b"), "both"),
        Upsampling("large", ("both",), "large", (2, 2)),
        conv("y", ("large",), 20, 96, 1),
        Pooling("means", ("both",), "means", "mean"),
        View("flat", ("means",), "flat", (0, -1)),
    )
    return NetworkGraph(("x",), ("y", "flat", "c"), steps)


def test_memory_that_filters_take_has_a_price(monkeypatch):
    layer = Convolution("layer", ("x",), "y", np.ones((128, 96, 3, 3), "f4"), padding=1)
    graph = NetworkGraph(("x",), ("y",), (layer,))
    shapes, limits = graph.shapes_of({"x": (1, 96, 28, 28)}), PlanLimits()

    def taken(price):
        monkeypatch.setattr(step_options, "HELD", price)
        return [option.candidate for option in StepOptions(graph, shapes, limits).of(layer)]

    def nbytes(candidate):
        return candidate.algorithm.filter_bytes(candidate.computed)

    for fast, small in zip(taken(0.0), taken(1e9), strict=True):
        close = choose.close_candidates(fast.problem, "cpu", step_options.limits_of(limits), SLACK)
        assert nbytes(small) == min(nbytes(c) for c in close if "reference" not in c.id) <= nbytes(fast)


@pytest.mark.parametrize("batch", [1, 2])
def test_answers_are_the_same_in_every_layout(batch):
    rng = np.random.default_rng(8)
    graph = small_network(rng)
    x = rng.standard_normal((batch, 3, 12, 14), np.float32)
    limits, shapes = PlanLimits(), graph.shapes_of({"x": x.shape})
    problem = layout_problem(graph, shapes, StepOptions(graph, shapes, limits))
    answers = {}
    for layout in problem.layouts():
        choice = problem.in_layout(layout)
        planned = planned_by(graph, shapes, limits, choice)
        answers[layout] = NetworkPlan(graph, planned, choice, limits).run([x])
        assert all(y.shape == shapes[name] for y, name in zip(answers[layout], graph.outputs, strict=True))
    assert len(answers) == 3
    for layout, found in answers.items():
        for y, expected in zip(found, answers["channels_first"], strict=True):
            np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4, err_msg=layout)


def test_inputs_may_lie_anywhere_in_memory():
    """Also where no element begins: a first step that reorders them would not take these."""
    net = Network(small_network(np.random.default_rng(8)))
    x = np.random.default_rng(9).standard_normal((1, 3, 12, 14), np.float32)
    unaligned = np.empty(x.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(x.shape)
    unaligned[...] = x
    with picked_at_random("", "channels_last"):
        expected = net(x)
        assert isinstance(net.plans()[0].planned.steps[0].step, LayoutChange)
        for y, right in zip(net(unaligned), expected, strict=True):
            np.testing.assert_array_equal(y, right)


def test_kernels_are_told_where_inputs_and_outputs_lie():
    """The last layer writes into the output that is a view of what it computes, and Python runs no step."""
    rng = np.random.default_rng(16)
    first, last = (
        rng.standard_normal((16, 3, 3, 3), np.float32),
        rng.standard_normal((10, 16, 1, 1), np.float32),
    )
    steps = (
        Convolution("a", ("x",), "a", first, padding=1, activation=RELU),
        Pooling("b", ("a",), "b", "mean"),
        Convolution("c", ("b",), "c", last),
        View("y", ("c",), "y", (0, 10)),
    )
    net = Network(NetworkGraph(("x",), ("y",), steps, {"x": (2, 3, 8, 9)}))
    images = [rng.standard_normal((2, 3, 8, 9), np.float32) for _ in range(3)]
    with picked_at_random("", "channels_first", lambda of, _: next(c for c in of if c.id == "cpu.direct")):
        found = [net(x) for x in images]
    executor = net.plans()[0]._executor
    (context,) = executor._contexts.values()
    assert executor.lies_in == {"c": "y"} and len(context.parts) == 1
    for x, y in zip(images, found, strict=True):  # the first outputs are as they were
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))  # (n, c, p, q, r, s)
        mean = np.maximum(np.einsum("ncpqrs,kcrs->nkpq", windows, first), 0).mean((2, 3))
        np.testing.assert_allclose(y, mean @ last[:, :, 0, 0].T, rtol=1e-4, atol=1e-5)


def test_inputs_like_the_last_ones_are_looked_at_as_closely_where_they_differ():
    """A call takes the shape of the call before for right; all else of an array may be another."""
    rng = np.random.default_rng(11)
    w = rng.standard_normal((4, 3, 3, 3), np.float32)
    net = Network(NetworkGraph(("x",), ("y",), (Convolution("a", ("x",), "y", w),), {"x": ("n", 3, "h", 9)}))
    x = rng.standard_normal((2, 3, 8, 9), np.float32)
    y = net(x)
    apart = np.zeros((2, 3, 8, 18), np.float32)[..., ::2]
    apart[...] = x
    off = np.zeros(x.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(x.shape)
    off[...] = x
    fixed = x.copy()
    fixed.flags.writeable = False
    for given in (apart, off, fixed, np.asfortranarray(x), x.astype(">f4")):
        assert np.array_equal(net(given), y)
    for given, error in ((x.astype(np.float64), TypeError), (x[..., :8], ValueError), (x[0], ValueError)):
        with pytest.raises(error, match="x has"):
            net(given)
    assert np.array_equal(net(x), y)


def test_a_run_computes_in_the_memory_that_it_takes():
    """One at a time in the same, where a larger plan came between in another, and two at once in two."""
    rng = np.random.default_rng(12)
    w = [rng.standard_normal((4, c, 3, 3), np.float32) for c in (3, 4)]
    steps = (Convolution("a", ("x",), "h", w[0], padding=1), Convolution("b", ("h",), "y", w[1], padding=1))
    net = Network(NetworkGraph(("x",), ("y",), steps, {"x": ("n", 3, "h", "w")}))
    small, large = (rng.standard_normal((1, 3, n, n), np.float32) for n in (8, 60))
    y = net(small)
    executor = net.plans()[0]._executor
    (memory,) = executor._contexts
    assert np.array_equal(net(small), y) and list(executor._contexts) == [memory]
    net(large)
    gone = weakref.ref(memory)
    del memory
    assert np.array_equal(net(small), y) and gone() is None  # nothing holds what was too small
    assert len(executor._contexts) == 1
    taken = net._memories.take(0)  # another run has it
    assert np.array_equal(net(small), y) and {*executor._contexts} > {taken}


def test_shapes_of_similar_work_take_layouts_and_algorithms():
    graph = small_network(np.random.default_rng(9))
    limits = PlanLimits()
    first, choice = plan_network(graph, {"x": (1, 3, 12, 14)}, limits)
    near, taken = plan_network(graph, {"x": (1, 3, 14, 18)}, limits, [(first, choice)])
    assert [(s.reads, s.writes) for s in near.steps] == [(s.reads, s.writes) for s in first.steps]
    assert [o.candidate and o.candidate.id for o in taken.options.values()] == [
        o.candidate and o.candidate.id for o in choice.options.values()
    ]
    assert taken.of_other_shapes
    assert near.shapes["y"] == (1, 20, 14, 18)
    assert near.arena_bytes > first.arena_bytes
    for far in ((8, 3, 12, 14), (1, 3, 50, 50)):
        assert not plan_network(graph, {"x": far}, limits, [(first, choice)])[1].of_other_shapes


def test_layouts_are_taken_from_shapes_that_they_were_chosen_for():
    """Each is of nearly as much work as the one before, but the third of much more than the first."""
    net = Network(small_network(np.random.default_rng(9)))
    plans = [net.plan({"x": (1, 3, 12, width)}) for width in (14, 25, 45)]
    assert [plan.choice.of_other_shapes for plan in plans] == [False, True, False]


def test_explain_tells_what_the_choice_saved():
    graph = small_network(np.random.default_rng(10))
    net = Network(graph)
    found = net.explain((1, 3, 40, 44))
    told = found.to_dict()
    assert told["predicted_s"] <= min(told["alternatives_s"].values()) * (1 + 1e-9)  # sums in two orders
    assert set(told["alternatives_s"]) >= {"channels_first", "channels_last", "each step by itself"}
    assert [s["name"] for s in told["steps"] if s["what"] == "convolution"] == ["a", "b", "c", "gate", "y"]
    assert all(s["algorithm"] and s["of_peak"] > 0 for s in told["steps"] if s["flops"])
    assert 0 < told["least_arena_bytes"] <= told["arena_bytes"]
    lines = str(found).splitlines()
    assert len(lines) == 2 + len(told["steps"]) + 3 + len(told["alternatives_s"])
    assert net.explain((1, 3, 40, 44)).to_dict() == told


def test_steps_are_timed():
    net = Network(small_network(np.random.default_rng(15)))
    found = net.explain((1, 3, 12, 14), timed=True)
    assert found.measured_s == sum(row.measured_s for row in found.rows) > 0
    assert "measured step by step" in str(found)


def test_errors_add_up_to_the_limit():
    """bfloat16 where it pays most, until the bounds along the worst path are at the limit."""
    rng = np.random.default_rng(16)
    steps = []
    for i in range(6):
        w = rng.standard_normal((64, 64, 3, 3), np.float32)
        steps.append(Convolution(f"v{i}", (f"v{i - 1}" if i else "x",), f"v{i}", w, padding=1))
    graph = NetworkGraph(("x",), ("v5",), tuple(steps))
    both = PlanLimits(precisions=("float32", "bfloat16"))
    shapes = graph.shapes_of({"x": (1, 64, 14, 14)})
    options = {
        step: [
            StepOption(("channels_first",), "channels_first", seconds, MadeUp(error))
            for seconds, error in ((10.0 + i, 1e-6), (5.0, 1e-2))
        ]
        for i, step in enumerate(steps)
    }
    problem = LayoutProblem(graph, options, lambda *change: 0.0)
    free = choose_layouts(graph, problem, both)
    assert worst_error(graph, free) == pytest.approx(6e-2)
    for limit, seconds in ((6.1e-2, 30.0), (3.5e-2, 15 + 10 + 11 + 12), (1e-3, 75.0)):
        found = choose_layouts(graph, problem, both._replace(max_rel_error=limit))
        assert worst_error(graph, found) <= limit
        assert found.seconds == seconds
    with pytest.raises(
        Unsupported, match="max_rel_error=1e-06: the bounds of its convolutions add up to 6e-06"
    ):
        choose_layouts(graph, problem, both._replace(max_rel_error=1e-6))
    _, choice = plan_network(graph, {"x": shapes["x"]}, both._replace(max_rel_error=1e-3))
    assert {option.candidate.precision for option in choice.options.values()} == {"float32"}


def test_what_is_measured_is_chosen(tmp_path, monkeypatch):
    graph = NetworkGraph(("x",), ("b",), small_network(np.random.default_rng(11)).steps[:2])
    asked = []

    def measure(problem, **limits):
        asked.append((problem, limits["effort"]))

    monkeypatch.setattr(choice_module, "plan", measure)
    _, choice = plan_network(graph, {"x": (1, 3, 12, 14)}, PlanLimits(effort="measure"))
    problems = [option.candidate.problem for option in choice.options.values()]
    assert asked == [(problem, "measure") for problem in problems]


class MadeUp:
    """A candidate of which only the error counts."""

    def __init__(self, error_bound):
        self.error_bound = error_bound


# --- files ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """(a network that was called, its input, its answers, the file it was saved into)."""
    rng = np.random.default_rng(12)
    net = Network(small_network(rng))
    x = rng.standard_normal((1, 3, 12, 14), np.float32)
    path = tmp_path_factory.mktemp("networks") / "small.net"
    answers = net(x)
    net.save(path)
    return net, x, answers, path


def test_a_network_comes_back_from_its_file(saved, monkeypatch):
    net, x, answers, path = saved
    monkeypatch.setattr(KernelPlan, "prepare_filter", None)  # nothing is prepared again
    again = Network.load(path)
    ((plan,), (known,)) = again.plans(), net.plans()
    assert [(s.reads, s.writes) for s in plan.planned.steps] == [
        (s.reads, s.writes) for s in known.planned.steps
    ]
    assert plan.explain().to_dict() == known.explain().to_dict()
    for y, expected in zip(again(x), answers, strict=True):
        np.testing.assert_array_equal(y, expected)


def test_what_a_call_makes_of_another_plan_is_not_stored(tmp_path):
    net = Network(small_network(np.random.default_rng(5)))
    x = np.ones((1, 3, 12, 16), np.float32)
    net(x[..., :14])
    expected = net(x)
    net.plan((1, 3, 12, 15), workspace_limit=1 << 30)
    net.save(tmp_path / "small.net")
    again = Network.load(tmp_path / "small.net")
    widths = [plan.planned.shapes["x"][3] for plan in again.plans()]
    assert widths == [14, 15], "what has limits of its own is stored"
    for y, right in zip(again(x), expected, strict=True):
        np.testing.assert_array_equal(y, right)


def test_regions_of_onnx_are_stored_as_models(tmp_path):
    onnx = pytest.importorskip("onnx", reason="regions are parts of ONNX models")
    pytest.importorskip("onnxruntime", reason="regions are run by ONNX Runtime")
    make = onnx.helper
    nodes = [
        make.make_node("MaxPool", ["x"], ["pooled"], kernel_shape=[2, 2]),
        make.make_node("Erf", ["pooled"], ["erf"]),
        make.make_node("Pow", ["erf", "two"], ["y"]),
    ]
    values = [make.make_tensor_value_info(v, 1, s) for v, s in (("x", [1, 3, 6, 6]), ("y", [1, 3, 5, 5]))]
    two = onnx.numpy_helper.from_array(np.float32(2), "two")
    graph = make.make_graph(nodes, "g", values[:1], values[1:], [two])
    net = from_onnx(make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=9))
    x = np.random.default_rng(14).standard_normal((1, 3, 6, 6), np.float32)
    y = net(x)
    net.save(path := tmp_path / "region.net")
    again = Network.load(path)
    assert any(isinstance(step, Foreign) for step in again.graph.steps)
    np.testing.assert_array_equal(again(x), y)


def test_on_another_machine_filters_are_prepared_anew(saved, monkeypatch):
    _, x, answers, path = saved
    monkeypatch.setattr(saved_module, "fingerprint", lambda threads: "another")
    again = Network.load(path)
    assert not again.plans()
    for y, expected in zip(again(x), answers, strict=True):
        np.testing.assert_array_equal(y, expected)


def test_plans_by_algorithms_that_are_gone_are_made_anew(saved, monkeypatch):
    """As by one that the program had registered, or a variant that was measured on another size."""
    _, x, answers, path = saved

    def find(name, problem):
        raise ValueError(f"algorithm={name!r} must be another")

    monkeypatch.setattr(saved_module.registry, "find_algorithm", find)
    again = Network.load(path)
    assert not again.plans()
    for y, expected in zip(again(x), answers, strict=True):
        np.testing.assert_array_equal(y, expected)


def test_filters_that_hold_addresses_are_prepared_anew(tmp_path):
    """Those of a transposed convolution in slices, each by one thread."""
    rng = np.random.default_rng(15)
    w = rng.standard_normal((16, 16, 4, 4), np.float32)
    up = TransposedConvolution(
        "up", ("x",), "y", w, stride=(2, 2), padding=((1, 1),) * 2, dilation=(1, 1), output_padding=(0, 0)
    )
    net = Network(NetworkGraph(("x",), ("y",), (up,)))
    x = rng.standard_normal((4, 16, 12, 14), np.float32)
    with picked_at_random("", "channels_first", lambda found, _: one_of(found, "cpu.direct")):
        y = net(x)
        assert isinstance(net.plans()[0].planned.steps[0].plan, SlicedPlan)
        net.save(tmp_path / "net")
        again = Network.load(tmp_path / "net")
    assert again.plans()[0].planned.steps[0].plan.algorithm == "cpu.direct"
    np.testing.assert_array_equal(again(x), y)


def one_of(candidates, name):
    return next(c for c in candidates if c.id == name)


def test_damaged_files_are_refused(saved, tmp_path):
    path = saved[-1]
    whole = path.read_bytes()
    damaged = tmp_path / "damaged.net"
    rng = np.random.default_rng(13)
    for place in (0, 20, 130, len(whole) - 1, *rng.integers(0, len(whole), 10)):
        damaged.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"damaged\.net"):
            Network.load(damaged)
    for length in (0, 50, 128, len(whole) // 2, len(whole) - 1):
        damaged.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"damaged\.net"):
            Network.load(damaged)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"graph": {}}, "inputs"),
        ({"arrays": [{"dtype": "object", "shape": [1], "offset": 0}]}, "object"),
        ({"arrays": [{"dtype": "float32", "shape": [1 << 40], "offset": 0}]}, "beyond the end"),
        ({"arrays": [{"dtype": "float32", "shape": [-1], "offset": 0}]}, "beyond the end"),
    ],
)
def test_files_of_another_hand_are_refused(saved, tmp_path, wrong, told):
    """Whose hash is right, and whose content is not."""
    whole = saved[-1].read_bytes()
    length = int(whole[:128].split()[-1])
    header = json.dumps(json.loads(whole[128 : 128 + length]) | wrong).encode()
    rest = header + whole[128 + length :]
    first = b"convalgos network 1 " + f"{sha256(rest).hexdigest()} {len(header)}".encode()
    path = tmp_path / "wrong.net"
    path.write_bytes(first.ljust(127) + b"\n" + rest)
    with pytest.raises(ValueError, match=f"wrong.net.*{told}"):
        Network.load(path)


def test_saving_leaves_the_old_file_where_it_fails(saved, tmp_path, monkeypatch):
    path = tmp_path / "kept.net"
    path.write_bytes(b"old")

    def fail(*_):
        raise OSError("no room")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="no room"):
        saved[0].save(path)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["kept.net"]


# --- the arena ------------------------------------------------------------------------------------


class Strided:
    """A plan whose arrays may be slices, and which asks for scratch."""

    strided_batch = True

    def __init__(self, scratch_bytes=100):
        self.scratch_bytes = scratch_bytes


def random_network(rng, batch):
    """A planned network of steps that share memory in every way, without the places of its values."""
    shapes, layouts, steps = {"x": (batch, 16, 2, 2)}, {"x": "channels_first"}, []
    asks = rng.random() < 0.7
    for i in range(rng.integers(2, 14)):
        name = f"v{i}"
        a, b = (str(v) for v in rng.choice(list(shapes), 2))
        alike = shapes[a] == shapes[b] and layouts[a] == layouts[b]
        kind, layout = rng.integers(6), layouts[a]
        if kind == 0 and alike:
            step = Elementwise(name, (a, b), name, "add")
        elif kind == 1 and layout == "channels_first":
            step = View(name, (a,), name, (0, -1, 1, 1) if len(shapes[a]) == 4 else (0, -1))
        elif kind <= 3:
            those = [v for v in shapes if shapes[v][2:] == shapes[a][2:] and layouts[v] == layout]
            step = Concatenation(name, tuple(map(str, rng.choice(those, rng.integers(1, 4)))), name)
        elif kind == 4:
            step = Upsampling(name, (a,), name, (1, 1))
            layout = str(rng.choice(["channels_first", "blocked16"]))
        else:
            step = Elementwise(name, (a,), name)
        shapes[name], layouts[name] = step.output_shape(shapes), layout
        plan = Strided(int(rng.integers(0, 5000))) if asks else object()
        own = None if isinstance(step, View) else plan
        steps.append(PlannedStep(step, tuple(layouts[v] for v in step.inputs), layout, own, 0.0))
    outputs = tuple(map(str, rng.choice(list(shapes)[1:], 2, replace=False)))
    graph = NetworkGraph(("x",), outputs, tuple(s.step for s in steps))
    return with_places(Planned(tuple(steps), shapes, layouts), graph), graph


def test_views_of_slices_lie_where_these_do():
    """In a layout in which nothing has to move, and in other shapes."""
    blocked = blocked_layout(16)
    shapes = {"whole": (1, 48, 10), "a": (1, 16, 10), "b": (1, 32, 10), "view": (1, 16, 10), "flat": (16, 10)}
    layouts = {"whole": blocked, "a": blocked, "b": blocked, "view": "channels_last"}
    places = {
        "whole": 128,
        "a": ("whole", 32),
        "b": ("whole", 0),
        "view": ("whole", 32),
        "flat": ("whole", 32),
    }
    planned = Planned((), shapes, layouts, places=places, arena_bytes=128 + 48 * 40)
    arena = aligned_empty(planned.arena_bytes, np.uint8)
    placed = ArenaArrays(planned, arena)
    arena[128:].view(np.float32)[:] = np.arange(480)
    for name, begin in {"whole": 0, "b": 0, "a": 320, "view": 320, "flat": 320}.items():
        array = placed.array(name)
        assert array.shape == array_shape(layouts.get(name, "channels_first"), shapes[name])
        assert placed.address(name) == array.ctypes.data == arena.ctypes.data + 128 + 4 * begin
        assert np.array_equal(array.ravel(), np.arange(begin, begin + math.prod(shapes[name])))


class Memory:
    """Runs a planned network on made-up contents, where each value is to hold its own until it is read."""

    def __init__(self, planned, graph, rng):
        self.planned, self.rng = planned, rng
        self.arena = aligned_empty(planned.arena_bytes, np.uint8)
        placed = ArenaArrays(planned, self.arena)
        self.arrays = {name: placed.array(name) for name in planned.places}
        for name, array in self.arrays.items():
            address = placed.address(name)
            assert array.flags.c_contiguous if address == array.ctypes.data else address is None
            assert address is not None or len(array) > 1
        self.contents = {}
        for name in graph.inputs:
            self.contents[name] = self.array(name)[...] = rng.random(self.array(name).shape, np.float32)

    def array(self, name):
        """The memory of a value, in its layout; an array of its own where it has no place."""
        shape = array_shape(self.planned.layouts[name], self.planned.shapes[name])
        assert name in self.arrays or name not in self.planned.places
        array = self.arrays.setdefault(name, np.zeros(shape, np.float32))
        assert array.shape == shape
        return array

    def run(self, planned_step):
        step, scratch = planned_step.step, self.arena[: scratch_bytes(planned_step)]
        assert len(scratch) >= getattr(planned_step.plan, "scratch_bytes", 0)
        scratch[...] = self.rng.integers(0, 256, len(scratch))
        for name in step.inputs:
            np.testing.assert_array_equal(self.array(name), self.contents[name])
        y = self.array(step.output)
        read = [self.contents[name] for name in step.inputs]
        if is_view(planned_step):
            if step.output not in self.planned.places:
                self.arrays[step.output] = self.array(step.inputs[0]).reshape(y.shape)
            self.contents[step.output] = read[0].reshape(y.shape)
            return
        if isinstance(step, Concatenation):
            y[...] = np.concatenate(read, axis=1)
        else:
            y[...] = self.rng.random(y.shape, np.float32)
        self.contents[step.output] = y.copy()
        scratch[...] = self.rng.integers(0, 256, len(scratch))


@pytest.mark.parametrize("batch", [1, 2])
def test_values_of_an_arena_hold_until_they_are_read(batch):
    rng = np.random.default_rng(batch)
    slices = 0
    for _ in range(120):
        planned, graph = random_network(rng, batch)
        memory = Memory(planned, graph, rng)
        for step in planned.steps:
            memory.run(step)
        for name in graph.outputs:
            np.testing.assert_array_equal(memory.array(name), memory.contents[name])
        slices += sum(isinstance(place, tuple) for place in planned.places.values())
    assert slices > 20


def in_planes(step):
    """A step in channels_first, whose plan takes slices."""
    return PlannedStep(step, ("channels_first",) * len(step.inputs), "channels_first", Strided(), 0.0)


def test_concatenations_within_others_cost_nothing():
    """As in DenseNet: each concatenates what all layers before it gave."""
    shapes, steps = {"x": (1, 8, 4, 4)}, []

    def add(step):
        shapes[step.output] = step.output_shape(shapes)
        steps.append(in_planes(step))

    add(Upsampling("a", ("x",), "a", (1, 1)))
    parts = ["a"]
    for i in range(4):
        add(Concatenation(f"whole{i}", tuple(parts), f"whole{i}"))
        add(Upsampling(f"part{i}", (f"whole{i}",), f"part{i}", (1, 1)))
        parts.append(f"part{i}")
    add(Concatenation("last", tuple(parts), "last"))
    add(Upsampling("y", ("last",), "y", (1, 1)))
    planned = with_places(
        Planned(tuple(steps), shapes), NetworkGraph(("x",), ("y",), tuple(s.step for s in steps))
    )
    assert planned.places["whole3"] == ("last", 0)
    assert planned.places["part3"] == ("last", 64)
    assert planned.scratch_bytes == 128
    assert planned.arena_bytes == 4 * np.prod(shapes["last"]) + 128


def of_parts(first, last, lines):
    """A buffer of so many cache lines in each part, all of which end at the same step."""
    ends = (64 * np.cumsum([0, *lines])).tolist()
    begun = [min(first + i, last) for i in range(len(lines))]
    times = (
        TimedBytes(*edges, begin, last) for edges, begin in zip(itertools.pairwise(ends), begun, strict=True)
    )
    return Buffer(ends[-1], first, last, tuple(times) if len(lines) > 1 else ())


def test_values_lie_in_what_is_not_yet_written_of_a_whole():
    # A skip connection is joined at the end: in between the other half of the whole is free.
    names = ("x", "skip", "a", "b", "up")
    shapes = dict.fromkeys(names, (1, 16, 8, 8)) | {"whole": (1, 32, 8, 8), "y": (1, 32, 8, 8)}
    chain = [Upsampling(to, (of,), to, (1, 1)) for of, to in itertools.pairwise(names)]
    steps = [
        *chain,
        Concatenation("whole", ("skip", "up"), "whole"),
        Upsampling("y", ("whole",), "y", (1, 1)),
    ]
    graph = NetworkGraph(("x",), ("y",), tuple(steps))
    for images, maps in ((1, 3), (2, 4)):  # of several images, slices are no longer in one piece
        of_batch = {name: (images, *shape[1:]) for name, shape in shapes.items()}
        planned = Planned(tuple(map(in_planes, steps)), of_batch)
        expected = maps * 4 * math.prod(of_batch["skip"]) + 128  # bytes of scratch
        assert with_places(planned, graph).arena_bytes == least_arena_bytes(planned, graph) == expected


@pytest.mark.parametrize(("most_parts", "wasted"), [(1, 1.05), (3, 1.15)])
def test_buffers_are_packed_near_the_bytes_that_are_alive(most_parts, wasted):
    rng = np.random.default_rng(5)
    ratios = []
    for _ in range(20):
        first = rng.integers(0, 40, 60)
        buffers = [
            of_parts(int(f), int(f + d), rng.integers(1, 99, 1 + i % most_parts))
            for i, (f, d) in enumerate(zip(first, rng.geometric(0.4, 60), strict=True))
        ]
        at_begin = [Buffer(int(n) * 64, i, i) for i, n in enumerate(rng.integers(0, 60, 40))]
        places, total, _ = place_buffers(buffers, at_begin)
        buffers, places = buffers + at_begin, places + [0] * len(at_begin)
        for (i, a), (j, b) in itertools.combinations(enumerate(buffers), 2):
            for p, q in itertools.product(a.parts, b.parts):
                if p.first <= q.last and q.first <= p.last:
                    assert (
                        places[i] + p.end <= places[j] + q.begin or places[j] + q.end <= places[i] + p.begin
                    )
        assert most_alive(buffers) <= total == max(p + b[0] for p, b in zip(places, buffers, strict=True))
        ratios.append(total / most_alive(buffers))
    assert np.mean(ratios) < wasted


def test_no_step_leaves_threads_spinning_behind_it(monkeypatch):
    monkeypatch.setattr(Im2col, "cost", lambda self, problem, machine: 1e-12)
    monkeypatch.setattr(Im2col, "least", lambda self, problem, machine: 1e-12)
    w = np.ones((40, 24, 3, 3), np.float32)
    net = Network(NetworkGraph(("x",), ("y",), (Convolution("only", ("x",), "y", w, padding=1),)))
    (step,) = (s for s in net.plan((1, 24, 9, 9)).planned.steps if isinstance(s.step, Convolution))
    assert step.plan.algorithm in ("cpu.im2col.mkl", "cpu.im2col.own")


def test_joined_convolutions_of_a_row_sum_the_taps_that_it_has():
    """Of the 3 x 3 taps of a first layer a map of one row has one row."""
    rng = np.random.default_rng(4)
    w = [rng.standard_normal(s).astype("f4") for s in ((32, 3, 3, 3), (32, 1, 3, 3), (16, 32, 1, 1))]
    steps = (
        Convolution("stem", ("x",), "a", w[0], padding=1, activation=RELU),
        Convolution("depthwise", ("a",), "b", w[1], padding=1, groups=32),
        Convolution("last", ("b",), "y", w[2]),
    )
    net = Network(NetworkGraph(("x",), ("y",), steps, {"x": ("n", 3, "h", "w")}))
    for shape in ((1, 3, 1, 16), (1, 3, 1, 40), (2, 3, 16, 1), (1, 3, 1, 1), (1, 3, 9, 9)):
        x = rng.standard_normal(shape).astype("f4")
        a = ca.conv(x, w[0], padding=1, activation="relu", algorithm="cpu.reference")
        b = ca.conv(a, w[1], padding=1, groups=32, algorithm="cpu.reference")
        expected = ca.conv(b, w[2], algorithm="cpu.reference")
        assert np.abs(net(x) - expected).max() <= 1e-5 * np.abs(expected).max(), shape


def test_a_value_twice_in_a_concatenation_that_an_output_shows():
    x = np.random.default_rng(5).random((2, 3, 7, 9), "f4")
    steps = (
        ChannelSelection("turned", ("x",), "a", np.array([1, 0])),
        Concatenation("both", ("a", "a"), "b"),
        View("flat", ("b",), "y", (0, -1)),
    )
    net = Network(NetworkGraph(("x",), ("y",), steps, {"x": ("n", 3, "h", "w")}))
    a = x[:, [1, 0]]
    for n in (1, 2):
        np.testing.assert_array_equal(net(x[:n]), np.concatenate([a, a], 1)[:n].reshape(n, -1))
