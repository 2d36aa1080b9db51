"""Products of 8-bit floats by cuDNN: what it takes of them, and how exactly it sums them.

From Hopper on, and channels last; x and w are of either type, y of a wider one. Tensor cores cut the terms of
a step off 13 bits below the largest, and nothing says that an engine adds its steps up in float32.

Source: nvidia-cudnn-frontend, its sample of fp8.
"""

from __future__ import annotations

from convalgos.core.element_types import FLOAT8_DTYPES
from convalgos.core.problem import ConvProblem

CAPABILITY = (9, 0)
VECTOR = 16  # channels that are loaded at once
STEP = 32  # products that are summed at once
CUT = 2.0**-13  # of the largest term of a step, at most


def why_not_float8(problem: ConvProblem, capability: tuple[int, int]) -> str | None:
    """Why cuDNN is not asked for a problem of 8-bit floats."""
    if problem.dtype not in FLOAT8_DTYPES:
        return None
    if capability < CAPABILITY:
        wanted, found = (".".join(map(str, c)) for c in (CAPABILITY, capability))
        return f"multiplies 8-bit floats from compute capability {wanted} on, but the device has {found}"
    if problem.layout != "channels_last" or problem.groups > 1:
        return "computes 8-bit floats channels last and in one group only"
    if problem.C % VECTOR or problem.K % VECTOR:
        return f"takes 8-bit floats of C and K in multiples of {VECTOR}, not {problem.C} and {problem.K}"
    return None


def float8_bound(problem: ConvProblem) -> float:
    """The error of sums, relative to max|y|: each of their steps is cut off."""
    return problem.eps + CUT * (16 + problem.reduction / STEP)
