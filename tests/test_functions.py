"""Functions of each element by itself: against float64, of what is no usual number, and as ONNX has them."""

import numpy as np
import pytest
from test_network_odd_models import check_model
from test_network_onnx import Builder, numbers
from test_recurrent import checked, foreign

from convalgos.cpu.elementwise.function_kernels import FUNCTIONS
from convalgos.cpu.elementwise.functions import FunctionPlan
from convalgos.network.array_functions import ArrayFunction
from convalgos.network.functions import ElementFunction

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

ODD = (0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-40, 3e38, 88.8, -88.8, -103, 120, 1.0000001, 0.9999999)
HALVES = (0.5, -0.5, 1.5, -1.5, 2.5, 8388607.5, -8388608, 16777217, 1e-40, -0.3)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("count", [0, 5, 40_003])
def test_values_against_float64(function, count):
    x = (10 * numbers(count)).astype("f4")
    x[: len(ODD)], x[100:][: len(HALVES)] = ODD[:count], HALVES[: max(count - 100, 0)]
    plan = FunctionPlan(function, x.shape)
    plan.run((x,), y := np.full_like(x, np.nan))
    with np.errstate(all="ignore"):
        right = getattr(np, function)(x.astype("f8")).astype("f4")
    assert np.allclose(y, right, rtol=4e-7, atol=1e-38, equal_nan=True)
    assert np.array_equal(np.signbit(y), np.signbit(right)) or function in ("log", "sqrt")
    plan.run((x,), x)
    assert np.array_equal(x, y, equal_nan=True)


@pytest.mark.parametrize("op", ["Exp", "Log", "Sqrt", "Reciprocal", "Abs", "Neg", "Floor", "Ceil", "Round"])
def test_functions_of_onnx(op):
    b = Builder(("n", 8, 9, 7))
    x = b.node("Softplus", b.conv(k=21)) if op in ("Log", "Sqrt", "Reciprocal") else b.conv(k=21)
    y = b.conv(b.node(op, x), c=21)
    net = checked(b.model(y), numbers((2, 8, 9, 7)))
    assert not foreign(net) and sum(isinstance(step, ElementFunction) for step in net.graph.steps) == 1


def test_powers():
    b = Builder()
    x = b.node("Softplus", b.conv())
    y = [b.node("Pow", x, np.float32(p)) for p in (2, 0.5, -1, 1.7)]
    net = checked(b.model(*y), numbers((1, 8, 9, 7)))
    assert not foreign(net) and sum(isinstance(step, ArrayFunction) for step in net.graph.steps) == 1


def test_between_what_is_left_a_function_is_left_too():
    b = Builder()
    y = b.node("Sin", b.node("Exp", b.node("Sin", "x")))
    check_model(b.model(b.conv(y)), numbers((1, 8, 9, 7)))
