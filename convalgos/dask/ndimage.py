"""Filters of large images and volumes in chunks, with the answers of `convalgos.ndimage`.

Wide Gaussians by recursions (`max_rel_error`) are within their error of the Gaussian that ends at its radius.
Filters by functions of the caller, whose reach nobody knows, are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from convalgos import ndimage as whole
from convalgos.core.errors import Unsupported
from convalgos.dask.local_filters import Halo, Halos, in_chunks
from convalgos.ndimage import arguments
from convalgos.ndimage.gaussian import radius_of

__all__ = [
    "convolve",
    "convolve1d",
    "correlate",
    "correlate1d",
    "gaussian_filter",
    "gaussian_filter1d",
    "gaussian_gradient_magnitude",
    "gaussian_laplace",
    "laplace",
    "maximum_filter",
    "maximum_filter1d",
    "minimum_filter",
    "minimum_filter1d",
    "prewitt",
    "sobel",
    "uniform_filter",
    "uniform_filter1d",
]


def _halos(axes: Sequence[int], sizes: Sequence[int], mode: Any) -> Halos:
    """Of so many elements on either side of each axis."""
    modes = arguments.per_axis("mode", mode, len(axes))
    return {
        axis: Halo(size, arguments.boundary_of(word) == "wrap")
        for axis, size, word in zip(axes, sizes, modes, strict=True)
    }


def _farthest(origin: Any) -> int:
    return int(np.abs(np.asarray(origin)).max(initial=0))


def _of_line(given: dict[str, Any], ndim: int) -> Halos:
    """Of weights, or of a window of a size, along one axis."""
    taps = given["size"] if "size" in given else np.size(given["weights"])
    axis = arguments.one_axis(given["axis"], ndim)
    return _halos([axis], [int(taps) // 2 + _farthest(given["origin"])], given["mode"])


def _of_window(given: dict[str, Any], ndim: int) -> Halos:
    """Of weights, a footprint or a size, along several axes."""
    axes = arguments.several_axes(given["axes"], ndim)
    window = given.get("weights", given.get("footprint"))
    if window is not None:
        sizes = np.shape(window)
        if list(axes) != sorted(axes):  # these are the sizes in another order
            sizes = (max(sizes, default=1),) * len(sizes)
    else:
        sizes = tuple(arguments.per_axis("size", given["size"] or 1, len(axes)))
    if len(sizes) != len(axes):
        return {}  # which the filter itself refuses
    shift = _farthest(given["origin"])
    return _halos(axes, [int(n) // 2 + shift for n in sizes], given["mode"])


def _of_gaussian_line(given: dict[str, Any], ndim: int) -> Halos:
    axis = arguments.one_axis(given["axis"], ndim)
    return _halos([axis], [radius_of(given["sigma"], given["truncate"], given["radius"])], given["mode"])


def _of_gaussian(given: dict[str, Any], ndim: int) -> Halos:
    axes = arguments.several_axes(given.get("axes"), ndim)
    count = len(axes)
    sigmas = arguments.per_axis("sigma", given["sigma"], count)
    radii = arguments.per_axis("radius", given.get("radius"), count)
    truncate = given.get("truncate", 4.0)
    sizes = [radius_of(sigma, truncate, radius) for sigma, radius in zip(sigmas, radii, strict=True)]
    return _halos(axes, sizes, given["mode"])


def _of_laplace(given: dict[str, Any], ndim: int) -> Halos:
    along = arguments.several_axes(given["axes"], ndim)
    sigmas = arguments.per_axis("sigma", given["sigma"], len(along))
    if len(along) < ndim:  # else they are in the order of the dimensions, whatever that of the axes
        of_axis = dict(zip(along, sigmas, strict=True))
        sigmas = [of_axis.get(axis, 0.0) for axis in range(ndim)]
    return _of_gradient({**given, "sigma": sigmas}, ndim)


def _of_gradient(given: dict[str, Any], ndim: int) -> Halos:
    """Of a Gaussian along all axes for each by which it is derived, whose mode is that of them all."""
    along = arguments.several_axes(given["axes"], ndim)
    modes = [arguments.boundary_of(m) for m in arguments.per_axis("mode", given["mode"], len(along))]
    if "wrap" in modes and len(set(modes)) > 1:
        raise Unsupported(f"mode={given['mode']!r}: of an array in chunks, all modes must be 'wrap' or none")
    return _of_gaussian({**given, "axes": None, "mode": "wrap" if "wrap" in modes else "reflect"}, ndim)


def _of_neighbours(given: dict[str, Any], ndim: int) -> Halos:
    axes = arguments.several_axes(given.get("axes"), ndim)
    return _halos(axes, [1] * len(axes), given["mode"])


correlate1d = in_chunks(whole.correlate1d, "input", _of_line)
convolve1d = in_chunks(whole.convolve1d, "input", _of_line)
uniform_filter1d = in_chunks(whole.uniform_filter1d, "input", _of_line)
minimum_filter1d = in_chunks(whole.minimum_filter1d, "input", _of_line)
maximum_filter1d = in_chunks(whole.maximum_filter1d, "input", _of_line)
correlate = in_chunks(whole.correlate, "input", _of_window)
convolve = in_chunks(whole.convolve, "input", _of_window)
uniform_filter = in_chunks(whole.uniform_filter, "input", _of_window)
minimum_filter = in_chunks(whole.minimum_filter, "input", _of_window)
maximum_filter = in_chunks(whole.maximum_filter, "input", _of_window)
gaussian_filter1d = in_chunks(whole.gaussian_filter1d, "input", _of_gaussian_line)
gaussian_filter = in_chunks(whole.gaussian_filter, "input", _of_gaussian)
gaussian_laplace = in_chunks(whole.gaussian_laplace, "input", _of_laplace)
gaussian_gradient_magnitude = in_chunks(whole.gaussian_gradient_magnitude, "input", _of_gradient)
sobel = in_chunks(whole.sobel, "input", _of_neighbours)
prewitt = in_chunks(whole.prewitt, "input", _of_neighbours)
laplace = in_chunks(whole.laplace, "input", _of_neighbours)
