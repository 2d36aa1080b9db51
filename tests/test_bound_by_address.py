"""Steps bound to addresses compute what they do on the arrays that lie there."""

import numpy as np
import pytest

from convalgos.core.epilogue import RELU
from convalgos.core.layouts import array_shape
from convalgos.core.pool_problem import PoolProblem
from convalgos.cpu.elementwise.attention import AttentionPlan
from convalgos.cpu.elementwise.norms import LayerNormPlan, SoftmaxPlan
from convalgos.cpu.elementwise.plan import (
    ConcatenationPlan,
    ConstantOperandPlan,
    ElementwisePlan,
    UpsamplingPlan,
)
from convalgos.cpu.layout.reorder import Reorder
from convalgos.cpu.pooling.plan import PoolPlan

FIRST, LAST, BLOCKS = "channels_first", "channels_last", "blocked16"
LAYOUTS = pytest.mark.parametrize("layout", [FIRST, LAST, BLOCKS])
IMAGES = pytest.mark.parametrize("images", [1, 3, 0])


def _same(plan, x_shapes, y_shape):
    rng = np.random.default_rng(5)
    inputs = [rng.standard_normal(shape).astype("f4") for shape in x_shapes]
    expected, y = np.full(y_shape, 7, "f4"), np.full(y_shape, 7, "f4")
    plan.bind(*inputs, expected).run()
    run = plan.bound_at([x.ctypes.data for x in inputs], y.ctypes.data)
    run.run()
    assert plan.by_address and np.array_equal(y, expected) and ((y != 7).any() or not y.size)


@LAYOUTS
@IMAGES
@pytest.mark.parametrize("kind", ["add", "scaled", "single", "identity", "numbers"])
def test_elementwise(layout, images, kind):
    shape = images, 32, 5, 7
    others = {"add": [shape], "identity": []}
    others |= {"scaled": [(images, 32, 1, 1)], "single": [(1, 32, 1, 1)], "numbers": [shape]}
    shapes = [shape, *others[kind]]
    operation = {"add": "add", "identity": "identity"}.get(kind, "multiply")
    plan = ElementwisePlan(operation, shapes, layout, RELU)
    laid = [array_shape(layout, each) for each in shapes]
    if kind == "numbers":
        plan = ConstantOperandPlan(plan, np.random.default_rng(6).standard_normal(laid[1]).astype("f4"))
        laid = laid[:1]
    _same(plan, laid, laid[0])


@LAYOUTS
@IMAGES
@pytest.mark.parametrize("kind", [LayerNormPlan, SoftmaxPlan])
def test_norms(layout, images, kind):
    shape = images, 48, 5, 9
    _same(kind(shape, layout), [array_shape(layout, shape)], array_shape(layout, shape))


@LAYOUTS
@IMAGES
def test_upsampling(layout, images):
    x, y = (array_shape(layout, (images, 32, *sizes)) for sizes in ((5, 7), (10, 21)))
    _same(UpsamplingPlan((images, 32, 5, 7), (2, 3), layout), [x], y)


@pytest.mark.parametrize("layout", [FIRST, BLOCKS])
def test_concatenation(layout):
    x = [array_shape(layout, (1, channels, 5, 7)) for channels in (16, 48, 32)]
    _same(
        ConcatenationPlan([(1, c, 5, 7) for c in (16, 48, 32)], layout), x, array_shape(layout, (1, 96, 5, 7))
    )


def test_concatenation_of_what_lies_there():
    plan = ConcatenationPlan([(1, 2, 5), (1, 3, 5)], FIRST)
    y, x = np.arange(25, dtype="f4").reshape(1, 5, 5), np.ones((1, 3, 5), "f4")
    run = plan.bound_at([y.ctypes.data, x.ctypes.data], y.ctypes.data)
    run.run()
    assert len(run.launches) == 1 and y.ravel().tolist() == [*range(10), *[1] * 15]
    assert [place.offset for place in run.y_places] == [40]


@pytest.mark.parametrize(("layout", "images"), [(LAST, 2), (FIRST, 2)])
def test_concatenation_by_arrays_only(layout, images):
    assert ConcatenationPlan([(images, 2, 5)] * 2, layout).bound_at([0, 0], 0) is None


def test_the_first_is_broadcast_by_arrays_only():
    assert ElementwisePlan("multiply", [(1, 4, 1), (1, 4, 6)], FIRST).bound_at([0, 0], 0) is None


@IMAGES
@pytest.mark.parametrize(
    ("source", "target"), [(FIRST, LAST), (LAST, FIRST), (FIRST, BLOCKS), (BLOCKS, LAST)]
)
def test_reorder(images, source, target):
    shape = images, 40, 5, 7
    x, y = (array_shape(layout, shape) for layout in (source, target))
    _same(Reorder(shape, 4, source, target), [x], y)


@LAYOUTS
@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("reduction", ["max", "mean"])
def test_pooling(layout, images, reduction):
    problem = PoolProblem.of((images, 32, 9, 11), 3, stride=2, reduction=reduction).in_layout(layout)
    _same(PoolPlan(problem), [problem.array_shapes[0]], problem.array_shapes[1])


def _same_as(made, own, x_shapes, y_shape):
    """Two plans of a step give the same."""
    rng = np.random.default_rng(7)
    inputs = [rng.standard_normal(shape).astype("f4") for shape in x_shapes]
    expected, y = np.full(y_shape, 7, "f4"), np.full(y_shape, 7, "f4")
    own.bind(*inputs, expected).run()
    made.bind(*inputs, y).run()
    assert np.array_equal(y, expected)
    _same(made, x_shapes, y_shape)


SIZES = pytest.mark.parametrize("sizes", [(1, 32, 3, 4), (2, 32, 1, 1), (3, 32, 70, 81)])


@LAYOUTS
@SIZES
@pytest.mark.parametrize("kind", [LayerNormPlan, SoftmaxPlan])
def test_norms_of_other_maps(layout, sizes, kind):
    made, laid = kind((1, 32, 5, 9), layout).on_map(sizes), array_shape(layout, sizes)
    _same_as(made, kind(sizes, layout), [laid], laid)
    assert made.on_map((1, 33, 5, 9)) is None


@LAYOUTS
@SIZES
@pytest.mark.parametrize("kind", ["add", "scaled", "single", "identity"])
def test_elementwise_of_other_maps(layout, sizes, kind):
    others = {"add": lambda x: [x], "identity": lambda x: []}
    others |= {"scaled": lambda x: [(x[0], 32, 1, 1)], "single": lambda x: [(1, 32, 1, 1)]}
    of = others[kind]
    operation = {"add": "add", "identity": "identity"}.get(kind, "multiply")
    known, own = (
        ElementwisePlan(operation, [x, *of(x)], layout, RELU) for x in ((3, 32, 5, 9), sizes)
    )  # fmt: skip
    laid = [array_shape(layout, each) for each in (sizes, *of(sizes))]
    _same_as(known.on_maps(sizes, *of(sizes)), own, laid, laid[0])


def test_elementwise_that_is_broadcast_otherwise():
    plan = ElementwisePlan("add", [(2, 4, 6), (2, 4, 6)], FIRST)
    assert plan.on_maps((2, 4, 1), (2, 4, 6)) is None
    assert plan.on_maps((2, 4, 6), (3, 4, 6)) is None
    assert plan.on_maps((2, 4, 6), (2, 1, 6)) is None
    assert plan.on_maps((2, 4, 6)) is None


@LAYOUTS
def test_constant_operand_of_other_maps(layout):
    b = np.random.default_rng(8).standard_normal(array_shape(layout, (1, 32, 1, 1))).astype("f4")
    known, own = (
        ConstantOperandPlan(ElementwisePlan("multiply", [x, (1, 32, 1, 1)], layout), b)
        for x in ((1, 32, 9, 9), (2, 32, 5, 7))
    )
    laid = array_shape(layout, (2, 32, 5, 7))
    _same_as(known.on_map((2, 32, 5, 7)), own, [laid], laid)
    whole = np.ones(array_shape(layout, (1, 32, 9, 9)), "f4")
    plan = ConstantOperandPlan(ElementwisePlan("multiply", [(1, 32, 9, 9)] * 2, layout), whole)
    assert plan.on_map((1, 32, 5, 7)) is None


@SIZES
@pytest.mark.parametrize(("source", "target"), [(FIRST, LAST), (LAST, FIRST), (FIRST, BLOCKS)])
def test_reorder_of_other_maps(sizes, source, target):
    made, own = Reorder((1, 32, 9, 9), 4, source, target).on_map(sizes), Reorder(sizes, 4, source, target)
    x, y = (array_shape(layout, sizes) for layout in (source, target))
    _same_as(made, own, [x], y)
    given, expected, found = np.ones(x, "f4"), np.zeros(y, "f4"), np.zeros(y, "f4")
    own(given, expected)
    made(given, found)
    assert np.array_equal(found, expected) and made._tasks == own._tasks


def test_attention():
    heads, rows, depth = 3, 17, 8
    qkv = 2, rows, 3 * heads * depth
    seen = ("view", (2, rows, 3, heads, depth)), ("transpose", (2, 0, 3, 1, 4))
    moves = [(*seen, ("index", 0, i)) for i in range(3)]
    moves[1] += (("transpose", (0, 1, 3, 2)),)
    behind = ("transpose", (0, 2, 1, 3)), ("view", (2, rows, heads * depth))
    plan = AttentionPlan((qkv,) * 3, (*moves, behind), 0.3)
    _same(plan, [qkv] * 3, (2, rows, heads * depth))


def test_attention_that_copies_is_bound_by_arrays():
    turned, plain = (("transpose", (0, 2, 1)),), ()
    plan = AttentionPlan(((1, 8, 5), (1, 8, 5), (1, 5, 8)), (turned, plain, plain, plain))
    assert plan.bound_at([0, 0, 0], 0) is None
    biased = AttentionPlan(((1, 5, 8), (1, 8, 5), (1, 5, 8), (1, 5, 5)), ((),) * 4, views=((),))
    assert biased.bound_at([0, 0, 0, 0], 0) is None


@pytest.mark.parametrize("reduction", ["max", "mean"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sizes", [(1, 40, 3, 4), (3, 40, 170, 181), (2, 40, 1, 1)])
def test_whole_maps_of_other_sizes(reduction, dtype, sizes):
    layout = "blocked16" if dtype == "float32" else "blocked8"
    first = PoolProblem.of((1, 40, 7, 9), reduction=reduction, dtype=dtype)
    problem = PoolProblem.of(sizes, reduction=reduction, dtype=dtype)
    assert first.of_whole(sizes) == problem and first.of_whole(sizes).y_shape == problem.y_shape
    known, own = PoolPlan(first.in_layout(layout)), PoolPlan(problem.in_layout(layout))
    made = known.on_map(problem.in_layout(layout))
    x = np.random.default_rng(9).standard_normal(own._shapes[0]).astype(dtype)
    expected, y, bound = (np.full(own._shapes[1], 7, dtype) for _ in range(3))
    own.run(x, expected)
    made.run(x, y)
    made.bound_at([x.ctypes.data], bound.ctypes.data).run()
    assert np.array_equal(y, expected) and np.array_equal(bound, expected)
    assert made._runs._tasks == own._runs._tasks and made.scratch_bytes == own.scratch_bytes
    assert known.on_map(PoolProblem.of((1, 40, 8, 8), 2, reduction=reduction, dtype=dtype)) is None
    assert PoolProblem.of((1, 4, 8, 8), 2).of_whole((1, 4, 4, 4)) is None
    assert PoolProblem.of((1, 4, 3, 3), 3, padding=1).of_whole((1, 4, 4, 4)) is None
