"""Bytes by number-theoretic transforms: what the table of all algorithms does not reach."""

import numpy as np
import pytest

import convalgos as ca
from convalgos.core.quantization import Quantization

CASES = (
    "uint8 w_uint8 n1 c1 w9000 k1 s5000",  # sums that take two primes
    "int8 y_uint8 n2 c3 h11 w20 k6 r3 s5 p1,0:4 stride3,2 groups3",  # behind the last result lies more of x
    "uint8 w_int8 y_float32 n3 c2 h20 w30 k2 r7 s4 p3 dilation2 groups2 channels_last",
    "int8 n1 c2 d5 h6 w9 k2 t3 r2 s4 p1 groups2 convolution",
)


@pytest.mark.parametrize("text", CASES)
def test_sums_are_exact(text):
    """Of the largest and the smallest bytes and zero points, in two runs of one plan."""
    p = ca.ConvProblem.parse(text)
    rng = np.random.default_rng(0)
    of_x, of_w = (np.iinfo(dtype) for dtype in (p.dtype, p.w_dtype))
    x, w = (
        rng.choice(np.array([limits.max, limits.min, 1], limits.dtype), shape, p=(0.9, 0.05, 0.05))
        for limits, shape in ((of_x, p.array_shapes[0]), (of_w, p.w_shape))
    )
    ours, judge = ca.plan(p, algorithm="cpu.ntt"), ca.plan(p, algorithm="cpu.reference")
    for zero_points in ((0, 0), (of_x.min, of_w.max), (of_x.max, of_w.min)):
        step = Quantization(
            x_scale=0.3, y_scale=1.0 if p.y_dtype in ("int32", "float32") else 5000.0,
            x_zero_point=int(zero_points[0]), w_zero_point=int(zero_points[1]),
        )  # fmt: skip
        y = ours(x, ours.prepare(w, step))
        assert np.array_equal(y, judge(x, judge.prepare(w, step)))


def test_long_filters_of_bytes_are_transformed():
    picked = [
        ca.explain(ca.ConvProblem.parse(f"int8 n1 c1 w1000000 k1 s{taps}")).candidates for taps in (9, 4096)
    ]
    assert [found[0].algorithm.id == "cpu.ntt" for found in picked] == [False, True]
