"""Patterns of filters: their words, random filters of them, and finding them again."""

import numpy as np
import pytest

import convalgos as ca
from convalgos.core.filter_patterns import (
    box_weights,
    gaussian_sigmas,
    kernel_rank,
    pattern_of,
    pattern_of_phases,
    random_kernels,
    sampled_gaussian,
)
from convalgos.select.measure.accuracy import random_arrays

SHAPES = [(2, 3, 5, 7), (4, 1, 6, 4), (3, 1, 5, 4, 6)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_found_again(shape, whole, dtype):
    rng = np.random.default_rng(len(shape))
    for pattern in ("box", "gaussian", "rank1", "rank2", "rank3"):
        w = random_kernels(shape, pattern, rng, whole).astype(dtype)
        assert w.shape == shape and np.abs(w).max() > 0
        found = ca.filter_pattern(w)
        assert found == pattern or (whole and found in ("rank1", "rank2")), found  # of few numbers
        w[0, 0].flat[1] += np.abs(w[0, 0]).max() / 100 + 0.01  # one weight that is not of the pattern
        assert ca.filter_pattern(w) != pattern


def test_gaussians_tell_their_sigmas():
    kernel, sigmas = (9, 8), np.array([[[1.5, 40.0]], [[0.6, 2.0]]])  # (K=2, C=1, dimensions)
    peak = np.array([[1.0], [-3.0]])
    for dtype, near in (("float32", 1e-4), ("float64", 1e-9)):
        w = sampled_gaussian(kernel, peak, sigmas).astype(dtype)
        found_peak, found = gaussian_sigmas(w)
        assert np.allclose(found_peak, peak, rtol=near) and np.allclose(found, sigmas, rtol=near)
    assert gaussian_sigmas(-sampled_gaussian((5,), np.ones((1, 1)), np.ones((1, 1, 1)))) is not None
    assert gaussian_sigmas(np.array([[[1.0, 3.0, 2.0]]])) is None  # rises on one side only
    assert box_weights(np.full((2, 1, 3, 3), 7, np.uint8)).tolist() == [[7], [7]]
    assert ca.filter_pattern(np.zeros((1, 1, 3, 3))) == "box"


def test_ranks_within_an_error():
    rng = np.random.default_rng(0)
    w = random_kernels((1, 1, 9, 9), "rank1", rng, False)
    w /= np.linalg.norm(w)
    noisy = w + 1e-3 * rng.standard_normal(w.shape) / 9
    assert ca.filter_pattern(noisy) == "unstructured"
    assert ca.filter_pattern(noisy, 0.01) == "rank1~0.0011"
    assert ca.filter_pattern(noisy, 0.002) == "rank3~0.00068"  # of which 0.0011 is too large a share
    assert ca.filter_pattern(noisy, 1e-5) == "unstructured"
    assert ca.filter_pattern(w, 0.01) == "rank1"
    deep = random_kernels((2, 1, 4, 5, 6), "rank2~0.01", rng, False)
    found = pattern_of(ca.filter_pattern(deep, 0.05))
    assert found[:2] == ("rank", 2) and 1e-3 < found.left_out <= 0.01
    assert kernel_rank(w + 1e-9 * np.eye(9)) == 9
    assert ca.filter_pattern(np.eye(3)[None, None]) == "unstructured"  # as many products as it has rows
    assert ca.filter_pattern(np.arange(3.0)[None, None]) == "unstructured"  # 1-D already
    assert ca.filter_pattern(np.ones((1, 1, 1, 3, 3)) * np.eye(3)[0]) == "rank1"
    assert ca.filter_pattern(np.full((1, 1, 3, 3), np.nan)) == "unstructured"


@pytest.mark.parametrize("pattern", ["box", "gaussian", "rank1", "rank8", "rank3~0.001"])
def test_words(pattern):
    problem = ca.ConvProblem((1, 4, 9, 9), (4, 1, 5, 5), groups=4, pattern=pattern)
    assert str(problem).endswith(f" {pattern}") and ca.ConvProblem.parse(str(problem)) == problem
    assert problem.density == 1
    for dtype in ("float32", "float64"):
        _, w = random_arrays(problem.replace(dtype=dtype))
        assert w.dtype == dtype and ca.filter_pattern(w) in (pattern, "unstructured")
    _, w = random_arrays(problem.replace(dtype="uint8"))
    assert w.dtype == np.uint8 and w.max() > 0
    with pytest.raises(ValueError, match=r"density=0\.5 must be 1 with pattern="):
        problem.replace(density=0.5)
    with pytest.raises(ValueError, match="has no zeros"):
        ca.prune(np.ones((1, 1, 3, 3)), 0.5, pattern=pattern)
    algorithms = {
        c.id for c in ca.explain(problem).candidates
    }  # those of filters of no pattern serve it, too
    assert "cpu.direct" in algorithms


@pytest.mark.parametrize(
    "pattern",
    ["rank0", "rank9", "rank", "rank10", "boxes", "gauss", "box3", "rank2~0", "rank2~1", "rank2~", "box~0.1"],
)
def test_refused_words(pattern):
    with pytest.raises(ValueError, match="must be 'unstructured', 'N:M'"):
        pattern_of(pattern)


def test_phases_of_strides():
    assert pattern_of_phases("gaussian", (1, 1)) == "gaussian"
    assert pattern_of_phases("gaussian", (1, 2)) == "rank1"
    assert pattern_of_phases("rank3", (2, 2)) == "rank3"
    assert pattern_of_phases("rank3~0.01", (1, 1)) == "rank3~0.01"
    assert pattern_of_phases("rank3~0.01", (1, 2)) == "unstructured"
    assert ca.ConvProblem.parse("n1 c1 h9 w9 k1 r5 s5 rank2~1e-3").pattern == "rank2~0.001"
    assert pattern_of_phases("2:4", (1, 1)) == "unstructured"


def test_arguments():
    for w, error in ((np.ones((3, 3)), 0.0), (np.ones((1, 1, 3), complex), 0.0), (np.ones((1, 1, 3)), -1.0)):
        with pytest.raises(ValueError, match=r"w has shape|max_rel_error=-1.0 must be"):
            ca.filter_pattern(w, error)
