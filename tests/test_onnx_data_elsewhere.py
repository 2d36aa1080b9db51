"""Constants of ONNX models that lie in other files, or are sparse."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from convalgos.network.graph import Foreign  # noqa: E402
from convalgos.onnx import Session  # noqa: E402

X = np.random.default_rng(0).integers(-3, 4, (2, 3, 9, 8)).astype("f4")
W = np.random.default_rng(1).integers(-1, 2, (4, 3, 3, 3)).astype("f4")


def model(initializers=(), sparse=()):
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in
            (("x", ["n", 3, "h", "w"]), ("y", None)))  # fmt: skip
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Relu", ["c"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y], [*initializers], sparse_initializer=[*sparse])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def check(read):
    session = Session(read)
    assert not any(isinstance(step, Foreign) for step in session.network.graph.steps)
    (y,), (right,) = (s.run(None, {"x": X}) for s in (session, ort.InferenceSession(read)))
    np.testing.assert_array_equal(y, right)


def sparse(places, shape=W.shape):
    values = numpy_helper.from_array(W.reshape(-1)[W.reshape(-1) != 0], "w")
    return onnx.SparseTensorProto(values=values, indices=numpy_helper.from_array(places, "p"), dims=shape)


@pytest.mark.parametrize("places", [np.flatnonzero(W), np.argwhere(W)], ids=["counted", "by dimension"])
def test_sparse_filters_are_those_of_a_layer(places):
    if places.ndim == 1:
        check(model(sparse=[sparse(places)]).SerializeToString())
    else:  # ONNX Runtime takes these of two dimensions alone
        ours, dense = (
            Session(model(sparse=[sparse(places)])),
            Session(model([numpy_helper.from_array(W, "w")])),
        )
        np.testing.assert_array_equal(*(s.run(None, {"x": X})[0] for s in (ours, dense)))


@pytest.mark.parametrize(
    ("places", "words"),
    [(np.flatnonzero(W) + 60, "outside its shape"), (np.array([1]), "at places of shape")],
)
def test_sparse_constants_of_no_places_are_refused(places, words):
    with pytest.raises(ValueError, match=f"sparse constant 'w' has .*{words}"):
        Session(model(sparse=[sparse(places)]))


def stored(tmp_path, **told):
    """A model whose filter lies in a file beside it."""
    path = str(tmp_path / "m.onnx")
    read = model([numpy_helper.from_array(W, "w")])
    onnx.save(read, path, save_as_external_data=True, location="m.data", size_threshold=0)
    read = onnx.load(path, load_external_data=False)
    for entry in read.graph.initializer[0].external_data:
        entry.value = str(told.get(entry.key, entry.value))
    onnx.save(read, path)
    return path


@pytest.mark.parametrize("told", [{}, {"length": 0}])
def test_a_length_of_none_is_the_rest_of_the_file(tmp_path, told):
    check(stored(tmp_path, **told))


@pytest.mark.parametrize(
    "told", [{"length": 10**6}, {"length": "x"}, {"offset": 10**9}, {"offset": -4}, {"location": "../m.data"}]
)
def test_data_that_are_not_there_are_told_with_the_file(tmp_path, told):
    with pytest.raises(ValueError, match=r"m\.onnx' has data that cannot be read"):
        Session(stored(tmp_path, **told))
