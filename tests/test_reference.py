"""The judge is judged: the reference against the definition, one product at a time."""

from itertools import product

import numpy as np
import pytest
from scipy import signal

from convalgos.core.problem import ConvProblem
from convalgos.cpu.reference import reference, reference_at

PROBLEMS = [
    "n2 c3 w7 k4 s3 p1",
    "n1 c4 w9 k6 s2 p0:3 stride2 dilation3 groups2",
    "n2 c2 h5 w4 k3 r3 s2 p1:0,2 stride2,1",
    "n1 c4 h6 w5 k8 r3 s3 p2 dilation2 groups4 convolution",
    "n1 c2 d3 h4 w5 k2 t2 r3 s1 p1,0,2:1 stride1,2,3 convolution",
    "n1 c1 h2 w2 k1 r2 s2 p4 stride5",
    "n1 c3 h4 w4 k2 r4 s4",
]


def definition(p, x, w):
    """Every output as its sum, in Python integers."""
    y = np.zeros(p.y_shape)
    for n, k, *at in product(*map(range, p.y_shape)):
        first = k // (p.K // p.groups) * (p.C // p.groups)
        total = 0
        for c, *tap in product(*map(range, p.w_shape[1:])):
            where = [
                a * step + t * d - low
                for a, t, step, d, (low, _) in zip(at, tap, p.stride, p.dilation, p.padding, strict=True)
            ]
            if all(0 <= i < size for i, size in zip(where, p.spatial, strict=True)):
                if p.mode == "convolution":
                    tap = [r - 1 - t for t, r in zip(tap, p.kernel, strict=True)]
                total += int(x[n, first + c, *where]) * int(w[k, c, *tap])
        y[n, k, *at] = total
    return y


def integers(shape, seed):
    return np.random.default_rng(seed).integers(-9, 10, shape).astype(np.float32)


@pytest.mark.parametrize("text", PROBLEMS)
def test_reference_is_the_definition(text):
    p = ConvProblem.parse(text)
    x, w = integers(p.x_shape, 0), integers(p.w_shape, 1)
    expected = definition(p, x, w)
    assert np.abs(expected).max() > 0
    y = reference(p, x, w)
    assert y.dtype == np.float64
    np.testing.assert_array_equal(y, expected)
    bias = np.arange(p.K, dtype=np.float32)
    np.testing.assert_array_equal(reference(p, x, w, bias) - expected, np.broadcast_to(
        bias.reshape(-1, *(1,) * p.ndim), p.y_shape
    ))  # fmt: skip
    where = np.array(list(product(*map(range, p.y_shape))))
    np.testing.assert_array_equal(reference_at(p, x, w, where), expected.ravel())


def test_reference_is_scipy_s_correlation_and_convolution():
    x, w = integers((1, 1, 6, 7), 0), integers((1, 1, 3, 2), 1)
    for mode, function in (("cross_correlation", signal.correlate), ("convolution", signal.convolve)):
        for padding in ("valid", "full"):
            p = ConvProblem(x.shape, w.shape, padding=padding, mode=mode)
            np.testing.assert_array_equal(
                reference(p, x, w)[0, 0], function(x[0, 0], w[0, 0], padding, "direct")
            )


def test_inputs_are_not_written():
    p = ConvProblem.parse("n1 c2 w5 k2 s3 p1 convolution")
    x, w = integers(p.x_shape, 0), integers(p.w_shape, 1)
    x.flags.writeable = w.flags.writeable = False
    assert reference(p, x, w).shape == p.y_shape
