"""Nested Winograd and symbolic Fourier forms: exact on fractions and integers, small growth of errors."""

from fractions import Fraction

import numpy as np
import pytest

import convalgos as ca
from convalgos.core.bilinear_forms import NESTED, SYMBOLIC, bilinear_form, combine
from convalgos.core.cook_toom import amplification
from convalgos.select import current_machine, registry

FORMS = [
    (NESTED, 6, 5),
    (NESTED, 6, 7),
    (NESTED, 12, 9),
    (SYMBOLIC, 6, 3),
    (SYMBOLIC, 6, 5),
    (SYMBOLIC, 4, 7),
]


@pytest.mark.parametrize(("kind", "m", "r"), FORMS)
def test_forms_are_convolutions_of_fractions(kind, m, r):
    form = bilinear_form(kind, m, r)
    rng = np.random.default_rng(m * r)
    x, w = ([Fraction(int(v), 3) for v in rng.integers(-99, 99, n)] for n in (form.inputs, r))
    inputs, taps = form.spread(combine, x), form.spread_filter(combine, w)
    assert len(inputs) == len(taps) == form.alpha
    products = [a * b for a, b in zip(inputs, taps, strict=True)]
    y = [form.scale * value for value in form.gather(combine, products)]
    assert y == [sum(w[t] * x[j + t] for t in range(r)) for j in range(m)]


def test_their_errors_grow_less_than_those_of_one_transform():
    assert bilinear_form(SYMBOLIC, 6, 3).amplification < 1.1 * amplification(2, 3) < 0.3 * amplification(6, 3)
    nested = bilinear_form(NESTED, 6, 9)
    assert nested.alpha == 20 and nested.amplification < amplification(4, 5)  # of nine taps and of five


def test_integers_stay_exact_through_the_symbolic_transform():
    problem = ca.ConvProblem.parse("n1 c5 h13 w15 k4 r3 s3 p1")
    rng = np.random.default_rng(2)
    x, w = (rng.integers(-40, 41, shape).astype(np.float32) for shape in problem.array_shapes[:2])
    exact = ca.plan(problem, algorithm="cpu.reference")(x, w)
    assert 1e4 < abs(exact).max() < 2**24 / 36
    assert np.array_equal(ca.plan(problem, algorithm="cpu.symbolic_fourier.f6x3")(x, w), exact)


@pytest.mark.parametrize(
    "text",
    ["n1 c64 h56 w56 k64 r3 s3 p1", "n2 c256 h14 w14 k512 r3 s3 p1 stride2", "n1 c3 h40 w40 k8 r9 s9 p4"],
)
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_what_is_bounded_together_is_never_faster_than_the_bound(text, layout):
    problem, machine = ca.ConvProblem.parse(text).replace(layout=layout), current_machine()
    families = [f for f in registry.ways_by_family(problem, "cpu") if f[0].bounded_with]
    assert {a.bounded_with for f in families for a in f} >= {
        "all products",
        "bilinear tiles",
        "spectra of maps",
    }
    for family in families:
        bound = family[0].least_of_all(problem, machine)
        for algorithm in family:
            assert bound <= algorithm.least(problem, machine) * (1 + 1e-9), algorithm.id
