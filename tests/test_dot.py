"""Products of short numbers: exact for integers of every type, layout, form and instruction; bfloat16."""

import ctypes

import numpy as np
import pytest
from narrow_vectors import run_on_haswell

import convalgos as ca
from convalgos import ConvProblem
from convalgos.core.machine import cache_sizes
from convalgos.core.quantization import Quantization
from convalgos.cpu.compile import code_generation
from convalgos.cpu.dot import ALGORITHMS, Dot
from convalgos.cpu.gemm import word_rows
from convalgos.cpu.gemm.word_blocking import word_blocking
from convalgos.cpu.reference import Reference, reference, reference_backward_data
from convalgos.cpu.vectors import simd
from convalgos.testing import check

BY_NAME = {a.instructions: a for a in ALGORITHMS}
PROBLEMS = {  # what of the blocking they meet
    "in place": "n2 c64 h9 w19 k40 r1 s1",
    "in place, strided": "n1 c16 h9 w66 k17 r3 s3 stride2",
    "rows": "n1 c20 h9 w69 k33 r3 s3 p1:2,0:1",
    "joined taps": "n1 c33 h4 w130 k16 r5 s4 p2",
    "flat": "n1 c24 h7 w7 k48 r3 s3 p1",
    "flat, strided": "n2 c70 h14 w13 k150 r3 s2 p1 stride2 dilation2",
    "groups": "n1 c24 h8 w20 k66 r2 s2 p1 groups2",
    "long": "n1 c5 w1100 k3 s9 p4 dilation3",
    "3-D": "n1 c9 d5 h6 w17 k18 t3 r2 s3 p1 stride2,1,1",
    "padding only": "n1 c4 h5 w1 k6 r2 s1 p1,4:0 stride2,5",
}
TYPES = (  # x, w, y, whether w has zero points
    ("uint8", "int8", "uint8", False),
    ("int8", "int8", "int32", False),
    ("int8", "uint8", "float32", True),
    ("uint8", "uint8", "int8", False),
)


def dot(name, dtype):
    algorithm = BY_NAME[name]
    reason = algorithm.engine(ConvProblem((1, 1, 1), (1, 1, 1), dtype=dtype)).missing()
    if reason:
        pytest.skip(reason)
    return algorithm


def check_exact(algorithm, problem, zero_points=False, seed=0):
    """Equal to the reference, to the last bit, with data at the ends of their ranges."""
    rng = np.random.default_rng(seed)

    def draw(shape, dtype):
        ends = np.iinfo(dtype)
        values = np.r_[ends.min, ends.max, 0, rng.integers(ends.min, ends.max + 1, 9)]
        return rng.choice(values, shape).astype(dtype)

    p = problem
    x, w = draw(p.array_shapes[0], p.dtype), draw(p.w_shape, p.w_dtype)
    zero = draw(p.K, p.w_dtype).astype("i4") if zero_points else 0
    scales = rng.uniform(0.01, 0.02, p.K) if p.scales == "per_channel" else 0.01
    quantization = Quantization(
        x_scale=0.02, x_zero_point=int(draw((), p.dtype)), w_scale=scales, w_zero_point=zero,
        y_scale=float(np.sqrt(p.gemm_k)), y_zero_point=3 if p.y_dtype in ("int8", "uint8") else 0,
    )  # fmt: skip
    bias = rng.integers(-1000, 1000, p.K).astype("i4")
    plans = [a.serve(p) for a in (Reference(), algorithm)]
    filters = [plan.prepare(w, quantization) for plan in plans]
    for activation in (None, "relu"):
        expected, got = (
            plan(x, f, bias=bias, activation=activation) for plan, f in zip(plans, filters, strict=True)
        )
        assert np.array_equal(got, expected), f"{int((got != expected).sum())} of {got.size}: {p}"


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("name", ["amx", "vnni", "pairs"])
def test_integers_are_exact(name, layout):
    algorithm = dot(name, "int8")
    for i, text in enumerate(PROBLEMS.values()):
        x, w, y, zero_points = TYPES[i % len(TYPES)]
        problem = ConvProblem.parse(text).replace(
            layout=layout, dtype=x, w_dtype=w, y_dtype=y, scales="per_channel"
        )
        check_exact(algorithm, problem, zero_points, seed=i)


def test_blocking_takes_every_form():
    """What the names of the problems say is what is met, with matrix tiles."""
    engine = BY_NAME["amx"].engine(ConvProblem((1, 1, 1), (1, 1, 1), dtype="uint8"))

    def cut(name, layout="channels_last"):
        return word_blocking(ConvProblem.parse(PROBLEMS[name]).replace(layout=layout, dtype="uint8"), engine)

    assert cut("in place").in_place and cut("in place, strided").in_place
    assert not cut("in place", "channels_first").in_place
    assert cut("joined taps").joined and not cut("rows").in_place
    assert cut("flat").flat and cut("flat, strided").flat and cut("flat, strided").phases == 2


@pytest.mark.parametrize("form", [word_rows.FLIPPED, word_rows.UNSIGNED, word_rows.SHORTS, word_rows.BRAINS])
def test_pixels_of_few_channels_become_words(form):
    """All of a row, in vectors that overlap at its end; channels that fill words, and those that do not."""
    made, read = word_rows.MADE[form], np.dtype(f"u{word_rows.READ[form]}")
    convert = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 8)(word_rows.row_converter(form, simd.lanes(4), 1))
    for channels in (1, 2, 3, 4, 5):
        x = np.random.default_rng(channels).integers(0, np.iinfo(read).max, (37, channels)).astype(read)
        words = -(-channels * made // 4)
        y = np.zeros((37, words), "u4")
        convert(x.ctypes.data, read.itemsize, x.strides[0], channels, 37, y.ctypes.data, words, 0)
        got = y.view(f"u{made}")[:, :channels]
        expected = {word_rows.FLIPPED: x ^ 128, word_rows.BRAINS: x.astype("u4") << 16}.get(form, x)
        assert np.array_equal(got, expected)


def test_outputs_of_a_block_stay_in_the_second_cache():
    """Where panels of filters write parts of the same lines in turn."""
    engine = BY_NAME["amx"].engine(ConvProblem((1, 1, 1), (1, 1, 1), dtype="uint8"))
    problem = ConvProblem.parse("n1 c3 h384 w384 k192 r3 s3 stride2 uint8 w_int8 y_uint8 channels_last")
    cut = word_blocking(problem, engine)
    assert cut.rows * cut.columns * problem.K <= cache_sizes()[1] / 4 + cut.columns * problem.K


def test_sums_beyond_16_bits_and_beyond_32():
    """The largest products over many channels; of 2**18 of them int32 wraps, as ONNX says."""
    for channels in (4096, 1 << 18):
        for name in ("amx", "vnni", "pairs"):
            if BY_NAME[name].engine(ConvProblem((1, 1, 1), (1, 1, 1), dtype="uint8")).missing():
                continue
            p = ConvProblem((1, 1, channels), (2, 1, channels), dtype="uint8", w_dtype="int8")
            x = np.full(p.x_shape, 255, np.uint8)
            w = np.stack([np.full((1, channels), v, np.int8) for v in (127, -128)])
            plan = BY_NAME[name].serve(p)
            expected = np.array([255 * 127, 255 * -128], "i8") * channels
            assert np.array_equal(plan(x, plan.prepare(w)).ravel(), expected.astype("i4"))


@pytest.mark.parametrize(
    ("name", "dtype"), [("amx", "bfloat16"), ("brain", "bfloat16"), ("fma", "bfloat16"), ("fma", "float16")]
)
def test_16_bits(name, dtype):
    algorithm = dot(name, dtype)
    for i, text in enumerate(PROBLEMS.values()):
        layout = ("channels_first", "channels_last")[(i + (dtype == "float16")) % 2]
        problem = ConvProblem.parse(text).replace(layout=layout, dtype=dtype)
        bound = algorithm.error_bound(problem)
        wide = algorithm.error_bound(problem.replace(y_dtype="float32"))  # of the sums alone
        assert wide < bound / 50
        for kind in ("integers", "reals"):
            assert check(algorithm, algorithm.computed(problem), kind) * bound < wide


def test_gradient_of_bfloat16():
    """dx by the forward pass, of phases where there is a stride, exactly on small integers."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dot("amx", "bfloat16")
    rng = np.random.default_rng(0)
    plain = ConvProblem.parse("n2 c24 h9 w14 k40 r3 s3 p1 bfloat16 backward_data")
    assert ca.plan(plain).algorithm == "cpu.dot.amx"
    for problem in (plain, plain.replace(stride=2, x_shape=(2, 24, 18, 28))):
        shapes = problem.y_shape, problem.w_shape
        dy, w = (rng.integers(-4, 5, s).astype(ml_dtypes.bfloat16) for s in shapes)
        plan = ca.plan(problem, algorithm="cpu.dot.amx")
        expected = reference_backward_data(problem, dy, w).astype(ml_dtypes.bfloat16)
        assert np.array_equal(plan(dy, plan.prepare(w)), expected)


def test_bfloat16_to_float32():
    """Sums as they are, with a bias of float32, beside those of float64."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    algorithm, rng = dot("amx", "bfloat16"), np.random.default_rng(0)
    problem = ConvProblem.parse(PROBLEMS["rows"]).replace(dtype="bfloat16", y_dtype="float32")
    x, w = (rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in (problem.x_shape, problem.w_shape))
    bias = rng.standard_normal(problem.K).astype("f4")
    plan = algorithm.serve(problem)
    y = plan(x, plan.prepare(w), bias=bias)
    expected = reference(problem.replace(dtype="float32", y_dtype="float32"), x.astype("f4"), w.astype("f4"))
    error = np.abs(y - (expected + bias[:, None, None])).max() / np.abs(expected).max()
    assert y.dtype == np.float32 and error < algorithm.error_bound(problem)


def test_nan_stays_where_it_is_read():
    """Also where channels do not fill words, and rows do not fill tiles."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    algorithm = dot("amx", "bfloat16")
    for text in ("n1 c17 h9 w9 k5 r3 s3 p1", "n1 c46 h3 w40 k5 r1 s3 p0,1"):
        for layout in ("channels_first", "channels_last"):
            problem = ConvProblem.parse(text).replace(dtype="bfloat16", layout=layout)
            x = np.ones(problem.array_shapes[0], ml_dtypes.bfloat16)
            x[(0,) * x.ndim] = np.nan
            plan = algorithm.serve(problem)
            y = plan(x, plan.prepare(np.ones(problem.w_shape, ml_dtypes.bfloat16))).astype("f4")
            y = y if layout == "channels_first" else np.moveaxis(y, -1, 1)
            met = np.zeros_like(y, bool)
            met[:, :, : 1 + problem.padding[0][0], : 1 + problem.padding[1][0]] = True
            assert np.array_equal(np.isnan(y), met)


def test_on_any_processor():
    run_on_haswell(
        """
import sys
sys.path.insert(0, "tests")
from test_dot import BY_NAME, PROBLEMS, check, check_exact
for name in ("in place", "joined taps", "flat, strided"):
    for layout in ("channels_first", "channels_last"):
        problem = ConvProblem.parse(PROBLEMS[name]).replace(layout=layout, dtype="int8", y_dtype="int8")
        check_exact(BY_NAME["pairs"], problem)
        for dtype in ("bfloat16", "float16"):
            floats = problem.replace(dtype=dtype, w_dtype=dtype, y_dtype=dtype)
            assert check(BY_NAME["fma"], BY_NAME["fma"].computed(floats), "reals") < 1
assert "amx-int8" in BY_NAME["amx"].why_not(problem) and "avx512vnni" in BY_NAME["vnni"].why_not(problem)
""",
        features="+f16c",
    )


def test_says_no_in_words():
    problem = ConvProblem.parse("n1 c8 h9 w9 k8 r3 s3")
    assert "only, not float32" in Dot("vnni").why_not(problem)
    assert "only, not bfloat16" in Dot("vnni").why_not(problem.replace(dtype="bfloat16"))
    assert code_generation.has() and not code_generation.has("no such instruction")
