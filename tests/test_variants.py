"""Other settings of the tuning fields: right results, tried by exhaustive searches only, remembered by id."""

import numpy as np
import pytest
from helpers import check

import convalgos as ca
from convalgos.select import choose, devices, registry
from convalgos.select.measured import Measured
from convalgos.select.wisdom_file import IDS

LISTED = {a.id for a in registry.algorithms()}
DENSE = ca.ConvProblem.parse("n2 c20 h17 w23 k18 r3 s3 p1")
BROAD = ca.ConvProblem.parse("n1 c64 h56 w56 k64 r3 s3 p1")  # of many candidates that are close
LARGE = ca.ConvProblem.parse("n1 c17 h40 w41 k16 r5 s5 p2")
LINE = ca.ConvProblem.parse("n2 c1 w20000 k1 s301 p150")


def ids(problem):
    return [a.id for a in registry.variants(problem, "cpu")]


def test_they_are_new_and_have_ids_of_their_own():
    for problem in (DENSE, LARGE, LINE):
        found = ids(problem)
        assert found == sorted(set(found))
        assert found and not LISTED & set(found)
        assert all(IDS.fullmatch(i) for i in found)
    assert "cpu.winograd.f3x3" in ids(DENSE)
    assert any(i.startswith("cpu.winograd.f6x3.box") for i in ids(DENSE))
    assert {"cpu.fft_tiles.t10", "cpu.fft_tiles.t30"} <= set(ids(LARGE))
    assert any(i.startswith("cpu.fft.overlap.") for i in ids(LINE))


def test_boxes_are_not_offered_twice():
    winograd = registry.find_algorithm("cpu.winograd.f4x3")
    boxed = [a for a in winograd.variants(DENSE) if a.box]
    cuts = [(a._schedule(DENSE).cuts, a._schedule(DENSE).team) for a in (winograd, *boxed)]
    assert len(set(cuts)) == len(cuts)


@pytest.mark.parametrize(
    ("problem", "variant"),
    [
        (DENSE, "cpu.winograd.f3x3"),
        (DENSE, "cpu.winograd.f6x3.box"),
        (LARGE, "cpu.winograd.f3x5"),
        (LARGE, "cpu.fft_tiles.t10"),
        (LARGE, "cpu.fft_tiles.t30"),
        (LARGE, "cpu.fft_tiles.t16.box"),
    ],
)
def test_they_compute_the_same(problem, variant):
    first = next(i for i in ids(problem) if i.startswith(variant))
    check(registry.find_algorithm(first, problem), problem)


def test_lengths_of_blocks_compute_the_same():
    variants = [a for a in registry.variants(LINE, "cpu") if a.family == "cpu.fft"]
    assert len({a.cut(LINE).lengths for a in variants}) == len(variants) == 2
    for a in variants:
        check(a, LINE)


def test_only_an_exhaustive_search_tries_them(wisdom, shipped_figures):
    assert {c.id for c in choose.rank(BROAD).candidates} <= LISTED
    ranking = choose.rank(BROAD, exhaustive=True)
    least = min(c.seconds for c in ranking.candidates)
    more = [c for c in ranking.candidates if c.id not in LISTED]
    assert more and all(c.seconds <= choose.VARIED * least for c in more)


def test_what_was_measured_of_them_decides(wisdom):
    variant = "cpu.winograd.f3x3"
    devices.store().record(DENSE, {variant: Measured((1e-9,) * 5)})
    plan = ca.plan(DENSE)
    assert plan.algorithm == variant
    assert ca.explain(DENSE).candidates[0].id == variant
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal(DENSE.x_shape, np.float32), rng.standard_normal(DENSE.w_shape, np.float32)
    y = ca.conv(x, plan.prepare(w), padding=1)
    np.testing.assert_allclose(y, ca.conv(x, w, padding=1, algorithm="cpu.reference"), atol=1e-3)
    near = DENSE.replace(x_shape=(2, 20, 18, 23))
    assert ca.plan(near).algorithm == variant
    ca.wisdom.forget()
    assert ca.plan(DENSE).algorithm in LISTED


def test_a_variant_that_is_not_worth_a_try_is_no_algorithm():
    with pytest.raises(ValueError, match=r"algorithm='cpu.winograd.f3x3' must be"):
        ca.plan(ca.ConvProblem.parse("n1 c4 h9 w9 k4 r1 s1"), algorithm="cpu.winograd.f3x3")
    assert ca.plan(DENSE, algorithm="cpu.winograd.f3x3").algorithm == "cpu.winograd.f3x3"
