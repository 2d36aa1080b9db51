"""Products of computed matrices, and norms without a mean: against float64, and as ONNX spells them out."""

import numpy as np
import pytest
from test_network_odd_models import check_model
from test_network_onnx import Builder, numbers

import convalgos as ca
from convalgos.core.layouts import array_shape, laid
from convalgos.core.moves import moved
from convalgos.cpu.elementwise.norms import LayerNormPlan
from convalgos.cpu.elementwise.products import MatmulPlan
from convalgos.network.array_functions import ArrayFunction
from convalgos.network.attention import Attention, Product
from convalgos.network.graph import Foreign, LayerNormalization
from convalgos.network.onnx_reader.graph import from_onnx

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

TURNED = ("transpose", (0, 1, 3, 2))
HEADS = ("transpose", (0, 2, 1, 3))
CASES = [  # shapes of a and b, moves of a, b and y
    ((2, 3, 17, 40), (2, 3, 40, 33), ((), (), ())),
    ((2, 3, 5, 7), (2, 3, 70, 7), ((), (TURNED,), ())),
    ((1, 4, 24, 300), (1, 4, 24, 300), ((), (TURNED,), (TURNED,))),
    ((2, 19, 3, 8), (2, 19, 3, 8), ((HEADS,), (HEADS, TURNED), (HEADS,))),
    ((2, 3, 6, 9), (2, 3, 6, 11), ((TURNED,), (), ())),
    ((3, 1, 9, 4), (5, 4, 2), ((), (), ())),
    ((1, 31), (31, 1), ((), (), ())),
    ((4, 0, 5), (4, 5, 3), ((), (), ())),
    ((2, 3, 0), (2, 0, 5), ((), (), ())),
]


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("a_shape, b_shape, moves", CASES)
def test_products_against_float64(a_shape, b_shape, moves, whole):
    rng = np.random.default_rng(0)
    a, b = (
        (rng.integers(-9, 9, shape) if whole else rng.standard_normal(shape)).astype("f4")
        for shape in (a_shape, b_shape)
    )
    plan = MatmulPlan((a.shape, b.shape), moves, 0.5)
    plan.run((a, b), y := np.full(plan.y_shape, np.nan, "f4"))
    left, right = moved(a.astype("f8"), moves[0]), moved(b.astype("f8"), moves[1])
    wanted = moved(0.5 * (left @ right), moves[2])
    room = 0 if whole else 2.0**-23 * (left.shape[-1] + 2)
    assert y.shape == wanted.shape
    assert (np.abs(y - wanted) <= room * moved(np.abs(left) @ np.abs(right), moves[2])).all()


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_lengths_are_held_from_below(layout):
    shape, least = (2, 19, 5, 3), 0.25
    x = numbers(shape) * np.float32([1, 1e-3])[:, None, None, None]
    x[0, :, 0] = 0
    scale = np.full(19, 19**-0.5, "f4")
    plan = LayerNormPlan(shape, layout, scale, None, 0.0, False, 19**0.5 / least)
    plan.run((np.ascontiguousarray(laid(x, layout)),), y := np.empty(array_shape(layout, shape), "f4"))
    wanted = x / np.maximum(np.sqrt((x.astype("f8") ** 2).sum(1, keepdims=True)), least)
    assert np.allclose(y, laid(wanted, layout), rtol=1e-6, atol=1e-7)


def normalised(b, x, axis=-1):
    """As torch.nn.functional.normalize is exported."""
    length = b.node("ReduceL2", x, np.array([axis]), keepdims=1)
    length = b.node("Clip", length, np.float32(1e-12))
    return b.node("Div", x, b.node("Expand", length, b.node("Shape", x)))


def root_mean(b, x):
    mean = b.node("ReduceMean", b.node("Pow", x, np.float32(2)), np.array([-1]), keepdims=1)
    root = b.node("Sqrt", b.node("Add", mean, np.float32(1e-5)))
    return b.node("Mul", x, b.node("Div", np.float32(1), root))


def kinds(model):
    return [type(step) for step in from_onnx(model).graph.steps]


@pytest.mark.parametrize("batch", ["n", 2])
def test_cosine_attention_and_products_have_steps(batch):
    b = Builder((batch, 3, 10, 8), 18)
    turned = b.node("Transpose", b.node("Mul", "x", np.float32(2)), perm=[0, 1, 3, 2])
    k = b.node("Transpose", normalised(b, b.node("Sin", "x")), perm=[0, 1, 3, 2])
    scores = b.node("Mul", b.node("MatMul", normalised(b, "x"), k), numbers((3, 1, 1)))
    scores = b.node("Add", scores, numbers((1, 3, 10, 10)))
    y = b.node("MatMul", b.node("Softmax", scores, axis=-1), "x")
    z = b.node("MatMul", b.node("MatMul", "x", turned), root_mean(b, "x"))
    model = b.model(y, z)
    check_model(model, numbers((2, 3, 10, 8)))
    found = kinds(model)
    assert found.count(Attention) == 1 and found.count(Product) == 2
    assert found.count(LayerNormalization) == 3 and found.count(ArrayFunction) == 1  # of Sin


def test_differences_quotients_parts_and_pads_have_steps():
    b = Builder(("n", 6, 5, 8), 18)
    one, other = b.conv("x", c=6), b.conv("x", c=6)
    of_maps = b.node("GlobalAveragePool", one)
    above = b.node("Add", b.node("Relu", other), np.float32(1))
    y = b.node("Div", b.node("Sub", one, of_maps), above)
    less = b.node("Sub", of_maps, y)  # of one number each: broadcast over what is taken from it
    last = b.node("Transpose", b.node("Sub", y, other), perm=[0, 2, 3, 1])
    padded = b.node("Pad", last, np.array([0, 1, 0, 0, 0, 2, 3, 0]), np.float32(0.5))
    back = b.node("Relu", b.node("Transpose", padded, perm=[0, 3, 1, 2]))
    halves = b.node("Split", last, count=2, num_outputs=2, axis=-1)
    rows = b.node("Split", last, np.array([2, 3]), count=2, axis=1)
    model = b.model(b.conv(less), back, b.node("Mul", *halves), *(b.node("Relu", row) for row in rows))
    check_model(model, numbers((3, 6, 5, 8)))
    assert Foreign not in kinds(model)
    check_model(model, numbers((1, 6, 5, 8)))


def test_norms_of_other_dimensions_and_what_is_read_twice():
    b = Builder(("n", 6, 5, 7), 18)
    maps = b.conv("x", c=6)
    of_channels, rows = normalised(b, maps, 1), normalised(b, maps, 2)
    length = b.node("ReduceL2", "x", np.array([-1]), keepdims=1)
    held = b.node("Clip", length, np.float32(0.5))
    model = b.model(of_channels, rows, b.node("Div", "x", held), held)
    check_model(model, numbers((3, 6, 5, 7)))
    assert kinds(model).count(LayerNormalization) == 1


def test_a_network_with_a_norm_comes_back_from_its_file(tmp_path):
    """Its largest factor is infinite, for which JSON has no form."""
    b = Builder()
    x = b.node("Transpose", b.conv(), perm=[0, 2, 3, 1])
    net = from_onnx(b.model(b.node("LayerNormalization", x, numbers(8), axis=-1)))
    y = net(image := numbers((1, 8, 9, 7)))
    net.save(tmp_path / "net")
    assert np.array_equal(ca.network.load(tmp_path / "net")(image), y)
