"""Convolutions whose filters are computed in each run, against the reference."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from test_network_onnx import Builder, kinds, numbers, reference

from convalgos.core.errors import Unsupported
from convalgos.cpu.elementwise.spreading import SpreadOperandPlan
from convalgos.network import from_onnx
from convalgos.network.dynamic_convolutions import DynamicConvolution
from convalgos.network.graph import Elementwise, Foreign
from convalgos.network.network import Network

CLOSE = 1e-5
GEOMETRIES = [
    {"pads": [1, 1, 1, 1]},
    {"pads": [0, 1, 2, 1], "strides": [2, 1]},
    {"dilations": [2, 1], "pads": [2, 0, 2, 1]},
    {"auto_pad": "SAME_UPPER"},
]
TRANSPOSED = [
    {"pads": [1, 1, 1, 1]},
    {"strides": [2, 2]},
    {"strides": [2, 3], "pads": [0, 1, 1, 0], "output_padding": [1, 2]},
    {"dilations": [2, 1], "strides": [1, 2]},
]


def modulated(groups=1, bias="", constant=False, **geometry):
    """A convolution of x, or of a constant, by a filter that is multiplied with means of x."""
    b = Builder(("n", 6, "h", "w"))
    mean = b.node("ReduceMean", "x", np.int64([0, 1, 2, 3]))
    w = b.node("Mul", numbers((4, 6 // groups, 3, 3)), b.node("Add", mean, np.float32(1)))
    more = [numbers((4,))] if bias == "constant" else []
    if bias == "computed":
        more = [b.node("ReduceMean", w, np.int64([1, 2, 3]), keepdims=0)]
    x = numbers((1, 6, 9, 7)) if constant else "x"
    return b.model(b.node("Conv", x, w, *more, group=groups, **geometry))


def transposed(groups=1, bias="", activation="", **geometry):
    """A transposed convolution of x by a filter that is multiplied with means of x."""
    b = Builder(("n", 6, "h", "w"))
    mean = b.node("ReduceMean", "x", np.int64([0, 1, 2, 3]))
    w = b.node("Mul", numbers((6, 4, 3, 3)), b.node("Add", mean, np.float32(1)))
    more = {"constant": [numbers((4 * groups,))], "": []}.get(bias)
    if more is None:
        more = [b.node("Mul", numbers((4 * groups,)), b.node("Reshape", mean, np.int64([1])))]
    y = b.node("ConvTranspose", "x", w, *more, group=groups, **geometry)
    return b.model(b.node(activation, y) if activation else y)


def close(y, right):
    assert y.shape == right.shape
    np.testing.assert_allclose(y, right, rtol=0, atol=CLOSE * max(1.0, np.abs(right).max(initial=0)))


@pytest.mark.parametrize("bias", ["", "constant", "computed"])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_filters_that_are_computed(groups, bias, geometry):
    """Each run has its own; nothing of one stays for the next."""
    model = modulated(groups, bias, **geometry)
    net = from_onnx(model)
    assert Foreign not in kinds(net) and DynamicConvolution in kinds(net)
    for n, h, w in ((1, 9, 7), (3, 6, 11), (1, 9, 7), (1, 5, 17)):
        x = numbers((n, 6, w, h)).swapaxes(2, 3) * 4  # another array than C order has
        close(net(x), reference(model, {"x": np.ascontiguousarray(x)})[0])


@pytest.mark.parametrize("bias", ["", "constant", "computed"])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("geometry", TRANSPOSED, ids=str)
def test_transposed_by_filters_that_are_computed(groups, bias, geometry):
    """With the activation behind them."""
    model = transposed(groups, bias, "LeakyRelu", **geometry)
    net = from_onnx(model)
    assert Foreign not in kinds(net) and DynamicConvolution in kinds(net)
    assert kinds(net).count(Elementwise) < 4  # the activation is none of its own
    for n, h, w in ((1, 9, 7), (3, 6, 11), (1, 1, 1), (2, 5, 17)):
        x = numbers((n, 6, w, h)).swapaxes(2, 3) * 4
        close(net(x), reference(model, {"x": np.ascontiguousarray(x)})[0])


@pytest.mark.parametrize("make", [modulated, transposed])
@pytest.mark.parametrize("most", [0, 400_000])
def test_limits_hold(make, most):
    """No workspace is larger than allowed; where nothing convolves without one, it is refused in words."""
    net, shape = from_onnx(make(pads=[1, 1, 1, 1])), (2, 6, 40, 40)
    try:
        steps = net.plan(shape, workspace_limit=most).planned.steps
    except Unsupported as refused:
        assert most == 0 and "workspace_limit=0" in str(refused)
    else:
        (plan,) = (s.plan.plan for s in steps if isinstance(s.step, DynamicConvolution))
        assert plan.scratch_bytes <= most


def test_a_constant_convolved_by_what_is_computed():
    model = modulated(constant=True)
    net = from_onnx(model)
    assert Foreign not in kinds(net)
    for n in (1, 2):
        x = numbers((n, 6, 5, 4)) + 1
        close(net(x), reference(model, {"x": x})[0])


def test_threads_have_filters_of_their_own():
    model = modulated(pads=[1, 1, 1, 1])
    net = from_onnx(model)
    given = [numbers((1, 6, 9, 7)) * (i + 1) for i in range(12)]
    right = [reference(model, {"x": x})[0] for x in given]
    with ThreadPoolExecutor(4) as pool:
        for y, expected in zip(pool.map(net, given), right, strict=True):
            close(y, expected)


def test_it_is_stored(tmp_path):
    model, x = modulated(bias="constant"), numbers((2, 6, 9, 7))
    net = from_onnx(model)
    y = net(x)
    net.save(tmp_path / "net")
    np.testing.assert_array_equal(Network.load(tmp_path / "net")(x), y)
    assert "dynamicconvolution" in str(net.explain(x.shape)).replace("dynamicconvolu ", "dynamicconvolution ")


@pytest.mark.parametrize("op", ["Mul", "Sub", "Div"])
@pytest.mark.parametrize("turned", [False, True])
def test_numbers_of_short_runs(op, turned):
    """A number for each few elements, as filters are scaled by channels: it is spread first."""
    b = Builder(("n", 5, 1, 1))
    whole = numbers((2, 7, 5, 3, 3)) + 3
    pair = ["x", whole] if turned else [whole, "x"]
    model = b.model(b.node(op, *pair))
    net = from_onnx(model)
    x = numbers((7, 5, 1, 1)) + 3
    close(net(x), reference(model, {"x": x})[0])
    plans = [getattr(s.plan, "_plan", None) for s in net.plan(x.shape).planned.steps]
    assert any(isinstance(plan, SpreadOperandPlan) for plan in plans)
