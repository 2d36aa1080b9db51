"""Small valid models, and what an unkind world makes of them: the same ones for the same seed."""

import random

import numpy as np
import onnx
from onnx import TensorProto, helper

OPSET = [helper.make_opsetid("", 17), helper.make_opsetid("my.ops", 1)]
NUMBERS = (-(2**63), -(2**31), -1, 0, 1, 2, 3, 7, 2**31, 2**40, 2**62, 2**63 - 1)
VALUES = (
    1,
    -1,
    0.5,
    float("nan"),
    "SAME_UPPER",
    "",
    b"\xff",
    [1],
    [1, 2, 3],
    [-1, 1],
    [2**62, 2**62],
    [0.5],
    ["a"],
)
NAMES = (
    "strides",
    "pads",
    "dilations",
    "group",
    "kernel_shape",
    "auto_pad",
    "groups",
    "output_shape",
    "",
    "[/x]",
)


def model() -> onnx.ModelProto:
    """A network with a Conv in its graph, in a function and in a branch, and a Constant filter."""
    weights = np.ones((4, 3, 3, 3), np.float32)
    then = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["t"], name="inside")], "then", [], [value("t", None)]
    )
    other = helper.make_graph([helper.make_node("Identity", ["x"], ["o"])], "else", [], [value("o", None)])
    body = [
        helper.make_node(
            "Constant", [], ["k"], value=onnx.numpy_helper.from_array(weights[:2, :, :1, :1], "k")
        ),
        helper.make_node("Conv", ["a", "k"], ["r"], name="of_function"),
    ]
    function = helper.make_function("my.ops", "F", ["a"], ["r"], body, OPSET)
    nodes = [
        helper.make_node(
            "Conv", ["x", "w"], ["a"], name="one", strides=[1, 2], pads=[1, 0, 1, 0], dilations=[1, 1],
            group=1, kernel_shape=[3, 3],
        ),
        helper.make_node("Conv", ["a", "v"], ["b"], name="two", auto_pad="SAME_UPPER"),
        helper.make_node("Reshape", ["b", "shape"], ["c"]),
        helper.make_node("If", ["flag"], ["i"], then_branch=then, else_branch=other),
        helper.make_node("F", ["x"], ["y"], domain="my.ops"),
    ]  # fmt: skip
    inputs = [value("x", ("batch", 3, 8, 8)), value("flag", (), TensorProto.BOOL)]
    constants = {
        "w": weights, "v": np.ones((5, 4, 1, 1), np.float32), "shape": np.array([1, -1], np.int64),
    }  # fmt: skip
    graph = helper.make_graph(
        nodes, "g", inputs, [value(name, None) for name in ("c", "i", "y")],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=OPSET, functions=[function], ir_version=8)


def value(name: str, shape, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def of_bytes(text: bytes, rng: random.Random) -> bytes:
    """The file with some of its bytes changed, lost, repeated or cut off."""
    data = bytearray(text)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        how = rng.randrange(5)
        if how == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif how == 1 and at < len(data):
            data[at] = rng.randrange(256)
        elif how == 2:
            del data[at : at + rng.randint(1, 8)]
        elif how == 3:
            data[at:at] = data[at : at + rng.randint(1, 30)]
        elif at > 4:
            del data[at:]
    return bytes(data)


def of_fields(rng: random.Random) -> bytes:
    """A file that is sound as such, with nodes, attributes and shapes that are not."""
    found = model()
    for _ in range(rng.randint(1, 3)):
        rng.choice((_attribute, _attribute, _inputs, _dims, _node, _tensor, _function))(found, rng)
    return found.SerializeToString()


def _nodes(found: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [*found.graph.node, *(node for f in found.functions for node in f.node)]


def _attribute(found, rng):
    node = rng.choice(_nodes(found)[:2] or [onnx.NodeProto()])
    if node.attribute and rng.random() < 0.3:
        chosen = rng.choice(list(node.attribute))
        chosen.type = rng.randrange(15)
        return
    name = rng.choice(NAMES)
    for attribute in [a for a in node.attribute if a.name == name]:
        node.attribute.remove(attribute)
    value = rng.choice((*VALUES, [rng.choice(NUMBERS) for _ in range(rng.randrange(5))] or [1]))
    try:
        node.attribute.append(helper.make_attribute(name, value))
    except (ValueError, TypeError):
        node.attribute.add(name=name)


def _inputs(found, rng):
    node = rng.choice(_nodes(found) or [onnx.NodeProto()])
    if node.input and rng.random() < 0.6:
        del node.input[rng.randrange(len(node.input)) :]
    else:
        node.input.append(rng.choice(("", "x", "w", "nowhere", "c")))


def _dims(found, rng):
    shape = rng.choice(list(found.graph.input)).type.tensor_type.shape
    if shape.dim and rng.random() < 0.8:
        rng.choice(list(shape.dim)).dim_value = rng.choice(NUMBERS)
    else:
        shape.dim.add(dim_value=rng.choice(NUMBERS))


def _node(found, rng):
    nodes = _nodes(found)
    if nodes:
        field = rng.choice(("op_type", "domain", "name"))
        setattr(
            rng.choice(nodes), field, rng.choice(("", "Conv", "F", "my.ops", "[/bold]\x1b[2J", "ConvInteger"))
        )


def _tensor(found, rng):
    tensor = rng.choice(list(found.graph.initializer))
    if rng.random() < 0.5:
        tensor.data_type = rng.randrange(30)
    elif tensor.dims:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(NUMBERS)


def _function(found, rng):
    if found.functions:
        function = found.functions[0]
        if rng.random() < 0.5:
            function.node.add(op_type="F", domain="my.ops", input=["a"], output=["again"])  # calls itself
        else:
            function.name = rng.choice(("", "G", "F"))
