"""Winograd rounded to 8 bits: transforms, zero points, errors within the bound, and when it may be picked.

Types, layouts, both roundings and the corners are tested with all other algorithms of integers.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest

import convalgos as ca
from convalgos import ConvProblem
from convalgos.core.cook_toom import cook_toom
from convalgos.core.quantization import Quantization
from convalgos.cpu import winograd_int8
from convalgos.cpu.reference import Reference, error_scale
from convalgos.cpu.tiled import fixed_point_transforms as transforms
from convalgos.cpu.tiled.short_schedule import sums_words
from convalgos.cpu.winograd_int8 import ALGORITHMS, MOST, WinogradInt8, WinogradInt8Plan, byte_schedule

LAYER = ConvProblem.parse("uint8 w_int8 n1 c64 h28 w28 k64 r3 s3 p1")
needs_products = pytest.mark.skipif(not sums_words(), reason="the processor has no products of bytes (VNNI)")


@pytest.mark.parametrize("m", [2, 4])
def test_products_at_the_points_are_the_convolution_and_inputs_fit_16_bits(m):
    rng = np.random.default_rng(m)
    d, g = rng.integers(-128, 128, m + 2), rng.integers(-255, 256, 3)
    matrix = np.array(transforms.input_matrix(m)).astype(float)
    at = np.array(cook_toom(m, 3, transforms.POINTS[m]).AT).astype(float)
    y = at @ (matrix @ d * (transforms.filter_matrix(m) @ g))
    assert np.allclose(y, [d[i : i + 3] @ g for i in range(m)], rtol=1e-12, atol=1e-9)
    both = np.kron(matrix, matrix)
    span = np.maximum(both, 0).sum(1).max() - np.minimum(both, 0).sum(1).min()
    assert 255 * span * 2**transforms.SHIFT < 2**15  # less any zero point, and what is rounded on the way
    ones = [[Fraction(1)] * (m + 2)] * (m + 2)
    exact = np.array(
        transforms.transform_lines(2, lambda i, j: ones[i][j], m + 2, lambda r: list(matrix @ r))
    )
    rounded = transforms.level_points(m, 2, 100) / (100 << transforms.SHIFT)
    assert np.allclose(rounded, exact.ravel().astype(float), atol=0.003)


@dataclass(frozen=True)
class Forced(WinogradInt8):
    """With a schedule of the test's choice."""

    cuts: tuple[int, int, int, int] = (1, 1, 1, 1)
    team: bool = False

    def plan(self, problem):
        whole = byte_schedule(problem, self.m, 2)
        cuts = tuple(min(c, n) for c, n in zip(self.cuts, whole.grid, strict=True))
        return WinogradInt8Plan(problem, self, whole.cut_into(cuts, self.team))


@needs_products
@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize(
    "text",
    [
        "int8 w_uint8 n2 c35 h13 w21 k20 r3 s3 p0:2,3:1 groups5 channels_last",
        "uint8 w_int8 n1 c6 h21 w26 k10 r5 s5 p2 stride2",  # phases with a tap less
        "int8 n2 c4 d5 h9 w10 k6 t3 r3 s3 p2,1,1 dilation2,1,1",  # slices of padding
        "uint8 n3 c17 w70 k9 s3 p2",
    ],
    ids=str,
)
def test_boxes_do_not_change_y_and_maps_of_zero_points_give_zero(text, m):
    problem, rng = ConvProblem.parse(text), np.random.default_rng(5)
    x, w = (
        rng.integers(np.iinfo(t).min, np.iinfo(t).max, s, endpoint=True).astype(t)
        for t, s in zip((problem.dtype, problem.w_dtype), problem.array_shapes, strict=False)
    )
    zero = int(np.iinfo(problem.dtype).max) - 30
    quantization = Quantization(x_zero_point=zero, w_zero_point=7)
    answers = []
    for cuts, team in (((1, 1, 1, 1), True), ((2, 3, 2, 3), False)):
        plan = Forced(m, cuts=cuts, team=team).serve(problem)
        prepared = plan.prepare(w, quantization)
        answers.append(plan(x, prepared))
        assert not plan(np.full_like(x, zero), prepared).any()
    assert np.array_equal(*answers)
    plan = Reference().serve(problem)
    exact = plan(x, plan.prepare(w, quantization))
    size = error_scale(problem, x.astype(float) - zero, w.astype(float) - 7, exact.astype(float))
    assert 0 < np.abs(answers[0] - exact).max() <= ALGORITHMS[m == 4].error_bound(problem) * size


def drawn(rng, kind, shape, dtype):
    """Numbers of a type as networks have them, or none has, and their zero point."""
    if kind == "limits":
        return rng.choice(np.array([np.iinfo(dtype).min, np.iinfo(dtype).max], dtype), shape), 0
    x = rng.standard_normal(shape)
    if kind == "smooth":
        x = sum(np.roll(x, (i, j), (2, 3)) for i in range(3) for j in range(3))
    if kind != "normal":
        x = np.maximum(x, 0)
    zero = 128 if dtype == "uint8" and kind == "normal" else 0
    levels = 255 if dtype == "uint8" and not zero else 127
    return (np.rint(x / np.abs(x).max() * levels) + zero).astype(dtype), zero


@needs_products
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: a.id)
def test_errors_are_within_the_bound_and_not_far_from_it(algorithm):
    worst = 0.0
    for seed, (text, kind) in enumerate(
        (text, kind)
        for text in ("c3 h20 w21 k8", "c64 h14 w14 k32", "c512 h7 w7 k16")
        for kind in ("normal", "relu", "smooth", "limits")
    ):
        problem = ConvProblem.parse(f"{('uint8', 'int8')[seed % 2]} w_int8 n1 {text} r3 s3 p1")
        rng = np.random.default_rng(seed)
        x, zero = drawn(rng, kind, problem.x_shape, problem.dtype)
        w, _ = drawn(rng, "normal", problem.w_shape, "int8")
        answers = []
        for one in (algorithm, ALGORITHMS[0], Reference()):
            plan = one.serve(problem)
            answers.append(plan(x, plan.prepare(w, Quantization(x_zero_point=zero))).astype(float))
        y, finer, exact = answers
        size = error_scale(problem, x.astype(float) - zero, w.astype(float), exact)
        error = np.abs(y - exact).max() / size
        assert error <= algorithm.error_bound(problem), (text, kind)
        assert np.abs(finer - exact).max() / size <= error
        worst = max(worst, error / algorithm.error_bound(problem))
    assert worst > 0.5


@needs_products
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: a.id)
def test_the_largest_sums_do_not_wrap_and_longer_ones_are_refused(algorithm):
    problem = ConvProblem.parse(f"uint8 n1 c{MOST // 9} h6 w6 k1 r3 s3")
    x, w = np.full(problem.x_shape, 255, np.uint8), np.full(problem.w_shape, 255, np.uint8)
    exact = MOST // 9 * 9 * 255 * 255
    y = algorithm.serve(problem)(x, w).astype(float)
    assert np.abs(y / exact - 1).max() <= algorithm.error_bound(problem)
    longer = problem.replace(x_shape=(1, MOST // 9 + 1, 6, 6), w_shape=(1, MOST // 9 + 1, 3, 3))
    assert (
        algorithm.why_not(longer) == f"tells sums of up to {MOST} products; these are of {MOST // 9 * 9 + 9}"
    )


@needs_products
def test_it_is_a_candidate_only_where_an_error_is_allowed():
    ids = {a.id for a in ALGORITHMS}
    for problem, given in (
        (LAYER, {}),
        (LAYER.replace(dtype="float32", w_dtype="float32"), {"precisions": "int8"}),
    ):
        names = {f"{i}.as_int8" for i in ids} if given else ids
        plain, loose = (ca.explain(problem, **given, **more) for more in ({}, {"max_rel_error": 0.2}))
        assert not names & {c.id for c in plain.candidates}
        assert names <= {c.id for c in loose.candidates}
        told = {r.id: r.why_not for r in plain.rejected}
        assert {told[name] for name in names} == {
            "is not as exact as its types: it asks for max_rel_error=..."
        }
        tight = ca.explain(problem, **given, max_rel_error=0.03)
        assert {c.id for c in tight.candidates} & names <= {n for n in names if "f2x3" in n}
    # the fast way to a choice asks the same
    for algorithm in ALGORITHMS:
        assert ca.plan(LAYER, algorithm=algorithm.id).algorithm == algorithm.id
    assert ca.plan(LAYER).algorithm not in ids
    with pytest.raises(ca.Unsupported, match="asks for max_rel_error"):
        ca.plan(LAYER, allow="cpu.winograd.int8")
    assert ca.plan(LAYER, allow="cpu.winograd.int8", max_rel_error=0.2).algorithm in ids


@needs_products
def test_it_measures_itself_within_its_bound_where_y_is_requantised():
    table = ca.find(LAYER.replace(y_dtype="uint8"), allow="cpu.winograd.int8", max_rel_error=0.2)
    assert {row.algorithm for row in table.rows} == {a.id for a in ALGORITHMS}
    assert all(1 / 255 < row.error <= row.error_bound for row in table.rows)


def test_processors_without_products_of_bytes_are_told(monkeypatch):
    monkeypatch.setattr(winograd_int8, "sums_words", lambda: False)
    assert "avx512vnni" in ALGORITHMS[0].why_not(LAYER)
