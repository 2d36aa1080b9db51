"""Directs the processes that work with the device: gives them jobs, and knows which algorithm to blame.

An illegal access makes a CUDA context useless, and a kernel that never ends leaves its process waiting. When
an answer is late, or a process is lost,

1. what it had begun is reported as failed,
2. the job goes on in another process, which skips all that was tried,
3. an algorithm that was to blame twice is put into quarantine.

Importing CuPy takes seconds, so some processes are started ahead.
"""

from __future__ import annotations

import math
import os
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from convalgos.gpu.device import Device
from convalgos.tools.gpu_check.process import SERVE, Done, Lost, Process, Ready
from convalgos.tools.gpu_check.quarantine import SUSPECT, Quarantine
from convalgos.tools.gpu_check.results import OutOfTime, Result, told
from convalgos.tools.gpu_check.steps import DATA, FIRST, NOTHING, RUNNING, Begun, Job, Key, Skip

KILLING = 2.0  # seconds that a process has to end after it was killed, before it is left to itself
START = 60.0  # seconds for a process to import CuPy and to find its device
ENDING = 5.0  # for a job that was told when to end, and for a process that was let go
STARTS = 3  # processes in a row that find no device: there is none
BLAMELESS = 3  # losses of a job with nobody to blame, after which it is given up
AHEAD = 3  # processes that are started before they are needed
_SILENT_START = f"no device was found in {START:.0f} s"


@dataclass(eq=False)
class Task:
    """A job, and what is known of it so far.

    Attributes:
        own: in a process that runs nothing else.
        after: another task, for whose end this one waits,
        not_after: but not beyond this moment of `time.monotonic`.
        most: seconds that a step may take.
    """

    phase: str
    job: Job
    own: bool = False
    after: Task | None = None
    not_after: float = math.inf
    most: float = math.inf
    tried: set[Key] = field(default_factory=set)
    lost: set[Key] = field(default_factory=set)
    losses: int = 0  # with nobody to blame
    ended: bool = False


class NoDeviceError(Exception):
    """No process finds a device; says why."""


class Worker(ABC):
    """Runs tasks; what they announce is kept from who asks."""

    quarantine: Quarantine
    abandoned = 0  # processes that could not be ended

    @abstractmethod
    def ready(self) -> Ready:
        """The device. Raises NoDeviceError."""

    @abstractmethod
    def run(self, tasks: Sequence[Task], until: float, lanes: int = 1) -> Iterator[tuple[Task, Any]]:
        """All that tasks find, each in its order.

        Args:
            until: a moment of `time.monotonic`, soon after which all ends; jobs know of it, too.
            lanes: tasks that run at once.
        """

    def close(self) -> None:
        """Let go of the device."""
        return None


class Here(Worker):
    """This process, and a device that is in use in it."""

    def __init__(self, device: Device):
        self._device, self.quarantine = device, Quarantine()

    def ready(self) -> Ready:
        return Ready(self._device.figures, self._device.versions())

    def run(self, tasks: Sequence[Task], until: float, lanes: int = 1) -> Iterator[tuple[Task, Any]]:
        for task in tasks:
            for found in task.job(self._device, skip=NOTHING):
                if not isinstance(found, Begun):
                    yield task, found


@dataclass(eq=False)
class _Lane:
    """A process with the task that it runs."""

    process: Process
    task: Task
    heard: float  # a moment: then it said something last
    patience: float
    begun: Begun | None = None
    is_fresh: bool = True  # no algorithm was tried in it


class Apart(Worker):
    """Processes of their own.

    Args:
        name: of the device.
        scale: of all seconds of patience: the tests are in more of a hurry.
        command: that starts a process.
        paths: where processes find modules besides.
    """

    def __init__(
        self, name: str, scale: float = 1.0, command: Sequence[str] = SERVE, paths: Sequence[str] = ()
    ):
        self._name, self._scale, self._command = name, scale, command
        self.quarantine = Quarantine(scale)
        known = (str(Path(__file__).parents[3]), *paths, os.environ.get("PYTHONPATH", ""))
        self._environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, known))}
        self._idle: list[Process] = []
        self._busy: list[_Lane] = []
        self._leaving: list[tuple[Process, float, bool]] = []  # until when it may take to end; whether killed
        self._failed_starts = 0

    def ready(self) -> Ready:
        while True:
            process = self._start()
            found = self._received(process) if process.pipe.poll(START) else Lost(_SILENT_START)
            if isinstance(found, Ready):
                process.ready = True
                self._idle.append(process)
                return found
            self._leave(process, kill=True)
            self._start_failed(found.reason)

    def run(self, tasks: Sequence[Task], until: float, lanes: int = 1) -> Iterator[tuple[Task, Any]]:
        waiting, busy = deque(tasks), self._busy
        last = until + self._scale * ENDING
        try:
            while True:
                while len(busy) < lanes and time.monotonic() < until and (task := _next(waiting)):
                    busy.append(self._begin(task))
                    self._start_ahead(sum(t.own for t in waiting))
                if not busy:
                    break
                now = time.monotonic()
                moments = [last, *(lane.heard + lane.patience for lane in busy)]
                moments += [task.not_after for task in waiting if now < task.not_after]
                talking = wait([lane.process.pipe for lane in busy], max(0.0, min(moments) - now))
                now = time.monotonic()
                for lane in [*busy]:
                    if lane.process.pipe in talking and now < last + self._scale * ENDING:
                        found = self._received(lane.process)
                    elif now >= last:
                        found = self._cut(lane, now)
                    elif now >= lane.heard + lane.patience:
                        found = Lost(f"nothing was heard for {lane.patience:.3g} s: it does not end")
                    else:
                        continue
                    lane.heard = now
                    yield from self._found(lane, found)
                    if lane.task.ended or isinstance(found, Lost):
                        busy.remove(lane)
                    if isinstance(found, Lost) and not lane.task.ended:
                        waiting.append(lane.task)
                self._reap()
            for task in waiting:
                yield task, OutOfTime(0)
        finally:
            self._break_off()

    def close(self) -> None:
        self._break_off()
        for process in self._idle:
            self._leave(process)
        self._idle = []
        while self._leaving:
            self._reap()
            time.sleep(0.01)

    def _break_off(self) -> None:
        while self._busy:
            self._leave(self._busy.pop().process, kill=True)

    # --- lanes -----------------------------------------------------------------------------------

    def _begin(self, task: Task) -> _Lane:
        chosen = [p for p in self._idle if not (task.own and p.jobs)]
        process = max(chosen, key=lambda p: p.jobs) if chosen else self._start()
        if chosen:
            self._idle.remove(process)
        lane = _Lane(process, task, time.monotonic(), START)
        if process.ready:
            self._send(lane)
        return lane

    def _send(self, lane: _Lane) -> None:
        lane.begun, lane.patience = None, self.quarantine.patience(None, DATA)
        skip = Skip(frozenset(lane.task.tried), frozenset(lane.task.lost), self.quarantine.barred)
        with suppress(OSError):  # it is gone: its pipe says so
            lane.process.send(partial(lane.task.job, skip=skip))

    def _found(self, lane: _Lane, found: Any) -> Iterator[tuple[Task, Any]]:
        """What is to be told of a message, or of a lack of one."""
        task = lane.task
        if isinstance(found, Ready):
            lane.process.ready, self._failed_starts = True, 0
            self._send(lane)
        elif isinstance(found, Begun):
            lane.begun = found
            more = FIRST if lane.is_fresh else 0.0
            lane.patience = self.quarantine.patience(found, more, task.most)
            if found.algorithm:
                lane.is_fresh = False
                task.tried.add(found.key)
        elif isinstance(found, Done):
            task.ended = True
            if task.own:
                self._leave(lane.process)
            else:
                self._idle.append(lane.process)
        elif isinstance(found, Lost):
            self._leave(lane.process, kill=True)
            if lane.process.ready:
                yield from self._blamed(lane, found.reason)
            else:
                self._start_failed(found.reason)
        else:
            yield task, found

    def _blamed(self, lane: _Lane, reason: str) -> Iterator[tuple[Task, Any]]:
        task, begun = lane.task, lane.begun
        if begun is None or not begun.algorithm:
            task.losses += 1
            task.ended = task.losses >= BLAMELESS
        if begun is None:
            yield task, Result("gpu_check", "", "", "the process of the GPU", failure=reason)
            return
        task.lost.add(begun.key)
        self.quarantine.lost(begun, reason)
        yield task, Result(begun.case.title, *begun.key, "the process of the GPU", failure=reason)

    def _cut(self, lane: _Lane, now: float) -> OutOfTime:
        """The time is spent, and the job does not end: suspicious where one run is under way for long."""
        self._leave(lane.process, kill=True)
        lane.task.ended = True
        begun, silent = lane.begun, now - lane.heard
        if begun is None or not begun.algorithm:
            return OutOfTime(0)
        if begun.patience <= RUNNING and silent >= self._scale * SUSPECT:
            self.quarantine.lost(
                begun, f"nothing was heard for {silent:.3g} s at the end of {lane.task.phase}"
            )
        return OutOfTime(0, f"{begun.algorithm} ran on `{begun.case.problem}`")

    # --- processes -------------------------------------------------------------------------------

    def _start(self) -> Process:
        return Process(self._name, self._command, self._environment)

    def _start_ahead(self, wanted: int) -> None:
        """Those that tasks will want for themselves, and one to go on after a loss."""
        fresh = sum(not process.jobs for process in self._idle)
        for _ in range(min(AHEAD, max(1, wanted)) - fresh):
            self._idle.append(self._start())

    def _start_failed(self, reason: str) -> None:
        self._failed_starts += 1
        if self._failed_starts >= STARTS:
            raise NoDeviceError(reason)

    @staticmethod
    def _received(process: Process) -> Any:
        try:
            return process.pipe.recv()
        except (EOFError, OSError):
            return Lost(process.why_gone(ENDING))
        except Exception as error:  # what was sent cannot be read
            return Lost(f"a message could not be read: {told(error)}")

    def _leave(self, process: Process, kill: bool = False) -> None:
        if kill:
            process.kill()
        else:
            process.let_go()
        self._leaving.append((process, time.monotonic() + self._scale * (KILLING if kill else ENDING), kill))

    def _reap(self) -> None:
        """Look after those that were let go: kill what does not end, abandon what cannot be killed."""
        leaving, self._leaving = self._leaving, []
        for process, until, killed in leaving:
            if process.has_ended():
                continue
            if time.monotonic() < until:
                self._leaving.append((process, until, killed))
            elif killed:
                self.abandoned += 1
            else:
                self._leave(process, kill=True)


def _next(waiting: deque[Task]) -> Task | None:
    """The first that need not wait for another one, out of those that wait."""
    for task in waiting:
        if task.after is None or task.after.ended or time.monotonic() >= task.not_after:
            waiting.remove(task)
            return task
    return None
