"""The pages of the studies are what their JSON files say, and their pictures are pictures."""

import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest

from convalgos.studies.study import Chart, Part, StudyColumn

DOCS = Path(__file__).parents[1] / "docs"
TOOL = runpy.run_path(str(DOCS / "_tools" / "study_pages.py"))
SVG = "{http://www.w3.org/2000/svg}"


def test_pages_are_made_from_the_results():
    made = TOOL["generated"]()
    kept = {*(DOCS / "studies").glob("*.md"), *(DOCS / "_data" / "studies").glob("*.svg")}
    assert kept == made.keys() and len(made) > 1
    changed = [path.name for path, text in made.items() if path.read_text("utf-8") != text]
    assert not changed, f"{changed}: python docs/_tools/study_pages.py writes them anew"


@pytest.mark.parametrize("kind", ["bars", "lines", "points", "timeline"])
@pytest.mark.parametrize("log", [False, True])
def test_a_picture_shows_every_number(kind, log):
    columns = tuple(map(StudyColumn, ("way", "size", "from", "to")))
    rows = (("<a>", 1, 0.5, 2.0), ("<a>", 10, 2.0, 3.0), ("b", 1, 3.0, 70.0), ("b", 10, None, 1.0))
    y = ("from", "to") if kind == "timeline" else ("to",)
    part = Part("<Ways>", "", columns, rows, Chart(kind, "size", y, "way", log, log and kind != "timeline"))
    drawing = ElementTree.fromstring(TOOL["picture"](part))
    marks = drawing.iter(SVG + ("circle" if kind in ("lines", "points") else "rect"))
    told = [mark.find(f"{SVG}title").text for mark in marks if mark.find(f"{SVG}title") is not None]
    assert len(told) == (3 if kind == "timeline" else 4)
    assert sum(text.startswith("<a>") for text in told) == 2
    words = [text.text for text in drawing.iter(f"{SVG}text")]
    assert {"<a>", "b"} <= set(words) and all("nan" not in (word or "") for word in words)
