"""Winograd on the GPU: split sums, passes, printed transforms."""

import numpy as np
import pytest
from cuda_shim import device as shim
from helpers import check, example

from convalgos.core.cook_toom import cook_toom
from convalgos.core.plan import Choice
from convalgos.core.problem import ConvProblem
from convalgos.gpu import direct as direct_file
from convalgos.gpu import winograd
from convalgos.gpu.device import use

needs_shim = pytest.mark.skipif(shim.missing() is not None, reason=str(shim.missing()))


@pytest.mark.parametrize("m", [2, 4])
def test_the_printed_transforms_multiply(m):
    """Run as Python, the statements are the matrices."""
    exact = cook_toom(m, 3)
    for matrix in (exact.BT, exact.AT):
        x = np.random.default_rng(0).standard_normal(len(matrix[0]))
        y = np.zeros(len(matrix))
        code = winograd.statements(matrix, "x[{i}]", "y[{i}]").replace("const float ", "")
        code = code.replace("f *", " *").replace("f,", ",")
        exec(code.replace("; ", "\n").rstrip(";"), {"x": x, "y": y, "fmaf": lambda a, b, c: a * b + c})
        np.testing.assert_allclose(y, np.array(matrix, dtype=float) @ x, rtol=1e-12, atol=1e-12)


@needs_shim
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("text", ["n1 c72 h7 w6 k20 r3 s3 p1", "n1 c137 w19 k33 s3 p1"])
def test_sums_over_channels_are_split(monkeypatch, text, layout):
    """Parts of unequal length, and the same bits whenever it runs."""
    problem = ConvProblem.parse(text).replace(layout=layout)
    algorithm = winograd.Winograd(4)
    with use(shim.ShimDevice()):
        for splits in (2, 3):
            monkeypatch.setattr(winograd.Winograd, "splits", lambda self, problem, machine, n=splits: n)
            assert algorithm.workspace_bytes(problem) == splits * problem.y_bytes
            check(algorithm, problem)


def test_few_tiles_are_split_and_many_are_not():
    few = ConvProblem.parse("n1 c512 h7 w7 k512 r3 s3 p1")
    many = ConvProblem.parse("n32 c512 h28 w28 k512 r3 s3 p1")
    assert winograd.Winograd(4).splits(few, shim.H200) > 1
    assert winograd.Winograd(4).splits(many, shim.H200) == 1


@needs_shim
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_many_tiles_take_several_passes(monkeypatch, layout):
    problem = ConvProblem.parse("n3 c5 h17 w22 k6 r3 s3 p1").replace(layout=layout)
    monkeypatch.setattr(winograd, "PASS_BYTES", 1 << 16)
    algorithm = winograd.Winograd(2, fused=False)
    assert algorithm.tiles_of_a_pass(problem) < winograd.winograd_tiling(problem, 2).tiles
    with use(shim.ShimDevice()):
        plan = algorithm.serve(problem)
        assert len(plan.launches) > 4
        check(algorithm, problem)


@needs_shim
def test_where_there_is_no_memory_the_next_candidate_runs():
    """With one warning, on the filter as it was prepared."""
    problem = ConvProblem.parse("n1 c5 h17 w22 k6 r3 s3 p1")
    x, w, bias, y = example(problem, "integers")

    class Full(shim.ShimDevice):
        class xp:
            ndarray = np.ndarray

            def __getattr__(self, name):
                return getattr(np, name)

            def empty(self, shape, dtype):
                if dtype is np.uint8:
                    raise MemoryError("full")
                return np.empty(shape, dtype)

        xp = xp()

    with use(Full()):
        plan = winograd.Winograd(2, fused=False).serve(problem)
        (direct,) = direct_file.ALGORITHMS
        with pytest.raises(MemoryError):
            plan(x, plan.prepare(w))
        plan.chosen(Choice(next_plan=lambda: direct.serve(problem)))
        prepared = plan.prepare(w)
        with pytest.warns(RuntimeWarning, match=r"f2x3_gemm found no memory .* gpu\.direct runs") as caught:
            first = plan(x, prepared, bias=bias)
            second = plan(x, prepared, bias=bias)
        assert len(caught) == 1
        assert np.array_equal(first, y + bias[:, None, None]) and np.array_equal(second, first)
