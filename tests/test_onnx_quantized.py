"""Quantised ONNX models: layers of all kinds and a whole network give the bits of ONNX Runtime.

QLinearConv is compared with graph optimisations and without: they reorder memory, no more. Models in QDQ form
are compared with the default ones, which fuse convolutions as `fuse_quantized` does. Without VNNI, sums
of two products of bytes saturate at 16 bits in ONNX Runtime, so filters have 7 bits on such processors.
"""

from collections import Counter
from functools import cache

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

import convalgos as ca
from convalgos.cpu.tiled.short_schedule import sums_words
from convalgos.onnx import Session
from convalgos.onnx.fusion import fuse_quantized
from convalgos.onnx.operators import ops

Level = onnxruntime.GraphOptimizationLevel
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
BITS_LEFT_OUT = 0 if sums_words() else 1  # of filters
TYPES = [("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8")]  # of x and y, and of w: those it serves


def model(nodes, inputs, outputs, constants):
    """inputs: name -> array; outputs: name -> dtype, or None."""

    def kind(dtype):
        return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))

    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, kind(a.dtype), a.shape) for name, a in inputs.items()],
        [onnx.ValueInfoProto(name=n) if d is None else helper.make_tensor_value_info(n, kind(d), None)
         for n, d in outputs.items()],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=8)


def runtime(made, level=Level.ORT_ENABLE_ALL):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.qdqisint8allowed", "1")  # what is fused on other CPUs
    return onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])


def full(rng, dtype, shape=()):
    """All that a type holds, its ends more often."""
    ends = np.iinfo(dtype)
    drawn = rng.integers(ends.min - 20, ends.max + 21, shape)
    return np.clip(drawn, ends.min, ends.max).astype(dtype)


def random_layer(rng, i):
    """(x, constants, attributes) of a QLinearConv node, whose scales often make ties."""
    (x_dtype, w_dtype), ndim = TYPES[i % 3], 1 + i // 3 % 3
    groups, channels, filters = (int(rng.choice(c)) for c in ((1, 1, 2, 4), (1, 2, 3, 8), (1, 2, 5)))
    x = full(rng, x_dtype, (2, groups * channels, *rng.integers(6, 9, ndim)))
    w = full(rng, w_dtype, (groups * filters, channels, *rng.integers(1, 4, ndim))) >> BITS_LEFT_OUT
    per_channel, ties = i % 2, rng.random() < 0.4
    of_w = (len(w),) if per_channel else ()
    w_scale = np.full(of_w, 2.0**-6) if ties else rng.uniform(0.001, 0.1, of_w)
    w_zero = full(rng, w_dtype, of_w) if rng.random() < 0.4 else np.zeros(of_w, w_dtype)
    constants = {
        "x_scale": 0.5 if ties else rng.uniform(0.001, 0.1), "x_zero": full(rng, x_dtype),
        "w": w, "w_scale": w_scale, "w_zero": w_zero,
        "y_scale": 2.0 ** rng.integers(-3, 4) if ties else rng.uniform(0.01, 5), "y_zero": full(rng, x_dtype),
    }  # fmt: skip
    constants = {n: np.float32(c) if n.endswith("scale") else c for n, c in constants.items()}
    if rng.random() < 0.6:
        most = 2**31 - 1 if rng.random() < 0.2 else 5000  # sums that wrap
        constants["bias"] = rng.integers(-most, most, len(w)).astype("i4")
    attributes = {"strides": rng.integers(1, 3, ndim), "group": groups}
    if rng.random() < 0.5:
        attributes["auto_pad"] = str(rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    else:
        attributes |= {"pads": rng.integers(0, 3, 2 * ndim), "dilations": rng.integers(1, 3, ndim)}
    return x, constants, attributes


@pytest.mark.parametrize(("choice", "count"), [("cpu.reference", 108), ("auto", 9)])
def test_qlinearconv_gives_the_bits_of_onnx_runtime(choice, count):
    rng, wrong = np.random.default_rng(0), []
    for i in range(count):
        x, constants, attributes = random_layer(rng, i)
        node = helper.make_node("QLinearConv", ["x", *constants], ["y"], **attributes)
        made = model([node], {"x": x}, {"y": x.dtype}, constants)
        (y,) = ReferenceEvaluator(made, new_ops=ops(choice)).run(None, {"x": x})
        for level in (Level.ORT_ENABLE_ALL, Level.ORT_DISABLE_ALL)[: 1 + i % 2]:
            (expected,) = runtime(made, level).run(None, {"x": x})
            if y.dtype != expected.dtype or not np.array_equal(y, expected):
                wrong.append(f"{i} at {level}: {attributes}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("zero_points", ["none", "x", "both", "of each filter"])
def test_convinteger_gives_the_sums(dtype, zero_points):
    rng = np.random.default_rng(1)
    x, w = full(rng, "uint8", (1, 3, 7, 8)), full(rng, dtype, (4, 3, 3, 2))
    of_w = full(rng, dtype, 4) if "each" in zero_points else full(rng, dtype)
    given = {"none": {}, "x": {"xz": full(rng, "uint8")}}.get(zero_points, {"xz": np.uint8(77), "wz": of_w})
    node = helper.make_node("ConvInteger", ["x", "w", *given], ["y"], pads=[1, 0, 2, 1])
    made = model([node], {"x": x}, {"y": np.int32}, {"w": w} | given)
    (y,) = ReferenceEvaluator(made, new_ops=ops()).run(None, {"x": x})
    assert y.dtype == np.int32
    wide = (
        x.astype(int) - int(given.get("xz", 0)),
        w.astype(int) - np.reshape(given.get("wz", 0), (-1, 1, 1, 1)),
    )
    exact = ca.conv(*(a.astype("f8") for a in wide), padding=((1, 2), (0, 1)), algorithm="cpu.reference")
    assert np.array_equal(y, exact)
    if "each" not in zero_points:  # which ONNX Runtime does not take
        assert np.array_equal(runtime(made).run(None, {"x": x})[0], y)


# --- QDQ form --------------------------------------------------------------------------------


def qdq(x, c, attributes, relu=False, float_bias=False):
    """The same layer between DequantizeLinear and QuantizeLinear."""
    along = {"axis": 0} if c["w_scale"].ndim else {}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "x_scale", "x_zero"], ["x_real"]),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["w_real"], **along),
    ]
    c = dict(c)
    if "bias" in c:
        scale = np.broadcast_to(c["x_scale"] * c["w_scale"], len(c["w"]))
        if float_bias:
            c["b_real"] = (c.pop("bias").astype("f4") + np.float32(0.3)) * scale
        else:
            c["b_scale"] = scale
            nodes.append(helper.make_node("DequantizeLinear", ["bias", "b_scale"], ["b_real"], axis=0))
    inputs = ["x_real", "w_real", *(["b_real"] if "b_real" in c or "bias" in c else [])]
    nodes.append(helper.make_node("Conv", inputs, ["sums"], "the_conv", **attributes))
    if relu:
        nodes.append(helper.make_node("Relu", ["sums"], ["above"]))
        c["y_zero"] = np.array(np.iinfo(x.dtype).min, x.dtype)
    nodes.append(
        helper.make_node("QuantizeLinear", ["above" if relu else "sums", "y_scale", "y_zero"], ["y"])
    )
    return model(nodes, {"x": x}, {"y": x.dtype}, c)


def test_fused_layers_give_the_bits_of_onnx_runtime():
    rng, wrong = np.random.default_rng(2), []
    for i in range(54):
        x, constants, attributes = random_layer(rng, i)
        if constants["w"].dtype == "int8":
            constants["w_zero"] = np.zeros_like(constants["w_zero"])  # others are not fused there
        if "bias" in constants:
            constants["bias"] = np.clip(constants["bias"], -5000, 5000)
        made = qdq(x, constants, attributes, relu=i % 4 == 1, float_bias=i % 5 < 2)
        fused = fuse_quantized(made)
        assert [node.op_type for node in fused.graph.node] == ["QLinearConv"]
        assert fused.graph.node[0].name == "the_conv"
        (y,) = ReferenceEvaluator(fused, new_ops=ops("cpu.reference")).run(None, {"x": x})
        (expected,) = runtime(made).run(None, {"x": x})
        if not np.array_equal(y, expected):
            wrong.append(f"{i}: {attributes}")
    assert not wrong, "\n".join(wrong)


def unfused(change):
    x, constants, _ = random_layer(np.random.default_rng(3), 3)
    constants |= {"bias": np.zeros(len(constants["w"]), "i4"), "x_scale": np.float32(0.1)}
    made = qdq(x, constants, {}, relu=True)
    change(made.graph)
    return made


def constant(graph, name):
    return next(t for t in graph.initializer if t.name == name)


UNFUSED = {
    "the sums are read twice": lambda g: g.output.append(helper.make_tensor_value_info("sums", 1, None)),
    "a Relu above the least integer": lambda g: constant(g, "y_zero").CopyFrom(
        numpy_helper.from_array(np.array(3, "u1"), "y_zero")
    ),
    "a scale that is no constant": lambda g: g.initializer.remove(constant(g, "x_scale")),
    "a bias of another scale": lambda g: constant(g, "b_scale").CopyFrom(
        numpy_helper.from_array(np.float32(1.5) * numpy_helper.to_array(constant(g, "b_scale")), "b_scale")
    ),
    "16 bits": lambda g: constant(g, "y_zero").CopyFrom(numpy_helper.from_array(np.array(0, "u2"), "y_zero")),
}


@pytest.mark.parametrize("why", UNFUSED)
def test_what_has_another_meaning_stays_as_it_is(why):
    made = unfused(UNFUSED[why])
    assert fuse_quantized(made).graph.node == made.graph.node
    assert len(fuse_quantized(unfused(lambda graph: None)).graph.node) == 1


# --- a network -------------------------------------------------------------------------------


def network():
    """Convolutions of every kind that networks have: first, residual, depthwise, pointwise, grouped."""
    rng, nodes, weights = np.random.default_rng(0), [], {}

    def add(operator, inputs, name, **attributes):
        nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def conv(x, name, k, c, r, stride=1, group=1, relu=True):
        fan_in = c // group * r * r
        weights[f"{name}_w"] = (rng.standard_normal((k, c // group, r, r)) * (2 / fan_in) ** 0.5).astype("f4")
        weights[f"{name}_b"] = rng.standard_normal(k).astype("f4") * np.float32(0.1)
        sums = add("Conv", [x, f"{name}_w", f"{name}_b"], f"{name}_sums", strides=[stride] * 2,
                   pads=[r // 2] * 4, group=group, kernel_shape=[r, r])  # fmt: skip
        return add("Relu", [sums], name) if relu else sums

    x = add("MaxPool", [conv("x", "first", 16, 3, 7, 2)], "pooled", kernel_shape=[3, 3], strides=[2, 2])
    side = conv(conv(x, "res_a", 16, 16, 3), "res_b", 16, 16, 3, relu=False)
    x = add("Relu", [add("Add", [side, x], "joined")], "block")
    x = conv(conv(x, "wide", 48, 16, 1), "thin", 48, 48, 3, 2, group=48)
    x = conv(x, "narrow", 24, 48, 1, relu=False)
    x = add("Concat", [conv(x, "one", 16, 24, 1), conv(x, "three", 16, 24, 3)], "fire", axis=1)
    x = add("GlobalAveragePool", [conv(x, "grouped", 32, 32, 3, group=4)], "mean")
    weights["fc"] = rng.standard_normal((32, 10)).astype("f4")
    add("Gemm", [add("Flatten", [x], "flat"), "fc"], "y")
    return model(nodes, {"x": np.zeros((1, 3, 40, 40), "f4")}, {"y": np.float32}, weights)


class Samples(CalibrationDataReader):
    def __init__(self):
        rng = np.random.default_rng(4)
        self._samples = iter([{"x": rng.standard_normal((1, 3, 40, 40), "f4")} for _ in range(3)])

    def get_next(self):
        return next(self._samples, None)


@cache
def by_runtime(domain, operator):
    """An operator that ONNX Runtime computes, each node by itself."""
    sessions = {}

    def run(self, *inputs, **attributes):
        given = {n: a for n, a in zip(self.onnx_node.input, inputs, strict=True) if n}
        if id(self) not in sessions:
            made = model([self.onnx_node], given, dict.fromkeys(self.onnx_node.output), {})
            sessions[id(self)] = self, runtime(made, Level.ORT_DISABLE_ALL)
        return tuple(sessions[id(self)][1].run(None, given))

    return type(operator, (OpRun,), {"op_domain": domain, "_run": run})


@pytest.mark.parametrize("form", [QuantFormat.QOperator, QuantFormat.QDQ])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("x_type", [QuantType.QUInt8, QuantType.QInt8])
def test_a_network_quantised_by_onnx_runtime_gives_its_bits(tmp_path, form, per_channel, x_type):
    onnx.save(network(), tmp_path / "float.onnx")
    quantize_static(
        tmp_path / "float.onnx", tmp_path / "int.onnx", Samples(), quant_format=form, per_channel=per_channel,
        activation_type=x_type, weight_type=QuantType.QInt8, reduce_range=bool(BITS_LEFT_OUT),
    )  # fmt: skip
    quantised = onnx.load(tmp_path / "int.onnx")
    fused = fuse_quantized(quantised)
    counts = Counter((node.domain, node.op_type) for node in fused.graph.node)
    assert counts["", "QLinearConv"] == 9
    assert counts["", "Conv"] == 0
    own = {op.__name__ for op in ops()}
    others = [by_runtime(*kind) for kind in counts if kind[1] not in own]
    ours = ReferenceEvaluator(fused, new_ops=[*ops(), *others])
    x = np.random.default_rng(5).standard_normal((1, 3, 40, 40), np.float32)
    (y,), (expected,) = ours.run(None, {"x": x}), runtime(quantised).run(None, {"x": x})
    assert np.array_equal(y, expected)
    assert len(np.unique(expected)) > 5  # the weights tell
    if form == QuantFormat.QOperator:
        assert np.array_equal(y, runtime(quantised, Level.ORT_DISABLE_ALL).run(None, {"x": x})[0])


REFUSED = [
    ({"x_scale": np.float32([1, 2])}, r"x_scale has shape \(2,\), but it must be one number"),
    ({"w_scale": np.float32([1, 2, 3])}, "w_scale=.* must be one number, or 2"),
    ({"y_scale": np.float32(0)}, "y_scale=.*0.0.* must be finite and above 0"),
    ({"y_zero": np.int32(0)}, "y_dtype='int32' must be one of 'int8', 'uint8'"),
    ({"y_scale": np.float32(1e-40), "x_scale": np.float32(1e30)}, ".* must be finite in float32"),
]


@pytest.mark.parametrize(("change", "told"), REFUSED)
def test_refusals_name_the_node(change, told):
    scales = {"x_scale": np.float32(1), "x_zero": np.uint8(0), "w": np.ones((2, 1, 1, 1), "i1")}
    scales |= {
        "w_scale": np.float32(1),
        "w_zero": np.int8(0),
        "y_scale": np.float32(1),
        "y_zero": np.uint8(0),
    }
    node = helper.make_node("QLinearConv", ["x", *scales], ["y"], "odd")
    made = model([node], {"x": np.ones((1, 1, 3, 3), "u1")}, {"y": np.uint8}, scales | change)
    with pytest.raises(ValueError, match=f"QLinearConv node 'odd': {told}"):
        ReferenceEvaluator(made, new_ops=ops()).run(None, {"x": np.ones((1, 1, 3, 3), "u1")})


@pytest.mark.parametrize("opset", [10, 12, 13])
@pytest.mark.parametrize("left", [False, True])
def test_products_by_channels_that_are_left_to_onnxruntime(opset, left):
    """Before opset 13 DequantizeLinear has no axis."""
    rng = np.random.default_rng(0)
    constants = {
        "as": np.float32(0.05), "az": np.uint8(120), "w": rng.integers(-9, 9, (16, 8)).astype("i1"),
        "ws": rng.uniform(0.01, 0.1, 8).astype("f4"), "wz": np.zeros(8, "i1"), "ys": np.float32(0.2),
        "yz": np.uint8(3),
    }  # fmt: skip
    nodes = [
        helper.make_node("QLinearMatMul", ["a", "as", "az", "w", "ws", "wz", "ys", "yz"], ["p"]),
        helper.make_node(
            "MatMulInteger", ["p", "v"], ["y"]
        ),  # ONNX Runtime's, and what has no rank before it
    ]
    if left:
        nodes.insert(0, helper.make_node("Reshape", ["b", "s"], ["a"]))
    inputs = [
        helper.make_tensor_value_info("b" if left else "a", TensorProto.UINT8, ["n", "t", 16]),
        helper.make_tensor_value_info("s", TensorProto.INT64, ["k"]),
    ]
    constants["v"] = rng.integers(0, 9, (8, 8)).astype("u1")
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    outputs = [helper.make_tensor_value_info("y", TensorProto.INT32, None)]
    graph = helper.make_graph(nodes, "g", inputs[: 1 + left], outputs, tensors)
    read = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    feed = {inputs[0].name: rng.integers(0, 255, (2, 5, 16)).astype("u1")}
    feed |= {"s": np.array([10, 16])} if left else {}
    right = onnxruntime.InferenceSession(read.SerializeToString()).run(None, feed)[0]
    np.testing.assert_array_equal(Session(read).run(None, feed)[0], right)
