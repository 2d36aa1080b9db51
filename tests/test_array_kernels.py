"""Kernels of functions of whole arrays: gathers, sums over dimensions, and arrays that cross each other."""

import ctypes
from itertools import product

import numpy as np
import pytest

from convalgos.core.epilogue import RELU
from convalgos.core.errors import Unsupported
from convalgos.core.layouts import blocked_layout, laid, to_logical
from convalgos.cpu.elementwise.crossing import CrossingPlan
from convalgos.cpu.elementwise.functions import FunctionPlan
from convalgos.cpu.elementwise.gathering import GatherPlan
from convalgos.cpu.elementwise.norms import LayerNormPlan, SoftmaxPlan
from convalgos.cpu.elementwise.pixel_moves import PixelMovePlan
from convalgos.cpu.elementwise.plan import ConstantOperandPlan, ElementwisePlan, UpsamplingPlan
from convalgos.cpu.elementwise.rearranging import RearrangementPlan
from convalgos.cpu.elementwise.resizing import ResizePlan
from convalgos.cpu.elementwise.scattering import ScatterSumPlan
from convalgos.cpu.elementwise.summing import SumPlan
from convalgos.cpu.vectors import simd
from convalgos.network.arithmetic_plans import SideBySide

COMBINED = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide}


@pytest.mark.parametrize("dtype", ["f4", "f8", "i8", "f2", "u1"])
def test_gathers(dtype):
    """Of whole rows and of elements, of places and arrays that are broadcast, counted from both ends."""
    rng = np.random.default_rng(1)
    for _ in range(60):
        rank = int(rng.integers(1, 5))
        axis, shape = int(rng.integers(rank)), tuple(map(int, rng.integers(1, 6, rank)))
        size, x = shape[axis], rng.integers(0, 100, shape).astype(dtype)
        places = rng.integers(-size, size, tuple(rng.integers(1, 5, rng.integers(0, 3))))
        right = np.take(x, places, axis)
        y = np.full(right.shape, 111, dtype)
        GatherPlan(shape, places.shape, axis, None, x.dtype).run((x, np.asarray(places)), y)
        np.testing.assert_array_equal(y, right)
        y_shape = tuple(int(rng.integers(1, 8 if i == axis else n + 1)) for i, n in enumerate(shape))
        places = rng.integers(-size, size, [n if rng.random() < 0.6 else 1 for n in y_shape])
        x = x[
            tuple(slice(1) if i != axis and rng.random() < 0.3 else slice(None) for i in range(rank))
        ].copy()
        elements = np.broadcast_to(x, shape)[
            tuple(slice(None) if i == axis else slice(n) for i, n in enumerate(y_shape))
        ]
        right = np.take_along_axis(elements, np.broadcast_to(places, y_shape), axis)
        y = np.full(y_shape, 111, dtype)
        GatherPlan(x.shape, places.shape, axis, y_shape, x.dtype).run((x, places), y)
        np.testing.assert_array_equal(y, right)


def test_places_that_are_none():
    """They are told of, and the next run is a good one; places of 32 bits, and those that lie apart."""
    x, y = np.arange(6, dtype="f4").reshape(3, 2), np.empty((2, 2), "f4")
    plan, places = GatherPlan(x.shape, (2,), 0, None, x.dtype), np.array([0, 3])
    bound = plan.bind(x, places, y)
    for wrong in (3, -4):
        places[1] = wrong
        with pytest.raises(IndexError, match="out of bounds"):
            bound.run()
    places[1] = -3
    bound.run()
    np.testing.assert_array_equal(y, x[[0, 0]])
    for given in (np.array([2, 1], "i4"), np.array([2, 0, 1, 0])[::2]):
        plan.bind(x, given, y).run()
        np.testing.assert_array_equal(y, x[[2, 1]])
    with pytest.raises(ValueError, match="places have shape"):
        plan.bind(x, np.array([1]), y)
    with pytest.raises(Unsupported):
        GatherPlan((2, 3), (4, 1), 1, (4, 1), x.dtype)


def test_scattered_sums():
    """Several updates of one place, places that are broadcast and that count from the end; to the bit."""
    rng = np.random.default_rng(6)
    for _ in range(100):
        shape = tuple(map(int, rng.integers(1, 20, rng.integers(1, 5))))
        axis, x = int(rng.integers(len(shape))), rng.standard_normal(shape).astype("f4")
        size = [
            int(rng.integers(1, 30)) if i == axis else int(rng.integers(1, n + 1))
            for i, n in enumerate(shape)
        ]
        updates = rng.standard_normal(size).astype("f4")
        n = shape[axis]
        places = rng.integers(-n, n, [m if rng.random() < 0.6 else 1 for m in size])
        right, y = x.copy(), np.full(shape, np.nan, "f4")
        where = list(np.indices(size))
        where[axis] = np.broadcast_to(places, size)
        np.add.at(right, tuple(where), updates)
        plan = ScatterSumPlan(shape, places.shape, updates.shape, axis)
        plan.run((x, places, updates), y)
        np.testing.assert_array_equal(y, right)
        places[...] = n
        with pytest.raises(IndexError, match="out of bounds"):
            plan.run((x, places, updates), y)


def test_sums():
    rng = np.random.default_rng(2)
    for _ in range(150):
        rank = int(rng.integers(1, 5))
        shape = tuple(map(int, rng.choice([1, 2, 3, 5, 16, 17, 33, 70], rank)))
        first = int(rng.integers(rank))
        behind, x = int(rng.integers(first + 1, rank + 1)), rng.standard_normal(shape).astype("f4")
        right = 0.5 * x.astype("f8").sum(tuple(range(first, behind)))
        y = np.full(right.shape, np.nan, "f4")
        SumPlan(shape, first, behind, right.shape, 0.5).run((x,), y)
        assert np.abs(y - right).max() <= 1e-6 * np.abs(x).sum() / y.size + 1e-6, (shape, first, behind)
    SumPlan((3, 0), 0, 1, (0,)).run((np.empty((3, 0), "f4"),), np.empty(0, "f4"))


def test_arrays_that_cross_each_other():
    """Every way to lie that kernels have, one operand or the other first: to the bit."""
    rng, found = np.random.default_rng(3), {CrossingPlan: 0, ElementwisePlan: 0}
    for _ in range(600):
        sizes = rng.choice([1, 2, 3, 5, 17], rng.integers(2, 6))
        a, b = (tuple(map(int, np.where(rng.random(len(sizes)) < 0.4, 1, sizes))) for _ in range(2))
        operation = rng.choice([*COMBINED])
        for plan_of in found:
            try:
                more = () if plan_of is CrossingPlan else ("channels_first",)
                plan = plan_of(operation, (a, b), *more)
            except Unsupported:
                continue
            given = [rng.uniform(1, 2, shape).astype("f4") for shape in (a, b)]
            right = COMBINED[operation](*given)
            y = np.full(right.shape, np.nan, "f4")
            plan.run(given, y)
            np.testing.assert_array_equal(y, right)
            found[plan_of] += 1
    assert min(found.values()) > 100


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_arrays_side_by_side(axis):
    """Along any dimension, also those of no elements."""
    sizes = (3, 0, 1, 5)
    shapes = [tuple(n if i == axis else 2 + i for i in range(3)) for n in sizes]
    given = [np.random.default_rng(i).standard_normal(shape).astype("f4") for i, shape in enumerate(shapes)]
    right = np.concatenate(given, axis)
    SideBySide(shapes, axis).run(given, y := np.full(right.shape, np.nan, "f4"))
    np.testing.assert_array_equal(y, right)


def test_tables_of_files_lie_anywhere():
    """What is gathered of an array that is not aligned, as a constant in a file."""
    table = np.zeros(4 * 30 + 1, np.uint8)[1:].view("f4").reshape(10, 3)
    table[...] = np.arange(30).reshape(10, 3)
    assert not table.flags.aligned
    y, places = np.full((2, 3), np.nan, "f4"), np.array([7, -1])
    GatherPlan(table.shape, (2,), 0, None, table.dtype).bind(table, places, y).run()
    np.testing.assert_array_equal(y, table[places])


MOVING = {  # plans whose bound runs say where x and y lie
    "rearrangement": lambda: RearrangementPlan((2, 3, 4), (("transpose", (1, 0, 2)),)),
    "function": lambda: FunctionPlan("sqrt", (2, 3, 4)),
    "sum": lambda: SumPlan((2, 3, 4), 1, 2, (2, 4)),
    "softmax": lambda: SoftmaxPlan((2, 3, 4), "channels_first"),
    "norm": lambda: LayerNormPlan((2, 3, 4), "channels_first"),
    "upsampling": lambda: UpsamplingPlan((2, 3, 4), (2,), "channels_first"),
    "resizing": lambda: ResizePlan((2, 3, 4), (7,), "channels_first"),
    "pixels": lambda: PixelMovePlan((2, 3, 4, 4), (2, 2), "channels_first", False),
    "activation": lambda: ElementwisePlan("identity", ((2, 3, 4),), "channels_first", RELU),
    "product": lambda: ConstantOperandPlan(
        ElementwisePlan("multiply", ((2, 3, 4), (1, 3, 1)), "channels_first"), np.ones((1, 3, 1), "f4") * 2
    ),
}


@pytest.mark.parametrize("name", MOVING)
def test_bound_runs_say_where_arrays_lie(name):
    """A run that is told of other arrays writes there what one that is bound to them does."""
    plan = MOVING[name]()
    assert plan.told
    rng = np.random.default_rng(4)
    shape = (2, 3, 4, 4) if name == "pixels" else (2, 3, 4)
    first, x = (rng.uniform(1, 2, shape).astype("f4") for _ in range(2))
    y_shape = {"rearrangement": (3, 2, 4), "sum": (2, 4), "upsampling": (2, 3, 8), "resizing": (2, 3, 7)}
    y_shape["pixels"] = (2, 12, 2, 2)
    right, unused, y = (np.full(y_shape.get(name, shape), np.nan, "f4") for _ in range(3))
    plan.run((x,), right)
    run = plan.bind(first, unused)
    for places, array in ((run.x_places, x), (run.y_places, y)):
        assert places
        for place in places:
            ctypes.c_int64.from_address(place.word).value = array.ctypes.data + place.offset
    run.run()
    np.testing.assert_array_equal(y, right)
    assert np.isnan(unused).all()


@pytest.mark.parametrize("layout", ["channels_first", "channels_last", blocked_layout(simd.lanes(4))])
@pytest.mark.parametrize("logs", [False, True])
def test_softmax_of_any_number_of_pixels_and_in_place(layout, logs):
    """A few pixels at a time, and one that stands for those beyond."""
    rng = np.random.default_rng(5)
    for pixels, channels in product((1, 2, 3, 5), (2, 16, 17, 40)):
        x = rng.standard_normal((2, channels, pixels)).astype("f4") * 5
        e = np.exp(x.astype("f8") - x.max(1, keepdims=True))
        expected = e / e.sum(1, keepdims=True)
        given = np.ascontiguousarray(laid(x, layout))
        for y in (np.full_like(given, np.nan), given):
            SoftmaxPlan(x.shape, layout, logs).run((given,), y)
            found = to_logical(y, layout, channels)
            np.testing.assert_allclose(found, np.log(expected) if logs else expected, rtol=1e-4, atol=1e-5)
