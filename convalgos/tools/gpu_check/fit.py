"""Constants of a cost model from times: least squares of logarithms, with doubt.

Times on a GPU that others use, too, have outliers: values far off weigh little. And a constant on which no
time depends could have any value: a constant is taken only if it lies inside its limits, has a small standard
error, and the model with it is near most times. Otherwise it stays what it was. Needs NumPy alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

SAMPLES = 4  # for each constant, at least
UNCERTAIN = 0.15  # standard error of a constant's logarithm beyond which nothing is known of it
SPREAD = 1.25  # by which times may be off from the model, as a rule
TUKEY = 4.7  # standard deviations beyond which a value counts nothing
STARTS = (1.0, 0.5, 2.0)  # times the estimates
ROUNDS, STEP = 30, 0.02  # of Gauss and Newton, and of a logarithm for a derivative
LEAST_SCALE = 5e-3  # of logarithms: no clock tells less

Model = Callable[[Mapping[str, float]], Sequence[float]]  # constants -> seconds of every sample


@dataclass(frozen=True)
class Fit:
    """What was found, by what factor times are off from the model as a rule, and why the rest was not."""

    values: dict[str, float]
    spread: float
    kept: dict[str, str]  # constant -> the reason why it stays what it was


def fit(
    model: Model,
    seconds: Sequence[float],
    estimates: Mapping[str, float],
    limits: Mapping[str, tuple[float, float]],
) -> Fit:
    """The constants with which a model comes closest to measured seconds.

    Args:
        estimates: of each constant, where the search begins.
        limits: within which each may be.
    """
    free, kept = list(estimates), dict[str, str]()
    measured = np.log(np.asarray(seconds, dtype=float))
    spread = np.inf
    while free:
        if len(measured) < SAMPLES * len(free):
            return Fit({}, spread, kept | dict.fromkeys(free, f"only {len(measured)} times"))

        def residuals(logs: np.ndarray, names: Sequence[str] = tuple(free)) -> np.ndarray:
            given = dict(estimates) | dict(zip(names, np.exp(logs).tolist(), strict=True))
            apart: np.ndarray = np.log(np.asarray(model(given), dtype=float)) - measured
            return apart

        bounds = np.log([limits[name] for name in free]).T  # (2, constants)
        start = np.log([estimates[name] for name in free])
        logs, errors, scale = min(
            (_search(residuals, start + np.log(factor), bounds) for factor in STARTS), key=lambda f: f[2]
        )
        spread = float(np.exp(scale))
        if spread > SPREAD:
            reason = f"times are off by a factor of {spread:.2f} from the model"
            return Fit({}, spread, kept | dict.fromkeys(free, reason))
        doubts = dict(_doubts(free, logs, errors, bounds))
        if not doubts:
            found = zip(free, np.exp(logs).tolist(), strict=True)
            return Fit(dict(found), spread, kept)
        worst = max(doubts, key=lambda name: errors[free.index(name)])
        kept[worst] = doubts[worst]  # the others are sought again, without it
        free.remove(worst)
    return Fit({}, spread, kept)


def _doubts(
    names: Sequence[str], logs: np.ndarray, errors: np.ndarray, bounds: np.ndarray
) -> Iterator[tuple[str, str]]:
    """(constant, why it is not known)."""
    for name, log, error, low, high in zip(names, logs, errors, *bounds, strict=True):
        if not error < UNCERTAIN:
            yield name, f"the times tell it to {error:.0%} only" if error < 1 else "no time tells it"
        elif log - low < STEP or high - log < STEP:
            yield name, f"{np.exp(log):.3g} is at the limit of what it may be"


def _search(
    residuals: Callable[[np.ndarray], np.ndarray], start: np.ndarray, bounds: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """(logarithms, their standard errors, the scale of the residuals) that damped steps arrive at."""
    logs, damping = np.clip(start, *bounds), 1e-2
    found = residuals(logs)
    for _ in range(ROUNDS):
        slopes, weights = _slopes(residuals, logs), _weights(found)
        normal = slopes.T @ (weights[:, None] * slopes)
        step = np.linalg.lstsq(
            normal + damping * np.diag(np.diag(normal) + 1e-9), -slopes.T @ (weights * found), rcond=None
        )[0]
        new = np.clip(logs + np.clip(step, -0.5, 0.5), *bounds)
        tried = residuals(new)
        if _loss(tried, found) < _loss(found, found):
            logs, found, damping = new, tried, damping / 3
        else:
            damping *= 4
        if np.abs(step).max() < 1e-4:
            break
    slopes, weights, scale = _slopes(residuals, logs), _weights(found), _scale(found)
    normal = slopes.T @ (weights[:, None] * slopes)
    sizes, directions = np.linalg.eigh(normal)  # a direction of no size: what no time depends on
    errors = scale * np.sqrt((directions**2 / np.maximum(sizes, 1e-12)).sum(axis=1))
    return logs, errors, scale


def _slopes(residuals: Callable[[np.ndarray], np.ndarray], logs: np.ndarray) -> np.ndarray:
    """(samples, constants): derivatives, by differences."""
    steps = STEP * np.eye(len(logs))
    return np.stack([(residuals(logs + s) - residuals(logs - s)) / (2 * STEP) for s in steps], axis=1)


def _scale(values: np.ndarray) -> float:
    """The standard deviation about 0 of most values."""
    return max(LEAST_SCALE, 1.4826 * float(np.median(np.abs(values))))


def _weights(values: np.ndarray) -> np.ndarray:
    """Tukey's: of values that are far out, none."""
    return np.clip(1 - (values / (TUKEY * _scale(values))) ** 2, 0, 1) ** 2


def _loss(values: np.ndarray, before: np.ndarray) -> float:
    """Squares, of far values as of near ones; by the scale of another set, so that two can be compared."""
    far = TUKEY * _scale(before) / 2
    sizes = np.abs(values)
    return float(np.where(sizes < far, sizes**2, far * (2 * sizes - far)).sum())
