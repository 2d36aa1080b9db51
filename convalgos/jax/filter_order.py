"""Filters whose dimensions lie in another order, as those of `jax.lax`, and those of transposed convolutions.

To bring them into our order takes XLA longer than many a convolution; so a call takes them as they are, and
they are brought into order only when they are prepared: once, as long as they stay the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from convalgos.core.problem import Shape


class FilterOrder(NamedTuple):
    """How a filter of a `shape` becomes (K, C/groups, *kernel)."""

    shape: Shape
    axes: Shape  # of K, C/groups and the kernel
    turned: int = 0  # groups, where the kernel is turned round and K and C change places; else 0

    @property
    def own_shape(self) -> Shape:
        """That of the filter in our order."""
        filters, channels, *kernel = (self.shape[axis] for axis in self.axes)
        if self.turned:
            filters, channels = channels * self.turned, filters // self.turned
        return filters, channels, *kernel

    def own(self, w: Any, numpy: Any) -> Any:
        """The filter in our order; of NumPy's arrays a view, unless there are groups to turn round.

        Args:
            numpy: the functions of w's library: NumPy itself, or `jax.numpy`.
        """
        w = numpy.transpose(w, self.axes)
        if not self.turned:
            return w
        if self.turned == 1:
            w = numpy.swapaxes(w, 0, 1)
        else:
            filters, *others = w.shape
            apart = w.reshape(self.turned, filters // self.turned, *others)
            w = numpy.swapaxes(apart, 1, 2).reshape(self.own_shape)
        return numpy.flip(w, tuple(range(2, w.ndim)))
