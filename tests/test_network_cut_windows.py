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
