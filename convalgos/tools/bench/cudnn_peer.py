"""cuDNN as a peer: the fastest of all plans that it proposes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from convalgos.core.errors import Unsupported
from convalgos.core.problem import ConvProblem
from convalgos.gpu import device as gpu
from convalgos.select import registry
from convalgos.select.measure.backends import backend
from convalgos.select.measure.timing import runner
from convalgos.tools.bench.peer import BuildBackward, BuildCall, PeerCall


def cudnn_call(layout: str) -> BuildCall:
    """The fastest of all its plans in one sample of each, the result allocated once."""

    def build(problem: ConvProblem, x: np.ndarray, w: np.ndarray, threads: int) -> PeerCall:
        here = backend(gpu.current().name)
        problem = problem.replace(layout=layout, mode="cross_correlation")
        last = layout == "channels_last"
        first, second = (
            here.put(np.ascontiguousarray(np.moveaxis(a, 1, -1)) if last and name != "w" else a)
            for a, name in zip((x, w), problem.arrays[:2], strict=True)
        )
        y = here.empty(problem.array_shapes[2], x.dtype)
        calls = {}
        usual = registry.find_algorithm("gpu.cudnn")
        for algorithm in (usual, *usual.variants(problem)):
            with suppress(Unsupported):  # a plan that is known to be wrong, or takes too much workspace
                call = runner(algorithm.serve(problem), first, second, y)
                here.ready(call)
                calls[here.seconds(call)] = call
        best, logical = calls[min(calls)], problem.logical(2, y)

        def run() -> Any:
            best()
            return logical

        return run

    return build


def cudnn_backward(layout: str) -> BuildBackward:
    """One gradient after the other."""
    build = cudnn_call(layout)

    def both(problem: ConvProblem, x: np.ndarray, w: np.ndarray, dy: np.ndarray, threads: int) -> PeerCall:
        data = build(problem.replace(direction="backward_data"), dy, w, threads)
        weights = build(problem.replace(direction="backward_weights"), x, dy, threads)
        return lambda: (data(), weights())

    return both


def cudnn_refuses(layout: str) -> Callable[[ConvProblem], str | None]:
    """Of a problem, why cuDNN does not compute it in a layout."""
    return lambda problem: registry.find_algorithm("gpu.cudnn").why_not(problem.replace(layout=layout))
