"""The history: which commits are measured, what asv keeps of them, and the quick comparison."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from convalgos.core.errors import Unsupported, missing
from convalgos.select.measure.timing import Timing
from convalgos.tools.cli.main import main
from convalgos.tools.history import asv
from convalgos.tools.history import asv_progress as history_progress
from convalgos.tools.history import compare as history_quick
from convalgos.tools.history.compare import Compared, PickTimed

ROOT = Path(__file__).parents[1]
QUICK_BENCH = ["--bench", "CallOverhead", "--bench", r"track_choice\('wavenet", "--attribute", "rounds=1"]


def git(folder, *words):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(folder), *identity, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A repository of three commits: no package yet, the package, and a change of it."""
    folder = tmp_path_factory.mktemp("tree")
    git(folder, "init", "-q")
    (folder / "README.md").write_text("nothing yet\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "one")
    made = {"asv_bench": ("results", "html", "tables")}  # what no copy needs
    for name in ("convalgos", "kernels", "asv_bench"):
        leave = shutil.ignore_patterns("__pycache__", *made.get(name, ()))
        shutil.copytree(ROOT / name, folder / name, ignore=leave)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "two")
    (folder / "convalgos" / "core" / "version.py").write_text('__version__ = "0.0.3"\n')
    git(folder, "commit", "-qam", "three")
    return folder


@pytest.fixture
def convalgos(copy, home):
    """Runs the command line of the copy, as if nothing else were installed."""

    def run(*words, status=0):
        variables = {**os.environ, "PYTHONPATH": str(copy), "HOME": str(home)}
        variables.setdefault("CONVALGOS_CACHE_DIR", str(Path.home() / ".cache" / "convalgos"))
        done = subprocess.run(
            [sys.executable, "-P", "-m", "convalgos", *map(str, words)],
            env=variables, cwd=home, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


# --- asv -------------------------------------------------------------------------------------


@pytest.mark.skipif(bool(missing("asv")), reason=str(missing("asv")))
def test_commits_are_measured_compared_and_published(copy, home, convalgos, monkeypatch):
    """asv itself, in its quickest form; what is refused is so without it, in this process."""
    monkeypatch.setattr(asv, "__file__", str(copy / "convalgos" / "tools" / "history" / "asv.py"))

    def refusal(*words):
        done = CliRunner().invoke(main, ["history", *words])
        assert done.exit_code == 2
        return done.stderr

    assert "no results in" in refusal("publish")
    words = ["history", "run", "HEAD", "--machine", "a-machine", *QUICK_BENCH]
    assert "4 values in" in convalgos(*words)
    folder = copy / "asv_bench" / "results"
    (path,) = (folder / "a-machine").glob("*-*.json")
    commit = git(copy, "rev-parse", "HEAD")
    assert path.name == f"{commit[:8]}-python{sys.version_info[0]}.{sys.version_info[1]}.json"
    text = path.read_text() + (folder / "a-machine" / "machine.json").read_text()
    assert os.uname().nodename not in text and sys.executable not in text and str(copy) not in text
    before = json.loads(path.read_text())["results"]
    assert before["run.CallOverhead.time_call_overhead"][0][0] > 0

    one = ["--bench", "time_call_overhead$", "--attribute", "rounds=1"]
    assert "two commits must be measured" in refusal("compare")
    parent = path.with_name(path.name.replace(commit[:8], git(copy, "rev-parse", "HEAD^")[:8]))
    known = json.loads(path.read_text()) | {"commit_hash": git(copy, "rev-parse", "HEAD^")}
    known["results"] |= {name: [[0.5], *values[1:]] for name, values in before.items() if "overhead" in name}
    parent.write_text(json.dumps(known))  # as if the parent had been measured, too
    assert "1 values in" in convalgos("history", "run", "HEAD^", "--machine", "a-machine", *one)
    again = json.loads(parent.read_text())["results"]
    assert again.keys() == before.keys()  # kept where not measured again
    assert again["run.CallOverhead.time_call_overhead"][0] != [0.5]
    shown = convalgos("history", "compare", "--machine", "a-machine")
    assert "time_call_overhead" in shown and "| n/a " not in shown

    nothing = convalgos("history", "run", "HEAD^^", "--machine", "a-machine", *one, status=1)
    assert "0 of 1 commits were measured" in nothing and "no package convalgos in" in nothing
    assert "is no commit" in refusal("run", "nowhere")
    assert "must read name=value" in refusal("run", "--attribute", "rounds")
    assert len(list(folder.glob("*/*-*.json"))) == 2

    convalgos("history", "publish", "-o", home / "pages")
    index = json.loads((home / "pages" / "index.json").read_text())
    assert set(index["machines"]) == {"a-machine"} and len(index["revision_to_hash"]) == 2
    curves = (home / "pages" / "graphs").rglob("run.CallOverhead.time_call_overhead.json")
    assert all(len(json.loads(curve.read_text())) == 2 for curve in curves)
    assert git(copy, "worktree", "list").count("\n") == 0


def test_what_is_not_measured_is_not_told():
    said = """[1%] · a.time_x  ok
 p   n/a
 q  1.0ms
[1%] · For parameters: 'p'
       asv: skipped: NotImplementedError('no')
       For parameters: 'r'
       Traceback
         ValueError: it broke
"""
    told = list(history_progress.measured(said.replace("n/a", "n/a  ").splitlines(True)))
    assert told == [
        "[1%] · a.time_x  ok", " q  1.0ms", "       For parameters: 'r'", "       Traceback",
        "         ValueError: it broke",
    ]  # fmt: skip


def test_how_far_asv_is(tmp_path):
    """Lines come as they are said, and processes are counted against those that are expected."""
    listed = {"a.time_x": {"params": [["1", "2"], ["'p'", "'q'"]], "rounds": 3}, "a.time_y": {"params": []}}
    code = (
        "import json, os, sys, time; from pathlib import Path\n"
        f"Path('results/benchmarks.json').write_text({json.dumps(listed | {'version': 2})!r})\n"
        "print(' x   n/a  '); print('[ 0%] begins')\n"
        "for _ in range(4): open(os.environ['CONVALGOS_HISTORY_TICKS'], 'a').write('.'); time.sleep(0.4)\n"
        "sys.exit(3)\n"
    )
    results = tmp_path / "results"
    results.mkdir()
    lines, shares = [], []
    command = ["env", f"--chdir={tmp_path}", sys.executable, "-c", code]
    status = history_progress.watch(
        command, {}, results, (), None, lines.append, lambda what, share: shares.append(share)
    )
    assert status == 3 and lines == ["[ 0%] begins"]
    assert shares and 0 < max(shares) <= 4 / 13
    path = results / "benchmarks.json"
    assert history_progress.expected(path, ["time_x.*'p'"], None) == 6
    assert history_progress.expected(path, ["time_x.*'p'", "time_y"], 1) == 3
    assert history_progress.expected(tmp_path / "none", (), None) == 0


def test_without_asv(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "asv", None)
    missing.cache_clear()
    try:
        done = CliRunner().invoke(main, ["history", "publish"])
        assert done.exit_code == 2
        assert "needs asv, which is not installed (pip install 'convalgos[history]')" in done.stderr
    finally:
        monkeypatch.undo()
        missing.cache_clear()


def test_without_a_source_tree(monkeypatch, tmp_path):
    monkeypatch.setattr(asv, "__file__", str(tmp_path / "convalgos" / "tools" / "history" / "asv.py"))
    with pytest.raises(Unsupported, match="needs a source tree"):
        asv.source_tree()


# --- commits ---------------------------------------------------------------------------------


def test_milestones_stay_as_the_history_grows(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / "convalgos").mkdir()
    for i in range(7):
        (tmp_path / ("notes" if i == 3 else "convalgos/x.py")).write_text(str(i))
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-qm", f"{i}")
    subjects = [git(tmp_path, "log", "-1", "--format=%s", c) for c in asv.milestones(tmp_path, 2)]
    assert subjects == ["1", "4", "6"]  # each second one that changes the package: 3 does not
    assert [git(tmp_path, "log", "-1", "--format=%s", c) for c in asv.milestones(tmp_path, 5)] == [
        "5",
        "6",
    ]


def test_snapshots_are_removed_whatever_happens(copy):
    for error in (RuntimeError, KeyboardInterrupt):
        with pytest.raises(error), asv.snapshot(copy, "HEAD") as tree:
            assert (tree / "convalgos" / "core" / "version.py").read_text() == '__version__ = "0.0.3"\n'
            raise error
        assert not tree.exists()


def test_a_terminated_process_removes_its_snapshot(copy):
    code = (
        "import sys, time; from pathlib import Path; from convalgos.tools.history.asv import snapshot\n"
        "with snapshot(Path(sys.argv[1]), 'HEAD') as tree:\n    print(tree, flush=True)\n    time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(copy)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    tree = Path(process.stdout.readline().strip())
    assert tree.exists()
    process.terminate()
    assert process.wait(30) == asv.TERMINATED
    assert not tree.exists()


def test_machines_are_called_by_what_their_timings_depend_on():
    name = asv.machine_name()
    assert name.replace("-", "").isalnum() and name == name.lower()
    assert os.uname().nodename.lower() not in name


# --- quick -----------------------------------------------------------------------------------


def test_quick_compares_with_the_parent(convalgos, monkeypatch):
    monkeypatch.setenv("CONVALGOS_HISTORY_LAYERS", "wavenet/conv1d_1x1_512_256")
    start = time.monotonic()
    shown = convalgos("history", "quick")
    assert time.monotonic() - start < 60
    line = next(line for line in shown.splitlines() if "wavenet/conv1d_1x1_512_256" in line)
    assert "HEAD^: pick" in shown and "geometric mean" in shown
    assert 0.01 < float(line.replace("slower", "").replace("faster", "").split()[-1]) < 100


def test_quick_says_why_there_is_nothing_to_compare_with(copy, convalgos, tmp_path):
    assert "nothing to compare with: HEAD^^ cannot be measured: " in convalgos("history", "quick", "HEAD^^")
    assert "the clone is shallow" in convalgos("history", "quick", "HEAD^^^")
    assert "is no commit of this repository" in convalgos("history", "quick", "nowhere")
    hidden = copy / ".git"
    hidden.rename(tmp_path / "git")
    try:
        assert "nothing to compare with: no git history here" in convalgos("history", "quick")
    finally:
        (tmp_path / "git").rename(hidden)


def compared(before, now):
    return Compared(
        "l",
        "p",
        *(PickTimed("cpu.a", Timing(t)) if t else PickTimed(None, None, "no") for t in (before, now)),
    )


@pytest.mark.parametrize(
    ("before", "now", "verdict"),
    [
        ((1.0, 1.0, 1.0), (2.0, 2.0, 2.0), "slower"),
        ((2.0, 2.0, 2.0), (1.0, 1.0, 1.0), "faster"),
        ((1.0, 1.0, 9.0), (1.2, 2.0, 3.0), ""),  # noise
        ((1.0, 1.0, 1.0), (1.05, 1.05, 1.05), ""),  # little
        ((1.0,), (), ""),
        ((), (1.0,), ""),
    ],
)
def test_verdicts(before, now, verdict):
    found = compared(before, now)
    assert found.verdict == verdict
    assert (found.ratio is None) == (not before or not now)


@pytest.mark.parametrize(("sides", "status"), [(((1.0,), ()), 1), (((), (1.0,)), 0), (((), ()), 0)])
def test_quick_fails_only_where_a_layer_no_longer_runs(sides, status, monkeypatch):
    monkeypatch.setattr(history_quick, "why_not_compared", lambda base: None)
    monkeypatch.setattr(history_quick, "quick", lambda base, **more: iter([compared(*sides)]))
    done = CliRunner().invoke(main, ["history", "quick"])
    assert done.exit_code == status, done.output
    assert ("no longer does: no" in done.stderr) == bool(status)


# --- the guide -------------------------------------------------------------------------------


def test_the_commands_of_the_guide_exist():
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    lines = [line for line in guide.splitlines() if line.startswith("convalgos history ")]
    assert len(lines) >= 6
    for line in lines:
        _, _, command, *words = shlex.split(line, comments=True)
        shown = CliRunner().invoke(main, ["history", command, "--help"])
        assert shown.exit_code == 0, line
        assert all(word in shown.output for word in words if word.startswith("--")), line
