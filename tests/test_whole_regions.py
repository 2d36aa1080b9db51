"""Models that ONNX Runtime computes as a whole: by a session as a program itself would make it."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from test_network_onnx import Builder, numbers, reference

from convalgos.core.setting import threads_of_calls
from convalgos.network.onnx_reader.graph import from_onnx
from convalgos.network.onnx_reader.whole_regions import WholeRegion

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def whole_model(hidden=9, channels=5):
    """A GRU whose reset gate comes first, with two outputs in the other order, and a state."""
    builder = Builder(("t", "n", channels))
    builder.inputs["h"] = (1, "n", hidden)
    weights = [numbers((1, 3 * hidden, n)) / 3 for n in (channels, hidden)]
    y, last = builder.node("GRU", "x", *weights, "", "", "h", count=2, hidden_size=hidden)
    return builder.model(last, y)


def assert_same(net, model, times, images):
    feeds = {"x": numbers((times, images, 5)), "h": numbers((1, images, 9))}
    for y, right in zip(net(inputs=feeds), reference(model, feeds), strict=True):
        assert (y.shape, y.dtype) == (right.shape, right.dtype) and np.allclose(y, right, rtol=0, atol=2e-6)


def test_whole_models_on_any_sizes():
    model = whole_model()
    net = from_onnx(model)
    assert [type(other) for other in net._instead] == [WholeRegion]
    for times, images in ((3, 2), (1, 1), (7, 4), (3, 2)):
        assert_same(net, model, times, images)
    with threads_of_calls(1):
        assert_same(net, model, 4, 3)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda i: assert_same(net, model, i, 2), range(1, 12)))


def test_inputs_that_do_not_go_together_are_told():
    net = from_onnx(whole_model())
    with pytest.raises(ValueError, match="initial_h"):
        net(numbers((3, 2, 5)), numbers((1, 4, 9)))


def test_regions_beside_other_steps_are_not_alone():
    builder = Builder((6, 10, "n"))
    x = builder.node("Conv", "x", numbers((10, 10, 1)))
    weights = [numbers((1, 27, n)) / 3 for n in (10, 9)]
    y = builder.node("GRU", builder.node("Transpose", x, perm=[0, 2, 1]), *weights, hidden_size=9)
    assert not from_onnx(builder.model(y))._instead
