"""Chosen channels of float32 maps side by side: slices, shuffles, and what is chosen of several maps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.bound_run import BoundRun, check_bound, image_step
from convalgos.core.layouts import array_shape, channels_together
from convalgos.cpu.elementwise.bound_steps import FLOAT, BoundStep, launched
from convalgos.cpu.elementwise.selection_kernels import SELECT_FIELDS, SOURCE, select_share

CHUNK = 64  # pixels of a block that are written at a time, while they are in the first cache


class SelectionPlan(BoundStep):
    """y[:, k] = x[:, order[k]], where x are maps side by side along the channels; y is apart from them.

    Args:
        shapes: logical, (N, C, *spatial), of the maps.
        order: (K,), of the channels of all maps.
        layout: of all of them and of y.

    Example:
        >>> a, b = np.zeros((1, 2, 3), "f4"), np.ones((1, 2, 3), "f4")
        >>> plan = SelectionPlan((a.shape, b.shape), np.array([0, 2, 1, 3]), "channels_first")
        >>> plan.run((a, b), y := np.empty((1, 4, 3), "f4"))
        >>> y[0, :, 0].tolist()
        [0.0, 1.0, 0.0, 1.0]
    """

    strided_batch = True

    def __init__(self, shapes: Sequence[Shape], order: np.ndarray, layout: str):
        counts = [shape[1] for shape in shapes]
        if order.size and not 0 <= order.min() <= order.max() < sum(counts):
            raise ValueError(f"order has channels from {order.min()} to {order.max()}, of {sum(counts)}")
        first, self._pixels = shapes[0], math.prod(shapes[0][2:])
        self._shapes = [array_shape(layout, shape) for shape in shapes]
        self._y_shape = array_shape(layout, (first[0], len(order), *first[2:]))
        self._together = channels_together(layout, len(order))
        begins = np.cumsum([0, *counts])
        self._maps = np.searchsorted(begins, order, "right") - 1  # (K,)
        together = np.array([channels_together(layout, count) for count in counts])
        channel = order - begins[self._maps]
        blocks, lanes = np.divmod(channel, together[self._maps])
        self._steps = together[self._maps]  # from one pixel to the next
        self._offsets = blocks * self._pixels * self._steps + lanes  # of the first pixel
        starts = range(0, len(order), max(1, self._together))
        self._whole = np.array([self._is_whole(start) for start in starts], np.int64)

    def _is_whole(self, start: int) -> bool:
        """Whether the block of y from a channel on is one of a map."""
        part = slice(start, start + self._together)
        along = np.array_equal(self._offsets[part], self._offsets[start] + np.arange(self._together))
        return along and len({*self._maps[part]}) == 1 and bool(self._steps[start] == self._together)

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        *inputs, y = arrays
        for i, (x, shape) in enumerate(zip(inputs, self._shapes, strict=True)):
            check_bound(f"input {i}", x, shape, FLOAT, strided=True)
        check_bound("y", y, self._y_shape, FLOAT, strided=True, written=True)
        addresses, images = (
            np.array([of(x) for x in inputs], np.int64)[self._maps]
            for of in (lambda x: x.ctypes.data, lambda x: image_step(x) * FLOAT.itemsize)
        )
        sources = np.empty(len(self._maps), SOURCE)
        sources["first"] = addresses + self._offsets * FLOAT.itemsize
        sources["pixel"] = self._steps * FLOAT.itemsize
        sources["image"] = images
        values = {
            "y": y.ctypes.data, "sources": sources.ctypes.data, "whole": self._whole.ctypes.data,
            "images": len(y) if y.size else 0, "channels": len(sources), "blocks": len(self._whole),
            "pixels": self._pixels, "together": self._together, "y_n": image_step(y),
            "chunk": self._pixels if self._together == 1 else CHUNK,
        }  # fmt: skip
        return launched(select_share(), SELECT_FIELDS, values, y.size, *arrays, sources, self)
