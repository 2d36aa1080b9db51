"""Functions of elements of all types by one kernel: as ONNX Runtime computes them, to the bit."""

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from convalgos.core.errors import Unsupported
from convalgos.network import array_copies, typed_plans
from convalgos.network.array_functions import ArrayFunction
from convalgos.network.known_run import can_be_known
from convalgos.network.typed_kernels import BLOCK
from convalgos.network.typed_plans import FEW, TypedPlan, typed_plan
from convalgos.onnx import Session

KINDS = {
    "b1": TensorProto.BOOL, "u1": TensorProto.UINT8, "i1": TensorProto.INT8, "u2": TensorProto.UINT16,
    "i2": TensorProto.INT16, "u4": TensorProto.UINT32, "i4": TensorProto.INT32, "i8": TensorProto.INT64,
    "f4": TensorProto.FLOAT,
}  # fmt: skip
OPERATORS = {
    "add": "Add", "subtract": "Sub", "multiply": "Mul", "quotient": "Div", "equal": "Equal", "less": "Less",
    "greater": "Greater", "less_equal": "LessOrEqual", "greater_equal": "GreaterOrEqual", "mod": "Mod",
    "logical_and": "And", "logical_or": "Or", "logical_xor": "Xor", "logical_not": "Not", "fmod": "Mod",
    "negative": "Neg", "absolute": "Abs", "sign": "Sign", "where": "Where", "clip": "Clip", "cast": "Cast",
    "maximum": "Max", "minimum": "Min", "isnan": "IsNaN", "isinf": "IsInf",
}  # fmt: skip
COMPARED = ("equal", "less", "greater", "less_equal", "greater_equal")
SHAPES = [
    ((3, 4, 5), (4, 5), (5,)), ((), (), ()), ((2, 1, 37), (5, 1), (1,)), ((0, 3), (3,), ()),
    ((2 * BLOCK + 1,),) * 3, ((17, 19), (17, 1), (19,)), ((2, 3, 1, 5), (2, 1, 4, 1), (5,)),
]  # fmt: skip
ODD = np.float32(
    [np.nan, np.inf, -np.inf, 3e9, -3e9, 1e20, 300.7, -1.5, 2.0**31, -(2.0**31), 0, -0.0, 2.0**63]
)


def elements(kind, shape, rng, divides=False):
    """Small ones and any there are, odd ones among the floats; neither 0 nor -1 of what divides."""
    dtype = np.dtype(kind)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.kind == "f":
        return np.where(rng.random(shape) < 0.3, rng.choice(ODD, shape), rng.normal(0, 3, shape)).astype(
            dtype
        )
    ends = np.iinfo(dtype)
    any_ = rng.integers(ends.min, ends.max, shape, dtype=dtype, endpoint=True)
    found = np.where(rng.random(shape) < 0.6, rng.integers(max(ends.min, -5), 6, shape), any_).astype(dtype)
    if divides:
        found = np.where((found == 0) | (found == ends.max if not ends.min else found == -1), 3, found)
    return np.asarray(found, dtype)


def by_runtime(function, arrays, dtype):
    attributes = {"fmod": {"fmod": 1}, "cast": {"to": KINDS[np.dtype(dtype).str[1:]]}}.get(function, {})
    names = [f"x{i}" for i in range(len(arrays))]
    node = helper.make_node(OPERATORS[function], names, ["y"], **attributes)
    inputs = [
        helper.make_tensor_value_info(name, KINDS[x.dtype.str[1:]], x.shape)
        for name, x in zip(names, arrays, strict=True)
    ]
    graph = helper.make_graph([node], "graph", inputs, [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        run = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception:  # it has no such operator of this type
        return None
    return run.run(None, dict(zip(names, arrays, strict=True)))[0]


def check(function, arrays, dtype, rng):
    shape = np.broadcast_shapes(*(x.shape for x in arrays))
    constant = rng.random(len(arrays)) < 0.3
    constant[0] &= len(arrays) > 1 and not constant.all()
    names = [f"x{i}" for i in range(len(arrays))]
    step = ArrayFunction(
        "node", tuple(n for n, c in zip(names, constant, strict=True) if not c), "y", function,
        np.dtype(dtype).name, tuple(x if c else None for x, c in zip(arrays, constant, strict=True)),
    )  # fmt: skip
    given = [x for x, c in zip(arrays, constant, strict=True) if not c]
    shapes = {name: x.shape for name, x in zip(names, arrays, strict=True)} | {"y": shape}
    plan = typed_plan(step, shapes, given[0].dtype.name)
    assert isinstance(plan, TypedPlan), (function, dtype)
    y = np.full(shape, 7, dtype)
    plan.bind(*given, y).run()
    wanted = by_runtime(function, arrays, dtype)
    wanted = step.computed(shape, given) if wanted is None else wanted
    assert (y.dtype, y.shape) == (wanted.dtype, wanted.shape)
    np.testing.assert_array_equal(y, wanted, f"{function} of {[x.dtype for x in arrays]}")


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "b1"])
def test_numbers(kind, shapes):
    rng = np.random.default_rng(5)
    a, b, c = (elements(kind, shape, rng) for shape in shapes)
    for function in COMPARED:
        check(function, [a, b], "b1", rng)
    check("maximum", [a, b], kind, rng)
    check("minimum", [a, b], kind, rng)
    check("where", [elements("b1", shapes[0], rng), b, c], kind, rng)
    check("where", [elements("b1", shapes[2], rng), b, a], kind, rng)
    ends = np.sort(rng.integers(0, 7, 2)).astype(kind)
    check("clip", [a, ends[:1].reshape(()), ends[1:].reshape(())], kind, rng)
    for to in KINDS:
        if (kind, to) != ("f4", "u4"):
            check("cast", [a], to, rng)
    if kind == "f4":
        check("isnan", [a], "b1", rng)
        check("isinf", [a], "b1", rng)
        return
    for function in ("add", "subtract", "multiply"):
        check(function, [a, b], kind, rng)
    for function in ("absolute", "sign") + (() if kind[0] == "u" else ("negative",)):
        check(function, [a], kind, rng)
    by = elements(kind, shapes[1], rng, divides=True)
    for function in ("quotient", "mod", "fmod"):
        check(function, [a, by], kind, rng)


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_truths(shapes):
    rng = np.random.default_rng(6)
    a, b = (elements("b1", shape, rng) for shape in shapes[:2])
    for function in ("logical_and", "logical_or", "logical_xor", "equal"):
        check(function, [a, b], "b1", rng)
    check("logical_not", [a], "b1", rng)
    for to in KINDS:
        check("cast", [a], to, rng)


def test_least_numbers_are_divided_as_numpy_does():
    for kind in ("i4", "i8"):
        a, b = np.full(3, np.iinfo(kind).min, kind), np.array([-1, 0, 3], kind)
        for function in ("mod", "fmod"):
            step = ArrayFunction("node", ("a", "b"), "y", function, a.dtype.name)
            plan = typed_plan(step, {"a": (3,), "b": (3,), "y": (3,)}, a.dtype.name)
            plan.bind(a, b, y := np.empty(3, kind)).run()
            assert y.tolist() == step.computed((3,), [a, b]).tolist()


def test_arrays_of_any_strides_and_what_has_no_kernel():
    step = ArrayFunction("node", ("a", "b"), "y", "add", "int64")
    plan = typed_plan(step, {"a": (4, 3), "b": (3,), "y": (4, 3)}, "int64")
    a, y = np.arange(24).reshape(4, 6)[:, ::2], np.zeros((3, 4), int).T
    plan.run([a, np.arange(3)], y)
    np.testing.assert_array_equal(y, a + np.arange(3))
    shapes = {"a": (FEW + 1,), "b": (FEW + 1,), "y": (FEW + 1,)}
    none = (("add", "float64"), ("add", "uint64"), ("less", "float32"), ("power", "int64"))
    for function, dtype in none:
        y = "bool" if function == "less" else dtype
        assert typed_plan(ArrayFunction("node", ("a", "b"), "y", function, y), shapes, dtype) is None


@pytest.mark.skipif(not can_be_known(), reason="arrays of this NumPy lie otherwise")
@pytest.mark.parametrize("count", [1, 5, 130])
def test_networks_of_such_steps_are_run_by_compiled_code(count):
    """Places as Keras writes them, and a mask of what is padded."""
    rng = np.random.default_rng(7)
    table = rng.standard_normal((20, 8)).astype("f4")
    constants = {"zero": np.int64(0), "size": np.int64(20), "table": table, "low": np.float32(-1e9)}
    nodes = [
        helper.make_node("Less", ["i", "zero"], ["is_less"]),
        helper.make_node("Add", ["i", "size"], ["plus"]),
        helper.make_node("Where", ["is_less", "plus", "i"], ["places"]),
        helper.make_node("Gather", ["table", "places"], ["rows"]),
        helper.make_node("ReduceSum", ["rows"], ["score"], keepdims=0),
        helper.make_node("Equal", ["i", "zero"], ["pads"]),
        helper.make_node("Cast", ["pads"], ["numbers"], to=TensorProto.INT32),
        helper.make_node("Not", ["pads"], ["kept"]),
        helper.make_node("Where", ["kept", "score", "low"], ["masked"]),
    ]
    outputs = ["rows", "masked", "numbers", "places", "kept"]
    graph = helper.make_graph(
        nodes, "graph", [helper.make_tensor_value_info("i", TensorProto.INT64, ["n"])],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    wanted = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    s = Session(model.SerializeToString())
    for seed in range(4):
        i = np.random.default_rng(seed).integers(-20, 20, count)
        for found, right in zip(s.run(None, {"i": i}), wanted.run(None, {"i": i}), strict=True):
            assert found.dtype == right.dtype
            np.testing.assert_allclose(found, right, 1e-6, 1e-6)
    assert s.network.repeated.run is not None
    with pytest.raises(IndexError):
        s.run(None, {"i": np.full(count, 20)})


def test_a_process_that_cannot_compile_computes_them_by_numpy(monkeypatch):
    def refused(*given):
        raise Unsupported("nothing is compiled here")

    monkeypatch.setattr(typed_plans, "typed_share", refused)
    monkeypatch.setattr(array_copies, "ArrayPass", refused)
    nodes = [
        helper.make_node("Greater", ["x", "z"], ["larger"]),
        helper.make_node("Where", ["larger", "x", "z"], ["y"]),
        helper.make_node("Reshape", ["larger", "flat"], ["row"]),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["n", 3]) for name in "xz"]
    outputs = [helper.make_empty_tensor_value_info(name) for name in ("larger", "y", "row")]
    flat = numpy_helper.from_array(np.int64([-1]), "flat")
    graph = helper.make_graph(nodes, "graph", inputs, outputs, [flat])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    s = Session(model.SerializeToString())
    for seed in range(3):
        x, z = np.random.default_rng(seed).integers(-4, 5, (2, 5, 3))
        larger, y, row = s.run(None, {"x": x, "z": z})
        np.testing.assert_array_equal(larger, x > z)
        np.testing.assert_array_equal(y, np.where(x > z, x, z))
        np.testing.assert_array_equal(row, (x > z).reshape(-1))
