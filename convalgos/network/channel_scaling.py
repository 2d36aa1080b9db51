"""Scales and shifts of channels, such as batch norms, as convolutions, which passes make part of others."""

from __future__ import annotations

import numpy as np

from convalgos.network.graph import Convolution


def channel_scaling(
    name: str, x: str, y: str, scale: np.ndarray, shift: np.ndarray, ndim: int
) -> Convolution:
    """y = scale * x + shift, with numbers (C,) of each channel: a convolution of each channel by itself."""
    w = np.ascontiguousarray(scale, np.float32).reshape(-1, 1, *(1,) * ndim)  # (C, 1, 1, ...)
    bias = np.ascontiguousarray(shift, np.float32)
    return Convolution(name, (x,), y, w, bias, (1,) * ndim, ((0, 0),) * ndim, (1,) * ndim, len(w))
