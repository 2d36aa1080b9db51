"""Claims of papers on ways to convolve, measured again on their own kind of layers.

Source: the papers, each by its arXiv number in `claims`.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import geometric_mean
from typing import ClassVar

import convalgos as ca
from convalgos.core.errors import Unsupported
from convalgos.select import registry
from convalgos.select.measure.timing import interleave
from convalgos.studies.claims import CLAIMS, MKL, Claim
from convalgos.studies.study import (
    Answer,
    Chart,
    Finding,
    NotRun,
    Part,
    Study,
    StudyColumn,
    StudySetting,
)
from convalgos.studies.timed_plans import TimedPlan, timed_plan

DIRECT = "cpu.direct"
QUICK_LAYERS = 2
Measured = dict[str, tuple[float, int]]  # of each algorithm: seconds, bytes of workspace


class PapersStudy(Study):
    """A table for each claim, and whether it holds."""

    name = "papers"
    question = "Do the claims of papers on convolution hold here, beside what this library picks?"
    source = (
        "Twelve claims: that indirect convolution (arXiv:1907.02129), MEC (1706.06873), kn2row (1709.03395), "
        "im2win (2306.14320) and SMM-Conv (2411.15659) beat im2col; that Winograd (1509.09308), FFTs "
        "(1809.07851), symbolic Fourier transforms (2407.02913) and nested Winograd (2102.13272) save time "
        "with the products that they save; and depthwise and int8 Winograd kernels."
    )
    method = (
        "Each way is an algorithm of this library, on the same micro-kernels and threads as all others. On "
        "layers of the kind that its paper is about it is timed in turns with what the paper compares with, "
        "with im2col and MKL's product, with direct convolution and with the selector's pick. A claim holds "
        "where the geometric mean over the layers is at least what it says, or 1 where it says 'faster'."
    )
    look_at = (
        "Speed over im2col, which most papers are about, beside that over direct convolution, which few "
        "measured; and the workspace, which is where most claims are right."
    )
    claims: ClassVar[tuple[Claim, ...]] = CLAIMS

    def parts(self, setting: StudySetting) -> Iterator[Answer]:
        for number, claim in enumerate(self.claims):
            setting.tell(claim.name)
            yield from _of_claim(claim, setting, setting.left() / (len(self.claims) - number))


def _of_claim(claim: Claim, setting: StudySetting, seconds: float) -> Iterator[Answer]:
    """The table of a claim, and whether it holds.

    Args:
        seconds: for all of it.
    """
    layers = claim.layers[: QUICK_LAYERS if setting.quick else None]
    rows, gains = [], []
    for number, text in enumerate(layers):
        problem = ca.ConvProblem.parse(text).replace(layout=claim.layout, dtype=claim.dtype)
        pick = ca.plan(problem).algorithm
        names = (*claim.ways, *claim.against, *MKL, DIRECT, pick)
        found = _measured(
            problem, names, setting, setting.left() - seconds * (1 - (number + 1) / len(layers))
        )
        way, other = _fastest(found, claim.ways), _fastest(found, claim.against)
        if way is None or other is None:
            continue
        gains.append(found[other][0] / found[way][0])
        rows.append(_row(text, found, way, other, pick))
    if not rows:
        wanted = f"{' or '.join(claim.ways)} beside {' or '.join(claim.against)}"
        yield NotRun(
            f"the claim of {claim.name}", f"{wanted}, of which this machine or installation lacks one"
        )
        return
    yield Part(
        f"{claim.name}: {claim.says}",
        f"{claim.source}; {claim.layout}, {claim.dtype}. Times of others are over that of the first.",
        (
            StudyColumn("layer"), StudyColumn("algorithm"), StudyColumn("time", "us"),
            StudyColumn("compared with"), StudyColumn("that one", "x"), StudyColumn("im2col", "x"),
            StudyColumn("direct", "x"), StudyColumn("pick"), StudyColumn("the pick", "x"),
            StudyColumn("workspace", "MB"), StudyColumn("im2col's", "MB"),
        ),
        tuple(rows),
        Chart("bars", "layer", ("that one", "direct", "the pick")),
    )  # fmt: skip
    gain = geometric_mean(gains)
    told = f"{gain:.2f} times as fast as {' or '.join(claim.against)} ({min(gains):.2f} to {max(gains):.2f})"
    yield Finding(f"{claim.name}: {claim.says} ({claim.source}).", f"{told}.", gain >= claim.times)


def _measured(
    problem: ca.ConvProblem, names: tuple[str, ...], setting: StudySetting, left_then: float
) -> Measured:
    """Those that serve a problem, timed in turns.

    Args:
        left_then: seconds that should be left to the study afterwards.
    """
    plans: dict[str, TimedPlan] = {}
    for name in dict.fromkeys(names):
        try:
            plans[name] = timed_plan(problem, name)
        except (Unsupported, ValueError):
            continue  # it does not serve the layer, or is not installed
    rounds = 1 if setting.quick else 3
    deadline = setting.deadline - max(0.0, left_then)
    timings = interleave({n: p.call for n, p in plans.items()}, rounds=rounds, deadline=deadline)
    return {name: (timings[name].median, _workspace(problem, name)) for name in plans}


def _workspace(problem: ca.ConvProblem, name: str) -> int:
    algorithm = registry.find_algorithm(name, problem)
    return algorithm.workspace_bytes(algorithm.computed(problem))


def _fastest(found: Measured, names: tuple[str, ...]) -> str | None:
    return min((n for n in names if n in found), key=lambda n: found[n][0], default=None)


def _row(layer: str, found: Measured, way: str, other: str, pick: str) -> tuple[str | float | None, ...]:
    seconds = found[way][0]

    def over(name: str | None) -> float | None:
        return found[name][0] / seconds if name in found else None

    im2col = next((name for name in MKL if name in found), None)
    return (
        layer, way, 1e6 * seconds, other, over(other), over(im2col), over(DIRECT), pick, over(pick),
        found[way][1] / 1e6, None if im2col is None else found[im2col][1] / 1e6,
    )  # fmt: skip


STUDY = PapersStudy()
