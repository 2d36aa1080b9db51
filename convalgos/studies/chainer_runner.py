"""Times Chainer's own layer functions: a script for a Python that has Chainer 7.8, apart from convalgos.

    python chainer_runner.py ARRAYS.npz ANSWERS.npz ROUNDS

It reads the arrays of the functions, writes what Chainer makes of them, and prints the seconds of each call
as JSON. Chainer is imported in `time_chainer` alone, and nothing of convalgos: each has an environment.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

BURST = 3  # calls that are timed after one that is not


def chainer_calls(a: dict[str, Any], chainer: Any) -> dict[str, Any]:
    """The calls of all functions by name: of the forward pass without a graph, of gradients by `grad`."""
    f = chainer.functions
    filters = a["w"].shape[0]
    zeros, ones = np.zeros(filters, np.float32), np.ones(filters, np.float32)

    def forward(compute: Any) -> Any:
        def run() -> Any:
            with chainer.no_backprop_mode():
                return compute().array

        return run

    def gradient(compute: Any, at: Any, dy: Any) -> Any:
        leaf, seed = chainer.Variable(at), chainer.Variable(dy)
        y = compute(leaf)
        return lambda: chainer.grad([y], [leaf], [seed])[0].array

    def norm(x: Any) -> Any:
        return f.batch_normalization(x, a["gamma"], a["beta"], eps=2e-5)

    def pooled(x: Any) -> Any:
        return f.max_pooling_2d(x, 3, 2, cover_all=False)

    def halved(x: Any) -> Any:
        return f.average_pooling_2d(x, 2, 2)

    def fixed() -> Any:
        y = f.convolution_2d(x, w, a["b"], pad=1)
        return f.relu(f.fixed_batch_normalization(y, a["scale"], a["shift"], zeros, ones, eps=1e-12))

    x, w = a["x"], a["w"]
    return {
        "convolution": forward(lambda: f.convolution_2d(x, w, a["b"], pad=1)),
        "convolution dx": gradient(lambda x: f.convolution_2d(x, w, pad=1), x, a["dy"]),
        "convolution dw": gradient(lambda w: f.convolution_2d(x, w, pad=1), w, a["dy"]),
        "transposed convolution": forward(lambda: f.deconvolution_2d(x, a["up_w"], stride=2, pad=1)),
        "max pooling": forward(lambda: pooled(x)),
        "max pooling dx": gradient(pooled, x, a["max_dy"]),
        "average pooling": forward(lambda: halved(x)),
        "average pooling dx": gradient(halved, x, a["mean_dy"]),
        "linear": forward(lambda: f.linear(a["rows"], a["rows_w"], a["rows_b"])),
        "linear dx": gradient(lambda rows: f.linear(rows, a["rows_w"]), a["rows"], a["scores_dy"]),
        "linear dw": gradient(lambda w: f.linear(a["rows"], w), a["rows_w"], a["scores_dy"]),
        "ReLU": forward(lambda: f.relu(x)),
        "ReLU dx": gradient(f.relu, x, a["dx"]),
        "batch norm": forward(lambda: norm(x)),
        "batch norm dx": gradient(norm, x, a["dx"]),
        "softmax": forward(lambda: f.softmax(a["scores"])),
        "softmax dx": gradient(f.softmax, a["scores"], a["scores_dy"]),
        "convolution, norm, ReLU": forward(fixed),
    }


def sampled(call: Any, rounds: int) -> list[float]:
    """Seconds of single calls, in bursts that each begin with a pause and a warm-up."""
    samples = []
    for _ in range(rounds):
        time.sleep(0.05)
        call()
        for _ in range(BURST):
            start = time.perf_counter()
            call()
            samples.append(time.perf_counter() - start)
    return samples


def time_chainer(arrays: str, answers: str, rounds: str) -> None:
    import chainer

    calls = chainer_calls(dict(np.load(arrays)), chainer)
    np.savez(answers, **{name: call() for name, call in calls.items()})
    found = {name: sampled(call, int(rounds)) for name, call in calls.items()}
    print(json.dumps({"version": chainer.__version__, "numpy": np.__version__, "seconds": found}))


if __name__ == "__main__":
    time_chainer(*sys.argv[1:])
