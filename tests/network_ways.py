"""A network planned in one way by chance, and called in all the ways in which programs call it.

Sizes come back and forth, memory holds anything before each run, outputs are written over, inputs lie
anywhere, threads call at a time, threads change, and the network is saved and loaded.
"""

from __future__ import annotations

import random
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from random_picks import picked_at_random, picks_of

import convalgos as ca
from convalgos.core.errors import Unsupported
from convalgos.core.setting import thread_count, threads_of_calls
from convalgos.network import network_plan
from convalgos.network.graph import Foreign
from convalgos.onnx.session import Session

Arrays = list[np.ndarray]
Feed = dict[str, np.ndarray]
Found = tuple[str, str | None, dict[str, str]]  # what was checked, what was wrong or None, picks
CLOSE = 2e-4  # of the largest element of an output, of float32
CLOSE_IN = {"bfloat16": 0.15, "float16": 0.03, "int8": 0.3}  # of other number formats
LAYOUTS = (None, None, None, "channels_first", "channels_last", "blocked")


@contextmanager
def never_refined() -> Iterator[None]:
    """Plans stay as they are: their answers are then the same bits each time."""
    before, network_plan.AGAIN = network_plan.AGAIN, 1 << 60
    try:
        yield
    finally:
        network_plan.AGAIN = before


def poison(net: Any) -> None:
    """NaN in what a network computes in."""
    for memory in net._memories.free:
        memory.bytes.fill(255)


def wrong(found: Arrays, right: Arrays, close: list[float]) -> str | None:
    """What is wrong with outputs, or None."""
    for i, (y, expected, limit) in enumerate(zip(found, right, close, strict=True)):
        if y.shape != expected.shape or y.dtype != expected.dtype:
            return f"output {i} is {y.dtype} {y.shape}, not {expected.dtype} {expected.shape}"
        off = np.abs(y.astype("f8") - expected)
        if y.size and not (off.max() <= limit):
            where = tuple(
                map(int, np.unravel_index(np.nanargmax(off) if not np.isnan(off).all() else 0, y.shape))
            )
            bad = int((~(off <= limit)).sum())
            told = f"output {i}, {bad} of {y.size} elements, at {where}"
            return f"{told} by {np.nanmax(off):.3g} (limit {limit:.3g})"
    return None


def same(found: Arrays, before: Arrays) -> bool:
    return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(found, before, strict=True))


class Way:
    """A model planned by chance.

    Args:
        feeds: inputs of each run. right, close: its outputs, and by how much each may be off.
    """

    def __init__(
        self, model: Any, feeds: list[Feed], right: list[Arrays], close: list[list[float]], seed: str
    ):
        self.model, self.feeds, self.right, self.close = model, feeds, right, close
        self.seed, self.rng = seed, random.Random(f"way {seed}")
        self.layout, self.limits = self.rng.choice(LAYOUTS), _limits(self.rng)
        precision = next((p for p in self.limits.get("precisions", ()) if p in CLOSE_IN), None)
        self.scale = CLOSE_IN[precision] / CLOSE if precision else 1.0
        self.told = f"layout {self.layout}, {self.limits}"
        self.first: list[Arrays] = []  # what each run gave

    def checks(self) -> Iterator[Found]:
        with picked_at_random(self.seed, self.layout), never_refined():
            with threads_of_calls(self.rng.choice((1, 2, 2, 3))):
                yield from self._planned()
                yield from self._called()
                yield self._some_outputs()
                yield from self._threads(self.session)
                yield from self._saved()
            yield from self._other_threads()
            self.session = Session(self.model)  # which has no plan
            yield from self._threads(self.session)

    def _planned(self) -> Iterator[Found]:
        self.session = Session(self.model)
        self.net = self.session.network
        for run, feed in enumerate(self.feeds):
            try:
                plan = self.net.plan({name: x.shape for name, x in feed.items()}, **self.limits)
            except Unsupported as reason:
                if "cannot be computed within" not in str(reason):
                    raise
            else:
                told = f"{plan.explain(timed=self.rng.random() < 0.2)}"
                yield "explanation", None if "ms" in told or "us" in told else told, {}
            if run and self.rng.random() < 0.5:
                return  # the others are planned as they come

    def _called(self) -> Iterator[Found]:
        runs = [*range(len(self.feeds))]
        self.first = [[] for _ in runs]
        # ONNX Runtime has other last bits where an array begins elsewhere
        exact = not any(isinstance(step, Foreign) for step in self.net.graph.steps)
        for run in [*runs, *self.rng.choices(runs, k=3)]:
            poison(self.net)
            feed = {name: self._laid_anyhow(x) for name, x in self.feeds[run].items()}
            found = self.session.run(None, feed)
            yield self._judged("run", run, found, self.net)
            if exact and self.first[run] and not same(found, self.first[run]):
                yield f"run {run} again, {self.told}", "it gives other bits", _picks(self.net)
            self.first[run] = [y.copy() for y in found]
            for y in found:
                y.fill(7)  # it is the caller's
            if any(not np.array_equal(x, self.feeds[run][name]) for name, x in feed.items()):
                yield f"run {run}, {self.told}", "an input was written", {}

    def _laid_anyhow(self, x: np.ndarray) -> np.ndarray:
        """The same array, somewhere else in memory."""
        way = self.rng.randrange(6)
        if way == 0:
            found = np.empty((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)[..., ::2]
        elif way == 1:
            found = np.empty(x.shape[::-1], x.dtype).T
        elif way == 2:
            found = np.empty(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
        elif way == 3:
            found = np.empty(x.shape, x.dtype)[:, ::-1]
        else:
            found = np.empty(x.shape, x.dtype)
        found[...] = x
        found.flags.writeable = way != 4
        return found

    def _judged(self, what: str, run: int, found: Arrays, net: Any) -> Found:
        close = [c * self.scale for c in self.close[run]]
        return f"{what} {run}, {self.told}", wrong(found, self.right[run], close), _picks(net)

    def _some_outputs(self) -> Found:
        names = [value.name for value in self.session.get_outputs()]
        run = self.rng.randrange(len(self.feeds))
        wanted = self.rng.sample(names, self.rng.randint(1, len(names)))
        found = self.session.run(wanted, self.feeds[run])
        right = [self.first[run][names.index(name)] for name in wanted]
        return "some outputs", None if same(found, right) else f"{wanted} differ from all outputs", {}

    def _saved(self) -> Iterator[Found]:
        with tempfile.TemporaryDirectory() as folder:
            try:
                self.net.save(Path(folder, "net"))
            except Unsupported:
                return
            with threads_of_calls(self.rng.choice((thread_count(), thread_count(), 1, 2, 3))):
                loaded = ca.network.load(Path(folder, "net"))
                for run, feed in enumerate(self.feeds):  # it may have joined other steps
                    found = loaded(inputs={name: feed[name] for name in self.net.graph.inputs})
                    yield self._judged("loaded, run", run, _listed(found), loaded)

    def _other_threads(self) -> Iterator[Found]:
        with threads_of_calls(self.rng.choice((1, 2, 3))):
            for run, feed in enumerate(self.feeds):
                yield self._judged("other threads, run", run, self.session.run(None, feed), self.net)

    def _threads(self, session: Session) -> Iterator[Found]:
        """Several at a time, each with sizes of its own."""
        failures: list[str] = []
        count = thread_count()

        def calls(run: int) -> None:
            try:
                with threads_of_calls(count):
                    for _ in range(3):
                        found = session.run(None, self.feeds[run])
                        if failure := self._judged("threads, run", run, found, session.network)[1]:
                            failures.append(failure)
            except Exception as error:
                failures.append(f"{type(error).__name__}: {error}")

        runs = [*range(len(self.feeds))] * 2
        threads = [threading.Thread(target=calls, args=(run,)) for run in runs[:4]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        yield f"threads, {self.told}", failures[0] if failures else None, {}


def _picks(net: Any) -> dict[str, str]:
    """What computed each step of the last run; nothing of a network that is one region."""
    return picks_of(plans[-1]) if (plans := net.plans()) else {}


def _listed(found: Any) -> Arrays:
    return [*found] if isinstance(found, tuple) else [found]


def _limits(rng: random.Random) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    if rng.random() < 0.25:
        limits["workspace_limit"] = rng.choice((0, 1 << 12, 1 << 16, 1 << 20))
    if rng.random() < 0.15:
        limits["precisions"] = rng.choice(
            (("float32", "bfloat16"), ("bfloat16",), ("float16",), ("float32", "float16"))
        )
    return limits
