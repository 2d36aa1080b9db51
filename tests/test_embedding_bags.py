"""Bags of embeddings: rows that places tell, summed, averaged or compared without being written anywhere."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from convalgos.core.array_bags import BAGS  # noqa: E402
from convalgos.core.setting import threads_of_calls  # noqa: E402
from convalgos.cpu.elementwise.embedding_bags import EmbeddingBagPlan  # noqa: E402
from convalgos.network import Network, from_onnx  # noqa: E402
from convalgos.network.array_functions import ArrayFunction  # noqa: E402

ROWS, WIDTH = 50, 37
TABLE = np.random.default_rng(1).standard_normal((ROWS, WIDTH)).astype("f4")
KINDS = {"int64": TensorProto.INT64, "int32": TensorProto.INT32, "float32": TensorProto.FLOAT, "bool": 9}


def close(found, right, terms):
    np.testing.assert_allclose(found, right, rtol=2e-6, atol=4e-7 * terms)


@pytest.mark.parametrize("dtype", ["i8", "i4"])
@pytest.mark.parametrize("width", [1, 7, 16, 33, 64, 100, 300])
def test_bags_of_places_of_any_shape(width, dtype):
    """Along each of their dimensions, of few and of many rows, weighted, padded, averaged."""
    rng = np.random.default_rng(width)
    table = rng.standard_normal((ROWS, width)).astype("f4")
    compute = BAGS["embedding_bag"].compute
    for shape, of in product(((5,), (3, 40), (1, 700), (2, 3, 4)), ("sum", "mean", "max")):
        places = rng.integers(-ROWS, ROWS, shape).astype(dtype)
        weights = rng.uniform(0.1, 1, shape).astype("f4")
        for axis in range(len(shape)):
            ways = [(None, None, [])]
            if of == "sum":
                ways += [(3, None, []), (3, 1e-9, []), (None, None, [weights]), (None, 1e-9, [weights])]
            for pad, least, more in ways:
                options = {"of": of, "axis": axis, "keepdims": False, "pad": pad, "least": least}
                right = np.empty((*shape[:axis], *shape[axis + 1 :], width), "f4")
                compute(right, table, places, *more, **options)
                y = np.full_like(right, np.nan)
                plan = EmbeddingBagPlan(table, shape, axis, of, y.shape, pad, least)
                plan.run((places, *more), y)
                close(y, right, shape[axis])


def test_tables_lie_anywhere_and_nan_stays():
    table = np.zeros(4 * TABLE.size + 1, np.uint8)[1:].view("f4").reshape(TABLE.shape)
    table[...] = TABLE
    places, y = np.array([[4, 5, -1]]), np.full((1, WIDTH), np.nan, "f4")
    EmbeddingBagPlan(table, (1, 3), 1, "sum", y.shape).run((places,), y)
    close(y, TABLE[places].sum(1), 3)
    wrong = TABLE.copy()
    wrong[5, 2] = np.nan
    EmbeddingBagPlan(wrong, (1, 3), 1, "max", y.shape).run((places,), y)
    np.testing.assert_array_equal(y, wrong[places].max(1))


def model(nodes, constants=(), kinds=(("x", "int64", ("n", "t")),), opset=17):
    tensors = [numpy_helper.from_array(TABLE, "table")]
    tensors += [numpy_helper.from_array(np.asarray(c), name) for name, c in dict(constants).items()]
    inputs = [helper.make_tensor_value_info(name, KINDS[kind], shape) for name, kind, shape in kinds]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return made.SerializeToString()


def node(op, inputs, output, **attributes):
    return helper.make_node(op, inputs, [output], **attributes)


def check(made, feeds, bags=1, steps=None):
    """The network has bags, and its outputs are those of ONNX Runtime, in the first runs and later ones."""
    net, session = from_onnx(made), ort.InferenceSession(made, providers=["CPUExecutionProvider"])
    found = [s for s in net.graph.steps if isinstance(s, ArrayFunction) and s.function == "embedding_bag"]
    assert len(found) == bags, net.graph.steps
    assert steps is None or len(net.graph.steps) == steps
    for given in feeds:
        right = session.run(None, given)[0]
        for _ in range(3):
            y = net(inputs=given)
            assert y.shape == right.shape
            close(y, right, 40)
    return net


def places(*shape, dtype="i8", seed=0):
    return np.random.default_rng(seed).integers(0, ROWS, shape).astype(dtype)


GATHER = node("Gather", ["table", "x"], "rows")


@pytest.mark.parametrize("kind", ["int64", "int32"])
@pytest.mark.parametrize("op", ["ReduceMean", "ReduceSum", "ReduceMax"])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_reductions_of_gathered_rows(op, kind, keepdims, tmp_path):
    for axis in (0, 1, -2):
        axes = {"axes": [axis]} if op != "ReduceSum" else {}
        inputs = ["rows", "axes"][: 2 - bool(axes)]
        nodes = [GATHER, node(op, inputs, "y", keepdims=keepdims, **axes)]
        made = model(nodes, {"axes": [axis]}, [("x", kind, ("n", "t"))])
        feeds = [{"x": places(*shape, dtype=kind) - 9} for shape in ((1, 5), (4, 33), (3, 1))]
        net = check(made, feeds, steps=1)
    net.save(tmp_path / "net")
    np.testing.assert_array_equal(Network.load(tmp_path / "net")(inputs=feeds[1]), net(inputs=feeds[1]))


def test_what_is_no_bag():
    """Sums over the width, over several dimensions, of rows that are scaled by other rows."""
    x = [{"x": places(2, 5)}]
    check(model([GATHER, node("ReduceMean", ["rows"], "y", axes=[2])]), x, bags=0)
    check(model([GATHER, node("ReduceMean", ["rows"], "y", axes=[1, 2])]), x, bags=0)
    nodes = [GATHER, node("Mul", ["rows", "rows"], "m"), node("ReduceSum", ["m", "axes"], "y")]
    check(model(nodes, {"axes": [1]}), x, bags=0)
    nodes = [GATHER, node("Mul", ["rows", "by"], "m"), node("ReduceSum", ["m", "axes"], "y")]
    check(model(nodes, {"axes": [1], "by": TABLE[0]}), x, bags=0)


def test_rows_that_are_read_elsewhere_are_written():
    nodes = [
        GATHER, node("ReduceMean", ["rows"], "m", axes=[1], keepdims=0), node("ReduceMax", ["rows"], "a",
        axes=[1, 2], keepdims=0), node("Unsqueeze", ["a", "one"], "b"), node("Add", ["m", "b"], "y"),
    ]  # fmt: skip
    check(model(nodes, {"one": [1]}), [{"x": places(2, 5)}])


def masked(mask, average, expands=False):
    """Nodes of a mean, or a sum, of the rows that a mask leaves."""
    nodes = [GATHER, *mask, node("Unsqueeze", ["mask", "last"], "wide")]
    if expands:
        nodes += [node("Shape", ["rows"], "sizes"), node("Expand", ["wide", "sizes"], "all")]
    nodes += [
        node("Cast", ["all" if expands else "wide"], "by", to=TensorProto.FLOAT),
        node("Mul", ["rows", "by"], "product"),
        node("ReduceSum", ["product", "one"], "total" if average else "y", keepdims=0),
    ]
    if average:
        nodes.append(node("ReduceSum", ["by", "one"], "count", keepdims=0))
        nodes += [node("Clip", ["count", "least"], "some")] if average == "least" else []
        nodes.append(node("Div", ["total", "some" if average == "least" else "count"], "y"))
    return nodes


OF_PLACES = [node("Equal", ["x", "pad"], "equal"), node("Not", ["equal"], "mask")]
NUMBERS = {"last": [-1], "one": [1], "least": np.float32(1e-9), "pad": np.int64(0)}


@pytest.mark.parametrize("average", ["least", "count", ""])
@pytest.mark.parametrize("expands", [False, True])
def test_means_of_what_a_mask_leaves(average, expands):
    nodes = masked(OF_PLACES, average, expands)
    feeds = [{"x": places(n, t, seed=n) * (places(n, t) < 30)} for n, t in ((1, 40), (4, 33), (3, 1))]
    if average != "count":
        feeds.append({"x": np.zeros((2, 7), np.int64)})  # nothing is left
    check(model(nodes, NUMBERS), feeds, steps=1)
    for kind in ("int64", "bool", "float32"):
        kinds = [("x", "int64", ("n", "t")), ("mask", kind, ("n", "t"))]
        masks = [{**f, "mask": (places(*f["x"].shape, seed=5) < 30).astype(kind)} for f in feeds[:2]]
        check(model(masked([], average, expands), NUMBERS, kinds), masks, steps=1 + (kind != "float32"))


def test_a_mask_of_sizes_without_names_may_be_one():
    kinds = [("x", "int64", (None, None)), ("mask", "float32", (None, None))]
    feeds = [{"x": places(4, 9), "mask": np.ones(shape, "f4")} for shape in ((4, 9), (4, 1), (1, 9))]
    check(model(masked([], "", False), NUMBERS, kinds), feeds, bags=0)


def test_means_by_a_sum_of_places():
    """As of `mask.sum(1, keepdim=True)`."""
    nodes = [
        GATHER, *OF_PLACES, node("Cast", ["mask"], "by", to=TensorProto.FLOAT),
        node("Unsqueeze", ["by", "last"], "wide"), node("Mul", ["wide", "rows"], "product"),
        node("ReduceSum", ["product", "one"], "total", keepdims=0), node("ReduceSum", ["by", "one"], "count"),
        node("Div", ["total", "count"], "y"),
    ]  # fmt: skip
    check(model(nodes, NUMBERS), [{"x": places(n, 20, seed=n) % 5} for n in (1, 20)], steps=1)


def loop(op, later=False, shift=0):
    """What torch writes of an EmbeddingBag of a matrix of places."""
    inner = [
        node("Gather", ["begins", "i"], "from"), node("Gather", ["ends", "i"], "to"),
        node("Unsqueeze", ["from", "zeros"], "begin"), node("Unsqueeze", ["to", "zeros"], "end"),
        node("Slice", ["flat", "begin", "end", "zeros"], "part"), node("Gather", ["table", "part"], "own"),
        node(op, ["own", "zeros"], "row", keepdims=0) if later or op == "ReduceSum" else
        node(op, ["own"], "row", axes=[0], keepdims=0),
        node("Cast", ["true"], "on", to=TensorProto.BOOL),
    ]  # fmt: skip
    values = (
        [("i", TensorProto.INT64), ("go", TensorProto.BOOL)],
        [
            ("on", TensorProto.BOOL),
            ("row", TensorProto.FLOAT),
        ],
    )
    ends = ([helper.make_tensor_value_info(n, k, [] if k != 1 else None) for n, k in of] for of in values)
    body = helper.make_graph(inner, "body", *ends)
    nodes = [
        node("Shape", ["x"], "shape"), node("Gather", ["shape", "unit"], "width"),
        node("ReduceProd", ["shape"], "all", keepdims=0), node("Range", ["zero", "all", "width"], "offsets"),
        node("Reshape", ["x", "minus"], "flat"), node("Shape", ["flat"], "length"),
        node("Gather", ["length", "zero"], "count"), node("Unsqueeze", ["count", "zeros"], "last"),
        node("Concat", ["offsets", "last"], "begins", axis=0),
        node("Slice", ["begins", "second", "most", "zeros"], "ends"), node("Shape", ["ends"], "bags"),
        node("Gather", ["bags", "zero"], "turns"),
        helper.make_node("Loop", ["turns", "true"], ["y"], body=body),
    ]  # fmt: skip
    constants = {
        "unit": np.int64(1), "zero": np.int64(shift), "zeros": [0], "minus": [-1], "second": [1],
        "most": [np.iinfo("i8").max], "true": np.bool_(True),
    }  # fmt: skip
    return model(nodes, constants, opset=18 if later else 17)


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceSum", "ReduceMax"])
@pytest.mark.parametrize("later", [False, True])
def test_loops_over_bags(op, later):
    check(loop(op, later), [{"x": places(n, t)} for n, t in ((1, 9), (5, 33), (3, 1))], steps=1)


def test_places_that_are_none_are_told():
    """In the first run, and in later ones; the runs behind them are good ones."""
    made = model([GATHER, node("ReduceMean", ["rows"], "y", axes=[1])])
    rows = model([node("Gather", ["table", "x"], "y")])
    for net, right in (from_onnx(made), TABLE[[3, -1]].mean(0)), (from_onnx(rows), TABLE[[3, -1]]):
        good, bad = np.array([[3, -1]]), np.array([[3, ROWS]])
        for _ in range(3):
            with pytest.raises(IndexError, match="out of bounds"):
                net(bad)
            close(net(good).reshape(right.shape), right, 2)
            with pytest.raises(IndexError, match="out of bounds"):
                net(np.array([[-ROWS - 1, 0]]))


def test_bags_without_elements():
    made = model([GATHER, node("ReduceSum", ["rows", "axes"], "y", keepdims=0)], {"axes": [1]})
    net = from_onnx(made)
    assert net(np.zeros((0, 3), np.int64)).shape == (0, WIDTH)
    np.testing.assert_array_equal(net(np.zeros((2, 0), np.int64)), np.zeros((2, WIDTH)))


@pytest.mark.parametrize(
    "kinds", [("i8", TensorProto.BOOL), ("f4", TensorProto.INT64), ("f4", TensorProto.BOOL)]
)
def test_weights_are_what_a_change_of_type_makes_of_numbers(kinds):
    """As of `x.bool().float()`: not the places themselves; nor parts of numbers that are cut off."""
    given, to = kinds
    name = "x" if given == "i8" else "weights"
    nodes = masked([node("Cast", [name], "mask", to=to)], "least")
    inputs = [("x", "int64", ("n", "t")), ("weights", "float32", ("n", "t"))][: 1 if given == "i8" else 2]
    feed = {"x": places(3, 20) * (places(3, 20, seed=4) < 30)}
    if given == "f4":
        feed["weights"] = np.random.default_rng(1).uniform(0, 3, (3, 20)).astype("f4")
    check(model(nodes, NUMBERS, inputs), [feed])


def other_loop(change):
    made = onnx.load_from_string(loop("ReduceSum"))
    change(made.graph, made.graph.node[-1].attribute[0].g)
    return made.SerializeToString()


def test_loops_that_are_no_bags():
    """Those that a condition ends, that read every other offset, and that round rows."""

    def ends(graph, body):
        graph.initializer.append(numpy_helper.from_array(np.int64(1), "most_turns"))
        del body.node[-1]
        body.node.append(node("Less", ["i", "most_turns"], "on"))

    def strides(graph, body):
        graph.initializer.append(numpy_helper.from_array(np.array([2]), "two"))
        next(n for n in graph.node if n.output[0] == "ends").input.append("two")

    def rounds(graph, body):
        body.node[6].input[0] = "rounded"
        body.node.insert(6, node("Cast", ["whole"], "rounded", to=TensorProto.FLOAT))
        body.node.insert(6, node("Cast", ["own"], "whole", to=TensorProto.INT64))

    feeds = [{"x": places(6, 5)}, {"x": places(4, 3)}]
    for change in ends, strides, rounds:
        check(other_loop(change), feeds, bags=0)


def test_slices_of_places_without_axes():
    def shorter(graph, body):
        del body.node[4].input[3:]

    check(other_loop(shorter), [{"x": places(5, 9)}], steps=1)


def test_runs_on_more_threads_than_a_plan_was_made_for():
    """Each task has room for the addresses of its own rows."""
    places, y = np.tile(np.arange(ROWS), (4, 40)), np.empty((4, 4096), "f4")
    table = np.random.default_rng(1).standard_normal((ROWS, 4096)).astype("f4")
    with threads_of_calls(1):
        plan = EmbeddingBagPlan(table, places.shape, 1, "sum", y.shape)
    with threads_of_calls(2):
        run = plan.bind(places, y)
    rooms = [a for a in run.kept if isinstance(a, np.ndarray) and a.shape == (2 * places.shape[1],)]
    assert run.launches[0].tasks == 2 and len(rooms) == 1
    run.run()
    close(y, table[places].sum(1), 2000)


def test_what_one_step_has_noted_is_not_told_of_the_next_run():
    """Where two steps meet places that are none in the same run."""
    nodes = [
        GATHER, node("ReduceMean", ["rows"], "a", axes=[1]), node("Gather", ["table", "x"], "others"),
        node("ReduceMax", ["others"], "b", axes=[1]), node("Add", ["a", "b"], "y"),
    ]  # fmt: skip
    net, good = from_onnx(model(nodes)), np.array([[3, 4]])
    for _ in range(3):
        right = TABLE[good].mean(1, keepdims=True) + TABLE[good].max(1, keepdims=True)
        close(net(good), right, 2)
        with pytest.raises(IndexError, match="out of bounds"):
            net(np.array([[3, ROWS]]))
