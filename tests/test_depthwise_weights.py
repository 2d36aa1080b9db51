"""The gradient of depthwise filters: every way of cutting the maps, and of reading them.

That it is right on awkward problems in general is tested with all other algorithms, in test_gradients.py.
"""

import numba
import numpy as np
import pytest
from helpers import check, example
from narrow_vectors import run_on_haswell

from convalgos import ConvProblem
from convalgos.cpu import reference
from convalgos.cpu.depthwise_weights import DepthwiseWeights
from convalgos.cpu.dwconv import padded_planes
from convalgos.cpu.dwconv.padded_planes import PaddedPlanes
from convalgos.cpu.vectors import instructions

WEIGHTS = DepthwiseWeights()
TEXTS = """
n2 c1 h7 w7 k1 r3 s3 p1 groups1
n2 c19 h14 w15 k19 r5 s5 p2 groups19             # several vectors of channels, the last one short
n2 c16 h3 w3 k16 r5 s5 p4 groups16               # fewer pixels than in a square, and than taps
n1 c17 h13 w20 k17 r3 s3 p2:1,0:2 stride2 groups17
n1 c3 h40 w50 k3 r2 s3 p0:1,1:0 stride3,2 groups3
n1 c18 h12 w13 k18 r3 s3 p4:5,6:9 dilation2 groups18      # rows and columns that see nothing but padding
n1 c3 h9 w70 k3 r3 s4 p1 stride5 groups3         # more phases than are split by vectors
n1 c16 h9 w9 k16 r1 s1 stride2 groups16          # columns that no tap reads
n1 c2 h20 w35 k2 r9 s9 p4 groups2                # tiles of taps of several sizes
n2 c3 h8 w19 k6 r3 s2 p1 groups3                 # filters for each channel
n1 c17 w900 k17 s4 p3:0 groups17
n1 c3 w301 k3 s40 p39:0 stride2 groups3
n1 c16 d5 h6 w7 k16 t3 r3 s3 p1 stride2,1,2 groups16
n1 c3 d6 h9 w20 k6 t2 r3 s3 p1 dilation2 groups3
n2 c20 h12 w33 k20 r3 s3 p1 wrap groups20        # rows that are copies of rows under other blocks
n1 c16 h3 w2 k16 r3 s3 p5 reflect groups16       # blocks that hold nothing of the map
n1 c16 d4 h9 w9 k16 t3 r3 s3 p1 wrap,edge,zero groups16
n2 c5 h17 w23 k5 r4 s6 p2:0,1:4 symmetric,reflect groups5 stride3,2
n1 c18 h17 w15 k18 r5 s5 p2 constant fill3 groups18
n1 c3 h9 w90 k3 r1 s20 p2,25 edge groups3 stride1,12
""".strip().splitlines()
PROBLEMS = [
    problem
    for text in TEXTS
    for layout in ("channels_first", "channels_last")
    for dtype in ("float32", "float64")[: 1 if "fill" in text or "edge" in text or "wrap" in text else 2]
    if WEIGHTS.why_not(
        problem := ConvProblem.parse(text.partition("#")[0]).replace(
            direction="backward_weights", layout=layout, dtype=dtype
        )
    )
    is None
]


def cuts(problem):
    """Both kinds of vectors where x can be read so, in blocks of all sizes."""
    view = problem.as_3d
    for room in (padded_planes.IN_L2, 0.02, 0.001):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(padded_planes, "IN_L2", room)
            patch.setattr(padded_planes, "IN_L2_TOGETHER", room)
            for by_channel in (True, False):
                cut = padded_planes.in_blocks(view, by_channel)
                if cut.serves:
                    yield cut


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_every_cut_is_exact(problem, monkeypatch):
    for cut in set(cuts(problem)):
        monkeypatch.setattr("convalgos.cpu.depthwise_weights.padded_planes", lambda _, cut=cut: cut)
        check(WEIGHTS, problem, "integers")


def test_cuts_go_in_every_direction():
    found = [cut for problem in PROBLEMS for cut in cuts(problem)]
    for axis in range(3):
        assert any(cut.blocks[axis] > 1 and not cut.by_channel for cut in found)
        assert any(cut.blocks[axis] > 1 and cut.by_channel for cut in found)
        assert any(cut.blocks[axis] > 1 and cut.is_gathered for cut in found) == (axis < 2)


@pytest.mark.parametrize("width", [64, 32, 16])
@pytest.mark.parametrize("kernel", [(1, 1, 1), (1, 3, 3), (1, 7, 7), (3, 5, 4), (1, 1, 100), (1, 31, 31)])
def test_tiles_cover_every_tap_once(width, kernel, monkeypatch):
    monkeypatch.setattr(padded_planes, "vector_bytes", lambda: width)
    t, r, s = kernel
    problem = ConvProblem((1, 1, t, r, 100 + s), (1, 1, t, r, s))
    tiles = PaddedPlanes(problem, problem.spatial_out, False).tap_tiles
    met = np.zeros((t * r, s), int)
    for rows, columns in tiles:
        met[rows.start : rows.stop, columns.start : columns.stop] += 1
        assert len(rows) * len(columns) <= padded_planes.TAP_SUMS[width]
        assert len(rows) + len(columns) <= padded_planes.ADDRESSES
    assert (met == 1).all()


@pytest.mark.parametrize("text", ["n2 c5 h30 w33 k5 r3 s3 p1 groups5", "n1 c33 h9 w9 k33 r3 s3 p1 groups33"])
def test_nan_stays_in_its_channel_and_its_run(text):
    problem = ConvProblem.parse(text).replace(direction="backward_weights")
    x, dy = (array.astype(np.float32) for array in example(problem, "integers")[:2])
    plan = WEIGHTS.serve(problem)
    clean = plan(x, dy)
    x[:, 3] = np.nan
    spoilt = plan(x, dy)
    assert np.isnan(spoilt[3]).any()
    assert np.array_equal(np.delete(spoilt, 3, 0), np.delete(clean, 3, 0))
    x[:, 3] = 0
    again = plan(x, dy)
    assert np.array_equal(again, reference.answer(problem, x.astype(float), dy.astype(float)))


def test_how_many_units_go_together_changes_no_bits(monkeypatch):
    problem = ConvProblem.parse("n3 c150 h12 w11 k150 r3 s3 p1 groups150 channels_last backward_weights")
    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal((3, 12, 11, 150), np.float32) for _ in range(2))
    found, together = [], set()
    for share in (0.0, 0.01, 1.0):
        monkeypatch.setattr(padded_planes, "ALL_IN_L2", share)
        together.add(padded_planes.padded_planes(problem).together)
        found.append(WEIGHTS.plan(problem)(x, dy))
    assert len(together) > 1 and np.isfinite(found[0]).all()
    assert all(np.array_equal(found[0], other) for other in found)


@pytest.mark.parametrize(
    ("text", "by_channel"),
    [
        ("n8 c960 h7 w7 k960 r3 s3 p1 groups960", True),
        ("n8 c384 h14 w14 k384 r3 s3 p1 groups384", True),
        ("n8 c144 h56 w56 k144 r5 s5 p2 stride2 groups144", True),
        ("n8 c144 h56 w56 k144 r3 s3 p1 groups144", True),
        ("n8 c32 h112 w112 k32 r3 s3 p1 groups32", False),  # which are asked into L2 ahead
        ("n8 c96 h112 w112 k96 r3 s3 p1 stride2 groups96", True),
        ("n8 c3 h224 w224 k3 r3 s3 p1 groups3", False),  # most lanes would be empty
        ("n8 c64 h14 w14 k128 r3 s3 p1 groups64", False),  # several dy for each x
        ("n1 c64 w100000 k64 s3 p1 groups64", False),  # parts of a row
    ],
)
def test_vectors_are_channels_where_that_was_faster(text, by_channel, monkeypatch):
    monkeypatch.setattr(padded_planes, "cpu_count", lambda: 2)
    monkeypatch.setattr(padded_planes, "cache_sizes", lambda: (48 << 10, 1 << 20, 32 << 20))
    monkeypatch.setattr(padded_planes, "vector_bytes", lambda: 64)
    monkeypatch.setattr(instructions, "vector_bytes", lambda: 64)
    problem = ConvProblem.parse(text).replace(direction="backward_weights")
    assert padded_planes.padded_planes.__wrapped__(problem).by_channel == by_channel


def test_the_cut_does_not_depend_on_the_threads():
    problem = ConvProblem.parse("n1 c33 h56 w56 k33 r3 s3 p1 groups33")
    threads, found = numba.get_num_threads(), set()
    for count in (1, threads):
        numba.set_num_threads(count)
        try:
            found.add(padded_planes.padded_planes.__wrapped__(problem))
        finally:
            numba.set_num_threads(threads)
    assert len(found) == 1


PROGRAM = """
from convalgos.cpu.depthwise_weights import DepthwiseWeights
for text in (
    "n2 c19 h17 w30 k19 r3 s3 p1 groups19",
    "n1 c8 h7 w7 k8 r7 s7 p3 groups8",
    "n1 c3 h21 w22 k6 r5 s5 p2 stride2 groups3 float64",
    "n1 c9 h20 w21 k9 r5 s5 p2 groups9 channels_last",
):
    check(DepthwiseWeights(), ConvProblem.parse(text).replace(direction="backward_weights"), "integers")
"""


def test_narrow_vectors():
    run_on_haswell(PROGRAM)
