"""Floats of 8 bits: their two types, problems of them, and convolutions on the CPU, which widens them."""

from itertools import product

import numpy as np
import pytest

ml_dtypes = pytest.importorskip("ml_dtypes")
pytest.importorskip("llvmlite")

import convalgos as ca  # noqa: E402
from convalgos.core.element_types import FLOAT8_DTYPES  # noqa: E402
from convalgos.core.plan import numpy_dtype  # noqa: E402
from convalgos.cpu.runtime import half  # noqa: E402

FINE, WIDE = FLOAT8_DTYPES


@pytest.mark.parametrize("name", FLOAT8_DTYPES)
def test_every_number_is_that_of_ml_dtypes_and_a_float16(name):
    every = np.tile(np.arange(256, dtype="u1"), half.SMALL // 256).view(numpy_dtype(name))
    wide = np.full(every.size, 77, "f4")
    half.convert(every, wide)
    assert np.array_equal(wide, every.astype("f4"), equal_nan=True)
    assert np.array_equal(np.signbit(wide), np.signbit(every.astype("f4")))
    assert np.array_equal(wide, every.astype("f2").astype("f4"), equal_nan=True)


@pytest.mark.parametrize("of_x, of_w", list(product(FLOAT8_DTYPES, FLOAT8_DTYPES)))
def test_convolutions_are_those_of_float32(of_x, of_w):
    """In each type of y; of arrays in the default, float32; of tensors, too."""
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((2, 6, 40, 41)) * 8, rng.standard_normal((4, 3, 3, 3))
    x, w = x.astype(numpy_dtype(of_x)), w.astype(numpy_dtype(of_w))
    exact = ca.conv(x.astype("f8"), w.astype("f8"), padding=1, groups=2)
    size = abs(exact).max()
    problem = ca.ConvProblem(x.shape, w.shape, padding=1, groups=2, dtype=of_x, w_dtype=of_w)
    assert problem.bytes == x.size + w.size + 4 * exact.size and problem.eps == 2**-23
    for y_dtype, eps in (("float32", 2**-23), ("float16", 2**-10), ("bfloat16", 2**-7)):
        plan = ca.plan(problem.replace(y_dtype=y_dtype))
        y = plan(x, plan.prepare(w))
        assert y.dtype == numpy_dtype(y_dtype)
        assert abs(y.astype("f8") - exact).max() <= max(eps, 2**-18) * size
    assert np.array_equal(ca.conv(x, w, padding=1, groups=2), ca.plan(problem)(x, w))
    assert abs(ca.conv(x, w, padding=1, groups=2, algorithm="cpu.reference") - exact).max() <= 2**-22 * size
    torch = pytest.importorskip("torch")
    tensors = [torch.tensor(a.astype("f4")).to(getattr(torch, a.dtype.name)) for a in (x, w)]
    assert np.array_equal(ca.conv(*tensors, padding=1, groups=2).numpy(), ca.conv(x, w, padding=1, groups=2))


def test_problems_are_told_in_text_and_refused_by_the_argument():
    text = f"n2 c6 h7 w8 k5 r3 s3 p1 {FINE} w_{WIDE} y_bfloat16"
    problem = ca.ConvProblem.parse(text)
    assert str(problem) == text and problem.eps == 2**-7 and problem.compute_dtype == "float32"
    assert problem.replace(dtype=WIDE, y_dtype=None).y_dtype == "float32"
    for name, value, valid in (
        ("w_dtype", "float16", f"'{FINE}', '{WIDE}' where dtype='{FINE}'"),
        ("y_dtype", FINE, "'float32', 'float16', 'bfloat16'"),
        ("compute_dtype", "float16", "'float32'"),
        ("direction", "backward_data", "'forward' where dtype"),
    ):
        with pytest.raises(ValueError, match=f"{name}='{value}' must be .*{valid}"):
            problem.replace(**{name: value})
    with pytest.raises(TypeError, match="integers or floats of 8 bits"):
        ca.conv(np.zeros((1, 1, 4), numpy_dtype(FINE)), np.zeros((1, 1, 3), "f4"))


def test_what_is_measured_is_compared_with_the_answer():
    problem = ca.ConvProblem.parse(f"n1 c4 h6 w7 k5 r3 s3 p1 {WIDE} w_{FINE} y_float16")
    found = ca.find(problem, time_budget=0.01).rows
    assert found and all(0 < row.error < problem.eps for row in found)
