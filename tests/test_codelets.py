"""Fourier codelets on NumPy arrays, against numpy.fft."""

import numpy as np
import pytest

from convalgos.cpu.vectors import fft_codelets

LENGTHS = (1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 15, 16, 18, 20, 24, 25, 30, 32, 60, 64)


def axpy(a, x, y):
    assert x is not None
    return a * x if y is None else a * x + y


def parts(values):
    """Complex numbers as pairs of arrays."""
    return [(np.atleast_1d(v.real), np.atleast_1d(v.imag)) for v in values]


def whole(pairs):
    """Pairs as complex numbers; None is zero."""
    return np.array([complex(*(0 if part is None else part.item() for part in pair)) for pair in pairs])


def reals(n, seed=0):
    return np.random.default_rng(seed).standard_normal(n)


@pytest.mark.parametrize("n", LENGTHS)
def test_complex(n):
    z = reals(n) + 1j * reals(n, 1)
    forward = whole(fft_codelets.fft(axpy, parts(z), fft_codelets.FORWARD))
    assert np.allclose(forward, np.fft.fft(z), rtol=0, atol=1e-13 * n)
    inverse = whole(fft_codelets.fft(axpy, parts(z), fft_codelets.INVERSE))
    assert np.allclose(inverse, n * np.fft.ifft(z), rtol=0, atol=1e-13 * n)


@pytest.mark.parametrize("n", LENGTHS)
def test_real(n):
    x = reals(n)
    spectrum = fft_codelets.rfft(axpy, [np.atleast_1d(v) for v in x])
    assert np.allclose(whole(spectrum), np.fft.rfft(x), rtol=0, atol=1e-13 * n)
    assert spectrum[0][1] is None
    assert n % 2 or spectrum[-1][1] is None
    back = fft_codelets.irfft(axpy, spectrum, n)
    assert np.allclose(np.concatenate(back), n * x, rtol=0, atol=1e-13 * n)


@pytest.mark.parametrize("n", (6, 15, 16, 18))
def test_zeros_are_left_out(n):
    """None parts give the answer of zeros, with fewer operations."""
    counts = []

    def counting(a, x, y):
        counts[-1] += 1
        return axpy(a, x, y)

    x = reals(n)
    counts.append(0)
    pruned = fft_codelets.fft(counting, [(np.atleast_1d(v), None) for v in x], fft_codelets.FORWARD)
    counts.append(0)
    full = fft_codelets.fft(counting, [(np.atleast_1d(v), np.zeros(1)) for v in x], fft_codelets.FORWARD)
    assert np.allclose(whole(pruned), np.fft.fft(x), rtol=0, atol=1e-12)
    assert np.allclose(whole(full), np.fft.fft(x), rtol=0, atol=1e-12)
    assert counts[0] < counts[1]


def test_operations_of_short_transforms():
    """Butterflies take 4 operations where the factor is a power of i, and 6 elsewhere."""
    count = 0

    def counting(a, x, y):
        nonlocal count
        count += 1
        return axpy(a, x, y)

    fft_codelets.fft(counting, parts(reals(16) + 1j * reals(16)), fft_codelets.FORWARD)
    negations = 8  # of i * a, which vectors merge into the next addition
    assert count <= 4 * 32 + 2 * (6 + 2 * 2) + negations + 8


@pytest.mark.parametrize("n", (7, 14, 22))
def test_other_lengths_are_refused(n):
    with pytest.raises(ValueError, match=r"n=7|n=11"):
        fft_codelets.fft(axpy, parts(reals(n) + 0j), fft_codelets.FORWARD)
