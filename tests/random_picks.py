"""Networks whose layouts and algorithms are drawn by chance, among all that can serve.

What a machine picks follows from its figures: a fault of one algorithm in one layout may never come up on the
machines that tests run on. `picked_at_random` puts chance in the place of the figures, wherever networks are
planned: for the first shapes and for others, saved and loaded.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from pytest import MonkeyPatch

from convalgos.core.layouts import PLAIN
from convalgos.network import batch_parts, choice, step_options
from convalgos.network.step_options import CONVOLUTIONS, StepOption, StepOptions
from convalgos.select import choose
from convalgos.select.constraints import keeps
from convalgos.select.ranking import Candidate

SECONDS = 1e-7, 1e-3  # that steps are said to take: whether they are joined follows from it
VARIED = 0.25  # of the picks are among settings that are not listed, too
IN_PARTS = 0.4  # of the networks run in parts of their batches, where these have several images

Chosen = Callable[[list[Candidate], random.Random], Candidate]


def any_of(found: list[Candidate], rng: random.Random) -> Candidate:
    """One by chance; algorithms of many settings are as likely as others."""
    family = rng.choice(sorted({c.algorithm.family for c in found}))
    return rng.choice([c for c in found if c.algorithm.family == family])


def the_reference(found: list[Candidate], rng: random.Random) -> Candidate:
    return next((c for c in found if "cpu.reference" in c.id), found[0])


@contextmanager
def picked_at_random(seed: str, layout: str | None = None, chosen: Chosen = any_of) -> Iterator[None]:
    """Networks that are planned inside have layouts and algorithms drawn from a seed.

    Args:
        layout: "channels_first", "channels_last" or "blocked", that all steps take which can; any by default.
        chosen: the pick among the candidates of a convolution.
    """

    class RandomOptions(StepOptions):
        def of(self, step):
            rng = random.Random(f"{seed} {step.name} {step.output}")
            found = super().of(step)
            if layout is not None:
                found = [o for o in found if all(w.startswith(layout) for w in (*o.reads, o.writes))] or found
            low, high = SECONDS
            return [replace(o, seconds=low * (high / low) ** rng.random()) for o in found]

        def _best(self, problem, limits, pooling):
            key = problem, limits, pooling
            if key not in self._known:
                self._known[key] = _drawn(problem, limits)
            return self._known[key]

        def _convolution(self, step, reads, writes, precision):
            found = super()._convolution(step, reads, writes, precision)
            return None if found is None else StepOption(found.reads, found.writes, 1e-5, found.candidate)

    def _drawn(problem, limits):
        rng = random.Random(f"{seed} {problem}")
        found = list(choose.rank(problem, "cpu", limits).candidates)
        if rng.random() < VARIED and limits.precisions is None:
            varied = choose.varied(problem, "cpu", step_options.devices.figures("cpu"))
            found += [c for c in varied if keeps(c.algorithm, problem, limits)]
        if problem.layout != problem.y_layout or problem.layout not in PLAIN:
            found = [c for c in found if c.algorithm.family != "cpu.reference"]
        return chosen(found, rng) if found else None

    with MonkeyPatch.context() as patched:
        patched.setattr(choice, "StepOptions", RandomOptions)
        rng = random.Random(f"{seed} parts")
        if chosen is any_of and rng.random() < IN_PARTS:
            images = batch_parts._batch
            patched.setattr(batch_parts, "GAIN", -math.inf)
            patched.setattr(batch_parts, "_images_of_part", lambda *of: _divisor(images(*of), rng))
            patched.setattr(batch_parts._Seconds, "gained", lambda *_: rng.random())
        yield


def _divisor(batch: int, rng: random.Random) -> int:
    """Of a batch, below it where there is one."""
    return rng.choice([n for n in range(1, batch) if batch % n == 0] or [batch])


def picks_of(plan) -> dict[str, str]:
    """What computes each step of a plan, and in which layouts."""
    found = {}
    for planned in plan.planned.steps:
        computed = getattr(planned.plan, "algorithm", type(planned.plan).__name__)
        what = f"{type(planned.step).__name__} {computed}"
        found[planned.step.output] = f"{what} {', '.join(planned.reads)} -> {planned.writes}"
    return found


__all__ = ["CONVOLUTIONS", "any_of", "picked_at_random", "picks_of", "the_reference"]
