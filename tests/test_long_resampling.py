"""Long lines at other rates: their ends are those of SciPy in every mode."""

import numpy as np
import pytest
import scipy.signal

import convalgos as ca
from convalgos.signal import long_resampling
from convalgos.signal.long_resampling import resampled_apart

RNG = np.random.default_rng(71)
MODES = ("symmetric", "reflect", "edge", "wrap", "smooth", "line", "antisymmetric", "antireflect")
RATES = [(1, 1), (1, 3), (3, 1), (2, 3), (5, 2), (1, 17), (7, 12)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("up", "down"), RATES)
@pytest.mark.parametrize("taps", [1, 2, 7, 40, 121])
def test_ends_are_those_of_scipy(monkeypatch, mode, up, down, taps):
    monkeypatch.setattr(long_resampling, "LONG", 0)
    for shape in ((1000,), (2, 3, 997)):
        x, h = RNG.standard_normal(shape) + 3, RNG.standard_normal(taps)
        expected = scipy.signal.upfirdn(h, x, up, down, mode=mode)
        y = resampled_apart(x, h, up, down, expected.shape[-1], mode, ca.signal.upfirdn)
        assert y is not None and y.shape == expected.shape
        assert abs(y - expected).max() <= 1e-12 * abs(expected).max()


@pytest.mark.parametrize("mode", ["wrap", "line", "reflect"])
def test_upfirdn_of_long_lines(monkeypatch, mode):
    asked = []

    def spy(*given):
        asked.append(resampled_apart(*given))
        return asked[-1]

    monkeypatch.setattr("convalgos.signal.resampling.resampled_apart", spy)
    x, h = RNG.standard_normal((600_000, 1))[::-1], RNG.standard_normal(33)
    for up, down in ((1, 1), (2, 3)):
        expected = scipy.signal.upfirdn(h, x, up, down, axis=0, mode=mode)
        y = ca.signal.upfirdn(h, x, up, down, axis=0, mode=mode)
        assert y.shape == expected.shape and abs(y - expected).max() <= 1e-12 * abs(expected).max()
    assert len(asked) == 2 and asked[0] is not None
