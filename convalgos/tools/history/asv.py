"""The history of this library's speed: runs asv over its commits.

A commit is measured in the running Python, with the package from a copy of the commit's files: there is no
remote, no build and no environment, and uncommitted changes are not measured. The benchmarks are always those
of the working tree. Results go to `asv_bench/results/<machine>/`, in asv's format, and do not tell on whose
machine they were measured.
"""

from __future__ import annotations

import io
import json
import math
import os
import platform
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from convalgos.core.cache_files import write_atomic
from convalgos.core.errors import Unsupported, missing
from convalgos.core.machine import vector_bytes
from convalgos.core.processor import cpu_name
from convalgos.select.measure.timing import Progress, silent
from convalgos.tools.history import asv_progress as history_progress
from convalgos.tools.history.offline import make_offline

MEASURED = ("convalgos", "kernels")  # what a commit must change to change what is measured
ISA = {64: "avx512", 32: "avx2"}
TERMINATED = 143


class NothingMeasured(RuntimeError):
    """asv ran, and no benchmark gave a value."""


# --- the source tree -------------------------------------------------------------------------


def source_tree() -> Path:
    """The root of the source tree that this package is in.

    Raises:
        Unsupported: it is installed without one.
    """
    root = Path(__file__).resolve().parents[3]
    if not (root / "asv_bench" / "asv.conf.json").exists():
        raise Unsupported(f"the history needs a source tree with asv_bench/, and {root} is none")
    return root


def git(root: Path, *arguments: str) -> str:
    """What git prints.

    Raises:
        ValueError: git refuses; with its own words.
    """
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        raise ValueError("git is not installed") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"git {arguments[0]} failed"]
        raise ValueError(said[-1].removeprefix("fatal: "))
    return done.stdout.strip()


def commit_of(root: Path, name: str) -> str:
    """The hash of a commit.

    Raises:
        ValueError: there is none of this name here, or no repository.
    """
    git(root, "rev-parse", "--git-dir")
    try:
        return git(root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    except ValueError:
        raise ValueError(f"commit={name!r} is no commit of this repository") from None


def milestones(root: Path, every: int) -> list[str]:
    """Every so manieth commit that changes what is measured, and the newest of them; oldest first.

    They are counted from the first one, so that milestones stay milestones as the history grows.
    """
    listed = git(root, "log", "--first-parent", "--reverse", "--format=%H", "--", *MEASURED).split()
    return [c for i, c in enumerate(listed, 1) if i % every == 0 or i == len(listed)]


@contextmanager
def snapshot(root: Path, commit: str) -> Iterator[Path]:
    """The files of a commit in a folder of their own, which is removed again whatever happens."""
    with tempfile.TemporaryDirectory(prefix="convalgos-history-") as folder, _terminable():
        done = subprocess.run(
            ["git", "-C", str(root), "archive", "--format=tar", commit], capture_output=True
        )
        if done.returncode:
            raise ValueError(f"git archive {commit} failed: {done.stderr.decode(errors='replace').strip()}")
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
            tar.extractall(folder, filter="data")
        yield Path(folder)


def in_tree(tree: Path, variable: str = "PYTHONPATH", *more: Path) -> dict[str, str]:
    """Variables for a process that has the package of a tree, and folders more on its path."""
    return {variable: os.pathsep.join(map(str, (tree, *more))), "CONVALGOS_HISTORY_TREE": str(tree)}


@contextmanager
def _terminable() -> Iterator[None]:
    """Within it, what asks the process to end lets it clean up first, as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# --- asv -------------------------------------------------------------------------------------


def machine_name() -> str:
    """A name of this machine by what its timings depend on, and by nothing that tells whose it is."""
    kind = re.sub(r"[^a-z0-9]+", "-", cpu_name().lower()).strip("-")
    return f"{kind or 'cpu'}-{_threads()}t-{ISA.get(vector_bytes(), 'simd128')}"


def run(
    commit: str = "HEAD",
    *,
    machine: str | None = None,
    only: Sequence[str] = (),
    layers: str | None = None,
    dtypes: str | None = None,
    threads: str | None = None,
    attributes: Sequence[str] = (),
    tell: Callable[[str], None] = print,
    progress: Progress = silent,
) -> tuple[Path, int]:
    """Measure a commit, and keep what was found beside what is known of it already.

    Args:
        commit: any name that git understands.
        machine: what to call this machine; `machine_name()` by default.
        only: regular expressions of benchmarks, as `run.Run.time_run('auto', 'vgg16/conv1_2', ...)`.
        layers, dtypes, threads: other values of these parameters, separated by commas.
        attributes: "name=value" of asv's attributes, such as "rounds=1".
        tell, progress: what to do with asv's lines, and with how far it is.

    Returns:
        The file of results, and how many values were measured.

    Raises:
        NothingMeasured: no benchmark gave a value; no file is changed then.
        ValueError: there is no such commit or attribute. Unsupported: asv is missing.
    """
    root, rounds = source_tree(), _rounds(attributes)
    _need_asv()
    commit, name = commit_of(root, commit), machine or machine_name()
    kept = root / "asv_bench" / "results" / name / f"{commit[:8]}-python{_python()}.json"
    chosen = {"LAYERS": layers, "DTYPES": dtypes, "THREADS": threads}
    environment = {f"CONVALGOS_HISTORY_{k}": v for k, v in chosen.items() if v is not None}
    _describe(name)
    with snapshot(root, commit) as tree, tempfile.TemporaryDirectory(prefix="convalgos-asv-") as folder:
        results = Path(folder) / "results"
        found = results / name / f"{commit[:8]}-{_environment()}.json"
        if kept.exists():
            _rename(kept, found, _environment(), sys.executable)
        command = ["run", "-E", f"existing:{sys.executable}", "--set-commit-hash", commit, "--machine", name]
        command += [word for expression in only for word in ("--bench", expression)]
        command += [word for pair in attributes for word in ("--attribute", pair)]
        started = time.time()
        with _command(root, [*command, "--show-stderr"], results) as words:
            asked = environment | in_tree(tree, "ASV_PYTHONPATH")
            history_progress.watch(words, asked, results, only, rounds, tell, progress)
        measured = _count(found, since=started)
        if not measured:
            raise NothingMeasured(f"no benchmark gave a value on {commit[:8]}: asv says above why")
        _rename(found, kept, f"python{_python()}", _python())
        kept.with_name("machine.json").write_bytes((results / name / "machine.json").read_bytes())
        _list_benchmarks(root, results, name, environment)
    return kept, measured


def publish(folder: Path | None = None) -> Path:
    """Make the pages of curves from all results, and return their index.

    Raises:
        ValueError: there are no results. Unsupported: asv is missing.
    """
    root = source_tree()
    _need_asv()
    results, pages = root / "asv_bench" / "results", folder or root / "asv_bench" / "html"
    if not _recorded(root):
        raise ValueError(f"no results in {results}: convalgos history run measures some")
    if _asv(root, ["publish", "--no-pull", "--html-dir", str(pages.absolute())], results, {}).returncode:
        raise ValueError("asv could not make the pages: it says above why")
    make_offline(pages, root / "asv_bench" / "site")
    return pages / "index.html"


def compare_commits(
    before: str | None, after: str | None, machine: str | None = None, factor: float = 1.1
) -> str:
    """The ratios of two measured commits as text; by default of the two newest that this machine has.

    Raises:
        ValueError: there is no such commit, or it was not measured. Unsupported: asv is missing.
    """
    root = source_tree()
    _need_asv()
    known = _recorded(root)
    name = machine or (next(iter(known)) if len(known) == 1 else machine_name())
    there = known.get(name, [])
    ordered = [c for c in git(root, "log", "--reverse", "--format=%H").split() if c[:8] in there]
    if before is None and after is None and len(ordered) < 2:
        raise ValueError(f"two commits must be measured on {name} to be compared; {len(ordered)} are")
    chosen = [commit_of(root, before or ordered[-2]), commit_of(root, after or ordered[-1])]
    for commit in chosen:
        if commit[:8] not in there:
            raise ValueError(
                f"{commit[:8]} was not measured on {name}; measured are {', '.join(there) or 'none'}"
            )
    words = ["compare", *chosen, "--machine", name, "--factor", str(factor), "--split", "--sort", "ratio"]
    done = _asv(root, words, root / "asv_bench" / "results", {}, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise ValueError(f"asv could not compare: {done.stdout.strip()}")
    return "\n".join(line for line in done.stdout.splitlines() if line.count("| n/a ") < 2)  # no ratio


# --- inside ----------------------------------------------------------------------------------


def _need_asv() -> None:
    if reason := missing("asv"):
        raise Unsupported(f"the history {reason}")


def _asv(
    root: Path, words: Sequence[str], results: Path, environment: dict[str, str], **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run asv with its configuration, and results in this folder."""
    with _command(root, words, results) as command:
        return subprocess.run(command, env={**os.environ, **environment}, **options)


@contextmanager
def _command(root: Path, words: Sequence[str], results: Path) -> Iterator[list[str]]:
    """The command that runs asv with its configuration, and results in this folder."""
    bench = root / "asv_bench"
    settings = json.loads((bench / "asv.conf.json").read_text())
    settings |= {"repo": str(root), "benchmark_dir": str(bench / "benchmarks"), "results_dir": str(results)}
    with tempfile.TemporaryDirectory(prefix="convalgos-asv-") as folder:
        path = Path(folder) / "asv.conf.json"
        path.write_text(json.dumps(settings))
        yield [sys.executable, "-m", "asv", "--config", str(path), *words]


def _list_benchmarks(root: Path, results: Path, name: str, environment: dict[str, str]) -> None:
    """List the benchmarks for `asv publish`: with the parameters of the working tree, not of a commit."""
    words = ["run", "-E", f"existing:{sys.executable}", "--machine", name, "--bench", "just-discover"]
    _asv(root, words, results, environment | in_tree(root, "ASV_PYTHONPATH"), stdout=subprocess.DEVNULL)
    write_atomic(
        root / "asv_bench" / "results" / "benchmarks.json", (results / "benchmarks.json").read_text()
    )


def _rounds(attributes: Sequence[str]) -> int | None:
    """Those that attributes ask for."""
    for pair in attributes:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"attribute={pair!r} must read name=value, such as rounds=1")
        if name == "rounds":
            return int(value)
    return None


def _describe(name: str) -> None:
    """Enter this machine in asv's file of machines, without the name that its network knows it by."""
    from asv.machine import MachineCollection

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    MachineCollection.save(
        name,
        {
            "machine": name,
            "os": platform.system(),
            "arch": platform.machine(),
            "cpu": cpu_name(),
            "num_cpu": str(_threads()),
            "ram": f"{memory / 2**30:.0f} GiB",
        },
    )


def _recorded(root: Path) -> dict[str, list[str]]:
    """Machine -> the beginnings of the hashes that were measured on it."""
    found: dict[str, list[str]] = {}
    for path in sorted((root / "asv_bench" / "results").glob("*/*-*.json")):
        found.setdefault(path.parent.name, []).append(path.name.partition("-")[0])
    return found


def _rename(path: Path, to: Path, environment: str, python: str) -> None:
    """Copy a file of results; asv would name it after the path of the Python that ran it."""
    found = json.loads(path.read_text())
    found["env_name"] = environment
    found["python"] = found["params"]["python"] = python
    write_atomic(to, json.dumps(found) + "\n")


def _count(path: Path, since: float) -> int:
    """Values in a file of results that were measured since then."""
    if not path.exists():
        return 0
    found = json.loads(path.read_text())
    columns = found["result_columns"]
    rows: list[dict[str, Any]] = [dict(zip(columns, r, strict=False)) for r in found["results"].values()]
    fresh = [r["result"] or [] for r in rows if r["started_at"] / 1e3 >= since - 1]
    return sum(v is not None and not math.isnan(v) for values in fresh for v in values)


def _environment() -> str:
    """What asv calls the environment that is this Python."""
    from asv.environment import get_env_name

    return str(get_env_name("existing", sys.executable.replace(os.sep, "_"), {}, {}))


def _python() -> str:
    return ".".join(platform.python_version_tuple()[:2])


def _threads() -> int:
    from convalgos.cpu.runtime import calibrate  # imports llvmlite

    return calibrate.thread_count()
