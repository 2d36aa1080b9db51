"""What was measured, on disk: the candidate tables of many problems, one plain JSON file per machine.

A file is read, changed and replaced under a lock, so that writers lose nothing of each other's and readers
see the old file or the new one. It is sorted, with a line for every candidate, so that it can be kept in git.
What is read is checked before it is believed; a damaged file is set aside with a warning.

Everything that was measured is kept, without regard to the limits under which it was: limits apply when a
choice is made (`convalgos.select`), and so never colour what is known.
"""

from __future__ import annotations

import json
import math
import os
import re
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

from convalgos.core import strict_json
from convalgos.core.arguments import TooLarge
from convalgos.core.cache_files import cache_folder, set_aside, write_atomic
from convalgos.core.file_lock import locked
from convalgos.core.problem import ConvProblem
from convalgos.core.setting import Variable
from convalgos.select.measured import Entries, Entry, Known, Measured

FRESH = 0.02  # seconds for which a file is not looked at again: a choice takes less than a look
FORMAT = 1  # of the file; raise it when a field changes its meaning
LONGEST = 300  # characters of the reason of a failure
IDS = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)+")
LARGEST = 1 << 50  # elements of an array of a problem that was ever run
LONGEST_NUMBER = 15  # digits of a size
SLOWEST = 1e9  # seconds of a sample
CLOCKS = timedelta(days=1)  # by which clocks of machines may differ
BUILT = 2026  # year before which a clock was not set yet, and says nothing of others


# --- as text ---------------------------------------------------------------------------------


def dump(fingerprint: str, entries: Entries) -> str:
    """The text of a file: problems and candidates in order, a line for every candidate."""
    blocks = []
    for problem in sorted(entries):
        lines = [
            f"   {json.dumps(name)}: {_as_text(entries[problem][name])}" for name in sorted(entries[problem])
        ]
        blocks.append(f"  {json.dumps(problem)}: {{\n" + ",\n".join(lines) + "\n  }")
    body = "{\n" + ",\n".join(blocks) + "\n }" if blocks else "{}"
    return f'{{\n "format": {FORMAT},\n "machine": {json.dumps(fingerprint)},\n "problems": {body}\n}}\n'


def parse(text: str) -> tuple[str, Entries]:
    """(fingerprint, entries) of a text that `dump` wrote, or that anybody else did.

    Raises:
        ValueError: says what is wrong.
    """
    read = strict_json.loads(text)
    if not isinstance(read, dict) or type(read.get("format")) is not int or read["format"] != FORMAT:
        raise ValueError("not a wisdom file of this version")
    fingerprint, problems = read.get("machine"), read.get("problems")
    if not isinstance(fingerprint, str) or not re.fullmatch(r"[\w-]{1,200}", fingerprint):
        raise ValueError(f"machine={strict_json.excerpt(fingerprint)} is not the fingerprint of one")
    if not isinstance(problems, dict):
        raise ValueError("problems must be an object")
    entries: Entries = {}
    untrue: list[str] = []
    for told, candidates in problems.items():
        where = f"problem {told[:200]!r}"
        if not isinstance(candidates, dict):
            raise ValueError(f"{where}: its candidates must be an object")
        problem = _problem(told)
        if problem is None or max(map(math.prod, problem.array_shapes)) > LARGEST:
            untrue.append(f"{where} is larger than any memory")
            continue
        entry = entries.setdefault(str(problem), {})
        for name, values in candidates.items():
            if not IDS.fullmatch(name):
                raise ValueError(f"{where}: {name[:80]!r} is not the id of an algorithm")
            measured = _from_json(f"{where}, {name}", values)
            if _later(measured):
                untrue.append(f"{where}, {name}: when={measured.when} is still to come")
            else:
                entry[name] = measured
        if not entry:
            del entries[str(problem)]
    if untrue:
        told = f"{len(untrue)} entries of wisdom cannot be true and are left out, such as {untrue[0]}"
        warnings.warn(told, RuntimeWarning, stacklevel=2)
    return fingerprint, entries


def _later(m: Measured) -> bool:
    """Whether it was measured in the future, as far as the clock of this machine can tell."""
    now = datetime.now(UTC)
    return now.year >= BUILT and m.moment > now + CLOCKS


@lru_cache(1 << 15)
def _as_text(m: Measured) -> str:
    """Kept: a file is written again for each problem that is measured."""
    return json.dumps(_as_json(m))


def _as_json(m: Measured) -> dict[str, Any]:
    told = {"when": m.when, "version": m.version} | ({"adapted": True} if m.adapted else {})
    if m.failure is not None:
        return {"failure": m.failure, **told}
    return {
        "median_s": _short(m.median_s),
        "spread": round(m.spread, 3),
        "samples_s": m.samples_s,
        "workspace_bytes": m.workspace_bytes,
        "error": m.error,
        "prepare_s": m.prepare_s,
        **told,
    }


def _problem(told: str) -> ConvProblem | None:
    """The problem of a text, or None where it is beyond any memory."""
    if re.search(rf"\d{{{LONGEST_NUMBER + 1}}}", told):
        return None
    try:
        return ConvProblem.parse(told)
    except TooLarge:
        return None


def _from_json(where: str, values: Any) -> Measured:
    """Checked field by field; `median_s` and `spread` are for readers, and follow from the samples."""

    if not isinstance(values, dict):
        raise ValueError(f"{where}: must be an object")
    try:
        when = strict_json.text("when", values.get("when"), LONGEST)
        if (moment := datetime.fromisoformat(when)).utcoffset() is None:
            raise ValueError(f"when={when[:40]!r} is not a time with its zone")
        moment.astimezone(UTC)  # in the years that there are, there, too
        version = strict_json.text("version", values.get("version", ""), 40)
        if not isinstance(adapted := values.get("adapted", False), bool):
            raise ValueError(f"adapted={strict_json.excerpt(adapted)} must be true or false")
        if (failure := values.get("failure")) is not None:
            reason = strict_json.text("failure", failure, 1 << 20)[:LONGEST]
            return Measured(failure=reason, when=when, version=version, adapted=adapted)
        samples = values.get("samples_s")
        if not isinstance(samples, list) or not samples:
            raise ValueError("samples_s must be a list of seconds")
        error, prepare = values.get("error"), values.get("prepare_s")
        return Measured(
            samples_s=tuple(_seconds("samples_s", value) for value in samples),
            workspace_bytes=strict_json.count_of(
                "workspace_bytes", values.get("workspace_bytes", 0), 0, LARGEST
            ),
            error=None if error is None else strict_json.number("error", error, 0.0, 1e300),
            prepare_s=None if prepare is None else _seconds("prepare_s", prepare),
            when=when,
            version=version,
            adapted=adapted,
        )
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{where}: {error}") from None


def _seconds(name: str, value: Any) -> float:
    """No clock tells less than the least of them."""
    return strict_json.number(name, value, 1e-12, SLOWEST)


def _rounded(m: Measured) -> Measured:
    """As it is written, so that this process goes by the same figures as those that read them."""
    return replace(
        m,
        samples_s=tuple(map(_short, m.samples_s)),
        error=None if m.error is None or not math.isfinite(m.error) else _short(m.error),
        prepare_s=None if m.prepare_s is None else _short(m.prepare_s),
    )


def _short(value: float) -> float:
    """Four significant digits: no clock is better."""
    return float(f"{value:.4g}")


# --- merging ---------------------------------------------------------------------------------


def merge_entries(into: Entries, more: Mapping[str, Mapping[str, Measured]]) -> list[str]:
    """Add entries to others in place. Of each candidate the newest wins, but none that adapted over others.

    Returns:
        A line for each candidate that both had, with different contents.
    """
    conflicts = []
    for problem, entry in more.items():
        known = into.setdefault(problem, {})
        for name, theirs in entry.items():
            ours = known.get(name)
            if ours is None or theirs.evidence > ours.evidence:
                known[name] = theirs = _rounded(theirs)
            if ours is not None and _as_json(ours) != _as_json(theirs):
                other, better = (ours, theirs) if known[name] is theirs else (theirs, ours)
                kept = f"{_told(better)} of {better.when} is kept over {_told(other)} of {other.when}"
                conflicts.append(f"{problem}: {name}: {kept}")
    return conflicts


def _told(m: Measured) -> str:
    return "a failure" if m.failure is not None else f"{m.median_s * 1e6:.1f} us"


# --- the file --------------------------------------------------------------------------------


_chosen = Variable("CONVALGOS_WISDOM")


def folder() -> Path:
    """Where wisdom is kept: CONVALGOS_WISDOM, or `wisdom` in the cache folder."""
    chosen = _chosen.get()
    return Path(chosen) if chosen else cache_folder() / "wisdom"


class Store:
    """The file of one machine. Reads are cached for as long as the file does not change."""

    def __init__(self, fingerprint: str):
        self.fingerprint = fingerprint
        self._now = Known()
        self._until: float = 0.0
        self._where: str | None = None  # the folder of the last look at the file; the next one is due then

    @property
    def path(self) -> Path:
        return folder() / f"{self.fingerprint}.json"

    def entries(self) -> Entries:
        """All that is known; not to be changed. What others wrote is seen after FRESH seconds."""
        return self.known().entries

    @property
    def stamp(self) -> int:
        """Equal as long as nothing new is known."""
        return self.known().changes

    def lookup(self, problem: ConvProblem) -> Entry:
        """What is known of a problem: empty where nothing is."""
        return self.known().lookup(problem)

    def near(self, problem: ConvProblem) -> tuple[ConvProblem, Entry] | None:
        """The most similar known problem, different in batch and size of the map only, and what is known."""
        return self.known().near(problem)

    def record(self, problem: ConvProblem, found: Mapping[str, Measured]) -> None:
        """Add what was measured of a problem. A folder that cannot be written costs only a warning."""
        more = {str(problem): dict(found)}
        try:
            self.update(lambda entries: merge_entries(entries, more))
        except OSError as error:
            warnings.warn(f"wisdom could not be kept: {error}", RuntimeWarning, stacklevel=2)
            with _reader:
                known = self.known()
                merge_entries(entries := {p: dict(e) for p, e in known.entries.items()}, more)
                self._keep(known.text, entries, known.seen)  # for this process at least

    def update(self, change: Callable[[Entries], Any]) -> Any:
        """Read the file, change its entries in place, and replace it, alone among all processes.

        Returns:
            What `change` returned.
        """
        path = self.path
        with locked(path):
            for left in path.parent.glob(f"{path.name}-*.part"):  # by a process that was killed
                left.unlink(missing_ok=True)
            entries = {problem: dict(entry) for problem, entry in self._read()[1].items()}
            result = change(entries)
            text = dump(self.fingerprint, entries)
            write_atomic(path, text)
            with _reader:
                self._keep(text, entries, _status(path))
        return result

    def known(self) -> Known:
        """All that is known now: for a choice that asks several times, and is to go by one state of it."""
        now, where = time.monotonic(), _chosen.get()
        if now < self._until and where == self._where:
            return self._now
        with _reader:  # an older file that was read meanwhile must not take the place of a newer one
            if (seen := _status(self.path)) != self._now.seen:
                try:
                    self._keep(*self._read(), seen)
                except OSError as error:
                    self._keep("", {}, seen)
                    warnings.warn(f"wisdom could not be read: {error}", RuntimeWarning, stacklevel=3)
            self._until, self._where = now + FRESH, where
            return self._now

    def _read(self) -> tuple[str, Entries]:
        """The file as it is now: its text, and its entries, which are not to be changed.

        There are none where there is no file, or a damaged one, which is set aside.
        """
        path, known = self.path, self._now
        try:
            text = path.read_text("utf-8")
            return text, known.entries if text == known.text else parse(text)[1]
        except (FileNotFoundError, NotADirectoryError):
            return "", {}
        except ValueError as error:
            set_aside(path, str(error))
            return "", {}

    def _keep(self, text: str, entries: Entries, seen: Any) -> None:
        self._now = self._now.followed_by(text, entries, seen)


_reader = threading.RLock()  # of the files, by one thread at a time


def _unlock() -> None:
    """In a child that was forked while another thread read, which is not there."""
    global _reader
    _reader = threading.RLock()


os.register_at_fork(after_in_child=_unlock)


def _status(path: Path) -> tuple[Any, ...]:
    """What changes with a file."""
    try:
        status = os.stat(path)
    except OSError:
        return (path,)
    return path, status.st_mtime_ns, status.st_size, status.st_ino
