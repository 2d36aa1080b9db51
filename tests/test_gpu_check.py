"""The command that checks a machine with a GPU, run on the stand-in."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from cuda_shim import device as shim

import convalgos as ca
from convalgos.core.errors import Unsupported
from convalgos.cpu.reference import reference
from convalgos.gpu import device
from convalgos.gpu.compile.module import Build
from convalgos.gpu.device import calibrate, use
from convalgos.gpu.device.offline import OfflineDevice
from convalgos.gpu.direct import DirectPlan
from convalgos.gpu.im2col import PatchPlan
from convalgos.gpu.launch.plan import GpuPlan
from convalgos.select import algorithms, facing, registry
from convalgos.tools.bench.suites import Layer, suites
from convalgos.tools.cli.main import main
from convalgos.tools.evaluate import recorded_tables, regret
from convalgos.tools.evaluate.model_errors import model_errors
from convalgos.tools.gpu_check import __main__ as command
from convalgos.tools.gpu_check import (
    cases,
    checks,
    compiling,
    quick,
    reference_answers,
    sanitize,
    targets,
    timing,
)
from convalgos.tools.gpu_check.cases import Case
from convalgos.tools.gpu_check.report import Report
from convalgos.tools.gpu_check.results import Result
from convalgos.tools.gpu_check.steps import Begun, Skip
from convalgos.tools.gpu_check.targets import Reached
from convalgos.tools.gpu_check.timing import Ceiling, HostTime, LayerTimes, Timed
from convalgos.tools.gpu_check.worker import Here

needs_shim = pytest.mark.skipif(shim.missing() is not None, reason=str(shim.missing()))
FEW = ("n2 c3 h7 w5 k17 r3 s3 p1", "n1 c4 w50 k4 s4 p3:0 groups4", "n0 c3 h5 w5 k4 r3 s3")
LAYER = Layer("net", "conv1", ca.ConvProblem.parse("n1 c3 h9 w8 k5 r3 s3 p1"))
CASE = Case("net", "conv1", LAYER.problem)
OURS = ("gpu.direct", "gpu.im2col")
CHECKS = "--phases=compile,awkward,in-use,layers,gradients,cudnn"
ALL = f"{CHECKS},ceilings,calls,signals,times"


@pytest.fixture
def stand_in(monkeypatch):
    """A device, and little to do on it."""
    monkeypatch.setattr(cases, "AWKWARD", FEW)
    monkeypatch.setattr(cases, "USED", FEW[:1])
    monkeypatch.setattr(cases, "USED_BACKWARD", FEW[:1])
    monkeypatch.setattr(cases, "CAUSAL", ("n1 c2 w64 k2 s64 p63:0 groups2",))
    for module in (cases, compiling):
        monkeypatch.setattr(module, "types", lambda names: [n for n in names if n in ("float32", "float16")])
    monkeypatch.setattr(timing, "CALLS", timing.CALLS[1:2])
    monkeypatch.setattr(timing, "HOST_TRIES", 1)
    monkeypatch.setattr(timing, "PROMISING", 1e9)
    monkeypatch.setattr(calibrate, "COPIED", 1 << 12)
    monkeypatch.setattr(calibrate, "SQUARE", 16)
    monkeypatch.setattr(compiling, "builds_to_try", lambda device: [])
    monkeypatch.setattr(sanitize, "tool", lambda: None)
    monkeypatch.setattr(command, "suites", lambda: {"net": (LAYER,)})
    with use(shim.ShimDevice()) as chosen:
        yield chosen


@pytest.fixture
def only(monkeypatch):
    """Of all algorithms these two."""
    chosen = tuple(a for a in algorithms("gpu") if a.id in OURS)

    def algorithms_on(device, direction="forward"):
        return tuple(facing(a, direction) for a in chosen)

    monkeypatch.setattr(registry, "algorithms_on", algorithms_on)


def run(chosen, folder, *arguments):
    status = command.main(["--out", str(folder), *arguments], Here(chosen))
    return status, json.loads((folder / "gpu-h200-132sm.json").read_text())


# --- the command -----------------------------------------------------------------------------------


@needs_shim
def test_all_algorithms_pass_and_the_report_says_so(stand_in, tmp_path, capsys):
    status, record = run(stand_in, tmp_path, CHECKS)
    assert status == 0 and "0 wrong" in capsys.readouterr().out
    ids = {c["algorithm"] for c in record["checks"]}
    assert {"gpu.direct", "gpu.depthwise", "gpu.im2col", "gpu.winograd.f4x3", "gpu.implicit_gemm.half"} <= ids
    done = {(c["algorithm"], c["what"]) for c in record["checks"]}
    for what in ("y", "bias and relu", "the same bits again", "on another stream", "in threads", "captured"):
        assert ("gpu.direct", what) in done
    assert ("gpu.im2col", "of views") in done and ("gpu.im2col", "captured") not in done
    assert any(c["case"] == "net/conv1" for c in record["checks"])
    assert "**0 wrong**" in (tmp_path / "gpu-h200-132sm.md").read_text()


@needs_shim
def test_times_come_into_the_table_and_the_record(stand_in, only, tmp_path, monkeypatch):
    now = [0.0]

    def elapsed(work):  # every call takes as long as the test says
        work()
        return now[0]

    monkeypatch.setattr(stand_in, "elapsed", elapsed)
    now[0] = 2e-3
    status, record = run(stand_in, tmp_path, ALL)
    assert status == 0
    assert {la["problem"] for la in record["layers"]} >= {str(LAYER.problem)}
    (row,) = [c for c in record["layers"][0]["candidates"] if c["algorithm"] == "gpu.direct"]
    assert row["median_s"] == 2e-3 and row["predicted_s"] > 0 and row["host_s"] > 0
    assert 0 <= row["error"] <= row["error_bound"]
    assert record["ceilings"]["copy bytes/s"] == pytest.approx(2 * 4096 / 2e-3)
    assert {c["algorithm"] for c in record["calls"]} == set(OURS)
    assert [la["problem"] for la in record["signals"]] == [cases.CAUSAL[0]]
    assert all(t["reached"] is None for t in record["targets"] if "cuDNN" in t["what"])
    text = (tmp_path / "gpu-h200-132sm.md").read_text()
    assert f"| net/conv1 | `{LAYER.problem}` |" in text and " 2000.0 |" in text and "| phase |" in text


@needs_shim
@pytest.mark.parametrize("wrong", ["zeros", "unwritten", "raises"])
def test_what_is_wrong_is_found_and_named(stand_in, only, tmp_path, monkeypatch, capsys, wrong):
    def run_wrong(self, x, w, bias, activation, y, workspace):
        if wrong == "raises":
            raise RuntimeError("does not launch")
        if wrong == "zeros":
            y.fill(0)

    monkeypatch.setattr(DirectPlan, "run", run_wrong)
    status, record = run(stand_in, tmp_path, CHECKS)
    assert status == 1
    line = next(text for text in record["wrong"] if text.startswith(f"gpu.direct on `{FEW[0]}`, y:"))
    assert f"WRONG {line}" in capsys.readouterr().out
    assert f"- WRONG: {line}" in (tmp_path / "gpu-h200-132sm.md").read_text()
    assert "direct of direct.cu element_t=float" in line
    if wrong == "raises":
        assert "RuntimeError: does not launch" in line
    else:
        assert "at (n, k, *position) = (" in line and "bound 2" in line.replace("bound 3", "bound 2")
    assert ("outputs not written" in line) == (wrong == "unwritten")
    assert not any("gpu.im2col" in text for text in record["wrong"])


@needs_shim
def test_a_gpu_with_little_memory_is_no_failure(stand_in, only, tmp_path, monkeypatch):
    def full(self, x, w, bias, activation, y, workspace):
        raise MemoryError("2 GB are not there")

    monkeypatch.setattr(PatchPlan, "run", full)
    status, record = run(stand_in, tmp_path, ALL)
    assert status == 0 and record["wrong"] == []
    told = [c["what"] for c in record["checks"] if c["algorithm"] == "gpu.im2col"]
    assert "not checked: MemoryError: 2 GB are not there" in told
    lines = (tmp_path / "gpu-h200-132sm.json").read_text().splitlines()
    assert sum('"case"' in line for line in lines) == len(record["checks"])  # a line for each


@needs_shim
def test_a_build_that_does_not_compile_is_told_and_the_rest_goes_on(stand_in, only, tmp_path, monkeypatch):
    good, broken = Build.of("im2col.cu", element_t="float", CHANNELS_LAST=0), Build.of("direct.cu", TILE_M=3)
    monkeypatch.setattr(compiling, "builds_to_try", lambda device: [good, broken])
    status, record = run(stand_in, tmp_path, CHECKS)
    assert status == 1
    (told,) = record["wrong"]
    assert "direct.cu TILE_M=3" in told and "error" in told and "direct.cu:" in told
    assert {c["algorithm"] for c in record["checks"] if c.get("what") == "y"} == set(OURS)


@needs_shim
def test_the_time_is_kept_and_so_is_what_was_found_by_then(stand_in, only, tmp_path, monkeypatch):
    clock = [0.0]

    def monotonic():
        clock[0] += 1.0
        return clock[0]

    for module in (command, checks, timing):
        monkeypatch.setattr(module.time, "monotonic", monotonic)
    status, record = run(stand_in, tmp_path, "--seconds", "30", ALL)
    assert status == 1, "not all that is needed was checked"
    assert "cut" in record["phases"]["in-use"] and "cut" in record["phases"]["times"]
    assert record["layers"] == [] and record["checks"]
    assert clock[0] < 200


@needs_shim
def test_the_report_is_kept_up_to_date(stand_in, only, tmp_path, monkeypatch):
    """A run that is stopped by force loses the case at which it was."""
    path = tmp_path / "gpu-h200-132sm.json"
    problems, missing = [], set()

    class Watching(Here):
        def run(self, tasks, until, lanes=1):
            for task, found in super().run(tasks, until, lanes):
                known = (
                    {c["problem"] for c in json.loads(path.read_text())["checks"]} if path.exists() else set()
                )
                missing.update(set(problems[:-1]) - known)
                problems.append(found.problem)
                yield task, found

    command.main(["--out", str(tmp_path), CHECKS], Watching(stand_in))
    assert len(set(problems)) > 10 and not missing and not list(tmp_path.glob("*.part"))


def test_unknown_suites_and_devices_are_refused(stand_in, capsys):
    refused = (
        (["nosuch"], "no suite nosuch; there are net"),
        (["--device", "tpu", "--one", "gpu.direct"], "device='tpu'"),
        (["--phases", "awkard"], "no phase 'awkard'; did you mean awkward?"),
        (["--quick", "--phases", "times"], "no phase 'times'"),
    )
    for arguments, told in refused:
        with pytest.raises(SystemExit):
            command.main(arguments)
        assert told in capsys.readouterr().err


@needs_shim
def test_the_record_judges_the_cost_models_without_the_gpu(stand_in, only, tmp_path):
    run(stand_in, tmp_path, ALL)
    table = recorded_tables.read_table_file(tmp_path / "gpu-h200-132sm.json")
    assert table.machine == stand_in.figures
    assert {c.id for case in regret.measured_layers([table]) for c in case.candidates} == set(OURS)
    (tmp_path / "small.json").write_text(recorded_tables.compact_text(table))
    small = recorded_tables.read_table_file(tmp_path / "small.json")
    token = device._chosen.set(None)  # no GPU, not even the stand-in
    try:
        found = regret.measured_layers([small])
        assert {m.name for m in model_errors(found)} <= set(OURS)
        shown = CliRunner().invoke(main, ["select", "evaluate", str(tmp_path / "small.json")])
    finally:
        device._chosen.reset(token)
    assert shown.exit_code == 0 and "gpu.direct" in shown.output and "analytic" in shown.output
    with use(OfflineDevice(table.machine)), pytest.raises(Unsupported, match="H200 is not at hand"):
        ca.plan(LAYER.problem, device="cuda", algorithm="gpu.direct")


# --- what is checked -------------------------------------------------------------------------------


def test_every_algorithm_is_forced_on_some_awkward_problem():
    every = [a for a in algorithms("gpu") if list(a.builds())]
    backward = ca.core.problem.DIRECTIONS[1:]
    kinds = (cases.AWKWARD, cases.AWKWARD[::2]), (cases.USED, cases.USED_BACKWARD)
    for texts, of_gradients in kinds:
        found = [*cases.of_texts("", texts), *cases.of_texts("", of_gradients, backward)]
        problems = [case.problem for case in found]
        with use(shim.RecordingDevice()):
            idle = [a.id for a in every if all(a.why_not(p) for p in problems if not p.is_empty)]
        assert not idle
    assert {case.type for case in cases.of_texts("", [*FEW, "n1 c4 w9 k2 s3"])} == set(cases.TYPES)


def test_a_layer_of_each_kind_is_timed_in_turn():
    layers = [layer for found in suites().values() for layer in found]
    ordered = cases.by_importance(layers)
    assert len(ordered) == len(set(ordered))
    kinds = [(case.type, case.problem.layout) for case in ordered]
    wanted = {(t, layout) for t in ("tf32", "float16") for layout in ca.core.problem.LAYOUTS}
    assert wanted <= set(kinds[:8]), "those of tensor cores do not wait for the others"
    first = [case.problem for case in ordered[:8]]
    for is_kind in (cases.is_winograd, cases.is_depthwise, lambda p: max(p.kernel) == 31):
        assert any(map(is_kind, first))
    dense = [c.suite for c in ordered if c.type == "float16" and cases.is_dense(c.problem)]
    assert len(set(dense[:8])) > 3, "nor networks for each other"
    every = {(la.problem.replace(layout=layout), name) for la in layers for layout in ca.core.problem.LAYOUTS
             for name in ("float32", "tf32", "float16")}  # fmt: skip
    timed = {(c.problem.replace(dtype="float32", compute_dtype=None, y_dtype=None), c.type) for c in ordered}
    assert every <= timed


def test_three_layers_of_each_kind_are_telling():
    layers = [layer for found in suites().values() for layer in found]
    found = cases.telling(layers, 3)
    forward = [c for c in found if c.problem.direction == "forward"]
    for is_kind in (cases.is_winograd, cases.is_long, lambda p: cases.is_depthwise(p) and max(p.kernel) > 16):
        strict = [c for c in forward if is_kind(c.problem) and c.problem.layout == "channels_first"]
        assert sum(c.type == "float32" for c in strict) == 3
    assert any(max(c.problem.kernel) == 31 for c in forward)
    for name, layout in {(t, la) for t in ("tf32", "float16") for la in ca.core.problem.LAYOUTS}:
        assert sum((c.type, c.problem.layout) == (name, layout) for c in forward) >= 3
    assert sum(c.problem.direction == "backward_weights" for c in found) == 3
    assert len(found) <= 33


def test_gradients_are_timed_after_what_targets_name_and_checked_before():
    layers = [layer for found in suites().values() for layer in found]
    ordered, gradients = cases.by_importance(layers), cases.gradient_cases(layers)
    assert gradients == [case for case in ordered if case.problem.direction != "forward"]
    begin = ordered.index(gradients[0])
    wanted = (cases.is_winograd, cases.is_depthwise, cases.is_dense)
    assert begin >= sum(any(is_kind(la.problem) for is_kind in wanted) for la in layers)
    assert all(case.problem.direction == "forward" for case in ordered[:begin])
    dense = {c for c in gradients if not cases.is_depthwise(c.problem)}
    assert {case.suite for case in dense} == {"resnet50", "vgg16"}
    kinds = {(c.type, c.problem.layout, c.problem.direction) for c in dense}
    types = [("float32", "channels_first")]
    types += [(t, layout) for t in ("float16", "tf32") for layout in ca.core.problem.LAYOUTS]
    assert kinds == {(*kind, d) for kind in types for d in ca.core.problem.DIRECTIONS[1:]}
    thin = {(c.name, c.problem.direction) for c in gradients if cases.is_depthwise(c.problem)}
    names = [la.name for la in layers if cases.is_depthwise(la.problem)]
    assert thin == {(name, direction) for name in names for direction in ca.core.problem.DIRECTIONS[1:]}


def test_every_algorithm_has_a_regular_and_an_odd_problem_of_each_type():
    with use(shim.RecordingDevice()):
        for algorithm in (a for a in algorithms("gpu") if list(a.builds())):
            found = quick.quick_cases(algorithm)
            kinds = {(c.problem.dtype, c.problem.direction) for c in found}
            assert kinds >= set(product(algorithm.dtypes, algorithm.directions)), algorithm.id
            assert {c.suite for c in found} == {"regular", "odd"}, algorithm.id
            assert len({str(c.problem) for c in found}) == 2 * len(kinds), algorithm.id
            big = [c.problem for c in found if c.problem.flops > 5e10]
            assert not big, algorithm.id
    first, *_, last = quick.gpu_algorithms()
    assert first == "gpu.direct" and last.partition("wgmma_")[2].count(".") == 1, "forms that race come last"


@needs_shim
def test_gradients_stand_apart_from_the_forward_pass(stand_in, only, tmp_path, monkeypatch):
    dense = Layer("vgg16", "conv5", ca.ConvProblem.parse("n1 c16 h4 w5 k16 r3 s3 p1"))
    monkeypatch.setattr(command, "suites", lambda: {"net": (LAYER, dense)})
    status, record = run(stand_in, tmp_path, ALL)
    assert status == 0
    problems = [la["problem"] for la in record["layers"]]
    for direction in ca.core.problem.DIRECTIONS[1:]:
        assert str(dense.problem.replace(direction=direction)) in problems
    assert not any("backward" in text and "c16" not in text for text in problems)
    for la in record["layers"]:
        assert all(0 <= c["error"] <= c["error_bound"] for c in la["candidates"]), la["problem"]
    text = (tmp_path / "gpu-h200-132sm.md").read_text()
    forward, gradients = text.split("| gradient |")
    assert f"`{dense.problem}`" in forward and "backward" not in forward
    assert f"`{dense.problem} backward_data`" in gradients and f"`{dense.problem}`" not in gradients
    assert "| algorithm of a gradient |" in gradients
    checked = {c["problem"] for c in record["checks"] if c["case"].startswith("awkward")}
    assert {d for d in ca.core.problem.DIRECTIONS[1:] if any(d in text for text in checked)} == {
        "backward_data", "backward_weights"
    }  # fmt: skip


@needs_shim
def test_a_stray_output_between_the_places_is_found_and_the_right_one_is_blamed(stand_in, only, monkeypatch):
    monkeypatch.setattr(reference_answers, "EXTENT", replace(reference_answers.EXTENT, flops=0, places=4))
    places = reference_answers.Truth(LAYER.problem).places
    stray = next(
        (0, k, h, w) for k in range(5) for h in range(9) for w in range(8)
        if (0, k, h, w) not in set(map(tuple, places.tolist()))
    )  # fmt: skip
    for plan, wrong in ((DirectPlan, "gpu.direct"), (PatchPlan, "gpu.im2col")):
        right = plan.run

        def run(self, x, w, bias, activation, y, workspace, right=right):
            right(self, x, w, bias, activation, y, workspace)
            y[stray] += 1

        with monkeypatch.context() as patch:
            patch.setattr(plan, "run", run)
            found = [
                r for r in checks.check_algorithms(stand_in, [CASE], False, np.inf) if isinstance(r, Result)
            ]
        assert {r.algorithm for r in found if r.wrong} == {wrong}
        (told,) = [r for r in found if r.wrong]
        assert told.where == stray and told.error > 0.1
    last = Case("net", "conv1", LAYER.problem.replace(layout="channels_last"))
    assert not any(
        r.wrong for r in checks.check_algorithms(stand_in, [last], False, np.inf) if isinstance(r, Result)
    )


@needs_shim
def test_runs_that_differ_are_found(stand_in, only, monkeypatch):
    right, calls = DirectPlan.run, []

    def run(self, x, w, bias, activation, y, workspace):
        right(self, x, w, bias, activation, y, workspace)
        calls.append(1)
        if len(calls) == 3:
            y[0, 0, 0, 0] += 1e-3

    monkeypatch.setattr(DirectPlan, "run", run)
    found = [r for r in checks.behave(stand_in, [CASE], np.inf) if isinstance(r, Result) and r.wrong]
    assert [(r.algorithm, r.what) for r in found] == [("gpu.direct", "the same bits again")]
    assert "differs by up to 1.0" in found[0].failure


@needs_shim
def test_what_was_tried_before_is_left_out(stand_in, only):
    other = Case("net", "other", ca.ConvProblem.parse(FEW[0]))
    steps = [
        s for s in checks.check_algorithms(stand_in, [CASE, other], False, np.inf) if isinstance(s, Begun)
    ]
    begun = list(dict.fromkeys(s.key for s in steps if s.algorithm))
    assert len(begun) == 4 and len(steps) == 2 + 2 * 4  # data; then a plan and its run

    def left(**skip):
        given = Skip(**{name: frozenset(keys) for name, keys in skip.items()})
        steps = checks.check_algorithms(stand_in, [CASE, other], False, np.inf, skip=given)
        return list(dict.fromkeys(s.key for s in steps if isinstance(s, Begun) and s.algorithm))

    assert left(tried=begun[:3]) == begun[3:]
    assert left(barred={begun[0][1]}) == [key for key in begun if key[1] != begun[0][1]]
    assert left(lost={(str(CASE.problem), "")}) == begun[2:]


def test_what_is_timed_beside_ours_is_the_same_convolution(stand_in):
    problem = ca.ConvProblem.parse("n2 c3 w16 k3 s16 p15:0 groups3")
    (name,) = timing._spectral_peers(stand_in, problem)  # torch has no GPU here
    assert name == "cupy.fft"
    x, w = timing.repeating_arrays(problem)
    right = reference(problem, x, w)
    assert np.abs(timing._spectral(stand_in, problem)() - right).max() < 1e-4 * np.abs(right).max()


@needs_shim
def test_one_shape_for_every_kernel(stand_in, monkeypatch, capsys):
    launched = []
    true_run = GpuPlan.__call__
    monkeypatch.setattr(
        GpuPlan, "__call__", lambda self, *a, **k: launched.append(self) or true_run(self, *a, **k)
    )
    assert command.main(["--one", "gpu.im2col"], Here(stand_in)) == 0
    assert capsys.readouterr().out.strip() == "output, patches" and len(launched) == 1
    launched.clear()
    assert command.main(["--one", "gpu.direct.weights"], Here(stand_in)) == 0
    assert capsys.readouterr().out.strip() and {p.problem.direction for p in launched} == {"backward_weights"}


# --- targets ---------------------------------------------------------------------------------------


def layer(text, ours_us, cudnn_us, pick="gpu.winograd.f4x3", others=None, **changes):
    micros = sorted([(ours_us, pick), (cudnn_us, "gpu.cudnn")])
    rows = tuple(Timed(name, (us * 1e-6,), 1e-6, 0, 1e-5) for us, name in micros)
    case = Case("net", text, ca.ConvProblem.parse(text).replace(**changes))
    return LayerTimes(case, pick, rows, others or {})


def test_targets_are_geometric_means_over_their_layers():
    wide = "n8 c64 h56 w56 k64 r3 s3 p1"
    narrow = "n8 c64 h56 w56 k64 r1 s1"
    layers = [
        layer(wide, 10, 40), layer(narrow, 20, 20), layer(wide, 50, 25, layout="channels_last"),
        layer(narrow, 10, 8, dtype="float16", layout="channels_last"),
        layer("n8 c64 h56 w56 k64 r31 s31 p15 groups64", 10, 120, "gpu.depthwise"),
        layer("n8 c512 w4096 k512 s4 p3:0 groups512", 40, 200, "gpu.depthwise"),
        layer(wide, 10, 20, direction="backward_data"),
    ]  # fmt: skip
    signals = [layer("n1 c4 w64 k4 s64 p63:0 groups4", 10, 1, "gpu.fft.whole", {"cupy.fft": 50e-6})]
    calls = [HostTime("p", "gpu.direct", 6e-6, 2e-6), HostTime("p", "gpu.cudnn", 20e-6, None)]
    moved = ca.ConvProblem.parse("n8 c512 w4096 k512 s4 p3:0 groups512").bytes
    ceilings = [Ceiling("copy bytes/s", moved / 38e-6)]
    found = {t.what: t for t in targets.targets_reached(layers, signals, calls, ceilings)}
    strict = found["strict float32, channels first: the pick"]
    assert strict.reached == pytest.approx((4 * 1 * 12 * 5) ** 0.25) and strict.count == 4 and strict.met
    assert "r1 s1 1.00" in strict.least
    once = found["strict float32, channels first: once measured"]
    assert once.reached == strict.reached
    assert found["Winograd, 3x3 with C, K >= 64 and N <= 8"].reached == pytest.approx(4)
    assert found["depthwise 31x31, float32"].reached == pytest.approx(12)
    assert found["float16, channels last: our own"].met is False
    copied = found["depthwise 1-D of at most 5 taps: share of a copy's bandwidth"]
    assert copied.reached == pytest.approx(0.95)
    assert found["long causal 1-D, 1k to 128k, beside cupy.fft"].reached == pytest.approx(5)
    assert found["host time of a call, our own"].met and not found["host time of a call, cuDNN"].met
    assert found["host time of a captured call"].reached == pytest.approx(2)
    assert found["dx of dense layers, channels first, float32: the pick"].reached == pytest.approx(2)
    assert found["dw of dense layers, channels first, float32: the pick"].reached is None
    assert found["tf32, channels first: the pick"] == Reached("tf32, channels first: the pick", 1.3, None, 0)


def test_times_of_wrong_results_do_not_count():
    timed = layer("n8 c64 h56 w56 k64 r3 s3 p1", 10, 40)
    wrong = Result("net/conv", str(timed.case.problem), timed.pick, "y", error=1.0, bound=1e-5)
    for results, reached in (([], 4.0), ([wrong], None)):
        report = Report("", shim.H200, {}, results=results, layers=[timed])
        found = {t.what: t.reached for t in report.targets()}
        assert found["Winograd, 3x3 with C, K >= 64 and N <= 8"] == reached
        assert (timed.pick in report.table().partition("| layer |")[2].partition("| algorithm")[0]) == (
            not results
        )


# --- what it needs ---------------------------------------------------------------------------------

ALONE = """
import sys
from hidden_modules import hide

hide(*sys.argv[2].split(","))
from cuda_shim import device as shim

from convalgos.gpu.device import calibrate
from convalgos.gpu.device import use
from convalgos.tools.gpu_check import cases, compiling, pooling, quick, sweep
from convalgos.tools.gpu_check import timing as times
from convalgos.tools.gpu_check import __main__ as command
from convalgos.tools.gpu_check.worker import Here

cases.AWKWARD = cases.USED = cases.USED_BACKWARD = ("n2 c3 h7 w5 k4 r3 s3 p1",)
quick.ids = lambda: ["gpu.direct", "gpu.im2col"]
cases.types = compiling.types = lambda names: ["float32"]
quick.REGULAR = quick.ODD = quick.USED = quick.AWKWARD = cases.USED
cases.CAUSAL = times.CALLS = sweep.GROUPS = ()
calibrate.COPIED, calibrate.SQUARE = 1 << 12, 16
pooling.WINDOWS = [(what, (2, 3, *(min(n, 12) for n in s[2:])), how) for what, s, how in pooling.WINDOWS]
compiling.builds_to_try = lambda device: []
command.suites = lambda: {"none": ()}
with use(shim.ShimDevice()) as device:
    sys.exit(command.main(["--out", sys.argv[1]], Here(device)))
"""


@needs_shim
def test_numpy_and_cupy_are_enough(tmp_path):
    """Nothing else that the package depends on may be needed on the machine of the GPU."""
    hidden = "numba,llvmlite,scipy,torch,pyfftw,rich,click,platformdirs,mkl,onnx,onnxruntime,ml_dtypes"
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(tmp_path), hidden],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    assert " 0 wrong" in done.stdout
