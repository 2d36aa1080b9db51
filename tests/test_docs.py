"""The pages in docs/, not built: can they be reached, do their commands exist, is the glossary true?

`make docs` builds them, runs every example and checks every link within them.
"""

import ast
import os
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import fields
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from operator import attrgetter
from pathlib import Path

import click
import numpy as np
import pytest
from source_trees import tree, trees

import convalgos as ca
from convalgos.core.json_format import FORMATS
from convalgos.select.measure.table import Table
from convalgos.tools.bench.run import LayerResult
from convalgos.tools.bench.suites import Layer
from convalgos.tools.cli.main import main

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LEFT_OUT = ("_build", "_data", "_tools", "examples", "results")  # as in conf.py
PAGES = {
    path.relative_to(DOCS).with_suffix("").as_posix(): path.read_text()
    for path in sorted(DOCS.rglob("*.md"))
    if path.relative_to(DOCS).parts[0] not in LEFT_OUT
}
GLOSSARY = tomllib.loads((DOCS / "glossary.toml").read_text())
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def commands(text):
    """(words of each command in the blocks of shell commands)"""
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.S | re.M)
    return [words for b in blocks for line in b.splitlines() if (words := shlex.split(line, comments=True))]


def listed(page):
    """The pages that the tables of contents of a page name."""
    folder = (DOCS / page).parent
    for block in re.findall(r"^```\{toctree\}\n(.*?)^```", PAGES[page], re.S | re.M):
        for line in filter(None, block.splitlines()):
            if not line.startswith(":"):
                yield (folder / line).resolve().relative_to(DOCS).as_posix()


def defined():
    """Every name that a module of the package gives to something."""
    names = set()
    for node in chain.from_iterable(map(ast.walk, trees().values())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def test_every_page_is_in_a_table_of_contents():
    reached, open_pages = set(), ["index"]
    while open_pages:
        page = open_pages.pop()
        if page in PAGES and page not in reached:
            reached.add(page)
            open_pages += listed(page)
    assert reached == set(PAGES)


def test_words_of_the_glossary_are_those_of_the_code():
    there = defined()
    named = [(term, name) for term, told in GLOSSARY.items() for name in told.get("code", ())]
    assert len(named) > 60
    assert [(term, name) for term, name in named if name not in there] == []


def test_the_glossary_is_sorted_and_complete():
    folded = [term.casefold() for term in GLOSSARY]
    assert folded == sorted(set(folded))
    assert all(told.keys() <= {"means", "code"} and told["means"].endswith(".") for told in GLOSSARY.values())
    for term in ("tile", "micro-kernel", "packed panel", "epilogue", "non-temporal store", "regret", "wisdom",
                 "workspace", "prepared filter", "cost model", "ranker", "candidate"):  # fmt: skip
        assert term in GLOSSARY
    assert "docs/glossary.toml" in (ROOT / "CONTRIBUTING.md").read_text()


def parsed(words):
    """Read a command line as `convalgos` does, and do nothing."""
    command, rest = main, words
    while isinstance(command, click.Group):
        assert rest[0] in command.commands, f"convalgos has no {' '.join(words)}"
        command, rest = command.commands[rest[0]], rest[1:]
    with command.make_context(words[0], list(rest)):
        pass


@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if commands(text)])
def test_commands_exist(page, tmp_path, monkeypatch):
    makefile = (ROOT / "Makefile").read_text()
    monkeypatch.chdir(tmp_path)
    for program, *words in commands(PAGES[page]):
        if program == "make":
            assert all(re.search(rf"^{target}:", makefile, re.M) for target in words), words
        elif program == "pip":
            assert words[0] == "install" and set(re.findall(r"\w+", " ".join(words[1:]))) <= {"e", *EXTRAS}
        elif program == "python":
            assert find_spec(words[1]) if words[0] == "-m" else (ROOT / words[0]).exists(), words
        else:
            assert program == "convalgos", program
            for word in words:  # files that a command reads must be there
                if word.endswith((".json", ".txt")):
                    (tmp_path / word).parent.mkdir(parents=True, exist_ok=True)
                    (tmp_path / word).touch()
            parsed(words)
    for path in re.findall(r"asv_bench/tables/\w+\.json", PAGES[page]):
        assert (ROOT / path).exists(), path


def test_every_example_is_run():
    """Blocks of Python begin with a prompt, by which they are found; what cannot run is marked `py`."""
    blocks = [b for text in PAGES.values() for b in re.findall(r"^```python\n(.*)$", text, re.M)]
    assert len(blocks) > 20
    assert [b for b in blocks if not b.startswith(">>> ")] == []


def steps(walk):
    """[(file, names of functions)] of a walk, in order."""
    (text,) = re.findall(rf"^## {walk}: .*?$(.*?)(?=^## |\Z)", PAGES["walks"], re.S | re.M)
    items = re.findall(r"^\d+\. `convalgos/([\w/]+\.py)`(.*?)(?=^\d+\. |\Z)", text, re.S | re.M)
    return [(path, re.findall(r"`(?:\w+\.)*(\w+)\(\)`", told)) for path, told in items]


def calls_of(run):
    """[(file, function)] of the package in the order in which they are called while this runs."""
    package, found = Path(ca.__file__).parent, []

    def note(frame, event, argument):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(package):
            found.append((path.relative_to(package).as_posix(), frame.f_code.co_name))

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("walk", ["plan", "conv"])
def test_a_walk_is_the_way_that_calls_go(walk, wisdom):
    """Its functions are in their files, and those that Python runs are called, file by file in its order."""
    x, w = np.ones((1, 64, 56, 56), "f4"), np.ones((64, 64, 3, 3), "f4")
    text = "n1 c64 h56 w56 k64 r3 s3 p1"
    assert text in PAGES["walks"]
    ways = {
        "plan": lambda: ca.plan(ca.ConvProblem.parse(text), allow="cpu.winograd"),
        "conv": lambda: ca.conv(x, w, padding=1, algorithm="cpu.winograd.f4x3"),
    }
    ca.forget_plans()
    if walk == "conv":
        ways[walk]()  # the second call is told
    calls, passed = calls_of(ways[walk]), 0
    assert 5 <= len(steps(walk)) <= 8
    for path, names in steps(walk):
        nodes = ast.walk(tree(ROOT / "convalgos" / path))
        there = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        assert names and set(names) <= there, f"{path} has no {sorted(set(names) - there)}"
        step = {(path, name) for name in names}
        if step & set(calls):  # else it is compiled
            assert step & set(calls[passed:]), f"{path} is not called after the file before it"
            passed = next(i for i in range(passed, len(calls)) if calls[i] in step) + 1
    assert passed > 0


def test_the_citation_and_the_changelog_are_of_this_version():
    yaml = pytest.importorskip("yaml")
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors", "version", "license", "type"} <= cited.keys()
    assert cited["version"] == ca.__version__ and cited["license"] == "MIT"
    (first, *_) = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert first.rstrip(",") == ca.__version__


def test_every_public_call_is_in_the_reference():
    reference = "\n".join(text for page, text in PAGES.items() if page.startswith("api/"))
    told = set(re.findall(r"\.\. auto\w+:: ([\w.]+)", reference))
    modules = {"binary", "ndimage", "network", "quantized", "select", "signal", "wisdom"}  # of their own
    assert set(ca.__all__) - {"__version__"} - modules <= told
    assert set(ca.signal.__all__) | set(ca.ndimage.__all__) <= told
    assert {"export", "merge", "show", "forget", "verify"} <= told & set(vars(ca.wisdom))


def documented():
    """(module, name) of everything that the reference takes a docstring from."""
    for page, text in PAGES.items():
        module = None
        for kind, name in re.findall(r"^ *\.\. (currentmodule|auto\w+):: ([\w.]+)", text, re.M):
            if kind == "currentmodule":
                module = name
            else:
                yield page, module, name


def test_what_the_reference_documents_is_there():
    for page, module, name in documented():
        needed = re.match(r"convalgos\.(torch|onnx|jax)", module)
        if needed is None or find_spec(needed[1]):
            assert attrgetter(name)(import_module(module)) is not None, page


def test_the_example_of_a_wisdom_file_is_one(tmp_path, wisdom):
    (example,) = re.findall(r"```json\n(.*?)```", PAGES["files"], re.S)
    (tmp_path / "wisdom.json").write_text(example)
    merged = ca.wisdom.merge(tmp_path / "wisdom.json")
    assert (merged.problems, merged.candidates, merged.machine) == (1, 2, "amd_epyc-2t-v64-linux")


def test_files_are_described_as_they_are_written():
    told = set(re.findall(r"`(\w+)`", PAGES["files"]))
    figures = {field.name for field in fields(ca.select.current_machine())}
    layer = LayerResult(Layer("a", "b", ca.ConvProblem.parse("c1 w1 k1 s1")), None, Table(None, (), ()), ())
    assert figures | set(layer.as_json()) <= told
    for kind, number in FORMATS.items():
        assert re.search(rf"^\| `{kind}` \|.*\| {number} \|$", PAGES["files"], re.M), kind


def test_variables_of_the_environment_are_told():
    nodes = chain.from_iterable(map(ast.walk, trees().values()))
    constants = (node.value for node in nodes if isinstance(node, ast.Constant))
    read = {value for value in constants if re.fullmatch("CONVALGOS_[A-Z_]+[A-Z]", str(value))}
    private = {name for name in read if name.startswith("CONVALGOS_HISTORY_")}  # to asv's processes
    assert read - private == set(re.findall(r"^\| `(CONVALGOS_[A-Z_]+)`", PAGES["api/choosing"], re.M))


def test_torch_s_docstrings_are_read_without_torch():
    """On a machine that has none, `make docs` imitates it; here it is passed over."""
    pytest.importorskip("sphinx", reason="needs sphinx (pip install 'convalgos[docs]')")
    code = (
        "import imitated; from sphinx.ext.autodoc.mock import mock\n"
        "with mock(['torch', 'onnx']):\n    import convalgos.torch as ct; print(ct.replace.__doc__)"
    )
    path = f"{DOCS / '_ext'}:{ROOT}"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path},
                          capture_output=True, text=True)  # fmt: skip
    assert "convolutions of a model" in done.stdout, done.stderr
