"""Transforms by clusters of blocks: all of them, awkward problems, what selectors see of them, and faults."""

from dataclasses import replace

import numpy as np
import pytest
from cuda_shim import device as shim
from helpers import Guarded, check
from test_gpu_fft_fused import CAUSAL_128K, through_spectra

from convalgos.core.plan import numpy_dtype
from convalgos.core.problem import ConvProblem
from convalgos.gpu import fft_cluster
from convalgos.gpu.device import use
from convalgos.gpu.fft_cluster import CLUSTERS, Cluster, ClusterFft
from convalgos.gpu.spectral.block_fft import CHAINS
from convalgos.select import algorithms, find_algorithm

needs_shim = pytest.mark.skipif(shim.missing() is not None, reason=str(shim.missing()))
(AUTO,) = fft_cluster.ALGORITHMS
SMALL = [Cluster(2, CHAINS[0]), Cluster(4, CHAINS[0]), Cluster(8, CHAINS[1])]  # quick to emulate
TWO, _, _ = SMALL


@pytest.fixture(autouse=True)
def vectors(monkeypatch):
    """Arrays that start where a vector may, as CuPy's do: others would be copied first."""
    monkeypatch.setattr(Guarded, "BAND", 1024)


def parsed(text: str) -> ConvProblem:
    return ConvProblem.parse(text)


def causal(taps: int, channels: int = 1) -> ConvProblem:
    return parsed(f"n1 c{channels} w{taps} k{channels} s{taps} p{taps - 1}:0 groups{channels}")


def assert_close_to_spectra(algorithm: ClusterFft, problem: ConvProblem, bound: float | None = None) -> None:
    """Bias, ReLU and all of y, of a 1-D problem whose filters are as long as x."""
    rng = np.random.default_rng(problem.K)
    dtype = numpy_dtype(problem.dtype)
    x = rng.standard_normal(problem.x_shape, np.float32).astype(dtype)
    w = (rng.standard_normal(problem.w_shape, np.float32) / np.sqrt(problem.kernel[0])).astype(dtype)
    bias = np.ones(problem.K, dtype)
    answer = np.maximum(through_spectra(problem, x, w) + 1, 0)
    y = np.full(problem.y_shape, np.nan, dtype)
    algorithm.serve(problem)(x, w, bias=bias, activation="relu", out=y)
    error = np.abs(y.astype(np.float64) - answer).max() / np.abs(answer).max()
    assert error <= (bound or algorithm.error_bound(problem))


@needs_shim
@pytest.mark.parametrize("cluster", CLUSTERS, ids=lambda c: f"{c.blocks}x{c.chain.points}")
def test_every_cluster_on_a_causal_filter_that_fills_it(cluster):
    """The configurations that a GPU would run."""
    problem = causal(cluster.points)
    with use(shim.ShimDevice()):
        assert_close_to_spectra(ClusterFft(cluster), problem, 8e-7)
        assert ClusterFft(cluster).error_bound(problem) < 4e-6


@needs_shim
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_elements_of_16_bits(dtype):
    with use(shim.ShimDevice()):
        assert_close_to_spectra(ClusterFft(TWO), causal(TWO.points).replace(dtype=dtype))


@needs_shim
@pytest.mark.parametrize("cluster", SMALL, ids=lambda c: f"{c.blocks}x{c.chain.points}")
def test_awkward_problems(cluster, monkeypatch):
    """Tiles that overlap, strides, dilation, wide padding, rows of images, channels last; filters by twos."""
    monkeypatch.setattr(fft_cluster, "PREPARE_BYTES", 2 * 8 * cluster.points)
    algorithm = ClusterFft(cluster)
    with use(shim.ShimDevice()):
        for text, layout in (
            (f"n1 c1 w{2 * cluster.points + 13} k2 s77 p0:7", "channels_first"),  # two tiles
            ("n2 c3 w700 k6 s300 p1000:7 groups3 dilation3 stride2", "channels_last"),
            ("n2 c2 h3 w200 k2 r1 s65 p1,64:0 groups2", "channels_first"),
            ("n1 c1 w300 k1 s80 p20 convolution", "channels_last"),
        ):
            problem = parsed(text).replace(layout=layout)
            assert algorithm.why_not(problem) is None
            check(algorithm, problem)


def test_factors_of_columns():
    """Of each result of each column, as the kernel multiplies them up."""
    for cluster in CLUSTERS:
        table = cluster.factors().astype(np.complex128)  # (2, places)
        column = np.arange(cluster.chain.points)
        fine, coarse = column % fft_cluster.FINE, fft_cluster.FINE + column // fft_cluster.FINE
        first, step = (row[fine] * row[coarse] for row in table)
        for k in range(cluster.blocks):
            exact = np.exp(-2j * np.pi * (k - 1 / 4) * column / cluster.points)
            assert np.abs(first * step**k - exact).max() < 1e-6


def test_launches():
    """Whole clusters of blocks that fit the device, several where a device has room for few points."""
    problem = causal(65536, channels=3)
    with use(shim.RecordingDevice()):
        for way in AUTO.geometries(problem, shim.H200):
            plan = fft_cluster.ClusterPlan(problem, AUTO, way)
            (launch,) = plan.launches
            assert launch.grid == (way.tiles * way.cluster.blocks,)
            assert launch.shared_bytes <= shim.H200.block_shared_bytes
        assert {way.cluster for way in AUTO.geometries(problem, shim.H200)} == set(CLUSTERS)
    small = replace(shim.H200, capability=(12, 0), block_shared_bytes=101376)
    with use(shim.RecordingDevice(small)):
        found = AUTO.geometries(causal(32768), small)
        assert {way.cluster.chain.points for way in found} == {8192}


def test_reasons():
    cases = (
        ("n1 c4 w100 k4 s9", "one input channel per group, not 4"),
        ("n1 c2 h9 w9 k2 r3 s3 groups2", "rows only"),
        ("n1 c2 w90000 k2 s5000 groups2", "over 5000 only: tiles of a block"),
        ("n1 c1 w400000 k1 s300000", "over 300000, more than the longest tile of a cluster"),
    )
    with use(shim.RecordingDevice()):
        for text, reason in cases:
            assert reason in AUTO.why_not(parsed(text)), text
        assert "float64" in AUTO.why_not(causal(65536).replace(dtype="float64"))
    with use(shim.RecordingDevice(shim.A100)):
        assert "needs compute capability 9.0" in AUTO.why_not(causal(65536))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n1 c768 w65536 k768 s65536 p65535:0 groups768", "gpu.fft.cluster"),  # whose points L2 does not hold
        ("n8 c768 w65536 k768 s65536 p65535:0 groups768", "gpu.fft.cluster"),
        (CAUSAL_128K, "gpu.fft.steps"),  # as fast by prediction, and more is known of it
    ],
)
def test_long_causal_filters_go_to_clusters_where_these_are_clearly_better(text, expected):
    problem = parsed(text)
    with use(shim.RecordingDevice()):
        served = [a for a in algorithms("gpu") if list(a.builds()) and a.why_not(problem) is None]
        costs = {a.id: a.cost(problem, shim.H200) for a in served}
    assert min(costs, key=costs.__getitem__) == expected
    assert costs["gpu.fft.cluster"] > shim.H200.stream(problem.x_bytes + problem.y_bytes)


# --- what must not pass ------------------------------------------------------------------------------

FAULTS = {
    "no meeting before rows are sent": ("meet_cluster();  // every block is there", ""),
    "no meeting before rows are read": ("meet_cluster();  // rows are whole", "__syncthreads();"),
    "no meeting before columns are fetched": ("meet_cluster();  // columns are whole", "__syncthreads();"),
    "blocks that end too early": ("meet_cluster();  // nobody ends whom", "// nobody ends whom"),
    "results sent to other rows": ("to.row[k % CLUSTER]", "to.row[(k + 1) % CLUSTER]"),
    "columns fetched from other rows": ("from.row[k % CLUSTER]", "from.row[(k + 1) % CLUSTER]"),
    "a block beyond the cluster": ("RemotePairs(shared, k)", "RemotePairs(shared, k + 1)"),
    "columns of another block": (
        "rank * COLUMNS + threadIdx.x",
        "(rank ^ 1) * COLUMNS % COLUMNS + threadIdx.x",
    ),
    "the spectrum of another row": (
        "* CLUSTER + rank) * POINTS",
        "* CLUSTER + (rank ^ 1 & -!prepares)) * POINTS",
    ),
    "places without the gaps of rows": ("return i + i / PAD; }", "return i; }"),
    "tiles that are left out": ("tile_of(blockIdx.x / CLUSTER", "tile_of(blockIdx.x / CLUSTER / 2"),
    "no weights on the way back": ("weigh<CLUSTER, true>(v + k);", ""),
}


@needs_shim
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_caught(monkeypatch, fault):
    """The launch stops with a reason, or the result is wrong."""
    (old, new), whole = FAULTS[fault], shim.source_text

    def broken(build, replaced):
        body = whole(build, replaced)
        assert body.count(old) == 1, f"{fault}: the kernel reads otherwise now"
        return body.replace(old, new)

    monkeypatch.setattr(shim, "source_text", broken)
    shim.compiled.cache_clear()
    try:
        with use(shim.ShimDevice()), pytest.raises(AssertionError) as error:
            assert_close_to_spectra(ClusterFft(TWO), causal(TWO.points, channels=2))
        assert "reads otherwise" not in str(error.value)
    finally:
        shim.compiled.cache_clear()


@needs_shim
def test_an_activation():
    problem = parsed("n1 c2 w700 k2 s300 p299:0 groups2")
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape, np.float32) for shape in (problem.x_shape, problem.w_shape))
    with use(shim.ShimDevice()):
        plan = ClusterFft(TWO).serve(problem)
        right = find_algorithm("gpu.direct", problem).serve(problem)(x, w, activation="silu")
        assert np.abs(plan(x, w, activation="silu") - right).max() < 1e-4
