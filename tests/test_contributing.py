"""The examples of CONTRIBUTING.md: dropped in as files, they are in everything without another edit."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cuda_shim import device as shim

from convalgos.core.errors import missing
from convalgos.core.problem import DIRECTIONS

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text()
PROBLEM = "n1 c8 h16 w16 k8 r3 s3 p1"
EXAMPLES = ("convalgos/cpu/taps.py", "convalgos/gpu/naive.py", "kernels/naive.cu")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs Python on a copy of the package that holds the examples, and returns what it prints."""
    folder = tmp_path_factory.mktemp("copy")
    for part in ("convalgos", "kernels"):
        shutil.copytree(ROOT / part, folder / part)  # with what Python compiled of it
    examples = re.findall(r"```(?:python|cuda)\n(.*?)```", GUIDE, re.S)
    for name, example in zip(EXAMPLES, examples, strict=True):
        (folder / name).write_text(example)

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-P", *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def commands(run, *lines):
    """What commands of `convalgos` print, in one process."""
    code = (
        "import sys, json; from convalgos.tools.cli.main import main\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    main(words, standalone_mode=False); print('\\f', flush=True)"
    )
    return run("-c", code, json.dumps(lines)).split("\f")[:-1]


def test_it_is_listed_ranked_and_explained(run):
    code = "import convalgos as ca; print(*[a.id for a in ca.algorithms()])"
    assert {"cpu.taps", "gpu.naive"} <= set(run("-c", code).split())
    *shown, refused = commands(run, *(["explain", PROBLEM, more] for more in (*DIRECTIONS, "groups2")))
    assert all(re.search(r"cpu\.taps +\d", text) for text in shown)
    assert "takes groups=1 only" in refused


def test_it_is_measured_and_checked(run, tmp_path):
    report = tmp_path / "report.json"
    *found, _ = commands(
        run,
        *(["find", PROBLEM, direction, "--rounds", "1"] for direction in DIRECTIONS),
        ["bench", PROBLEM, "--rounds", "1", "--peers", "none", "--json", str(report)],
    )
    assert all(re.search(r"cpu\.taps +\d", text) for text in found)
    (layer,) = json.loads(report.read_text())["layers"]
    (found,) = [c for c in layer["candidates"] if c["algorithm"] == "cpu.taps"]
    assert 0 < found["error"] < 1e-5
    assert found["median_s"] > 0


def test_every_test_of_algorithms_takes_them(run):
    """Both in one run, which imports what they need once."""
    names = ["algorithms", "gradients", "properties", "threads", "onnx"]
    names += [] if shim.missing() else ["gpu", "gpu_kernels", "gpu_gradients"]
    shown = run("-m", "pytest", "-q", "-rps", "-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider",
                "-k", "(taps or naive) and not networks",
                *(str(ROOT / "tests" / f"test_{name}.py") for name in names))  # fmt: skip
    passed = re.findall(r"^PASSED .*", shown, re.M)
    assert sum("taps" in test for test in passed) >= 19
    assert sum("naive" in test for test in passed) >= 10 or shim.missing()
    assert not re.search(r"^SKIPPED .*test_(algorithms|gradients|properties|threads|onnx)", shown, re.M)


def test_the_guide_s_commands_exist():
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, re.M) for target in re.findall(r"`make (\w+)`", GUIDE))
    for path in re.findall(r"`((?:convalgos|tests|kernels|asv_bench)/[\w/.]*)`", GUIDE):
        assert (ROOT / path).exists() or path in EXAMPLES, path


@pytest.mark.skipif(bool(missing("plotly")), reason=str(missing("plotly")))
def test_the_selector_is_judged(tmp_path):
    (example,) = re.findall(r"```py\n(.*?)```", GUIDE, re.S)
    (name,) = re.findall(r"Saved as `(\w+\.py)`", GUIDE)
    (tmp_path / name).write_text(example)
    (command,) = [line for line in GUIDE.splitlines() if line.startswith("convalgos select evaluate")]
    words = [str(ROOT / w) if w.startswith("asv_bench/") else w for w in command.split()[1:]]
    done = subprocess.run(
        [sys.executable, "-m", "convalgos", *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^ *analytic +1\d\d ", done.stdout, re.M) and re.search(
        r"^ *shy +1\d\d ", done.stdout, re.M
    )
    assert "Picks of shy" in (tmp_path / "picks.html").read_text()
    use = "import shy, convalgos as ca; p = ca.ConvProblem.parse('n1 c8 h9 w9 k8 r3 s3')\n"
    use += "print(ca.plan(p, selector='shy').explain())"
    shown = subprocess.run([sys.executable, "-c", use], cwd=tmp_path, capture_output=True, text=True)
    assert shown.returncode == 0 and "->cpu." in shown.stdout, shown.stderr
