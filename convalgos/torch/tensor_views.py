"""Arrays and tensors on the same memory, with the channels where kernels or torch look for them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from convalgos.core.arrays import like

FLOAT32 = np.dtype(np.float32)


def laid_last(x: np.ndarray) -> np.ndarray:
    """A view (N, *spatial, C) of (N, C, *spatial)."""
    return x.transpose(0, *range(2, x.ndim), 1)


def seen(y: np.ndarray) -> np.ndarray:
    """A view (N, C, *spatial), as torch sees it, of (N, *spatial, C)."""
    return y.transpose(0, y.ndim - 1, *range(1, y.ndim - 1))


def numbers_as_tensor(y: np.ndarray, example: Tensor) -> Tensor:
    """A tensor on an array of ours, of the dtype of another tensor."""
    tensor: Tensor = torch.from_numpy(y) if y.dtype is FLOAT32 else like(y, example)
    return tensor
