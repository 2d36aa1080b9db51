"""What objects leave to be done when they go is done once, whenever they go."""

import sys
import threading

import pytest

from convalgos.core import workspaces
from convalgos.core.endings import Endings


def amid_every_line(of, do, run):
    """Run with `do` called before each line of a module, as a collection of garbage would."""

    def each_line(frame, event, argument):
        if event == "line":
            do()
        return each_line

    before = sys.gettrace()
    sys.settrace(lambda frame, *_: each_line if frame.f_code.co_filename == of else None)
    try:
        run()
    finally:
        sys.settrace(before)


def test_objects_that_go_while_others_are_ended():
    ended, count = [], 0
    endings = Endings(threading.RLock())

    def goes():
        nonlocal count
        count += 1
        endings.add(lambda at=count: ended.append(at))

    amid_every_line(sys.modules[Endings.__module__].__file__, goes, goes)
    assert count > 5 and sorted(ended) == list(range(1, count + 1))


class Plan(workspaces.OwnWorkspaces):
    def __init__(self):
        self._set_workspace(workspaces.LARGE)

    def run(self):
        self._give_back(bytes(1))


@pytest.mark.parametrize("release", [False, True])
def test_plans_that_go_while_workspaces_are_counted(release):
    workspaces.release_workspaces()
    plans, last = [Plan() for _ in range(40)], Plan()
    for plan in plans:
        plan.run()
    del plan
    assert workspaces.workspace_bytes_held() == 40 * workspaces.LARGE

    def goes():
        if plans:
            plans.pop()

    amid_every_line(workspaces.__file__, goes, workspaces.release_workspaces if release else last.run)
    assert len(plans) < 40
    held = 0 if release else len(plans) + 1
    assert workspaces.workspace_bytes_held() == held * workspaces.LARGE
    assert len(last._free) == (not release)
    workspaces.release_workspaces()
    assert not any(plan._free for plan in plans)
