"""bfloat16 in the processor's instructions: sums are those of the emulation, bit for bit."""

import numpy as np
import pytest

pytest.importorskip("llvmlite")
ml_dtypes = pytest.importorskip("ml_dtypes")

from convalgos import ConvProblem  # noqa: E402
from convalgos.cpu.dot import Dot  # noqa: E402
from convalgos.cpu.gemm.word_blocking import word_blocking  # noqa: E402
from convalgos.testing import brain  # noqa: E402

CORNERS = np.array(
    [0.0, -0.0, 2**-126, -(2**-130), 2**-133, 3e38, -3e38, np.inf, -np.inf, np.nan, 1.0, 2**-64, -(2**-63)]
)


def same(found, expected):
    """Bits, signs of zeros included; of NaN only that it is one."""
    nan = np.isnan(expected)
    return np.array_equal(np.isnan(found), nan) and np.array_equal(
        found.view("u4")[~nan], expected.view("u4")[~nan]
    )


def emulated(problem, engine, x, w, bias):
    """y (N, K, P, Q) in float32, in the order of the kernel: chunk by chunk of the taps' words."""
    cut, p = word_blocking(problem, engine), problem
    x = np.pad(x.astype("f4"), [(0, 0), (0, 0), *p.padding])
    windows = np.lib.stride_tricks.sliding_window_view(x, p.kernel, (2, 3))  # (N, C, P, Q, R, S)
    filled = [(0, 0)] * 3 + [(0, 2 * cut.pixel_words - p.C)]
    a = np.pad(windows.transpose(0, 2, 3, 4, 5, 1).reshape(-1, *p.kernel, p.C), filled)  # (N*P*Q, R, S, .)
    b = np.pad(w.astype("f4").transpose(0, 2, 3, 1), filled)  # (K, R, S, words of a pixel * 2)
    a, b = a.reshape(len(a), 1, -1, cut.words, 2), b.reshape(1, p.K, -1, cut.words, 2)
    total = np.broadcast_to(bias, (len(a), p.K)).copy()
    for chunk in range(a.shape[2]):
        if engine.matrix:
            total = brain.tdpbf16ps(total, a[:, :, chunk], b[:, :, chunk])
            continue
        for word in range(cut.words):
            total = brain.vdpbf16ps(total, a[:, :, chunk, word], b[:, :, chunk, word])
    return np.moveaxis(total.reshape(p.N, *p.spatial_out, p.K), -1, 1)


@pytest.mark.parametrize("data", ["reals", "corners"])
@pytest.mark.parametrize("name", ["brain", "amx"])
def test_sums_are_those_of_the_emulation(name, data):
    algorithm, rng = Dot(name), np.random.default_rng(7)
    for text in ("n1 c75 h9 w9 k33 r1 s1", "n2 c5 h9 w19 k17 r3 s3 p1", "n1 c131 h5 w7 k16 r2 s3 p1"):
        problem = ConvProblem.parse(text).replace(dtype="bfloat16", y_dtype="float32")
        if reason := algorithm.why_not(problem):
            pytest.skip(reason)
        shapes = problem.x_shape, problem.w_shape, (problem.K,)
        x, w, bias = (rng.standard_normal(s) for s in shapes)
        if data == "corners":
            scaled = (rng.standard_normal(s) * 2.0 ** rng.integers(-70, 60, s) for s in shapes)
            x, w, bias = (
                np.where(rng.random(s) < share, rng.choice(CORNERS, s), v)
                for s, share, v in zip(shapes, (0.005, 0.005, 0.3), scaled, strict=True)
            )
        x, w = (a.astype(ml_dtypes.bfloat16) for a in (x, w))
        bias = bias.astype("f4")
        plan = algorithm.serve(problem)
        expected = emulated(problem, algorithm.engine(problem), x, w, bias)
        assert same(plan(x, plan.prepare(w), bias=bias), expected), text
        if data == "corners":
            assert np.isnan(expected).any() and np.isinf(expected).any() and np.isfinite(expected).any()
        narrow = algorithm.serve(problem.replace(y_dtype="bfloat16"))
        y = narrow(x, narrow.prepare(w)).astype("f4")
        assert same(y, brain.vcvtneps2bf16(plan(x, plan.prepare(w)))), text


def test_instructions_at_the_corners():
    """Each corner by each: what is tiny is zero, and what is too large infinite."""
    a, b = (m.astype("f4") for m in np.meshgrid(CORNERS, CORNERS))
    pairs = [np.stack([v, np.zeros_like(v)], -1) for v in (a, b)]
    with np.errstate(all="ignore"):
        normal = [np.where(np.abs(v) < 2**-126, np.copysign(0, v), v) for v in (a, b)]
        product = (normal[0] * normal[1]).astype("f4")
    expected = np.where(np.abs(product) < 2**-126, 0, product) + np.float32(0)
    for made in (brain.vdpbf16ps(np.zeros_like(a), *pairs), brain.tdpbf16ps(
        np.zeros_like(a), *(p[..., None, :] for p in pairs)
    )):  # fmt: skip
        assert same(np.abs(made), np.abs(expected))
    # the second product first: 1 of it is lost beside 2**24, and not where the first comes first
    words = np.float32([[2**24, 1]]), np.float32([[1, 1]])
    assert brain.vdpbf16ps(np.float32([2**24]), *words) == 2**25
    assert brain.vdpbf16ps(np.float32([1]), np.float32([[-(2**24), 2**24]]), words[1]) == 0
    assert brain.tdpbf16ps(np.float32([1]), np.float32([[[-(2**24), 2**24]]]), words[1][None]) == 1
    assert np.signbit(brain.vdpbf16ps(np.float32([-0.0]), np.float32([[-0.0, 0]]), np.float32([[1, -1]])))
    assert same(brain.vcvtneps2bf16(CORNERS.astype("f4")[[1, 3, 9]]), np.float32([-0.0, -0.0, np.nan]))
