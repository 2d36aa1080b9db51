"""Networks that choose channels of maps: slices, splits, shuffles."""

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from test_network_onnx import Builder, check, kinds, numbers

from convalgos.network.graph import ChannelSelection, Foreign

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
