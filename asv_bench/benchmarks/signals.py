"""Filters and convolutions of signals: how long they take, and beside SciPy in one process."""

import time

import numpy as np
import scipy.signal

import convalgos as ca

from .library import module

RNG = np.random.default_rng(0)


def reals(*shape, dtype="float64"):
    return RNG.standard_normal(shape).astype(dtype)


CALLS = {  # what it is: the function, what makes its arguments, and its options
    "lfilter 31 taps, 64 x 48,000": (
        "lfilter",
        lambda: (reals(31, dtype="float32"), [np.float32(1)], reals(64, 48_000, dtype="float32")),
        {},
    ),
    "filtfilt 101 taps, 16 x 20,000": ("filtfilt", lambda: (reals(101), [1.0], reals(16, 20_000)), {}),
    "savgol_filter 11 of 1,000,000": ("savgol_filter", lambda: (reals(1_000_000), 11, 3), {}),
    "upfirdn 3/2 of 1,000,000": ("upfirdn", lambda: (reals(61), reals(1_000_000)), {"up": 3, "down": 2}),
    "resample_poly 160/147 of 1,000,000": ("resample_poly", lambda: (reals(1_000_000), 160, 147), {}),
    "oaconvolve 501 taps, 64 x 50,000": (
        "oaconvolve",
        lambda: (reals(64, 50_000), reals(1, 501)),
        {"axes": 1},
    ),
    "convolve2d 15 x 15, 512 x 512": ("convolve2d", lambda: (reals(512, 512), reals(15, 15)), {}),
    "correlate2d 5 x 5, 1024 x 1024, mirrored": (
        "correlate2d",
        lambda: (reals(1024, 1024), reals(5, 5)),
        {"mode": "same", "boundary": "symm"},
    ),
    "convolve 1,000 of 1,000,000 integers": (
        "convolve",
        lambda: (RNG.integers(-(2**40), 2**40, 1_000_000), RNG.integers(-(2**40), 2**40, 1_000)),
        {},
    ),
    "convolve 64 of 1,000": ("convolve", lambda: (reals(1_000), reals(64)), {}),
}


class Signals:
    params = (list(CALLS),)
    param_names = ("call",)

    def setup(self, call):
        self.function, arguments, self.options = CALLS[call]
        if not hasattr(ca.signal, self.function):
            raise NotImplementedError("this version has no such filter of signals")
        self.arguments = arguments()
        self.ours()

    def ours(self):
        getattr(ca.signal, self.function)(*self.arguments, **self.options)

    def time_call(self, call):
        self.ours()

    def track_time_vs_scipy(self, call):
        """Our time / that of scipy.signal, in turns in one process; below 1 ours is faster."""
        theirs = getattr(scipy.signal, self.function)
        calls = {"ours": self.ours, "scipy": lambda: theirs(*self.arguments, **self.options)}
        found = module("convalgos.select.measure.timing").interleave(calls)
        return found["ours"].median / found["scipy"].median

    track_time_vs_scipy.unit = "times scipy"


TAPS = reals(31)
STREAMS = {  # what it is: the lengths, the function, and what makes its arguments of a signal
    "convolve 31 taps": ((100, 5_000), "convolve", lambda x: (x, TAPS)),
    "lfilter 31 taps": ((100, 5_000), "lfilter", lambda x: (TAPS, 1.0, x)),
    "upfirdn 3/2": ((100, 5_000), "upfirdn", lambda x: (TAPS, x, 3, 2)),
    "fftconvolve with itself": ((100, 5_000), "fftconvolve", lambda x: (x, x)),
    "oaconvolve 501 taps": ((5_000, 50_000), "oaconvolve", lambda x: (x, np.resize(TAPS, 501))),
}
SIZES = 200


class NewSizes:
    """Signals of lengths of which each comes once."""

    params = (list(STREAMS),)
    param_names = ("stream",)

    def setup(self, stream):
        lengths, self.function, arguments = STREAMS[stream]
        self.calls = [arguments(reals(n)) for n in RNG.integers(*lengths, 2 * SIZES)]

    def seconds(self, functions, calls):
        began = time.perf_counter()
        for arguments in calls:
            getattr(functions, self.function)(*arguments)
        return time.perf_counter() - began

    def track_time_vs_scipy(self, stream):
        """Our time / that of scipy.signal; the first half of the lengths is for what others load."""
        self.seconds(ca.signal, self.calls[:SIZES])
        self.seconds(scipy.signal, self.calls[:SIZES])
        once = self.calls[SIZES:]
        return self.seconds(ca.signal, once) / self.seconds(scipy.signal, once)

    track_time_vs_scipy.unit = "times scipy"
