"""The room of studies: answers are shown, kept and drawn as they are, and what a study gives is checked."""

import json
from dataclasses import replace

import pytest
from command_line import run

from convalgos.studies import run as running
from convalgos.studies import series, study_file
from convalgos.studies.study import (
    Chart,
    Finding,
    NotRun,
    Part,
    Study,
    StudyColumn,
    StudySetting,
)

COLUMNS = (
    StudyColumn("way"),
    StudyColumn("batch"),
    StudyColumn("time", "ms"),
    StudyColumn("rate", "GFLOP/s"),
)
ROWS = (("naive", 1, 12.3456, 0.5), ("naive", 8, 99.0, None), ("<b>tiled</b>", 1, 1.5e-5, 3000000))
PART = Part("Ways", "Each way.", COLUMNS, ROWS, Chart("lines", "batch", ("time", "rate"), "way", True, True))


class Tiny(Study):
    name = "tiny"
    question = "Which way is fastest?"
    source = "A seminar."
    method = "Each once."
    look_at = "The second row."

    def parts(self, setting: StudySetting):
        setting.tell("the ways")
        yield PART
        yield Finding("tiled is 8 times naive", "9 times", True)
        yield NotRun("tensor cores", "a GPU with CuPy")
        spans, names = (("read", 0.0, 2.0), ("read", 3.0, 5.0)), ("lane", "from", "to")
        yield Part("When", "", tuple(map(StudyColumn, names)), spans, Chart("timeline", "lane", names[1:]))


@pytest.fixture
def tiny(monkeypatch):
    study = Tiny()
    monkeypatch.setattr(running, "studies", lambda: {"tiny": study})
    return study


def test_an_answer_is_shown_kept_and_drawn(tiny, tmp_path):
    kept, page = tmp_path / "tiny.json", tmp_path / "tiny.html"
    told = run("study", "tiny", "--quick", "--json", kept, "--html", page).stdout
    assert "Which way is fastest?" in told and "12.3" in told and "1.50e-5" in told and "3,000,000" in told
    assert "holds here" in told and "not run: tensor cores, which needs a GPU with CuPy" in told
    read = study_file.read_study(kept)
    assert read.parts[0] == PART and read.findings[0].holds is True and read.study is tiny
    assert study_file.study_as_json(read) == json.loads(kept.read_text())
    text = page.read_text()
    assert "<b>tiled" not in text and "&lt;b&gt;tiled" in text and "tiny" in text


def test_series_are_the_columns_by_group():
    found = {s.name: (s.x, s.y) for s in series.series_of(PART)}
    assert found == {
        "naive, time": ((1, 8), (12.3456, 99.0)),
        "naive, rate": ((1,), (0.5,)),  # the point without a figure is left out
        "<b>tiled</b>, time": ((1,), (1.5e-5,)),
        "<b>tiled</b>, rate": ((1,), (3000000,)),
    }


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"rows": (("naive", 1),)}, "must have 4 cells"),
        ({"rows": (("naive", 1, float("nan"), 2),)}, "must be finite"),
        ({"rows": (("naive", True, 1.0, 2),)}, "must be text, a number or None"),
        ({"chart": Chart("lines", "size", ("time",))}, "which are no columns"),
        ({"chart": Chart("pie", "batch", ("time",))}, "must be one of bars"),
    ],
)
def test_a_part_is_checked(change, told):
    with pytest.raises((ValueError, TypeError), match=told):
        replace(PART, **change)


def test_a_file_is_checked_field_by_field(tiny, tmp_path):
    kept = tmp_path / "tiny.json"
    run("study", "tiny", "--json", kept)
    good = json.loads(kept.read_text())
    wrong = {
        "study": "tinny",
        "threads": True,
        "findings": [{"claim": "", "here": "", "holds": 1}],
        "parts": [good["parts"][0] | {"rows": [[[], 1, 1, 1]]}],
    }
    for field, value in wrong.items():
        kept.write_text(json.dumps(good | {field: value}))
        with pytest.raises(ValueError, match=r"tiny\.json"):
            study_file.read_study(kept)


def test_studies_are_listed_with_their_questions():
    told = run("study").stdout
    for name, study in running.studies().items():
        assert name in told and study.question.endswith("?")
        assert study.source and study.method and study.look_at
    assert "must be one of" in run("study", "nothing", status=2).output
