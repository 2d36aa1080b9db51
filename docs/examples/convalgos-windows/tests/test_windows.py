"""The algorithm keeps the contract, and the library finds it and the ranker."""

from convalgos_windows import Windows

import convalgos as ca
from convalgos.testing import check_algorithm

PROBLEM = ca.ConvProblem.parse("n1 c8 h16 w16 k8 r3 s3 p1")


def test_it_keeps_the_contract():
    assert check_algorithm(Windows()).runs["answers"] > 100


def test_the_library_finds_it():
    assert "cpu.windows" in [a.id for a in ca.algorithms()]
    assert "cpu.windows" in str(ca.explain(PROBLEM))
    assert ca.plan(PROBLEM, algorithm="cpu.windows").algorithm == "cpu.windows"
    assert ca.plan(PROBLEM, selector="cautious").algorithm
