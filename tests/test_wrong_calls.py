"""Wrong calls of the public faces are refused by an error that names the argument and its value."""

import re

import numpy as np
import pytest

import convalgos as ca
from convalgos import ndimage

X, W = np.zeros((2, 4, 9, 8), np.float32), np.zeros((6, 4, 3, 3), np.float32)
IMAGE = np.zeros((20, 21), np.float32)
PROBLEM = ca.ConvProblem(X.shape, W.shape, padding=1)
NAN = float("nan")


def bound(**scratch):
    return ca.plan(PROBLEM).bind(X, W, np.zeros(PROBLEM.y_shape, np.float32), **scratch)


WRONG = [
    (lambda: ca.conv(X, W, fill_value="a"), ValueError, "fill_value='a' must be a number"),
    (lambda: ca.conv(X, W, fill_value=2.0), ValueError, "fill_value=2 needs boundary='constant', not 'zero'"),
    (lambda: ca.conv(X, W, padding=1, boundary="edge", fill_value=2), ValueError, "fill_value=2 needs"),
    (lambda: ca.conv([[1], [1, 2]], W), ValueError, "x=list is no array"),
    (lambda: bound(scratch="a"), TypeError, "scratch=str must be None or an array of uint8"),
    (lambda: ca.unregister(3), TypeError, "3 must be the id of an algorithm or the name of a ranker"),
    (lambda: ca.wisdom.export(3), TypeError, "path=3 must be a path"),
    (lambda: ca.wisdom.merge(None), TypeError, "path=None must be a path"),
    (lambda: ca.network.load(None), TypeError, "path=None must be a path"),
    (lambda: ndimage.gaussian_filter(IMAGE, "a"), ValueError, "sigma='a' must be a real number"),
    (lambda: ndimage.gaussian_filter(IMAGE, [1, NAN]), ValueError, "sigma=nan must be finite"),
    (lambda: ndimage.gaussian_filter1d(IMAGE, float("inf")), ValueError, "sigma=inf must be finite"),
    (lambda: ndimage.gaussian_filter(IMAGE, 1, truncate=NAN), ValueError, "truncate=nan must be finite"),
    (lambda: ndimage.gaussian_filter(IMAGE, 1, order="a"), TypeError, "order='a' must be an integer"),
    (lambda: ndimage.gaussian_filter(IMAGE, 1, radius="a"), ValueError, "radius='a' must be an integer"),
    (lambda: ndimage.gaussian_filter(IMAGE, 1, cval="a"), ValueError, "cval='a' must be a real number"),
    (lambda: ndimage.gaussian_filter(IMAGE, 1, output="foo"), TypeError, "output='foo' must be an array"),
    (lambda: ndimage.uniform_filter(IMAGE, NAN), ValueError, "size=nan must be finite"),
    (lambda: ndimage.maximum_filter(IMAGE, 3, origin="a"), TypeError, "origin='a' must be an integer"),
    (lambda: ndimage.correlate(IMAGE, "a"), ValueError, "weights=.*must be an array of real numbers"),
    (lambda: ndimage.correlate1d(IMAGE, "a"), ValueError, "weights=.*must be an array of real numbers"),
    (lambda: ndimage.correlate(IMAGE, W[0, 0], cval="a"), ValueError, "cval='a' must be a real number"),
    (lambda: ndimage.sobel(IMAGE, axis=NAN), TypeError, "axis=nan must be an integer"),
    (lambda: ndimage.uniform_filter(IMAGE, 3, axes=[1.5]), TypeError, "cannot be interpreted as an integer"),
]


@pytest.mark.parametrize("call, kind, told", WRONG, ids=[told for *_, told in WRONG])
def test_the_argument_and_its_value_are_named(call, kind, told):
    with pytest.raises(kind, match=told):
        call()


def test_a_network_is_given_a_dict_and_names(tmp_path):
    onnx = pytest.importorskip("onnx")
    from convalgos.onnx import Session

    sizes = [onnx.helper.make_tensor_value_info(name, 1, (1, 4, 9, 8)) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", sizes[:1], sizes[1:])
    session = Session(onnx.helper.make_model(graph).SerializeToString())
    with pytest.raises(TypeError, match="inputs=list must be a dict of arrays by name"):
        session.run(None, [X[:1]])
    with pytest.raises(TypeError, match="output_names='y' must be None or a list of names"):
        session.run("y", {"x": X[:1]})
    (tmp_path / "model.json").write_text("[1]")
    with pytest.raises(ValueError, match=re.escape("model.json' is no ONNX model")):
        ca.network.from_onnx(tmp_path / "model.json")
