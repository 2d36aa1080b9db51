"""How far cost models are off what was measured: where, and by how much they vary there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from convalgos.tools.evaluate.regret import MeasuredLayer
from convalgos.tools.report.kinds import layer_kind

NEAR = 3.0  # times the fastest: candidates that are slower are nobody's choice


@dataclass(frozen=True)
class ModelError:
    """How far the predictions of a family are off over all layers, or those of an algorithm over a kind.

    Example: a bias of 0.8 promises a fifth too much.
    """

    name: str
    kind: str  # "" of all
    count: int
    bias: float  # geometric mean of predicted / measured
    scatter: float  # typical factor around that: exp of the standard deviation of the logarithm
    low: float  # of predicted / measured the tenth part that is less,
    high: float  # and that is more


def model_errors(found: Sequence[MeasuredLayer], *, by_kind: bool = False) -> list[ModelError]:
    """The error of each family's cost model over all candidates that took at most NEAR times the fastest.

    Args:
        by_kind: of each algorithm, over all layers and over those of each kind.
    """
    logs: dict[tuple[str, str], list[float]] = {}
    for case in found:
        limit = NEAR * case.seconds(case.oracle)
        kinds = ("", layer_kind(case.layer.problem)) if by_kind else ("",)
        for c in case.candidates:
            if c.predicted_s and c.id not in case.layer.stopped and case.seconds(c.id) <= limit:
                name = c.id if by_kind else c.algorithm.family
                for kind in kinds:
                    logs.setdefault((name, kind), []).append(math.log(c.predicted_s / case.seconds(c.id)))
    return [
        ModelError(
            name,
            kind,
            len(v),
            math.exp(float(np.mean(v))),
            math.exp(float(np.std(v))),
            *np.exp(np.quantile(v, (0.1, 0.9))).tolist(),
        )
        for (name, kind), v in sorted(logs.items())
    ]
