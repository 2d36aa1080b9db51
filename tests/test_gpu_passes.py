"""Work that is cut to fit: patches in several passes, long signals in tiles that overlap."""

import pytest
from cuda_shim import device as shim
from helpers import check

from convalgos.core.problem import ConvProblem
from convalgos.gpu import fft, im2col
from convalgos.gpu.device import use
from convalgos.gpu.spectral import cufft_tiles

pytestmark = pytest.mark.skipif(shim.missing() is not None, reason=str(shim.missing()))
each_layout = pytest.mark.parametrize("layout", ["channels_first", "channels_last"])


@each_layout
def test_patches_in_several_passes(monkeypatch, layout):
    """Passes end in the middle of rows and of images."""
    problem = ConvProblem.parse("n3 c4 h7 w9 k6 r3 s3 p1 groups2").replace(layout=layout)
    monkeypatch.setattr(im2col, "PASS_BYTES", 50 * 4 * (36 + 6))
    (algorithm,) = im2col.ALGORITHMS
    assert im2col.pixels_of_a_pass(problem) == 50
    with use(shim.ShimDevice()):
        assert len(algorithm.serve(problem).launches) == 2 * 2  # of whole passes, and of the last one
        check(algorithm, problem, "integers")


@each_layout
@pytest.mark.parametrize(
    "text",
    [
        "n2 c3 w1000 k3 s20 p19:0 groups3",
        "n1 c2 w777 k5 s9 p4 stride3 dilation2",
        "n1 c2 h150 w41 k3 r5 s5 p2 stride2",
        "n1 c2 d30 h20 w25 k2 t2 r2 s2",
    ],
)
def test_long_signals_are_cut_into_tiles(text, layout):
    problem = ConvProblem.parse(text).replace(layout=layout)
    for factor in fft.TILE_FACTORS:
        tiles = fft.overlapping_tiling(problem, factor)
        assert all(
            (t - 1) * s < n <= t * s
            for t, s, n in zip(tiles.tiles, tiles.step, cufft_tiles.positions(problem), strict=True)
        )
        reach = problem.as_3d.kernel_extent
        assert all(s + e - 1 <= n for s, e, n in zip(tiles.step, reach, tiles.length, strict=True))
    with use(shim.ShimDevice()):
        check(fft.Fft(overlap=True), problem)
        assert fft.Fft(overlap=True).tiling(problem, shim.H200).per_image > 1


@each_layout
@pytest.mark.parametrize("fitting", [0, 2, 4, 7])
def test_spectra_in_several_passes(monkeypatch, layout, fitting):
    """Of single groups, of some, of all of an image, of several images."""
    problem = ConvProblem.parse("n5 c6 h7 w9 k9 r3 s4 p1:2,0 groups3 stride2,1").replace(layout=layout)
    (algorithm, _) = fft.ALGORITHMS
    tiles = fft.whole_tiling(problem)
    monkeypatch.setattr(fft, "PASS_BYTES", fitting * fft.pass_bytes(problem, tiles))
    expected = {0: (1, 1, 15), 2: (1, 2, 10), 4: (1, 3, 5), 7: (2, 3, 3)}[fitting]
    assert (*fft.per_pass(problem, tiles), len(fft.cufft_passes(problem, tiles))) == expected
    with use(shim.ShimDevice()):
        assert algorithm.workspace_bytes(problem) <= max(1, fitting) * fft.pass_bytes(problem, tiles)
        check(algorithm, problem)


def test_lengths_are_products_of_small_primes():
    assert [cufft_tiles.cufft_length(n) for n in (1, 2, 3, 11, 13, 211, 1025)] == [1, 2, 4, 12, 14, 216, 1050]
