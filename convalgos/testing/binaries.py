"""What every algorithm of +1 and -1 is held to: exactly the definition, whatever lies beyond the border."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.element_types import BINARY
from convalgos.core.plan import result_dtype
from convalgos.core.problem import ConvProblem
from convalgos.cpu.reference import reference
from convalgos.testing import random_layers
from convalgos.testing.memory import Guarded, forget_workspaces, poisoned
from convalgos.testing.problems import PROBLEMS

WORDS = ("n1 c64 h9 w8 k8 r3 s3 p1", "n2 c193 h5 w70 k9 r3 s2 p2,1")  # whole words, and more than three
RANDOM_PROBLEMS, RANDOM_FLOPS = 20, 3e6


def check_binary(algorithm: Algorithm) -> int:
    """Equal to the definition in every element: on the awkward table and on random layers, in both layouts,
    with bias and ReLU; nothing is written beside y."""
    runs = 0
    if BINARY not in algorithm.dtypes:
        return runs
    for turn, problem in enumerate(_problems(algorithm.id)):
        if algorithm.why_not(algorithm.computed(problem)) is None:
            _check_one(algorithm, problem, turn)
            runs += 1
    return runs


def _problems(seed: str) -> Iterator[ConvProblem]:
    rng = random.Random(seed)
    drawn = [random_layers.random_layer(rng, RANDOM_FLOPS) for _ in range(RANDOM_PROBLEMS)]
    listed = product(map(ConvProblem.parse, (*PROBLEMS, *WORDS)), ("channels_first", "channels_last"))
    problems = [*(p.replace(layout=layout) for p, layout in listed), *drawn]
    for turn, problem in enumerate(problems):
        yield problem.replace(dtype=BINARY, y_dtype=("int32", "float32")[turn // 2 % 2])


def _check_one(algorithm: Algorithm, p: ConvProblem, turn: int) -> None:
    rng = np.random.default_rng(turn)
    x, w = (rng.integers(0, 2, shape, np.int8) * np.int8(2) - np.int8(1) for shape in (p.x_shape, p.w_shape))
    bias = rng.integers(-9, 9, p.K).astype(np.int32) if turn % 3 else None
    activation = "relu" if turn % 5 > 2 else None
    expected = reference(p, x, w, bias).astype(result_dtype(p))
    expected = np.maximum(expected, 0) if activation else expected
    if p.layout == "channels_last":
        x, expected = np.moveaxis(x, 1, -1), np.moveaxis(expected, 1, -1)
    given, out = Guarded.copy_of(x), Guarded(p.array_shapes[2], result_dtype(p))
    with poisoned():
        plan = algorithm.serve(p)
        prepared = plan.prepare(w)
    for repeat in range(2):  # in a fresh workspace, and in one that was used
        if not repeat:
            forget_workspaces(plan)
        out.array.fill(77)
        plan(given.array, prepared, bias=bias, out=out.array, activation=activation)
        told = f"{algorithm.id} on {p}, bias {bias is not None}, activation {activation}"
        wrong = np.argwhere(out.array != expected)
        assert not wrong.size, f"{told}: {len(wrong)} of {expected.size} differ, the first at {wrong[0]}"
        assert out.intact() and given.intact(), f"{told}: wrote outside y"
        assert np.array_equal(given.array, x), f"{told}: wrote x"
