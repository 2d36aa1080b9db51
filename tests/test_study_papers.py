"""The study `papers`: ratios are of its times, claims hold where their geometric mean says so."""

from statistics import geometric_mean

import pytest

import convalgos as ca
from convalgos.studies import papers
from convalgos.studies.claims import CLAIMS, Claim
from convalgos.studies.study import Finding, NotRun, Part, StudySetting

TINY = ("n1 c4 h6 w7 k5 r3 s3 p1",)


def test_claims_name_algorithms_and_layers_that_there_are():
    ids = {a.id for a in ca.algorithms()}
    for claim in CLAIMS:
        assert {*claim.ways, *claim.against} <= ids, claim.name
        assert len(claim.layers) == 6
        for text in claim.layers:
            problem = ca.ConvProblem.parse(text).replace(layout=claim.layout, dtype=claim.dtype)
            served = [a.id for a in ca.algorithms() if a.id in claim.ways and not a.why_not(problem)]
            assert served or claim.dtype != "float32", f"{claim.name}: {text}"


def test_the_study_on_tiny_layers(monkeypatch):
    ways = {"cpu.indirect": "channels_last", "cpu.smm": "channels_first"}
    claims = [
        Claim(way, "a paper", "faster", (way,), ("cpu.direct",), TINY, times, layout)
        for (way, layout), times in zip(ways.items(), (0.0, 1e9), strict=True)
    ]
    claims.append(Claim("nothing", "a paper", "faster", ("cpu.smm",), MISSING, TINY))
    monkeypatch.setattr(papers.PapersStudy, "claims", tuple(claims))
    monkeypatch.setattr(papers, "MKL", ())
    answers = list(papers.STUDY.parts(StudySetting(quick=True, seconds=2)))
    tables = [a for a in answers if isinstance(a, Part)]
    found = [a for a in answers if isinstance(a, Finding)]
    assert [t.values("layer") for t in tables] == [list(TINY), list(TINY)]
    assert [f.holds for f in found] == [True, False]
    assert [type(a) for a in answers] == [Part, Finding, Part, Finding, NotRun]
    for table, finding in zip(tables, found, strict=True):
        assert table.values("compared with") == ["cpu.direct"]
        assert table.values("that one") == pytest.approx(table.values("direct"))
        assert finding.here.startswith(f"{geometric_mean(table.values('that one')):.2f} times")
        assert min(table.values("workspace")) > 0


MISSING = ("cpu.winograd.nested.f6x9",)  # serves no 3x3 layer
