"""The study `ladder`: every rung computes the layer, floors are those of its arithmetic, gains multiply."""

import numpy as np
import pytest

from convalgos import ConvProblem
from convalgos.select.measure.timing import Timing
from convalgos.studies import ladder, ladder_gpu, ladder_loops, ladder_wider, numba_functions
from convalgos.studies.study import Finding, NotRun, Part, StudySetting

pytestmark = pytest.mark.usefixtures("one_thread")
TINY = "n1 c3 h6 w8 k4 r3 s3 p1"


@pytest.fixture
def quick(monkeypatch):
    """Loops stay plain Python, and every call takes a millisecond more than the one before."""
    monkeypatch.setattr(numba_functions, "compiled", lambda loops, **_: loops)
    monkeypatch.setattr(ladder.LadderStudy, "problem", TINY)
    monkeypatch.setattr(ladder_wider, "BATCHES", (1, 2))
    monkeypatch.setattr(ladder_wider, "DENSITIES", (1.0, 0.25))
    monkeypatch.setattr(ladder_wider, "FORMATS", ("float32", "uint8"))

    def timed(calls, **_):
        for call in calls.values():
            call()
        return {name: Timing((1e-3 * (i + 1),)) for i, name in enumerate(calls)}

    monkeypatch.setattr(ladder, "interleave", timed)
    monkeypatch.setattr(ladder_wider, "interleave", timed)


def test_the_ladder_of_a_tiny_layer(quick):
    answers = list(ladder.STUDY.parts(StudySetting()))
    rungs, batches, pruned, formats, predicted = (a for a in answers if isinstance(a, Part))
    names = rungs.values("rung")
    assert names[0] == "plain Python loops" and str(names[-1]).startswith("the selector's pick: cpu.")
    gains, whole = rungs.values("gain"), rungs.values("gain in all")
    assert np.prod([g for g in gains if g]) == pytest.approx(whole[-1])
    assert rungs.values("floor")[2] > rungs.values("floor")[4]  # one lane, and a whole vector
    assert len(batches.rows) == 4 and batches.values("operations / byte")[2] < 0.5
    assert pruned.values("density") == [1.0, 0.25] and pruned.values("sparse")[0] is None
    assert formats.values("format") == ["float32", "uint8"] and formats.values("error")[1] == 0.0
    assert all(
        error <= bound
        for error, bound in zip(formats.values("error"), formats.values("error bound"), strict=True)
    )
    assert "gpu.direct" in str(predicted.rows) and any(isinstance(a, NotRun) for a in answers)
    assert len([a for a in answers if isinstance(a, Finding)]) == 4


def test_plain_loops_give_the_first_outputs():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 6, 7)), rng.standard_normal((3, 2, 3, 3))
    y = ladder_loops.numpy_planes(x, w, 3)
    np.testing.assert_allclose(ladder_loops.python_loops(x.tolist(), w.tolist(), 2, 5), y[0, :2].ravel())


@pytest.mark.parametrize(
    ("algorithm", "flops"),
    [
        ("cpu.direct", 2 * 9 * 64 * 64 * 56 * 56),
        ("cpu.winograd.f4x3", 2 * 36 * 64 * 64 * 14 * 14),  # a quarter
        ("cpu.winograd.f6x3", 2 * 64 * 64 * 64 * 10 * 10),
        ("cpu.winograd.f4x3.int8x3", 6 * 2 * 36 * 64 * 64 * 14 * 14),
        ("cpu.bf16x3", 6 * 2 * 9 * 64 * 64 * 56 * 56),
        ("cpu.fft_tiles.t16", 8 * (16 * 9) * 64 * 64 * 4 * 4),  # complex products at half the points
        ("cpu.fft.fftw", 8 * (58 * 30) * 64 * 64),
    ],
)
def test_operations_of_each_algorithm(algorithm, flops):
    problem = ConvProblem.parse("n1 c64 h56 w56 k64 r3 s3 p1")
    found, moved = ladder.least_work(problem, algorithm)
    assert found == flops and moved >= problem.bytes


def test_kernels_of_a_gpu_are_timed_where_there_is_one(monkeypatch):
    """The CPU stands in for the device."""
    monkeypatch.setattr(ladder_gpu.gpu, "why_none", lambda: None)
    monkeypatch.setattr(ladder_gpu.devices, "current_device", lambda kind: "cpu")
    setting = StudySetting(device="gpu", seconds=0.0)
    predicted, timed = ladder_gpu.gpu_parts(ConvProblem.parse(TINY), setting)
    assert predicted.values("predicted") and timed.values("time") == sorted(
        timed.values("time"), reverse=True
    )
