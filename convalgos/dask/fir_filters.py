"""FIR filters of long signals in chunks, with the answers of `convalgos.signal`."""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos import signal as whole
from convalgos.core.arguments import shown
from convalgos.core.errors import Unsupported
from convalgos.dask.local_filters import Halo, Halos, in_chunks
from convalgos.ndimage.arguments import one_axis


def _of_fir(given: dict[str, Any], ndim: int) -> Halos:
    if np.size(given["a"]) != 1:
        raise Unsupported(
            f"a={shown(given['a'])} must be one number, of an array in chunks: with feedback, what a filter "
            "holds after a chunk depends on all chunks before"
        )
    if given.get("zi") is not None:
        raise Unsupported("zi must be None, of an array in chunks: give the samples before the first instead")
    return {one_axis(given["axis"], ndim): Halo(max(0, np.size(given["b"]) - 1))}


def _of_both_ways(given: dict[str, Any], ndim: int) -> Halos:
    if given["method"] != "pad":
        raise Unsupported(f"method={given['method']!r} must be 'pad', of an array in chunks")
    ((axis, halo),) = _of_fir(given, ndim).items()
    beyond = 3 * np.size(given["b"]) if given["padlen"] is None else int(given["padlen"])
    return {axis: Halo(max(halo.elements, beyond))}


def _of_polynomials(given: dict[str, Any], ndim: int) -> Halos:
    """Fitted to a window; at the ends, mode="interp" reads one whole window."""
    return {one_axis(given["axis"], ndim): Halo(int(given["window_length"]), given["mode"] == "wrap")}


def _of_rows_and_columns(given: dict[str, Any], ndim: int) -> Halos:
    if ndim != 2:
        raise ValueError(f"input must be an image (rows, columns), not of {ndim} dimensions")
    return {0: Halo(np.size(given["hcol"]) // 2), 1: Halo(np.size(given["hrow"]) // 2)}


lfilter = in_chunks(whole.lfilter, "x", _of_fir)
filtfilt = in_chunks(whole.filtfilt, "x", _of_both_ways)
savgol_filter = in_chunks(whole.savgol_filter, "x", _of_polynomials)
sepfir2d = in_chunks(whole.sepfir2d, "input", _of_rows_and_columns)
