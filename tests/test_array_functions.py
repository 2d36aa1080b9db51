"""Operators of ONNX on whole arrays of any types, without ONNX Runtime: against it, on odd sizes."""

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
from onnx import helper, numpy_helper
from test_network_onnx import SHAPE, Builder, kinds, numbers, reference

from convalgos.core.array_functions import ARRAY_FUNCTIONS
from convalgos.cpu.elementwise.plan import ConstantOperandPlan
from convalgos.cpu.elementwise.top import MOST_FOUND
from convalgos.network.array_functions import ArrayFunction
from convalgos.network.array_plans import ArrayFunctionPlan, OfFirstInput
from convalgos.network.gather_plans import OfOperands
from convalgos.network.graph import Foreign
from convalgos.network.network import Network
from convalgos.network.onnx_reader.graph import from_onnx
from convalgos.network.onnx_reader.model import TRIED

RNG = np.random.default_rng(3)
F, I = numbers((2, 3, 1, 5)), RNG.integers(-4, 5, (3, 4, 1))
B = RNG.integers(0, 2, (3, 4, 5)).astype(bool)
TIES = RNG.integers(0, 3, (2, 7, 5)).astype("f4")
P = np.abs(numbers((3, 4, 5))) + np.float32(0.1)
X = numbers((2, 3, 5, 7))
GRID = RNG.uniform(-1.4, 1.4, (2, 4, 3, 2)).astype("f4")
VOLUMES, PLACES = numbers((2, 3, 4, 5, 6)), RNG.uniform(-1.4, 1.4, (2, 3, 2, 4, 3)).astype("f4")
NONE = None  # an input that is left out
AT = RNG.integers(-5, 5, (2, 3, 4))


CASES = [  # operator, inputs, which of them are constants of the model, attributes
    *((op, [F, numbers((3, 4, 5))], (), {}) for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Less")),
    *((op, [F.astype("f8"), numbers((4, 1)).astype("f8")], (), {}) for op in ("Add", "Greater", "Sum")),
    *((op, [I, RNG.integers(0, 3, (4, 5))], (), {}) for op in ("Equal", "GreaterOrEqual", "LessOrEqual")),
    ("Div", [I, RNG.integers(1, 4, (4, 5)) * RNG.choice([-1, 1], (4, 5))], (), {}),
    ("Mod", [I, RNG.integers(1, 4, (4, 5)) * RNG.choice([-1, 1], (4, 5))], (), {}),
    ("Mod", [F, np.float32(0.7)], (1,), {"fmod": 1}),
    ("Mean", [F, numbers((5,)), numbers((3, 1, 1))], (), {}),
    ("Sum", [F, numbers((5,)), numbers((3, 1, 1))], (), {}),
    ("Pow", [P, np.float32(2.5)], (1,), {}),
    ("Pow", [I, np.int64(3)], (1,), {}),
    *((op, [B, B[:, :1]], (), {}) for op in ("And", "Or", "Xor", "Equal")),
    ("Not", [B], (), {}),
    ("Where", [B[:, :1], P, np.float32(-np.inf)], (), {}),
    *((op, [X], (), {}) for op in ("Sin", "Cos", "Sign", "Abs", "Neg", "Atan")),
    *((op, [X.astype("f8")], (), {}) for op in ("Floor", "Ceil", "Round")),
    *((op, [X], (), {}) for op in ("Tan", "Sinh", "Cosh", "Asinh", "IsNaN", "IsInf")),
    *((op, [P.astype("f8")], (), {}) for op in ("Log", "Sqrt", "Reciprocal", "Exp", "Tanh")),
    *((op, [np.tanh(X)], (), {}) for op in ("Asin", "Acos", "Atanh")),
    ("Acosh", [P + 1], (), {}),
    *((op, [I], (), {}) for op in ("Neg", "Abs", "Sign")),
    *(("Cast", [x], (), {"to": to}) for x in (X, I, B) for to in (1, 6, 7, 9, 11)),
    ("Clip", [X, np.float32(-0.3), np.float32(0.4)], (), {}),
    ("Clip", [I, np.int64(-1)], (1,), {}),
    *(
        (op, [P if "Log" in op else X[0]], (), {"keepdims": keep} | more)
        for op in ("ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceMean", "ReduceL1")
        for keep, more in ((0, {"axes": [0, 2]}), (1, {}))
    ),
    *(
        (op, [P], (), {"keepdims": keep} | more)
        for op in ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")
        for keep, more in ((0, {"axes": [-3]}), (1, {}))
    ),
    ("ReduceSum", [I, np.int64([0, -1])], (1,), {"keepdims": 0}),
    *(
        (op, [TIES], (), {"axis": axis, "keepdims": keep, "select_last_index": last})
        for op in ("ArgMax", "ArgMin")
        for axis, keep, last in ((1, 0, 0), (-1, 1, 1), (0, 0, 1))
    ),
    *(
        (op, [RNG.integers(0, 3, shape).astype("f4")], (), {"axis": 1, "select_last_index": last})
        for op in ("ArgMax", "ArgMin")
        for shape, last in (((2, 5, 17, 19), 0), ((1, 300, 16, 17), 1))
    ),
    *(
        ("TopK", [x, np.int64([k])], (1,), {"axis": axis, "largest": largest})
        for x, k, axis, largest in (
            (TIES, 3, 1, 1),
            (TIES, 2, -1, 0),
            (I, 1, 0, 1),
            (numbers((2, 99)), 5, -1, 0),
            (TIES, 7, 1, 0),
            (RNG.integers(0, 900, (2, 5000)).astype("f4"), 40, 1, 1),
            (RNG.integers(0, 9, (5000, 2)), 40, 0, 0),
            (RNG.integers(0, 9, (2, 99)), 6, 1, 1),
            (np.where(TIES > 1, np.inf, np.where(TIES, -np.float32(0), TIES - 1)), 4, -1, 1),
        )
    ),
    *(
        ("CumSum", [x, np.int64(axis)], (1,), {"exclusive": exclusive, "reverse": reverse})
        for x, axis, exclusive, reverse in ((X, 2, 0, 0), (I, -3, 1, 0), (X, -1, 0, 1), (X, 1, 1, 1))
    ),
    *(("Trilu", [X, np.int64(k)], (1,), {"upper": upper}) for k, upper in ((1, 0), (-2, 1))),
    ("MatMul", [numbers((3, 2, 4, 5)), numbers((2, 5, 6))], (), {}),
    ("MatMul", [numbers(5), numbers((2, 5, 6))], (), {}),
    ("MatMul", [numbers((2, 4, 5)), numbers(5)], (), {}),
    ("Identity", [I], (), {}),
    ("Reshape", [I, np.int64([2, -1])], (1,), {}),
    ("Squeeze", [I, np.int64([-1])], (1,), {}),
    ("Unsqueeze", [I, np.int64([0, -2])], (1,), {}),
    ("Flatten", [I], (), {"axis": 2}),
    ("Expand", [I, np.int64([2, 1, 1, 5])], (1,), {}),
    ("Tile", [I, np.int64([2, 1, 3])], (1,), {}),
    ("Transpose", [X], (), {"perm": [3, 1, 0, 2]}),
    ("Transpose", [I], (), {}),
    ("Concat", [I, I[:2], I[1:]], (1,), {"axis": -3}),
    (
        "Slice",
        [X, np.int64([-1, 0]), np.int64([-99, 4]), np.int64([3, 1]), np.int64([-2, 1])],
        (1, 2, 3, 4),
        {},
    ),
    ("Slice", [I, np.int64([1]), np.int64([2**62])], (1, 2), {}),
    ("Split", [I, np.int64([1, 3])], (1,), {"axis": 1}),
    ("Pad", [I, np.int64([0, 1, 2, -1, 0, 0]), np.int64(7)], (1, 2), {}),
    *(
        ("Pad", [X, np.int64([0, 1, 2, 1]), NONE, np.int64([3, 1])], (1, 3), {"mode": mode})
        for mode in ("constant", "edge", "reflect", "wrap")
    ),
    ("Gather", [X, AT[..., :3] % 3], (), {"axis": 1}),
    ("Gather", [numbers((11, 4)), AT], (0,), {}),
    ("GatherElements", [X, AT[:, :, :, None] % 5], (), {"axis": 2}),
    ("Gather", [numbers((11, 103)), RNG.integers(-11, 11, (3, 31)).astype("i4")], (), {}),  # no buffer
    ("Gather", [numbers((3, 7, 67)), RNG.integers(-7, 7, (5, 11))], (), {"axis": -2}),
    ("GatherElements", [X, RNG.integers(-7, 7, (1, 2, 4, 11)).astype("i4")], (), {"axis": -1}),
    ("GatherElements", [I, RNG.integers(-3, 3, (2, 4, 1))], (), {"axis": 0}),
    ("GatherElements", [numbers((5,)), RNG.integers(-5, 5, (9,))], (0,), {}),
    ("GatherND", [X, RNG.integers(-2, 2, (4, 2))], (), {}),
    ("GatherND", [X, RNG.integers(-3, 3, (2, 4, 1))], (), {"batch_dims": 1}),
    *(
        ("ScatterElements", [X, np.argsort(X, 2)[:, :, :3], X[:, :, :3]], (), {"axis": 2, "reduction": how})
        for how in ("none", "add", "mul", "max", "min")
    ),
    (
        "ScatterElements",
        [numbers((2, 5)), np.int64([[1, 1, -1]]), numbers((1, 3))],
        (),
        {"axis": 1, "reduction": "add"},
    ),
    *(
        ("ScatterND", [X, np.int64([[0, 1], [1, -1]]), numbers((2, 5, 7))], (), {"reduction": how})
        for how in ("none", "add")
    ),
    ("OneHot", [AT, np.int64(5), np.float32([-1, 2])], (1,), {"axis": 1}),
    ("Shape", [X], (), {"start": 1, "end": -1}),
    ("Size", [X], (), {}),
    *(
        (
            "Resize",
            [X, NONE, np.float32([1, 1, a, b])],
            (2,),
            {"mode": mode, "coordinate_transformation_mode": how},
        )
        for mode, a, b in (("cubic", 2.3, 0.6), ("linear", 0.7, 3), ("nearest", 1.7, 0.55))
        for how in ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "half_pixel_symmetric")
    ),
    *(
        ("Resize", [X, NONE, NONE, np.int64([2, 3, 8, 3])], (3,), {"mode": "nearest", "nearest_mode": how})
        for how in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    ),
    (
        "Resize",
        [numbers((1, 2, 3, 4, 5)), NONE, NONE, np.int64([7, 2, 9])],
        (3,),
        {"mode": "linear", "axes": [2, 3, 4]},
    ),
    (
        "Resize",
        [X, NONE, NONE, np.int64([2, 3, 4, 9])],
        (3,),
        {"mode": "cubic", "exclude_outside": 1, "cubic_coeff_a": -0.5},
    ),
    *(
        ("GridSample", [X, GRID], (), {"mode": mode, "padding_mode": padding, "align_corners": corners})
        for mode in ("linear", "nearest")
        for padding in ("zeros", "border", "reflection")
        for corners in (0, 1)
    ),
    *(
        (
            "GridSample",
            [VOLUMES, PLACES],
            (),
            {"mode": mode, "padding_mode": padding, "align_corners": corners},
        )
        for mode in ("linear", "nearest")
        for padding in ("zeros", "border")
        for corners in (0, 1)
    ),
    ("GridSample", [X, GRID], (0,), {"mode": "nearest"}),
    ("GridSample", [numbers((2, 3, 4, 5, 6)), RNG.uniform(-1.4, 1.4, (2, 3, 2, 4, 3)).astype("f4")], (), {}),
]


def model_of(op, inputs, constants, attributes):
    """A model of one node, of which some inputs are constants; and what the others are."""
    b, attributes = Builder(), dict(attributes)
    if op.startswith("Reduce") and "axes" in attributes:
        inputs, constants = [*inputs, np.int64(attributes.pop("axes"))], (len(inputs),)
    feeds = {f"x{i}": np.asarray(x) for i, x in enumerate(inputs) if x is not NONE and i not in constants}
    given = [x if i in constants else "" if x is NONE else f"x{i}" for i, x in enumerate(inputs)]
    found = b.node(op, *given, count={"TopK": 2, "Split": 2}.get(op, 1), **attributes)
    outputs = [found] if isinstance(found, str) else found
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in feeds.items()
    ]
    empty = [onnx.ValueInfoProto(name=name) for name in outputs]  # of a type that ONNX infers
    graph = helper.make_graph(b.nodes, "g", values, empty, b.initializers)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", b.opset)], ir_version=9)
    return onnx.shape_inference.infer_shapes(made), feeds


def same(found, right):
    """That outputs are those of ONNX Runtime: all bits of what is not rounded."""
    found = found if isinstance(found, tuple) else (found,)
    for y, z in zip(found, right, strict=True):
        assert (y.dtype, y.shape) == (z.dtype, z.shape)
        if y.dtype.kind == "f":
            largest = np.abs(z[np.isfinite(z)]).max(initial=0)
            np.testing.assert_allclose(y, z, rtol=2e-6, atol=2e-6 * largest)
        else:
            np.testing.assert_array_equal(y, z)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_operators(case):
    model, feeds = model_of(*case)
    net, right = from_onnx(model), reference(model, feeds)
    assert Foreign not in kinds(net)
    same(net(*feeds.values()), right)


@pytest.mark.parametrize("padding", ["zeros", "border"])
def test_kernels_read_images_at_constant_places(padding):
    model, feeds = model_of("GridSample", [X, GRID], (1,), {"padding_mode": padding})
    net = from_onnx(model)
    same(net(*feeds.values()), reference(model, feeds))
    assert [type(s.plan) for s in net.plan(X.shape).planned.steps] == [ConstantOperandPlan]


def test_expanded_places_are_read_where_they_are():
    """Nothing is expanded, and kernels gather; as NumPy does."""
    model = model_of_expanded_places()
    net = from_onnx(model)
    for shape in ((2, 9, 6), (1, 5, 6), (3, 3, 6)):
        x = numbers(shape)
        same(net(x), reference(model, {"x": x}))
        plans = {
            s.step.function: s.plan
            for s in net.plan(shape).planned.steps
            if isinstance(s.step, ArrayFunction)
        }
        assert "expand" not in plans and type(plans["gather_expanded"]) is OfOperands
    x, places = numbers((1, 3, 5)), RNG.integers(-5, 5, (2, 1, 4))
    y, sizes = np.full((2, 3, 4), np.nan, "f4"), np.int64([2, 3, 4])
    ARRAY_FUNCTIONS["gather_expanded"].compute(y, x, places, sizes, axis=2)
    whole = np.broadcast_to(x, (2, 3, 5)), np.broadcast_to(places, y.shape)
    np.testing.assert_array_equal(y, np.take_along_axis(*whole, 2))


def test_gathered_of_one_element_that_is_expanded():
    """Along the axis of the places, in some sizes of the input alone: not in those that reading tries."""
    b = Builder(("n", "t", 4))
    batch = b.node("Shape", "x", start=0, end=1)
    sizes = b.node("Concat", batch, np.int64([TRIED[0][0], 4]), axis=0)
    places = b.node("Expand", RNG.integers(-9, TRIED[0][0], (1, TRIED[0][0], 1)), sizes)
    model = b.model(b.node("GatherElements", b.node("Expand", "x", sizes), places, axis=1))
    net = from_onnx(model)
    for n, t in ((2, TRIED[0][0]), (3, 1), (1, 1)):
        x = numbers((n, t, 4))
        same(net(x), reference(model, {"x": x}))


def test_few_of_the_largest_are_found_by_kernels():
    x = numbers((3, 200))
    for k, by in ((MOST_FOUND, OfFirstInput), (MOST_FOUND + 1, ArrayFunctionPlan)):
        model, _ = model_of("TopK", [x, np.int64([k])], (1,), {})
        net = from_onnx(model)
        same(net(x), reference(model, {"x0": x}))
        assert {s.step.function: type(s.plan) for s in net.plan(x.shape).planned.steps} == {
            "places_of_top": by,
            "gather_elements": OfOperands,
        }


@pytest.mark.parametrize("axis, by", [(-1, OfOperands), (2, OfOperands), (0, ArrayFunctionPlan)])
def test_vectors_of_one_place_are_gathered_as_rows(axis, by):
    """As Keras writes what is taken of a table."""
    b = Builder((5, 7))
    at = b.node("Cast", b.node("Round", "x"), to=7)
    places = b.node("Unsqueeze", b.node("Clip", at, np.int64(-2), np.int64(1)), np.int64([axis]))
    model = b.model(b.node("GatherND", numbers((4, 2, 3, 3, 2, 2, 2, 2)), places))
    x = numbers((5, 7))
    net = from_onnx(model)
    for _ in range(2):
        same(net(x), reference(model, {"x": x}))
    (plan,) = [s.plan for s in net.plan(x.shape).planned.steps if s.step.output in net.graph.outputs]
    assert type(plan) is by


def model_of_sizes():
    """A model that computes sizes of sizes."""
    b = Builder(("n", "c", "t"))
    half = b.node("Div", b.node("Shape", "x", start=2), np.int64([2]))
    first = b.node("Cast", b.node("Squeeze", half, np.int64([0])), to=1)
    places = b.node("Range", np.float32(-0.5), first, np.float32(1))
    filled = b.node("ConstantOfShape", b.node("Concat", half, np.int64([1, 2]), axis=0),
                    value=numpy_helper.from_array(np.float32([3])))  # fmt: skip
    most = b.node("TopK", "x", half, count=2)
    parts = b.node("Slice", "x", np.int64([0]), half, np.int64([2]))
    resized = b.node("Resize", "x", "", "", b.node("Concat", np.int64([2, 3]), half, axis=0), mode="linear")
    tiled = b.node("Tile", parts, b.node("Concat", np.int64([1, 2]), half, axis=0))
    sums = b.node("Add", tiled, b.node("Cast", b.node("Size", "x"), to=1))
    return b.model(places, filled, *most, resized, sums, b.node("IsInf", "x"))


def model_of_expanded_places():
    """Neighbours of points, as torch has them gathered: of expanded places, and of expanded points."""
    b = Builder(("n", "p", 6))
    _, places = b.node("TopK", b.node("ReduceSum", "x", np.int64([2]), keepdims=0), np.int64([3]), count=2)
    batch = b.node("Shape", "x", start=0, end=1)
    sizes = b.node("Concat", batch, np.int64([3, 6]), axis=0)
    wide = b.node("Expand", b.node("Unsqueeze", places, np.int64([2])), sizes)
    rows = b.node("GatherElements", "x", wide, axis=1)
    four = b.node("Expand", b.node("Unsqueeze", "x", np.int64([1])), np.int64([1, 4, 1, 1]))
    chosen = b.node("Expand", b.node("Unsqueeze", places, np.int64([1, 3])), np.int64([1, 4, 1, 5]))
    summed = b.node("ScatterElements", "x", wide, rows, axis=1, reduction="add")
    return b.model(rows, b.node("GatherElements", four, chosen, axis=2), summed)


def model_of_rows():
    """The sum of rows of a table."""
    b = Builder(("n", 4))
    rows = b.node("Gather", numbers((9, 4)), b.node("ArgMax", "x", axis=0))
    return b.model(b.node("ReduceSum", rows, np.int64([0]), keepdims=0))


def test_what_follows_from_shapes():
    """For each shape of the input a model gets its sizes, and back again."""
    model = model_of_sizes()
    net = from_onnx(model)
    assert Foreign not in kinds(net)
    for shape in ((2, 3, 9), (2, 3, 4), (1, 2, 7), (2, 3, 9)):
        x = numbers(shape)
        same(net(x), reference(model, {"x": x}))


def test_what_lies_between_whole_numbers_is_left_to_onnx_runtime():
    x = RNG.integers(0, 256, (1, 2, 5, 4)).astype("u1")
    for mode, foreign in (("linear", 1), ("nearest", 0)):
        scales = np.float32([1, 1, 1.5, 2])
        model, feeds = model_of("Resize", [x, NONE, scales], (2,), {"mode": mode})
        net = from_onnx(model)
        assert (Foreign in kinds(net)) == foreign
        same(net(x), reference(model, feeds))


def test_they_are_stored_with_the_network(tmp_path):
    b = Builder()
    y = b.node(
        "ArgMax", b.node("GatherElements", b.conv(), np.arange(-2, 2)[None, :, None, None], axis=1), axis=1
    )
    net, x = (
        from_onnx(b.model(y, b.node("Where", b.node("Equal", y, np.int64(1)), np.float32(np.inf), "x"))),
        numbers(SHAPE),
    )
    right = net(x)
    net.save(tmp_path / "net")
    same(Network.load(tmp_path / "net")(x), right)


@pytest.mark.parametrize(
    ("operator", "x", "places"),
    [
        ("Gather", numbers((3, 4)), np.int64([3])),
        ("Gather", numbers((3, 4096)), np.int64([0, 3])),
        ("Gather", numbers((3, 4096)), np.int64([-4, 0])),
        ("GatherElements", numbers((3, 4)), np.int64([[1, 3]])),
        ("GatherElements", numbers((3, 4)), np.int64([[-4, 1]])),
    ],
)
def test_indices_beyond_an_array_are_told(operator, x, places):
    model, feeds = model_of(operator, [x, places], (), {})
    with pytest.raises(IndexError, match="out of bounds"):
        from_onnx(model)(*feeds.values())


def test_every_function_is_tested():
    models = (
        model_of_sizes(),
        model_of_expanded_places(),
        model_of_rows(),
        *(model_of(*case)[0] for case in CASES),
    )
    steps = [step for model in models for step in from_onnx(model).graph.steps]
    tested = {step.function for step in steps if isinstance(step, ArrayFunction)}
    assert {*ARRAY_FUNCTIONS} == tested, {*ARRAY_FUNCTIONS} - tested


def test_sizes_that_only_planning_reads_are_not_computed():
    b = Builder(("n", "c", 5))
    shape = b.node("Shape", "x")
    sizes = b.node("Concat", b.node("Mul", shape, np.int64([2])), np.int64([3]), axis=0)
    shown = b.node("Add", shape, np.int64([1]))
    model = b.model(b.node("Expand", np.float32(2), sizes), b.node("Expand", np.int64(2), shown), shown)
    net = from_onnx(model)
    found = {step.function: step.planned for step in net.graph.steps}
    assert found == {"shape": False, "multiply": True, "concatenate": True, "add": False, "expand": False}
    for size in ((2, 3, 5), (1, 4, 5), (0, 4, 5)):
        same(net(x := numbers(size)), reference(model, {"x": x}))


def test_maps_are_resized_to_computed_sizes_by_kernels():
    """In channels_first, with as many pixels for one as there are now, or between them."""
    b = Builder((1, 3, "h", "w"))
    b.inputs["like"] = (1, 1, "p", "q")
    sizes = b.node("Concat", b.node("Shape", "x", end=2), b.node("Shape", "like", start=2), axis=0)
    nearest = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    half = {"coordinate_transformation_mode": "pytorch_half_pixel", "mode": "linear"}
    corners = {"coordinate_transformation_mode": "align_corners", "mode": "linear"}
    model = b.model(*(b.node("Resize", "x", "", "", sizes, **how) for how in (nearest, half, corners)))
    net = from_onnx(model)
    for size, by_kernels in (
        ((10, 21), (1, 1, 1)),
        ((7, 9), (0, 1, 1)),
        ((1, 1), (0, 0, 1)),
        ((5, 7), (1, 1, 1)),
    ):
        feeds = {"x": numbers((1, 3, 5, 7)), "like": numbers((1, 1, *size))}
        same(net(*feeds.values()), reference(model, feeds))
        steps = net.plan({name: x.shape for name, x in feeds.items()}).planned.steps
        plans = [
            s.plan for s in steps if s.step.name.startswith("Resize") or s.step.output in net.graph.outputs
        ]
        assert [isinstance(plan, OfFirstInput) for plan in plans] == [*map(bool, by_kernels)]
