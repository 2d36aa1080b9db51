"""Minima, maxima and means of windows have SciPy's answers, at their borders, of any size and type."""

from itertools import product

import numpy as np
import pytest
from scipy import ndimage as scipys

from convalgos import ndimage
from convalgos.core.setting import threads_of_calls
from convalgos.cpu.sliding.quotients import short_quotient
from convalgos.ndimage import converted_windows, footprints, known_calls, window_filters

MODES = ["reflect", "mirror", "nearest", "wrap", "constant", "grid-wrap"]
FILTERS = ["minimum_filter", "maximum_filter", "uniform_filter"]
ROUNDING = {"f": 2.0**-23, "d": 2.0**-52}


def numbers(rng, shape, dtype):
    dtype = np.dtype(dtype)
    if dtype.kind in "fc":
        x = rng.standard_normal(shape)
        return (x + 1j * rng.standard_normal(shape) if dtype.kind == "c" else x).astype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) > 0.4
    limits = np.iinfo(dtype)
    return rng.integers(max(limits.min, -(2**40)), min(limits.max, 2**40), shape, dtype, endpoint=True)


def check(name, x, size, **how):
    """Against SciPy; floats within the roundings of their sums, all others exactly."""
    expected = getattr(scipys, name)(x, size, **how)
    found = getattr(ndimage, name)(x, size, **how)
    assert found.dtype == expected.dtype
    if name == "uniform_filter" and expected.dtype.kind in "fc":
        roundings = np.sum(size) * ROUNDING[expected.real.dtype.char]
        assert np.max(np.abs(found - expected), initial=0) <= roundings * np.abs(x).max()
    else:
        assert np.array_equal(found, expected)


def random_call(rng, dtype, ndim):
    most = [700, 50, 20, 8][ndim - 1]
    x = numbers(rng, tuple(rng.integers(1, most, ndim)), dtype)
    x = x[..., ::-1] if rng.random() < 0.3 else x
    axes = None if rng.random() < 0.5 else tuple(map(int, rng.permutation(ndim)[: rng.integers(1, ndim + 1)]))
    count = ndim if axes is None else len(axes)
    size = [int(n) for n in rng.integers(1, 30 if ndim < 3 else 12, count)]
    origin = [int(rng.integers(-(n // 2), (n - 1) // 2 + 1)) for n in size]
    mode = [str(word) for word in rng.choice(MODES, count)]
    return x, size, {"mode": mode, "origin": origin, "axes": axes, "cval": float(rng.choice([0, 3, 7]))}


@pytest.mark.parametrize("dtype", ["?", "B", "f", "d"])
@pytest.mark.parametrize("name", FILTERS)
def test_answers_are_those_of_scipy(name, dtype):
    rng = np.random.default_rng(ord(dtype))
    for ndim in (1, 2, 2, 3, 3, 4) * 4:
        x, size, how = random_call(rng, dtype, ndim)
        check(name, x, size, **how)


@pytest.mark.parametrize("dtype", ["b", "h", "I", "q"])
def test_of_every_integer(dtype):
    rng = np.random.default_rng(ord(dtype))
    for ndim in (1, 2, 3):
        for name in FILTERS[dtype != "q" :]:  # of all kernels of minima and maxima half, for the time
            x, size, how = random_call(rng, dtype, ndim)
            check(name, x, size, **how)


@pytest.mark.parametrize("few", [0, footprints.FEW])
@pytest.mark.parametrize("dtype", ["B", "f"])
def test_footprints(dtype, few, monkeypatch):
    """By runs of marked elements, or by each of these."""
    monkeypatch.setattr(footprints, "FEW", few)
    known_calls._forget()
    rng = np.random.default_rng(ord(dtype))
    disk = np.hypot(*np.mgrid[-5:6, -4:5]) < 4.7
    for footprint in (disk, rng.random((3, 7)) < 0.3, rng.random((2, 3, 4)) < 0.5, np.ones((3, 4))):
        footprint.flat[0] = True
        x = numbers(rng, rng.integers(3, 40, footprint.ndim), dtype)
        for name in FILTERS[:2]:
            for mode in MODES:
                how = {"mode": mode, "origin": [0] * (x.ndim - 1) + [1], "cval": 6.75}
                check(name, x, None, footprint=footprint, **how)
    check("maximum_filter", x, None, footprint=[[1, 0, 1]], axes=(1, 0), output=np.dtype("d"))
    check("maximum_filter", x, None, footprint=[1, 0, 1, 1], axes=0, origin=1)
    check("minimum_filter", x, None, footprint=[[1, 0, 1, 1], [0, 1, 1, 1]], axes=(1, 0), origin=(-1, 1))
    check("maximum_filter", x, None, footprint=np.ones((2, 5)), axes=(1, 0), origin=(0, 2))


def test_windows_of_any_size():
    """Along rows they are made of shorter ones, across them of blocks."""
    x = numbers(np.random.default_rng(0), (3, 260, 300), "B")
    for size in [*range(1, 40), 64, 101, 127, 128, 129, 255, 256, 257, 301]:
        for name in FILTERS[::2]:
            check(name, x[0], (size % 7 + 1, size))
            check(name, x[:, :, :70], (1, size, 1))


@pytest.mark.parametrize("size", [0, (0, 3), (5, 0)], ids=str)
def test_windows_without_elements_leave_an_axis_as_it_is(size):
    x = numbers(np.random.default_rng(0), (6, 7), "f")
    for name in ("uniform_filter", "minimum_filter", "maximum_filter"):
        check(name, x, size)


def test_fill_values_that_the_type_cannot_hold():
    x = numbers(np.random.default_rng(0), (30, 40), "B")
    for cval in (-3, 300, 6.75):
        for name in FILTERS[:2]:
            check(name, x, 5, mode="constant", cval=cval)
    check("uniform_filter", x, (4, 8), mode="constant", cval=0.5)


@pytest.mark.parametrize("name", ["minimum_filter", "maximum_filter"])
@pytest.mark.parametrize("dtype", "?bBhHiIlf")
def test_fill_values_around_footprints_have_the_type_of_the_input(name, dtype):
    x = numbers(np.random.default_rng(0), (30, 40), dtype)
    footprint = np.array([[0, 1, 1], [1, 0, 1]], bool)
    for cval in (-1.0, 300.0, 6.75) if dtype in "bBhH" else (-1.0, 6.75) if dtype in "il" else (0.3, 2.5):
        for output in (None, "d", "f"):
            check(name, x, None, footprint=footprint, mode="constant", cval=cval, output=output)


@pytest.mark.parametrize(
    "given, output",
    [("B", "f"), ("B", "h"), ("h", "d"), ("d", "f"), ("f", "B"), ("i", "b"), ("i", "f"), ("q", "f")],
)
def test_output_of_another_type(given, output):
    x = np.abs(numbers(np.random.default_rng(0), (33, 44), given) % 100)
    for name in FILTERS:
        if (given, output, name) != ("f", "B", "uniform_filter"):  # which cuts off means that are rounded
            check(name, x, (3, 11), output=np.dtype(output))


def test_windows_are_converted_by_blocks(monkeypatch):
    """Of lines of each axis, of which the last block is smaller."""
    monkeypatch.setattr(converted_windows, "BLOCK", 700)
    monkeypatch.setattr(converted_windows, "NARROWEST", 5)
    x = np.random.default_rng(0).standard_normal((9, 31, 22)) * 100
    for shape, size in ((x.shape, (3, 4, 5)), ((9, 682), (3, 11)), ((6138,), 7)):
        for name in FILTERS:
            check(name, x.reshape(shape), size, output=np.dtype("h"))
            check(name, np.asfortranarray(x.reshape(shape), "f"), size, output=np.dtype("i"))


@pytest.mark.parametrize("output", "BbIi")
def test_means_of_short_integers_wrap_around_in_other_types(output):
    for given in "hH":
        x = numbers(np.random.default_rng(0), (33, 44), given)
        check("uniform_filter", x, (3, 11), output=np.dtype(output))


def test_outputs_and_inputs_lie_anywhere():
    x = numbers(np.random.default_rng(0), (40, 50), "f")
    x.setflags(write=False)
    for name in FILTERS:
        expected = getattr(scipys, name)(x, 5)
        y = np.full((50, 40), np.nan, np.float32).T
        assert getattr(ndimage, name)(x, 5, output=y) is y
        assert np.allclose(y, expected, atol=1e-6)
        same = x.copy()
        assert getattr(ndimage, name)(same, 5, output=same) is same
        assert np.allclose(same, expected, atol=1e-6)
    for shape in ((0,), (3, 0, 4)):
        assert ndimage.uniform_filter(np.zeros(shape)).shape == shape
    check("uniform_filter", numbers(np.random.default_rng(0), (20, 30), "F"), 4, mode="constant", cval=1 - 2j)


def test_one_axis():
    x = numbers(np.random.default_rng(0), (6, 40, 3), "d")
    for name in FILTERS:
        for axis in (0, 1, -1):
            expected = getattr(scipys, f"{name}1d")(x, 5, axis, mode="mirror", origin=1)
            assert np.allclose(getattr(ndimage, f"{name}1d")(x, 5, axis, mode="mirror", origin=1), expected)
        # of one element: along a line it is computed, as SciPy casts it; in a box it is copied
        line = np.array([0.5, 1.5, 0.0])
        for call, cast in ((f"{name}1d", [False, True, False]), (name, [True, True, False])):
            for module in (ndimage, scipys):
                assert getattr(module, call)(line, 1, output=bool).tolist() == cast
        assert np.array_equal(getattr(ndimage, name)(line, 1, output="complex64"), line)
        with pytest.raises(RuntimeError, match="real dtype"):
            getattr(ndimage, f"{name}1d")(line, 1, output="complex64")


def test_means_do_not_drift():
    """Sums that run along a row keep what large elements left of themselves; SciPy's are off by 5e-3 here."""
    x = np.random.default_rng(0).standard_normal(1_000_000).astype(np.float32)
    x[1000:1010] = 1e15
    size = 1001
    sums = np.convolve(x[2000:].astype(np.float64), np.ones(size), "valid")
    for given in (x, x[:, None] * np.ones(16, np.float32)):  # along rows, and across them
        found = ndimage.uniform_filter1d(given, size, 0)
        found = found if found.ndim == 1 else found[:, 7]
        error = np.abs(found[2000 + size // 2 : -(size // 2)] - sums / size).max()
        assert error <= size * 2.0**-24 * np.abs(x[2000:]).mean() * 1.2
    x[500_000] = np.nan
    assert np.isnan(ndimage.uniform_filter1d(x, 9)).sum() == 9


@pytest.mark.parametrize(("dtype", "most"), [("int16", 512), ("uint16", 256), ("int8", 131072)])
def test_means_next_to_the_limits_of_short_integers(dtype, most):
    """The last count whose sums float32 holds, and the first that it does not."""
    rng, limits = np.random.default_rng(6), np.iinfo(dtype)
    for count in (most - 1, most, most + 1):
        for value, other in ((limits.max, -1), (limits.min, 1)):
            x = np.full((2, 700), value, dtype)
            x[rng.random(x.shape) < 1 / min(count, 300)] = int(value) + other
            check("uniform_filter1d", x, count, axis=1)
            check("uniform_filter1d", x.T.copy(), min(count, 900), axis=0)


def test_quotients_of_short_sums():
    for count in [*range(2, 258), 300]:
        found = short_quotient(count)
        assert found is not None or count > 128
        if found:
            sums = np.arange(255 * count + 1)
            assert np.array_equal(sums * found[0] >> (16 + found[1]), sums // count)


@pytest.mark.parametrize(
    "call, error",
    [
        (lambda x: ndimage.minimum_filter(x), "size or footprint"),
        (lambda x: ndimage.minimum_filter(x, footprint=np.zeros((2, 2))), "All-zero footprint"),
        (lambda x: ndimage.minimum_filter(x, footprint=[1, 0, 1]), "must match len"),
        (lambda x: ndimage.maximum_filter1d(x, 0), "incorrect filter size: size=0"),
        (lambda x: ndimage.minimum_filter(x, footprint=np.ones(3)), "length equal to input rank"),
        (lambda x: ndimage.uniform_filter(x, 4, origin=2), "origin=2 must lie between -2 and 1"),
        (lambda x: ndimage.uniform_filter(x, (3, 3, 3)), "one for each of 2 axes"),
        (lambda x: ndimage.uniform_filter(x, mode="edge"), "mode='edge' must be one of"),
        (lambda x: ndimage.uniform_filter(x, cval=1j), "must be real"),
        (lambda x: ndimage.maximum_filter(x * 1j, 3), "Complex type not supported"),
        (lambda x: ndimage.maximum_filter(x.astype(np.float16), 3), "float16"),
    ],
)
def test_errors_tell_what_would_be_valid(call, error):
    with pytest.raises((ValueError, TypeError), match=error):
        call(np.ones((4, 5)))


@pytest.mark.parametrize("name", FILTERS)
def test_windows_of_one_element_are_asked_for_nothing_else(name):
    x = np.arange(12.0).reshape(3, 4)
    for given, how in ((x[0], {"origin": -3}), (x, {"axes": (0,), "origin": 2}), (x, {"mode": "none"})):
        for output in (None, "f4", "i2"):
            check(name, given, 1, output=output, **how)
    for call in (scipys, ndimage):  # SciPy compares before it cuts off
        for given, size, axes in ((x[0], 1.5, None), (x, (1.5, 1), None), (x, (1.5,), (1,))):
            with pytest.raises(ValueError, match=r"(?i)invalid origin"):
                getattr(call, name)(given, size, origin=2, axes=axes)
        with pytest.raises(ValueError, match=r"(?i)invalid origin"):
            getattr(call, f"{name}1d")(x, 1, origin=2)
    if name != "uniform_filter":
        check(name, x[0], None, footprint=[1], origin=2)


@pytest.mark.parametrize("name", FILTERS[:2])
def test_empty_arrays_under_footprints_are_outputs_of_any_type(name):
    for output in (complex, np.float32, None):
        check(name, np.empty((0, 5)), None, footprint=[[1, 0, 1]], output=output)
    output = np.empty((0, 5), "F")
    assert getattr(ndimage, name)(np.empty((0, 5)), footprint=[[1, 0, 1]], output=output) is output
    with pytest.raises(ndimage.arguments.InvalidArgument, match="real dtype"):
        getattr(ndimage, name)(np.ones((1, 5)), footprint=[[1, 0, 1]], output=complex)


@pytest.mark.parametrize("name", FILTERS[:2])
def test_footprints_longer_than_the_periods_of_mirrors(name):
    """Against each element's window: SciPy's own walk leaves arrays of fewer elements than its margin."""
    rng = np.random.default_rng(0)
    for shape, taps, origin in (((3, 2), (12, 12), 5), ((2, 3), (11, 7), 3), ((1, 5), (9, 12), -4)):
        x, marked = rng.integers(0, 100, shape).astype(np.uint16), rng.random(taps) < 0.6
        lows = [n // 2 + origin for n in taps]
        around = [(low, n - 1 - low) for low, n in zip(lows, taps, strict=True)]
        for mode, padding in (("grid-mirror", "symmetric"), ("reflect", "symmetric"), ("mirror", "reflect")):
            windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, around, padding), taps)
            expected = (
                windows[..., marked].min(-1) if name == "minimum_filter" else windows[..., marked].max(-1)
            )
            found = getattr(ndimage, name)(x, footprint=marked, mode=mode, origin=origin)
            assert np.array_equal(found, expected)


@pytest.mark.parametrize("name", FILTERS)
def test_constant_borders_of_rows_that_are_cut_into_strips(name):
    check(name, numbers(np.random.default_rng(0), (7, 9000), "f"), 5, mode="constant", cval=2.0)


@pytest.mark.parametrize("dtype", "Bf")
def test_derivatives_in_place_are_those_of_the_input_as_it_was(dtype):
    """Of which SciPy takes all but the first of what it has overwritten."""

    def second(x, axis, output, mode, cval):
        return ndimage.correlate1d(x, [1, -2, 1], axis, output, mode, cval)

    names = ("laplace", "gaussian_laplace", "gaussian_gradient_magnitude")
    calls = [(name, (1.2,) * (name != "laplace")) for name in names]
    calls += [("generic_laplace", (second,)), ("generic_gradient_magnitude", (second,))]
    for name, given in calls:
        call = getattr(ndimage, name)
        x = numbers(np.random.default_rng(0), (13, 9, 11), dtype)
        expected = call(x.copy(), *given, mode="grid-mirror")
        assert call(x, *given, mode="grid-mirror", output=x) is x
        assert np.array_equal(x, expected)
        over = numbers(np.random.default_rng(0), (16, 9, 11), dtype)
        expected = call(over[:-3].copy(), *given)
        assert np.array_equal(call(over[:-3], *given, output=over[3:]), expected)


@pytest.mark.parametrize("char", "BhfdQ")
@pytest.mark.parametrize("mode", ["reflect", "constant", "wrap"])
def test_short_rows_some_at_a_time(char, mode):
    """Their number is no multiple of those that lie in a line, and planes end between."""
    rng = np.random.default_rng(5)
    for shape, size, axes in (
        ((301, 5), (9, 4), (0, 1)), ((2, 190, 11), (3, 17), (1, 2)), ((257, 16), (1, 11), (0, 1)),
        ((97, 3, 2), (5, 2), (0, 1)), ((43, 9), (2, 8), (1, 0)), ((4, 7, 60, 3), (3, 5), (2, 3)),
    ):  # fmt: skip
        x = rng.integers(0, 250, shape).astype(char)
        with threads_of_calls(2):
            for name in FILTERS:
                check(name, x, size, mode=mode, cval=3, axes=axes, origin=(0, -1))


@pytest.mark.parametrize("name", ["minimum_filter", "maximum_filter"])
def test_windows_around_wide_rows(name):
    """Those of many rows, whose columns are cut into strips that meet around the ends."""
    x = np.random.default_rng(6).integers(1000, 2000, (5, 200_000)).astype(np.int16)
    check(name, x if name == "minimum_filter" else -x, (9, 4), mode="wrap")


@pytest.mark.parametrize("char", "Bhf")
def test_rows_of_few_elements_turned_over(char):
    rng = np.random.default_rng(7)
    shapes = ((window_filters.MANY + 1, 3), (2, window_filters.MANY, 2, 2), (70_001, 4), (1500, 1))
    for name, shape in product(FILTERS, shapes):
        x = numbers(rng, shape, char)
        for size, axes in ((3, (-1,)), ((5, 2), (-1, 0)), ((4, 6), (0, -1))):
            check(name, x, size, axes=axes, mode="wrap")
            check(name, x, size, axes=axes, mode="constant", cval=3, origin=-1)
