"""A learned correction of the cost models.

For each family, the logarithm of measured over predicted time is a linear function of the logarithms of a few
sizes, fitted by ridge regression.

With few tables to learn from it mostly learns how far each family and variant is off as a whole; the penalty
keeps the rest small. It is plain numbers, needs NumPy only, and is one more ranker: `Learned().fit(cases)`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from convalgos.core.machine import Machine
from convalgos.core.problem import ConvProblem
from convalgos.select.ranking import Candidate

PENALTY = 20.0  # in samples: the weight of a coefficient of 0
NEAR = 3.0  # times the fastest: candidates that are slower are nobody's choice, and are not learned from


def features(problem: ConvProblem) -> np.ndarray:
    """(7,) 1, and logarithms of sizes about their usual values, of order 1."""
    p = problem
    sizes = (
        (p.flops, 1e9),
        (p.w_shape[1], 64),
        (p.gemm_n, 64),
        (math.prod(p.spatial_out), 1000),
        (math.prod(p.kernel), 9),
        (p.N, 4),
    )
    return np.array([1.0, *(math.log2(max(1, size) / usual) / 4 for size, usual in sizes)])


@dataclass(frozen=True)
class Learned:
    """A ranker. `weights`: family -> (7,) coefficients; `offsets`: id -> what is left of this variant."""

    weights: dict[str, list[float]] = field(default_factory=dict)
    offsets: dict[str, float] = field(default_factory=dict)

    def __call__(
        self, problem: ConvProblem, candidates: Sequence[Candidate], machine: Machine
    ) -> list[float]:
        row = features(problem)
        return [c.predicted_s * math.exp(self.correction(c, row)) for c in candidates]

    def correction(self, c: Candidate, row: np.ndarray) -> float:
        """Logarithm of measured over predicted time; 0 for what was never seen."""
        weights = self.weights.get(c.algorithm.family)
        return 0.0 if weights is None else float(row @ weights) + self.offsets.get(c.id, 0.0)

    def fit(self, cases: Sequence[Any]) -> Learned:
        """A ranker fitted to the candidates of some `evaluate.Case`s that are near the fastest."""
        rows: dict[str, list[tuple[str, np.ndarray, float]]] = {}
        for case in cases:
            limit = NEAR * case.seconds(case.oracle)
            row = features(case.layer.problem)
            for c in case.candidates:
                if c.predicted_s and case.seconds(c.id) <= limit:
                    error = math.log(case.seconds(c.id) / c.predicted_s)
                    rows.setdefault(c.algorithm.family, []).append((c.id, row, error))
        weights, offsets = {}, {}
        for family, found in rows.items():
            x = np.stack([row for _, row, _ in found])  # (samples, 7)
            y = np.array([error for _, _, error in found])  # (samples,)
            fitted = np.linalg.solve(x.T @ x + PENALTY * np.eye(x.shape[1]), x.T @ y)  # (7,)
            weights[family] = fitted.tolist()
            left = y - x @ fitted
            for name in {name for name, _, _ in found}:
                own = [e for e, (i, _, _) in zip(left, found, strict=True) if i == name]
                offsets[name] = float(sum(own) / (len(own) + PENALTY))
        return Learned(weights, offsets)
