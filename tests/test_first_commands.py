"""What people meet first: listings, networks in explain and find, near names, completion, exit statuses."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner
from command_line import run
from test_cli import QUICK, TABLE, Broken, Wrong

import convalgos as ca
from convalgos.core.errors import missing
from convalgos.core.near_names import did_you_mean
from convalgos.cpu.reference import ALGORITHMS
from convalgos.cpu.runtime import mkl
from convalgos.gpu import device as gpu
from convalgos.select import choose, registry
from convalgos.tools.bench.suites import suites
from convalgos.tools.cli import completion
from convalgos.tools.cli.main import main
from convalgos.tools.console import progress_bar

HOSTILE = "[/conv1]\x1b[2J"
TERMINAL = {"TTY_COMPATIBLE": "1", "NO_COLOR": "1"}


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(TABLE.replace("first", HOSTILE))
    return path


def on_terminal(*arguments, width=80):
    """What a command shows on a terminal of so many columns, without the styles."""
    words = list(map(str, arguments))
    done = CliRunner(env={**TERMINAL, "COLUMNS": str(width)}, catch_exceptions=False).invoke(main, words)
    assert done.exit_code == 0, done.output
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", done.stdout)


# --- networks --------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [60, 80, 120])
def test_explain_shows_the_picks_of_a_suite(width):
    text = on_terminal("explain", "alexnet", width=width)
    assert max(map(len, text.splitlines())) <= width and "…" not in text
    assert "all 5 convolutions in a row: " in text
    for layer in suites()["alexnet"]:
        line = next(line for line in text.splitlines() if line.startswith(f" {layer.name} "))
        pick = ca.explain(layer.problem).candidates[0].id
        assert pick.removeprefix("cpu.") in line.split()


def test_explain_shows_the_picks_of_a_model_and_a_table(tmp_path, table):
    onnx = pytest.importorskip("onnx")
    from onnx_mutants import model

    path = tmp_path / "net.onnx"
    onnx.save(model(), str(path))
    text = run("explain", path, "--batch", "4", "--strict-nan").stdout
    assert "n4 c3 h8 w8 k4 r3 s3 p1,0 stride1,2" in text
    assert "winograd" not in text and "fft" not in text
    text = run("explain", table, "--dtype", "float64", "--direction", "backward_data").stdout
    assert "[/conv1]\\x1b[2J" in text and "\x1b" not in text
    assert "n1 c3 h9 w9 k4 r3 s3 p1 backward_data float64" in text


def test_find_measures_a_network(table, monkeypatch):
    monkeypatch.setattr(registry, "algorithms", lambda device=None: ALGORITHMS)
    text = run("find", table, "--rounds", "1").stdout
    assert "[/conv1]\\x1b[2J" in text and "reference" in text and "regret" in text
    monkeypatch.setattr(registry, "algorithms", lambda device=None: (*ALGORITHMS, Wrong()))
    assert "cpu.wrong has error" in run("find", table, "--rounds", "1", status=1).stdout


def test_one_problem_takes_changes_too():
    text = run("explain", "n1 c4 w9 k4 s3", "--batch", "3", "--layout", "channels_last").stdout
    assert text.startswith("n3 c4 w9 k4 s3 channels_last\n")
    told = run("explain", "resnet5", status=2).stderr
    assert "did you mean the suite resnet50" in told and told.count("\n") == 1


def test_rejections_that_only_name_another_direction_or_type_are_left_out():
    for direction, gone in (("forward", "cpu.winograd.weights"), ("backward_data", "cpu.direct.weights")):
        problem = ca.ConvProblem.parse(f"n1 c4 h9 w9 k4 r3 s3 {direction}")
        ranking = ca.explain(problem)
        left = [r for r in ranking.rejected if r.elsewhere]
        for text in (str(ranking), run("explain", problem).stdout, on_terminal("explain", problem)):
            assert gone not in text and not re.search(r"only, not(?!\s+in\s+channels_first)", text)
            assert re.search(rf"^ +{len(left)} more +no: for other directions or types only", text, re.M)
        assert any(r.id.startswith(gone) for r in ranking.rejected)  # for whoever asks in Python


# --- listings --------------------------------------------------------------------------------


def test_algorithms_lists_every_id_with_what_it_does():
    text = run("algorithms").stdout
    words = set(text.split())
    for algorithm in ca.algorithms():
        assert algorithm.id in words or f".{algorithm.variant}" in words, algorithm.id
    line = next(line for line in text.splitlines() if "cpu.winograd.f2x3" in line)
    assert ".f4x3" in line and "fewer products" in line and "y dx " in line and line.rstrip().endswith("yes")
    assert " dw " in next(line for line in text.splitlines() if "cpu.direct.weights" in line)
    if gpu.why_none():
        assert "no: " in next(line for line in text.splitlines() if "gpu.direct" in line)
    only = run("algorithms", "cpu.fft").stdout
    assert "cpu.fft.fftw .mkl .overlap" in only and "cpu.fft_tiles" not in only and "winograd" not in only
    told = run("algorithms", "cpu.wingrad", status=2).stderr
    assert "did you mean cpu.winograd" in told


def test_algorithms_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(mkl, "library", lambda: None)
    monkeypatch.setattr(mkl, "_candidates", lambda: ())
    monkeypatch.setitem(sys.modules, "pyfftw", None)
    missing.cache_clear()
    try:
        lines = run("algorithms", "cpu").stdout.splitlines()
        assert any("cpu.im2col.mkl" in line and "no: needs the mkl package" in line for line in lines)
        assert any("cpu.fft.fftw" in line and "no: needs pyfftw" in line for line in lines)
        assert any("cpu.im2col.blas .own" in line and line.rstrip().endswith("yes") for line in lines)
    finally:
        monkeypatch.undo()
        missing.cache_clear()


def test_suites_are_listed_with_their_layers_and_kinds():
    lines = {line.split()[0]: line for line in run("suites").stdout.splitlines() if line.split()}
    for name, layers in suites().items():
        assert lines[name].split()[1] == str(len(layers))
    assert "2-D: 1x1 (6), 3x3 (4), 3x3 stride 2 (2)" in lines["resnet50"]
    assert "1-D: 4 taps depthwise" in lines["mamba"] and "3-D: 3x3x3 (4)" in lines["c3d"]
    assert lines["all"].split()[1] == str(sum(map(len, suites().values())))


def test_info_says_no_gpu_once(monkeypatch):
    reason = "needs cupy, which is not installed (pip install 'convalgos[gpu]')"
    monkeypatch.setattr(gpu, "why_none", lambda: reason)
    text = run("info").stdout
    assert text.count("convalgos[gpu]") == 1 and text.count("no GPU") == 1
    assert all(a.id in text for a in ca.algorithms())
    assert not any("gpu." in line and "ready" in line for line in text.splitlines())


# --- names that are near -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "near", "far"),
    [
        (["bench", "--algorithm", "cpu.directly"], "did you mean cpu.direct", "cpu.fft"),
        (["bench", "--algorithm", "winograd.f4x3"], "did you mean cpu.winograd.f4x3", "cpu.fft"),
        (["bench", "--algorithm", "xyz"], "`convalgos algorithms`", "cpu.fft"),
        (["bench", "vgg61"], "did you mean vgg16", "resnet50"),
        (["bench", "xyz"], "convalgos suites lists the suites", "resnet50"),
        (["explain", "n1 c4 w9 k4 s3", "--deny", "cpu.winogard"], "did you mean cpu.winograd", "cpu.fft"),
        (["explain", "n1 c4 w9 k4 s3", "--allow", "x"], "`convalgos algorithms`", "cpu.fft"),
        (["bench", "vgg16", "--layers", "conv3-1"], "did you mean conv3_1", "\n "),
        (["bench", "--peers", "torch.chanels_last"], "did you mean torch.channels_last", "scipy.signal"),
    ],
)
def test_names_that_are_unknown_suggest_the_near_ones_only(arguments, near, far):
    told = run(*arguments, status=2).stderr
    assert near in told and far not in told and len(told) < 400


def test_what_is_near():
    known = ["cpu.direct", "cpu.direct.pixels", "cpu.winograd.f4x3", "gpu.winograd.f4x3", "resnet50"]
    assert did_you_mean("ResNet5", known) == "; did you mean resnet50?"
    assert did_you_mean("winograd.f4x3", known).startswith("; did you mean cpu.winograd.f4x3 or gpu.winograd")
    assert did_you_mean("zzz", known) == did_you_mean(3, known) == did_you_mean("", known) == ""
    with pytest.raises(
        ValueError, match=r"must be 'auto' or one of the \d+ ids .*; did you mean cpu\.direct"
    ):
        ca.plan(ca.ConvProblem.parse("n1 c4 w9 k4 s3"), algorithm="cpu.dirct")


# --- completion --------------------------------------------------------------------------------


def completed(words, begun):
    found = BashComplete(main, {}, "convalgos", "_CONVALGOS_COMPLETE").get_completions(words, begun)
    return [item.value for item in found]


def test_the_shell_completes_suites_ids_peers_and_devices():
    assert completed(["bench"], "res") == ["resnet50", "resnext101"] == completed(["find"], "res")
    assert "all" in completed(["tune"], "") and completed(["explain"], "unet") == ["unet", "unet3d_mlperf"]
    assert completed(["bench", "--algorithm"], "cpu.fft.") == [
        "cpu.fft.fftw",
        "cpu.fft.gauss",
        "cpu.fft.mkl",
        "cpu.fft.overlap",
    ]
    assert "cpu.winograd" in completed(["explain", "--deny"], "cpu.w")
    assert completed(["bench", "--peers"], "scipy,tor") == [
        "scipy,torch", "scipy,torch.channels_first", "scipy,torch.channels_last", "scipy,torch.x86",
        "scipy,torch.onednn",
    ]  # fmt: skip
    assert completed(["bench", "--device"], "cu") == ["cuda", "cuda:0"]
    (item,) = BashComplete(main, {}, "convalgos", "_CONVALGOS_COMPLETE").get_completions(["bench"], "./mod")
    assert item.type == "file"  # the shell goes on by itself


def test_help_says_how_to_switch_completion_on_and_what_statuses_mean():
    text = run("--help").stdout
    assert '  eval "$(_CONVALGOS_COMPLETE=bash_source convalgos)"' in text
    for status in (0, 1, 2, 130):
        assert re.search(rf"^ +{status} +\w", text, re.M)
    assert "143" in text and "SIGTERM" in text
    done = subprocess.run(
        [sys.executable, "-c", "from convalgos.tools.cli.main import main; main(prog_name='convalgos')"],
        env={**os.environ, "_CONVALGOS_COMPLETE": "bash_source"}, capture_output=True, text=True,
    )  # fmt: skip
    assert "_convalgos_completion" in done.stdout, done.stderr
    assert completion.HOW.count("source convalgos") >= 2


# --- exit statuses -----------------------------------------------------------------------------


@pytest.mark.parametrize("odd", [Wrong(), Broken()])
def test_find_ends_in_1_where_a_result_is_wrong_or_an_algorithm_fails(monkeypatch, odd):
    monkeypatch.setattr(registry, "algorithms", lambda device=None: (*ALGORITHMS, odd))
    run("find", "n1 c4 w9 k4 s3", "--rounds", "1", status=1)
    monkeypatch.setattr(registry, "algorithms", lambda device=None: ALGORITHMS)
    run("find", "n1 c4 w9 k4 s3", "--rounds", "1")


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["find", "n1 c4 w9 k4 s3 compute_tf32"], 1),  # nothing serves it
        (["explain", "n1 c4 w9 k4 s3 compute_tf32"], 0),  # which is what explain is for
        (["explain", "n1 c4 w9 k4 s3", "--device", "cuda"], 2 if gpu.why_none() else 0),
        (["bench", "n1 c4 w9 k4 s3", "--device", "tpu"], 2),
        (["wisdom", "merge", "nowhere.json"], 2),
        (["wisdom", "forget"], 2),
        (["select", "evaluate", "nowhere.json"], 2),
        (["report", "nowhere.json"], 2),
        (["tune"], 2),
        (["capture", "nowhere-to-be-found"], 2),
    ],
)
def test_statuses_are_the_same_in_every_command(arguments, status):
    done = run(*arguments, status=status)
    assert not status or ((done.stderr or done.stdout) and "Traceback" not in done.output)


@pytest.mark.parametrize(
    ("error", "status"), [(MemoryError("of 36 TiB"), 2), (ImportError("numba is broken"), 2)]
)
def test_what_this_machine_cannot_do_is_a_sentence(monkeypatch, error, status):
    def fails(*arguments, **more):
        raise error

    monkeypatch.setattr(choose, "rank", fails)
    told = run("explain", "n1 c4 w9 k4 s3", status=status).stderr
    assert told.startswith("Error: ") and str(error) in told and told.count("\n") == 1


def test_errors_show_names_as_data(tmp_path):
    told = run("bench", tmp_path / f"{HOSTILE}.csv", status=2).stderr
    assert "\x1b" not in told and "[/conv1]\\x1b[2J.csv: No such file" in told


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_leaves_the_file_and_the_table_of_what_was_done(tmp_path, sent, status):
    table, path = tmp_path / "slow.csv", tmp_path / "out.json"
    table.write_text(TABLE + "net,slow,2,8,64,64x64,64,61x61,1x1,30x30,1x1,1\n")
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # CI may ignore it
    code += "from convalgos.tools.cli.main import main; main()"
    command = [sys.executable, "-c", code, "bench", str(table), *QUICK, "--json", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 120
        while not path.exists() or len(json.loads(path.read_text())["layers"]) < 2:
            assert time.monotonic() < deadline and process.poll() is None, process.communicate()
            time.sleep(0.02)
        time.sleep(0.2)  # into the third layer, which takes minutes
        process.send_signal(sent)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == status
    saved = json.loads(path.read_text())
    assert [layer["name"] for layer in saved["layers"]] == ["first", "second"] and saved["format"] == 1
    assert "second" in output and "slow" not in output
    assert errors.strip() == "interrupted after 2 of 3 layers"
    run("report", path)


def test_a_reader_that_has_enough_is_no_error(table):
    """The status is that of the command, not of `head`, which closes the pipe at once."""
    commands = f"bench {table} {' '.join(QUICK)}", "explain n1 c4 w9 k4 s3", "info --json"
    running = [
        subprocess.Popen(
            ["bash", "-c", f"set -o pipefail; {sys.executable} -m convalgos {words} | true"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for words in commands
    ]  # fmt: skip
    for words, process in zip(commands, running, strict=True):
        told = process.communicate(timeout=120)
        assert process.returncode == 0 and told == ("", ""), (words, told)


# --- progress ----------------------------------------------------------------------------------


def test_progress_is_told_in_lines_where_stderr_is_a_file(table, monkeypatch):
    monkeypatch.setattr(progress_bar, "EVERY", 0.0)
    told = run("bench", table, *QUICK).stderr.splitlines()
    assert any(re.fullmatch(r"1 of 2 after \d+ s, second: cpu\.reference", line) for line in told)
    assert any("[/conv1]\\x1b[2J: cpu.reference" in line for line in told)
    monkeypatch.setattr(progress_bar, "EVERY", 60.0)
    assert run("bench", table, *QUICK).stderr == ""


def test_a_bar_shows_names_as_data(table):
    done = CliRunner(env={**TERMINAL, "COLUMNS": "100"}, catch_exceptions=False).invoke(
        main, ["bench", str(table), *QUICK]
    )
    assert done.exit_code == 0 and "[/conv1]\\x1b[2J" in done.stderr and "[/conv1]\\x1b[2J" in done.stdout
