"""cpu.direct.channels: gradients of 1x1 filters in tiles of channels by channels."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import KINDS, check
from narrow_vectors import run_on_haswell

import convalgos as ca
from convalgos.core.setting import thread_count
from convalgos.cpu.direct_channels import DirectChannels
from convalgos.cpu.gemm import outer_blocking

CHANNELS = DirectChannels()
PROBLEMS = [
    "n1 c1 h1 w1 k1 r1 s1",
    "n1 c7 h3 w5 k13 r1 s1 channels_last",
    "n3 c37 h13 w9 k29 r1 s1 channels_last",
    "n2 c16 h9 w8 k6 r1 s1 channels_last",  # x is read in place
    "n2 c5 h9 w8 k48 r1 s1 channels_last",  # dy is, by vectors of filters
    "n2 c83 h24 w25 k131 r1 s1 channels_last",  # several blocks of pixels, panels of two widths
    "n3 c50 h13 w9 k30 r1 s1 stride2 channels_last",
    "n2 c51 h13 w10 k33 r1 s1 stride3,1 groups3 channels_last",
    "n2 c64 h7 w7 k64 r1 s1 groups4 channels_last",
    "n2 c19 d5 h6 w7 k23 t1 r1 s1 stride2,1,3 channels_last",
    "n5 c70 w211 k9 s1 channels_last",
    "n300 c33 h1 w1 k17 r1 s1",  # maps of one pixel, in either layout
    "n2 c17 h60 w61 k18 r1 s1 channels_last",  # several parts of the pixels
]


def problem(text, **changes):
    return ca.ConvProblem.parse(text).replace(direction="backward_weights", **changes)


@pytest.mark.parametrize("text", PROBLEMS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_are_exact(text, dtype):
    for kind in KINDS:
        check(CHANNELS, problem(text, dtype=dtype), kind)


def cuts(p):
    """As it is and with x and dy swapped, by every tile, in blocks of rows and panels."""
    whole = p.as_3d
    found = outer_blocking._of_tiles(whole, False)
    if whole.is_plain_product and whole.groups == 1:
        swapped = whole.with_valid(x_shape=whole.y_shape, w_shape=(whole.C, whole.gemm_n, 1, 1, 1))
        found += outer_blocking._of_tiles(swapped, True)
    for cut in found:
        yield cut
        yield replace(cut, parts=min(3, p.gemm_m))
        blocks = replace(cut, row_blocks=min(3, cut.problem.gemm_n), panel_blocks=min(2, cut.panels))
        rows = -(-blocks.most_rows // blocks.row_tiles)
        yield replace(blocks, rows=rows + rows % 2)


@pytest.mark.parametrize("text", PROBLEMS[1:])
def test_every_cut_gives_the_same_answer(text, monkeypatch):
    p = problem(text)
    for cut in cuts(p):
        monkeypatch.setattr("convalgos.cpu.direct_channels.outer_blocking", lambda _, cut=cut: cut)
        check(CHANNELS, p, "integers")


def test_parts_do_not_depend_on_threads_or_caches(monkeypatch):
    p = problem("n8 c64 h28 w28 k200 r1 s1 channels_last")
    found = set()
    for threads, caches in ((1, (32 << 10, 1 << 18, 1 << 20)), (7, (48 << 10, 2 << 20, 32 << 20))):
        monkeypatch.setattr(outer_blocking, "plan_threads", lambda threads=threads: threads)
        monkeypatch.setattr(outer_blocking, "cache_sizes", lambda caches=caches: caches)
        found.add(outer_blocking.outer_blocking.__wrapped__(p).parts)
    assert found == {2}


def test_the_sums_of_a_unit_stay_in_a_part_of_the_second_cache(monkeypatch):
    caches = 48 << 10, 1 << 20, 32 << 20
    monkeypatch.setattr(outer_blocking, "cache_sizes", lambda: caches)
    for text in ("n8 c2176 h14 w14 k800 r1 s1", "n1 c512 h28 w28 k4096 r1 s1", "n8 c64 h56 w56 k256 r1 s1"):
        cut = outer_blocking.outer_blocking.__wrapped__(problem(f"{text} channels_last"))
        assert cut.unit_bytes <= outer_blocking.SECOND_CACHE * caches[1]
        assert cut.block * cut.panel * 4 <= outer_blocking.FIRST_CACHE * caches[0]
        assert cut.units % thread_count() == 0 or cut.units > thread_count()


def test_no_channel_meets_those_beside_it():
    """Values that are not finite spoil their own rows and columns alone, in panels with padding, too."""
    p = problem("n3 c40 h5 w7 k21 r1 s1 channels_last")
    x, dy = np.ones((3, 5, 7, 40), np.float32), np.ones((3, 5, 7, 21), np.float32)
    x[1, 2, 3, 17], dy[2, 4, 6, 5] = np.nan, np.inf
    dw = ca.plan(p, algorithm="cpu.direct.channels")(x, dy)[:, :, 0, 0]
    expected = np.full((21, 40), 105, np.float32)
    expected[5], expected[:, 17] = np.inf, np.nan
    assert np.array_equal(dw, expected, equal_nan=True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("n2 c8 h5 w5 k8 r3 s3 channels_last", "a 1x1 filter without padding"),
        ("n2 c8 h5 w5 k8 r1 s1 p1 channels_last", "a 1x1 filter without padding"),
        ("n2 c8 h5 w5 k8 r1 s1", "those of channels_last, or of maps of one pixel"),
    ],
)
def test_it_tells_what_it_does_not_serve(text, reason):
    with pytest.raises(ca.Unsupported, match=reason):
        ca.plan(problem(text), algorithm="cpu.direct.channels")


PROGRAM = """
from convalgos.cpu.direct_channels import DirectChannels
for text in (
    "n3 c37 h13 w9 k29 r1 s1 channels_last",
    "n2 c16 h9 w8 k6 r1 s1 channels_last",
    "n2 c51 h13 w10 k33 r1 s1 stride3,1 groups3 channels_last float64",
    "n2 c83 h24 w25 k131 r1 s1 channels_last",
):
    check(DirectChannels(), ConvProblem.parse(text).replace(direction="backward_weights"), "integers")
"""


def test_narrow_vectors():
    run_on_haswell(PROGRAM)
