"""Steps that read several inputs of the network, or write several of its outputs: kernels copy what moves."""

import numpy as np
import pytest
from test_network_onnx import CLOSE, Builder, numbers, reference

from convalgos.network.array_copies import bound_copy
from convalgos.network.known_run import can_be_known
from convalgos.onnx import Session


def linear(b, x, c, k):
    return b.node("Gemm", x, numbers((k, c)) / np.float32(c) ** 0.5, numbers(k), transB=1)


def joined(b):
    return [linear(b, b.node("Concat", "x", "z", axis=1), 19, 5)]


def scaled(b):
    return [b.node("Mul", linear(b, "x", 12, 7), b.node("Sigmoid", "z")), b.node("Mul", "z", "z")]


def added(b):
    inner = b.node("Relu", linear(b, "x", 12, 7))
    return [b.node("Add", inner, "z"), b.node("Add", "z", linear(b, inner, 7, 7))]


def taken_from_both(b):
    y = b.node("Sub", "x", b.node("Slice", "z", np.int64([0]), np.int64([1]), np.int64([1])))
    return [y, linear(b, y, 12, 3), b.node("Concat", "z", "x", "z", axis=1)]


def recurrent(b):
    rows = [b.node("Unsqueeze", name, np.int64([0])) for name in ("x", "z")]
    weights = numbers((1, 7, 12)), numbers((1, 7, 7)), numbers((1, 14))
    states, last = b.node("RNN", rows[0], *weights, "", rows[1], count=2, hidden_size=7)
    return [states, b.node("Squeeze", last, np.int64([0]))]


def largest(b):
    y = linear(b, b.node("Concat", "z", "x", axis=1), 19, 6)
    return [b.node("ArgMax", y, axis=1, keepdims=0), b.node("Softmax", y, axis=1)]


@pytest.mark.parametrize("write", [joined, scaled, added, taken_from_both, recurrent, largest])
def test_networks_of_two_inputs(write):
    b = Builder(("n", 12))
    b.inputs["z"] = ("n", 7)
    model = b.model(*write(b))
    session = Session(model.SerializeToString())
    for n in (2, 1, 5, 0, 40, 2, 1):
        for _ in range(2):
            feeds = {"x": numbers((n, 12)), "z": numbers((n, 7))}
            kept = {name: array.copy() for name, array in feeds.items()}
            if n or write is not recurrent:
                found, expected = session.run(None, feeds), reference(model, feeds)
                for y, right in zip(found, expected, strict=True):
                    assert y.shape == right.shape and y.dtype == right.dtype
                    np.testing.assert_allclose(y, right, 0, CLOSE * np.abs(right).max(initial=1e-30))
            assert all((kept[name] == array).all() for name, array in feeds.items())
    found = session.run(None, feeds)
    again = session.run(None, {name: array + 1 for name, array in feeds.items()})
    assert not any(np.may_share_memory(y, z) for y in found for z in again)


def test_recurrent_layers_with_their_states_are_one_table_of_launches():
    """What Python ran between two tables took 3 us, as long as the layer."""
    b = Builder(("n", 12))
    b.inputs["z"] = ("n", 7)
    session = Session(b.model(*recurrent(b)).SerializeToString())
    session.run(None, {"x": numbers((1, 12)), "z": numbers((1, 7))})
    (plan,) = session._network.plans()
    executor = plan._executor
    memory = executor.memories.take(executor.planned.arena_bytes)
    assert len(executor._context_of(memory).parts) == 1


def test_views_that_are_outputs_and_truths_of_odd_sizes_are_copied_by_kernels():
    """What Python copied between two tables took 3 us each, as long as the network."""
    b = Builder(("n", 7))
    b.inputs["z"] = ("n", 7)
    y = linear(b, "x", 7, 7)
    kept = b.node("Greater", "z", y)
    outputs = [b.node("Reshape", y, np.int64([-1])), kept, b.node("Not", kept), b.node("Sub", "x", y), y]
    model = b.model(*outputs, b.node("Reshape", kept, np.int64([-1])), b.node("Cast", kept, to=2))
    for n in (1, 3, 4, 0):
        session = Session(model.SerializeToString())
        for _ in range(4):
            feeds = {"x": numbers((n, 7)), "z": numbers((n, 7))}
            for found, right in zip(session.run(None, feeds), reference(model, feeds), strict=True):
                assert found.shape == right.shape and found.dtype == right.dtype
                np.testing.assert_allclose(found, right, 0, CLOSE * np.abs(right).max(initial=1e-30))
        if can_be_known() and n:
            assert session.network.repeated.run is not None


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "float16", "bool"])
def test_copies_are_of_bits(dtype):
    words = np.random.default_rng(3).integers(0, 256, (4, 10, 6, 8)).astype("u1")
    x = (words & 1).view(bool) if dtype == "bool" else words.view(dtype)
    bound_copy(x, y := np.zeros(x.size, dtype)).run()
    assert y.tobytes() == x.tobytes()
    bound_copy(words[0, 0, 0, :3], words[0, 0, 1, :3]).run()  # no whole words of four bytes
    assert words[0, 0, 1, :3].tolist() == words[0, 0, 0, :3].tolist()
    assert bound_copy(words[..., ::2], np.zeros(960, "u1")) is None
    bound_copy(x[:0], y[:0]).run()


def test_the_first_that_is_nan_is_the_largest():
    b = Builder((3, 4, 5))
    model = b.model(
        b.node("ArgMax", b.node("Neg", "x"), axis=1), b.node("ArgMax", b.node("Neg", "x"), axis=2)
    )
    x = numbers((3, 4, 5))
    x[0, 2, 1:4] = x[0, 3, 2] = x[2, :, 0] = np.nan
    for y, axis in zip(Session(model.SerializeToString()).run(None, {"x": x}), (1, 2), strict=True):
        np.testing.assert_array_equal(y, np.argmax(-x, axis, keepdims=True))


@pytest.mark.parametrize("count", [3, 32, 33])
def test_largest_of_many_short_rows(count):
    b = Builder((300, count))
    session = Session(b.model(b.node("ArgMax", b.node("Neg", "x"), axis=1)).SerializeToString())
    x = np.random.default_rng(0).integers(0, 3, (300, count)).astype("f4")
    x[7, 2] = np.nan
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], np.argmax(-x, 1, keepdims=True))


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [False, True])
def test_places_of_nan_in_wide_maps(op, last):
    shape, find = (2, 5, 17, 19), np.argmax if op == "ArgMax" else np.argmin
    b = Builder(shape, opset=13)
    session = Session(b.model(b.node(op, "x", axis=1, select_last_index=int(last))).SerializeToString())
    x = np.random.default_rng(0).integers(0, 3, shape).astype("f4")
    x[np.random.default_rng(1).random(shape) < 0.1] = np.nan
    right = 4 - find(x[:, ::-1], 1, keepdims=True) if last else find(x, 1, keepdims=True)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], right)
