"""The study `precision`: errors are those against float64, points those of F(m, r), bounds stand beside."""

from fractions import Fraction

import numpy as np
import pytest

from convalgos.core.cook_toom import POINTS
from convalgos.studies import precision, real_filters
from convalgos.studies.study import Finding, NotRun, Part, StudySetting
from convalgos.studies.winograd_rounding import point_sets, rounding_error

pytestmark = pytest.mark.usefixtures("one_thread")


def test_points_are_distinct_and_as_many_as_a_tile_needs():
    for m in range(2, 11):
        for points in point_sets(m).values():
            assert len(set(points)) == len(points) == m + 1
    assert point_sets(4)["of this library"] == POINTS[6] and "of this library" not in point_sets(7)


def test_rounding_is_what_separates_winograd_from_direct_sums():
    layer = real_filters.real_layer("", real_filters.filters_like_trained(4, 6), 14)
    points = tuple(map(Fraction, (0, 1, -1, 2, -2)))
    errors = [rounding_error(layer.x[0], layer.w, 4, points, d) for d in ("float64", "float32", "bfloat16")]
    assert errors[0] < 1e-13 < 1e-8 < errors[1] < 1e-5 < 1e-3 < errors[2] < 0.5


def test_filters_are_made_by_their_rule():
    w = real_filters.filters_like_trained(64, 32)
    assert w.std() == pytest.approx(np.sqrt(2 / (9 * 32)), rel=1e-5)
    planes = w.std((2, 3))
    assert planes.max() > 5 * np.median(planes)  # heavy tails
    assert np.corrcoef(w[:, :, 0, 0].ravel(), w[:, :, 0, 1].ravel())[0, 1] > 0.3


def test_the_study_on_a_tiny_layer(monkeypatch):
    timed = precision.time_candidates

    def briefly(ranking, check, **_):
        return timed(ranking, check=check, within=3.0, time_budget=0.2)

    monkeypatch.setattr(precision, "time_candidates", briefly)
    monkeypatch.setattr(precision, "trained_filters", dict)
    for name, value in (("size", 14), ("channels", 8), ("sizes", (10, 14))):
        monkeypatch.setattr(precision.PrecisionStudy, name, value)
    answers = list(precision.STUDY.parts(StudySetting(quick=True)))
    table, growth, formats, transforms = (a for a in answers if isinstance(a, Part))
    assert isinstance(answers[0], NotRun)
    errors, bounds = table.values("error"), table.values("error bound")
    assert all(e <= b for e, b in zip(errors, bounds, strict=True))
    assert table.values("on the front")[0] == "yes"
    whole = [row for row in growth.rows if row[0] == "whole numbers"]
    assert [row[1] for row in whole] == [2, 3, 4, 5, 6]
    assert whole[0][5] == 4.0 and whole[-1][2] > whole[0][2]
    assert len(formats.rows) == 12 and len(transforms.rows) >= 4
    claims = [a for a in answers if isinstance(a, Finding)]
    assert claims[0].holds and len(claims) == 4
