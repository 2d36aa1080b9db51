"""float32 as three digits: units of pixels and of blocks, numbers of all sizes, sums that 32 bits hold."""

import numpy as np
import pytest

import convalgos as ca
from convalgos.core.layouts import laid, to_logical
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm import channel_scales
from convalgos.cpu.gemm.digit_terms import find_units
from convalgos.cpu.int8x3 import ALGORITHMS, MOST_PRODUCTS
from convalgos.cpu.reference import deviation, error_scale, reference
from convalgos.cpu.runtime import jit

(DIGITS,) = ALGORITHMS
POINT = ConvProblem.parse("n1 c70 h9 w13 k40 r1 s1 blocked16")
TAPS = ConvProblem.parse("n1 c70 h9 w13 k40 r3 s3 p1 channels_last")
PIXEL = ConvProblem.parse("n1 c70 h1 w1 k40 r1 s1 channels_last")
LARGEST = np.finfo(np.float32).max


def computed(problem, x, w):
    if reason := DIGITS.why_not(problem):
        pytest.skip(f"cpu.int8x3 {reason}")
    y = np.full(problem.array_shapes[2], np.nan, np.float32)
    DIGITS.plan(problem)(laid(x, problem.layout), w, out=y)
    return to_logical(y, problem.y_layout, problem.K)


def exact(problem, x, w):
    plain = problem.replace(layout="channels_first", y_layout="channels_first", dtype="float64")
    return reference(plain, x.astype(float), w.astype(float))


def reals(problem, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(s).astype(np.float32) for s in (problem.x_shape, problem.w_shape))


@jit.specialise
def units_of(COUNT: int) -> jit.Kernel:
    def units_of(largest: int, task: int) -> None:
        find_units(4, 16, largest, COUNT)

    return units_of


def test_digits_of_the_largest_number_fit_in_its_unit():
    """127 (2^16 + 2^8 + 1) units, and no more than twice as many as are needed."""
    of_one = [0, 1, 0x7EFEFD, 0x7EFEFE, 0x7EFEFF, 0x7FFFFF]  # digits end at the third of them
    largest = np.add.outer(np.arange(255, dtype=np.int32) << 23, np.array(of_one, np.int32)).reshape(-1)
    largest = np.concatenate((largest, [0x7F800000, 0x7FC00000, -1])).astype(np.int32)
    found = largest.copy()
    jit.launch(units_of(len(found) - 1), found.ctypes.data, 1)
    assert found[-1] == -1 and np.isnan(found[-3:-1].view(np.float32)).all()
    unit = found[:-3].view(np.float32).astype(float)
    units = np.rint(largest[:-3].view(np.float32) / unit)
    assert (units <= 127 * 0x10101).all()
    assert ((units > 127 * 0x10101 // 2) | (unit == np.finfo(np.float32).tiny)).all()


def test_each_pixel_has_a_unit_of_its_own():
    """And each filter: errors are as small beside numbers of their own size as of others."""
    x, w = reals(POINT)
    x *= np.float32(10.0) ** np.arange(-6, 7)  # columns of a map
    w *= np.float32(10.0) ** (np.arange(40) % 9 - 4).reshape(-1, 1, 1, 1)
    y, right = computed(POINT, x, w), exact(POINT, x, w)
    sizes = np.abs(right).max(axis=2, keepdims=True)  # of a filter and a column
    assert (np.abs(y - right) <= DIGITS.error_bound(POINT) * sizes).all()


def test_pixels_of_a_block_share_a_unit_where_a_kernel_has_several_taps():
    """Errors are relative to the largest pixels: beside those they keep the bound."""
    x, w = reals(TAPS)
    x[..., 6:] *= 1e4
    y, right = computed(TAPS, x, w), exact(TAPS, x, w)
    scale = error_scale(TAPS, x, w, right)
    assert deviation("float32", y, right).max() <= DIGITS.error_bound(TAPS) * scale
    small = np.abs(y - right)[..., :5].max()
    assert small <= DIGITS.error_bound(TAPS) * np.abs(right[..., 7:]).max()


@pytest.mark.parametrize("problem", [POINT, TAPS], ids=["1x1", "3x3"])
@pytest.mark.parametrize(
    ("x_size", "w_size"),
    [(1e38, 1e-3), (1e-3, 1e38), (1e38, 1e-31), (1e-18, 1e-12), (1e-30, 1), (1, 1e-30), (1e-30, 1e38)],
)
def test_numbers_of_all_sizes(problem, x_size, w_size):
    """Nothing is infinite or lost on the way to a y that float32 holds."""
    x, w = (
        values / np.abs(values).max() * np.float32(size)
        for values, size in zip(reals(problem), (x_size, w_size), strict=True)
    )
    y, right = computed(problem, x, w), exact(problem, x, w)
    assert deviation("float32", y, right).max() <= DIGITS.error_bound(problem) * np.abs(right).max()


@pytest.mark.parametrize("problem", [POINT, TAPS], ids=["1x1", "3x3"])
def test_numbers_at_both_ends(problem):
    """Zeros, denormals, of which no bits need be right, and the largest number, which meets zeros."""
    x, w = (np.zeros(shape, np.float32) for shape in (problem.x_shape, problem.w_shape))
    assert (computed(problem, x, w + 1) == 0).all() and (computed(problem, x + 1, w) == 0).all()
    x[:, ::2], w[:, 1::2] = LARGEST, LARGEST
    assert (computed(problem, x, w) == 0).all()
    x[...], w[...] = 1e-40, 1
    assert np.abs(computed(problem, x, w)).max() < 1e-36


def test_what_is_not_finite_reaches_outputs_of_its_pixel_only():
    x, w = reals(POINT)
    right = computed(POINT, x, w)
    x[0, 3, 4, 5], x[0, 69, 7, 2] = np.nan, -np.inf
    bad = np.zeros(right.shape, bool)
    bad[0, :, 4, 5] = bad[0, :, 7, 2] = True
    y = computed(POINT, x, w)
    assert np.isnan(y[bad]).all() and np.array_equal(y[~bad], right[~bad])
    w[7, 69] = 0  # sizes of channels are those of other weights
    right = computed(POINT, x, w)
    w[7, 69] = np.inf
    bad[:, 7] = True
    y = computed(POINT, x, w)
    assert np.isnan(y[:, 7]).all() and np.array_equal(y[~bad], right[~bad])


def test_with_several_taps_a_nan_reaches_its_block():
    """So `strict_nan` leaves it out."""
    x, w = reals(TAPS)
    x[0, 3, 4, 5] = np.nan
    footprint = np.zeros((9, 13), bool)
    footprint[3:6, 4:7] = True
    assert np.isnan(computed(TAPS, x, w)[0][:, footprint]).all()
    reasons = {r.id: r.why_not for r in ca.explain(TAPS, strict_nan=True).rejected}
    assert "beyond its footprint" in reasons["cpu.int8x3"]


@pytest.mark.parametrize("wide", [1, 4, 20])
def test_sums_hold_the_most_products(wide):
    """Of numbers whose third group of products is the largest one."""
    problem = ConvProblem.parse(f"n1 c{MOST_PRODUCTS} h1 w{wide} k16 r1 s1 channels_last")
    more = problem.replace(x_shape=(1, MOST_PRODUCTS + 1, 1, wide), w_shape=(16, MOST_PRODUCTS + 1, 1, 1))
    digits = np.float32(127 * 0x10101)
    x, w = (np.full(shape, digits, np.float32) for shape in (problem.x_shape, problem.w_shape))
    y, right = computed(problem, x, w), exact(problem, x, w)
    assert np.abs(y / right - 1).max() < 2e-6
    assert "at most" in DIGITS.why_not(more)


def test_numbers_of_large_spread_have_two_products_more():
    """One channel of x is larger than all others, and of each filter another one: six would err by bounds."""
    x, w = reals(POINT)
    x[:, 3] *= 40
    for i in range(80):
        w[i % 40, i % 70] *= 40
    y, right = computed(POINT, x, w), exact(POINT, x, w)
    error = np.abs(y - right).max() / error_scale(POINT, x, w, right)
    assert error <= DIGITS.error_bound(POINT)


@pytest.mark.parametrize("problem", [POINT, TAPS, PIXEL], ids=["1x1", "3x3", "one pixel"])
@pytest.mark.parametrize(("of_x", "of_w"), [(60, 60), (1e3, 1e4), (1e8, 1e8), (1e8, 0), (1e4, 1e-4)])
@pytest.mark.parametrize(("x_size", "w_size"), [(1, 1), (1e-21, 1), (1, 1e24)])
def test_channels_of_unlike_sizes(problem, of_x, of_w, x_size, w_size):
    """One channel of x and another one of w are larger than all others, or w has nothing for that of x."""
    x, w = reals(problem)
    x[:, 3] *= of_x
    w[:, 68 if of_w > 1 else 3] *= of_w
    x, w = x * np.float32(x_size), w * np.float32(w_size)
    y, right = computed(problem, x, w), exact(problem, x, w)
    error = np.abs(y - right).max() / error_scale(problem, x, w, right)
    assert error <= DIGITS.error_bound(problem)
    assert not of_w or np.isfinite(y).all()


@pytest.mark.parametrize("largest", [1, 40], ids=["alike", "of large spread"])
@pytest.mark.parametrize("text", [
    "n1 c70 h1 w1 k16 r1 s1 channels_last", "n1 c900 h1 w1 k83 r1 s1 channels_last",
    "n1 c40 h3 w3 k50 r3 s3 channels_last", "n1 c70 h3 w5 k99 r3 s3 p1 blocked16",
    "n2 c700 h1 w1 k40 r1 s1 channels_last", "n16 c130 h1 w1 k24 r1 s1 blocked16",
])  # fmt: skip
def test_few_outputs_meet_digits_of_filters_once(text, largest):
    """One pixel, or one tile of pixels; one or two vectors of filters; with and without the last group."""
    problem = ConvProblem.parse(text)
    x, w = reals(problem)
    x[:, 3], w[:, 7] = x[:, 3] * largest, w[:, 7] * largest
    y, right = computed(problem, x, w), exact(problem, x, w)
    error = np.abs(y - right).max() / error_scale(problem, x, w, right)
    assert error <= DIGITS.error_bound(problem)
    x, w = np.rint(7 * x), np.rint(7 * w)
    np.testing.assert_array_equal(computed(problem, x, w), exact(problem, x, w))


@pytest.mark.parametrize("sizes", [(1, 1.5), (1, 4.1), (1, 9), (1, 0), (1, 1e-40), (1, np.inf), (1, np.nan)])
def test_channels_that_are_alike_are_told_at_once(monkeypatch, sizes):
    """As by the whole way, which also tells those that are not."""
    largest = np.zeros((2, 1, 2, 16), np.int32)
    largest[1, 0, :, 3] = np.array(sizes, np.float32).view(np.int32)
    found = []
    for short in (channel_scales._are_alike, lambda bits: False):
        monkeypatch.setattr(channel_scales, "_are_alike", short)
        to = np.full((1, channel_scales.scale_bytes(2)), 77, np.uint8)
        factors = channel_scales.tell_scales(largest, to)
        found.append((None if factors is None else factors.tolist(), to.tobytes()))
    assert found[0] == found[1]
    assert (found[0][0] is None) == (sizes in [(1, 1.5), (1, 4.1), (1, np.inf)])
