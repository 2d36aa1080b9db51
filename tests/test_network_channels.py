"""Networks that choose channels of maps: slices, splits, shuffles."""

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
from test_network_onnx import CLOSE, Builder, check, kinds, numbers, reference

from convalgos.network.array_functions import ArrayFunction
from convalgos.network.graph import ChannelSelection, Convolution, Foreign, Pooling
from convalgos.network.onnx_reader.folding import fold_constants
from convalgos.network.onnx_reader.graph import from_onnx

X = (2, 8, 9, 7)


def test_units_of_shufflenet_read_only_maps_that_are_computed():
    b = Builder(X)

    def unit(first, second):
        """(the halves of what is joined and shuffled)"""
        whole = b.node("Concat", first, b.node("Relu", b.conv(second, 4, 4)), axis=1)
        parts = b.node("Reshape", whole, np.int64([0, 2, 4, 9, 7]))
        whole = b.node("Reshape", b.node("Transpose", parts, perm=[0, 2, 1, 3, 4]), np.int64([0, 8, 9, 7]))
        halves = (b.node("Slice", whole, np.int64([i]), np.int64([i + 4]), np.int64([1])) for i in (0, 4))
        return whole, *halves

    _, *halves = unit(b.conv("x", 4), b.conv("x", 4))
    _, *halves = unit(*halves)
    whole, *_ = unit(*halves)
    net = check(b.model(b.node("GlobalAveragePool", whole)), numbers(X))
    selections = [step for step in net.graph.steps if isinstance(step, ChannelSelection)]
    assert len(selections) == 3 and Foreign not in kinds(net)
    assert all(name.startswith(("conv", "relu")) for step in selections for name in step.inputs)


def test_slices_splits_and_gathers_of_channels():
    b = Builder(X)
    x = b.conv()
    parts = b.node("Split", x, np.int64([3, 5]), count=2, axis=-3)
    back = b.node("Slice", x, np.int64([-2]), np.int64([-100]), np.int64([1]), np.int64([-3]))
    few = b.node("Gather", x, np.int64([5, -1, 0]), axis=1)
    read = ((parts[0], 3), (parts[1], 5), (back, 3), (few, 3))
    net = check(b.model(*(b.conv(y, 4, c) for y, c in read)), numbers(X))
    assert sum(isinstance(step, ChannelSelection) for step in net.graph.steps) == 4
    assert Foreign not in kinds(net)


def test_what_only_looks_like_a_choice_of_channels_stays_foreign():
    b = Builder(X)
    x = b.conv()
    rows = b.node("Slice", x, np.int64([1]), np.int64([4]), np.int64([2]))
    one = b.node("Gather", x, np.int64(2), axis=1)
    parts = b.node("Reshape", x, np.int64([0, 2, 4, 9, 7]))
    turned = b.node("Transpose", parts, perm=[0, 2, 1, 4, 3])
    net = check(b.model(rows, one, b.node("Reshape", turned, np.int64([0, 8, 9, 7]))), numbers(X))
    assert ChannelSelection not in kinds(net)


def test_channels_counted_from_shapes_are_known_where_batch_and_sizes_are_not():
    b = Builder(("n", 8, "h", "w"))

    def size(value, axis):
        return b.node("Gather", b.node("Shape", value), np.int64(axis), axis=0)

    def one(number):
        return b.node("Unsqueeze", number, np.int64([0]))

    whole = b.conv()
    for _ in range(2):
        n, c, h, w = (one(size(whole, axis)) for axis in range(4))
        half = one(b.node("Div", size(whole, 1), np.int64(2)))
        parts = b.node("Reshape", whole, b.node("Concat", n, np.int64([2]), half, h, w, axis=0))
        turned = b.node("Transpose", parts, perm=[0, 2, 1, 3, 4])
        whole = b.node("Reshape", turned, b.node("Concat", n, c, h, w, axis=0))
        middle = b.node("Div", b.node("Add", size(whole, 1), np.int64([1])), np.int64([2]))
        end = b.node("Mul", middle, np.int64([2]))
        halves = [
            b.node("Slice", whole, first, last, np.int64([1]))
            for first, last in ((np.int64([0]), middle), (middle, end))
        ]
        whole = b.node("Concat", halves[1], b.conv(halves[0], 4, 4), axis=1)
    net = check(b.model(b.node("GlobalAveragePool", whole)), numbers(X))
    assert Foreign not in kinds(net)
    x = numbers((1, 8, 5, 12))
    assert net(x).shape == (1, 8, 1, 1)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
def test_sizes_are_computed_as_onnx_does_and_left_where_they_are_not_known(op):
    def sizes_of(shape):
        b = Builder(shape)
        sizes = b.node(op, b.node("Shape", b.conv()), np.int64([3, -3, 2, -5]))
        return b.model(b.node(op, sizes, np.int64([-2, 2, 4, 3])))

    x = numbers((2, 8, 9, 7))
    expected = reference(sizes_of(x.shape), {"x": x})[0].tolist()
    model = sizes_of(("n", 8, 9, "w"))
    fold_constants(model, {})
    constants = {t.name: onnx.numpy_helper.to_array(t).tolist() for t in model.graph.initializer}
    assert model.graph.output[0].name not in constants  # as two of them are not known
    assert reference(model, {"x": x})[0].tolist() == expected
    model = sizes_of(("n", 8, 9, 7))
    first = onnx.helper.make_node("Gather", [model.graph.output[0].name, "places"], ["known"])
    model.graph.node.append(first)
    model.graph.output.append(onnx.ValueInfoProto(name="known"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.int64([1, 2, 3]), "places"))
    fold_constants(model, {})
    constants = {t.name: onnx.numpy_helper.to_array(t).tolist() for t in model.graph.initializer}
    assert constants["known"] == expected[1:]


def test_means_go_before_1x1_convolutions_that_nothing_else_reads():
    windows = {"kernel_shape": [3, 2], "strides": [2, 2]}
    b = Builder(X)
    x = b.node("Relu", b.conv())

    def mean(y, **attributes):
        return b.node("AveragePool", y, **windows, **attributes)

    kept = b.conv(x, 4, size=1)
    apart = (
        mean(b.conv(x, 4)),  # which mixes pixels
        mean(b.node("Relu", b.conv(x, 4, size=1))),
        mean(b.conv(x, 4, size=1), pads=[1, 0, 1, 1]),
        b.node("AveragePool", b.conv(x, 4, size=1), kernel_shape=[2, 2], strides=[1, 1]),
        b.node("MaxPool", b.conv(x, 4, size=1), **windows),
        mean(kept),
        kept,
    )
    turned = mean(b.conv(x, 4, size=1)), b.node("GlobalAveragePool", b.conv(x, 4, size=1))
    net = check(b.model(*turned, *apart), numbers(X))
    makers = {step.output: step for step in net.graph.steps}
    is_turned = [
        isinstance(step := makers[name], Convolution) and isinstance(makers[step.inputs[0]], Pooling)
        for name in net.graph.outputs
    ]
    assert is_turned == [True, True, *[False] * len(apart)]


def of_all(found):
    return found if isinstance(found, tuple | list) else [found]


def by_number(op, where):
    """A product with one number before or behind a product with a matrix, or a convolution, past moves."""

    def write(b):
        number = np.float32(0.3) if op == "Mul" else np.full((1, 1, 1), -4, "f4")
        w = numbers((6, 5))
        if where == "before":
            return b.node("MatMul", b.node(op, "x", number), numbers((7, 5)))
        if where == "between":
            x = b.node("Reshape", b.node(op, b.node("Relu", "x"), number), np.int64([0, 6, 7, 1]))
            return b.node("Conv", x, numbers((4, 6, 3, 1)), numbers(4), pads=[1, 0, 1, 0])
        y = b.node(
            "Reshape", b.node("MatMul", b.node("Transpose", "x", perm=[0, 2, 1]), w), np.int64([0, -1])
        )
        return b.node("Tanh", b.node(op, b.node("Unsqueeze", y, np.int64([1])), number))

    return write


@pytest.mark.parametrize("op", ["Mul", "Div"])
@pytest.mark.parametrize("where", ["before", "between", "behind"])
def test_one_factor_of_all_is_part_of_a_filter(op, where):
    b = Builder(("n", "t" if where == "before" else 6, 7), 13)
    model = b.model(by_number(op, where)(b))
    graph = from_onnx(model).graph
    assert not any(getattr(step, "operation", "") == "multiply" for step in graph.steps), graph.steps
    assert not any(isinstance(step, ArrayFunction) for step in graph.steps), graph.steps
    for n in (1, 3):
        x = numbers((n, 6, 7))
        for found, right in zip(of_all(from_onnx(model)(x)), reference(model, {"x": x}), strict=True):
            np.testing.assert_allclose(found, right, 0, CLOSE * np.abs(right).max())


def test_factors_that_others_read_stay():
    b = Builder(("n", 6, 7), 13)
    scaled = b.node("Mul", "x", np.float32(0.3))
    product = b.node("MatMul", scaled, numbers((7, 5)))
    twice = b.node("Mul", product, np.float32(3))
    model = b.model(scaled, b.node("Relu", twice), product, b.node("Add", twice, product))
    x = numbers((2, 6, 7))
    for found, right in zip(of_all(from_onnx(model)(x)), reference(model, {"x": x}), strict=True):
        np.testing.assert_allclose(found, right, 0, CLOSE * np.abs(right).max())
