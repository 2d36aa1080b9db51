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
    """A GRU with a limit of its gates, with two outputs in the other order, and a state."""
    builder = Builder(("t", "n", channels))
    builder.inputs["h"] = (1, "n", hidden)
    weights = [numbers((1, 3 * hidden, n)) / 3 for n in (channels, hidden)]
    y, last = builder.node("GRU", "x", *weights, "", "", "h", count=2, hidden_size=hidden, clip=2.0)
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
    y = builder.node("GRU", builder.node("Transpose", x, perm=[0, 2, 1]), *weights, hidden_size=9, clip=2.0)
    assert not from_onnx(builder.model(y))._instead


@pytest.mark.parametrize("kind", ["FLOAT8E4M3FN", "BFLOAT16"])
def test_types_that_numpy_has_from_others_are_kept(kind):
    """ONNX Runtime itself gives their bits as whole numbers, or nothing."""
    onnx = pytest.importorskip("onnx")
    to = getattr(onnx.TensorProto, kind)
    builder = Builder((2, "n"))
    net = from_onnx(builder.model(builder.node("Cast", "x", to=to)))
    y = net(x := np.float32([[1, -2, 0.5], [4, 0, -8]]))
    assert y.dtype == onnx.helper.tensor_dtype_to_np_dtype(to) and np.array_equal(y.astype("f4"), x)
