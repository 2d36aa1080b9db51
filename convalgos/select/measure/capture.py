"""Which problems a program runs: `with ca.capture() as problems`, and `convalgos capture -- COMMAND`.

`ca.capture` counts, in this process, every run of a plan that a public call made.

`convalgos capture` starts COMMAND with CONVALGOS_CAPTURE set to a file. Every Python process that imports
convalgos adds its counts to the file, whose lines read `COUNT PROBLEM`:

1. While it runs, a process writes its counts at each run to a file of its own, beside that one. So they are
   there even if it is killed.
2. When the process ends, it adds them to the common file. If it could not, the next process that looks does.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import os
import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from glob import escape
from pathlib import Path

from convalgos.core import plan
from convalgos.core.cache_files import set_aside, write_atomic
from convalgos.core.file_lock import locked
from convalgos.core.problem import ConvProblem

VARIABLE = "CONVALGOS_CAPTURE"
DIGITS = 20  # of a count that is written again and again in its place
SUFFIX = ".counts"  # of the file of a process
COUNTED = "# with the counts of"  # files that are about to go: what distinguishes their names follows
MOST = 1 << 60  # runs of a problem
PATIENCE = 5.0  # seconds that a program waits at its end to add its counts

_watching = threading.RLock()  # a signal may run a convolution while another one is counted


@contextmanager
def capture() -> Iterator[Counter[ConvProblem]]:
    """Count the problems that are run meanwhile, by all threads of this process.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> with ca.capture() as problems:
        ...     y = ca.conv(np.ones((1, 1, 9), "f4"), np.ones((1, 1, 3), "f4"))
        >>> [(str(problem), count) for problem, count in problems.items()]
        [('n1 c1 w9 k1 s3', 1)]
    """
    found: Counter[ConvProblem] = Counter()

    def watch(problem: ConvProblem) -> None:
        with _watching:
            found[problem] += 1

    plan.watchers.append(watch)
    try:
        yield found
    finally:
        plan.watchers.remove(watch)


def read_capture(path: str | Path) -> Counter[ConvProblem]:
    """What a file holds, with what processes that still run, or were killed, have not added to it.

    Raises:
        ValueError: names the file and the line. OSError: it cannot be read.
    """
    path = Path(path)
    own = _files_of_processes(path)
    found = _read(path) if path.exists() or not own else Counter()
    found.update(_not_added(path, own))
    return found


def gather_counts(path: str | Path) -> Counter[ConvProblem]:
    """Add to a file what processes counted that ended without doing so, and read it; empty if there is none.

    Raises:
        ValueError: names the file and the line. OSError: it cannot be read or written.
    """
    path = Path(path)
    if _files_of_processes(path):
        with locked(path, PATIENCE), ExitStack() as stack:
            left = [own for own in _files_of_processes(path) if stack.enter_context(_deserted(own))]
            _take_over(path, left)
    return _read(path) if path.exists() else Counter()


def capture_program(path: str) -> None:
    """Count what this process runs until it ends, into a file. `import convalgos` calls it where asked to."""
    counts = _Counts(Path(path))
    plan.watchers.append(counts)
    atexit.register(counts.settle)
    os.register_at_fork(after_in_child=counts.start_anew)  # what the parent ran, the parent tells


class _Counts:
    """What this process ran, in a file of its own that is up to date after each run.

    Its lines are those of any capture, with room for each count, which is written in its place: a call of the
    system for each run (2 us), and nothing is lost when the process is ended, however that is. The process
    holds a lock on its file for as long as it lives, by which the others know that it does.
    """

    def __init__(self, path: Path):
        self._path = path
        self._file: int | None = None
        self._known: dict[ConvProblem, tuple[int, int]] = {}  # problem -> count, and where it stands
        self._end = 0
        self._broken = False

    def __call__(self, problem: ConvProblem) -> None:
        if self._broken:
            return
        with _watching:
            try:
                file = self._open() if self._file is None else self._file
                count, place = self._known.get(problem, (0, self._end))
                text = f"{count + 1:0{DIGITS}d}" + ("" if count else f" {problem}\n")
                if os.pwrite(file, text.encode(), place) < len(text):
                    raise OSError(errno.ENOSPC, "the disk is full", str(self._path))
                self._known[problem] = count + 1, place
                self._end += 0 if count else len(text)
            except OSError as error:
                self._broken = True  # the program goes on, uncounted
                _warn(f"the program runs on, but is no longer captured: {error}")

    def settle(self) -> None:
        """Let go of the own file, and add it to that of all."""
        with _watching:
            if self._file is None:
                return
            self.start_anew()
        try:
            try:
                gather_counts(self._path)
            except ValueError as error:
                set_aside(self._path, str(error))
                gather_counts(self._path)
        except (OSError, ValueError) as error:
            _warn(f"what was captured lies beside {self._path}, to which it could not be added: {error}")

    def start_anew(self) -> None:
        """Without a file. In a child the file, and the lock on it, stay with the parent."""
        if self._file is not None:
            os.close(self._file)
        self._file, self._known, self._end = None, {}, 0

    def _open(self) -> int:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            own = self._path.with_name(f"{self._path.name}-{os.urandom(8).hex()}{SUFFIX}")
            self._file = os.open(own, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            fcntl.flock(self._file, fcntl.LOCK_EX)
            if os.fstat(self._file).st_nlink:
                return self._file
            os.close(self._file)  # before it was locked another process took it for one that was left


# --- inside ----------------------------------------------------------------------------------


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text: {error}") from None


def _read(path: Path) -> Counter[ConvProblem]:
    found: Counter[ConvProblem] = Counter()
    for number, line in enumerate(_lines(path), 1):
        try:
            found.update(_parsed(line))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
    return found


def _read_own(path: Path) -> Counter[ConvProblem]:
    """Of a process; it may be about to write the last line, or have been ended while it did."""
    found: Counter[ConvProblem] = Counter()
    try:
        for line in path.read_text("utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                found.update(_parsed(line))
    except FileNotFoundError:  # it was added meanwhile
        return Counter()
    except ValueError as error:
        _warn(f"of the counts in {path} those are left out that cannot be read: {error}")
    return found


def _parsed(line: str) -> dict[ConvProblem, int]:
    """One problem and its count, or nothing of a comment."""
    words = line.partition("#")[0].split()
    if not words:
        return {}
    count = 1
    if words[0].isdecimal() and (count := int(words.pop(0))) > MOST:
        raise ValueError(f"no program runs a problem {str(count)[:40]} times")
    return {ConvProblem.parse(" ".join(words)): count}


def _take_over(path: Path, left: Sequence[Path]) -> None:
    """Add what files hold, and remove them. A process that is ended meanwhile has added all or nothing, and
    the next one adds nothing twice."""
    more = _not_added(path, left)
    if more:
        total = _read(path) if path.exists() else Counter()
        total.update(more)
        lines = sorted((-count, str(problem)) for problem, count in total.items())
        text = "".join(f"{-count} {problem}\n" for count, problem in lines)
        write_atomic(path, f"{text}{' '.join([COUNTED, *(_own_name(path, own) for own in left)])}\n")
    for own in left:
        own.unlink(missing_ok=True)
    if more:
        write_atomic(path, text)


def _not_added(path: Path, own: Sequence[Path]) -> Counter[ConvProblem]:
    """What files of processes hold that are not part of the common one already."""
    told = [line for line in (_lines(path) if path.exists() else ()) if line.startswith(COUNTED)]
    added = {name for line in told for name in line.removeprefix(COUNTED).split()}
    found: Counter[ConvProblem] = Counter()
    for file in own:
        if _own_name(path, file) not in added:
            found.update(_read_own(file))
    return found


def _own_name(path: Path, own: Path) -> str:
    """What distinguishes the file of a process from others beside the common one."""
    return own.name[len(path.name) + 1 : -len(SUFFIX)]


def _files_of_processes(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{escape(path.name)}-*{SUFFIX}"))


@contextmanager
def _deserted(own: Path) -> Iterator[bool]:
    """Whether the process whose file this is has ended; within it no other process adds the file."""
    try:
        file = os.open(own, os.O_RDWR)
    except FileNotFoundError:
        yield False
        return
    try:
        yield _free(file)
    finally:
        os.close(file)


def _free(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=2)


def _unlock() -> None:
    """In a child that was forked while another thread counted, which is not there."""
    global _watching
    _watching = threading.RLock()


os.register_at_fork(after_in_child=_unlock)
