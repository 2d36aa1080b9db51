"""Plans whose first steps take some images at a time give the answers of whole batches."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("torch")  # whose networks some tests run

import convalgos as ca
from convalgos.core.epilogue import RELU
from convalgos.network import batch_parts
from convalgos.network.graph import (
    Concatenation,
    Convolution,
    Elementwise,
    NetworkGraph,
    Pooling,
    View,
)
from convalgos.network.network import Network
from convalgos.select import devices
from tests.networks import torchvision_model, why_no_torchvision

RNG = np.random.default_rng(35)
NAMES = ("n", 3, "h", "w")


def filters(*shape):
    return (RNG.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype("f4")


def images(n, size=20):
    return RNG.standard_normal((n, 3, size, size)).astype("f4")


def residual_steps():
    """Two convolutions beside a third, whose sum is pooled and multiplied by a matrix."""
    return [
        Convolution("a", ("x",), "a", filters(40, 3, 3, 3), RNG.random(40, "f4"), padding=1, activation=RELU),
        Convolution("b", ("a",), "b", filters(40, 40, 3, 3), padding=1, activation=RELU),
        Convolution("c", ("b", "a"), "c", filters(40, 40, 3, 3), padding=1, activation=RELU),
        Convolution("d", ("c",), "d", filters(24, 40, 3, 3), stride=2),
        Pooling("pool", ("d",), "p", "mean"),
        View("flat", ("p",), "f", (0, -1)),
        View("map", ("f",), "m", (0, -1, 1, 1)),
        Convolution("e", ("m",), "y", filters(10, 24, 1, 1), RNG.random(10, "f4")),
    ]


@pytest.fixture
def parts_of_two(monkeypatch, shipped_figures):
    """Parts of two images, whatever they gain; those of the most steps. Steps and layouts are the same on
    every machine."""
    monkeypatch.setattr(batch_parts, "GAIN", -np.inf)
    monkeypatch.setattr(batch_parts, "_images_of_part", lambda *_: 2)
    monkeypatch.setattr(batch_parts._Seconds, "gained", lambda _, of_all, of_part: of_all)


def test_answers_are_those_of_the_images_one_by_one(parts_of_two, monkeypatch):
    graph = NetworkGraph(("x",), ("y",), tuple(residual_steps()), {"x": NAMES})
    net, one = Network(graph), Network(graph)
    cuts = 0
    for step in ("a", "c", "d", "p"):
        numbers = {s.step.output: i for i, s in enumerate(net.plan((6, 3, 20, 20)).planned.steps)}
        number = numbers.get(step)
        if number is None:  # it was joined with others
            continue
        monkeypatch.setattr(batch_parts._Seconds, "gained", lambda _, i, j, n=number + 1: -abs(i - n))
        plan = net.plan((6, 3, 20, 20))
        assert plan.parts is not None and plan.parts.between.startswith(step)
        cuts += 1
        assert len(plan.parts.first.steps) + len(plan.parts.rest.steps) == len(plan.planned.steps)
        for x in (images(6), images(6)):
            y = net(x)
            np.testing.assert_allclose(y, np.concatenate([one(x[i : i + 1]) for i in range(6)]), 2e-5, 2e-5)
    assert cuts > 1


def test_a_whole_network_runs_in_parts_where_its_outputs_are_all_that_is_left(parts_of_two):
    steps = [*residual_steps()[:3], Concatenation("both", ("c", "a"), "z")]
    graph = NetworkGraph(("x",), ("c", "z"), tuple(steps), {"x": NAMES})
    net, one = Network(graph), Network(graph)
    plan = net.plan((4, 3, 9, 9))
    assert plan.parts is not None and not plan.parts.between and not plan.parts.rest.steps
    x = images(4, 9)
    found = net(x)
    for i in range(4):
        for y, wanted in zip(found, one(x[i : i + 1]), strict=True):
            np.testing.assert_allclose(y[i : i + 1], wanted, 2e-5, 2e-5)
    assert all(a is not b and not np.shares_memory(a, b) for a, b in zip(found, net(x), strict=True))


@pytest.mark.parametrize(
    "mixing",
    [
        View("mixed", ("a",), "m", (-1, 80, 20, 20)),  # two images are one
        Elementwise("mixed", ("a",), "m", "add", constant=RNG.random((4, 40, 1, 1), "f4")),
    ],
)
def test_steps_that_mix_images_run_for_all_of_them(parts_of_two, mixing):
    first = residual_steps()[0]
    graph = NetworkGraph(("x",), ("m",), (first, mixing), {"x": NAMES})
    x = images(4)
    plan = Network(graph).plan(x.shape)
    assert plan.parts is None or plan.parts.between  # no plan of two images, or the step is in the rest
    a = ca.conv(x, first.w, first.bias, padding=1, activation="relu")
    wanted = a.reshape(-1, 80, 20, 20) if isinstance(mixing, View) else a + mixing.constant
    np.testing.assert_allclose(plan.run([x])[0], wanted, 2e-5, 2e-5)


def test_values_that_are_no_images_are_not_cut(parts_of_two):
    """(4, 1) + (4,) is (4, 4): two images would give (2, 2)."""
    outer = Elementwise("outer", ("x", "s"), "y", "add")
    net = Network(NetworkGraph(("x", "s"), ("y",), (outer,), {"x": ("n", 1), "s": ("n",)}))
    x, s = RNG.random((4, 1), "f4"), RNG.random(4, "f4")
    np.testing.assert_array_equal(net(x, s), x + s)


def test_a_batch_near_a_known_one_gets_parts_when_it_came_often(parts_of_two, tmp_path):
    graph = NetworkGraph(("x",), ("y",), tuple(residual_steps()), {"x": NAMES})
    net, x = Network(graph), images(6)
    net(images(4))
    y = net(x)
    plan = net.plans()[-1]
    assert plan.parts is None and net._plans.is_rough(((6, 3, 20, 20),))
    net._refine(plan)
    assert net.plans()[-1].parts is not None
    np.testing.assert_allclose(net(x), y, 2e-5, 2e-5)
    net.save(tmp_path / "net")
    assert [p.parts is not None for p in Network.load(tmp_path / "net").plans()] == [True, True]


def test_threads_run_in_memory_of_their_own(parts_of_two):
    graph = NetworkGraph(("x",), ("y",), tuple(residual_steps()), {"x": NAMES})
    net = Network(graph)
    given = [images(4) for _ in range(4)]
    wanted = [net(x) for x in given]
    with ThreadPoolExecutor(4) as pool:  # an error of a call is one of the test
        found = list(pool.map(net, 8 * given))
    assert net.plans()[0].parts is not None
    np.testing.assert_array_equal(found, 8 * wanted)


def test_they_are_kept_in_files_and_explained(parts_of_two, tmp_path):
    graph = NetworkGraph(("x",), ("y",), tuple(residual_steps()), {"x": NAMES})
    net, x = Network(graph), images(4)
    y = net(x)
    (plan,) = net.plans()
    net.save(tmp_path / "net")
    loaded = Network.load(tmp_path / "net")
    (again,) = loaded.plans()
    assert again.parts is not None and len(again.parts.first.steps) == len(plan.parts.first.steps)
    assert {key.key for key in again.filters} == {key.key for key in plan.filters}
    np.testing.assert_array_equal(loaded(x), y)
    told = net.explain((4, 3, 20, 20), timed=True)
    assert "for 2 of 4 images at a time" in str(told) and told.measured_s > 0
    in_parts = len(plan.parts.first.steps)
    assert [row.runs for row in told.rows] == [2] * in_parts + [1] * len(plan.parts.rest.steps)
    assert [row.shape[0] for row in told.rows] == [2] * in_parts + [4] * len(plan.parts.rest.steps)
    flops = sum(s.plan.problem.flops for s in plan.planned.steps if isinstance(s.step, Convolution))
    assert sum(row.flops for row in told.rows) == flops
    assert told.arena_bytes == plan.parts.arena_bytes + plan.parts.between_bytes


def test_errors_that_are_limited_add_up_along_one_plan(parts_of_two):
    graph = NetworkGraph(("x",), ("y",), tuple(residual_steps()), {"x": NAMES})
    assert Network(graph).plan((4, 3, 20, 20), max_rel_error=1e-2).parts is None


@pytest.mark.parametrize(("batch", "images_of_part"), [(1, 1), (12, 4), (10, 5), (7, 7), (11, 11)])
def test_parts_divide_the_batch_and_fit_into_the_last_cache(monkeypatch, batch, images_of_part):
    """Of maps of which five fit, or far fewer where the batch has no such divisor."""
    graph = NetworkGraph(("x",), ("y",), (Elementwise("e", ("x",), "y"),), {"x": NAMES})
    planned = Network(graph).plan((batch, 3, 64, 64)).planned
    largest = 2 * 3 * 64 * 64 * 4  # bytes of an image, read and written
    monkeypatch.setattr(batch_parts, "SHARE", 5.5 * largest / devices.figures("cpu").l3_bytes)
    assert batch_parts._images_of_part(planned, graph) == images_of_part


@pytest.mark.skipif(why_no_torchvision() is not None, reason=why_no_torchvision() or "")
@pytest.mark.parametrize("name", ["mobilenet_v3_small", "shufflenet_v2_x0_5", "densenet"])
def test_networks_of_torchvision_in_parts(parts_of_two, monkeypatch, name):
    import torch

    model = torchvision_model(name)
    x = torch.from_numpy(images(4, 64))
    net = ca.network.from_torch(model, x)
    with torch.no_grad():
        wanted = model(x).numpy()
    for share in (0.3, 0.7):
        monkeypatch.setattr(
            batch_parts._Seconds, "gained", lambda self, i, _, s=share: -abs(i - s * len(self._of_all))
        )
        plan = net.plan((4, 3, 64, 64))
        assert plan.parts is not None
        (y,) = plan.run([x.numpy()])
        assert np.abs(y - wanted).max() <= 1e-4 * np.abs(wanted).max()
