"""Direct convolution: how the work is cut, and the two ways out of the form along pixels.

That both forms are right on awkward problems is tested with all other algorithms, in test_algorithms.py.
"""

import math

import numpy as np
import pytest
from helpers import check, example

from convalgos import ConvProblem
from convalgos.core.epilogue import activated, activation_of
from convalgos.core.layouts import blocked_layout, laid, to_logical
from convalgos.cpu import direct
from convalgos.cpu.direct_pixels import DirectPixels
from convalgos.cpu.gemm import row_blocking
from convalgos.cpu.gemm.direct_blocking import direct_blocking
from convalgos.cpu.layout import streaming
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime import plan as runtime_plan
from convalgos.cpu.vectors import simd
from convalgos.select import find_algorithm


def busiest(text: str) -> float:
    """Outputs of the busiest thread, over an equal share."""
    cut = direct_blocking(ConvProblem.parse(text))
    return cut.busiest(jit.thread_count()) * jit.thread_count() / (cut.problem.gemm_m * cut.problem.groups)


@pytest.mark.parametrize(
    "text", ["c256 h19 w19 k512 r3 s3 p1 stride2", "c64 h19 w19 k512 r3 s3 p1", "n3 c512 h14 w14 k512 r1 s1"]
)
def test_few_blocks_are_dealt_evenly(text):
    assert busiest(text) < 1.15


def test_threads_share_groups_and_not_their_maps():
    threads = jit.thread_count()
    problem = ConvProblem.parse(f"n1 c{16 * threads} h9 w9 k{16 * threads} r3 s3 p1 groups{8 * threads}")
    assert direct_blocking(problem).blocks == (1, 1, 1, 1)
    assert row_blocking.row_blocking(problem).blocks == (1, 1, 1, 1)


@pytest.mark.parametrize("text", ["n1 c40 h40 w41 k160 r1 s1", "n1 c39 h29 w61 k393 r1 s1 groups3"])
def test_threads_share_filters_and_no_line_of_neighbouring_pixels(text):
    problem = ConvProblem.parse(text)
    cut = direct_blocking(problem)
    assert math.prod(cut.blocks) > 1 and (cut.filter_parts > 1 or jit.thread_count() == 1)
    check(direct.Direct(), problem, plan=direct.DirectPlan(problem, direct.Direct()))


@pytest.mark.parametrize(
    "text", ["c32 h20 w20 k256 r1 s1", "c32 h28 w28 k64 r1 s1", "n3 c32 h14 w14 k64 r1 s1"]
)
def test_runs_of_pixels_are_dealt_evenly(text):
    cut, threads = row_blocking.row_blocking(ConvProblem.parse(text)), jit.thread_count()
    p = cut.problem
    assert cut.busiest(threads) < 1.15 * p.N * -(-p.spatial_out[2] // cut.lanes) / threads + 1


def test_one_of_two_algorithms_serves_plain_products():
    own = find_algorithm("cpu.im2col.own")
    assert own.why_not(ConvProblem.parse("c8 h9 w9 k8 r1 s1")).endswith(
        "which cpu.direct computes in the same way"
    )
    assert own.why_not(ConvProblem.parse("c8 h9 w9 k8 r1 s1 stride2")) is None


def test_sums_along_pixels_never_read_what_others_left():
    workspace = DirectPixels().plan(ConvProblem.parse("c4 h14 w14 k8 r3 s3 p1")).new_workspace()
    assert not workspace.scratch.any()


def test_blocking_of_long_rows_is_quick_to_find():
    cut = direct_blocking(ConvProblem.parse("c8 w1000003 k8 s1"))
    assert np.prod(cut.blocks) >= jit.thread_count()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "text",
    [
        "n3 c5 h23 w29 k7 r3 s3 p1",  # planes of odd sizes: every filter is aligned in another way
        "n2 c3 h31 w70 k13 r5 s5 p2 stride2",
        "n1 c2 w301 k9 s10 stride5",
        "n5 c7 h5 w5 k20 r1 s1",  # images side by side
        "n2 c2 d5 h6 w7 k5 t3 r3 s3 p1 stride2,1,3 dilation1,2,1",
        "n2 c4 h9 w17 k6 r1 s3 groups2 dilation1,2 stride3,4",
    ],
)
def test_stores_around_the_caches_are_right(text, dtype, monkeypatch):
    monkeypatch.setattr(streaming, "STREAMED_PIXELS", 0.0)
    row_blocking.row_blocking.cache_clear()
    check(DirectPixels(), ConvProblem.parse(f"{text} {dtype}"))
    row_blocking.row_blocking.cache_clear()


def test_both_forms_agree():
    problem = ConvProblem.parse("n2 c3 h37 w41 k32 r3 s3 p1 stride2")
    x, w, bias, _ = example(problem, "integers")
    answers = [a.serve(problem)(x, w, bias=bias) for a in (direct.Direct(), DirectPixels())]
    assert np.array_equal(*answers)


def test_what_lies_beyond_the_ends_of_rows_is_zero_and_not_whatever_memory_held(monkeypatch):
    """Vectors are summed there, too: on what were addresses, as denormal numbers, in twice the time."""
    monkeypatch.setattr(runtime_plan, "aligned_empty", lambda count, dtype: np.full(count, 127, dtype))
    held = DirectPixels().serve(ConvProblem.parse("n1 c1 h28 w28 k32 r5 s5 p2")).new_workspace()
    assert held.scratch.size and not held.scratch.any()


@pytest.mark.parametrize(
    ("algorithm", "text"),
    [
        (direct.Direct(), "n2 c20 h9 w11 k70 r1 s1"),  # packed
        (direct.Direct(), "n3 c5 h9 w11 k20 r3 s3 p1"),
        (direct.Direct(), "n2 c5 h9 w11 k20 r3 s3 p1 channels_last"),
        (direct.Direct(), "n2 c5 h9 w11 k20 r3 s3 p1 y_blocked"),
        (direct.Direct(), "n2 c50 h2 w1 k40 r1 s1"),
        (direct.Direct(), "n9 c20 h3 w2 k70 r3 s2"),  # one pixel
        (direct.Direct(), "n20 c5 h4 w4 k37 r3 s3 stride2"),
        (DirectPixels(), "n3 c5 h19 w21 k7 r3 s3 p1"),
    ],
    ids=str,
)
def test_output_steps_and_images_that_lie_apart(algorithm, text):
    problem = ConvProblem.parse(text.replace("y_blocked", f"y_{blocked_layout(simd.lanes(4))}"))
    x, w, bias, _ = example(problem.replace(layout="channels_first"), "reals")
    x = np.ascontiguousarray(np.moveaxis(x, 1, -1)) if problem.layout == "channels_last" else x
    plan = algorithm.plan(problem)
    sums = plan(x, w, bias=bias)
    residual = np.cos(sums)
    expected = activated(sums + residual, activation_of("silu"))
    found = plan(x, w, bias=bias, activation="silu", residual=residual)
    found, expected = (to_logical(y, problem.y_layout, problem.K) for y in (found, expected))
    assert np.allclose(found, expected, rtol=1e-5, atol=1e-5)
    if not plan.strided_batch:
        return
    whole = np.zeros((sums.shape[0], sums.shape[1] + 2, *sums.shape[2:]), np.float32)
    plan.bind(x, w, whole[:, 1:-1], bias).run()
    assert np.array_equal(whole[:, 1:-1], sums) and not whole[:, [0, -1]].any()


def test_filters_of_one_pixel_are_stored_as_neighbours():
    """Out of blocks of channels, too, and whatever activates them."""
    blocked = blocked_layout(simd.lanes(4))
    for text in ("n17 c20 h1 w1 k70 r1 s1", "n12 c33 h3 w3 k16 r3 s3", "n9 c16 h2 w2 k5 r1 s1 stride2"):
        problem = ConvProblem.parse(text)
        x, w, bias, _ = example(problem, "reals")
        mixed = problem.replace(layout=blocked, y_layout="channels_first")
        assert direct_blocking(mixed).problem.y_layout == "channels_last"
        plan = direct.Direct().plan(mixed)
        for activation in (None, "relu", "silu"):
            found = plan(np.ascontiguousarray(laid(x, blocked)), w, bias=bias, activation=activation)
            expected = direct.Direct().plan(problem)(x, w, bias=bias, activation=activation)
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
