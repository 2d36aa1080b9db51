"""Networks that move elements, combine arrays of other shapes, and reduce dimensions, on odd sizes."""

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from test_network_onnx import Builder, check, kinds, numbers

from convalgos.core.layouts import LAYOUTS, array_shape, laid, to_logical
from convalgos.cpu.elementwise.pixel_moves import PixelMovePlan
from convalgos.network import from_onnx
from convalgos.network.graph import Convolution, Elementwise, Foreign
from convalgos.network.onnx_reader.loading import folded_model, given_model
from convalgos.network.pixel_moves import DepthToSpace, SpaceToDepth

BATCH = ("n", 12, 6, 10)


def native(net):
    assert Foreign not in kinds(net)
    return net


def in_space(deep, a, b):
    """(N, a * b * C, H, W) as (N, C, H * a, W * b)."""
    n, k, h, w = deep.shape
    parts = deep.reshape(n, a, b, k // (a * b), h, w).transpose(0, 3, 4, 1, 5, 2)
    return parts.reshape(n, -1, h * a, w * b)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("factors", [(2, 2), (3, 2), (1, 5)], ids=str)
def test_channels_become_pixels_and_pixels_channels(factors, layout):
    a, b = factors
    deep = numbers((2, 32 * a * b, 3, 5))
    larger = in_space(deep, a, b)
    for x, right, to_space in ((deep, larger, True), (larger, deep, False)):
        y = np.full(array_shape(layout, right.shape), np.nan, "f4")
        PixelMovePlan(larger.shape, factors, layout, to_space).run(
            (np.ascontiguousarray(laid(x, layout)),), y
        )
        np.testing.assert_array_equal(to_logical(y, layout, right.shape[1]), right)


def test_channels_in_any_order():
    order = np.random.default_rng(1).permutation(12)
    deep = numbers((3, 12, 3, 5))
    for to_space, x, right in (
        (True, deep, in_space(deep[:, order], 2, 3)),
        (False, in_space(deep, 2, 3), deep[:, order]),
    ):
        y = np.full(right.shape, np.nan, "f4")
        PixelMovePlan((3, 2, 6, 15), (2, 3), "channels_first", to_space, order).run((x,), y)
        np.testing.assert_array_equal(y, right)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_pixel_shuffles_take_up_orders_and_let_activations_pass(mode):
    b = Builder(BATCH)
    y = b.node("DepthToSpace", b.conv(k=16, c=12), blocksize=2, mode=mode)
    y = b.node("LeakyRelu", y, alpha=0.2)
    y = b.node("SpaceToDepth", b.conv(y, 3, 4), blocksize=2)
    net = native(check(b.model(b.conv(y, 4, 12)), numbers((3, 12, 6, 10))))
    assert kinds(net) == [Convolution, DepthToSpace, Convolution, SpaceToDepth, Convolution]
    assert net.graph.steps[0].activation is not None
    assert net.graph.steps[1].order is None


def test_pixel_moves_that_reshapes_and_transposes_spell_out():
    b = Builder(BATCH)
    moves = (
        ([0, 3, 2, 2, 6, 10], [0, 1, 4, 2, 5, 3], [0, 3, 12, 20]),
        ([0, 2, 2, 3, 6, 10], [0, 3, 4, 1, 5, 2], [0, 3, 12, 20]),
        ([0, 12, 3, 2, 5, 2], [0, 1, 3, 5, 2, 4], [0, 48, 3, 5]),
        ([0, 12, 3, 2, 5, 2], [0, 3, 5, 1, 2, 4], [0, 48, 3, 5]),
    )

    def moved(x, split, order, shape):
        y = b.node("Transpose", b.node("Reshape", x, np.int64(split)), perm=order)
        return b.node("Reshape", y, np.int64(shape))

    last = b.node("Transpose", "x", perm=[0, 2, 3, 1])  # as SuperPoint's, of three maps beside each other
    last = b.node("Reshape", last, np.int64([0, 6, 10, 3, 2, 2]))
    last = b.node("Reshape", b.node("Transpose", last, perm=[0, 3, 1, 4, 2, 5]), np.int64([0, 3, 12, 20]))
    net = native(check(b.model(*(moved("x", *how) for how in moves), last), numbers((2, 12, 6, 10))))
    assert len(kinds(net)) == 5 and kinds(net).count(DepthToSpace) == 3
    b = Builder(BATCH)
    other = moved("x", [0, 3, 2, 2, 6, 10], [0, 1, 4, 2, 3, 5], [0, 3, 12, 20])  # not dealt out along rows
    assert DepthToSpace not in kinds(check(b.model(other), numbers((2, 12, 6, 10))))


def sampled(b, x, begins, axes):
    for begin, axis in zip(begins, axes, strict=True):
        x = b.node("Slice", x, np.int64([begin]), np.int64([1 << 62]), np.int64([axis]), np.int64([2]))
    return x


@pytest.mark.parametrize("last", [False, True])
def test_slices_side_by_side_are_a_move_to_depth(last):
    b = Builder(BATCH)
    axes, channels = ((1, 2), -1) if last else ((2, 3), 1)
    x = b.node("Transpose", b.conv(c=12), perm=[0, 2, 3, 1]) if last else "x"
    parts = [sampled(b, x, begins, axes) for begins in ((0, 0), (1, 0), (0, 1), (1, 1))]
    y = b.node("Concat", *parts, axis=channels)
    y = b.node("MatMul", y, numbers((32, 5))) if last else b.conv(y, 5, 48)
    net = native(check(b.model(y), numbers((2, 12, 6, 10))))
    assert [step.order is None for step in net.graph.steps if isinstance(step, SpaceToDepth)] == [True]
    b = Builder(BATCH)  # one of the parts twice, and rows of odd length, which are slices as they are
    parts = [sampled(b, "x", begins, (2, 3)) for begins in ((0, 0), (1, 0), (1, 0), (1, 1))]
    one = b.node("Slice", "x", np.int64([1]), np.int64([9]), np.int64([3]), np.int64([3]))
    net = native(check(b.model(b.node("Concat", *parts, axis=1), one), numbers((2, 12, 6, 10))))
    assert SpaceToDepth not in kinds(net)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize("shape", [(1, 6, 10), (12, 1, 10), (12, 6, 1), (1, 1, 10), (12, 6, 10)], ids=str)
def test_arrays_that_span_parts_of_others(shape, op):
    b = Builder(BATCH)
    x = b.conv(c=12, k=12)
    x = b.node("Exp", b.node("Tanh", x))
    axes = [i + 1 for i, n in enumerate(shape) if n == 1]
    part = x
    if axes == [1]:
        part = b.node("ReduceMax", x, np.int64(axes))
    elif axes:
        ends = [0] * len(axes), [1] * len(axes), axes
        part = b.node("Slice", x, *map(np.int64, ends))
    part, constant = b.node("Exp", part), np.exp(np.tanh(numbers(shape)))
    y = [b.node(op, *pair) for pair in ((x, part), (part, x), (x, constant), (constant, x))]
    native(check(b.model(*(b.node("Relu", one) for one in y)), numbers((2, 12, 6, 10))))


def test_slopes_of_channels_in_all_layouts_and_products_with_numbers_of_pixels():
    b = Builder(("n", 32, 7, 5))
    y = b.node("PRelu", b.conv(k=32, c=32), np.abs(numbers((32, 1, 1))))
    y = b.node("PRelu", b.conv(y, 32, 32), np.abs(numbers((1, 7, 5))))
    pixels = b.node("Sigmoid", b.conv(y, 1, 32))
    y = b.node("Mul", b.conv(y, 32, 32), pixels)
    for n in (1, 3):
        native(check(b.model(b.conv(y, 8, 32)), numbers((n, 32, 7, 5))))


@pytest.mark.parametrize("kept", [0, 1])
@pytest.mark.parametrize("axes", [[1], [2], [3], [-1, -2], [1, 2], [1, 2, 3]], ids=str)
def test_reductions_of_any_run_of_dimensions(axes, kept):
    b = Builder(("n", 5, 7, 9))
    y = [b.node(op, "x", np.int64(axes), keepdims=kept) for op in ("ReduceMean", "ReduceSum", "ReduceMax")]
    y.append(b.node("ReduceL2", "x", np.int64(axes), keepdims=kept))
    native(check(b.model(*(b.node("Neg", one) for one in y)), numbers((3, 5, 7, 9))))


def test_dimensions_that_change_places_and_rows_side_by_side():
    b = Builder(("n", 3, 4, 5, 6))
    y = [
        b.node("Transpose", "x", perm=order) for order in ([0, 1, 3, 4, 2], [0, 1, 4, 2, 3], [0, 3, 4, 1, 2])
    ]
    y.append(b.node("Concat", "x", b.node("Neg", "x"), axis=2))
    y.append(b.node("Concat", "x", b.node("Neg", "x"), axis=0))
    native(check(b.model(*y), numbers((2, 3, 4, 5, 6))))


@pytest.mark.parametrize("first", [False, True])
def test_tokens_are_constants_added_to_a_pad(first):
    b = Builder(("n", 6, 5))
    x = b.node("MatMul", "x", numbers((5, 7)))
    size = b.node("Shape", x, start=0, end=1)
    token = b.node("Expand", numbers((1, 1, 7)), b.node("Concat", size, np.int64([1, 7]), axis=0))
    y = b.node("Concat", *((token, x) if first else (x, token)), axis=1)
    y = b.node("Add", y, numbers((1, 7, 7)))
    for n in (1, 3):
        net = native(check(b.model(b.node("MatMul", y, numbers((7, 3)))), numbers((n, 6, 5))))
    assert sum(isinstance(step, Elementwise) for step in net.graph.steps) == 1


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_last_cells_of_an_lstm(direction, images):
    d = 1 + (direction == "bidirectional")
    b = Builder((6, "n", 5))
    w, r, bias = (numbers(shape) / 3 for shape in ((d, 36, 5), (d, 36, 9), (d, 72)))
    given = {"hidden_size": 9, "direction": direction}
    y, h, c = b.node("LSTM", "x", w, r, bias, count=3, **given)
    again = b.node("LSTM", "x", w, r, bias, "", h, c, count=3, **given)
    native(check(b.model(y, c, h, *again), numbers((6, images, 5))))


def test_sums_named_by_letters_with_vectors_and_operands_in_the_other_place():
    b = Builder(("n", 3, 4, 5))
    rows = b.node("ReduceSum", "x", np.int64([-1]), keepdims=0)
    columns = b.node("ReduceMax", "x", np.int64([-2]), keepdims=0)
    y = [
        b.node("Einsum", "x", rows, equation="nhdl,nhd->nhl"),
        b.node("Einsum", rows, "x", equation="nhd,nhdl->nhl"),
        b.node("Einsum", "x", columns, equation="nhdl,nhl->nhd"),
        b.node("Einsum", "x", "x", equation="abts,abcs->abct"),
        b.node("Einsum", "x", equation="nhwc->nchw"),
    ]
    native(check(b.model(*y), numbers((2, 3, 4, 5))))


def test_softplus_as_exporters_spell_it_out_and_a_root_norm_without_its_epsilon():
    b = Builder(("n", 8))
    y = b.node("Where", b.node("Greater", "x", np.float32(20)), "x", b.node("Softplus", "x"))
    mean = b.node("ReduceMean", b.node("Pow", y, np.float32(2)), np.int64([1]))
    y = b.node("Mul", y, b.node("Reciprocal", b.node("Sqrt", mean)))
    x = numbers((3, 8)) * 30
    native(check(b.model(y), x))


def test_reshapes_to_sizes_that_only_the_batch_leaves_open():
    b = Builder(("n", 4, 6, 5))
    n = b.node("Shape", "x", start=0, end=1)
    rows = b.node(
        "Reshape", "x", b.node("Concat", b.node("Mul", n, np.int64([2])), np.int64([2, -1]), axis=0)
    )
    y = b.node("Reshape", b.node("Relu", rows), b.node("Concat", n, np.int64([4, -1]), axis=0))
    for images in (1, 3):
        native(
            check(
                b.model(b.conv(y, 2, 4, kernel_shape=[3], pads=[1, 1]) if False else y),
                numbers((images, 4, 6, 5)),
            )
        )


def test_makers_follow_the_nodes():
    b = Builder(("n", 4))
    model = folded_model(given_model(b.model(b.node("Relu", b.node("Exp", "x")))))
    relu = model.nodes[-1]
    model.nodes = model.nodes[:1]
    assert model.maker(relu.outputs[0]) is None
    assert model.maker(relu.inputs[0]) is model.nodes[0]


@pytest.mark.parametrize("op", ["Sub", "Div", "Mul"])
@pytest.mark.parametrize("shape", [(1, 1, 6, 10), (2, 12, 6, 10)], ids=str)
def test_what_integers_have_no_step_for_is_computed_dequantised(op, shape):
    b = Builder((2, 12, 6, 10))
    scale = np.float32(0.125), np.uint8(3)

    def quantised(x):
        return b.node("DequantizeLinear", b.node("QuantizeLinear", x, *scale), *scale)

    x = quantised(b.conv(c=12, k=12))
    other = quantised(b.node("Slice", b.node("Exp", x), *(np.int64(ends) for ends in ([0] * 4, shape))))
    away = b.node("Add", other, np.float32(2**0.5))  # from what lies between two steps of the scale
    y = b.node("QuantizeLinear", b.node(op, x, away), *scale)
    net = check(b.model(b.node("DequantizeLinear", y, *scale)), numbers((2, 12, 6, 10)), close=0.005)
    assert Foreign not in kinds(net)


@pytest.mark.parametrize("rows", [2, 0])
def test_products_whose_order_is_another_without_any_rows(rows):
    b = Builder(("n", 5))
    product = b.node("MatMul", "x", numbers((1, 1, 5, 3)))
    check(b.model(b.node("Transpose", product, perm=[0, 1, 3, 2])), numbers((rows, 5)))


@pytest.mark.parametrize("constant", [0, 1, None])
@pytest.mark.parametrize(
    "equation",
    ["bhwc,hkc->bhwk", "bhwc,wkc->bhwk", "abcd,kdb->ckab", "abcd,dk->kcab", "kc,abcd->abkd", "abcd,ce->eabd"],
)
def test_products_of_letters_in_any_order(equation, constant):
    """As of relative positions; parameters of a model are constant."""
    sizes = dict(zip("abcdehkw", (2, 3, 5, 4, 6, 3, 7, 4), strict=True))
    shapes = [tuple(sizes[letter] for letter in part) for part in equation.split("->")[0].split(",")]
    arrays = [numbers(shape) for shape in shapes]
    b = Builder(shapes[0])
    b.inputs = {"pq"[i]: shape for i, shape in enumerate(shapes) if i != constant}
    operands = [arrays[i] if i == constant else name for i, name in enumerate("pq")]
    net = from_onnx(b.model(b.node("Einsum", *operands, equation=equation)))
    assert Foreign not in kinds(net)
    y = net(*(array for i, array in enumerate(arrays) if i != constant))
    np.testing.assert_allclose(y, np.einsum(equation, *arrays), atol=1e-5)
    known = [step.constant for step in net.graph.steps if getattr(step, "constant", None) is not None]
    assert all(array.flags.c_contiguous for array in known)  # else plans of all sizes would copy it
