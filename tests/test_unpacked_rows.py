"""Direct convolutions whose inputs are rows of a matrix: fully connected layers of a batch."""

import numpy as np
import pytest
from helpers import check

import convalgos as ca
from convalgos import ConvProblem
from convalgos.core.machine import cache_sizes
from convalgos.core.problem_views import on_map
from convalgos.cpu import direct
from convalgos.cpu.gemm import unpacked_rows, unpacked_rows_cut
from convalgos.cpu.runtime.threads import on_one_thread
from convalgos.cpu.vectors import simd

ROWS = [
    "n3 c5 h1 w1 k1 r1 s1",
    "n9 c26 h1 w1 k70 r1 s1",
    "n17 c1 h1 w1 k130 r1 s1",
    "n128 c40 h1 w1 k16 r1 s1",
    "n23 c316 k100 w1 s1",
    "n11 c1500 h1 w1 k20 r1 s1",  # in several passes over the filters
    "n40 c200 h1 w1 k300 r1 s1",  # shared by threads
]
PIXELS = ["n1 c26 h2 w7 k70 r1 s1", "n3 c8 h3 w3 k33 r1 s1", "n2 c5 d2 h2 w2 k17 t1 r1 s1"]


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("text", ROWS)
def test_rows_of_a_batch(text, layout):
    problem = ConvProblem.parse(text).replace(layout=layout)
    assert isinstance(direct.Direct().plan(problem), unpacked_rows.UnpackedRowsPlan)
    check(direct.Direct(), problem)


@pytest.mark.parametrize("text", PIXELS)
def test_pixels_whose_channels_are_neighbours(text, monkeypatch):
    monkeypatch.setattr(unpacked_rows, "FILLED", 0.0)
    problem = ConvProblem.parse(text)
    assert not isinstance(direct.Direct().plan(problem), unpacked_rows.UnpackedRowsPlan)
    problem = problem.replace(layout="channels_last")
    assert isinstance(direct.Direct().plan(problem), unpacked_rows.UnpackedRowsPlan)
    check(direct.Direct(), problem)


@pytest.mark.parametrize("pixels", [unpacked_rows.MANY_ROWS - 1, unpacked_rows.MANY_ROWS, 75])
def test_filters_of_many_classes(pixels):
    """From beyond L2, they are read once for all of many pixels."""
    filters = cache_sizes()[1] // (4 * 60) // 64 * 64 + 123
    problem = ConvProblem.parse(f"n1 c60 h1 w{pixels} k{filters} r1 s1 channels_last")
    form = direct.direct_form(problem)
    assert (form is direct.UNPACKED_ROWS) == (pixels >= unpacked_rows.MANY_ROWS)
    check(direct.Direct(), problem)


@pytest.mark.parametrize("text", ["n11 c1500 h1 w1 k20 r1 s1", "n9 c26 h1 w1 k70 r1 s1"])
@pytest.mark.parametrize("activation", [None, "relu", ("clip", -3, 4), "gelu"])
@pytest.mark.parametrize("in_place", [False, True])
def test_output_step(text, activation, in_place):
    problem = ConvProblem.parse(text)
    rng = np.random.default_rng(2)
    x, w, residual = (rng.integers(-2, 3, shape).astype(np.float32) for shape in problem.array_shapes)
    bias = rng.integers(-4, 5, problem.K).astype(np.float32)
    plan = direct.Direct().plan(problem)
    sums = np.einsum("nchw,kchw->nk", x, w)[..., None, None] + bias[:, None, None] + residual
    none = np.zeros((1, 1, 1, 1), np.float32)  # the activation of what is summed already
    expected = sums
    y = residual.copy() if in_place else np.full(problem.y_shape, np.nan, np.float32)
    found = plan(
        x, plan.prepare(w), bias=bias, residual=y if in_place else residual, activation=activation, out=y
    )
    if activation is not None:
        flat = sums.reshape(1, 1, 1, -1)
        expected = ca.conv(flat, none + 1, activation=activation).reshape(sums.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_rows_that_lie_apart():
    problem = ConvProblem.parse("n12 c20 h1 w1 k37 r1 s1")
    rng = np.random.default_rng(3)
    wide = rng.integers(-3, 4, (12, 31, 1, 1)).astype(np.float32)
    w = rng.integers(-3, 4, problem.w_shape).astype(np.float32)
    plan = direct.Direct().plan(problem)
    target = np.full((12, 50, 1, 1), np.nan, np.float32)
    plan.bind(wide[:, 5:25], plan.prepare(w), target[:, 4:41]).run()
    assert np.array_equal(target[:, 4:41, 0, 0], wide[:, 5:25, 0, 0] @ w[:, :, 0, 0].T)
    assert np.isnan(target[:, :4]).all() and np.isnan(target[:, 41:]).all()


def test_a_filter_serves_any_number_of_rows():
    for filters in (1, 16, 100, 333, 1024):
        layers = [ConvProblem((n, 60, 1, 1), (filters, 60, 1, 1)) for n in (3, 8, 9, 64, 128)]
        forms = {direct.Direct().plan(layer).filter_form() for layer in layers}
        assert len(forms) == 1


def test_plans_for_other_rows_are_made_like_one():
    rng = np.random.default_rng(4)
    w = rng.integers(-3, 4, (333, 60, 1, 1)).astype(np.float32)
    known = direct.Direct().plan(ConvProblem((9, 60, 1, 1), w.shape))
    prepared = known.prepare(w)
    for rows in (3, 4, 17, 64, 2, 70):
        x = rng.integers(-3, 4, (rows, 60, 1, 1)).astype(np.float32)
        plan = direct.Direct().plan_like(ConvProblem(x.shape, w.shape), known)
        assert (plan._key is known._key) == (rows > 2)
        y = plan(x, prepared if rows > 2 else w)
        assert np.array_equal(y[:, :, 0, 0], x[:, :, 0, 0] @ w[:, :, 0, 0].T)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("n1 c60 h5 w9 k48 r1 s1", (1, 7, 31)),
        ("n1 c60 h5 w9 k93 r1 s1", (3, 1, 2)),
        ("n1 c90 w40 k64 s1", (2, 77)),
        ("n9 c60 h1 w1 k333 r1 s1", (70, 1, 1)),
        ("n1 c150 h90 w80 k16 r1 s1", (1, 99, 81)),
        ("n1 c190 h3 w9 k16 r1 s1", (40, 2, 90)),
    ],
)
def test_plans_by_sizes_alone(text, sizes):
    """Every field of the record, and the kernels, are those that the problem leads to."""
    known = direct.Direct().plan(ConvProblem.parse(f"{text} channels_last"))
    problem = on_map(known.problem, (sizes[0], known.problem.C, *sizes[1:]))
    found, like = known.on_sizes(problem.x_shape, problem.y_shape), known.on_maps(problem)
    assert type(found) is unpacked_rows.UnpackedRowsPlan and found._key is known._key
    assert (found._parallel, found._short, found.steps, found.strided_batch) == (
        like._parallel, like._short, like.steps, like.strided_batch,
    )  # fmt: skip
    for field in like.record.dtype.names:
        assert field == "kernels" or found.record[field] == like.record[field], field
    assert np.array_equal(found._tables["kernels"], like._tables["kernels"])
    assert found.problem == problem and found._cut.rows == like._cut.rows == problem.gemm_m


def test_few_rows_and_single_pixels_are_looked_at():
    known = direct.Direct().plan(ConvProblem.parse("n1 c60 h5 w9 k48 r1 s1 channels_last"))
    for sizes in ((1, 1, 2), (1, 1, 1), (9, 1, 1)):
        assert known.on_sizes((sizes[0], 60, *sizes[1:]), (sizes[0], 48, *sizes[1:])) is None
    single = direct.Direct().plan(ConvProblem((9, 60, 1, 1), (48, 60, 1, 1)))
    assert single.on_sizes((9, 60, 1, 2), (9, 48, 1, 2)) is None
    with on_one_thread():
        assert known.on_sizes((1, 60, 5, 8), (1, 48, 5, 8)) is None


def test_plans_like_those_of_other_threads():
    rng = np.random.default_rng(5)
    for vectors in range(1, 14):
        x = rng.integers(-3, 4, (17, 60, 1, 1)).astype(np.float32)
        w = rng.integers(-3, 4, (vectors * simd.lanes(4), 60, 1, 1)).astype(np.float32)
        known = direct.Direct().plan(ConvProblem((9, 60, 1, 1), w.shape))
        with on_one_thread():
            plan = direct.Direct().plan_like(ConvProblem(x.shape, w.shape), known)
        assert np.array_equal(plan(x, w)[:, :, 0, 0], x[:, :, 0, 0] @ w[:, :, 0, 0].T)


def test_every_tile_is_a_kernel():
    """Heights and widths of tiles are those that registers hold, and threads have tiles of their own."""
    lanes = simd.lanes(4)
    for filters in (1, lanes, 5 * lanes + 1, 9 * lanes, 40 * lanes):
        for rows in (3, 9, 17, 64, 127):
            cut = unpacked_rows_cut.unpacked_rows_cut(ConvProblem((rows, 90, 1, 1), (filters, 90, 1, 1)))
            assert 0 < rows - (cut.tiles - 1) * cut.tall <= cut.tall
            assert cut.tall in unpacked_rows_cut.heights(cut.vectors_of, cut.panels)
            widths = np.diff(cut.vectors_of * np.arange(cut.panels + 1) // cut.panels)
            assert widths.min() > 0 and widths.max() == cut.vectors
