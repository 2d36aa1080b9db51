"""The first minutes of a check: the judge, what the driver is asked, and the summary."""

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cuda_shim import device as shim
from gpu_check_stand_in import Simulated
from test_gpu_check import needs_shim

import convalgos as ca
from convalgos.gpu.device import tma, use
from convalgos.gpu.gemm import wgmma_operands
from convalgos.select import algorithms
from convalgos.select.measure.backends import GpuBackend
from convalgos.tools.gpu_check import checks, compiling, phases, probe, quick, reference_answers, summary
from convalgos.tools.gpu_check.cases import Case
from convalgos.tools.gpu_check.reference_answers import Answer, Answers
from convalgos.tools.gpu_check.report import Report
from convalgos.tools.gpu_check.results import Result
from convalgos.tools.gpu_check.steps import Begun, Skip
from convalgos.tools.gpu_check.timing import LayerTimes, Timed

ROOT = Path(__file__).parents[1]
SMALL = ca.ConvProblem.parse("n1 c3 h9 w8 k5 r3 s3 p1")

# --- the judge -------------------------------------------------------------------------------------


@pytest.fixture
def large(monkeypatch):
    """A small problem counts as a large one."""
    monkeypatch.setattr(reference_answers, "EXTENT", replace(reference_answers.EXTENT, flops=0, places=4))
    monkeypatch.setattr(quick, "REGULAR", (str(SMALL),))
    monkeypatch.setattr(quick, "types_facing", lambda direction: ["float32"])


def judged(device, answers, **skip):
    return list(quick.answer_large_problems(device, answers, np.inf, Skip(**skip)))


@needs_shim
def test_the_judge_computes_what_the_host_then_looks_at(large, tmp_path, monkeypatch):
    monkeypatch.setattr(quick, "_by_torch", lambda *_: (_ for _ in ()).throw(ImportError("no torch")))
    answers = Answers(tmp_path)
    with use(shim.ShimDevice()) as device:
        assert not [f for f in judged(device, answers) if isinstance(f, Result)]
        for direction in ca.core.problem.DIRECTIONS:
            problem = SMALL.replace(direction=direction)
            known = answers.known(problem)
            assert known.by == "gpu.direct in float64"
            here = reference_answers.Truth(problem)
            right = ca.cpu.reference.answer(
                problem, problem.logical(0, here.first), problem.logical(1, here.second)
            )
            assert np.abs(known.y - right).max() < 1e-12
        assert answers.known(SMALL.replace(dtype="float16")) is None


def test_a_judge_that_is_wrong_or_fails_gives_way_to_the_next_one(large, tmp_path, monkeypatch):
    answers = Answers(tmp_path)

    def wrong(device, here):
        return np.zeros(here.problem.result_shape)

    def fails(device, here):
        raise RuntimeError("no memory")

    monkeypatch.setattr(quick, "_by_torch", wrong)
    monkeypatch.setattr(quick, "_by_direct", fails)
    device = Simulated()
    found = [f for f in judged(device, answers) if isinstance(f, Result)]
    assert [(f.algorithm, f.wrong) for f in found[:2]] == [
        ("torch in float64", True), ("gpu.direct in float64", False)
    ]  # fmt: skip
    assert "RuntimeError: no memory" in found[1].what and not list(tmp_path.iterdir())
    begun = [
        f.algorithm for f in judged(device, answers, barred=frozenset({"torch"})) if isinstance(f, Begun)
    ]
    assert "gpu.direct" in begun and "torch" not in begun
    device.synchronize = lambda: 1 / 0
    lost = [f for f in judged(device, answers) if isinstance(f, Result) and f.failure]
    assert lost and lost[0].algorithm == "gpu.direct in float64", (
        "an error that stays is no matter of the next"
    )


@needs_shim
def test_between_the_places_that_the_host_knows_the_judge_finds_what_is_wrong(large, tmp_path):
    """Also of an algorithm that is alone with it: and it is the host who says which of the two is wrong."""
    answers = Answers(tmp_path)
    here = reference_answers.Truth(SMALL)
    y = ca.cpu.reference.answer(SMALL, here.first, here.second)
    case = Case("net", "conv", SMALL)
    stray = next(p for p in np.ndindex(y.shape) if p not in set(map(tuple, here.places.tolist())))
    with use(shim.ShimDevice()) as device:
        for moved, culprit in ((0.0, None), (1.0, "the judge")):
            spoiled = y.copy()
            spoiled[stray] += moved
            answers.keep(SMALL, Answer("the judge", 1e-10, spoiled))
            found = checks.check_algorithms(
                device, [case], False, np.inf, whose="gpu.direct", answers=answers
            )
            wrong = [f for f in found if isinstance(f, Result) and f.wrong]
            assert [f.algorithm for f in wrong] == ([culprit] if culprit else [])


# --- what the driver is asked ----------------------------------------------------------------------


class Refusing(shim.ShimDevice):
    """Its driver encodes no box that is wider than the input."""

    def tensor_map(self, view, address):
        if view.sizes[0] < view.channels:
            raise RuntimeError("cuTensorMapEncodeIm2col failed with status 1")
        return super().tensor_map(view, address)

    def takes_wide_box(self):
        return False


def asked(device):
    with use(device):
        return list(probe.tensor_maps(device))


@needs_shim
def test_the_driver_is_asked_for_every_kind_of_map():
    found = [f for f in asked(shim.ShimDevice()) if isinstance(f, probe.Answered)]
    *maps, decision = found
    assert len(maps) == 18 and {f.answer for f in maps} == {"encoded"} and decision.answer == "no"
    found = asked(Refusing())
    *maps, decision = [f for f in found if isinstance(f, probe.Answered)]
    refused = [f for f in maps if f.answer.startswith("refused")]
    assert len(refused) == 12 and all(f.answer.endswith("filled up to 64 channels: encoded") for f in refused)
    assert decision.answer == "yes" and not [f for f in found if isinstance(f, Result)]
    assert asked(shim.ShimDevice(shim.A100)) == []


@needs_shim
def test_a_device_that_decides_otherwise_than_its_driver_answers_is_told():
    device = Refusing()
    device.takes_wide_box = lambda: True
    (wrong,) = [f for f in asked(device) if isinstance(f, Result)]
    assert wrong.wrong and "12 refused here, but the device says True" in wrong.failure


def test_the_library_asks_its_driver_once_for_wide_boxes(monkeypatch):
    def answers(refused):
        def encode(view, address, driver):
            if refused(view):
                raise RuntimeError("status 1")

        monkeypatch.setattr(tma, "encode", encode)
        return tma.takes_wide_box()

    assert answers(lambda view: False)
    assert not answers(lambda view: view.channels > view.sizes[0])
    assert not answers(lambda view: view.sizes[0] == 8 and len(view.steps) == 3)
    assert answers(lambda view: True), "one that encodes nothing says nothing of boxes"


@needs_shim
@pytest.mark.parametrize("layout", ca.core.problem.LAYOUTS)
def test_where_wide_boxes_are_refused_channels_are_filled_up(layout):
    (half,) = (a for a in algorithms("gpu") if a.id == "gpu.implicit_gemm.wgmma_half")
    for text in ("n1 c8 h7 w6 k8 r3 s3 p1 stride2", "n2 c24 h5 w4 k16 r3 s3 p1"):
        problem = ca.ConvProblem.parse(text).replace(dtype="float16", layout=layout)
        for device, channels in ((shim.ShimDevice(), problem.C), (Refusing(), 64)):
            with use(device):
                assert wgmma_operands.padded_channels(problem, 1, device.takes_wide_box()) == channels
                assert half.why_not(problem) is None
                plan = half.plan(problem)
                assert plan.workspace_bytes == half.workspace_bytes(problem)
                backend, here = GpuBackend(device), reference_answers.Truth(problem)
                y = backend.unwritten(problem.array_shapes[2], here.first.dtype)
                plan(here.first, plan.prepare(here.second), out=y)
                error = np.abs(problem.logical(2, y).astype(np.float64) - here.y).max() / here.scale
                assert error <= half.error_bound(problem)


# --- the summary -----------------------------------------------------------------------------------


def test_the_summary_has_what_matters_on_sixty_lines():
    problem = ca.ConvProblem.parse("n4 c64 h224 w224 k64 r3 s3 p1")
    results = [Result("a/b", str(problem), f"gpu.a{i}", "y", error=1.0, bound=1e-5) for i in range(99)]
    rows = (Timed("gpu.winograd.f4x3", (1.0,), 1.0, 0, 1e-5),)
    layers = [LayerTimes(Case("net", f"conv{i}", problem), "gpu.winograd.f4x3", rows) for i in range(99)]
    report = Report("", shim.H200, {}, {"awkward": "3.0 s, cut"}, results=results, layers=layers)
    report.barred = ["gpu.a7 is barred after 2 losses: hung"]
    lines = summary.summary(report, "here.md")
    assert len(lines) <= 60 and all(len(line) <= 200 for line in lines)
    text = "\n".join(lines)
    slow = "SLOW: strict float32, channels first: the pick: 0.00x (not met), aim >= 1.6x, 99 timed beside rec"
    wrong = ("99 wrong", "WRONG: gpu.a0 1 times", "WRONG, too: ", "BARRED: gpu.a7")
    for told in (*wrong, slow, "report: here.md", "awkward 3.0 s, cut", "slow layer: net/conv"):
        assert told in text, told


def test_phases_are_chosen_by_name_and_quick_ones_come_first():
    names = [p.name for stage in phases.stages(False, None) for p in stage.phases]
    quick_ones = [p.name for stage in phases.stages(True, None) for p in stage.phases]
    assert quick_ones == ["ceilings", "driver", "compile", "algorithms", "telling"]
    assert names[:5] == quick_ones and names[5] == "awkward" and len(set(names)) == len(names)
    assert sum(max(p.seconds for p in stage.phases) for stage in phases.QUICK) <= 140
    (stage,) = phases.stages(False, ["algorithms"])
    assert [p.name for p in stage.phases] == ["algorithms"] and stage.lanes == phases.LANES
    with pytest.raises(ValueError, match="no phase 'tmes'; did you mean times"):
        phases.stages(False, ["times", "tmes"])


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_what_looks_at_results_is_called_before_it_is_needed(monkeypatch, dtype):
    """CuPy compiles its kernels at their first use: none may be in the first step of a check."""
    called = set()

    class Watching:
        """NumPy, as a device's library; tells what was called with which types."""

        asnumpy = staticmethod(np.asarray)

        def __getattr__(self, name):
            found = getattr(np, name)
            if isinstance(found, type) or not callable(found):
                return found

            def call(*arguments, **more):
                called.add((name, *(a.dtype.name for a in arguments if isinstance(a, np.ndarray))))
                return found(*arguments, **more)

            return call

    monkeypatch.setattr(reference_answers, "EXTENT", replace(reference_answers.EXTENT, flops=0))
    problem = SMALL.replace(dtype=dtype)
    with use(Simulated()) as device:
        device.xp = Watching()
        compiling.warm(device, dtype)
        warmed = set(called)
        called.clear()
        here = reference_answers.Truth(problem)
        checker = checks._Checker(device, Case("a", "b", problem), here, None)
        y = np.zeros(here.problem.y_shape, dtype)
        result = Result("", "", "gpu.direct", "y", bound=1.0)
        checker._compared_with_host(y)
        checker._compared(result, y), checker._compared(result, y)
    assert len(called) >= 4 and called <= warmed | {("asarray", dtype)}


def test_the_targets_of_make_pass_on_what_they_are_given():
    if shutil.which("make") is None:
        pytest.skip("make is not installed")

    def command(*settings):
        asked = ["make", "-n", "--no-print-directory", "gpu-check", "PYTHON=py", *settings]
        environment = {k: v for k, v in os.environ.items() if k not in ("OUT", "QUICK", "MAKEFLAGS")}
        done = subprocess.run(asked, capture_output=True, text=True, cwd=ROOT, env=environment, check=True)
        return done.stdout.split()

    assert command() == ["py", "-m", "convalgos.tools.gpu_check", "--out", "docs/results"]
    assert command("OUT=/tmp/x", "QUICK=1") == [
        "py",
        "-m",
        "convalgos.tools.gpu_check",
        "--out",
        "/tmp/x",
        "--quick",
    ]


# --- forms that are to race -------------------------------------------------------------------------


@needs_shim
def test_forms_that_race_are_checked_each_by_itself(tmp_path):
    form = "gpu.implicit_gemm.wgmma_half.pingpong"
    case = Case("odd", "conv", ca.ConvProblem.parse("n1 c16 h9 w7 k24 r3 s3 p1").replace(dtype="float16"))
    with use(shim.ShimDevice()) as device:
        found = list(checks.check_algorithms(device, [case], False, np.inf, whose=form))
    assert [f.algorithm for f in found if isinstance(f, Result)] == [form]
    assert not any(f.wrong for f in found if isinstance(f, Result))
