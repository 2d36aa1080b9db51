"""Recording tables: what is timed how often, what goes on after a kill, and what the files say."""

import os
import threading

import pytest
from command_line import run
from test_interference import PROBLEM, SLOWED, Place, candidates

from convalgos import ConvProblem
from convalgos.select import devices
from convalgos.select.measure.accuracy import AccuracyCheck
from convalgos.select.measured import Measured
from convalgos.tools.bench.read_target import read_target
from convalgos.tools.bench.suites import Layer, sampling
from convalgos.tools.evaluate.recorded_tables import Recorded, RecordedLayer, compact_text, read_table_file
from convalgos.tools.record import layer_timing, recording
from convalgos.tools.record.cores import a_core_each
from convalgos.tools.record.datasheet import datasheet
from convalgos.tools.record.journal import Journal
from convalgos.tools.record.layer_timing import ENOUGH, FEW, MANY, time_layer

LAYER = Layer("net", "layer", PROBLEM, 3)


class Steady(Place):
    """Untimed calls are not in the scripts."""

    def seconds(self, call):
        call()
        return self.scripts[Place.running][0].real


@pytest.fixture
def hurried(monkeypatch):
    monkeypatch.setattr(layer_timing, "READY", 0.0)
    monkeypatch.setattr(layer_timing.time, "sleep", lambda seconds: None)


def record_layer(place, wrong=(), predicted=1e-5, **options):
    check = AccuracyCheck(PROBLEM, place)
    return time_layer(LAYER, candidates(place, wrong, predicted), check, **options)


def of(name):
    return f"cpu.scripted.{name}"


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system keeps no thread on a core")
def test_each_thread_has_a_core_of_its_own_while_it_is_timed():
    def cores():
        return {int(thread): os.sched_getaffinity(int(thread)) for thread in os.listdir("/proc/self/task")}

    done, before = threading.Event(), os.sched_getaffinity(0)
    other = threading.Thread(target=done.wait)
    other.start()
    with a_core_each():
        if len(before) > 1:
            assert os.sched_getaffinity(0) == {min(before)}
            assert all(len(kept) == 1 for kept in cores().values())
            assert os.sched_getaffinity(other.native_id) <= before - {min(before)}
    assert set(map(frozenset, cores().values())) == {frozenset(before)}
    done.set()
    other.join()


# --- one layer ---------------------------------------------------------------------------------


def test_those_near_the_best_get_many_samples_and_slow_ones_one(hurried):
    place = Steady(a=[1e-5], b=[1.4e-5], c=[2e-5], d=[4e-5])
    found = record_layer(place)
    counts = {name: len(found.times[of(name)].samples_s) for name in "abcd"}
    assert counts == {"a": 2 * MANY, "b": 2 * MANY, "c": 2 * FEW, "d": 1}
    assert found.stopped == (of("d"),) and not (found.disturbed or found.hopeless or found.failed)
    assert (found.suite, found.name, found.problem, found.count) == ("net", "layer", PROBLEM, 3)
    assert len(record_layer(Steady(a=[2e-3])).times[of("a")].samples_s) == 2 * ENOUGH
    assert len(record_layer(Steady(a=[0.06])).times[of("a")].samples_s) == 2 * FEW


def test_what_is_picked_unmeasured_is_timed_however_slow(hurried):
    found = record_layer(Steady(a=[9e-5], b=[1e-5]))  # equal predictions: the first by name
    assert len(found.times[of("a")].samples_s) == 2 * FEW and not found.stopped


def test_a_long_first_run_that_is_hopeless_is_the_only_one(hurried):
    place = Steady(a=[0.05], b=[0.4])
    found = record_layer(place)
    assert place.runs["b"] == 1 and found.times[of("b")] == Measured((0.4,), when=found.times[of("b")].when)
    warm_later = record_layer(Steady(a=[0.05], b=[0.25, 0.05]))  # no more than COLD times as long
    assert not warm_later.stopped


def test_what_is_predicted_to_be_hopeless_is_not_run(hurried):
    place = Steady(a=[1e-5], b=[1e-5])
    few = candidates(place)
    few[1] = type(few[1]).of(few[1].algorithm, PROBLEM, 1e-5 * 51)
    found = time_layer(LAYER, few, AccuracyCheck(PROBLEM, place))
    assert found.hopeless == (of("b"),) and of("b") not in found.times and place.runs["b"] == 0


def test_wrong_and_broken_candidates_have_reasons_and_no_times(hurried):
    place = Steady(a=[1e-5], b=[1e-6], c=[1e-5])
    broken = candidates(place, wrong="b")
    object.__setattr__(broken[2].algorithm, "serve", None)
    found = time_layer(LAYER, broken, AccuracyCheck(PROBLEM, place))
    assert found.times.keys() == {of("a")}, "a wrong one is no best, either"
    assert found.failed[of("b")].startswith("its error was ")
    assert found.failed[of("c")] == "TypeError: 'NoneType' object is not callable"


def test_samples_alternate_between_the_halves(hurried):
    first = [1e-5] * (1 + layer_timing.FIRST)
    place = Steady(a=first + [1.1e-5] * MANY + [1.2e-5] * MANY)
    assert record_layer(place).times[of("a")].samples_s == (1.1e-5, 1.2e-5) * MANY


def test_a_disturbed_sample_is_taken_again(hurried):
    first = [1e-5] * (1 + layer_timing.FIRST)
    place = Steady(a=first + [SLOWED, 1e-5] * 4 * MANY, b=[1e-5])
    found = record_layer(place)
    assert set(found.times[of("a")].samples_s) == {1e-5} and not found.disturbed
    assert place.runs["a"] == len(first) + 4 * MANY, "in one try"


def test_a_disturbed_layer_is_timed_again_and_marked_where_that_does_not_help(hurried):
    first = [1e-5] * (1 + layer_timing.FIRST)
    calm_later = Steady(a=first + [SLOWED] * 4 * MANY + [1e-5], b=[1e-5])
    found = record_layer(calm_later)
    assert set(found.times[of("a")].samples_s) == {1e-5} and not found.disturbed
    never = Steady(a=[*first, SLOWED], b=[1e-5])
    found = record_layer(never)
    assert found.disturbed == (of("a"),) and never.runs["a"] == len(first) + layer_timing.TRIES * 4 * MANY
    assert found.times[of("a")].samples_s, "marked, not left out"


def test_halves_that_do_not_agree_are_timed_again(hurried):
    first = [1e-5] * (1 + layer_timing.FIRST)
    place = Steady(a=first + [1e-5] * MANY + [1.4e-5] * MANY + [1e-5])
    found = record_layer(place)
    assert set(found.times[of("a")].samples_s) == {1e-5} and not found.disturbed


def test_other_libraries_are_timed_beside_ours_and_are_no_measure(hurried):
    place = Steady(a=[1e-5], peer=[1e-7])

    def call():
        Place.running = "peer"

    check = AccuracyCheck(PROBLEM, place)
    found = time_layer(LAYER, candidates(place)[:1], check, others={"peer": call})
    assert found.times.keys() == {of("a")} and len(found.times[of("a")].samples_s) == 2 * MANY
    assert set(found.peers["peer"].samples_s) == {1e-7} and len(found.peers["peer"].samples_s) == 2 * MANY


# --- the journal -------------------------------------------------------------------------------

LAYERS = [Layer("net", f"layer{i}", ConvProblem.parse(f"c{i} h9 w9 k4 r3 s3")) for i in range(1, 7)]


def head(**asked):
    return Recorded(devices.current_machine(), {"convalgos": "1"}, (), {"asked": asked, "command": "record"})


def fake(layer, progress=None):
    return RecordedLayer(
        layer.suite, layer.name, layer.problem, layer.count, {"cpu.direct": Measured((1e-5, 2e-5))},
        stopped=("cpu.direct",), hopeless=("cpu.fft.fftw",), failed={"cpu.x": "broken"},
        peers={"torch": Measured((3e-5,))},
    )  # fmt: skip


def comparable(layers):
    """What is kept of layers."""
    return compact_text(Recorded(devices.current_machine(), {}, tuple(layers)))


def half_recorded(path, number=3):
    journal = Journal(path, head())
    for layer in LAYERS[:number]:
        journal.append(fake(layer))
    return path.read_bytes()


def test_a_killed_recording_goes_on_with_what_was_whole(tmp_path):
    """Wherever in the file the process was stopped."""
    path = tmp_path / "journal.jsonl"
    whole = half_recorded(path)
    start = whole.index(b"\n", whole.index(b'"layer2"')) + 1  # of the third layer
    for end in (start, start + 1, len(whole) // 2 + start // 2, len(whole) - 1):
        path.write_bytes(whole[:end])
        journal = Journal(path, head())
        assert comparable(journal.layers) == comparable(map(fake, LAYERS[:2]))
        recording.record(LAYERS, journal, fake)
        timed = [layer.name for layer in journal.layers[2:]]
        assert sorted(timed) == ["layer3", "layer4", "layer5", "layer6"] != timed, "in a random order"
        table = recording.recorded_table(LAYERS, Journal(path, head()))
        assert comparable(table.layers) == comparable(map(fake, LAYERS))
        assert table.protocol["layers_asked_for"] == 6


def test_a_damaged_journal_is_set_aside_and_its_sound_lines_are_kept(tmp_path):
    path = tmp_path / "journal.jsonl"
    whole = half_recorded(path)
    for damaged in (
        whole.replace(b'"layer2"', b'"layer\xff"'),
        whole.replace(b'"layer2"', b'"layer2'),
        whole.replace(b"c2 ", b"q2 "),
    ):
        path.write_bytes(damaged)
        with pytest.warns(RuntimeWarning, match=r"was damaged \(line 3: .*kept as journal.jsonl.damaged"):
            journal = Journal(path, head())
        assert [layer.name for layer in journal.layers] == ["layer1", "layer3"]
        assert (tmp_path / "journal.jsonl.damaged").read_bytes() == damaged
        assert comparable(Journal(path, head()).layers) == comparable(journal.layers)
    path.write_bytes(b"{}\n" + whole)
    with pytest.warns(RuntimeWarning, match="its head"):
        assert Journal(path, head()).layers == []


def test_another_recording_is_not_gone_on_with(tmp_path):
    path = tmp_path / "journal.jsonl"
    half_recorded(path)
    with pytest.raises(ValueError, match=r'is of \{\}, and not of \{"seed": 2\}: name another folder'):
        Journal(path, head(seed=2))
    other = head()
    other.versions["convalgos"] = "2"
    with pytest.raises(ValueError, match="with other versions of convalgos"):
        Journal(path, other)
    with pytest.raises(ValueError, match=r"has 2 layers that are no longer asked for, as layer1"):
        recording.record(LAYERS[2:], Journal(path, head()), fake)


def test_a_time_limit_ends_it_between_two_layers(tmp_path):
    now = [0.0]

    def slow(layer, progress):
        now[0] += 10.0
        return fake(layer)

    journal = Journal(tmp_path / "journal.jsonl", head())
    recording.record(LAYERS, journal, slow, time_limit=25.0, clock=lambda: now[0])
    assert len(journal.layers) == 3
    recording.record(LAYERS, journal, slow, time_limit=0.0, clock=lambda: now[0])
    assert len(journal.layers) == 3


def test_what_a_layer_has_comes_back_from_its_file(tmp_path):
    table = Recorded(devices.current_machine(), {"a": "1"}, tuple(map(fake, LAYERS)), {"seed": 1})
    path = tmp_path / "table.json"
    path.write_text(compact_text(table))
    again = read_table_file(path)
    assert compact_text(again) == compact_text(table) and again.protocol == {"seed": 1}
    one = again.layers[0]
    assert (one.stopped, one.hopeless, one.failed) == (
        ("cpu.direct",), ("cpu.fft.fftw",), {"cpu.x": "broken"},
    )  # fmt: skip
    assert one.peers["torch"].samples_s == pytest.approx((3e-5,))
    path.write_text(compact_text(table).replace('"stopped": [', '"stopped": [1, '))
    with pytest.raises(ValueError, match="the id of an algorithm=1 must be text"):
        read_table_file(path)


# --- the command -------------------------------------------------------------------------------


def test_the_command_records_goes_on_and_writes_what_it_did(tmp_path):
    folder, layers = tmp_path / "out", tmp_path / "layers.txt"
    layers.write_text("7 c4 h4 w4 k4 r1 s1\n3 c4 h5 w5 k4 r1 s1\n1 c8 h5 w5 k4 r1 s1\n")
    how = "record", layers, "--sample", 2, "--seed", 5, "--out", folder
    assert "0 of 2 layers" in run(*how, "--time-limit", 0).stdout
    assert not (folder / "table.json").exists()
    assert "2 of 2 layers" in run(*how).stdout
    table = read_table_file(folder / "table.json")
    asked = sampling.sample(read_target(str(layers))[0], 2, 5)
    assert [(la.problem, la.count) for la in table.layers] == [(la.problem, la.count) for la in asked]
    assert all(layer.times for layer in table.layers)
    command = f"convalgos record {layers} --sample 2 --seed 5 --weights layers --device cpu --peers none"
    assert table.protocol["command"] == command
    text = (folder / "DATASHEET.md").read_text()
    for told in (table.machine.name, table.versions["convalgos"], command, "| cpu.direct |"):
        assert told in text
    assert "2 of 2 layers were recorded before" in run(*how).stderr
    assert "name another folder" in run(*how, "--batch", 2, status=2).stderr
    assert "analytic" in run("select", "evaluate", folder / "table.json").stdout


def test_the_datasheet_counts_what_is_there_and_what_is_missing():
    table = Recorded(
        devices.current_machine(), {}, tuple(map(fake, LAYERS)), {"layers_asked_for": 8, "asked": {}}
    )
    text = datasheet(table)
    assert "| dense | 6 | 6 | 12 | 6 | 0 | 6 | 0.015 to 0.015, median 0.015 | 1.0000 |" in text
    assert "| cpu.direct | 6 | 6 | 6 | 0 | 0 |" in text and "| cpu.x | 0 | 0 | 0 | 0 | 6 |" in text
    assert "- 2 of the 8 layers" in text and "- 6 candidates that failed" in text
