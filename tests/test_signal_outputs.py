"""`out` of `convalgos.signal`: the same values, in the caller's array, whatever its steps and its memory."""

import inspect

import numpy as np
import pytest
import scipy.signal

import convalgos as ca
from convalgos.core import arrays
from convalgos.core.errors import Unsupported
from convalgos.signal import outputs
from convalgos.signal.normalized import convolve_normalized

pytestmark = pytest.mark.usefixtures("sizes_that_come_often")

RNG = np.random.default_rng(20)
LINE, TAPS = RNG.standard_normal(20_000), RNG.standard_normal(301)
LINES = LINE.reshape(2, 2, 5000)  # two axes that a plan takes as one
IMAGE, WINDOW = RNG.standard_normal((96, 120)), RNG.standard_normal((9, 11))
HOLES = np.where(RNG.random(IMAGE.shape) < 0.1, np.nan, IMAGE)
PLANNED = {  # calls whose plan writes where it is told to
    "convolve": ((LINE, TAPS), {"mode": "same"}),
    "correlate": ((LINE, TAPS), {"mode": "same"}),
    "fftconvolve": ((LINE, TAPS), {"mode": "same"}),
    "oaconvolve": ((LINE, TAPS), {"mode": "same"}),
    "convolve2d": ((IMAGE, WINDOW), {"mode": "same", "boundary": "symm"}),
    "correlate2d": ((IMAGE, WINDOW), {"mode": "same"}),
    "lfilter": ((TAPS, 1.0, LINES), {}),
    "savgol_filter": ((LINES, 11, 3), {}),
}
COPIED = {
    "sepfir2d": ((IMAGE, TAPS[:5], TAPS[:7]), {}),
    "filtfilt": ((TAPS, 1.0, LINE), {}),
    "upfirdn": ((TAPS[:1], LINE), {}),
    "resample_poly": ((LINE, 1, 1), {}),  # SciPy's copy
    "convolve_normalized": ((HOLES, abs(WINDOW)), {}),
}
CALLS = PLANNED | COPIED


def function(name):
    return convolve_normalized if name == "convolve_normalized" else getattr(ca.signal, name)


@pytest.mark.parametrize("name", CALLS)
def test_values_are_those_without_out(name):
    given, options = CALLS[name]
    wanted = function(name)(*given, **options)
    assert inspect.signature(function(name)).parameters["out"].kind is inspect.Parameter.KEYWORD_ONLY
    apart = np.full(wanted.shape, np.nan)
    turned = np.full([2 * n for n in wanted.shape], np.nan)[(slice(None, None, -2),) * wanted.ndim]
    single = np.full(wanted.shape, np.nan, np.float32)
    # small images go another way without `out`, in sums of another order
    same = 100 * np.abs(wanted).max() if name == "sepfir2d" else 0
    for out in (apart, turned, single):
        assert function(name)(*given, **options, out=out) is out
        np.testing.assert_allclose(out, wanted.astype(out.dtype), rtol=0, atol=same * np.finfo(out.dtype).eps)
    place, signal = next((i, a) for i, a in enumerate(given) if np.shape(a) == wanted.shape)
    for shift in (0, 3):  # the signal itself, and memory that overlaps it
        memory = np.zeros(signal.size + 3)
        held, out = (memory[at : at + signal.size].reshape(signal.shape) for at in (0, shift))
        held[...] = signal
        assert (
            function(name)(*(held if i == place else a for i, a in enumerate(given)), **options, out=out)
            is out
        )
        np.testing.assert_allclose(out, wanted, rtol=0, atol=same * np.finfo(out.dtype).eps)


@pytest.mark.parametrize("name", PLANNED)
def test_plans_write_there_at_once(name, monkeypatch):
    given, options = PLANNED[name]
    monkeypatch.setattr(outputs, "_write", lambda y, out: pytest.fail("the result was copied"))
    out = np.full(function(name)(*given, **options).shape, np.nan)
    function(name)(*given, **options, out=out)
    assert np.isfinite(out).all()


@pytest.mark.parametrize("dtype", ["int16", "complex64"])
@pytest.mark.parametrize("size", [20, 5000])
def test_other_numbers_are_cast(dtype, size):
    """Integers into float64, whose sums are rounded first, and complex numbers of two precisions."""
    x, w = (RNG.integers(-99, 99, n).astype(dtype) for n in (size, 50))
    out = np.full(size + 49, np.nan, np.promote_types(dtype, np.float64))
    ca.signal.convolve(x, w, out=out)
    wanted = ca.signal.convolve(x, w)
    np.testing.assert_array_equal(out, wanted)


def test_in2_that_broadcasts_does_not_write_more_than_is_asked_for():
    """A plan computes 5 lines, of which "same" takes the middle one."""
    given = LINE[None], np.arange(5)[:, None] * TAPS, "same", 1
    out = np.full((5, LINE.size), np.nan)
    with pytest.raises(ValueError, match="out has shape"):
        ca.signal.fftconvolve(*given, out=out)
    assert np.isnan(out).all()
    assert ca.signal.fftconvolve(*given, out=out[:1]).base is out
    np.testing.assert_array_equal(out[:1], ca.signal.fftconvolve(*given))


def test_columns_of_results_as_long_as_wide():
    """A plan writes lines that lie as columns: not at once, though `out` has the shape that it writes."""
    rng = np.random.default_rng(4)
    x, w = rng.standard_normal((500, 540)), rng.standard_normal((41, 1))
    for _ in range(3):
        out = np.full((540, 540), np.nan)
        ca.signal.fftconvolve(x, w, "full", 0, out=out)
        np.testing.assert_allclose(out, scipy.signal.fftconvolve(x, w, "full", 0), atol=1e-10)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "out, error, text",
    [
        (np.zeros(7), ValueError, r"out has shape \(7,\); it must be \("),
        (None, TypeError, "out has dtype int32; it must be float64"),
        (np.broadcast_to(0.0, 5), ValueError, "out is read-only"),
        ([0.0], TypeError, "out=list must be an array"),
    ],
    ids=["shape", "dtype", "read-only", "list"],
)
def test_what_does_not_fit_is_refused(name, out, error, text):
    given, options = CALLS[name]
    if out is None:
        out = np.zeros(next(a for a in given if np.size(a) > 1000).shape, np.int32)
    with pytest.raises(error, match=text):
        function(name)(*given, **options, out=out)
    assert not np.any(out)


def test_two_results_do_not_go_into_one_array():
    with pytest.raises(ValueError, match="2 results"):
        ca.signal.lfilter([1.0, 1.0], 1.0, LINE, zi=[0.0], out=np.zeros(LINE.size))


def test_tensors_are_written():
    torch = pytest.importorskip("torch")
    wanted = ca.signal.convolve(LINE, TAPS, "same")
    for x, out in (
        (torch.from_numpy(LINE), torch.full((LINE.size,), torch.nan, dtype=torch.float64)),
        (LINE, torch.full((LINE.size,), torch.nan, dtype=torch.float64)),
        (torch.from_numpy(LINE), np.full(LINE.size, np.nan)),
    ):
        assert ca.signal.convolve(x, TAPS, "same", out=out) is out
        np.testing.assert_array_equal(np.asarray(out), wanted)


def test_arrays_on_a_gpu_are_refused(monkeypatch):
    class OnGpu:
        __dlpack__ = None

    monkeypatch.setattr(arrays, "device_of", lambda array: "cuda:0")
    with pytest.raises(Unsupported, match=r"out is for arrays on the CPU: cupyx.scipy.signal.convolve"):
        ca.signal.convolve(OnGpu(), TAPS, out=OnGpu())
