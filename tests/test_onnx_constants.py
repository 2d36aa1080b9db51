"""What is constant in a model from ONNX is computed when it is read."""

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed (CI installs it)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (CI installs it)")
import onnx
from onnx import TensorProto, numpy_helper
from test_network_onnx import SHAPE, Builder, check, kinds, numbers, reference

from convalgos.network.graph import Convolution, Foreign, View
from convalgos.network.onnx_reader import constants as onnx_constants
from convalgos.network.onnx_reader.loading import folded_model, given_model

NODES = {
    "Add": ("Add", [numbers((2, 3)), numbers((3,))], {}),
    "Add beyond 32 bits": ("Add", [np.array([2**31 - 5, 7], np.int32), np.array(9, np.int32)], {}),
    "Mul beyond 64 bits": ("Mul", [np.array([2**62 + 3, -7]), np.array([6, 2])], {}),
    "Cast to 32 bits": ("Cast", [np.array([2**40 + 5, -(2**31)])], {"to": onnx.TensorProto.INT32}),
    "And": ("And", [np.array([True, False]), np.array([True, True])], {}),
    "Cast": ("Cast", [np.arange(-2, 4)], {"to": onnx.TensorProto.FLOAT}),
    "Cast of floats": ("Cast", [np.array([2.7, -2.7], "f4")], {"to": onnx.TensorProto.INT64}),
    "Concat": ("Concat", [numbers((2, 3)), numbers((2, 1))], {"axis": -1}),
    "ConstantOfShape": ("ConstantOfShape", [np.array([2, 3])], {}),
    "Div": ("Div", [numbers((2, 3)), np.full(3, 7, "f4")], {}),
    "Div by zero": ("Div", [np.array([1, 0], "f4"), np.zeros(2, "f4")], {}),
    "Div of integers": ("Div", [np.array([-7, 7]), np.array([2, -2])], {}),
    "Equal": ("Equal", [np.array([3, 4]), np.array(3)], {}),
    "Expand": ("Expand", [numbers((2, 1)), np.array([3, 1, 4])], {}),
    "Gather": ("Gather", [numbers((4, 3)), np.array([[0, -1]])], {"axis": 1}),
    "Neg": ("Neg", [np.array([-7, 7])], {}),
    "Not": ("Not", [np.array([True, False])], {}),
    "Or": ("Or", [np.array([False, False]), np.array([True, False])], {}),
    "Pow": ("Pow", [np.array([2.0, 3], "f4"), np.array([2], "f4")], {}),
    "Pow of two types": ("Pow", [np.array([2.0, 3], "f4"), np.array([2])], {}),
    "Range": ("Range", [np.array(7), np.array(-4), np.array(-3)], {}),
    "Reshape": ("Reshape", [numbers((2, 3, 4)), np.array([0, -1])], {}),
    "ReduceMax": ("ReduceMax", [numbers((2, 3, 4)), np.array([0, -1])], {"keepdims": 0}),
    "ReduceProd": ("ReduceProd", [np.array([[2, 3], [4, 5]])], {}),
    "Resize": (
        "Resize",
        [np.arange(24, dtype="f4").reshape(1, 1, 4, 6), "", "", np.array([1, 1, 7, 3])],
        {"mode": "cubic", "coordinate_transformation_mode": "align_corners"},
    ),
    "ScatterND": ("ScatterND", [numbers((4, 3)), np.array([[2], [0]]), numbers((2, 3))], {}),
    "Shape": ("Shape", [numbers((4, 3, 2))], {"start": -2}),
    "Slice": (
        "Slice",
        [numbers((4, 5)), *map(np.array, ([-1, 1], [-(2**63), 2**63 - 1], [0, -1], [-2, 3]))],
        {},
    ),
    "Sin": ("Sin", [numbers((2, 3))], {}),
    "Softmax": ("Softmax", [numbers((2, 3))], {}),
    "Split": ("Split", [numbers((4, 3))], {"num_outputs": 2, "count": 2}),
    "Sub": ("Sub", [np.array([3], "u4"), np.array([5], "u4")], {}),
    "Sqrt": ("Sqrt", [np.array([2, 9], "f4")], {}),
    "Tile": ("Tile", [numbers((2, 3)), np.array([2, 1])], {}),
    "Transpose": ("Transpose", [numbers((2, 3, 4))], {}),
    "Unsqueeze": ("Unsqueeze", [numbers((2, 3)), np.array([0, -1])], {}),
    "Where": ("Where", [np.array([True, False]), numbers((3, 1)), numbers((2,))], {}),
}


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("case", NODES)
def test_nodes_of_constants_give_what_onnxruntime_makes_of_them(case):
    op, inputs, attributes = NODES[case]
    b = Builder()
    made = b.node(op, *inputs, **attributes)
    model = b.model(*([made] if isinstance(made, str) else made))
    loaded = folded_model(given_model(model))
    assert not loaded.nodes
    for name, right in zip(loaded.outputs, reference(model, {"x": numbers(SHAPE)}), strict=True):
        y = loaded.constant(name)
        assert y.dtype == right.dtype and y.shape == right.shape
        np.testing.assert_allclose(y, right, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("is_stored", [False, True])
def test_filters_are_computed_without_another_library(tmp_path, monkeypatch, is_stored):
    monkeypatch.setattr(onnx_constants, "_by_runtime", None)
    b = Builder((1, 64, 9, 9))
    w = b.node("Identity", b.node("Mul", numbers((3, 3, 64, 64)), np.float32(0.5)))
    w = b.node("Transpose", w, perm=[2, 3, 0, 1])
    model = b.model(b.node("Conv", b.node("Conv", "x", w), numbers((64, 64, 3, 3)) / 8))
    if is_stored:
        onnx.save(model, tmp_path / "m.onnx")
    before = model.SerializeToString()
    net = check(str(tmp_path / "m.onnx") if is_stored else model, numbers((1, 64, 9, 9)))
    assert kinds(net) == [Convolution, Convolution]
    assert model.SerializeToString() == before  # it is the caller's


def test_sizes_that_are_known_need_no_other_library(monkeypatch):
    monkeypatch.setattr(onnx_constants, "_by_runtime", None)
    b = Builder((1, 8, 6, 6))
    x = b.conv()
    sizes = b.node("Concat", b.node("Gather", b.node("Shape", x), np.array([0])), np.array([-1]), axis=0)
    net = check(b.model(b.node("Reshape", x, sizes)), numbers((1, 8, 6, 6)))
    assert kinds(net) == [Convolution, View]


@pytest.mark.parametrize(
    "sizes, is_kept", [("n h -1 4", True), ("h n 8", False), ("n n 8", False), ("-1 h 4", True)]
)
def test_open_sizes_that_a_reshape_keeps(sizes, is_kept):
    """One that stands at another place than before is computed when the network runs."""
    b = Builder(("n", "h", 8))
    read = {"n": np.array([0]), "h": np.array([1])}
    parts = [
        b.node("Gather", b.node("Shape", "x"), read[size]) if size in read else np.array([int(size)])
        for size in sizes.split()
    ]
    model = b.model(b.node("Relu", b.node("Reshape", "x", b.node("Concat", *parts, axis=0))))
    for shape in ((4, 4, 8), (3, 3, 8) if sizes == "n n 8" else (3, 5, 8)):
        check(model, numbers(shape))
    assert ("Shape" not in {node.op for node in folded_model(given_model(model)).nodes}) == is_kept


def test_large_filters_of_one_number_are_constants_of_one_element():
    """As the light models of the package `onnx` have them."""
    b = Builder((1, 4096))
    made = b.node("ConstantOfShape", np.array([600, 4096]), value=numpy_helper.from_array(np.float32([0.25])))
    model = b.model(b.node("Relu", b.node("Gemm", "x", made, transB=1)))
    assert folded_model(given_model(model)).constant(made).strides == (0, 0)
    assert Foreign not in kinds(check(model, numbers((1, 4096))))


def test_open_sizes_of_32_bits_and_dimensions_that_go():
    """As PaddlePaddle exports attention: nothing of it is left to ONNX Runtime."""
    b = Builder(("n", "t", 8))
    sizes = b.node("Cast", b.node("Shape", "x"), to=TensorProto.INT32)
    rows = b.node("Cast", b.node("Slice", sizes, np.array([1]), np.array([2])), to=TensorProto.INT64)
    parts = b.node("Reshape", "x", b.node("Concat", np.array([0]), rows, np.array([2, 4]), axis=0))
    first = b.node("Slice", b.node("Transpose", parts, perm=(2, 0, 1, 3)), np.array([0]), np.array([1]))
    y = b.node("Squeeze", first, np.array([0]))
    model = b.model(b.node("Identity", b.node("Relu", y)))
    for shape in ((4, 4, 8), (2, 5, 8), (1, 1, 8)):
        assert Foreign not in kinds(check(model, numbers(shape)))


def test_inputs_may_say_minus_one_for_sizes_that_are_open():
    b = Builder((-1, 8, -1, -1))
    model = b.model(b.node("Relu", b.conv()))
    assert kinds(check(model, numbers((2, 8, 5, 6)))) == [Convolution]
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_value == -1  # it is the caller's
