"""Gradients are problems like any other: for every command that takes problems, and for what it keeps."""

import json

import numpy as np
import pytest
from command_line import run

import convalgos as ca
from convalgos.select import devices, registry
from convalgos.tools.evaluate import recorded_tables

LAYER = ca.ConvProblem.parse("n1 c4 h9 w9 k6 r3 s3 p1 stride2")
GRADIENTS = [LAYER.replace(direction=d) for d in ca.core.problem.DIRECTIONS[1:]]


@pytest.mark.parametrize("problem", GRADIENTS, ids=lambda p: p.direction)
def test_text_and_back(problem):
    assert str(problem) == f"{LAYER} {problem.direction}"
    assert ca.ConvProblem.parse(str(problem)) == problem
    assert ca.ConvProblem.parse(f"{problem.direction} channels_last {LAYER}").direction == problem.direction


def test_explain_tells_what_is_computed():
    data, weights = (run("explain", problem).stdout for problem in GRADIENTS)
    assert "\n  dx (1, 4, 9, 9), " in data and " forward GEMM view 25 x 6 x 36 " in data
    assert "\n  dw (6, 4, 3, 3), " in weights
    assert "cpu.winograd.f4x3        no: computes no gradient of the filter" in weights
    assert "cpu.direct.weights" not in data and "no: for other directions or types only" in data
    assert "\n  y (1, 6, 5, 5), " in run("explain", LAYER).stdout


@pytest.mark.parametrize("problem", GRADIENTS, ids=lambda p: p.direction)
def test_what_is_tuned_is_shown_and_chosen_and_forgotten(problem, wisdom):
    race = ["--effort", "measure"]
    assert "1 of 1 problems tuned" in run("tune", LAYER, "--direction", problem.direction, *race).stdout
    known = devices.store().lookup(problem)
    assert known and not devices.store().lookup(LAYER)
    assert all(m.failure is None for m in known.values())
    assert "0 of 0 problems tuned, 1 known before" in run("tune", problem, *race).stdout
    assert f"{problem} ({len(known)} candidates)" in run("wisdom", "show").stdout
    assert "measured time" in run("explain", problem).stdout
    assert ca.plan(problem, on_miss="error").algorithm in known
    assert str(problem) in run("wisdom", "verify", "--rounds", "1").stdout
    assert f"forgot {len(known)} candidates" in run("wisdom", "forget", problem).stdout


def test_what_a_training_program_runs_is_captured_benched_and_trained(tmp_path):
    x, w = np.ones(LAYER.x_shape, np.float32), np.ones(LAYER.w_shape, np.float32)
    with ca.capture() as problems:
        y = ca.conv(x, w, padding=1, stride=2)
        ca.conv_backward_data(y, w, x.shape, padding=1, stride=2)
        ca.conv_backward_weights(x, y, w.shape, padding=1, stride=2)
        ca.conv_transpose(y, w, padding=1, stride=2)
    assert problems == {LAYER: 1, GRADIENTS[0]: 2, GRADIENTS[1]: 1}
    captured, table = tmp_path / "captured.txt", tmp_path / "table.json"
    captured.write_text("".join(f"{count} {problem}\n" for problem, count in problems.items()))
    quick = ["--peers", "none", "--rounds", "1", "--json", table]
    run("bench", captured, *quick, "--algorithm", "cpu.reference", "--algorithm", "cpu.direct.weights")
    layers = recorded_tables.read_table_file(table).layers
    assert {layer.problem for layer in layers} == set(problems)
    assert all("cpu.reference" in layer.times for layer in layers)
    judged = run("select", "evaluate", table).stdout
    assert "analytic" in judged and "captured_1" in judged and "/captured_1" not in judged
    run("training", captured, *quick)
    (trained,) = json.loads(table.read_text())["layers"]
    assert trained["problem"] == str(LAYER) and len(trained["passes"]) == 3


def test_find_times_the_candidates_of_a_gradient(monkeypatch):
    some = tuple(a for a in ca.algorithms() if a.id in ("cpu.reference", "cpu.direct", "cpu.direct.weights"))
    monkeypatch.setattr(registry, "algorithms", lambda device=None: some)
    for problem, known in zip(GRADIENTS, ("cpu.direct", "cpu.direct.weights"), strict=True):
        text = run("find", problem, "--rounds", "1").stdout
        assert text.startswith(f"{problem}\n") and "FAILED" not in text
        timed = {line.split()[0] for line in text.splitlines()[2:] if " no: " not in line}
        assert timed == {known, "cpu.reference"}
