"""A process that works with the device, from both of its ends: the one that directs, and the one that works.

Such a process can crash, hang in a kernel, or hang in the driver, where nothing can end it. Therefore

- every wait for it has a limit,
- it holds nothing that others wait for: its output goes to a file, and nobody else waits for its end,
- it ends by itself when the directing process ends.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from typing import Any

from convalgos.gpu import device as gpu
from convalgos.gpu.device import Device, GpuMachine
from convalgos.select.measure.backends import GpuBackend
from convalgos.tools.gpu_check.results import Result, told

SERVE = (sys.executable, "-c", "from convalgos.tools.gpu_check.process import main; main()")
LAST_WORDS = 3  # lines of what a lost process printed
PARENT_DIES = 1  # Linux: PR_SET_PDEATHSIG


@dataclass(frozen=True)
class Ready:
    """A process has its device."""

    figures: GpuMachine
    versions: dict[str, str]


@dataclass(frozen=True)
class Lost:
    """The process can do no more."""

    reason: str


@dataclass(frozen=True)
class Done:
    """A job has come to its end."""


class Process:
    """The end of who directs. It starts at once; `pipe` then brings `Ready`, or `Lost`.

    Args:
        name: of the device.
        command: to start, which gets the number of its end of the pipe and the name besides.
    """

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str]):
        self.pipe, theirs = Pipe()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  as long as the process
        with theirs:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno()), name],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env=environment,
                start_new_session=True,  # Ctrl-C is for who directs
            )
        self.ready = False
        self.jobs = 0  # that it was sent

    def send(self, job: Any) -> None:
        """Raises OSError where the process is gone."""
        self.jobs += 1
        self.pipe.send(job)

    def why_gone(self, seconds: float) -> str:
        """How it ended, whose pipe is closed."""
        try:
            status = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return "the process closed its pipe, and does not end"
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        words = self._last_words()
        return f"the process {how}" + (f" ({words})" if words else "")

    def let_go(self) -> None:
        """It ends by itself, unless it hangs."""
        self.pipe.close()

    def kill(self) -> None:
        """By force, without a wait: one that is stuck in the driver does not even end then."""
        self.pipe.close()
        with suppress(OSError):
            self._process.kill()

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def _last_words(self) -> str:
        with suppress(OSError, ValueError):
            self._log.seek(0)
            lines = self._log.read().decode(errors="replace").splitlines()
            return " | ".join(line.strip() for line in lines[-LAST_WORDS:])
        return ""


# --- the other end -------------------------------------------------------------------------------


def main() -> None:
    """`... NUMBER DEVICE`: serve the device until the pipe is closed."""
    serve_jobs(Connection(int(sys.argv[1])), lambda: gpu.named(sys.argv[2]))


def serve_jobs(pipe: Any, found: Any) -> None:
    """Jobs come in, and what they yield goes out.

    Args:
        found: called for the device.
    """
    _end_quietly()
    try:
        with gpu.use(found()) as device:
            _send(pipe, Ready(device.figures, device.versions()))
            _answer(pipe, device)
    except _Gone:
        pass
    except Exception as error:
        with suppress(_Gone):
            _send(pipe, Lost(f"no device: {told(error)}"))
    sys.stdout.flush()
    os._exit(0)  # what a context waits for at its end is of no use to anybody


class _Gone(Exception):
    """Nobody is at the other end."""


def _send(pipe: Any, found: Any) -> None:
    try:
        pipe.send(found)
    except OSError as error:
        raise _Gone from error


def _answer(pipe: Any, device: Device) -> None:
    backend = GpuBackend(device)
    while True:
        try:
            job = pipe.recv()
        except (EOFError, OSError) as error:
            raise _Gone from error
        try:
            for found in job(device):
                _send(pipe, found)
                if isinstance(found, Result) and found.failure is not None and backend.lost():
                    _send(pipe, Lost("an error left the device of no use to its process"))
                    return
        except _Gone:
            raise
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            _send(pipe, Lost(f"the check itself failed: {told(error)} ({last.name}, line {last.lineno})"))
            return
        _send(pipe, Done())


def _end_quietly() -> None:
    """With the parent, also where this process hangs; and without writing its memory to a file."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PARENT_DIES, int(signal.SIGKILL))
    with suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
