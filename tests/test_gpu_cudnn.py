"""cuDNN without cuDNN: the graphs that are asked of it, and what is said where it refuses or is missing."""

import ctypes
import sys
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from cuda_shim import device as shim
from helpers import example

from convalgos import algorithm as contract
from convalgos.algorithm import finish
from convalgos.cpu.reference import reference
from convalgos.gpu import cudnn as module
from convalgos.gpu.device import use
from convalgos.problem import ConvProblem

(CUDNN,) = module.ALGORITHMS
PROBLEM = ConvProblem.parse("n2 c6 h7 w8 k4 r3 s2 p1:0,2 stride2,1 groups2")


class Names(Enum):
    FLOAT, HALF, BFLOAT16, A, FALLBACK, TENSOR_CORE, DOWN_CONVERT_INPUTS = range(7)


class Output:
    """Collects what is set of the graph's output."""

    def __init__(self):
        self.set = {}

    def __getattr__(self, name):
        def setter(value):
            self.set[name] = value
            return self

        return setter


class Graph:
    """Records what it is asked, and computes as the reference does."""

    made: ClassVar[list] = []
    refuses = False

    def __init__(self, **kinds):
        self.kinds, self.tensors, self.calls = kinds, {}, []
        Graph.made.append(self)

    def tensor(self, **given):
        self.tensors[given["uid"]] = given
        return given["uid"]

    def conv_fprop(self, x, w, **parameters):
        self.parameters, self.output = parameters, Output()
        return self.output

    def check_support(self):
        if Graph.refuses:
            raise RuntimeError("no engine\nfor this")

    def get_workspace_size(self):
        return 0

    def execute(self, addresses, workspace, handle, tensor_uids):
        self.executed = tensor_uids, workspace
        shapes = [self.tensors[101]["dim"], self.tensors[102]["dim"], self.output.set["set_dim"]]
        strides = [self.tensors[101]["stride"], self.tensors[102]["stride"], self.output.set["set_stride"]]
        x, w, y = (
            np.lib.stride_tricks.as_strided(
                np.ctypeslib.as_array(ctypes.cast(a, ctypes.POINTER(ctypes.c_float)), (int(np.prod(n)),)),
                n,
                [4 * s for s in steps],
            )
            for a, n, steps in zip(addresses, shapes, strides, strict=True)
        )
        g = self.parameters
        pads = tuple(zip(g["pre_padding"], g["post_padding"], strict=True))
        problem = ConvProblem(
            x.shape, w.shape, tuple(g["stride"]), pads, tuple(g["dilation"]), x.shape[1] // w.shape[1]
        )
        y[...] = reference(problem, x, w)

    def __getattr__(self, name):
        return lambda *given: self.calls.append((name, *given))


@pytest.fixture
def fake(monkeypatch):
    """A front end that records, and a device that has streams."""
    front = ModuleType("cudnn")
    front.data_type = front.heur_mode = front.numerical_note = Names
    front.pygraph, front.create_handle, front.set_stream = Graph, lambda: "handle", lambda *given: None
    monkeypatch.setitem(sys.modules, "cudnn", front)
    monkeypatch.setattr(contract, "missing", lambda name: None)
    monkeypatch.setattr("convalgos.gpu.plan.missing", lambda name: None)
    monkeypatch.setattr(Graph, "made", [])
    module.graph.cache_clear()

    class Streams:
        cuda = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=7))

        def __getattr__(self, name):
            return getattr(np, name)

    class Device(shim.ShimDevice):
        xp = Streams()

    with use(Device()):
        yield Graph


def test_where_it_is_missing_the_reason_says_how_to_get_it():
    if contract.missing("cudnn") is None:
        pytest.skip("cuDNN's front end is installed")
    with use(shim.ShimDevice()):
        assert "pip install 'convalgos[gpu]'" in CUDNN.why_not(PROBLEM)


@pytest.mark.parametrize(
    "text", [str(PROBLEM), "n1 c3 w20 k5 s4 p3:0 dilation2", "n1 c2 d4 h5 w6 k3 t2 r3 s3 p1"]
)
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_graphs_describe_the_problem(fake, text, layout):
    """Their dims, strides, padding and uids are enough to compute y."""
    problem = ConvProblem.parse(text).replace(layout=layout)
    x, w, bias, y = example(problem.replace(layout="channels_first"), "integers")
    answer = y.astype(np.float32)
    finish(answer, bias, "relu", problem.replace(layout="channels_first"))
    last = layout == "channels_last"
    plan = CUDNN.serve(problem)
    found = plan(np.ascontiguousarray(np.moveaxis(x, 1, -1)) if last else x, w, bias=bias, activation="relu")
    assert np.array_equal(np.moveaxis(found, -1, 1) if last else found, answer)
    assert len(fake.made) == 1, "one graph serves ranking and plan"
    assert fake.made[0].executed == ([101, 102, 103], 0)


@pytest.mark.parametrize(
    ("words", "strict"), [("", True), ("compute_tf32", False), ("float16", False), ("bfloat16", False)]
)
def test_strict_float32_bars_tensor_cores(fake, words, strict):
    assert CUDNN.why_not(ConvProblem.parse(f"{PROBLEM} {words}")) is None
    barred = [call for call in fake.made[-1].calls if call[0] == "deselect_numeric_notes"]
    wanted = [("deselect_numeric_notes", [Names.TENSOR_CORE, Names.DOWN_CONVERT_INPUTS])]
    assert barred == (wanted if strict else [])
    assert ("deselect_workspace_greater_than", module.WORKSPACE_BYTES) in fake.made[-1].calls


def test_a_refusal_is_passed_on(fake, monkeypatch):
    monkeypatch.setattr(Graph, "refuses", True)
    assert CUDNN.why_not(PROBLEM) == "cuDNN has no plan for it (no engine)"
