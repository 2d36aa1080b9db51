"""Random layers, drawn as networks have them and as they do not."""

from __future__ import annotations

import math
import random
from typing import Any

from convalgos.core.boundaries import BOUNDARIES
from convalgos.core.problem import ConvProblem

DTYPES = ("float32", "float32", "float32", "float32", "float64", "float64", "float16", "bfloat16")
FLOPS = 1e4, 6e7  # of a problem, as many in each decade
MOST_ELEMENTS = 3_000_000  # of an array


def random_layer(rng: random.Random, most_flops: float = FLOPS[1], borders: float = 0.0) -> ConvProblem:
    """A problem of the forward direction, of a random size, that is valid and not empty.

    borders: how often something else than zeros is to lie beyond the edges.
    """
    while True:
        flops = math.exp(rng.uniform(math.log(FLOPS[0]), math.log(most_flops)))
        sizes = of_networks(rng) if rng.random() < 0.6 else of_nobody(rng)
        try:
            problem = ConvProblem(
                **sizes,
                layout=rng.choice(("channels_first", "channels_first", "channels_last")),
                dtype=rng.choice(DTYPES),
                mode="convolution" if rng.random() < 0.1 else "cross_correlation",
            )
        except ValueError:  # the kernel is larger than the map
            continue
        arrays = (math.prod(shape) for shape in (problem.x_shape, problem.w_shape, problem.y_shape))
        if not problem.is_empty and problem.flops <= flops and max(arrays) <= MOST_ELEMENTS:
            return with_border(rng, problem) if borders and rng.random() < borders else problem


def with_border(rng: random.Random, problem: ConvProblem) -> ConvProblem:
    """The same with one border in all dimensions, or with one of its own in each."""
    names = [rng.choice(BOUNDARIES) for _ in range(problem.ndim)]
    if rng.random() < 0.5:
        names = [rng.choice(BOUNDARIES[1:])] * problem.ndim
    return problem.replace(boundary=tuple(names), fill_value=rng.choice((-1.5, 2.0)))


def of_networks(rng: random.Random) -> dict[str, Any]:
    """Square kernels, steps and groups of networks, on maps of any size."""
    ndim = rng.choice((1, 2, 2, 2, 2, 2, 2, 3))
    r = rng.choice((1, 1, 3, 3, 3, 3, 3, 3, 5, 7, 2, 4, 11))
    stride, dilation = rng.choice((1, 1, 1, 1, 2, 2, 3, 4)), rng.choice((1, 1, 1, 1, 1, 2, 3))
    channels, filters = (rng.choice((1, 3, 8, 16, 24, 32, 40, 64, 96, 128, 256)) for _ in range(2))
    groups = rng.choice((1, 1, 1, 1, 1, channels, channels, 2, 4))
    channels, filters = (-(-n // groups) * groups for n in (channels, filters))
    if groups == channels and rng.random() < 0.7:
        filters = channels
    most = {1: 600, 2: 75, 3: 14}[ndim]
    return {
        "x_shape": (
            rng.choice((1, 2, 2, 3, 3, 5, 8)),
            channels,
            *(rng.randint(1, most) for _ in range(ndim)),
        ),
        "w_shape": (filters, channels // groups, *(r,) * ndim),
        "stride": stride,
        "padding": rng.choice((r // 2 * dilation, r // 2 * dilation, 0)),
        "dilation": dilation,
        "groups": groups,
    }


def of_nobody(rng: random.Random) -> dict[str, Any]:
    """Everything differs by dimension; any number of groups, uneven padding, long kernels."""
    ndim = rng.choice((1, 2, 2, 2, 3))

    def each(*choices: int) -> tuple[int, ...]:
        return tuple(rng.choice(choices) for _ in range(ndim))

    groups = rng.choice((1, 1, 2, 3, 3, 5, 5, 17))
    inputs, outputs = (rng.choice((1, 1, 2, 3, 4, 5, 7, 9, 16, 17, 18, 31, 33, 54, 65)) for _ in range(2))
    kernel, dilation = each(1, 2, 3, 3, 4, 5, 6, 7), each(1, 1, 1, 2, 3)
    if rng.random() < 0.15:
        kernel = (*(1,) * (ndim - 1), rng.randint(8, 33))
    reach = [d * (r - 1) + 1 for r, d in zip(kernel, dilation, strict=True)]
    padding = tuple((rng.randint(0, 3 + e // 2), rng.randint(0, 3 + e // 2)) for e in reach)
    if rng.random() < 0.3:
        padding = ((0, 0),) * ndim
    most = {1: 300, 2: 45, 3: 14}[ndim]
    return {
        "x_shape": (
            rng.choice((1, 2, 3, 4, 7)),
            groups * inputs,
            *(rng.randint(1, most) for _ in range(ndim)),
        ),
        "w_shape": (groups * outputs, inputs, *kernel),
        "stride": each(1, 1, 1, 2, 2, 3, 4, 5),
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
    }
