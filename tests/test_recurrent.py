"""Recurrent layers: each step of time against float64, and as ONNX writes them."""

import numpy as np
import pytest
from test_network_odd_models import check_model
from test_network_onnx import Builder, numbers

from convalgos.core.setting import threads_of_calls
from convalgos.cpu.elementwise import recurrent
from convalgos.cpu.elementwise.recurrent import RecurrentPlan
from convalgos.network.graph import Foreign
from convalgos.network.network import Network
from convalgos.network.onnx_reader.graph import from_onnx
from convalgos.network.recurrence import Recurrence

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

CASES = [  # times, images, directions, hidden, turned, whether a first state and first cells are given
    (7, 1, 2, 33, False, (False, False)),
    (4, 3, 1, 16, True, (True, True)),
    (5, 9, 1, 7, False, (True, False)),
    (3, 11, 2, 40, False, (False, True)),
    (1, 2, 1, 1, False, (False, False)),
    (0, 2, 1, 5, False, (False, False)),
    (3, 0, 2, 5, False, (False, False)),
]


def share(x):
    return 1 / (1 + np.exp(-x))


def states(z, weights, gates, bias, turned, h, c, reset_first=False):
    """y of `RecurrentPlan` in float64, h and c the first state and cells."""
    directions, _, hidden = weights.shape
    times, images, _ = z.shape
    z = z.astype("f8").reshape(times, images, directions, gates, hidden)
    y = np.empty((times, directions, images, hidden))
    for d in range(directions):
        state, cells = h[d].astype("f8"), c[d].astype("f8")
        for t in range(times)[:: -1 if d + turned == 1 else 1]:
            own, summed = z[t, :, d], (state @ weights[d].astype("f8").T).reshape(images, gates, hidden)
            own, added = own.transpose(1, 0, 2), summed.transpose(1, 0, 2)
            if gates == 4:
                entry, out, kept = share(own[:3] + added[:3])
                cells = kept * cells + entry * np.tanh(own[3] + added[3])
                state = out * np.tanh(cells)
            elif gates == 3:
                kept, reset = share(own[:2] + added[:2])
                of_new = weights[d, 2 * hidden :].astype("f8")
                added_last = (reset * state) @ of_new.T if reset_first else reset * (added[2] + bias[d])
                new = np.tanh(own[2] + added_last)
                state = (1 - kept) * new + kept * state
            else:
                state = np.tanh(own[0] + added[0])
            y[t, d] = state
    return y


@pytest.mark.parametrize("gates", [1, 3, 4])
@pytest.mark.parametrize("times, images, directions, hidden, turned, given", CASES)
def test_states_against_float64(times, images, directions, hidden, turned, given, gates):
    z = numbers((times, images, directions * gates * hidden))
    weights = numbers((directions, gates * hidden, hidden)) / np.float32(hidden**0.5)
    bias = numbers((directions, hidden))
    first = [numbers((directions, images, hidden)) * np.float32(is_given) for is_given in given]
    plan = RecurrentPlan(z.shape, weights, gates, bias, turned, given)
    inputs = [z, *(state for state, is_given in zip(first, given, strict=True) if is_given)]
    for _ in range(2):  # cells begin anew
        plan.run(inputs, y := np.full(plan.y_shape, np.nan, "f4"))
        wanted = states(z, weights, gates, bias, turned, *first)
        assert y.shape == wanted.shape and np.allclose(y, wanted, rtol=0, atol=2e-6)


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("times, images, directions, hidden, turned, given", CASES)
def test_share_of_the_state_is_taken_first(times, images, directions, hidden, turned, given, threads):
    z = numbers((times, images, directions * 3 * hidden))
    weights = numbers((directions, 3 * hidden, hidden)) / np.float32(hidden**0.5)
    first = numbers((directions, images, hidden)) * np.float32(given[0])
    with threads_of_calls(threads):
        plan = RecurrentPlan(z.shape, weights, 3, None, turned, (given[0], False), reset_first=True)
        wanted = states(z, weights, 3, None, turned, first, first, True)
        for _ in range(2):
            plan.run([z, first][: 1 + given[0]], y := np.full(plan.y_shape, np.nan, "f4"))
            assert y.shape == wanted.shape and np.allclose(y, wanted, rtol=0, atol=2e-6)


TEAMS = [  # times, images, directions, hidden, threads
    (7, 1, 1, 100, 2),
    (9, 1, 2, 70, 4),
    (5, 1, 1, 33, 3),
    (1, 1, 1, 64, 2),
    (4, 2, 1, 40, 4),
    (0, 1, 1, 64, 2),
]


@pytest.mark.parametrize("gates", [1, 3, 4])
@pytest.mark.parametrize("times, images, directions, hidden, threads", TEAMS)
def test_teams_of_threads(times, images, directions, hidden, threads, gates, monkeypatch):
    """Threads that share the units of each time give what one does, also where one thread has all tasks."""
    monkeypatch.setattr(recurrent, "MEMBER_BYTES", 1)
    monkeypatch.setattr(recurrent, "is_short", lambda flops, moved: True)
    z = numbers((times, images, directions * gates * hidden))
    weights = numbers((directions, gates * hidden, hidden)) / np.float32(hidden**0.5)
    states = [numbers((directions, images, hidden)) for _ in range(2)]
    given, bias = (True, gates == 4), numbers((directions, hidden))
    states = states[: sum(given)]

    def run_on(count):
        with threads_of_calls(count):
            return RecurrentPlan(z.shape, weights, gates, bias, True, given, gates == 4)

    alone, shared = run_on(1), run_on(threads)
    alone.run((z, *states), wanted := np.full(alone.y_shape, np.nan, "f4"))
    bound = shared.bind(z, *states, y := np.full(alone.y_shape, np.nan, "f4"))
    assert bound.launches[0].tasks == -(directions * images) * max(
        1, min(4, threads // (directions * images))
    )
    for count in (threads, 1, threads):
        with threads_of_calls(count):
            for _ in range(5):
                y.fill(np.nan)
                bound.run()
                assert np.allclose(y, wanted, rtol=0, atol=2e-6)


RESET_FIRST = {"linear_before_reset": 0}  # as ONNX has it where nothing is said


def layer(op, direction, channels=10, hidden=9, **attributes):
    """(model, its nodes) of a layer behind a convolution of (T, N, C) maps."""
    builder = Builder((6, channels, "n"))
    gates, directions = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], 2 if direction == "bidirectional" else 1
    x = builder.node("Conv", "x", numbers((channels, channels, 3)) / 8, pads=[1, 1])
    x = builder.node("Transpose", x, perm=[0, 2, 1])
    w = numbers((directions, gates * hidden, channels)) / 3
    r = numbers((directions, gates * hidden, hidden)) / 3
    b = numbers((directions, 2 * gates * hidden))
    if op == "GRU":
        attributes.setdefault("linear_before_reset", 1)
    more = attributes.pop("more", ())
    outputs = builder.node(
        op, x, w, r, b, *more, count=3 if op == "LSTM" else 2, direction=direction, hidden_size=hidden,
        **attributes,
    )  # fmt: skip
    return builder, outputs


def checked(model, *arrays):
    """The network of a model, which gives what ONNX Runtime does."""
    check_model(model, *arrays)
    return from_onnx(model)


def foreign(net):
    """The operators that are left."""
    return [op for step in net.graph.steps if isinstance(step, Foreign) for op in step.region.operators]


@pytest.mark.parametrize("op, attributes", [("LSTM", {}), ("GRU", {}), ("GRU", RESET_FIRST), ("RNN", {})])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_layers_of_onnx(op, attributes, direction, tmp_path):
    """All states and the last ones, for any number of images."""
    builder, (y, last, *_) = layer(op, direction, **attributes)
    for images in (3, 1):
        net = checked(builder.model(y, last), x := numbers((6, 10, images)))
    assert not foreign(net) and any(isinstance(step, Recurrence) for step in net.graph.steps)
    net.save(tmp_path / "net.cal")
    for found, right in zip(Network.load(tmp_path / "net.cal")(x), net(x), strict=True):
        assert np.array_equal(found, right)


@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
def test_plain_layers_of_rectified_sums(direction):
    directions = 2 if direction == "bidirectional" else 1
    builder, (y, last) = layer("RNN", direction, activations=["Relu"] * directions)
    for images in (3, 1):
        assert not foreign(checked(builder.model(y, last), numbers((6, 10, images))))


def test_lengths_of_the_whole_are_none():
    builder, (y, last, _) = layer("LSTM", "bidirectional", more=[np.int32([6, 6])])
    assert not foreign(checked(builder.model(y, last), numbers((6, 10, 2))))


def test_only_the_last_states_are_read():
    builder, (_, last, _) = layer("LSTM", "bidirectional")
    assert not foreign(checked(builder.model(last), numbers((6, 10, 4))))


def test_first_states():
    """Of zeros that the model computes for the batch, and computed ones."""
    builder = Builder((6, 10, 2))
    x = builder.node("Transpose", builder.node("Conv", "x", numbers((10, 10, 1))), perm=[0, 2, 1])
    sizes = builder.node(
        "Concat", np.int64([1]), builder.node("Shape", x, start=1, end=2), np.int64([8]), axis=0
    )
    zeros = builder.node(
        "Slice",
        builder.node("Expand", np.float32([[[0]]]), sizes),
        np.int64([0]),
        np.int64([1]),
        np.int64([0]),
    )
    mean = builder.node("ReduceMean", builder.node("Conv", "x", numbers((8, 10, 1))), np.int64([0, 2]))
    mean = builder.node("Transpose", mean, perm=[0, 2, 1])
    first = builder.node("Expand", mean, np.int64([1, 2, 8]))
    weights = [numbers((1, 32, n)) / 3 for n in (10, 8)]
    outputs = builder.node("LSTM", x, *weights, "", "", zeros, first, count=3, hidden_size=8)
    net = checked(builder.model(outputs[0]), numbers((6, 10, 2)))
    assert "LSTM" not in foreign(net)
    step = next(step for step in net.graph.steps if isinstance(step, Recurrence))
    assert step.given == (False, True)


@pytest.mark.parametrize(
    "op, attributes",
    [
        ("LSTM", {"clip": 0.5}),
        ("LSTM", {"input_forget": 1}),
        ("RNN", {"activations": ["Sigmoid"]}),
        ("LSTM", {"more": ["", "", "", numbers((1, 27))]}),
        ("GRU", {"more": [np.int32([2, 6, 3])]}),
    ],
)
def test_layers_of_other_kinds_are_left(op, attributes):
    builder, (y, *_) = layer(op, "forward", **attributes)
    assert op in foreign(checked(builder.model(y), numbers((6, 10, 3))))


def test_the_last_cells_are_a_step_of_the_layer():
    builder, (y, _, cells) = layer("LSTM", "forward")
    assert not foreign(checked(builder.model(y, cells), numbers((6, 10, 3))))


def test_first_states_of_another_shape_are_refused():
    builder = Builder((6, 10, 2))
    builder.inputs["h"] = (1, "m", 8)
    x = builder.node("Transpose", builder.node("Conv", "x", numbers((10, 10, 1))), perm=[0, 2, 1])
    y = builder.node("RNN", x, *(numbers((1, 8, n)) for n in (10, 8)), "", "", "h", hidden_size=8)
    net = from_onnx(builder.model(y))
    with pytest.raises(ValueError, match=r"first state has the shape \(1, 3, 8\), and must have \(1, 2, 8\)"):
        net(numbers((6, 10, 2)), numbers((1, 3, 8)))
