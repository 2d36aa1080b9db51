"""What a program runs is counted, in a block, in a whole program and by several at once."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import convalgos as ca
from convalgos.core.plan import watchers
from convalgos.select.measure import capture as measure_capture
from convalgos.tools.bench import read_target as targets
from convalgos.tools.cli.main import main

PROBLEM = ca.ConvProblem.parse("n1 c2 h9 w9 k4 r3 s3 p1")
X, W = np.ones(PROBLEM.x_shape, np.float32), np.ones(PROBLEM.w_shape, np.float32)
PROGRAM = f"""
import sys, numpy as np, convalgos as ca
x, w = np.ones({PROBLEM.x_shape}, "f4"), np.ones({PROBLEM.w_shape}, "f4")
for _ in range(int(sys.argv[1])):
    ca.conv(x, w, padding=1, algorithm="cpu.reference")
sys.exit(int(sys.argv[2]))
"""


def test_runs_of_conv_plans_and_signal_are_counted(wisdom):
    plan = ca.plan(PROBLEM)  # made before
    with ca.capture() as problems:
        ca.conv(X, W, padding=1)
        ca.conv(X, W, padding=1, algorithm="cpu.reference")
        prepared = plan.prepare(W)
        plan(X, prepared)
        ca.conv(X, prepared, padding=1)
        ca.signal.convolve(np.ones(90_000), np.ones(100))
        ca.find(PROBLEM, allow="cpu.reference")  # what measuring runs is not the program's
        with pytest.raises(ValueError):
            ca.conv(X, W, padding=-1)
    plan(X, prepared)
    assert problems[PROBLEM] == 4
    (other,) = set(problems) - {PROBLEM}
    assert (other.ndim, other.mode, other.dtype) == (1, "convolution", "float64")
    assert not watchers


SIGNALS = {  # calls of sizes that come for the first time, by the problem that each is
    "n1 c1 w9000 k1 s4001 p4000": (ca.signal.fftconvolve, float, (9000,), (4001,)),
    "n1 c1 h120 w130 k1 r15 s16 p14,15": (ca.signal.fftconvolve, float, (120, 130), (15, 16)),
    "n1 c1 w30001 k1 s64 p63": (ca.signal.convolve, float, (30001,), (64,)),
    "n1 c1 w9000 k1 s700 p699": (ca.signal.convolve, int, (9000,), (700,)),
    "n1 c1 h158 w150 k1 r15 s16": (ca.signal.convolve2d, float, (130, 120), (15, 16), "full", "symm"),
}


@pytest.mark.parametrize("text", SIGNALS)
def test_first_calls_of_a_size_are_counted(text):
    """These go ways without a plan where nobody counts."""
    function, dtype, x_shape, w_shape, *options = SIGNALS[text]
    x, w = (np.random.default_rng(3).integers(-9, 9, shape).astype(dtype) for shape in (x_shape, w_shape))
    ca.forget_plans()
    expected = function(x, w, *options)
    ca.forget_plans()
    for _ in range(2):
        with ca.capture() as problems:
            y = function(x, w, *options)
        assert problems == {ca.ConvProblem.parse(f"{text} convolution float64"): 1}
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-9 * abs(expected).max())


@pytest.mark.parametrize("n", [5000, 40_000])
def test_the_first_call_with_a_filter_is_counted(n):
    x, h = np.ones(n, "f4"), np.hanning(300).astype("f4")
    ca.forget_plans()
    for i in range(3):
        with ca.capture() as problems:
            ca.signal.lfilter(h + np.float32(i), np.ones(1, "f4"), x)
        assert problems == {ca.ConvProblem.parse(f"n1 c1 w{n} k1 s300 p299:0 convolution"): 1}


def test_threads_and_nested_blocks():
    with ca.capture() as outer:
        with ca.capture() as inner:
            threads = [
                threading.Thread(target=lambda: [ca.conv(X, W, padding=1) for _ in range(50)])
                for _ in range(4)
            ]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
        ca.conv(X, W, padding=1)
    assert (inner[PROBLEM], outer[PROBLEM]) == (200, 201)


def test_other_arrays_are_counted_once():
    torch = pytest.importorskip("torch", reason="CI installs it")
    with ca.capture() as problems:
        ca.conv(torch.ones(PROBLEM.x_shape), torch.ones(PROBLEM.w_shape), padding=1)
    assert problems == {PROBLEM: 1}


def test_a_file_is_added_to_and_read_by_people(tmp_path):
    path = tmp_path / "captured.txt"
    other = ca.ConvProblem.parse("n1 c1 w9 k1 s3")
    for counts in ({PROBLEM: 2}, {PROBLEM: 1, other: 7}):
        left = path.with_name(f"{path.name}-of-a-process{measure_capture.SUFFIX}")
        left.write_text("".join(f"{count} {problem}\n" for problem, count in counts.items()))
        measure_capture.gather_counts(path)
    assert path.read_text() == f"7 {other}\n3 {PROBLEM}\n"
    path.write_text(f"# mine\n\n{PROBLEM}  # once\n5 {other}\n")
    assert measure_capture.read_capture(path) == {PROBLEM: 1, other: 5}
    path.write_text(f"{other}\n3 what\n")
    with pytest.raises(ValueError, match=r"captured\.txt, line 2: problem 'what'"):
        measure_capture.read_capture(path)


@pytest.mark.parametrize("before", ["unlink", "second write"])
def test_what_is_added_while_a_process_is_ended_counts_once(tmp_path, monkeypatch, before):
    path = tmp_path / "my captured.txt"
    path.write_text(f"1 {PROBLEM}\n")
    left = path.with_name(f"{path.name}-0a1b{measure_capture.SUFFIX}")
    left.write_text(f"6 {PROBLEM}\n")
    with monkeypatch.context() as ended:
        if before == "unlink":
            ended.setattr(Path, "unlink", broken_off)
        else:
            writes = [broken_off, measure_capture.write_atomic]
            ended.setattr(measure_capture, "write_atomic", lambda *given: writes.pop()(*given))
        with pytest.raises(KeyboardInterrupt):
            measure_capture.gather_counts(path)
    assert measure_capture.read_capture(path) == {PROBLEM: 7}
    assert measure_capture.gather_counts(path) == {PROBLEM: 7} and not list(tmp_path.glob("*.counts"))
    left.with_name(f"{path.name}-0a1c{measure_capture.SUFFIX}").write_text(f"2 {PROBLEM}\n")
    assert measure_capture.gather_counts(path) == {PROBLEM: 9}
    assert path.read_text() == f"9 {PROBLEM}\n"


def broken_off(*given, **options):
    raise KeyboardInterrupt


def capture(output, *command):
    run = [sys.executable, "-m", "convalgos", "capture", "-o", str(output), "--", *command]
    return subprocess.run(run, capture_output=True, text=True)


def test_the_command_counts_whole_programs_and_passes_their_status_on(tmp_path):
    output = tmp_path / "captured.txt"
    done = capture(output, sys.executable, "-c", PROGRAM, "3", "7")
    assert done.returncode == 7 and "3 runs; 1 problems" in done.stderr
    parent = (
        "import subprocess, sys\n"
        "runs = [subprocess.Popen([sys.executable, '-c', *sys.argv[1:]]) for _ in range(4)]\n"
        "sys.exit(max(r.wait() for r in runs))\n"
    )
    done = capture(output, sys.executable, "-c", parent, PROGRAM, "5", "0")
    assert done.returncode == 0 and "20 runs" in done.stderr
    assert measure_capture.read_capture(output) == {PROBLEM: 23}
    (layer,) = targets.read_target(str(output))[0]
    assert (layer.problem, layer.count) == (PROBLEM, 23)


def test_a_program_that_runs_nothing_or_is_not_there(tmp_path):
    done = capture(tmp_path / "captured.txt", sys.executable, "-c", "print('hello')")
    assert done.returncode == 0 and done.stdout == "hello\n" and "nothing was run" in done.stderr
    assert not (tmp_path / "captured.txt").exists()
    missing = CliRunner().invoke(main, ["capture", "--", "/no/such/program"])
    assert missing.exit_code == 2 and "is no program" in missing.stderr


def test_a_child_of_a_fork_tells_only_of_itself(tmp_path):
    code = PROGRAM.replace("sys.exit", "import os; pid = os.fork(); pid and os.waitpid(pid, 0); sys.exit")
    output = tmp_path / "captured.txt"
    environment = {**os.environ, measure_capture.VARIABLE: str(output)}
    subprocess.run([sys.executable, "-c", code, "2", "0"], env=environment, check=True)
    assert measure_capture.read_capture(output) == {PROBLEM: 2}


def run_captured(code, output, *arguments):
    environment = {**os.environ, measure_capture.VARIABLE: str(output)}
    run = [sys.executable, "-c", code, *arguments]
    return subprocess.run(run, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("damage", [b"3 what\n", b"\xff\xfe\x00", b"9" * 400 + b" n1 c1 w9 k1 s3\n"])
def test_a_damaged_file_costs_a_warning(tmp_path, damage):
    output = tmp_path / "captured.txt"
    output.write_bytes(damage)
    done = run_captured(PROGRAM, output, "3", "0")
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert done.stderr.count("was damaged") == 1
    assert measure_capture.read_capture(output) == {PROBLEM: 3}
    assert (tmp_path / "captured.txt.damaged").read_bytes() == damage


def test_a_file_that_cannot_be_written_costs_a_warning(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    done = run_captured(PROGRAM, tmp_path / "file" / "captured.txt", "3", "7")
    assert done.returncode == 7 and "Traceback" not in done.stderr
    assert done.stderr.count("RuntimeWarning: the program runs on, but is no longer captured") == 1


def test_a_full_disk_does_not_reach_the_program(tmp_path):
    """Files of this process may not grow: as on a full disk, each write fails."""
    code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n" + PROGRAM
    done = run_captured(code, tmp_path / "captured.txt", "3", "7")
    assert done.returncode == 7 and "Traceback" not in done.stderr
    assert done.stderr.count("RuntimeWarning: the program runs on, but is no longer captured") == 1


@pytest.mark.parametrize("end", ["SIGKILL", "SIGTERM", "SIGINT"])
def test_a_program_that_ends_by_a_signal_has_told_all(tmp_path, end):
    told = "signal.signal(signal.SIGINT, signal.default_int_handler)"  # which jobs in the background ignore
    ends = f"import os, signal; {told}; os.kill(os.getpid(), signal.{end}); sys.exit("
    code = PROGRAM.replace("sys.exit(", ends)
    done = capture(tmp_path / "captured.txt", sys.executable, "-c", code, "7", "0")
    assert done.returncode > 128 and "7 runs; 1 problems" in done.stderr
    assert (tmp_path / "captured.txt").read_text() == f"7 {PROBLEM}\n"
    assert not list(tmp_path.glob("*.counts"))


POOL = f"""
import multiprocessing, sys
import numpy as np, convalgos as ca

def work(_):
    x, w = np.ones({PROBLEM.x_shape}, "f4"), np.ones({PROBLEM.w_shape}, "f4")
    ca.conv(x, w, padding=1, algorithm="cpu.reference")

if __name__ == "__main__":
    work(0)
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:  # which ends its workers by a signal
        pool.map(work, range(9))
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_pool_tell_what_they_ran(tmp_path, method):
    program = tmp_path / "program.py"
    program.write_text(POOL)
    done = capture(tmp_path / "captured.txt", sys.executable, str(program), method)
    assert done.returncode == 0 and "10 runs; 1 problems" in done.stderr


def test_a_program_that_runs_on_is_read(tmp_path):
    """What a process has not added yet is part of what is read, and is not taken from it."""
    output = tmp_path / "captured.txt"
    code = PROGRAM.replace("sys.exit(", "print('ran', flush=True); input(); sys.exit(")
    running = subprocess.Popen(
        [sys.executable, "-c", code, "4", "0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, measure_capture.VARIABLE: str(output)},
    )  # fmt: skip
    try:
        assert running.stdout.readline() == "ran\n"
        assert (
            measure_capture.read_capture(output) == {PROBLEM: 4}
            and measure_capture.gather_counts(output) == {}
        )
    finally:
        running.communicate("\n", timeout=60)
    assert measure_capture.read_capture(output) == {PROBLEM: 4}


def test_a_child_forked_while_another_thread_counts_goes_on(tmp_path):
    code = f"""
import os, signal, threading
import convalgos as ca
from convalgos.core.plan import tell
problem = ca.ConvProblem.parse({str(PROBLEM)!r})
with ca.capture():
    done = threading.Event()
    def count():
        while not done.is_set():
            tell(problem)
    thread = threading.Thread(target=count)
    thread.start()
    stuck = 0
    for _ in range(60):
        child = os.fork()
        if not child:
            signal.alarm(3)
            tell(problem)
            os._exit(0)
        stuck += os.waitpid(child, 0)[1] != 0
        if stuck:
            break
    done.set()
    thread.join()
print(stuck)
"""
    done = run_captured(code, tmp_path / "captured.txt")
    assert done.stdout == "0\n", done.stderr
