"""Lists of axes and sizes that an ONNX model gives as numbers, as tables, or wrong."""

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed (CI installs it)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (CI installs it)")
from test_network_onnx import Builder, numbers, reference

from convalgos.network.onnx_reader.graph import from_onnx

SHAPE = (2, 4, 6, 5)
LISTS = {  # operator, lists, attributes, shape of x
    "Expand": ([[5]], {}, (2, 4, 6, 1)),
    "Pad": ([[1, 2], np.float32(3), [2]], {}, SHAPE),
    "Pad by a table": ([[0, 0, 1, 1, 0, 0, 1, 1]], {}, SHAPE),
    "ReduceMean": ([[1]], {"keepdims": 0}, SHAPE),
    "ReduceSum": ([[-1]], {}, SHAPE),
    "Reshape": ([[-1]], {}, SHAPE),
    "Resize": (["", np.array([2], "f4")], {}, (5,)),
    "Resize to sizes": (["", "", [7]], {}, (5,)),
    "Slice": ([[1], [3], [1]], {}, SHAPE),
    "Slice in steps": ([[0], [6], [2], [2]], {}, SHAPE),
    "Slice of the batch": ([[1], [2]], {}, SHAPE),
    "Split": ([[4]], {"axis": 1}, SHAPE),
    "Squeeze": ([[0]], {}, (1, 4, 6, 5)),
    "Tile": ([[2]], {}, (5,)),
    "TopK": ([[2]], {"count": 2}, SHAPE),
    "Unsqueeze": ([[0]], {}, SHAPE),
}


def model_of(op, lists, attributes, shape, written):
    b = Builder(shape, opset=18)
    given = [
        values if isinstance(values, str) else written(np.asarray(values)) if np.ndim(values) else values
        for values in lists
    ]
    made = b.node(op, b.node("Relu", "x"), *given, **attributes)
    return b.model(*([made] if isinstance(made, str) else made))


@pytest.mark.parametrize("written", [np.squeeze, lambda values: values[None]])
@pytest.mark.parametrize("case", LISTS)
def test_numbers_and_tables_are_read_as_lists(case, written):
    lists, attributes, shape = LISTS[case]
    op, x = case.split()[0], numbers(shape)
    expected = reference(model_of(op, lists, attributes, shape, np.array), {"x": x})
    model = model_of(op, lists, attributes, shape, written)
    found = from_onnx(model)(x)
    for y, right in zip(found if isinstance(found, tuple) else (found,), expected, strict=True):
        np.testing.assert_allclose(y, right, rtol=1e-5, atol=1e-6)
        assert y.shape == right.shape


def test_numbers_are_read_where_they_are_computed():
    b = Builder(("n", 4, "h", "w"), opset=18)
    x, zero, one = numbers(SHAPE), np.array(0), np.array(1)
    sizes = b.node("Shape", "x")
    half = b.node("Slice", "x", zero, b.node("Div", b.node("Gather", sizes, one), np.array(2)), one)
    first = b.node("Slice", sizes, zero, np.array(2), zero)
    flat = b.node("Reshape", half, b.node("Concat", first, np.array([-1]), axis=0))
    scale = b.node("Squeeze", b.node("Slice", numbers((2, 3)), zero, one, zero), zero)
    doubled = b.node("Div", b.node("Cast", sizes, to=1), b.node("Cast", sizes, to=1))
    table = b.node("Reshape", b.node("Add", doubled, np.array([0, 0, 1, 1], "f4")), np.array([2, 2]))
    y, made, wide = from_onnx(b.model(flat, scale, b.node("Resize", "x", "", table)))(x)
    np.testing.assert_array_equal(y, x[:, :2].reshape(2, 4, -1))
    assert made.shape == (3,)
    np.testing.assert_array_equal(wide[:, :, ::2, ::2], x)


@pytest.mark.parametrize(
    ("op", "lists", "attributes", "message"),
    [
        ("Slice", [[1], [3, 4], [1]], {}, r"node 'slice0a' \(Slice\) cannot be read"),
        ("Split", [[2, 3]], {"axis": 1}, r"\(Split\).* \[2, 3\] are not those of the parts of 4"),
        ("Split", [[6]], {"axis": 2}, r"\(Split\).* 2 outputs, and its sizes are \[6\]"),
        ("Dropout", [np.array([0.5], "f4")], {}, "does not take what is left to it: .*Dropout"),
    ],
)
def test_what_is_wrong_is_refused_with_the_name_of_the_node(op, lists, attributes, message):
    b = Builder(SHAPE, opset=18)
    made = b.node(op, "x", *map(np.asarray, lists), count=2 if op == "Split" else 1, **attributes)
    with pytest.raises(ValueError, match=message):
        from_onnx(b.model(*([made] if isinstance(made, str) else made)))(numbers(SHAPE))
