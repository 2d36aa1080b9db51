"""Random problems, and random ways to cut their arrays, for the tests of convalgos.dask."""

import random
from itertools import pairwise

import dask.array as da
import numpy as np

import convalgos as ca
from convalgos.core.boundaries import BOUNDARIES

SIZES = {1: 60, 2: 24, 3: 9}  # of a map at most, by dimensions


def parts(draw: random.Random, size: int) -> tuple[int, ...]:
    """Chunks of a dimension: uneven, some of them smaller than any halo, some empty."""
    cuts = sorted({0, size} | {draw.randrange(size + 1) for _ in range(draw.randrange(4))})
    return tuple(b - a for a, b in pairwise(cuts)) or (0,)


def chunked(draw: random.Random, array: np.ndarray, whole: int = 0) -> da.Array:
    """An array in random chunks, but for its last `whole` dimensions."""
    cut = array.ndim - whole
    chunks = [parts(draw, n) if i < cut else n for i, n in enumerate(array.shape)]
    return da.from_array(array, chunks=tuple(chunks))


def random_problem(draw: random.Random, borders: bool = False) -> tuple[ca.ConvProblem, dict]:
    """(problem, arguments of a call); with any of the `borders`, or zeros only."""
    ndim, groups = draw.choice([1, 2, 2, 2, 3]), draw.choice([1, 1, 1, 2, 3])
    inputs, filters = draw.randint(1, 4), draw.randint(1, 3)
    while True:
        spatial, kernel, stride, dilation = (
            [draw.randint(1, most) for _ in range(ndim)] for most in (SIZES[ndim], 6, 4, 3)
        )
        pairs = [(draw.randint(0, 5), draw.randint(0, 5)) for _ in range(ndim)]
        call = {
            "stride": stride, "padding": draw.choice(["valid", "same", "full", pairs]), "dilation": dilation,
            "groups": groups, "mode": draw.choice(["convolution", "cross_correlation"]),
            "layout": draw.choice(["channels_first", "channels_last"]),
        }  # fmt: skip
        if borders and draw.random() < 0.7:
            call |= {"boundary": [draw.choice(BOUNDARIES) for _ in range(ndim)]}
            call |= {"fill_value": 3.0} if "constant" in call["boundary"] else {}
        x_shape = (draw.randint(1, 4), inputs * groups, *spatial)
        try:
            return ca.ConvProblem(x_shape, (filters * groups, inputs, *kernel), **call), call
        except ValueError:  # the filter does not fit
            continue


def whole_numbers(seed: int, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    """float32 arrays whose convolutions are exact in direct sums, and tell transforms from errors."""
    rng = np.random.default_rng(seed)
    return [rng.integers(-8, 9, shape).astype("f4") for shape in shapes]
