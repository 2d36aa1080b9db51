"""Strassen's products: their order by itself, awkward cuts, output steps, and the bound of their cost."""

import random
from dataclasses import replace
from operator import add, sub

import numpy as np
import pytest
from helpers import check, check_output_step_on_images_apart, example
from narrow_vectors import run_on_haswell

from convalgos import ConvProblem
from convalgos.core import profiles
from convalgos.core.layouts import blocked_layout
from convalgos.core.profiles import nominal
from convalgos.cpu.gemm import packed_blocking, strassen_cut
from convalgos.cpu.gemm.strassen_plan import StrassenPlan
from convalgos.cpu.gemm.strassen_scheme import SUM_ALONE, place_count, steps_of_parts
from convalgos.cpu.gemm.strassen_tiles import all_operands, filter_operands, pixel_operands
from convalgos.cpu.strassen import ALGORITHMS, Strassen
from convalgos.cpu.vectors import simd

SIDES = (2, 4)
LAYERS = [
    "n2 c33 h5 w7 k70 r1 s1",  # zeros in a block of channels, whole parts of them, and filters of none
    "n1 c50 h3 w3 k20 r1 s1 channels_last float64",  # parts of pixels that overlap, some wholly
    "n3 c40 w61 k45 s1 channels_last",
    "n2 c33 h9 w8 k70 r1 s1 stride2,3 channels_last",  # rows that end amid a block of pixels
]
OWN = blocked_layout(simd.lanes(4))


def cut_of(problem, side, **changed):
    """A cut of a problem with other fields."""
    return replace(strassen_cut.strassen_cuts(problem, side)[0], **changed)


@pytest.mark.parametrize("side", SIDES)
def test_the_steps_sum_the_product_of_all_parts(side):
    """On matrices as parts: from sums of parts alone, in 7 or 49 products."""
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-9, 10, (side, side, 3, 3)) for _ in range(2))
    of_x, of_w = all_operands(x, pixel_operands, add, sub), all_operands(w, filter_operands, add, sub)
    assert len(of_x) == len(of_w) == {2: 7, 4: 49}[side]
    at = np.full((place_count(side), 3, 3), 10**9)  # what is read before it is written is far off
    at[0] = 0
    for step in steps_of_parts(side):
        if step["operand"] == SUM_ALONE:
            at[step["out"]] += at[step["first"]]
            at[step["also"]] += at[step["first"]]
            continue
        total = at[step["first"]] + at[step["started"]] + of_x[step["operand"]] @ of_w[step["operand"]]
        for out, more in (("out", "out_with"), ("also", "also_with")):
            if step[out]:
                at[step[out]] = total + at[step[more]]
    y = at[1 : 1 + side * side].reshape(side, side, 3, 3)
    assert np.array_equal(y, np.einsum("ikab,kjbc->ijac", x, w))


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(
    "text", [*LAYERS, *(f"n2 c33 h9 w7 k70 r1 s1 {more}{OWN}" for more in ("", "stride2 "))]
)
def test_awkward_layers(text, side):
    check(Strassen(side), ConvProblem.parse(text))


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("changed", [{"blocks": 3}, {"parts": 2}, {"vectors": 2}], ids=str)
@pytest.mark.parametrize("layout", ["channels_first", "channels_last", OWN, f"stride2 {OWN}"])
def test_integers_are_exact_in_every_cut(side, changed, layout, monkeypatch):
    """And in two passes over the channels."""
    monkeypatch.setattr(strassen_cut, "PASS", 1e-9)
    *stride, layout = layout.split()
    plain = ConvProblem.parse(" ".join(["n2 c150 h9 w9 k90 r1 s1", *stride]))
    problem = plain.replace(layout=layout)
    cut = cut_of(problem, side, **changed)
    assert cut.passes > 1
    plan = StrassenPlan(problem, Strassen(side), cut)
    x, w, _, y = example(plain, "integers")
    x_laid, out = laid_arrays(problem, x)
    plan(x_laid, plan.prepare(w), out=out)
    assert np.array_equal(logical(out, problem), y)


def laid_arrays(problem, x):
    """x in the layout of a problem, with NaN beyond the channels, and a y of NaN."""
    x_shape, y_shape = problem.array_shapes[0], problem.array_shapes[2]
    laid, out = np.full(x_shape, np.nan, x.dtype), np.full(y_shape, np.nan, x.dtype)
    for c in range(x.shape[1]):
        if problem.layout == "channels_first":
            laid[:, c] = x[:, c]
        elif problem.layout == "channels_last":
            laid[..., c] = x[:, c]
        else:
            laid[:, c // x_shape[-1], ..., c % x_shape[-1]] = x[:, c]
    return laid, out


def logical(y, problem):
    if problem.layout == "channels_first":
        return y
    if problem.layout == "channels_last":
        return np.moveaxis(y, -1, 1)
    first = np.moveaxis(y, -1, 2)  # (N, blocks, lanes, *spatial)
    return first.reshape(problem.N, -1, *problem.spatial_out)[:, : problem.K]


@pytest.mark.parametrize("activation", ["relu", ("clip", 0, 1), "silu"], ids=str)
@pytest.mark.parametrize("layout", ["channels_first", "channels_last", OWN])
def test_output_steps_and_images_that_lie_apart(layout, activation):
    plan = Strassen(2).serve(ConvProblem.parse("n3 c48 h5 w5 k64 r1 s1").replace(layout=layout))
    check_output_step_on_images_apart(plan, activation)


def test_on_narrow_vectors():
    run_on_haswell(f"""
from convalgos.cpu.strassen import ALGORITHMS
for text in {[*LAYERS[:2], "n1 c70 h9 w9 k40 r1 s1 blocked8"]}:
    for algorithm in ALGORITHMS:
        check(algorithm, ConvProblem.parse(text))
""")


def test_the_least_is_no_more_than_the_cost():
    drawn, machine = random.Random(0), nominal(2)
    for _ in range(200):
        n, c, h, k = (drawn.randint(2, most) for most in (9, 900, 60, 900))
        more = drawn.choice(("", "", f" stride2 {OWN}"))
        problem = ConvProblem.parse(f"n{n} c{c} h{h} w{h} k{k} r1 s1{more}")
        assert all(a.least(problem, machine) <= a.cost(problem, machine) for a in ALGORITHMS), problem


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("layout", ["channels_first", "channels_last", OWN, f"stride2 {OWN}"])
def test_plans_for_other_sizes_of_the_maps(side, layout):
    text = f"c150 k90 r1 s1 {layout}"
    known = Strassen(side).plan(ConvProblem.parse(f"n1 h41 w30 {text}"))
    for sizes in ("n1 h33 w37", "n1 h57 w41", "n2 h24 w31", "n1 h26 w25"):
        problem = ConvProblem.parse(f"{sizes} {text}")
        made = known.on_maps(problem)
        anew = Strassen(side).plan(problem)
        assert made is not None and made._key == known._key == anew._key
        wanted = StrassenPlan(problem, Strassen(side), replace(made._cut))
        for name in {*made.record.dtype.names} - {*wanted._tables}:
            assert made.record[name] == wanted.record[name], name
        x, w, _, y = example(problem.replace(layout="channels_first"), "integers")
        x_laid, out = laid_arrays(problem, x)
        made(x_laid, known.prepare(w), out=out)
        assert np.array_equal(logical(out, problem), y)
    for sizes in ("n1 h90 w81", "n1 h9 w9"):
        assert known.on_maps(ConvProblem.parse(f"{sizes} {text}")) is None
    small = ConvProblem.parse(f"n1 h1 w1 {text}")
    assert Strassen(side).why_not_on_maps(small) == Strassen(side).why_not(small) is not None


@pytest.mark.parametrize(
    ("name", "found"), [("avx512_zen4", 0), ("avx2", 0), ("avx512_intel", 1), ("avx512", None)]
)
def test_cycles_go_by_what_lines_from_the_caches_cost(name, found, monkeypatch):
    monkeypatch.setenv(profiles.VARIABLE, name)
    figures = profiles.chosen(1)
    monkeypatch.setattr(profiles, "nominal", lambda threads: figures)
    for known in (packed_blocking.loss_to_lines, strassen_cut._cycles):
        known.cache_clear()
    cycles = strassen_cut._cycles()
    for known in (packed_blocking.loss_to_lines, strassen_cut._cycles):
        known.cache_clear()
    least, most = ({k: v[i] for k, v in strassen_cut.CYCLES.items()} for i in range(2))
    if found is None:
        assert least["packed"] < cycles["packed"] < most["packed"] / 2
    else:
        assert cycles == pytest.approx((least, most)[found])
