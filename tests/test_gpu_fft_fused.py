"""The GPU's own transforms: every chain of stages, tiles, passes, and what the selector makes of them."""

import math

import numpy as np
import pytest
from cuda_shim import device as shim
from helpers import Guarded, check

from convalgos.core.plan import numpy_dtype
from convalgos.core.problem import ConvProblem
from convalgos.gpu import fft_four_step, fft_fused
from convalgos.gpu.device import tables, use
from convalgos.gpu.fft_four_step import FourStepFft
from convalgos.gpu.fft_fused import FusedFft
from convalgos.gpu.spectral import block_fft, transposed_io
from convalgos.gpu.spectral.block_fft import CHAINS, PLANE_CHAINS, block_tiling
from convalgos.select import algorithms

needs_shim = pytest.mark.skipif(shim.missing() is not None, reason=str(shim.missing()))
CAUSAL_1K = "n16 c768 w1024 k768 s1024 p1023:0 groups768"
CAUSAL_128K = "n1 c64 w131072 k64 s131072 p131071:0 groups64"


@pytest.fixture(autouse=True)
def vectors(monkeypatch):
    """Arrays that start where a vector may, as CuPy's do: others would be copied first."""
    monkeypatch.setattr(Guarded, "BAND", 1024)


def parsed(text: str) -> ConvProblem:
    return ConvProblem.parse(text)


def checked(algorithm, text: str, **changes) -> None:
    problem = parsed(text).replace(**changes)
    assert algorithm.why_not(problem) is None
    check(algorithm, problem)


def through_spectra(problem: ConvProblem, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The float64 answer of a 1-D depthwise problem of stride 1, whose filters are as long as x."""
    (low, _), taps = problem.padding[0], w.shape[-1]
    n = x.shape[-1] + taps
    spectra = np.fft.rfft(x.astype(np.float64), n) * np.fft.rfft(w[:, 0, ::-1].astype(np.float64), n)
    first = taps - 1 - low
    return np.fft.irfft(spectra, n)[..., first : first + problem.spatial_out[0]]


# --- the transforms --------------------------------------------------------------------------------


def test_factors_are_exact_and_their_products_are_those_of_all_results():
    for radix, steps, weighted in (
        (32, 64, True),
        (16, 8, False),
        (8, 4, True),
        (4, 16, False),
        (2, 4, False),
    ):
        rows = block_fft.factors(radix, steps, weighted)
        fine = 8 if radix > 16 else min(radix, 4)
        assert rows.shape == (fine - 1 + weighted + radix // fine - 1, steps)
        first = rows[: fine - 1 + weighted]
        first = first if weighted else np.concatenate([np.ones((1, steps)), first])
        coarse = np.concatenate([np.ones((1, steps)), rows[fine - 1 + weighted :]])
        found = (coarse[:, None] * first[None]).reshape(radix, steps)
        result = np.arange(radix)[:, None] - weighted / 4
        exact = np.exp(-2j * np.pi * result * np.arange(steps) / (radix * steps))
        assert np.abs(found - exact).max() < 2e-7


@pytest.mark.parametrize("chain", CHAINS + PLANE_CHAINS, ids=lambda c: f"{c.height}x{c.reals}")
def test_stages_make_up_the_transform_and_fill_the_threads(chain):
    assert math.prod(chain.radices) == chain.points
    span = chain.points
    for radix in chain.radices:  # none is along both dimensions
        assert span <= chain.width or span // radix >= chain.width
        assert chain.points // chain.threads % radix == 0
        span //= radix
    assert chain.threads % 32 == 0
    assert chain.shared_bytes <= shim.A100.block_shared_bytes


@needs_shim
@pytest.mark.parametrize("chain", CHAINS, ids=lambda c: str(c.reals))
def test_rows_of_every_length(chain):
    """Tiles that overlap, and one tile that a causal filter as long as x fills."""
    algorithm = FusedFft(chain)
    with use(shim.ShimDevice()):
        checked(algorithm, f"n1 c1 w{chain.reals + 5} k2 s9 p3:0 groups1")
        problem = parsed(f"n1 c2 w{chain.width} k2 s{chain.width} p{chain.width - 1}:0 groups2")
        cut = block_tiling(problem, 1, chain.reals)
        assert cut.tiles == (1, 1) and not cut.upper_in and not cut.upper_out
        rng = np.random.default_rng(chain.width)
        x = rng.standard_normal(problem.x_shape, np.float32)
        w = rng.standard_normal(problem.w_shape, np.float32)
        answer = through_spectra(problem, x, w)
        y = np.full(problem.y_shape, np.nan, np.float32)
        algorithm.serve(problem)(x, w, out=y)
    error = np.abs(y - answer).max() / np.abs(answer).max()
    assert error <= 6e-7 <= algorithm_bound(algorithm, problem)


def algorithm_bound(algorithm, problem) -> float:
    with use(shim.RecordingDevice()):
        return algorithm.error_bound(problem)


@needs_shim
@pytest.mark.parametrize("chain", PLANE_CHAINS, ids=lambda c: f"{c.height}x{c.reals}")
def test_planes_of_every_size(chain):
    algorithm = FusedFft(chain)
    with use(shim.ShimDevice()):
        checked(algorithm, f"n1 c2 h{chain.height - 3} w{chain.reals + 6} k2 r5 s4 p3:1,0:2 groups2")
        checked(algorithm, "n2 c2 h9 w13 k4 r31 s30 p15:16,14:20 groups2", layout="channels_last")


@needs_shim
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize(
    "text",
    [
        "n2 c3 w5000 k6 s70 p12:200 groups3 stride3 dilation5 convolution",  # padding beyond the kernel
        "n1 c2 w40 k2 s30 p60:0 groups2",  # outputs that see no input
        "n2 c3 w1500 k3 s400 p399 groups3",  # full
        "n2 c2 d3 h5 w61 k2 t1 r1 s33 p1,2,16 groups2 stride2,3,1",  # rows of volumes, some of nothing
        "n1 c2 d2 h40 w39 k2 t1 r7 s9 p0,3,4 groups2 stride1,2,3 dilation1,2,3",
        "n3 c1 h33 w70 k1 r9 s11 p4:0,5",
        "n2 c3 h40 w70 k4 r9 s11 p4,5",  # sums over channels
        "n1 c6 w2100 k4 s40 p20 groups2 stride2",
    ],
)
def test_awkward_problems(text, layout):
    with use(shim.ShimDevice()):
        checked(FusedFft(), text, layout=layout)


@needs_shim
@pytest.mark.parametrize("chain", CHAINS[:2], ids=lambda c: str(c.reals))
def test_rows_of_long_transforms(chain):
    algorithm = FourStepFft(chain)
    with use(shim.ShimDevice()):
        checked(algorithm, f"n1 c1 w{64 * chain.points + 13} k2 s77 p0:7")  # two tiles
        checked(algorithm, "n2 c3 w700 k6 s300 p1000:7 groups3 dilation3 stride2", layout="channels_last")
        checked(algorithm, "n2 c2 h3 w200 k2 r1 s65 p1,64:0 groups2")


@needs_shim
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_causal_filter_of_32k_taps(dtype):
    """The configuration that a GPU would run."""
    problem = parsed("n1 c1 w32768 k1 s32768 p32767:0").replace(dtype=dtype)
    (algorithm,) = fft_four_step.ALGORITHMS
    rng = np.random.default_rng(0)
    x = rng.standard_normal(problem.x_shape, np.float32).astype(numpy_dtype(dtype))
    w = (rng.standard_normal(problem.w_shape, np.float32) / 181).astype(x.dtype)
    bias = np.ones(1, x.dtype)
    answer = np.maximum(through_spectra(problem, x, w) + 1, 0)
    with use(shim.ShimDevice()):
        assert algorithm.choice(problem, shim.H200).chain == CHAINS[0]
        y = np.full(problem.y_shape, np.nan, x.dtype)
        algorithm.serve(problem)(x, w, bias=bias, activation="relu", out=y)
        bound = algorithm.error_bound(problem)
    assert np.abs(y.astype(np.float64) - answer).max() <= bound * np.abs(answer).max()


@needs_shim
def test_many_filters_and_tiles_take_several_passes(monkeypatch):
    monkeypatch.setattr(fft_fused, "PREPARE_BYTES", 3 * 8 * CHAINS[0].points)
    monkeypatch.setattr(fft_four_step, "PASS_BYTES", 3 * 8 * 32 * CHAINS[0].points)
    text = "n2 c4 w90 k8 s20 p3 groups4"
    with use(shim.ShimDevice()):
        checked(FusedFft(CHAINS[0]), text)
        algorithm = FourStepFft(CHAINS[0])
        way = algorithm.choice(parsed(text), shim.H200)
        assert way.per_pass <= 3 and way.total == 16
        assert algorithm.workspace_bytes(parsed(text)) == way.per_pass * way.tile_bytes
        checked(algorithm, text)


@pytest.mark.parametrize(
    "text", [CAUSAL_1K, "n1 c2 w9000 k2 s500 p7:0 groups2 stride2", "n1 c1 h50 w61 k1 r9 s7 p4"]
)
def test_tiles_cover_every_position_once(text):
    problem = parsed(text)
    for chain in CHAINS if problem.ndim == 1 else PLANE_CHAINS:
        cut = block_tiling(problem, chain.height, chain.reals)
        places = (chain.height, chain.reals)
        for i, (step, tiles, n) in enumerate(zip(cut.step, cut.tiles, cut.positions, strict=True)):
            assert (tiles - 1) * step < n <= tiles * step
            reach = problem.as_3d.kernel_extent[1 + i]
            assert cut.shift or chain.height == 1 or step + reach - 1 <= places[i]
        assert cut.first + cut.step[1] <= chain.reals


# --- what is served, and when --------------------------------------------------------------------


def test_reasons():
    (fused,), (steps,) = fft_fused.ALGORITHMS, fft_four_step.ALGORITHMS
    with use(shim.RecordingDevice()):
        for text, algorithm, reason in (
            ("n1 c2 w100 k4 s9", FusedFft(CHAINS[4]), "needs 278528 bytes of shared memory"),
            ("n1 c9 w100 k4 s9", fused, "at most 8, not 9"),
            ("n1 c4 w100 k4 s9", steps, "one input channel per group, not 4"),
            ("n1 c2 d9 h9 w9 k2 t3 r3 s3 groups2", fused, "last two dimensions"),
            ("n1 c2 d9 h9 w9 k2 t3 r1 s3 groups2", steps, "rows only"),
            ("n1 c2 h200 w200 k2 r130 s3 groups2", fused, "reaches over 130x3"),
            ("n1 c2 h9 w9 k2 r3 s3 groups2", steps, "rows only"),
            ("n1 c2 w90000 k2 s5000 groups2", steps, "over 5000 only: tiles of a block"),
            (CAUSAL_128K, fused, "reaches over 131072"),
            ("n1 c1 w9 k1 s2 p1100000:0 dilation1100000", steps, "reaches over 1100001"),
        ):
            assert reason in algorithm.why_not(parsed(text)), text
        assert "float64" in fused.why_not(parsed(CAUSAL_1K).replace(dtype="float64"))


@pytest.mark.parametrize("figures", [shim.A100, shim.H200], ids=lambda f: f.name)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CAUSAL_1K, "gpu.fft.fused"),
        ("n4 c768 w8192 k768 s8192 p8191:0 groups768", "gpu.fft.fused"),
        (CAUSAL_128K, "gpu.fft.steps"),
        ("n1 c1 w1000000 k1 s1024", "gpu.fft.fused"),
        ("n1 c1 h2048 w2048 k1 r63 s63 p31", "gpu.fft.fused"),
        ("n8 c96 h56 w56 k96 r5 s5 p2 groups96", "gpu.depthwise"),
        ("n16 c768 w4096 k768 s5 p2 groups768", "gpu.depthwise"),
    ],
)
def test_long_filters_are_predicted_to_be_transformed(text, expected, figures):
    problem = parsed(text)
    with use(shim.RecordingDevice(figures)):
        served = [a for a in algorithms("gpu") if list(a.builds()) and a.why_not(problem) is None]
        assert min(served, key=lambda a: a.cost(problem, figures)).id == expected


def test_points_of_long_transforms_stay_within_their_workspace():
    many = parsed("n64 c512 w65536 k512 s65536 p65535:0 groups512")
    (steps,) = fft_four_step.ALGORITHMS
    with use(shim.RecordingDevice()):
        assert steps.workspace_bytes(many) <= fft_four_step.PASS_BYTES
        last = many.replace(layout="channels_last")
        assert steps.workspace_bytes(last) - steps.workspace_bytes(many) == transposed_io.transposed_bytes(
            last
        )
        assert transposed_io.transposed_bytes(last) == many.x_bytes + many.y_bytes
        one = parsed("n2 c1 w9000 k2 s500").replace(layout="channels_last")
        assert one.y_bytes <= transposed_io.transposed_bytes(one) < one.y_bytes + tables.ALIGNED  # of y alone
