"""Awkward problems on which every algorithm is checked, and a short list for gradients."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product

from convalgos.core.algorithm import Algorithm
from convalgos.core.filter_patterns import examples
from convalgos.core.problem import ConvProblem

PROBLEMS = tuple(
    line.partition("#")[0].strip()
    for line in """
n1 c1 h1 w1 k1 r1 s1
n2 c3 h7 w5 k17 r3 s3 p1
n1 c17 h13 w9 k3 r3 s3
n1 c65 h6 w7 k65 r3 s3 p1
n5 c32 h17 w23 k48 r3 s3 p1
n1 c64 h28 w30 k64 r3 s3 p1             # several tiles and blocks of all kinds
n1 c130 h9 w9 k70 r1 s1
n2 c16 h14 w15 k32 r1 s1
n3 c17 h9 w11 k5 r1 s1 stride2          # 1x1 strided
n1 c6 h10 w11 k4 r1 s1 stride3 p1       # stride beyond the kernel
n1 c6 h9 w17 k4 r2 s2 stride5
n1 c17 h1 w1 k65 r1 s1 p2
n3 c3 h9 w1 k5 r3 s1 p1,0               # W = 1
n1 c4 h1 w11 k3 r1 s3 p0,1              # H = 1
n1 c2 h3 w3 k4 r3 s3                    # the kernel is the whole input
n4 c5 h8 w8 k6 r8 s8
n1 c4 h5 w3 k6 r1 s3                    # as wide as the input
n2 c1 h12 w10 k1 r5 s5 p2
n1 c24 h21 w26 k20 r5 s5 p2
n1 c3 h23 w31 k8 r11 s11 p2 stride4     # first layers
n1 c3 h20 w19 k16 r7 s7 p3 stride2
n1 c3 h17 w16 k4 r3 s3 p1 stride2,1
n2 c20 h15 w16 k18 r3 s3 p1 stride2
n1 c9 h13 w14 k7 r3 s3 p1 stride3
n1 c8 h11 w12 k8 r3 s3 p2 dilation2
n1 c3 h19 w20 k5 r3 s3 dilation3,1
n1 c2 h16 w15 k3 r3 s3 p6 dilation6
n1 c3 h14 w13 k4 r3 s3 p1:2,3:0 stride2 dilation2
n1 c3 h7 w6 k4 r3 s3 p0:2,3:1           # asymmetric padding
n1 c2 h3 w2 k3 r3 s3 p5                 # padding beyond the kernel: outputs that see no input
n1 c2 h3 w2 k3 r2 s2 p7:0,1:6 stride3
n1 c3 h6 w7 k4 r3 s3 pfull
n2 c3 h7 w8 k4 r4 s2 psame
n1 c5 h11 w9 k6 r3 s4 psame stride2
n1 c4 h10 w9 k3 r4 s4 p1                # even kernel
n1 c3 h5 w40 k4 r1 s9 p0,4
n1 c3 h40 w3 k4 r9 s1 p4,0
n2 c6 h8 w9 k10 r3 s3 p1 groups2        # K/groups other than C/groups
n1 c12 h7 w7 k6 r3 s3 p1 stride2 groups3
n1 c34 h6 w6 k2 r3 s3 groups2
n1 c32 h9 w8 k64 r1 s1 groups4
n2 c5 h9 w8 k5 r3 s3 p1 groups5         # depthwise
n1 c4 h10 w7 k12 r3 s3 p1 groups4       # with a multiplier
n1 c17 h12 w13 k17 r5 s5 p2 stride2 groups17
n1 c3 h15 w14 k3 r7 s7 p6 dilation2 groups3
n1 c33 h5 w5 k33 r3 s3 groups33
n1 c4 h20 w33 k4 r31 s31 p15 groups4    # a kernel larger than the plane
n2 c16 h24 w25 k16 r3 s3 p1:0,0:1 groups16
n1 c3 h8 w9 k4 r3 s3 p1 convolution
n1 c4 h8 w9 k4 r3 s2 p0:1,2 groups4 convolution
n1 c2 w20 k3 s4 p1:2 convolution
n3 c3 w1 k4 s1                          # 1-D
n1 c1 w100 k1 s17 pfull
n2 c17 w37 k3 s3 p2 dilation2
n1 c4 w50 k4 s4 p3:0 groups4            # causal
n1 c2 w301 k3 s65 p32
n1 c8 w33 k16 s3 p1 stride2
n5 c1 w7 k65 s3
n1 c20 w67 k36 s3 p1
n1 c16 w70 k24 s5 p2
n1 c3 d5 h6 w7 k4 t3 r3 s3 p1           # 3-D
n2 c2 d4 h5 w3 k3 t1 r3 s3 p0,1,1 stride1,2,2
n1 c3 d6 h10 w6 k6 t1 r3 s3 p2:1,1,1 stride2,1,1 groups3
n1 c4 d6 h5 w5 k4 t3 r1 s1 p1,0,0 groups4
n1 c2 d9 h9 w9 k2 t2 r3 s2 p2 dilation2,1,3
n1 c5 d3 h3 w3 k7 t3 r3 s3
n1 c18 d6 h9 w10 k20 t3 r3 s3 p1
n1 c4 h5 w1 k6 r2 s1 p1,4:0 stride2,5   # outputs that see nothing but padding
n0 c3 h5 w5 k4 r3 s3                    # nothing to do, or sums of nothing
n2 c0 h5 w5 k4 r3 s3 p1
n2 c3 h5 w5 k0 r3 s3
n1 c3 h0 w5 k4 r3 s3 p1
n1 c4 h0 w5 k4 r1 s3 p2,1 groups4
""".strip().splitlines()
)

DENSITY = 0.3  # of filters, for algorithms that leave out zeros

GRADIENT_PROBLEMS = (  # with and without a stride, in all dimensions
    "n2 c6 h9 w8 k4 r3 s3 p1",
    "n1 c4 h11 w12 k6 r3 s3 p0:1,1:0 stride2",
    "n1 c4 h12 w13 k8 r5 s5 p2 groups2",
    "n2 c8 h10 w9 k8 r3 s3 p1 groups8",
    "n1 c3 w40 k5 s4 p3:0 stride2",
    "n1 c2 d5 h6 w7 k3 t3 r3 s3 p1",
    "n1 c4 h5 w1 k6 r2 s1 p1,4:0 stride2,5",  # outputs that see nothing but padding
)


def table_problems(
    algorithm: Algorithm, dtype: str, direction: str | None = None
) -> Iterator[tuple[ConvProblem, str | None]]:
    """(problem, reason) over the whole table in both layouts; the reason is None where it is served.

    direction: by default the first that the algorithm computes.
    """
    for problem in _table(dtype, direction or algorithm.directions[0]):
        problem = suited(algorithm, problem)
        yield problem, algorithm.why_not(algorithm.computed(problem))


@cache
def _table(dtype: str, direction: str) -> tuple[ConvProblem, ...]:
    """Each problem of the table in both layouts."""
    return tuple(
        ConvProblem.parse(text).replace(layout=layout, dtype=dtype, direction=direction)
        for text, layout in product(PROBLEMS, ("channels_first", "channels_last"))
    )


def suited(algorithm: Algorithm, problem: ConvProblem) -> ConvProblem:
    """The problem with a filter as an algorithm needs it: with zeros that it leaves out, or of a pattern."""
    if algorithm.patterns:
        return problem.replace(pattern=examples(algorithm.patterns)[0])
    if not algorithm.skips_zeros:
        return problem
    sparse = problem.replace(density=DENSITY)
    of_pattern = sparse.replace(pattern="2:4")
    return of_pattern if algorithm.why_not(sparse) and not algorithm.why_not(of_pattern) else sparse
