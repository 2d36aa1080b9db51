"""The sweep of a check of a GPU: constants from times, and what is kept of them, on the stand-in."""

import json
import time
from dataclasses import replace

import numpy as np
import pytest
from cuda_shim import device as shim

from convalgos.gpu import fft_fused
from convalgos.gpu.device import measured, use
from convalgos.gpu.device.offline import OfflineDevice
from convalgos.select.measure import backends
from convalgos.tools.gpu_check import sweep
from convalgos.tools.gpu_check.fit import fit
from convalgos.tools.gpu_check.results import OutOfTime, Result
from convalgos.tools.gpu_check.steps import Begun

needs_shim = pytest.mark.skipif(shim.missing() is not None, reason=str(shim.missing()))
TRUE = {
    "vendor/cost.LOADS": 90.0,
    "vendor/cost.FILL": 600.0,
    "spectral/block_fft.ISSUED": 0.9,
    "fft_four_step.CACHED": 0.6,
    "implicit_gemm_wgmma.REACHED": 0.55,
    "implicit_gemm_wgmma.L2_BYTES": 40.0,
    "implicit_gemm_wgmma.FILL": 9.0,
}
LIMITS = {"a": (0.01, 100.0), "b": (0.01, 100.0)}


@pytest.fixture
def device(tmp_path, monkeypatch):
    monkeypatch.setenv("CONVALGOS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sweep.Cudnn, "why_not", lambda algorithm, problem: None)
    with use(OfflineDevice(shim.H200)) as chosen:
        yield chosen


def timed(group, noise=0.0, outliers=0.0):
    """Every trial of a group in the time that the model has for `TRUE`, more or less."""
    rng = np.random.default_rng(0)
    real = replace(shim.H200, measured=tuple((n, v) for n, v in TRUE.items() if n in group.estimates))
    return [
        (t, t.predicted(real) * np.exp(noise * rng.standard_normal()) * (3 if rng.random() < outliers else 1))
        for t in group.trials(shim.H200)
    ]


# --- fitting ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("noise", "outliers", "near"), [(0, 0, 1e-3), (0.03, 0, 0.08), (0.05, 0.1, 0.12)])
@pytest.mark.parametrize("group", sweep.GROUPS, ids=lambda group: group.name)
def test_constants_are_recovered_from_times_with_noise_and_outliers(device, group, noise, outliers, near):
    found = sweep.solved(group, timed(group, noise, outliers), shim.H200)
    for name in group.estimates:
        if name == "fft_four_step.CACHED" and noise:  # few times depend on it, and only a little
            assert name in found.kept or found.values[name] == pytest.approx(TRUE[name], rel=0.3)
        else:
            assert found.values[name] == pytest.approx(TRUE[name], rel=near)


@pytest.mark.parametrize("group", sweep.GROUPS, ids=lambda group: group.name)
def test_of_disturbed_or_few_times_nothing_is_believed(device, group):
    found = sweep.solved(group, timed(group, noise=0.4), shim.H200)
    assert found.values == {} and found.kept.keys() == group.estimates.keys()
    assert all("off by a factor of" in reason for reason in found.kept.values())
    few = sweep.solved(group, timed(group)[:7], shim.H200)
    assert few.values == {} and set(few.kept.values()) == {"only 7 times"}


def test_what_no_time_tells_stays_and_the_rest_is_found():
    n = np.arange(1.0, 21)
    found = fit(lambda v: v["a"] * n, 3 * n, {"a": 1.0, "b": 1.0}, LIMITS)
    assert found.values == pytest.approx({"a": 3.0}, rel=1e-3) and found.kept == {"b": "no time tells it"}
    found = fit(lambda v: v["a"] * v["b"] * n, 3 * n, {"a": 1.0, "b": 1.0}, LIMITS)  # only their product
    assert len(found.values) == 1 and len(found.kept) == 1
    assert next(iter(found.values.values())) == pytest.approx(3.0, rel=1e-3)


def test_a_constant_at_its_limit_is_not_believed():
    n = np.arange(1.0, 21)
    found = fit(lambda v: v["a"] * n + v["b"], 3 * n + 200, {"a": 1.0, "b": 1.0}, LIMITS)
    assert "b" not in found.values
    found = fit(lambda v: v["a"] * n + v["b"], 3 * n + 20, {"a": 1.0, "b": 1.0}, LIMITS)
    assert found.values == pytest.approx({"a": 3.0, "b": 20.0}, rel=1e-2)


def results(found):
    return [r for r in found if isinstance(r, Result)]


# --- what is kept ----------------------------------------------------------------------------------


def answers(monkeypatch, **more):
    """The time of every trial as `timed` has it; of those whose algorithm is named, an exception."""
    known = {(str(t.problem), t.predicted(shim.H200)): s for g in sweep.GROUPS for t, s in timed(g, 0.03)}

    def seconds(device, trial):
        if trial.algorithm in more:
            raise more[trial.algorithm]
        return known[str(trial.problem), trial.predicted(shim.H200)]

    monkeypatch.setattr(sweep, "_seconds", seconds)
    monkeypatch.setattr(sweep, "_launches", lambda *given: iter(()))


def test_constants_are_kept_for_later_processes_and_beside_the_report(device, tmp_path, monkeypatch):
    answers(monkeypatch)
    told = [*sweep.sweep(device, until=time.monotonic() + 60, folder=tmp_path)]
    kept = dict(measured.with_saved_constants(shim.H200).measured)
    assert kept.keys() >= TRUE.keys() - {"fft_four_step.CACHED"} and dict(device.figures.measured) == kept
    assert all(value == pytest.approx(TRUE[name], rel=0.3) for name, value in kept.items())
    assert device.figures.measured_on == measured.with_saved_constants(shim.H200).measured_on
    (copy,) = tmp_path.glob("gpu-h200-132sm-sm90-constants.json")
    assert json.loads(copy.read_text())["constants"] == kept
    lines = [r.what for r in results(told)]
    assert len(lines) == 3 and lines[2].startswith("constants of wgmma from 72 times, off by a factor of 1.0")
    assert '"implicit_gemm_wgmma.REACHED": 0.5' in lines[2] and "constants of cuDNN from 18 times" in lines[0]


def test_what_cannot_be_told_this_time_stays_what_it_was(device, tmp_path, monkeypatch):
    device.figures = measured.with_constants(
        shim.H200, {"implicit_gemm_wgmma.FILL": 7.0, "device/machine.LAUNCH": 4e-6}, "2026-11-30"
    )
    monkeypatch.setattr(sweep, "_launches", lambda *given: iter(()))
    monkeypatch.setattr(sweep, "_seconds", lambda device, trial: 1e-3)
    told = [
        r for r in sweep.sweep(device, until=time.monotonic() + 60, folder=tmp_path) if isinstance(r, Result)
    ]
    assert "implicit_gemm_wgmma.FILL stays 7: " in told[-1].what and not any(r.wrong for r in told)
    assert dict(device.figures.measured) == {"implicit_gemm_wgmma.FILL": 7.0, "device/machine.LAUNCH": 4e-6}
    assert not (tmp_path / "cache").exists(), "nothing was found"


def test_a_kernel_that_fails_is_told_and_the_others_go_on(device, monkeypatch):
    answers(
        monkeypatch,
        **{"gpu.implicit_gemm.wgmma_tf32": RuntimeError("illegal"), "gpu.fft.steps": MemoryError()},
    )
    told = [r for r in sweep.sweep(device, until=time.monotonic() + 60) if isinstance(r, Result)]
    assert {r.algorithm for r in told if r.wrong} == {"gpu.implicit_gemm.wgmma_tf32"}
    assert dict(device.figures.measured).keys() >= {
        "implicit_gemm_wgmma.REACHED",
        "spectral/block_fft.ISSUED",
    }
    assert "from 36 times" in told[-1].what


def test_what_was_tried_or_is_barred_is_left_out_and_time_is_kept(device, monkeypatch):
    answers(monkeypatch)
    pairs = {b.key for b in sweep.sweep(device, until=time.monotonic() + 60) if isinstance(b, Begun)}
    skip = {(problem, algorithm) for problem, algorithm in pairs if "wgmma" in algorithm}
    again = [b for b in sweep.sweep(device, skip=skip, until=time.monotonic() + 60) if isinstance(b, Begun)]
    assert {b.key for b in again} == pairs - skip
    cut = next(sweep.sweep(device, until=0.0))
    assert isinstance(cut, OutOfTime) and cut.left > 10


@needs_shim
def test_every_kind_of_trial_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("CONVALGOS_CACHE_DIR", str(shim.cache_folder()))
    monkeypatch.setattr(measured, "save_constants", lambda figures: tmp_path / "constants.json")
    monkeypatch.setattr(sweep, "DENSE", ("n1 c64 h4 w4 k8 r3 s3 p1 channels_last float16",))
    monkeypatch.setattr(sweep, "SHORT", ("n1 c2 w64 k2 s64 p63:0 groups2",))
    monkeypatch.setattr(sweep, "LONG", ())
    monkeypatch.setattr(sweep, "LAUNCHES", (1, 3))
    monkeypatch.setattr(backends, "BURST", 0.0)
    monkeypatch.setattr(sweep, "PLAIN", sweep.PLAIN._replace(tiles=sweep.PLAIN.tiles[4:]))
    monkeypatch.setattr(fft_fused, "CHAINS", fft_fused.CHAINS[:1])
    chosen = shim.ShimDevice()

    launches, function = [], chosen.function

    def counting(*given):
        run = function(*given)
        return lambda *arguments, **more: (launches.append(given), run(*arguments, **more))

    def elapsed(work):
        launches.clear()
        work()
        return 4e-6 * len(launches)

    monkeypatch.setattr(chosen, "function", counting)
    monkeypatch.setattr(chosen, "elapsed", elapsed)
    with use(chosen):
        found = [*sweep.sweep(chosen, until=time.monotonic() + 60)]
    lines = [r.what for r in results(found)]
    assert not any(r.wrong for r in results(found))
    assert (
        lines[0].startswith("constants of a launch from 7 times")
        and '"device/machine.LAUNCH": 4e-06' in lines[0]
    )
    assert chosen.figures.launch == pytest.approx(4e-6)
    assert lines[1].startswith("constants of the FFTs") and lines[2].startswith("constants of wgmma")
    assert {b.algorithm for b in found if isinstance(b, Begun)} == {
        "gpu.direct",
        "gpu.fft.fused",
        "gpu.implicit_gemm.wgmma_half",
    }
