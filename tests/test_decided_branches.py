"""Models whose branches shapes or numbers decide, beside ONNX Runtime: in first calls and in later ones."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from test_network_onnx import CLOSE, Builder, numbers, reference

from convalgos.network.onnx_reader import decided_branches
from convalgos.network.onnx_reader.graph import from_onnx
from convalgos.network.recurrence import Recurrence

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402


def branch(op, *inputs, name="branch"):
    node = helper.make_node(op, inputs, [f"{name}_y"])
    y = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)
    return helper.make_graph([node], name, [], [y])


def squeezed(channels=8, hidden=9):
    """An LSTM behind a convolution whose third axis is taken away where it has one element."""
    builder = Builder(("n", 6, "h", "w"))
    x = builder.node("Conv", "x", numbers((channels, 6, 1, 1)) / 3)
    size = builder.node("Gather", builder.node("Shape", x), np.int64(2))
    axes = builder.constant(np.int64([2]))
    then, other = branch("Squeeze", x, axes, name="then"), branch("ReduceMax", x, axes, name="other")
    x = builder.node("If", builder.node("Equal", size, np.int64(1)), then_branch=then, else_branch=other)
    x = builder.node("Transpose", x, perm=[2, 0, 1])  # of rank 3 where one branch was taken
    weights = [numbers((1, 4 * hidden, n)) / 3 for n in (channels, hidden)]
    x = builder.node("LSTM", x, *weights, count=3, hidden_size=hidden)[0]
    return builder.model(x)


def assert_same(net, model, feeds):
    wanted = reference(model, feeds)
    found = net(inputs=feeds)
    for y, right in zip(found if isinstance(found, tuple) else (found,), wanted, strict=True):
        assert (y.shape, y.dtype) == (right.shape, right.dtype)
        assert np.abs(y - right).max(initial=0) <= CLOSE * np.abs(right).max(initial=0)


def networks(net):
    return list(net._instead[0]._networks.values())


def test_branches_that_shapes_decide():
    model = squeezed()
    net = from_onnx(model)
    for _ in range(decided_branches.SEEN + 1):
        for shape in ((1, 6, 1, 7), (3, 6, 1, 4), (1, 6, 1, 5)):
            assert_same(net, model, {"x": numbers(shape)})
    assert len(networks(net)) == 3
    assert all(any(isinstance(s, Recurrence) for s in found.graph.steps) for found in networks(net))


def test_calls_run_by_what_is_planned(monkeypatch):
    """Not by a network that was read for the shapes, which knows no limits."""
    model = squeezed()
    net, x = from_onnx(model), numbers((1, 6, 1, 7))
    (reading,) = net._instead
    for _ in range(decided_branches.SEEN + 1):
        net(x)
    assert reading._networks
    monkeypatch.setattr(reading, "run", lambda views: pytest.fail("it was not asked for"))
    net.plan(x.shape, workspace_limit=1 << 20)
    assert_same(net, model, {"x": x})


def test_more_shapes_than_are_kept():
    model = squeezed()
    net = from_onnx(model)
    for _ in range(4):
        for width in range(1, decided_branches.MOST + 4):
            assert_same(net, model, {"x": numbers((2, 6, 1, width))})
    assert len(networks(net)) == decided_branches.MOST


def rated(wide=3):
    """A convolution of two, by a number."""
    builder = Builder((1, 6, "h", "w"))
    filters = [builder.constant(numbers((8, 6, n, n)) / 3) for n in (1, wide)]
    one, other = (branch("Conv", "x", w, name=f"b{i}") for i, w in enumerate(filters))
    y = builder.node("If", builder.node("Equal", "rate", np.int64(16000)), then_branch=one, else_branch=other)
    model = builder.model(y)
    model.graph.input.append(helper.make_tensor_value_info("rate", TensorProto.INT64, []))
    return model


def test_branches_that_a_number_decides():
    """Also in calls of several threads."""
    model = rated()
    net = from_onnx(model)

    def call(i):
        assert_same(net, model, {"x": numbers((1, 6, 7, 9)), "rate": np.array(16000 if i % 3 else 8000)})

    for i in range(12):
        call(i)
    assert len(networks(net)) == 2
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(call, range(40)))


def test_numbers_that_change_in_each_call():
    model = rated()
    net = from_onnx(model)
    for rate in range(15_990, 16_010):
        assert_same(net, model, {"x": numbers((1, 6, 7, 9)), "rate": np.array(rate)})
    assert not networks(net)


def test_branches_that_data_decide_stay():
    builder = Builder((1, 6, "h", "w"))
    w = builder.constant(numbers((8, 6, 3, 3)))
    v = builder.constant(numbers((8, 6, 1, 1)))
    positive = builder.node("Greater", builder.node("ReduceSum", "x", keepdims=0), np.float32(0))
    y = builder.node(
        "If",
        positive,
        then_branch=branch("Conv", "x", w, name="a"),
        else_branch=branch("Conv", "x", v, name="b"),
    )
    model = builder.model(y)
    net = from_onnx(model)
    for i in range(8):
        assert_same(net, model, {"x": np.abs(numbers((1, 6, 5, 9))) * np.float32(1 if i % 2 else -1)})
    assert not networks(net)


def test_weights_that_lie_in_their_file(tmp_path):
    """Of initialisers and of Constants, which are read from there when they are needed."""
    model = squeezed(channels=96, hidden=72)
    (large,) = (t for t in model.graph.initializer if list(t.dims) == [1, 288, 96])
    model.graph.initializer.remove(large)
    value = numpy_helper.from_array(numpy_helper.to_array(large), "")
    model.graph.node.insert(0, helper.make_node("Constant", [], [large.name], value=value))
    onnx.save(model, path := str(tmp_path / "model.onnx"))
    net = from_onnx(path)
    for _ in range(decided_branches.SEEN + 2):
        assert_same(net, model, {"x": numbers((1, 6, 1, 5))})
    assert networks(net)


def test_plain_models_are_not_read_again():
    builder = Builder()
    assert not from_onnx(builder.model(builder.conv()))._instead


def test_models_with_large_constants_are_not_copied(monkeypatch):
    elements = 8 * 6 * (3 * 3 + 1) + 1  # two filters, and the rate to compare to
    for most in (elements - 1, elements):
        monkeypatch.setattr(decided_branches, "LARGEST", most)
        decides = any(isinstance(x, decided_branches.DecidedBranches) for x in from_onnx(rated())._instead)
        assert decides == (most == elements)


@pytest.mark.parametrize("failures", [1, decided_branches.TRIES])
def test_a_first_run_that_fails_may_have_had_wrong_data(failures, monkeypatch):
    """After some of them no other is tried."""
    model = squeezed()
    net, feeds = from_onnx(model), {"x": numbers((1, 6, 1, 7))}
    (reading,) = net._instead
    read, made = reading._read, []

    def reads(proto):
        found = read(proto)
        made.append(found)
        if len(made) <= failures:
            monkeypatch.setattr(found, "run", fails)
        return found

    def fails(views):
        raise ValueError("these data are wrong")

    monkeypatch.setattr(reading, "_read", reads)
    for _ in range(decided_branches.SEEN * (failures + 2)):
        assert_same(net, model, feeds)
    assert len(made) == min(failures + 1, decided_branches.TRIES)
    assert len(networks(net)) == (failures < decided_branches.TRIES)
