"""ONNX models as some converters write them: what ONNX Runtime runs, a network runs too."""

import numpy as np
import pytest
from test_network_onnx import CLOSE, RNG, Builder, numbers

import convalgos as ca
from convalgos.network.graph import Convolution, Foreign
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


def test_slices_with_steps_from_before_the_first():
    build = Builder((2, 3))
    last = np.iinfo(np.int64).max
    y = build.node("Slice", "x", np.int64([-2]), np.int64([last]), np.int64([0]), np.int64([3]))
    check_model(build.model(y), np.float32([[1, 2, 3], [4, 5, 6]]))  # one row


def test_vectors_of_several_sizes_and_single_numbers():
    build = Builder(("n",))
    double = build.node("Mul", "x", build.node("Relu", "x"))
    mean = build.node("ReduceMean", "x", np.int64([0]), keepdims=0)
    some = build.node("Mul", build.node("HardSwish", mean), mean)
    net = from_onnx(build.model(double, some))
    for n in (2, 1, 5, 2):
        x = RNG.standard_normal(n).astype("f4")
        y, z = net(x)
        np.testing.assert_array_equal(y, x * np.maximum(x, 0))
        m = x.mean()
        np.testing.assert_allclose(z, m * m * min(max(m / 6 + 0.5, 0), 1), rtol=1e-5)
        assert z.shape == ()


def test_outputs_that_show_what_others_are_written_into():
    """A sum side by side with a part of it, of which another output shows the whole."""
    build = Builder((6, 5, 8, 2), opset=13)
    least = build.node("ReduceMin", "x", axes=[0, 1, 2, 3])
    two = build.node("Concat", least, least, axis=3)
    model = build.model(build.node("Concat", two, least, build.node("Max", two, np.float32(0)), axis=3))
    session, x = Session(model), RNG.standard_normal((6, 5, 8, 2)).astype("f4")
    for _ in range(2):
        (y,) = session.run(None, {"x": x})
        np.testing.assert_array_equal(y.ravel(), [x.min()] * 3 + [0] * 2)
        y.fill(7)


def test_pads_of_maps_move_infinities_alone():
    build = Builder((1, 3, 3, 1))
    model = build.model(build.node("Pad", "x", np.int64([0, 2, 1, 0, 0, 1, 0, 0]), mode="reflect"))
    x = np.float32([1, 2, 3, 4, np.inf, 6, -1e9, np.nan, 1e-9]).reshape(1, 3, 3, 1)
    (y,) = Session(model).run(None, {"x": x})
    np.testing.assert_array_equal(y, np.pad(x, ((0, 0), (2, 1), (1, 0), (0, 0)), mode="reflect"))


def test_arrays_without_elements():
    build = Builder((1, 1), opset=14)
    none = build.node("Slice", "x", np.int64([-1]), np.int64([0]), np.int64([1]), np.int64([-1]))  # (1, 0)
    build.inputs["z"] = (0, 2, 5)
    outputs = build.node("Squeeze", none, np.int64([0])), build.node("Reshape", "z", np.int64([0, 3]))
    check_model(build.model(*outputs), np.ones((1, 1), "f4"), np.ones((0, 2, 5), "f4"))

    build = Builder((1, 2, 6, 1), opset=9)
    y = build.node("Squeeze", build.node("Gather", "x", np.zeros(0, np.int64), axis=1), axes=[3])
    check_model(build.model(y), np.ones((1, 2, 6, 1), "f4"))


def test_parts_of_shapes_by_attributes():
    """As older opsets have them."""
    build = Builder(("n", 5, 4), opset=9)
    size = build.node("Slice", build.node("Shape", "x"), axes=[0], starts=[1], ends=[2])
    target = build.node("Concat", size, build.constant(np.int64([-1])), axis=0)
    check_model(build.model(build.node("Reshape", "x", target)), numbers((2, 5, 4)))


def test_an_input_of_float16_that_is_an_output():
    half = TensorProto.FLOAT16
    x, y = (helper.make_tensor_value_info(name, half, ["n", 3]) for name in "xy")
    scale = onnx.numpy_helper.from_array(np.float16([2, 3, 4]), "scale")
    graph = helper.make_graph([helper.make_node("Mul", ["x", "scale"], ["y"])], "g", [x], [y, x], [scale])
    session = Session(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    given = np.float16([[1, 2, 3]])
    for found, right in zip(
        session.run(None, {"x": given}), (given * np.float16([2, 3, 4]), given), strict=True
    ):
        assert found.dtype == np.float16
        np.testing.assert_array_equal(found, right)


def test_outputs_whose_type_is_not_told():
    build = Builder((2, 3))
    model = build.model(build.node("Relu", "x"))
    model.graph.output[0].ClearField("type")
    assert Session(model).get_outputs()[0].type == "tensor(float)"


@pytest.mark.parametrize("op, shape", [("PRelu", (1, 1, 2, 1)), ("Mul", (3, 1, 1, 1)), ("Div", (1, 1, 2, 1))])
def test_constants_of_rows_where_there_are_as_many_channels(op, shape):
    """A constant along one dimension, and sizes of the maps for which another has as many elements."""
    build = Builder((shape[0], "c", 2, 8), opset=17)
    constant = RNG.uniform(0.5, 2, shape).astype("f4")
    net = from_onnx(build.model(build.node(op, build.node("Neg", "x"), constant)))
    for channels in (1, 3, 2, 4, 2, 3):
        x = RNG.standard_normal((shape[0], channels, 2, 8)).astype("f4")
        product = -x * constant
        expected = {"PRelu": np.where(x > 0, product, -x), "Mul": product, "Div": -x / constant}[op]
        np.testing.assert_allclose(net(x), expected, rtol=1e-6)


def test_no_images_choose_no_algorithm():
    """A network that first sees no images computes others by what is chosen for these."""
    build = Builder(("n", 3, 16))
    w = RNG.standard_normal((3, 1, 3)).astype("f4")
    net = from_onnx(build.model(build.node("Conv", "x", w, pads=[1, 1], group=3)))
    net(np.zeros((0, 3, 16), "f4"))
    x = RNG.standard_normal((4, 3, 16)).astype("f4")
    x[0, 0, 0] = np.inf
    assert np.isfinite(net(x)).sum() == x.size - 2
    alone = from_onnx(build.model("conv0a"))
    alone(x)
    assert str(net.plans()[-1].explain()) == str(alone.plans()[-1].explain())


def test_sums_of_nothing_side_by_side():
    build = Builder((2, 4, 2, 8), opset=16)
    nothing = build.node("Gather", "x", np.zeros(0, np.int64), axis=-1)
    build.node("Concat", "x", nothing, "x", nothing, axis=3)
    check_model(build.model("concat1a"), numbers((2, 4, 2, 8)))


def test_sizes_of_two_dimensions_of_one():
    build = Builder(("n", 4))
    size = build.node("Gather", build.node("Shape", "x"), np.int64(1))
    check_model(build.model(build.node("Unsqueeze", size, np.int64([0, 1]))), numbers((3, 4)))


def test_squeezes_of_whatever_has_one_element():
    """Without axes: a batch of one image loses the dimension of images, too."""
    build = Builder(("n", 8, 9, 7), opset=12)
    means = build.node("Squeeze", build.node("GlobalAveragePool", build.conv()))
    model = build.model(
        build.node("Slice", means, np.int64([2]), np.int64([6]), np.int64([-1]), np.int64([2]))
    )
    for images in (3, 1, 2):
        check_model(model, numbers((images, 8, 9, 7)))
    session, wanted = Session(model), onnxruntime.InferenceSession(model.SerializeToString())
    for images in (3, 1, 2):
        x = numbers((images, 8, 9, 7))
        (y,), (right,) = session.run(None, {"x": x}), wanted.run(None, {"x": x})
        assert y.shape == right.shape
        np.testing.assert_allclose(y, right, rtol=1e-4, atol=1e-5)


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


def test_transposed_matrices_times_vectors_that_are_left_to_onnx_runtime():
    """Of float64. It leaves the transpose out where it fuses the two."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.DOUBLE, None) for name in "xy")
    vector = onnx.numpy_helper.from_array(np.array([1.0, 2, 4]), "vector")
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["t", "vector"], ["product"]),
        helper.make_node("LpNormalization", ["product"], ["y"], axis=0),  # which is theirs
    ]
    x.type.tensor_type.shape.dim.add().dim_value = x.type.tensor_type.shape.dim.add().dim_value = 3
    graph = helper.make_graph(nodes, "g", [x], [y], [vector])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    given = np.arange(9.0).reshape(3, 3)
    (found,) = Session(model).run(None, {"x": given})
    product = given.T @ [1.0, 2, 4]
    np.testing.assert_allclose(found, product / np.linalg.norm(product))


def test_transposed_matrices_times_vectors_that_only_onnx_runtime_knows():
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy")
    x.type.tensor_type.shape.dim.add().dim_value = x.type.tensor_type.shape.dim.add().dim_value = 3
    axis = onnx.numpy_helper.from_array(np.array([1]), "axis")
    nodes = [
        helper.make_node("Unique", ["x"], ["rows"], axis=0),
        helper.make_node("Transpose", ["rows"], ["t"], perm=[1, 0]),
        helper.make_node("ReduceL1", ["rows", "axis"], ["vector"], keepdims=0),
        helper.make_node("MatMul", ["t", "vector"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y], [axis])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    given = np.arange(9, dtype=np.float32).reshape(3, 3)
    (found,) = Session(model).run(None, {"x": given})
    np.testing.assert_allclose(found, given.T @ given.sum(1))


def damaged(model, how):
    if how == "output":
        model.graph.output[0].name = "nowhere"
    elif how == "type":
        model.graph.input[0].type.tensor_type.elem_type = 33
    elif how == "opset":
        del model.opset_import[:]
        model.opset_import.append(helper.make_opsetid("other", 17))
    elif how == "size":
        amounts = onnx.numpy_helper.from_array(np.int64([0, 0, 2**44, 0, 0, 0, 0, 0]), "amounts")
        model.graph.initializer.append(amounts)
        model.graph.node.append(helper.make_node("Pad", [model.graph.output[0].name, "amounts"], ["padded"]))
        model.graph.output[0].CopyFrom(helper.make_tensor_value_info("padded", TensorProto.FLOAT, None))
    return model


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("output", "damaged.onnx': the model has the output 'nowhere', which nothing writes"),
        ("type", "damaged.onnx': the model has 'x' of element type 33, which ONNX does not know"),
        ("opset", "damaged.onnx': the model has operators of ONNX, but does not tell of which opset"),
        ("size", "the network has 'padded' of shape .*, which is more than addresses reach"),
    ],
)
def test_damaged_files_are_told_in_a_sentence(tmp_path, how, told):
    path = tmp_path / "damaged.onnx"
    path.write_bytes(damaged(chain(), how).SerializeToString())
    with pytest.raises(ValueError, match=told):
        from_onnx(path)(numbers((1, 8, 9, 7)))


def test_a_file_that_is_no_model_is_told_by_its_path(tmp_path):
    path = tmp_path / "none.onnx"
    path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match=f"^model='{path}' is no ONNX model: "):
        from_onnx(path)


def test_layers_behind_operators_of_others_are_ours():
    """ONNX infers no shape behind an operator that it does not know: ONNX Runtime does."""
    b = Builder((2, 8, "h", "w"))
    model = b.model(b.node("GlobalAveragePool", b.node("Cast", b.node("Elu", "x"), to=1)))
    model.graph.node[0].op_type, model.graph.node[0].domain = "QuickGelu", "com.microsoft"
    del model.graph.value_info[:]
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    check_model(model, numbers((2, 8, 9, 7)))
    foreign = [step for step in from_onnx(model).graph.steps if isinstance(step, Foreign)]
    assert [step.region.what for step in foreign] == ["com.microsoft.QuickGelu"]


def test_functions_of_a_model_are_read_as_what_they_do():
    """One calls another, and has attributes; a convolution and its activation are one step."""
    opset = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
    leak = helper.make_node("LeakyRelu", ["a"], ["b"])
    slope = leak.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    assert slope.ref_attr_name
    layer = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Leak", ["c"], ["y"], domain="my", slope=0.25),
    ]
    functions = [
        helper.make_function("my", "Leak", ["a"], ["b"], [leak], opset, ["slope"]),
        helper.make_function("my", "Layer", ["x", "w"], ["y"], layer, opset),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 8, None, None]) for name in "xy")
    filters = [onnx.numpy_helper.from_array(RNG.standard_normal((8, 8, 3, 3)).astype("f4"), n) for n in "wv"]
    calls = [
        helper.make_node("Layer", ["x", "w"], ["m"], domain="my"),
        helper.make_node("Layer", ["m", "v"], ["y"], domain="my"),
    ]
    graph = helper.make_graph(calls, "g", [x], [y], filters)
    model = helper.make_model(graph, functions=functions, opset_imports=opset, ir_version=8)
    before = model.SerializeToString()
    check_model(model, numbers((2, 8, 9, 7)))
    assert [type(step) for step in from_onnx(model).graph.steps] == [Convolution] * 2
    assert model.SerializeToString() == before
