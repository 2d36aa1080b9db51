"""The benchmarks that asv runs: which layers and algorithms they measure, and the values of their tracks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from convalgos.core.errors import missing

ROOT = Path(__file__).parents[1]


def in_bench(code, **variables):
    """The JSON that code prints where the benchmarks can be imported."""
    paths = os.pathsep.join((str(ROOT), str(ROOT / "asv_bench")))
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"import json; {code}"],
        env={**os.environ, "PYTHONPATH": paths, **variables}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_one_layer_of_each_kind_is_measured():
    code = (
        "from benchmarks.layers import *; small = [p for p in every().values() if p.flops <= MOST_FLOPS];"
        "kinds = sorted({kind(p) for p in small}), sorted({kind(p) for p in LAYERS.values()});"
        "print(json.dumps([*kinds, list(LAYERS), FEW]))"
    )
    kinds, measured, layers, few = in_bench(code)
    assert kinds == measured
    assert 12 <= len(layers) <= 20 and {"signal/fir_1M_k1024", "replknet31b/dw27_512"} <= set(layers)
    assert 3 <= len(few) <= 5 and set(few) <= set(layers)
    assert {k[0] for k in kinds} == {1, 2, 3}
    assert {k[1] for k in kinds} == {"first", "dense", "grouped", "depthwise"}


def test_other_layers_by_name():
    code = "from benchmarks.layers import *; print(json.dumps([list(LAYERS), FEW]))"
    layers, few = in_bench(code, CONVALGOS_HISTORY_LAYERS="vgg16/conv1_*, c3d/conv1a")
    assert layers == ["vgg16/conv1_1", "vgg16/conv1_2", "c3d/conv1a"]
    assert few and set(few) <= set(layers)


def test_parameters_are_all_algorithms_and_layers():
    code = (
        "from benchmarks import run, track; import convalgos as ca;"
        "from convalgos.tools.bench.peers import PEERS; print("
        "json.dumps([run.Run.params, run.Run.param_names, [a.id for a in ca.algorithms()],"
        "track.Peers.params[0], [p.name for p in PEERS], track.Pick.track_choice.pretty_source]))"
    )
    variables = {"CONVALGOS_HISTORY_DTYPES": "float32,float64", "CONVALGOS_HISTORY_THREADS": "1 all"}
    params, names, ids, peers, known, legend = in_bench(code, **variables)
    assert names == ["algorithm", "layer", "dtype", "threads"]
    assert params[0] == ["auto", *(i for i in ids if i != "cpu.reference")]
    assert params[2:] == [["float32", "float64"], ["1", "all"]]
    assert peers == known
    codes = dict(reversed(line.split()) for line in legend.splitlines())
    assert set(codes) == set(ids) and len(set(codes.values())) == len(ids)


def test_values_of_the_tracks():
    """Those that are quick to get, on a small layer; and n/a by the exception that asv takes for it."""
    code = """
import numpy as np
import convalgos as ca
from benchmarks import layers
from convalgos.core.problem import ConvProblem
small = {"s": ConvProblem.parse("n1 c8 h9 w9 k8 r3 s3 p1")}
layers.LAYERS, layers.FEW = small, ["s"]
from benchmarks import run, track
found = {}
errors = track.Errors()
errors.setup("cpu.winograd.f4x3", "s", "float32", "all")
found["ulp"] = errors.track_max_error_ulp("cpu.winograd.f4x3", "s", "float32", "all")
pick = track.Pick()
pick.setup("s", "float32", "all")
found["choice"] = pick.track_choice("s", "float32", "all") == track.code(pick.plan.algorithm)
found["regret"] = pick.track_regret_percent("s", "float32", "all")
for words in (("cpu.winograd.f4x5", "all"), ("gpu.direct", "all"), ("auto", "4096")):
    case = run.Run()
    try:
        case.setup(words[0], "s", "float32", words[1])
    except NotImplementedError as reason:
        found[" ".join(words)] = str(reason)
case = run.Run()
case.setup("auto", "s", "float32", "all")
plan = case.plan
case.setup("auto", "s", "float32", "all")
found["set up once"] = case.plan is plan
from benchmarks import formats
for dtype in formats.FORMATS:
    case = formats.RunFormats()
    case.setup("auto", "s", dtype, "all")
    case.time_run("auto", "s", dtype, "all")
    exact = case.x.astype("f4"), case.w.astype("f4")
    off = case.y.astype("f4") - np.clip(ca.conv(*exact, padding=1), 0 if dtype == "uint8" else -9, 255)
    found[dtype] = [str(case.problem), float(np.abs(off).max())]
peers = formats.PeersFormats()
found["peers"] = peers.params[0]
try:
    peers.setup("torch.x86", "s", "uint8", "all")
    found["beside"] = peers.track_time_vs_peer("torch.x86", "s", "uint8", "all") > 0
except NotImplementedError as reason:
    found["beside"] = "torch" in str(reason)
print(json.dumps(found))
"""
    found = in_bench("\n" + code)
    assert 0.1 < found["ulp"] < 1000
    assert found["choice"] is True and found["set up once"] is True
    assert found["regret"] >= 0
    small = "n1 c8 h9 w9 k8 r3 s3 p1"
    assert found["uint8"] == [f"{small} uint8 w_int8 y_uint8 per_channel", 0.0]
    assert found["bfloat16"][0] == f"{small} bfloat16" and 0 < found["bfloat16"][1] < 0.02
    assert {"torch.onednn", "onnxruntime", "torch.channels_last"} < set(found["peers"])
    assert found["beside"] is True
    assert "needs 5 taps" in found["cpu.winograd.f4x5 all"]
    assert "threads" in found["auto 4096"]
    if missing("cupy"):
        assert "cupy" in found["gpu.direct all"]


def test_first_calls_run_in_processes_and_cache_folders_of_their_own():
    code = """
from benchmarks import first_call
case = first_call.FirstCall()
print(json.dumps([case.params[0], case.called("1x1")]))
"""
    calls, (seconds, kernels) = in_bench("\n" + code)
    assert {"1x1", "3x3", "3x3 float16", "FIR filter"} <= set(calls)
    assert seconds > 0 and 5 <= kernels <= 15


def test_gradients_have_benchmarks_of_their_own_on_few_layers():
    code = """
import inspect
import convalgos as ca
from benchmarks import gradients, layers, run, track
found = {"few": layers.FEW, "quick": {n: str(p) for n, p in layers.QUICK.items() if n not in layers.LAYERS}}
for name, case in vars(gradients).items():
    if inspect.isclass(case):  # as asv finds them: by their methods
        told = [m for m, f in inspect.getmembers(case) if m.startswith(("time_", "track_")) and callable(f)]
        found[name] = case.direction, case.params, list(case.param_names), told
found["forward"] = run.Run.direction, track.Pick.direction, track.Peers.params[0]
found["ids"] = [a.id for a in ca.algorithms()]
print(json.dumps(found))
"""
    found = in_bench("\n" + code)
    few, ids, (*forward, known) = found.pop("few"), found.pop("ids"), found.pop("forward")
    quick = found.pop("quick")
    assert forward == ["forward", "forward"]
    assert len(found) == 6 and len(quick) == 2 and all(name.startswith(few[0]) for name in quick)
    for name, (direction, params, names, told) in found.items():
        assert name.endswith(
            {"backward_data": "BackwardData", "backward_weights": "BackwardWeights"}[direction]
        )
        assert len(params) == len(names) and params[names.index("layer")] == few
        assert any(text.endswith(direction) for text in quick.values())
        if name.startswith("Run"):
            assert told == ["time_run"] and params[0][0] == "auto" and set(params[0][1:]) < set(ids)
            assert ("cpu.direct.weights" in params[0]) == (direction == "backward_weights")
            assert ("cpu.winograd.f4x3" in params[0]) == (direction == "backward_data")
            assert "cpu.reference" not in params[0]
        elif name.startswith("Peers"):
            assert told == ["track_time_vs_peer"] and params[0] == known
        else:
            assert told == ["track_choice", "track_regret_percent"]


def test_values_of_the_gradients():
    """On a small layer: times, tracks, and n/a for a peer and for a version that cannot."""
    code = """
import numpy as np
import convalgos as ca
from benchmarks import layers
from convalgos.core.problem import ConvProblem
layers.LAYERS = {"s": ConvProblem.parse("n2 c8 h9 w9 k6 r3 s3 p1 groups2")}
layers.FEW = ["s"]
from benchmarks import common, gradients
from convalgos.cpu.reference import answer
found = {}
for kind in ("BackwardData", "BackwardWeights"):
    case = getattr(gradients, "Run" + kind)()
    case.setup("auto", "s", "float32", "all")
    case.time_run("auto", "s", "float32", "all")
    right = answer(case.problem, case.x, case.w)
    found[kind] = [case.problem.direction, float(np.abs(case.y - right).max()), float(right.std())]
    pick = getattr(gradients, "Pick" + kind)()
    pick.setup("s", "float32", "all")
    found[kind] += [pick.track_choice("s", "float32", "all") > 0]
    peers = getattr(gradients, "Peers" + kind)()
    if "torch.channels_first" in peers.params[0]:
        try:
            peers.setup("torch.channels_first", "s", "float32", "all")
        except NotImplementedError as reason:
            assert "torch" in str(reason), reason
        else:
            assert peers.track_time_vs_peer("torch.channels_first", "s", "float32", "all") > 0
    for peer in set(peers.params[0]) & {"onnxruntime", "scipy"}:
        try:
            peers.setup(peer, "s", "float32", "all")
        except NotImplementedError as reason:
            found[kind] += [str(reason)]
found["regret"] = pick.track_regret_percent("s", "float32", "all")
import convalgos.select
del convalgos.select.facing
found["old"] = common.serving("backward_data")
def refuses(problem, **more):
    raise ca.Unsupported(f"{problem.direction} is for later")
ca.plan = refuses
try:
    gradients.RunBackwardData().setup("auto", "s", "float64", "all")
except NotImplementedError as reason:
    found["refused"] = str(reason)
print(json.dumps(found))
"""
    found = in_bench("\n" + code)
    for kind, direction in (("BackwardData", "backward_data"), ("BackwardWeights", "backward_weights")):
        told, error, size, choice, *reasons = found[kind]
        assert told == direction and error < 1e-5 and 0.1 < size < 10 and choice
        assert all("forward problems only" in reason or "not installed" in reason for reason in reasons)
    assert (
        found["regret"] >= 0 and found["old"] == ["auto"] and found["refused"] == "backward_data is for later"
    )


def test_the_settings_of_asv():
    """What plain `asv publish` reads in a fresh clone."""
    settings = json.loads((ROOT / "asv_bench" / "asv.conf.json").read_text())
    assert (settings["repo"], settings["branches"], settings["results_dir"]) == ("..", ["HEAD"], "results")
    assert settings["launch_method"] == "spawn"  # OpenMP does not survive a fork


def test_networks_are_measured_beside_onnxruntime():
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    code = (
        "from benchmarks.networks import *; n = Networks(); name = 'light squeezenet'; n.setup(name);"
        "print(json.dumps([Networks.params[0], float(abs(n.call() - n.theirs()()).max())]))"
    )
    names, difference = in_bench(code)
    assert {"resnet18", "mobilenet_v2", "rapidocr detection"} <= {*names}
    assert difference < 1e-5  # of probabilities
