"""The processes in which a check of a GPU runs: what takes them down, and who is barred for it."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import gpu_check_stand_in as stand_in
import pytest

import convalgos as ca
from convalgos.tools.bench.suites import Layer
from convalgos.tools.gpu_check import __main__ as command
from convalgos.tools.gpu_check import phases, process, quick, sanitize, worker
from convalgos.tools.gpu_check.cases import Case
from convalgos.tools.gpu_check.quarantine import Quarantine
from convalgos.tools.gpu_check.results import OutOfTime, Result
from convalgos.tools.gpu_check.steps import PLANNING, RUNNING, Begun
from convalgos.tools.gpu_check.worker import Apart, NoDeviceError, Task

OURS = ("gpu.direct", "gpu.im2col")
TESTS = str(Path(__file__).parent)
HURRY = 0.2  # of all patience: other programs may hold a test up


@pytest.fixture
def processes():
    """Makes workers of the real kind on a simulated device, and sees to their end."""
    made = []

    def make(scale=HURRY, command=stand_in.COMMAND):
        made.append(Apart("cuda:0", scale, command, paths=[TESTS]))
        return made[-1]

    yield make
    for apart in made:
        apart.close()


# --- a process that is lost ------------------------------------------------------------------------


def script(device, steps, skip):
    """A job of (algorithm, width of a problem, how it goes wrong)."""
    for algorithm, width, how in steps:
        problem = ca.ConvProblem.parse(f"n1 c1 w{width} k1 s1")
        begun = Begun(Case("job", str(width), problem), algorithm)
        if begun.key in skip or skip.problem(problem):
            continue
        yield begun
        if how == "dies":
            print("out of luck", file=sys.stderr, flush=True)
            os._exit(3)
        if how == "crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
        if how == "hangs":
            stand_in.hang()
        if how == "is wrong itself":
            raise KeyError("a mistake of ours")
        if how == "cannot find a file":
            raise FileNotFoundError("nowhere")
        if how == "loses the device":
            device.synchronize = lambda: 1 / 0
            yield Result("job", *begun.key, "y", failure="illegal address")
        yield Result("job", *begun.key, "y", error=0.0, bound=1.0)


def run(apart, *scripts, seconds=500.0, lanes=1, **more):
    """What is found."""
    tasks = [Task("phase", partial(script, steps=steps), most=RUNNING, **more) for steps in scripts]
    return [found for _, found in apart.run(tasks, time.monotonic() + seconds, lanes)]


def names(found, wrong):
    return [r.algorithm for r in found if isinstance(r, Result) and r.wrong == wrong]


REASONS = {
    "dies": "ended with status 3 (out of luck)",
    "crashes": "ended by SIGSEGV",
    "hangs": f"nothing was heard for {RUNNING * HURRY:.3g} s",
    "loses the device": "of no use",
    "is wrong itself": "KeyError: 'a mistake of ours' (script, line",
    "cannot find a file": "FileNotFoundError: nowhere",
}


@pytest.mark.parametrize("how", REASONS)
def test_what_takes_its_process_down_is_blamed_and_the_rest_goes_on(processes, how):
    apart = processes()
    steps = [("gpu.number0", 1, ""), ("gpu.number1", 1, how), ("gpu.number2", 1, ""), ("gpu.number3", 1, "")]
    found = run(apart, steps)
    assert names(found, False) == ["gpu.number0", "gpu.number2", "gpu.number3"]
    blamed = [r for r in found if r.wrong]
    assert {r.algorithm for r in blamed} == {"gpu.number1"} and REASONS[how] in blamed[-1].failure
    again = run(apart, steps[2:])
    assert names(again, False) == ["gpu.number2", "gpu.number3"], "other tasks find a process"


def test_who_lost_two_processes_is_barred_from_all_that_follows(processes):
    apart = processes()
    bad = [("gpu.bad", width, "hangs") for width in range(1, 7)]
    found = run(apart, [("gpu.good", 1, ""), *bad, ("gpu.good", 2, "")])
    assert names(found, True) == ["gpu.bad"] * 2 and names(found, False) == ["gpu.good"] * 2
    first, second = (r.failure for r in found if r.wrong)
    assert REASONS["hangs"] in first and f"nothing was heard for {worker.SUSPECT * HURRY:.3g} s" in second
    (told,) = apart.quarantine.told()
    assert told.startswith("gpu.bad is barred after 2 losses: `n1 c1 w1 k1 s1`, nothing was heard for")
    found = run(apart, [("gpu.bad", 9, "hangs"), ("gpu.good", 3, "")])
    assert names(found, True) == [] and names(found, False) == ["gpu.good"]


def test_all_plans_of_cudnn_are_one_culprit_and_data_are_nobodys():
    quarantine = Quarantine()
    case = Case("", "", ca.ConvProblem.parse("n1 c1 w1 k1 s1"))
    for plan in ("eng1_k1_2", "eng62"):
        quarantine.lost(Begun(case, f"gpu.cudnn.{plan}"), "hung")
        quarantine.lost(Begun(case), "hung")
    assert quarantine.barred == {"gpu.cudnn"}
    assert quarantine.patience(Begun(case, "gpu.cudnn.eng9", PLANNING)) == worker.SUSPECT
    assert quarantine.patience(Begun(case, "gpu.direct", PLANNING), 20.0, most=12.0) == 12.0
    assert quarantine.patience(Begun(case, "", 60.0), most=12.0) == 60.0


def test_a_job_that_loses_processes_with_nobody_to_blame_is_given_up(processes):
    found = run(processes(), [("", width, "dies") for width in range(9)] + [("gpu.good", 1, "")])
    assert names(found, True) == [""] * worker.BLAMELESS


def test_one_that_takes_long_does_not_stop_other_lanes(processes, tmp_path):
    """It waits for what the last of the others leaves, which are run one after the other meanwhile."""
    names = ["gpu.slow", "gpu.quick", "gpu.last"]
    tasks = [Task("phase", partial(meet, name=name, folder=tmp_path), own=True) for name in names]
    found = [found for _, found in processes(scale=1.0).run(tasks, time.monotonic() + 500, lanes=2)]
    assert sorted(found) == sorted(names)  # on a busy machine what came last may be read first


def meet(device, name, folder, skip):
    yield Begun(Case("", "", ca.ConvProblem.parse("n1 c1 w1 k1 s1")), name, patience=40.0)
    if name == "gpu.slow":
        within(40, (folder / "gpu.last").exists)
    yield name
    (folder / name).touch()


def test_the_end_of_a_phase_is_kept_whatever_a_job_does(processes, monkeypatch):
    """One that hangs, which is waited for longer than that, and one that goes on for ever."""
    for job, running in ((tell_and_hang, "gpu.bad ran on `n1 c1 w1 k1 s1`"), (chatter, "")):
        apart = processes(scale=1.0)
        apart.ready()
        task = Task("phase", partial(job, path=os.devnull))
        found = [found for _, found in apart.run([task], time.monotonic())]
        assert found == [OutOfTime(0)], "not begun"
        with monkeypatch.context() as patch:
            patch.setattr(worker, "ENDING", 0.5)
            found = [found for _, found in apart.run([task], time.monotonic() + 0.5)]
        assert found == [OutOfTime(0, running)] and apart.quarantine.barred == frozenset()


def chatter(device, path, skip):
    while True:
        time.sleep(0.01)
        yield Begun(Case("", "", ca.ConvProblem.parse("n1 c1 w1 k1 s1")), patience=60.0)


def test_a_task_waits_for_another_one_and_what_is_its_own_gets_a_fresh_process(processes):
    apart = processes()
    first = Task("phase", identify)
    rest = [Task("phase", identify, own=own, after=first) for own in (True, True, False)]
    found = [(task, pid) for task, pid in apart.run([*rest, first], time.monotonic() + 500, lanes=3)]
    assert found[0][0] is first and len({pid for task, pid in found if task.own or task is first}) == 3


def identify(device, skip):
    yield os.getpid()


# --- a process that cannot be ended ----------------------------------------------------------------


def test_what_is_stuck_in_the_driver_is_abandoned(processes, monkeypatch):
    """No signal ends it, and no wait for it returns."""
    left = []

    def kill(self):
        self.pipe.close()
        left.append(self._process)

    apart = processes()
    with monkeypatch.context() as patch:
        patch.setattr(process.Process, "kill", kill)
        found = run(apart, [("gpu.bad", 1, "hangs"), ("gpu.good", 1, "")])
        assert names(found, True) == ["gpu.bad"] and names(found, False) == ["gpu.good"]
        apart.close()
    assert apart.abandoned >= 1 and left[0].poll() is None
    for stuck in left:
        stuck.kill()
        stuck.wait()


def test_where_no_process_finds_a_device_that_is_said_and_not_tried_for_ever(processes):
    failing = (sys.executable, "-c", "raise SystemExit('no driver')")
    with pytest.raises(NoDeviceError, match=r"ended with status 1 \(no driver\)"):
        processes(command=failing).ready()
    apart = processes()
    apart.ready()
    apart._command = failing
    with pytest.raises(NoDeviceError, match="no driver"):
        run(apart, [("gpu.bad", width, "dies") for width in range(9)])


def test_no_process_outlives_who_directs(tmp_path):
    """Also where it is killed, and its process hangs."""
    program = (
        "import sys, time; from functools import partial; import test_gpu_check_worker as t\n"
        "apart = t.Apart('cuda:0', 1.0, t.stand_in.COMMAND, paths=[t.TESTS])\n"
        "job = partial(t.tell_and_hang, path=sys.argv[1])\n"
        "list(apart.run([t.Task('phase', job)], time.monotonic() + 60))"
    )
    path = tmp_path / "pid"
    paths = os.pathsep.join((str(Path(TESTS).parent), TESTS))
    directing = subprocess.Popen(
        [sys.executable, "-c", program, str(path)], env=os.environ | {"PYTHONPATH": paths}
    )
    pid = int(within(30, lambda: path.exists() and path.read_text().endswith(" ") and path.read_text()))
    directing.kill()
    directing.wait()
    assert within(10, lambda: not alive(pid))


def tell_and_hang(device, path, skip):
    Path(path).write_text(f"{os.getpid()} ")
    yield Begun(Case("", "", ca.ConvProblem.parse("n1 c1 w1 k1 s1")), "gpu.bad")
    stand_in.hang()


def within(seconds, asked):
    until = time.monotonic() + seconds
    while not (found := asked()) and time.monotonic() < until:
        time.sleep(0.05)
    return found


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


# --- the quick check -------------------------------------------------------------------------------

LAYERS = tuple(
    Layer("net", text, ca.ConvProblem.parse(text))
    for text in ("n1 c64 h6 w6 k64 r3 s3 p1", "n1 c8 h9 w9 k8 r3 s3 p1 groups8")
)
TRIED = ("gpu.direct", "gpu.im2col", "gpu.fft.whole", "gpu.winograd.f4x3", "gpu.implicit_gemm.wgmma_half")


@pytest.fixture
def quickly(processes, monkeypatch, tmp_path):
    monkeypatch.setattr(command, "suites", lambda: {"net": LAYERS})
    every = quick.gpu_algorithms()
    monkeypatch.setattr(quick, "gpu_algorithms", lambda: {name: every[name] for name in TRIED})

    def check(behaviour):
        told = ",".join(f"{name}={how}" for name, how in behaviour.items())
        monkeypatch.setenv(stand_in.BEHAVIOUR, told)
        status = command.main(["--quick", "--out", str(tmp_path)], processes())
        return status, json.loads((tmp_path / "gpu-h200-132sm.json").read_text())

    return check


def test_three_that_hang_and_one_that_crashes_leave_a_whole_quick_report(quickly, capsys):
    hanging = dict(zip(TRIED[:3], ("hangs", "hangs", "hangs in its plan"), strict=True))
    status, record = quickly(hanging | {TRIED[3]: "crashes", TRIED[4]: "is wrong"})
    assert status == 1
    barred = [text.partition(" ")[0] for text in record["barred"]]
    assert barred == sorted(TRIED[:4])
    wrong = [c for c in record["checks"] if c["algorithm"] == TRIED[4] and c["what"] == "y"]
    assert len(wrong) >= 2 and all(c["error"] > 0.1 for c in wrong)
    assert set(record["phases"]) == {p.name for stage in phases.QUICK for p in stage.phases}
    timed = {c["algorithm"] for la in record["layers"] for c in la["candidates"]}
    assert timed and not timed & set(barred)
    told = capsys.readouterr().out.splitlines()
    begin = next(i for i, line in enumerate(told) if line.startswith("=== "))
    assert len(told) - begin <= 60
    assert sum(line.startswith("BARRED: ") for line in told[begin:]) == 4
    assert any(line.startswith(f"WRONG: {TRIED[4]}") for line in told[begin:])


def test_ended_by_a_signal_it_leaves_a_whole_report(tmp_path):
    program = (
        "import sys; import test_gpu_check_worker as t\n"
        "t.command.suites, t.quick.ids = lambda: {'net': t.LAYERS}, lambda: [*t.OURS]\n"
        "apart = t.Apart('cuda:0', 1.0, t.stand_in.COMMAND, paths=[t.TESTS])\n"
        "sys.exit(t.command.main(['--quick', '--out', sys.argv[1]], apart))"
    )
    paths = os.pathsep.join((str(Path(TESTS).parent), TESTS))
    told = {stand_in.BEHAVIOUR: "gpu.im2col=hangs", "PYTHONPATH": paths}
    directing = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        env=os.environ | told, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    path = tmp_path / "gpu-h200-132sm.json"
    assert within(40, lambda: path.exists() and "gpu.direct" in path.read_text())
    directing.send_signal(signal.SIGTERM)
    out, _ = directing.communicate(timeout=30)
    assert directing.returncode == 143
    record = json.loads(path.read_text())
    assert record["notes"] == ["ended before its time by a signal"] and record["checks"]
    assert "=== H200" in out and "ended before its time" in out


# --- the sanitizer ---------------------------------------------------------------------------------

FAKE = """#!/bin/sh
case "$*" in
  *racecheck*gpu.direct*) echo "compiling"; echo "========= Error: Race reported in direct"; exit 33;;
  *gpu.im2col*) sleep 20;;
esac
"""


def test_the_sanitizer_is_run_for_every_algorithm(tmp_path):
    program = tmp_path / "compute-sanitizer"
    program.write_text(FAKE)
    program.chmod(0o755)
    began = time.monotonic()
    found = list(sanitize.sanitize(str(program), OURS, "cuda:0", began + 2.5))
    assert [(r.algorithm, r.what.partition(":")[0]) for r in found] == [
        (name, kind) for kind in ("memcheck", "racecheck") for name in OURS
    ]
    assert [r.algorithm for r in found if r.wrong] == ["gpu.direct"]
    assert found[2].failure == "========= Error: Race reported in direct"
    assert "not done in" in found[1].what
    assert time.monotonic() - began < 15, "what it started is ended, too"


def test_the_sanitizer_looks_at_what_failed_only(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(sanitize, "tool", lambda: "tool")
    monkeypatch.setattr(sanitize, "sanitize", lambda tool, ids, *rest: asked.append(ids) or iter(()))
    (stage,) = phases.stages(False, ["sanitizer"])
    for failed in (set(), {"gpu.direct", "gpu.cudnn", ""}):
        setting = phases.Setting(None, (), "cuda:0", time.monotonic() + 9, None, None, failed=failed)
        assert list(stage.run(setting)) == []
    assert asked == [["gpu.direct"]]
