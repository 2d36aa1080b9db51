"""Filters of arrays in chunks: SciPy's answers, wherever the chunks end."""

import math
import random

import numpy as np
import pytest

da = pytest.importorskip("dask.array", reason="needs Dask (pip install 'convalgos[dask]')")
scipy_ndimage = pytest.importorskip("scipy.ndimage")
scipy_signal = pytest.importorskip("scipy.signal")

from dask_cases import chunked  # noqa: E402

import convalgos as ca  # noqa: E402
import convalgos.dask as cd  # noqa: E402

MODES = ["reflect", "mirror", "nearest", "wrap", "constant", "grid-wrap"]
MOST = {1: 40, 2: 19, 3: 8}  # elements of an axis, by their number


def of_axes(draw, axes, make):
    return [make() for _ in axes] if draw.random() < 0.7 else make()


def window(draw, axes):
    """A box, its place, and what lies beyond the edges."""
    sizes = [draw.randint(1, 5) for _ in axes]
    origins = [draw.randint(-(n // 2), (n - 1) // 2) for n in sizes]
    return {"size": sizes, "origin": origins, "mode": [draw.choice(MODES) for _ in axes], "axes": axes}


def weights(draw, shape):
    return np.array([draw.randint(-3, 3) for _ in range(math.prod(shape))]).reshape(shape)


def a_call(draw, name, ndim):
    """Arguments of a filter."""
    axes = tuple(draw.sample(range(ndim), draw.randint(1, ndim)))
    given = window(draw, axes)
    one = {"axis": axes[0], "mode": given["mode"][0], "cval": 3, "origin": given["origin"][0]}
    size = given["size"][0]
    sigma = lambda: draw.choice([0.4, 0.8, 1.3])  # noqa: E731
    if name in ("correlate1d", "convolve1d"):
        return one | {"weights": weights(draw, (size,))}
    if name.endswith("1d") and name != "gaussian_filter1d":
        return one | {"size": size}
    if name in ("correlate", "convolve"):
        given |= {"weights": weights(draw, given.pop("size")), "mode": draw.choice(MODES), "cval": 3}
        return given | {"origin": 0} if name == "convolve" else given
    if name == "uniform_filter":
        return given | {"cval": 3}
    if name in ("minimum_filter", "maximum_filter"):
        if draw.random() < 0.5:
            marked = weights(draw, given.pop("size")) > 0
            marked.flat[0] = True
            given |= {"footprint": marked, "mode": draw.choice(MODES)}
        return given | {"cval": 3}
    if name == "gaussian_filter1d":
        return {
            "sigma": sigma(),
            "axis": axes[0],
            "mode": one["mode"],
            "order": draw.randint(0, 2),
            "cval": 3,
        }
    if name == "gaussian_filter":
        return {"sigma": of_axes(draw, axes, sigma), "axes": axes, "mode": given["mode"], "truncate": 3.0}
    if name in ("gaussian_laplace", "gaussian_gradient_magnitude"):
        return {"sigma": sigma(), "mode": draw.choice(MODES), "axes": axes, "truncate": 3.0}
    if name == "laplace":
        return {"mode": given["mode"], "axes": axes}
    return {"axis": axes[0], "mode": [draw.choice(MODES) for _ in range(ndim)]}  # edges


@pytest.mark.parametrize("name", cd.ndimage.__all__)
def test_filters_of_images_have_the_answers_of_scipy(name):
    """Any chunks, smaller than the filter or empty; any mode, origin, axes; integers are equal."""
    assert set(cd.ndimage.__all__) == {n for n in ca.ndimage.__all__ if not n.startswith("generic")}
    draw = random.Random(name)
    for turn in range(6):
        ndim = draw.choice([1, 2, 2, 3])
        rng = np.random.default_rng(turn)
        x = rng.integers(0, 200, [draw.randint(1, MOST[ndim]) for _ in range(ndim)])
        x = x.astype(draw.choice(["u1", "i4", "f4", "f8"]) if "gradient" not in name else "f8")
        how = a_call(draw, name, ndim)
        want = getattr(scipy_ndimage, name)(x, **how)
        lazy = getattr(cd.ndimage, name)(chunked(draw, x), **how)
        got = lazy.compute(scheduler="synchronous")
        assert lazy.dtype == got.dtype == want.dtype and lazy.shape == got.shape
        if x.dtype.kind == "f":
            np.testing.assert_allclose(got, want, atol=2e-5 * max(1, np.abs(want).max()), err_msg=str(how))
        else:
            np.testing.assert_array_equal(got, want, err_msg=str(how))


def test_filters_of_images_along_long_axes():
    """Halos of several chunks, an output of another type, a recursion within its error, what is refused."""
    x = np.random.default_rng(0).standard_normal((300, 60)).astype("f4")
    cx = da.from_array(x, chunks=(70, 25))
    got = cd.ndimage.gaussian_filter(cx, 9.0, mode="wrap", max_rel_error=1e-3).compute()
    np.testing.assert_allclose(
        got, scipy_ndimage.gaussian_filter(x, 9.0, mode="wrap"), atol=1e-3 * np.abs(x).max()
    )
    assert cd.ndimage.sobel(cx.astype("i2"), output="f8").dtype == np.float64
    assert cd.ndimage.sobel(cx).chunks == cx.chunks
    for call, error, told in (
        (lambda: cd.ndimage.sobel(cx, output=x), TypeError, "output"),
        (lambda: cd.ndimage.sobel(cx, mode="round"), ValueError, "mode='round'"),
        (lambda: cd.ndimage.correlate(cx, np.ones(3)), ValueError, "weights"),
        (lambda: cd.ndimage.uniform_filter(cx.astype("f2"), 3), TypeError, "float16"),
        (lambda: cd.ndimage.gaussian_laplace(cx, 1, mode=["wrap", "mirror"]), ca.Unsupported, "wrap"),
        (lambda: cd.signal.lfilter([1.0], [1.0, 0.5], cx), ca.Unsupported, "feedback"),
    ):
        with pytest.raises(error, match=told):
            call()


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("lfilter", {"b": [0.5, 0.25, -1.0, 2.0], "a": 2.0}),
        ("filtfilt", {"b": [0.5, 0.25, 0.25], "a": [1.0]}),
        ("filtfilt", {"b": [0.5, 0.25, 0.25], "a": 1.0, "padtype": "even", "padlen": 20}),
        ("savgol_filter", {"window_length": 7, "polyorder": 2}),
        ("savgol_filter", {"window_length": 5, "polyorder": 3, "deriv": 1, "mode": "wrap"}),
        ("savgol_filter", {"window_length": 5, "polyorder": 3, "mode": "constant", "cval": 2.0}),
    ],
)
def test_signals_are_filtered_as_by_scipy(name, given):
    draw = random.Random(name)
    x = np.random.default_rng(0).standard_normal((3, 61))
    for axis, array in ((-1, x), (0, x.T)):
        want = getattr(scipy_signal, name)(x=array, axis=axis, **given)
        got = getattr(cd.signal, name)(x=chunked(draw, array), axis=axis, **given)
        np.testing.assert_allclose(got.compute(scheduler="synchronous"), want, atol=1e-12)


def test_images_are_filtered_by_rows_and_columns():
    x = np.random.default_rng(0).standard_normal((31, 44))
    taps = [0.25, 0.5, 0.25], [0.1, 0.2, 0.4, 0.2, 0.1]
    got = cd.signal.sepfir2d(chunked(random.Random(1), x), *taps).compute(scheduler="synchronous")
    np.testing.assert_allclose(got, scipy_signal.sepfir2d(x, *taps), atol=1e-12)


def test_sigmas_of_axes_in_another_order():
    """SciPy takes them in the order of the dimensions where all are named, and in that of the axes else."""
    rng = np.random.default_rng(0)
    for shape, axes in (((21, 17), (1, 0)), ((12, 11, 9), (2, 0))):
        x, how = rng.standard_normal(shape), {"sigma": [0.4, 2.0], "axes": axes, "mode": "wrap"}
        got = cd.ndimage.gaussian_laplace(da.from_array(x, chunks=5), **how).compute(scheduler="synchronous")
        np.testing.assert_allclose(got, scipy_ndimage.gaussian_laplace(x, **how), rtol=1e-9, atol=1e-12)


def test_graphs_name_what_their_tasks_read():
    """Dask checks that in its own tests of arrays, also of arrays in memory, whose chunks need no tasks."""
    x = np.random.default_rng(3).standard_normal((20, 24))
    for array in (da.from_array(x, chunks=(7, 9)), da.from_array(x, chunks=(20, 9)) + 1, da.asarray(x)):
        for y in (
            cd.ndimage.gaussian_filter(array, 1.5),
            cd.ndimage.uniform_filter(array, 3),
            cd.signal.fftconvolve(array, np.ones((3, 3)), mode="same"),
        ):
            y.dask.validate()
