"""The command line: what it runs, what it saves, what it says when it cannot, and its exit status."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from command_line import run

from convalgos import ConvProblem, Unsupported
from convalgos.api import planning
from convalgos.core.errors import missing
from convalgos.cpu.reference import ALGORITHMS, Reference
from convalgos.select import devices, registry
from convalgos.tools.bench import run as bench_run
from convalgos.tools.bench.suites import COLUMNS
from convalgos.tools.cli import explain_commands

HEADER = ",".join(COLUMNS)
TABLE = f"""{HEADER}
net,first,2,1,3,9x9,4,3x3,1x1,1x1,1x1,1
net,second,1,2,4,20,4,3,2,1,1,4
"""
QUICK = ["--algorithm", "cpu.reference", "--peers", "none", "--rounds", "1"]


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(TABLE)
    return path


# --- bench -----------------------------------------------------------------------------------


def test_a_table_is_run_shown_and_saved(table, tmp_path):
    path = tmp_path / "new" / "out.json"
    text = run("bench", table, *QUICK, "--json", path).stdout
    assert "n1 c3 h9 w9 k4 r3 s3 p1" in text and "first" in text and "reference" in text
    saved = json.loads(path.read_text())
    assert saved.keys() >= {"machine", "versions", "layers"}
    assert [layer["name"] for layer in saved["layers"]] == ["first", "second"]
    for layer in saved["layers"]:
        assert layer["pick"] == layer["oracle"] == "cpu.reference"
        assert layer["regret"] == 1
        assert len(layer["candidates"]) == 1 and layer["peers"] == []
    assert [p.name for p in path.parent.iterdir()] == ["out.json"]
    plain = tmp_path / "plain"
    plain.touch()
    assert path.stat().st_mode == plain.stat().st_mode  # as readable as any file of the user


def test_a_suite_is_read_by_name_and_resnet50_by_default(monkeypatch):
    seen = []

    def run_layer(layer, *rest, **more):
        seen.append(layer)
        raise KeyboardInterrupt

    monkeypatch.setattr(bench_run, "run_layer", run_layer)
    run("bench", "--peers", "none", status=130)
    run("bench", "vgg16", "--peers", "none", "--layers", "conv3*", status=130)
    run("bench", "all", "--peers", "none", "--layers", "c3d/*", status=130)
    assert [(layer.suite, layer.name) for layer in seen] == [
        ("resnet50", "conv1"), ("vgg16", "conv3_1"), ("c3d", "conv1a"),
    ]  # fmt: skip


def test_a_problem_may_come_as_one_word_or_many(tmp_path):
    for words in (["n1 c4 w9 k4 s3"], ["n1", "c4", "w9", "k4", "s3"]):
        path = tmp_path / "out.json"
        run("bench", *words, *QUICK, "--json", path)
        assert json.loads(path.read_text())["layers"][0]["problem"] == "n1 c4 w9 k4 s3"


def test_every_algorithm_that_serves_is_measured_or_has_a_reason(tmp_path):
    path = tmp_path / "out.json"
    run("bench", "n1 c4 h9 w9 k4 r3 s3 p1", "--peers", "none", "--rounds", "1", "--json", path)
    (layer,) = json.loads(path.read_text())["layers"]
    listed = [c["algorithm"] for kind in ("candidates", "rejected", "failed") for c in layer[kind]]
    assert sorted(listed) == [a.id for a in planning.algorithms() if a.device == "cpu"]
    assert layer["failed"] == []
    assert layer["pick"] == planning.plan(ConvProblem.parse(layer["problem"])).algorithm
    assert all(c["error"] <= c["error_bound"] for c in layer["candidates"])


def test_dtype_layout_and_batch_replace_those_of_the_layers(table, tmp_path):
    path = tmp_path / "out.json"
    changes = ["--dtype", "float64", "--layout", "channels_last", "--batch", "3"]
    run("bench", table, *QUICK, *changes, "--json", path)
    assert [layer["problem"] for layer in json.loads(path.read_text())["layers"]] == [
        "n3 c3 h9 w9 k4 r3 s3 p1 channels_last float64",
        "n3 c4 w20 k4 s3 p1 stride2 groups4 channels_last float64",
    ]


def test_a_model_is_run_and_its_other_nodes_are_listed(tmp_path):
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="one", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["a", "w"], ["b"], name="two", pads=[1, 1, 1, 1]),
        helper.make_node("ConvTranspose", ["b", "w"], ["y"], name="up"),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", kind, ("n", 3, 8, 8))],
        [helper.make_tensor_value_info("y", kind, None)],
        [onnx.numpy_helper.from_array(np.zeros((3, 3, 3, 3), np.float32), "w")],
    )  # fmt: skip
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), str(path))
    text = run("bench", path, *QUICK, "--batch", "2", "--json", tmp_path / "out.json").stdout
    assert "one x2" in text and "n2 c3 h8 w8 k3 r3 s3 p1" in text
    assert "skipped up: ConvTranspose is another operator than Conv" in text
    saved = json.loads((tmp_path / "out.json").read_text())
    assert [(layer["name"], layer["count"]) for layer in saved["layers"]] == [("one", 2)]
    assert saved["skipped"] == [{"name": "up", "why_not": "ConvTranspose is another operator than Conv"}]

    del graph.node[:2]
    graph.node[0].input[0] = "x"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), str(path))
    result = run("bench", path, *QUICK, status=2)
    assert "skipped up" in result.stdout and "net.onnx has no convolution to run" in result.stderr


@pytest.mark.skipif(bool(missing("onnxruntime") or missing("onnx")), reason="compares with ONNX Runtime")
def test_peers_are_timed_beside_the_pick(table, tmp_path):
    path = tmp_path / "out.json"
    names = ["--peers", "onnxruntime,scipy"]
    text = run("bench", table, "--algorithm", "cpu.reference", "--rounds", "2", *names, "--json", path).stdout
    assert "onnxruntime" in text
    layer = json.loads(path.read_text())["layers"][0]
    them, scipy = layer["peers"]
    assert (them["name"], scipy["name"]) == ("onnxruntime", "scipy")
    assert len(them["samples_s"]) == len(layer["candidates"][0]["samples_s"]) == 6
    assert them["median_s"] == pytest.approx(float(np.median(them["samples_s"])))
    assert scipy["median_s"] is None and "single planes" in scipy["why_not"]


class Wrong(Reference):
    """Claims to be exact, and is not."""

    family = "cpu.wrong"

    def error_bound(self, problem):
        return 1e-30


class Broken(Reference):
    family = "cpu.broken"

    def plan(self, problem):
        raise RuntimeError("it broke")


@pytest.mark.parametrize(
    ("odd", "message"),
    [(Wrong(), "first: cpu.wrong has error"), (Broken(), "first: cpu.broken failed: RuntimeError: it broke")],
)
def test_a_wrong_or_failing_algorithm_ends_in_status_1(table, tmp_path, monkeypatch, odd, message):
    monkeypatch.setattr(registry, "algorithms", lambda device=None: (*ALGORITHMS, odd))
    path = tmp_path / "out.json"
    options = ["--peers", "none", "--rounds", "1", "--json", path]
    assert message in run("bench", table, *options, status=1).stdout
    assert len(json.loads(path.read_text())["layers"]) == 2  # the other layers are run all the same
    run("bench", table, *options, "--algorithm", "cpu.reference")


def test_nothing_to_run_with_is_an_error():
    result = run("bench", "n1 c4 w9 k4 s3 compute_tf32", *QUICK, status=2)
    assert "no algorithm can serve any of these layers" in result.stderr


def test_ctrl_c_elsewhere_has_the_same_status(monkeypatch):
    def interrupted(*arguments, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(explain_commands, "time_candidates", interrupted)
    assert run("find", "n1 c4 w9 k4 s3", status=130).stderr == "interrupted\n"


# --- the other commands ----------------------------------------------------------------------


def test_explain_prints_the_ranking(shipped_figures):
    text = run("explain", "n1", "c4", "h9", "w9", "k4", "r3", "s3").stdout
    assert text == str(planning.explain(ConvProblem.parse("n1 c4 h9 w9 k4 r3 s3"))) + "\n"
    assert "->" in text and "cpu.reference" in text
    large = ["n1", "c64", "h56", "w56", "k64", "r3", "s3", "p1"]
    text = run("explain", *large).stdout
    more = run("explain", *large, "--exhaustive").stdout
    assert len(more.splitlines()) > len(text.splitlines())


def test_explain_tells_what_limits_cost():
    words = ["n1", "c16", "h12", "w12", "k16", "r3", "s3", "p1"]
    text = run("explain", *words, "--strict-nan", "--deny", "cpu.direct", "--deny", "cpu.fft").stdout
    assert "beyond its footprint" in text and "is denied by deny=cpu.fft" in text
    assert re.search(r"^  strict_nan: \d+\.\d\dx$", text, re.M) and re.search(r"^  deny: \d", text, re.M)
    assert run("explain", *words, "--allow", "cpu.im2col.own").stdout.count("->cpu.im2col.own ") == 1
    changing = run("explain", *words, "--weights-change").stdout
    assert (
        changing == str(planning.explain(ConvProblem.parse(" ".join(words)), weights_constant=False)) + "\n"
    )
    assert "deny='cpu.magic' must be" in run("explain", *words, "--deny", "cpu.magic", status=2).stderr


def test_find_prints_the_measured_table():
    text = run("find", "n1 c4 w9 k4 s3", "--rounds", "1").stdout
    assert text.startswith("n1 c4 w9 k4 s3\n")
    assert "cpu.reference" in text and "median" in text


def test_info_says_what_a_bug_report_needs():
    text = run("info").stdout
    for word in ("python", "numpy", "peak_float32", "GFLOP/s", "l2_bytes", "KiB", "cache folder"):
        assert word in text
    for algorithm in planning.algorithms():
        assert algorithm.id in text
    for section in ("system", "cpu", "threads", "gpu", "environment", "kept"):
        assert re.search(rf"^ ?{section}\b", text, re.M)
    assert "governor" in text and "instruction sets" in text and "wisdom of this machine" in text


def test_info_as_json(monkeypatch, tmp_path, wisdom):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("SOME_SECRET", "hidden")
    found = json.loads(run("info", "--json").stdout)
    assert "constants" not in found and found["environment"]["OMP_NUM_THREADS"] == "7"
    assert "SOME_SECRET" not in found["environment"]
    assert found["machine"]["threads"] == found["threads"]["threads"] >= 1
    assert found["cpu"]["l2_bytes"] == devices.current_machine().l2_bytes
    assert found["kept"]["kernels_bytes"] > 0 and found["kept"]["wisdom folder"] == str(wisdom)
    assert found["kept"]["wisdom of this machine"] == "0 problems, 0 candidates"
    assert set(found["algorithms"]) == {a.id for a in planning.algorithms()}
    constants = json.loads(run("info", "--json", "--constants").stdout)["constants"]
    assert {"file", "name", "value", "comment"} <= constants[0].keys()


def test_info_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyfftw", None)
    missing.cache_clear()

    class Needy(Reference):
        family, needs = "cpu.needy", ("pyfftw", "cupy")

    monkeypatch.setattr(planning, "algorithms", lambda: (Needy(),))
    try:
        text = run("info").stdout
        assert "needs pyfftw, which is not installed (pip install pyfftw)" in text
        assert "pip install 'convalgos[gpu]'" in text or not missing("cupy")
    finally:
        monkeypatch.undo()
        missing.cache_clear()


# --- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "resnet5"], "'resnet5' is not a suite, a .csv, .onnx or .txt file, or a problem like"),
        (["bench", "resnet5"], "did you mean resnet50"),
        (["bench", "nowhere.csv"], "nowhere.csv: No such file or directory"),
        (["bench", "nowhere.onnx"], "nowhere.onnx: No such file or directory"),
        (["bench", "n1 c4 h9"], "problem 'n1 c4 h9': missing size"),
        (["bench", "vgg16", "--layers", "zzz"], "--layers 'zzz' matches none of conv1_1, conv1_2"),
        (["bench", "--algorithm", "cpu.directly"], "algorithm='cpu.directly' must be 'auto' or one of"),
        (["bench", "--peers", "torcs"], "peers='torcs' must be none, or some of"),
        (["bench", "--rounds", "0"], "Invalid value for '--rounds'"),
        (["bench", "--dtype", "int4"], "Invalid value for '--dtype'"),
        (["bench", "n1 c4 w9 k4 s3", *QUICK, "--json", "/proc/nowhere/x.json"], "No such file or directory"),
        (["explain"], "Missing argument"),
        (["explain", "n1 c4 w9 k4 s3 groups3"], "groups=3 must divide c=4"),
        (["find", "what"], "problem 'what': 'what' is not understood"),
        (["bensch"], "No such command 'bensch'"),
    ],
)
def test_errors_are_one_line_with_status_2(arguments, message):
    result = run(*arguments, status=2)
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stderr.strip().splitlines()[-1].startswith("Error: ")
    assert result.stdout == ""


def test_a_wrong_table_is_named_with_its_line_and_column(table):
    table.write_text(TABLE.replace("net,second,1,2,4,20", "net,second,1,2,4,twenty"))
    result = run("bench", table, *QUICK, status=2)
    assert f"{table}, line 3, column spatial: 'twenty' must be a whole number" in result.stderr


def test_unsupported_is_an_error_of_one_line(monkeypatch):
    def unsupported(problem, **limits):
        raise Unsupported("not\nhere")

    monkeypatch.setattr(planning, "explain", unsupported)
    assert run("explain", "n1 c4 w9 k4 s3", status=2).stderr == "Error: not here\n"


def test_a_model_without_onnx_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnx", None)
    missing.cache_clear()
    try:
        result = run("bench", tmp_path / "net.onnx", status=2)
        assert "net.onnx needs onnx, which is not installed (pip install 'convalgos[bench]')" in result.stderr
    finally:
        monkeypatch.undo()
        missing.cache_clear()


# --- the process -----------------------------------------------------------------------------


def test_python_m_convalgos():
    command = [sys.executable, "-m", "convalgos", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.startswith("convalgos")


def test_starting_up_is_light():
    code = (
        "import sys, convalgos.tools.cli.main\n"
        "print(sorted({'torch', 'onnx', 'onnxruntime', 'llvmlite', 'numba', 'scipy'} & sys.modules.keys()))"
    )
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "[]"
