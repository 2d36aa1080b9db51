"""Tuning: what it leaves in the wisdom, what it passes over, and figures of the machine to be believed."""

import dataclasses
import subprocess
import sys

import pytest
from command_line import run

import convalgos as ca
from convalgos.core import machine, profiles, setting
from convalgos.core.machine import Machine
from convalgos.cpu.runtime import calibrate
from convalgos.select import devices
from convalgos.tools.bench import tune
from convalgos.tools.report import model_constants

SMALL = ca.ConvProblem.parse("n1 c4 h9 w9 k4 r3 s3 p1")
FIGURES = Machine("test", 2, 64, 1 << 15, 1 << 20, 1 << 25, 5e11, 2.5e11, 5e10, 2e11, 2e-6)


@pytest.fixture
def captured(wisdom, tmp_path):
    path = tmp_path / "captured.txt"
    path.write_text(f"5 {SMALL}\n2 n1 c2 w30 k2 s5\n1 n1 c0 w9 k2 s5\n")
    return path


# --- problems --------------------------------------------------------------------------------


def test_tuning_fills_the_wisdom_and_goes_on_where_it_stopped(captured, monkeypatch):
    tuned = []
    true_tune = tune.tune

    def interrupted(problem, **more):
        if len(tuned) == 1:
            raise KeyboardInterrupt
        tuned.append(problem)
        return true_tune(problem, **more)

    monkeypatch.setattr(tune, "tune", interrupted)
    assert "1 of 3 problems tuned" in run("tune", captured, status=130).stdout
    assert tuned == [SMALL]
    known = devices.store().lookup(SMALL)
    assert {c.id for c in ca.explain(SMALL).candidates} == known.keys()
    assert all(m.error < 1e-3 for m in known.values())
    monkeypatch.setattr(tune, "tune", true_tune)
    assert "2 of 2 problems tuned, 1 known before" in run("tune", captured).stdout
    assert devices.store().lookup(SMALL) == known
    assert "3 of 3" in run("tune", captured, "--again", "--effort", "measure").stdout
    assert devices.store().lookup(SMALL) != known


def test_a_race_is_no_exhaustive_search(wisdom):
    result = tune.tune(SMALL, effort="measure", time_budget=1.0)
    assert result.after in devices.store().lookup(SMALL)
    assert tune.is_known(SMALL, "measure") and not tune.is_known(SMALL, "exhaustive")
    tune.tune(SMALL)
    assert tune.is_known(SMALL, "exhaustive")
    nothing = tune.tune(ca.ConvProblem.parse("n1 c4 w9 k4 s3 compute_tf32"))
    assert (nothing.before, nothing.after) == (None, None)


def test_what_to_tune_must_be_named():
    assert "name what to tune, or --machine" in run("tune", status=2).stderr
    assert "'resnet5' is not a suite" in run("tune", "resnet5", status=2).stderr


ENDLESS = """
import sys, time
from convalgos.tools.bench import run as bench
from convalgos.core import interference
from convalgos.tools.bench import tune
from convalgos.tools.cli.main import main

interference.Meter.disturbed = lambda meter: False
interference.AGREE = float("inf")
true_run, true_tune = bench.run_layer, tune.tune

def after_one(run):
    def measured(*arguments, **more):
        if after_one.done:
            print("waiting", flush=True)
            time.sleep(60)
        after_one.done = True
        return run(*arguments, **more)
    return measured

after_one.done = False
bench.run_layer, tune.tune = after_one(true_run), after_one(true_tune)
main()
"""


def terminated(*command):
    """What a command leaves that is asked to end in the middle of its second problem."""
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert process.stdout.readline() == "waiting\n"
        process.terminate()
        told, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 143 and "Traceback" not in errors
    return told + errors


def test_a_tuning_that_is_terminated_keeps_what_it_found(captured):
    assert "1 of 3 problems tuned" in terminated("tune", captured)
    assert tune.is_known(SMALL, "measure")


# --- the machine -----------------------------------------------------------------------------


@pytest.fixture
def passes(monkeypatch):
    """Figures that the passes of a measurement find, one after the other."""

    def give(*found):
        left = list(found)
        monkeypatch.setattr(calibrate, "measure", lambda threads: left.pop(0))
        monkeypatch.setattr(calibrate, "PAUSE", 0.0)
        monkeypatch.setattr(calibrate.time, "sleep", lambda seconds: None)
        return left

    return give


def figures(**changes):
    return dataclasses.replace(FIGURES, **changes)


def test_passes_end_when_two_agree_on_the_best(passes):
    left = passes(figures(cache_bandwidth=6.6e9), figures(launch=9e-6), figures(), figures())
    found, disagreeing = calibrate.repeated(2)
    assert found == FIGURES and disagreeing == ()
    assert len(left) == 1


def test_figures_on_which_no_two_passes_agree_are_named(passes):
    passes(*(figures(bandwidth=5e10 * 0.8**i, launch=2e-6 * 2**i) for i in range(calibrate.PASSES)))
    found, disagreeing = calibrate.repeated(2)
    assert disagreeing == ("bandwidth", "launch")
    assert (found.bandwidth, found.launch) == (5e10, 2e-6)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    devices.current_machine()
    monkeypatch.setenv("CONVALGOS_CACHE_DIR", str(tmp_path))
    for module in (setting, calibrate):
        monkeypatch.setattr(module, "thread_count", lambda: 2)
    monkeypatch.setattr(devices, "_unkept", {})
    monkeypatch.delenv(profiles.VARIABLE, raising=False)
    yield tmp_path
    devices.forget_figures()


def test_a_busy_machine_does_not_store_nonsense(folder, passes):
    machine.save_machine(FIGURES)
    passes(*(figures(cache_bandwidth=6.6e9 * 0.8**i) for i in range(calibrate.PASSES)))
    result = run("tune", "--machine")
    assert "warning: cache_bandwidth differs from pass to pass: other programs are running" in result.stderr
    kept = machine.load_machine(2)
    assert kept.cache_bandwidth == FIGURES.cache_bandwidth  # that of before was better
    assert kept.source == tune.BUSY and tune.BUSY in result.stdout


def test_a_quiet_machine_replaces_what_was_stored(folder, passes):
    machine.save_machine(figures(peak_float32=6e11))
    passes(figures(), figures())
    result = run("tune", "--machine")
    assert machine.load_machine(2) == FIGURES and result.stderr == ""
    assert "500 GFLOP/s" in result.stdout


def test_the_first_measurement_is_repeated_where_it_cannot_be_true(folder, passes):
    devices.forget_figures()
    passes(figures(cache_bandwidth=6.6e9), figures(), figures())
    assert devices.measured_machine() == FIGURES == machine.load_machine(2)
    assert devices.current_machine() == FIGURES
    machine._path(2).unlink()
    devices._unkept.clear()
    devices.forget_figures()
    passes(*[figures(cache_bandwidth=6.6e9)] * 9)
    with pytest.warns(UserWarning, match=r"6\.6 GB/s is less than that of memory, .* tune --machine"):
        assert devices.measured_machine().source == tune.BUSY


def process_starts():
    """What the process before has measured is only in its file."""
    devices._unkept.clear()
    devices.forget_figures()


def test_later_processes_keep_the_best_until_two_passes_agree(folder, passes):
    process_starts()
    left = passes(figures(bandwidth=9e9), figures(peak_float32=4.9e11), figures(bandwidth=8e9), figures())
    assert devices.measured_machine().bandwidth == devices.measured_machine().bandwidth == 9e9
    assert len(left) == 3, "once in a process"
    process_starts()
    assert devices.measured_machine() == FIGURES == machine.load_machine(2)
    process_starts()
    assert devices.measured_machine().bandwidth == FIGURES.bandwidth, "a worse one changes nothing"
    process_starts()
    assert devices.measured_machine() == FIGURES and not left
    process_starts()
    assert devices.measured_machine() == FIGURES, "two have agreed: nothing is measured"


def test_passes_end_where_none_agree(folder, passes):
    left = passes(*(figures(bandwidth=5e10 * 0.8**i) for i in range(calibrate.PASSES + 1)))
    for _ in range(calibrate.PASSES + 3):
        process_starts()
        assert devices.measured_machine().bandwidth == FIGURES.bandwidth
    assert len(left) == 1


def test_figures_of_an_older_file_are_compared_where_it_has_them(folder, passes):
    process_starts()
    machine.save_machine(figures(clock=None, bandwidth=9e9))
    passes(figures(clock=4e9))
    assert devices.measured_machine() == figures(clock=4e9)


def test_choosing_measures_nothing_and_what_takes_its_time_does(folder, passes, wisdom):
    """Nominal figures, which say that they are, until `find` has measured."""
    devices.forget_figures()
    problem = ca.ConvProblem.parse("n1 c1 w9 k1 s3")
    left = passes(figures(), figures())
    for effort in ("estimate", "measure"):
        ca.plan(problem, effort=effort, allow="cpu.reference")
    assert len(left) == 2 and machine.load_machine(2) is None
    told = "by nominal figures of this machine: convalgos tune --machine measures it"
    assert devices.current_machine().is_nominal and told in str(ca.explain(problem.replace(padding=1)))
    assert "nominal peak" in devices.current_machine().summary
    ca.find(problem, allow="cpu.reference", time_budget=1.0)  # no time for the machine
    assert len(left) == 2
    ca.find(problem, allow="cpu.reference")
    assert len(left) == 1 and machine.load_machine(2) == FIGURES == devices.current_machine()
    assert told not in str(ca.explain(problem.replace(padding=1)))


def test_what_was_measured_holds_where_it_cannot_be_kept(folder, passes, monkeypatch):
    (folder / "file").write_text("")
    monkeypatch.setenv("CONVALGOS_CACHE_DIR", str(folder / "file"))
    devices.forget_figures()
    passes(figures())
    with pytest.warns(RuntimeWarning, match="could not be kept"):
        devices.measured_machine()
    assert devices.measured_machine() == FIGURES == devices.current_machine()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"cache_bandwidth": 4e10}, "cache_bandwidth 40.0 GB/s is less than that of memory, 50.0 GB/s"),
        ({"peak_float64": 5e11}, "peak_float64 500 GFLOP/s is not about half"),
        ({"launch": 1e-3}, "launch 1000 us"),
    ],
)
def test_doubts(changes, told):
    assert machine.doubts(FIGURES) == []
    (doubt,) = machine.doubts(figures(**changes))
    assert doubt.startswith(told)


# --- constants -------------------------------------------------------------------------------


def test_constants_are_read_with_their_comments():
    source = '''"""Doc."""
import math
PLAIN = 3
OWN = 1 << 4  # of its own
# Found on Zen 5
# and AVX-512.
FIRST = 0.5  # the first
SECOND = {4: 0.25}  # the second

ALONE = (1, 2)  # after an empty line
COMPUTED = math.pi  # not a number that is written here
lower = 3  # no constant
'''
    found = {c.name: (c.value, c.comment) for c in model_constants.in_source("cpu/x.py", source)}
    assert found == {
        "OWN": ("1 << 4", "of its own"),
        "FIRST": ("0.5", "the first; Found on Zen 5 and AVX-512."),
        "SECOND": ("{4: 0.25}", "the second; Found on Zen 5 and AVX-512."),
        "ALONE": ("(1, 2)", "after an empty line"),
    }


def test_info_shows_the_constants_of_the_cost_models():
    text = run("info", "--constants").stdout
    assert "cpu/tiled/cost.py" in text and "SPILL" in text and "Calibrated on Zen 5 with AVX-512" in text
    assert "SPILL" not in run("info").stdout
    assert "wisdom folder" in text
