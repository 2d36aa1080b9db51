"""Windows larger than a map by less than a stride: ONNX Runtime gives one, of what is there."""

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from test_network_onnx import Builder, numbers, reference

from convalgos.onnx import Session


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ((1, 8), {"kernel_shape": [2, 2], "strides": [2, 2]}),  # a line of which one row is left
        ((2, 7), {"kernel_shape": [5, 3], "strides": [4, 2]}),
        ((3, 2), {"kernel_shape": [3, 4], "strides": [1, 5], "pads": [1, 0, 1, 1]}),
        ((3, 6), {"kernel_shape": [4, 2], "strides": [7, 1], "dilations": [2, 1]}),
        ((4, 1), {"kernel_shape": [2, 3], "strides": [3, 3], "ceil_mode": 1}),
        ((3, 8), {"kernel_shape": [1, 5], "strides": [1, 3], "dilations": [1, 2], "ceil_mode": 1}),
    ],
)
@pytest.mark.parametrize("counted", [0, 1])
def test_there_is_one_of_what_is_there(op, sizes, options, counted):
    b = Builder((2, 8, "h", "w"), opset=19)
    more = {"count_include_pad": counted} if op == "AveragePool" else {}
    model = b.model(b.node("Neg", b.node(op, b.conv(), **options, **more)))
    session = Session(model)
    for height, width in (sizes, (13, 17), sizes):  # larger maps share what is known of the windows
        x = numbers((2, 8, height, width))
        (y,), (right,) = session.run(None, {"x": x}), reference(model, {"x": x})
        np.testing.assert_allclose(y, right, rtol=0, atol=1e-5)


def test_windows_of_which_there_is_none_are_told():
    b = Builder((2, 8, "h", "w"), opset=19)
    session = Session(b.model(b.node("MaxPool", b.conv(), kernel_shape=[9, 9], strides=[2, 2])))
    with pytest.raises(ValueError, match="9 long, but x has 3 elements"):
        session.run(None, {"x": numbers((2, 8, 3, 12))})


@pytest.mark.parametrize("auto_pad", ["SAME_LOWER", "SAME_UPPER"])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_dilated_windows_of_same_padding(op, auto_pad):
    """ONNX Runtime pads them as windows that are not dilated, and so has fewer than ONNX infers."""
    b = Builder((2, 3, "w"), opset=19)
    y = b.node(op, "x", auto_pad=auto_pad, kernel_shape=[3], dilations=[2], strides=[2])
    model = b.model(b.node("Neg", y))
    session = Session(model)
    for width in (55, 20, 107, 55):
        x = numbers((2, 3, width))
        (y,), (right,) = session.run(None, {"x": x}), reference(model, {"x": x})
        np.testing.assert_allclose(y, right, rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 3, 8, 9), (1, 17, 5, 5), (1, 16, 33), (2, 5, 3, 4, 19)])
@pytest.mark.parametrize(
    "op", ["MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin", "ReduceMax of channels"]
)
def test_a_maximum_of_what_has_a_nan_is_nan(op, shape):
    """In ONNX Runtime that depends on where in a window it lies."""
    b, rank = Builder(shape, opset=18), len(shape) - 2
    op, *of_channels = op.split(" of ")
    if op == "MaxPool":
        y = b.node(op, "x", kernel_shape=[3] * rank, pads=[1] * 2 * rank)
    elif op == "GlobalMaxPool":
        y = b.node(op, "x")
    else:
        y = b.node(op, "x", np.int64([1 if of_channels else -1]))
    model = b.model(y)
    session = Session(model)
    for seed in range(4):
        x = numbers(shape)
        x[np.random.default_rng(seed).random(shape) < 0.04] = np.nan
        (y,) = session.run(None, {"x": x})
        lowest = np.where(np.isnan(x), np.float32(100), -100).astype("f4")  # maxima of 100 have one
        (of_nan,) = reference(model, {"x": lowest if op != "ReduceMin" else -lowest})
        (right,) = reference(model, {"x": np.where(np.isnan(x), np.float32(0), x)})
        has_nan = of_nan == (100 if op != "ReduceMin" else -100)
        np.testing.assert_array_equal(y, np.where(has_nan, np.nan, right))
