"""What is remembered: its file, many writers at once, bad files, merging, forgetting, and timing again."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from command_line import run

import convalgos as ca
from convalgos.select import devices, measured, wisdom_file
from convalgos.select.measured import Measured
from convalgos.select.wisdom_file import Store

SMALL = ca.ConvProblem.parse("n1 c4 h9 w9 k4 r3 s3 p1")
OTHER = ca.ConvProblem.parse("n2 c3 w20 k4 s3")
OLD, NEW = "2026-01-01T00:00:00.000+00:00", "2026-01-02T00:00:00.000+00:00"


def timed(seconds=1e-3, when=NEW, **more):
    return Measured((seconds, seconds * 1.1, seconds * 0.9), 64, 1e-7, 1e-5, when=when, version="1", **more)


@pytest.fixture
def known(wisdom):
    """The file of a machine of our own."""
    return Store("a_machine-2t")


# --- the file --------------------------------------------------------------------------------


def test_what_is_recorded_is_there_for_another_process(known):
    known.record(SMALL, {"cpu.direct": timed(), "cpu.odd": Measured(failure="no", when=NEW)})
    assert known.lookup(SMALL)["cpu.direct"].median_s == 1e-3
    again = Store("a_machine-2t")
    assert again.lookup(SMALL) == known.lookup(SMALL)
    assert again.lookup(SMALL)["cpu.odd"].failure == "no"
    assert again.lookup(OTHER) == {}
    assert Store("another-2t").lookup(SMALL) == {}


def test_every_figure_comes_back(known):
    known.record(SMALL, {"cpu.direct": timed(1.23456789e-4)})
    (found,) = Store("a_machine-2t").lookup(SMALL).values()
    assert found.median_s == pytest.approx(1.23456789e-4, rel=1e-3)
    assert found.spread == pytest.approx(0.1, rel=0.01)
    assert (found.workspace_bytes, found.error, found.prepare_s) == (64, 1e-7, 1e-5)


def test_a_writer_goes_by_what_readers_read(known):
    exact = Measured((1.23456789e-4, 1.3e-4), 0, 1.23456789e-7, 3.33333333e-5, when=NEW, version="1")
    known.record(SMALL, {"cpu.direct": exact})
    assert known.lookup(SMALL) == Store("a_machine-2t").lookup(SMALL)


def test_what_others_wrote_meanwhile_is_kept(known):
    """A store reads its file again only where it is not what it wrote."""
    other = Store("a_machine-2t")
    for i, writer in enumerate([known, other, known, known, other]):
        writer.record(SMALL, {f"cpu.c{i}": timed()})
    assert len(Store("a_machine-2t").lookup(SMALL)) == 5 == len(other.lookup(SMALL))
    known.path.unlink()
    known.record(OTHER, {"cpu.direct": timed()})
    assert Store("a_machine-2t").entries().keys() == {str(OTHER)} == known.entries().keys()


def test_the_spread_is_that_of_quartiles():
    rng = np.random.default_rng(1)
    for count in range(1, 12):
        samples = tuple(rng.uniform(1, 2, count))
        low, middle, high = np.quantile(samples, (0.25, 0.5, 0.75))
        assert Measured(samples).spread == pytest.approx((high - low) / middle)


def test_the_file_is_sorted_with_a_line_for_every_candidate(known):
    known.record(OTHER, {"cpu.im2col.own": timed(), "cpu.direct": timed()})
    first = known.path.read_text()
    known.record(SMALL, {"cpu.direct": timed()})
    text = known.path.read_text()
    assert set(first.splitlines()) - set(text.splitlines()) <= {"  }"}  # what was there stays as it was
    assert text.index(str(SMALL)) < text.index(str(OTHER))
    assert text.index("cpu.direct", text.index(str(OTHER))) < text.index("cpu.im2col.own")
    assert len([line for line in text.splitlines() if "samples_s" in line]) == 3
    assert json.loads(text)["machine"] == "a_machine-2t"
    assert wisdom_file.dump(*wisdom_file.parse(text)) == text


def test_the_newest_of_a_candidate_is_kept(known):
    known.record(SMALL, {"cpu.direct": timed(1.0, NEW), "cpu.im2col.own": timed(1.0, NEW)})
    known.record(SMALL, {"cpu.direct": timed(2.0, OLD)})
    assert known.lookup(SMALL)["cpu.direct"].median_s == 1.0
    known.record(SMALL, {"cpu.direct": timed(3.0, "2026-01-02T00:00:00.001+00:00")})
    assert known.lookup(SMALL)["cpu.direct"].median_s == 3.0
    assert known.lookup(SMALL)["cpu.im2col.own"].median_s == 1.0


def test_a_folder_that_cannot_be_written_costs_a_warning(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("CONVALGOS_WISDOM", str(tmp_path / "file"))
    known = Store("a_machine-2t")
    with pytest.warns(RuntimeWarning, match="wisdom could not be kept"):
        known.record(SMALL, {"cpu.direct": timed()})
    assert "cpu.direct" in known.lookup(SMALL)  # for this process


BAD = {
    "truncated": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "binary": lambda text: "\x00\x80\x04\x95pickle",
    "code": lambda text: "__import__('os').abort()",
    "a list": lambda text: "[]",
    "deep": lambda text: "[" * 100_000,
    "another format": lambda text: text.replace('"format": 1', '"format": 99'),
    "a path for a machine": lambda text: text.replace("a_machine-2t", "../../etc/passwd"),
    "no problem": lambda text: text.replace("n1 c4", "q7"),
    "an id with a slash": lambda text: text.replace("cpu.direct", "../evil"),
    "infinite": lambda text: text.replace("0.001,", "1e999,"),
    "not a number": lambda text: text.replace("0.001,", "NaN,"),
    "negative": lambda text: text.replace("0.001,", "-0.001,"),
    "text for a time": lambda text: text.replace("0.001,", '"soon",'),
    "no samples": lambda text: text.replace("samples_s", "sample"),
    "a date without a zone": lambda text: text.replace("+00:00", ""),
    "a huge workspace": lambda text: text.replace("64,", "1" * 5000 + ","),
    "true for bytes": lambda text: text.replace('_bytes": 64', '_bytes": true'),
    "true for an error": lambda text: text.replace('"error": 1e-07', '"error": true'),
    "true for the format": lambda text: text.replace('"format": 1', '"format": true'),
    "infinite, by name": lambda text: text.replace('"error": 1e-07', '"error": Infinity'),
    "nested within": lambda text: text.replace("[0.001,", "[" * 900 + "]" * 900 + ", [0.001,"),
    "a number for a time": lambda text: text.replace(f'"when": "{NEW}"', '"when": 20260102'),
    "a time before all years": lambda text: text.replace(NEW, "0001-01-01T00:00:00+23:00"),
    "a list for a version": lambda text: text.replace('"version": "1"', '"version": [1]'),
    "a number for adapted": lambda text: text.replace('"version"', '"adapted": 1, "version"'),
    "less than any clock tells": lambda text: text.replace("0.001,", "5e-324,"),
}


@pytest.mark.parametrize("damage", BAD.values(), ids=BAD)
def test_a_bad_file_is_set_aside_with_a_warning(known, damage):
    known.record(SMALL, {"cpu.direct": timed()})
    bad = damage(known.path.read_text())
    assert bad != known.path.read_text()
    known.path.write_text(bad)
    with pytest.warns(RuntimeWarning, match="was damaged"):
        assert known.lookup(SMALL) == {}
    (aside,) = known.path.parent.glob("*.damaged")
    assert aside.read_text() == bad
    known.record(OTHER, {"cpu.direct": timed()})
    assert list(Store("a_machine-2t").entries()) == [str(OTHER)]


LARGE = "n1 c" + "4" * 400 + " h9 w9 k4 r3 s3 p1"
UNTRUE = {
    "from the future": lambda text: text.replace(NEW, "2999-01-01T00:00:00+00:00"),
    "a size of 400 digits": lambda text: text.replace(str(SMALL), LARGE),
    "larger than any memory": lambda text: text.replace(str(SMALL), "n1000000000 c1000000000 w9 k4 s3"),
    "padding of 30 digits": lambda text: text.replace("p1", "p" + "1" * 30),
}


@pytest.mark.parametrize("change", UNTRUE.values(), ids=UNTRUE)
def test_what_cannot_be_true_is_left_out_and_the_rest_is_kept(known, change):
    known.record(SMALL, {"cpu.direct": timed()})
    known.record(OTHER, {"cpu.direct": timed(when=OLD)})
    known.path.write_text(change(known.path.read_text()))
    with pytest.warns(RuntimeWarning, match="1 entries of wisdom cannot be true"):
        assert known.entries().keys() == {str(OTHER)}
    assert known.near(OTHER)[0] == OTHER and known.near(SMALL) is None
    known.record(SMALL, {"cpu.direct": timed(2e-3)})  # is not older, and warns no more
    assert Store("a_machine-2t").lookup(SMALL)["cpu.direct"].median_s == 2e-3


def test_a_clock_that_was_never_set_takes_nothing_away(known, monkeypatch):
    class Unset(wisdom_file.datetime):
        @classmethod
        def now(cls, zone):
            return cls(1970, 1, 1, tzinfo=zone)

    known.record(SMALL, {"cpu.direct": timed()})
    monkeypatch.setattr(wisdom_file, "datetime", Unset)
    assert Store("a_machine-2t").lookup(SMALL)


def test_near_looks_at_one_state_of_what_is_known(known, monkeypatch):
    """What is recorded between its steps is not half there."""
    first, second = (ca.ConvProblem.parse(f"n1 c4 h{size} w9 k4 r3 s3 p1") for size in (20, 21))
    known.record(first, {"cpu.direct": timed()})
    true_family = measured.family

    def meanwhile(problem):
        monkeypatch.setattr(measured, "family", true_family)
        known.update(lambda entries: entries.clear())
        known.record(second, {"cpu.direct": timed()})
        return true_family(problem)

    monkeypatch.setattr(measured, "family", meanwhile)
    near = known.near(second)
    assert near is None or (near[0] == first and "cpu.direct" in near[1])
    assert known.near(first)[0] == second


def test_who_asks_while_others_record_gets_one_state_of_it(known):
    """Of threads that record, ask for the near and forget, none sees half of a change."""
    problems = [ca.ConvProblem.parse(f"n1 c4 h{size} w9 k4 r3 s3 p1") for size in range(20, 26)]
    wrong, done = [], threading.Event()

    def ask():
        try:
            while not done.is_set():
                for problem in problems:
                    if near := known.near(problem):
                        assert near[1]["cpu.direct"].median_s > 0
        except BaseException as error:
            wrong.append(error)

    def record(turns):
        try:
            for _ in range(turns):
                for problem in problems:
                    known.record(problem, {"cpu.direct": timed()})
                known.update(lambda entries: entries.clear())
        except BaseException as error:
            wrong.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        asking = [threading.Thread(target=ask) for _ in range(3)]
        recording = [threading.Thread(target=record, args=(10,)) for _ in range(2)]
        for thread in asking + recording:
            thread.start()
        for thread in recording:
            thread.join(60)
        done.set()
        for thread in asking:
            thread.join(60)
    finally:
        sys.setswitchinterval(before)
    assert wrong == []


WRITERS = """
import os, sys
from convalgos.core.problem import ConvProblem
from convalgos.select.measured import Measured
from convalgos.select.wisdom_file import Store

def write(me, count):
    for i in range(count):
        problem = ConvProblem((1 + me, 1, 8 + i), (1, 1, 3))
        Store("a_machine-2t").record(problem, {f"cpu.w{me}": Measured((1e-3,))})
    os._exit(0)

first, last, count = map(int, sys.argv[1:])
children = [os.fork() or write(me, count) for me in range(first, last)]
write(last, count) if not children else sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""


def writers(first, last, count):
    """Processes that write at once, the children of one, which has imported what they need; or just one."""
    return subprocess.Popen([sys.executable, "-c", WRITERS, str(first), str(last), str(count)])


def test_32_processes_write_at_once_and_one_is_killed(known):
    others = writers(0, 31, 5)
    victim = writers(31, 31, 10_000)  # it is never done
    deadline = time.monotonic() + 200
    while not any("cpu.w31" in entry for entry in known.entries().values()):
        assert time.monotonic() < deadline and victim.poll() is None
        time.sleep(0.01)
    victim.send_signal(signal.SIGKILL)
    assert victim.wait(60) == -signal.SIGKILL
    assert others.wait(200) == 0
    entries = Store("a_machine-2t").entries()
    for me in range(31):
        assert sum(f"cpu.w{me}" in entry for entry in entries.values()) == 5
    known.record(SMALL, {"cpu.direct": timed()})  # the lock of the dead is free, and what it left is gone
    assert not list(known.path.parent.glob("*.part")) and not list(known.path.parent.glob("*.damaged"))


# --- near problems ---------------------------------------------------------------------------


def test_near_is_another_batch_or_size_of_the_same_layer(known):
    known.record(ca.ConvProblem.parse("n4 c8 h28 w28 k8 r3 s3 p1"), {"cpu.direct": timed(1.0)})
    known.record(ca.ConvProblem.parse("n4 c8 h20 w20 k8 r3 s3 p1"), {"cpu.direct": timed(2.0)})

    def near(text):
        found = known.near(ca.ConvProblem.parse(text))
        return found and str(found[0]).split()[2]

    assert near("n4 c8 h28 w30 k8 r3 s3 p1") == near("n8 c8 h26 w26 k8 r3 s3 p1") == "h28"
    assert near("n3 c8 h21 w21 k8 r3 s3 p1") == "h20"
    for far in (
        "n9 c8 h28 w28 k8 r3 s3 p1",
        "n4 c8 h36 w28 k8 r3 s3 p1",
        "n4 c8 h28 w28 k8 r3 s3",
        "n4 c9 h28 w28 k8 r3 s3 p1",
        "n4 c8 h28 w28 k8 r3 s3 p1 float64",
        "n0 c8 h28 w28 k8 r3 s3 p1",
    ):
        assert near(far) is None, far  # fmt: skip


# --- for the user ----------------------------------------------------------------------------


@pytest.fixture
def mine(wisdom):
    devices.store().record(SMALL, {"cpu.direct": timed(1e-5), "cpu.im2col.own": timed(2e-5)})
    devices.store().record(OTHER, {"cpu.direct": timed(3e-5)})
    return devices.store()


def test_export_forget_and_merge_again(mine, tmp_path):
    path = tmp_path / "wisdom.json"
    assert ca.wisdom.export(path) == 2
    assert path.read_text() == mine.path.read_text()
    assert ca.wisdom.forget(SMALL, "cpu.im2col.own") == 1
    assert mine.lookup(SMALL).keys() == {"cpu.direct"}
    assert ca.wisdom.forget(str(OTHER)) == 1
    assert ca.wisdom.forget(algorithm="cpu.direct") == 1
    assert mine.entries() == {}
    assert ca.wisdom.forget() == 0
    merged = ca.wisdom.merge(path)
    assert (merged.problems, merged.candidates, merged.conflicts) == (2, 3, ())
    assert ca.wisdom.merge(path).conflicts == ()  # the same once more is no conflict
    assert mine.path.read_text() == path.read_text()


def test_merge_lists_conflicts_and_keeps_the_newest(mine, tmp_path):
    path = tmp_path / "theirs.json"
    newer, older = timed(5e-5, "2026-01-03T00:00:00.000+00:00"), timed(7e-5, OLD)
    theirs = {str(SMALL): {"cpu.direct": newer, "cpu.im2col.own": older}}
    path.write_text(wisdom_file.dump(mine.fingerprint, theirs))
    merged = ca.wisdom.merge(path)
    assert len(merged.conflicts) == 2
    assert (
        "cpu.direct: 50.0 us of 2026-01-03" in merged.conflicts[0] and "over 10.0 us" in merged.conflicts[0]
    )
    assert mine.lookup(SMALL)["cpu.direct"].median_s == 5e-5
    assert mine.lookup(SMALL)["cpu.im2col.own"].median_s == 2e-5
    assert "2 conflicts" in str(merged) and merged.conflicts[1] in str(merged)


def test_merge_keeps_machines_apart(mine, tmp_path):
    path = tmp_path / "theirs.json"
    path.write_text(wisdom_file.dump("elsewhere-64t", {str(SMALL): {"cpu.direct": timed(9.0)}}))
    assert ca.wisdom.merge(path).machine == "elsewhere-64t"
    assert mine.lookup(SMALL)["cpu.direct"].median_s == 1e-5
    assert Store("elsewhere-64t").lookup(SMALL)["cpu.direct"].median_s == 9.0


def test_merge_refuses_what_is_no_wisdom_and_changes_nothing(mine, tmp_path):
    before = mine.path.read_text()
    path = tmp_path / "bad.json"
    path.write_text(before[:-40])
    with pytest.raises(ValueError, match=r"bad\.json cannot be merged"):
        ca.wisdom.merge(path)
    with pytest.raises(FileNotFoundError):
        ca.wisdom.merge(tmp_path / "nowhere.json")
    assert mine.path.read_text() == before and path.exists()


def test_show(mine):
    text = ca.wisdom.show()
    assert "2 problems" in text and str(SMALL) in text and str(OTHER) in text
    assert "cpu.direct" in ca.wisdom.show(str(SMALL)) and "20.0 us" in ca.wisdom.show(SMALL)
    assert "nothing is known" in ca.wisdom.show("n7 c1 w9 k1 s3")
    with pytest.raises(ValueError, match="missing size"):
        ca.wisdom.show("n7 c1")


def test_verify_times_a_sample_again(mine):
    mine.record(SMALL, {"cpu.gone": timed(1e-9)})  # no algorithm of this version
    mine.record(OTHER, {"cpu.direct": timed(1e3, "2026-02-01T00:00:00.000+00:00")})
    found = ca.wisdom.verify(rounds=1)
    assert [(d.problem, d.algorithm) for d in found.drifts] == [
        (str(SMALL), "cpu.direct"), (str(OTHER), "cpu.direct"),
    ]  # fmt: skip
    assert found.drifts[1] in found.drifted and found.drifts[1].ratio < 1e-3
    assert "1 of 2 drifted" in str(found) or "2 of 2 drifted" in str(found)
    assert len(ca.wisdom.verify(sample=1, rounds=1).drifts) == 1
    with pytest.raises(ValueError, match="sample=-1"):
        ca.wisdom.verify(sample=-1)


def test_the_folder_is_that_of_the_cache_unless_it_is_named(monkeypatch, tmp_path):
    monkeypatch.delenv("CONVALGOS_WISDOM")
    monkeypatch.setenv("CONVALGOS_CACHE_DIR", str(tmp_path))
    assert os.fspath(wisdom_file.folder()) == str(tmp_path / "wisdom")


# --- the command line ------------------------------------------------------------------------


def test_the_commands(mine, tmp_path):
    path = tmp_path / "kept.json"
    assert "2 problems" in run("wisdom", "export", path).stdout
    assert str(OTHER) in run("wisdom", "show").stdout
    assert "cpu.im2col.own" in run("wisdom", "show", *str(SMALL).split()).stdout
    assert "forgot 1 candidates" in run("wisdom", "forget", *str(OTHER).split()).stdout
    assert "forgot 1 candidates" in run("wisdom", "forget", "--algorithm", "cpu.direct").stdout
    assert "forgot 1 candidates" in run("wisdom", "forget", "--all").stdout
    assert "nothing is known" in run("wisdom", "verify").stdout
    assert "3 candidates of 2 problems" in run("wisdom", "merge", path).stdout
    assert "of 1 drifted" in run("wisdom", "verify", "--sample", "1", "--rounds", "1").stdout
    assert "name a PROBLEM" in run("wisdom", "forget", status=2).stderr
    path.write_text("{}")
    assert "cannot be merged: not a wisdom file" in run("wisdom", "merge", path, status=2).stderr
