"""Dimensions of a map that lie in memory as one are computed as one, by every algorithm of the CPU."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import check

import convalgos as ca
from convalgos.core.errors import missing
from convalgos.core.problem import DIRECTIONS, LAYOUTS
from convalgos.cpu.runtime import half
from convalgos.select import find_algorithm, registry
from convalgos.select.search import filled_outputs

pytestmark = pytest.mark.skipif(missing("llvmlite") is not None, reason="needs llvmlite")
parse = ca.ConvProblem.parse


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("n2 c3 d9 h5 w7 k4 t3 r1 s1 p1,0,0", "n2 c3 h9 w35 k4 r3 s1 p1,0"),
        ("n2 c3 d9 h5 w7 k4 t1 r1 s3 p0,0,1", "n2 c3 h45 w7 k4 r1 s3 p0,1"),
        ("n1 c3 d9 h5 w7 k4 t3 r1 s1 stride2,1,1 dilation2", "n1 c3 h9 w35 k4 r3 s1 stride2,1 dilation2,1"),
        (
            "n1 c3 d9 h5 w7 k4 t3 r1 s1 p0:2,0:0,0:0 channels_last",
            "n1 c3 h9 w35 k4 r3 s1 p0:2,0:0 channels_last",
        ),
        ("n1 c1 d9 h5 w7 k1 t3 r1 s1 channels_last", "n1 c1 h9 w35 k1 r3 s1"),  # in the faster layout, too
        *((text, text) for text in (
            "n1 c3 d9 h5 w7 k4 t3 r1 s1 p1",  # padding in the plane,
            "n1 c3 d9 h5 w7 k4 t3 r1 s1 p0:0,0:0,0:1",
            "n1 c3 d9 h5 w7 k4 t3 r1 s1 stride1,1,2",  # a step,
            "n1 c3 d9 h5 w7 k4 t1 r3 s1",  # no neighbours,
            "n1 c3 d9 h5 w7 k4 t1 r1 s1",  # and what is one row already
            "n1 c3 h5 w7 k4 r3 s1",
        )),
    ],
)  # fmt: skip
def test_which_dimensions_merge(text, read):
    assert str(parse(text).reread) == str(parse(read))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_every_algorithm_computes_them(wisdom, direction, layout):
    """Exact on integers, also by those that serve only one of the two forms."""
    for text in (
        "n2 c5 d11 h3 w7 k18 t3 r1 s1 p1:0,0:0,0:0 dilation2",
        "n1 c6 d9 h7 w5 k4 t1 r1 s5 p0,0,2 stride1,1,2 groups2",
        "n1 c17 d13 h5 w5 k17 t3 r1 s1 p2,0,0 groups17 stride3,1,1",
        "n1 c3 d5 h3 w6 k2 t3 r1 s1 p40,0,0 stride1000,1,1",
    ):
        problem = parse(text).replace(layout=layout, direction=direction)
        candidates = ca.explain(problem).candidates
        assert sum(c.computed.ndim == 2 for c in candidates) >= 3
        for candidate in candidates:
            check(candidate.algorithm, problem)


def test_a_kernel_in_depth_is_transformed(wisdom):
    problem = parse("n1 c64 d16 h28 w28 k64 t3 r1 s1 p1,0,0")
    ranking = ca.explain(problem)
    plane = parse("n1 c64 h16 w784 k64 r3 s1 p1,0")
    assert ranking.candidates[0].id.startswith("cpu.winograd") and ranking.candidates[0].computed == plane
    assert "the same memory, read as n1 c64 h16 w784 k64 r3 s1 p1,0\n" in str(ranking)
    assert [c.id for c in ranking.candidates] == [c.id for c in ca.explain(plane).candidates]
    assert "read as" not in str(ca.explain(plane))
    twos = next(r for r in ranking.rejected if r.id == "cpu.winograd.f4x2")
    assert twos.why_not.endswith("kernel 3x1 has 3 by 1")


def test_outputs_that_are_computed_are_those_of_the_plane(wisdom):
    problem, algorithm = parse("n2 c8 d9 h3 w5 k8 t3 r1 s1 p1,0,0"), find_algorithm("cpu.winograd.f4x3")
    assert filled_outputs(problem, algorithm.granule(algorithm.computed(problem))) == 2 * 12 * 15
    later = [problem.replace(x_shape=(1, 8, d, 3, 5)) for d in range(4, 10)]
    assert all(ca.plan(p).algorithm for p in later)  # from a bucket, all but the first ones


@pytest.mark.parametrize("text", ["n0 c3 d9 h5 w7 k4 t3 r1 s1", "n2 c3 d9 h0 w7 k4 t3 r1 s1 p1,0,0"])
def test_nothing_to_sum(text):
    problem = parse(text)
    y = ca.plan(problem)(np.zeros(problem.x_shape, "f"), np.ones(problem.w_shape, "f"))
    assert y.shape == problem.y_shape and not y.any()


def test_16_bit_data_and_a_residual_go_through_both_wrappers(monkeypatch):
    calls, convert = [], half.convert
    monkeypatch.setattr(half, "convert", lambda *arrays: calls.append(1) or convert(*arrays))
    problem = parse("n1 c8 d6 h3 w5 k8 t3 r1 s1 p1,0,0 float16")
    rng = np.random.default_rng(0)
    x, w, r = (
        rng.integers(-3, 4, s).astype("f") for s in (problem.x_shape, problem.w_shape, problem.y_shape)
    )
    y = ca.plan(problem, algorithm="cpu.direct")(
        *(a.astype("float16") for a in (x, w)), residual=r.astype("float16"), activation="relu"
    )
    expected = ca.conv(x, w, padding=(1, 0, 0), algorithm="cpu.reference") + r
    assert np.array_equal(y, np.maximum(expected, 0).astype("float16"))
    assert len(calls) >= 3  # of w, x and y: by the kernels of the inner plan


def test_variants_that_are_named_serve_the_plane():
    problem = parse("n1 c16 d12 h5 w5 k16 t3 r1 s1 p1,0,0")
    check(replace(find_algorithm("cpu.winograd.f4x3"), box=6), problem)
    assert any(v.id == "cpu.winograd.f3x3" for v in registry.variants(problem, "cpu"))
