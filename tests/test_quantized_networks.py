"""Networks that ONNX Runtime quantised, in both of its forms: against it and against definitions.

Convolutions, pooling, views and tables of one scale are exact. Sums, products, means and sigmoids are within
one step of the scale of their output of ONNX Runtime's, which rounds them another way. Weights are of 7 bits,
so that ONNX Runtime is exact on processors without VNNI, too.
"""

import numpy as np
import pytest

import convalgos as ca
from convalgos.core.byte_scale import ByteScale
from convalgos.core.epilogue import RELU, Activation
from convalgos.core.errors import Unsupported
from convalgos.core.layouts import PLAIN, array_shape, blocked_layout, laid, to_logical
from convalgos.core.machine import vector_bytes
from convalgos.core.quantization import Quantization
from convalgos.cpu.elementwise.byte_steps import (
    ByteArithmeticPlan,
    ByteConcatenationPlan,
    ByteMeanPlan,
    DequantizePlan,
    LookupPlan,
    QuantizePlan,
)
from convalgos.network.graph import Concatenation, Convolution, Foreign, NetworkGraph, Pooling
from convalgos.network.network import Network
from convalgos.network.onnx_reader.graph import from_onnx
from convalgos.network.planned import PlanLimits
from convalgos.network.quantized_graph import (
    Dequantize,
    Lookup,
    Quantize,
    QuantizedArithmetic,
    QuantizedConvolution,
    QuantizedMean,
)
from convalgos.network.step_options import StepOptions

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

X = (2, 6, 13, 11)
F4 = np.float32


class Builder:
    """A model of float32, node by node; `node` gives the name of the output."""

    def __init__(self):
        self.nodes, self.constants, self.rng = [], [], np.random.default_rng(3)

    def node(self, op, *inputs, domain="", **attributes):
        name = f"{op.lower()}{len(self.nodes)}"
        given = [i if isinstance(i, str) else self.constant(i) for i in inputs]
        self.nodes.append(helper.make_node(op, given, [name], domain=domain, **attributes))
        return name

    def constant(self, array):
        self.constants.append(numpy_helper.from_array(np.asarray(array), f"c{len(self.constants)}"))
        return self.constants[-1].name

    def conv(self, x, c, k, size, groups=1, **more):
        w = self.rng.standard_normal((k, c // groups, size, size)) / (size * c // groups) ** 0.5
        w = w.astype("f4")
        return self.node("Conv", x, w, self.rng.standard_normal(k).astype("f4") / 4, group=groups, **more)

    def model(self, *outputs, x=("n", *X[1:])):
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes, "g", [value("x", TensorProto.FLOAT, x)],
            [value(name, TensorProto.FLOAT, None) for name in outputs], self.constants,
        )  # fmt: skip
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=opsets, ir_version=9))


def quantised(model, tmp_path, form="QDQ", kind="QUInt8", per_channel=True, **more):
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self):
            rng = np.random.default_rng(1)
            self.left = [{"x": rng.standard_normal(X).astype("f4")} for _ in range(2)]

        def get_next(self):
            return self.left.pop() if self.left else None

    path = str(tmp_path / "quantised.onnx")
    quantize_static(
        model, path, Reader(), quant_format=getattr(QuantFormat, form), weight_type=QuantType.QInt8,
        activation_type=getattr(QuantType, kind), per_channel=per_channel, reduce_range=True, **more,
    )  # fmt: skip
    return path


def answers(path, x):
    """(network, its outputs, those of ONNX Runtime)."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    net = from_onnx(path)
    found = net(x)
    return net, found if isinstance(found, tuple) else (found,), session.run(None, {"x": x})


def steps_off(found, wanted):
    """How many steps of its scale an output is off at most; the least difference of its numbers is one."""
    assert found.shape == wanted.shape and found.dtype == wanted.dtype and np.isfinite(found).all()
    numbers = np.unique(wanted)
    assert len(numbers) > 8, "there is too little to tell"
    return np.abs(found.astype("f8") - wanted).max() / np.diff(numbers).min()


def kinds(net):
    return [type(step) for step in net.graph.steps]


DATA = np.random.default_rng(2).standard_normal(X).astype("f4")
FORMS = [
    ("QDQ", "QUInt8", True),
    ("QDQ", "QInt8", False),
    ("QOperator", "QUInt8", False),
    ("QOperator", "QInt8", True),
]


# --- blocks ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "kind", "per_channel"), FORMS)
def test_residual_block(form, kind, per_channel, tmp_path):
    b = Builder()
    a = b.node("Relu", b.conv("x", 6, 16, 3, pads=[0, 1, 2, 1], strides=[2, 1]))
    c = b.node("Relu", b.conv(a, 16, 16, 3, pads=[1, 1, 1, 1]))
    pooled = b.node("MaxPool", c, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    y = b.node("Relu", b.node("Add", b.conv(pooled, 16, 20, 1), b.conv(a, 16, 20, 1, strides=[2, 2])))
    net, found, wanted = answers(quantised(b.model(y, pooled), tmp_path, form, kind, per_channel), DATA)
    assert np.array_equal(found[1], wanted[1]), "integers are exact"
    assert steps_off(found[0], wanted[0]) < 1.01
    assert {*kinds(net)} >= {QuantizedConvolution, QuantizedArithmetic, Pooling}
    assert not {Foreign, Convolution} & {*kinds(net)}


@pytest.mark.parametrize(("form", "kind", "per_channel"), FORMS)
def test_depthwise_block_and_dense_layer(form, kind, per_channel, tmp_path):
    b = Builder()
    a = b.node("Clip", b.conv("x", 6, 24, 1), F4(0), F4(6))
    c = b.node("Clip", b.conv(a, 24, 24, 3, groups=24, strides=[2, 2], pads=[0, 0, 1, 1]), F4(0), F4(6))
    deep = b.conv(c, 24, 10, 1)
    mean = b.node("GlobalAveragePool", b.conv(deep, 10, 40, 5, groups=2))
    w = b.rng.standard_normal((40, 30)).astype("f4") / 8
    flat = b.node("Flatten", mean)
    y = b.node("Gemm", flat, w, b.rng.standard_normal(30).astype("f4"))
    path = quantised(b.model(deep, mean, y), tmp_path, form, kind, per_channel)
    net, found, wanted = answers(path, DATA)
    assert np.array_equal(found[0], wanted[0])
    assert steps_off(found[1], wanted[1]) < 1.01
    assert steps_off(found[2], wanted[2]) < 2.01  # of means that may be one off
    assert kinds(net).count(QuantizedConvolution) == 5 and QuantizedMean in kinds(net)
    assert not {Foreign, Convolution} & {*kinds(net)}


@pytest.mark.parametrize(("form", "kind"), [("QDQ", "QUInt8"), ("QOperator", "QUInt8"), ("QDQ", "QInt8")])
def test_squeeze_and_excitation_with_silu(form, kind, tmp_path):
    b = Builder()
    a = b.conv("x", 6, 16, 3)
    a = b.node("Mul", a, b.node("Sigmoid", a))
    gate = b.node("Sigmoid", b.conv(b.node("GlobalAveragePool", a), 16, 16, 1))
    y = b.node("Concat", b.node("Mul", a, gate), b.conv("x", 6, 7, 3), axis=1)
    net, found, wanted = answers(quantised(b.model(a, y), tmp_path, form, kind), DATA)
    assert steps_off(found[0], wanted[0]) < 1.01
    assert steps_off(found[1], wanted[1]) < 3.01  # of two factors, each of which may be off
    assert not {Foreign, Convolution} & {*kinds(net)} and {Lookup, Concatenation} <= {*kinds(net)}
    silu = [step for step in net.graph.steps if isinstance(step, QuantizedArithmetic)]
    assert len(silu) == 1, "x * sigmoid(x) of one map is a table"


def test_float_regions_between(tmp_path):
    """Steps that are not quantised have float32 around them: ours, or a region of ONNX Runtime."""
    b = Builder()
    a = b.node("Softsign", b.conv("x", 6, 12, 3, pads=[1, 1, 1, 1]))
    a = b.node("AveragePool", b.conv(a, 12, 9, 3), kernel_shape=[2, 2])
    y = b.node("HardSwish", b.conv(a, 9, 12, 1))
    path = quantised(b.model(y), tmp_path, op_types_to_quantize=["Conv"])
    net, found, wanted = answers(path, DATA)
    assert np.abs(found[0] - wanted[0]).max() < 0.03 * np.abs(wanted[0]).max()
    assert kinds(net).count(QuantizedConvolution) == 3 and Foreign in kinds(net) and Pooling in kinds(net)


def test_a_head_that_is_not_quantised_is_of_float32():
    """DequantizeLinear, Conv and no QuantizeLinear: exact sums, scaled once; weights of uint8 and of int8."""
    rng = np.random.default_rng(0)
    q = rng.integers(0, 256, (9, 6, 3, 3)).astype("u1")
    b = Builder()
    scale, zero = F4(0.02), np.uint8(131)
    x = b.node("DequantizeLinear", b.node("QuantizeLinear", "x", scale, zero), scale, zero)
    w = b.node("DequantizeLinear", q, F4(0.01), np.uint8(3))
    y = b.node("Conv", x, w, pads=[1] * 4)
    net = from_onnx(b.model(y))
    assert QuantizedConvolution in kinds(net) and Foreign not in kinds(net)
    whole = np.clip(np.rint(DATA / scale), -131, 124).astype("i8")
    padded = np.pad(whole, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))  # (n, c, p, q, r, s)
    sums = np.einsum("ncpqrs,kcrs->nkpq", windows, q.astype("i8") - 3)
    assert np.array_equal(net(DATA), sums.astype("f4") * (scale * F4(0.01)))


def test_a_region_reads_bytes_that_a_table_of_the_identity_gave():
    """It knows them by their name, which stays."""
    b = Builder()
    scale, zero = F4(0.02), np.uint8(131)
    x = b.node("DequantizeLinear", b.node("QuantizeLinear", "x", scale, zero), scale, zero)
    both = b.node("QuantizeLinear", b.node("Concat", x, x, axis=1), scale, zero)
    turned = b.node("BitShift", both, np.uint8(0), direction="LEFT")
    model = b.model(b.node("DequantizeLinear", turned, scale, zero))
    net, found, wanted = answers(model.SerializeToString(), DATA)
    assert Foreign in kinds(net) and np.array_equal(found[0], wanted[0])


def test_types_behind_operators_that_onnx_does_not_know():
    """ONNX Runtime tells them: the convolution behind is ours."""
    b = Builder()
    scales = (F4(0.02), np.uint8(128)), (F4(1 / 256), np.uint8(0))
    rest = {"domain": "com.microsoft", "axis": 1, "opset": 17}
    p = b.node("QLinearSoftmax", b.node("QuantizeLinear", "x", *scales[0]), *scales[0], *scales[1], **rest)
    model = b.model(b.conv(b.node("DequantizeLinear", p, *scales[1]), 6, 9, 3))
    net, found, wanted = answers(model.SerializeToString(), DATA)
    assert np.allclose(found[0], wanted[0], rtol=0, atol=1e-5)
    assert kinds(net) == [Foreign, Dequantize, Convolution]


def test_save_load_and_explain(tmp_path):
    b = Builder()
    a = b.node("Relu", b.conv("x", 6, 8, 3, pads=[1] * 4))
    a = b.node("LeakyRelu", b.node("Add", a, b.conv(a, 8, 8, 3, pads=[1] * 4)))
    net = from_onnx(quantised(b.model(a), tmp_path))
    y = net(DATA)
    net.save(tmp_path / "net")
    assert np.array_equal(Network.load(tmp_path / "net")(DATA), y)
    told = str(net.explain([X]))
    for what in ("quantize", "quantized add", "lookup", "dequantize", "uint8"):
        assert what in told, what
    assert np.array_equal(net(DATA[:1]), y[:1]), "another batch"


# --- steps -----------------------------------------------------------------------------------

SHAPES = [(1, 5, 7, 9), (2, 37, 3, 5), (1, 64, 1, 1), (1, 3, 65, 67), (2, 3, 0, 4)]
A, B, Y = ByteScale(float(F4(0.21)), 7), ByteScale(float(F4(0.11)), 130), ByteScale(float(F4(0.3)), 101)


@pytest.mark.parametrize("layout", PLAIN)
@pytest.mark.parametrize("shape", SHAPES)
def test_steps_are_their_definitions(shape, layout):
    rng, own = np.random.default_rng(5), array_shape(layout, shape)
    numbers = array_shape(layout, (*shape[:2], 1, 1))
    a, b = (rng.integers(0, 256, own).astype("u1") for _ in range(2))
    each = rng.integers(0, 256, numbers).astype("u1")
    x = (rng.standard_normal(own) * 40).astype("f4")
    x.reshape(-1)[:4] = [np.nan, 1e30, -np.inf, np.inf][: x.size]

    def run(plan, *inputs, like=a):
        around = np.full(like.size + 40, 77, like.dtype)
        y = around[20 : 20 + like.size].reshape(like.shape)
        plan.run(inputs, y)
        assert (around[:20] == 77).all() and (around[20 + like.size :] == 77).all(), "wrote outside"
        return y

    def requantised(v):
        return (np.clip(np.rint(v), -101, 154) + 101).astype("u1")

    assert np.array_equal(run(QuantizePlan(shape, layout, Y), x), Y.integers(x))
    assert np.array_equal(run(DequantizePlan(shape, layout, A), a, like=x), A.numbers()[a])
    of_a, of_b = a.astype("i4") - 7, b.astype("i4") - 130
    total = of_a.astype("f4") * (F4(0.21) / F4(0.3)) + of_b.astype("f4") * (F4(0.11) / F4(0.3))
    for activation, low, high in (
        (None, -1e9, 1e9),
        (RELU, 0, 1e9),
        (Activation("clip", -3.0, 6.0), -10, 20),
    ):
        plan = ByteArithmeticPlan("add", (shape, shape), layout, (A, B, Y), activation)
        assert np.array_equal(run(plan, a, b), requantised(np.clip(total, low, high)))
    for other, scaled in ((b, of_b), (each, each.astype("i4") - 130)):
        plan = ByteArithmeticPlan(
            "multiply", (shape, (*shape[:2], *_sizes(other, layout))), layout, (A, B, Y)
        )
        v = (of_a * scaled).astype("f4") * (F4(0.21) * F4(0.11) / F4(0.3))
        assert np.array_equal(run(plan, a, other), requantised(v))
    table = rng.permutation(256).astype("u1")
    assert np.array_equal(run(LookupPlan(a.size, table), a), table[a])
    axes, pixels = ((1, 2) if layout == "channels_last" else (2, 3)), shape[2] * shape[3]
    mean = of_a.sum(axes, dtype="i8", keepdims=True).astype("f4") * (F4(0.21) / (F4(0.3) * F4(pixels or 1)))
    assert np.array_equal(run(ByteMeanPlan(shape, layout, A, Y), a, like=each), requantised(mean))
    more = rng.integers(0, 256, array_shape(layout, (shape[0], 3, *shape[2:]))).astype("u1")
    wanted = np.concatenate([a, more], -1 if layout == "channels_last" else 1)
    plan = ByteConcatenationPlan((shape, (shape[0], 3, *shape[2:])), layout)
    assert np.array_equal(run(plan, a, more, like=wanted), wanted)


def test_maps_of_bytes_never_lie_in_blocks_of_channels():
    """Beside steps of float32 that do: reorders between blocks and bytes are not on every machine."""
    own = blocked_layout(vector_bytes() // 4)
    steps = [
        Quantize("first", ("x",), "a", A),
        Dequantize("floats", ("a",), "b", A),
        Convolution("conv", ("b",), "c", np.ones((64, 64, 3, 3), "f4"), padding=((1, 1),) * 2),
        Quantize("last", ("c",), "d", B),
        Dequantize("y", ("d",), "y", B),
    ]
    graph = NetworkGraph(("x",), ("y",), tuple(steps), {}, {"a": "uint8", "d": "uint8"})
    options = StepOptions(graph, graph.shapes_of({"x": (1, 64, 9, 9)}), PlanLimits())
    for step in steps:
        layouts = {layout for option in options.of(step) for layout in (*option.reads, option.writes)}
        assert (own in layouts) == isinstance(step, Convolution), step.name


def test_blocks_of_channels_hold_bytes_as_floats():
    """Also those that channels do not fill: bytes that a network has brought into blocks."""
    shape, layout = (2, 37, 3, 5), blocked_layout(vector_bytes() // 4)
    a = np.random.default_rng(6).integers(0, 256, shape).astype("u1")
    held = laid(a, layout)
    x, back = np.full(held.shape, np.nan, "f4"), np.zeros(held.shape, "u1")
    DequantizePlan(shape, layout, A).run((held,), x)
    assert np.array_equal(to_logical(x, layout, 37), A.numbers()[a])
    QuantizePlan(shape, layout, A).run((x,), back)
    assert np.array_equal(to_logical(back, layout, 37), a)


def _sizes(array, layout):
    return array.shape[1:3] if layout == "channels_last" else array.shape[2:]


def test_what_steps_do_not_compute():
    with pytest.raises(Unsupported, match="no maps of one shape"):
        ByteArithmeticPlan("add", ((1, 2, 3, 3), (1, 2, 1, 1)), "channels_first", (A, B, Y))
    with pytest.raises(Unsupported, match="'silu' is no limit"):
        ByteArithmeticPlan("add", ((1, 2, 3, 3),) * 2, "channels_first", (A, B, Y), Activation("silu"))


def test_numbers_beyond_words_are_limited():
    """Where sums and products may exceed 32 bits they are not packed."""
    shape, tiny = (1, 70, 1, 3), ByteScale(1e-9, 101)
    a, b = (np.random.default_rng(n).integers(0, 256, shape).astype("u1") for n in range(2))
    of_a, of_b = a.astype("f8") - 7, b.astype("f8") - 130
    for operation, exact in (("add", of_a * 0.21 + of_b * 0.11), ("multiply", of_a * of_b)):
        y = np.full(shape, 77, "u1")
        ByteArithmeticPlan(operation, (shape, shape), "channels_first", (A, B, tiny)).run((a, b), y)
        assert np.array_equal(y, np.where(exact > 1e-6, 255, np.where(exact < -1e-6, 0, 101)))


@pytest.mark.parametrize("layout", PLAIN)
@pytest.mark.parametrize("y_dtype", ["uint8", "int8", "float32", "int32"])
@pytest.mark.parametrize(
    ("algorithm", "w_shape"),
    [
        ("cpu.dot.vnni", (37, 20, 3, 3)),
        ("cpu.dot.pairs", (70, 20, 1, 1)),
        ("cpu.depthwise.words", (20, 1, 3, 3)),
        ("cpu.winograd.int16.f4x3", (9, 20, 3, 3)),
    ],
)
def test_bound_runs_of_integers(algorithm, w_shape, y_dtype, layout):
    """Again and again, on scratch that holds anything, with and without an output step of their own."""
    rng = np.random.default_rng(4)
    problem = ca.ConvProblem(
        (2, 20, 9, 7), w_shape, padding=1, groups=20 // w_shape[1], dtype="uint8", w_dtype="int8",
        layout=layout, y_dtype=y_dtype, scales="per_channel",
    )  # fmt: skip
    try:
        plan, judge = ca.plan(problem, algorithm=algorithm), ca.plan(problem, algorithm="cpu.reference")
    except Unsupported as reason:
        pytest.skip(str(reason))
    w = rng.integers(-127, 128, w_shape).astype("i1")
    bias = rng.integers(-4000, 4000, w_shape[0]).astype("i4")
    requantised = {"y_scale": 0.7, "y_zero_point": 5} if y_dtype in ("uint8", "int8") else {}
    scales = Quantization(0.02, 3, np.linspace(0.001, 0.02, w_shape[0]), 0, **requantised)
    x = np.empty(problem.array_shapes[0], "u1")
    scratch = np.full((plan.scratch_bytes or 0) + 64, 0xA5, "u1")
    scratch = scratch[-scratch.ctypes.data % 64 :][: plan.scratch_bytes or 0]
    for activation in (None, "relu"):
        y = np.full(problem.array_shapes[2], 77, y_dtype)
        run = plan.bind(x, plan.prepare(w, scales), y, bias, activation, None, scratch)
        for _ in range(2):
            x[...] = rng.integers(0, 256, x.shape)
            run.run()
            wanted = judge(x, judge.prepare(w, scales), bias=bias, activation=activation)
            assert np.array_equal(y, wanted), activation
