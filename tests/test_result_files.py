"""The JSON files that commands write: what they are, what readers say of them, and two beside each other."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import run
from test_bench import layer_result, network, row
from test_report_page import H200
from test_training import step

from convalgos.core import json_format
from convalgos.select.measure.timing import Timing
from convalgos.tools.bench import results as bench_results
from convalgos.tools.bench import results_file
from convalgos.tools.bench.suites import suites
from convalgos.tools.evaluate import recorded_tables
from convalgos.tools.gpu_check.report import Report
from convalgos.tools.report import comparison

TABLES = Path(__file__).parents[1] / "asv_bench" / "tables"


def saved(path, results=None, **changes):
    path.write_text(json.dumps(bench_results.as_json(results or network()) | changes))
    return path


# --- what a file is ----------------------------------------------------------------------------


def test_every_file_says_what_it_is_and_in_which_format(tmp_path):
    layers = [step(la.problem, (1, 2, 3), la.name) for la in suites()["alexnet"]]
    steps = bench_results.Results("", network().machine, {}, {}, layers)
    checked = Report("", H200, {}).as_json()
    written = {
        "bench": bench_results.as_json(network()),
        "training": bench_results.as_json(steps),
        "gpu_check": checked,
    }
    for kind, found in written.items():
        assert (found["kind"], found["format"]) == (kind, json_format.FORMATS[kind]), kind
        assert list(found)[:2] == ["kind", "format"]
        path = tmp_path / f"{kind}.json"
        path.write_text(json.dumps(found))
        assert json_format.load(path, kind)["kind"] == kind
        del found["kind"], found["format"]  # as it was written before there was such a head
        path.write_text(json.dumps(found))
        assert json_format.load(path, kind)["kind"] == kind
    assert '"format": 1' in recorded_tables.compact_text(
        recorded_tables.read_table_file(saved(tmp_path / "b.json"))
    )
    (compact, *_) = TABLES.glob("*.json")
    assert json_format.load(compact, "selector_table")["kind"] == "selector_table"


@pytest.mark.parametrize("read", [results_file.read_results, recorded_tables.read_table_file])
def test_a_later_format_is_refused_with_what_helps(tmp_path, read):
    path = saved(tmp_path / "later.json", format=7)
    with pytest.raises(
        ValueError, match=r"later\.json .* of format 7, and this version of convalgos reads format 1: update"
    ):
        read(path)
    for format in ("1", 0, True, None, 1.5):
        with pytest.raises(ValueError, match="is not a number from 1 on"):
            read(saved(path, format=format))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is empty"),
        ("  \n", "it is empty"),
        ("this is text", "it is not JSON, or was cut off: Expecting value: line 1 column 1"),
        ('{"layers": [', "it is not JSON, or was cut off"),
        ('{"started": NaN}', "NaN is not JSON"),
        ("[]", "it holds no object with layers"),
        ("3", "it holds no object with layers"),
        ("{}", "it lacks 'command'"),
        ('{"kind": "novel"}', "it says that it is of kind 'novel'"),
        ('{"kind": ["novel"]}', "it says that it is of kind ['novel']"),
        ('{"layers": 3, "command": "", "machine": {}}', "it lacks 'name'"),
        ("[" * 100_000, "nested too deeply"),
        (
            '{"kind": "gpu_check", "layers": []}',
            "it was written by python -m convalgos.tools.gpu_check, and here",
        ),
    ],
)
def test_report_says_in_a_sentence_what_is_wrong_with_a_file(tmp_path, text, why):
    path = tmp_path / "bad.json"
    path.write_text(text)
    told = run("report", path, status=2).stderr
    assert told.startswith(f"Error: {path} is not a table of convalgos bench --json: ") and why in told
    assert told.count("\n") == 1 and "Error(" not in told
    path.write_bytes(b"\xff\xfe")
    assert "is not a table" in run("report", path, status=2).stderr


def test_a_field_that_is_wrong_is_named(tmp_path):
    found = bench_results.as_json(network())
    del found["layers"][0]["candidates"][0]["samples_s"]
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(found))
    assert "it lacks 'samples_s'" in run("report", path, status=2).stderr
    path.write_text(json.dumps(bench_results.as_json(network()) | {"layers": 3}))
    assert "a field is not what it should be" in run("report", path, status=2).stderr


# --- two beside each other -----------------------------------------------------------------------


def changed(factor):
    """The network, each of whose picks takes so many times as long."""
    pick = replace(row("cpu.winograd.f4x3", 1.3e-3 * factor), timing=Timing((1.3e-3 * factor,)))
    layers = [
        layer_result(la.problem, pick.algorithm, [pick], name=la.name, suite="resnet50")
        for la in suites()["resnet50"]
    ]
    return bench_results.Results("convalgos bench", network().machine, {"python": "3"}, {}, layers)


def test_two_files_are_compared_layer_by_layer(tmp_path):
    before, after = saved(tmp_path / "a.json", changed(1)), saved(tmp_path / "b.json", changed(2))
    text = run("report", before, after).stdout
    assert (
        len(re.findall(r" 2\.00 +slower", text)) == 14
        and "geometric mean of B / A: 2.000 over 14 layers" in text
    )
    assert f"A is {before}, B is {after}" in text and "B is faster on 0, slower on 14" in text
    assert "differs" not in text
    back = run("report", after, before).stdout
    assert len(re.findall(r" 0\.50 +faster", back)) == 14 and "0.500 over 14" in back
    same = run("report", before, before).stdout
    assert "slower on 0" in same and "1.000 over 14" in same


def test_what_differs_besides_is_told(tmp_path):
    first, second = changed(1), changed(1.5)
    second.versions["python"], second.versions["mkl"] = "4", "2026"
    second.command = "convalgos bench --rounds 9"
    second.machine = replace(
        second.machine, name="another", threads=4, bandwidth=first.machine.bandwidth * 1.01
    )
    second.layers.pop()
    second.layers[0] = layer_result(
        first.layers[0].problem, "cpu.direct", [row("cpu.direct", 1e-3)], name="conv1", suite="resnet50"
    )
    first.layers[1] = layer_result(
        first.layers[1].problem, None, name=first.layers[1].layer.name, suite="resnet50"
    )
    found = comparison.compare_results(first, second, ("a", "b"))
    assert len(found.pairs) == 12 and found.pairs[0].after.pick == "cpu.direct"
    assert found.left_out == (
        "resnet50 res2a_2a_1x1: has no time in a",
        "resnet50 res5_1x1_expand, n8 c512 h7 w7 k2048 r1 s1: only in a",
    )
    told = "\n".join(found.differences)
    assert "the machine's name: a machine in A, another in B" in told and "threads: 2 in A, 4 in B" in told
    assert "python: 3 in A, 4 in B" in told and "mkl: none in A, 2026 in B" in told
    assert "--rounds 9" in told and "bandwidth" not in told  # which two calibrations tell differently


def test_samples_that_overlap_are_no_verdict():
    def noisy(seconds):
        found = changed(1)
        samples = tuple(seconds * (1 + i / 10) for i in range(9))
        one = replace(row("cpu.a", Timing(samples).median), timing=Timing(samples))
        found.layers = [layer_result(r.problem, "cpu.a", [one], name=r.layer.name) for r in found.layers]
        return found

    near = comparison.compare_results(noisy(1.0), noisy(1.1), ("a", "b"))
    assert {pair.verdict for pair in near.pairs} == {""} and near.mean == pytest.approx(1.1)
    far = comparison.compare_results(noisy(1.0), noisy(3.0), ("a", "b"))
    assert {pair.verdict for pair in far.pairs} == {"slower"}


def test_training_steps_compare_and_other_kinds_do_not(tmp_path):
    def steps(factor):
        layers = [step(la.problem, (factor, 2 * factor, 3), la.name) for la in suites()["alexnet"]]
        return bench_results.Results("", network().machine, {}, {}, layers)

    before, after = saved(tmp_path / "a.json", steps(1)), saved(tmp_path / "b.json", steps(3))
    text = run("report", before, after).stdout
    assert (
        "geometric mean of B / A: 2.000 over 5 layers" in text and "winograd.f4x3 + direct.pixels +" in text
    )
    other = saved(tmp_path / "c.json")
    assert "is of training, and" in run("report", before, other, status=2).stderr
    alone = changed(1)
    alone.layers = alone.layers[:1]
    one, rest = saved(tmp_path / "one.json", alone), changed(1)
    rest.layers = rest.layers[1:]
    told = run("report", one, saved(tmp_path / "rest.json", rest), status=2).stderr
    assert "have no layer in common" in told
