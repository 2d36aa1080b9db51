"""A learned correction of the cost models: what they were off by on layers like this one.

For each algorithm and kind of layer, the logarithm of measured over predicted time is a smooth function of
the logarithms of the layer's sizes, found by Gaussian process regression: near layers that were recorded it
follows them, and far from all of them it is 0, which leaves the cost model alone. It needs NumPy only, and is
one more ranker: `Learned().fit(cases)`.

Source: Rasmussen and Williams 2006, Gaussian Processes for Machine Learning, equation 2.25 (the mean of the
posterior).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from convalgos.core.machine import Machine
from convalgos.core.problem import ConvProblem
from convalgos.select.ranking import Candidate
from convalgos.tools.report.kinds import layer_kind

NEAR = 3.0  # times the fastest: candidates that are slower are nobody's choice, and are not learned from
# Found on 179 layers drawn from convbench, 2 threads of an Intel Xeon with AVX-512, held out by network:
LENGTH = 3.0  # powers of two between sizes, within which layers are like each other
TYPICAL = 0.3  # error of a model, as a logarithm, before anything was learned
SCATTER = 0.2  # of that from one layer to one just like it


def features(problem: ConvProblem) -> np.ndarray:
    """(7,) Logarithms to base 2 of sizes. Few layers differ in the last three, which count for more."""
    p = problem
    sizes = (p.w_shape[1], p.gemm_n, math.prod(p.spatial_out), p.N, p.groups)
    return np.array(
        [
            *(math.log2(max(1, size)) for size in sizes),
            2 * math.log2(max(1, math.prod(p.kernel))),
            4 * math.log2(math.prod(p.stride)),
        ]
    )


@dataclass(frozen=True)
class Errors:
    """What a model is off by on some layers: `shapes` (layers, 7), and the `weights` (layers,) of each."""

    shapes: np.ndarray
    weights: np.ndarray

    @classmethod
    def of(cls, shapes: np.ndarray, logs: np.ndarray) -> Errors:
        """Errors of which the logarithms (layers,) are known."""
        noisy = likeness(shapes, shapes) + SCATTER**2 * np.eye(len(logs))  # (layers, layers)
        return cls(shapes, np.linalg.solve(noisy, logs))

    def at(self, shape: np.ndarray) -> float:
        """The logarithm that is expected of a layer of a shape (7,)."""
        return float(likeness(shape[None], self.shapes)[0] @ self.weights)


def likeness(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(len(a), len(b)) Covariance of the errors on two sets of shapes."""
    squares = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T
    return np.asarray(TYPICAL**2 * np.exp(-np.maximum(squares, 0.0) / (2 * LENGTH**2)))


@dataclass(frozen=True)
class Learned:
    """A ranker. `errors`: (id, what must be the same of a problem) -> what its model was off by."""

    errors: dict[Hashable, Errors] = field(default_factory=dict)

    def __call__(
        self, problem: ConvProblem, candidates: Sequence[Candidate], machine: Machine
    ) -> list[float]:
        shape, sort = features(problem), _sort(problem)
        known = [(c, self.errors.get((c.id, sort))) for c in candidates]
        return [c.predicted_s * (1.0 if e is None else math.exp(e.at(shape))) for c, e in known]

    def fit(self, cases: Sequence[Any]) -> Learned:
        """A ranker fitted to the candidates of some `regret.MeasuredLayer`s that are near the fastest."""
        found: dict[Hashable, tuple[list[np.ndarray], list[float]]] = {}
        for case in cases:
            limit = NEAR * case.seconds(case.oracle)
            shape, sort = features(case.layer.problem), _sort(case.layer.problem)
            for c in case.candidates:
                if c.predicted_s and c.id not in case.layer.stopped and case.seconds(c.id) <= limit:
                    shapes, logs = found.setdefault((c.id, sort), ([], []))
                    shapes.append(shape)
                    logs.append(math.log(case.seconds(c.id) / c.predicted_s))
        return Learned({key: Errors.of(np.stack(s), np.array(logs)) for key, (s, logs) in found.items()})


def _sort(p: ConvProblem) -> Hashable:
    """What two layers must have in common, for one to tell of the other."""
    return layer_kind(p), p.ndim, p.direction, p.layout, p.dtype, p.compute_dtype
