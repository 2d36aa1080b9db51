"""The problem: what is refused, the text form, sizes and work."""

import math
import os
import pickle
import re
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convalgos.core.element_types import INTEGERS, SCALES
from convalgos.core.problem import COMPUTE_DTYPES, DIRECTIONS, DTYPES, LAYOUTS, MODES, ConvProblem
from convalgos.core.taps import taps_meeting, taps_met

X, W = (2, 4, 9, 8), (6, 4, 3, 3)

INVALID = [  # what is changed from a valid problem, and the name that the message must hold
    ({"x_shape": 5}, "x_shape=5"),
    ({"x_shape": "nchw"}, "x_shape='nchw'"),
    ({"x_shape": (2, 4)}, "x_shape=(2, 4)"),
    ({"x_shape": (1, 1, 1, 1, 1, 1)}, "x_shape=(1, 1, 1, 1, 1, 1)"),
    ({"x_shape": (2, 4, -1, 8)}, "x_shape=-1"),
    ({"x_shape": (2, 4, 9.0, 8)}, "x_shape=9.0"),
    ({"x_shape": (2, 4, 2, 8)}, "x_shape=(2, 4, 2, 8)"),
    ({"w_shape": None}, "w_shape=None"),
    ({"w_shape": (6, 4, 3)}, "w_shape=(6, 4, 3)"),
    ({"w_shape": (6, 4, 0, 3)}, "w_shape=(6, 4, 0, 3)"),
    ({"w_shape": (6, 5, 3, 3)}, "w_shape=(6, 5, 3, 3)"),
    ({"w_shape": (6, 4, 10, 3)}, "padding=((0, 0), (0, 0))"),
    ({"stride": 0}, "stride=0"),
    ({"stride": -1}, "stride=-1"),
    ({"stride": 1.5}, "stride=1.5"),
    ({"stride": True}, "stride=True"),
    ({"stride": "2"}, "stride='2'"),
    ({"stride": (1, 2, 1)}, "stride=(1, 2, 1)"),
    ({"stride": (1, 0)}, "stride=0"),
    ({"stride": None}, "stride=None"),
    ({"stride": np.array(1.5)}, "stride=array(1.5)"),
    ({"dilation": 0}, "dilation=0"),
    ({"dilation": (2,)}, "dilation=(2,)"),
    ({"dilation": 5}, "padding=((0, 0), (0, 0))"),
    ({"padding": -1}, "padding=-1"),
    ({"padding": "some"}, "padding='some'"),
    ({"padding": (1,)}, "padding=(1,)"),
    ({"padding": ((1, 2, 3), 1)}, "padding=((1, 2, 3), 1)"),
    ({"padding": ((1, -2), 1)}, "padding=-2"),
    ({"padding": ("same", 1)}, "padding='same'"),
    ({"padding": None}, "padding=None"),
    ({"groups": 0}, "groups=0"),
    ({"groups": 3}, "groups=3 must divide the C=4"),
    ({"groups": 4, "w_shape": (6, 1, 3, 3)}, "groups=4 must divide the K=6"),
    ({"groups": 2}, "w_shape=(6, 4, 3, 3)"),
    ({"groups": "2"}, "groups='2'"),
    ({"mode": "flip"}, "mode='flip'"),
    ({"mode": None}, "mode=None"),
    ({"layout": "NHWC"}, "layout='NHWC'"),
    ({"dtype": "int32"}, "dtype='int32'"),
    ({"dtype": np.complex64}, "dtype='complex64'"),
    ({"dtype": 7}, "dtype=7"),
    ({"direction": "backward"}, "direction='backward'"),
    ({"compute_dtype": "int8"}, "compute_dtype='int8'"),
    ({"compute_dtype": ""}, "compute_dtype=''"),
]


@pytest.mark.parametrize(("changes", "message"), INVALID, ids=lambda v: v if isinstance(v, str) else "")
def test_invalid_combinations_are_refused_by_name(changes, message):
    with pytest.raises(ValueError) as refusal:
        ConvProblem(**({"x_shape": X, "w_shape": W} | changes))
    assert message in str(refusal.value)
    assert " must " in str(refusal.value)  # every message says what would be valid


def test_valid_values_come_in_many_forms():
    plain = ConvProblem(X, W, 2, 1, 2)
    assert plain == ConvProblem(list(X), np.array(W), (2, 2), ((1, 1), 1), np.array(2))
    assert plain.stride == (2, 2)
    assert plain.padding == ((1, 1), (1, 1))
    assert hash(plain) == hash(ConvProblem(X, W, [2, 2], [1, 1], np.int64(2)))
    for dtype in ("float64", np.float64, np.dtype("float64")):
        assert ConvProblem(X, W, dtype=dtype).dtype == "float64"
    assert ConvProblem(X, W).compute_dtype == "float32"
    assert ConvProblem(X, W, dtype="float16").compute_dtype == "float32"
    assert ConvProblem(X, W, dtype="float64").compute_dtype == "float64"


def test_replace_checks_again_and_default_compute_dtype_follows_dtype():
    problem = ConvProblem(X, W, padding=1)
    assert problem.replace(dtype="float64").compute_dtype == "float64"
    assert problem.replace(dtype="float64", compute_dtype="float32").compute_dtype == "float32"
    chosen = problem.replace(compute_dtype="tf32")
    assert chosen.replace(dtype="float16").compute_dtype == "tf32"
    with pytest.raises(ValueError, match="stride=0"):
        problem.replace(stride=0)


# --- sizes -----------------------------------------------------------------------------------


def one_dimension(size, kernel, **parameters):
    return ConvProblem((1, 1, size), (1, 1, kernel), **parameters)


def test_output_sizes_against_counting():
    checked = 0
    for size, r, step, d, low, high in product(
        range(1, 9), (1, 2, 3), (1, 2, 3, 5), (1, 2, 3), (0, 1, 4), (0, 2)
    ):
        reach = d * (r - 1) + 1
        starts = [s for s in range(0, size + low + high, step) if s + reach <= size + low + high]
        if not starts:
            with pytest.raises(ValueError, match="padding"):
                one_dimension(size, r, stride=step, dilation=d, padding=[(low, high)])
            continue
        problem = one_dimension(size, r, stride=step, dilation=d, padding=[(low, high)])
        assert problem.spatial_out == (len(starts),)
        assert problem.kernel_extent == (reach,)
        checked += 1
    assert checked > 1000


def test_named_padding():
    for size, r, step, d in product(range(0, 9), (1, 2, 3, 4), (1, 2, 3, 5), (1, 2)):
        same = one_dimension(size, r, stride=step, dilation=d, padding="same")
        assert same.spatial_out == (math.ceil(size / step),)
        ((low, high),) = same.padding
        assert high - low in (0, 1)  # the odd element lies on the high side
        full = one_dimension(size, r, dilation=d, padding="full")
        if size:
            assert full.spatial_out == (size + d * (r - 1),)
        assert one_dimension(9, r, dilation=d, padding="valid").padding == ((0, 0),)


def test_zero_sizes_are_valid():
    for problem in (
        ConvProblem((0, 4, 9, 8), W),
        ConvProblem((2, 0, 9, 8), (6, 0, 3, 3)),
        ConvProblem(X, (0, 4, 3, 3)),
        ConvProblem((2, 4, 0, 8), W),
    ):
        assert problem.is_empty
        assert problem.flops == 0
    assert ConvProblem((2, 4, 0, 8), W).y_shape == (2, 6, 0, 6)
    assert ConvProblem((2, 0, 9, 8), (6, 0, 3, 3)).y_shape == (2, 6, 7, 6)  # sums of nothing
    assert not ConvProblem(X, W).is_empty


def test_work_and_gemm_view():
    problem = ConvProblem((2, 6, 9, 8), (9, 2, 3, 5), (2, 1), ((1, 0), 2), groups=3, dtype="float64")
    assert problem.y_shape == (2, 9, 4, 8)
    assert (problem.gemm_m, problem.gemm_n, problem.gemm_k) == (2 * 4 * 8, 3, 2 * 3 * 5)
    assert problem.flops == 2 * 64 * 9 * 30 == 2 * problem.gemm_m * problem.gemm_n * problem.gemm_k * 3
    assert problem.x_bytes == 2 * 6 * 9 * 8 * 8
    assert problem.w_bytes == 9 * 2 * 3 * 5 * 8
    assert problem.y_bytes == 2 * 9 * 4 * 8 * 8
    assert problem.bytes == problem.x_bytes + problem.w_bytes + problem.y_bytes
    assert problem.replace(dtype="float16").itemsize == 2
    assert (problem.N, problem.C, problem.K, problem.ndim) == (2, 6, 9, 2)
    assert (problem.spatial, problem.kernel) == ((9, 8), (3, 5))


def test_kinds():
    assert ConvProblem((1, 4, 9), (8, 1, 3), groups=4).is_depthwise
    assert not ConvProblem((1, 4, 9), (8, 2, 3), groups=2).is_depthwise
    assert not ConvProblem((1, 1, 9), (8, 1, 3)).is_depthwise
    assert ConvProblem((1, 4, 9, 9), (8, 4, 1, 1)).is_pointwise
    assert not ConvProblem((1, 4, 9, 9), (8, 4, 1, 2)).is_pointwise


def test_as_3d_is_the_same_work():
    problem = ConvProblem((2, 4, 9), (6, 2, 3), 2, [(1, 0)], 2, 2, layout="channels_last")
    lifted = problem.as_3d
    assert lifted.x_shape == (2, 4, 1, 1, 9)
    assert lifted.w_shape == (6, 2, 1, 1, 3)
    assert lifted.padding == ((0, 0), (0, 0), (1, 0))
    assert lifted.y_shape == (2, 6, 1, 1, *problem.spatial_out)
    assert (lifted.flops, lifted.bytes, lifted.layout) == (problem.flops, problem.bytes, problem.layout)
    assert lifted.as_3d is lifted


def test_taps_that_meet_the_input_against_counting():
    for size, kernel, low, high, stride, dilation in product(
        (1, 4, 9), (1, 2, 5), (0, 3), (0, 6), (1, 3), (1, 2)
    ):
        if size + low + high < dilation * (kernel - 1) + 1:
            continue
        p = one_dimension(size, kernel, padding=((low, high),), stride=stride, dilation=dilation)
        met = [
            [t for t in range(kernel) if 0 <= o * stride - low + t * dilation < size]
            for o in range(p.spatial_out[0])
        ]
        assert taps_met(p, 0) == sum(map(len, met)), str(p)
        assert p.is_empty == (not any(met)), str(p)
        for o, taps in enumerate(met):
            place, first, end = taps_meeting(p, 0, o)
            assert list(range(first, end)) == taps, (str(p), o)
            assert place == o * stride - low + first * dilation


@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 3), (3, 2), (4, 6), (5, 1), (1, 4)])
@pytest.mark.parametrize("padding", [(0, 0), (70, 0), (0, 300), (499, 499)])
def test_taps_of_a_long_filter_that_meet_the_input(stride, dilation, padding):
    p = one_dimension(700, 500 // dilation, padding=(padding,), stride=stride, dilation=dilation)
    outputs, taps = np.arange(p.spatial_out[0]), np.arange(p.kernel[0])
    places = np.add.outer(outputs * stride, taps * dilation) - padding[0]
    assert taps_met(p, 0) == ((places >= 0) & (places < 700)).sum()


def test_array_shape_follows_the_layout():
    problem = ConvProblem((2, 4, 9, 8), (6, 4, 3, 3))
    assert problem.array_shape(problem.x_shape) == (2, 4, 9, 8)
    assert problem.replace(layout="channels_last").array_shape(problem.x_shape) == (2, 9, 8, 4)


# --- text ------------------------------------------------------------------------------------

SIZE = st.integers(0, 40)


@st.composite
def problems(draw):
    """Any valid problem."""
    ndim = draw(st.integers(1, 3))
    groups = draw(st.integers(1, 4))

    def per_dim(values):
        return tuple(draw(values) for _ in range(ndim))

    stride, dilation, kernel = (per_dim(st.integers(1, 5)) for _ in range(3))
    reach = [d * (r - 1) + 1 for r, d in zip(kernel, dilation, strict=True)]
    spatial = tuple(draw(st.just(0) | st.integers(e, e + 30)) for e in reach)
    channels = draw(SIZE)
    return ConvProblem(
        (draw(SIZE), groups * channels, *spatial),
        (groups * draw(SIZE), channels, *kernel),
        stride,
        draw(st.sampled_from(["valid", "same", "full"]))
        if draw(st.booleans())
        else per_dim(st.tuples(SIZE, SIZE)),
        dilation,
        groups,
        mode=draw(st.sampled_from(MODES)),
        layout=draw(st.sampled_from(LAYOUTS)),
        scales=draw(st.sampled_from(SCALES)),
        **draw(FORMATS),
        **draw(st.sampled_from(ZEROS)),
    )


FORMATS = (
    st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(sorted(DTYPES)),
            "direction": st.sampled_from(DIRECTIONS),
            "compute_dtype": st.none() | st.sampled_from([d for d in COMPUTE_DTYPES if d != "int32"]),
        }
    )
    | st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(INTEGERS),
            "w_dtype": st.none() | st.sampled_from(INTEGERS),
            "y_dtype": st.none() | st.sampled_from(("int32", *INTEGERS, "float32")),
        }
    )
    | st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(("float16", "bfloat16", "binary")),
            "y_dtype": st.sampled_from((None, "float32")),
        }
    )
)
ZEROS = ({}, {"density": 0.05}, {"pattern": "2:4"}, {"pattern": "block16x1", "density": 1e-3})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"dtype": "int16"}, "dtype='int16' must be one of"),
        ({"dtype": "int8", "w_dtype": "float32"}, "w_dtype='float32' must be one of 'int8', 'uint8' where"),
        ({"dtype": "float32", "w_dtype": "int8"}, "w_dtype='int8' must be 'float32' where dtype='float32'"),
        ({"dtype": "uint8", "y_dtype": "float64"}, "y_dtype='float64' must be one of 'int32'"),
        ({"dtype": "int8", "compute_dtype": "float32"}, "compute_dtype='float32' must be 'int32'"),
        ({"dtype": "int8", "direction": "backward_data"}, "direction='backward_data' must be 'forward'"),
        ({"dtype": "bfloat16", "y_dtype": "float32", "direction": "backward_weights"}, "must be 'forward'"),
        ({"scales": "per_filter"}, "scales='per_filter' must be one of"),
        ({"density": 1.5}, "density=1.5 must be at most 1.0"),
        ({"density": -0.1}, "density=-0.1"),
        ({"pattern": "4:2"}, "pattern='4:2' must be"),
        ({"pattern": "2:4", "density": 0.6}, "density=0.6 must be at most 0.5 with pattern='2:4'"),
    ],
)
def test_formats_that_do_not_go_together_are_refused_by_name(given, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        ConvProblem(X, W, **given)


def test_formats_follow_from_the_type_of_x():
    problem = ConvProblem(X, W, dtype="uint8")
    assert (problem.w_dtype, problem.y_dtype, problem.compute_dtype) == ("uint8", "int32", "int32")
    assert (problem.x_bytes, problem.y_bytes) == (math.prod(X), 4 * math.prod(problem.y_shape))
    assert problem.replace(dtype="float64") == ConvProblem(X, W, dtype="float64")
    mixed = problem.replace(w_dtype="int8", y_dtype="uint8", scales="per_channel")
    assert str(mixed).endswith("uint8 w_int8 y_uint8 per_channel")
    assert ConvProblem(X, W, pattern="2:4").density == 0.5


@given(problems())
@settings(max_examples=100)
def test_text_form_round_trips(problem):
    assert ConvProblem.parse(str(problem)) == problem


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("n8 c64 h56 w56 k64 r3 s3 p1", ConvProblem((8, 64, 56, 56), (64, 64, 3, 3), padding=1)),
        ("c4 w9 k6 s3", ConvProblem((1, 4, 9), (6, 4, 3))),
        ("s3 k6 w9 c4", ConvProblem((1, 4, 9), (6, 4, 3))),
        ("C4 W9 K6 S3 FLOAT64", ConvProblem((1, 4, 9), (6, 4, 3), dtype="float64")),
        (
            "c4 d5 h6 w7 k4 t1 r2 s3 stride1,2,3 p0:1,2,3:0",
            ConvProblem((1, 4, 5, 6, 7), (4, 4, 1, 2, 3), (1, 2, 3), ((0, 1), (2, 2), (3, 0))),
        ),
        ("c4 h9 w8 k4 r3 s3 p1x2 stride2x1", ConvProblem((1, 4, 9, 8), (4, 4, 3, 3), (2, 1), (1, 2))),
        ("c4 h9 w8 k4 r3 s3 p0:1", ConvProblem((1, 4, 9, 8), (4, 4, 3, 3), padding=((0, 1), (0, 1)))),
        ("c4 h9 w8 k4 r3 s3 paddingsame", ConvProblem((1, 4, 9, 8), (4, 4, 3, 3), padding="same")),
        ("c4 w9 k8 s3 groups4 dilation2", ConvProblem((1, 4, 9), (8, 1, 3), dilation=2, groups=4)),
        (
            "c4 w9 k8 s3 float16 compute_float16 convolution channels_last backward_data",
            ConvProblem(
                (1, 4, 9), (8, 4, 3), dtype="float16", compute_dtype="float16",
                mode="convolution", layout="channels_last", direction="backward_data",
            ),
        ),
    ],
)  # fmt: skip
def test_text_form_reads(text, same):
    assert ConvProblem.parse(text) == same


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "missing size c, w, k, s"),
        ("c4 h9 k4 r3", "missing size w, s of a 2-D problem"),
        ("c4 w9 k4 s3 c4", "'c4' gives c a second time"),
        ("c4 w9 k4 s3 p1 psame", "'psame' gives padding a second time"),
        ("c4 w9 k4 s3 channels_last channels_first", "gives layout a second time"),
        ("c4 w9 k4 s3 pad1", "'pad1' is not understood"),
        ("c4 w9 k4 s3 p1:2:3", "'p1:2:3' is not understood"),
        ("c4 w9 k4 s3 p1,", "'p1,' is not understood"),
        ("c4 w9 k4 s3 stride,", "'stride,' is not understood"),
        ("c4 w9 k4 s3 groups2,3", "'groups2,3' is not understood"),
        ("c4 w-9 k4 s3", "'w-9' is not understood"),
        ("c4 w9 k4 s3 groups3", "groups=3 must divide c=4"),
        ("c4 w9 k4 s3 groups0", "groups=0 must divide c=4"),
        ("c4 h9 w9 k4 r3 s3 stride1,1,1", "stride=(1, 1, 1)"),
        ("c4 w9 k4 s10", "padding=((0, 0),)"),
        (None, "text=None"),
    ],
)
def test_text_form_says_what_is_wrong(text, message):
    with pytest.raises(ValueError) as refusal:
        ConvProblem.parse(text)
    assert message in str(refusal.value)


def test_a_hash_is_kept_and_does_not_leave_the_process():
    problem = ConvProblem.parse("n8 c64 h56 w56 k64 r3 s3 p1")
    equal = ConvProblem((8, 64, 56, 56), (64, 64, 3, 3), padding=[(1, 1), (1, 1)])
    assert hash(problem) == hash(problem) == hash(equal) and {problem: 1}[equal] == 1
    assert hash(problem) != hash(problem.replace(groups=1, padding=0))
    code = "import pickle, sys; p = pickle.load(sys.stdin.buffer); q = p.parse(str(p)); print({q: 1}[p])"
    run = subprocess.run(
        [sys.executable, "-c", code],
        input=pickle.dumps(problem),
        env={**os.environ, "PYTHONHASHSEED": "123"},
        capture_output=True,
    )
    assert run.stdout.split() == [b"1"], run.stderr
