"""Layers of m neurons on N vectors of dimension n, in three forms, each a pointwise convolution.

With x (N, n), weights or centres w (m, n), b (m,), g > 0 and the weights of support vectors a (m, k):

    linear            y = x w' + b                          (N, m)
    RBF               r = exp(-g |x - w|^2)                 (N, m)
    support vectors   y = r a                               (N, k)

RBF by its expansion is a linear layer between two passes over the outputs:
-g |x - w|^2 = 2g x w' - g |w|^2 - g |x|^2, so r = exp(x (2g w)' + (-g |w|^2) - g |x|^2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LINEAR, RBF, SUPPORT = "linear", "RBF", "support vectors"
FORMS = (LINEAR, RBF, SUPPORT)


@dataclass(frozen=True)
class NeuronData:
    """What a layer reads. Shapes as above; w is (m, n) and of a strided x the columns lie together."""

    x: np.ndarray
    w: np.ndarray
    b: np.ndarray
    a: np.ndarray
    g: float

    @classmethod
    def random(cls, vectors: int, dimension: int, neurons: int, outputs: int) -> NeuronData:
        """Distances of about 1 in the exponent, so that RBF neither vanishes nor saturates."""
        random = np.random.default_rng(0)

        def normal(*shape: int) -> np.ndarray:
            return random.standard_normal(shape, np.float32)

        x, w = normal(vectors, dimension), normal(neurons, dimension)
        return cls(x, w, normal(neurons), normal(neurons, outputs), 0.5 / dimension)

    def first(self, count: int) -> NeuronData:
        """The same on so many vectors."""
        return NeuronData(self.x[:count], self.w, self.b, self.a, self.g)

    def strided(self) -> NeuronData:
        """The same with the numbers of a dimension together in memory: x is a view of (n, N)."""
        return NeuronData(np.ascontiguousarray(self.x.T).T, self.w, self.b, self.a, self.g)

    def outputs(self, form: str) -> int:
        """Columns of y."""
        return self.a.shape[1] if form == SUPPORT else len(self.w)

    def flops(self, form: str) -> float:
        """Of the products of the expansion, by which all ways are judged."""
        vectors, dimension = map(int, self.x.shape)
        products = dimension * len(self.w) + (self.a.size if form == SUPPORT else 0)
        return 2.0 * vectors * products


def reference_layer(form: str, data: NeuronData) -> np.ndarray:
    """y in float64, by the definition: distances are summed from differences."""
    x, w = data.x.astype(np.float64), data.w.astype(np.float64)
    y: np.ndarray
    if form == LINEAR:
        y = x @ w.T + data.b
    else:
        squares = np.stack([((x - centre) ** 2).sum(1) for centre in w], 1)  # (N, m)
        y = np.exp(-data.g * squares)
    return y @ data.a if form == SUPPORT else y
