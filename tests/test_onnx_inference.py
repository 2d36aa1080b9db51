"""Types of values of ONNX models are those that ONNX infers; usual models are read without its package."""

import os
import subprocess
import sys

import numpy as np
import pytest

from convalgos.network.onnx_reader.inference import OPERATORS, inferred_types
from convalgos.network.onnx_reader.messages import array_of, attribute_value, messages, tensor_of

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

F, I = TensorProto.FLOAT, TensorProto.INT64
MAPS = ("n", 6, 12, 8)


def ints(*values):
    return np.array(values, np.int64)


def ones(*shape):
    return np.ones(shape, np.float32)


# operator: (what it reads, an array of constants, a shape of others; its attributes; opset), for one or more
CASES = {
    "Conv": [
        ((MAPS, (4, 3, 3, 3)), {"group": 2, "pads": [1, 0, 2, 1], "strides": [2, 3], "dilations": [2, 1]},
         17),
        (((2, 6, 13, "w"), ones(4, 6, 3, 3), ones(4)), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, 11),
        (((2, 6, None), ones(4, 6, 3)), {}, 22),
    ],
    "ConvTranspose": [
        ((MAPS, (6, 2, 3, 4)), {"group": 3, "pads": [1, 0, 0, 1], "strides": [2, 3],
          "output_padding": [1, 2]}, 17),
        (((2, 6, 5), (6, 2, 3)), {"dilations": [2]}, 11),
    ],
    "MaxPool": [
        ((MAPS,), {"kernel_shape": [3, 2], "strides": [2, 3], "ceil_mode": 1}, 12),
        (((1, 2, 9, 10),), {"kernel_shape": [2, 3], "strides": [3, 3], "ceil_mode": 1, "pads": [1] * 4}, 22),
        (((1, 2, 9, 10),), {"kernel_shape": [3, 3], "dilations": [2, 1], "auto_pad": "VALID"}, 17),
    ],
    "AveragePool": [((MAPS,), {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [2, 2]}, 11)],
    "GlobalAveragePool": [((MAPS,), {}, 17)],
    "Resize": [
        ((MAPS, ones(0), np.array([1, 1, 2.6, 0.3], np.float32)), {}, 13),
        ((MAPS, ones(0), ones(0), ints(2, 6, 5, 7)), {}, 13),
        ((MAPS, np.array([1, 1, 2, 3], np.float32)), {}, 10),
    ],
    "DepthToSpace": [(((2, 8, "h", 3),), {"blocksize": 2}, 13)],
    "SpaceToDepth": [(((2, 8, 4, 6),), {"blocksize": 2}, 13)],
    "Reshape": [
        ((MAPS, ints(0, 3, -1)), {}, 17), (((2, 6, 4), ints(-1, 3)), {}, 17), (((2, 6), ints(3, 4)), {}, 11),
        (((2, "h", 4), ints(2, -1)), {}, 17), (((2, 6), ints(5, -1)), {"allowzero": 1}, 17),
    ],
    "Flatten": [((MAPS,), {}, 17), (((2, 3, 4),), {"axis": -1}, 17), (((1, "n", 1),), {"axis": 2}, 17)],
    "Transpose": [((MAPS,), {"perm": [0, 2, 3, 1]}, 17), ((MAPS,), {}, 17)],
    "Squeeze": [(((1, "n", 1, 3), ints(0, -2)), {}, 13), (((1, 4),), {"axes": [0]}, 11)],
    "Unsqueeze": [((("n", 3), ints(0, -1)), {}, 13), (((2, 4),), {"axes": [1, 3]}, 11)],
    "Concat": [((MAPS, ("n", 2, "h", 8)), {"axis": 1}, 17), (((2, "a"), (2, 3)), {"axis": -1}, 17)],
    "Split": [
        ((MAPS, ints(2, 4)), {"axis": 1}, 17), (((2, 6),), {"axis": 1, "split": [1, 5]}, 11),
        (((2, 6),), {"axis": -1}, 13), (((2, 7),), {"axis": 1, "num_outputs": 2}, 18),
    ],
    "Slice": [
        ((MAPS, ints(1, -3), ints(9, -1), ints(2, 3)), {}, 17),
        (((9, 4), ints(8), ints(-20), ints(0), ints(-2)), {}, 17),
        (((9, 4),), {"starts": [2], "ends": [100], "axes": [1]}, 9), (((9,), ints(5), ints(2)), {}, 17),
        (((9,), ints(-20), ints(7), ints(0), ints(3)), {}, 17),
        (((9,), ints(20), ints(-4), ints(0), ints(-1)), {}, 17), ((MAPS, ints(0), ints(-1), ints(2)), {}, 17),
        ((MAPS, (1,), ints(4), ints(1)), {}, 17), ((MAPS, (2,), (2,)), {}, 17),
    ],
    "GatherND": [((MAPS, (3, 2)), {}, 13), (((4, 5), ints(1, 2)), {}, 13)],
    "GridSample": [((MAPS, ("n", 5, 7, 2)), {}, 16)],
    "Range": [((ints(3).reshape(()), ints(12).reshape(()), ints(2).reshape(())), {}, 11),
              ((np.array(3.0), np.array(1.0), np.array(-0.5)), {}, 11), (((), (), ()), {}, 11)],
    "TopK": [((MAPS, ints(3)), {"axis": 1}, 13), ((MAPS, (1,)), {}, 13)],
    "GatherElements": [((MAPS, ("n", 1, "k", 8)), {"axis": 1}, 13)],
    "Size": [((MAPS,), {}, 13)],
    "IsNaN": [((MAPS,), {}, 13)],
    "Gather": [((MAPS, (3, "k")), {"axis": 1}, 17), (((4, 5), ints(2).reshape(())), {"axis": -1}, 17)],
    "Pad": [((MAPS, ints(0, 1, 2, 0, 0, 0, 3, -2)), {}, 17), (((2, 5),), {"pads": [0, 1, 0, 2]}, 10)],
    "Expand": [(((3, 1), ints(2, 1, 5)), {}, 17), ((("n", 1), ints(1, 4)), {}, 17)],
    "Tile": [(((2, 6, 4), ints(1, 2, 3)), {}, 13), (((3, "h"), ints(2, 2)), {}, 13)],
    "ScatterND": [(((4, 5), ints(1, 2).reshape(2, 1), (2, 5)), {}, 16)],
    "ConstantOfShape": [((ints(2, 3),), {}, 17)],
    "Shape": [((MAPS,), {}, 13), ((MAPS,), {"start": 1, "end": -1}, 15)],
    "LSTM": [((("t", 2, 8), (1, 20, 8), (1, 20, 5)), {"hidden_size": 5}, 14)],
    "GRU": [(((7, "n", 8), (2, 15, 8), (2, 15, 5)), {"hidden_size": 5, "direction": "bidirectional"}, 14)],
    "RNN": [(((7, "n", 8), (1, 5, 8), (1, 5, 5)), {"hidden_size": 5}, 14)],
    "ReduceMean": [
        ((MAPS,), {"axes": [-1, 2]}, 13), ((MAPS, ints(1)), {"keepdims": 0}, 18), (((2, 3),), {}, 18),
        (((2, 3),), {"noop_with_empty_axes": 1}, 18),
    ],
    "ReduceSum": [((MAPS, ints(1, 2)), {}, 13), (((2, 3),), {"axes": [0], "keepdims": 0}, 11)],
    "ArgMax": [((MAPS,), {"axis": 1, "keepdims": 0}, 13), ((MAPS,), {"axis": -1}, 13)],
    "Add": [
        ((MAPS, (6, 1, 1)), {}, 17), ((("n", 1), ("n", "m")), {}, 17), ((("n",), ("m",)), {}, 17),
        (((2,), (3,)), {}, 17),
    ],
    "Max": [((("n", 3), (3,), (1, 1)), {}, 13)],
    "Greater": [((MAPS, ()), {}, 13)],
    "Where": [((ones(3, 1) > 0, ("n", 1, 4), (4,)), {}, 16)],
    "Cast": [((MAPS,), {"to": TensorProto.FLOAT16}, 13)],
    "DequantizeLinear": [((np.ones((2, 3), np.int8), ones(), np.zeros((), np.int8)), {}, 13)],
    "QuantizeLinear": [((MAPS, ones(), np.zeros((), np.int8)), {}, 13)],
    "Gemm": [((("n", 5), (7, 5), (7,)), {"transB": 1}, 13), (((5, 4), (5, 7)), {"transA": 1}, 13)],
    "MatMul": [
        ((("n", 3, 4), (4, 5)), {}, 13), (((4,), (2, 4, 5)), {}, 13), (((2, 4), (4,)), {}, 13),
        (((4,), (4,)), {}, 13), (((2, 4), (3, 5)), {}, 13),
    ],
    **{op: [((MAPS, *[(6,)] * more), {}, 17)]
       for op, more in (("Relu", 0), ("Clip", 0), ("Softmax", 0), ("PRelu", 0), ("BatchNormalization", 4),
                        ("InstanceNormalization", 2))},
    "LayerNormalization": [((MAPS, (8,)), {}, 17)],
}  # fmt: skip
MORE_OUTPUTS = {"TopK": 2, "LSTM": 3, "GRU": 2, "RNN": 2, "MaxPool": 2, "Split": 2}


def model(op, inputs, attributes, opset):
    given = {f"x{i}": x for i, x in enumerate(inputs)}
    constants = [numpy_helper.from_array(x, n) for n, x in given.items() if isinstance(x, np.ndarray)]
    declared = [helper.make_tensor_value_info(n, F, x) for n, x in given.items() if isinstance(x, tuple)]
    made = [f"y{i}" for i in range(MORE_OUTPUTS.get(op, 1))]
    nodes = [helper.make_node(op, [*given], made, **attributes)]
    graph = helper.make_graph(
        nodes, "g", declared, [onnx.ValueInfoProto(name=name) for name in made], constants
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def of_onnx(asked):
    """Types by ONNX; None where the model is none for it."""
    try:
        found = onnx.shape_inference.infer_shapes(asked, strict_mode=True, data_prop=True).graph
    except onnx.shape_inference.InferenceError:
        return None
    return {v.name: v.type.tensor_type for v in (*found.input, *found.output)}


def check(asked, refused=False):
    """What is inferred has the types of ONNX, and no size that is not ONNX's, but those it leaves open."""
    found, known = inferred_types(asked), of_onnx(asked)
    if known is None or refused:
        assert found is None
        return
    assert found is not None and found.keys() == known.keys()
    for name, tensor in known.items():
        assert found[name].kind == tensor.elem_type, name
        dims = [d.dim_value if d.HasField("dim_value") else d.dim_param for d in tensor.shape.dim]
        assert len(dims) == len(found[name].dims), (name, dims, found[name])
        for n, own in zip(dims, found[name].dims, strict=True):
            if isinstance(n, int) or (n and not n.startswith("unk__")):
                assert own == n, (name, dims, found[name].dims)
            else:
                assert isinstance(own, str) and own.startswith(f"{name}."), (name, dims, found[name].dims)


@pytest.mark.parametrize("op", CASES)
def test_operators_have_the_types_of_onnx(op):
    for case in CASES[op]:
        check(model(op, *case))


def test_which_operators_are_looked_at():
    told = {*CASES, *["Sub", "Mul", "Mod", "Div", "Equal", "Less", "Min"]}
    assert OPERATORS.keys() >= told
    assert {*OPERATORS.values()} == {OPERATORS[op] for op in told}, "a rule that no case reaches"


def test_windows_of_any_sizes():
    rng = np.random.default_rng(5)
    for _ in range(150):
        rank, op = int(rng.integers(1, 4)), str(rng.choice(["Conv", "MaxPool", "AveragePool", "LpPool"]))
        draw = lambda low, high, count=rank: rng.integers(low, high, count).tolist()  # noqa: E731
        attributes = {"kernel_shape": draw(1, 4), "strides": draw(1, 4), "pads": draw(0, 3, 2 * rank)}
        if op in ("MaxPool", "Conv") or rng.integers(2):
            attributes["dilations"] = draw(1, 3)
        if op != "Conv":
            attributes["ceil_mode"] = int(rng.integers(2))
        inputs = [(2, 4, *draw(3, 14))]
        if op == "Conv":
            inputs.append((3, 4, *attributes["kernel_shape"]))
        check(model(op, inputs, attributes, 22))


@pytest.mark.parametrize(
    ("factor", "dims"), [(1, ("n", 3, 8)), (2, ("y.0", 3, "y.2"))]
)  # of which ONNX leaves the last one open
def test_sizes_follow_from_shapes(factor, dims):
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Mul", ["n", "factor"], ["more"]),
        helper.make_node("Unsqueeze", ["n" if factor == 1 else "more", "first"], ["n1"]),
        helper.make_node("Concat", ["n1", "rest"], ["to"], axis=0),
        helper.make_node("Reshape", ["x", "to"], ["y"]),
    ]
    constants = {"zero": np.int64(0), "first": ints(0), "rest": ints(3, -1), "factor": np.int64(factor)}
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", F, ["n", 6, 4])], [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )  # fmt: skip
    found = inferred_types(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    assert found["y"].dims == dims


def test_sizes_that_only_a_run_knows():
    found = inferred_types(model("Reshape", [(2, 6), (3,)], {}, 17))
    assert found["y0"] == (F, ("y0.0", "y0.1", "y0.2"))
    assert inferred_types(model("Reshape", [(2, 6), ("k",)], {}, 17)) is None


def test_what_is_left_to_onnx():
    check(model("Conv", [(2, 6, 2), (4, 6, 3)], {}, 17), refused=True)  # a window that is larger
    check(model("NonZero", [(3, 4)], {}, 13), refused=True)
    check(model("Add", [(3, 4), (4,)], {"broadcast": 1}, 6), refused=True)


NAMES = "float32 float64 float16 int8 uint8 int16 uint16 int32 int64 bool uint32"


@pytest.mark.parametrize("name", NAMES.split())
def test_tensors_are_those_of_onnx(name):
    values = np.arange(-3, 3).reshape(2, 3).astype(name)
    kind = helper.np_dtype_to_tensor_dtype(values.dtype)
    for tensor in (
        numpy_helper.from_array(values, "t"),
        helper.make_tensor("t", kind, values.shape, values.reshape(-1).tolist()),
        tensor_of(values, "t"),
        tensor_of(values.T, "t"),
    ):
        found, known = array_of(tensor), numpy_helper.to_array(tensor)
        assert found.dtype == known.dtype == values.dtype and tensor.name == "t"
        np.testing.assert_array_equal(found, known)
    assert array_of(tensor_of(values[0, 0], "t")).shape == ()


def test_attributes_are_those_of_onnx():
    tensor = numpy_helper.from_array(ones(2), "t")
    for value in (1, 2.5, "word", [1, 2], [1.5], ["a", "b"], tensor, onnx.GraphProto(name="g")):
        attribute = helper.make_attribute("a", value)
        assert attribute_value(attribute) == helper.get_attribute_value(attribute)


USUAL = """
import sys
import numpy as np
from convalgos.onnx import Session
session, x = Session(sys.argv[1]), np.ones((2, 3, int(sys.argv[2]), 8), np.float32)
(y,) = session.run(None, {"x": x})
assert y.shape == (2, 5), y.shape
found = sorted({"onnx", "ml_dtypes", "onnxruntime"} & sys.modules.keys())
assert not found, found
import onnx  # now, and it is the same classes
(other,) = Session(onnx.load(sys.argv[1])).run(None, {"x": x})
assert np.array_equal(other, y)
"""


LINES_OF_TEXT = [  # which go together where one row of outputs is left
    helper.make_node("AveragePool", ["a"], ["row"], kernel_shape=[48, 1], strides=[48, 1]),
    helper.make_node("ReduceMean", ["a"], ["mean"], axes=[2]),
    helper.make_node("Mul", ["row", "mean"], ["product"]),
    helper.make_node("Concat", ["product", "mean"], ["both"], axis=1),
    helper.make_node("Conv", ["both", "w8"], ["wide"], pads=[0, 1, 0, 1]),
    helper.make_node("Add", ["wide", "mean"], ["r"]),
]


@pytest.mark.parametrize(
    ("height", "inner"),
    [(9, [helper.make_node("Relu", ["a"], ["r"])]), (48, LINES_OF_TEXT)],
    ids=["", "text"],
)
def test_usual_models_run_without_the_package(tmp_path, height, inner):
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["a"], pads=[1] * 4),
        *inner,
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Reshape", ["p", "to"], ["f"]),
        helper.make_node("Gemm", ["f", "m"], ["y"]),
    ]
    constants = {
        "w": ones(4, 3, 3, 3),
        "b": ones(4),
        "m": ones(4, 5),
        "to": ints(0, -1),
        "w8": ones(4, 8, 1, 3),
    }
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", F, ["n", 3, "h", "w"])],
        [helper.make_tensor_value_info("y", F, ["n", 5])],
        [numpy_helper.from_array(v, k) for k, v in constants.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, path := str(tmp_path / "usual.onnx"))
    ran = subprocess.run(
        [sys.executable, "-c", USUAL, path, str(height)], capture_output=True, text=True, env=os.environ
    )
    assert ran.returncode == 0, ran.stderr[-2000:]


def test_the_classes_are_those_of_onnx():
    assert messages().ModelProto is onnx.ModelProto
