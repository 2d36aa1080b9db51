"""Shapes of regions that follow for open sizes from two calls."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from convalgos.network.onnx_reader.open_shapes import OpenShapes
from convalgos.network.onnx_reader.region import stored_region


def _region(nodes, inputs, output, constants=()):
    graph = helper.make_graph(
        [helper.make_node(op, *args, **more) for op, *args, more in nodes],
        "region",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None] * rank) for n, rank in inputs.items()],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
        [helper.make_tensor(n, kind, [len(v)], v) for n, kind, v in constants],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return stored_region(model.SerializeToString(), tuple(inputs), (output,))


INTS = TensorProto.INT64
REGIONS = {  # nodes, rank of each input, output, constants, shapes of calls
    "sum": ([("Add", ["a", "b"], ["y"], {})], {"a": 2, "b": 2}, (), "4,5+4,1 4,6+4,1 4,9+4,1"),
    "32 bits": (
        [
            ("Shape", ["a"], ["s"], {}), ("Cast", ["s"], ["c"], {"to": 6}),
            ("Slice", ["c", "i", "j"], ["w"], {}), ("Cast", ["w"], ["d"], {"to": 7}),
            ("Concat", ["d", "k"], ["t"], {"axis": 0}), ("Reshape", ["a", "t"], ["y"], {}),
        ],
        {"a": 3}, (("i", INTS, [0]), ("j", INTS, [1]), ("k", INTS, [3, -1])), "2,3,4 5,3,4 7,3,4",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REGIONS)
def test_shapes_are_inferred_once_for_open_sizes(name, monkeypatch):
    """The third call asks nobody, and tells what a region of its own finds."""
    nodes, inputs, constants, calls = REGIONS[name]
    region, own = (_region(nodes, inputs, "y", constants) for _ in range(2))
    first, second, third = (
        [tuple(map(int, shape.split(","))) for shape in call.split("+")] for call in calls.split()
    )
    region.shapes(first)
    region.shapes(second)
    expected = own.shapes(third)
    for asked in ("_inferred", "_tried"):
        monkeypatch.setattr(region, asked, lambda inputs: pytest.fail("asked again"))
    assert [*map(tuple, region.shapes(third))] == [*map(tuple, expected)]


def test_sizes_that_follow_from_others_are_asked_for():
    """Half as many pixels, and rows of ones, which are broadcast."""
    halved = _region([("MaxPool", ["a"], ["y"], {"kernel_shape": [2], "strides": [2]})], {"a": 3}, "y")
    assert [halved.shapes([(1, 2, n)])[0][2] for n in (8, 10, 14, 21)] == [4, 5, 7, 10]
    added = _region([("Add", ["a", "b"], ["y"], {})], {"a": 2, "b": 2}, "y")
    for m, n, larger in ((4, 4, 4), (5, 5, 5), (1, 7, 7), (6, 1, 6), (1, 1, 1)):
        assert tuple(added.shapes([(m, 3), (n, 3)])[0]) == (larger, 3)
    with pytest.raises(ValueError, match="do not go with"):
        added.shapes([(3, 3), (2, 3)])


def test_what_two_calls_contradict_is_not_taken():
    """An inference that is wrong, and values that are sizes themselves."""
    wrong = OpenShapes(lambda inputs: [(inputs[0][0], 1)])
    for n in (2, 3, 4):
        assert wrong.of([(n,)]) is None
        wrong.learn([(n,)], [(n, 2)])
    held = OpenShapes(lambda inputs: [inputs[0]])
    for n in (2, 3, 4):
        assert held.of([np.array([n])]) is None
        held.learn([np.array([n])], [(n,)])
