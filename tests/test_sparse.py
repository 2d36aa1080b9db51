"""Sparse filters: their kernels in every form, the choice between them and dense ones, and `ca.prune`."""

import numpy as np
import pytest
from helpers import check
from scipy import sparse

import convalgos as ca
from convalgos.cpu import sparse as sparse_plans
from convalgos.cpu.spconv.blocking import sparse_blocking
from convalgos.cpu.spconv.cost import best_blocking, break_even
from convalgos.cpu.vectors import simd
from convalgos.select import find_algorithm
from convalgos.select.measure.accuracy import random_arrays, repeating_arrays

SPARSE = find_algorithm("cpu.sparse")


@pytest.mark.parametrize(
    ("text", "shifted", "sharing"),
    [
        ("n1 c70 h12 w56 k49 r3 s3 p1 density0.5", True, 1),  # several chunks of channels and blocks of rows
        ("n2 c40 h20 w50 k9 r3 s3 p1 density0.02", False, 1),
        ("n1 c40 h21 w20 k12 r3 s3 p1 stride2 dilation2,1 density0.3", True, 1),
        ("n1 c9 h7 w7 k14 r3 s3 p1 density0.4 block4x1", False, 4),  # blocks across the ends of tiles
        ("n2 c24 h9 w40 k24 r3 s3 p1 groups3 density0.1 block8x1 channels_last", False, 8),
        ("n1 c16 w900 k8 s9 p4 2:4 float64", False, 1),
    ],
)
def test_forms(text, shifted, sharing):
    """Whole numbers are summed exactly, also by weights in another pattern than the problem promises."""
    problem = ca.ConvProblem.parse(text)
    cut = best_blocking(problem)
    assert (cut.shifted, cut.sharing) == (shifted, sharing), text
    check(SPARSE, problem, "integers", [(True, "relu"), (False, None)])


def test_blocks_whose_rows_are_read_as_far_as_those_of_y_are_long(monkeypatch):
    """Blocks of rows less the last pixel, whose windows reach it: their rows are no run of y."""
    lanes = simd.lanes(8)
    problem = ca.ConvProblem((1, 3, 9, 2 * lanes + 2), (5, 3, 2, 2), dtype="float64", density=0.5)
    cut = sparse_blocking(problem, 1, False, 2)  # parts of each row
    assert cut.pitch == problem.spatial_out[1] == cut.block[1] + 1 and cut.block[0] > 1
    monkeypatch.setattr(sparse_plans, "best_blocking", lambda problem: cut)
    check(SPARSE, problem, "integers", [(True, "relu"), (False, None)])


def test_gradients_leave_zeros_out():
    problem = ca.ConvProblem.parse("n1 c8 h12 w12 k8 r3 s3 p1 stride2 backward_data density0.2")
    algorithm = next(a for a in ca.select.algorithms_on("cpu", "backward_data") if a.id == "cpu.sparse")
    check(algorithm, problem, "integers", [(True, None)])


def test_filters_of_scipy():
    problem = ca.ConvProblem.parse("n1 c6 h9 w9 k8 r3 s3 p1 density0.3")
    rng = np.random.default_rng(0)
    x = rng.standard_normal(problem.x_shape, np.float32)
    w = ca.prune(rng.standard_normal(problem.w_shape, np.float32), 0.3)
    for name in ("cpu.sparse", "cpu.direct"):
        plan = ca.plan(problem, algorithm=name)
        for form in (sparse.csr_array, sparse.coo_matrix):
            assert np.array_equal(plan(x, plan.prepare(form(w.reshape(8, -1)))), plan(x, w)), (name, form)
        with pytest.raises(ValueError, match=r"w has shape \(8, 6\).* has \(8, 54\)"):
            plan.prepare(sparse.csr_array(w[:, :, 0, 0]))
        with pytest.raises(TypeError, match="w has dtype float64"):
            plan.prepare(sparse.csr_array(w.reshape(8, -1).astype(np.float64)))


def test_zero_weights_meet_no_nan():
    problem = ca.ConvProblem.parse("n1 c2 h5 w5 k2 r1 s1 density0.5")
    w = np.array([[1, 0], [0, 1]], np.float32).reshape(2, 2, 1, 1)
    x = np.ones(problem.x_shape, np.float32)
    x[0, 0] = np.nan
    y = ca.plan(problem, algorithm="cpu.sparse")(x, w)
    assert np.isnan(y[0, 0]).all() and (y[0, 1] == 1).all()
    assert not np.count_nonzero(ca.plan(problem, algorithm="cpu.sparse")(x, 0 * w))  # nothing is listed


def test_the_density_decides():
    layer = ca.ConvProblem.parse("n1 c128 h28 w28 k128 r3 s3 p1")
    assert ca.plan(layer.replace(density=0.03)).algorithm == "cpu.sparse"
    assert ca.plan(layer.replace(density=0.8)).algorithm != "cpu.sparse"
    assert 0.1 < break_even(layer) < break_even(layer.replace(pattern="block4x1", density=0.5)) <= 1
    told = f"faster than dense sums below a density of {break_even(layer):.2f}"
    assert told in str(ca.explain(layer.replace(density=0.03)))
    refused = {r.id: r.why_not for r in ca.explain(layer).rejected}
    assert "give it a density below 1" in refused["cpu.sparse"]


@pytest.mark.parametrize(
    ("words", "share"),
    [("density0.1", 0.1), ("uint8 w_int8 density0.2", 0.2), ("2:4", 0.5), ("2:4 density0.2", 0.2),
     ("density0.25 block4x2", 0.25), ("backward_data density0.1", 0.1),
     ("density0.1 bfloat16 channels_last", 0.1)],
)  # fmt: skip
@pytest.mark.parametrize("draw", [random_arrays, repeating_arrays])
def test_what_is_timed_has_the_zeros_of_the_problem(draw, words, share):
    problem = ca.ConvProblem.parse(f"n1 c46 h9 w9 k50 r3 s3 p1 {words}")
    x, w = draw(problem)
    kept = np.asarray(w).astype(np.float64) != 0
    assert (
        abs(kept.mean() - share) < 0.02 and np.count_nonzero(np.asarray(x).astype(np.float64)) > 0.9 * x.size
    )
    if "2:4" in words:
        assert kept[:, :44].reshape(50, 11, 4, 3, 3).sum(axis=2).max() == 2
    if "block" in words:
        blocks = kept[:48].reshape(12, 4, 23, 2, 3, 3)
        assert (blocks == blocks[:, :1, :, :1]).all()


def test_gradients_of_filters_and_dense_filters_have_no_zeros():
    for words in ("backward_weights density0.1", ""):
        arrays = repeating_arrays(ca.ConvProblem.parse(f"n1 c6 h9 w9 k8 r3 s3 p1 {words}"))
        assert all(np.count_nonzero(a) == a.size for a in arrays)


# --- ca.prune --------------------------------------------------------------------------------


def test_prune_keeps_the_largest():
    w = np.random.default_rng(0).standard_normal((8, 12, 3, 3)).astype(np.float32)
    kept = ca.prune(w, 0.25)
    assert kept.dtype == w.dtype and np.count_nonzero(kept) == w.size // 4
    assert np.abs(kept[kept != 0]).min() >= np.abs(w[kept == 0]).max()
    assert np.array_equal(kept[kept != 0], w[kept != 0])


def test_prune_by_patterns():
    w = np.random.default_rng(0).standard_normal((6, 10, 3, 3))
    kept = ca.prune(w, pattern="2:4")
    groups = [kept[:, 0:4], kept[:, 4:8], kept[:, 8:]]  # the last group has two channels
    assert all((np.count_nonzero(g, axis=1) == 2).all() for g in groups)
    fewer = ca.prune(w, 0.25, pattern="2:4")
    assert np.count_nonzero(fewer) == round(0.25 * w.size) and not fewer[kept == 0].any()
    blocks = ca.prune(w, 0.5, pattern="block4x5") != 0  # blocks of 4 and 2 filters
    assert (blocks[:4, :5] == blocks[0, 0]).all() and (blocks[4:, 5:] == blocks[4, 5]).all()
    assert np.count_nonzero(blocks[[0, 4]][:, [0, 5]]) == 18  # half of the 36 blocks


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"density": None}, "density=None must be a number above 0"),
        ({"density": 0.6, "pattern": "2:4"}, "density=0.6 must be at most 0.5"),
        ({"density": 0.5, "pattern": "4x1"}, "pattern='4x1' must be"),
    ],
)
def test_prune_refuses(given, told):
    with pytest.raises(ValueError, match=told):
        ca.prune(np.ones((4, 4, 1, 1)), **given)
    with pytest.raises(ValueError, match="a filter is"):
        ca.prune(np.ones(4), 0.5)
