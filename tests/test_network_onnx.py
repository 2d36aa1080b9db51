"""Networks read from ONNX models: every fusion against ONNX Runtime, and trained models."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import convalgos as ca
from convalgos.core.epilogue import Activation, activation_of
from convalgos.cpu.strassen import Strassen
from convalgos.network import network
from convalgos.network.array_functions import ArrayFunction
from convalgos.network.attention import Product
from convalgos.network.compared import compared
from convalgos.network.filters import has_filter
from convalgos.network.graph import Convolution, Elementwise, Foreign, Resizing, View
from convalgos.network.onnx_reader.graph import from_onnx
from convalgos.onnx.session import Session

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

RNG = np.random.default_rng(7)
SHAPE = (1, 8, 9, 7)
CLOSE = 2e-5  # of the largest element of an output


class Builder:
    """A model, node by node; `node` gives the name of the output."""

    def __init__(self, shape=SHAPE, opset=20):
        self.nodes, self.initializers, self.opset = [], [], opset
        self.inputs = {"x": shape}

    def constant(self, array):
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def node(self, op, *inputs, count=1, **attributes):
        names = [f"{op.lower()}{len(self.nodes)}{'abc'[i]}" for i in range(count)]
        inputs = [i if isinstance(i, str) else self.constant(i) for i in inputs]
        self.nodes.append(helper.make_node(op, inputs, names, **attributes))
        return names[0] if count == 1 else names

    def conv(self, x="x", k=8, c=8, size=3, **more):
        w = RNG.standard_normal((k, c, size, size)).astype("f4") / 8
        return self.node("Conv", x, w, RNG.standard_normal(k).astype("f4"), pads=[size // 2] * 4, **more)

    def model(self, *outputs):
        def value(name, shape=None, kind=TensorProto.FLOAT):
            return helper.make_tensor_value_info(name, kind, shape)

        graph = helper.make_graph(
            self.nodes, "g", [value(n, s) for n, s in self.inputs.items()], list(map(value, outputs)),
            self.initializers,
        )  # fmt: skip
        for output in graph.output:  # of a type that ONNX infers
            output.ClearField("type")
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=9)
        return onnx.shape_inference.infer_shapes(made)


def numbers(shape):
    return RNG.standard_normal(shape).astype("f4")


def reference(model, feeds):
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    source = model if isinstance(model, str) else model.SerializeToString()
    return onnxruntime.InferenceSession(source, options, ["CPUExecutionProvider"]).run(None, feeds)


def check(model, x, close=CLOSE):
    """That a network gives the outputs of ONNX Runtime; returns the network."""
    net = from_onnx(model)
    expected = reference(model, {net.graph.inputs[0]: x})
    given = net(x)
    for y, right in zip(given if len(expected) > 1 else (given,), expected, strict=True):
        assert y.shape == right.shape and y.dtype == right.dtype
        if right.size:
            np.testing.assert_allclose(y, right, rtol=0, atol=close * max(1e-30, np.abs(right).max()))
    return net


def kinds(net):
    return [type(step) for step in net.graph.steps]


def test_activations_become_part_of_convolutions_however_they_are_spelled():
    b = Builder()
    one = np.float32(1)

    def gelu(x):
        inner = b.node("Erf", b.node("Div", x, np.float32(2**0.5)))
        return b.node("Mul", b.node("Mul", x, b.node("Add", inner, one)), np.float32(0.5))

    def gelu_tanh(x):
        cube = b.node("Mul", b.node("Pow", x, np.float32(3)), np.float32(0.044715))
        inner = b.node("Mul", b.node("Add", x, cube), np.float32((2 / np.pi) ** 0.5))
        return b.node("Mul", b.node("Mul", np.float32(0.5), x), b.node("Add", one, b.node("Tanh", inner)))

    def hard_swish(x):
        clipped = b.node("Clip", b.node("Add", x, np.float32(3)), np.float32(0), np.float32(6))
        return b.node("Div", b.node("Mul", clipped, x), np.float32(6))

    wanted = {
        Activation("relu"): lambda x: b.node("Relu", x),
        Activation("clip", 0, 6): lambda x: b.node("Clip", x, np.float32(0), np.float32(6)),
        Activation("leaky_relu", 0.25): lambda x: b.node("LeakyRelu", x, alpha=0.25),
        Activation("sigmoid"): lambda x: b.node("Sigmoid", x),
        Activation("silu"): lambda x: b.node("Mul", b.node("Sigmoid", x), x),
        Activation("hard_swish"): hard_swish,
        Activation("gelu"): gelu,
        Activation("gelu_tanh"): gelu_tanh,
    }

    def swish(x):
        return b.node("Mul", x, b.node("Sigmoid", b.node("Mul", x, np.ones(1, "f4"))))

    more = [
        (Activation("silu"), swish),
        (Activation("hard_swish"), lambda x: b.node("HardSwish", x)),
        (Activation("hard_swish"), lambda x: b.node("Mul", x, b.node("HardSigmoid", x, alpha=1 / 6))),
        (Activation("gelu_tanh"), lambda x: b.node("Gelu", x, approximate="tanh")),
        (Activation("clip", 0, 1), lambda x: b.node("HardSigmoid", x, alpha=0.2)),  # and a scaled filter
        (Activation("clip", -0.25, math.inf), lambda x: b.node("Max", x, np.full((1, 1, 1), -0.25, "f4"))),
        (Activation("clip", -math.inf, 0.5), lambda x: b.node("Min", np.float32(0.5), x)),
        (Activation("tanh"), lambda x: b.node("Tanh", x)),
        (Activation("elu", 0.5, 1), lambda x: b.node("Elu", x, alpha=0.5)),
        (activation_of("selu"), lambda x: b.node("Selu", x)),
        (Activation("softplus"), lambda x: b.node("Softplus", x)),
        (Activation("mish"), lambda x: b.node("Mul", x, b.node("Tanh", b.node("Softplus", x)))),
    ]
    cases = [*wanted.items(), *more]
    net = check(b.model(*(make(b.conv()) for _, make in cases)), 3 * numbers(SHAPE))
    assert kinds(net) == [Convolution] * len(cases)
    assert [step.activation for step in net.graph.steps] == [activation for activation, _ in cases]


def test_shapes_of_regions_with_ceil_mode_are_those_of_a_run():
    """ONNX infers a window that begins behind the map."""
    b = Builder((1, 8, 23, 7), opset=17)
    options = {"kernel_shape": [2, 2], "pads": [0, 0, 1, 0], "strides": [3, 1], "ceil_mode": 1}
    y, _ = b.node("MaxPool", b.conv(), count=2, **options)  # with indices it is left to ONNX Runtime
    check(b.model(b.node("Sin", y)), numbers((1, 8, 23, 7)))


def test_what_is_only_like_an_activation_stays_as_it_is():
    b = Builder()
    x = b.conv()
    read = b.node("Sigmoid", x)
    outputs = [b.node("Mul", x, read), b.node("Relu", read)]  # the sigmoid has another reader
    three = b.node("Add", x, np.float32(3.5))
    clipped = b.node("Clip", three, np.float32(0), np.float32(6))
    outputs.append(b.node("Div", b.node("Mul", clipped, x), np.float32(6)))
    net = check(b.model(*outputs), numbers(SHAPE))
    assert not any(getattr(step, "activation", None) in ("silu", "hard_swish") for step in net.graph.steps)


def test_limits_that_are_no_activation():
    """Of several arrays or numbers, of more dimensions than the map, of no number, of integers."""
    b = Builder()
    whole = b.node("Max", b.node("Cast", "x", to=TensorProto.INT64), np.array([2]))
    whole = b.node("Cast", whole, to=TensorProto.FLOAT)
    of_two = b.node("Max", "x", b.conv())
    of_three = b.node("Min", "x", np.float32(0.5), np.float32(0.25))
    wider = b.node("Max", "x", np.full((1, 1, 1, 1, 1), -0.25, "f4"))
    of_none = b.node("Min", "x", np.float32(np.nan))
    channels = b.node("Max", "x", numbers((8, 1, 1)))
    net = check(b.model(whole, of_two, of_three, wider, channels), numbers(SHAPE) * 4)
    assert not any(isinstance(s, Elementwise) and s.activation for s in net.graph.steps)
    assert np.isnan(from_onnx(b.model(of_none))(numbers(SHAPE))).all()


def test_infinities_stay_where_there_is_no_limit():
    b = Builder()
    limited = [b.node(op, "x", np.float32(0.5)) for op in ("Max", "Min")]
    model = b.model(*limited, b.node("Clip", "x", np.float32(-np.inf), np.float32(1)))
    x = numbers(SHAPE)
    x.reshape(-1)[[1, 20, 30]] = np.inf, -np.inf, np.nan
    for y, wanted in zip(from_onnx(model)(x), reference(model, {"x": x}), strict=True):
        np.testing.assert_array_equal(y, wanted)


def test_sums_become_residuals_of_one_convolution():
    b = Builder()
    first = b.node("Relu", b.conv())
    second = b.node("Relu", b.node("Add", b.conv(first), first))  # a block
    both = b.node("Add", b.conv(second), b.conv(first))  # two convolutions: one takes the other
    twice = b.conv(both)
    third = b.node("Add", twice, both)  # read twice
    of_maps = b.node("GlobalAveragePool", third)
    fourth = b.node("Add", b.conv(third), of_maps)  # of differing shapes
    same = b.node("Add", third, third)
    net = check(b.model(b.node("Add", fourth, b.node("Sin", twice)), same), numbers(SHAPE))
    summed = [s for s in net.graph.steps if isinstance(s, Convolution) and len(s.inputs) == 2]
    assert len(summed) == 2 and summed[0].activation == Activation("relu")
    assert check_batch(net.graph) == (3, *SHAPE[1:])


def check_batch(graph):
    """The shape of the last output for three images."""
    shapes = dict.fromkeys(graph.inputs, (3, *SHAPE[1:]))
    return tuple(graph.shapes_of(shapes)[graph.outputs[-1]])


def test_scales_become_part_of_the_convolutions_around_them():
    b = Builder()
    statistics = [np.float32(RNG.uniform(0.5, 2, 8)) for _ in range(4)]
    x = b.node("BatchNormalization", b.conv(), *statistics)
    x = b.node("Relu", b.node("Sub", np.float32(1), b.node("Mul", x, numbers((8, 1, 1)))))
    x = b.node(
        "Div", b.node("Add", x, numbers((1, 8, 1, 1))), np.float32(3)
    )  # goes ahead: 1x1 has no padding
    y = b.node("Sigmoid", b.conv(x, size=1, group=2, c=4))
    z = b.conv(b.node("Add", y, np.float32(0.5)))  # padding lies around it: it stays
    w = numbers((8, 4, 2, 2))
    t = b.node("ConvTranspose", z, w, group=2, strides=[2, 2], pads=[0, 1, 1, 0], output_padding=[1, 0])
    t = b.node("BatchNormalization", t, *statistics)
    net = check(b.model(t), numbers(SHAPE))
    assert len(net.graph.steps) == 5 and net.graph.steps[2].operation == "shift"


@pytest.mark.parametrize(
    ("op", "scale", "folded"),
    [
        ("HardSwish", -0.75, Activation("hard_swish", -1.75, 0.5)),
        ("Relu", 0.75, Activation("clip", 0.5, math.inf)),
        ("Relu", -0.75, Activation("clip", -math.inf, 0.5)),
        ("Sigmoid", 0.75, Activation("sigmoid")),  # which cannot
    ],
)
def test_scales_and_shifts_of_all_channels_become_part_of_activations(op, scale, folded, tmp_path):
    b = Builder()
    first = b.node("Add", b.node("Mul", b.node(op, b.conv()), np.float32(scale)), np.float32(0.5))
    second = b.conv(first, group=8, c=1)  # padding lies around it
    third = b.node("Add", b.node("Mul", b.node(op, second), numbers((8, 1, 1))), np.float32(0.5))
    net = check(b.model(b.conv(third)), x := numbers(SHAPE))
    assert net.graph.steps[0].activation == folded
    net.save(tmp_path / "net")  # with bounds that JSON has no form for
    loaded = ca.network.load(tmp_path / "net")
    assert loaded.graph.steps[0].activation == folded and np.array_equal(loaded(x), net(x))
    assert len(net.graph.steps) == 4 + (op == "Sigmoid")  # the scales of each channel stay


def test_squeeze_and_excitation_and_linear_layers():
    b = Builder()
    x = b.conv()
    gate = b.node("Relu", b.conv(b.node("ReduceMean", x, np.int64([2, 3])), k=4, size=1))
    gate = b.node("HardSigmoid", b.conv(gate, c=4, size=1))
    x = b.node("Relu", b.node("Mul", gate, x))
    flat = b.node("Flatten", x)
    hidden = b.node(
        "Relu", b.node("Gemm", flat, numbers((5, 8 * 63)), numbers(5), transB=1, alpha=0.5, beta=2.0)
    )
    mean = b.node("Squeeze", b.node("GlobalAveragePool", x), np.int64([-1, 2]))
    sums = b.node("MatMul", b.node("Dropout", mean), numbers((8, 5)))
    net = check(b.model(b.node("Softmax", b.node("Concat", hidden, sums, axis=-1))), numbers(SHAPE))
    assert not any(isinstance(s, Foreign) for s in net.graph.steps)
    assert sum(isinstance(s, View) for s in net.graph.steps) <= 6
    multiply = next(s for s in net.graph.steps if isinstance(s, Elementwise))
    assert multiply.operation == "multiply" and multiply.activation == Activation("relu")


def test_channels_that_are_compared_get_equal_bits_of_equal_filters(monkeypatch):
    """Before a softmax or an argmax nothing is chosen that sums filters in different orders."""
    monkeypatch.setattr(Strassen, "_seconds", lambda self, cycles, problem, machine: 1e-9)
    b = Builder((1, 37, 9, 9))
    hidden = b.node("Relu", b.conv(c=37, k=75, size=1))
    scores = b.node("GlobalAveragePool", b.conv(hidden, c=75, k=101, size=1))
    named = b.node("ArgMax", b.node("Flatten", scores), axis=1)
    keys, values = (
        b.node("Reshape", b.conv(hidden, c=75, k=77, size=1), np.array([1, 77, 81])) for _ in "kv"
    )
    weights = b.node("Softmax", b.node("MatMul", b.node("Transpose", keys, perm=[0, 2, 1]), values))
    net = from_onnx(b.model(named, weights))
    found = {s.step.w.shape[0]: s.plan.algorithm for s in net.plan().planned.steps if has_filter(s)}
    assert {k for k, algorithm in found.items() if "strassen" in algorithm} == {75, 77}
    assert [step.w.shape[0] for step in compared(net.graph)] == [101]


def test_pooling_upsampling_and_concatenation():
    b = Builder()
    x = b.conv()
    windows = {"kernel_shape": [3, 2], "strides": [2, 2]}
    pools = [
        b.node("MaxPool", x, auto_pad="SAME_UPPER", **windows),
        b.node("MaxPool", x, ceil_mode=1, pads=[1, 0, 1, 1], **windows),
        b.node("AveragePool", x, pads=[1, 0, 1, 1], **windows),
        b.node("AveragePool", x, count_include_pad=1, pads=[1, 0, 1, 1], **windows),
        b.node("MaxPool", x, auto_pad="SAME_LOWER", **windows),  # foreign
    ]
    whole = b.node("Concat", pools[0], pools[4], axis=1)
    corners = {"coordinate_transformation_mode": "align_corners"}
    rounded = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    up = b.node("Resize", whole, "", np.float32([1, 1, 2, 3]), **rounded)
    resized = [
        b.node("Resize", whole, "", np.float32([1, 1, 2.3, 0.7]), mode="linear"),
        b.node("Resize", whole, "", "", np.int64([1, 16, 9, 11]), mode="linear", **corners),
        b.node("Resize", whole, "", np.float32([1, 1, 2, 2]), mode="cubic"),  # foreign
    ]
    padded = b.node("Pad", up, np.int64([0, 0, 1, 0, 0, 0, 2, 1]))
    net = check(b.model(*pools, *resized, b.conv(padded, c=16)), numbers(SHAPE))
    found = [s.region.what for s in net.graph.steps if isinstance(s, Foreign)]
    assert sorted(found) == ["MaxPool", "Resize"]
    last = next(s for s in net.graph.steps if s.output == net.graph.outputs[-1])
    assert last.padding == ((2, 3), (1, 2))


def test_sizes_of_maps_that_follow_from_an_open_batch():
    """As of `interpolate(x, size=...)`, exported for any batch; those of open maps are not known."""
    for shape, of_arrays in ((("n", 8, 9, 7), 0), (("n", 8, "h", 7), 1)):
        b = Builder(shape)
        x = b.conv()
        begin, end = np.int64([0]), np.int64([2])
        images = b.node("Slice", b.node("Shape", x), begin, end)
        both = b.node("Slice", b.node("Shape", x), end, np.int64([4]))
        y = []
        for sizes, more in (
            ([11, 13], {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}),
            ([27, 14], {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
        ):
            target = b.node("Concat", images, np.int64(sizes), axis=0)
            y.append(b.node("Resize", x, "", "", target, **more))
        same = b.node("Resize", x, "", "", b.node("Concat", images, both, axis=0), mode="linear")
        for n in (1, 3):
            net = check(b.model(*y, b.node("Relu", same)), numbers((n, 8, 9, 7)))
        assert any(isinstance(s, ArrayFunction) for s in net.graph.steps) == of_arrays
        assert any(isinstance(s, Resizing) for s in net.graph.steps) and Foreign not in kinds(net)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("opset, foreign", [(20, 0), (11, 3)])
def test_softmax_over_any_dimension_but_the_first(opset, foreign, op):
    """Before opset 13 it is over all dimensions from an axis on."""
    b = Builder(opset=opset)
    x = b.conv(k=21)
    y = [b.node(op, x, axis=axis) for axis in (1, -3, 3, 2)]
    flat = b.node(op, b.node("Flatten", b.conv(x, c=21)), axis=1)
    net = check(b.model(*y, b.node("Relu", y[0]), flat), numbers(SHAPE))
    regions = [s.region.operators for s in net.graph.steps if isinstance(s, Foreign)]
    assert sum(operators.count(op) for operators in regions) == foreign
    assert len(compared(net.graph)) == 2


@pytest.mark.parametrize("shape", [("n", 8, 9, 7), ("n", 8, "h", 7), ("n", 8, "h", "w")], ids=str)
def test_sums_and_means_of_channels(shape):
    b = Builder(shape)
    x = b.conv(k=13)
    y = [
        b.node(op, x, np.int64([axis]), keepdims=kept)
        for op, axis in (("ReduceSum", 1), ("ReduceMean", -3))
        for kept in (0, 1)
    ]
    net = check(b.model(*y, b.node("ReduceSum", x, np.int64([2]))), numbers(SHAPE))  # the last one of rows
    assert kinds(net).count(ArrayFunction) == (3 if "w" in shape else 1)
    assert sum(isinstance(s, Convolution) for s in net.graph.steps) == (3 if "w" in shape else 5)


def test_norms_of_rows():
    b = Builder(("n", *SHAPE[1:]))
    rows = b.node("Flatten", b.node("GlobalAveragePool", b.conv(k=24)))
    y = b.node("LayerNormalization", rows, numbers(24), numbers(24), epsilon=1e-3)
    net = check(b.model(b.node("Gemm", y, numbers((24, 5)))), numbers((3, *SHAPE[1:])))
    assert not any(isinstance(s, Foreign) for s in net.graph.steps)


def test_pads_become_borders_of_convolutions():
    b = Builder()
    around, w = np.int64([0, 0, 1, 2, 0, 0, 0, 1]), numbers((8, 8, 3, 3))
    pads = [b.node("Pad", "x", around, mode=mode) for mode in ("reflect", "edge", "wrap")]
    pads.append(b.node("Pad", "x", around, np.float32(0.5)))
    y = [b.node("Conv", pad, w) for pad in pads]
    alone = b.node("GlobalMaxPool", b.node("Relu", pads[0]))  # a step of its own
    twice = b.node("Conv", pads[1], w, pads=[1] * 4)  # with zeros around the border
    steps = check(b.model(*y, alone, twice), numbers(SHAPE)).graph.steps
    assert not any(isinstance(step, Foreign) for step in steps)
    assert [step.boundary for step in steps if step.output in y] == ["reflect", "edge", "wrap", "constant"]
    assert {step.inputs for step in steps if step.output in y} == {("x",)}
    assert sum(step.groups == 8 for step in steps if step.output not in y and hasattr(step, "groups")) == 2


def test_one_and_three_dimensions():
    for shape in ((2, 3, 11), (1, 2, 4, 5, 3)):
        b = Builder(shape)
        w = numbers((4, shape[1], *(3,) * (len(shape) - 2)))
        y = b.node("Conv", "x", w, auto_pad="SAME_UPPER", strides=[2] * (len(shape) - 2))
        net = check(b.model(b.node("GlobalMaxPool", b.node("Relu", y))), numbers(shape))
        assert len(net.graph.steps) == 2


def test_taps_that_reach_into_padding_alone_are_left_out():
    for shape, taps in (((1, 8, 9, 7), (1, 1)), ((1, 8, 9, 8), (1, 3)), ((2, 8, 17, 20), (3, 3))):
        b = Builder((None, 8, None, None))
        y = b.node("Conv", "x", numbers((8, 8, 5, 3)), pads=[18, 7] * 2, dilations=[9, 7])
        net = check(b.model(b.node("Relu", y)), numbers(shape))
        assert [s.plan.problem.kernel for s in net.plan(shape).planned.steps] == [taps]


def test_foreign_nodes_are_regions_without_cycles():
    b = Builder(("n", 8, "h", "w"))
    a = b.node("Softsign", b.conv())
    c = b.conv(a)
    d = b.node("Atan", b.node("Cos", b.node("Add", c, b.node("Neg", a))))
    sizes = b.node("Shape", a)  # integers from one region to another
    flat = b.node(
        "Reshape", d, b.node("Concat", b.node("Gather", sizes, np.int64([0])), np.int64([-1]), axis=0)
    )
    net = check(b.model(flat, a, b.node("ArgMax", d, axis=1)), numbers(SHAPE))
    regions = [s.region.what for s in net.graph.steps if isinstance(s, Foreign)]
    assert len(regions) == 2 and "Cos" in regions[1] and "Softsign" in regions[0]
    x = numbers((2, 8, 5, 6))  # another shape
    expected = reference(b.model(*net.graph.outputs), {"x": x})
    for y, right in zip(net(x), expected, strict=True):
        np.testing.assert_allclose(y, right, atol=1e-5)


def test_outputs_that_are_inputs_or_read_again():
    b = Builder()
    y = b.conv(b.node("Identity", "x"))
    z = b.node("Relu", y)
    model = b.model(y, z, "x", b.node("Identity", y), b.node("Flatten", z))
    net = check(model, x := numbers(SHAPE))
    outputs = net(x)
    assert not any(np.shares_memory(a, b) for i, a in enumerate(outputs) for b in (*outputs[:i], x))


def test_no_images_and_many():
    b = Builder(("n", 8, 9, 7))
    y = b.node("MatMul", b.node("Flatten", b.node("Softsign", b.conv())), numbers((504, 3)))
    for n in (0, 3):
        check(b.model(y), numbers((n, *SHAPE[1:])))


def test_what_is_wrong_is_told():
    b = Builder(("n", 8, 9, 7))
    net = from_onnx(b.model(b.conv()).SerializeToString())
    x = numbers(SHAPE)
    with pytest.raises(ValueError, match=r"x has shape \(1, 7, 9, 7\), but the network takes \(n, 8, 9, 7\)"):
        net(x[:, :7])
    with pytest.raises(TypeError, match="x has dtype float64, but the network takes float32"):
        net(x.astype("f8"))
    with pytest.raises(ValueError, match="2 inputs were given; the network takes 'x'"):
        net(x, x)
    with pytest.raises(ValueError, match="inputs lacks 'x'"):
        net(inputs={})
    with pytest.raises(ValueError, match="inputs has 'z'"):
        net(inputs={"z": x})
    with pytest.raises(ValueError, match="in their order or by name"):
        net(x, inputs={"x": x})
    assert net.plan(2).planned.shapes["x"] == (2, *SHAPE[1:])
    with pytest.raises(ValueError, match="effort='guess'"):
        net.plan(2, effort="guess")


def test_what_is_no_model_is_told(tmp_path):
    with pytest.raises(ValueError, match="no ONNX model"):
        from_onnx(b"nothing of that kind")
    with pytest.raises(ValueError, match="must be a path"):
        from_onnx(3)
    b = Builder()
    model = b.model(b.node("Relu", b.conv()))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=16)
    check(str(tmp_path / "m.onnx"), numbers(SHAPE))
    with pytest.raises(ValueError, match="give the path"):
        from_onnx((tmp_path / "m.onnx").read_bytes())
    with pytest.raises(ValueError, match="reads 'nothing', which nothing writes"):
        from_onnx((b := Builder()).model(b.node("Shape", "nothing")))
    for read in ("x", np.ones(3, np.float32)):
        net = from_onnx((b := Builder()).model(b.node("Nothing", read)))
        with pytest.raises(ca.Unsupported, match="has Nothing"):
            net(numbers(SHAPE))


def test_without_onnxruntime(monkeypatch):
    from convalgos.core import errors

    told = {"onnxruntime": "needs onnxruntime, which is not installed (pip install 'convalgos[bench]')"}
    for module in ("graph", "region", "loading", "constants"):
        monkeypatch.setattr(f"convalgos.network.onnx_reader.{module}.missing", told.get)
    assert errors.missing("onnx") is None
    b = Builder()
    assert from_onnx(b.model(b.node("Relu", b.conv())))(numbers(SHAPE)).shape == SHAPE
    for read in ("conv0a", numbers((3,))):
        b = Builder()
        b.conv()
        with pytest.raises(ca.Unsupported, match=r"Softsign.*needs onnxruntime"):
            from_onnx(b.model(b.node("Softsign", read)))


def test_threads_share_a_network():
    b = Builder(("n", 8, "h", "w"))
    x = b.node("Relu", b.conv())
    net = from_onnx(b.model(b.conv(b.node("Sin", b.node("Add", b.conv(x), x)))))
    inputs = [numbers((1, 8, 9, 7 + i % 2)) for i in range(12)]
    expected = [net(x) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(net, inputs * 4))
    assert all((y == right).all() for y, right in zip(found, expected * 4, strict=True))


def test_a_session_is_called_as_one_of_onnxruntime():
    b = Builder(("n", 8, None, 7))
    y, z = b.conv(), b.node("Relu", b.conv())
    model = b.model(y, z)
    session, other = Session(model), onnxruntime.InferenceSession(model.SerializeToString())
    for ours, theirs in ((session.get_inputs, other.get_inputs), (session.get_outputs, other.get_outputs)):
        told = [[(v.name, v.type, v.shape) for v in values()] for values in (ours, theirs)]
        assert told[0] == told[1]
    x = numbers(SHAPE)
    both = session.run(None, {"x": x})
    assert len(both) == 2 and (session.run([z], {"x": x})[0] == both[1]).all()
    with pytest.raises(ValueError, match="output_names has"):
        session.run(["q"], {"x": x})
    with pytest.raises(ValueError, match="x has shape"):
        session.run(None, {"x": x[:, :5]})


def test_other_sizes_take_the_filters_that_are_prepared(monkeypatch, two_threads):
    b = Builder(("n", 8, "h", "w"))
    model = b.model(b.node("Relu", b.conv(b.node("Relu", b.conv(), name="between"))))
    session = Session(model)
    steps = len(session.network.plan((1, 8, 9, 17)).planned.steps)
    monkeypatch.setattr("convalgos.network.recent_plans.STEPS", 3 * steps)
    other = onnxruntime.InferenceSession(model.SerializeToString())
    sizes = [(1, 8, 9, 17), (1, 8, 9, 18), (2, 8, 9, 16), (1, 8, 9, 40), (1, 8, 9, 17)]
    for size in sizes:
        x = numbers(size)
        np.testing.assert_allclose(session.run(None, {"x": x})[0], other.run(None, {"x": x})[0], atol=1e-5)
    plans = session.network.plans()
    assert [plan.planned.shapes["x"] for plan in plans] == sizes[-3:]  # those that came last
    prepared = {id(f) for plan in plans for f in plan.filters.values()}
    assert len(prepared) == 2  # one for each layer
    memory = [set(plan._executor._contexts.keys()) for plan in plans]
    assert len(set.union(*memory)) == 1  # which all of them compute in


def test_the_choice_for_far_larger_maps_is_found_beside_the_calls():
    b = Builder(("n", 8, "h", "w"))
    net = from_onnx(b.model(b.conv()))
    x = numbers((1, 8, 30, 40))
    net(x[:, :, :5, :4])
    found = net(x)
    for _ in range(net.plans()[-1].again - 1):
        found = net(x)
        (rough,) = (p for p in net.plans() if p.planned.shapes["x"] == x.shape)
        assert rough.choice.of_other_shapes
    for thread in threading.enumerate():
        if thread.name == network.REFINER:
            thread.join()
    (own,) = (p for p in net.plans() if p.planned.shapes["x"] == x.shape)
    assert not own.choice.of_other_shapes
    np.testing.assert_allclose(net(x), found, rtol=0, atol=1e-5 * np.abs(found).max())


def light(name):
    return Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / f"light_{name}.onnx"


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_models_of_the_onnx_wheel(name):
    net = check(str(light(name)), numbers((1, 3, 224, 224)))
    assert not any(isinstance(step, Foreign) for step in net.graph.steps)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("PP-OCRv4_det", (1, 3, 64, 96)), ("PP-OCRv4_rec", (2, 3, 48, 72)), ("cls", (1, 3, 48, 192))],
)
def test_trained_models(name, shape):
    if (spec := find_spec("rapidocr_onnxruntime")) is None:
        pytest.skip("the trained models are in the wheel rapidocr-onnxruntime, which is not installed")
    (path,) = (Path(spec.origin).parent / "models").glob(f"*{name}*.onnx")
    net = check(str(path), strokes(shape), 1e-4)
    for width in (80, 101) if "rec" in name else ():  # of other lines of text
        x = strokes((*shape[:3], width))
        (right,) = reference(str(path), {"x": x})
        np.testing.assert_allclose(net(x), right, rtol=0, atol=1e-4 * right.max())


def strokes(shape):
    """Dark lines on a bright page, which a network of letters sees something in."""
    x = np.ones(shape, "f4")
    for place in range(8, shape[-1] - 8, 12):
        x[..., 14:36, place : place + 3] = -1
        x[..., 24:27, place : place + 9] = -1
    return x + np.float32(0.05) * numbers(shape)


def test_sizes_that_one_region_gives_another_are_known_when_shapes_are():
    """A run of the second region on ones would take these sizes to be one."""
    b = Builder(("n", 8, "h", "w"))
    batch = b.node("Gather", b.node("Shape", "x"), np.array([0]))
    rest = b.constant(np.array([-1]))
    first = b.node(
        "Reshape", b.node("CumSum", b.conv(k=6), np.int64(1)), b.node("Concat", rest, batch, axis=0)
    )
    again = b.conv(b.node("Reshape", first, b.node("Concat", batch, np.array([6, 5, -1]), axis=0)), c=6)
    last = b.node("Softmax", b.node("Reshape", again, b.node("Concat", batch, rest, axis=0)))
    model = b.model(last)
    for n in (3, 2):
        check(model, numbers((n, 8, 5, 7)))


def test_an_activation_behind_views_becomes_part_of_the_convolution():
    b = Builder((5, 8))
    product = b.node("Gemm", "x", RNG.standard_normal((8, 6)).astype("f4"), np.ones(6, "f4"))
    seen = b.node("Reshape", b.node("Reshape", product, np.array([1, 5, 6])), np.array([5, 3, 2]))
    net = check(b.model(b.node("Relu", seen)), numbers((5, 8)))
    assert [type(s) for s in net.graph.steps if not isinstance(s, View)] == [Convolution]


def test_the_bias_of_a_layer_of_lines_becomes_part_of_it_behind_a_squeeze():
    """TensorFlow has lines as maps of one row, and adds the bias, a norm, and an activation to lines."""
    b = Builder(("n", 4, 1, "t"))
    lines = b.node("Squeeze", b.conv(c=4, k=6, size=1), np.array([2]))
    shifted = b.node("Relu", b.node("Add", b.node("Mul", lines, numbers((6, 1))), numbers((1, 6, 1))))
    across = b.node("Add", b.node("Reshape", b.conv(c=4, k=6, size=1), np.array([0, 3, -1])), numbers((3, 1)))
    model = b.model(shifted, across)  # the second joins channels, which have no bias of their own then
    for n, t in ((2, 9), (3, 7)):
        net = check(model, numbers((n, 4, 1, t)))
    steps = [type(s) for s in net.graph.steps if not isinstance(s, View)]
    assert sorted(s.__name__ for s in steps) == ["Convolution", "Convolution", "Elementwise"]
    assert sum(isinstance(s, Convolution) and s.activation is not None for s in net.graph.steps) == 1


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("height", [12, "h"])
def test_sizes_of_a_resize_are_rounded_as_onnxruntime_rounds_them(mode, height):
    """12 times 5/3 is 19.9999995 where the scale is a float32 and the product is not."""
    b = Builder(("n", 3, height, 7))
    scales = np.array([1, 1, 5 / 3, 1.5], "f4")
    model = b.model(b.node("Relu", b.node("Resize", "x", np.array([], "f4"), scales, mode=mode)))
    for n in (1, 2):
        assert check(model, numbers((n, 3, 12, 7)))(numbers((n, 3, 12, 7))).shape == (n, 3, 20, 10)


def test_a_cast_to_the_own_type_is_none():
    """Between layers, behind an input, and as an output; one to another type is still there."""
    b = Builder(("n", 8, 5, 7))
    first = b.node("Relu", b.conv(b.node("Cast", "x", to=TensorProto.FLOAT), k=8))
    same = b.node("Cast", first, to=TensorProto.FLOAT)
    last = b.conv(b.node("Add", b.conv(same, c=8, k=8), b.node("Cast", same, to=TensorProto.FLOAT)), c=8, k=4)
    whole = b.node("Cast", b.node("Cast", last, to=TensorProto.INT32), to=TensorProto.FLOAT)
    model = b.model(whole, b.node("Cast", last, to=TensorProto.FLOAT))
    for n in (2, 3):
        net = check(model, numbers((n, 8, 5, 7)))
    assert sum(isinstance(s, View) for s in net.graph.steps) <= 2 and Foreign not in kinds(net)
    assert [s.function for s in net.graph.steps if isinstance(s, ArrayFunction)] == ["cast", "cast"]


def test_one_factor_behind_a_product_is_a_part_of_it():
    """Of a product whose numbers no softmax alone reads; factors of their own for channels stay behind it."""
    b = Builder(("n", 4, 5, 6))
    product = b.node("MatMul", "x", b.node("Transpose", "x", perm=[0, 1, 3, 2]))
    shares = b.node("Softmax", b.node("Mul", product, np.float32(0.3)), axis=-1)
    scores = b.node("Add", shares, numbers((1, 4, 5, 5)))
    last = b.node("Div", b.node("MatMul", scores, "x"), np.float32(-2))
    by_head = b.node("Mul", b.node("MatMul", shares, "x"), numbers((4, 1, 1)))
    model = b.model(
        last, by_head, b.node("Relu", b.node("Mul", b.node("MatMul", scores, "x"), np.float32(3)))
    )
    for n in (2, 3):
        net = check(model, numbers((n, 4, 5, 6)))
    scales = [round(s.scale, 6) for s in net.graph.steps if isinstance(s, Product)]
    assert sorted(scales) == [-0.5, 0.3, 1, 3]


def test_a_constant_matrix_mixes_channels():
    """As a filter bank does with spectrograms: a convolution, which no other library computes."""
    b = Builder(("n", 9, "t"))
    model = b.model(b.node("MatMul", numbers((5, 9)), b.node("Mul", "x", "x")))
    net = ca.network.from_onnx(model)
    assert [type(s) for s in net.graph.steps if isinstance(s, Convolution)] and Foreign not in kinds(net)
    for n, t in ((1, 33), (3, 7), (2, 1)):
        x = numbers((n, 9, t))
        np.testing.assert_allclose(net(x), reference(model, {"x": x})[0], rtol=1e-4, atol=1e-4)
