"""Networks whose sizes depend on what is computed: each stage is planned for the sizes that a run finds."""

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import json
from concurrent.futures import ThreadPoolExecutor

from test_network_onnx import Builder, kinds, numbers, reference

import convalgos as ca
from convalgos.network.graph import Foreign
from convalgos.network.network import Network

CLOSE = 1e-5


def same(net, model, x):
    given, expected = net(x), reference(model, {"x": x})
    for y, right in zip(given if isinstance(given, tuple) else (given,), expected, strict=True):
        assert y.shape == right.shape and y.dtype == right.dtype
        np.testing.assert_allclose(y, right, rtol=0, atol=CLOSE * max(1.0, np.abs(right).max(initial=0)))
    return given


def repeated():
    """Pixels repeated as often as a first layer says, and convolved: a length regulator."""
    b = Builder(("n", 8, 1, "t"))
    first = b.conv()
    total = b.node("ReduceMax", b.node("Abs", first), keepdims=0)
    length = b.node("Add", b.node("Cast", b.node("Mul", total, np.float32(3)), to=7), np.int64(2))
    size = b.node("Gather", b.node("Shape", "x"), np.int64(3))
    places = b.node("Mod", b.node("Range", np.int64(0), length, np.int64(1)), size)
    longer = b.node("Gather", first, places, axis=3)
    batch = b.node("Gather", b.node("Shape", "x"), np.int64([0]))
    rows = b.node("Reshape", b.conv(longer), b.node("Concat", batch, np.int64([8, -1]), axis=0))
    return b.model(rows, first, b.node("Unsqueeze", length, np.int64([0])))


def boxes():
    """Boxes of a head, those that overlap others left out, and what else is known of them."""
    b = Builder(("n", 8, "h", "w"))
    head = b.node("Transpose", b.node("Reshape", b.conv(k=5), np.int64([0, 5, -1])), perm=[0, 2, 1])
    corner, size, scores = b.node("Split", head, np.int64([2, 2, 1]), axis=2, count=3)
    corner = b.node("Mul", corner, np.float32(8))
    box = b.node("Concat", corner, b.node("Add", corner, b.node("Exp", size)), axis=2)
    by_class = b.node("Transpose", scores, perm=[0, 2, 1])
    above = b.node("Sub", by_class, b.node("ReduceMean", by_class, np.int64([2])))  # some are
    found = b.node("NonMaxSuppression", box, above, np.int64([50]), np.float32([0.3]), np.float32([0.01]))
    taken = b.node("GatherND", box, b.node("Gather", found, np.int64([0, 2]), axis=1))
    return b.model(taken, found)


def test_lengths_that_are_computed():
    model = repeated()
    net = ca.network.from_onnx(model)
    assert Foreign not in kinds(net) and len(net.stages) == 2
    lengths = set()
    for n, t, scale in ((1, 9, 1), (3, 9, 2), (1, 13, 0.1), (1, 9, 3), (2, 1, 1)):
        lengths.add(same(net, model, scale * numbers((n, 8, 1, t)))[0].shape[2])
    assert len(lengths) > 2


def test_boxes_that_are_found():
    """Also none of them."""
    model = boxes()
    net = ca.network.from_onnx(model)
    counts = {len(same(net, model, numbers((n, 8, h, 6)))[0]) for n, h in ((1, 5), (2, 7), (1, 9))}
    assert len(counts) > 1
    assert not len(same(net, model, np.zeros((1, 8, 3, 3), "f4"))[0])


@pytest.mark.parametrize("last", [False, True])
def test_elements_that_are_not_zero(last):
    """NonZero in front of further layers, and as an output."""
    b = Builder(("n", 8, "h", "w"))
    active = b.node("Relu", b.conv())
    places = b.node("Transpose", b.node("NonZero", active), perm=[1, 0])
    if last:
        model = b.model(places, active)
    else:
        column = b.node("Reshape", b.node("GatherND", active, places), np.int64([1, 1, -1, 1]))
        model = b.model(b.conv(column, c=1))
    net = ca.network.from_onnx(model)
    for shape in ((1, 8, 3, 5), (2, 8, 4, 1)):
        same(net, model, numbers(shape))


def test_they_are_stored_and_run_by_several_threads(tmp_path):
    for model, shape in ((repeated(), (1, 8, 1, 9)), (boxes(), (1, 8, 5, 6))):
        ca.network.from_onnx(model).save(tmp_path / "net")
        net = Network.load(tmp_path / "net")
        assert len(net.stages) == len(ca.network.from_onnx(model).stages)
        given = [numbers(shape) for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda x, net=net, model=model: same(net, model, x), given))


def test_they_are_planned_as_far_as_sizes_are_known():
    """The first stage before any call; the others as the last call found them."""
    model, shape = repeated(), (1, 8, 1, 9)
    net = ca.network.from_onnx(model)
    plan = net.plan(shape)
    assert [s.plan is not None for s in plan.stages] == [True, False]
    assert len(net.stages[0].plans()) == 1 and not net.stages[1].plans()
    told = str(plan.explain())
    assert "network in 2 stages" in told and "none has run so far" in told and "convolution" in told
    x = numbers(shape)
    for y, right in zip(plan.run([x]), net(x), strict=True):
        np.testing.assert_array_equal(y, right)
    assert len(net.stages[0].plans()) == 1  # calls run by the plan that was made
    explained = net.explain(shape, timed=True)
    assert "the last call found" in str(explained) and explained.measured_s > 0
    assert [s.explanation is not None for s in explained.stages] == [True, True]
    assert {row["stage"] for row in explained._frame_rows()} == {1, 2}
    assert json.loads(json.dumps(explained.to_dict()))["stages"][1]["of_call"]
    assert net.plan((2, 8, 1, 5), workspace_limit=1 << 20).stages[0].plan.limits.workspace_limit == 1 << 20
    with pytest.raises(ValueError, match="shape"):
        net.plan((1, 7, 1, 9))


def test_networks_of_known_sizes_have_no_stages():
    b = Builder()
    assert not ca.network.from_onnx(b.model(b.conv())).stages
