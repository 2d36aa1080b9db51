"""The lock of a file is free when its holder has left it or is dead, whatever was forked meanwhile."""

import fcntl
import os
import signal
import subprocess
import sys
import time

import pytest

from convalgos.core.file_lock import locked

WITHIN = """
import os, sys, time
from pathlib import Path
from convalgos.core.file_lock import locked

def forked(then):
    pid = os.fork()
    if not pid:
        os.close(1)  # the pipe by which the parent tells
        then()
        os._exit(0)
    return pid

path = Path(sys.argv[1])
"""


def start(code, path):
    return subprocess.Popen(
        [sys.executable, "-c", WITHIN + code, str(path)], stdout=subprocess.PIPE, text=True, bufsize=1
    )


def children(text):
    return [int(word) for word in text.split()]


def test_a_child_that_lives_on_does_not_keep_it(tmp_path):
    code = """
with locked(path):
    child = forked(lambda: time.sleep(60))
with locked(path):
    print(child)
"""
    process = start(code, tmp_path / "file")
    try:
        told, _ = process.communicate(timeout=20)
    finally:
        process.kill()
    (child,) = children(told)
    os.kill(child, signal.SIGKILL)
    assert process.returncode == 0


def test_nor_where_its_parent_was_killed_within(tmp_path):
    code = """
with locked(path):
    print(forked(lambda: time.sleep(60)), flush=True)
    time.sleep(60)
"""
    process = start(code, tmp_path / "file")
    (child,) = children(process.stdout.readline())
    process.kill()
    process.wait(20)
    try:
        taken = subprocess.run(
            [sys.executable, "-c", WITHIN + "with locked(path): print('mine')", str(tmp_path / "file")],
            capture_output=True, text=True, timeout=20,
        )  # fmt: skip
    finally:
        os.kill(child, signal.SIGKILL)
        process.stdout.close()
    assert taken.stdout == "mine\n"


def test_a_child_that_leaves_it_leaves_it_to_its_parent(tmp_path):
    code = """
import fcntl
with locked(path):
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        try:
            fcntl.flock(os.open(f"{path}.lock", os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("held")
"""
    told, _ = start(code, tmp_path / "file").communicate(timeout=20)
    assert told == "held\n"


def test_patience_ends(tmp_path):
    path = tmp_path / "file"
    with locked(path):
        pass
    with open(tmp_path / "file.lock") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        began = time.monotonic()
        with pytest.raises(TimeoutError, match="another process holds this lock"), locked(path, 0.05):
            pass
        assert time.monotonic() - began >= 0.05
    with locked(path, 0.05):
        pass
