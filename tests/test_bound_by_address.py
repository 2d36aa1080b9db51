"""Steps bound to addresses compute what they do on the arrays that lie there."""

import numpy as np
import pytest

from convalgos.core.epilogue import RELU
from convalgos.core.layouts import array_shape
from convalgos.core.pool_problem import PoolProblem
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
IMAGES = pytest.mark.parametrize("images", [1, 3])


def _same(plan, x_shapes, y_shape):
    rng = np.random.default_rng(5)
    inputs = [rng.standard_normal(shape).astype("f4") for shape in x_shapes]
    expected, y = np.full(y_shape, 7, "f4"), np.full(y_shape, 7, "f4")
    plan.bind(*inputs, expected).run()
    run = plan.bound_at([x.ctypes.data for x in inputs], y.ctypes.data)
    run.run()
    assert plan.by_address and np.array_equal(y, expected) and (y != 7).any()


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
@IMAGES
@pytest.mark.parametrize("reduction", ["max", "mean"])
def test_pooling(layout, images, reduction):
    problem = PoolProblem.of((images, 32, 9, 11), 3, stride=2, reduction=reduction).in_layout(layout)
    _same(PoolPlan(problem), [problem.array_shapes[0]], problem.array_shapes[1])
