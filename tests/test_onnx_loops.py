"""Loops, branches and lists of ONNX models, written out where what they depend on is known."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from convalgos.network import from_onnx  # noqa: E402
from convalgos.network.graph import Foreign  # noqa: E402

W = numpy_helper.from_array(np.random.default_rng(1).standard_normal((5, 5, 3, 3)).astype("f4") / 7, "w")


def constant(name, value):
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(value)))


def number(value):
    return numpy_helper.from_array(np.asarray(value))


def value(name, kind=TensorProto.FLOAT, shape=None):
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes, outputs, initializers=(), opset=17):
    graph = helper.make_graph(
        nodes, "g", [value("x", shape=["n", 5, 9, 11])], [value(o) for o in outputs], [W, *initializers]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def check(made, ours=True):
    """Outputs are those of ONNX Runtime; `ours`: it runs no step."""
    net = from_onnx(made.SerializeToString())
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    for n in (1, 3):
        x = np.random.default_rng(n).standard_normal((n, 5, 9, 11)).astype("f4")
        found, wanted = net(x), session.run(None, {"x": x})
        found = found if isinstance(found, tuple | list) else [found]
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(np.asarray(a), b, rtol=1e-5, atol=1e-5)
    assert ours == (not any(isinstance(s, Foreign) for s in net.graph.steps))


def body_of_convolutions(condition):
    """Adds a convolution, its bias growing with the turns, to what is carried, and collects means."""
    nodes = [
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Conv", ["h", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c", "f"], ["d"]),
        helper.make_node("Mul", ["d", "own"], ["e"]),
        helper.make_node("Relu", ["e"], ["y"]),
        helper.make_node("ReduceMean", ["y"], ["m"], axes=[2, 3], keepdims=0),
        condition,
    ]
    return helper.make_graph(
        nodes, "body", [value("i", TensorProto.INT64, []), value("on", TensorProto.BOOL, []), value("h")],
        [value("go", TensorProto.BOOL, []), value("y"), value("m")],
        [numpy_helper.from_array(np.float32(0.5), "own")],
    )  # fmt: skip


def loop_of(body, condition="true"):
    return helper.make_node("Loop", ["turns", condition, "x"], ["y", "means"], body=body)


@pytest.mark.parametrize("opset", [11, 13, 17])
@pytest.mark.parametrize("turns", [1, 4])
def test_a_loop_of_known_turns(turns, opset):
    condition = helper.make_node("Identity", ["on"], ["go"])
    loop = helper.make_node(
        "Loop", ["turns", "true", "x"], ["y", "means"], body=body_of_convolutions(condition)
    )
    check(model([constant("turns", turns), constant("true", True), loop], ["y", "means"], opset=opset))


def test_nodes_of_turns_that_are_left_to_onnx_runtime_have_names_of_their_own():
    """It refuses two of one name."""
    nodes = [
        helper.make_node("BitShift", ["bits", "one"], ["b"], "second", direction="LEFT"),
        helper.make_node("Cast", ["b"], ["f"], "third", to=TensorProto.FLOAT),
        helper.make_node("Add", ["h", "f"], ["y"], "fourth"),
        helper.make_node("Identity", ["g"], ["more"], "fifth"),
    ]
    inputs = [value("i", TensorProto.INT64, []), value("g", TensorProto.BOOL, []), value("h")]
    body = helper.make_graph(nodes, "body", inputs, [value("more", TensorProto.BOOL, []), value("y")])
    outer = [
        constant("turns", np.int64(3)), constant("true", np.True_), constant("one", np.array([1], "u1")),
        helper.make_node("Cast", ["x"], ["bits"], to=TensorProto.UINT8),
        helper.make_node("Loop", ["turns", "true", "x"], ["y"], body=body),
    ]  # fmt: skip
    made = model(outer, ["y"])
    x = np.random.default_rng(1).uniform(0, 100, (2, 5, 9, 11)).astype("f4")
    (right,) = ort.InferenceSession(made.SerializeToString()).run(None, {"x": x})
    np.testing.assert_array_equal(from_onnx(made.SerializeToString())(x), right)


def test_the_number_of_turns_may_follow_from_shapes():
    """Turns are the channels, which only folding finds."""
    condition = helper.make_node("Identity", ["true"], ["go"])
    nodes = [
        constant("true", True),
        constant("one", np.array(1)),
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "one"], ["turns"]),
        loop_of(body_of_convolutions(condition), ""),
    ]
    check(model(nodes, ["y", "means"]))


def test_a_loop_that_data_end_stays():
    """Three of nine turns, as a computed condition has it."""
    condition = helper.make_node("Less", ["i", "two"], ["go"])
    loop = helper.make_node(
        "Loop", ["turns", "true", "x"], ["y", "means"], body=body_of_convolutions(condition)
    )
    nodes = [constant("turns", 9), constant("true", True), constant("two", 2), loop]
    check(model(nodes, ["y", "means"]), ours=False)


@pytest.mark.parametrize("which", [True, False])
def test_a_branch_of_a_known_condition(which):
    """With a branch inside that captures a value of the graph."""
    inner = helper.make_graph([helper.make_node("Add", ["x", "a"], ["r"])], "inner", [], [value("r")])
    other = helper.make_graph([helper.make_node("Sub", ["x", "a"], ["r"])], "other", [], [value("r")])
    then = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
            helper.make_node("If", ["yes"], ["b"], then_branch=inner, else_branch=other),
        ],
        "then", [], [value("b")],
    )  # fmt: skip
    plain = helper.make_graph([helper.make_node("Relu", ["x"], ["a"])], "else", [], [value("a")])
    nodes = [
        constant("yes", which),
        helper.make_node("If", ["yes"], ["y"], then_branch=then, else_branch=plain),
    ]
    check(model(nodes, ["y"]))


def split_as_exporters_do():
    """`tensor_split` at 2 and 3 of the channels as torch exports it: a list filled in a loop."""
    nodes = [
        helper.make_node("Gather", ["begins", "i"], ["low"]),
        helper.make_node("Add", ["i", "one"], ["j"]),
        helper.make_node("Gather", ["begins", "j"], ["high"]),
        helper.make_node("Slice", ["x", "low", "high", "axis"], ["part"]),
        helper.make_node("SequenceInsert", ["list", "part"], ["longer"]),
        helper.make_node("Identity", ["true"], ["go"]),
    ]
    parts = helper.make_tensor_sequence_value_info
    body = helper.make_graph(
        nodes,
        "body",
        [value("i", TensorProto.INT64, [1]), value("on", TensorProto.BOOL, []), parts("list", 1, None)],
        [value("go", TensorProto.BOOL, []), parts("longer", 1, None)],
    )
    return [
        constant("begins", np.array([0, 2, 3])), constant("one", 1), constant("axis", np.array([1])),
        constant("true", True), constant("turns", 2), constant("end", np.array([5])),
        helper.make_node("SequenceEmpty", [], ["empty"]),
        helper.make_node("Loop", ["turns", "true", "empty"], ["two"], body=body),
        constant("last", np.array([3])),
        helper.make_node("Slice", ["x", "last", "end", "axis"], ["rest"]),
        helper.make_node("SequenceInsert", ["two", "rest"], ["three"]),
    ]  # fmt: skip


def test_lists_that_loops_fill_are_read_where_their_values_lie():
    nodes = [
        *split_as_exporters_do(),
        *(constant(f"p{i}", np.int64(i)) for i in (0, -1)),
        helper.make_node("SequenceAt", ["three", "p0"], ["a"]),
        helper.make_node("SequenceAt", ["three", "p-1"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("ConcatFromSequence", ["three"], ["whole"], axis=1),
        helper.make_node("Conv", ["whole", "w"], ["y"]),
        helper.make_node("SequenceLength", ["three"], ["length"]),
        helper.make_node("Cast", ["length"], ["l"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["y", "l"], ["z"]),
    ]
    check(model(nodes, ["c", "z"]))


def test_lists_that_are_filled_in_front_and_erased():
    """[r, x, s] without x, put side by side along a new axis."""
    nodes = [
        constant("first", 0), constant("one", 1),
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Sigmoid", ["x"], ["s"]),
        helper.make_node("SequenceConstruct", ["x", "s"], ["two"]),
        helper.make_node("SequenceInsert", ["two", "r", "first"], ["three"]),
        helper.make_node("SequenceErase", ["three", "one"], ["left"]),
        helper.make_node("ConcatFromSequence", ["left"], ["y"], axis=-1, new_axis=1),
    ]  # fmt: skip
    check(model(nodes, ["y"]))


def test_a_list_at_a_computed_place_stays_with_onnx_runtime():
    """Its length is known all the same."""
    nodes = [
        *split_as_exporters_do(),
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Greater", ["most", "most"], ["never"]),
        helper.make_node("Cast", ["never"], ["at"], to=TensorProto.INT64),
        helper.make_node("SequenceAt", ["three", "at"], ["y"]),
    ]
    check(model(nodes, ["y"]), ours=False)
