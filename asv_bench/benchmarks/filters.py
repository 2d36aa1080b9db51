"""Filters of images and volumes: how long they take, and beside SciPy in one process."""

import numpy as np
import scipy.ndimage

import convalgos as ca

from .library import module

ARRAYS = {"image": (2048, 2048), "small image": (512, 512), "volume": (128, 128, 128), "signal": (1_000_000,)}
FILTERS = {
    "gaussian sigma 1": ("gaussian_filter", {"sigma": 1}),
    "gaussian sigma 3": ("gaussian_filter", {"sigma": 3, "mode": "nearest"}),
    "gaussian sigma 12": ("gaussian_filter", {"sigma": 12, "mode": "wrap"}),
    "correlate1d 101 taps": (
        "correlate1d",
        {"weights": np.linspace(-1, 1.5, 101), "axis": 0, "mode": "mirror"},
    ),
    "sobel": ("sobel", {"axis": 0}),
    "laplace": ("laplace", {"mode": "constant"}),
    "minimum of 9": ("minimum_filter", {"size": 9}),
    "maximum of 101": ("maximum_filter", {"size": 101, "mode": "wrap"}),
    "mean of 31": ("uniform_filter", {"size": 31, "mode": "constant"}),
    "window of 5": ("correlate", {"taps": 5, "mode": "nearest"}),  # along each axis
    "window of 31": ("correlate", {"taps": 31}),
}
MOST_TAPS = 1000  # of a window: SciPy takes a second for each thousand on an image


class Filters:
    params = (list(FILTERS), list(ARRAYS), ["uint8", "float32", "float64"])
    param_names = ("filter", "array", "dtype")

    def setup(self, name, array, dtype):
        if not hasattr(getattr(ca, "ndimage", None), FILTERS[name][0]):
            raise NotImplementedError("this version has no such filter of images")
        self.function, given = FILTERS[name]
        self.given, rng = dict(given), np.random.default_rng(0)
        self.x = (255 * rng.random(ARRAYS[array])).astype(dtype)
        if taps := self.given.pop("taps", None):
            if taps**self.x.ndim > MOST_TAPS:
                raise NotImplementedError("SciPy takes too long for it")
            self.given["weights"] = rng.standard_normal((taps,) * self.x.ndim) / taps**self.x.ndim
        self.y = np.empty_like(self.x)
        self.ours()

    def ours(self):
        getattr(ca.ndimage, self.function)(self.x, **self.given, output=self.y)

    def time_filter(self, name, array, dtype):
        self.ours()

    def track_time_vs_scipy(self, name, array, dtype):
        """Our time / that of scipy.ndimage, in turns in one process; below 1 ours is faster."""
        theirs = getattr(scipy.ndimage, self.function)
        calls = {"ours": self.ours, "scipy": lambda: theirs(self.x, **self.given, output=self.y)}
        found = module("convalgos.select.measure.timing").interleave(calls)
        return found["ours"].median / found["scipy"].median

    track_time_vs_scipy.unit = "times scipy"


class Crops:
    """Images of many sizes, each of which comes once: what the first call of a size costs."""

    params = (
        ["gaussian sigma 1", "sobel", "laplace", "minimum of 9", "mean of 31", "window of 5"],
        ["8 to 60", "100 to 300"],
        ["uint8", "float32"],
    )
    param_names = ("filter", "sizes", "dtype")

    def setup(self, name, sizes, dtype):
        self.function, given = FILTERS[name]
        self.given, rng = dict(given), np.random.default_rng(0)
        if taps := self.given.pop("taps", None):
            self.given["weights"] = rng.standard_normal((taps, taps)) / taps**2
        low, high = map(int, sizes.split(" to "))
        shapes = rng.integers(low, high, (40_000 // high, 2))
        self.crops = [(255 * rng.random(shape)).astype(dtype) for shape in shapes]
        self.ours()

    def ours(self):
        ca.forget_plans()
        for x in self.crops:
            getattr(ca.ndimage, self.function)(x, **self.given)

    def theirs(self):
        for x in self.crops:
            getattr(scipy.ndimage, self.function)(x, **self.given)

    def time_crops(self, name, sizes, dtype):
        self.ours()

    def track_time_vs_scipy(self, name, sizes, dtype):
        """Our time / that of scipy.ndimage, in turns in one process; below 1 ours is faster."""
        found = module("convalgos.select.measure.timing").interleave(
            {"ours": self.ours, "scipy": self.theirs}
        )
        return found["ours"].median / found["scipy"].median

    track_time_vs_scipy.unit = "times scipy"
