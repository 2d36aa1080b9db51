"""A session takes every call of ONNX Runtime's `InferenceSession` that programs make of it."""

import threading

import numpy as np
import pytest

from convalgos.core.errors import Unsupported
from convalgos.core.setting import thread_count
from convalgos.onnx import Session

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

CPU = ["CPUExecutionProvider"]
X = np.random.default_rng(0).integers(-3, 4, (2, 3, 9, 8)).astype("f4")


def model():
    """y = relu(conv(x)), n = that of some integers plus one."""
    w = numpy_helper.from_array(np.random.default_rng(1).integers(-3, 4, (4, 3, 3, 3)).astype("f4"), "w")
    one = numpy_helper.from_array(np.ones(1, "u1"), "one")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Relu", ["c"], ["y"]),
        helper.make_node("Add", ["i", "one"], ["n"]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, None, 8]),
        helper.make_tensor_value_info("i", TensorProto.UINT8, ["k"]),
    ]
    outputs = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
        helper.make_tensor_value_info("n", TensorProto.UINT8, None),
    ]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, [w, one], doc_string="of the graph")
    opset = [helper.make_opsetid("", 17)]
    found = helper.make_model(graph, opset_imports=opset, ir_version=8, producer_name="tests", domain="d")
    found.doc_string, found.model_version = "what it does", 3
    helper.set_model_props(found, {"labels": "a b"})
    return found.SerializeToString()


@pytest.fixture(scope="module")
def both():
    return Session(model(), providers=CPU), ort.InferenceSession(model(), providers=CPU)


FEED = {"x": X, "i": np.array([1, 255], "u1")}
VALUES = {name: ort.OrtValue.ortvalue_from_numpy(x) for name, x in FEED.items()}


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.run(None, FEED),
        lambda s: s.run([], FEED),
        lambda s: s.run(["n", "y", "n"], FEED),
        lambda s: s.run(output_names=None, input_feed=FEED, run_options=ort.RunOptions()),
        lambda s: s.run(["y"], {"x": X.tolist(), "i": [1, 2]}, None),
        lambda s: [y.numpy() for y in s.run_with_ort_values(["y"], VALUES)],
    ],
)  # fmt: skip
def test_runs_give_what_those_of_onnxruntime_give(both, call):
    ours, theirs = map(call, both)
    assert len(ours) == len(theirs)
    for y, right in zip(ours, theirs, strict=True):
        assert y.dtype == right.dtype
        np.testing.assert_array_equal(y, right)


def test_both_tell_the_same_of_a_model(both):
    ours, theirs = (s.get_modelmeta() for s in both)
    for name in ("producer_name", "graph_name", "domain", "description", "graph_description", "version"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.custom_metadata_map == theirs.custom_metadata_map == {"labels": "a b"}
    ours, theirs = both
    assert ours.get_providers() == theirs.get_providers()
    assert ours.get_overridable_initializers() == theirs.get_overridable_initializers()
    assert isinstance(ours.get_session_options(), ort.SessionOptions)
    ours.disable_fallback()
    ours.enable_fallback()
    ours.set_providers(["CUDAExecutionProvider", ("CPUExecutionProvider", {})])
    assert ours.get_provider_options().keys() == {"CPUExecutionProvider"}


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda s: s.run(None, {"x": X, "i": [256]}), ValueError, "i: .*256"),
        (lambda s: s.run(None, {"x": X, "i": [0.5]}), TypeError, "i has dtype float64, .* takes uint8"),
        (lambda s: s.run(None, {"x": X, "i": [[1], [1, 2]]}), ValueError, "i=list is no array"),
        (lambda s: s.set_providers("CPUExecutionProvider"), ValueError, "providers='CPU"),
        (lambda s: s.set_providers([3]), ValueError, r"providers=\[3\] must be a list of names"),
        (lambda s: s.io_binding().bind_cpu_input("y", X), ValueError, "name='y' must be one of"),
        (lambda s: s.io_binding().bind_output("y", "cuda"), Unsupported, "device_type='cuda'"),
        (lambda s: s.io_binding().bind_output("y", buffer_ptr=8), ValueError, "needs an element_type"),
        (lambda s: Session(model(), sess_options=3), TypeError, "sess_options=int must be"),
    ],
)
def test_wrong_calls_are_told(both, call, error, words):
    with pytest.raises(error, match=words):
        call(both[0])


def test_it_runs_on_as_many_threads_as_its_options_say(monkeypatch):
    options = ort.SessionOptions()
    options.intra_op_num_threads = thread_count() + 1
    session, seen = Session(model(), options), []
    assert session.get_session_options() is options
    run = session.network.run
    monkeypatch.setattr(session.network, "run", lambda views: [seen.append(thread_count()), *run(views)][1:])
    expected = Session(model()).run(None, FEED)
    for y, right in zip(session.run(None, FEED), expected, strict=True):
        np.testing.assert_array_equal(y, right)
    assert seen == [thread_count() + 1]
    assert session.network.plans()[0].planned.threads == thread_count() + 1


def test_a_run_beside_the_caller_tells_what_it_found_or_what_went_wrong(both):
    told, come = [], threading.Event()

    def callback(*found):
        told.append(found)
        come.set()

    for feed in (FEED, {"x": X}):
        come.clear()
        both[0].run_async(["n"], feed, callback, "mine")
        assert come.wait(60)
    (outputs, mine, error), (none, _, wrong) = told
    assert (outputs[0].tolist(), mine, error) == ([2, 0], "mine", "")
    assert none == [] and wrong == "ValueError: inputs lacks 'i'; the network takes 'x', 'i'"


def test_inputs_and_outputs_may_lie_in_memory_of_the_caller(both):
    (right, _), memory = both[1].run(None, FEED), np.full((2, 4, 7, 6), np.nan, "f4")
    for session in both:
        held = ort.OrtValue.ortvalue_from_numpy(np.zeros(2, "u1"))
        binding = session.io_binding()
        binding.bind_input("x", "cpu", 0, np.float32, X.shape, X.ctypes.data)
        binding.bind_ortvalue_input("i", VALUES["i"])
        binding.bind_output("y", "cpu", 0, np.float32, memory.shape, memory.ctypes.data)
        binding.bind_ortvalue_output("n", held)
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(memory, right)
        assert held.numpy().tolist() == [2, 0]
        assert [y.shape() for y in binding.get_outputs()] == [list(right.shape), [2]]
        memory.fill(np.nan)

        binding.clear_binding_outputs()
        binding.bind_output("n")
        binding.bind_cpu_input("i", np.array([7], "u1"))
        session.run_with_iobinding(binding)
        assert [y.tolist() for y in binding.copy_outputs_to_cpu()] == [[8]]
        assert np.isnan(memory).all()  # no longer written to


def test_memory_of_another_shape_is_not_written_to(both):
    binding, memory = both[0].io_binding(), np.full(6, 9, "u1")
    for name, x in FEED.items():
        binding.bind_cpu_input(name, x)
    binding.bind_output("n", "cpu", 0, TensorProto.UINT8, memory.shape, memory.ctypes.data)
    with pytest.raises(ValueError, match=r"output n is bound as uint8 of shape \(6,\), but is uint8"):
        both[0].run_with_iobinding(binding)
    assert (memory == 9).all()


def test_it_stands_in_the_place_of_the_class_itself(monkeypatch):
    node = helper.make_node("Det", ["x"], ["y"])  # which is left to ONNX Runtime
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "y")]
    graph = helper.make_graph([node], "g", [values[0]], [values[1]])
    monkeypatch.setattr(ort, "InferenceSession", Session)
    session = ort.InferenceSession(helper.make_model(graph, ir_version=8).SerializeToString(), providers=CPU)
    (y,) = session.run(None, {"x": np.eye(3, dtype="f4")[None] * 2})
    assert y.tolist() == [8]


def test_outputs_that_are_bound_anew_are_those_of_their_new_memory(both):
    """That of before may be gone."""
    for session in both:
        binding, first = session.io_binding(), ort.OrtValue.ortvalue_from_numpy(np.zeros(2, "u1"))
        for name, x in FEED.items():
            binding.bind_cpu_input(name, x)
        binding.bind_output("y")
        binding.bind_ortvalue_output("n", first)
        session.run_with_iobinding(binding)
        assert [y.numpy().tolist() for y in binding.get_outputs()][1] == [2, 0]
        binding.bind_ortvalue_output("n", ort.OrtValue.ortvalue_from_numpy(np.full(2, 5, "u1")))
        assert [y.tolist() for y in binding.copy_outputs_to_cpu()][1] == [5, 5]
        assert binding.get_outputs()[1].numpy().tolist() == [5, 5]
        session.run_with_iobinding(binding)
        assert binding.copy_outputs_to_cpu()[1].tolist() == first.numpy().tolist() == [2, 0]


@pytest.mark.parametrize("dtype", ["O", "c8"])
def test_constants_of_other_types_than_numbers(dtype):
    known = numpy_helper.from_array(np.ones(2, dtype) if dtype == "c8" else np.array(["a", "b"], dtype), "c")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy")
    outputs = [y, helper.make_tensor_value_info("c", known.data_type, [2])]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [x], outputs, [known])
    read = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session, feed = Session(read.SerializeToString()), {"x": np.ones(3, "f4")}
    if dtype == "O":
        assert session.run(None, feed)[1].tolist() == ["a", "b"]
        return
    with pytest.raises((Unsupported, ValueError), match="complex64"):
        session.run(None, feed)


def test_outputs_without_a_declared_shape_are_told_as_onnxruntime_infers_them(both):
    told = [[(v.name, v.type, list(v.shape)) for v in session.get_outputs()] for session in both]
    assert told[0] == told[1] and told[0][0][2] == ["batch", 4, None, 6]


def test_sizes_that_an_exporter_leaves_open_are_told_where_they_follow():
    def told(path):
        sessions = Session(path), ort.InferenceSession(path)
        return [[(v.name, list(v.shape)) for v in s.get_outputs()] for s in sessions]

    found = onnx.ModelProto.FromString(model())
    for value, shape in zip(found.graph.output, (["b", "c", "h", "w"], ["m"]), strict=True):
        value.CopyFrom(helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, shape))
    own, right = told(found.SerializeToString())
    assert own == right and own[0] == ("y", ["b", 4, "h", 6])
