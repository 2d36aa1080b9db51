"""Algorithms and rankers from outside: registered by a program, and named by a package that is installed."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

import convalgos as ca
from convalgos.core.near_names import did_you_mean
from convalgos.cpu.reference import Reference
from convalgos.select import extensions

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "docs" / "examples" / "convalgos-windows"
PROBLEM = ca.ConvProblem.parse("n1 c8 h16 w16 k8 r3 s3 p1")


@dataclass(frozen=True)
class Mine(Reference):
    family: ClassVar[str] = "cpu.mine"

    def cost(self, problem, machine):
        return 1e-9

    def least(self, problem, machine):
        return 0.0


@pytest.fixture
def registered():
    ca.register(Mine())
    yield "cpu.mine"
    ca.unregister("cpu.mine")
    assert "cpu.mine" not in {a.id for a in ca.algorithms()}
    assert ca.plan(PROBLEM).algorithm != "cpu.mine"


def test_a_registered_algorithm_is_chosen_explained_and_forced(registered):
    assert ca.plan(PROBLEM).algorithm == registered  # it says that it is the fastest
    assert ca.explain(PROBLEM).candidates[0].id == registered
    assert ca.plan(PROBLEM, algorithm=registered).algorithm == registered
    assert registered in did_you_mean("cpu.mina", [a.id for a in ca.algorithms()])
    for direction in ("backward_data", "backward_weights"):
        assert registered in {c.id for c in ca.explain(PROBLEM.replace(direction=direction)).candidates}


def test_plans_are_chosen_anew(registered):
    first = ca.plan(PROBLEM)
    ca.unregister(registered)
    assert ca.plan(PROBLEM).algorithm != first.algorithm
    ca.register(Mine(), Mine())  # again: it takes its own place
    assert [a.id for a in ca.algorithms()].count(registered) == 1
    assert ca.plan(PROBLEM).algorithm == registered


@pytest.mark.parametrize(
    ("algorithms", "rankers", "error", "told"),
    [
        ([Mine], {}, TypeError, r"Mine\(\) makes one"),
        ([3], {}, TypeError, "must be an instance"),
        ([Reference()], {}, ValueError, "'cpu.reference' is that of an algorithm of the library"),
        (
            [type("Odd", (Mine,), {"family": "tpu.mine"})()],
            {},
            ValueError,
            "'tpu.mine' must be 'cpu.' or 'gpu.'",
        ),
        ([Mine()], {"analytic": min}, ValueError, "other than 'analytic'"),
        ([Mine()], {"odd": 3}, TypeError, "must be callable"),
    ],
)
def test_what_is_refused_changes_nothing(algorithms, rankers, error, told):
    before = ca.algorithms(), ca.select.rankers()
    with pytest.raises(error, match=told):
        ca.register(*algorithms, **rankers)
    assert (ca.algorithms(), ca.select.rankers()) == before


def test_only_what_was_registered_is_taken_away():
    for name, told in (("cpu.direct", "there are none"), ("analytic", "registered ranker"), ("no", "ranker")):
        with pytest.raises(ValueError, match=told):
            ca.unregister(name)


class Named:
    """An entry point."""

    dist, value = None, "package:THING"

    def __init__(self, name, found):
        self.name, self.found = name, found

    def load(self):
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


def test_a_package_that_cannot_be_loaded_is_left_out(monkeypatch):
    from importlib import metadata

    named = [Named("b", ImportError("no module")), Named("a", [Mine()]), Named("c", object())]
    monkeypatch.setattr(metadata, "entry_points", lambda group: named)
    monkeypatch.setattr(extensions, "_may_be_named", lambda group: True)
    monkeypatch.setattr(extensions, "_loaded", set())
    taken = []

    def take(name, found):
        taken.extend(a.id for a in extensions.algorithms_of(found))

    with pytest.warns(RuntimeWarning) as told:
        extensions.load_entry_points("convalgos.algorithms", take)
    assert taken == ["cpu.mine"]
    assert [str(w.message).rpartition("left out: ")[2] for w in told] == [
        "ImportError: no module",
        "AttributeError: 'object' object has no attribute 'id'",
    ]
    extensions.load_entry_points("convalgos.algorithms", lambda name, found: pytest.fail("it is loaded once"))
    monkeypatch.setattr(extensions, "_loaded", set())
    monkeypatch.setenv(extensions.VARIABLE, "0")
    extensions.load_entry_points("convalgos.algorithms", lambda name, found: pytest.fail("it is left out"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The example package, as pip installs it."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(folder), str(EXAMPLE)], check=True, capture_output=True)
    paths = os.pathsep.join(map(str, (folder, ROOT)))
    return {**os.environ, "PYTHONPATH": paths, "CONVALGOS_ARTIFACTS": ""}


def test_the_example_package_passes_its_tests(installed):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLE / "tests")],
        env=installed, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_bench_and_evaluate_find_it(installed, tmp_path):
    def run(*words):
        done = subprocess.run(
            [sys.executable, "-m", "convalgos", *words], env=installed, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "cpu.windows" in run("algorithms", "cpu.windows")
    report = tmp_path / "bench.json"
    run(
        "bench",
        str(PROBLEM),
        "--algorithm",
        "cpu.windows",
        "--rounds",
        "1",
        "--json",
        str(report),
    )
    (layer,) = json.loads(report.read_text())["layers"]
    assert "cpu.windows" in {c["algorithm"] for c in layer["candidates"]}
