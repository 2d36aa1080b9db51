"""Timing, checking and comparing: the data behind `convalgos bench`, and how it is shown."""

import io
import json
import sys
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from rich.console import Console

from convalgos import ConvProblem
from convalgos.core.algorithm import Algorithm
from convalgos.core.arrays import as_numpy, host_array
from convalgos.core.errors import Unsupported, missing
from convalgos.core.machine import Machine
from convalgos.core.plan import Plan
from convalgos.cpu.reference import Reference, answer
from convalgos.cpu.tiled.short_schedule import sums_words
from convalgos.select import Candidate, Ranking, Rejection, rank
from convalgos.select.measure import accuracy, remembered, timing
from convalgos.select.measure import table as measure_table
from convalgos.select.measure.backends import Backend
from convalgos.select.measure.table import Row, Table, time_candidates
from convalgos.select.measure.timing import Timing
from convalgos.tools.bench import peers
from convalgos.tools.bench import read_target as targets
from convalgos.tools.bench import results as bench_results
from convalgos.tools.bench import run as bench_run
from convalgos.tools.bench.peer import Peer
from convalgos.tools.bench.peers import PEERS
from convalgos.tools.bench.suites import Layer, suites
from convalgos.tools.report import terminal as report_terminal

SMALL = ConvProblem.parse("n2 c4 h9 w8 k6 r3 s3 p1")
MACHINE = Machine("a machine", 2, 64, 48 << 10, 1 << 20, 32 << 20, 5e11, 2.5e11, 4e10, 2e11, 3e-6)


@dataclass(frozen=True)
class Odd(Algorithm):
    """An algorithm that is wrong, broken or hopeless, as its variant says."""

    kind: str
    family: ClassVar[str] = "cpu.odd"
    needs: ClassVar[tuple[str, ...]] = ()

    @property
    def variant(self):
        return self.kind

    def cost(self, problem, machine):
        return 1e9 if self.kind == "hopeless" else 1e-12

    def error_bound(self, problem):
        return 1e-6

    def plan(self, problem):
        return OddPlan(problem, self)


class OddPlan(Plan):
    def prepare_filter(self, w):
        return w

    def run(self, x, w, bias, activation, y, workspace):
        if self.algorithm == "cpu.odd.broken":
            raise RuntimeError("the kernel is\nbroken")
        if self.algorithm == "cpu.odd.wrong":
            y.fill(1)
        # "lazy" writes nothing at all


def ranking(*kinds, problem=SMALL):
    """The odd ones, fastest first by their own account, then the reference."""
    candidates = [Candidate.of(a, problem, a.cost(problem, MACHINE)) for a in map(Odd, kinds)]
    right = Candidate.of(Reference(), problem, 1e-3)
    candidates.append(right)
    candidates.sort(key=lambda c: c.seconds)
    return Ranking(problem, tuple(candidates), (Rejection("cpu.never", "it never does"),))


def layer_result(
    problem=SMALL, pick="cpu.a", rows=(), failed=(), found=(), name="layer", suite="net", count=1
):
    table = Table(problem, tuple(rows), (), tuple(failed))
    return bench_results.LayerResult(Layer(suite, name, problem, count), pick, table, tuple(found))


def row(algorithm, seconds, error=1e-7, bound=1e-6):
    samples = (0.9 * seconds, seconds, 1.1 * seconds)  # of which the spread is a tenth
    return Row(algorithm, Timing(samples), 0, error, bound)


# --- timing ----------------------------------------------------------------------------------


class Hasty(Backend):
    """Neither pauses nor warms up."""

    idle = warm_up = 0.0


def calls_of(order):
    return {name: lambda name=name: order.append(name) for name in "ab"}


def test_rounds_are_interleaved_and_every_second_one_runs_backwards():
    order, told = [], []
    timings = timing.interleave(
        calls_of(order), rounds=2, burst=2, backend=Hasty(), progress=lambda *what: told.append(what)
    )
    assert "".join(order) == "aaabbbbbbaaa"  # each burst after one call to warm up
    assert {name: len(t.samples) for name, t in timings.items()} == {"a": 4, "b": 4}
    assert told == [("a", 0.0), ("b", 0.25), ("b", 0.5), ("a", 0.75)]


def test_a_long_call_is_its_own_warm_up_and_a_very_long_one_is_timed_once(monkeypatch):
    order = []
    monkeypatch.setattr(timing, "LONG_CALL", -1.0)
    timing.interleave(calls_of(order), rounds=3, backend=Hasty())
    assert "".join(order) == "abbaab"
    order.clear()
    monkeypatch.setattr(timing, "SINGLE_CALL", -1.0)
    timings = timing.interleave(calls_of(order), rounds=3, backend=Hasty())
    assert "".join(order) == "ab"
    assert len(timings["a"].samples) == 1


def test_a_table_measures_checks_and_lists_the_rest():
    table = time_candidates(ranking("wrong", "lazy", "broken", "hopeless"), rounds=1)
    by_id = {r.algorithm: r for r in table.rows}
    assert by_id.keys() == {"cpu.odd.wrong", "cpu.odd.lazy", "cpu.reference"}
    assert by_id["cpu.reference"].error < 1e-6 < 1e-2 < by_id["cpu.odd.wrong"].error < np.inf
    assert by_id["cpu.odd.lazy"].error == np.inf  # y holds NaN before every check
    assert by_id["cpu.reference"].workspace_bytes == Reference().workspace_bytes(SMALL)
    assert [r.id for r in table.rejected] == ["cpu.never", "cpu.odd.hopeless"]
    assert table.rejected[1].why_not == "not timed: predicted 1e+09 s, 1e-12 best"
    assert [(f.id, f.why_not) for f in table.failed] == [
        ("cpu.odd.broken", "RuntimeError: the kernel is\nbroken")
    ]
    assert "FAILED: RuntimeError" in str(table)
    assert list(table.rows) == sorted(table.rows, key=lambda r: r.median_s)


def test_the_first_of_a_ranking_is_timed_in_full_however_slow(monkeypatch):
    monkeypatch.setattr(measure_table, "SLOW", -1.0)  # everything is
    table = time_candidates(ranking("wrong"), rounds=2)
    assert {r.algorithm: len(r.samples_s) for r in table.rows} == {"cpu.odd.wrong": 6, "cpu.reference": 1}


def test_others_are_timed_in_the_same_rounds():
    order = []
    table = time_candidates(ranking(), rounds=2, others={"them": lambda: order.append(1)})
    assert len(table.others["them"].samples) == len(table.rows[0].samples_s) == 6
    assert len(order) >= 8


def test_what_a_table_tells_is_kept_with_failures_and_wrong_results():
    known = remembered.of_table(time_candidates(ranking("wrong", "lazy", "broken"), rounds=1))
    assert known["cpu.odd.broken"].failure == "RuntimeError: the kernel is\nbroken"
    assert known["cpu.reference"].error < 1e-6 < known["cpu.odd.wrong"].error
    assert known["cpu.odd.lazy"].error == remembered.UNBOUNDED
    assert known["cpu.reference"].prepare_s > 0


# --- results ---------------------------------------------------------------------------------


def test_regret_is_against_the_fastest_right_candidate():
    rows = [row("cpu.fast", 1.0, error=1.0), row("cpu.best", 2.0), row("cpu.a", 3.0)]
    result = layer_result(rows=rows)
    assert [r.algorithm for r in result.wrong] == ["cpu.fast"]
    assert (result.oracle.algorithm, result.regret) == ("cpu.best", 1.5)
    wrong_pick = layer_result(rows=rows, pick="cpu.fast")
    assert wrong_pick.regret is None
    assert layer_result(rows=[row("cpu.a", 1.0, error=np.inf)]).oracle is None
    assert layer_result(rows=[row("cpu.a", 1.0, error=np.nan)]).wrong


def test_complaints_name_layer_algorithm_and_reason():
    result = layer_result(
        rows=[row("cpu.fast", 1.0, error=0.5)],
        failed=[Rejection("cpu.b", "RuntimeError: no\nmore")],
        name="L",
    )
    results = bench_results.Results("", MACHINE, {}, layers=[result])
    assert results.complaints() == [
        "L: cpu.fast has error 5.0e-01, over its bound 1.0e-06",
        "L: cpu.b failed: RuntimeError: no",
    ]


def test_ratios_are_their_time_over_ours():
    found = [
        bench_results.PeerResult("p", Timing((4.0, 6.0)), 0.0),
        bench_results.PeerResult("q", None, None, "cannot"),
    ]
    result = layer_result(rows=[row("cpu.a", 2.0)], found=found)
    assert (result.ratio("p"), result.ratio("q"), result.ratio("r")) == (2.5, None, None)
    assert layer_result(rows=[], found=found).ratio("p") is None


def test_geometric_mean():
    assert bench_results.geometric_mean([2.0, None, 8.0]) == pytest.approx(4.0)
    assert bench_results.geometric_mean([None]) is None


def test_a_layer_is_run_with_its_peers():
    def build(problem, x, w, threads):
        return lambda: answer(problem, x, w)

    def broken(problem, x, w, threads):
        raise RuntimeError("no such kernel")

    others = (
        Peer("right", build),
        Peer("broken", broken),
        Peer("wrong", lambda problem, x, w, threads: lambda: np.zeros(problem.y_shape)),
        Peer("picky", build, lambda problem: "not this one"),
    )
    told: list[tuple[str, float]] = []
    for layout in ("channels_first", "channels_last"):
        layer = Layer("net", "one", SMALL.replace(layout=layout))
        told.clear()
        result = bench_run.run_layer(
            layer, others, only=["cpu.reference"], rounds=1, progress=lambda *what: told.append(what)
        )
        assert result.pick == "cpu.reference" == result.oracle.algorithm
        assert result.regret == 1.0
        assert [r.algorithm for r in result.table.rows] == ["cpu.reference"]
        assert not result.table.rejected
        by_name = {p.name: p for p in result.peers}
        assert list(by_name) == ["right", "broken", "wrong", "picky"]
        assert by_name["right"].error < 1e-12 and result.ratio("right") > 0
        assert by_name["broken"].why_not == "RuntimeError: no such kernel"
        assert by_name["wrong"].why_not == "its result is 1.0e+00 off"
        assert by_name["picky"].why_not == "not this one"
        assert {name for name, _ in told} >= {"right", "cpu.reference"}
        shares = [share for _, share in told]
        assert shares == sorted(shares) and 0 <= shares[0] <= shares[-1] < 1


def test_a_peer_that_takes_very_long_is_called_once(monkeypatch):
    monkeypatch.setattr(timing, "SINGLE_CALL", 0.0)
    order = []

    def build(problem, x, w, threads):
        def call():
            order.append(1)
            return answer(problem, x, w)

        return call

    result = bench_run.run_layer(
        Layer("", "one", SMALL), [Peer("slow", build)], only=["cpu.reference"], rounds=2
    )
    assert len(order) == 1
    assert len(result.peers[0].timing.samples) == 1


def test_nothing_serves():
    layer = Layer("", "one", SMALL.replace(compute_dtype="tf32"))
    result = bench_run.run_layer(layer, PEERS, only=["cpu.reference"])
    assert (result.pick, result.oracle, result.regret, result.peers) == (None, None, None, ())
    assert result.table.rejected[0].id == "cpu.reference"


def test_auto_is_what_is_picked():
    result = bench_run.run_layer(Layer("", "one", SMALL), (), only=["auto"], rounds=1)
    (row,) = result.table.rows
    assert row.algorithm == result.pick == rank(SMALL).candidates[0].id


def test_the_json_has_what_it_says():
    result = bench_run.run_layer(Layer("net", "one", SMALL, 3), (), only=["cpu.reference"], rounds=1)
    wrong = layer_result(
        rows=[row("cpu.a", 1.0, error=np.inf)],
        failed=[Rejection("cpu.b", "why")],
        found=[
            bench_results.PeerResult("p", Timing((1.0, 3.0)), 1e-7),
            bench_results.PeerResult("q", None, None, "cannot"),
        ],
    )
    results = bench_results.Results(
        "convalgos bench", MACHINE, bench_results.versions(), {"up": "no"}, [result, wrong]
    )
    text = json.dumps(bench_results.as_json(results), allow_nan=False)
    read = json.loads(text)
    assert read.keys() == {
        "kind", "format", "command", "started", "machine", "versions", "skipped", "layers",
    }  # fmt: skip
    assert (read["kind"], read["format"]) == ("bench", 1)
    assert read["machine"]["threads"] == 2 and read["machine"]["peak_float32"] == 5e11
    assert read["versions"].keys() >= {"python", "numpy", "convalgos"}
    assert read["skipped"] == [{"name": "up", "why_not": "no"}]
    first, second = read["layers"]
    assert first.keys() >= {
        "name", "problem", "pick", "oracle", "regret", "flops", "candidates", "rejected", "peers",
    }  # fmt: skip
    assert (first["name"], first["suite"], first["count"]) == ("one", "net", 3)
    assert ConvProblem.parse(first["problem"]) == SMALL
    assert first["flops"] == SMALL.flops
    assert first["pick"] == first["oracle"] == "cpu.reference"
    (candidate,) = first["candidates"]
    assert candidate.keys() >= {"algorithm", "median_s", "samples_s", "workspace_bytes", "error"}
    assert len(candidate["samples_s"]) == 3
    assert 0 < candidate["error"] < candidate["error_bound"]
    assert second["candidates"][0]["error"] is None and second["oracle"] is None
    assert second["failed"] == [{"algorithm": "cpu.b", "why_not": "why"}]
    p, q = second["peers"]
    assert (p["name"], p["median_s"], p["samples_s"]) == ("p", 2.0, [1.0, 3.0])
    assert (q["median_s"], q["samples_s"], q["why_not"]) == (None, [], "cannot")


# --- peers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
@pytest.mark.parametrize(
    "text",
    [
        "n2 c4 h9 w8 k6 r3 s2 p1:0,2:3 stride2 groups2",
        "n2 c4 h9 w8 k6 r3 s2 p1 convolution channels_last",
        "n2 c3 w30 k4 s3 p2 dilation2",
        "n1 c2 d5 h5 w6 k3 t2 r2 s2 psame",
        "n1 c1 w100 k1 s7",
        "n1 c1 h30 w20 k1 r7 s3 p6:0,0:2 convolution",
        "n1 c1 h30 w20 k1 r4 s3 psame",
        "n1 c1 h30 w20 k1 r4 s3 float64",
    ],
)
def test_peers_compute_the_same_problem(peer, text):
    if reason := peer.missing():
        pytest.skip(reason)
    problem = ConvProblem.parse(text)
    if peer.why_not(problem):
        assert peer.name in ("scipy", "torch.channels_last")
        return
    if peer.name == "onnxruntime" and problem.dtype == "float64":
        result = bench_run.run_layer(Layer("", "one", problem), [peer], only=["cpu.reference"], rounds=1)
        assert "NOT_IMPLEMENTED" in result.peers[0].why_not
        return
    check = accuracy.AccuracyCheck(problem)
    y = as_numpy("y", peer.call(problem, check.x, check.w, 2)())
    assert y.shape == problem.y_shape
    if problem.layout == "channels_last":
        y = np.moveaxis(y, 1, -1)
    assert check.error(y) < 1e-5


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("c4 w9 k4 s3", "single planes only"),
        ("c1 w9 k1 s3 stride2", "no stride"),
        ("c1 w9 k1 s3 p3", "pads by less than the kernel"),
        ("c1 w9 k1 s3 backward_data", "forward problems only"),
        ("c1 w0 k1 s3 p1", "nothing to compute"),
    ],
)
def test_scipy_is_not_asked_for_what_it_cannot(text, reason):
    scipy = next(peer for peer in PEERS if peer.name == "scipy")
    assert reason in scipy.why_not(ConvProblem.parse(text))


def test_direct_peers_are_spared_endless_problems():
    long = next(layer.problem for layer in suites()["longconv"] if layer.name == "causal_64_128k")
    onnxruntime = next(peer for peer in PEERS if peer.name == "onnxruntime")
    assert onnxruntime.why_not(long).startswith("not timed: a direct convolution would take")
    asked = {peer.name: [] for peer in PEERS}
    for found in suites().values():
        for layer in found:
            for peer in PEERS:
                if not peer.why_not(layer.problem):
                    asked[peer.name].append(layer.suite)
    assert len(asked["onnxruntime"]) == len(asked["torch.channels_first"]) >= 106
    assert asked["scipy"] == ["signal", "signal"]


@pytest.fixture
def hide(monkeypatch):
    def hide_module(name):
        monkeypatch.setitem(sys.modules, name, None)
        missing.cache_clear()

    yield hide_module
    monkeypatch.undo()
    missing.cache_clear()


def test_absent_peers_are_left_out_or_named(hide):
    hide("torch")
    hide("onnx")
    assert [peer.name for peer in peers.choose_peers(None)] == ["scipy"]
    with pytest.raises(
        Unsupported, match=r"peer torch needs torch, which is not installed .*convalgos\[torch"
    ):
        peers.choose_peers("torch")
    with pytest.raises(Unsupported, match=r"peer onnxruntime needs onnx, which is not installed"):
        peers.choose_peers("scipy,onnxruntime")


def test_peers_are_chosen_by_package_or_name():
    assert peers.choose_peers("none") == ()
    assert [peer.name for peer in peers.choose_peers("scipy")] == ["scipy"]
    with pytest.raises(
        ValueError, match=r"peers='scypi' must be none, or some of torch, .*did you mean scipy"
    ):
        peers.choose_peers("scipy,scypi")
    if not missing("torch"):
        names = [peer.name for peer in peers.choose_peers("torch")]
        assert names == ["torch.channels_first", "torch.channels_last"]
        assert [peer.name for peer in peers.choose_peers("torch.channels_last")] == ["torch.channels_last"]


@pytest.mark.parametrize("peer", ["onnxruntime", "torch.x86", "torch.onednn"])
@pytest.mark.parametrize(
    "text",
    [
        "n2 c4 h9 w8 k6 r3 s2 p1 stride2 groups2 uint8 w_int8 y_uint8 per_channel",
        "n2 c4 h9 w8 k6 r3 s2 p1 channels_last uint8 w_int8 y_uint8 convolution",
        "n2 c3 w30 k4 s3 p2 dilation2 uint8 w_int8 y_uint8",
        "n1 c2 d5 h5 w6 k3 t2 r2 s2 uint8 w_int8 y_uint8 per_channel",
        "n1 c8 h5 w6 k3 r3 s3 p1:0,0:2 int8 y_int8",
        "n1 c8 h5 w6 k3 r3 s3 uint8 w_int8",
        "n1 c8 h5 w6 k3 r3 s3 int8 w_uint8",
    ],
)
def test_peers_of_integers_give_the_exact_result(peer, text):
    (found,) = (p for p in peers.peers_on("cpu") if p.name == peer)
    problem = ConvProblem.parse(text)
    if reason := found.missing() or found.why_not(problem):
        (x, w), of_torch = (problem.dtype, problem.w_dtype), peer.startswith("torch")
        assert found.missing() or "installed" not in reason
        assert (x, w) == ("int8", "uint8") or (of_torch and (x == "int8" or problem.y_dtype == "int32"))
        return
    x, w = accuracy.random_arrays(problem)
    if not sums_words():  # sums of two products of bytes saturate at 16 bits in these peers: 7 bits
        w >>= 1
    check = accuracy.AccuracyCheck(problem, arrays=(x, w))
    y = host_array(found.call(problem, x, w, 2)())
    assert y.dtype == problem.y_dtype
    assert check.error(np.moveaxis(y, 1, -1) if problem.layout == "channels_last" else y) == 0


def test_peers_are_chosen_by_element_type_and_absent_ones_are_told(hide):
    hide("openvino")
    assert {p.name for p in peers.choose_peers("torch", dtypes=["int8"])} == {"torch.x86", "torch.onednn"}
    assert "onnxruntime" not in {p.name for p in peers.choose_peers(None, dtypes=["bfloat16"])}
    chosen = peers.choose_peers(None, dtypes=["uint8"])
    assert {p.name for p in chosen} == {"onnxruntime", "torch.x86", "torch.onednn", "openvino"}
    (layer,) = targets.changed([Layer("", "one", SMALL)], dtype="uint8")
    assert str(layer.problem) == f"{SMALL} uint8 w_int8 y_uint8 per_channel"
    assert targets.changed([layer], dtype="float32")[0].problem == SMALL
    absent = [peer for peer in chosen if peer.name == "openvino"]
    result = bench_run.run_layer(layer, absent, only=["cpu.reference"], rounds=1)
    results = bench_results.Results("", MACHINE, {}, layers=[result])
    assert "not run: openvino needs openvino, which is not installed (pip install" in shown(results)


# --- report ----------------------------------------------------------------------------------


def shown(results, width=120, terminal=True):
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)
    report_terminal.show_results(results, console)
    return console.file.getvalue()


def network(picks=("cpu.winograd.f4x3", "cpu.im2col.mkl")):
    names = [peer.name for peer in PEERS]
    return bench_results.Results(
        "", MACHINE, {"python": "3"}, layers=[
            layer_result(
                layer.problem, picks[0], [row(picks[1], 1e-3), row(picks[0], 1.3e-3)],
                found=[bench_results.PeerResult(name, Timing((2.6e-3,)), 0.0) for name in names],
                name=layer.name, suite="resnet50",
            )
            for layer in suites()["resnet50"]
        ],
    )  # fmt: skip


def test_a_single_sample_has_no_spread():
    single = Row("cpu.a", Timing((2.0,)), 0, 1e-7, 1e-6)
    results = bench_results.Results(
        "", MACHINE, {}, layers=[layer_result(rows=[single], pick="cpu.a", name="L")]
    )
    assert "n=1" in shown(results).split() and "1 sample" in str(results.layers[0].table)


def test_resnet50_fits_120_columns():
    text = shown(network())
    lines = text.splitlines()
    assert max(map(len, lines)) <= 120
    for layer in suites()["resnet50"]:
        assert layer.name in text
    line = next(line for line in lines if line.startswith(" res5_3x3 "))
    cells = "winograd.f4x3 1.30 5 1423 285 im2col.mkl 1.30 2.00 2.00 2.00 2.00"
    assert line.split()[-11:] == cells.split()
    assert "…" not in text
    assert "regret                   1.30   worst 1.30 (conv1)" in text
    assert "onnxruntime              2.00   least 2.00 (conv1)" in text
    assert "a machine, 2 threads, peak 500 GFLOP/s float32, 250 float64" in text


def test_a_file_is_as_wide_as_it_takes():
    text = shown(network(), width=80, terminal=False)
    assert "n8 c3 h224 w224 k64 r7 s7 p3 stride2" in text


def test_what_went_wrong_is_shown():
    results = bench_results.Results(
        "", MACHINE, {}, {"up": "ConvTranspose is another operator"}, [
            layer_result(rows=[row("cpu.a", 1.0, error=0.5)], name="wrong"),
            layer_result(failed=[Rejection("cpu.a", "RuntimeError: no")], name="failing"),
            layer_result(pick=None, name="unserved"),
        ],
    )  # fmt: skip
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system="standard")
    report_terminal.show_results(results, console)
    text = console.file.getvalue()
    assert "\x1b[1;31ma" in text.replace(" ", "")  # the pick's short id, in bold red
    assert "\x1b[1;31mwrong: cpu.a has error 5.0e-01, over its bound" in text
    assert "\x1b[1;31mfailing: cpu.a failed: RuntimeError: no" in text
    assert "skipped up: ConvTranspose is another operator" in text
    assert "unserved: no algorithm can serve it" in text


def test_counts_and_suites_are_shown_where_they_tell():
    found = [bench_results.PeerResult("p", Timing((4.0,)), 0.0)]
    results = bench_results.Results(
        "", MACHINE, {}, {}, [
            layer_result(rows=[row("cpu.a", 1.0)], name="x", suite="s", count=3, found=found),
            layer_result(rows=[row("cpu.a", 2.0)], name="y", suite="t", found=found),
        ],
    )  # fmt: skip
    text = shown(results)
    assert "s/x x3 " in text and "t/y " in text
    assert "all 4 convolutions in a row: picks 5000 ms, p 16000 ms" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.01234, "0.0123"), (1.0, "1.00"), (12.345, "12.3"), (123.4, "123"), (9999.6, "10000"), (0.0, "0")],
)
def test_digits(value, text):
    assert report_terminal.digits(value) == text


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("direction", ["backward_data", "backward_weights"])
def test_torch_is_timed_on_gradients(direction, layout):
    pytest.importorskip("torch", reason="torch is not installed (CI installs it)")
    (layer,) = targets.changed([Layer("", "one", SMALL)], direction=direction, layout=layout)
    torch = [peer for peer in PEERS if peer.package == "torch"]
    result = bench_run.run_layer(layer, torch, only=["cpu.reference"], rounds=1)
    assert [p.name for p in result.peers] == ["torch.channels_first", "torch.channels_last"]
    for peer in result.peers:
        assert peer.why_not is None and peer.error < 1e-5, peer
