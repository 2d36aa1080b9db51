"""Training steps of small networks on arrays in chunks: data-parallel by images, model-parallel by filters.

A network is a list of convolutions with ReLU, the mean over space, and a linear layer whose softmax is
compared with labels. How x is chunked along its images and w along its filters says what is computed where:
each block of images gives its part of every gradient, which Dask adds in a tree; a block of filters is
computed, and updated, where its part of the channels is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from convalgos.api.types import Array, Padding, Sizes
from convalgos.dask.engine import DaskArray, da, persist
from convalgos.dask.forward import conv
from convalgos.dask.gradients import conv_backward_data, conv_backward_weights
from convalgos.dask.maps import as_dask


@dataclass(frozen=True)
class ConvReLU:
    """relu(conv(x, w) + bias); w (K, C, *kernel), bias (K,)."""

    w: Array
    bias: Array
    stride: Sizes = 1
    padding: Padding = 0

    @property
    def how(self) -> dict[str, Any]:
        """Arguments of `conv` and its gradients."""
        return {"stride": self.stride, "padding": self.padding}


@dataclass(frozen=True)
class Classifier:
    """Scores of classes from the means over space of each channel; w (C, classes), bias (classes,)."""

    w: Array
    bias: Array


class TrainedStep(NamedTuple):
    """What a training step gives: the layers with their new weights, and the loss before."""

    layers: tuple[ConvReLU | Classifier, ...]
    loss: DaskArray


def gradients(
    layers: Sequence[ConvReLU | Classifier], x: Array, labels: Array
) -> tuple[DaskArray, list[tuple[DaskArray, DaskArray]]]:
    """(mean loss, (dw, dbias) of each layer), not computed yet.

    Args:
        layers: convolutions, and a classifier last.
        x: (N, C, *spatial); its chunks along images split the batch.
        labels: (N,) integers.

    Raises:
        ValueError: the layers are others.

    Example:
        >>> import dask.array as da, numpy as np, convalgos.dask as cd
        >>> layer = cd.ConvReLU(np.ones((4, 3, 3, 3)), np.ones(4))
        >>> last = cd.Classifier(np.ones((4, 2)), np.ones(2))
        >>> x = da.ones((6, 3, 8, 8), chunks=(2, 3, 8, 8))
        >>> loss, found = cd.gradients([layer, last], x, np.zeros(6, int))
        >>> round(float(loss), 3), [dw.shape for dw, _ in found]
        (0.693, [(4, 3, 3, 3), (4, 2)])
    """
    convolutions, last = [layer for layer in layers if isinstance(layer, ConvReLU)], layers[-1]
    if not isinstance(last, Classifier) or len(convolutions) != len(layers) - 1:
        raise ValueError("layers must be convolutions, ConvReLU, and a Classifier last")
    x = as_dask("x", x)
    labels = as_dask("labels", labels).rechunk((x.chunks[0],))
    maps = [x]
    for layer in convolutions:
        maps.append(conv(maps[-1], layer.w, layer.bias, activation="relu", **layer.how))
    spatial = tuple(range(2, x.ndim))
    loss, of_last, dmeans = _classified(last, maps[-1].mean(axis=spatial), labels)
    pixels = int(np.prod(maps[-1].shape[2:]))
    dy = (dmeans / dmeans.dtype.type(pixels))[(..., *(None,) * len(spatial))]
    found = [of_last]
    for i, layer in reversed(list(enumerate(convolutions))):
        dy = da.where(maps[i + 1] > 0, dy, dy.dtype.type(0))
        found.append(conv_backward_weights(maps[i], dy, layer.w.shape, return_bias=True, **layer.how))
        if i:
            dy = conv_backward_data(dy, layer.w, maps[i].shape, **layer.how)
    return loss, found[::-1]


def training_step(
    layers: Sequence[ConvReLU | Classifier], x: Array, labels: Array, rate: float
) -> TrainedStep:
    """One step of gradient descent, computed where the chunks are; the new weights stay there.

    Example:
        >>> import dask.array as da, numpy as np, convalgos.dask as cd
        >>> x, labels = da.ones((4, 1, 6, 6), dtype="f4", chunks=(2, 1, 6, 6)), np.array([0, 1, 0, 1])
        >>> layers = [cd.ConvReLU(np.ones((2, 1, 3, 3), "f4"), np.zeros(2, "f4")),
        ...           cd.Classifier(np.zeros((2, 2), "f4"), np.zeros(2, "f4"))]
        >>> round(float(cd.training_step(layers, x, labels, 0.1).loss.compute()), 4)
        0.6931
    """
    loss, found = gradients(layers, x, labels)
    new = []
    for layer, (dw, dbias) in zip(layers, found, strict=True):
        w, bias = as_dask("w", layer.w, whole=True), as_dask("bias", layer.bias, whole=True)
        step = w.dtype.type(rate)
        new += [w - step * dw.rechunk(w.chunks), bias - step * dbias.rechunk(bias.chunks)]
    loss, *new = persist(loss, *new)
    pairs = zip(new[::2], new[1::2], strict=True)
    return TrainedStep(
        tuple(_replaced(layer, *pair) for layer, pair in zip(layers, pairs, strict=True)), loss
    )


def model_parallel(layers: Sequence[ConvReLU | Classifier], parts: int) -> tuple[ConvReLU | Classifier, ...]:
    """The same layers, with the filters of each convolution in so many chunks: each is a worker's share."""
    cut = []
    for layer in layers:
        w, bias = as_dask("w", layer.w, whole=True), as_dask("bias", layer.bias, whole=True)
        if isinstance(layer, ConvReLU):
            filters = -(-w.shape[0] // parts)
            w, bias = w.rechunk((filters, *w.shape[1:])), bias.rechunk((filters,))
        cut.append(_replaced(layer, w, bias))
    return tuple(cut)


def _classified(
    last: Classifier, means: DaskArray, labels: DaskArray
) -> tuple[DaskArray, tuple[DaskArray, DaskArray], DaskArray]:
    """(mean loss, gradients of the classifier, that of the means) of softmax and cross-entropy."""
    w, bias = as_dask("w", last.w, whole=True), as_dask("bias", last.bias, whole=True)
    scores = (da.dot(means, w) + bias).rechunk((means.chunks[0], -1))  # (N, classes)
    scores = scores - scores.max(axis=1, keepdims=True)
    exponentials = da.exp(scores)
    sums = exponentials.sum(axis=1, keepdims=True)
    hit = (labels[:, None] == np.arange(w.shape[1])).astype(scores.dtype)
    count = scores.dtype.type(max(1, means.shape[0]))
    loss = ((da.log(sums)[:, 0] - (scores * hit).sum(axis=1)) / count).sum()
    dscores = (exponentials / sums - hit) / count
    return loss, (da.dot(means.T, dscores), dscores.sum(axis=0)), da.dot(dscores, w.T)


def _replaced(layer: ConvReLU | Classifier, w: DaskArray, bias: DaskArray) -> ConvReLU | Classifier:
    if isinstance(layer, Classifier):
        return Classifier(w, bias)
    return ConvReLU(w, bias, layer.stride, layer.padding)
