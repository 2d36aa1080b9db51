"""Every form and tile of the depthwise kernels, also those that the cost model would not pick."""

from itertools import product

import numpy as np
import pytest
from cuda_shim import device as shim
from helpers import example

from convalgos.core.plan import numpy_dtype
from convalgos.core.problem import ConvProblem
from convalgos.gpu import depthwise
from convalgos.gpu.device import use
from convalgos.gpu.launch.kernel_records import divisor

PROBLEMS = [
    *(  # widths of whole vectors, of pairs, and odd ones
        f"n2 c4 h9 w{w} k4 r{r} s{r} p{r // 2} groups4 stride{stride} {layout}"
        for w, r, stride, layout in product(
            (16, 14, 13), (3, 5, 7), (1, 2), ("channels_first", "channels_last")
        )
    ),
    *(  # rows that begin elsewhere, outputs of every alignment, a multiplier
        f"n1 c3 h8 w{w} k6 r3 s3 p{pads} groups3 stride{stride}"
        for w, pads, stride in product((24, 18), ("0", "2:1,1:0", "1,3:2"), (1, 2))
    ),
    *(  # lines: every distance from a whole vector, and taps up to the most
        f"n2 c3 w{w} k6 s{taps} p{low}:{high} groups3"
        for w, taps, low, high in (
            *((48, 4, 3, 0), (48, 5, 2, 2), (48, 2, 0, 1), (48, 3, 9, 1), (72, 8, 5, 2), (72, 8, 1, 6)),
            *((300, 8, 4, 4), (37, 4, 3, 0), (601, 5, 2, 2), (48, 4, 3, 3), (48, 4, 0, 0)),
            *((512, 4, 3, 3), (256, 3, 1, 2)),
        )
    ),
    "n2 c3 d2 h5 w16 k3 t1 r1 s3 p0,0,1 groups3",
    *(
        f"n2 c{c} h3 w{w} k{c} r1 s{taps} p0:0,{low}:{high} groups{c} channels_last"
        for c, w, taps, low, high in ((8, 21, 4, 3, 0), (12, 8, 5, 2, 2), (8, 30, 8, 9, 1), (6, 17, 2, 0, 0))
    ),
    "n2 c3 w48 k6 s5 p2 groups3 stride2",
    "n1 c8 h9 w11 k8 r3 s4 p2 dilation2,3 stride3 groups8 channels_last",
    "n1 c3 h9 w11 k6 r3 s4 p2 dilation2,3 stride3 groups3 channels_last",
    "n1 c3 h9 w11 k6 r3 s4 p2 dilation2,3 stride3 groups3",
    "n2 c1 h1 w1 k3 r3 s3 p1 channels_last",
    "n3 c2 d4 h11 w9 k2 t3 r3 s3 p1 stride2 groups2",
    "n3 c2 d4 h11 w9 k2 t3 r3 s3 p1 stride2 groups2 channels_last",
    "n4 c3 h22 w23 k3 r13 s12 p6 groups3",  # images of a filter share its weights
    "n3 c3 h16 w9 k6 r9 s9 p4 groups3 stride2",
    "n1 c1 h6 w5 k1 r15 s15 p12 groups1",  # rows of x that no output of a thread sees
    "n1 c1 w700 k1 s120 p0:119",
]


def forms(problem: ConvProblem) -> list[depthwise.LaunchForm]:
    """Of each kernel of each build, the fastest, the smallest and the largest blocks."""
    found: dict[tuple, list[depthwise.LaunchForm]] = {}
    for form in depthwise.depthwise_forms(problem, shim.H200):
        found.setdefault((form.build, form.kernel), []).append(form)
    chosen = []
    for same in found.values():
        for key in ("seconds", "threads", "blocks"):
            chosen.append(min(same, key=lambda f: getattr(f, key)))
    return list({(f.build, f.kernel, f.blocks, f.threads): f for f in chosen}.values())


@pytest.mark.parametrize(
    ("width", "dtype", "kernel"),
    [
        (48, "float16", "vectors"),
        (52, "float16", "lanes"),
        (52, "float32", "vectors"),
        (51, "float32", "lanes"),
    ],
)
def test_lines_of_whole_vectors_are_loaded_in_vectors(width, dtype, kernel):
    problem = ConvProblem.parse(f"n1 c3 w{width} k3 s4 p3:0 groups3").replace(dtype=dtype)
    kernels = {f.kernel for f in depthwise.depthwise_forms(problem, shim.H200)}
    assert kernels & {"vectors", "strips", "lanes"} == {kernel}
    wider = problem.replace(padding=3)  # as when the last outputs are cut off afterwards
    assert ("strips" if kernel == "vectors" else "lanes") in {
        f.kernel for f in depthwise.depthwise_forms(wider, shim.H200)
    }


def test_divisors_divide():
    """As `take` of common.cuh does, at the ends of what is asked of them."""
    most = 2**31 - 1
    for by in (1, 2, 3, 5, 7, 10, 56, 641, 2**16 - 1, 2**16 + 1, 2**30, most):
        _, factor, shift = divisor(by)
        assert factor < 2**32 and shift < 32
        multiples = (by, 7 * by, most // by * by)
        for n in (0, most, *(m + i for m in multiples for i in (-1, 0, 1))):
            assert n > most or 2 * n * factor >> 32 >> shift == n // by, (n, by)


@pytest.mark.skipif(shim.missing() is not None, reason=str(shim.missing()))
def test_every_form_gives_exact_answers():
    (algorithm,) = depthwise.ALGORITHMS
    # float16 differs from bfloat16 in the conversions alone, which other tests see
    declared = {b for b in algorithm.builds() if dict(b.macros)["element_t"] != "float16_t"}
    shim.ShimDevice().compile(declared)
    launched, kernels = set(), set()
    for text in PROBLEMS:
        for dtype in ("float32", "bfloat16"):
            problem = ConvProblem.parse(text).replace(dtype=dtype)
            wide = problem.replace(dtype="float32", layout="channels_first")
            last = problem.layout == "channels_last"
            x, w, bias, y = example(wide, "integers")
            answer = (y + bias.astype(np.float64).reshape(-1, *(1,) * problem.ndim)).astype(
                numpy_dtype(dtype)
            )
            x, w, bias = (a.astype(numpy_dtype(dtype)) for a in (x, w, bias))
            x = np.moveaxis(x, 1, -1) if last else x
            with use(shim.ShimDevice()):
                assert algorithm.why_not(problem) is None
                for form in forms(problem):
                    launched.add(form.build)
                    kernels.add(form.kernel)
                    out = np.full(problem.array_shape(problem.y_shape), np.nan, numpy_dtype(dtype))
                    depthwise.DepthwisePlan(problem, algorithm, form)(x, w, bias=bias, out=out)
                    found = np.moveaxis(out, -1, 1) if last else out
                    assert np.array_equal(found, answer), f"{problem}: {form}"
    assert {"vectors", "strips", "lanes", "channels"} <= kernels
    missed = declared - launched
    assert not missed, f"no problem runs {', '.join(map(str, missed))}"
