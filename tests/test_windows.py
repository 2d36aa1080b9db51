"""Integers with columns or rows of a kernel in words: what the table of all algorithms does not reach."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import convalgos as ca
from convalgos.core.quantization import Quantization
from convalgos.cpu.reference import reference

CUTS = (
    "n1 c2 h9 w130 k2 r3 s3 p2 dilation2 groups2",  # taps apart
    "n1 c1 w9000 k1 s9 p4",  # rows that are cut
    "n1 c2 h5 w63 k2 r3 s3 p1 groups2",  # padding behind a whole vector
    "n1 c1 h5 w10 k1 r3 s3 p15",  # more padding than map
    "n1 c4 h9 w70 k4 r3 s3 p1 stride3 groups4",  # every third sum
    "n1 c1 h30 w34 k6 r11 s11 stride4",
    "n3 c3 d5 h6 w7 k9 t3 r3 s3 p1 groups3",  # 3 filters: two, and one
    "n1 c70 h5 w18 k70 r3 s3 p1 groups70 channels_last",  # squares that overlap, and a rest
    "n1 c1 w9000 k2 s9 p4 channels_last",
    "n1 c6 h12 w37 k6 r5 s1 p2,0 groups6",  # one column: four rows in a word
)
OF_CHANNELS = (
    "n2 c70 h7 w7 k70 r5 s5 p2 groups70 channels_last",  # blocks that overlap
    "n1 c20 h9 w3 k20 r3 s3 p1 stride2 groups20",  # a block of few channels, rows of two outputs
    "n1 c5 d4 h5 w6 k5 t2 r3 s3 p1 dilation2 groups5 channels_last",  # any row
    "n2 c70 h6 w9 k70 r1 s5 p0,1:3 stride2,1 groups70 channels_last",  # rows of the kernel are its columns
)
OLD = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma,+bmi,+bmi2,+f16c,+popcnt,+sse4.2"}


def wrong(text, y_dtype, w_dtype="int8", algorithm="cpu.depthwise.windows", y_scale=5000.0, rounding="onnx"):
    """How many outputs differ from the definition."""
    p = ca.ConvProblem.parse(f"{text} int8 w_{w_dtype} y_{y_dtype}")
    rng = np.random.default_rng(0)
    x, w = (
        rng.choice(np.array([limits.min, limits.max, 0, 1], dtype), shape)
        for dtype, shape in ((p.dtype, p.array_shapes[0]), (p.w_dtype, p.w_shape))
        for limits in [np.iinfo(dtype)]
    )
    zero = 7 if y_dtype == "uint8" else 0
    step = Quantization(x_zero_point=-3, y_scale=y_scale, y_zero_point=zero, rounding=rounding)
    plan = ca.plan(p, algorithm=algorithm)
    y = plan(x, plan.prepare(w, step))
    layout = p.layout
    p, x = p.replace(layout="channels_first"), np.moveaxis(x, -1, 1) if layout == "channels_last" else x
    sums = reference(p, x.astype(float) + 3, w.astype(float), None).astype(np.int64).astype(np.int32)
    expected = sums if y_dtype == "int32" else step.output(p, None).apply(sums, np.dtype(y_dtype), 1)
    if layout == "channels_last":
        y = np.moveaxis(y, -1, 1)
    return int(np.count_nonzero(y != expected))


@pytest.mark.parametrize("text", CUTS)
def test_every_cut(text):
    assert wrong(text, "uint8") == 0


@pytest.mark.parametrize(("w_dtype", "y_dtype"), [("uint8", "int32"), ("int8", "float32"), ("uint8", "int8")])
def test_kernels_of_one_column(w_dtype, y_dtype):
    """Of several channels a group, dilated; weights of bytes without a sign are two parts."""
    text = "n2 c6 d2 h23 w41 k4 t2 r6 s1 p1,3:1,1 stride1,2,1 dilation1,2,1 groups2"
    assert wrong(text, y_dtype, w_dtype) == 0
    assert wrong(f"{text} channels_last", y_dtype, w_dtype) == 0


@pytest.mark.parametrize("text", OF_CHANNELS)
def test_channels_in_lanes(text):
    assert wrong(text, "uint8", "uint8", "cpu.depthwise.words") == 0
    assert wrong(text, "int32", "int8", "cpu.depthwise.words") == 0


@pytest.mark.parametrize("y_scale", [1e-30, 1.0, 5000.0])  # far beyond 32 bits, beyond 8, within
@pytest.mark.parametrize("algorithm", ["words", "windows"])
def test_sums_beyond_the_range_of_y(y_scale, algorithm):
    for rounding in ("onnx", "onnxruntime"):
        given = "uint8", "int8", f"cpu.depthwise.{algorithm}", y_scale, rounding
        assert wrong("n1 c5 h5 w8 k5 r3 s3 groups5", *given) == 0


def test_without_instructions_for_bytes():
    """A processor with AVX2 alone: pairs of 16 bits, rows copied byte by byte, runs of outputs."""
    told = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    told += "from test_windows import CUTS, OF_CHANNELS, wrong\n"
    told += "cuts = (*CUTS[2:8:5], CUTS[-1])\n"
    told += "print([wrong(t, y, w) for t in cuts for y, w in (('uint8', 'uint8'), ('int32', 'int8'))]"
    told += " + [wrong(t, 'uint8', 'uint8', 'cpu.depthwise.words') for t in OF_CHANNELS[:1]])"
    run = subprocess.run(
        [sys.executable, "-c", told], env=os.environ | OLD, capture_output=True, text=True, timeout=300
    )
    assert run.stdout.strip() == str([0] * 7), run.stderr
