"""`convalgos.signal` against SciPy: the same shapes, dtypes, values and errors."""

import itertools
import subprocess
import sys
import warnings

import numpy as np
import pytest
import scipy.signal
from hypothesis import given, settings
from hypothesis import strategies as st
from narrow_vectors import run_on_haswell

import convalgos as ca
from convalgos.cpu.spectral import residues
from convalgos.signal import exact_integers

pytestmark = pytest.mark.usefixtures("sizes_that_come_often")

MODES = ("full", "same", "valid")
METHODS = ("auto", "direct", "fft")
DTYPES = ("?", "i1", "u1", "i4", "i8", "u8", "f2", "f4", "f8", "c8", "c16", "g", "O")
TOLERANCES = {"e": 1e-2, "f": 1e-5, "F": 1e-5}  # relative to the largest answer; 1e-12 for all others


def array(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind in "bu":
        return rng.integers(0, 9, shape).astype(dtype)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    whole = rng.integers(-5, 6, shape)
    return (
        (whole + 1j * rng.integers(-5, 6, shape)).astype(dtype) if dtype.kind == "c" else whole.astype(dtype)
    )


def outcome(call, *arguments, **options):
    """What a call returns or raises; a warning counts as raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        # SciPy casts memory that nothing was written to, now and then, also where ours asks it
        warnings.filterwarnings("ignore", "invalid value encountered in cast", module=r"scipy\.signal")
        try:
            return call(*arguments, **options)
        except Exception as error:
            return error


def difference(name, in1, in2, *arguments, **options):
    """How the answer differs from SciPy's, or None."""
    ours = outcome(getattr(ca.signal, name), in1, in2, *arguments, **options)
    theirs = outcome(getattr(scipy.signal, name), in1, in2, *arguments, **options)
    if isinstance(theirs, Exception):
        same = type(ours) is type(theirs) and str(ours) == str(theirs)
        return None if same else f"{theirs!r} became {ours!r}"
    if isinstance(ours, Exception):
        return f"raised {ours!r}"
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"{theirs.dtype} {theirs.shape} became {ours.dtype} {ours.shape}"
    if theirs.dtype.kind in "biuO":
        return None if np.array_equal(ours, theirs) else "other integers"
    dtypes = [np.asarray(a).dtype for a in (in1, in2)]  # SciPy transforms each input in its own precision
    tolerance = max(TOLERANCES.get(d.char, 1e-12) for d in (theirs.dtype, *dtypes))
    error = np.abs(ours - theirs).max(initial=0) / max(1, np.abs(theirs).max(initial=0))
    return None if error <= tolerance else f"error {error:.1e}"


def calls(axes=(None,)):
    """(name, arguments, options) of every function in every mode."""
    for mode in MODES:
        for name, method in itertools.product(("convolve", "correlate"), METHODS):
            yield name, (mode, method), {}
        for name, a in itertools.product(("fftconvolve", "oaconvolve"), axes):
            yield name, (mode,), {"axes": a}


def differences(pairs, axes=(None,)):
    """Every difference over pairs of arrays, in words."""
    for in1, in2 in pairs:
        for name, arguments, options in calls(axes):
            if found := difference(name, in1, in2, *arguments, **options):
                inputs = f"{in1.dtype} {in1.shape}, {in2.dtype} {in2.shape}"
                yield f"{name} of {inputs}, {arguments} {options}: {found}"


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_pair_of_dtypes(dtype):
    shapes = [((8,), (4,)), ((6, 5), (3, 2))]
    pairs = [(array(s1, dtype), array(s2, d, 1)) for d in DTYPES for s1, s2 in shapes]
    assert not list(differences(pairs))


@pytest.mark.parametrize("dtypes", [("f8", "f8"), ("c16", "f4"), ("i4", "i4"), ("f4", "c8")], ids="-".join)
@pytest.mark.parametrize(
    "shapes",
    [
        [((5,), (3,)), ((3,), (5,)), ((8,), (4,)), ((4,), (8,)), ((7,), (7,))],
        [((7,), (1,)), ((1,), (7,)), ((1,), (1,)), ((1, 5), (3, 2)), ((4, 5), (1, 3)), ((1, 5), (3, 6))],
        [((6, 6), (3, 2)), ((3, 2), (6, 6)), ((6, 2), (3, 5)), ((9, 9), (9, 9)), ((70, 41), (30, 8))],
        [((5, 4, 6), (2, 3, 3)), ((2, 5, 6), (2, 2, 6)), ((3, 3, 3, 3), (2, 2, 2, 2))],
        [((), ()), ((3,), (2, 2)), ((0,), (3,)), ((3,), (0,)), ((2, 0), (1, 2))],
    ],
    ids=["1-D", "ones", "2-D", "3-D and 4-D", "invalid or empty"],
)
def test_every_kind_of_shape(shapes, dtypes):
    pairs = [(array(s1, dtypes[0]), array(s2, dtypes[1], 1)) for s1, s2 in shapes]
    assert not list(differences(pairs))


@pytest.mark.parametrize(
    ("shape1", "shape2", "axes"),
    [
        ((4, 50), (4, 7), 1),
        ((1, 50), (4, 7), 1),
        ((4, 50), (1, 7), 1),
        ((4, 7), (1, 50), [1]),
        ((1, 7), (4, 50), -1),
        ((3, 4, 50), (3, 1, 7), 2),
        ((3, 1, 50), (1, 4, 7), -1),
        ((5, 50, 3), (2, 7, 3), (0, 1)),
        ((5, 50, 1), (2, 7, 4), (1, 0)),
        ((2, 3, 4, 20), (2, 1, 4, 5), 3),
        ((2, 3, 4, 12, 6), (2, 1, 3, 5, 4), (2, 3, 4)),
        ((4, 50), (3, 7), 1),  # nothing broadcasts
        ((4, 50), (4, 7), (1, 1)),
        ((4, 50), (4, 7), ()),
        ((4, 50), (4, 7), 2),
        ((4, 50), (4, 7), 1.5),
        ((4, 50), (4, 7), "last"),
        ((4, 50), (4, 7), [[0], [1]]),
    ],
)
def test_axes_and_broadcasting(shape1, shape2, axes):
    for d1, d2 in (("f8", "f8"), ("c16", "f4"), ("i4", "c8")):
        for mode, name in itertools.product(MODES, ("fftconvolve", "oaconvolve")):
            in1, in2 = array(shape1, d1), array(shape2, d2, 1)
            assert difference(name, in1, in2, mode, axes=axes) is None, (name, mode, d1, d2)


@given(data=st.data())
@settings(max_examples=40)
def test_random_shapes(data):
    ndim = data.draw(st.integers(1, 4))
    sizes = st.lists(st.integers(1, 9), min_size=ndim, max_size=ndim)
    kinds = st.sampled_from(("i2", "f4", "f8", "c8", "c16"))
    in1, in2 = (array(data.draw(sizes), data.draw(kinds), seed) for seed in (0, 1))
    if data.draw(st.booleans()):
        in1 = in1[..., ::-1].T  # neither contiguous nor in order
        in2 = in2.T
    axes = data.draw(
        st.none() | st.lists(st.integers(-ndim, ndim - 1), min_size=1, max_size=ndim, unique=True)
    )
    assert not list(differences([(in1, in2)], (axes,)))


@pytest.mark.parametrize("arguments", [("bogus",), ("full", "bogus"), (None,), (1,), (["full"],)])
def test_invalid_arguments_raise_what_scipy_raises(arguments):
    for name in ("convolve", "correlate"):
        assert difference(name, array((8,), "f8"), array((3,), "f8"), *arguments) is None
    for name in ("fftconvolve", "oaconvolve"):
        assert difference(name, array((8,), "f8"), array((3,), "f8"), *arguments[:1]) is None


def test_lists_scalars_and_other_containers():
    assert ca.signal.convolve([1, 2, 3], [0, 1, 0.5]).tolist() == [0.0, 1.0, 2.5, 4.0, 1.5]
    assert ca.signal.correlate([1, 2, 3], [0, 1, 0.5], "same").tolist() == [2.0, 3.5, 3.0]
    assert ca.signal.convolve(2, 3) == 6
    masked = np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 0])
    assert type(ca.signal.convolve(masked, [1.0, 1.0])) is type(scipy.signal.convolve(masked, [1.0, 1.0]))


# --- integers --------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [10, 20, 24, 26, 31, 40, 62])
def test_integers_are_exact(bits):
    """Within float64's integers, beyond them, and where int64 itself wraps around."""
    rng = np.random.default_rng(bits)
    x, w = rng.integers(-(2**bits), 2**bits, 40), rng.integers(-(2**bits), 2**bits, 9)
    for a, b in ((x, w), (x.reshape(5, 8), w.reshape(3, 3))):
        for method, mode in itertools.product(("auto", "direct"), MODES):
            assert np.array_equal(
                ca.signal.convolve(a, b, mode, method), scipy.signal.convolve(a, b, mode, "direct")
            )
            assert np.array_equal(
                ca.signal.correlate(a, b, mode, method), scipy.signal.correlate(a, b, mode, "direct")
            )


@pytest.mark.parametrize(
    ("shape1", "shape2"),
    [((3000,), (900,)), ((700,), (2500,)), ((61, 47), (19, 30)), ((9, 20, 31), (8, 9, 7))],
    ids=str,
)
def test_long_integers_are_exact(monkeypatch, shape1, shape2):
    """By float64 transforms of 1 to 4 parts, and by residues modulo 1 to 5 primes."""
    rng = np.random.default_rng(0)
    cases = [(b1, b2, "i8") for b1, b2 in ((30, 23), (40, 40), (62, 10), (63, 63))]
    for bits1, bits2, dtype in [*cases, (64, 64, "u8"), (31, 31, "i4"), (16, 16, "u2")]:
        least = 0 if dtype[0] == "u" else -1
        x, w = (
            rng.integers(least << bits if least else 0, (1 << bits) - 1, s, dtype, endpoint=True)
            for s, bits in ((shape1, bits1), (shape2, bits2))
        )
        x.flat[0] = w.flat[-1] = np.iinfo(dtype).min if least else np.iinfo(dtype).max
        for mode in MODES:
            if mode == "valid" and len({a > b for a, b in zip(shape1, shape2, strict=True)}) > 1:
                continue
            theirs = scipy.signal.convolve(x, w, mode, "direct")
            for way in ("float_seconds", "ntt_seconds"):
                with monkeypatch.context() as patch:
                    patch.setattr(exact_integers, "SUM", 1.0)
                    patch.setattr(exact_integers, way, lambda *_: 0.0)
                    patch.setattr(scipy.signal, "convolve", None)
                    ours = ca.signal.convolve(x, w, mode)
                told = (bits1, bits2, dtype, mode, way)
                assert ours.dtype == theirs.dtype and np.array_equal(ours, theirs), told


@pytest.mark.parametrize("shape1, shape2", [((8057,), (5930,)), ((90, 120), (40, 33))], ids=str)
@pytest.mark.parametrize("dtype", ["i2", "u2", "i4", "u8"])
def test_largest_integers_are_exact(shape1, shape2, dtype):
    """Of one sign and size, where the errors of transforms are largest."""
    counts = scipy.signal.oaconvolve(np.ones(shape1), np.ones(shape2)).round().astype(np.int64)
    info = np.iinfo(dtype)
    for a, b in ((info.max, info.max), (info.min, info.max), (info.min + 1, info.min + 1)):
        x, w = np.full(shape1, a, dtype), np.full(shape2, b, dtype)
        exact = counts.view(np.uint64) * np.array(a * b % 2**64, np.uint64)  # of Python's integers
        values = exact_integers.largest_of(x), exact_integers.largest_of(w)
        if splits := exact_integers.parts_of_integers(x, w, values):
            y = exact_integers.by_floats(x, w, [(0, n) for n in counts.shape], splits, "fft")
            assert np.array_equal(y.view(np.uint64), exact)
        assert np.array_equal(ca.signal.convolve(x, w), exact.astype(dtype))


def test_transforms_err_less_than_their_bound():
    rng = np.random.default_rng(1)
    for n, k in ((5000, 3000), (700, 41), (20000, 999)):
        for x, w in ((np.ones(n), np.ones(k)), (rng.choice([-1.0, 1.0], n), rng.choice([-1.0, 1.0], k))):
            exact = np.convolve(x, w)
            error = abs(ca.signal.convolve(x * 3**20, w * 3**12, method="fft") - exact * 3**32).max()
            assert error < exact_integers.transform_error((n,), (k,)) * 3.0**32 * np.sqrt(n * k)


def test_residues_on_narrow_vectors():
    run_on_haswell("""
import numpy as np
from convalgos.cpu.spectral.integer_convolution import convolved_integers

rng = np.random.default_rng(0)
for n, k, bits in ((1000, 100, 5), (3000, 900, 40), (2000, 1500, 62)):
    x, w = (rng.integers(-(2**bits), 2**bits, size) for size in (n, k))
    assert np.array_equal(convolved_integers(x, w, k << 2 * bits), np.convolve(x, w))
""")


def test_every_prime_has_the_roots_that_transforms_need():
    for p, generator in zip(residues.PRIMES, residues.GENERATORS, strict=True):
        assert 2**29 < p < 2**30 and (p - 1) % 2**residues.LOG_ORDER == 0
        assert all(p % d for d in range(2, int(p**0.5) + 1)) and pow(generator, (p - 1) // 2, p) == p - 1
    with pytest.raises(ValueError, match="have more than 5 residues"):
        residues.primes_for(2**148)


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u4"])
def test_small_integers_wrap_around(dtype):
    info = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(info.min, info.max, 400, endpoint=True).astype(dtype)
    assert difference("convolve", x, x[:300], "full", "direct") is None
    assert np.array_equal(ca.signal.convolve(x, x[:300]), scipy.signal.convolve(x, x[:300], method="direct"))


def test_the_least_int64_is_no_trap():
    x = np.array([-(2**63), 5])
    assert np.array_equal(ca.signal.convolve(x, [1, 2]), scipy.signal.convolve(x, [1, 2], method="direct"))


# --- what is not finite ----------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_auto_keeps_what_is_not_finite_where_it_is(value):
    x = array((3000,), "f8")
    x[1500] = value
    y = ca.signal.convolve(x, np.ones(700), "same")
    touched = ~np.isfinite(y)
    assert touched.sum() == 700 and touched[1500]


def test_fft_warns_as_scipy_does():
    x = array((300,), "f8")
    x[0] = np.nan
    for call in (ca.signal.convolve, scipy.signal.convolve):
        with pytest.warns(RuntimeWarning, match="Consider using method='direct'"):
            call(x, np.ones(30), method="fft")


# --- on our plans ----------------------------------------------------------------------------


def test_nothing_is_left_to_scipy_that_we_can_do(monkeypatch):
    expected = {}
    for ndim, kind in itertools.product((1, 2, 3), ("i4", "f4", "f8", "c8", "c16")):
        in1, in2 = array((9, 8, 7)[:ndim], kind), array((3, 2, 4)[:ndim], kind, 1)
        expected[ndim, kind] = in1, in2, scipy.signal.convolve(in1, in2)
    for ndim, (kind, other) in itertools.product((1, 2), (("f2", "f4"), ("f8", "?"), ("f2", "i4"))):
        in1, in2 = array((9, 8)[:ndim], kind), array((3, 2)[:ndim], other, 1)
        expected[ndim, kind, other] = in1, in2, scipy.signal.convolve(in1, in2)
    halves = array((9,), "f2"), array((3,), "f2", 1)
    expected["halves"] = *halves, scipy.signal.fftconvolve(*halves)

    def refuse(*arguments, **options):
        raise AssertionError("went to SciPy")

    for name in ca.signal.__all__:
        monkeypatch.setattr(scipy.signal, name, refuse)
    for in1, in2, answer in expected.values():
        for name, arguments, options in calls():
            y = getattr(ca.signal, name)(in1, in2, *arguments, **options)
            if name != "correlate" and arguments[0] == "full":
                tolerance = 1e-3 if in2.dtype == np.float16 else 1e-4
                assert np.abs(y - answer).max() < tolerance * np.abs(answer).max()
    assert ca.signal.convolve(np.ones((3,) * 4), np.ones((2,) * 4)).max() == 16
    with pytest.raises(AssertionError, match="went to SciPy"):
        ca.signal.convolve(np.ones(3, "g"), np.ones(2, "g"))


@pytest.mark.parametrize("dtype", ["i1", "i8", "f4", "f8", "c8", "c16"])
def test_short_signals_need_no_plan(monkeypatch, dtype):
    """Sorting 10 by 3 into a problem took 40 to 54 us; SciPy takes 11."""
    monkeypatch.setattr(ca.signal.problems, "signal_plan", lambda *arguments: pytest.fail("made a plan"))
    shapes = [((10,), (3,)), ((3,), (10,)), ((100,), (31,)), ((7,), (7,)), ((900,), (20,)), ((10, 9), (3, 2))]
    for s1, s2 in shapes:
        in1, in2 = array(s1, dtype), array(s2, dtype, 1)
        for name, arguments, options in calls():
            if "fft" not in arguments:
                assert difference(name, in1, in2, *arguments, **options) is None
    assert np.array_equal(ca.signal.convolve([1, 2, 3], (0, 1, 0.5)), [0, 1, 2.5, 4, 1.5])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("shapes", [((40,), (7,)), ((4000,), (30,)), ((9, 8), (3, 2))], ids=str)
@pytest.mark.parametrize("where", ["in1", "in2", "in1, the shorter one"])
def test_signals_spread_what_is_not_finite_as_scipy_does(shapes, where, bad):
    first, second = shapes if "shorter" not in where else shapes[::-1]
    in1, in2 = array(first, "f8"), array(second, "f8", 1)
    (in2 if where == "in2" else in1).flat[3] = bad
    for name, arguments, options in calls():
        if "fft" in arguments or name == "oaconvolve":  # whose blocks are SciPy's own
            continue
        with np.errstate(all="ignore"):
            ours, theirs = (
                getattr(m, name)(in1, in2, *arguments, **options) for m in (ca.signal, scipy.signal)
            )
        same = np.isfinite(ours) == np.isfinite(theirs)
        assert same.all(), f"{name} {arguments}"
        assert np.allclose(ours[np.isfinite(ours)], theirs[np.isfinite(theirs)]), f"{name} {arguments}"


def test_plans_are_kept_until_they_are_forgotten():
    x, w = array((40000,), "f8"), array((500,), "f8", 1)
    before = ca.signal.convolve(x, w)
    assert len(ca.signal.problems.plans) > 0 and ca.signal.problems.plans.nbytes > 0
    ca.forget_plans()
    assert len(ca.signal.problems.plans) == 0 == ca.signal.problems.plans.nbytes
    assert np.array_equal(ca.signal.convolve(x, w), before)


def test_methods_restrict_the_algorithms():
    shapes = (1, 1, 4000), (1, 1, 501), ((500, 500),), 1, "float64"
    assert ca.signal.problems.signal_plan(*shapes, "fft", True).algorithm.startswith("cpu.fft")
    for method, finite in (("direct", True), ("auto", False)):
        chosen = ca.signal.problems.signal_plan(*shapes, method, finite).algorithm
        assert chosen.split(".")[1] in ("direct", "depthwise", "im2col")


def test_columns_of_wide_maps_have_a_plan():
    """Their blocks are smaller or larger than those that transforms are fast for, and none lies between."""
    assert ca.signal.problems.signal_plan(
        (1, 1, 100, 10000), (1, 1, 21, 1), ((10, 10), (0, 0)), 1, "float64", "auto", True
    )


def test_inputs_are_not_written():
    x, w = array((30, 20), "c16"), array((5, 4), "f8", 1)
    x.flags.writeable = w.flags.writeable = False
    before = x.copy(), w.copy()
    for name, arguments, options in calls():
        y = getattr(ca.signal, name)(x, w, *arguments, **options)
        assert not np.may_share_memory(y, x) and y.flags.writeable and y.flags.c_contiguous
    assert np.array_equal(x, before[0]) and np.array_equal(w, before[1])


def test_scipy_loads_only_when_asked_for():
    code = "import sys, convalgos; assert 'scipy.signal' not in sys.modules; convalgos.signal.convolve"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("dtype", "fD")
def test_lines_as_long_as_the_filter(dtype):
    """One output for each, of sums that no plan takes, and of longer ones."""
    rng = np.random.default_rng(0)
    for shape, window, axes in (
        ((4, 6, 9), (1, 6, 9), [1]),
        ((1, 6, 9), (4, 6, 9), 1),
        ((4, 6, 9), (4, 6, 1), [0, 1]),
        ((2, 700), (2, 700), 1),
    ):
        x, w = (rng.standard_normal(s).astype(dtype) for s in (shape, window))
        expected = scipy.signal.fftconvolve(x, w, "valid", axes=axes)
        y = np.full_like(expected, np.nan)
        assert ca.signal.fftconvolve(x, w, "valid", axes=axes, out=y) is y
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("types", ["ff", "dD", "Bh", "qq"])
def test_dimensions_of_many_outputs_need_not_be_the_last(types):
    rng = np.random.default_rng(0)
    for shape, window in (((105, 8), (30, 8)), ((30, 8), (105, 8)), ((60, 2, 11), (30, 2, 10))):
        x, w = ((9 * rng.standard_normal(s)).astype(c) for s, c in zip((shape, window), types, strict=True))
        for name, mode in (("convolve", "valid"), ("correlate", "valid"), ("convolve", "full")):
            expected = getattr(scipy.signal, name)(x, w, mode, "direct")
            y = np.zeros_like(expected)
            assert getattr(ca.signal, name)(x, w, mode, out=y) is y
            off = np.abs(y - expected).max()
            assert off <= (0 if expected.dtype.kind in "iu" else 1e-5 * np.abs(expected).max())
