"""Signals of other libraries go in, and their kind comes out."""

from importlib import import_module

import numpy as np
import pytest

import convalgos as ca

SIGNAL = np.random.default_rng(5).standard_normal((12, 60))
TAPS = np.hanning(9)
FLAT = TAPS[None]


@pytest.fixture(params=["torch", "jax.numpy"])
def library(request):
    """(function that makes an array of a library, its type)"""
    found = pytest.importorskip(request.param)
    make = getattr(found, "from_numpy", found.asarray) if request.param == "torch" else found.asarray
    return lambda a: make(a.astype("float32")), found.Tensor if request.param == "torch" else found.ndarray


@pytest.mark.parametrize(
    "name, given, named",
    [
        ("convolve", (SIGNAL, FLAT), {"mode": "same"}),
        ("correlate", (SIGNAL, FLAT), {}),
        ("fftconvolve", (SIGNAL, FLAT), {"axes": 1}),
        ("oaconvolve", (SIGNAL, FLAT), {"axes": 1}),
        ("convolve2d", (SIGNAL, FLAT), {"boundary": "symm"}),
        ("correlate2d", (SIGNAL, FLAT), {}),
        ("sepfir2d", (SIGNAL, TAPS, TAPS), {}),
        ("lfilter", (TAPS, [1.0]), {"x": SIGNAL}),
        ("filtfilt", (TAPS, [1.0], SIGNAL), {}),
        ("savgol_filter", (SIGNAL, 9, 3), {}),
        ("upfirdn", (TAPS, SIGNAL), {"up": 2}),
        ("resample_poly", (SIGNAL, 3, 2), {"axis": 1}),
    ],
)
def test_signals_of_other_libraries(library, name, given, named):
    make, kind = library
    function = getattr(ca.signal, name)

    def of(convert):
        def value(v):
            return convert(v) if isinstance(v, np.ndarray) else v

        return function(*map(value, given), **{key: value(v) for key, v in named.items()})

    y = of(make)
    assert isinstance(y, kind)
    wanted = of(lambda a: a.astype("float32"))  # float64 where a list is, which JAX rounds
    np.testing.assert_allclose(np.asarray(y), wanted, rtol=1e-6, atol=1e-7 * abs(wanted).max())


def test_images_of_other_libraries(library):
    """A new result is of their kind; what is given for it is filled, and is the result."""
    make, kind = library
    wanted = ca.ndimage.correlate(SIGNAL.astype("float32"), FLAT)
    y = ca.ndimage.correlate(make(SIGNAL), make(FLAT))
    assert isinstance(y, kind)
    np.testing.assert_allclose(np.asarray(y), wanted, rtol=1e-5, atol=1e-5)
    output = np.full(SIGNAL.shape, np.nan, np.float32)
    assert ca.ndimage.correlate(make(SIGNAL), FLAT, output) is output
    np.testing.assert_array_equal(output, wanted)


def test_results_go_to_a_tensor():
    torch = pytest.importorskip("torch")
    output = torch.full(SIGNAL.shape, torch.nan, dtype=torch.float64)
    assert ca.ndimage.sobel(SIGNAL, output=output) is output
    np.testing.assert_array_equal(output.numpy(), ca.ndimage.sobel(SIGNAL))


def test_several_results_and_what_would_be_lost():
    torch = pytest.importorskip("torch")
    x, taps = torch.from_numpy(SIGNAL), torch.from_numpy(TAPS)
    y, rest = ca.signal.lfilter(taps, [1.0], x, zi=torch.zeros(12, 8, dtype=torch.float64))
    assert isinstance(y, torch.Tensor) and isinstance(rest, torch.Tensor) and rest.shape == (12, 8)
    with pytest.raises(TypeError, match="requires a gradient"):
        ca.signal.convolve(x.requires_grad_(), taps[None])


def test_arrays_on_a_gpu_go_to_cupy(monkeypatch):
    """CuPy is not here, so that the module that would be asked is seen."""
    from convalgos.core import array_kinds, arrays

    class OnGpu:
        def __dlpack__(self, **how):
            raise AssertionError("it was read")

    asked = []
    monkeypatch.setattr(arrays, "device_of", lambda array: "cuda:0")
    monkeypatch.setattr(arrays, "as_cupy", lambda name, array: array)

    def seen(name):
        asked.append(name)
        return import_module("scipy.signal")

    monkeypatch.setattr(array_kinds, "import_module", seen)
    with pytest.raises((TypeError, ValueError, AssertionError)):
        ca.signal.upfirdn(OnGpu(), SIGNAL)
    assert asked == ["cupyx.scipy.signal"]
