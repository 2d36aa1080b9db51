"""Layers with filters as networks have them: trained ones where such a network is installed, or alike."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import convalgos as ca

TRAINED = "rapidocr_onnxruntime"  # its wheel holds trained networks
DETECTION = "models/ch_PP-OCRv4_det_infer.onnx"
LEAST_CHANNELS, TAPS = 16, 3
CHANNEL_SPREAD, CORRELATION = 0.5, 0.5


@dataclass(frozen=True)
class RealLayer:
    """A layer, its input after a ReLU, and a filter."""

    name: str
    problem: ca.ConvProblem
    x: np.ndarray
    w: np.ndarray


def trained_filters() -> dict[str, np.ndarray]:
    """name -> (K, C, 3, 3) of the trained network, norms behind its layers folded in; empty without it."""
    found = importlib.util.find_spec(TRAINED)
    if found is None or not found.submodule_search_locations:
        return {}
    path = Path(found.submodule_search_locations[0]) / DETECTION
    if not path.exists():
        return {}
    from convalgos import network
    from convalgos.network.graph import Convolution

    steps = network.from_onnx(path).graph.steps
    convolutions = [step for step in steps if isinstance(step, Convolution) and step.groups == 1]
    return {
        f"PP-OCRv4 {step.name}": step.w
        for step in convolutions
        if step.w.shape[2:] == (TAPS, TAPS) and step.w.shape[1] >= LEAST_CHANNELS and step.w.std() > 1e-3
    }


def filters_like_trained(filters: int, channels: int, seed: int = 0) -> np.ndarray:
    """(K, C, 3, 3) at random by the rule that `RULE` tells."""
    rng = np.random.default_rng(seed)
    taps = rng.standard_normal((filters, channels, TAPS, TAPS))
    for axis in (2, 3):  # neighbours in a plane are alike
        taps = np.sqrt(1 - CORRELATION) * taps + np.sqrt(CORRELATION) * taps.mean(axis, keepdims=True)
    of_filter = rng.lognormal(0, CHANNEL_SPREAD, (filters, 1, 1, 1))
    of_plane = rng.exponential(1, (filters, channels, 1, 1))
    w = taps * of_filter * of_plane
    w *= np.sqrt(2 / (TAPS * TAPS * channels)) / w.std()
    return w.astype(np.float32)


RULE = (
    "normal taps, of which half is common to a row and to a column, times a log-normal factor of each filter "
    "and an exponential one of each plane, scaled as He et al. 2015 begin"
)


def real_layer(name: str, w: np.ndarray, size: int, seed: int = 1) -> RealLayer:
    """The layer of a filter on a map of so many pixels each way, of normal numbers after a ReLU."""
    problem = ca.ConvProblem((1, w.shape[1], size, size), w.shape, padding=1)
    x = np.random.default_rng(seed).standard_normal(problem.x_shape, np.float32)
    return RealLayer(name, problem, np.maximum(x, 0), np.ascontiguousarray(w, np.float32))
