"""How a layer is cut: vectors that a core takes at a time, threads, the order of x, where results go.

Each thread takes every so manieth chunk, and does all of the layer on it while it lies in its cache.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from convalgos.select.measure.backends import Call
from convalgos.studies.neuron_layers.forms import LINEAR, SUPPORT, NeuronData
from convalgos.studies.neuron_layers.libraries import LIBRARIES, NewProduct, Product
from convalgos.studies.neuron_layers.naive import naive_loops


@dataclass(frozen=True)
class Decomposition:
    """A way to cut a layer.

    Args:
        load: vectors that a core takes at a time; it divides their number.
        contiguous: whether the numbers of a vector lie together.
        reused: whether results go into the same array in each call, or into a new one.
    """

    load: int
    threads: int
    contiguous: bool = True
    reused: bool = True

    @property
    def order(self) -> str:
        return "contiguous" if self.contiguous else "strided"

    @property
    def results(self) -> str:
        return "one array" if self.reused else "new arrays"

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"{self.load} vectors at a time on {threads}, {self.order}, results in {self.results}"


class NeuronLayer:
    """A layer by a library, cut in a way; to be called.

    Example:
        >>> layer = NeuronLayer("linear", NeuronData.random(8, 4, 3, 2), "convalgos", Decomposition(4, 1))
        >>> layer().shape
        (8, 3)
    """

    def __init__(self, form: str, data: NeuronData, library: str, cut: Decomposition):
        self._form, self._cut = form, cut
        self._data = data if cut.contiguous else data.strided()
        new: NewProduct = LIBRARIES[library]
        w, bias = data.w, data.b
        if form != LINEAR:
            w, bias = 2 * data.g * data.w, -data.g * (data.w**2).sum(1)
        self._product: Product = new(np.ascontiguousarray(w, np.float32), bias.astype(np.float32), cut.load)
        if form == SUPPORT:
            mix, none = np.ascontiguousarray(data.a.T), np.zeros(data.a.shape[1], np.float32)
            self._mix = new(mix, none, cut.load)
            centres = np.empty((cut.threads, cut.load, len(data.w)), np.float32)
            self._centres = list(centres)  # of each thread (load, m)
        self._y = self._new()
        self._pool = ThreadPoolExecutor(cut.threads)

    def __call__(self) -> np.ndarray:
        y = self._y if self._cut.reused else self._new()
        if self._cut.threads == 1:
            self._run_thread(0, y)
        else:
            list(self._pool.map(self._run_thread, range(self._cut.threads), [y] * self._cut.threads))
        return y

    def _run_thread(self, thread: int, y: np.ndarray) -> None:
        """The chunks of one thread."""
        load, step = self._cut.load, self._cut.load * self._cut.threads
        for first in range(thread * load, len(y), step):
            x, out = self._data.x[first : first + load], y[first : first + load]
            if self._form == LINEAR:
                self._product(x, out)
            elif self._form == SUPPORT:
                self._radial(x, self._centres[thread])
                self._mix(self._centres[thread], out)
            else:
                self._radial(x, out)

    def _radial(self, x: np.ndarray, out: np.ndarray) -> None:
        """RBF by the expansion: x (load, n) -> out (load, m)."""
        self._product(x, out)
        out -= np.float32(self._data.g) * np.einsum("ij,ij->i", x, x)[:, None]
        np.exp(out, out=out)

    def _new(self) -> np.ndarray:
        return np.empty((len(self._data.x), self._data.outputs(self._form)), np.float32)


def naive_layer(form: str, data: NeuronData, compiled: bool) -> Call:
    """The layer as it is written down: loops on one thread, distances from differences, a new array for y.

    Args:
        compiled: by Numba, in the order that is written; else by Python.
    """
    loops = naive_loops(form, compiled)

    def call() -> np.ndarray:
        y = np.empty((len(data.x), data.outputs(form)), np.float32)
        loops(data.x, data.w, data.b, data.a, np.float32(data.g), y)
        return y

    return call
