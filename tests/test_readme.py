"""What the README promises: its Python runs, its commands exist, its table is complete."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from convalgos.core.problem import ConvProblem
from convalgos.select import algorithms
from convalgos.tools.bench.suites import names

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = [
    words
    for block in re.findall(r"```sh\n(.*?)```", README, re.S)
    for line in block.splitlines()
    if (words := shlex.split(line, comments=True))
]


def convalgos(*arguments: str) -> str:
    run = subprocess.run([sys.executable, "-m", "convalgos", *arguments], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_python_blocks_run_in_order(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", README, re.S)
    assert len(blocks) >= 5
    script = tmp_path / "readme.py"
    script.write_text("\n".join(blocks))
    run = subprocess.run([sys.executable, script.name], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "needs 5 taps" in run.stdout


def test_it_starts_with_the_two_commands():
    assert COMMANDS[:2] == [["make", "bench"], ["make", "test"]]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_commands_exist(words):
    program, *arguments = words
    if program == "make":
        makefile = (ROOT / "Makefile").read_text()
        assert all(re.search(rf"^{target}:", makefile, re.M) for target in arguments)
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert arguments[0] == "install"
        assert set(re.findall(r"[a-z]+", arguments[1])) <= set(extras)
    else:
        assert program == "convalgos"
        command, *rest = arguments
        if command in ("wisdom", "select", "history"):
            command, rest = f"{command} {rest[0]}", rest[1:]
        shown = convalgos(*command.split(), "--help")
        for option in (word for word in rest if word.startswith("--")):
            assert option in shown
        if command in ("explain", "find", "info"):
            of_network = rest[:1] and rest[0] in names()
            assert (" direct " if of_network else "cpu.direct") in convalgos(*arguments)
        elif command in ("algorithms", "suites"):
            assert ("resnet50" if command == "suites" else "cpu.direct") in convalgos(*arguments)
        elif command.startswith("select"):
            assert all((ROOT / word).exists() for word in rest if "/" in word)
        elif command in ("bench", "tune"):
            target = rest[: next((i for i, word in enumerate(rest) if word.startswith("--")), len(rest))]
            known = not target or target[0] in ("all", *names()) or target == ["model.onnx"]
            assert known or ConvProblem.parse(" ".join(target))


def test_the_table_names_algorithms_there_are():
    ids = {a.id for a in algorithms()}
    table = [line for line in README.splitlines() if line.startswith("| `")]
    assert len(table) >= 5
    for line in table:
        first, *others = re.findall(r"`([\w.]+)`", line.split("|")[1])
        for name in (first, *(first.rpartition(".")[0] + variant for variant in others)):
            assert name in ids, f"the README's table has {name}, which is no algorithm"


def test_links_and_paths_exist():
    for path in re.findall(r"\]\((?!http)([^)#]+)\)", README) + re.findall(r"`(convalgos/[\w/.]*)`", README):
        assert (ROOT / path).exists(), path
