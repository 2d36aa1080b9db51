"""A fixed sample of random layers by every candidate and by auto, and what runs many more: tests/fuzz.py."""

import json
from collections import Counter

import fuzz
import pytest
from helpers import why_not_here
from random_layers import SURROUNDINGS, run_batch

from convalgos.core.problem import DIRECTIONS
from convalgos.select import algorithms_on

RARE = {  # of kernels that random layers hardly have: large odd ones, 1x1 alone, long rows of single channels
    "cpu.winograd.nested.f6x7", "cpu.winograd.nested.f6x9", "cpu.strassen.s2", "cpu.strassen.s4",
    "cpu.fft_lines", "cpu.fft_planes",
    "cpu.winograd.data.f2x5", "cpu.winograd.data.f4x5",  # strided 5x5 layers, of tests/test_winograd_data
    "cpu.direct.phases.filled",  # transposed layers with dilations along rows, of tests/test_direct_phases
    "cpu.direct.outer",  # linear layers; tests/test_direct_outer
    "cpu.direct.channels",  # 1x1 layers without padding; tests/test_direct_channels
    "cpu.depthwise.data",  # depthwise images with stride 2; tests/test_depthwise_data
    "cpu.polyphase",  # where costs, which differ by machine, send phases to several algorithms
}  # fmt: skip
SEED, PROBLEMS = 30, 5  # whose boxes are of all kinds, with AVX2, AVX-512 and with matrix tiles


def test_random_layers():
    """On one and many threads, with small and large caches, in poisoned memory, until all ways were taken."""
    checked, ways = Counter(), set()
    for batches, batch in enumerate((0, 2, 4, 5, 1, 3), 1):
        found = run_batch(SEED, batch, PROBLEMS, timeout=1500)  # with all kernels to compile
        assert not found["failures"], json.dumps(found["failures"], indent=1)
        checked += Counter((direction, name) for direction, name, _ in found["results"])
        ways |= {tuple(way) for way in found["ways"]}
        assert all(checked[direction, "auto"] == PROBLEMS * batches for direction in DIRECTIONS)
        if batches > 3 and not unseen(checked, ways):
            break
    assert not unseen(checked, ways) and len(SURROUNDINGS) == 6


def unseen(checked, ways):
    """Algorithms that are installed and served no problem, and cuts into boxes that were not taken."""
    missing = []
    for direction in DIRECTIONS:
        installed = {
            a.id for a in algorithms_on("cpu", direction) if a.why_not_facing(direction) is None
            and a.id != "cpu.reference" and "float32" in a.dtypes and why_not_here(a.id) is None
        } - RARE  # fmt: skip
        missing += sorted(installed - {name for of, name in checked if of == direction})
    shared = {"Winograd": (False, True), "FftTiles": (False, True), "WinogradWeights": (True,)}
    for kind, team in ((of, team) for of, teams in shared.items() for team in teams):
        cuts = {way[2] for way in ways if way[:2] == (kind, team)}
        sizes = [any(mark in cut for cut in cuts) for mark in "=<"]  # boxes of one size, and of two
        rare = team and kind != "WinogradWeights"  # picked where it is the faster one
        if "----" not in cuts or not (any if rare else all)(sizes):  # beside one box
            missing.append((kind, team, sizes))
    if not any("<" in way[2][2:] and way[3] for way in ways if way[0] == "WinogradWeights"):
        missing.append("boxes of two sizes that share their sums")
    return missing


def test_a_process_that_ends_early_is_a_failure():
    found = run_batch(SEED, 0, 1, timeout=0.01)
    assert found["results"] == []
    (failure,) = found["failures"]
    assert failure["what"].startswith("the process ended after") and failure["batch"] == 0


def test_a_long_run_goes_on_where_it_ended(tmp_path, monkeypatch, capsys):
    ran = []

    def some(seed, batch, problems, without):
        ran.append(batch)
        failures = [{"problem": "n1 c1 w1 k1 s1", "seed": seed, "batch": batch}] * (batch == 2)
        return {"results": [["forward", "auto", 0.1 * batch]] * 4, "failures": failures, "seconds": 1.0}

    monkeypatch.setattr(fuzz, "run_batch", some)
    out = tmp_path / "found.json"
    assert fuzz.main(["--checks", "5", "--seed", "7", "--out", str(out)]) == 0
    assert fuzz.main(["--checks", "10", "--seed", "7", "--out", str(out), "--jobs", "2"]) == 1
    record = json.loads(out.read_text())
    assert ran[:2] == [0, 1] and sorted(ran[2:]) == [2, 3]
    assert (record["batches"], record["checks"], record["seconds"]) == (4, 17, 4.0)
    assert record["by_direction"] == {"forward": {"auto": {"checks": 16, "worst": pytest.approx(0.3)}}}
    assert [f["batch"] for f in record["failures"]] == [2]
    assert "17 of 10 checks, 1 failed" in capsys.readouterr().out
    assert fuzz.main(["--checks", "99", "--seed", "8", "--out", str(out)]) == 2
    assert "has seed 7, not 8" in capsys.readouterr().err
