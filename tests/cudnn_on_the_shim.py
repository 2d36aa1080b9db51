"""gpu.cudnn on the stand-ins for its front end and for a GPU: setting up, and what tests on them share."""

import sys
from contextlib import contextmanager

import numpy as np
import pytest
from cuda_shim import device as shim
from fake_cudnn import PLANS, Front
from helpers import example

from convalgos.core import algorithm as contract
from convalgos.core.epilogue import finish
from convalgos.core.problem import ConvProblem
from convalgos.gpu import cudnn
from convalgos.gpu.device import use
from convalgos.gpu.vendor import plans as vendor_plans
from convalgos.gpu.vendor import runner, verify

(CUDNN,) = cudnn.ALGORITHMS
PROBLEM = ConvProblem.parse("n3 c6 h7 w8 k4 r3 s3 p1:0,2 stride2,1 groups2")
needs_shim = pytest.mark.skipif(shim.missing() is not None, reason=str(shim.missing()))


class Device(shim.ShimDevice):
    """The stand-in for a GPU, with streams."""

    number, captured = 7, False

    def stream(self):
        return self.number

    def capturing(self):
        return self.captured


def forget():
    """What the library keeps of a front end."""
    for cached in (vendor_plans.listing, runner.planner):
        cached.cache_clear()
    vendor_plans._notes.clear()
    vendor_plans._readable.clear()
    runner._free.clear()
    verify.forget_checks()


@contextmanager
def installing(monkeypatch):
    """A function that puts a front end in the place of the real one; the stand-in's own is there already."""

    def put(*plans, **settings):
        front = Front(plans or PLANS, **settings)
        monkeypatch.setitem(sys.modules, "cudnn", front)
        return front

    for user in (contract, sys.modules["convalgos.gpu.launch.algorithm"]):
        monkeypatch.setattr(user, "missing", lambda name: None)
    with use(Device()):
        put()
        yield put
    forget()


def data(problem):
    """(x, w, bias, y in float64 before bias) in the problem's layout."""
    x, w, bias, y = example(problem.replace(layout="channels_first"), "integers")
    if problem.layout == "channels_last":
        x, y = (np.ascontiguousarray(np.moveaxis(a, 1, -1)) for a in (x, y))
    return x, w, bias, y


def right(problem, y, bias, activation):
    answer = y.astype(np.float32)
    finish(answer, bias, activation, problem)
    return answer


def offered(problem):
    """The names of the plans for a problem, as cuDNN calls them."""
    return [a.offer.name for a in CUDNN.variants(problem)]
