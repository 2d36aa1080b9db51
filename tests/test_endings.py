"""What objects leave to be done when they go is done once, whenever they go."""

import gc
import sys
import threading
from functools import partial
from itertools import count

import pytest

from convalgos.core import endings, workspaces


def amid_line(at, of, do, run):
    """Whether a run came to a line of a module, before which `do` is called as by a collection of garbage."""
    lines = count()

    def each_line(frame, event, argument):
        if event == "line" and next(lines) == at:
            do()
        return each_line

    before = sys.gettrace()
    sys.settrace(lambda frame, *_: each_line if frame.f_code.co_filename == of.__file__ else None)
    try:
        run()
    finally:
        sys.settrace(before)
    return next(lines) > at


def test_objects_that_go_while_others_are_ended():
    for line in count():
        ended = []
        waiting = endings.Endings(threading.RLock())
        one, other = (partial(waiting.add, partial(ended.append, n)) for n in (1, 2))
        if not amid_line(line, endings, one, other):
            break
        assert sorted(ended) == [1, 2]
    assert line > 5


class Plan(workspaces.OwnWorkspaces):
    def __init__(self):
        self._set_workspace(workspaces.LARGE)

    def run(self):
        self._give_back(bytes(1))


@pytest.mark.parametrize("release", [False, True])
def test_a_plan_that_goes_while_workspaces_are_counted(release):
    gc.collect()
    for line in count():
        workspaces.release_workspaces()
        plans, last = [Plan()], Plan()
        plans[0].run()
        run = workspaces.release_workspaces if release else last.run
        if not amid_line(line, workspaces, plans.clear, run):
            break
        assert workspaces.workspace_bytes_held() == (0 if release else workspaces.LARGE)
        assert len(last._free) == (not release)
    assert line > 5
