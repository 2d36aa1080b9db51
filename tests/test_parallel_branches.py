"""Sums of convolutions of one map, which networks compute as one convolution."""

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from test_network_onnx import Builder, kinds, numbers, reference

from convalgos.network import from_onnx
from convalgos.network.graph import Convolution

SIZES = [(1, 9, 7), (3, 6, 11), (2, 5, 5)]


def close(net, model):
    for n, h, w in SIZES:
        x = numbers((n, 6, w, h)).swapaxes(2, 3)  # another array than C order has
        right = reference(model, {"x": np.ascontiguousarray(x)})[0]
        y = net(x)
        assert y.shape == right.shape
        np.testing.assert_allclose(y, right, rtol=0, atol=2e-5 * max(1.0, np.abs(right).max(initial=0)))


def branches(*parts, behind="Relu"):
    """The sum of convolutions of x, each (K, kernel, attributes), or of a batch norm of it (None)."""
    b, total = Builder(("n", 6, "h", "w")), None
    for part in parts:
        if part is None:
            y = b.node("BatchNormalization", "x", *(numbers((6,)) for _ in range(3)), numbers((6,)) ** 2 + 1)
        else:
            k, kernel, attributes = part
            w = numbers((k, 6 // attributes.get("group", 1), *kernel))
            y = b.node("Conv", "x", w, numbers((k,)), **attributes)
        total = y if total is None else b.node("Add", total, y)
    return b.model(b.node(behind, total))


ONE = [
    ((6, (3, 3), {"pads": [1, 1, 1, 1]}), (6, (1, 1), {}), None),
    (None, (6, (1, 1), {}), (6, (3, 3), {"pads": [1, 1, 1, 1]}), (6, (3, 3), {"pads": [1, 1, 1, 1]})),
    (None, (6, (3, 3), {"pads": [1, 1, 1, 1], "group": 6}), (6, (1, 1), {"group": 6})),
    ((6, (3, 5), {"pads": [1, 2, 1, 2], "group": 2}), (6, (1, 3), {"pads": [0, 1, 0, 1], "group": 2}), None),
    ((4, (3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}), (4, (1, 1), {"strides": [2, 2]})),
    ((4, (5, 3), {"pads": [4, 2, 4, 2], "dilations": [2, 2]}),
     (4, (3, 1), {"pads": [2, 0, 2, 0], "dilations": [2, 1]})),
    ((4, (3, 2), {"pads": [2, 0, 0, 1]}), (4, (1, 1), {}), (4, (2, 2), {"pads": [1, 0, 0, 1]})),
]  # fmt: skip
SEVERAL = [
    ((6, (1, 3), {"pads": [0, 1, 0, 1]}), (6, (3, 1), {"pads": [1, 0, 1, 0]})),  # neither holds the other
    ((6, (3, 3), {"pads": [1, 1, 1, 1]}), (6, (3, 3), {"pads": [2, 2, 2, 2], "dilations": [2, 2]})),
    ((6, (3, 3), {"pads": [1, 1, 1, 1], "group": 6}), (6, (1, 1), {})),  # which mixes other channels
    ((6, (3, 3), {"pads": [0, 1, 2, 1]}), (6, (2, 2), {"pads": [1, 0, 0, 1]})),
]


@pytest.mark.parametrize("parts", ONE, ids=str)
def test_one_convolution(parts):
    """Whatever their order, strides, groups and pads."""
    model = branches(*parts)
    net = from_onnx(model)
    assert kinds(net) == [Convolution]
    close(net, model)


@pytest.mark.parametrize("parts", SEVERAL, ids=str)
def test_what_stays_apart(parts):
    model = branches(*parts, behind="Sigmoid")
    net = from_onnx(model)
    assert kinds(net).count(Convolution) == 2
    close(net, model)


def test_of_other_maps_and_read_elsewhere():
    """What something else reads stays, and so do convolutions of other maps and those with activations."""
    b, pads = Builder(("n", 6, "h", "w")), {"pads": [1, 1, 1, 1]}
    first = b.node("Conv", "x", numbers((6, 6, 3, 3)), **pads)
    second = b.node("Conv", "x", numbers((6, 6, 1, 1)))
    third = b.node("Conv", second, numbers((6, 6, 3, 3)), **pads)
    fourth = b.node("Relu", b.node("Conv", "x", numbers((6, 6, 3, 3)), **pads))
    model = b.model(b.node("Add", b.node("Add", b.node("Add", first, second), third), fourth))
    net = from_onnx(model)
    assert kinds(net).count(Convolution) == 4
    close(net, model)
