"""Float32 maps whose channels become pixels, or pixels channels: pixel shuffles and their inverses."""

from __future__ import annotations

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.bound_run import BoundRun, check_bound, image_step
from convalgos.core.errors import Unsupported
from convalgos.core.layouts import BLOCKS, array_shape, channels_together
from convalgos.cpu.elementwise.bound_steps import FLOAT, BoundStep, launched
from convalgos.cpu.elementwise.kernels import SPACE_FIELDS, space_share
from convalgos.cpu.vectors import simd


class PixelMovePlan(BoundStep):
    """y[n, c, h * a + i, w * b + j] = x[n, order[(i * b + j) * C + c], h, w], or the reverse.

    Args:
        shape: logical, (N, C, H * a, W * b), of the larger maps: y where it goes `to_space`, else x.
        factors: (a, b).
        layout: of x and y; with an order, channels first.
        order: (a * b * C,), the channels of x; to depth, y[:, k] is channel order[k]; None as they are.

    Raises:
        Unsupported: channels in an order, or parts of blocks, are not moved in this layout.

    Example:
        >>> x = np.arange(4, dtype="f4").reshape(1, 4, 1, 1)
        >>> plan = PixelMovePlan((1, 1, 2, 2), (2, 2), "channels_first", True)
        >>> plan.run((x,), y := np.empty((1, 1, 2, 2), "f4"))
        >>> y.tolist()
        [[[[0.0, 1.0], [2.0, 3.0]]]]
    """

    strided_batch = True

    told = True

    def __init__(
        self, shape: Shape, factors: Shape, layout: str, to_space: bool, order: np.ndarray | None = None
    ):
        (images, channels, *sizes), (a, b) = shape, factors
        height, width = sizes[0] // a, sizes[1] // b
        deep = images, channels * a * b, height, width
        if order is not None and layout != "channels_first":
            raise Unsupported(f"channels in an order are not moved in {layout}")
        if channels % BLOCKS.get(layout, 1):
            raise Unsupported(f"{channels} channels do not fill whole blocks of {layout}")
        run, together = channels_together(layout, channels), channels_together(layout, deep[1])
        planes = channels // max(1, run)
        p, i, j = np.ogrid[:planes, :a, :b]  # (planes, a, b) together
        channel = (i * b + j) * channels + p * run
        if order is not None:
            channel = (order if to_space else np.argsort(order))[channel]
        of_deep = channel // max(1, together) * (height * width * together) + channel % max(1, together)
        of_space = ((p * height * a + i) * width * b + j) * run
        if layout == "channels_last":  # the pixels of a row lie side by side in both
            of_deep, of_space, run, b = of_deep[..., :1], of_space[..., :1], run * b, 1
        self._shapes = [array_shape(layout, each) for each in (deep, shape)][:: 1 if to_space else -1]
        places = [of_deep, of_space][:: 1 if to_space else -1]
        self._places = np.ascontiguousarray(np.stack(np.broadcast_arrays(*places), -1), np.int64)
        steps = ((together, width * together), (b * run, a * width * b * run))
        (x_step, x_row), (y_step, y_row) = steps if to_space else steps[::-1]
        self._values = {
            "places": self._places.ctypes.data, "groups": planes * a, "parts": b, "height": height,
            "width": width, "run": run, "x_row": x_row, "y_row": y_row, "x_step": x_step, "y_step": y_step,
        }  # fmt: skip

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        x, y = arrays
        check_bound("x", x, self._shapes[0], FLOAT, strided=True)
        check_bound("y", y, self._shapes[1], FLOAT, strided=True, written=True)
        values = self._values | {
            "x": x.ctypes.data, "y": y.ctypes.data, "images": len(x) if x.size else 0,
            "x_n": image_step(x), "y_n": image_step(y),
        }  # fmt: skip
        kernel = space_share(FLOAT.itemsize, simd.lanes(FLOAT.itemsize))
        return launched(kernel, SPACE_FIELDS, values, y.size, x, y, self, told=("x", "y"))
