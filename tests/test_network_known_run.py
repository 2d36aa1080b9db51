"""Calls like those before are run by one compiled function, and others by Python."""

import gc
import sys
import threading
import weakref

import numpy as np
import pytest

from convalgos.network.known_run import can_be_known
from convalgos.onnx import Session

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

pytestmark = pytest.mark.skipif(not can_be_known(), reason="arrays of this NumPy lie otherwise")
W = np.random.default_rng(0).integers(-3, 4, (5, 7)).astype("f4")
ROWS = np.random.default_rng(1).integers(-9, 9, (6, 7)).astype("f4")


def session(nodes, inputs, outputs, options=None):
    constants = [numpy_helper.from_array(W.T.copy(), "w"), numpy_helper.from_array(ROWS, "rows")]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        constants,
    )
    opset = [helper.make_opsetid("", 17)]
    return Session(helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString(), options)


def product(options=None):
    """y = relu(x w), z = x z0."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Relu", ["p"], ["y"]),
        helper.make_node("Add", ["p", "p"], ["z"]),
    ]
    return session(nodes, [("x", TensorProto.FLOAT, ["n", 7])], ["y", "z"], options)


def gathering():
    """Rows at places, times w."""
    nodes = [helper.make_node("Gather", ["rows", "i"], ["g"]), helper.make_node("MatMul", ["g", "w"], ["y"])]
    return session(nodes, [("i", TensorProto.INT64, ["n"])], ["y"])


def known(s, feed):
    for _ in range(3):
        s.run(None, feed)
    assert s.network.repeated.run is not None
    return s


def numbers(n, seed=0):
    return np.random.default_rng(seed).integers(-4, 5, (n, 7)).astype("f4")


def assert_right(found, x):
    p = np.asarray(x, "f4") @ W.T
    np.testing.assert_array_equal(found[0], np.maximum(p, 0))
    np.testing.assert_array_equal(found[1], 2 * p)


class Counted:
    """What counts its calls, and passes them on."""

    def __init__(self, run):
        self._run, self.found = run, []

    def __call__(self, feed):
        self.found.append(self._run(feed))
        return self.found[-1]


def test_it_computes_what_a_first_call_does_in_new_arrays():
    s = known(product(), {"x": numbers(3)})
    counted = s.network.repeated.run.run = Counted(s.network.repeated.run.run)
    before = [(s.run(None, {"x": x}), x) for x in (numbers(3, seed) for seed in range(5))]
    for found, x in before:  # all of them at the end: none shares memory with a later one
        assert_right(found, x)
    assert all(found is not None for found in counted.found) and len(counted.found) == 5


def test_other_arrays_are_left_to_the_caller():
    s = known(product(), {"x": numbers(3)})
    counted = s.network.repeated.run.run = Counted(s.network.repeated.run.run)
    frozen = numbers(3, 7)
    frozen.flags.writeable = False
    assert_right(s.run(None, {"x": frozen}), frozen)
    assert counted.found.pop() is not None
    wide, bytes_ = np.zeros((3, 14), "f4"), np.zeros(3 * 7 * 4 + 1, "u1")
    wide[:, ::2] = numbers(3, 8)
    unaligned = bytes_[1:].view("f4").reshape(3, 7)
    unaligned[...] = numbers(3, 9)
    swapped = numbers(3, 10).astype(">f4")
    for x in (wide[:, ::2], unaligned, swapped, numbers(3).tolist(), np.asfortranarray(numbers(3, 11))):
        assert_right(s.run(None, {"x": x}), x)
        assert counted.found.pop() is None
    for wrong, error in (
        ({"x": numbers(3).astype("f8")}, TypeError),
        ({"x": np.zeros((3, 8), "f4")}, ValueError),
        ({}, ValueError),
        ({"x": numbers(3), "more": numbers(3)}, ValueError),
        ({"other": numbers(3)}, ValueError),
        ([numbers(3)], TypeError),
    ):
        with pytest.raises(error):
            s.run(None, wrong)
    assert_right(s.run(None, {"x": numbers(3, 5)}), numbers(3, 5))
    assert counted.found.pop() is not None  # the memory came back each time


def test_other_sizes_and_names_of_outputs():
    s = product()
    for n in (1, 1, 1, 4, 1, 4, 4, 4, 0, 0, 0, 300, 300, 300, 1, 1, 1):
        assert_right(s.run(None, {"x": numbers(n, n)}), numbers(n, n))
    assert s.network.repeated.run is not None
    x = numbers(1, 3)
    z, y = s.run(["z", "y"], {"x": x})
    assert_right((y, z), x)
    assert_right(s.run(["y", "z"], {"x": x}), x)


def test_places_that_are_none_are_told_each_time():
    s = known(gathering(), {"i": np.array([0, 5])})
    for _ in range(3):
        with pytest.raises(IndexError, match="out of bounds"):
            s.run(None, {"i": np.array([0, 6])})
        (y,) = s.run(None, {"i": np.array([-1, 2])})
        np.testing.assert_array_equal(y, ROWS[[-1, 2]] @ W.T)
    assert len(s.network._memories.free) == 1


def test_a_plan_that_is_made_later_is_what_calls_run_by():
    s = known(product(), {"x": numbers(2)})
    plan = s.network.plan([(2, 7)])
    assert s.network.repeated.run is None
    known(s, {"x": numbers(2)})
    assert s.network.repeated.plan is plan
    assert_right(s.run(None, {"x": numbers(2, 1)}), numbers(2, 1))


def test_references_are_kept_and_given_back():
    s, x = known(product(), {"x": numbers(3)}), numbers(3)
    feed = {"x": x}
    before = sys.getrefcount(x), sys.getrefcount(s.network._memories.free[0])
    for _ in range(100):
        found = s.run(None, feed)
        assert len(s.network._memories.free) == 1
    assert (sys.getrefcount(x), sys.getrefcount(s.network._memories.free[0])) == before
    assert [sys.getrefcount(y) for y in found] == [3, 3]  # that of the list, of the loop and of the call
    gone = weakref.ref(found[0])
    del found
    assert gone() is None


def test_a_session_and_what_it_ran_by_go_at_once():
    s = known(product(), {"x": numbers(3)})
    gone = [weakref.ref(of) for of in (s.network, s.network.repeated.run, s.network._memories.free[0])]
    gc.disable()
    try:
        del s
        assert [of() for of in gone] == [None] * 3
    finally:
        gc.enable()


def test_many_threads_at_once():
    s, wrong = known(product(), {"x": numbers(40)}), []

    def call(seed):
        for i in range(200):
            x = numbers(40 if i % 7 else 3, 1000 * seed + i)
            p, (y, z) = x @ W.T, s.run(None, {"x": x})
            if not (np.array_equal(y, np.maximum(p, 0)) and np.array_equal(z, 2 * p)):
                wrong.append((seed, i))

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
