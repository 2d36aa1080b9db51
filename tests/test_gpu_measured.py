"""Constants of the cost models that a check of a GPU found: kept, believed, shown, set aside when damaged."""

import json
from dataclasses import asdict, replace

import pytest
from command_line import run
from cuda_shim import device as shim

from convalgos.core import profiles
from convalgos.core.problem import ConvProblem
from convalgos.gpu import device
from convalgos.gpu.device import measured
from convalgos.gpu.fft_four_step import FourStepFft
from convalgos.gpu.implicit_gemm_wgmma import Wgmma
from convalgos.tools.bench.recorded_machine import read_machine
from convalgos.tools.report import model_constants

DENSE = ConvProblem.parse("n8 c256 h56 w56 k256 r3 s3 p1 channels_last float16")
LONG = ConvProblem.parse("n4 c64 w131072 k64 s131072 p131071:0 groups64")
FOUND = {
    "vendor/cost.LOADS": 80.0,
    "implicit_gemm_wgmma.REACHED": 0.34,
    "spectral/block_fft.ISSUED": 0.25,
    "device/machine.LAUNCH": 5e-6,
}
DAY, EFFICIENCY = "2026-11-30", shim.H200.efficiency


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CONVALGOS_CACHE_DIR", str(tmp_path))


def test_what_was_measured_is_kept_for_gpus_of_the_kind_and_changes_costs():
    before = shim.H200
    assert measured.with_saved_constants(before) is before
    measured.save_constants(measured.with_constants(before, FOUND, DAY))
    found = measured.with_saved_constants(before)
    assert dict(found.measured) == FOUND and found.measured_on == DAY and found.launch == 5e-6
    slower = replace(before, measured=(("implicit_gemm_wgmma.REACHED", 0.34),))
    assert Wgmma("half").cost(DENSE, slower) > 1.5 * Wgmma("half").cost(DENSE, before)
    fewer = replace(before, measured=(("spectral/block_fft.ISSUED", 0.1), ("fft_four_step.CACHED", 0.05)))
    with device.use(shim.ShimDevice()):
        assert FourStepFft().cost(LONG, fewer) > 1.5 * FourStepFft().cost(LONG, before)
    tuned = replace(before, efficiency=0.8 * before.efficiency)  # measured later: no kernel is slower for it
    rate = found.constant("implicit_gemm_wgmma.REACHED", 0.0) * found.tensor_peak("float16")
    after = measured.with_saved_constants(tuned)
    assert after.constant("implicit_gemm_wgmma.REACHED", 0.0) * after.tensor_peak("float16") == pytest.approx(
        rate
    )
    assert (
        after.constant("spectral/block_fft.ISSUED", 0.0) == pytest.approx(0.25 / 0.8) and after.launch == 5e-6
    )
    assert after.constant("vendor/cost.LOADS", 0.0) == pytest.approx(80 * 0.8)
    other = replace(before, capability=(9, 1))
    assert measured.with_saved_constants(other) is other


def test_what_was_kept_under_old_names_of_files_is_read():
    old = {
        "machine.LAUNCH": 5e-6, "wgmma.REACHED": 0.34, "wgmma.L2_BYTES": 40.0, "wgmma.FILL": 6.0,
        "cudnn_cost.LOADS": 80.0, "cudnn_cost.FILL": 600.0, "fft_chain.ISSUED": 0.25, "fft_steps.CACHED": 0.3,
    }  # fmt: skip
    path = measured.save_constants(measured.with_constants(shim.H200, FOUND, DAY))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"constants": old}))
    found = measured.with_saved_constants(shim.H200)
    assert [*dict(found.measured).values()] == [old[name] for name in sorted(old, key=measured._today)]
    assert dict(found.measured).keys() == measured.LIMITS.keys() and found.launch == 5e-6


def test_constants_are_named_by_the_files_they_stand_in():
    shown = {f"{c.file} {name}" for c in model_constants.constants() for name in c.name.split(", ")}
    for name in measured.LIMITS:
        file, _, constant = name.rpartition(".")
        assert f"gpu/{file}.py {constant}" in shown


@pytest.mark.parametrize(
    "damage",
    [
        {"format": 0},
        {"name": "another GPU"},
        {"capability": [8, 0]},
        {"constants": {"implicit_gemm_wgmma.REACHED": float("nan")}},
        {"constants": {"implicit_gemm_wgmma.REACHED": 3.0}},
        {"constants": {"implicit_gemm_wgmma.REACHED": True}},
        {"constants": {"implicit_gemm_wgmma.TILES": 1.0}},
        {"constants": [1.0]},
        {"efficiency": 0},
        {"efficiency": None},
        {"date": "yesterday"},
        {"date": 20261130},
    ],
    ids=str,
)
def test_a_damaged_file_is_set_aside_with_a_warning(damage):
    path = measured.save_constants(measured.with_constants(shim.H200, FOUND, DAY))
    path.write_text(json.dumps(json.loads(path.read_text()) | damage))
    with pytest.warns(RuntimeWarning, match="was damaged"):
        assert measured.with_saved_constants(shim.H200) is shim.H200
    assert not path.exists() and path.with_name(path.name + ".damaged").exists()


def test_a_profile_tells_gpus_of_its_name_what_was_measured(monkeypatch):
    told = profiles.profiles() | {
        "sm_90": profiles.profiles()["sm_90"]
        | {"measured": {"date": DAY, "efficiency": EFFICIENCY, "constants": FOUND}}
    }
    monkeypatch.setattr(profiles, "profiles", lambda: told)
    device._of_profile.cache_clear()
    try:
        assert dict(device.named("sm_90").figures.measured) == FOUND
    finally:
        device._of_profile.cache_clear()
    here = replace(shim.H200, name="NVIDIA H200")
    assert dict(measured.with_saved_constants(here).measured) == FOUND
    assert (
        measured.with_saved_constants(shim.A100).measured
        == measured.with_saved_constants(replace(here, name="NVIDIA H100")).measured
        == ()
    )
    measured.save_constants(measured.with_constants(here, {"implicit_gemm_wgmma.FILL": 6.0}, DAY))
    assert dict(measured.with_saved_constants(here).measured) == {"implicit_gemm_wgmma.FILL": 6.0}


def test_info_tells_estimates_from_what_was_measured():
    figures = measured.with_constants(shim.H200, FOUND, DAY)
    shown = {f"{c.file} {c.name}": c for c in model_constants.constants(figures)}
    assert shown["gpu/implicit_gemm_wgmma.py REACHED"].value == "0.34"
    assert shown["gpu/implicit_gemm_wgmma.py REACHED"].comment.startswith(
        f"measured by gpu-check on {DAY}, before 0.68: "
    )
    assert "measured" not in shown["gpu/implicit_gemm_wgmma.py FILL"].comment
    assert [c.name for c in model_constants.constants()] == [c.name for c in shown.values()]
    with device.use(shim.ShimDevice(figures)):
        told = json.loads(run("info", "--json").stdout)["gpu"]
        text = run("info", "--constants").stdout
    assert (
        told["implicit_gemm_wgmma.REACHED"] == 0.34 and told["measured_on"] == DAY and "measured" not in told
    )
    assert f"measured by gpu-check on {DAY}" in " ".join(text.split())


def test_tables_of_a_gpu_are_read_with_its_constants():
    figures = measured.with_constants(shim.H200, FOUND, DAY)
    assert read_machine(json.loads(json.dumps(asdict(figures)))) == figures
    plain = json.loads(json.dumps(asdict(shim.H200)))
    assert read_machine(plain) == shim.H200
    del plain["measured"], plain["measured_on"]  # a table from before there were any
    assert read_machine(plain) == shim.H200
    with pytest.raises(ValueError, match=r"implicit_gemm_wgmma\.REACHED"):
        read_machine(plain | {"measured": [["implicit_gemm_wgmma.REACHED", -1.0]], "measured_on": DAY})
