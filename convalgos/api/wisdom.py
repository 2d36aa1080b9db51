"""What was measured before: exported, merged, shown, checked again, forgotten.

The selector reads it on every choice; `plan(effort="measure")`, `find` and `convalgos tune` add to it. It is
one JSON file per machine (`convalgos.select.wisdom_file`), in the folder that CONVALGOS_WISDOM names or in
the cache.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from convalgos.api import planning
from convalgos.core.arguments import file_path
from convalgos.core.cache_files import write_atomic
from convalgos.core.plan import result_dtype
from convalgos.core.problem import ConvProblem
from convalgos.select import devices, registry, wisdom_file
from convalgos.select.measured import Entries, Entry, Measured

if TYPE_CHECKING:
    from convalgos.select.measure.timing import Progress

__all__ = [
    "Drift", "Merged", "Verification", "export", "forget", "merge", "merge_text", "show", "verify",
]  # fmt: skip
DRIFT = 1.25  # times faster or slower than remembered, from which on a timing counts as drifted


@dataclass(frozen=True)
class Merged:
    """What a merge did. `conflicts` has a line for each candidate that both sides knew differently."""

    machine: str
    problems: int
    candidates: int
    conflicts: tuple[str, ...]

    def __str__(self) -> str:
        head = f"{self.candidates} candidates of {self.problems} problems, measured on {self.machine}"
        count = f"{len(self.conflicts)} conflicts, the newest kept" if self.conflicts else "no conflicts"
        return "\n".join((f"{head}: {count}", *(f"  {line}" for line in self.conflicts)))


@dataclass(frozen=True)
class Drift:
    """One candidate, timed again."""

    problem: str
    algorithm: str
    before_s: float
    after_s: float

    @property
    def ratio(self) -> float:
        """Time now / time remembered."""
        return self.after_s / self.before_s


@dataclass(frozen=True)
class Verification:
    """A sample of what is known, timed again."""

    drifts: tuple[Drift, ...]

    @property
    def drifted(self) -> tuple[Drift, ...]:
        """Those that are DRIFT times faster or slower now."""
        return tuple(d for d in self.drifts if not 1 / DRIFT <= d.ratio <= DRIFT)

    def __str__(self) -> str:
        if not self.drifts:
            return "nothing is known that could be timed again"
        lines = [
            f"{'!' if d in self.drifted else ' '} {d.ratio:6.2f}x  {d.before_s * 1e6:10.1f} us then, "
            f"{d.after_s * 1e6:10.1f} us now  {d.algorithm:24s} {d.problem}"
            for d in self.drifts
        ]
        mean = math.exp(sum(math.log(d.ratio) for d in self.drifts) / len(self.drifts))
        lines.append(
            f"{len(self.drifted)} of {len(self.drifts)} drifted by more than {DRIFT}x; now / then is "
            f"{mean:.2f}x in the geometric mean"
        )
        return "\n".join(lines)


def export(path: str | Path, device: str = "cpu") -> int:
    """Write what is known of this machine, or of GPUs of a kind, to a file, for another user or for git.

    Args:
        device: "cpu", "cuda" or "cuda:N".

    Returns:
        The number of problems.

    Raises:
        ValueError, Unsupported: there is no such device. OSError: the file cannot be written.

    Example:
        >>> import tempfile, convalgos as ca
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     problems = ca.wisdom.export(f"{folder}/mine.json")
        ...     ca.wisdom.merge(f"{folder}/mine.json").problems == problems
        True
    """
    known = devices.store(device)
    entries = known.entries()
    write_atomic(file_path("path", path), wisdom_file.dump(known.fingerprint, entries))
    return len(entries)


def merge(path: str | Path) -> Merged:
    """Add what a file tells, the newest of each candidate winning.

    What was measured on another machine, or on a GPU, goes to the file of that machine or GPU.

    Returns:
        What was added, and which times of one candidate were kept of two: see `export` for an example.

    Raises:
        ValueError: the file is not wisdom; says what is wrong, and nothing is changed. OSError: no such file.
    """
    file = file_path("path", path)
    try:
        text = file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} cannot be merged: {error}") from None
    return merge_text(text, str(path))


def merge_text(text: str, name: str = "the text") -> Merged:
    """`merge` of what a file would tell: `convalgos.select.wisdom_file.dump` writes it.

    Raises:
        ValueError: it is not wisdom; says what is wrong, and nothing is changed.
    """
    try:
        fingerprint, more = wisdom_file.parse(text)
    except ValueError as error:
        raise ValueError(f"{name} cannot be merged: {error}") from None
    here = devices.store()
    target = here if fingerprint == here.fingerprint else devices.store_of(fingerprint)
    conflicts = target.update(lambda entries: wisdom_file.merge_entries(entries, more))
    planning.forget_plans()
    return Merged(fingerprint, len(more), sum(map(len, more.values())), tuple(conflicts))


def forget(
    problem: ConvProblem | str | None = None, algorithm: str | None = None, device: str = "cpu"
) -> int:
    """Forget all of this machine or GPU, or what is known there of a problem, or of an algorithm.

    Args:
        problem: or its text, as "n1 c8 h8 w8 k8 r3 s3"; None for all.
        algorithm: its id; None for all.
        device: "cpu", "cuda" or "cuda:N".

    Returns:
        The number of candidates forgotten.

    Raises:
        ValueError: problem or algorithm is the name of none.

    Example:
        >>> import convalgos as ca
        >>> ca.wisdom.forget("n1 c3 h97 w89 k5 r3 s3")  # which was never measured
        0
    """
    only = None if problem is None else str(_as_problem(problem))
    if algorithm is not None and not wisdom_file.IDS.fullmatch(algorithm):
        raise ValueError(f"algorithm={algorithm!r} must be the id of one")

    def remove(entries: Entries) -> int:
        count = 0
        for text in [t for t in entries if only in (None, t)]:
            for name in [n for n in entries[text] if algorithm in (None, n)]:
                del entries[text][name]
                count += 1
            if not entries[text]:
                del entries[text]
        return count

    count: int = devices.store(device).update(remove)
    planning.forget_plans()
    return count


def show(problem: ConvProblem | str | None = None, device: str = "cpu") -> str:
    """What is known: of a problem every candidate, without one the fastest candidate of each problem.

    Args:
        problem: or its text; None for all.
        device: "cpu", "cuda" or "cuda:N".

    Example:
        >>> import convalgos as ca
        >>> print(ca.wisdom.show("n1 c3 h97 w89 k5 r3 s3"))
        n1 c3 h97 w89 k5 r3 s3
          nothing is known
    """
    known = devices.store(device)
    if problem is not None:
        p = _as_problem(problem)
        entry = known.lookup(p)
        if not entry:
            return f"{p}\n  nothing is known"
        return "\n".join([str(p), *_lines(entry)])
    entries = known.entries()
    lines = [f"{known.path}: {len(entries)} problems"]
    for text in sorted(entries):
        fastest = _fastest(entries[text])
        told = "only failures" if fastest is None else _told(fastest, entries[text][fastest])
        lines.append(f"  {told}  {text} ({len(entries[text])} candidates)")
    return "\n".join(lines)


def verify(
    sample: int = 10, *, rounds: int = 2, device: str = "cpu", progress: Progress = lambda text, share: None
) -> Verification:
    """Time the fastest candidate of some known problems again, and report by how much the times differ.

    Args:
        sample: how many problems, evenly from all of them.
        rounds: of timing; a candidate's time is the median over all of them.
        device: "cpu", "cuda" or "cuda:N".
        progress: called before every step.

    Raises:
        ValueError: sample or rounds is out of range.

    Example:
        >>> import convalgos as ca
        >>> bool(ca.wisdom.verify(sample=0).drifts)
        False
    """
    from convalgos.select.measure import timing  # with what knows of GPUs: not on every import of convalgos
    from convalgos.select.measure.accuracy import repeating_arrays
    from convalgos.select.measure.backends import backend

    if sample < 0 or rounds < 1:
        raise ValueError(f"sample={sample!r} must be at least 0, and rounds={rounds!r} at least 1")
    here, entries = backend(device), devices.store(device).entries()
    with here.working():
        usable = {t: _usable(t, entry, device) for t, entry in sorted(entries.items())}
    fastest = {t: name for t, name in usable.items() if name is not None}
    step = max(1.0, len(fastest) / max(1, sample))
    chosen = [list(fastest)[int(i * step)] for i in range(min(sample, len(fastest)))]
    drifts = []
    for turn, text in enumerate(chosen):
        name = fastest[text]
        progress(f"{name} {text}", turn / len(chosen))
        problem = ConvProblem.parse(text)
        x, w = map(here.put, repeating_arrays(problem))
        y = here.empty(problem.array_shapes[2], result_dtype(problem))
        with here.working():
            plan = registry.find_algorithm(name, problem).serve(problem)
        call = timing.runner(plan, x, w, y)
        here.ready(call)
        samples = timing.interleave({name: call}, rounds=rounds, backend=here)[name].samples
        drifts.append(Drift(text, name, entries[text][name].median_s, median(samples)))
    return Verification(tuple(drifts))


# --- inside ----------------------------------------------------------------------------------


def _as_problem(problem: ConvProblem | str) -> ConvProblem:
    return problem if isinstance(problem, ConvProblem) else ConvProblem.parse(problem)


def _fastest(entry: Entry) -> str | None:
    timed = [(m.median_s, name) for name, m in entry.items() if m.failure is None]
    return min(timed)[1] if timed else None


def _usable(text: str, entry: Entry, device: str) -> str | None:
    """The fastest candidate of those that this version still has."""
    known = {a.id for a in registry.algorithms()}
    if entry.keys() - known:
        known |= {a.id for a in registry.variants(ConvProblem.parse(text), device)}
    return _fastest({name: m for name, m in entry.items() if name in known})


def _lines(entry: Entry) -> list[str]:
    timed = sorted((m.median_s, name) for name, m in entry.items() if m.failure is None)
    lines = [f"  {_told(name, entry[name])}  {entry[name].when}" for _, name in timed]
    return lines + [f"  {n:24s} FAILED: {m.failure}" for n, m in entry.items() if m.failure is not None]


def _told(name: str, m: Measured) -> str:
    error = "not checked" if m.error is None else f"error {m.error:.1e}"
    count = len(m.samples_s)
    samples = "1 sample" if count == 1 else f"±{m.spread / 2:.0%} of {count:2d}"
    told = f"{m.median_s * 1e6:10.1f} us {samples}, {m.workspace_bytes / 1e6:8.2f} MB, {error:>13s}"
    return f"{name:24s} {told}{', adapted' if m.adapted else ''}"
