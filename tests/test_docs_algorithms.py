"""The pages of the algorithms: every id on one page, equal sections, maps as recorded, examples that run."""

import doctest
import inspect
import re
import runpy
from collections import Counter
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest

import convalgos as ca

DOCS = Path(__file__).parents[1] / "docs"
MAPS = runpy.run_path(str(DOCS / "_tools" / "winner_maps.py"))
PAGES = {path.stem: path.read_text("utf-8") for path in sorted((DOCS / "algorithms").glob("*.md"))}
OF_ALGORITHMS = [name for name in PAGES if name not in ("index", "forms")]
EXAMPLES = {**PAGES, "selector": (DOCS / "selector.md").read_text("utf-8")}
FLAGS = doctest.ELLIPSIS | doctest.DONT_ACCEPT_TRUE_FOR_1
SECTIONS = ["Idea", "Picture", "Floor", "How it runs here", "Where it wins", "Bounds and limits", "Source"]


@cache
def fragments():
    """The maps of all pages, from the tables."""
    return MAPS["fragments"]()


def test_every_id_is_on_one_page():
    named = Counter(name for ids in MAPS["pages"]().values() for name in ids)
    there = Counter(a.id for a in ca.algorithms() if type(a).__module__.startswith("convalgos."))
    assert named == there, (
        f"{set(named) ^ set(there)}: a page in docs/algorithms/ names them in its line 'Ids:'"
    )
    assert set(MAPS["pages"]()) == set(OF_ALGORITHMS)


@pytest.mark.parametrize("page", OF_ALGORITHMS)
def test_pages_have_the_same_sections(page):
    text = PAGES[page]
    assert re.findall(r"^## (.*)$", text, re.M) == SECTIONS
    assert f":file: ../_data/pictures/{page}.svg" in text
    assert (f"winner_maps/{page}.inc" in text) == (f"{page}.inc" in fragments())
    assert page.startswith("cpu-") or "has not run on a GPU" in text
    assert f"({page}.md)" in PAGES["index"] and f"\n{page}\n" in PAGES["index"]  # its table, its toctree


@pytest.mark.parametrize("page", OF_ALGORITHMS)
def test_pages_tell_file_and_directions(page):
    told = re.search(r"^File: `([^`]+)`\. Computes ([^.]+?)(?: of| on| in|,? in)\b", PAGES[page], re.M | re.S)
    computes = set()
    for algorithm in (a for a in ca.algorithms() if a.id in MAPS["pages"]()[page]):
        assert Path(inspect.getsourcefile(type(algorithm))) == DOCS.parent / told[1]
        forward = "forward" in algorithm.directions
        gradients = forward and set(algorithm.dtypes) - {"int8", "uint8", "binary"}  # these have none
        computes |= {"y"} if forward else set()
        computes |= {"dx"} if gradients or "backward_data" in algorithm.directions else set()
        computes |= {"dw"} if "backward_weights" in algorithm.directions or algorithm.exchanges else set()
    assert set(re.findall(r"\w+", told[2])) - {"and"} == computes


def test_maps_are_what_the_tables_say():
    made = fragments()
    kept = {path.name: path.read_text("utf-8") for path in MAPS["FRAGMENTS"].glob("*.inc")}
    assert kept.keys() == made.keys()
    changed = [name for name in made if kept[name] != made[name]]
    assert not changed, f"{changed}: python docs/_tools/winner_maps.py writes them anew"


@pytest.mark.parametrize("direction", MAPS["DIRECTIONS"])
def test_every_layer_is_won_on_the_overview(direction):
    layers = MAPS["layers"](direction)
    assert len(layers) > 100 and {layer.kind for layer in layers} == set(MAPS["KINDS"])
    for layer in layers:
        assert any(layer.best(ids) == 1 for ids in MAPS["pages"]().values()), layer.name


def test_pictures_take_the_colour_of_the_text():
    pictures = {path.stem: path.read_text("utf-8") for path in (DOCS / "_data" / "pictures").glob("*.svg")}
    assert sorted(pictures) == sorted(OF_ALGORITHMS)
    for name, text in pictures.items():
        assert text.count("<title>") == 1 and set(re.findall(r'(?:fill|stroke)="([^"]+)"', text)) <= {
            "none",
            "currentColor",
        }
        assert ElementTree.fromstring(text).tag.endswith("svg"), name


@pytest.mark.parametrize("page", EXAMPLES)
def test_examples_run(page):
    blocks = re.findall(r"^```python\n(>>> .*?)^```", EXAMPLES[page], re.M | re.S)
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, page, page, 0)
    told = []
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=told.append)
    assert not told, "".join(told)
    assert blocks or page == "index"
