"""Vector instructions on integers and bfloat16, matrix tiles, and the requantising output step."""

import ctypes

import numpy as np
import pytest

from convalgos.cpu.compile import code_generation
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.filter_sums import filter_sums
from convalgos.cpu.vectors import matrix_tiles, requantise, simd
from convalgos.cpu.vectors.instructions import Vec
from convalgos.cpu.vectors.integers import bytes_of, shorts_of, words_of

LANES = simd.lanes(4)


def run(kernel, *arguments):
    """Call a kernel by address with arrays and integers."""
    values = [a.ctypes.data if isinstance(a, np.ndarray) else a for a in arguments]
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(values))(kernel)(*values)


@simd.emitter
def sums_of_products(v: Vec, VNNI: int, a, b, y):
    """Four sums of a vector's words: 7 + u8 x s8, 7 + s16 x s16 twice, and the pair products alone."""
    i = words_of(v)
    x, w, seven = i.load(v.pointer(a)), i.load(v.pointer(b)), i.spread(v.integer(7))
    found = [i.dot4(seven, x, w), i.dot2(seven, x, w, True)] if VNNI else [seven, seven]
    found += [i.dot2(seven, x, w, False), i.pair_products(x, w)]
    for n, value in enumerate(found):
        i.store(value, v.pointer(y), n * i.lanes)


@jit.specialise
def sums_kernel(LANES, VNNI):
    def kernel(a, b, y):
        sums_of_products(4, LANES, VNNI, a, b, y)

    return kernel


def test_short_products_are_exact_at_the_corners():
    rng = np.random.default_rng(0)
    a, b = rng.choice(np.array([0, 1, 127, 128, 255], np.uint8), (2, 4 * LANES))
    b[:4], a[:4] = 128, (255, 0, 255, 128)  # -32768 pairs, too: their product is 2**30
    b[4:8], a[4:8] = (0, 128, 0, 128), (0, 128, 0, 128)
    pairs = a.view("i2").astype("i8") * b.view("i2")
    expected = (pairs.reshape(-1, 2).sum(1)).astype("i4")
    vnni = code_generation.has("avx512vnni", "avx512vl")
    y = np.zeros((4, LANES), "i4")
    run(sums_kernel(LANES, int(vnni)), a, b, y)
    assert np.array_equal(y[3], expected) and np.array_equal(y[2], expected + 7)
    if vnni:
        bytes_ = (a.astype("i4") * b.view("i1")).reshape(-1, 4).sum(1)
        assert np.array_equal(y[0], bytes_ + 7) and np.array_equal(y[1], expected + 7)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_sums_of_filters(dtype):
    """At the ends of their range, of one element, and of more than vectors and threads share evenly."""
    ends = np.iinfo(dtype)
    for shape in ((1, 1), (5, 3, 3, 7), (7, 70000)):
        w = np.random.default_rng(0).choice(np.array([ends.min, ends.max], dtype), shape)
        assert np.array_equal(filter_sums(w), w.reshape(len(w), -1).sum(1, dtype="i8"))


@simd.emitter
def brain_there_and_back(v: Vec, NATIVE: int, x, wide, y):
    """float32 of bfloat16 and, of float32, the nearest bfloat16."""
    shorts = shorts_of(v)
    v.store(shorts.brain_floats(shorts.load(v.pointer(x))), v.pointer(wide))
    floats = v.load(v.pointer(x))
    shorts.store(shorts.native_brain_of(floats) if NATIVE else shorts.brain_of(floats), v.pointer(y))


@jit.specialise
def brain_kernel(LANES, NATIVE):
    def kernel(x, wide, y):
        brain_there_and_back(4, LANES, NATIVE, x, wide, y)

    return kernel


def test_bfloat16_rounds_to_even_and_keeps_nan():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F800000, 0xFF800001, 0x7F7FFFFF, 0])
    x = np.resize(bits.astype("u4").view("f4"), LANES)
    for native in {0, int(code_generation.has("avx512bf16", "avx512vl"))}:
        wide, y = np.zeros(LANES, "f4"), np.zeros(LANES, ml_dtypes.bfloat16)
        run(brain_kernel(LANES, native), x, wide, y)
        with np.errstate(invalid="ignore"):
            expected = x.astype(ml_dtypes.bfloat16)
        assert np.array_equal(y.astype("f4"), expected.astype("f4"), equal_nan=True)
        assert np.array_equal(wide, x.view(ml_dtypes.bfloat16)[:LANES].astype("f4"), equal_nan=True)


@simd.emitter
def finish(v: Vec, sums, multiplier, step, y, count):
    by = requantise.scaling(v, v.load(v.pointer(multiplier)), step)
    words = requantise.requantised(v, words_of(v).load(v.pointer(sums)), by)
    requantise.store_bytes(v, words, v.pointer(y), bytes_of(v).mask(count))


@jit.specialise
def finish_kernel(LANES):
    def kernel(sums, multiplier, step, y, count):
        finish(4, LANES, sums, multiplier, step, y, count)

    return kernel


def test_requantised_sums_are_those_of_numpy():
    rng = np.random.default_rng(0)
    f = np.float32
    for before, after, low, high in ((0, 3, -131, 124), (5, 0, 0, 255), (0, -1, 1, 10)):
        sums = rng.integers(-2000, 2000, LANES).astype("i4")
        sums[:4] = 2**31 - 1, -(2**31), 25, 35  # and ties
        multiplier = rng.choice(f([0.1, 0.0531, 0.5]), LANES)
        step = np.array([(before, low, high, after)], requantise.STEP_FIELDS)
        y = np.full(LANES + 1, 77, "u1")
        run(finish_kernel(LANES), sums, multiplier, step, y, LANES - 1)
        v = np.clip(sums.astype(f) * multiplier + f(before), f(low), f(high))
        expected = (np.rint(v).astype("i4") + after).astype("u1")
        assert np.array_equal(y[: LANES - 1], expected[:-1]) and (y[LANES - 1 :] == 77).all()


KINDS = ("uud", "usd", "sud", "ssd", "bf16ps")


@simd.emitter
def tiles_product(v: Vec, KIND: int, a, a_stride, b, y):
    matrix_tiles.zero_tile(v, 0)
    matrix_tiles.load_tile(v, 1, v.pointer(a), a_stride)
    matrix_tiles.load_tile(v, 2, v.pointer(b), 64)
    matrix_tiles.tile_dot(v, KINDS[KIND], 0, 1, 2)
    matrix_tiles.store_tile(v, 0, v.pointer(y), 64)


@jit.specialise
def tiles_kernel(LANES, KIND):
    def kernel(shapes, a, a_stride, b, y):
        matrix_tiles.load_configuration(4, LANES, shapes)
        tiles_product(4, LANES, KIND, a, a_stride, b, y)
        matrix_tiles.release_tiles(4, LANES)

    return kernel


def test_matrix_tiles():
    if not code_generation.has("amx-int8", "amx-bf16") or not matrix_tiles.permitted():
        pytest.skip("this processor has no matrix tiles (AMX), or the system does not lend them")
    rng = np.random.default_rng(0)
    rows, words = 5, 7
    shapes = matrix_tiles.configuration([(rows, 16), (rows, words), (words, 16)])
    for kind, name in enumerate(KINDS[:4]):
        a = rng.choice([0, 1, 127, 128, 255], (rows, 40)).astype("u1").view("iu"["su".index(name[0])] + "1")
        b = (
            rng.choice([0, 1, 127, 128, 255], (words, 16, 4))
            .astype("u1")
            .view("iu"["su".index(name[1])] + "1")
        )
        y = np.full((rows + 1, 16), 77, "i4")
        run(tiles_kernel(LANES, kind), shapes, a, 40, b, y)
        products = a[:, : 4 * words].astype("i4") @ b.astype("i4").swapaxes(1, 2).reshape(-1, 16)
        assert np.array_equal(y[:rows], products) and (y[rows] == 77).all()
    a, b = rng.integers(-9, 9, (rows, 20)), rng.integers(-9, 9, (words, 16, 2))
    y = np.zeros((rows, 16), "f4")
    brains = [(v.astype("f4").view("u4") >> 16).astype("u2") for v in (a, b)]
    run(tiles_kernel(LANES, 4), shapes, brains[0], 40, brains[1], y)
    assert np.array_equal(y, a[:, : 2 * words] @ b.swapaxes(1, 2).reshape(-1, 16))
