"""ONNX models as some converters write them: what ONNX Runtime runs, a network runs too."""

import numpy as np
import pytest
from test_network_onnx import CLOSE, RNG, Builder

import convalgos as ca
from convalgos.network.onnx_reader.graph import from_onnx
from convalgos.onnx.session import Session

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper  # noqa: E402


def check_model(model, *arrays):
    """A network of a model gives what ONNX Runtime gives, in shapes and types, too."""
    names = [value.name for value in model.graph.input]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    feeds = dict(zip(names, arrays, strict=True))
    expected = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)
    found = from_onnx(model)(*arrays)
    for y, right in zip(found if isinstance(found, tuple) else (found,), expected, strict=True):
        assert (y.shape, y.dtype) == (right.shape, right.dtype)
        assert np.abs(y - right).max(initial=0) <= CLOSE * np.abs(right).max(initial=0)


def chain():
    build = Builder()
    middle = build.node("Relu", build.conv())
    return build.model(build.node("Add", build.conv(middle), middle))


def test_nodes_in_any_order():
    model = chain()
    nodes = list(model.graph.node)[::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    before = model.SerializeToString()
    check_model(model, RNG.standard_normal((1, 8, 9, 7)).astype("f4"))
    assert model.SerializeToString() == before  # the caller's


def test_nodes_in_a_circle_are_told():
    model = chain()
    model.graph.node[0].input[0] = model.graph.node[-1].output[0]
    with pytest.raises(ValueError, match="its nodes are a circle"):
        from_onnx(model)


def test_outputs_of_another_rank_than_declared():
    build = Builder(("n", 8, "h", "w"))
    y = build.node("Squeeze", build.conv())  # whose rank is known when sizes are
    model = build.model(y)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info(y, TensorProto.FLOAT, [8, "h", "w"]))
    check_model(model, RNG.standard_normal((1, 8, 9, 1)).astype("f4"))


def test_numbers_and_vectors_beside_maps():
    build = Builder()
    build.inputs |= {"factor": (), "shift": (7,)}
    y = build.node("Add", build.node("Mul", build.conv(), "factor"), "shift")
    arrays = RNG.standard_normal((1, 8, 9, 7)), np.array(0.5), RNG.standard_normal(7)
    check_model(build.model(y, "factor"), *(a.astype("f4") for a in arrays))


def test_scales_of_maps_without_channels():
    build = Builder()
    nothing = build.node("Mul", build.node("ConstantOfShape", build.node("Shape", "none")), np.float32(2))
    build.inputs["none"] = ("n", 0, 9, 7)
    model = build.model(build.node("Concat", build.conv(), nothing, axis=1))
    check_model(model, RNG.standard_normal((1, 8, 9, 7)).astype("f4"), np.ones((1, 0, 9, 7), "f4"))


def test_outputs_that_are_constant(tmp_path):
    build = Builder()
    model = build.model(build.conv(), build.node("Shape", "x"), build.constant(np.float32([2, 3])))
    x = RNG.standard_normal((1, 8, 9, 7)).astype("f4")
    check_model(model, x)
    net = from_onnx(model)
    net.save(tmp_path / "net.cal")
    assert all(map(np.array_equal, ca.network.load(tmp_path / "net.cal")(x), net(x)))


def test_strings_are_refused():
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Equal", ["x", "x"], ["y"])], "g",
            [helper.make_tensor_value_info("x", TensorProto.STRING, [2])],
            [helper.make_tensor_value_info("y", TensorProto.BOOL, [2])],
        ),
        opset_imports=[helper.make_opsetid("", 19)], ir_version=9,
    )  # fmt: skip
    with pytest.raises(ca.Unsupported, match="moves strings, 'x'"):
        from_onnx(model)


def test_products_of_one_sequence_then_of_several():
    """What moves nothing for one sequence, its channels to the last dimension, moves all for several."""
    build = Builder(("t", "n", 8), opset=17)
    w = RNG.standard_normal((8, 4)).astype("f4")
    session = Session(build.model(build.node("MatMul", "x", w)).SerializeToString())
    for size in ((64, 1, 8), (64, 3, 8), (1, 3, 8), (1, 1, 8)):
        x = RNG.standard_normal(size).astype("f4")
        (y,) = session.run(None, {"x": x})
        np.testing.assert_allclose(y, x @ w, rtol=1e-4, atol=1e-5)


def test_one_number_of_maps_in_blocks():
    """A region that reads them in another layout than they are computed in, and gives the shape ()."""
    build = Builder((1, 32, 40, 40))
    x = build.node("Relu", build.conv(k=64, c=32))  # positive: their mean does not cancel
    number = build.node("Sin", build.node("ReduceMean", x, keepdims=0))
    y = build.node("Mul", build.conv(x, c=64), number)
    check_model(build.model(y, number), RNG.standard_normal((1, 32, 40, 40)).astype("f4"))


def test_numbers_of_one_image_then_of_several():
    """Arrays of one dimension have no channels that a plan of another batch could ask for."""
    build = Builder(("n", 8), opset=17)
    sums = build.node("ReduceSum", "x", np.array([1]), keepdims=0)
    peaks = build.node("ReduceMax", "x", axes=[1], keepdims=0)
    session = Session(build.model(build.node("Mul", sums, peaks)).SerializeToString())
    for n in (1, 3, 1, 8):
        x = RNG.standard_normal((n, 8)).astype("f4")
        (y,) = session.run(None, {"x": x})
        np.testing.assert_allclose(y, x.sum(1) * x.max(1), rtol=1e-4, atol=1e-5)


def test_a_slice_of_what_has_no_known_rank():
    build = Builder(("n",), opset=17)
    first = build.node("Slice", build.node("Squeeze", "x"), [0], [2], [0])
    rest = build.node("Slice", build.node("Squeeze", "x"), [2], [4], [-1])
    model = build.model(build.node("Concat", build.node("Mul", first, np.float32(4)), rest, axis=0))
    del model.graph.input[0].type.tensor_type.shape.dim[:]
    model.graph.input[0].type.tensor_type.ClearField("shape")
    check_model(model, RNG.standard_normal(4).astype("f4"))


def test_a_branch_that_data_choose_gives_its_own_shape():
    """Neither branch runs on ones where the other is meant."""

    def branch(*nodes):
        body = Builder()
        for op, *inputs in nodes:
            name = body.node(op, *inputs)
        value = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        return helper.make_graph(body.nodes, op, [], [value], body.initializers)

    build = Builder((1, 8, 9, "w"))
    build.inputs["rate"] = ()
    wide = branch(("Reshape", "middle", np.array([8, 9, 16])), ("Relu", "reshape0a"))
    narrow = branch(("Reshape", "middle", np.array([4, 2, 9, 7])))
    middle = build.node("Identity", build.conv())
    build.nodes[-1].output[0] = "middle"
    chosen = build.node("Greater", "rate", np.float32(8))
    y = build.node("If", chosen, then_branch=wide, else_branch=narrow)
    del middle
    for w, rate in ((16, 16), (7, 2)):
        check_model(build.model(build.node("Sqrt", build.node("Abs", y))), *(
            RNG.standard_normal((1, 8, 9, w)).astype("f4"), np.float32(rate)[...],
        ))  # fmt: skip


def test_sizes_of_no_elements_keep_their_shape():
    """Indices of a window that the map does not reach, as those of shifted windows of few frames."""
    build = Builder()
    none = build.node("Slice", np.arange(4), np.array([0]), np.array([-8]), np.array([0]), np.array([1]))
    rows = build.node("Add", build.node("Reshape", none, np.array([-1, 1, 1])), np.arange(3)[:, None])
    places = build.node("Add", rows, np.arange(2))
    model = build.model(build.conv(), places)
    model.graph.output[1].type.tensor_type.elem_type = TensorProto.INT64
    check_model(model, RNG.standard_normal((1, 8, 9, 7)).astype("f4"))


def test_a_loop_that_data_count():
    """As many rows as an input says, other than a trial on ones has."""
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Add", ["held", "held"], ["next"]),
            helper.make_node("Identity", ["on"], ["go"]),
            helper.make_node("Identity", ["next"], ["row"]),
        ],
        "body",
        [value("i", TensorProto.INT64, []), value("on", TensorProto.BOOL, []), value("held", 1, None)],
        [value("go", TensorProto.BOOL, []), value("next", 1, None), value("row", 1, None)],
    )
    build = Builder()
    build.inputs["turns"] = ()
    turns = build.node("Cast", "turns", to=TensorProto.INT64)
    _, rows = build.node("Loop", turns, np.array(True), build.conv(), body=body, count=2)
    model = build.model(build.node("Relu", rows))
    for count in (3, 1, 5):
        check_model(model, RNG.standard_normal((1, 8, 9, 7)).astype("f4"), np.float32(count)[...])
