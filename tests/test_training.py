"""Whole training steps: what is timed and checked, what is shown, and the command."""

import io
import json

import numpy as np
import pytest
from command_line import run
from rich.console import Console

from convalgos import ConvProblem
from convalgos.api import planning
from convalgos.core.arrays import host_array
from convalgos.core.errors import Unsupported, missing
from convalgos.core.machine import Machine
from convalgos.core.problem import DIRECTIONS
from convalgos.cpu.reference import ALGORITHMS, Reference, answer
from convalgos.select import choose, registry
from convalgos.select.measure import accuracy, timing
from convalgos.select.measure.timing import Timing
from convalgos.tools.bench import peers, results_file, training
from convalgos.tools.bench import results as bench_results
from convalgos.tools.bench.peer import Peer
from convalgos.tools.bench.peers import PEERS
from convalgos.tools.bench.results import PeerResult
from convalgos.tools.bench.suites import COLUMNS, Layer, suites
from convalgos.tools.bench.training import PassResult, PeerStep, StepResult
from convalgos.tools.report import training as report_training

SMALL = ConvProblem.parse("n2 c4 h9 w8 k6 r3 s3 p1")
MACHINE = Machine("a machine", 2, 64, 48 << 10, 1 << 20, 32 << 20, 5e11, 2.5e11, 4e10, 2e11, 3e-6)
TORCH = [peer for peer in PEERS if peer.package == "torch"]
needs_torch = pytest.mark.skipif(bool(missing("torch")), reason="torch is not installed (CI installs it)")


@pytest.fixture
def untimed(monkeypatch):
    """Every call runs once and takes a second for each letter of its name."""
    order = []

    def interleave(calls, *, rounds, **more):
        for call in calls.values():
            call()
        order.extend(calls)
        return {name: Timing((float(len(name)),) * rounds) for name in calls}

    monkeypatch.setattr(timing, "interleave", interleave)
    return order


# --- what is measured ------------------------------------------------------------------------


def gradients_of(problem, x, w, dy, threads):
    """A peer's call of both gradients, by the reference."""
    data, weights = (problem.replace(direction=d) for d in DIRECTIONS[1:])
    return lambda: (answer(data, dy, w), answer(weights, x, dy))


@pytest.mark.parametrize("text", ["", "channels_last", "groups2", "channels_last convolution", "float64"])
def test_three_passes_and_a_peer_are_checked_and_timed_together(untimed, text):
    problem = ConvProblem.parse(f"{SMALL} {text}")
    peer = Peer("them", lambda p, x, w, threads: lambda: answer(p, x, w), backward=gradients_of)
    found = training.run_step(Layer("net", "one", problem, 2), [peer], rounds=2)
    assert untimed == [*DIRECTIONS, *(() if "convolution" in text else ("them forward", "them backward"))]
    assert [p.direction for p in found.passes] == list(DIRECTIONS)
    for p in found.passes:
        assert p.algorithm and 0 <= p.error <= p.error_bound and not p.wrong
        assert p.timing.samples == (len(p.direction),) * 2
        changing = planning.plan(problem.replace(direction=p.direction), weights_constant=False)
        assert p.algorithm == changing.algorithm
    assert found.seconds == sum(map(len, DIRECTIONS)) and found.spread == 0
    (step,) = found.peers
    if "convolution" in text:
        assert step.backward.why_not == "has no gradient of a flipped filter" and found.ratio("them") is None
    else:
        assert step.forward.error < 1e-12 and step.backward.error < 1e-12
        assert found.ratio("them") == (12 + 13) / found.seconds
    assert found.complaints() == []


def test_preparing_the_filter_is_in_every_run_and_in_the_choice(untimed, monkeypatch):
    asked, prepared = [], []
    rank, explained = choose.rank, choose.explained

    def ranked(problem, device, constraints):
        asked.append(constraints)
        return rank(problem, device, constraints)

    def planned(ranking, device):
        plan = explained(ranking, device)
        true = plan.prepare_filter
        plan.prepare_filter = lambda w: prepared.append(ranking.problem.direction) or true(w)
        return plan

    monkeypatch.setattr(choose, "rank", ranked)
    monkeypatch.setattr(choose, "explained", planned)
    training.run_step(Layer("", "one", SMALL))
    assert [c.weights_constant for c in asked] == [False] * 3
    assert prepared == [*DIRECTIONS, *DIRECTIONS]  # once to be checked, once when it was timed


class Odd(Reference):
    """Claims to be faster than all others."""

    def cost(self, problem, machine):
        return 0.0


class Wrong(Odd):
    family = "cpu.wrong"

    def error_bound(self, problem):
        return 1e-30


class Broken(Odd):
    family = "cpu.broken"

    def plan(self, problem):
        raise RuntimeError("it broke\nbadly")


@pytest.mark.parametrize("odd", [Wrong(), Broken()])
def test_a_wrong_or_failing_pass_is_named_and_the_others_go_on(untimed, monkeypatch, tmp_path, odd):
    monkeypatch.setattr(registry, "algorithms", lambda device=None: (*ALGORITHMS, odd))
    monkeypatch.setattr(
        type(odd), "why_not", lambda self, p: None if p.direction == "backward_data" else "no"
    )
    found = training.run_step(Layer("", "one", SMALL))
    forward, data, weights = found.passes
    assert forward.algorithm == weights.algorithm == "cpu.reference" and not (forward.wrong or weights.wrong)
    (told,) = found.complaints()
    if isinstance(odd, Wrong):
        assert data.wrong and told.startswith("one backward_data: cpu.wrong has error")
        assert found.seconds is not None
    else:
        assert data.failed and told == "one backward_data: cpu.broken failed: RuntimeError: it broke"
        assert found.seconds is None and found.as_json()["passes"][1]["error"] is None
    path = tmp_path / "out.json"
    results = bench_results.Results("convalgos training", MACHINE, {"python": "3"}, layers=[found])
    path.write_text(json.dumps(bench_results.as_json(results), allow_nan=False))
    assert results_file.read_results(path).complaints() == [told]


def test_what_nothing_serves_is_no_failure(untimed):
    found = training.run_step(Layer("", "one", SMALL.replace(compute_dtype="tf32")), TORCH)
    assert [p.algorithm for p in found.passes] == [None] * 3 and found.peers == ()
    assert "no algorithm can serve" in found.passes[0].why_not and not found.complaints()
    assert found.seconds is found.spread is None and untimed == []


def test_a_peer_may_fail_or_be_off(untimed):
    def broken(problem, *arrays):
        raise RuntimeError("no such kernel")

    def off(problem, x, w, dy, threads):
        return lambda: (np.zeros(problem.x_shape), np.zeros(problem.w_shape))

    def forward(problem, x, w, threads):
        return lambda: answer(problem, x, w)

    others = [Peer("broken", broken, backward=gradients_of), Peer("off", forward, backward=off)]
    found = training.run_step(Layer("", "one", SMALL), others)
    one, two = found.peers
    assert one.forward.why_not == "RuntimeError: no such kernel" and one.backward.timing and not one.seconds
    assert two.forward.timing and two.backward.why_not == "its result is 1.0e+00 off"
    assert found.ratio("broken") is found.ratio("off") is found.ratio("nobody") is None


def test_the_json_has_what_it_says(untimed):
    peer = Peer("them", lambda p, x, w, threads: lambda: answer(p, x, w), backward=gradients_of)
    found = training.run_step(Layer("net", "one", SMALL, 3), [peer], rounds=2)
    results = bench_results.Results("convalgos training", MACHINE, {"python": "3"}, {"up": "no"}, [found])
    (layer,) = json.loads(json.dumps(bench_results.as_json(results), allow_nan=False))["layers"]
    assert (layer["suite"], layer["name"], layer["count"], layer["flops"]) == ("net", "one", 3, SMALL.flops)
    assert ConvProblem.parse(layer["problem"]) == SMALL
    assert [p["direction"] for p in layer["passes"]] == list(DIRECTIONS)
    for p in layer["passes"]:
        assert p["samples_s"] == [p["median_s"]] * 2 and 0 < p["error"] < p["error_bound"]
    assert layer["seconds"] == sum(p["median_s"] for p in layer["passes"])
    (them,) = layer["peers"]
    assert them["seconds"] == them["forward"]["median_s"] + them["backward"]["median_s"] == 25
    assert them["ratio"] == 25 / layer["seconds"]


def test_a_gradient_stands_for_its_layer():
    texts = ["c4 w9 k4 s3 backward_weights", "c4 w9 k4 s3", "c4 w8 k4 s3 backward_data",
             "c4 w8 k4 s3 backward_weights", "c4 w9 k4 s3"]  # fmt: skip
    layers = [Layer("", f"l{i}", ConvProblem.parse(text), i) for i, text in enumerate(texts)]
    found = [(layer.name, str(layer.problem), layer.count) for layer in training.steps_of(layers)]
    assert found == [("l1", "n1 c4 w9 k4 s3", 1), ("l4", "n1 c4 w9 k4 s3", 4), ("l2", "n1 c4 w8 k4 s3", 2)]


# --- peers -----------------------------------------------------------------------------------


@needs_torch
@pytest.mark.parametrize("peer", TORCH, ids=lambda peer: peer.name)
@pytest.mark.parametrize(
    "text",
    [
        "n2 c4 h9 w8 k6 r3 s2 p1,0 stride2 groups2",
        "n2 c4 h9 w8 k6 r3 s3 p1 channels_last",
        "n1 c2 d5 h5 w6 k3 t2 r2 s2 p1 channels_last float64",
        "n2 c3 w30 k4 s3 p2 dilation2",
    ],
)
def test_torch_computes_both_gradients_at_once(peer, text):
    problem = ConvProblem.parse(text)
    if peer.why_not_trained(problem):
        assert peer.name == "torch.channels_last" and problem.ndim == 1
        return
    found = training.run_step(Layer("", "one", problem), [peer], rounds=1)
    (step,) = found.peers
    assert step.forward.error < 1e-5 and step.backward.error < 1e-5 and found.ratio(peer.name) > 0


def test_only_peers_that_compute_gradients_are_chosen():
    assert {peer.name for peer in training.training_peers(None)} == {p.name for p in TORCH if not p.missing()}
    assert training.training_peers("none") == ()
    with pytest.raises(ValueError, match="peers='scipy' computes no gradients"):
        training.training_peers("scipy")
    scipy = next(peer for peer in PEERS if peer.name == "scipy")
    with pytest.raises(Unsupported, match="scipy computes no gradients"):
        scipy.call_backward(SMALL, *(np.zeros(1) for _ in range(3)), 1)
    uneven = SMALL.replace(padding=((0, 1), (1, 1)))
    assert "pads both sides alike" in TORCH[0].why_not_trained(uneven)
    assert [peer.package for peer in peers.GPU_PEERS if peer.backward] == ["cudnn"] * 2 + ["torch"] * 2


# --- report ----------------------------------------------------------------------------------


def step(problem, milliseconds, name="layer", suite="net", count=1, them=None, **changes):
    """Passes that take so many milliseconds, beside a peer's two calls."""
    ids = "cpu.winograd.f4x3", "cpu.direct.pixels", "cpu.winograd.weights.f4x5"
    passes = tuple(
        PassResult(d, algorithm, Timing((1e-3 * ms,)), 0, 1e-7, 1e-6)
        for d, algorithm, ms in zip(DIRECTIONS, ids, milliseconds, strict=True)
    )
    if changes:
        passes = (*passes[:2], PassResult("backward_weights", **changes))
    parts = [PeerResult(part, Timing((1e-3 * ms,)), 0.0) for part, ms in zip("fb", them or (), strict=False)]
    steps = [PeerStep(peer.name, *parts) for peer in TORCH] if them else []
    return StepResult(Layer(suite, name, problem, count), passes, tuple(steps))


def shown(*layers, color=None):
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=color)
    report_training.show_steps(
        bench_results.Results("", MACHINE, {"python": "3"}, {"up": "no"}, list(layers)), console
    )
    return console.file.getvalue()


def test_resnet50_fits_120_columns():
    layers = [step(la.problem, (1.5, 20.25, 3), la.name, them=(10, 100)) for la in suites()["resnet50"]]
    text = shown(*layers)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 120 and "…" not in text
    i = next(i for i, line in enumerate(lines) if line.startswith(" res5_3x3 "))
    assert lines[i].split()[-7:] == ["1.50", "20.2", "3.00", "24.8", "0", "4.44", "4.44"]
    assert lines[i + 1].split()[-5:] == [
        "winograd.f4x3",
        "direct.pixels",
        "winograd.weights.f4x5",
        "10.0+100",
        "10.0+100",
    ]
    assert "torch.channels_first     4.44   least 4.44 (conv1)" in text
    assert "skipped up: no" in text and "a machine, 2 threads" in text


def test_the_whole_network_counts_each_layer_as_often_as_it_has_it():
    two = step(SMALL, (1, 2, 3), "a", count=3, them=(4, 8)), step(SMALL, (10, 20, 30), "b", them=(40, 20))
    text = shown(*two)
    assert "a x3" in text
    assert "a step of all 4 convolutions: forward 13.0 + dx 26.0 + dw 39.0 = 78.0 ms" in text
    assert "torch.channels_first     1.23   forward 52.0 + both gradients 44.0 = 96.0 ms" in text
    without = shown(two[0], step(SMALL, (10, 20, 30), "b"))
    assert "= 78.0 ms" in without and "both gradients" not in without and "n/a" in without
    assert "a step of all" not in shown(step(SMALL, (1, 2, 3)))


def test_what_went_wrong_is_shown():
    failed = {"algorithm": "cpu.a", "why_not": "RuntimeError: no", "failed": True}
    wrong = {"algorithm": "cpu.a", "timing": Timing((1.0,)), "error": 0.5, "error_bound": 1e-6}
    text = shown(
        step(SMALL, (1, 2, 3), "failing", **failed), step(SMALL, (1, 2, 3), "wrong", **wrong),
        step(SMALL, (1, 2, 3), "unserved", why_not="none of them"), color="standard",
    )  # fmt: skip
    assert "\x1b[1;31mfailing backward_weights: cpu.a failed: RuntimeError: no" in text
    assert "\x1b[1;31mwrong backward_weights: cpu.a has error 5.0e-01, over its bound" in text
    assert "unserved backward_weights: no algorithm can serve it" in text
    assert "a step of all" not in text


# --- the command -----------------------------------------------------------------------------

TABLE = f"""{",".join(COLUMNS)}
net,first,2,1,3,9x9,4,3x3,1x1,1x1,1x1,1
net,second,1,2,4,20,4,3,2,1,1,4
"""


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(TABLE)
    return path


def test_a_network_is_run_shown_and_saved(table, tmp_path):
    path = tmp_path / "out.json"
    changes = ["--layout", "channels_last", "--dtype", "float64", "--batch", "3"]
    text = run("training", table, "--peers", "none", "--rounds", "1", *changes, "--json", path).stdout
    assert "first" in text and "dx" in text and "a step of all 2 convolutions" in text
    saved = json.loads(path.read_text())
    assert [layer["problem"] for layer in saved["layers"]] == [
        "n3 c3 h9 w9 k4 r3 s3 p1 channels_last float64",
        "n3 c4 w20 k4 s3 p1 stride2 groups4 channels_last float64",
    ]
    assert all(len(p["samples_s"]) == 3 for layer in saved["layers"] for p in layer["passes"])
    assert run("report", path).stdout == text
    page = run("report", path, tmp_path / "page.html", status=2)
    assert "is of training steps, of which there is no page" in page.stderr
    path.write_text(path.read_text().replace('"direction"', '"way"'))
    assert "out.json is not a table" in run("report", path, status=2).stderr


def test_layers_come_from_where_those_of_bench_do(monkeypatch):
    seen = []

    def run_step(layer, *rest, **more):
        seen.append(layer)
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "run_step", run_step)
    interrupted = run("training", "--peers", "none", status=130)
    assert interrupted.stderr.strip() == "interrupted after 0 of 14 layers"
    run("training", "vgg16", "--peers", "none", "--layers", "conv3*", status=130)
    run("training", "n1 c4 w9 k4 s3 backward_data", "--peers", "none", status=130)
    assert [str(layer.problem) for layer in seen] == [
        str(suites()["resnet50"][0].problem),
        "n4 c128 h56 w56 k256 r3 s3 p1",
        "n1 c4 w9 k4 s3",
    ]


def test_a_wrong_pass_ends_in_status_1(table, monkeypatch):
    monkeypatch.setattr(registry, "algorithms", lambda device=None: (*ALGORITHMS, Wrong()))
    text = run("training", table, "--peers", "none", "--rounds", "1", status=1).stdout
    assert "second backward_weights: cpu.wrong has error" in text  # the other layers are run all the same


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resnet5"], "did you mean resnet50"),
        (["--layers", "zzz"], "--layers 'zzz' matches none of conv1, "),
        (["--peers", "scipy"], "peers='scipy' computes no gradients"),
        (["--direction", "backward_data"], "No such option '--direction'"),
        (["--algorithm", "cpu.direct"], "No such option '--algorithm'"),
        (["--html", "page.html"], "No such option '--html'"),
    ],
)
def test_errors_are_one_line_with_status_2(arguments, message):
    result = run("training", *arguments, status=2)
    assert message in result.stderr and "Traceback" not in result.stderr


def test_nothing_to_run_with_ends_in_status_1():
    result = run("training", "n1 c4 w9 k4 s3 compute_tf32", "--peers", "none", status=2)
    assert "no algorithm can serve any of these layers" in result.stderr and "Traceback" not in result.stderr


@needs_torch
def test_what_torch_gives_is_what_its_autograd_gives():
    import torch

    problem = ConvProblem.parse("n2 c4 h9 w8 k6 r3 s3 p1 stride2")
    x, w = accuracy.random_arrays(problem)
    _, dy = accuracy.random_arrays(problem.replace(direction="backward_weights"))
    x_tensor, w_tensor = (torch.tensor(a, requires_grad=True) for a in (x, w))
    torch.nn.functional.conv2d(x_tensor, w_tensor, None, 2, 1).backward(torch.tensor(dy))
    dx, dw = map(host_array, TORCH[0].call_backward(problem, x, w, dy, 2)())
    assert np.allclose(dx, x_tensor.grad, atol=1e-6) and np.allclose(dw, w_tensor.grad, atol=1e-6)
