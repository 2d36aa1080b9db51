"""Shipped figures: of CPUs instead of measuring, of GPUs that are not at hand."""

import json
import subprocess
import sys

import pytest

import convalgos as ca
from convalgos.core import profiles
from convalgos.core.errors import Unsupported
from convalgos.core.machine import Machine, doubts
from convalgos.select import devices

PROBLEM = ca.ConvProblem.parse("n2 c16 h14 w14 k16 r3 s3 p1")


def test_each_says_where_it_is_from():
    assert {"avx512", "avx2", "sm_80", "sm_90"} <= profiles.profiles().keys()
    assert all(len(p["origin"]) > 10 for p in profiles.profiles().values())


@pytest.mark.parametrize("name", ["avx512", "avx2"])
def test_a_profile_stands_in_for_measuring(name, monkeypatch):
    monkeypatch.setenv(profiles.VARIABLE, name)
    one, four = profiles.chosen(1), profiles.chosen(4)
    assert isinstance(one, Machine) and not doubts(one) and not doubts(four)
    assert four.peak_float32 == 4 * one.peak_float32 and four.bandwidth == one.bandwidth
    assert four.peak("int8") == 4 * one.peak("int8") > 4 * one.peak_float32
    assert one.source.startswith(f"profile {name}: ")


@pytest.mark.parametrize(
    ("width", "vendor", "family", "name", "share"),
    [
        (64, "GenuineIntel", "6", "avx512_intel", 1),
        (64, "AuthenticAMD", "26", "avx512", 1),
        (64, "AuthenticAMD", "25", "avx512_zen4", 1),
        (32, "GenuineIntel", "6", "avx2", 1),
        (16, "", "", "avx2", 0.5),
    ],
)
def test_the_nearest_is_taken_where_nothing_was_measured(width, vendor, family, name, share, monkeypatch):
    monkeypatch.setattr(profiles, "vector_bytes", lambda: width)
    monkeypatch.setattr(profiles, "cpuinfo", {"vendor_id": vendor, "cpu family": family}.get)
    found = profiles.nominal(3)
    assert found.is_nominal and f"profile {name};" in found.source and not doubts(found)
    assert found.peak_float32 == profiles.profiles()[name]["peak_float32"] * 3 * share
    assert found.vector_bytes == width and found.threads == 3
    assert found.cycles == pytest.approx(
        found.peak_float32 / width * {"avx512_zen4": 2, "avx512_intel": 1.17}.get(name, 1), rel=0.1
    )


def test_parts_of_lines_are_waited_for_where_l2_gives_half_of_one_in_a_cycle(monkeypatch):
    waits = {}
    for name in ("avx512", "avx512_zen4", "avx512_intel", "avx2"):
        monkeypatch.setenv(profiles.VARIABLE, name)
        waits[name] = profiles.chosen(2).line_waits
    assert 0 <= waits.pop("avx512") < 0.2
    assert set(waits.values()) == {1.0}  # of the last one nobody measured the clock


def test_none_is_taken_where_none_is_named(monkeypatch):
    monkeypatch.delenv(profiles.VARIABLE, raising=False)
    assert profiles.chosen(2) is None
    monkeypatch.setenv(profiles.VARIABLE, "sm_90")
    with pytest.raises(ValueError, match="CONVALGOS_PROFILE='sm_90' must be one of avx512, avx2"):
        profiles.chosen(2)


def test_nothing_is_measured_with_a_profile(tmp_path, monkeypatch):
    monkeypatch.setenv(profiles.VARIABLE, "avx2")
    monkeypatch.setenv("CONVALGOS_CACHE_DIR", str(tmp_path))
    code = (
        "import json, convalgos as ca\n"
        f"found = ca.explain(ca.ConvProblem.parse({str(PROBLEM)!r}))\n"
        "print(json.dumps([ca.select.current_machine().source, found.candidates[0].id]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    source, first = json.loads(done.stdout)
    assert source.startswith("profile avx2") and first in {a.id for a in ca.algorithms()}
    assert not (tmp_path / "machine").exists()


@pytest.mark.parametrize("name", profiles.of_gpus())
def test_a_gpu_that_is_not_at_hand_is_explained_but_runs_nothing(name, wisdom):
    ranking = ca.explain(PROBLEM, device=name)
    assert ranking.candidates and all(c.id.startswith("gpu.") for c in ranking.candidates)
    assert devices.figures(name).source.startswith(f"profile {name}: the data sheet")
    for run in (
        lambda: ca.plan(PROBLEM, name),
        lambda: ca.plan(PROBLEM, name, effort="measure"),
        lambda: ca.find(PROBLEM, device=name),
    ):
        with pytest.raises(Unsupported, match=f"device='{name}' is known by its figures only"):
            run()
    assert not wisdom.exists()
