"""A linear layer in one call, which the library cuts itself: convalgos, and the BLAS of the arrays."""

from __future__ import annotations

import convalgos as ca
from convalgos.select.measure.backends import Backend, Call
from convalgos.studies.neuron_layers.forms import NeuronData


def whole_layers(data: NeuronData, backend: Backend) -> dict[str, Call]:
    """Library -> a call that returns y without b, (N, m), on the CPU or a GPU.

    The product of two arrays is NumPy's BLAS on the CPU, and cuBLAS through CuPy on a GPU.
    """
    vectors, dimension = data.x.shape
    problem = ca.ConvProblem((1, dimension, vectors), (*data.w.shape, 1), layout="channels_last")
    x, w = backend.put(data.x), backend.put(data.w)
    with backend.working():
        plan = ca.plan(problem, backend.name)
        prepared = plan.prepare(w[:, :, None])
        out = backend.empty((1, vectors, len(data.w)), data.x.dtype)
    return {
        f"convalgos whole ({plan.algorithm})": lambda: plan(x[None], prepared, out=out)[0],
        "BLAS whole": lambda: x @ w.T,
    }
