"""Whatever stands in a file that a user has from anywhere costs a warning or one sentence, never a crash.

Valid files are changed at random, but the same in each run: bytes, and values of the JSON in them.
"""

import copy
import json
import random
import warnings
from dataclasses import asdict

from click.testing import CliRunner
from command_line import run

import convalgos as ca
from convalgos.core import machine
from convalgos.gpu import device as gpu
from convalgos.gpu.device import measured
from convalgos.select.measure import capture
from convalgos.select.measured import Measured
from convalgos.select.wisdom_file import Store
from convalgos.tools.bench import results_file
from convalgos.tools.cli.main import main
from convalgos.tools.evaluate import recorded_tables

PROBLEMS = [
    ca.ConvProblem.parse(text)
    for text in ("n1 c4 h9 w9 k4 r3 s3 p1", "n2 c3 w20 k4 s3", "n2 c4 h10 w9 k4 r3 s3 p1 float16")
]
FIGURES = machine.Machine("test", 2, 64, 1 << 15, 1 << 20, 1 << 25, 5e11, 2.5e11, 5e10, 2e11, 2e-6)
CAPTURE = "3 n1 c4 h9 w9 k4 r3 s3 p1\n# by hand\n7 n2 c3 w20 k4 s3\n"
ROUNDS = 60
HOSTILE = [
    True, None, 0, -1, 1.5, 2**63, 10**400, -(10**400), 1e308, 5e-324, float("inf"), float("nan"), "", [], {},
    [[]], {"": 0}, "\ud800", "n1 c1 w9 k1 s3", "\x1b[31m", "[/b]", "9" * 400, "cpu.direct", [1, 2, 3],
    "2999-01-01T00:00:00+00:00", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59",
]  # fmt: skip
PIECES = [
    b"9" * 50,
    b"[",
    b"{",
    b'"',
    b"1e999",
    b"NaN",
    b"\x00",
    b",",
    b":",
    b"-",
    b"true",
    b"\xff",
    b"[" * 3000,
]


def mutated(rng, text):
    return (
        changed_values(rng, text) if text.startswith("{") and rng.random() < 0.7 else changed_bytes(rng, text)
    )


def changed_bytes(rng, text):
    found = bytearray(text.encode())
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(found) + 1)
        if rng.random() < 0.5:
            found[at:at] = rng.choice(PIECES)
        else:
            del found[at : at + rng.randint(1, 40)]
    return bytes(found)


def changed_values(rng, text):
    whole = json.loads(text)
    for _ in range(rng.randint(1, 3)):
        *outer, last = rng.choice([path for path in paths(whole) if path])
        inside = whole
        for key in outer:
            inside = inside[key]
        value = copy.deepcopy(rng.choice(HOSTILE))
        if rng.random() < 0.7:
            inside[last] = value
        elif isinstance(inside, dict):
            inside[rng.choice([h for h in HOSTILE if isinstance(h, str)])] = inside.pop(last)
        else:
            inside.append(value)
    return json.dumps(whole).encode()


def paths(value, path=()):
    """Of all that is in it."""
    yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from paths(value[key], (*path, key))


def each(text, seed):
    rng = random.Random(seed)
    for _ in range(ROUNDS):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield mutated(rng, text)


def test_wisdom_of_this_machine(wisdom):
    known = Store("a_machine-2t")
    timed = {
        "cpu.direct": Measured((1e-3, 2e-3), 64, 1e-7, 1e-5, version="1"),
        "cpu.odd": Measured(failure="no"),
    }
    for problem in PROBLEMS:
        known.record(problem, timed)
    for content in each(known.path.read_text(), 1):
        known.path.write_bytes(content)
        again = Store("a_machine-2t")
        for problem in PROBLEMS:
            again.lookup(problem)
            again.near(problem)
        again.record(PROBLEMS[0], timed)
        assert "cpu.direct" in Store("a_machine-2t").lookup(PROBLEMS[0])


def test_wisdom_of_others(wisdom, tmp_path):
    known = Store("a_machine-2t")
    for problem in PROBLEMS:
        known.record(problem, {"cpu.direct": Measured((1e-3,), version="1")})
    text, path = known.path.read_text(), tmp_path / "theirs.json"
    for content in each(text, 2):
        path.write_bytes(content)
        try:
            ca.wisdom.merge(path)
        except ValueError as error:
            assert str(error).startswith(f"{path} cannot be merged: ")


def test_captures(tmp_path):
    path, own = tmp_path / "captured.txt", tmp_path / "of_process.txt-0.counts"
    for content in each(CAPTURE, 3):
        path.write_bytes(content)
        try:
            capture.read_capture(path)
        except ValueError as error:
            assert str(error).startswith(str(path))
        own.write_bytes(content)
        capture.gather_counts(tmp_path / "of_process.txt")  # counts of a process, which are never refused
        assert not own.exists()


def test_figures_of_the_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("CONVALGOS_CACHE_DIR", str(tmp_path))
    machine.save_machine(FIGURES)
    (path,) = tmp_path.glob("machine/*.json")
    for content in each(path.read_text(), 4):
        path.write_bytes(content)
        found = machine.load_machine(2)
        assert found is None or found.summary
    assert asdict(FIGURES).keys() - {"name", "source"} == machine.LIMITS.keys()


def test_constants_of_a_gpu(monkeypatch, tmp_path):
    monkeypatch.setenv("CONVALGOS_CACHE_DIR", str(tmp_path))
    figures = gpu.named("sm_90").figures
    found = {name: sum(limits) / 2 for name, limits in measured.LIMITS.items()}
    path = measured.save_constants(measured.with_constants(figures, found, "2026-11-30"))
    for content in each(path.read_text(), 6):
        path.write_bytes(content)
        read = measured.with_saved_constants(figures)
        assert 0 < read.launch < 1 and all(0 < value < 1e15 for _, value in read.measured)


def test_tables_of_bench(wisdom, tmp_path):
    path = tmp_path / "found.json"
    run("bench", str(PROBLEMS[0]), "--peers", "none", "--algorithm", "cpu.reference", "--json", path)
    for content in each(path.read_text(), 5):
        path.write_bytes(content)
        for read in (results_file.read_results, recorded_tables.read_table_file):
            try:
                read(path)
            except ValueError as error:
                assert str(path) in str(error)
        shown = CliRunner(catch_exceptions=False).invoke(main, ["report", str(path)])
        assert shown.exit_code == 0 or shown.output.count("\n") == 1
