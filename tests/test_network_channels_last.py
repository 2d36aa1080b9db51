"""Networks whose channels come last in places: transposes, norms over channels, products with matrices."""

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from test_network_onnx import Builder, check, kinds, numbers

from convalgos.core.epilogue import Activation
from convalgos.network.graph import Convolution, Elementwise, Foreign, LayerNormalization, Transpose, View
from convalgos.network.softmax import Softmax

TO_LAST, FROM_LAST = [0, 2, 3, 1], [0, 3, 1, 2]


def spelled_out(b, x, axis, epsilon=1e-6):
    left = b.node("Sub", x, b.node("ReduceMean", x, np.int64([axis])))
    square = b.node("Pow", left, np.float32(2)) if axis == 1 else b.node("Mul", left, left)
    variance = b.node("ReduceMean", square, np.int64([axis]))
    return b.node("Div", left, b.node("Sqrt", b.node("Add", variance, np.float32(epsilon))))


def block(b, x, norm):
    """One of ConvNeXt: a depthwise convolution, a norm, two products with GELU between, scaled and summed."""
    y = b.node("Conv", x, numbers((8, 1, 7, 7)), group=8, pads=[3] * 4)
    y = norm(b.node("Transpose", y, perm=TO_LAST))
    y = b.node("Gelu", b.node("Add", numbers(32), b.node("MatMul", y, numbers((8, 32)))))
    y = b.node("Add", b.node("MatMul", y, numbers((32, 8))), numbers(8))
    return b.node("Add", b.node("Mul", numbers((8, 1, 1)), b.node("Transpose", y, perm=FROM_LAST)), x)


@pytest.mark.parametrize("spelled", [False, True])
def test_a_block_of_convnext_is_four_steps(spelled):
    b, affine = Builder(), (numbers(8), numbers(8))

    def norm(x):
        if not spelled:
            return b.node("LayerNormalization", x, *affine, axis=-1, epsilon=1e-6)
        return b.node("Add", b.node("Mul", spelled_out(b, x, -1), affine[0]), affine[1])

    net = check(b.model(block(b, b.conv(), norm)), numbers((1, 8, 9, 7)))
    assert kinds(net) == [Convolution, Convolution, LayerNormalization, Convolution, Convolution]
    _, _, normalised, wide, last = net.graph.steps
    assert wide.activation == Activation("gelu") and len(last.inputs) == 2
    assert normalised.scale is None  # the product behind it has it in its filter


def test_norms_of_maps_keep_what_a_padded_convolution_would_have_to_shift():
    b = Builder()
    x = b.conv()
    y = b.node("Add", b.node("Mul", spelled_out(b, x, 1), numbers((8, 1, 1))), numbers((8, 1, 1)))
    net = check(b.model(b.conv(y)), numbers((1, 8, 9, 7)))
    assert kinds(net) == [Convolution, LayerNormalization, Convolution]
    assert net.graph.steps[1].scale is not None


def test_transposes_that_meet_are_none_and_others_move_nothing():
    b = Builder()
    x = b.node("Transpose", b.conv(), perm=TO_LAST)
    pixels = b.node("Add", b.node("Relu", x), b.node("Transpose", "x", perm=TO_LAST))
    rows = b.node("LayerNormalization", b.node("Reshape", pixels, np.int64([0, -1, 8])), numbers(8))
    turned = b.node("Transpose", b.node("MatMul", rows, numbers((8, 5))), perm=[0, 2, 1])
    maps = b.node("Transpose", pixels, perm=FROM_LAST)
    sides = [b.node("Transpose", maps, perm=order) for order in ([0, 1, 3, 2], [2, 1, 0, 3])]
    net = check(b.model(pixels, b.conv(maps), turned, *sides), numbers((1, 8, 9, 7)))
    assert Foreign not in kinds(net)
    steps = net.plan((1, 8, 9, 7)).planned.steps
    assert all(s.plan is None for s in steps if isinstance(s.step, Transpose))


def test_local_response_norms_are_steps_of_their_own():
    b = Builder()
    y = b.node("LRN", b.node("Relu", b.conv()), size=5, alpha=0.5, beta=0.75, bias=2.0)
    net = check(b.model(b.conv(b.node("LRN", y, size=3))), numbers((1, 8, 9, 7)))
    assert Foreign not in kinds(net)


def test_norms_that_are_not_over_one_dimension_or_are_read_inside_stay_foreign():
    b = Builder()
    x = b.conv()
    mean = b.node("ReduceMean", x, np.int64([1]))
    left = b.node("Sub", x, mean)
    variance = b.node("ReduceMean", b.node("Mul", left, left), np.int64([1]))
    read = b.node("Div", left, b.node("Sqrt", b.node("Add", variance, np.float32(1e-6))))
    over_rows = b.node("LayerNormalization", x, numbers((9, 7)), axis=2)
    net = check(b.model(read, over_rows, b.node("Relu", mean)), numbers((1, 8, 9, 7)))
    norms = [step for step in net.graph.steps if isinstance(step, LayerNormalization)]
    assert not any(step.centred for step in norms) and Foreign in kinds(net)


def test_rows_of_arrays_of_six_dimensions():
    """As of windows of windows: a product with its bias and activation, a norm and a softmax of rows."""
    b = Builder(("n", 2, 3, 2, 5, 8))
    product = b.node("Relu", b.node("Add", b.node("MatMul", "x", numbers((8, 24))), numbers(24)))
    norm = b.node("LayerNormalization", product, numbers(24), numbers(24))
    model = b.model(b.node("Softmax", b.node("Mul", norm, norm)))
    for n in (3, 1, 0):
        net = check(model, numbers((n, 2, 3, 2, 5, 8)))
    layer, *others = (s for s in net.graph.steps if not isinstance(s, View | Transpose | Elementwise))
    assert [type(s) for s in (layer, *others)] == [Convolution, LayerNormalization, Softmax]
    assert layer.bias is not None and layer.activation == Activation("relu")


@pytest.mark.parametrize("other", ["", "scores read", "scores shown", "shares read"])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_shares_that_are_an_output_are_written_over_their_scores(op, other):
    """Which are computed where the output lies, unless somebody else has them."""
    b = Builder((2, 8, 9, 7))
    rows = b.node("Reshape", b.node("Transpose", b.conv(), perm=TO_LAST), np.int64([0, 63, 8]))
    scores = b.node("Add", b.node("MatMul", rows, numbers((8, 70))), numbers(70))
    shares = b.node(op, scores)
    more = {
        "scores read": b.node("Relu", scores),
        "scores shown": scores,
        "shares read": b.node("Exp", shares),
    }
    model = b.model(shares, *([more[other]] if other else []))
    first, second = numbers((2, 8, 9, 7)), numbers((2, 8, 9, 7))
    net = check(model, first)
    found = [net(x) for x in (first, second, first)]
    y = [given[0] if other else given for given in found]
    np.testing.assert_array_equal(y[0], y[2])
    assert not np.array_equal(y[0], y[1])
    maker = next(s for s in net.graph.steps if isinstance(s, Softmax)).inputs[0]
    assert (maker in net.plans()[0]._executor.lies_in) == (other in ("", "shares read"))
