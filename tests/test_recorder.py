"""What a program runs is counted, in a block, in a whole program and by several at once."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from click.testing import CliRunner

import convalgos as ca
from convalgos import bench, recorder
from convalgos.algorithm import watchers
from convalgos.cli import main

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
        ca.signal.convolve(np.ones(3000), np.ones(100))
        ca.find(PROBLEM, allow="cpu.reference")  # what measuring runs is not the program's
        with pytest.raises(ValueError):
            ca.conv(X, W, padding=-1)
    plan(X, prepared)
    assert problems[PROBLEM] == 4
    (other,) = set(problems) - {PROBLEM}
    assert (other.ndim, other.mode, other.dtype) == (1, "convolution", "float64")
    assert not watchers


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
    recorder.add(path, {PROBLEM: 2})
    recorder.add(path, {PROBLEM: 1, other: 7})
    assert path.read_text() == f"7 {other}\n3 {PROBLEM}\n"
    path.write_text(f"# mine\n\n{PROBLEM}  # once\n5 {other}\n")
    assert recorder.read(path) == {PROBLEM: 1, other: 5}
    path.write_text(f"{other}\n3 what\n")
    with pytest.raises(ValueError, match=r"captured\.txt, line 2: problem 'what'"):
        recorder.read(path)


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
    assert recorder.read(output) == {PROBLEM: 23}
    (layer,) = bench.read_target(str(output))[0]
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
    environment = {**os.environ, recorder.VARIABLE: str(output)}
    subprocess.run([sys.executable, "-c", code, "2", "0"], env=environment, check=True)
    assert recorder.read(output) == {PROBLEM: 2}
