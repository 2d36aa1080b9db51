"""Shapes of signals for which `convalgos.signal` takes ways of their own, against SciPy's."""

import itertools

import numpy as np
import pytest
import scipy.signal

import convalgos as ca
from convalgos.core.plan_cache import forget_all_plans
from convalgos.cpu.filtering.column_rates import ColumnRates, are_columns
from convalgos.cpu.filtering.decimated_sums import DecimatedSums
from convalgos.cpu.filtering.small_rates import SmallRates
from convalgos.signal import choosing, extensions, small_calls, small_lines, small_resampling

pytestmark = pytest.mark.usefixtures("sizes_that_come_often")

MODES = ("full", "same", "valid")
ALIKE = [  # shapes that are transformed whole
    ("D", (9000,), "D", (11000,)),
    ("F", (9000,), "F", (2500,)),
    ("f", (110, 90), "f", (90, 101)),
    ("D", (130, 60), "d", (80, 61)),
    ("D", (150, 140), "D", (40, 30)),
    ("d", (40, 12, 9), "d", (31, 10, 8)),
    ("d", (5, 6, 17, 4), "f", (4, 3, 5, 2)),
]
SINGLE = [  # one tap of many elements, and last axes of one element
    ("d", (5000,), "d", (1,)),
    ("h", (70, 70), "h", (1, 1)),
    ("F", (20, 20, 20), "d", (1, 1, 1)),
    ("d", (6, 300, 1), "d", (2, 3, 1)),
    ("F", (400, 1), "F", (7, 1)),
    ("i", (30, 1, 1), "i", (4, 1, 1)),
]


def array(shape, char, seed):
    rng = np.random.default_rng(seed)
    if np.dtype(char).kind == "i":
        return rng.integers(-99, 99, shape).astype(char)
    values = rng.standard_normal(shape)
    return (values + 1j * rng.standard_normal(shape) if char in "FD" else values).astype(char)


def check(y, theirs, *told):
    assert (y.shape, y.dtype) == (theirs.shape, theirs.dtype), told
    if theirs.dtype.kind == "i":
        assert np.array_equal(y, theirs), told
    else:
        bound = 2e-5 if np.result_type(y, np.float32).char in "fF" else 1e-11
        error = abs(y - theirs).max(initial=0) / abs(theirs).max(initial=1)
        assert error <= bound, (error, *told)


@pytest.mark.parametrize("of_x, x_shape, of_w, w_shape", ALIKE + SINGLE)
def test_alike_and_single_arrays(of_x, x_shape, of_w, w_shape):
    x, w = array(x_shape, of_x, 0), array(w_shape, of_w, 1)
    for name, (one, two), mode in itertools.product(("convolve", "correlate"), ((x, w), (w, x)), MODES):
        if mode == "valid" and any(n < k for n, k in zip(x_shape, w_shape, strict=True)):
            continue
        for method in ("auto", "fft"):
            y = getattr(ca.signal, name)(one, two, mode, method)
            given = one, two
            if method == "auto":  # sums in the wider type, where SciPy transforms each array in its own
                if np.array_equal(y, getattr(scipy.signal, name)(*given, mode)):
                    continue  # four axes are left to SciPy, where vectors are narrow
                given = tuple(a.astype(np.result_type(one, two)) for a in given)
            theirs = getattr(scipy.signal, name)(*given, mode, "direct" if of_x in "hi" else "fft")
            check(y, theirs.astype(np.result_type(x, w)), name, mode, method)


@pytest.mark.parametrize("axes", [0, 1])
def test_groups_of_like_signals(axes):
    x, w = array((60, 50), "D", 0), array((60, 50), "d", 1)
    for a, mode in itertools.product((x, x.real), MODES):
        y, theirs = (m.fftconvolve(a, w, mode, axes=axes) for m in (ca.signal, scipy.signal))
        check(y, theirs, mode)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
@pytest.mark.parametrize("taps", [2, 5, 30])
def test_states_of_several_axes(axis, taps):
    """What the filter holds is given for each line or for all, in the type of the signals or another one."""
    x, b = array((7, 6, 9), "f", 0).swapaxes(0, 1), array((taps,), "f", 1)
    whole = [taps - 1 if i == axis % 3 else n for i, n in enumerate(x.shape)]
    shared = [taps - 1 if i == axis % 3 else 1 for i in range(3)]
    for shape, char in itertools.product((whole, shared), "fdD"):
        for a in (1, 2.5, [np.float32(0.5)]):
            zi = array(shape, char, 2)
            for y, theirs in zip(
                *(m.lfilter(b, a, x, axis, zi) for m in (ca.signal, scipy.signal)), strict=True
            ):
                check(y, theirs, shape, char, a)
    wrong = [n + 1 for n in whole]
    with pytest.raises(ValueError):
        ca.signal.lfilter(b, 1, x, axis, array(wrong, "f", 2))


@pytest.mark.parametrize("mode", extensions.MIXED)
def test_signals_continued_as_only_scipy_does(mode, monkeypatch):
    """Short ones, mirrored again and again, too; by the compiled call, and beside a plan."""
    rng, theirs = np.random.default_rng(3), scipy.signal.upfirdn
    monkeypatch.setattr(scipy.signal, "upfirdn", None)
    for most in (small_resampling.BYTES_OF_RATES, 0):
        monkeypatch.setattr(small_resampling, "BYTES_OF_RATES", most)
        small_calls.known_calls.clear()
        for shape, axis in itertools.product(((2,), (23,), (3, 20), (2, 3, 5), (2, 3, 2, 4)), (0, -1)):
            for chars, (up, down) in itertools.product(
                ("dd", "ff", "fF", "DD", "lh"), ((1, 1), (3, 2), (2, 5))
            ):
                h, x = array((int(rng.integers(1, 40)),), chars[0], 1), array(shape, chars[1], 2)
                if most == 0 and chars in ("fF", "DD") and h.size <= 20 * up:
                    continue  # which only the compiled call takes
                y = ca.signal.upfirdn(h, x, up, down, axis, mode)
                check(y, theirs(h, x, up, down, axis, mode), shape, chars, up, down, h.size)


def test_what_is_not_finite_reaches_only_what_reads_it():
    """A sample that no sum beyond the ends takes does not spread there."""
    x = np.arange(1.0, 20.0)
    x[7] = np.inf
    for mode in extensions.MIXED:
        y, theirs = (m.upfirdn([1.0, 2.0, 3.0], x, 1, 1, mode=mode) for m in (ca.signal, scipy.signal))
        assert np.array_equal(np.isfinite(y), np.isfinite(theirs)), mode


@pytest.mark.parametrize("mode", sorted({*extensions.MIXED} - {"antireflect"}))
def test_single_samples_that_are_continued(mode):
    """SciPy has no answer of its own for those that should be smooth: it reads what lies behind them."""
    known = "edge" if mode == "smooth" else mode
    for shape, rates in itertools.product(((1,), (3, 1), (1, 4, 2)), ((1, 1), (2, 10), (3, 2))):
        axis = 1 if len(shape) == 2 else 0
        h, x = array((6,), "d", 1), array(shape, "f", 2)
        with np.errstate(all="ignore"):
            y = ca.signal.upfirdn(h, x, *rates, axis, mode)
            theirs = scipy.signal.upfirdn(h, x, *rates, axis, known)
        assert y.dtype == theirs.dtype and np.allclose(y, theirs, equal_nan=True), (shape, rates)


@pytest.mark.parametrize("axis", range(-4, 4))
def test_rates_along_axes_of_many(axis):
    for shape in ((3, 4, 2, 5), (1, 6, 1, 1), (2, 1, 3, 7), (6, 4, 5), (5, 9), (11,)):
        if not -len(shape) <= axis < len(shape):
            continue
        for chars, rates in itertools.product(("dd", "fF", "dB"), ((1, 1), (3, 2), (2, 5), (1, 3), (2, 6))):
            x = array(shape, chars[1], 2)
            for mode, taps in itertools.product(("constant", "symmetric"), (1, 2, 9)):
                h = array((taps,), chars[0], 1)
                y, theirs = (m.upfirdn(h, x, *rates, axis, mode) for m in (ca.signal, scipy.signal))
                check(y, theirs, shape, chars, rates, mode)
                assert y.flags.c_contiguous


@pytest.mark.parametrize("way", [DecimatedSums, SmallRates, ColumnRates])
def test_samples_far_apart(way, monkeypatch):
    """By dot products, whole phases and columns, of lines that lie side by side or not, and of long ones."""
    asked, fastest_way = set(), small_resampling.fastest_way

    def chosen(rates):
        of_rates = way if way is not ColumnRates or are_columns(rates) else fastest_way(rates)
        asked.add(of_rates)
        return of_rates

    monkeypatch.setattr(small_resampling, "fastest_way", chosen)
    small_calls.known_calls.clear()
    for shape, axis in itertools.product(((61,), (5, 40), (40, 6), (3, 30, 2)), (0, -1)):
        for chars, rates in itertools.product(("ff", "DD", "dD"), ((1, 9), (2, 37), (5, 3))):
            whole = array((*shape[:-1], 2 * shape[-1]), chars[1], 2)
            for x, taps in itertools.product((whole, whole[..., ::-2], whole[..., 3:]), (1, 7, 90)):
                h = array((taps,), chars[0], 1)
                for mode in ("constant", "wrap", "line"):
                    if x.shape[axis] < 2:
                        continue
                    y, theirs = (m.upfirdn(h, x, *rates, axis, mode) for m in (ca.signal, scipy.signal))
                    check(y, theirs, x.shape, axis, chars, rates, taps, mode)
    assert way in asked


@pytest.mark.parametrize("way", [DecimatedSums, SmallRates, ColumnRates, None])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_rates_of_arrays_in_any_order(order, way, monkeypatch):
    """Planes, lines and samples of any strides; results are C-contiguous."""
    fastest_way = small_resampling.fastest_way
    if way is not None:
        possible = are_columns if way is ColumnRates else bool
        monkeypatch.setattr(
            small_resampling, "fastest_way", lambda rates: way if possible(rates) else fastest_way(rates)
        )
    small_calls.known_calls.clear()
    shape = (11, 19, 43)
    for chars, rates in itertools.product(("ff", "dD", "FF"), ((1, 7), (3, 2), (5, 31), (1, 1))):
        x = array(tuple(shape[i] for i in order), chars[1], 2).transpose(np.argsort(order))
        for axis, mode in itertools.product(range(3), ("constant", "reflect", "wrap", "smooth")):
            h = array((9,), chars[0], 1)
            y, theirs = (m.upfirdn(h, x, *rates, axis, mode) for m in (ca.signal, scipy.signal))
            check(y, theirs, axis, chars, rates, mode)
            assert y.flags.c_contiguous
    assert all(small_calls.known_calls.values())


@pytest.mark.parametrize("step", [1, 2])
def test_few_samples_of_a_long_signal(step):
    x, h = array(((1 << 20) * step,), "d", 1)[::step], array((700,), "d", 2)
    for rates, mode in itertools.product(((1, 5000), (3, 7001)), ("constant", "symmetric")):
        y, theirs = (m.upfirdn(h, x, *rates, mode=mode) for m in (ca.signal, scipy.signal))
        check(y, theirs, rates, mode)


@pytest.mark.parametrize("boundary", ["wrap", "symm"])
def test_filters_longer_than_images(boundary):
    """Several times as long along either axis; of one tap, and of types that a sum of taps may leave."""
    shapes = (
        ((2, 700), (9, 3)),
        ((700, 3), (2, 20)),
        ((1, 900), (5, 1)),
        ((3, 80), (17, 300)),
        ((40, 90), (1, 1)),
    )
    for (x_shape, w_shape), chars in itertools.product(shapes, ("dd", "fD", "ib")):
        x, w = array(x_shape, chars[0], 1), array(w_shape, chars[1], 2)
        for name, mode in itertools.product(("convolve2d", "correlate2d"), ("full", "same")):
            small_calls.known_calls.clear()
            y, theirs = (getattr(m, name)(x, w, mode, boundary) for m in (ca.signal, scipy.signal))
            check(y, theirs, x_shape, w_shape, chars, name, mode)
    x, w = array((2, 700), "d", 1), array((9, 30), "d", 2)
    x[1, 5] = np.inf
    y, theirs = (m.convolve2d(x, w, "same", boundary) for m in (ca.signal, scipy.signal))
    assert np.array_equal(np.isfinite(y), np.isfinite(theirs))


def test_large_integers_of_many_axes():
    """Which are convolved along some of them only, or along all."""
    rng = np.random.default_rng(4)
    shapes = (((20, 6, 13, 5), (1, 6, 6, 1)), ((9, 8, 7, 6), (2, 2, 2, 2)), ((30, 5, 4, 1), (1, 1, 1, 6)))
    for (x_shape, w_shape), char in itertools.product(shapes, "IiLh"):
        most = min(np.iinfo(char).max, 1 << 40)
        x, w = (rng.integers(0, most, s, endpoint=True).astype(char) for s in (x_shape, w_shape))
        for one, two in ((x, w), (w, x)):
            for mode in MODES if all(n >= k for n, k in zip(x_shape, w_shape, strict=True)) else MODES[:2]:
                y, theirs = (m.convolve(one, two, mode, "direct") for m in (ca.signal, scipy.signal))
                check(y, theirs.astype(char), x_shape, char, mode)
                if 1 in w_shape:  # else SciPy's choice may overflow
                    check(ca.signal.convolve(one, two, mode), theirs.astype(char), x_shape, char, mode)


@pytest.mark.parametrize("mode", ["reflect", "antireflect"])
def test_one_sample_that_is_mirrored_goes_on_as_it_is(mode):
    for shape in ((3, 1), (3, 2, 2, 1)):
        y = ca.signal.upfirdn([1.0, 1.0], np.ones(shape), 1, 1, mode=mode)
        assert y.shape == (*shape[:-1], 2) and (y == 2).all()


def test_the_line_through_one_sample_is_none():
    for chars, (up, down), taps in itertools.product(("dd", "fF", "Dd"), ((1, 1), (3, 2)), (1, 2, 7)):
        h, x = array((taps,), chars[0], 1), array((2, 1), chars[1], 2)
        y, theirs = (m.upfirdn(h, x, up, down, mode="line") for m in (ca.signal, scipy.signal))
        assert y.dtype == theirs.dtype and np.allclose(y, theirs, equal_nan=True), (chars, up, taps)


@pytest.mark.parametrize("mode", MODES)
def test_lags_of_all_lengths(mode):
    for sizes in itertools.product((0, 1, 2, 5, 8, 13), repeat=2):
        y, theirs = (m.correlation_lags(*sizes, mode) for m in (ca.signal, scipy.signal))
        assert y.dtype == theirs.dtype and np.array_equal(y, theirs), sizes


def test_lags_of_other_modes_are_refused():
    with pytest.raises(ValueError, match="Mode other is invalid"):
        ca.signal.correlation_lags(3, 2, "other")


@pytest.mark.parametrize("mode", MODES)
def test_methods_of_integers_are_scipys(mode):
    """By their largest sum, of which 2**52 is one too large, and else by shapes; asked for twice."""
    for n, k, largest in (
        (50, 9, 3),
        (100_000, 20_000, 3),
        (64, 4, 2**25),
        (64, 4, 2**25 - 1),
        (64, 4, -(2**26)),
    ):
        for char in "lihB":
            info = np.iinfo(char)
            x, w = np.zeros(n, char), np.zeros(k, char)
            x[3], w[1] = (min(max(largest, info.min), info.max),) * 2
            for _ in range(2):
                given = (x, w, mode), (w, x, mode)
                for arrays in given[: 1 if mode == "valid" else 2]:
                    y, theirs = (m.choose_conv_method(*arrays) for m in (ca.signal, scipy.signal))
                    assert y == theirs, (n, k, largest, char)


@pytest.mark.parametrize("chars", ["??", "B?", "ee"])
def test_methods_of_booleans_and_halves_are_scipys(chars):
    for shapes in (((300, 200), (90, 80)), ((5,), (3,)), ((3,), (5,)), ((2, 3), (3, 2))):
        x, w = (np.ones(shape, char) for shape, char in zip(shapes, chars, strict=True))
        for mode in ("full", "same"):
            for _ in range(2):
                y, theirs = (m.choose_conv_method(x, w, mode) for m in (ca.signal, scipy.signal))
                assert y == theirs, (shapes, mode)


def test_methods_are_kept_until_plans_are_forgotten():
    x, w = np.ones((30, 4)), np.ones((3, 9))  # neither is inside the other, and SciPy is asked
    for _ in range(2):
        assert ca.signal.choose_conv_method(x, w, "valid") == scipy.signal.choose_conv_method(x, w, "valid")
    assert choosing._known
    forget_all_plans()
    assert not choosing._known
    for _ in range(2):
        with pytest.raises(ValueError):
            ca.signal.choose_conv_method(x, w, "other")


@pytest.mark.parametrize("char", "fdFD")
def test_states_behind_long_signals(char, monkeypatch):
    """By the compiled call, by NumPy's loop, and by a plan."""
    monkeypatch.setattr(small_lines, "LONG_BARE", 3000)
    for n, k in ((5000, 2), (2000, 3), (518, 580), (9000, 200)):
        b, x, zi = array((k,), char, 0), array((n,), char, 1), array((k - 1,), char, 2)
        ours, theirs = (m.lfilter(b, 2.0, x, zi=zi) for m in (ca.signal, scipy.signal))
        for y, wanted in zip(ours, theirs, strict=True):
            check(y, wanted, n, k)


@pytest.mark.parametrize("name", ["convolve2d", "correlate2d"])
def test_images_inside_filters(name):
    """In mode "valid" the larger array is the image, whichever comes first; SciPy turns correlations then."""
    for char, other in itertools.product("dFi", "dFi"):
        for shape, k in (((3, 5), (4, 5)), ((1, 6), (2, 50)), ((2, 2), (9, 40)), ((7, 7), (7, 7))):
            x, w = array(shape, char, 0), array(k, other, 1)
            for boundary, fill in (("fill", 0), ("fill", 3), ("wrap", 0), ("symm", 0)):
                y, theirs = (
                    getattr(m, name)(x, w, "valid", boundary, fill) for m in (ca.signal, scipy.signal)
                )
                check(y, theirs, char, other, shape, k)


def test_many_axes():
    x, w = array((3, 4, 5, 6), "d", 0), array((2, 3, 2, 3), "F", 1)
    for name, mode in itertools.product(("convolve", "correlate"), MODES):
        y = getattr(ca.signal, name)(x, w, mode)
        check(y, getattr(scipy.signal, name)(x, w.astype("D"), mode), name, mode)
    with pytest.raises(ValueError):
        ca.signal.convolve(x, w[0], "full")


@pytest.mark.parametrize("types", ["ff", "dd", "fi", "fd", "FF", "fD"])
def test_axes_of_single_elements_do_not_matter(types):
    rng = np.random.default_rng(5)
    for n, k in ((300, 7), (9000, 33), (70_000, 20)):
        x, w = (rng.standard_normal(s) * 9 for s in (n, k))
        x, w = (a.astype(char) for a, char in zip((x, w), types, strict=True))
        for mode in ("full", "same", "valid"):
            for shape, axes in (((1, -1), None), ((1, -1), [0, 1]), ((-1, 1), 0), ((1, -1, 1), [2, 1])):
                for _ in range(4):  # until the size is known
                    y = ca.signal.fftconvolve(x.reshape(shape), w.reshape(shape), mode, axes=axes)
                wanted = scipy.signal.fftconvolve(x.astype("D"), w, mode).reshape(shape)
                assert y.shape == wanted.shape and y.dtype == np.result_type(*types, "f")
                bound = 4e-6 if y.dtype.char in "fF" else 1e-12
                assert abs(y - wanted).max() <= bound * abs(wanted).max()


@pytest.mark.parametrize("char", "fdFD")
@pytest.mark.parametrize("width", [2, 3, 5])
def test_few_taps_along_the_columns_of_tall_arrays(char, width):
    rng = np.random.default_rng(width)
    whole = (rng.standard_normal((60_000, width)) - 1j * (char in "FD")).astype(char)
    w = rng.standard_normal((9, 1)).astype(char)
    for x in (whole, whole[::-1, ::-1], np.asfortranarray(whole)):
        for mode in ("full", "same", "valid"):
            y = ca.signal.fftconvolve(x, w, mode, axes=0)
            wanted = scipy.signal.fftconvolve(x.astype("D"), w, mode, axes=0)
            assert y.shape == wanted.shape and y.dtype == char
            assert abs(y - wanted).max() <= (4e-6 if char in "fF" else 1e-12) * abs(wanted).max()


@pytest.mark.parametrize("types", ["??", "?H", "ee", "f?"])
def test_products_along_axes_of_single_elements_keep_their_type(types):
    x, w = array((1, 15, 1), types[0], 0), array((1, 1, 1), types[1], 1)
    for name, mode in itertools.product(("fftconvolve", "oaconvolve"), ("full", "same", "valid")):
        for axes in (None, [1, 2], [-2], [1, -3, 2]):
            y, wanted = (getattr(m, name)(x, w, mode, axes) for m in (ca.signal, scipy.signal))
            assert y.dtype == wanted.dtype and y.shape == wanted.shape and np.allclose(y, wanted, rtol=1e-3)


@pytest.mark.parametrize("char", "fdFD")
@pytest.mark.parametrize(
    "shapes", [((8, 7, 7, 4), (2, 2, 3, 2)), ((9, 8, 7, 5), (7, 8, 6, 5)), ((3, 2, 4, 3, 2), (2,) * 5)]
)
def test_transforms_along_more_axes_than_plans_have(shapes, char):
    rng = np.random.default_rng(5)
    x, w = (rng.standard_normal(shape).astype(char) for shape in shapes)
    for mode in ("full", "same", "valid"):
        for name in ("convolve", "correlate"):
            ours, theirs = (getattr(m.signal, name)(x, w, mode, "fft") for m in (ca, scipy))
            assert ours.dtype == theirs.dtype
            np.testing.assert_allclose(
                ours, theirs, atol=(1e-4 if char in "fF" else 1e-12) * abs(theirs).max()
            )
    x.flat[5] = np.nan
    with pytest.warns(RuntimeWarning, match="NAN"):
        y = ca.signal.convolve(x, w, "full", "fft")
    assert np.isnan(y).all()
